//! Which commit segments begin with something that is durable: what of them does not read later was lost, and not torn.

use std::collections::BTreeSet;

use super::Table;
use crate::Stream;
use crate::layout::meta::{FLAG_DURABLE, SegmentState};

impl Table {
    /// Notes which of the segments that the next metadata record names begin with a frame that is durable, given that everything up
    /// to `durable_seq` is. Answers those that the record after it has to name: they were written, and are not durable yet.
    pub(super) fn note_durable(&mut self, durable_seq: u64) -> BTreeSet<u32> {
        let mut coming = BTreeSet::new();
        for &id in &self.dirty {
            let mut entry = self.entries.edit(id);
            let is_told = entry.flags & FLAG_DURABLE != 0 || entry.first_frame_seq == 0;
            let is_written = matches!(entry.state, SegmentState::Open | SegmentState::Sealed);
            if is_told || !is_written || entry.stream != Stream::Commit as u8 {
                continue;
            }
            if entry.first_frame_seq <= durable_seq {
                entry.flags |= FLAG_DURABLE;
            } else {
                coming.insert(id);
            }
        }
        coming
    }
}
