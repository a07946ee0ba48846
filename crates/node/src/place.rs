//! Where a user key lives: a drive of this server, and a slice of that drive.
//!
//! Keys are spread by Redis Cluster's slots, so that keys which share a `{tag}` share a drive and a slice, and
//! so that a slot can later move whole.

use pumice_base::slot::slot_of;
use pumice_kv::SliceId;

/// A drive (index in the set) and a slice of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place {
    /// Index of the drive in its set.
    pub drive: u16,
    /// The drive's slice.
    pub slice: SliceId,
}

/// The rule from slot to place, fixed when the set is made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Placement {
    pub drives: u16,
    pub slices: u16,
}

impl Placement {
    pub fn of_slot(self, slot: u16) -> Place {
        // Divisions are what a key costs here, so the usual sets of drives go without.
        let (drive, at) = if self.drives == 1 { (0, slot) } else { (slot % self.drives, slot / self.drives) };
        let slice = if self.slices.is_power_of_two() { at & (self.slices - 1) } else { at % self.slices };
        Place { drive, slice: SliceId(slice) }
    }

    pub fn of_key(self, user_key: &[u8]) -> Place {
        self.of_slot(slot_of(user_key))
    }
}
