//! Zoned block devices: what their zones look like and what can be asked of them, as Linux shows it
//! (`linux/blkzoned.h`; NVMe ZNS, ZBC and ZAC drives, null_blk). Places and sizes are bytes.

use std::io;

/// `linux/blkzoned.h` counts in these.
pub(crate) const SECTOR_BYTES: u64 = 512;

/// What a zone takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZoneKind {
    /// Writes anywhere, as on any disk.
    Conventional,
    /// Writes at the write pointer only.
    SequentialRequired,
    /// Writes anywhere, at the write pointer for preference (host-aware drives).
    SequentialPreferred,
}

/// The state of a zone (ZNS command set 1.1 section 2.1.1.2, ZBC-2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZoneCondition {
    /// A conventional zone has none.
    NotWritePointer,
    /// Nothing is written.
    Empty,
    /// Opened by a write.
    ImplicitlyOpen,
    /// Opened by command.
    ExplicitlyOpen,
    /// Partly written; counts as active, not as open.
    Closed,
    /// Written to its end, or finished.
    Full,
    /// Can be read and no more.
    ReadOnly,
    /// Can be neither read nor written.
    Offline,
}

/// One zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Zone {
    /// Its first byte on the device.
    pub start: u64,
    /// From its start to the next zone's.
    pub bytes: u64,
    /// What can be written of that.
    pub capacity_bytes: u64,
    /// The next byte to be written, counted from the start of the device; means nothing unless the zone is empty,
    /// open or closed.
    pub write_pointer: u64,
    /// What it takes.
    pub kind: ZoneKind,
    /// Its state.
    pub condition: ZoneCondition,
}

/// What a zoned device says of itself as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZonedInfo {
    /// From one zone's start to the next.
    pub zone_bytes: u64,
    /// Zones that may be open at once; 0: any number.
    pub open_max: u32,
    /// Zones that may be partly written at once, open or closed; 0: any number.
    pub active_max: u32,
    /// Largest write that goes to the device in one piece.
    pub write_bytes_max: u32,
}

/// What can be done to whole zones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZoneAction {
    /// Empty it: the erase of zoned drives.
    Reset,
    /// Open it until told otherwise.
    Open,
    /// Free what an open zone occupies of the drive.
    Close,
    /// Call it full: frees what an active zone occupies of the drive.
    Finish,
}

/// `struct blk_zone`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct RawZone {
    pub start: u64,
    pub len: u64,
    pub write_pointer: u64,
    pub kind: u8,
    pub condition: u8,
    pub non_sequential: u8,
    pub reset: u8,
    pub reserved: [u8; 4],
    pub capacity: u64,
    pub reserved_too: [u8; 24],
}

impl RawZone {
    /// What Linux says of a zone; `has_capacity` as the report has it.
    pub(crate) fn decode(&self, has_capacity: bool) -> io::Result<Zone> {
        let unknown = |what: &str, value: u8| {
            let text = format!("zone at sector {}: {what} {value} is unknown", self.start);
            io::Error::new(io::ErrorKind::InvalidData, text)
        };
        let bytes = |sectors: u64| {
            sectors.checked_mul(SECTOR_BYTES).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
        };
        Ok(Zone {
            start: bytes(self.start)?,
            bytes: bytes(self.len)?,
            // Before Linux 5.9 the capacity was not reported, and was the size.
            capacity_bytes: bytes(if has_capacity { self.capacity } else { self.len })?,
            // Zones without one say all ones.
            write_pointer: self.write_pointer.saturating_mul(SECTOR_BYTES),
            kind: match self.kind {
                1 => ZoneKind::Conventional,
                2 => ZoneKind::SequentialRequired,
                3 => ZoneKind::SequentialPreferred,
                other => return Err(unknown("kind", other)),
            },
            condition: match self.condition {
                0x0 => ZoneCondition::NotWritePointer,
                0x1 => ZoneCondition::Empty,
                0x2 => ZoneCondition::ImplicitlyOpen,
                0x3 => ZoneCondition::ExplicitlyOpen,
                0x4 => ZoneCondition::Closed,
                0xd => ZoneCondition::ReadOnly,
                0xe => ZoneCondition::Full,
                0xf => ZoneCondition::Offline,
                other => return Err(unknown("condition", other)),
            },
        })
    }
}
