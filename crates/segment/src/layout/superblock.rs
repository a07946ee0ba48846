//! Superblocks: `docs/format/superblock.md`.

use bytes::Bytes;
use pumice_base::checksum::crc32c_seeded;

use super::{VERSION, put_u16, put_u32, put_u64, u16_at, u32_at, u64_at};

/// Bytes of a superblock; it starts a page.
pub const SUPERBLOCK_BYTES: usize = 4096;
/// Longest client configuration.
pub const CONFIG_MAX_BYTES: usize = 2048;
const CONFIG_AT: usize = 128;
const MAGIC: u64 = u64::from_le_bytes(*b"PUMICESB");

/// Identity and shape of a drive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Unique.
    pub drive_id: [u8; 16],
    /// Counts the superblocks written to this drive; the newest holds.
    pub sequence: u64,
    /// Bytes of a segment.
    pub segment_bytes: u32,
    /// Bytes of a page.
    pub page_bytes: u32,
    /// Read granule.
    pub read_bytes: u32,
    /// Channels.
    pub channels: u16,
    /// Segments, on all channels.
    pub segment_count: u32,
    /// Segments in each half of the metadata log, which starts at segment 2.
    pub meta_half_segments: u32,
    /// The client's.
    pub config: Bytes,
}

/// What a page may turn out to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decoded {
    /// A superblock.
    Superblock(Superblock),
    /// A superblock of a newer version.
    Newer(u16),
    /// Nothing that verifies.
    Nothing,
}

impl Superblock {
    /// Writes it to the front of `out`, a page of zeros. The configuration must fit.
    pub fn encode(&self, out: &mut [u8]) {
        assert!(self.config.len() <= CONFIG_MAX_BYTES, "superblock configuration of {} B", self.config.len());
        put_u64(out, 0, MAGIC);
        put_u16(out, 8, VERSION);
        out[16..32].copy_from_slice(&self.drive_id);
        put_u64(out, 32, self.sequence);
        put_u32(out, 40, self.segment_bytes);
        put_u32(out, 44, self.page_bytes);
        put_u32(out, 48, self.read_bytes);
        put_u16(out, 52, self.channels);
        put_u32(out, 56, self.segment_count);
        put_u32(out, 60, self.meta_half_segments);
        put_u32(out, 64, self.config.len() as u32);
        out[CONFIG_AT..CONFIG_AT + self.config.len()].copy_from_slice(&self.config);
        let crc = crc(out);
        put_u32(out, 12, crc);
    }

    /// What the front of `page` is.
    pub fn decode(page: &[u8]) -> Decoded {
        if page.len() < SUPERBLOCK_BYTES || u64_at(page, 0) != MAGIC || u32_at(page, 12) != crc(page) {
            return Decoded::Nothing;
        }
        let version = u16_at(page, 8);
        if version > VERSION {
            return Decoded::Newer(version);
        }
        let config_len = u32_at(page, 64) as usize;
        if config_len > CONFIG_MAX_BYTES {
            return Decoded::Nothing;
        }
        let mut drive_id = [0; 16];
        drive_id.copy_from_slice(&page[16..32]);
        Decoded::Superblock(Self {
            drive_id,
            sequence: u64_at(page, 32),
            segment_bytes: u32_at(page, 40),
            page_bytes: u32_at(page, 44),
            read_bytes: u32_at(page, 48),
            channels: u16_at(page, 52),
            segment_count: u32_at(page, 56),
            meta_half_segments: u32_at(page, 60),
            config: Bytes::copy_from_slice(&page[CONFIG_AT..CONFIG_AT + config_len]),
        })
    }
}

fn crc(page: &[u8]) -> u32 {
    crc32c_seeded(0, &[&page[..12], &page[16..SUPERBLOCK_BYTES]])
}
