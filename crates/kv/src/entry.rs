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
    /// Where the value is.
    pub body: Body,
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
