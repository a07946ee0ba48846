//! Room in the metadata log for the bounds of key tables (`bounds`).
//!
//! Keys that begin alike for thousands of bytes need bounds as long as that, and who writes enough of them could fill the log: the drive
//! would take no writes for ever, not even deletes. So half of the log is what bounds may take. Long keys are refused beyond; what
//! memtables may add to that is guessed, and flushed before it is too much.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use pumice_segment::AppendClass;

use crate::batch::Batch;
use crate::bounds::SHORT_KEY_BYTES;
use crate::errors::WriteError;
use crate::store::Inner;

/// What keys of a few KiB add to the bounds of tables of 2 MiB.
const FEW_BYTES: u64 = 32;

/// What bounds take, and may take.
#[derive(Debug)]
pub struct BoundsRoom {
    /// Bytes that the log has for everything.
    log_bytes: u64,
    /// Bytes of the tables' bounds.
    tables: AtomicU64,
    /// Bytes that the memtables' keys may add, at most.
    ahead: AtomicU64,
    /// A write waits for memtables to become tables, which tells what their bounds really take.
    wants_flush: AtomicBool,
}

impl BoundsRoom {
    pub fn new(log_bytes: u64) -> Self {
        Self {
            log_bytes,
            tables: AtomicU64::new(0),
            ahead: AtomicU64::new(0),
            wants_flush: AtomicBool::new(false),
        }
    }

    /// Tables have come or gone.
    pub fn set_tables(&self, bytes: u64) {
        self.tables.store(bytes, Ordering::Relaxed);
    }

    pub fn wants_flush(&self) -> bool {
        self.wants_flush.load(Ordering::Relaxed)
    }

    pub fn ahead(&self) -> u64 {
        self.ahead.load(Ordering::Relaxed)
    }

    /// What was `ahead` when memtables were put aside is in tables.
    pub fn flushed(&self, ahead: u64) {
        self.ahead.fetch_sub(ahead, Ordering::Relaxed);
        self.wants_flush.store(false, Ordering::Relaxed);
    }
}

impl Inner {
    /// A key was put into a memtable.
    pub fn note_key(&self, len: usize) {
        if len > SHORT_KEY_BYTES {
            self.bounds_room.ahead.fetch_add(self.bounds_of(len), Ordering::Relaxed);
        }
    }

    /// What a key adds to its tables' bounds, at most: its share of a table, which has two. It lies there twice, in its block and
    /// behind it in the index.
    fn bounds_of(&self, len: usize) -> u64 {
        (2 * len * 2 * len / self.table_bytes) as u64 + 1
    }

    /// Whether keys are refused for what bounds take, and merges are to win some of it back.
    pub fn are_bounds_short(&self) -> bool {
        self.bounds_room.tables.load(Ordering::Relaxed) > self.bounds_room.log_bytes / 2
    }

    /// Refuses long keys for whose tables' bounds there may be no room.
    pub fn check_bounds(&self, batch: &Batch, class: AppendClass) -> Result<(), WriteError> {
        let long =
            batch.ops.iter().map(|op| (op.key_end - op.key) as usize).filter(|&len| len > SHORT_KEY_BYTES);
        let wanted: u64 = long.map(|len| self.bounds_of(len)).sum();
        if wanted == 0 {
            return Ok(());
        }
        let room = &self.bounds_room;
        // Deletes may take more, so that what fills the log can go, and wait for merges beyond that; and keys of which it takes very many to fill it.
        let may_take_more = class == AppendClass::Delete || wanted <= FEW_BYTES;
        let most = room.log_bytes / 8 * if may_take_more { 5 } else { 4 };
        let (tables, ahead) = (room.tables.load(Ordering::Relaxed), room.ahead());
        if tables + ahead + wanted <= most {
            return Ok(());
        }
        if ahead > 0 {
            room.wants_flush.store(true, Ordering::Relaxed);
            self.flush_wanted.notify_one();
            return Err(WriteError::Busy);
        }
        // Merged, there are fewer tables, and what was deleted has none.
        self.merge_eagerly.store(true, Ordering::Relaxed);
        self.merge_wanted.notify_one();
        if class == AppendClass::Delete {
            return Err(WriteError::Busy);
        }
        Err(WriteError::TooLarge(format!(
            "keys of more than {SHORT_KEY_BYTES} B that begin alike take {tables} B of the {most} B that the metadata log has for what lies \
             between key tables: use shorter keys, or delete some and try again"
        )))
    }
}
