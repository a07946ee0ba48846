//! Segments of superblocks and metadata log, where these may move (`home.rs`).

use std::ops::Range;

use super::{Entry, Table};
use crate::layout::meta::SegmentState;

impl Table {
    /// Superblocks and metadata lie in these, and in no others, whatever the log says: its records may be older.
    pub(crate) fn set_system(&mut self, segments: &[u32]) {
        for &id in segments {
            let Some(entry) = self.entries.get_mut(id as usize) else { continue };
            let erase_count = entry.erase_count;
            *entry = Entry { state: SegmentState::System, erase_count, ..Entry::default() };
        }
        self.pool.retain(|&id| self.entries[id as usize].state == SegmentState::Free);
    }

    /// A segment failed that held superblocks or metadata, or was to.
    pub(crate) fn retire_system(&mut self, id: u32) {
        let Some(entry) = self.entries.get_mut(id as usize) else { return };
        entry.state = SegmentState::Bad;
        self.dirty.insert(id);
        self.pool.retain(|&pooled| pooled != id);
    }

    /// A free segment of these for superblocks or metadata: that with the fewest erases, of those that a durable record names as
    /// next if there is one, and of those that a failed record has named if there is no other.
    pub(crate) fn take_for_system(&mut self, range: Range<u32>) -> Option<u32> {
        let durable = self.pool.len() - self.pool_coming;
        let fewest = |ids: &mut dyn Iterator<Item = u32>| {
            let wanted = ids.filter(|id| range.contains(id) && self.prewriting != Some(*id));
            wanted.min_by_key(|&id| (self.entries[id as usize].erase_count, id))
        };
        let id = fewest(&mut self.pool.iter().take(durable).copied())
            .or_else(|| fewest(&mut self.free.iter().flatten().map(|&(_, id)| id)))
            .or_else(|| fewest(&mut self.pool.iter().skip(durable).copied()))?;
        if let Some(at) = self.pool.iter().position(|&pooled| pooled == id) {
            self.pool_coming -= usize::from(at >= durable);
            self.pool.remove(at);
        }
        for set in &mut self.free {
            set.retain(|&(_, free)| free != id);
        }
        let entry = &mut self.entries[id as usize];
        (entry.state, entry.erase_count) = (SegmentState::System, entry.erase_count + 1);
        Some(id)
    }

    /// Gives back what [`Table::take_for_system`] took.
    pub(crate) fn give_back(&mut self, id: u32) {
        self.entries[id as usize].state = SegmentState::Free;
        self.add_free(id);
    }
}
