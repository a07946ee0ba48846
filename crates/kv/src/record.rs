//! Payloads of the heap's records (`docs/format/kv-record.md`).
//!
//! Every payload that speaks of a key starts with the same eight bytes (slice, tag, flags, key length), then
//! the expiry when a flag says so, then the key, then what belongs to the kind. Decoders take any bytes and
//! answer `None` for what no encoder wrote.

use std::ops::Range;

use pumice_segment::{Addr, RecordPtr};

use crate::types::{KEY_BYTES_MAX, SliceId, VALUE_BYTES_MAX};

/// A key and its value.
pub const PUT: u8 = 1;
/// A key that is gone.
pub const DELETE: u8 = 2;
/// A key and the list of its value's pieces.
pub const PUT_LARGE: u8 = 3;
/// One piece of a large value.
pub const PIECE: u8 = 4;
/// A key prefix that nobody will read again.
pub const RETIRE: u8 = 5;
/// A signed change of a space's tally.
pub const TALLY: u8 = 6;
/// A key table.
pub const TABLE: u8 = 7;
/// A key whose value stays in the record of an older version, with another expiry.
pub const PUT_AGAIN: u8 = 8;

/// Bytes before the expiry or the key.
pub const HEAD_BYTES: usize = 8;
const FLAG_EXPIRES: u8 = 1;
const TALLY_BYTES: usize = 16;
const PIECE_HEAD_BYTES: usize = 16;
const VALUE_PLACE_BYTES: usize = 16;

/// The fields of a payload that speaks of a key; the ranges index the payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRecord {
    /// The slice that owns the key.
    pub slice: SliceId,
    /// The writer's byte.
    pub tag: u8,
    /// Expiry, Unix milliseconds; 0 = never.
    pub expire_ms: u64,
    /// Where the key lies.
    pub key: Range<usize>,
    /// Where the rest lies: the value, the list of pieces, the piece.
    pub rest: Range<usize>,
}

/// Appends the head and the key; what belongs to the kind follows it.
pub fn encode_key(out: &mut Vec<u8>, slice: SliceId, tag: u8, expire_ms: u64, key: &[u8]) {
    assert!(key.len() <= KEY_BYTES_MAX, "a key of {} bytes exceeds {KEY_BYTES_MAX}", key.len());
    let mut head = [0u8; HEAD_BYTES];
    head[0..2].copy_from_slice(&slice.0.to_le_bytes());
    head[2] = tag;
    head[3] = if expire_ms != 0 { FLAG_EXPIRES } else { 0 };
    head[4..8].copy_from_slice(&(key.len() as u32).to_le_bytes());
    out.extend_from_slice(&head);
    if expire_ms != 0 {
        out.extend_from_slice(&expire_ms.to_le_bytes());
    }
    out.extend_from_slice(key);
}

/// Reads what [`encode_key`] wrote.
pub fn decode_key(payload: &[u8]) -> Option<KeyRecord> {
    let head = payload.get(..HEAD_BYTES)?;
    let slice = SliceId(u16::from_le_bytes([head[0], head[1]]));
    let key_len = u32::from_le_bytes([head[4], head[5], head[6], head[7]]) as usize;
    let mut at = HEAD_BYTES;
    let expire_ms = match head[3] {
        0 => 0,
        FLAG_EXPIRES => {
            at += 8;
            u64::from_le_bytes(payload.get(HEAD_BYTES..at)?.try_into().ok()?)
        }
        _ => return None,
    };
    if key_len > KEY_BYTES_MAX || payload.len() - at < key_len {
        return None;
    }
    let key = at..at + key_len;
    let rest = key.end..payload.len();
    Some(KeyRecord { slice, tag: head[2], expire_ms, key, rest })
}

/// Appends a tally's payload.
pub fn encode_tally(out: &mut Vec<u8>, space: u32, delta: i64) {
    out.extend_from_slice(&space.to_le_bytes());
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&delta.to_le_bytes());
}

/// Reads what [`encode_tally`] wrote.
pub fn decode_tally(payload: &[u8]) -> Option<(u32, i64)> {
    let payload: &[u8; TALLY_BYTES] = payload.try_into().ok()?;
    let space = u32::from_le_bytes(payload[0..4].try_into().ok()?);
    Some((space, i64::from_le_bytes(payload[8..16].try_into().ok()?)))
}

/// Which piece of which large value a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PieceName {
    /// The large value's id.
    pub id: u64,
    /// The piece's place in the value.
    pub index: u32,
}

/// Appends a piece's payload up to its data.
pub fn encode_piece_head(out: &mut Vec<u8>, slice: SliceId, key: &[u8], name: PieceName) {
    encode_key(out, slice, 0, 0, key);
    out.extend_from_slice(&name.id.to_le_bytes());
    out.extend_from_slice(&name.index.to_le_bytes());
    out.extend_from_slice(&[0; 4]);
}

/// Reads a piece's payload: whose it is, and where its data lies.
pub fn decode_piece(payload: &[u8]) -> Option<(KeyRecord, PieceName, Range<usize>)> {
    let record = decode_key(payload)?;
    let rest = payload.get(record.rest.clone())?;
    let id = u64::from_le_bytes(rest.get(0..8)?.try_into().ok()?);
    let index = u32::from_le_bytes(rest.get(8..12)?.try_into().ok()?);
    let data = record.rest.start + rest.get(..PIECE_HEAD_BYTES)?.len()..record.rest.end;
    Some((record, PieceName { id, index }, data))
}

/// Where the value of a [`PUT_AGAIN`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValuePlace {
    /// The record of the version that was put.
    pub ptr: RecordPtr,
    /// The value's length in bytes.
    pub value_len: u32,
}

/// What follows the key of a [`PUT_AGAIN`].
pub fn encode_value_place(place: &ValuePlace) -> [u8; VALUE_PLACE_BYTES] {
    let mut out = [0; VALUE_PLACE_BYTES];
    out[..8].copy_from_slice(&place.ptr.addr.0.to_le_bytes());
    out[8..12].copy_from_slice(&place.ptr.len.to_le_bytes());
    out[12..].copy_from_slice(&place.value_len.to_le_bytes());
    out
}

/// Reads what [`encode_value_place`] wrote.
pub fn decode_value_place(rest: &[u8]) -> Option<ValuePlace> {
    let rest: &[u8; VALUE_PLACE_BYTES] = rest.try_into().ok()?;
    let u32_at = |at: usize| u32::from_le_bytes([rest[at], rest[at + 1], rest[at + 2], rest[at + 3]]);
    let ptr = RecordPtr { addr: Addr(u64::from(u32_at(4)) << 32 | u64::from(u32_at(0))), len: u32_at(8) };
    let value_len = u32_at(12);
    (value_len <= ptr.len && value_len as usize <= VALUE_BYTES_MAX).then_some(ValuePlace { ptr, value_len })
}

/// Bytes of a piece's payload before its data.
pub fn piece_head_bytes(key: &[u8]) -> usize {
    HEAD_BYTES + key.len() + PIECE_HEAD_BYTES
}
