//! What a drive in a file holds of its file system's space, and giving some of it back.

use std::collections::BTreeSet;

use super::Table;
use crate::SegmentId;
use crate::layout::meta::FLAG_WRITTEN;

/// Free segments of a drive that takes space as it is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Growth {
    /// Those whose bytes were written before: the file keeps their space for them.
    pub held: u32,
    /// Those that were never written, or given back: the file grows when one is opened.
    pub fresh: u32,
}

impl Table {
    /// `None` where nobody else could use the space: on media of our own, and where all of it was taken in advance.
    pub(crate) fn growth(&self) -> Option<Growth> {
        if !self.device.takes_space_as_written() {
            return None;
        }
        let sums = self.entries.sums();
        let growth = Growth { held: sums.free_written as u32, fresh: sums.free_fresh as u32 };
        (sums.allocated == 0).then_some(growth)
    }

    /// Takes a free segment whose space is held out of use until [`Table::end_give_back`]. Not one of the pool, which may be opened
    /// at any time, nor one that recovery would still look into.
    pub(crate) fn begin_give_back(&mut self) -> Option<SegmentId> {
        self.growth()?;
        let is_held = |&(_, id): &(u32, u32)| {
            self.entries[id as usize].flags & FLAG_WRITTEN != 0
                && !self.freeing.contains(&id)
                && !self.is_spare(id)
        };
        // Written ones have the lower order.
        let last = |set: &BTreeSet<(u32, u32)>| set.range(..(1, 0)).rev().copied().find(is_held);
        let (channel, found) =
            (0..self.free.len()).find_map(|channel| Some((channel, last(&self.free[channel])?)))?;
        self.free[channel].remove(&found);
        Some(SegmentId(found.1))
    }

    /// Its space was given back, or not.
    pub(crate) fn end_give_back(&mut self, segment: SegmentId, done: bool) {
        if done {
            self.entries.edit(segment.0).flags &= !FLAG_WRITTEN;
            self.dirty.insert(segment.0);
        }
        self.add_free(segment.0);
    }
}
