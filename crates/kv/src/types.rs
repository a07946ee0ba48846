//! The words of the engine: slices, sequence numbers, entries and what can go wrong.

use std::sync::Arc;

use bytes::Bytes;

use crate::entry::KeyEntry;
use crate::large::LargeRef;

/// One hash partition of a drive's keys, `0..slices`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SliceId(pub u16);

/// A drive's sequence number: one per record, in the order of the commit stream, never reused.
pub type Seq = u64;

/// The longest key, in bytes: 64 KiB of the user's and 32 of encoding.
pub const KEY_BYTES_MAX: usize = 64 * 1024 + 32;

/// The longest value kept in one record, in bytes. Longer ones go through [`crate::Store::large_writer`].
pub const VALUE_BYTES_MAX: usize = 256 * 1024;

/// Which way a scan or a merge goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Keys rise.
    Forward,
    /// Keys fall.
    Backward,
}

/// A key's newest version, with its value.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The writer's own byte: Redis types, here.
    pub tag: u8,
    /// When the entry expires, in Unix milliseconds; 0 = never. The engine returns expired entries alike.
    pub expire_ms: u64,
    /// The version. It rises when cleaning moves the record, too.
    pub seq: Seq,
    /// The value; empty when `large` is there.
    pub value: Bytes,
    /// Where the pieces of a value above [`VALUE_BYTES_MAX`] lie; read with [`crate::Store::read_large`].
    pub large: Option<Arc<LargeRef>>,
}

impl Entry {
    /// The value's length in bytes, large or not.
    pub fn value_len(&self) -> u64 {
        self.large.as_ref().map_or(self.value.len() as u64, |large| large.len())
    }

    /// What it holds in memory; of a large value nothing.
    pub fn view(&self) -> EntryView<'_> {
        let Self { tag, expire_ms, seq, .. } = *self;
        EntryView { tag, expire_ms, seq, value: ValueView::Shared(&self.value) }
    }
}

/// An entry in memory, its value where it lies.
#[derive(Clone, Copy, Debug)]
pub struct EntryView<'a> {
    /// The writer's own byte.
    pub tag: u8,
    /// When the entry expires, in Unix milliseconds; 0 = never.
    pub expire_ms: u64,
    /// The version.
    pub seq: Seq,
    /// The value.
    pub value: ValueView<'a>,
}

impl EntryView<'_> {
    /// The entry, with a copy of its value if that lies among others.
    pub fn to_entry(&self) -> Entry {
        let value = match self.value {
            ValueView::Inline(value) => Bytes::copy_from_slice(value),
            ValueView::Shared(value) => value.clone(),
        };
        Entry { tag: self.tag, expire_ms: self.expire_ms, seq: self.seq, value, large: None }
    }

    /// Without the value.
    pub fn meta(&self) -> Meta {
        let value_len = self.value.bytes().len() as u64;
        Meta { tag: self.tag, expire_ms: self.expire_ms, value_len, seq: self.seq }
    }
}

/// A value in memory.
#[derive(Clone, Copy, Debug)]
pub enum ValueView<'a> {
    /// Among others: to be copied.
    Inline(&'a [u8]),
    /// In memory of its own, which can be kept.
    Shared(&'a Bytes),
}

impl<'a> ValueView<'a> {
    /// The value's bytes.
    pub fn bytes(self) -> &'a [u8] {
        match self {
            Self::Inline(value) => value,
            Self::Shared(value) => value,
        }
    }
}

/// A key's newest version, without its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meta {
    /// The writer's own byte.
    pub tag: u8,
    /// When the entry expires, in Unix milliseconds; 0 = never.
    pub expire_ms: u64,
    /// The value's length in bytes.
    pub value_len: u64,
    /// The version.
    pub seq: Seq,
}

/// What memory alone knows of a key.
#[derive(Clone, Debug)]
pub enum Peek<T> {
    /// The key is there.
    Found(T),
    /// The key is not there.
    Absent,
    /// Only flash knows: call the asynchronous variant, which goes on from here.
    NeedsFlash(Hint),
}

/// Where memory knows that a key's value lies on flash, if it does: reading it need not look the key up again.
#[derive(Clone, Debug, Default)]
pub struct Hint(pub(crate) Option<Known>);

/// When something was read of a slice, see [`crate::Store::is_newest`].
#[derive(Clone, Copy, Debug)]
pub struct Moment(pub(crate) u64);

/// A key's newest version, whose value is small and in a record of the heap.
#[derive(Clone, Debug)]
pub(crate) struct Known {
    pub epoch: u64,
    /// The heap's, when its place was looked up.
    pub lives: u64,
    pub found: KeyEntry,
}

impl<T> Peek<T> {
    /// Turns what was found into something else.
    pub fn map<U>(self, f: impl FnOnce(T) -> U) -> Peek<U> {
        match self {
            Self::Found(found) => Peek::Found(f(found)),
            Self::Absent => Peek::Absent,
            Self::NeedsFlash(hint) => Peek::NeedsFlash(hint),
        }
    }
}
