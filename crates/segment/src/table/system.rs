//! Segments of superblocks and metadata log, where these may move (`home.rs`).
//!
//! Superblocks are sought among the first segments only, so that some of these are *spares*: free, and nothing else gets
//! them. They are chosen anew at each opening and topped up with each metadata record, from what is free there. Where data
//! lies in all of them, because spares were used up or an older build has filled them, the heap offers one of these to be
//! moved as it does what decays ([`Table::in_the_way`]). Flash knows nothing of spares: a power cut leaves a free segment.

use std::collections::BTreeSet;
use std::ops::Range;

use super::{Entry, Table};
use crate::Stream;
use crate::layout::meta::{FLAG_FAILED, SegmentState};

/// Segments of a drive for each spare, of which there are one or two: both superblocks may fail before data has made room.
const SEGMENTS_PER_SPARE: u32 = 32;
const SPARES_MAX: u32 = 2;
/// So many segments are looked up in the sets of free ones; of more, the sets are gone over.
const ASKED_ONE_BY_ONE: usize = 4096;

/// See the module's text.
#[derive(Default)]
pub(super) struct Spares {
    /// Superblocks are sought in so many segments from 0 on. None where they do not move.
    range: u32,
    free: BTreeSet<u32>,
}

impl Table {
    /// Superblocks move among so many segments from 0 on; spares are kept there from the next [`Table::index_free`] on.
    pub(crate) fn keep_for_superblocks(&mut self, range: u32) {
        self.spares.range = range;
    }

    /// Superblocks and metadata lie in these, and in no others, whatever the log says: its records may be older.
    pub(crate) fn set_system(&mut self, segments: &[u32]) {
        for &id in segments {
            let Some(mut entry) = self.entries.try_edit(id) else { continue };
            let erase_count = entry.erase_count;
            *entry = Entry { state: SegmentState::System, erase_count, ..Entry::default() };
        }
        self.pool.retain(|&id| self.entries[id as usize].state == SegmentState::Free);
        self.spares.free.retain(|&id| self.entries[id as usize].state == SegmentState::Free);
    }

    /// A segment failed that held superblocks or metadata, or was to.
    pub(crate) fn retire_system(&mut self, id: u32) {
        let Some(mut entry) = self.entries.try_edit(id) else { return };
        entry.state = SegmentState::Bad;
        drop(entry);
        self.dirty.insert(id);
        self.pool.retain(|&pooled| pooled != id);
        self.spares.free.remove(&id);
    }

    /// A segment for superblocks: a spare, or another free one among the first.
    pub(crate) fn take_for_superblock(&mut self) -> Option<u32> {
        let id = match self.fewest_erases(self.spares.free.iter().copied()) {
            Some(id) => {
                self.spares.free.remove(&id);
                id
            }
            None => self.take_free_in(0..self.spares.range)?,
        };
        // A full drive has room to make, too: it is worth another try.
        self.futile_for_bytes = 0;
        Some(self.begin_system(id))
    }

    /// A free segment for the metadata log, not among those in which superblocks are sought.
    pub(crate) fn take_for_metadata(&mut self) -> Option<u32> {
        let id = self.take_free_in(self.spares.range..self.entries.len() as u32)?;
        Some(self.begin_system(id))
    }

    /// One among those in which superblocks are sought, for a segment that begins with a record: of two spares the second, too,
    /// because a drive without metadata needs no superblock.
    pub(crate) fn take_for_record(&mut self) -> Option<u32> {
        let spare =
            self.fewest_erases(self.spares.free.iter().copied()).filter(|_| self.spares.free.len() > 1);
        let id = self.take_free_in(0..self.spares.range).or(spare)?;
        self.spares.free.remove(&id);
        Some(self.begin_system(id))
    }

    /// Gives back what was taken for superblocks or metadata.
    pub(crate) fn give_back(&mut self, id: u32) {
        self.entries.edit(id).state = SegmentState::Free;
        self.add_free(id);
    }

    fn begin_system(&mut self, id: u32) -> u32 {
        let mut entry = self.entries.edit(id);
        (entry.state, entry.erase_count) = (SegmentState::System, entry.erase_count + 1);
        id
    }

    fn fewest_erases(&self, ids: impl Iterator<Item = u32>) -> Option<u32> {
        ids.min_by_key(|&id| (self.entries[id as usize].erase_count, id))
    }

    /// A free segment of these that is no spare: that with the fewest erases, of those that a durable record names as next if
    /// there is one, and of those that a failed record has named if there is no other.
    fn take_free_in(&mut self, range: Range<u32>) -> Option<u32> {
        let durable = self.pool.len() - self.pool_coming;
        let wanted = |id: &u32| range.contains(id) && self.prewriting != Some(*id);
        let free = || -> Option<u32> {
            // Of many, most are asked for from the whole drive; of few, one by one.
            if range.len() <= ASKED_ONE_BY_ONE {
                self.fewest_erases(range.clone().filter(|&id| self.is_listed(id)).filter(wanted))
            } else {
                self.fewest_erases(self.free.iter().flatten().map(|&(_, id)| id).filter(wanted))
            }
        };
        let id = self
            .fewest_erases(self.pool.iter().take(durable).copied().filter(wanted))
            .or_else(free)
            .or_else(|| self.fewest_erases(self.pool.iter().skip(durable).copied().filter(wanted)))?;
        if let Some(at) = self.pool.iter().position(|&pooled| pooled == id) {
            self.pool_coming -= usize::from(at >= durable);
            self.pool.remove(at);
        }
        self.unlist(id);
        Some(id)
    }

    pub(super) fn spares(&self) -> impl Iterator<Item = u32> + '_ {
        self.spares.free.iter().copied()
    }

    pub(super) fn is_spare(&self, id: u32) -> bool {
        self.spares.free.contains(&id)
    }

    /// Chooses them anew. Everything else is loaded.
    pub(super) fn choose_spares(&mut self) {
        self.spares.free.clear();
        self.keep_spares();
    }

    fn spares_wanted(&self) -> usize {
        match self.spares.range {
            0 => 0,
            _ => (self.entries.len() as u32 / SEGMENTS_PER_SPARE).clamp(1, SPARES_MAX) as usize,
        }
    }

    /// Cleaning needs free segments, too, and without them nothing comes free anywhere.
    fn has_free_for_spares(&self) -> bool {
        self.free_count() > self.reserve / 2
    }

    /// Keeps what is free among the first for superblocks, as far as spares are missing.
    pub(super) fn keep_spares(&mut self) {
        while self.spares.free.len() < self.spares_wanted() && self.has_free_for_spares() {
            let Some(id) = self.take_free_in(0..self.spares.range) else { return };
            self.spares.free.insert(id);
        }
    }

    /// A sealed segment that lies where superblocks lack a spare, and that a recovery would not replay: the one with the least
    /// to move. None while one comes free there anyway.
    pub(super) fn in_the_way(&self, replay_from: u64) -> Option<u32> {
        let wanted = self.spares_wanted();
        if self.spares.free.len() >= wanted || !self.has_free_for_spares() {
            return None;
        }
        let first = &self.entries[..self.spares.range as usize];
        let comes_free = |entry: &&Entry| {
            entry.state == SegmentState::Free || entry.releasing && entry.flags & FLAG_FAILED == 0
        };
        if first.iter().filter(comes_free).count() >= wanted {
            return None;
        }
        let is_movable = |entry: &Entry, id: u32| {
            entry.state == SegmentState::Sealed
                && !entry.claimed
                && !self.is_held(id)
                && entry.unreadable_above.is_none()
                && !(entry.stream == Stream::Commit as u8 && entry.last_seq > replay_from)
        };
        let movable = first.iter().zip(0..).filter(|(entry, id)| is_movable(entry, *id));
        movable.min_by_key(|(entry, id)| (entry.live, *id)).map(|(_, id)| id)
    }
}
