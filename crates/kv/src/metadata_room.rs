//! Room in the metadata log for what its snapshot grows by with use: the bounds of key tables (`bounds`), and retired prefixes that
//! tables still speak of (`retired`).
//!
//! What does not fit into the log ends all writes for ever, deletes too. So both have a part of it.
//!
//! - *Bounds*, five sixteenths: keys that begin alike for thousands of bytes need bounds as long as that. Who writes long keys waits a
//!   little for merges beyond, and is refused when these win too little; what memtables may add is guessed, and flushed before it is too
//!   much. Deletes may take six sixteenths more: each is a key of a table, too, until it meets what it deletes.
//! - *Retired prefixes*, an eighth: who retires more waits a little for the merges that let them be forgotten, and is refused when even
//!   a sixteenth more is not enough. The layer above deletes one by one what it can meanwhile ([`crate::Store::retires_many`]).
//!
//! The rest is the segment table's and what tables need besides.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use pumice_base::sync::lock;
use pumice_reactor::{now, sleep};
use pumice_segment::AppendClass;

use crate::batch::{Batch, Op};
use crate::errors::WriteError;
use crate::record;
use crate::store::{Inner, Store};
use crate::table::bounds::SHORT_KEY_BYTES;

/// Sixteenths of the log that bounds may take before users' long keys are refused, and before deletes of such keys are.
const BOUNDS_OF_USERS_MAX: u64 = 5;
const BOUNDS_MAX: u64 = 11;
/// Guesses are in so many parts of a byte: keys of 100 B add little each.
const PARTS: u64 = 256;
/// What keys of a few KiB add to the bounds of tables of 2 MiB.
const FEW_BYTES: u64 = 32;
/// Longest wait for merges of who is refused without.
const MERGES_WAIT: Duration = Duration::from_secs(2);
/// The same of who deletes long keys: that is what has to be merged.
const DELETES_WAIT: Duration = Duration::from_secs(30);
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
    /// What the memtables' keys may add, at most, in parts of a byte.
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

    fn sixteenths(&self, n: u64) -> u64 {
        self.log_bytes / 16 * n
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
        self.inner.retired_bytes() > self.inner.metadata_room.sixteenths(1)
    }
}

impl Inner {
    /// A key was put into a memtable.
    pub fn note_key(&self, len: usize) {
        if len > SHORT_KEY_BYTES {
            self.metadata_room.ahead.fetch_add(self.bounds_of(len), Ordering::Relaxed);
        }
    }

    /// What a key adds to its tables' bounds, at most, in parts of a byte: its share of a table, which has two. It lies there twice, in its
    /// block and behind it in the index.
    fn bounds_of(&self, len: usize) -> u64 {
        (2 * len * 2 * len) as u64 * PARTS / self.table_bytes as u64
    }

    fn retired_bytes(&self) -> u64 {
        lock(&self.manifest).retired.bytes()
    }

    /// Whether bounds take more than so many sixteenths of the log.
    fn bounds_exceed(&self, parts: u64) -> bool {
        self.metadata_room.bounds.load(Ordering::Relaxed) > self.metadata_room.sixteenths(parts)
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
        if retires
            && self.retired_bytes() > self.metadata_room.sixteenths(3)
            && self.heap.read_only().is_none()
        {
            self.ask_for_merges();
            let why = "so much was deleted at once that the metadata log has no room to note more: try again when it is merged";
            return Err(WriteError::TooLarge(why.into()));
        }
        if wanted > 0 { self.check_bounds(wanted, class) } else { Ok(()) }
    }

    fn check_bounds(&self, wanted: u64, class: AppendClass) -> Result<(), WriteError> {
        let room = &self.metadata_room;
        let wanted = wanted / PARTS;
        // Keys of which it takes very many to fill the log may have as much as deletes.
        let may_take_more = class == AppendClass::Delete || wanted <= FEW_BYTES;
        let most = room.sixteenths(if may_take_more { BOUNDS_MAX } else { BOUNDS_OF_USERS_MAX });
        let (bounds, ahead) = (room.bounds.load(Ordering::Relaxed), room.ahead() / PARTS);
        // A drive that takes no writes has a reason of its own, and flushes and merges nothing.
        if bounds + ahead + wanted <= most || self.heap.read_only().is_some() {
            return Ok(());
        }
        if bounds + wanted <= most {
            // Once the memtables are tables these tell what their bounds really take.
            room.wants_flush.store(true, Ordering::Relaxed);
            self.background.flush_wanted.notify_one();
            return Err(if self.heap.is_futile() {
                WriteError::Full(Box::new(self.heap.space()))
            } else {
                WriteError::Busy
            });
        }
        // Merged, there are fewer tables, and what was deleted has none.
        self.ask_for_merges();
        Err(WriteError::TooLarge(format!(
            "keys of more than {SHORT_KEY_BYTES} B that begin alike take {bounds} B of the {most} B that the metadata log has for what lies \
             between key tables: use shorter keys, or delete some; try again when they are merged"
        )))
    }

    /// Whether a batch is to wait for merges, after which the log has more room for what it adds.
    pub fn wants_merges(&self, batch: &Batch) -> bool {
        let room = &self.metadata_room;
        let is_long = |op: &Op| self.bounds_of((op.key_end - op.key) as usize) > FEW_BYTES * PARTS;
        let retires = batch.ops.iter().any(|op| op.kind == record::RETIRE);
        let most = if batch.only_frees() { BOUNDS_MAX } else { BOUNDS_OF_USERS_MAX };
        retires && self.retired_bytes() > room.sixteenths(2)
            || self.bounds_exceed(most) && batch.ops.iter().any(is_long)
    }

    /// Waits for merges, not for ever, if the batch wants some.
    pub async fn until_merged(&self, batch: &Batch) {
        let (began, retires) = (now(), batch.ops.iter().any(|op| op.kind == record::RETIRE));
        let longest = if batch.only_frees() && !retires { DELETES_WAIT } else { MERGES_WAIT };
        while self.wants_merges(batch)
            && began.elapsed() < longest
            && !self.is_closing()
            && self.heap.read_only().is_none()
        {
            self.ask_for_merges();
            // A prefix is not forgotten before a checkpoint knows of it.
            let (now_ns, last_ns) = (now().0, self.metadata_room.flush_wanted_ns.load(Ordering::Relaxed));
            // Another core may have looked at a later time.
            if now_ns.saturating_sub(last_ns) >= FLUSH_PAUSE_NS {
                self.metadata_room.flush_wanted_ns.store(now_ns, Ordering::Relaxed);
                self.metadata_room.wants_flush.store(true, Ordering::Relaxed);
                self.background.flush_wanted.notify_one();
            }
            sleep(LOOK_AGAIN).await;
        }
    }

    fn ask_for_merges(&self) {
        self.merges.eagerly.store(true, Ordering::Relaxed);
        self.background.merge_wanted.notify_one();
    }
}
