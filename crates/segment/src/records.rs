//! Records as they come in and as they are found.

use bytes::Bytes;

use crate::{Damage, RecordPtr, Stream};

/// A record to append: its payload is the concatenation of `parts`.
#[derive(Clone, Copy, Debug)]
pub struct RecordIn<'a> {
    /// The client's own distinction; comes back with the record.
    pub kind: u8,
    /// The payload in pieces.
    pub parts: &'a [&'a [u8]],
    /// What cleaning will ask about it.
    pub outline: Outline,
}

/// What cleaning, to tell whether a record is alive, has to know of it once the client's durable state covers it. Frames of some
/// length whose records need not be read whole end in a summary, which says so much of each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Outline {
    /// All of it.
    #[default]
    Whole,
    /// So many of its payload's first bytes.
    Head(u16),
    /// Nothing: nobody names it where it lies.
    Nothing,
}

/// A record as it was read.
#[derive(Clone, Debug)]
pub struct Record {
    /// The client's kind.
    pub kind: u8,
    /// The payload; a slice of a larger buffer, copy it if it is kept for long.
    pub payload: Bytes,
}

/// A record that cleaning moves.
#[derive(Clone, Debug)]
pub struct MovedRecord {
    /// Its own sequence number, kept in the record.
    pub seq: u64,
    /// The client's kind.
    pub kind: u8,
    /// The payload.
    pub payload: Bytes,
}

/// A record found by scanning.
#[derive(Clone, Debug)]
pub struct Replayed {
    /// Its sequence number.
    pub seq: u64,
    /// Where it is.
    pub ptr: RecordPtr,
    /// The client's kind.
    pub kind: u8,
    /// The payload; a slice of a whole segment's buffer, copy it if it is kept.
    pub payload: Bytes,
}

/// What a segment, or a window of it, holds.
#[derive(Clone, Debug)]
pub struct Contents {
    /// Its stream.
    pub stream: Stream,
    /// Every record that verifies, but for those of which only the head was read.
    pub records: Vec<Replayed>,
    /// Records of which only the head was read, and verifies.
    pub heads: Vec<RecordHead>,
    /// What does not.
    pub damage: Vec<Damage>,
    /// Of a commit segment: no record of these frames, listed here or not, has a higher sequence number.
    pub newest_seq: u64,
    /// Bytes of these frames' records, listed here or not.
    pub record_bytes: u64,
}

/// A record of which only the head is known, see [`crate::Object::end_head`] and [`Outline`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordHead {
    /// The client's kind.
    pub kind: u8,
    /// Where the record lies.
    pub ptr: RecordPtr,
    /// The payload's first bytes, as many as its writer meant.
    pub head: Bytes,
}

impl Contents {
    /// No records yet.
    pub(crate) fn nothing(stream: Stream) -> Self {
        let (records, heads, damage) = (Vec::new(), Vec::new(), Vec::new());
        Self { stream, records, heads, damage, newest_seq: 0, record_bytes: 0 }
    }
}
