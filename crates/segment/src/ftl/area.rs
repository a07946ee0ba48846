//! Where checkpoints lie: on a few blocks of the drive's first ones, the *window*, which hold nothing else.
//!
//! 1. Formatting keeps the first good blocks: twice what a checkpoint takes, and two spares. On most drives that is four
//!    blocks in all, each on another channel. One that fails is made up for by another of the window (`recruit.rs`).
//! 2. A checkpoint goes to blocks that the newest one does not lie on, those with the fewest erases; so the newest whole one
//!    is there at every moment. Of several the one with the highest generation counts.
//! 3. Opening reads the first page of each block of the window: which of them hold checkpoints no fixed place could say, as
//!    any block may wear out. What users wrote is told from it by the tag beside the page.
//! 4. A clean checkpoint answers for everything until a mark lies behind it. Opening writes the mark before anything else.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use pumice_flash::{BlockAddr, FlashError, Geometry};
use pumice_reactor::{IoBuf, spawn};

use super::blocks::{BlockState, Role};
use super::checkpoint::{
    ENTRY_BYTES, MARK_BYTES, PART_HEADER_BYTES, PartHeader, Payload, decode_payload, encode_mark, is_mark,
};
use super::media::Media;
use super::{Class, Inner, RawError};

/// Blocks beyond two checkpoints' worth.
const SPARES: usize = 2;
/// Pages of a checkpoint that are programmed in one turn.
const CHUNK_PAGES: u32 = 16;
/// The window is one block of so many, ...
const WINDOW_SHARE: u32 = 16;
/// ... but not more than these, ...
const WINDOW_MAX: u32 = 64;
/// ... unless so many times what is kept of it at once are more.
const WINDOW_LIVES: u32 = 4;

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

/// Blocks that are kept for checkpoints at a time.
pub(crate) fn kept_count(geometry: Geometry) -> u32 {
    (2 * parts_max(geometry) + SPARES) as u32
}

/// Blocks, from number 0 on, that checkpoints may ever lie on. On a drive of 704 GiB whose 64 wear out only after 192,000
/// checkpoints, every 22,000 erases and whenever a block fails, the other blocks are gone before.
pub(crate) fn window(geometry: Geometry) -> u32 {
    let least = WINDOW_LIVES * kept_count(geometry);
    (geometry.block_count() / WINDOW_SHARE).clamp(least, least.max(WINDOW_MAX)).min(geometry.block_count())
}

/// The blocks for checkpoints of a new drive, by number: the first that neither the factory nor `before` calls bad.
///
/// # Errors
/// [`FlashError::Geometry`] when nothing would be left of the drive.
pub(crate) fn fresh(media: &Media, before: Option<&Loaded>) -> Result<Vec<u32>, RawError> {
    let geometry = media.geometry();
    let wanted = kept_count(geometry);
    let is_bad = |&number: &u32| {
        let known = before.is_some_and(|loaded| loaded.states[number as usize].role() == Role::Bad);
        known || media.device().is_factory_bad(geometry.block(number))
    };
    let good = (0..window(geometry)).filter(|number| !is_bad(number));
    let blocks: Vec<u32> = good.take(wanted as usize).collect();
    if blocks.len() < wanted as usize || wanted * 2 > geometry.block_count() {
        let why = format!("{wanted} blocks are needed for checkpoints, too many of what is there");
        return Err(FlashError::Geometry(format!("{geometry}: {why}")).into());
    }
    Ok(blocks)
}

/// Reads the whole parts that blocks of the window begin with, side by side.
async fn read_parts(media: &Arc<Media>) -> Result<Vec<Result<Part, RawError>>, RawError> {
    let readers: Vec<_> = (0..window(media.geometry()))
        .map(|block| {
            let media = Arc::clone(media);
            spawn(async move { (block, read_part(&media, block).await) })
        })
        .collect();
    let mut found = Vec::new();
    for reader in readers {
        match super::joined(reader).await {
            (block, Ok(Some((header, payload)))) => found.push(Ok(Part { header, block, payload })),
            (_, Ok(None)) => {}
            // Says of that part alone that it cannot be used.
            (_, Err(error @ RawError::Version { .. })) => found.push(Err(error)),
            (_, Err(error)) => return Err(error),
        }
    }
    Ok(found)
}

/// A part of a checkpoint that verifies, and the block it lies on.
struct Part {
    header: PartHeader,
    block: u32,
    payload: Vec<u8>,
}

/// Reads the whole part that block number `block` begins with, if there is one.
async fn read_part(media: &Media, block: u32) -> Result<Option<(PartHeader, Vec<u8>)>, RawError> {
    let geometry = media.geometry();
    let at = geometry.block(block);
    let head = match media.read_untagged(at).await {
        Ok(Some(head)) => head,
        Ok(None) => return Ok(None),
        // The media say that it is bad: it may answer whatever it likes.
        Err(FlashError::Gone { operation }) => return Err(FlashError::Gone { operation }.into()),
        Err(_) if media.device().is_factory_bad(at) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let Some(len) = PartHeader::part_bytes(&head) else { return Ok(None) };
    if len > part_payload_bytes(geometry) + PART_HEADER_BYTES {
        return Ok(None);
    }
    let mut buf = head;
    if len > buf.len() {
        let whole = IoBuf::for_read(len.next_multiple_of(geometry.page_bytes as usize));
        let result;
        (result, buf) = media.read_block(at, 0, whole).await;
        if !reads(result)? {
            return Ok(None);
        }
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
pub(crate) async fn load(media: &Arc<Media>) -> Result<Option<Loaded>, RawError> {
    let geometry = media.geometry();
    let mut found: Vec<Part> = read_parts(media).await?.into_iter().collect::<Result<_, _>>()?;
    found.sort_by_key(|part| (std::cmp::Reverse(part.header.generation), part.header.part));
    let of_one = |a: &Part, b: &Part| {
        a.header.generation == b.header.generation && a.header.drive_id == b.header.drive_id
    };
    for group in found.chunk_by(of_one) {
        let header = group[0].header;
        let parts = group.iter().map(|part| part.header.part);
        if header.parts as usize != group.len() || !parts.eq(0..header.parts) {
            continue;
        }
        let bytes: Vec<u8> = group.iter().flat_map(|part| part.payload.iter().copied()).collect();
        if !header.fits(geometry, media.in_band()) {
            let (formatted, found) = (header.geometry(header.page_bytes).to_string(), geometry.to_string());
            return Err(RawError::Shape { formatted, found });
        }
        let Some(payload) = decode_payload(&bytes, geometry.block_count() as usize) else { continue };
        let place = Place {
            blocks: group.iter().map(|part| part.block).collect(),
            mark_page: mark_page(geometry, group[group.len() - 1].payload.len()),
        };
        let is_current = header.clean && !is_marked(media, &header, &place).await?;
        let Payload { mut states, ids } = payload;
        for &block in &place.blocks {
            // Erased for this checkpoint, which was put together before.
            let state = &mut states[block as usize];
            *state = BlockState::new(state.role(), state.erases() + 1);
        }
        return Ok(Some(Loaded { header, states, ids, is_current, place }));
    }
    Ok(None)
}

/// The highest generation of any part, whole or not, whatever it belongs to; 0 where there is none.
pub(crate) async fn newest_generation(media: &Arc<Media>) -> Result<u64, RawError> {
    let parts = read_parts(media).await?.into_iter().flatten();
    Ok(parts.map(|part| part.header.generation).max().unwrap_or(0))
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
        let marked = self.media.program(geometry.block(block), place.mark_page, page.freeze()).await;
        self.media.device().finish(geometry.block(block));
        marked
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
            let taken = |block: &u32| current.blocks.contains(block) || place.blocks.contains(block);
            let kept = self.kept_blocks().into_iter().filter(|(block, _)| !taken(block));
            let Some((block, _)) = kept.min_by_key(|(block, state)| (state.erases(), *block)) else {
                return Err(self.checkpoints_worn());
            };
            match self.write_part(geometry.block(block), &header.encode(block, bytes)).await {
                Ok(()) => {
                    // Only the mark may come behind it.
                    if !(header.clean && header.part + 1 == header.parts) {
                        self.media.device().finish(geometry.block(block));
                    }
                    place.blocks.push(block);
                    place.mark_page = mark_page(geometry, bytes.len());
                }
                Err(FlashError::ProgramFailed { .. } | FlashError::EraseFailed { .. }) => {
                    self.retire_kept(block);
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
        // Worn blocks lose what they took before their programs fail, and nobody reads a checkpoint again until it is needed.
        if self.media.device().corrected_bits_max(block).is_some() {
            let whole = IoBuf::for_read(bytes.len().next_multiple_of(geometry.page_bytes as usize));
            let grant = scheduler.turn(Class::Read).await;
            let (result, _) = self.media.read_block(block, 0, whole).await;
            drop(grant);
            match result {
                Ok(false) => {}
                Ok(true) | Err(FlashError::Uncorrectable { .. }) => {
                    return Err(FlashError::ProgramFailed { block, page: 0 });
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Blocks that are kept for checkpoints, by number.
    pub(super) fn kept_blocks(&self) -> Vec<(u32, BlockState)> {
        let kept = self.window_blocks();
        kept.into_iter().filter(|(_, state)| state.role() == Role::System).collect()
    }

    /// All blocks that may be.
    pub(super) fn window_blocks(&self) -> Vec<(u32, BlockState)> {
        let geometry = self.media.geometry();
        let state = |number: u32| {
            let at = geometry.block(number);
            (number, self.blocks(at.channel).state(at.block))
        };
        (0..window(geometry)).map(state).collect()
    }

    /// A block for checkpoints failed.
    pub(super) fn retire_kept(&self, number: u32) {
        let at = self.media.geometry().block(number);
        self.media.device().finish(at);
        self.blocks(at.channel).set_system(at.block, true);
        self.bad_found.fetch_add(1, Ordering::AcqRel);
    }

    pub(super) fn checkpoints_worn(&self) -> RawError {
        let blocks = self.window_blocks();
        let bad = blocks.iter().filter(|(_, state)| state.role() == Role::Bad).count();
        RawError::CheckpointsWorn { blocks: blocks.len(), bad }
    }
}
