//! A memtable's rows as they lie in memory: head, key, and, if it has not outgrown its place, the value.
//!
//! Who looks for a key meets its row in the index and then one place in memory, the beginning of which tells the rest. Rows never move.
//! A chunk's memory is asked for once, so that a memtable that grows copies nothing while its slice is locked.

use pumice_segment::{Addr, RecordPtr};

use super::{NewBody, NewVersion};
use crate::types::Seq;

const CHUNK_BYTES: usize = 128 * 1024;
/// Rows begin at multiples of it.
const ALIGNMENT: usize = 16;
const AT_BITS: u32 = (CHUNK_BYTES / ALIGNMENT).ilog2();
/// The last number is no row's: an index has a use for it.
const CHUNKS_MAX: usize = (1 << (u32::BITS - AT_BITS)) - 1;
/// No version.
const NONE: u32 = u32::MAX;

const HEAD_BYTES: usize = 48;
const KEY_LEN_AT: usize = 40;
const FLAGS_AT: usize = 45;
const LARGE: u8 = 1;
const COUNTED: u8 = 2;
const INLINE: u8 = 4;
const RECORD: u8 = 8;
const NEW_KEY: u8 = 16;
const LEFT_OUT: u8 = 32;
const ON_FLASH: u8 = 64;
/// What stays with a row whatever is written over it.
const OF_THE_ROW: u8 = COUNTED | NEW_KEY | LEFT_OUT;

/// Where a row lies: its chunk, and where in that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowAt(pub(super) u32);

impl RowAt {
    fn new(chunk: usize, offset: usize) -> Self {
        assert!(chunk < CHUNKS_MAX, "a memtable of {chunk} chunks");
        Self((chunk as u32) << AT_BITS | (offset / ALIGNMENT) as u32)
    }

    fn chunk(self) -> usize {
        (self.0 >> AT_BITS) as usize
    }

    fn offset(self) -> usize {
        (self.0 & ((1 << AT_BITS) - 1)) as usize * ALIGNMENT
    }
}

/// A version of a row.
#[derive(Clone, Copy)]
pub struct Version {
    pub seq: Seq,
    pub expire_ms: u64,
    pub value_len: u64,
    /// The record's address, or the value's chunk << 32 | offset.
    pub at: u64,
    pub len: u32,
    /// The version that it shadows, which a snapshot may need; [`NONE`].
    pub older: u32,
    pub tag: u8,
    flags: u8,
}

impl Version {
    /// Nothing that an older one may be.
    pub fn of(new: &NewVersion<'_>, at: u64) -> Self {
        let (at, len, place) = match new.body {
            NewBody::Tombstone => (0, 0, 0),
            NewBody::Record(ptr) => (ptr.addr.0, ptr.len, RECORD),
            NewBody::Inline(value) => (at, value.len() as u32, INLINE),
        };
        let flag = |is_set, flag| if is_set { flag } else { 0 };
        let of_row = flag(new.counted, COUNTED) | flag(new.new_key, NEW_KEY);
        let flags = flag(new.large, LARGE) | flag(new.on_flash, ON_FLASH) | of_row | place;
        let NewVersion { seq, expire_ms, value_len, tag, .. } = *new;
        Self { seq, expire_ms, value_len, at, len, older: NONE, tag, flags }
    }

    pub fn is_large(&self) -> bool {
        self.flags & LARGE != 0
    }

    pub fn is_counted(&self) -> bool {
        self.flags & COUNTED != 0
    }

    pub fn set_counted(&mut self, counted: bool) {
        self.flags = if counted { self.flags | COUNTED } else { self.flags & !COUNTED };
    }

    pub fn is_on_flash(&self) -> bool {
        self.flags & ON_FLASH != 0
    }

    /// Whether nothing was there before the row came: elsewhere there is nothing to hide.
    pub fn is_of_new_key(&self) -> bool {
        self.flags & NEW_KEY != 0
    }

    /// Whether the sorted list does without the row.
    pub fn is_left_out(&self) -> bool {
        self.flags & LEFT_OUT != 0
    }

    pub fn set_left_out(&mut self, left_out: bool) {
        self.flags = if left_out { self.flags | LEFT_OUT } else { self.flags & !LEFT_OUT };
    }

    /// It takes the place of `old` in a row.
    pub fn follow(&mut self, old: &Self) {
        self.flags = self.flags & !OF_THE_ROW | old.flags & OF_THE_ROW;
        self.older = old.older;
    }

    pub fn is_inline(&self) -> bool {
        self.flags & INLINE != 0
    }

    pub fn is_tombstone(&self) -> bool {
        self.flags & (INLINE | RECORD) == 0
    }

    pub fn record(&self) -> Option<RecordPtr> {
        (self.flags & RECORD != 0).then_some(RecordPtr { addr: Addr(self.at), len: self.len })
    }

    fn encode(&self, key_len: u32) -> [u8; HEAD_BYTES] {
        let mut head = [0; HEAD_BYTES];
        head[..8].copy_from_slice(&self.seq.to_le_bytes());
        head[8..16].copy_from_slice(&self.expire_ms.to_le_bytes());
        head[16..24].copy_from_slice(&self.value_len.to_le_bytes());
        head[24..32].copy_from_slice(&self.at.to_le_bytes());
        head[32..36].copy_from_slice(&self.len.to_le_bytes());
        head[36..40].copy_from_slice(&self.older.to_le_bytes());
        head[KEY_LEN_AT..KEY_LEN_AT + 4].copy_from_slice(&key_len.to_le_bytes());
        (head[44], head[FLAGS_AT]) = (self.tag, self.flags);
        head
    }

    fn decode(row: &[u8]) -> Self {
        let head = head_of(row);
        Self {
            seq: u64_at(head, 0),
            expire_ms: u64_at(head, 8),
            value_len: u64_at(head, 16),
            at: u64_at(head, 24),
            len: u32_at(head, 32),
            older: u32_at(head, 36),
            tag: head[44],
            flags: head[FLAGS_AT],
        }
    }
}

fn head_of(row: &[u8]) -> &[u8; HEAD_BYTES] {
    row.first_chunk().expect("a row has a head")
}

fn u32_at(head: &[u8; HEAD_BYTES], at: usize) -> u32 {
    u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]])
}

fn u64_at(head: &[u8; HEAD_BYTES], at: usize) -> u64 {
    u64::from(u32_at(head, at)) | u64::from(u32_at(head, at + 4)) << 32
}

fn inline(body: NewBody<'_>) -> &[u8] {
    match body {
        NewBody::Inline(value) => value,
        NewBody::Tombstone | NewBody::Record(_) => &[],
    }
}

/// See the head of this file.
#[derive(Default)]
pub struct Rows {
    chunks: Vec<Vec<u8>>,
    bytes: usize,
}

impl Rows {
    /// Memory in use, in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Room for so many bytes that lie together, behind what a row may begin at: its chunk, and where in that.
    fn room(&mut self, bytes: usize) -> (usize, usize) {
        let start = |chunk: &Vec<u8>| chunk.len().next_multiple_of(ALIGNMENT);
        let fits = |chunk: &Vec<u8>| start(chunk) < CHUNK_BYTES && start(chunk) + bytes <= chunk.capacity();
        if !self.chunks.last().is_some_and(fits) {
            // As much again as there is, so that a small memtable is not called full for its second chunk.
            let capacity = self.bytes.clamp(512, CHUNK_BYTES).max(bytes);
            self.chunks.push(Vec::with_capacity(capacity));
            self.bytes += capacity;
        }
        let chunk = self.chunks.len() - 1;
        let offset = start(&self.chunks[chunk]);
        self.chunks[chunk].resize(offset, 0);
        (chunk, offset)
    }

    /// Adds a row with one version.
    pub fn push(&mut self, key: &[u8], new: &NewVersion<'_>) -> RowAt {
        let value = inline(new.body);
        let (chunk, offset) = self.room(HEAD_BYTES + key.len() + value.len());
        let value_at = (chunk as u64) << 32 | (offset + HEAD_BYTES + key.len()) as u64;
        let bytes = &mut self.chunks[chunk];
        bytes.extend_from_slice(&Version::of(new, value_at).encode(key.len() as u32));
        bytes.extend_from_slice(key);
        bytes.extend_from_slice(value);
        RowAt::new(chunk, offset)
    }

    /// A version that is to be written over a row's, or beside it; `reuse` is one that goes, whose value's bytes may be written over.
    pub fn version(&mut self, new: &NewVersion<'_>, reuse: Option<Version>) -> Version {
        let NewBody::Inline(value) = new.body else { return Version::of(new, 0) };
        if let Some(old) = reuse.filter(|old| old.is_inline() && old.len as usize >= value.len()) {
            let offset = old.at as u32 as usize;
            self.chunks[(old.at >> 32) as usize][offset..offset + value.len()].copy_from_slice(value);
            return Version::of(new, old.at);
        }
        let (chunk, offset) = self.room(value.len());
        self.chunks[chunk].extend_from_slice(value);
        Version::of(new, (chunk as u64) << 32 | offset as u64)
    }

    fn row(&self, row: RowAt) -> &[u8] {
        &self.chunks[row.chunk()][row.offset()..]
    }

    /// The key of a row.
    pub fn key(&self, row: RowAt) -> &[u8] {
        let row = self.row(row);
        let len = u32_at(head_of(row), KEY_LEN_AT) as usize;
        &row[HEAD_BYTES..HEAD_BYTES + len]
    }

    /// Begins to bring a row from memory, so many bytes of its key and value. Several rows come side by side, where whoever goes from
    /// row to row waits for each.
    #[inline]
    pub fn prefetch(&self, row: RowAt, bytes: usize) {
        let row = self.row(row);
        pumice_reactor::prefetch(&row[..row.len().min(HEAD_BYTES + bytes)]);
    }

    /// Whether it is the row of `key`. Where that lies is known before its length, and both come at once.
    #[inline]
    pub fn is_of(&self, row: RowAt, key: &[u8]) -> bool {
        let row = self.row(row);
        u32_at(head_of(row), KEY_LEN_AT) as usize == key.len() && row[HEAD_BYTES..].starts_with(key)
    }

    /// A row's newest version.
    #[inline]
    pub fn newest(&self, row: RowAt) -> Version {
        Version::decode(self.row(row))
    }

    /// Writes a row's newest version.
    pub fn set_newest(&mut self, row: RowAt, version: &Version) {
        let bytes = &mut self.chunks[row.chunk()][row.offset()..];
        let key_len = u32_at(head_of(bytes), KEY_LEN_AT);
        bytes[..HEAD_BYTES].copy_from_slice(&version.encode(key_len));
    }

    /// The value of a version, where it lies.
    pub fn body(&self, version: &Version) -> NewBody<'_> {
        if let Some(record) = version.record() {
            return NewBody::Record(record);
        }
        if !version.is_inline() {
            return NewBody::Tombstone;
        }
        let offset = version.at as u32 as usize;
        NewBody::Inline(&self.chunks[(version.at >> 32) as usize][offset..offset + version.len as usize])
    }
}
