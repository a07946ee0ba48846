//! Memtables that were flushed, and that readers hold nevertheless.
//!
//! 1. A snapshot holds the memtables of its time. Their memory is not free before the last reader of them lets go, and clients
//!    that take a long reply slowly may be many, each with other memtables: what they hold is not lent to rows.
//! 2. When it comes to more than three memtables may take (one snapshot holds two, hardly more), reads that began too long ago
//!    are ended, as where writers need the space that they hold (decision 0026), and memtables that only such reads can see are
//!    emptied: whoever waits for its client does not learn of it for long.
//!
//! (Rejected: to end reads by what they hold. Who reads much at once would never come to the end.)

use std::mem::take;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use pumice_base::sync::lock;
use pumice_reactor::{Nanos, now};

use crate::memtable::Memtable;
use crate::slice::SharedMemtable;
use crate::store::{Inner, READS_MAY_HOLD};

/// Memtables that readers may hold, in full ones.
const HELD_MAX: u64 = 3;

/// See the head of this file.
#[derive(Default)]
pub struct HeldMemtables {
    /// Leaf lock. The oldest first.
    held: Mutex<Vec<Held>>,
    bytes: AtomicU64,
}

struct Held {
    memtable: Weak<Mutex<Memtable>>,
    bytes: u64,
    flushed_at: Nanos,
}

impl HeldMemtables {
    /// Their memory when it was counted last.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Counts what is held still, in bytes.
    pub fn count(&self) -> u64 {
        let mut held = lock(&self.held);
        held.retain(|held| held.memtable.strong_count() > 0);
        let bytes = held.iter().map(|held| held.bytes).sum();
        self.bytes.store(bytes, Ordering::Relaxed);
        bytes
    }

    /// Empties those that were flushed before a time: their readers' pins are older, and were revoked.
    fn empty(&self, before: Nanos) {
        let mut held = lock(&self.held);
        let young = held.partition_point(|held| held.flushed_at < before);
        let old: Vec<Held> = held.drain(..young).collect();
        drop(held);
        for memtable in old.iter().filter_map(|held| held.memtable.upgrade()) {
            let emptied = take(&mut *lock(&memtable));
            // It goes with no lock held.
            drop(emptied);
        }
    }
}

impl Inner {
    /// Memtables were flushed, and nobody but readers looks at them any more.
    pub fn let_memtables_go(&self, flushed: Vec<SharedMemtable>) {
        let flushed_at = now();
        let held = flushed.into_iter().filter(|memtable| Arc::strong_count(memtable) > 1);
        let held: Vec<Held> = held
            .map(|memtable| Held {
                bytes: lock(&memtable).bytes() as u64,
                memtable: Arc::downgrade(&memtable),
                flushed_at,
            })
            .collect();
        lock(&self.memtables.held.held).extend(held);
        if self.memtables.held.count() > HELD_MAX * self.budget.memtable {
            // Whoever holds what was flushed before that began before that.
            let before = now() - READS_MAY_HOLD;
            let ended = self.heap.end_reads(READS_MAY_HOLD);
            self.memtables.held.empty(before);
            if ended > 0 {
                tracing::warn!(readers = ended, "long reads held too much memory of what was written since");
            }
            self.memtables.held.count();
        }
    }
}
