//! Stretches of ordered keys in which nothing is there: what scans went over, finding only keys that are gone. A later scan begins
//! behind them, so that taking the first key again and again costs what is taken, not all that was taken before: until
//! a merge drops them, what is gone of a queue lies before what is there.
//!
//! A gap is known from some number on: a snapshot that is older may still see keys in it.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::ops::{Bound, Deref};

use crate::types::Seq;

/// A key that is kept.
pub trait GapKey: Ord + Clone + Borrow<[u8]> + Deref<Target = [u8]> + for<'a> From<&'a [u8]> {}

impl<K: Ord + Clone + Borrow<[u8]> + Deref<Target = [u8]> + for<'a> From<&'a [u8]>> GapKey for K {}

/// Half-open stretches without keys; no two overlap or touch.
#[derive(Clone, Debug)]
pub struct Gaps<K> {
    /// By where they begin: the first key behind them, and the number from which on there is nothing.
    ends: BTreeMap<K, (K, Seq)>,
    most: usize,
}

/// The first key behind `key`.
pub fn successor<K: GapKey>(key: &[u8]) -> K {
    let mut next = Vec::with_capacity(key.len() + 1);
    next.extend_from_slice(key);
    next.push(0);
    K::from(&next)
}

impl<K: GapKey> Gaps<K> {
    /// None yet; no more than `most` are kept.
    pub fn new(most: usize) -> Self {
        Self { ends: BTreeMap::new(), most }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// The gap that `key` lies in for who sees everything up to `seq`: its first key, and the first behind it.
    pub fn around(&self, key: &[u8], seq: Seq) -> Option<(&K, &K)> {
        let (start, (end, since)) = self.last_from(key)?;
        (end[..] > *key && *since <= seq).then_some((start, end))
    }

    /// The gap that ends at `key`, or in which `key` lies, for who sees everything up to `seq`.
    pub fn before(&self, key: &[u8], seq: Seq) -> Option<(&K, &K)> {
        let below = (Bound::Unbounded, Bound::Excluded(key));
        let (start, (end, since)) = self.ends.range::<[u8], _>(below).next_back()?;
        (end[..] >= *key && *since <= seq).then_some((start, end))
    }

    fn last_from(&self, key: &[u8]) -> Option<(&K, &(K, Seq))> {
        self.ends.range::<[u8], _>((Bound::Unbounded, Bound::Included(key))).next_back()
    }

    /// From number `seq` on there is nothing from `start` up to `end`.
    pub fn note(&mut self, mut start: K, mut end: K, mut seq: Seq) {
        if start >= end {
            return;
        }
        let touching = self.last_from(&start).filter(|(_, (known, _))| *known >= start);
        if let Some((first, (known, since))) = touching {
            (seq, end) = (seq.max(*since), end.max(known.clone()));
            start = first.clone();
        }
        loop {
            let within = (Bound::Included(&start[..]), Bound::Included(&end[..]));
            let next = self.ends.range::<[u8], _>(within).next();
            let Some((first, (known, since))) = next.map(|(first, gap)| (first.clone(), gap.clone())) else {
                break;
            };
            self.ends.remove(&first[..]);
            (seq, end) = (seq.max(since), end.max(known));
        }
        if self.ends.len() >= self.most {
            // Any will do: whoever misses it finds it again.
            let next = self.ends.range::<[u8], _>((Bound::Excluded(&end[..]), Bound::Unbounded)).next();
            let goes = next.or_else(|| self.ends.iter().next()).map(|(first, _)| first.clone());
            goes.map(|first| self.ends.remove(&first[..]));
        }
        self.ends.insert(start, (end, seq));
    }

    /// Something was put at `key`.
    pub fn fill(&mut self, key: &[u8]) {
        let Some((start, (end, seq))) = self.last_from(key).filter(|(_, (end, _))| end[..] > *key) else {
            return;
        };
        let (start, end, seq) = (start.clone(), end.clone(), *seq);
        if start[..] == *key {
            self.ends.remove(key);
        } else {
            self.ends.insert(start, (K::from(key), seq));
        }
        let behind: K = successor(key);
        if behind < end && self.ends.len() < self.most {
            self.ends.insert(behind, (end, seq));
        }
    }
}
