//! Blocks out of a zone report: which zones are blocks, how large a block is, and how far each is programmed.
//!
//! Blocks are the zones that take writes at their write pointers only, in their order on the drive. A zone that has gone
//! read-only or offline stays a block, a bad one, so that no other block's number changes. Conventional zones are left
//! out, and so are sequential ones with less capacity than the first (a drive's last zone may be a runt): both never
//! change. Pure, so that it is tested without a drive.

use pumice_reactor::zones::{Zone, ZoneCondition, ZoneKind, ZonedInfo};

use crate::{FlashError, Geometry};

const PAGE_BYTES: u32 = 4096;
/// As [`Geometry::check`] has it; what is larger is not used to its end.
const BLOCK_BYTES_MAX: u64 = 1 << 30;

/// What is known of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    /// Its zone's first byte on the device.
    pub start: u64,
    /// Pages that were programmed since the last reset.
    pub written: u32,
    /// `written`, and what is on its way.
    pub next: u32,
    /// It takes no more programs before a reset.
    pub failed: bool,
    /// Read-only or offline: it takes no reset either.
    pub bad: bool,
}

/// Whether a zone holds one of the drive's places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    None,
    Closed,
    Open,
}

/// What a drive's zones come to.
#[derive(Debug)]
pub(crate) struct Layout {
    pub geometry: Geometry,
    pub blocks: Vec<Block>,
    /// Blocks that hold one of the drive's places.
    pub active: Vec<(u32, bool)>,
    /// What can be written of all zones together.
    pub raw_bytes: u64,
    /// From the start of one zone to the next.
    pub zone_bytes: u64,
    /// What can be written of a zone.
    pub capacity_bytes: u64,
    /// Zones that are no blocks: conventional or odd ones.
    pub left_out: u32,
}

/// Lays blocks out over `zones`; `alignment` is the drive's logical block.
pub(crate) fn lay_out(zones: &[Zone], info: ZonedInfo, alignment: u32) -> Result<Layout, FlashError> {
    let sequential = |zone: &&Zone| zone.kind == ZoneKind::SequentialRequired;
    let Some(first) = zones.iter().find(sequential) else {
        return Err(FlashError::Geometry("the zoned device has no zone that takes sequential writes".into()));
    };
    let page_bytes = alignment.max(PAGE_BYTES);
    let capacity_bytes = first.capacity_bytes;
    let pages_per_block = (capacity_bytes.min(BLOCK_BYTES_MAX) / u64::from(page_bytes)) as u32;
    let fits = |zone: &&Zone| sequential(zone) && zone.capacity_bytes >= capacity_bytes;
    let (mut blocks, mut active) = (Vec::new(), Vec::new());
    for zone in zones.iter().filter(fits) {
        let (block, place) = state(zone, page_bytes, pages_per_block);
        if place != Place::None {
            active.push((blocks.len() as u32, place == Place::Open));
        }
        blocks.push(block);
    }
    let geometry = Geometry {
        channels: 1,
        dies_per_channel: 1,
        planes_per_die: 1,
        dies_per_block: 1,
        blocks_per_channel: u32::try_from(blocks.len()).unwrap_or(u32::MAX),
        pages_per_block,
        page_bytes,
        read_bytes: alignment.clamp(512, page_bytes),
        oob_bytes: 0,
    };
    geometry.check()?;
    Ok(Layout {
        geometry,
        active,
        raw_bytes: zones.iter().fold(0, |sum: u64, zone| sum.saturating_add(zone.capacity_bytes)),
        zone_bytes: info.zone_bytes,
        capacity_bytes,
        left_out: (zones.len() - blocks.len()) as u32,
        blocks,
    })
}

/// How far a zone is programmed, out of what the drive says of it.
pub(crate) fn state(zone: &Zone, page_bytes: u32, pages_per_block: u32) -> (Block, Place) {
    let at = |written: u32| Block { start: zone.start, written, next: written, failed: false, bad: false };
    let upto = |place: Place| {
        let bytes = zone.write_pointer.saturating_sub(zone.start);
        let pages = u32::try_from(bytes / u64::from(page_bytes)).unwrap_or(u32::MAX).min(pages_per_block);
        // A power cut in mid-page: nothing can be programmed behind a torn page, nor behind the last one.
        let failed = !bytes.is_multiple_of(u64::from(page_bytes)) && pages < pages_per_block;
        (Block { failed, ..at(pages) }, place)
    };
    match zone.condition {
        ZoneCondition::Empty => (at(0), Place::None),
        ZoneCondition::ImplicitlyOpen | ZoneCondition::ExplicitlyOpen => upto(Place::Open),
        ZoneCondition::Closed => upto(Place::Closed),
        // Of a finished zone nobody knows how far it was written: all of it reads.
        ZoneCondition::Full => (at(pages_per_block), Place::None),
        ZoneCondition::ReadOnly | ZoneCondition::Offline | ZoneCondition::NotWritePointer => {
            (Block { failed: true, bad: true, ..at(pages_per_block) }, Place::None)
        }
    }
}
