//! Segment headers: `docs/format/segment.md`.

use pumice_base::checksum::crc32c_seeded;

use super::{COUNT_MAX, put_u16, put_u32, put_u64, u16_at, u32_at, u64_at};
use crate::Stream;

/// Bytes of a segment header; it has a page to itself.
pub const HEADER_BYTES: usize = 128;
/// Newest version that this build reads: commit segments are written as this, because their frames may pass over sequence
/// numbers, all others as 1.
pub const NEWEST_VERSION: u16 = 2;
const MAGIC: u64 = u64::from_le_bytes(*b"PUMSEGMT");

/// The first page of a segment: who opened it, when, for what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentHeader {
    /// The drive.
    pub drive_id: [u8; 16],
    /// The segment itself.
    pub segment: u32,
    /// Bytes of a segment.
    pub segment_bytes: u32,
    /// Unique for each opening of a segment of this drive.
    pub life: u64,
    /// The stream.
    pub stream: Stream,
    /// Number of the first frame.
    pub first_frame: u64,
    /// Newest sequence number when it was opened.
    pub seq: u64,
    /// Every frame of the stream below this number was durable before this header was written.
    pub durable_frames: u64,
}

/// What a first page may turn out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decoded {
    /// A header.
    Header(SegmentHeader),
    /// A header of a newer version.
    Newer(u16),
    /// Nothing that verifies.
    Nothing,
}

impl SegmentHeader {
    /// Writes it to the front of `out`, a page of zeros.
    pub fn encode(&self, out: &mut [u8]) {
        put_u64(out, 0, MAGIC);
        put_u16(out, 8, if self.stream == Stream::Commit { NEWEST_VERSION } else { 1 });
        out[10] = self.stream as u8;
        out[16..32].copy_from_slice(&self.drive_id);
        put_u32(out, 32, self.segment);
        put_u32(out, 36, self.segment_bytes);
        put_u64(out, 40, self.life);
        put_u64(out, 48, self.first_frame);
        put_u64(out, 56, self.seq);
        put_u64(out, 64, self.durable_frames);
        let crc = crc(out);
        put_u32(out, 12, crc);
    }

    /// What the front of `page` is.
    pub fn decode(page: &[u8]) -> Decoded {
        if page.len() < HEADER_BYTES || u64_at(page, 0) != MAGIC || u32_at(page, 12) != crc(page) {
            return Decoded::Nothing;
        }
        let version = u16_at(page, 8);
        if version > NEWEST_VERSION {
            return Decoded::Newer(version);
        }
        let Some(stream) = Stream::from_u8(page[10]) else { return Decoded::Nothing };
        let counts = [40, 48, 56, 64].map(|at| u64_at(page, at));
        if counts.into_iter().any(|count| count > COUNT_MAX) {
            return Decoded::Nothing;
        }
        let mut drive_id = [0; 16];
        drive_id.copy_from_slice(&page[16..32]);
        Decoded::Header(Self {
            drive_id,
            segment: u32_at(page, 32),
            segment_bytes: u32_at(page, 36),
            life: u64_at(page, 40),
            stream,
            first_frame: u64_at(page, 48),
            seq: u64_at(page, 56),
            durable_frames: u64_at(page, 64),
        })
    }
}

fn crc(page: &[u8]) -> u32 {
    crc32c_seeded(0, &[&page[..12], &page[16..HEADER_BYTES]])
}
