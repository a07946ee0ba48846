//! Blocks of a key table: entries in key order, prefix-compressed, with restart points (`docs/format/key-table.md`).
//!
//! A block carries a CRC-32C seeded with its table's id and its place in the table, so that neither a flipped
//! bit nor another block read by mistake passes. [`Block::verify`] is the only way to make one.

use std::cmp::Ordering;
use std::ops::Bound;

use bytes::Bytes;
use pumice_base::checksum::crc32c_seeded;
use pumice_segment::{Addr, RecordPtr};

use crate::codec::{Cursor, put_varint};
use crate::entry::{Body, KeyEntry, PlacedBody, PlacedEntry};
use crate::scan::piece::{Piece, PieceBuilder};
use crate::types::KEY_BYTES_MAX;

/// Entries from one restart point to the next.
const RESTART_EVERY: u32 = 16;
const HEAD_BYTES: usize = 12;
/// Keys of a block in full, at most. Of one of 4 KiB they come to 3 MiB and its last key; who forges one may let each share all of
/// the one before, which would be as much as the square of its length.
const KEYS_BYTES_MAX: usize = 16 << 20;

const BODY_MASK: u8 = 0b11;
const BODY_TOMBSTONE: u8 = 0;
const BODY_INLINE: u8 = 1;
const BODY_RECORD: u8 = 2;
const LARGE: u8 = 1 << 2;
const EXPIRES: u8 = 1 << 3;
const TAGGED: u8 = 1 << 4;
const COUNTED: u8 = 1 << 5;
const KNOWN: u8 = BODY_MASK | LARGE | EXPIRES | TAGGED | COUNTED;

/// Collects entries in key order.
#[derive(Default)]
pub struct BlockBuilder {
    buf: Vec<u8>,
    restarts: Vec<u32>,
    count: u32,
    last_key: Vec<u8>,
}

impl BlockBuilder {
    /// Bytes of the block if finished now.
    pub fn bytes(&self) -> usize {
        HEAD_BYTES + self.buf.len() + self.restarts.len() * 4
    }

    /// Entries so far.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// The key added last.
    pub fn last_key(&self) -> &[u8] {
        &self.last_key
    }

    /// Adds an entry, whose key is above all before it.
    pub fn add(&mut self, key: &[u8], entry: &KeyEntry) {
        assert!(self.count == 0 || key > self.last_key.as_slice(), "keys of a block rise");
        let shared = if self.count.is_multiple_of(RESTART_EVERY) {
            self.restarts.push(self.buf.len() as u32);
            0
        } else {
            key.iter().zip(&self.last_key).take_while(|(a, b)| a == b).count()
        };
        let out = &mut self.buf;
        put_varint(out, shared as u64);
        put_varint(out, (key.len() - shared) as u64);
        out.extend_from_slice(&key[shared..]);
        let body = match &entry.body {
            Body::Tombstone => BODY_TOMBSTONE,
            Body::Inline(_) => BODY_INLINE,
            Body::Record(_) => BODY_RECORD,
        };
        let mut head = body;
        let flags = [
            (LARGE, entry.large),
            (EXPIRES, entry.expire_ms != 0),
            (TAGGED, entry.tag != 0),
            (COUNTED, entry.counted),
        ];
        for (flag, set) in flags {
            head |= if set { flag } else { 0 };
        }
        out.push(head);
        put_varint(out, entry.seq);
        if entry.expire_ms != 0 {
            put_varint(out, entry.expire_ms);
        }
        if entry.tag != 0 {
            out.push(entry.tag);
        }
        match &entry.body {
            Body::Tombstone => {}
            Body::Inline(value) => {
                put_varint(out, value.len() as u64);
                if entry.large {
                    put_varint(out, entry.value_len);
                }
                out.extend_from_slice(value);
            }
            Body::Record(ptr) => {
                put_varint(out, ptr.addr.0 >> 32);
                put_varint(out, u64::from(ptr.addr.0 as u32));
                put_varint(out, u64::from(ptr.len));
                put_varint(out, entry.value_len);
            }
        }
        self.last_key.clear();
        self.last_key.extend_from_slice(key);
        self.count += 1;
    }

    /// Appends the finished block to `out`, which is the table so far, and starts over. Answers its place.
    pub fn finish(&mut self, table_id: u64, out: &mut Vec<u8>) -> (u32, u32) {
        let start = out.len();
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&self.count.to_le_bytes());
        out.extend_from_slice(&(self.restarts.len() as u32).to_le_bytes());
        for restart in &self.restarts {
            out.extend_from_slice(&restart.to_le_bytes());
        }
        out.extend_from_slice(&self.buf);
        let crc = crc32c_seeded(seed(table_id, start as u32), &[&out[start + 4..]]);
        out[start..start + 4].copy_from_slice(&crc.to_le_bytes());
        let place = (start as u32, (out.len() - start) as u32);
        self.buf.clear();
        self.restarts.clear();
        self.last_key.clear();
        self.count = 0;
        place
    }
}

fn seed(table_id: u64, offset: u32) -> u64 {
    table_id.rotate_left(32) ^ u64::from(offset)
}

/// A verified block.
#[derive(Clone, Debug)]
pub struct Block {
    bytes: Bytes,
    count: u32,
    restarts: u32,
    entries_at: usize,
}

impl Block {
    /// Takes the bytes at `offset` of table `table_id` for a block, if they are that block.
    pub fn verify(table_id: u64, offset: u32, bytes: Bytes) -> Option<Self> {
        let mut cursor = Cursor::new(&bytes, 0);
        let crc = cursor.u32()?;
        if crc32c_seeded(seed(table_id, offset), &[&bytes[4..]]) != crc {
            return None;
        }
        let (count, restarts) = (cursor.u32()?, cursor.u32()?);
        let entries_at = HEAD_BYTES.checked_add((restarts as usize).checked_mul(4)?)?;
        (entries_at <= bytes.len()).then_some(Self { bytes, count, restarts, entries_at })
    }

    /// Memory it holds, in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Entries in it.
    pub fn count(&self) -> u32 {
        self.count
    }

    fn restart(&self, index: u32) -> Option<usize> {
        let at = Cursor::new(&self.bytes, HEAD_BYTES + index as usize * 4).u32()?;
        self.entries_at.checked_add(at as usize)
    }

    /// The entry of `key`. `Err` when the block holds what no builder wrote.
    pub fn get(&self, key: &[u8]) -> Result<Option<KeyEntry>, Malformed> {
        let (mut low, mut high) = (0, self.restarts);
        while low < high {
            let middle = low + (high - low) / 2;
            let mut cursor = Cursor::new(&self.bytes, self.restart(middle).ok_or(Malformed)?);
            cursor.varint().filter(|&shared| shared == 0).ok_or(Malformed)?;
            let len = cursor.count().ok_or(Malformed)?;
            match cursor.take(len).ok_or(Malformed)?.cmp(key) {
                Ordering::Greater => high = middle,
                Ordering::Equal => return self.entry(&mut cursor).map(Some),
                Ordering::Less => low = middle + 1,
            }
        }
        if low == 0 {
            return Ok(None);
        }
        let mut cursor = Cursor::new(&self.bytes, self.restart(low - 1).ok_or(Malformed)?);
        // `matched` bytes of the sought key equal the entry before; while an entry shares more than that with its
        // predecessor it is below the key like it.
        let mut matched = 0usize;
        while cursor.left() > 0 {
            let shared = cursor.count().ok_or(Malformed)?;
            let len = cursor.count().ok_or(Malformed)?;
            let rest = cursor.take(len).ok_or(Malformed)?;
            if shared < matched {
                return Ok(None);
            }
            if shared == matched {
                let wanted = &key[matched..];
                let same = rest.iter().zip(wanted).take_while(|(a, b)| a == b).count();
                if same == rest.len() && same == wanted.len() {
                    return self.entry(&mut cursor).map(Some);
                }
                if same == wanted.len() || (same < rest.len() && rest[same] > wanted[same]) {
                    return Ok(None);
                }
                matched += same;
            }
            self.skip(&mut cursor).ok_or(Malformed)?;
        }
        Ok(None)
    }

    fn skip(&self, cursor: &mut Cursor<'_>) -> Option<()> {
        let head = cursor.u8()?;
        // Numbers that nobody asked for yet are passed over together.
        let mut pending = 1 + u32::from(head & EXPIRES != 0);
        if head & TAGGED != 0 {
            cursor.skip_varints(std::mem::take(&mut pending))?;
            cursor.u8()?;
        }
        match head & BODY_MASK {
            BODY_TOMBSTONE => cursor.skip_varints(pending)?,
            BODY_INLINE => {
                cursor.skip_varints(pending)?;
                let len = cursor.count()?;
                cursor.skip_varints(u32::from(head & LARGE != 0))?;
                cursor.take(len)?;
            }
            _ => cursor.skip_varints(pending + 4)?,
        }
        Some(())
    }

    fn entry(&self, cursor: &mut Cursor<'_>) -> Result<KeyEntry, Malformed> {
        self.placed(cursor).map(|entry| entry.to_entry(&self.bytes)).ok_or(Malformed)
    }

    /// An entry behind its key; a value beside it lies in the block.
    fn placed(&self, cursor: &mut Cursor<'_>) -> Option<PlacedEntry> {
        let head = cursor.u8()?;
        if head & !KNOWN != 0 {
            return None;
        }
        let seq = cursor.varint()?;
        let expire_ms = if head & EXPIRES != 0 { cursor.varint()? } else { 0 };
        let tag = if head & TAGGED != 0 { cursor.u8()? } else { 0 };
        let large = head & LARGE != 0;
        let (body, value_len) = match head & BODY_MASK {
            BODY_TOMBSTONE => (PlacedBody::Tombstone, 0),
            BODY_INLINE => {
                let len = cursor.count()?;
                let value_len = if large { cursor.varint()? } else { len as u64 };
                let at = cursor.at;
                cursor.take(len)?;
                // A block is shorter than a segment.
                (PlacedBody::Inline { at: at as u32, len: len as u32 }, value_len)
            }
            BODY_RECORD => {
                let segment = u32::try_from(cursor.varint()?).ok()?;
                let offset = u32::try_from(cursor.varint()?).ok()?;
                let len = u32::try_from(cursor.varint()?).ok()?;
                let value_len = cursor.varint()?;
                // Places are added up, and so are lengths of values, before anything is read there.
                if offset.checked_add(len).is_none() || (!large && value_len > u64::from(len)) {
                    return None;
                }
                let addr = Addr(u64::from(segment) << 32 | u64::from(offset));
                (PlacedBody::Record(RecordPtr { addr, len }), value_len)
            }
            _ => return None,
        };
        // Tables name what is on flash.
        let (counted, on_flash) = (head & COUNTED != 0, true);
        Some(PlacedEntry { seq, expire_ms, value_len, body, tag, large, counted, on_flash })
    }

    /// All entries, in key order.
    pub fn entries(&self) -> Result<Vec<(Bytes, KeyEntry)>, Malformed> {
        let rows = self.count.min(65_536) as usize;
        let mut piece = PieceBuilder::with_capacity(rows, self.bytes.len());
        self.collect(self.entries_at, |_, _| Take::Yes, &mut piece)?;
        let piece = piece.finish(Some(&self.bytes), false);
        if piece.left() != self.count as usize {
            return Err(Malformed);
        }
        Ok((0..piece.left()).map(|row| (piece.key_bytes(row), piece.entry(row))).collect())
    }

    /// The entries between bounds, in key order or against it: a short range costs what it holds, and a restart point's way to it.
    pub fn entries_between(
        &self,
        lower: Bound<&[u8]>,
        upper: Bound<&[u8]>,
        backward: bool,
    ) -> Result<(Piece, Around), Malformed> {
        let mut from = self.entries_at;
        if let Bound::Included(key) | Bound::Excluded(key) = lower {
            let (mut low, mut high) = (0, self.restarts);
            while low < high {
                let middle = low + (high - low) / 2;
                let at = self.restart(middle).ok_or(Malformed)?;
                let mut cursor = Cursor::new(&self.bytes, at);
                cursor.varint().filter(|&shared| shared == 0).ok_or(Malformed)?;
                let len = cursor.count().ok_or(Malformed)?;
                if cursor.take(len).ok_or(Malformed)? <= key {
                    (low, from) = (middle + 1, at);
                } else {
                    high = middle;
                }
            }
        }
        // Of a whole block, most likely, or of a few entries.
        let is_open = matches!((lower, upper), (Bound::Unbounded, Bound::Unbounded));
        let rows = if is_open { self.count.min(65_536) as usize } else { 2 * RESTART_EVERY as usize };
        let mut piece = PieceBuilder::with_capacity(rows, if is_open { self.bytes.len() } else { 1024 });
        let mut between = Between::new(lower, upper);
        between.around.below = from > self.entries_at;
        self.collect(from, |key, shared| between.take(key, shared), &mut piece)?;
        Ok((piece.finish(Some(&self.bytes), backward), between.around))
    }

    /// How many entries between bounds are no tombstones.
    pub fn count_between(
        &self,
        lower: Bound<&[u8]>,
        upper: Bound<&[u8]>,
    ) -> Result<(u64, Around), Malformed> {
        let mut key: Vec<u8> = Vec::with_capacity(256);
        let mut cursor = Cursor::new(&self.bytes, self.entries_at);
        let mut count = 0;
        let mut is_below_lower = true;
        let mut around = Around { below: false, above: false };
        while cursor.left() > 0 {
            let shared = cursor.count().filter(|&shared| shared <= key.len()).ok_or(Malformed)?;
            let len = cursor.count().ok_or(Malformed)?;
            key.truncate(shared);
            key.extend_from_slice(cursor.take(len).ok_or(Malformed)?);
            around.above = match upper {
                Bound::Unbounded => false,
                Bound::Included(upper) => key.as_slice() > upper,
                Bound::Excluded(upper) => key.as_slice() >= upper,
            };
            if around.above {
                break;
            }
            // Keys rise: once above the lower bound, all are.
            is_below_lower = is_below_lower
                && match lower {
                    Bound::Unbounded => false,
                    Bound::Included(lower) => key.as_slice() < lower,
                    Bound::Excluded(lower) => key.as_slice() <= lower,
                };
            around.below |= is_below_lower;
            let is_tombstone = cursor.peek().ok_or(Malformed)? & BODY_MASK == BODY_TOMBSTONE;
            count += u64::from(!is_below_lower && !is_tombstone);
            self.skip(&mut cursor).ok_or(Malformed)?;
        }
        Ok((count, around))
    }

    /// Appends the entries from `at` on that are `wanted`, which is told how many bytes the key has in common with the one before; `at` is
    /// a restart point.
    fn collect(
        &self,
        at: usize,
        mut wanted: impl FnMut(&[u8], usize) -> Take,
        piece: &mut PieceBuilder,
    ) -> Result<(), Malformed> {
        let mut cursor = Cursor::new(&self.bytes, at);
        let mut last = 0..0;
        let mut is_first = true;
        while cursor.left() > 0 {
            let shared = cursor.count().filter(|&shared| shared <= last.len()).ok_or(Malformed)?;
            let len = cursor.count().ok_or(Malformed)?;
            let rest = cursor.take(len).ok_or(Malformed)?;
            let keys = &mut piece.bytes;
            let start = keys.len();
            if shared + rest.len() > KEY_BYTES_MAX || start > KEYS_BYTES_MAX {
                return Err(Malformed);
            }
            keys.extend_from_within(last.start..last.start + shared);
            keys.extend_from_slice(rest);
            if !is_first && !rises(&keys[last.start + shared..last.end], rest) {
                return Err(Malformed);
            }
            is_first = false;
            last = start..keys.len();
            match wanted(&keys[start..], shared) {
                Take::Yes => {
                    piece.push(start, last.len(), self.placed(&mut cursor).ok_or(Malformed)?);
                }
                Take::Not => self.skip(&mut cursor).ok_or(Malformed)?,
                Take::End => break,
            }
        }
        Ok(())
    }
}

/// Whether a key that ends in `next` comes behind one that ends in `last`. Most differ in the first of these bytes.
#[inline]
fn rises(last: &[u8], next: &[u8]) -> bool {
    match (last.first(), next.first()) {
        (Some(last), Some(next)) if last != next => last < next,
        _ => last < next,
    }
}

/// Tells of keys that come in order which are between two bounds. Most are compared with neither.
struct Between<'a> {
    lower: Bound<&'a [u8]>,
    upper: Bound<&'a [u8]>,
    around: Around,
    is_above_lower: bool,
    /// Bytes that the last key has in common with the upper bound, below which it is.
    common: Option<usize>,
}

impl<'a> Between<'a> {
    fn new(lower: Bound<&'a [u8]>, upper: Bound<&'a [u8]>) -> Self {
        let around = Around { below: false, above: false };
        Self { lower, upper, around, is_above_lower: matches!(lower, Bound::Unbounded), common: None }
    }

    /// What to do with the next key, of which so many bytes are those of the last.
    #[inline]
    fn take(&mut self, key: &[u8], shared: usize) -> Take {
        if !self.is_above_lower {
            self.is_above_lower = match self.lower {
                Bound::Unbounded => true,
                Bound::Included(lower) => key >= lower,
                Bound::Excluded(lower) => key > lower,
            };
            if !self.is_above_lower {
                self.around.below = true;
                return Take::Not;
            }
        }
        // It differs from the upper bound where the last one does.
        if self.common.is_some_and(|common| shared > common) {
            return Take::Yes;
        }
        self.around.above = match self.upper {
            Bound::Unbounded => return Take::Yes,
            Bound::Included(upper) => key > upper,
            Bound::Excluded(upper) => key >= upper,
        };
        if self.around.above {
            return Take::End;
        }
        if let Bound::Included(upper) | Bound::Excluded(upper) = self.upper {
            self.common = Some(upper.iter().zip(key).take_while(|(a, b)| a == b).count());
        }
        Take::Yes
    }
}

/// What else was met beside the entries between two bounds.
#[derive(Clone, Copy, Debug)]
pub struct Around {
    /// Entries below the lower bound.
    pub below: bool,
    /// Entries above the upper bound.
    pub above: bool,
}

/// What to do with an entry met on the way.
enum Take {
    Yes,
    Not,
    /// Nothing from here on.
    End,
}

/// Bytes that carry the right checksum and yet no builder wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;
