//! Retired prefixes: keys under them are gone although nobody deleted them one by one.
//!
//! Prefixes come in few lengths (a space, a collection), so a key is asked once per length in use.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::types::{Seq, SliceId};

/// The retired prefixes of all slices.
#[derive(Clone, Debug, Default)]
pub struct Retired {
    prefixes: BTreeMap<(SliceId, Bytes), Seq>,
    /// How many prefixes have each length.
    lengths: BTreeMap<usize, u32>,
}

impl Retired {
    /// Adds a prefix that the record `seq` retired.
    pub fn add(&mut self, slice: SliceId, prefix: &[u8], seq: Seq) {
        if self.prefixes.insert((slice, Bytes::copy_from_slice(prefix)), seq).is_none() {
            *self.lengths.entry(prefix.len()).or_insert(0) += 1;
        }
    }

    /// Takes a prefix out.
    pub fn remove(&mut self, slice: SliceId, prefix: &Bytes) {
        if self.prefixes.remove(&(slice, prefix.clone())).is_some() {
            let count = self.lengths.get_mut(&prefix.len()).expect("every prefix is counted");
            *count -= 1;
            if *count == 0 {
                self.lengths.remove(&prefix.len());
            }
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.prefixes.is_empty()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.prefixes.len()
    }

    /// Whether `key` lies under a prefix that was retired.
    pub fn covers(&self, slice: SliceId, key: &[u8]) -> bool {
        // One allocation-free probe is not to be had from a map keyed by owned bytes; there are few lengths.
        self.lengths
            .keys()
            .take_while(|&&len| len <= key.len())
            .any(|&len| self.prefixes.contains_key(&(slice, Bytes::copy_from_slice(&key[..len]))))
    }

    /// All prefixes with their slices and numbers.
    pub fn iter(&self) -> impl Iterator<Item = (SliceId, &Bytes, Seq)> {
        self.prefixes.iter().map(|((slice, prefix), seq)| (*slice, prefix, *seq))
    }
}
