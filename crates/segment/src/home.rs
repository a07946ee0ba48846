//! Where a drive's superblocks and metadata log lie, and what becomes of them when a block fails there.
//!
//! On media whose blocks turn bad (superblocks of version 2) both may move: a segment of the metadata log that failed, or is
//! worn, is replaced by a free one before its half is written again; a superblock that names the new place is durable first,
//! and until the snapshot behind it is, the other half holds. A segment of superblocks that failed is replaced by a free one
//! among the first, where they are sought. On other drives they stay where they were formatted.
//!
//! Rejected: spare segments kept for this alone; the heap's reserve has some at all times.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pumice_flash::{Device, FlashError};
use pumice_reactor::{IoBuf, WriteSync};

use crate::HeapError;
use crate::inner::Inner;
use crate::layout::superblock::{Placed, RETIRED_MAX, Superblock, range_segments};

/// Segments that may fail in a row before a superblock is given up.
const TRIES: usize = 4;

/// See the module's text. What changes it holds the metadata log's turn.
pub(crate) struct Home(Mutex<State>);

struct State {
    superblock: Arc<Superblock>,
    /// The segment that holds the newest superblock.
    at: u32,
    /// Segments of the metadata log to be replaced before they are written again.
    spoilt: BTreeSet<u32>,
}

impl Home {
    pub(crate) fn new(superblock: Superblock, at: u32) -> Self {
        Self(Mutex::new(State { superblock: Arc::new(superblock), at, spoilt: BTreeSet::new() }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The newest superblock.
    pub(crate) fn superblock(&self) -> Arc<Superblock> {
        Arc::clone(&self.state().superblock)
    }

    /// Whether the newest superblock lies in this segment.
    pub(crate) fn is_at(&self, segment: u32) -> bool {
        self.state().at == segment
    }

    /// Segment `segment` of the metadata log is not to be trusted again.
    pub(crate) fn spoil(&self, segment: u32) {
        let mut state = self.state();
        if state.superblock.placed.as_ref().is_some_and(|placed| placed.meta.contains(&segment)) {
            state.spoilt.insert(segment);
        }
    }

    /// [`Home::spoil`] for the block that an error names.
    pub(crate) fn note_failure(&self, device: &Device, error: &FlashError) {
        if let FlashError::ProgramFailed { block, .. } | FlashError::EraseFailed { block } = error {
            self.spoil(device.geometry().number(*block));
        }
    }
}

/// Replaces what is spoilt of a half of the metadata log, before its next snapshot is composed.
///
/// # Errors
/// The device's; [`HeapError::Damaged`] when no superblock can be written.
pub(crate) async fn mend(inner: &Inner, half: usize) -> Result<(), HeapError> {
    let (superblock, spoilt) = {
        let state = inner.home.state();
        (Arc::clone(&state.superblock), state.spoilt.clone())
    };
    let mut next = (*superblock).clone();
    let Some(placed) = next.placed.as_mut().filter(|_| !spoilt.is_empty()) else { return Ok(()) };
    let per_half = superblock.meta_half_segments as usize;
    let range = range_segments(superblock.segment_count);
    let mut replaced = Vec::new();
    for (index, segment) in placed.meta[half * per_half..(half + 1) * per_half].iter_mut().enumerate() {
        if !spoilt.contains(segment) {
            continue;
        }
        let mut table = inner.table();
        // Not among those in which superblocks are sought, unless a record begins there: a client's bytes could look like one.
        let fresh = table.take_for_system(range..superblock.segment_count).or_else(|| match index {
            0 => table.take_for_system(0..range),
            _ => None,
        });
        // Without a free one what failed is tried once more, as on other drives; the record that is composed for it frees some.
        let Some(fresh) = fresh else { break };
        replaced.push((*segment, fresh));
        *segment = fresh;
    }
    if replaced.is_empty() {
        return Ok(());
    }
    retire(placed, replaced.iter().map(|&(old, _)| old));
    match write(inner, next, false).await {
        Ok(()) => {
            let mut table = inner.table();
            replaced.iter().for_each(|&(old, _)| table.retire_system(old));
            drop(table);
            let mut state = inner.home.state();
            state.spoilt.retain(|segment| !replaced.iter().any(|(old, _)| old == segment));
            Ok(())
        }
        Err(error) => {
            let mut table = inner.table();
            replaced.iter().for_each(|&(_, fresh)| table.give_back(fresh));
            Err(error)
        }
    }
}

fn retire(placed: &mut Placed, segments: impl IntoIterator<Item = u32>) {
    placed.retired.extend(segments);
    let over = placed.retired.len().saturating_sub(RETIRED_MAX);
    placed.retired.drain(..over);
}

/// Writes the superblock again in the other segment, because where it lies decays.
///
/// # Errors
/// The device's.
pub(crate) async fn renew(inner: &Inner) -> Result<(), HeapError> {
    let superblock = inner.home.superblock();
    if superblock.placed.is_none() { Ok(()) } else { write(inner, (*superblock).clone(), true).await }
}

/// Writes a superblock that follows the newest, durable on return: behind it, or in the other segment.
async fn write(inner: &Inner, mut next: Superblock, elsewhere: bool) -> Result<(), HeapError> {
    let (device, geometry) = (&inner.device, inner.device.geometry());
    let mut at = inner.home.state().at;
    let mut is_fresh = false;
    next.sequence += 1;
    for _ in 0..TRIES {
        let len = next.encoded_bytes().next_multiple_of(geometry.page_bytes as usize);
        let pages = (len / geometry.page_bytes as usize) as u32;
        let written = device.write_pointer(geometry.block(at)).unwrap_or(geometry.pages_per_block);
        if !is_fresh && (elsewhere || written + pages > geometry.pages_per_block) {
            at = other(&next, at);
            is_fresh = true;
        }
        let result = write_at(device, &next, at, if is_fresh { None } else { Some(written) }).await;
        let Err(error) = result else {
            let system = next.system_segments();
            let mut state = inner.home.state();
            (state.superblock, state.at) = (Arc::new(next), at);
            drop(state);
            inner.table().set_system(&system);
            return Ok(());
        };
        if !matches!(error, FlashError::ProgramFailed { .. } | FlashError::EraseFailed { .. }) {
            return Err(error.into());
        }
        // The newest one stays readable where it is until this one is durable elsewhere.
        let range = range_segments(next.segment_count);
        let fresh = inner.table().take_for_system(0..range);
        let failed = at;
        at = other(&next, failed);
        is_fresh = true;
        if let (Some(fresh), Some(placed)) = (fresh, next.placed.as_mut()) {
            placed.superblocks.iter_mut().filter(|place| **place == failed).for_each(|place| *place = fresh);
            retire(placed, [failed]);
            inner.table().retire_system(failed);
        }
        if at == inner.home.state().at {
            // It holds the newest one, which must not be erased: the fresh one is next.
            at = fresh.ok_or_else(|| HeapError::Damaged("no segment takes a superblock any more".into()))?;
        }
    }
    Err(HeapError::Damaged("superblocks failed in several segments in a row".into()))
}

fn other(superblock: &Superblock, at: u32) -> u32 {
    let places = superblock.placed.as_ref().map_or([0, 1], |placed| placed.superblocks);
    if places[0] == at { places[1] } else { places[0] }
}

/// Programs a superblock from a page on, or from the start of a segment that is erased first.
pub(crate) async fn write_at(
    device: &Device,
    superblock: &Superblock,
    segment: u32,
    page: Option<u32>,
) -> Result<(), FlashError> {
    let geometry = device.geometry();
    let block = geometry.block(segment);
    if page.is_none() {
        device.erase(block).await?;
    }
    let len = superblock.encoded_bytes().next_multiple_of(geometry.page_bytes as usize);
    let mut buf = IoBuf::zeroed(len);
    superblock.encode(&mut buf);
    device.program(block, page.unwrap_or(0), buf.freeze(), WriteSync::Durable).await
}
