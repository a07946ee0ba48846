//! Records: `docs/format/record.md`.

use pumice_base::checksum::{Crc32c, crc32c, crc32c_seeded};

use super::frame::HeadSum;
use super::{COUNT_MAX, put_u32, u32_at, u64_at};
use crate::Addr;

/// Bytes of a record's header.
pub const HEADER_BYTES: usize = 12;
/// Bytes of the sequence number that follows the header of records that have their own.
pub const SEQ_BYTES: usize = 8;
const FLAG_SEQ: u8 = 1;

/// Bytes from one record to the next: records are aligned to 8.
pub fn padded(len: usize) -> usize {
    len.next_multiple_of(8)
}

/// Whole length of a record, without padding.
pub fn total_bytes(payload_len: usize, has_seq: bool) -> usize {
    HEADER_BYTES + if has_seq { SEQ_BYTES } else { 0 } + payload_len
}

/// CRC-32C of the sequence number (0 when the record has none of its own) and the payload: the part of the
/// checksum that does not depend on the address, computed before any lock is taken.
pub fn payload_crc(seq: Option<u64>, parts: &[&[u8]]) -> u32 {
    crc32c_seeded(seq.unwrap_or(0), parts)
}

/// [`payload_crc`] of a payload that comes bit by bit.
pub fn begin_payload_crc(seq: Option<u64>) -> Crc32c {
    Crc32c::seeded(seq.unwrap_or(0))
}

/// Writes the header, and the sequence number if there is one, to the front of `out`; returns how many bytes.
pub fn encode_head(
    out: &mut [u8],
    life: u64,
    addr: Addr,
    payload_len: u32,
    kind: u8,
    seq: Option<u64>,
    payload_crc: u32,
) -> usize {
    put_u32(out, 4, payload_len);
    out[8] = kind;
    out[9] = if seq.is_some() { FLAG_SEQ } else { 0 };
    out[10] = 0;
    out[11] = 0;
    let crc = head_crc(life, addr, &out[4..12], payload_crc);
    put_u32(out, 0, crc);
    match seq {
        Some(seq) => {
            out[HEADER_BYTES..HEADER_BYTES + SEQ_BYTES].copy_from_slice(&seq.to_le_bytes());
            HEADER_BYTES + SEQ_BYTES
        }
        None => HEADER_BYTES,
    }
}

fn head_crc(life: u64, addr: Addr, head: &[u8], payload_crc: u32) -> u32 {
    let mut bytes = [0u8; 28];
    bytes[0..8].copy_from_slice(&life.to_le_bytes());
    bytes[8..16].copy_from_slice(&addr.0.to_le_bytes());
    bytes[16..24].copy_from_slice(head);
    bytes[24..28].copy_from_slice(&payload_crc.to_le_bytes());
    crc32c(&bytes)
}

/// A record that verified. Offsets count from the record's start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parsed {
    /// The client's kind.
    pub kind: u8,
    /// Its own sequence number.
    pub seq: Option<u64>,
    /// Where the payload starts.
    pub payload_at: usize,
    /// Header, sequence number and payload.
    pub total: usize,
}

/// The sequence number that the record at the front of `bytes` carries, unverified.
pub fn peek_seq(bytes: &[u8]) -> Option<u64> {
    (bytes[9] & FLAG_SEQ != 0).then(|| u64_at(bytes, HEADER_BYTES))
}

/// Where the payload of the record at the front of `bytes` starts, unverified.
pub fn peek_payload_at(bytes: &[u8]) -> usize {
    HEADER_BYTES + if bytes[9] & FLAG_SEQ != 0 { SEQ_BYTES } else { 0 }
}

/// Length of the record at the front of `bytes`, unverified.
pub fn peek_total(bytes: &[u8]) -> Option<usize> {
    if bytes.len() < HEADER_BYTES {
        return None;
    }
    Some(peek_payload_at(bytes) + u32_at(bytes, 4) as usize)
}

/// Verifies the record at the front of `bytes`, which lies at `addr` in a segment of this life.
///
/// # Errors
/// What did not hold.
pub fn parse(bytes: &[u8], life: u64, addr: Addr) -> Result<Parsed, &'static str> {
    let total = peek_total(bytes).ok_or("cut off in its header")?;
    if bytes[9] & !FLAG_SEQ != 0 || bytes[10] != 0 || bytes[11] != 0 {
        return Err("unknown flags");
    }
    if total > bytes.len() {
        return Err("longer than what holds it");
    }
    let (seq, payload_at) = if bytes[9] & FLAG_SEQ != 0 {
        (Some(u64_at(bytes, HEADER_BYTES)), HEADER_BYTES + SEQ_BYTES)
    } else {
        (None, HEADER_BYTES)
    };
    let crc = head_crc(life, addr, &bytes[4..12], payload_crc(seq, &[&bytes[payload_at..total]]));
    if crc != u32_at(bytes, 0) {
        return Err("checksum mismatch");
    }
    if seq.is_some_and(|seq| seq > COUNT_MAX) {
        return Err("a sequence number that was never given out");
    }
    Ok(Parsed { kind: bytes[8], seq, payload_at, total })
}

/// What the frame of a record says of the record's head: its length, and the checksum of its header, the stored checksum left
/// out, and of so many bytes of its payload. For records without a sequence number; `None` for a head that is none, or longer than `record`.
pub fn head_sum(record: &[u8], head_bytes: usize) -> Option<HeadSum> {
    let bytes = u16::try_from(head_bytes).ok().filter(|&bytes| bytes > 0)?;
    let head = record.get(4..HEADER_BYTES + head_bytes)?;
    Some(HeadSum { bytes, crc: crc32c(head) })
}

/// The head of the record at the front of `bytes`, which need not hold the rest of it, if it is the one that its frame speaks of.
pub fn parse_head(bytes: &[u8], sum: HeadSum) -> Option<Parsed> {
    if head_sum(bytes, usize::from(sum.bytes)) != Some(sum) || bytes[9..12] != [0; 3] {
        return None;
    }
    Some(Parsed { kind: bytes[8], seq: None, payload_at: HEADER_BYTES, total: peek_total(bytes)? })
}
