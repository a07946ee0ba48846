//! Where a drive's superblocks and metadata log lie, and what becomes of them when a block fails there.
//!
//! On media whose blocks turn bad (superblocks of version 2) both may move: a segment of the metadata log that failed, or is
//! worn, is replaced by a free one before its half is written again; a superblock that names the new place is durable first,
//! and until the snapshot behind it is, the other half holds. A segment of superblocks that failed is replaced by a free one
//! among the first, where they are sought: the segment table keeps spares there (`table/system.rs`). Should these have failed,
//! too, what is spoilt of the log is written once more as it is. On other drives they stay where they were formatted.
//!
//! Rejected: the heap's reserve instead of spares; it has free segments at all times, but none need be among the first.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard};

use pumice_base::sync::lock;
use pumice_flash::{Device, FlashError};
use pumice_reactor::{IoBuf, WriteSync};

use crate::inner::Inner;
use crate::layout::superblock::{Placed, RETIRED_MAX, Superblock, range_segments};
use crate::{HeapError, wear};

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
        lock(&self.0)
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

/// Replaces what is spoilt of a half of the metadata log, before its next snapshot is composed. Answers false when no superblock
/// can be written that would say so: what failed is tried once more then, because data may make room for one later.
///
/// # Errors
/// The device's.
pub(crate) async fn mend(inner: &Inner, half: usize) -> Result<bool, HeapError> {
    let (superblock, spoilt) = {
        let state = inner.home.state();
        (Arc::clone(&state.superblock), state.spoilt.clone())
    };
    let mut next = (*superblock).clone();
    let Some(placed) = next.placed.as_mut().filter(|_| !spoilt.is_empty()) else { return Ok(true) };
    let per_half = superblock.meta_half_segments as usize;
    let mut replaced = Vec::new();
    for (index, segment) in placed.meta[half * per_half..(half + 1) * per_half].iter_mut().enumerate() {
        if !spoilt.contains(segment) {
            continue;
        }
        let mut table = inner.table();
        // Not among those in which superblocks are sought, unless a record begins there: a client's bytes could look like one.
        let fresh = table.take_for_metadata().or_else(|| match index {
            0 => table.take_for_record(),
            _ => None,
        });
        // Without a free one what failed is tried once more, as on other drives; the record that is composed for it frees some.
        let Some(fresh) = fresh else { break };
        replaced.push((*segment, fresh));
        *segment = fresh;
    }
    if replaced.is_empty() {
        return Ok(true);
    }
    retire(placed, replaced.iter().map(|&(old, _)| old));
    let written = write(inner, next, false).await;
    let mut table = inner.table();
    if matches!(written, Ok(true)) {
        replaced.iter().for_each(|&(old, _)| table.retire_system(old));
        drop(table);
        let mut state = inner.home.state();
        state.spoilt.retain(|segment| !replaced.iter().any(|(old, _)| old == segment));
    } else {
        replaced.iter().for_each(|&(_, fresh)| table.give_back(fresh));
    }
    written
}

fn retire(placed: &mut Placed, segments: impl IntoIterator<Item = u32>) {
    placed.retired.extend(segments);
    let over = placed.retired.len().saturating_sub(RETIRED_MAX);
    placed.retired.drain(..over);
}

/// Writes the superblock again in the other segment, because where it lies decays.
///
/// # Errors
/// The device's; [`HeapError::Damaged`] when no segment takes it, and it stays where it is.
pub(crate) async fn renew(inner: &Inner) -> Result<(), HeapError> {
    let superblock = inner.home.superblock();
    match superblock.placed.is_none() || write(inner, (*superblock).clone(), true).await? {
        true => Ok(()),
        false => Err(HeapError::Damaged(no_place(&superblock))),
    }
}

/// What there is to say when no segment takes a superblock.
pub(crate) fn no_place(superblock: &Superblock) -> String {
    let range = range_segments(superblock.segment_count);
    format!(
        "none of the first {range} segments takes a superblock any more: they failed, or hold data that could not \
         move yet"
    )
}

/// Writes a superblock that follows the newest, durable on return: behind it, in the other segment, or in a free one of the
/// first. Answers false when none of them takes it: the newest holds then. Each place is tried once.
async fn write(inner: &Inner, mut next: Superblock, elsewhere: bool) -> Result<bool, HeapError> {
    let (device, geometry) = (&inner.device, inner.device.geometry());
    let newest_at = inner.home.state().at;
    let (mut at, mut failed) = (newest_at, BTreeSet::new());
    loop {
        // What a program that failed has left may read: it is older than what goes elsewhere.
        next.sequence += 1;
        let len = next.encoded_bytes().next_multiple_of(geometry.page_bytes as usize);
        let pages = (len / geometry.page_bytes as usize) as u32;
        let written = device.write_pointer(geometry.block(at)).unwrap_or(geometry.pages_per_block);
        if at == newest_at && (elsewhere || written + pages > geometry.pages_per_block) {
            at = other(&next, at);
        }
        let page = (at == newest_at).then_some(written);
        let mut result = write_at(device, &next, at, page).await;
        if result.is_ok() {
            // One that does not read would leave the place of the log's next half unknown.
            let first = page.unwrap_or(0);
            let read = wear::check_vital(device, geometry.block(at), first..first + pages).await;
            result = read.map(drop);
        }
        let Err(error) = result else {
            let system = next.system_segments();
            let mut state = inner.home.state();
            (state.superblock, state.at) = (Arc::new(next), at);
            drop(state);
            inner.table().set_system(&system);
            return Ok(true);
        };
        if !matches!(error, FlashError::ProgramFailed { .. } | FlashError::EraseFailed { .. }) {
            return Err(error.into());
        }
        failed.insert(at);
        let fresh = inner.table().take_for_superblock();
        if let (Some(fresh), Some(placed)) = (fresh, next.placed.as_mut()) {
            placed.superblocks.iter_mut().filter(|place| **place == at).for_each(|place| *place = fresh);
            retire(placed, [at]);
            inner.table().retire_system(at);
        }
        // The newest one stays readable where it is until this one is durable elsewhere.
        let places = next.placed.as_ref().map_or([newest_at; 2], |placed| placed.superblocks);
        match places.into_iter().find(|place| *place != newest_at && !failed.contains(place)) {
            Some(place) => at = place,
            None => {
                let before = inner.home.superblock().system_segments();
                let mut table = inner.table();
                failed.iter().filter(|place| !before.contains(place)).for_each(|&id| table.retire_system(id));
                return Ok(false);
            }
        }
    }
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
