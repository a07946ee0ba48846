//! Superblocks: `docs/format/superblock.md`.

use bytes::Bytes;
use pumice_base::checksum::crc32c_seeded;

use super::{VERSION, put_u16, put_u32, put_u64, u16_at, u32_at, u64_at};

/// Bytes of a superblock of version 1, and of a larger one's at least where a page holds so many.
pub const SUPERBLOCK_BYTES: usize = 4096;
/// Longest client configuration.
pub const CONFIG_MAX_BYTES: usize = 2048;
/// Newest version that this build reads. Drives whose blocks turn bad are written as this, others as [`VERSION`].
pub const NEWEST_VERSION: u16 = 2;
/// Segments from 0 on of which two hold the superblocks of a drive of version 2; fewer on drives of fewer than 64.
pub const RANGE_SEGMENTS: u32 = 16;
/// Segments that were retired from superblocks and metadata log, kept at most; the oldest are forgotten first.
pub const RETIRED_MAX: usize = 256;
const CONFIG_AT: usize = 128;
/// No superblock is longer: as many as two halves of the metadata log have segments come on top of it.
const HEAD_MAX_BYTES: usize = CONFIG_AT + CONFIG_MAX_BYTES + 4 * RETIRED_MAX;
const BYTES_MAX: usize = 1 << 20;
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
    /// Segments in each half of the metadata log.
    pub meta_half_segments: u32,
    /// The client's.
    pub config: Bytes,
    /// Where superblocks and metadata log lie, on drives of version 2. On others: in the first segments, in this order.
    pub placed: Option<Placed>,
}

/// See [`Superblock::placed`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placed {
    /// The two that superblocks are written to.
    pub superblocks: [u32; 2],
    /// The segments of one half of the metadata log, then those of the other.
    pub meta: Vec<u32>,
    /// What failed here, so that it is not used for anything else before the metadata log says so.
    pub retired: Vec<u32>,
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

/// Segments in which superblocks of version 2 may lie.
pub fn range_segments(segment_count: u32) -> u32 {
    RANGE_SEGMENTS.min(segment_count / 4)
}

impl Superblock {
    /// Bytes that it takes, without the zeros up to the page's end.
    pub fn encoded_bytes(&self) -> usize {
        let Some(placed) = &self.placed else { return SUPERBLOCK_BYTES };
        let lists = 4 * (placed.meta.len() + placed.retired.len());
        let bytes = CONFIG_AT + self.config.len().next_multiple_of(4) + lists;
        // Where one page holds it, builds that know version 1 only can tell that it is a newer one.
        if self.page_bytes as usize >= SUPERBLOCK_BYTES { bytes.max(SUPERBLOCK_BYTES) } else { bytes }
    }

    /// The segment that is `index`-th in a half of the metadata log.
    pub fn meta_segment(&self, half: usize, index: u32) -> u32 {
        let at = half as u32 * self.meta_half_segments + index;
        match &self.placed {
            Some(placed) => placed.meta[at as usize],
            None => 2 + at,
        }
    }

    /// The segments that hold superblocks and metadata log.
    pub fn system_segments(&self) -> Vec<u32> {
        match &self.placed {
            Some(placed) => placed.superblocks.iter().chain(&placed.meta).copied().collect(),
            None => (0..2 + 2 * self.meta_half_segments).collect(),
        }
    }

    /// Writes it to the front of `out`, whole pages of zeros. The configuration must fit.
    pub fn encode(&self, out: &mut [u8]) {
        assert!(self.config.len() <= CONFIG_MAX_BYTES, "superblock configuration of {} B", self.config.len());
        let total = self.encoded_bytes();
        put_u64(out, 0, MAGIC);
        put_u16(out, 8, if self.placed.is_some() { NEWEST_VERSION } else { VERSION });
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
        if let Some(placed) = &self.placed {
            assert!(
                placed.retired.len() <= RETIRED_MAX
                    && placed.meta.len() as u32 == 2 * self.meta_half_segments
            );
            put_u32(out, 68, total as u32);
            put_u32(out, 72, placed.retired.len() as u32);
            put_u32(out, 76, placed.superblocks[0]);
            put_u32(out, 80, placed.superblocks[1]);
            let mut at = CONFIG_AT + self.config.len().next_multiple_of(4);
            for segment in placed.meta.iter().chain(&placed.retired) {
                put_u32(out, at, *segment);
                at += 4;
            }
        }
        let crc = crc(&out[..total]);
        put_u32(out, 12, crc);
    }

    /// Bytes of the superblock that begins here, unverified; `None` when none does.
    pub fn peek_bytes(front: &[u8]) -> Option<usize> {
        if front.len() < CONFIG_AT || u64_at(front, 0) != MAGIC {
            return None;
        }
        let bytes = match u32_at(front, 68) as usize {
            _ if u16_at(front, 8) <= VERSION => SUPERBLOCK_BYTES,
            // A newer one may be as long as the first were.
            0 => SUPERBLOCK_BYTES,
            bytes => bytes,
        };
        (CONFIG_AT..=BYTES_MAX).contains(&bytes).then_some(bytes)
    }

    /// What lies here.
    pub fn decode(bytes: &[u8]) -> Decoded {
        let Some(bytes) = Self::peek_bytes(bytes).and_then(|total| bytes.get(..total)) else {
            return Decoded::Nothing;
        };
        if u32_at(bytes, 12) != crc(bytes) {
            return Decoded::Nothing;
        }
        match u16_at(bytes, 8) {
            version if version > NEWEST_VERSION => Decoded::Newer(version),
            version => Self::decode_body(bytes, version).map_or(Decoded::Nothing, Decoded::Superblock),
        }
    }

    fn decode_body(bytes: &[u8], version: u16) -> Option<Self> {
        let config_len = u32_at(bytes, 64) as usize;
        if config_len > CONFIG_MAX_BYTES || CONFIG_AT + config_len > bytes.len() {
            return None;
        }
        let mut drive_id = [0; 16];
        drive_id.copy_from_slice(&bytes[16..32]);
        let mut superblock = Self {
            drive_id,
            sequence: u64_at(bytes, 32),
            segment_bytes: u32_at(bytes, 40),
            page_bytes: u32_at(bytes, 44),
            read_bytes: u32_at(bytes, 48),
            channels: u16_at(bytes, 52),
            segment_count: u32_at(bytes, 56),
            meta_half_segments: u32_at(bytes, 60),
            config: Bytes::copy_from_slice(&bytes[CONFIG_AT..CONFIG_AT + config_len]),
            placed: None,
        };
        if version == NEWEST_VERSION {
            superblock.placed = Some(superblock.decode_placed(bytes)?);
        }
        Some(superblock)
    }

    fn decode_placed(&self, bytes: &[u8]) -> Option<Placed> {
        let mut at = CONFIG_AT + self.config.len().next_multiple_of(4);
        let (meta, retired) = (2 * u64::from(self.meta_half_segments), u32_at(bytes, 72) as usize);
        if retired > RETIRED_MAX || at as u64 + 4 * (meta + retired as u64) > bytes.len() as u64 {
            return None;
        }
        let mut list = |count: usize| {
            let found =
                bytes[at..at + 4 * count].chunks_exact(4).map(|word| u32_at(word, 0)).collect::<Vec<_>>();
            at += 4 * count;
            found.iter().all(|&segment| segment < self.segment_count).then_some(found)
        };
        let (meta, retired) = (list(meta as usize)?, list(retired)?);
        let superblocks = [u32_at(bytes, 76), u32_at(bytes, 80)];
        superblocks.iter().all(|&at| at < self.segment_count).then_some(Placed { superblocks, meta, retired })
    }
}

fn crc(superblock: &[u8]) -> u32 {
    crc32c_seeded(0, &[&superblock[..12], &superblock[16..]])
}

/// Whether a superblock of version 2 for so many segments of the metadata log fits `room` bytes whatever else it holds.
pub fn fits(meta_segments: u32, room: usize) -> bool {
    HEAD_MAX_BYTES + 4 * meta_segments as usize <= room.min(BYTES_MAX)
}
