//! The tag that a block's first and last page bear: whose segment it is. Layout in `docs/format/raw-flash.md`.

use pumice_base::checksum::crc32c_seeded;

use crate::layout::{COUNT_MAX, put_u16, put_u32, put_u64, u16_at, u32_at, u64_at};

/// Bytes of a tag.
pub const TAG_BYTES: usize = 64;
/// Newest version of tags that this build reads. Tags of version 2 have the checksum of the page that they lie beside where
/// those of version 1 have the segment's length.
pub const TAG_VERSION: u16 = 2;
/// Where a tag has the checksum of the page that it lies beside, and where that of a page without a tag lies beside it.
pub const PAGE_SUM_AT: usize = 60;
const MAGIC: &[u8; 8] = b"PUMFTLTG";

/// What a tag says of its block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TagKind {
    /// The block holds a segment, if its first and last page say so.
    Segment,
    /// The block was erased; for media on which an erase leaves the bytes as they were.
    Erased,
}

/// What a tag ends in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TagEnd {
    /// Bytes of the segment; 0 for erased blocks.
    SegmentBytes(u32),
    /// The checksum of the page that the tag lies beside.
    PageSum(u32),
}

/// See the module's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockTag {
    /// What it says.
    pub kind: TagKind,
    /// Whose tag it is.
    pub drive_id: [u8; 16],
    /// The segment; 0 for erased blocks.
    pub id: u128,
    /// Rises with every write of the drive: of two blocks that bear an id the later holds the segment.
    pub sequence: u64,
    /// Erases of the block so far.
    pub erases: u32,
    /// What it ends in, which says the version, too.
    pub end: TagEnd,
}

/// What was found where a tag may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TagDecoded {
    /// A tag.
    Tag(BlockTag),
    /// No tag, or not a whole one.
    Nothing,
    /// A tag of a newer version, which this build does not read.
    Newer(u16),
}

impl BlockTag {
    /// The tag as it lies on block number `block`.
    pub fn encode(&self, block: u32) -> [u8; TAG_BYTES] {
        let mut out = [0; TAG_BYTES];
        out[..8].copy_from_slice(MAGIC);
        let (version, end) = match self.end {
            TagEnd::SegmentBytes(bytes) => (1, bytes),
            TagEnd::PageSum(sum) => (2, sum),
        };
        put_u16(&mut out, 8, version);
        out[10] = match self.kind {
            TagKind::Segment => 0,
            TagKind::Erased => 1,
        };
        out[16..32].copy_from_slice(&self.drive_id);
        out[32..48].copy_from_slice(&self.id.to_le_bytes());
        put_u64(&mut out, 48, self.sequence);
        put_u32(&mut out, 56, self.erases);
        put_u32(&mut out, PAGE_SUM_AT, end);
        let crc = checksum(block, &out);
        put_u32(&mut out, 12, crc);
        out
    }

    /// Reads what lies at a tag's place on block number `block`.
    pub fn decode(block: u32, bytes: &[u8]) -> TagDecoded {
        let Some(bytes) = bytes.get(..TAG_BYTES) else { return TagDecoded::Nothing };
        if &bytes[..8] != MAGIC || checksum(block, bytes) != u32_at(bytes, 12) {
            return TagDecoded::Nothing;
        }
        let version = u16_at(bytes, 8);
        if version > TAG_VERSION {
            return TagDecoded::Newer(version);
        }
        let kind = match bytes[10] {
            0 => TagKind::Segment,
            1 => TagKind::Erased,
            _ => return TagDecoded::Nothing,
        };
        let sequence = u64_at(bytes, 48);
        if sequence > COUNT_MAX {
            return TagDecoded::Nothing;
        }
        let (mut drive_id, mut id) = ([0; 16], [0; 16]);
        drive_id.copy_from_slice(&bytes[16..32]);
        id.copy_from_slice(&bytes[32..48]);
        TagDecoded::Tag(Self {
            kind,
            drive_id,
            id: u128::from_le_bytes(id),
            sequence,
            erases: u32_at(bytes, 56),
            end: match (version, u32_at(bytes, PAGE_SUM_AT)) {
                (2, sum) => TagEnd::PageSum(sum),
                (_, bytes) => TagEnd::SegmentBytes(bytes),
            },
        })
    }
}

/// Over the block's number, which the bytes do not hold: a tag counts where it was written only.
fn checksum(block: u32, bytes: &[u8]) -> u32 {
    crc32c_seeded(u64::from(block), &[&bytes[..12], &bytes[16..]])
}
