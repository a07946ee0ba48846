//! Where checkpoints lie: on the first good blocks of the drive, which hold nothing else.
//!
//! 1. The blocks follow from the shape and the factory's marks: twice what a checkpoint takes, and two spares. On most
//!    drives that is four blocks in all, each on another channel.
//! 2. A checkpoint goes to blocks that the newest one does not lie on, those with the fewest erases; so the newest whole one
//!    is there at every moment. Of several the one with the highest generation counts.
//! 3. A clean checkpoint answers for everything until a mark lies behind it. Opening writes the mark before anything else.

use std::sync::atomic::Ordering;

use pumice_flash::{BlockAddr, FlashError, Geometry};
use pumice_reactor::IoBuf;

use super::blocks::BlockState;
use super::checkpoint::{
    ENTRY_BYTES, MARK_BYTES, PART_HEADER_BYTES, PartHeader, Payload, decode_payload, encode_mark, is_mark,
};
use super::media::Media;
use super::{Class, Inner, RawError};

/// Blocks beyond two checkpoints' worth.
const SPARES: usize = 2;
/// Pages of a checkpoint that are programmed in one turn.
const CHUNK_PAGES: u32 = 16;

/// The newest whole checkpoint.
pub(crate) struct Loaded {
    pub header: PartHeader,
    pub states: Vec<BlockState>,
    pub ids: Vec<(u32, u128)>,
    /// Clean, and the drive was not opened since.
    pub is_current: bool,
    pub place: Place,
}

/// Where a checkpoint lies, its parts in order, and the page for its mark.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Place {
    pub blocks: Vec<u32>,
    pub mark_page: u32,
}

fn part_payload_bytes(geometry: Geometry) -> usize {
    // The last page of a block stays free for the mark.
    (geometry.block_bytes() - geometry.page_bytes) as usize - PART_HEADER_BYTES
}

/// Parts of the largest checkpoint.
fn parts_max(geometry: Geometry) -> usize {
    (geometry.block_count() as usize * ENTRY_BYTES).div_ceil(part_payload_bytes(geometry))
}

/// The blocks for checkpoints, by number.
///
/// # Errors
/// [`FlashError::Geometry`] when nothing would be left of the drive.
pub(crate) fn blocks(media: &Media) -> Result<Vec<u32>, RawError> {
    let geometry = media.geometry();
    let wanted = 2 * parts_max(geometry) + SPARES;
    let good = (0..geometry.block_count()).filter(|&n| !media.device().is_factory_bad(geometry.block(n)));
    let blocks: Vec<u32> = good.take(wanted).collect();
    if blocks.len() < wanted || wanted * 2 > geometry.block_count() as usize {
        let why = format!("{wanted} blocks are needed for checkpoints, too many of what is there");
        return Err(FlashError::Geometry(format!("{geometry}: {why}")).into());
    }
    Ok(blocks)
}

/// Reads the whole part that block number `block` begins with, if there is one.
async fn read_part(media: &Media, block: u32) -> Result<Option<(PartHeader, Vec<u8>)>, RawError> {
    let geometry = media.geometry();
    let at = geometry.block(block);
    let (result, buf) = media.read_block(at, 0, IoBuf::for_read(geometry.page_bytes as usize)).await;
    if !reads(result)? {
        return Ok(None);
    }
    let Some(len) = PartHeader::part_bytes(&buf) else { return Ok(None) };
    if len > part_payload_bytes(geometry) + PART_HEADER_BYTES {
        return Ok(None);
    }
    let (result, buf) =
        media.read_block(at, 0, IoBuf::for_read(len.next_multiple_of(geometry.page_bytes as usize))).await;
    if !reads(result)? {
        return Ok(None);
    }
    match PartHeader::decode(block, &buf[..len]) {
        Ok(found) => Ok(found.map(|(header, payload)| (header, payload.to_vec()))),
        Err(version) => Err(RawError::Version { block: at, version }),
    }
}

/// Whether a page was there to be read.
///
/// # Errors
/// Whatever says nothing of the page.
fn reads(result: Result<bool, FlashError>) -> Result<bool, RawError> {
    match result {
        Ok(_) => Ok(true),
        Err(FlashError::ReadPastWritePointer { .. } | FlashError::Uncorrectable { .. }) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// The newest checkpoint that is whole, whatever shape it was written for if it is one part.
pub(crate) async fn load(media: &Media) -> Result<Option<Loaded>, RawError> {
    let geometry = media.geometry();
    let mut found = Vec::new();
    for block in blocks(media)? {
        if let Some((header, payload)) = read_part(media, block).await? {
            found.push((header, block, payload));
        }
    }
    found.sort_by_key(|(header, ..)| (std::cmp::Reverse(header.generation), header.part));
    for group in found.chunk_by(|a, b| a.0.generation == b.0.generation && a.0.drive_id == b.0.drive_id) {
        let header = group[0].0;
        let parts = group.iter().map(|(header, ..)| header.part);
        if header.parts as usize != group.len() || !parts.eq(0..header.parts) {
            continue;
        }
        let bytes: Vec<u8> = group.iter().flat_map(|(.., payload)| payload.iter().copied()).collect();
        if !header.fits(geometry, media.in_band()) {
            let (formatted, found) = (header.geometry(header.page_bytes).to_string(), geometry.to_string());
            return Err(RawError::Shape { formatted, found });
        }
        let Some(payload) = decode_payload(&bytes, geometry.block_count() as usize) else { continue };
        let place = Place {
            blocks: group.iter().map(|&(_, block, _)| block).collect(),
            mark_page: mark_page(geometry, group[group.len() - 1].2.len()),
        };
        let is_current = header.clean && !is_marked(media, &header, &place).await?;
        let Payload { states, ids } = payload;
        return Ok(Some(Loaded { header, states, ids, is_current, place }));
    }
    Ok(None)
}

/// The highest generation of any part, whole or not, whatever it belongs to; 0 where there is none.
pub(crate) async fn newest_generation(media: &Media) -> Result<u64, RawError> {
    let mut newest = 0;
    for block in blocks(media)? {
        if let Ok(Some((header, _))) = read_part(media, block).await {
            newest = newest.max(header.generation);
        }
    }
    Ok(newest)
}

fn mark_page(geometry: Geometry, payload_bytes: usize) -> u32 {
    (PART_HEADER_BYTES + payload_bytes).div_ceil(geometry.page_bytes as usize) as u32
}

/// Whether the drive was opened since a clean checkpoint. A mark that does not read is one.
async fn is_marked(media: &Media, header: &PartHeader, place: &Place) -> Result<bool, RawError> {
    let geometry = media.geometry();
    let block = place.blocks[place.blocks.len() - 1];
    let buf = IoBuf::for_read(geometry.page_bytes as usize);
    let (result, buf) =
        media.read_block(geometry.block(block), place.mark_page * geometry.page_bytes, buf).await;
    match result {
        Ok(_) => Ok(is_mark(block, header.drive_id, header.generation, &buf)),
        Err(FlashError::ReadPastWritePointer { .. }) => Ok(false),
        Err(FlashError::Uncorrectable { .. }) => Ok(true),
        Err(error) => Err(error.into()),
    }
}

impl Inner {
    /// Marks the newest checkpoint: the drive is in use again.
    pub(crate) async fn write_mark(&self, place: &Place, generation: u64) -> Result<(), FlashError> {
        let geometry = self.media.geometry();
        let block = place.blocks[place.blocks.len() - 1];
        let mut page = IoBuf::zeroed(geometry.page_bytes as usize);
        page[..MARK_BYTES].copy_from_slice(&encode_mark(block, self.drive_id, generation));
        self.media.program(geometry.block(block), place.mark_page, page.freeze()).await
    }

    /// Writes the parts of a checkpoint, each to a good block that `current` does not lie on. Nothing, when a block fails:
    /// it is bad from then on, which the checkpoint did not say.
    ///
    /// # Errors
    /// [`RawError::CheckpointsWorn`] when there are too few; the device's errors.
    pub(crate) async fn write_parts(
        &self,
        header: PartHeader,
        payload: &[u8],
        current: &Place,
    ) -> Result<Option<Place>, RawError> {
        let geometry = self.media.geometry();
        let cut: Vec<&[u8]> = payload.chunks(part_payload_bytes(geometry)).collect();
        let mut place = Place { blocks: Vec::new(), mark_page: 0 };
        for (part, bytes) in (0..).zip(&cut) {
            let header = PartHeader { part, parts: cut.len() as u32, ..header };
            let block = {
                let taken = |block: &u32| current.blocks.contains(block) || place.blocks.contains(block);
                let free = self.area.iter().copied().filter(|block| !taken(block));
                let state = |number: u32| {
                    let at = geometry.block(number);
                    self.blocks(at.channel).state(at.block)
                };
                let good = free.filter(|&block| state(block).role() == super::blocks::Role::System);
                let Some(block) = good.min_by_key(|&block| state(block).erases()) else {
                    let bad = self.area.iter().filter(|&&n| state(n).role() == super::blocks::Role::Bad);
                    return Err(RawError::CheckpointsWorn { blocks: self.area.len(), bad: bad.count() });
                };
                block
            };
            match self.write_part(geometry.block(block), &header.encode(block, bytes)).await {
                Ok(()) => {
                    place.blocks.push(block);
                    place.mark_page = mark_page(geometry, bytes.len());
                }
                Err(FlashError::ProgramFailed { .. } | FlashError::EraseFailed { .. }) => {
                    let at = geometry.block(block);
                    self.blocks(at.channel).set_system(at.block, true);
                    self.bad_found.fetch_add(1, Ordering::AcqRel);
                    return Ok(None);
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(Some(place))
    }

    async fn write_part(&self, block: BlockAddr, bytes: &[u8]) -> Result<(), FlashError> {
        let geometry = self.media.geometry();
        let scheduler = &self.channel(block.channel).scheduler;
        let grant = scheduler.turn(Class::UrgentErase).await;
        let erased = self.media.device().erase(block).await;
        drop(grant);
        erased?;
        self.blocks(block.channel).set_system(block.block, false);
        let chunk_bytes = (CHUNK_PAGES * geometry.page_bytes) as usize;
        for (chunk, at) in bytes.chunks(chunk_bytes).zip((0..).step_by(CHUNK_PAGES as usize)) {
            let mut buf = IoBuf::zeroed(chunk.len().next_multiple_of(geometry.page_bytes as usize));
            buf[..chunk.len()].copy_from_slice(chunk);
            let grant = scheduler.turn(Class::Program).await;
            let programmed = self.media.program(block, at, buf.freeze()).await;
            drop(grant);
            programmed?;
        }
        Ok(())
    }
}
