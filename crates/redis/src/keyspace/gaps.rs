//! Stretches of the ordered map in which a running transaction knows that there is nothing: what its scans went
//! over, finding only keys that it had removed. A later scan begins behind them, or leaps over them, so that
//! popping thousands of elements in one EXEC costs what popping them one by one does.

use std::collections::BTreeMap;
use std::ops::Bound;

use super::key::RawKey;

/// Half-open stretches without keys; no two overlap or touch.
#[derive(Default)]
pub(super) struct Gaps {
    /// By where they begin: the first key behind them.
    ends: BTreeMap<RawKey, RawKey>,
}

/// The first key behind `key`.
pub(super) fn successor(key: &[u8]) -> RawKey {
    let mut next = RawKey::with_capacity(key.len() + 1);
    next.extend_from_slice(key);
    next.push(0);
    next
}

impl Gaps {
    /// The gap that `key` lies in: its first key, and the first behind it.
    pub(super) fn around(&self, key: &[u8]) -> Option<(&RawKey, &RawKey)> {
        self.last_from(key).filter(|(_, end)| end[..] > *key)
    }

    /// The gap that ends at `key`, or in which `key` lies.
    pub(super) fn before(&self, key: &[u8]) -> Option<(&RawKey, &RawKey)> {
        let below = (Bound::Unbounded, Bound::Excluded(key));
        self.ends.range::<[u8], _>(below).next_back().filter(|(_, end)| end[..] >= *key)
    }

    fn last_from(&self, key: &[u8]) -> Option<(&RawKey, &RawKey)> {
        self.ends.range::<[u8], _>((Bound::Unbounded, Bound::Included(key))).next_back()
    }

    /// There is nothing from `start` up to `end`.
    pub(super) fn note(&mut self, mut start: RawKey, mut end: RawKey) {
        if start >= end {
            return;
        }
        let touching = self.last_from(&start).filter(|(_, known)| **known >= start);
        if let Some((first, known)) = touching.map(|(first, known)| (first.clone(), known.clone())) {
            (start, end) = (first, end.max(known));
        }
        loop {
            let within = (Bound::Included(&start[..]), Bound::Included(&end[..]));
            let next = self.ends.range::<[u8], _>(within).next();
            let Some((first, known)) = next.map(|(first, known)| (first.clone(), known.clone())) else {
                break;
            };
            self.ends.remove(&first);
            end = end.max(known);
        }
        self.ends.insert(start, end);
    }

    /// Something was put at `key`.
    pub(super) fn fill(&mut self, key: &[u8]) {
        let Some((start, end)) = self.around(key) else { return };
        let (start, end) = (start.clone(), end.clone());
        if start[..] == *key {
            self.ends.remove(&start);
        } else {
            self.ends.insert(start, RawKey::from_slice(key));
        }
        let behind = successor(key);
        if behind < end {
            self.ends.insert(behind, end);
        }
    }
}
