//! A key's version inside the engine: what memtables, key tables and their merges pass around.

use bytes::Bytes;
use pumice_segment::RecordPtr;

use crate::types::{Meta, Seq};

/// One version of a key.
#[derive(Clone, Debug, PartialEq)]
pub struct KeyEntry {
    /// The version.
    pub seq: Seq,
    /// Unix milliseconds; 0 = never.
    pub expire_ms: u64,
    /// The writer's byte.
    pub tag: u8,
    /// Whether the value is the list of a large value's pieces.
    pub large: bool,
    /// The user's value, in bytes (of a large one, the whole).
    pub value_len: u64,
    /// Whether the heap was told that the next older version, if there is one, is dead.
    pub counted: bool,
    /// Whether the value's record is known to be on flash, where it stays until cleaning moves it.
    pub on_flash: bool,
    /// Where the value is.
    pub body: Body,
}

/// A version whose value, if it is beside the key, lies in memory that goes with it.
#[derive(Clone, Copy, Debug)]
pub struct PlacedEntry {
    /// As in [`KeyEntry`], like the other fields.
    pub seq: Seq,
    /// Unix milliseconds; 0 = never.
    pub expire_ms: u64,
    /// The user's value, in bytes.
    pub value_len: u64,
    /// Where the value is.
    pub body: PlacedBody,
    /// The writer's byte.
    pub tag: u8,
    /// Whether the value is a list of pieces.
    pub large: bool,
    /// Whether the heap was told of what it shadows.
    pub counted: bool,
    /// As in [`KeyEntry`].
    pub on_flash: bool,
}

/// Where the value of a [`PlacedEntry`] is.
#[derive(Clone, Copy, Debug)]
pub enum PlacedBody {
    /// The key was deleted.
    Tombstone,
    /// In the memory that goes with it.
    Inline {
        /// Where it begins.
        at: u32,
        /// Its length in bytes.
        len: u32,
    },
    /// In a record of the heap.
    Record(RecordPtr),
}

impl PlacedEntry {
    /// Whether the key is gone.
    #[inline]
    pub fn is_tombstone(&self) -> bool {
        matches!(self.body, PlacedBody::Tombstone)
    }

    /// Whether the whole value is beside the key.
    #[inline]
    pub fn is_whole(&self) -> bool {
        matches!(self.body, PlacedBody::Inline { .. }) && !self.large
    }

    /// The bytes beside the key, of the memory that goes with it.
    #[inline]
    pub fn inline<'a>(&self, memory: &'a [u8]) -> &'a [u8] {
        match self.body {
            PlacedBody::Inline { at, len } => &memory[at as usize..][..len as usize],
            PlacedBody::Tombstone | PlacedBody::Record(_) => &[],
        }
    }

    /// The version with its part of the memory that goes with it.
    pub fn to_entry(&self, memory: &Bytes) -> KeyEntry {
        let body = match self.body {
            PlacedBody::Tombstone => Body::Tombstone,
            PlacedBody::Inline { at, len } => Body::Inline(memory.slice(at as usize..(at + len) as usize)),
            PlacedBody::Record(ptr) => Body::Record(ptr),
        };
        let Self { seq, expire_ms, value_len, tag, large, counted, on_flash, .. } = *self;
        KeyEntry { seq, expire_ms, tag, large, value_len, counted, on_flash, body }
    }
}

/// Where a version's value is.
#[derive(Clone, Debug, PartialEq)]
pub enum Body {
    /// The key was deleted.
    Tombstone,
    /// Here.
    Inline(Bytes),
    /// In a record of the heap.
    Record(RecordPtr),
}

impl KeyEntry {
    /// Whether the key is gone.
    pub fn is_tombstone(&self) -> bool {
        self.body == Body::Tombstone
    }

    /// The record that holds the value, if one does.
    pub fn record(&self) -> Option<RecordPtr> {
        match self.body {
            Body::Record(ptr) => Some(ptr),
            _ => None,
        }
    }

    /// Whether its end is worth telling the heap.
    pub fn holds_space(&self) -> bool {
        self.large || self.record().is_some()
    }

    /// What callers may know without reading the value.
    pub fn meta(&self) -> Meta {
        Meta { tag: self.tag, expire_ms: self.expire_ms, value_len: self.value_len, seq: self.seq }
    }
}
