//! One slice's state in memory. Any core may take its lock; nobody holds it across I/O.
//!
//! A look-up asks, in this order: the row cache (coherent: every write takes its key out), the active memtable,
//! sealed memtables from the newest on, and then, without the lock, the key tables.

use std::sync::{Arc, Mutex};

use pumice_base::hash::HashState;
use pumice_base::sync::lock;
use std::hash::BuildHasher;

use crate::cache::refused::Refused;
use crate::cache::rows::RowCache;
use crate::entry::KeyEntry;
use crate::memtable::{Memtable, NewBody, NewVersion, Replaced};
use crate::scan::gaps::Gaps;
use crate::table::version::Version;
use crate::types::{Entry, Seq};

/// The hash that memtables take of a key.
pub fn key_hash(key: &[u8]) -> u64 {
    HashState.hash_one(key)
}

/// Of so many look-ups that key tables or the log's tail answered from memory one puts its row into the cache: a hot key is soon
/// there, and what comes once pays a quarter.
const FOUND_PER_KEPT: u64 = 4;

/// Gaps that a slice remembers.
const GAPS_MAX: usize = 512;

/// A memtable that may be shared with snapshots and with its flush.
pub type SharedMemtable = Arc<Mutex<Memtable>>;

/// See the head of this file.
pub struct Slice {
    /// Takes the writes.
    pub active: SharedMemtable,
    /// No longer written, not yet in key tables; the newest first.
    pub sealed: Vec<SharedMemtable>,
    /// The key tables.
    pub version: Arc<Version>,
    /// Hot rows.
    pub rows: RowCache,
    /// Rises when the active memtable is sealed.
    pub epoch: u64,
    /// Where scans found nothing.
    pub gaps: Gaps<Box<[u8]>>,
    /// Versions inserted that are no tombstones: what was put while a scan went on may lie in what seems a gap.
    pub puts: u64,
    /// Look-ups that memory answered, but neither the row cache nor a memtable alone.
    found_elsewhere: u64,
    /// Keys whose rows flash answered and the full row cache did not take.
    refused: Refused,
}

impl Slice {
    /// An empty slice whose row cache holds `row_bytes`.
    pub fn new(row_bytes: u64) -> Self {
        Self {
            active: Arc::default(),
            sealed: Vec::new(),
            version: Arc::default(),
            rows: RowCache::new(row_bytes),
            epoch: 0,
            gaps: Gaps::new(GAPS_MAX),
            puts: 0,
            found_elsewhere: 0,
            refused: Refused::default(),
        }
    }

    /// The newest version that a memtable holds.
    pub fn in_memtables(&self, hash: u64, key: &[u8]) -> Option<KeyEntry> {
        let found = lock(&self.active).get(hash, key);
        found.or_else(|| self.sealed.iter().find_map(|sealed| lock(sealed).get(hash, key)))
    }

    /// The number of the newest version that a memtable holds.
    pub fn seq_in_memtables(&self, hash: u64, key: &[u8]) -> Option<Seq> {
        let found = lock(&self.active).seq_of(hash, key);
        found.or_else(|| self.sealed.iter().find_map(|sealed| lock(sealed).seq_of(hash, key)))
    }

    /// Inserts a version into the active memtable and takes the row out of the cache. Answers what went, and by
    /// how many bytes the memtable grew.
    pub fn insert(&mut self, key: &[u8], new: &NewVersion<'_>, newest_snapshot: Seq) -> (Replaced, usize) {
        let hash = key_hash(key);
        let inserted = self.insert_into_memtable(hash, key, new, newest_snapshot);
        if !self.rows.is_empty() {
            self.rows.remove(hash, key);
        }
        inserted
    }

    /// [`Slice::insert`] of a version whose value is that of the newest one: a row that is cached stays.
    pub fn insert_with_same_value(
        &mut self,
        key: &[u8],
        new: &NewVersion<'_>,
        newest_snapshot: Seq,
    ) -> (Replaced, usize) {
        let hash = key_hash(key);
        let inserted = self.insert_into_memtable(hash, key, new, newest_snapshot);
        if !self.rows.is_empty() {
            self.rows.renew(hash, key, new.seq, new.expire_ms);
        }
        inserted
    }

    fn insert_into_memtable(
        &mut self,
        hash: u64,
        key: &[u8],
        new: &NewVersion<'_>,
        newest_snapshot: Seq,
    ) -> (Replaced, usize) {
        let mut active = lock(&self.active);
        let before = active.bytes();
        let replaced = active.insert(hash, key, new, newest_snapshot);
        let grown = active.bytes() - before;
        drop(active);
        if !matches!(new.body, NewBody::Tombstone) {
            self.puts += 1;
            if !self.gaps.is_empty() {
                self.gaps.fill(key);
            }
        }
        (replaced, grown)
    }

    /// A look-up was answered from memory, by neither a row nor a memtable alone: whether its row is to be cached.
    pub fn keeps_found(&mut self) -> bool {
        self.found_elsewhere += 1;
        self.found_elsewhere.is_multiple_of(FOUND_PER_KEPT)
    }

    /// Whether a row that flash answered is to be cached: while there is room each is, then those asked for again before long.
    pub fn keeps_read(&mut self, key: &[u8], row: &Entry) -> bool {
        self.rows.has_room_for(key, &row.value) || self.refused.take_or_put(key_hash(key), self.rows.len())
    }

    /// Whether version `seq` of `key` (`None`: that there is none) is the newest still, which was read in `epoch` or later (`None`: some time
    /// ago). `false` also where memory cannot tell.
    pub fn is_newest(&self, epoch: Option<u64>, key: &[u8], seq: Option<Seq>) -> bool {
        match self.seq_in_memtables(key_hash(key), key) {
            Some(newest) => seq == Some(newest),
            // Nothing was sealed since: what is newer would be here.
            None => epoch == Some(self.epoch),
        }
    }

    /// Caches a row that was read while the slice was in `epoch`, unless the key was written since. Its value holds no
    /// memory but its own.
    pub fn fill(&mut self, epoch: u64, key: &[u8], entry: &Entry) {
        let hash = key_hash(key);
        if self.epoch != epoch || self.seq_in_memtables(hash, key).is_some_and(|seq| seq > entry.seq) {
            return;
        }
        self.rows.insert(hash, key, entry);
    }
}
