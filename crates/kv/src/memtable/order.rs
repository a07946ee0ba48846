//! A memtable's rows in the order of their keys: a two-level sorted list, made when a scan asks.
//!
//! Rows lie where they were written, so that who goes over them meets another line of memory with each. A range is gathered from the list first,
//! and its rows are asked for together before they are looked at.
//!
//! A row is left out whose key was not there before it was put here, nor is any more (`docs/decisions/0052-what-came-and-went.md`). It is not
//! looked for: who orders rows or collects a range meets it. Where its key is put again it comes back.

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
const PREFETCHED_AT_ONCE: usize = 32;
/// … and so much of each one's key.
const PREFETCHED_BYTES: usize = 32;
/// Rows that a search looks at together.
const PIVOTS: usize = 7;
/// Room that a piece has for keys and values before it grows, at most.
const BYTES_AT_FIRST: usize = 64 << 10;

/// A range's bounds, from where it begins to where it ends: of one that goes backward the upper one is first.
type Range<'a> = (Bound<&'a [u8]>, Bound<&'a [u8]>);

/// Which versions a scan sees.
#[derive(Clone, Copy)]
pub struct Sight {
    /// The last one.
    pub max_seq: Seq,
    /// All up to this number are durable, and no scan that goes on or is yet to come began before them.
    pub settled: Seq,
}

/// A part of the sorted list.
pub struct Chunk {
    /// The first of its rows, here so that a search among chunks need not look into each.
    first: RowAt,
    rows: Vec<RowAt>,
}

impl Chunk {
    fn new(rows: Vec<RowAt>) -> Self {
        Self { first: rows[0], rows }
    }

    fn all(rows: &[RowAt]) -> Vec<Self> {
        rows.chunks(ORDER_CHUNK / 2).map(|rows| Self::new(rows.to_vec())).collect()
    }
}

/// Where a walk over the sorted list goes on: a chunk, and how many of its rows lie before that place.
#[derive(Clone, Copy)]
struct Place {
    chunk: usize,
    at: usize,
}

/// What was collected of a range.
pub struct Collected {
    /// Its rows.
    pub piece: Piece,
    /// Where there may be more.
    pub rest: Option<Rest>,
    /// Rows gone over that are in no piece, nor met again.
    pub left_out: usize,
}

/// Where a range goes on that was collected in part.
pub struct Rest {
    /// The last key; what is left lies behind it.
    pub after: Bytes,
    row: RowAt,
    /// As long as the row lies there.
    place: Place,
}

impl Memtable {
    /// Puts every row that is not yet there into the sorted list, but those that may be left out.
    fn put_in_order(&mut self, settled: Seq) {
        if self.unseen == self.len() && self.returned.is_empty() {
            return;
        }
        let unseen = (self.unseen..self.len()).map(|number| self.nth(number));
        let mut rows: Vec<RowAt> = unseen.chain(self.returned.iter().copied()).collect();
        (self.unseen, self.returned) = (self.len(), Vec::new());
        rows.retain(|&row| !self.leave_out(row, settled));
        let mut order = std::mem::take(&mut self.order);
        if rows.len() > self.ordered / 4 {
            order.iter().for_each(|chunk| rows.extend_from_slice(&chunk.rows));
            rows.sort_unstable_by(|&a, &b| self.key(a).cmp(self.key(b)));
            self.ordered = rows.len();
            order = Chunk::all(&rows);
        } else {
            rows.iter().for_each(|&row| self.put_one(&mut order, row));
            self.ordered += rows.len();
        }
        self.order = order;
    }

    /// Whether a row may be left out, which it is marked to be then. It may if everybody sees its key as gone and it will stay so: scans tell
    /// of what is not there, too, and who hears of it may count on it after a crash. Both are so up to number `settled`.
    fn leave_out(&mut self, row: RowAt, settled: Seq) -> bool {
        let mut newest = self.rows.newest(row);
        let may_be = newest.is_of_new_key() && newest.is_tombstone() && newest.seq <= settled;
        if may_be {
            newest.set_left_out(true);
            self.rows.set_newest(row, &newest);
        }
        may_be
    }

    /// Takes rows out of the list. They lie in it from chunk `first` on, in the order of a range.
    fn take_out(&mut self, first: usize, backward: bool, mut rows: &[RowAt]) {
        self.ordered -= rows.len();
        let mut at = first;
        loop {
            let chunk = &mut self.order[at].rows;
            let stays = |row: &RowAt| match rows.split_first() {
                Some((gone, rest)) if gone == row => {
                    rows = rest;
                    false
                }
                _ => true,
            };
            if backward {
                chunk.reverse();
                chunk.retain(stays);
                chunk.reverse();
            } else {
                chunk.retain(stays);
            }
            if rows.is_empty() {
                break;
            }
            at = if backward { at - 1 } else { at + 1 };
        }
        (first.min(at)..=first.max(at)).rev().for_each(|at| self.close_up(at));
    }

    /// Rows of chunk `at` went: it goes, or takes the next one in, if they are few.
    fn close_up(&mut self, at: usize) {
        let left = self.order[at].rows.len();
        if left == 0 {
            self.order.remove(at);
            return;
        }
        if self.order.get(at + 1).is_some_and(|next| left + next.rows.len() <= ORDER_CHUNK / 2) {
            let next = self.order.remove(at + 1);
            self.order[at].rows.extend(next.rows);
        }
        let chunk = &mut self.order[at];
        chunk.first = chunk.rows[0];
    }

    fn put_one(&self, order: &mut Vec<Chunk>, row: RowAt) {
        let key = self.key(row);
        let is_before = |other| self.key(other) < key;
        let at = self.search(order.len(), |chunk| order[chunk].first, is_before).saturating_sub(1);
        let chunk = &mut order[at];
        let place = self.search(chunk.rows.len(), |place| chunk.rows[place], is_before);
        chunk.rows.insert(place, row);
        chunk.first = chunk.rows[0];
        if chunk.rows.len() >= ORDER_CHUNK {
            let upper = chunk.rows.split_off(ORDER_CHUNK / 2);
            order.insert(at + 1, Chunk::new(upper));
        }
    }

    /// How many of `count` rows, which rise, come first and are before something. It looks at several at a time, which come side by side,
    /// where halving waits for one after the other.
    fn search(&self, count: usize, row: impl Fn(usize) -> RowAt, is_before: impl Fn(RowAt) -> bool) -> usize {
        let (mut low, mut high) = (0, count);
        while low < high {
            // Those that part the rest into equal pieces; all that are left, in the end.
            let step = ((high - low) / (PIVOTS + 1)).max(1);
            let pivots: SmallVec<[RowAt; PIVOTS]> =
                (low..high).skip(step - 1).step_by(step).take(PIVOTS).map(&row).collect();
            self.prefetch_rows(&pivots);
            let before = pivots.partition_point(|&pivot| is_before(pivot));
            if before < pivots.len() {
                high = low + (before + 1) * step - 1;
            }
            low += before * step;
        }
        low
    }

    /// Up to `limit` keys of a range, in ascending or (`backward`) descending order, each with its newest version that is not
    /// above `max_seq`; tombstones too, but for those that hide nothing and are durable and seen by everybody, as all is up to `settled`.
    /// `rest` says where the range was left before, if it does not begin at its bound.
    pub fn collect(
        &mut self,
        range: Range<'_>,
        rest: Option<&Rest>,
        backward: bool,
        Sight { max_seq, settled }: Sight,
        limit: usize,
    ) -> Collected {
        self.put_in_order(settled);
        let first = match rest {
            Some(rest) => self.place_of_rest(rest, backward),
            None => self.place_of(range.0, backward),
        };
        let mut place = first;
        let rows = self.rows_from(&mut place, range.1, backward, limit);
        let row_bytes = self.bytes() / self.len().max(1);
        let bytes = (rows.len() * row_bytes).min(BYTES_AT_FIRST);
        let mut piece = PieceBuilder::with_capacity(rows.len(), bytes);
        let mut gone: SmallVec<[RowAt; 16]> = SmallVec::new();
        for group in rows.chunks(PREFETCHED_AT_ONCE) {
            self.prefetch_rows(group);
            for &row in group {
                let Some(version) = self.version_at(row, max_seq) else { continue };
                if version.is_tombstone() && self.leave_out(row, settled) {
                    gone.push(row);
                } else {
                    self.copy_row(row, &version, &mut piece);
                }
            }
        }
        let last = rows.last().zip(place);
        let rest =
            last.map(|(&row, place)| Rest { after: Bytes::copy_from_slice(self.key(row)), row, place });
        if let Some(first) = first.filter(|_| !gone.is_empty()) {
            self.take_out(first.chunk, backward, &gone);
        }
        Collected { piece: piece.finish(None, false), rest, left_out: gone.len() }
    }

    /// Where a range goes on. Rows that came since have moved those behind them.
    fn place_of_rest(&self, rest: &Rest, backward: bool) -> Option<Place> {
        let Place { chunk, at } = rest.place;
        // Its neighbour on the other side; at a chunk's end it lies in the next one.
        let last = if backward { Some(at) } else { at.checked_sub(1) };
        let is_there = self
            .order
            .get(chunk)
            .zip(last)
            .is_some_and(|(chunk, last)| chunk.rows.get(last) == Some(&rest.row));
        if is_there { Some(rest.place) } else { self.place_of(Bound::Excluded(&rest.after), backward) }
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
        let (large, counted, on_flash) = (version.is_large(), version.is_counted(), version.is_on_flash());
        piece.push(
            key_at,
            key.len(),
            PlacedEntry { seq, expire_ms, value_len, body, tag, large, counted, on_flash },
        );
    }

    /// Goes over keys of a range until `wanted` of them are there as of `max_seq`; says how many were, and the key that it
    /// stopped at, where it did before the end.
    pub fn skip(
        &mut self,
        range: Range<'_>,
        backward: bool,
        Sight { max_seq, settled }: Sight,
        wanted: u64,
    ) -> (u64, Option<Bytes>) {
        self.put_in_order(settled);
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
        self.put_in_order(0);
        let mut newest = 0;
        self.visit(range, false, |row| {
            newest = newest.max(self.version_at(row, max_seq).map_or(0, |version| version.seq));
            true
        });
        newest
    }

    fn prefetch_rows(&self, rows: &[RowAt]) {
        rows.iter().for_each(|&row| self.rows.prefetch(row, PREFETCHED_BYTES));
    }

    /// Shows the rows of a range, in order, as long as `visit` says so. All rows must be in order.
    fn visit(&self, (from, to): Range<'_>, backward: bool, mut visit: impl FnMut(RowAt) -> bool) {
        let mut place = self.place_of(from, backward);
        loop {
            let rows = self.rows_from(&mut place, to, backward, PREFETCHED_AT_ONCE);
            self.prefetch_rows(&rows);
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
        let order = &self.order;
        let chunk = self.search(order.len(), |chunk| order[chunk].first, is_before).saturating_sub(1);
        let rows = &order.get(chunk)?.rows;
        Some(Place { chunk, at: self.search(rows.len(), |at| rows[at], is_before) })
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
            let rows = &self.order[chunk].rows;
            let wanted = limit - found.len();
            if backward {
                let first = at.saturating_sub(wanted);
                found.extend(rows[first..at].iter().rev().copied());
                let before =
                    chunk.checked_sub(1).map(|chunk| Place { chunk, at: self.order[chunk].rows.len() });
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
