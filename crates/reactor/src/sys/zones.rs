//! Zone commands: Linux has ioctls for them, and neither io_uring nor Linux AIO has any.

use crate::zones::{RawZone, SECTOR_BYTES, Zone, ZoneAction, ZonedInfo};
use std::io;
use std::mem::size_of;
use std::os::fd::RawFd;

/// Says that a report fills in the capacity.
const REPORT_CAPACITY: u32 = 1;
/// Zones of one report, at most: 256 KiB of memory.
const REPORT_ZONES_MAX: u32 = 4096;
/// The letter of the block layer's ioctls.
const BLOCK: u32 = 0x12;

/// `struct blk_zone_report` without its zones.
#[repr(C)]
struct ReportHead {
    sector: u64,
    zones: u32,
    flags: u32,
}

/// `struct blk_zone_range`.
#[repr(C)]
struct RawRange {
    sector: u64,
    sectors: u64,
}

const _: () = assert!(size_of::<ReportHead>() == 16 && size_of::<RawZone>() == 64);

pub(super) fn report(fd: RawFd, from: u64, zones_max: u32) -> io::Result<Vec<Zone>> {
    const UNITS: usize = size_of::<RawZone>() / size_of::<u64>();
    const HEAD_UNITS: usize = size_of::<ReportHead>() / size_of::<u64>();
    let zones = zones_max.clamp(1, REPORT_ZONES_MAX);
    let mut memory = vec![0u64; HEAD_UNITS + zones as usize * UNITS];
    let head = ReportHead { sector: from / SECTOR_BYTES, zones, flags: 0 };
    let address = memory.as_mut_ptr();
    // SAFETY: the memory is aligned for the head and has room for it.
    unsafe { address.cast::<ReportHead>().write(head) };
    // SAFETY: the kernel reads the head and writes at most `zones` zones behind it, for which there is room.
    let result = unsafe { libc::ioctl(fd, libc::_IOWR::<ReportHead>(BLOCK, 130), address) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: still the head, which the kernel may have changed.
    let head = unsafe { address.cast::<ReportHead>().read() };
    let filled = head.zones.min(zones) as usize;
    let has_capacity = head.flags & REPORT_CAPACITY != 0;
    (0..filled)
        .map(|index| {
            // SAFETY: inside the memory, whose units align it, and plain numbers whatever they are.
            let raw = unsafe { address.add(HEAD_UNITS + index * UNITS).cast::<RawZone>().read() };
            raw.decode(has_capacity)
        })
        .collect()
}

pub(super) fn manage(fd: RawFd, action: ZoneAction, start: u64, bytes: u64) -> io::Result<()> {
    let number = match action {
        ZoneAction::Reset => 131,
        ZoneAction::Open => 134,
        ZoneAction::Close => 135,
        ZoneAction::Finish => 136,
    };
    let range = RawRange { sector: start / SECTOR_BYTES, sectors: bytes / SECTOR_BYTES };
    // SAFETY: the kernel reads one range.
    let result = unsafe { libc::ioctl(fd, libc::_IOW::<RawRange>(BLOCK, number), &raw const range) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// What sysfs says of the block device `major:minor`; nothing when its zones need no care.
pub(super) fn zoned_info(major: u32, minor: u32) -> Option<ZonedInfo> {
    let device = format!("/sys/dev/block/{major}:{minor}");
    let read = |name: &str| std::fs::read_to_string(format!("{device}/queue/{name}")).ok();
    // A partition has no queue of its own, and Linux makes none on host-managed drives.
    if read("zoned")?.trim() != "host-managed" {
        return None;
    }
    let number = |name: &str| read(name).and_then(|text| text.trim().parse::<u64>().ok()).unwrap_or(0);
    let limit = |name: &str| u32::try_from(number(name)).unwrap_or(0);
    Some(ZonedInfo {
        zone_bytes: number("chunk_sectors") * SECTOR_BYTES,
        open_max: limit("max_open_zones"),
        active_max: limit("max_active_zones"),
        write_bytes_max: u32::try_from(number("max_sectors_kb") << 10).unwrap_or(u32::MAX),
    })
}
