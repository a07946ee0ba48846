//! Memtables that are not full lend their memory to the row caches.
//!
//! Together they may take a fifth of the memory, which is idle where little is written. Rows go the moment that writes
//! want it back, a little at a time; a part is never lent, because what rows leave is not at once of use to others
//! (an allocator keeps freed rows for rows).
//!
//! And rows pay for what the process takes beyond all plans: [`Store::withhold_from_rows`].

use std::sync::atomic::{AtomicU64, Ordering};

use crate::store::{Inner, Store};

/// Memtables grow by so much, or shrink, before rows give way, or take it.
pub const LENDING_STEP_BYTES: u64 = 2 << 20;
/// Never lent, at least: a process of 128 MiB and less has no such memory idle.
const KEPT_BACK_MIN_BYTES: u64 = 16 << 20;

/// What row caches were given beside their own memory, and do without.
#[derive(Default)]
pub(crate) struct Lending {
    /// What memtables held when the rest was lent last, in bytes.
    pub lent_beside: AtomicU64,
    /// What row caches do without, in bytes: see [`Store::withhold_from_rows`].
    pub withheld_bytes: AtomicU64,
}

impl Inner {
    /// Memory of the active and the sealed memtables, in bytes.
    pub fn memtables_hold(&self) -> u64 {
        self.memtables.active_bytes.load(Ordering::Relaxed)
            + self.memtables.sealed_bytes.load(Ordering::Relaxed)
    }

    /// Bytes of both memtables, the active and the sealed, that are lent from now on.
    pub fn lend(&self) -> u64 {
        let held = self.memtables_hold();
        self.lending.lent_beside.store(held, Ordering::Relaxed);
        let kept_back = (self.budget.memtable / 4).max(KEPT_BACK_MIN_BYTES);
        (2 * self.budget.memtable).saturating_sub(held + self.memtables.held.count() + kept_back)
    }

    /// Called when memtables have grown, with no slice locked.
    pub fn take_back_lent(&self) {
        if self.memtables_hold().abs_diff(self.lending.lent_beside.load(Ordering::Relaxed))
            >= LENDING_STEP_BYTES
        {
            self.fit_row_caches();
        }
    }
}

impl Store {
    /// From now on the row caches have so many bytes less than planned, or none; answers by how many that is less now. Rows and kept
    /// pieces of large values are what can go at once and costs no more than reads, so they make up for what the process takes
    /// beyond what anybody planned.
    pub fn withhold_from_rows(&self, bytes: u64) -> u64 {
        let withheld = bytes.min(self.inner.planned_for_rows());
        self.inner.lending.withheld_bytes.store(withheld, Ordering::Relaxed);
        self.inner.fit_row_caches();
        withheld
    }
}
