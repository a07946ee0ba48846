//! Room in the metadata log for what its snapshot grows by with use: the bounds of key tables (`bounds`), and retired prefixes that
//! tables still speak of (`retired`).
//!
//! What does not fit into the log ends all writes for ever, deletes too. So both have a part of it.
//!
//! - *Bounds*, three eighths: keys that begin alike for thousands of bytes need bounds as long as that. Who writes long keys waits a little
//!   for merges beyond, and is refused when these win too little; what memtables may add is guessed, and flushed before it is too much. Deletes may take an eighth more, and then wait for merges.
//! - *Retired prefixes*, a quarter: who retires more waits a little for the merges that let them be forgotten, and is refused when
//!   even that is not enough. The layer above deletes one by one what it can meanwhile ([`crate::Store::retires_many`]).
//!
//! The rest is the segment table's and what tables need besides.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use pumice_base::sync::lock;
use pumice_reactor::{now, sleep};
use pumice_segment::AppendClass;

use crate::batch::{Batch, Op};
use crate::bounds::SHORT_KEY_BYTES;
use crate::errors::WriteError;
use crate::record;
use crate::store::{Inner, Store};

/// What keys of a few KiB add to the bounds of tables of 2 MiB.
const FEW_BYTES: u64 = 32;
/// Longest wait for merges of who is refused without.
const MERGES_WAIT: Duration = Duration::from_secs(2);
/// Between two flushes for the sake of forgetting.
const FLUSH_PAUSE_NS: u64 = 1_000_000_000;
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// See the head of this file.
#[derive(Debug)]
pub struct MetadataRoom {
    /// Bytes that the log has for everything.
    log_bytes: u64,
    /// Bytes of the tables' bounds.
    bounds: AtomicU64,
    /// Bytes that the memtables' keys may add, at most.
    ahead: AtomicU64,
    /// A write waits for memtables to become tables.
    wants_flush: AtomicBool,
    flush_wanted_ns: AtomicU64,
}

impl MetadataRoom {
    pub fn new(log_bytes: u64) -> Self {
        Self {
            log_bytes,
            bounds: AtomicU64::new(0),
            ahead: AtomicU64::new(0),
            wants_flush: AtomicBool::new(false),
            flush_wanted_ns: AtomicU64::new(0),
        }
    }

    fn eighths(&self, n: u64) -> u64 {
        self.log_bytes / 8 * n
    }

    /// Tables have come or gone.
    pub fn set_bounds(&self, bytes: u64) {
        self.bounds.store(bytes, Ordering::Relaxed);
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

impl Store {
    /// Whether so many prefixes are retired and not forgotten that it is better to delete a few thousand keys one by one.
    pub fn retires_many(&self) -> bool {
        self.inner.retired_bytes() > self.inner.metadata_room.eighths(1)
    }
}

impl Inner {
    /// A key was put into a memtable.
    pub fn note_key(&self, len: usize) {
        if len > SHORT_KEY_BYTES {
            self.metadata_room.ahead.fetch_add(self.bounds_of(len), Ordering::Relaxed);
        }
    }

    /// What a key adds to its tables' bounds, at most: its share of a table, which has two. It lies there twice, in its block and
    /// behind it in the index.
    fn bounds_of(&self, len: usize) -> u64 {
        (2 * len * 2 * len / self.table_bytes) as u64 + 1
    }

    fn retired_bytes(&self) -> u64 {
        lock(&self.manifest).retired.bytes()
    }

    /// Whether keys are refused for what bounds take.
    pub fn are_bounds_short(&self) -> bool {
        self.metadata_room.bounds.load(Ordering::Relaxed) > self.metadata_room.eighths(3)
    }

    /// Refuses what there may be no room for in the metadata log.
    pub fn check_metadata(&self, batch: &Batch, class: AppendClass) -> Result<(), WriteError> {
        let (mut wanted, mut retires) = (0, false);
        for op in &batch.ops {
            retires |= op.kind == record::RETIRE;
            let len = (op.key_end - op.key) as usize;
            if len > SHORT_KEY_BYTES {
                wanted += self.bounds_of(len);
            }
        }
        if retires && self.retired_bytes() > self.metadata_room.eighths(3) {
            self.ask_for_merges();
            let why = "so much was deleted at once that the metadata log has no room to note more: try again when it is merged";
            return Err(WriteError::TooLarge(why.into()));
        }
        if wanted > 0 { self.check_bounds(wanted, class) } else { Ok(()) }
    }

    fn check_bounds(&self, wanted: u64, class: AppendClass) -> Result<(), WriteError> {
        let room = &self.metadata_room;
        // Keys of which it takes very many to fill the log may have as much as deletes.
        let may_take_more = class == AppendClass::Delete || wanted <= FEW_BYTES;
        let most = room.eighths(if may_take_more { 4 } else { 3 });
        let (bounds, ahead) = (room.bounds.load(Ordering::Relaxed), room.ahead());
        if bounds + ahead + wanted <= most {
            return Ok(());
        }
        if ahead > 0 {
            // Tables tell what their bounds really take.
            room.wants_flush.store(true, Ordering::Relaxed);
            self.flush_wanted.notify_one();
            return Err(WriteError::Busy);
        }
        // Merged, there are fewer tables, and what was deleted has none.
        self.ask_for_merges();
        if class == AppendClass::Delete {
            return Err(WriteError::Busy);
        }
        Err(WriteError::TooLarge(format!(
            "keys of more than {SHORT_KEY_BYTES} B that begin alike take {bounds} B of the {most} B that the metadata log has for what lies \
             between key tables: use shorter keys, or delete some and try again"
        )))
    }

    /// Whether a batch is to wait for merges, after which the log has more room for what it adds.
    pub fn wants_merges(&self, batch: &Batch) -> bool {
        let room = &self.metadata_room;
        let is_long = |op: &Op| self.bounds_of((op.key_end - op.key) as usize) > FEW_BYTES;
        let retires = batch.ops.iter().any(|op| op.kind == record::RETIRE);
        retires && self.retired_bytes() > room.eighths(2)
            || self.are_bounds_short() && !batch.only_frees() && batch.ops.iter().any(is_long)
    }

    /// Waits for merges, not for ever, if the batch wants some.
    pub async fn until_merged(&self, batch: &Batch) {
        let began = now();
        while self.wants_merges(batch) && began.elapsed() < MERGES_WAIT && !self.is_closing() {
            self.ask_for_merges();
            // A prefix is not forgotten before a checkpoint knows of it.
            let (now_ns, last_ns) = (now().0, self.metadata_room.flush_wanted_ns.load(Ordering::Relaxed));
            if now_ns - last_ns >= FLUSH_PAUSE_NS {
                self.metadata_room.flush_wanted_ns.store(now_ns, Ordering::Relaxed);
                self.metadata_room.wants_flush.store(true, Ordering::Relaxed);
                self.flush_wanted.notify_one();
            }
            sleep(LOOK_AGAIN).await;
        }
    }

    fn ask_for_merges(&self) {
        self.merge_eagerly.store(true, Ordering::Relaxed);
        self.merge_wanted.notify_one();
    }
}
