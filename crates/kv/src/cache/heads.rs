//! Which heads of key tables stay in memory where not all of them fit.
//!
//! 1. Filters of the last runs go first. A look-up that comes to a slice's last run mostly finds its key there, and then the filter has
//!    told it nothing; one for a key that is nowhere reads a block in vain. (A filter is half of a head.)
//! 2. Then whole heads go, clock-wise: whoever was asked for since the hand last came by is spared once.
//! 3. Where tables have become so few that all heads fit twice, those without filters go, too: they are read again, whole.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use pumice_base::sync::lock;

use crate::table::version::{Table, Version};

/// So much of their share is free after a sweep: otherwise each head that is read would need another.
const SWEPT_PART: u64 = 8;

/// Keeps heads within `most` bytes.
#[derive(Debug)]
pub struct HeadSweep {
    most: u64,
    /// How many tables sweeps went over.
    hand: AtomicUsize,
}

impl HeadSweep {
    /// Nothing was swept yet.
    pub fn new(most: u64) -> Self {
        Self { most, hand: AtomicUsize::new(0) }
    }

    /// Bytes that heads may have.
    pub fn most(&self) -> u64 {
        self.most
    }

    /// Lets go of what is too much in the heads of all slices. Answers how many bytes are left.
    pub fn sweep(&self, versions: &[Arc<Version>]) -> u64 {
        let tables: Vec<&Arc<Table>> = versions.iter().flat_map(|version| version.tables()).collect();
        let bytes = tables.iter().map(|table| held_bytes(table)).sum();
        if bytes > self.most {
            return self.shrink(versions, &tables, bytes, self.most - self.most / SWEPT_PART);
        }
        let whole: u64 = tables.iter().map(|table| u64::from(table.meta.head_len)).sum();
        if whole > self.most / 2 {
            return bytes;
        }
        bytes.saturating_sub(tables.iter().map(|table| drop_without_filter(table)).sum())
    }

    fn shrink(&self, versions: &[Arc<Version>], tables: &[&Arc<Table>], mut bytes: u64, most: u64) -> u64 {
        let last: Vec<&Arc<Table>> =
            versions.iter().filter_map(|version| version.runs.last()).flat_map(|run| run.tables()).collect();
        for _ in 0..last.len() {
            if bytes <= most {
                return bytes;
            }
            // Others may have read heads since they were counted.
            bytes = bytes.saturating_sub(drop_filter(last[self.next() % last.len()]));
        }
        for _ in 0..2 * tables.len() {
            if bytes <= most {
                return bytes;
            }
            let table = tables[self.next() % tables.len()];
            if !table.used.swap(false, Ordering::Relaxed) {
                let given_back = lock(&table.head).take().map_or(0, |head| head.bytes() as u64);
                bytes = bytes.saturating_sub(given_back);
            }
        }
        bytes
    }

    fn next(&self) -> usize {
        self.hand.fetch_add(1, Ordering::Relaxed)
    }
}

fn held_bytes(table: &Table) -> u64 {
    lock(&table.head).as_ref().map_or(0, |head| head.bytes() as u64)
}

/// Answers how many bytes that gives back; those of a head that somebody still looks at are counted as given back, too.
fn drop_filter(table: &Table) -> u64 {
    let mut held = lock(&table.head);
    let Some(head) = held.as_mut().filter(|head| head.has_filter()) else { return 0 };
    let before = head.bytes();
    Arc::make_mut(head).drop_filter();
    (before - head.bytes()) as u64
}

fn drop_without_filter(table: &Table) -> u64 {
    let mut held = lock(&table.head);
    held.take_if(|head| !head.has_filter()).map_or(0, |head| head.bytes() as u64)
}
