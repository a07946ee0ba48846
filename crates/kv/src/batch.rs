//! A batch: writes that become visible together and durable together.
//!
//! The batch holds the records' payloads as they will lie on flash, one after the other in one buffer, so that
//! writing it is a single copy into the forming frame. [`Batch::clear`] keeps the buffer for the next use.

use bytes::Bytes;
use pumice_segment::{AppendClass, Outline, RecordIn};
use smallvec::SmallVec;

use crate::again::{Again, Stored, StoredValue};
use crate::large::LargeRef;
use crate::large::again::List;
use crate::record;
use crate::types::{Meta, SliceId, VALUE_BYTES_MAX};

/// Writes that become visible together and durable together, over any slices of one drive.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    pub(crate) buf: Vec<u8>,
    pub(crate) ops: Vec<Op>,
    /// Bytes that records have outside of the buffer.
    tail_bytes: usize,
    /// Of the records that are lists of large values: where these come from.
    pub(crate) lists: Vec<List>,
    /// Of the records that put a version again: which.
    pub(crate) again: Vec<Again>,
    /// See [`Batch::set_rewrites`].
    pub(crate) rewrites: bool,
}

/// One record of a batch; offsets index the batch's buffer.
#[derive(Clone, Debug)]
pub(crate) struct Op {
    pub kind: u8,
    pub tag: u8,
    pub slice: SliceId,
    pub expire_ms: u64,
    /// Where the payload starts.
    pub start: u32,
    /// Where the key starts.
    pub key: u32,
    /// Where the key ends.
    pub key_end: u32,
    /// Where the payload's part in the buffer ends.
    pub end: u32,
    /// What follows that part: a value handed over without copying it here.
    pub tail: Option<Bytes>,
    /// Length of the value, in bytes; of a large one, the whole.
    pub value_len: u64,
    /// See [`Batch::of_new_key`].
    pub new_key: bool,
}

/// Most bytes that a batch which makes space may put for each key or prefix that it removes.
const NOTE_BYTES_MAX: usize = 256;

impl Batch {
    /// An empty batch.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether nothing is to be written.
    pub fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }

    /// How many records it holds.
    pub fn len(&self) -> usize {
        self.ops.len()
    }

    /// Bytes of its records' payloads.
    pub fn bytes(&self) -> usize {
        // Who makes a long batch asks after every operation.
        self.buf.len() + self.tail_bytes
    }

    /// The records' payloads, each in two parts.
    pub(crate) fn payloads(&self) -> SmallVec<[[&[u8]; 2]; 2]> {
        let part = |op: &Op| (op.start as usize)..(op.end as usize);
        self.ops.iter().map(|op| [&self.buf[part(op)], op.tail.as_deref().unwrap_or(&[])]).collect()
    }

    /// The records, whose [`Batch::payloads`] these are.
    pub(crate) fn records<'p>(
        &self,
        payloads: &'p [[&'p [u8]; 2]],
        inline_max: usize,
    ) -> SmallVec<[RecordIn<'p>; 2]> {
        let records = self.ops.iter().zip(payloads);
        records
            .map(|(op, parts)| RecordIn { kind: op.kind, parts, outline: op.outline(inline_max) })
            .collect()
    }

    /// The slices that it changes, each once, by rising number.
    pub(crate) fn slices(&self) -> SmallVec<[u16; 4]> {
        let mut ids: SmallVec<[u16; 4]> = self.ops.iter().map(|op| op.slice.0).collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    /// Whether it makes space: such batches may use the reserve of a full drive. What it puts beside what it removes is a note of
    /// that, such as how many elements a collection has left.
    pub fn only_frees(&self) -> bool {
        let (mut removed, mut put) = (0, 0);
        for op in &self.ops {
            match op.kind {
                record::DELETE | record::RETIRE => removed += 1,
                record::TALLY => {}
                record::PUT => put += (op.end - op.start) as usize + op.tail.as_ref().map_or(0, Bytes::len),
                _ => return false,
            }
        }
        put <= removed * NOTE_BYTES_MAX
    }

    /// How it is appended for a user, at first.
    pub(crate) fn class(&self) -> AppendClass {
        if self.only_frees() { AppendClass::Delete } else { AppendClass::User }
    }

    /// Empties it, keeping its memory.
    pub fn clear(&mut self) {
        self.buf.clear();
        self.ops.clear();
        self.tail_bytes = 0;
        self.lists.clear();
        self.again.clear();
        self.rewrites = false;
    }

    /// Says whether it puts about as much as it takes the place of, or less: on a full drive such a batch has a part of the
    /// reserve. Until this is called it does not.
    pub fn set_rewrites(&mut self, rewrites: bool) {
        self.rewrites = rewrites;
    }

    /// Sets `key` to `value`. `expire_ms`: Unix milliseconds, 0 = never. `tag` is the caller's.
    ///
    /// # Panics
    /// When the key is longer than [`crate::KEY_BYTES_MAX`] or the value than [`VALUE_BYTES_MAX`].
    pub fn put(&mut self, slice: SliceId, key: &[u8], tag: u8, expire_ms: u64, value: &[u8]) {
        assert!(value.len() <= VALUE_BYTES_MAX, "a value of {} bytes is a large one", value.len());
        let (start, key_end) = self.head(slice, tag, expire_ms, key);
        self.buf.extend_from_slice(value);
        self.push(record::PUT, tag, slice, expire_ms, start, key, key_end, None, value.len() as u64);
    }

    /// [`Batch::put`] without copying the value into the batch.
    pub fn put_bytes(&mut self, slice: SliceId, key: &[u8], tag: u8, expire_ms: u64, value: Bytes) {
        assert!(value.len() <= VALUE_BYTES_MAX, "a value of {} bytes is a large one", value.len());
        let (start, key_end) = self.head(slice, tag, expire_ms, key);
        let len = value.len() as u64;
        self.push(record::PUT, tag, slice, expire_ms, start, key, key_end, Some(value), len);
    }

    /// Removes `key`, there or not.
    pub fn delete(&mut self, slice: SliceId, key: &[u8]) {
        let (start, key_end) = self.head(slice, 0, 0, key);
        self.push(record::DELETE, 0, slice, 0, start, key, key_end, None, 0);
    }

    /// Sets `key` to a value whose pieces a [`crate::LargeWriter`] wrote for it, or to the one that it has already.
    pub fn put_large(&mut self, slice: SliceId, key: &[u8], tag: u8, expire_ms: u64, value: &LargeRef) {
        if let Some(origin) = value.origin.clone() {
            self.lists.push(List { op: self.ops.len(), id: value.id, origin });
        }
        let (start, key_end) = self.head(slice, tag, expire_ms, key);
        value.encode(&mut self.buf);
        self.push(record::PUT_LARGE, tag, slice, expire_ms, start, key, key_end, None, value.len());
    }

    /// Puts the newest version of `key` again, to expire at `expire_ms` (0 = never) from now on: what was found under the key and is
    /// still there when the batch is written, or whatever it has been replaced with by then.
    pub fn put_again(&mut self, slice: SliceId, key: &[u8], expire_ms: u64, stored: &Stored) {
        let Meta { tag, seq, .. } = stored.meta();
        let op = self.ops.len();
        match &stored.value {
            StoredValue::Large(large) => return self.put_large(slice, key, tag, expire_ms, large),
            StoredValue::Whole(value) => self.put(slice, key, tag, expire_ms, value),
            StoredValue::InPlace(place) => {
                let (start, key_end) = self.head(slice, tag, expire_ms, key);
                self.buf.extend_from_slice(&record::encode_value_place(place));
                let len = u64::from(place.value_len);
                self.push(record::PUT_AGAIN, tag, slice, expire_ms, start, key, key_end, None, len);
            }
        }
        self.again.push(Again { op, seq, epoch: stored.epoch });
    }

    /// The record that puts a version again, as the key has it now. What it was stays in the buffer, and is written nowhere.
    pub(crate) fn renew(&mut self, at: usize, stored: &Stored) {
        let (number, lists, told) = (self.again[at].op, self.lists.len(), self.again.len());
        let Op { slice, expire_ms, .. } = self.ops[number];
        let key = self.ops[number].key(&self.buf).to_vec();
        self.put_again(slice, &key, expire_ms, stored);
        let op = self.ops.pop().expect("it was put");
        let was = std::mem::replace(&mut self.ops[number], op);
        self.tail_bytes -= was.tail.map_or(0, |tail| tail.len());
        // Both were told of the end of the batch.
        self.lists[lists..].iter_mut().for_each(|list| list.op = number);
        self.again.truncate(told);
        self.again[at] = Again { op: number, seq: stored.meta().seq, epoch: stored.epoch };
    }

    /// Promises that the key of the last put is not there before it: that there is no version of it, expired ones too, or that the newest
    /// one is a delete. Who promises it wrongly may find again what was there before, once the key is deleted. Where the promise holds,
    /// a key that is deleted soon leaves nothing behind: no scan goes over it, and nothing comes into key tables.
    pub fn of_new_key(&mut self) {
        if let Some(op) = self.ops.last_mut() {
            op.new_key = true;
        }
    }

    /// Promises that no key under `prefix` will be read or written again: the engine drops them in its own time.
    pub fn retire(&mut self, slice: SliceId, prefix: &[u8]) {
        let (start, key_end) = self.head(slice, 0, 0, prefix);
        self.push(record::RETIRE, 0, slice, 0, start, prefix, key_end, None, 0);
    }

    /// Adds `delta` to the tally of `space`.
    pub fn tally(&mut self, space: u32, delta: i64) {
        let start = self.buf.len();
        record::encode_tally(&mut self.buf, space, delta);
        self.push(record::TALLY, 0, SliceId(0), 0, start, &[], start, None, 0);
    }

    fn head(&mut self, slice: SliceId, tag: u8, expire_ms: u64, key: &[u8]) -> (usize, usize) {
        let start = self.buf.len();
        record::encode_key(&mut self.buf, slice, tag, expire_ms, key);
        (start, self.buf.len())
    }

    #[allow(clippy::too_many_arguments)] // one place fills the fields, seven short callers name them
    fn push(
        &mut self,
        kind: u8,
        tag: u8,
        slice: SliceId,
        expire_ms: u64,
        start: usize,
        key: &[u8],
        key_end: usize,
        tail: Option<Bytes>,
        value_len: u64,
    ) {
        assert!(self.buf.len() <= u32::MAX as usize, "a batch holds less than 4 GiB");
        self.tail_bytes += tail.as_ref().map_or(0, Bytes::len);
        self.ops.push(Op {
            kind,
            tag,
            slice,
            expire_ms,
            start: start as u32,
            key: (key_end - key.len()) as u32,
            key_end: key_end as u32,
            end: self.buf.len() as u32,
            tail,
            value_len,
            new_key: false,
        });
    }
}

impl Op {
    /// What cleaning asks about the record: whose value it is, where a key may point at it.
    fn outline(&self, inline_max: usize) -> Outline {
        let value_bytes = (self.end - self.key_end) as usize + self.tail.as_ref().map_or(0, Bytes::len);
        match self.kind {
            record::PUT | record::PUT_LARGE if value_bytes > inline_max => {
                u16::try_from(self.key_end - self.start).map_or(Outline::Whole, Outline::Head)
            }
            _ => Outline::Nothing,
        }
    }

    pub(crate) fn key<'a>(&self, buf: &'a [u8]) -> &'a [u8] {
        &buf[self.key as usize..self.key_end as usize]
    }

    /// What follows the key: the value, or the list of pieces.
    pub(crate) fn value<'a>(&'a self, buf: &'a [u8]) -> &'a [u8] {
        match &self.tail {
            Some(tail) => tail,
            None => &buf[self.key_end as usize..self.end as usize],
        }
    }
}
