//! A memtable: the newest versions of the keys written since the last flush.
//!
//! Rows lie one behind the other, keys and inline values in them; a hash index finds a row in one probe, so that a
//! write costs no comparison of neighbours. Order is made late: rows that a scan has not yet seen are put into
//! a two-level sorted list (`memtable/order.rs`) when one comes, once each, and a flush sorts what is left. (Rejected: a skip list or
//! B-tree, which charges every write for scans that may never come.)
//!
//! A row keeps older versions only while a live snapshot may need them. Rows never move, so a memtable that is
//! no longer written is read like one that is.

pub(crate) mod chunked;
pub(crate) mod held;
mod order;
mod rows;
pub mod sorting;

use std::sync::atomic::AtomicU64;

use bytes::Bytes;
use pumice_segment::RecordPtr;

use crate::entry::{Body, KeyEntry};
use crate::hash_index::{HashIndex, Whereabouts};
use crate::memtable::chunked::Chunked;
use crate::memtable::held::HeldMemtables;
use crate::memtable::order::Chunk;
pub use crate::memtable::order::{Collected, Rest, Sight};
pub use crate::memtable::rows::RowAt;
use crate::memtable::rows::{Rows, Version};
use crate::types::Seq;

/// What the memtables of a store hold together.
#[derive(Default)]
pub(crate) struct Memtables {
    /// Memory of the active ones, in bytes.
    pub active_bytes: AtomicU64,
    /// Memory of the sealed ones, in bytes.
    pub sealed_bytes: AtomicU64,
    /// Flushed ones that readers hold.
    pub held: HeldMemtables,
    /// Log appended since the last seal, in bytes as `to_replay` counts them.
    pub log_bytes: AtomicU64,
    /// What cleaning moved since the last seal, in the same bytes: a recovery replays that, too.
    pub moved_bytes: AtomicU64,
    /// Commit bytes of the heap at the last seal.
    pub commit_bytes_at_seal: AtomicU64,
}

/// The value part of a version to insert.
#[derive(Clone, Copy, Debug)]
pub enum NewBody<'a> {
    /// The key is gone.
    Tombstone,
    /// The value's bytes.
    Inline(&'a [u8]),
    /// A record of the heap.
    Record(RecordPtr),
}

/// A version to insert, or one that is looked at.
#[derive(Clone, Copy, Debug)]
pub struct NewVersion<'a> {
    /// The version's number.
    pub seq: Seq,
    /// Unix milliseconds; 0 = never.
    pub expire_ms: u64,
    /// The writer's byte.
    pub tag: u8,
    /// Whether the value is a list of pieces.
    pub large: bool,
    /// The user's value, in bytes.
    pub value_len: u64,
    /// Whether the heap knows that what a new row shadows elsewhere is dead.
    pub counted: bool,
    /// Whether the value's record is known to be on flash.
    pub on_flash: bool,
    /// Whether the writer knows that the key was not there: see [`crate::Batch::of_new_key`].
    pub new_key: bool,
    /// The value.
    pub body: NewBody<'a>,
}

impl NewVersion<'_> {
    /// The version with a copy of its value.
    pub fn to_entry(&self) -> KeyEntry {
        self.with_value(Bytes::copy_from_slice)
    }

    fn with_value(&self, bytes_of: impl FnOnce(&[u8]) -> Bytes) -> KeyEntry {
        let body = match self.body {
            NewBody::Tombstone => Body::Tombstone,
            NewBody::Inline(value) => Body::Inline(bytes_of(value)),
            NewBody::Record(ptr) => Body::Record(ptr),
        };
        let Self { seq, expire_ms, tag, large, value_len, counted, on_flash, .. } = *self;
        KeyEntry { seq, expire_ms, tag, large, value_len, counted, on_flash, body }
    }
}

/// What an insert did to the version that was there.
#[derive(Clone, Debug, PartialEq)]
pub enum Replaced {
    /// The key was new here: its row.
    NewRow(RowAt),
    /// What was there held nothing.
    Nothing,
    /// A version went; its record is dead.
    Record(RecordPtr),
    /// A large value went; its pieces are dead, and its record if it has one.
    Large(Box<KeyEntry>),
    /// A newer version was there: nothing changed.
    Newer,
    /// A newer version was there, which put this one again: its value is where this one says.
    Again,
}

/// See the head of this file.
#[derive(Default)]
pub struct Memtable {
    rows: Rows,
    /// In the order in which they came.
    listed: Chunked<RowAt>,
    olds: Chunked<Version>,
    index: HashIndex,
    order: Vec<Chunk>,
    /// Rows in the sorted list.
    ordered: usize,
    /// Of those in `listed`, the first that the sorted list has not seen.
    unseen: usize,
    /// Rows that the sorted list had left out, and that hold something again.
    returned: Vec<RowAt>,
    /// No row expires before this, Unix milliseconds; `None` = no row does.
    next_expiry_ms: Option<u64>,
    /// The number of the row with which the next look for expired ones begins.
    expiry_row: usize,
}

impl Memtable {
    /// Memory in use, in bytes.
    pub fn bytes(&self) -> usize {
        let listed = self.listed.bytes() + (self.ordered + self.returned.capacity()) * size_of::<RowAt>();
        self.rows.bytes() + self.olds.bytes() + self.index.lasting_bytes() + listed
    }

    /// How many keys it speaks of.
    pub fn len(&self) -> usize {
        self.listed.len()
    }

    /// Whether it speaks of none.
    pub fn is_empty(&self) -> bool {
        self.listed.is_empty()
    }

    /// No row expires before this, Unix milliseconds.
    pub fn next_expiry_ms(&self) -> u64 {
        self.next_expiry_ms.unwrap_or(u64::MAX)
    }

    /// Begins a look for rows that expired before `now_ms`, with the row of the number answered: where the last look ended, or each
    /// would go over all that those before it have dealt with. `None`: there is nothing to find.
    pub fn begin_expiry_look(&mut self, now_ms: u64) -> Option<usize> {
        if self.next_expiry_ms() > now_ms {
            return None;
        }
        // What is written while this looks may expire before all that it finds.
        self.next_expiry_ms = Some(u64::MAX);
        Some(if self.expiry_row < self.len() { self.expiry_row } else { 0 })
    }

    /// Ends it: the next begins with row number `row`, and finds nothing before `next_ms`.
    pub fn end_expiry_look(&mut self, row: usize, next_ms: u64) {
        self.expiry_row = row;
        self.next_expiry_ms = Some(self.next_expiry_ms().min(next_ms));
    }

    /// Number and expiry of a row's newest version.
    pub fn expiry_of(&self, row: RowAt) -> (Seq, u64) {
        let version = self.rows.newest(row);
        (version.seq, version.expire_ms)
    }

    /// The row that came as number `number`, from 0 on.
    pub fn nth(&self, number: usize) -> RowAt {
        self.listed[number]
    }

    /// The key of row `row`.
    pub fn key(&self, row: RowAt) -> &[u8] {
        self.rows.key(row)
    }

    fn find(&self, short: u32, key: &[u8]) -> Option<RowAt> {
        self.index.all(short).map(RowAt).find(|&row| self.rows.is_of(row, key))
    }

    /// Inserts a version of `key`, whose hash is `hash`. The version it shadows is kept when a snapshot at or
    /// above it may be live (`newest_snapshot`), else it goes.
    pub fn insert(&mut self, hash: u64, key: &[u8], new: &NewVersion<'_>, newest_snapshot: Seq) -> Replaced {
        let short = hash as u32;
        if new.expire_ms != 0 {
            self.next_expiry_ms = Some(self.next_expiry_ms().min(new.expire_ms));
        }
        let Some(row) = self.find(short, key) else {
            let row = self.rows.push(key, new);
            self.listed.push(row);
            self.index.insert(short, row.0);
            return Replaced::NewRow(row);
        };
        let mut old = self.rows.newest(row);
        if old.seq >= new.seq {
            let NewBody::Record(place) = new.body else { return Replaced::Newer };
            if old.record() != Some(place) {
                return Replaced::Newer;
            }
            // In a replay what cleaning moved comes last. What lies below the row is what lies below this version.
            old.set_counted(new.counted);
            self.rows.set_newest(row, &old);
            return Replaced::Again;
        }
        let replaced = match old.record() {
            _ if old.is_large() => Replaced::Large(Box::new(self.entry(&old))),
            Some(record) => Replaced::Record(record),
            None => Replaced::Nothing,
        };
        let is_kept = old.seq <= newest_snapshot;
        let mut version = self.rows.version(new, (!is_kept).then_some(old));
        version.follow(&old);
        if version.is_left_out() && !version.is_tombstone() {
            version.set_left_out(false);
            self.returned.push(row);
        }
        if is_kept {
            version.older = self.olds.len() as u32;
            self.olds.push(old);
        }
        self.rows.set_newest(row, &version);
        replaced
    }

    /// Notes where the index lies, which moves a little if it has to.
    pub fn note(&mut self, whereabouts: &Whereabouts) {
        self.index.settle();
        whereabouts.note(&self.index);
    }

    /// Begins to bring the rows of this hash from memory, with so many bytes of key and value.
    pub fn prefetch(&self, hash: u64, bytes: usize) {
        self.index.all(hash as u32).for_each(|row| self.rows.prefetch(RowAt(row), bytes));
    }

    /// The newest version of `key`.
    pub fn get(&self, hash: u64, key: &[u8]) -> Option<KeyEntry> {
        let row = self.find(hash as u32, key)?;
        Some(self.entry(&self.rows.newest(row)))
    }

    /// The newest version of `key`, its value where it lies.
    pub fn view(&self, hash: u64, key: &[u8]) -> Option<NewVersion<'_>> {
        let row = self.find(hash as u32, key)?;
        Some(self.version_view(&self.rows.newest(row)))
    }

    fn version_view(&self, version: &Version) -> NewVersion<'_> {
        NewVersion {
            seq: version.seq,
            expire_ms: version.expire_ms,
            tag: version.tag,
            large: version.is_large(),
            value_len: version.value_len,
            counted: version.is_counted(),
            on_flash: version.is_on_flash(),
            new_key: version.is_of_new_key(),
            body: self.rows.body(version),
        }
    }

    /// Notes that the heap knows that what a row shadows elsewhere is dead.
    pub fn set_counted(&mut self, row: RowAt) {
        let mut version = self.rows.newest(row);
        version.set_counted(true);
        self.rows.set_newest(row, &version);
    }

    /// Whether the heap knows that what the row of a key shadows elsewhere is dead. From now on it does not.
    pub fn take_counted(&mut self, hash: u64, key: &[u8]) -> bool {
        let Some(row) = self.find(hash as u32, key) else { return false };
        let mut version = self.rows.newest(row);
        let was_counted = version.is_counted();
        version.set_counted(false);
        self.rows.set_newest(row, &version);
        was_counted
    }

    /// Whether a row is of a key that was not there before, nor is any more: its tombstone hides nothing.
    pub fn hides_nothing(&self, row: RowAt) -> bool {
        let newest = self.rows.newest(row);
        newest.is_of_new_key() && newest.is_tombstone()
    }

    /// The row of a key whose shadow the heap does not know of.
    pub fn uncounted_row(&self, hash: u64, key: &[u8]) -> Option<RowAt> {
        self.find(hash as u32, key).filter(|&row| !self.rows.newest(row).is_counted())
    }

    /// The sequence number of the newest version of `key`.
    pub fn seq_of(&self, hash: u64, key: &[u8]) -> Option<Seq> {
        self.find(hash as u32, key).map(|row| self.rows.newest(row).seq)
    }

    /// The newest version of row `row` that is not above `max_seq`.
    pub fn row(&self, row: RowAt, max_seq: Seq) -> Option<KeyEntry> {
        Some(self.entry(&self.version_at(row, max_seq)?))
    }

    fn version_at(&self, row: RowAt, max_seq: Seq) -> Option<Version> {
        let mut version = self.rows.newest(row);
        while version.seq > max_seq {
            version = *self.olds.get(version.older as usize)?;
        }
        Some(version)
    }

    fn entry(&self, version: &Version) -> KeyEntry {
        self.version_view(version).to_entry()
    }
}
