//! Pins: readers that may come to what was released since they began, which is why it is not reused.
//!
//! Who reads for long, because a client takes its time, must not keep the drive from writing: when users wait for segments
//! that only old pins hold back, these are revoked. Their owners learn it from the flag, which is set before anything
//! they might read is reused.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use pumice_reactor::Nanos;

/// Pins taken within this time share one group, and its age.
const GROUP: Duration = Duration::from_millis(250);

/// Set when a pin holds no more.
pub(crate) type Revoked = Arc<AtomicBool>;

/// Live pins, by the number of segments that had been released before.
#[derive(Default)]
pub(crate) struct Pins {
    groups: BTreeMap<u64, Group>,
}

struct Group {
    count: u32,
    since: Nanos,
    revoked: Revoked,
}

impl Pins {
    /// Whether a pin taken now must not join those of this epoch.
    pub(crate) fn are_old(&self, epoch: u64, now: Nanos) -> bool {
        self.groups.get(&epoch).is_some_and(|group| group.since + GROUP < now)
    }

    pub(crate) fn take(&mut self, epoch: u64, now: Nanos) -> Revoked {
        let new = || Group { count: 0, since: now, revoked: Revoked::default() };
        let group = self.groups.entry(epoch).or_insert_with(new);
        group.count += 1;
        group.revoked.clone()
    }

    pub(crate) fn give_back(&mut self, epoch: u64, revoked: &Revoked) {
        // Of a revoked one nothing is left; others may have the same epoch by now.
        if revoked.load(Ordering::Relaxed) {
            return;
        }
        if let Some(group) = self.groups.get_mut(&epoch) {
            group.count -= 1;
            if group.count == 0 {
                self.groups.remove(&epoch);
            }
        }
    }

    /// Whether what was released at this epoch must be kept.
    pub(crate) fn hold(&self, released_at: u64) -> bool {
        self.groups.first_key_value().is_some_and(|(&oldest, _)| oldest <= released_at)
    }

    /// Revokes those that were taken before a time; answers how many.
    pub(crate) fn revoke(&mut self, before: Nanos) -> u32 {
        let mut revoked = 0;
        self.groups.retain(|_, group| {
            let is_old = group.since < before;
            if is_old {
                group.revoked.store(true, Ordering::Release);
                revoked += group.count;
            }
            !is_old
        });
        revoked
    }
}
