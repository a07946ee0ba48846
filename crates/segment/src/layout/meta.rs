//! Metadata records: `docs/format/meta-log.md`.

use bytes::Bytes;
use pumice_base::checksum::crc32c_seeded;

use super::{put_u16, put_u32, put_u64, u16_at, u32_at, u64_at};

/// Newest version that this build reads, and that of records that are written twice. Those that are written once are of version 2 on
/// drives whose log lies in several segments at once, and of version 1 on others.
pub const NEWEST_VERSION: u16 = 3;
/// Bytes of a metadata record's header, of version 1.
pub const HEADER_BYTES: usize = 96;
/// The same of later versions.
pub const WIDE_HEADER_BYTES: usize = 104;
/// Bytes of a segment's entry.
pub const ENTRY_BYTES: usize = 40;
const MAGIC: u32 = u32::from_le_bytes(*b"PMET");
const FLAG_CLEAN: u8 = 1;
/// Of version 3: *replay frame* holds something.
const FLAG_MARKED: u8 = 2;

/// Whether the record replaces or adds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum MetaKind {
    /// Starts a generation: the whole state.
    Snapshot = 1,
    /// What changed since.
    Edit = 2,
}

/// What a segment is used for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum SegmentState {
    /// Free.
    #[default]
    Free = 0,
    /// Being written.
    Open = 1,
    /// Written, holds data.
    Sealed = 2,
    /// Retired.
    Bad = 3,
    /// Holds superblocks or metadata: the superblock says so, and this is never stored.
    System = 4,
}

/// A segment as the log keeps it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SegmentEntry {
    /// Its number.
    pub segment: u32,
    /// Its use.
    pub state: SegmentState,
    /// Its stream.
    pub stream: u8,
    /// Bit 0: was written before (on files). Bit 1: a program failed in it. Bit 2: a page of it is near its end. Bit 3: it was
    /// written when the drive was formatted, and its space is not given back. Bit 4: it ends before frames that were durable.
    pub flags: u8,
    /// Times it was erased.
    pub erase_count: u32,
    /// Bytes written.
    pub end: u32,
    /// Bytes alive, a hint.
    pub live: u32,
    /// Life number of its newest opening.
    pub life: u64,
    /// Newest sequence number in it.
    pub last_seq: u64,
}

/// Flag: the segment's bytes were written before.
pub const FLAG_WRITTEN: u8 = 1;
/// Flag: a program failed in the segment; retire it when it is released.
pub const FLAG_FAILED: u8 = 2;
/// Flag: a page of the segment needed nearly all that its code corrects; its records move before they are lost.
pub const FLAG_WEAK: u8 = 4;
/// Flag: the segment's bytes were written when the drive was formatted, so that they are there: its space is not given back.
pub const FLAG_ALLOCATED: u8 = 8;
/// Flag: the segment ends before frames that may have been durable; what is named there may still read, and is asked for before it is freed.
pub const FLAG_CUT: u8 = 16;
/// Flag: a write that was never acknowledged was torn within its summary, and counts: summaries of the segment that do not verify are no
/// damage.
pub const FLAG_TORN_SUMMARY: u8 = 32;
/// Flag of a commit segment: its first frame is durable. Absent, its first program may have failed, or been torn.
pub const FLAG_DURABLE: u8 = 64;
/// Flags that end with a segment's life.
pub const FLAGS_OF_A_LIFE: u8 = FLAG_WEAK | FLAG_CUT | FLAG_TORN_SUMMARY | FLAG_DURABLE;

/// One metadata record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetaRecord {
    /// Snapshot or edit.
    pub kind: MetaKind,
    /// The drive was closed right after this.
    pub clean: bool,
    /// Version 3: the record is followed by a copy of itself, which says so, too.
    pub is_twice: bool,
    /// Counts snapshots.
    pub generation: u64,
    /// Position in the generation; the snapshot is 0.
    pub index: u32,
    /// Commit frames up to this sequence number need no replay.
    pub replay_from: u64,
    /// Moved frames below this number need no replay.
    pub moved_from: u64,
    /// Newest sequence number given out.
    pub last_seq: u64,
    /// Lives from here on were not given out.
    pub next_life: u64,
    /// Frames of the commit stream that were durable for certain: at least this many. Then the number of the moved stream's next
    /// frame.
    pub durable_frames: [u64; 2],
    /// The segment that the patrol reads next, and its passes.
    pub patrol: [u32; 2],
    /// From version 2 on, where frames of the log lie in several segments at once: the first commit frame with a sequence number beyond
    /// `replay_from`.
    pub replay_frame: Option<u64>,
    /// Segments: all that are not free and fresh (snapshot), or those that changed (edit).
    pub segments: Vec<SegmentEntry>,
    /// The segments that are opened next, in order.
    pub pool: Vec<u32>,
    /// The client's state: replaces (snapshot) or adds.
    pub blobs: Vec<Bytes>,
}

/// What the bytes at a place in the log may turn out to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decoded {
    /// A record.
    Record(Box<MetaRecord>),
    /// A record of a newer version.
    Newer(u16),
    /// Nothing that verifies.
    Nothing,
}

impl MetaRecord {
    /// Unpadded length.
    pub fn encoded_bytes(&self) -> usize {
        self.header_bytes()
            + self.segments.len() * ENTRY_BYTES
            + self.pool.len() * 4
            + self.blobs.iter().map(|blob| 4 + blob.len()).sum::<usize>()
    }

    fn header_bytes(&self) -> usize {
        if self.version() > 1 { WIDE_HEADER_BYTES } else { HEADER_BYTES }
    }

    fn version(&self) -> u16 {
        match (self.is_twice, self.replay_frame) {
            (true, _) => 3,
            (false, Some(_)) => 2,
            (false, None) => 1,
        }
    }

    /// The record's bytes for `offset` in its half of the log.
    pub fn encode(&self, out: &mut [u8], drive_id: &[u8; 16], offset: u64) {
        let total = self.encoded_bytes();
        put_u32(out, 0, MAGIC);
        put_u16(out, 8, self.version());
        out[10] = self.kind as u8;
        out[11] = if self.clean { FLAG_CLEAN } else { 0 };
        if self.is_twice && self.replay_frame.is_some() {
            out[11] |= FLAG_MARKED;
        }
        put_u32(out, 12, total as u32);
        put_u64(out, 16, self.generation);
        put_u32(out, 24, self.index);
        put_u32(out, 28, self.segments.len() as u32);
        put_u32(out, 32, self.pool.len() as u32);
        put_u32(out, 36, self.blobs.len() as u32);
        put_u64(out, 40, self.replay_from);
        put_u64(out, 48, self.moved_from);
        put_u64(out, 56, self.last_seq);
        put_u64(out, 64, self.next_life);
        put_u64(out, 72, self.durable_frames[0]);
        put_u64(out, 80, self.durable_frames[1]);
        put_u32(out, 88, self.patrol[0]);
        put_u32(out, 92, self.patrol[1]);
        if let Some(frame) = self.replay_frame {
            put_u64(out, HEADER_BYTES, frame);
        }
        let mut at = self.header_bytes();
        for entry in &self.segments {
            put_u32(out, at, entry.segment);
            out[at + 4] = entry.state as u8;
            out[at + 5] = entry.stream;
            out[at + 6] = entry.flags;
            out[at + 7] = 0;
            put_u32(out, at + 8, entry.erase_count);
            put_u32(out, at + 12, entry.end);
            put_u32(out, at + 16, entry.live);
            put_u32(out, at + 20, 0);
            put_u64(out, at + 24, entry.life);
            put_u64(out, at + 32, entry.last_seq);
            at += ENTRY_BYTES;
        }
        for segment in &self.pool {
            put_u32(out, at, *segment);
            at += 4;
        }
        for blob in &self.blobs {
            put_u32(out, at, blob.len() as u32);
            out[at + 4..at + 4 + blob.len()].copy_from_slice(blob);
            at += 4 + blob.len();
        }
        let crc = crc(&out[..total], drive_id, offset);
        put_u32(out, 4, crc);
    }

    /// Length of the record that starts here, unverified; `None` when none does.
    pub fn peek_bytes(bytes: &[u8]) -> Option<usize> {
        (bytes.len() >= HEADER_BYTES && u32_at(bytes, 0) == MAGIC).then(|| u32_at(bytes, 12) as usize)
    }

    /// Generation of the record that starts here, unverified; `None` when none does.
    pub fn peek_generation(bytes: &[u8]) -> Option<u64> {
        Self::peek_bytes(bytes).map(|_| u64_at(bytes, 16))
    }

    /// What lies at `offset` of a half of the log.
    pub fn decode(bytes: &Bytes, drive_id: &[u8; 16], offset: u64) -> Decoded {
        let Some(total) = Self::peek_bytes(bytes) else { return Decoded::Nothing };
        if total < HEADER_BYTES || total > bytes.len() {
            return Decoded::Nothing;
        }
        if crc(&bytes[..total], drive_id, offset) != u32_at(bytes, 4) {
            return Decoded::Nothing;
        }
        let version = u16_at(bytes, 8);
        if version > NEWEST_VERSION {
            return Decoded::Newer(version);
        }
        if version > 1 && total < WIDE_HEADER_BYTES {
            return Decoded::Nothing;
        }
        Self::decode_body(bytes, total).map_or(Decoded::Nothing, |record| Decoded::Record(Box::new(record)))
    }

    fn decode_body(bytes: &Bytes, total: usize) -> Option<Self> {
        let kind = match bytes[10] {
            1 => MetaKind::Snapshot,
            2 => MetaKind::Edit,
            _ => return None,
        };
        let counts = [u32_at(bytes, 28) as usize, u32_at(bytes, 32) as usize, u32_at(bytes, 36) as usize];
        let version = u16_at(bytes, 8);
        let is_marked = version == 2 || version > 2 && bytes[11] & FLAG_MARKED != 0;
        let replay_frame = is_marked.then(|| u64_at(bytes, HEADER_BYTES));
        let mut at = if version > 1 { WIDE_HEADER_BYTES } else { HEADER_BYTES };
        if at + counts[0].checked_mul(ENTRY_BYTES)? + counts[1].checked_mul(4)? > total {
            return None;
        }
        let mut segments = Vec::with_capacity(counts[0]);
        for _ in 0..counts[0] {
            segments.push(SegmentEntry {
                segment: u32_at(bytes, at),
                state: match bytes[at + 4] {
                    0 => SegmentState::Free,
                    1 => SegmentState::Open,
                    2 => SegmentState::Sealed,
                    3 => SegmentState::Bad,
                    _ => return None,
                },
                stream: bytes[at + 5],
                flags: bytes[at + 6],
                erase_count: u32_at(bytes, at + 8),
                end: u32_at(bytes, at + 12),
                live: u32_at(bytes, at + 16),
                life: u64_at(bytes, at + 24),
                last_seq: u64_at(bytes, at + 32),
            });
            at += ENTRY_BYTES;
        }
        let pool = (0..counts[1]).map(|i| u32_at(bytes, at + i * 4)).collect();
        at += counts[1] * 4;
        let mut blobs = Vec::new();
        for _ in 0..counts[2] {
            if at + 4 > total {
                return None;
            }
            let len = u32_at(bytes, at) as usize;
            at += 4;
            if at.checked_add(len)? > total {
                return None;
            }
            blobs.push(bytes.slice(at..at + len));
            at += len;
        }
        Some(Self {
            kind,
            clean: bytes[11] & FLAG_CLEAN != 0,
            is_twice: version > 2,
            generation: u64_at(bytes, 16),
            index: u32_at(bytes, 24),
            replay_from: u64_at(bytes, 40),
            moved_from: u64_at(bytes, 48),
            last_seq: u64_at(bytes, 56),
            next_life: u64_at(bytes, 64),
            durable_frames: [u64_at(bytes, 72), u64_at(bytes, 80)],
            patrol: [u32_at(bytes, 88), u32_at(bytes, 92)],
            replay_frame,
            segments,
            pool,
            blobs,
        })
    }
}

fn crc(record: &[u8], drive_id: &[u8; 16], offset: u64) -> u32 {
    crc32c_seeded(offset, &[drive_id, &record[8..]])
}
