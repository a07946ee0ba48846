//! Bringing from memory what is about to be looked up.
//!
//! A key's row is found through an index, and is one place in memory, as the key's place in the index is: where there are many keys, who
//! looks one up waits for both. Who knows what comes says so two looks before, when the place in the index begins to come, and one look
//! before, when that is there and the row begins to.

use pumice_base::sync::try_lock;

use crate::cache::rows::APART_FROM_BYTES;
use crate::hash_index::Whereabouts;
use crate::slice::key_hash;
use crate::store::Store;
use crate::types::SliceId;

/// Of a long value the processor sees by itself what is read.
const PREFETCHED_BYTES_MAX: usize = 2 << 10;

/// Where the indexes of a slice lie: known without its lock.
#[derive(Default)]
pub struct Indexes {
    rows: Whereabouts,
    active: Whereabouts,
}

/// A key that is looked up soon.
#[derive(Clone, Copy, Debug)]
pub struct Coming {
    hash: u64,
    key_bytes: usize,
}

impl Store {
    /// Begins to bring from memory what tells [`Store::prefetch`] where `key` lies, if it was asked for others of the slice lately. A
    /// hint: a wrong one costs what it brings.
    #[inline]
    pub fn prefetch_index(&self, slice: SliceId, key: &[u8]) -> Coming {
        let coming = Coming { hash: key_hash(key), key_bytes: key.len() };
        let indexes = &self.inner.indexes[usize::from(slice.0)];
        indexes.rows.prefetch(coming.hash as u32);
        indexes.active.prefetch(coming.hash as u32);
        coming
    }

    /// Begins to bring from memory what a look at a key meets soon, whose value is thought to have so many bytes. A hint: wrong
    /// ones cost what they bring, and while another core has the key's slice nothing is done.
    pub fn prefetch(&self, slice: SliceId, coming: Coming, value_bytes: usize) {
        let at = usize::from(slice.0);
        let Some(mut state) = try_lock(&self.inner.slices[at]) else { return };
        let indexes = &self.inner.indexes[at];
        // What lies apart is where its row says.
        let beside = if value_bytes < APART_FROM_BYTES { value_bytes } else { 0 };
        let bytes = coming.key_bytes + beside.min(PREFETCHED_BYTES_MAX);
        state.rows.note(&indexes.rows);
        if !state.rows.prefetch(coming.hash, bytes)
            && let Some(mut active) = try_lock(&state.active)
        {
            active.note(&indexes.active);
            active.prefetch(coming.hash, bytes);
        }
    }
}
