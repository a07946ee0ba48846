//! Frames: `docs/format/segment.md`.

use pumice_base::checksum::crc32c_seeded;

use super::{COUNT_MAX, put_u16, put_u32, put_u64, u16_at, u32_at, u64_at};
use crate::{Addr, Stream};

/// Bytes of a frame's header.
pub const HEADER_BYTES: usize = 56;
const MAGIC: u32 = u32::from_le_bytes(*b"PFRM");
const FLAG_MORE: u8 = 1;
/// In `lag`: builds that do not know it take it for a frame that proves nothing of others.
const LAG_SUMMARY: u32 = 1 << 31;

/// A frame's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// Life of the segment.
    pub life: u64,
    /// Commit stream: consecutive. Moved stream: rising. Others: the page in the segment, but 0 for the first frame, on page 1.
    pub number: u64,
    /// Commit: sequence number of the first record. Others: newest sequence number when it was written.
    pub seq: u64,
    /// The newest metadata record that was durable when this was written.
    pub meta_stamp: u64,
    /// Header and records, without padding.
    pub bytes: u32,
    /// Records.
    pub count: u32,
    /// Every frame of the stream up to `number - 1 - lag` was durable before this one was written; below 2^31.
    pub lag: u32,
    /// Commit: a summary follows the records.
    pub has_summary: bool,
    /// The stream.
    pub stream: Stream,
    /// The last batch goes on in the next frame.
    pub more: bool,
    /// Commit: sequence numbers among the frame's that are none of its records' (moved records have them).
    pub skipped: u16,
    /// Large: what tells the head of the frame's record from anything else without the rest of it. `lag` and `skipped` lie in its
    /// place in the other streams.
    pub head: Option<HeadSum>,
}

/// See [`crate::layout::record::head_sum`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadSum {
    /// Bytes of the record's payload that are its head; at least one.
    pub bytes: u16,
    /// CRC-32C.
    pub crc: u32,
}

impl FrameHeader {
    /// Writes it to the front of `out`, for a frame at `addr`.
    pub fn encode(&self, out: &mut [u8], addr: Addr) {
        put_u32(out, 0, MAGIC);
        put_u64(out, 8, self.life);
        put_u64(out, 16, self.number);
        put_u64(out, 24, self.seq);
        put_u64(out, 32, self.meta_stamp);
        put_u32(out, 40, self.bytes);
        put_u32(out, 44, self.count);
        let in_place = self
            .head
            .map_or((self.lag | if self.has_summary { LAG_SUMMARY } else { 0 }, self.skipped), |head| {
                (head.crc, head.bytes)
            });
        put_u32(out, 48, in_place.0);
        out[52] = self.stream as u8;
        out[53] = if self.more { FLAG_MORE } else { 0 };
        put_u16(out, 54, in_place.1);
        let crc = crc(self.life, addr, out);
        put_u32(out, 4, crc);
    }

    /// Commit: the newest sequence number that the frame stands for.
    pub fn newest_seq(&self) -> u64 {
        (self.seq + u64::from(self.count) + u64::from(self.skipped)).saturating_sub(1)
    }

    /// The header at the front of `bytes`, if one verifies there.
    pub fn decode(bytes: &[u8], life: u64, addr: Addr) -> Option<Self> {
        if bytes.len() < HEADER_BYTES || u32_at(bytes, 0) != MAGIC || u64_at(bytes, 8) != life {
            return None;
        }
        if u32_at(bytes, 4) != crc(life, addr, bytes) || bytes[53] & !FLAG_MORE != 0 {
            return None;
        }
        let (number, seq) = (u64_at(bytes, 16), u64_at(bytes, 24));
        if number > COUNT_MAX || seq > COUNT_MAX {
            return None;
        }
        let stream = Stream::from_u8(bytes[52])?;
        let in_place = (u32_at(bytes, 48), u16_at(bytes, 54));
        let (lag, skipped) = if stream == Stream::Large { (0, 0) } else { in_place };
        let has_summary = stream == Stream::Commit && lag & LAG_SUMMARY != 0;
        let lag = if has_summary { lag & !LAG_SUMMARY } else { lag };
        let head = HeadSum { bytes: in_place.1, crc: in_place.0 };
        Some(Self {
            life,
            number,
            seq,
            meta_stamp: u64_at(bytes, 32),
            bytes: u32_at(bytes, 40),
            count: u32_at(bytes, 44),
            lag,
            has_summary,
            stream,
            more: bytes[53] & FLAG_MORE != 0,
            skipped,
            head: (stream == Stream::Large && head.bytes > 0).then_some(head),
        })
    }
}

fn crc(life: u64, addr: Addr, header: &[u8]) -> u32 {
    crc32c_seeded(life, &[&addr.0.to_le_bytes(), &header[8..HEADER_BYTES]])
}
