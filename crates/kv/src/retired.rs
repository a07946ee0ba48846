//! Retired prefixes: keys under them are gone although nobody deleted them one by one.
//!
//! Prefixes come in few lengths (a space, a collection), so a key is asked once per length in use.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use bytes::Bytes;

use crate::table::TableMeta;
use crate::types::{Seq, SliceId};

/// The retired prefixes of all slices.
#[derive(Clone, Debug, Default)]
pub struct Retired {
    prefixes: BTreeMap<(SliceId, Bytes), Seq>,
    /// How many prefixes have each length.
    lengths: BTreeMap<usize, u32>,
    /// What they take in a snapshot of the manifest, at most.
    bytes: u64,
}

/// Of a prefix in a snapshot, besides the prefix: kind, slice, length and number.
const ENTRY_BYTES: u64 = 16;

impl Retired {
    /// Adds a prefix that the record `seq` retired. A flush adds again what it wrote down: the highest number stays.
    pub fn add(&mut self, slice: SliceId, prefix: &[u8], seq: Seq) {
        match self.prefixes.entry((slice, Bytes::copy_from_slice(prefix))) {
            Entry::Occupied(mut known) => {
                let newest = seq.max(*known.get());
                known.insert(newest);
            }
            Entry::Vacant(fresh) => {
                fresh.insert(seq);
                self.bytes += prefix.len() as u64 + ENTRY_BYTES;
                *self.lengths.entry(prefix.len()).or_insert(0) += 1;
            }
        }
    }

    /// Takes a prefix out.
    pub fn remove(&mut self, slice: SliceId, prefix: &Bytes) {
        if self.prefixes.remove(&(slice, prefix.clone())).is_some() {
            self.bytes -= prefix.len() as u64 + ENTRY_BYTES;
            let count = self.lengths.get_mut(&prefix.len()).expect("every prefix is counted");
            *count -= 1;
            if *count == 0 {
                self.lengths.remove(&prefix.len());
            }
        }
    }

    /// The number that retired a prefix.
    pub fn seq_of(&self, slice: SliceId, prefix: &Bytes) -> Option<Seq> {
        self.prefixes.get(&(slice, prefix.clone())).copied()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.prefixes.is_empty()
    }

    /// Bytes that they take in a snapshot of the manifest, at most.
    pub fn bytes(&self) -> u64 {
        self.bytes
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

    /// Whether all keys of a table lie under one retired prefix.
    pub fn covers_all(&self, table: &TableMeta) -> bool {
        let (min, max) = (&table.min_key, &table.max_key);
        self.lengths.keys().take_while(|&&len| len <= min.len()).any(|&len| {
            max.starts_with(&min[..len]) && self.prefixes.contains_key(&(table.slice, min.slice(..len)))
        })
    }

    /// Whether a table may hold a key under a retired prefix.
    pub fn may_be_in(&self, table: &TableMeta) -> bool {
        let min = &table.min_key;
        let around = self.lengths.keys().take_while(|&&len| len <= min.len()).any(|&len| {
            self.prefixes.get(&(table.slice, min.slice(..len))).is_some_and(|&seq| table.id < seq)
        });
        around
            || self
                .prefixes
                .range((table.slice, min.clone())..)
                .take_while(|((slice, prefix), _)| *slice == table.slice && *prefix <= table.max_key)
                .any(|(_, &seq)| table.id < seq)
    }

    /// All prefixes with their slices and numbers.
    pub fn iter(&self) -> impl Iterator<Item = (SliceId, &Bytes, Seq)> {
        self.prefixes.iter().map(|((slice, prefix), seq)| (*slice, prefix, *seq))
    }
}

/// Whether a table may hold a key under a prefix that the record `seq` retired: younger tables were written
/// without such keys.
pub fn may_hold(table: &TableMeta, prefix: &[u8], seq: Seq) -> bool {
    table.id < seq
        && table.max_key.as_ref() >= prefix
        && (table.min_key.as_ref() <= prefix || table.min_key.starts_with(prefix))
}
