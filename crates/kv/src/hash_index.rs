//! What lies where in memory, by the hashes of its keys.
//!
//! One array of places, each with the hash beside what it leads to; what finds its place taken goes to the next free one. So a look-up
//! meets one line of memory before what it looks for, where a table that keeps hashes apart meets two, and whoever knows the hash
//! can have that line brought in time. Places are in the order of their hashes, but for those that had to step aside: a larger
//! array is filled from one end to the other, and needs nothing but the smaller one.

use std::sync::atomic::{AtomicUsize, Ordering};

/// A place that leads nowhere.
const EMPTY: u64 = u64::MAX;
const PLACES_MIN: usize = 8;

/// Numbers by hashes, both of 32 bits; of a hash there can be several. See the head of this file.
#[derive(Default)]
pub struct HashIndex {
    /// Three quarters of them are taken at most; none at first.
    places: Vec<u64>,
    taken: usize,
}

fn place_of(hash: u32, number: u32) -> u64 {
    u64::from(hash) << 32 | u64::from(number)
}

fn hash_in(place: u64) -> u32 {
    (place >> 32) as u32
}

/// Which of so many places is a hash's own. Those of rising `spread` rise.
fn own_place(hash: u32, places: usize) -> usize {
    ((spread(hash) * places as u64) >> 32) as usize
}

/// A hash of 32 bits, of which the upper ones depend on all.
fn spread(hash: u32) -> u64 {
    u64::from(hash.wrapping_mul(0x9E37_79B9))
}

impl HashIndex {
    /// Memory in use, in bytes.
    pub fn bytes(&self) -> usize {
        self.places.capacity() * size_of::<u64>()
    }

    /// How many numbers there are.
    pub fn len(&self) -> usize {
        self.taken
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.taken == 0
    }

    /// The numbers with this hash.
    pub fn all(&self, hash: u32) -> impl Iterator<Item = u32> {
        self.probe(hash).filter(move |&(_, place)| hash_in(place) == hash).map(|(_, place)| place as u32)
    }

    /// Adds a number with this hash. Not the last of all numbers with the last of all hashes.
    pub fn insert(&mut self, hash: u32, number: u32) {
        if (self.taken + 1) * 4 > self.places.len() * 3 {
            self.resize((self.places.len() * 3 / 2).max(PLACES_MIN));
        }
        self.put(place_of(hash, number));
        self.taken += 1;
    }

    /// What was at one place is at another.
    pub fn replace(&mut self, hash: u32, old: u32, new: u32) {
        if let Some(at) = self.find_place(place_of(hash, old)) {
            self.places[at] = place_of(hash, new);
        }
    }

    /// Takes out a number with this hash.
    pub fn remove(&mut self, hash: u32, number: u32) {
        let Some(mut free) = self.find_place(place_of(hash, number)) else { return };
        self.taken -= 1;
        // Whoever stepped aside for what goes comes back: between a number and its own place none is free.
        let mut at = free;
        loop {
            at = self.behind(at);
            let place = self.places[at];
            if place == EMPTY {
                break;
            }
            let own = own_place(hash_in(place), self.places.len());
            if self.steps(own, at) >= self.steps(free, at) {
                self.places[free] = place;
                free = at;
            }
        }
        self.places[free] = EMPTY;
    }

    /// Has no more than so many times the places that it needs, and none if there are no numbers.
    pub fn shrink(&mut self, times: usize) {
        let enough = (self.taken * 2).max(PLACES_MIN);
        if self.taken == 0 {
            self.places = Vec::new();
        } else if self.places.len() > times * enough {
            self.resize(enough);
        }
    }

    /// The places in which a number with this hash may be, and what they hold, up to the first that is free.
    fn probe(&self, hash: u32) -> Probe<'_> {
        Probe { places: &self.places, at: own_place(hash, self.places.len()) }
    }

    fn find_place(&self, place: u64) -> Option<usize> {
        self.probe(hash_in(place)).find(|&(_, there)| there == place).map(|(at, _)| at)
    }

    fn put(&mut self, place: u64) {
        assert!(place != EMPTY, "a place that counts as free");
        let mut at = own_place(hash_in(place), self.places.len());
        while self.places[at] != EMPTY {
            at = self.behind(at);
        }
        self.places[at] = place;
    }

    fn resize(&mut self, places: usize) {
        let smaller = std::mem::replace(&mut self.places, vec![EMPTY; places]);
        smaller.into_iter().filter(|&place| place != EMPTY).for_each(|place| self.put(place));
    }

    /// The place behind this one; behind the last one is the first.
    fn behind(&self, at: usize) -> usize {
        behind(at, self.places.len())
    }

    /// How many places `to` is behind `from`.
    fn steps(&self, from: usize, to: usize) -> usize {
        if to >= from { to - from } else { to + self.places.len() - from }
    }
}

fn behind(at: usize, places: usize) -> usize {
    if at + 1 == places { 0 } else { at + 1 }
}

struct Probe<'a> {
    places: &'a [u64],
    at: usize,
}

impl Iterator for Probe<'_> {
    type Item = (usize, u64);

    #[inline]
    fn next(&mut self) -> Option<(usize, u64)> {
        let at = self.at;
        let place = *self.places.get(at)?;
        self.at = behind(at, self.places.len());
        (place != EMPTY).then_some((at, place))
    }
}

/// Where an index's places lay when it was last noted: all that a hint needs, which may be wrong.
#[derive(Default)]
pub struct Whereabouts {
    address: AtomicUsize,
    places: AtomicUsize,
}

impl Whereabouts {
    /// Notes where they are.
    pub fn note(&self, index: &HashIndex) {
        note(&self.address, index.places.as_ptr().addr());
        note(&self.places, index.places.len());
    }

    /// Begins to bring from memory what a look for this hash meets first.
    pub fn prefetch(&self, hash: u32) {
        let places = self.places.load(Ordering::Relaxed);
        if places > 0 {
            let own = own_place(hash, places) * size_of::<u64>();
            pumice_reactor::prefetch_at(self.address.load(Ordering::Relaxed).wrapping_add(own));
        }
    }
}

/// Other cores read it all the time: it is written when it changes.
fn note(noted: &AtomicUsize, now: usize) {
    if noted.load(Ordering::Relaxed) != now {
        noted.store(now, Ordering::Relaxed);
    }
}
