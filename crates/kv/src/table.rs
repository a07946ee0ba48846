//! Key tables: sorted, immutable, at most a few MiB, one object of the heap each (`docs/format/key-table.md`).
//!
//! Blocks first, then the *head* (filter and block index, one checksum over both), then a footer that lets a
//! checker make sense of a table without the manifest. The manifest repeats what a look-up needs, so that a
//! table is opened without reading it.

pub mod block;
pub mod bounds;
pub mod filter;
pub mod index;
pub mod version;
pub(crate) mod window;

use bytes::Bytes;
use pumice_base::checksum::crc32c_seeded;
use pumice_segment::{Addr, RecordPtr};

use crate::codec::{Cursor, put_varint};
use crate::entry::{Body, KeyEntry};
use crate::memtable::chunked::Chunked;
use crate::table::block::BlockBuilder;
use crate::table::bounds::{Before, Behind, lower, separator, upper};
use crate::table::index::{Index, IndexBuilder};
use crate::types::{KEY_BYTES_MAX, Seq, SliceId};

/// Bytes of a block before it is closed; the entry that crosses the line still goes in.
pub const BLOCK_BYTES: usize = 4096 - 64;
/// Bytes of a table, more or less; on drives with small segments a quarter of one.
pub const TABLE_BYTES: usize = 2 * 1024 * 1024;
/// Bytes of the footer.
pub const FOOTER_BYTES: usize = 64;
/// What a table may exceed its size by: the block that crosses the line.
const ROOM_BYTES: usize = 16 << 10;
/// No table's entries point at more: sums over all tables of a drive still fit.
const RECORD_BYTES_MAX: u64 = 1 << 44;
const MAGIC: [u8; 8] = *b"PUMKVTAB";
const VERSION: u32 = 1;

/// What the manifest knows of a table.
#[derive(Clone, Debug, PartialEq)]
pub struct TableMeta {
    /// Unique on the drive, for ever.
    pub id: u64,
    /// The slice it belongs to.
    pub slice: SliceId,
    /// Where it lies. Cleaning changes this.
    pub ptr: RecordPtr,
    /// At or below the first key (`bounds`). Entries below do not count any more: a partial merge took them.
    pub min_key: Bytes,
    /// At or above the last key.
    pub max_key: Bytes,
    /// Entries.
    pub entries: u64,
    /// Entries that are tombstones.
    pub tombstones: u64,
    /// The greatest sequence number of an entry.
    pub max_seq: Seq,
    /// The earliest expiry of an entry, Unix milliseconds; 0 = none expires.
    pub earliest_expiry_ms: u64,
    /// Bytes of records that entries point at.
    pub record_bytes: u64,
    /// Where the head starts in the payload; the blocks end there.
    pub head_at: u32,
    /// Bytes of the head.
    pub head_len: u32,
}

impl TableMeta {
    /// Appends it to a manifest edit.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put_varint(out, self.id);
        put_varint(out, u64::from(self.slice.0));
        out.extend_from_slice(&self.ptr.addr.0.to_le_bytes());
        put_varint(out, u64::from(self.ptr.len));
        for key in [&self.min_key, &self.max_key] {
            put_varint(out, key.len() as u64);
            out.extend_from_slice(key);
        }
        for number in
            [self.entries, self.tombstones, self.max_seq, self.earliest_expiry_ms, self.record_bytes]
        {
            put_varint(out, number);
        }
        put_varint(out, u64::from(self.head_at));
        put_varint(out, u64::from(self.head_len));
    }

    /// Reads what [`TableMeta::encode`] wrote.
    pub fn decode(cursor: &mut Cursor<'_>) -> Option<Self> {
        let id = cursor.varint()?;
        let slice = SliceId(u16::try_from(cursor.varint()?).ok()?);
        let ptr = RecordPtr { addr: Addr(cursor.u64()?), len: u32::try_from(cursor.varint()?).ok()? };
        let mut key = || {
            let len = cursor.count().filter(|&len| len <= KEY_BYTES_MAX)?;
            Some(Bytes::copy_from_slice(cursor.take(len)?))
        };
        let (min_key, max_key) = (key()?, key()?);
        let mut number = || cursor.varint();
        Some(Self {
            id,
            slice,
            ptr,
            min_key,
            max_key,
            entries: number()?,
            tombstones: number()?,
            max_seq: number()?,
            earliest_expiry_ms: number()?,
            record_bytes: number()?,
            head_at: u32::try_from(number()?).ok()?,
            head_len: u32::try_from(number()?).ok()?,
        })
    }

    /// Whether a table may be like that: its parts lie in its record, and it can hold so much.
    pub fn is_plausible(&self) -> bool {
        let bytes = u64::from(self.ptr.len);
        self.min_key <= self.max_key
            && u64::from(self.head_at) + u64::from(self.head_len) <= bytes
            && self.entries <= bytes
            && self.tombstones <= self.entries
            && self.record_bytes <= RECORD_BYTES_MAX
    }
}

/// A table's filter and block index, verified.
#[derive(Clone, Debug)]
pub struct Head {
    /// Empty: it was let go.
    filter: Bytes,
    /// The block index.
    pub index: Index,
}

impl Head {
    /// Takes `bytes` for the head of `table`, if they are.
    pub fn verify(table: &TableMeta, bytes: &[u8]) -> Option<Self> {
        let mut cursor = Cursor::new(bytes, 0);
        let crc = cursor.u32()?;
        if crc32c_seeded(head_seed(table.id), &[&bytes[4..]]) != crc {
            return None;
        }
        let filter_len = cursor.u32()? as usize;
        // A copy of its own: the buffer that was read into is larger.
        let filter = Bytes::copy_from_slice(cursor.take(filter_len)?);
        Some(Self { filter, index: Index::decode(&bytes[cursor.at..], table.head_at)? })
    }

    /// Whether the table may hold a key with this filter hash.
    pub fn may_contain(&self, hash: u64) -> bool {
        !self.has_filter() || filter::may_contain(&self.filter, hash)
    }

    /// Whether its filter is in memory.
    pub fn has_filter(&self) -> bool {
        !self.filter.is_empty()
    }

    /// Lets go of the filter: from here on the table may hold any key.
    pub fn drop_filter(&mut self) {
        self.filter = Bytes::new();
    }

    /// Memory it holds, in bytes.
    pub fn bytes(&self) -> usize {
        self.filter.len() + self.index.bytes() + size_of::<Self>()
    }
}

fn head_seed(table_id: u64) -> u64 {
    table_id.rotate_left(32) ^ u64::from(u32::MAX)
}

/// Writes one table, entry by entry in key order.
pub struct TableBuilder {
    meta: TableMeta,
    out: Vec<u8>,
    block: BlockBuilder,
    index: IndexBuilder,
    hashes: Chunked<u64>,
    filter_bits_per_key: usize,
    first_key: Bytes,
    last_key: Vec<u8>,
    /// The last block's length, whose separator awaits the next key.
    pending: Option<u32>,
}

impl TableBuilder {
    /// A table `id` for `slice`, of about `bytes`.
    pub fn new(id: u64, slice: SliceId, filter_bits_per_key: usize, bytes: usize) -> Self {
        let meta = TableMeta {
            id,
            slice,
            ptr: RecordPtr { addr: Addr(0), len: 0 },
            min_key: Bytes::new(),
            max_key: Bytes::new(),
            entries: 0,
            tombstones: 0,
            max_seq: 0,
            earliest_expiry_ms: 0,
            record_bytes: 0,
            head_at: 0,
            head_len: 0,
        };
        Self {
            meta,
            // Growing by halves would touch as much memory again. What is not written to costs nothing.
            out: Vec::with_capacity(bytes + ROOM_BYTES),
            block: BlockBuilder::default(),
            index: IndexBuilder::default(),
            hashes: Chunked::default(),
            filter_bits_per_key,
            first_key: Bytes::new(),
            last_key: Vec::new(),
            pending: None,
        }
    }

    /// Bytes of the payload if it were finished now, give or take a block.
    pub fn payload_bytes(&self) -> usize {
        let head = self.hashes.len() * self.filter_bits_per_key / 8 + self.index.encoded_bytes();
        self.out.len() + self.block.bytes() + head + FOOTER_BYTES
    }

    /// Whether no entry was added.
    pub fn is_empty(&self) -> bool {
        self.meta.entries == 0
    }

    /// Adds an entry, whose key is above all before it.
    pub fn add(&mut self, key: &[u8], entry: &KeyEntry) {
        if self.meta.entries == 0 {
            self.first_key = Bytes::copy_from_slice(key);
        }
        if let Some(len) = self.pending.take() {
            self.index.push(separator(&self.last_key, key), len);
        }
        self.block.add(key, entry);
        self.hashes.push(filter::filter_hash(key));
        self.last_key.clear();
        self.last_key.extend_from_slice(key);
        let meta = &mut self.meta;
        meta.entries += 1;
        meta.tombstones += u64::from(entry.is_tombstone());
        meta.max_seq = meta.max_seq.max(entry.seq);
        if entry.expire_ms != 0 && (meta.earliest_expiry_ms == 0 || entry.expire_ms < meta.earliest_expiry_ms)
        {
            meta.earliest_expiry_ms = entry.expire_ms;
        }
        if let Body::Record(ptr) = entry.body {
            meta.record_bytes += u64::from(ptr.len);
        }
        if self.block.bytes() >= BLOCK_BYTES {
            self.pending = Some(self.block.finish(meta.id, &mut self.out).1);
        }
    }

    /// The table's payload, and its description but for where it will lie: with bounds that keep clear of what lies before it and
    /// behind.
    pub fn finish(mut self, before: &Before, behind: Behind<'_>) -> (TableMeta, Bytes) {
        self.meta.min_key = lower(&self.first_key, before);
        self.meta.max_key = upper(&self.last_key, behind);
        if self.block.count() > 0 {
            self.pending = Some(self.block.finish(self.meta.id, &mut self.out).1);
        }
        if let Some(len) = self.pending.take() {
            self.index.push(&self.meta.max_key, len);
        }
        let meta = &mut self.meta;
        meta.head_at = self.out.len() as u32;
        let filter = filter::build(self.hashes.len(), self.hashes.iter().copied(), self.filter_bits_per_key);
        let start = self.out.len();
        self.out.extend_from_slice(&[0; 4]);
        self.out.extend_from_slice(&(filter.len() as u32).to_le_bytes());
        self.out.extend_from_slice(&filter);
        self.index.encode(&mut self.out);
        let crc = crc32c_seeded(head_seed(meta.id), &[&self.out[start + 4..]]);
        self.out[start..start + 4].copy_from_slice(&crc.to_le_bytes());
        meta.head_len = (self.out.len() - start) as u32;
        let footer = encode_footer(meta);
        self.out.extend_from_slice(&footer);
        (self.meta, Bytes::from(self.out))
    }
}

fn encode_footer(meta: &TableMeta) -> [u8; FOOTER_BYTES] {
    let mut footer = [0u8; FOOTER_BYTES];
    footer[0..8].copy_from_slice(&MAGIC);
    footer[8..12].copy_from_slice(&VERSION.to_le_bytes());
    footer[12..14].copy_from_slice(&meta.slice.0.to_le_bytes());
    footer[16..24].copy_from_slice(&meta.id.to_le_bytes());
    footer[24..32].copy_from_slice(&meta.entries.to_le_bytes());
    footer[32..40].copy_from_slice(&meta.max_seq.to_le_bytes());
    footer[40..44].copy_from_slice(&meta.head_at.to_le_bytes());
    footer[44..48].copy_from_slice(&meta.head_len.to_le_bytes());
    let crc = crc32c_seeded(meta.id, &[&footer[..60]]);
    footer[60..64].copy_from_slice(&crc.to_le_bytes());
    footer
}

/// What a table's last bytes say of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Footer {
    /// The table.
    pub id: u64,
    /// The slice it was written for.
    pub slice: SliceId,
    /// Entries.
    pub entries: u64,
    /// Where the head starts.
    pub head_at: u32,
    /// Bytes of the head.
    pub head_len: u32,
}

/// Reads a table's footer from its payload.
pub fn decode_footer(payload: &[u8]) -> Option<Footer> {
    let footer = &payload[payload.len().checked_sub(FOOTER_BYTES)?..];
    let mut cursor = Cursor::new(footer, 8);
    let version = cursor.u32()?;
    let slice = SliceId(cursor.u16()?);
    cursor.take(2)?;
    let (id, entries) = (cursor.u64()?, cursor.u64()?);
    cursor.u64()?;
    let (head_at, head_len) = (cursor.u32()?, cursor.u32()?);
    let crc = u32::from_le_bytes(footer[60..64].try_into().ok()?);
    (footer[..8] == MAGIC && version == VERSION && crc32c_seeded(id, &[&footer[..60]]) == crc)
        .then_some(Footer { id, slice, entries, head_at, head_len })
}
