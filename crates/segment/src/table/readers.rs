//! Readers' pins, and which released segments they hold back.

use pumice_reactor::Nanos;

use super::{Released, Table};
use crate::pins::Revoked;

impl Table {
    pub(crate) fn pin(&mut self, now: Nanos) -> (u64, Revoked) {
        if self.pins.are_old(self.epoch, now) {
            self.epoch += 1;
        }
        (self.epoch, self.pins.take(self.epoch, now))
    }

    pub(crate) fn unpin(&mut self, epoch: u64, revoked: &Revoked) {
        self.pins.give_back(epoch, revoked);
    }

    /// Revokes pins taken before a time if users wait for what they hold back; answers how many.
    pub(crate) fn revoke_pins(&mut self, before: Nanos) -> u32 {
        let held_back = self.releasing.iter().any(|releasing| self.pinned(releasing.epoch));
        if !held_back || self.has_room() { 0 } else { self.pins.revoke(before) }
    }

    /// Revokes the pins that were taken before a time; answers how many.
    pub(crate) fn end_reads(&mut self, before: Nanos) -> u32 {
        self.pins.revoke(before)
    }

    pub(super) fn pinned(&self, released_at: u64) -> bool {
        self.pins.hold(released_at)
    }

    /// Released segments, by what they wait for.
    pub(crate) fn released_segments(&self) -> Released {
        let held = self.releasing.iter().filter(|releasing| self.pinned(releasing.epoch)).count() as u32;
        Released { held, ready: self.releasing.len() as u32 - held }
    }
}
