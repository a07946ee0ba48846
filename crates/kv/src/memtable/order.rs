//! A memtable's rows in the order of their keys: a two-level sorted list, made when a scan asks.
//!
//! Rows lie where they were written, so that who goes over them meets another line of memory with each. A range is gathered from the list first,
//! and its rows are asked for together before they are looked at.

use std::ops::Bound;

use bytes::Bytes;
use smallvec::SmallVec;

use super::{Memtable, NewBody, RowAt, Version};
use crate::entry::{PlacedBody, PlacedEntry};
use crate::scan::piece::{Piece, PieceBuilder};
use crate::types::Seq;

/// Rows in one chunk of the sorted list: insertion moves 2 KiB at most, and a million rows make 2,000 chunks.
const ORDER_CHUNK: usize = 512;
/// Rows asked for together: what is brought in for the first must be there still at the last.
const TOUCHED_AT_ONCE: usize = 32;

/// Room that a piece has for keys and values before it grows, at most.
const BYTES_AT_FIRST: usize = 64 << 10;

/// A range's bounds, from where it begins to where it ends: of one that goes backward the upper one is first.
type Range<'a> = (Bound<&'a [u8]>, Bound<&'a [u8]>);

/// Where a walk over the sorted list goes on: a chunk, and how many of its rows lie before that place.
#[derive(Clone, Copy)]
struct Place {
    chunk: usize,
    at: usize,
}

impl Memtable {
    /// Puts every row that is not yet there into the sorted list.
    fn put_in_order(&mut self) {
        if self.ordered == self.len() {
            return;
        }
        let mut order = std::mem::take(&mut self.order);
        if self.len() - self.ordered > self.ordered / 4 {
            let mut all: Vec<RowAt> = self.listed.iter().copied().collect();
            all.sort_unstable_by(|&a, &b| self.key(a).cmp(self.key(b)));
            order = all.chunks(ORDER_CHUNK / 2).map(<[RowAt]>::to_vec).collect();
        } else {
            for number in self.ordered..self.len() {
                self.put_one(&mut order, self.nth(number));
            }
        }
        self.order = order;
        self.ordered = self.len();
    }

    fn put_one(&self, order: &mut Vec<Vec<RowAt>>, row: RowAt) {
        let key = self.key(row);
        let chunk = order.partition_point(|chunk| self.key(chunk[0]) <= key).saturating_sub(1);
        let at = order[chunk].partition_point(|&other| self.key(other) < key);
        order[chunk].insert(at, row);
        if order[chunk].len() >= ORDER_CHUNK {
            let upper = order[chunk].split_off(ORDER_CHUNK / 2);
            order.insert(chunk + 1, upper);
        }
    }

    /// All rows by key. For a memtable that is no longer written.
    pub fn rows_in_order(&mut self) -> Vec<RowAt> {
        self.put_in_order();
        self.order.concat()
    }

    /// Up to `limit` keys of a range, in ascending or (`backward`) descending order, each with its newest version that is not
    /// above `max_seq`; tombstones too. Where there may be more, with the key behind which they lie.
    pub fn collect(
        &mut self,
        range: Range<'_>,
        backward: bool,
        max_seq: Seq,
        limit: usize,
    ) -> (Piece, Option<Bytes>) {
        self.put_in_order();
        let mut place = self.place_of(range.0, backward);
        let rows = self.rows_from(&mut place, range.1, backward, limit);
        let row_bytes = self.bytes() / self.len().max(1);
        let bytes = (rows.len() * row_bytes).min(BYTES_AT_FIRST);
        let mut piece = PieceBuilder::with_capacity(rows.len(), bytes);
        for group in rows.chunks(TOUCHED_AT_ONCE) {
            self.rows.touch(group);
            for &row in group {
                if let Some(version) = self.version_at(row, max_seq) {
                    self.copy_row(row, &version, &mut piece);
                }
            }
        }
        let last = rows.last().filter(|_| place.is_some());
        let last = last.map(|&last| Bytes::copy_from_slice(self.key(last)));
        (piece.finish(None, false), last)
    }

    fn copy_row(&self, row: RowAt, version: &Version, piece: &mut PieceBuilder) {
        let key = self.key(row);
        let key_at = piece.bytes.len();
        piece.bytes.extend_from_slice(key);
        let body = match self.rows.body(version) {
            NewBody::Tombstone => PlacedBody::Tombstone,
            NewBody::Record(ptr) => PlacedBody::Record(ptr),
            NewBody::Inline(value) => {
                let at = piece.bytes.len();
                piece.bytes.extend_from_slice(value);
                PlacedBody::Inline { at: at as u32, len: value.len() as u32 }
            }
        };
        let Version { seq, expire_ms, value_len, tag, .. } = *version;
        let (large, counted) = (version.is_large(), version.is_counted());
        piece.push(key_at, key.len(), PlacedEntry { seq, expire_ms, value_len, body, tag, large, counted });
    }

    /// Goes over keys of a range until `wanted` of them are there as of `max_seq`; says how many were, and the key that it
    /// stopped at, where it did before the end.
    pub fn skip(
        &mut self,
        range: Range<'_>,
        backward: bool,
        max_seq: Seq,
        wanted: u64,
    ) -> (u64, Option<Bytes>) {
        self.put_in_order();
        let (mut skipped, mut last) = (0, None);
        self.visit(range, backward, |row| {
            let version = self.version_at(row, max_seq);
            skipped += u64::from(version.is_some_and(|version| !version.is_tombstone()));
            if skipped == wanted {
                last = Some(Bytes::copy_from_slice(self.key(row)));
            }
            skipped < wanted
        });
        (skipped, last)
    }

    /// The highest number, not above `max_seq`, of a version between bounds; tombstones count. 0 when there is none.
    pub fn newest_between(&mut self, range: Range<'_>, max_seq: Seq) -> Seq {
        self.put_in_order();
        let mut newest = 0;
        self.visit(range, false, |row| {
            newest = newest.max(self.version_at(row, max_seq).map_or(0, |version| version.seq));
            true
        });
        newest
    }

    /// Shows the rows of a range, in order, as long as `visit` says so. All rows must be in order.
    fn visit(&self, (from, to): Range<'_>, backward: bool, mut visit: impl FnMut(RowAt) -> bool) {
        let mut place = self.place_of(from, backward);
        loop {
            let rows = self.rows_from(&mut place, to, backward, TOUCHED_AT_ONCE);
            self.rows.touch(&rows);
            if !rows.iter().all(|&row| visit(row)) || place.is_none() {
                return;
            }
        }
    }

    /// Where a range begins.
    fn place_of(&self, from: Bound<&[u8]>, backward: bool) -> Option<Place> {
        let is_before = |row: RowAt| match from {
            Bound::Unbounded => backward,
            // Forward, what is before the place is not shown; backward, it is what is shown.
            Bound::Included(key) if backward => self.key(row) <= key,
            Bound::Excluded(key) if !backward => self.key(row) <= key,
            Bound::Included(key) | Bound::Excluded(key) => self.key(row) < key,
        };
        let chunk = self.order.partition_point(|chunk| is_before(chunk[0])).saturating_sub(1);
        let at = self.order.get(chunk)?.partition_point(|&row| is_before(row));
        Some(Place { chunk, at })
    }

    /// Up to `limit` rows from `place` on that come before a range's end. `place` is where they end, if there may be more.
    fn rows_from(
        &self,
        place: &mut Option<Place>,
        to: Bound<&[u8]>,
        backward: bool,
        limit: usize,
    ) -> SmallVec<[RowAt; 256]> {
        let mut found = SmallVec::new();
        while found.len() < limit
            && let Some(Place { chunk, at }) = *place
        {
            let rows = &self.order[chunk];
            let wanted = limit - found.len();
            if backward {
                let first = at.saturating_sub(wanted);
                found.extend(rows[first..at].iter().rev().copied());
                let before = chunk.checked_sub(1).map(|chunk| Place { chunk, at: self.order[chunk].len() });
                *place = if first > 0 { Some(Place { chunk, at: first }) } else { before };
            } else {
                let end = rows.len().min(at + wanted);
                found.extend_from_slice(&rows[at..end]);
                let next =
                    Some(Place { chunk: chunk + 1, at: 0 }).filter(|next| next.chunk < self.order.len());
                *place = if end < rows.len() { Some(Place { chunk, at: end }) } else { next };
            }
        }
        let is_within = |row: RowAt| match to {
            Bound::Unbounded => true,
            Bound::Included(key) if backward => self.key(row) >= key,
            Bound::Excluded(key) if backward => self.key(row) > key,
            Bound::Included(key) => self.key(row) <= key,
            Bound::Excluded(key) => self.key(row) < key,
        };
        if found.last().is_some_and(|&last| !is_within(last)) {
            found.truncate(found.partition_point(|&row| is_within(row)));
            *place = None;
        }
        found
    }
}
