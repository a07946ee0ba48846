//! What a source of a scan hands over at a time: rows in the scan's order, their keys and values one behind the other.
//!
//! A row is gone over where it lies, and only who keeps a key or a value has it as [`Bytes`]: most are compared, written to a reply and
//! forgotten.

use bytes::Bytes;

use crate::entry::{KeyEntry, PlacedEntry};

/// A row: where its key lies among the piece's keys, and what is known of its version.
#[derive(Clone, Copy, Debug)]
struct Row {
    key_at: u32,
    key_len: u32,
    entry: PlacedEntry,
}

/// See the head of this file.
#[derive(Debug, Default)]
pub struct Piece {
    keys: Bytes,
    /// What the places of inline values are in, where that is not `keys`.
    values: Option<Bytes>,
    rows: Vec<Row>,
    /// The first row that was not taken.
    next: usize,
}

impl Piece {
    /// The key that is next.
    #[inline]
    pub fn next_key(&self) -> Option<&[u8]> {
        self.rows.get(self.next).map(|row| row.key(&self.keys))
    }

    #[inline]
    fn values(&self) -> &Bytes {
        self.values.as_ref().unwrap_or(&self.keys)
    }

    /// Whether all rows were taken.
    pub fn is_empty(&self) -> bool {
        self.next == self.rows.len()
    }

    /// How many rows were not taken.
    pub fn left(&self) -> usize {
        self.rows.len() - self.next
    }

    /// Takes the next row, which there must be, and answers its number: it can be looked at until the piece is replaced.
    #[inline]
    pub fn take(&mut self) -> usize {
        self.next += 1;
        self.next - 1
    }

    /// Takes the next `rows` rows, which there must be, unseen.
    pub fn pass(&mut self, rows: usize) {
        assert!(rows <= self.left(), "{rows} rows of {}", self.left());
        self.next += rows;
    }

    /// How many of the rows that are left come first and have keys of which `is_before` holds.
    pub fn before(&self, is_before: impl Fn(&[u8]) -> bool) -> usize {
        self.rows[self.next..].partition_point(|row| is_before(row.key(&self.keys)))
    }

    /// Whether the rows that are left are tombstones.
    pub fn tombstones(&self) -> impl Iterator<Item = bool> {
        self.rows[self.next..].iter().map(|row| row.entry.is_tombstone())
    }

    /// The key of a row.
    #[inline]
    pub fn key(&self, row: usize) -> &[u8] {
        self.rows[row].key(&self.keys)
    }

    /// The key of a row, to be kept.
    pub fn key_bytes(&self, row: usize) -> Bytes {
        let Row { key_at, key_len, .. } = self.rows[row];
        self.keys.slice(key_at as usize..(key_at + key_len) as usize)
    }

    /// What is known of a row's version.
    #[inline]
    pub fn placed(&self, row: usize) -> &PlacedEntry {
        &self.rows[row].entry
    }

    /// The inline value of a row; empty where it has none.
    #[inline]
    pub fn inline(&self, row: usize) -> &[u8] {
        self.rows[row].entry.inline(self.values())
    }

    /// [`Piece::inline`], to be kept.
    pub fn value_bytes(&self, row: usize) -> Bytes {
        self.values().slice_ref(self.inline(row))
    }

    /// A row's version, to be kept.
    pub fn entry(&self, row: usize) -> KeyEntry {
        self.rows[row].entry.to_entry(self.values())
    }
}

impl Row {
    #[inline]
    fn key<'a>(&self, keys: &'a [u8]) -> &'a [u8] {
        &keys[self.key_at as usize..][..self.key_len as usize]
    }
}

/// Collects the rows of a piece, in the order in which they are to be handed over.
pub struct PieceBuilder {
    /// Keys; values too, where they don't lie in memory of their own.
    pub bytes: Vec<u8>,
    rows: Vec<Row>,
}

impl PieceBuilder {
    /// With room for so many rows and bytes.
    pub fn with_capacity(rows: usize, bytes: usize) -> Self {
        Self { bytes: Vec::with_capacity(bytes), rows: Vec::with_capacity(rows) }
    }

    /// Adds a row whose key lies in `bytes` from `key_at` on, `key_len` long.
    #[inline]
    pub fn push(&mut self, key_at: usize, key_len: usize, entry: PlacedEntry) {
        self.rows.push(Row { key_at: key_at as u32, key_len: key_len as u32, entry });
    }

    /// The piece, whose inline values lie in `values`; without it among its keys.
    pub fn finish(self, values: Option<&Bytes>, reversed: bool) -> Piece {
        let Self { bytes, mut rows } = self;
        if reversed {
            rows.reverse();
        }
        Piece { keys: Bytes::from(bytes), values: values.cloned(), rows, next: 0 }
    }
}
