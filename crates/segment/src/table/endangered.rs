//! Segments whose records should move while they still read.

use pumice_flash::weak_limit;

use super::{Entry, Table};
use crate::SegmentId;
use crate::layout::meta::{FLAG_FAILED, FLAG_WEAK, SegmentState};

impl Table {
    /// Looks which segments have come near what their code corrects. One bit a segment is all that it takes.
    pub(crate) fn note_weak(&mut self) {
        for id in self.first_data..self.entries.len() as u32 {
            let mut entry = self.entries.edit(id);
            let holds = matches!(entry.state, SegmentState::Open | SegmentState::Sealed);
            let bits = self.device.corrected_bits_max(self.geometry.block(id));
            if holds && entry.flags & FLAG_WEAK == 0 && bits.is_some_and(|(most, of)| most > weak_limit(of)) {
                entry.flags |= FLAG_WEAK;
                self.dirty.insert(id);
                self.may_be_endangered = true;
            }
        }
    }

    /// Segments that are weak.
    pub(crate) fn weak_count(&self) -> u32 {
        let is_weak = |entry: &Entry| {
            entry.flags & FLAG_WEAK != 0 && matches!(entry.state, SegmentState::Open | SegmentState::Sealed)
        };
        self.entries().filter(|(_, entry)| is_weak(entry)).count() as u32
    }

    /// A sealed segment whose records should move while they read: one that failed, or a weak one; or because superblocks lack
    /// its place. As a victim it is not offered again until it was released or unclaimed.
    pub(crate) fn endangered(&mut self, replay_from: u64) -> Option<SegmentId> {
        let id = self.decaying().or_else(|| self.in_the_way(replay_from))?;
        self.entries.edit(id).claimed = true;
        Some(SegmentId(id))
    }

    fn decaying(&mut self) -> Option<u32> {
        if !self.may_be_endangered {
            return None;
        }
        let wanted = |(id, entry): &(SegmentId, &Entry)| {
            entry.state == SegmentState::Sealed
                && !entry.claimed
                && !self.is_held(id.0)
                // Emptied as far as it reads.
                && entry.unreadable_above.is_none()
                && entry.flags & (FLAG_FAILED | FLAG_WEAK) != 0
        };
        // The failed ones first: nothing is left of them but what reads now.
        let found =
            self.entries().filter(wanted).min_by_key(|(id, entry)| (entry.flags & FLAG_FAILED == 0, *id));
        let found = found.map(|(id, _)| id.0);
        // One that is being written is met again when it is sealed.
        self.may_be_endangered = found.is_some() || !self.held.is_empty();
        found
    }
}
