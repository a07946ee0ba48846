//! What a scan of one slice goes over between keys that are there: many keys in a row that are gone become a gap
//! ([`crate::gaps`]), and a scan that comes into one that is known goes on behind it.

use std::ops::Bound;

use bytes::Bytes;

use crate::scan::Scan;
use crate::scan::blocks::number_in;
use crate::scan::gaps::successor;
use crate::scan::source::{From, ROWS_AT_FIRST};
use crate::snapshot::{SliceView, SnapshotInner};
use crate::types::SliceId;

/// So many keys that are gone in a row are worth remembering; told at each doubling, because what others put meanwhile
/// makes what was found in vain.
const GONE_MIN: u64 = 32;
/// So many are gone over before a leap, which costs about as much.
const LEAP_MIN: u64 = 16;
/// Longer keys are not kept.
const KEY_BYTES_MAX: usize = 256;

/// Keys that are gone in a row, where a scan is.
pub struct Edge {
    slice: SliceId,
    backward: bool,
    /// Where the row began: at this key, or right behind it. At a scan's beginning that is its bound, and later the first of the keys
    /// that are gone.
    near: Option<(Bytes, bool)>,
    /// Keys gone over since the last that is there.
    gone: u64,
    /// The slice's when the snapshot was made.
    puts: u64,
}

impl Edge {
    /// Of a scan from `start` on.
    pub fn of(view: &SliceView, start: &Bound<Bytes>, backward: bool) -> Self {
        let near = match start {
            Bound::Included(key) => Some((key.clone(), backward)),
            Bound::Excluded(key) => Some((key.clone(), !backward)),
            Bound::Unbounded => None,
        };
        Self { slice: view.slice, backward, near, gone: 0, puts: view.puts }
    }

    /// Where the scan may begin instead, if it begins in a gap.
    pub fn behind_gap(&self, snapshot: &SnapshotInner) -> Option<Bound<Bytes>> {
        let near = self.near()?;
        let state = snapshot.store.slice(self.slice);
        if self.backward {
            let (start, _) = state.gaps.before(&near, snapshot.seq)?;
            Some(Bound::Excluded(Bytes::copy_from_slice(start)))
        } else {
            let (_, end) = state.gaps.around(&near, snapshot.seq)?;
            Some(Bound::Included(Bytes::copy_from_slice(end)))
        }
    }

    /// The scan goes over `key`, which is gone. Where it may go on instead, if that lies in a gap.
    pub fn pass(&mut self, snapshot: &SnapshotInner, key: &[u8]) -> Option<Bound<Bytes>> {
        if self.near.is_none() && self.gone == 0 {
            self.near = Some((Bytes::copy_from_slice(key), self.backward));
        }
        self.gone += 1;
        if self.gone < LEAP_MIN || !self.gone.is_power_of_two() {
            return None;
        }
        if self.gone >= GONE_MIN {
            self.note(snapshot, key);
        }
        let state = snapshot.store.slice(self.slice);
        let (start, end) = state.gaps.around(key, snapshot.seq)?;
        Some(if self.backward {
            Bound::Excluded(Bytes::copy_from_slice(start))
        } else {
            Bound::Included(Bytes::copy_from_slice(end))
        })
    }

    /// The scan met `key`, which is there, or is its end.
    #[inline]
    pub fn meet(&mut self, snapshot: &SnapshotInner, key: &[u8]) {
        if self.gone != 0 || self.near.is_some() {
            self.end_row(snapshot, key);
        }
    }

    fn end_row(&mut self, snapshot: &SnapshotInner, key: &[u8]) {
        snapshot.store.counters.gone_passed.add(self.gone);
        if self.gone >= GONE_MIN {
            self.note(snapshot, key);
        }
        (self.gone, self.near) = (0, None);
    }

    /// The first key that may lie in the row; of a scan that goes backward, the first behind it.
    fn near(&self) -> Option<Box<[u8]>> {
        let (key, is_behind) = self.near.as_ref().filter(|(key, _)| key.len() <= KEY_BYTES_MAX)?;
        Some(if *is_behind { successor(key) } else { key[..].into() })
    }

    /// There is nothing between where the row began and `key`.
    fn note(&self, snapshot: &SnapshotInner, key: &[u8]) {
        let Some(near) = self.near().filter(|_| key.len() <= KEY_BYTES_MAX) else { return };
        let mut state = snapshot.store.slice(self.slice);
        if state.puts != self.puts {
            return;
        }
        if self.backward {
            state.gaps.note(successor(key), near, snapshot.seq);
        } else {
            state.gaps.note(near, key.into(), snapshot.seq);
        }
    }
}

impl Scan {
    /// Goes on from `start`, before which nothing is there.
    pub(super) fn leap(&mut self, start: &Bound<Bytes>) {
        self.queue.clear();
        if self.begins_past_end(start) {
            self.sources.clear();
            self.hungry.clear();
            return;
        }
        let backward = self.backward;
        let is_before = |key: &[u8]| match start {
            Bound::Included(start) if backward => key > *start,
            Bound::Excluded(start) if backward => key >= *start,
            Bound::Included(start) => key < *start,
            Bound::Excluded(start) => key <= *start,
            Bound::Unbounded => false,
        };
        for (at, source) in self.sources.iter_mut().enumerate() {
            if source.piece.is_empty() {
                source.from.leap(start, backward);
                continue;
            }
            source.piece.pass(source.piece.before(is_before));
            if source.piece.is_empty() {
                source.from.leap(start, backward);
                self.hungry.push(at);
            }
        }
        for at in 0..self.sources.len() {
            self.queue.push(at, |source| self.sources[source].piece.next_key());
        }
    }

    /// Whether nothing lies between `start` and the scan's end.
    fn begins_past_end(&self, start: &Bound<Bytes>) -> bool {
        match (start, &self.end) {
            (Bound::Unbounded, _) | (_, Bound::Unbounded) => false,
            (Bound::Included(start), Bound::Included(end)) if self.backward => start < end,
            (Bound::Included(start), Bound::Included(end)) => start > end,
            (
                Bound::Included(start) | Bound::Excluded(start),
                Bound::Included(end) | Bound::Excluded(end),
            ) => {
                if self.backward {
                    start <= end
                } else {
                    start >= end
                }
            }
        }
    }
}

impl From {
    /// What comes next, of which nothing was handed over yet, lies at `start` or behind it.
    fn leap(&mut self, leap: &Bound<Bytes>, backward: bool) {
        match self {
            Self::Exhausted => {}
            Self::Memtable { start, rest, rows_at_once, .. } => {
                (*start, *rest, *rows_at_once) = (leap.clone(), None, ROWS_AT_FIRST);
            }
            Self::Run { run, table, block, start } => {
                let Some(Self::Run { table: found, .. }) = Self::run(run, leap, backward) else {
                    *self = Self::Exhausted;
                    return;
                };
                *start = leap.clone();
                let is_further = if backward { found < *table } else { found > *table };
                if is_further {
                    (*table, *block) = (found, None);
                } else if found == *table
                    && let (Some(next), Some(head)) = (*block, run.tables()[found].head())
                    && let Some((number, _)) = number_in(&run.tables()[found], &head, None, leap, backward)
                {
                    // What was read already is not read again.
                    *block = Some(if backward { number.min(next) } else { number.max(next) });
                }
            }
        }
    }
}
