//! The summary of a frame that is being formed: see [`Outline`].

use crate::layout::record;
use crate::layout::summary::{ENTRY_BYTES, Entry, TRAILER_BYTES, encode_entry, encode_trailer};
use crate::{Addr, Outline};

/// Frames shorter than this have none: to read their ends one by one costs as much as all of them in a row. Of small segments a
/// thirty-second.
const FRAME_BYTES_MIN: usize = 64 << 10;
/// A record is worth an entry if its payload is so many times as long.
const WORTH: usize = 64;

/// What the summary of a forming frame will hold.
#[derive(Default)]
pub(crate) struct Summary {
    /// Where a record's header begins, from the frame's start, and the bytes of its head.
    entries: Vec<(u32, u16)>,
    entries_bytes: usize,
}

/// Bytes of a frame that has one, at least.
pub(crate) fn frame_bytes_min(segment_bytes: u32) -> usize {
    FRAME_BYTES_MIN.min(segment_bytes as usize / 32)
}

/// Bytes of a record's entry; `None` when it is to have none, so that its frame has no summary.
pub(crate) fn entry_bytes(outline: Outline, payload_bytes: usize) -> Option<usize> {
    match outline {
        Outline::Nothing => Some(0),
        Outline::Head(bytes) => {
            let entry = ENTRY_BYTES + usize::from(bytes);
            (entry * WORTH <= payload_bytes).then_some(entry)
        }
        Outline::Whole => None,
    }
}

impl Summary {
    /// Bytes of it as it is now.
    pub(crate) fn bytes(&self) -> usize {
        self.entries_bytes + TRAILER_BYTES
    }

    /// Adds the record whose header begins at `at`.
    pub(crate) fn add(&mut self, outline: Outline, at: usize) {
        if let Outline::Head(bytes) = outline {
            self.entries.push((at as u32, bytes));
            self.entries_bytes += ENTRY_BYTES + usize::from(bytes);
        }
    }

    /// Writes it behind the records of `frame`, which lies at `addr` and ends with it.
    pub(crate) fn encode(&self, frame: &mut [u8], life: u64, addr: Addr) {
        let (records, out) = frame.split_at_mut(frame.len() - self.bytes());
        let mut end = 0;
        for &(at, head_bytes) in &self.entries {
            let bytes = &records[at as usize..];
            let payload_at = record::peek_payload_at(bytes);
            let total = record::peek_total(bytes).expect("a record was put here");
            let entry = Entry {
                at,
                payload_bytes: (total - payload_at) as u32,
                kind: bytes[8],
                has_seq: record::peek_seq(bytes).is_some(),
                head: &bytes[payload_at..payload_at + usize::from(head_bytes)],
            };
            end += encode_entry(&mut out[end..], &entry);
        }
        encode_trailer(out, life, addr);
    }
}
