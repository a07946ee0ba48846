//! Where records are.

use std::fmt;

/// A segment: the erase unit with this number on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SegmentId(pub u32);

impl fmt::Display for SegmentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "segment {}", self.0)
    }
}

/// A place on the drive: segment in the high half, byte offset in the segment in the low half.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Addr(pub u64);

impl Addr {
    /// Byte `offset` of `segment`.
    pub fn new(segment: SegmentId, offset: u32) -> Self {
        Self(u64::from(segment.0) << 32 | u64::from(offset))
    }

    /// The segment.
    pub fn segment(self) -> SegmentId {
        SegmentId((self.0 >> 32) as u32)
    }

    /// The byte offset in the segment.
    pub fn offset(self) -> u32 {
        self.0 as u32
    }
}

impl fmt::Display for Addr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} offset {}", self.segment(), self.offset())
    }
}

/// A record's place and its whole length (header and payload, without the padding to 8 bytes).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecordPtr {
    /// Where the record's header starts.
    pub addr: Addr,
    /// Bytes of header and payload.
    pub len: u32,
}

impl fmt::Display for RecordPtr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({} B)", self.addr, self.len)
    }
}

/// Which kind of data a segment takes. Each stream has its own open segment, so that data that dies together
/// lies together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Stream {
    /// Group commit: what callers append, strictly in order.
    Commit = 0,
    /// Live records that cleaning moved.
    Moved = 1,
    /// Key tables.
    Table = 2,
    /// Pieces of large values.
    Large = 3,
}

impl Stream {
    /// Every stream.
    pub const ALL: [Self; 4] = [Self::Commit, Self::Moved, Self::Table, Self::Large];

    /// The stream of this number, as formats write it.
    pub fn from_u8(value: u8) -> Option<Self> {
        Self::ALL.get(usize::from(value)).copied()
    }
}

/// Which open segment an object goes to. Objects that die at about the same time share segments, which are then won
/// back whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// Key tables of the client's kind `0..TABLE_GROUPS`; a drive that can spare no segment for each has them in one.
    Tables(u8),
    /// Pieces of large values.
    Large,
}

/// Kinds of key tables that may lie apart.
pub const TABLE_GROUPS: usize = 5;

impl Group {
    /// The stream that the group's segments are of.
    pub fn stream(self) -> Stream {
        match self {
            Self::Tables(_) => Stream::Table,
            Self::Large => Stream::Large,
        }
    }
}
