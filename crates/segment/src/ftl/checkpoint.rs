//! What a drive remembers of its blocks beside their tags: erase counts, bad blocks, and with them which block held which
//! segment. Layout in `docs/format/raw-flash.md`.

use std::collections::BTreeSet;

use pumice_base::checksum::crc32c_seeded;
use pumice_flash::Geometry;

use super::blocks::{BlockState, Role};
use crate::layout::{COUNT_MAX, put_u16, put_u32, put_u64, u16_at, u32_at, u64_at};

/// Newest version of checkpoints that this build reads, and the one it writes for drives whose pages have checksums; 2 for
/// those of before. In version 1 they lay on the blocks that were kept when the drive was formatted; a build that knows no
/// other would take an older one there for the newest.
pub const CHECKPOINT_VERSION: u16 = 3;
const VERSION_WITHOUT_SUMS: u16 = 2;
const MARK_VERSION: u16 = 1;
/// Bytes before a part's payload.
pub const PART_HEADER_BYTES: usize = 128;
/// Bytes of the mark that says that the drive was opened after a clean close.
pub const MARK_BYTES: usize = 48;
/// Bytes of payload that a block takes at most: its state, and the id it bears.
pub(crate) const ENTRY_BYTES: usize = 20;
const PART_MAGIC: &[u8; 8] = b"PUMFTLCP";
const MARK_MAGIC: &[u8; 8] = b"PUMFTLOP";
const CLEAN: u16 = 1;
const IN_BAND: u16 = 2;
const SUMS: u16 = 4;

/// The header of a checkpoint's parts. A checkpoint is cut into parts of one block each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartHeader {
    /// Whose it is.
    pub drive_id: [u8; 16],
    /// Rises with each checkpoint: the newest that is whole counts.
    pub generation: u64,
    /// Nothing was under way and nothing follows, unless the drive was opened again.
    pub clean: bool,
    /// Tags take pages of their own.
    pub in_band: bool,
    /// Pages of segments have checksums.
    pub has_sums: bool,
    /// This part of `parts`.
    pub part: u32,
    /// Parts of the checkpoint.
    pub parts: u32,
    /// The drive's shape: channels, blocks, pages, bytes of a page and beside it.
    pub channels: u16,
    /// Blocks of a channel.
    pub blocks_per_channel: u32,
    /// Pages of a block.
    pub pages_per_block: u32,
    /// Bytes of a page.
    pub page_bytes: u32,
    /// Out-of-band bytes of a page.
    pub oob_bytes: u32,
    /// The next write's sequence number.
    pub sequence: u64,
    /// The block that the patrol scrub reads next.
    pub scrub_block: u32,
    /// Times that the scrub went through the whole drive.
    pub scrub_passes: u32,
}

impl PartHeader {
    /// The drive's shape, for media that are read by `read_bytes`.
    pub fn geometry(&self, read_bytes: u32) -> Geometry {
        Geometry {
            channels: self.channels,
            dies_per_channel: 1,
            planes_per_die: 1,
            dies_per_block: 1,
            blocks_per_channel: self.blocks_per_channel,
            pages_per_block: self.pages_per_block,
            page_bytes: self.page_bytes,
            read_bytes,
            oob_bytes: self.oob_bytes,
        }
    }

    /// Whether it was written for media of this shape.
    pub(crate) fn fits(&self, geometry: Geometry, in_band: bool) -> bool {
        (self.channels, self.blocks_per_channel) == (geometry.channels, geometry.blocks_per_channel)
            && (self.pages_per_block, self.page_bytes) == (geometry.pages_per_block, geometry.page_bytes)
            && (self.oob_bytes, self.in_band) == (geometry.oob_bytes, in_band)
    }

    /// The part as it lies on block number `block`: the header, then the payload.
    pub fn encode(&self, block: u32, payload: &[u8]) -> Vec<u8> {
        let mut out = vec![0; PART_HEADER_BYTES];
        out[..8].copy_from_slice(PART_MAGIC);
        put_u16(&mut out, 8, if self.has_sums { CHECKPOINT_VERSION } else { VERSION_WITHOUT_SUMS });
        let flags = [(self.clean, CLEAN), (self.in_band, IN_BAND), (self.has_sums, SUMS)];
        put_u16(&mut out, 10, flags.into_iter().map(|(is_set, flag)| u16::from(is_set) * flag).sum());
        out[16..32].copy_from_slice(&self.drive_id);
        put_u64(&mut out, 32, self.generation);
        put_u32(&mut out, 40, self.part);
        put_u32(&mut out, 44, self.parts);
        put_u32(&mut out, 48, payload.len() as u32);
        put_u32(&mut out, 52, self.page_bytes);
        put_u32(&mut out, 56, self.pages_per_block);
        put_u32(&mut out, 60, self.blocks_per_channel);
        put_u16(&mut out, 64, self.channels);
        put_u32(&mut out, 68, self.oob_bytes);
        put_u64(&mut out, 72, self.sequence);
        put_u32(&mut out, 80, self.scrub_block);
        put_u32(&mut out, 84, self.scrub_passes);
        let crc = crc32c_seeded(u64::from(block), &[&out[..12], &out[16..], payload]);
        put_u32(&mut out, 12, crc);
        out.extend_from_slice(payload);
        out
    }

    /// Bytes of the part that begins with `head`, if one does; nothing of it is verified yet.
    pub fn part_bytes(head: &[u8]) -> Option<usize> {
        let is_part = head.len() >= PART_HEADER_BYTES && &head[..8] == PART_MAGIC;
        is_part.then(|| PART_HEADER_BYTES + u32_at(head, 48) as usize)
    }

    /// Reads a part of [`PartHeader::part_bytes`] from block number `block`: the header and the payload.
    ///
    /// # Errors
    /// The version, when it is newer than this build reads. `Ok(None)` is no part, or not a whole one.
    pub fn decode(block: u32, bytes: &[u8]) -> Result<Option<(Self, &[u8])>, u16> {
        if Self::part_bytes(bytes) != Some(bytes.len())
            || crc32c_seeded(u64::from(block), &[&bytes[..12], &bytes[16..]]) != u32_at(bytes, 12)
        {
            return Ok(None);
        }
        let version = u16_at(bytes, 8);
        if version > CHECKPOINT_VERSION {
            return Err(version);
        }
        let was_counted = |header: &Self| header.generation <= COUNT_MAX && header.sequence <= COUNT_MAX;
        Ok(Self::peek(bytes).filter(was_counted).map(|header| (header, &bytes[PART_HEADER_BYTES..])))
    }

    /// What a part's first bytes say, if they are one's; nothing of it is verified.
    pub(crate) fn peek(bytes: &[u8]) -> Option<Self> {
        Self::part_bytes(bytes)?;
        let flags = u16_at(bytes, 10);
        let mut drive_id = [0; 16];
        drive_id.copy_from_slice(&bytes[16..32]);
        Some(Self {
            drive_id,
            generation: u64_at(bytes, 32),
            clean: flags & CLEAN != 0,
            in_band: flags & IN_BAND != 0,
            has_sums: flags & SUMS != 0,
            part: u32_at(bytes, 40),
            parts: u32_at(bytes, 44),
            channels: u16_at(bytes, 64),
            blocks_per_channel: u32_at(bytes, 60),
            pages_per_block: u32_at(bytes, 56),
            page_bytes: u32_at(bytes, 52),
            oob_bytes: u32_at(bytes, 68),
            sequence: u64_at(bytes, 72),
            scrub_block: u32_at(bytes, 80),
            scrub_passes: u32_at(bytes, 84),
        })
    }
}

/// The mark behind a clean checkpoint of `generation` on block number `block`: the drive was opened since.
pub fn encode_mark(block: u32, drive_id: [u8; 16], generation: u64) -> [u8; MARK_BYTES] {
    let mut out = [0; MARK_BYTES];
    out[..8].copy_from_slice(MARK_MAGIC);
    put_u16(&mut out, 8, MARK_VERSION);
    out[16..32].copy_from_slice(&drive_id);
    put_u64(&mut out, 32, generation);
    let crc = crc32c_seeded(u64::from(block), &[&out[..12], &out[16..]]);
    put_u32(&mut out, 12, crc);
    out
}

/// Whether `bytes` is the mark of this checkpoint.
pub fn is_mark(block: u32, drive_id: [u8; 16], generation: u64, bytes: &[u8]) -> bool {
    bytes.get(..MARK_BYTES).is_some_and(|bytes| bytes == encode_mark(block, drive_id, generation))
}

/// A checkpoint's payload: the state of each block in the order of their numbers, then the id of each that bears one.
pub(crate) fn encode_payload(states: &[BlockState], id: impl Fn(u32) -> u128) -> Vec<u8> {
    let mut out = Vec::with_capacity(states.len() * ENTRY_BYTES);
    for state in states {
        out.extend_from_slice(&state.0.to_le_bytes());
    }
    for (state, block) in states.iter().zip(0..) {
        if bears(*state) {
            out.extend_from_slice(&id(block).to_le_bytes());
        }
    }
    out
}

/// A checkpoint's payload.
pub(crate) struct Payload {
    /// By block number.
    pub states: Vec<BlockState>,
    /// Blocks that bear an id, by number.
    pub ids: Vec<(u32, u128)>,
}

/// What [`encode_payload`] wrote for so many blocks.
pub(crate) fn decode_payload(bytes: &[u8], blocks: usize) -> Option<Payload> {
    let (states, ids) = bytes.split_at_checked(blocks * 4)?;
    let states: Vec<BlockState> = states.chunks_exact(4).map(|word| BlockState(u32_at(word, 0))).collect();
    let passing = |state: &BlockState| matches!(state.role(), Role::Erasing | Role::Writing);
    let bearers: Vec<u32> =
        (0..).zip(&states).filter(|(_, state)| bears(**state)).map(|(block, _)| block).collect();
    if ids.len() != bearers.len() * 16 || states.iter().any(passing) {
        return None;
    }
    let ids = ids.chunks_exact(16).map(|id| {
        let mut bytes = [0; 16];
        bytes.copy_from_slice(id);
        u128::from_le_bytes(bytes)
    });
    let ids: Vec<(u32, u128)> = bearers.into_iter().zip(ids).collect();
    let mut live = BTreeSet::new();
    // Of two blocks that bear an id one is live at most.
    let is_one_of_two =
        |&(block, id): &(u32, u128)| states[block as usize].role() == Role::Used && !live.insert(id);
    if ids.iter().any(is_one_of_two) {
        return None;
    }
    Some(Payload { states, ids })
}

fn bears(state: BlockState) -> bool {
    matches!(state.role(), Role::Used | Role::Dead)
}
