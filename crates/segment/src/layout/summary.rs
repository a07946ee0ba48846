//! Summaries at the ends of commit frames: `docs/format/segment.md`.

use pumice_base::checksum::crc32c_seeded;

use super::{put_u16, put_u32, u16_at, u32_at};
use crate::Addr;

/// Bytes of an entry before its head.
pub const ENTRY_BYTES: usize = 12;
/// Bytes behind the last entry.
pub const TRAILER_BYTES: usize = 16;
const MAGIC: u32 = u32::from_le_bytes(*b"PSUM");
const FLAG_SEQ: u8 = 1;

/// One record of the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// Where its header begins, in bytes from the frame's start.
    pub at: u32,
    /// Bytes of its payload.
    pub payload_bytes: u32,
    /// Its kind.
    pub kind: u8,
    /// Whether it carries its own sequence number.
    pub has_seq: bool,
    /// The first bytes of its payload.
    pub head: &'a [u8],
}

/// Writes an entry to the front of `out`; returns how many bytes.
pub fn encode_entry(out: &mut [u8], entry: &Entry<'_>) -> usize {
    put_u32(out, 0, entry.at);
    put_u32(out, 4, entry.payload_bytes);
    out[8] = entry.kind;
    out[9] = if entry.has_seq { FLAG_SEQ } else { 0 };
    put_u16(out, 10, entry.head.len() as u16);
    let end = ENTRY_BYTES + entry.head.len();
    out[ENTRY_BYTES..end].copy_from_slice(entry.head);
    end
}

/// Writes what follows the entries, at the end of `summary`, for a frame at `addr`.
pub fn encode_trailer(summary: &mut [u8], life: u64, addr: Addr) {
    let entries = summary.len() - TRAILER_BYTES;
    put_u32(summary, entries, MAGIC);
    put_u32(summary, entries + 8, entries as u32);
    put_u32(summary, entries + 12, 0);
    let crc = crc(life, addr, summary);
    put_u32(summary, entries + 4, crc);
}

/// Bytes of the summary that ends where `bytes` do, if it looks like one.
pub fn peek_bytes(bytes: &[u8]) -> Option<usize> {
    let trailer = bytes.len().checked_sub(TRAILER_BYTES)?;
    (u32_at(bytes, trailer) == MAGIC).then(|| u32_at(bytes, trailer + 8) as usize + TRAILER_BYTES)
}

/// The entries of a summary of a frame at `addr`, if it verifies.
pub fn decode(summary: &[u8], life: u64, addr: Addr) -> Option<Vec<Entry<'_>>> {
    let entries = summary.len().checked_sub(TRAILER_BYTES)?;
    if peek_bytes(summary) != Some(summary.len())
        || u32_at(summary, entries + 12) != 0
        || u32_at(summary, entries + 4) != crc(life, addr, summary)
    {
        return None;
    }
    let mut rest = &summary[..entries];
    let mut found = Vec::new();
    while !rest.is_empty() {
        if rest.len() < ENTRY_BYTES || rest[9] & !FLAG_SEQ != 0 {
            return None;
        }
        let (entry, head) = rest.split_at(ENTRY_BYTES);
        let head_bytes = usize::from(u16_at(entry, 10));
        let head = head.get(..head_bytes)?;
        rest = &rest[ENTRY_BYTES + head_bytes..];
        found.push(Entry {
            at: u32_at(entry, 0),
            payload_bytes: u32_at(entry, 4),
            kind: entry[8],
            has_seq: entry[9] & FLAG_SEQ != 0,
            head,
        });
    }
    Some(found)
}

fn crc(life: u64, addr: Addr, summary: &[u8]) -> u32 {
    let at = summary.len() - TRAILER_BYTES;
    crc32c_seeded(life, &[&addr.0.to_le_bytes(), &summary[..at + 4], &summary[at + 8..]])
}
