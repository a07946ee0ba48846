//! The near end of a scan of one slice: what it goes over before the first key that is there becomes a gap
//! ([`crate::gaps`]), and where one is known already the scan begins behind it.

use std::ops::Bound;

use bytes::Bytes;

use crate::scan::gaps::successor;
use crate::snapshot::{SliceView, SnapshotInner};
use crate::types::SliceId;

/// So many keys that are gone in a row are worth remembering; told at each doubling, because what others put meanwhile
/// makes what was found in vain.
const GONE_MIN: u64 = 32;
/// Longer keys are not kept.
const KEY_BYTES_MAX: usize = 256;

/// Where a scan began, until the first key that is there was met.
pub struct Edge {
    slice: SliceId,
    /// The first key that it may find; of one that goes backward, the first behind those.
    from: Box<[u8]>,
    backward: bool,
    /// Keys gone over.
    gone: u64,
    /// The slice's when the snapshot was made.
    puts: u64,
}

impl Edge {
    /// Of a scan from `start` on; `None` where that is not kept.
    pub fn of(view: &SliceView, start: &Bound<Bytes>, backward: bool) -> Option<Self> {
        let (Bound::Included(key) | Bound::Excluded(key)) = start else { return None };
        if key.len() > KEY_BYTES_MAX {
            return None;
        }
        let is_behind = matches!(start, Bound::Included(_)) == backward;
        let from = if is_behind { successor(key) } else { key[..].into() };
        Some(Self { slice: view.slice, from, backward, gone: 0, puts: view.puts })
    }

    /// Where the scan may begin instead, if it begins in a gap.
    pub fn behind_gap(&self, snapshot: &SnapshotInner) -> Option<Bound<Bytes>> {
        let state = snapshot.store.slice(self.slice);
        if self.backward {
            let (start, _) = state.gaps.before(&self.from, snapshot.seq)?;
            Some(Bound::Excluded(Bytes::copy_from_slice(start)))
        } else {
            let (_, end) = state.gaps.around(&self.from, snapshot.seq)?;
            Some(Bound::Included(Bytes::copy_from_slice(end)))
        }
    }

    /// The scan goes over `key`, which is gone.
    pub fn pass(&mut self, snapshot: &SnapshotInner, key: &[u8]) {
        self.gone += 1;
        if self.gone >= GONE_MIN && self.gone.is_power_of_two() {
            self.note(snapshot, key);
        }
    }

    /// The scan met `key`, which is there, or is its end.
    pub fn end(self, snapshot: &SnapshotInner, key: &[u8]) {
        snapshot.store.counters.gone_passed.add(self.gone);
        if self.gone >= GONE_MIN {
            self.note(snapshot, key);
        }
    }

    /// There is nothing between where the scan began and `key`.
    fn note(&self, snapshot: &SnapshotInner, key: &[u8]) {
        if key.len() > KEY_BYTES_MAX {
            return;
        }
        let mut state = snapshot.store.slice(self.slice);
        if state.puts != self.puts {
            return;
        }
        let from = self.from.clone();
        if self.backward {
            state.gaps.note(successor(key), from, snapshot.seq);
        } else {
            state.gaps.note(from, key.into(), snapshot.seq);
        }
    }
}
