//! Segments that are free and not in the pool, in the order in which they are taken.

use std::collections::BTreeSet;

use super::Table;
use crate::layout::meta::{FLAG_WRITTEN, SegmentState};

impl Table {
    /// To be called once everything is loaded: builds the free lists.
    pub(crate) fn index_free(&mut self) {
        self.open_on.fill(0);
        // Sets are made of lists, much faster than by one insertion after the other: that was most of what opening a drive of TiBs cost.
        let mut free = vec![Vec::new(); self.free.len()];
        for (id, entry) in (0..).zip(self.entries.iter()) {
            let channel = usize::from(self.geometry.block(id).channel);
            match entry.state {
                SegmentState::Open => self.open_on[channel] += 1,
                SegmentState::Free if id >= self.first_data => free[channel].push(self.in_order(id)),
                _ => {}
            }
        }
        self.free = free.into_iter().map(BTreeSet::from_iter).collect();
        for at in 0..self.pool.len() {
            self.unlist(self.pool[at]);
        }
        self.choose_spares();
    }

    /// Its place among those that are free.
    fn in_order(&self, id: u32) -> (u32, u32) {
        let entry = &self.entries[id as usize];
        (if self.prefer_written { u32::from(entry.flags & FLAG_WRITTEN == 0) } else { entry.erase_count }, id)
    }

    /// Whether it is in the sets.
    pub(super) fn is_listed(&self, id: u32) -> bool {
        self.is_free(id)
            && self.free[usize::from(self.geometry.block(id).channel)].contains(&self.in_order(id))
    }

    /// Takes it out of the sets, if it is there: nothing that its place depends on changes while it is.
    pub(super) fn unlist(&mut self, id: u32) {
        if (id as usize) < self.entries.len() {
            let place = self.in_order(id);
            self.free[usize::from(self.geometry.block(id).channel)].remove(&place);
        }
    }

    pub(super) fn add_free(&mut self, id: u32) {
        let channel = usize::from(self.geometry.block(id).channel);
        let place = self.in_order(id);
        self.free[channel].insert(place);
    }

    pub(super) fn take_free(&mut self) -> Option<u32> {
        if self.prefer_written {
            // One order over all channels: they are one disk anyway.
            let best =
                (0..self.free.len()).filter_map(|c| self.free[c].first().map(|first| (*first, c))).min();
            let ((order, id), channel) = best?;
            self.free[channel].remove(&(order, id));
            return Some(id);
        }
        for _ in 0..self.free.len() {
            let channel = self.next_channel;
            self.next_channel = (channel + 1) % self.free.len();
            if let Some((_, id)) = self.free[channel].pop_first() {
                return Some(id);
            }
        }
        None
    }
}
