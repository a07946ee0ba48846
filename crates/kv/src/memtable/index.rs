//! Where a memtable's rows are, by the hash of their keys.
//!
//! One array of places, each with the hash beside where the row lies; a row that finds its place taken goes to the next free one. So a
//! look-up meets one line of memory before the row itself, where a table that keeps hashes apart meets two, and
//! growing needs no row. Rows never go, so there is nothing to delete.

use std::iter::successors;

use super::{RowAt, spread};

/// An empty place. No row lies where it says.
const EMPTY: u64 = u64::MAX;
const PLACES_MIN: usize = 8;

/// See the head of this file.
#[derive(Default)]
pub struct RowIndex {
    /// A power of two of them, three quarters of which are taken at most; none at first.
    places: Vec<u64>,
    rows: usize,
}

fn place_of(hash: u32, row: RowAt) -> u64 {
    u64::from(hash) << 32 | u64::from(row.0)
}

impl RowIndex {
    /// Memory in use, in bytes.
    pub fn bytes(&self) -> usize {
        self.places.len() * size_of::<u64>()
    }

    /// The row with this hash for which `is_it` holds.
    pub fn find(&self, hash: u32, mut is_it: impl FnMut(RowAt) -> bool) -> Option<RowAt> {
        self.all(hash).find(|&row| is_it(row))
    }

    /// The rows with this hash.
    pub fn all(&self, hash: u32) -> impl Iterator<Item = RowAt> {
        let places = self.probe(hash).into_iter().flatten().map(|at| self.places[at]);
        places
            .take_while(|&place| place != EMPTY)
            .filter(move |place| (place >> 32) as u32 == hash)
            .map(|place| RowAt(place as u32))
    }

    /// Adds a row with this hash.
    pub fn insert(&mut self, hash: u32, row: RowAt) {
        if (self.rows + 1) * 4 > self.places.len() * 3 {
            self.grow();
        }
        self.put(place_of(hash, row));
        self.rows += 1;
    }

    fn put(&mut self, place: u64) {
        let at =
            self.probe((place >> 32) as u32).and_then(|mut probe| probe.find(|&at| self.places[at] == EMPTY));
        self.places[at.expect("a quarter of the places is free")] = place;
    }

    fn grow(&mut self) {
        let places = vec![EMPTY; (self.places.len() * 2).max(PLACES_MIN)];
        for place in std::mem::replace(&mut self.places, places).into_iter().filter(|&place| place != EMPTY) {
            self.put(place);
        }
    }

    /// The places in which a row with this hash may be, one after the other; `None` where there are none.
    fn probe(&self, hash: u32) -> Option<impl Iterator<Item = usize> + use<>> {
        let mask = self.places.len().checked_sub(1)?;
        let first = (spread(hash) >> 32) as usize & mask;
        Some(successors(Some(first), move |at| Some((at + 1) & mask)))
    }
}
