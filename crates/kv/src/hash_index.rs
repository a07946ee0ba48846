//! What lies where in memory, by the hashes of its keys.
//!
//! One array of places, each with the hash beside what it leads to; what finds its place taken goes to the next free one. So a look-up
//! meets one line of memory before what it looks for, where a table that keeps hashes apart meets two, and whoever knows the hash
//! can have that line brought in time. Places are in the order of their hashes, but for those that had to step aside: a larger
//! array is filled from one end to the other, needs nothing but the smaller one, and it is plain at any time what has moved. So
//! it is filled a little with each number that comes, and nobody waits for the whole.

use std::sync::atomic::{AtomicUsize, Ordering};

/// A place that leads nowhere. Places are kept with all bits turned round: memory that the system gives is empty as it is.
const EMPTY: u64 = 0;
const PLACES_MIN: usize = 8;
/// An index of so many places moves into a larger array in one go. One that has more does so a little with each number that comes, and
/// with each [`HashIndex::settle`].
const MOVED_AT_ONCE_MAX: usize = 1024;
/// Places of the smaller array that are gone over each time: it is at most an eighth fuller when the last is.
const MOVED_PER_STEP: usize = 8;

/// Numbers by hashes, both of 32 bits; of a hash there can be several. See the head of this file.
#[derive(Default)]
pub struct HashIndex {
    places: Places,
    /// What is not yet in `places`, while that is being filled: all whose own place here is `moved` or behind it. What lies here of
    /// others stays until all have moved, and is met by nobody.
    smaller: Places,
    moved: usize,
    taken: usize,
}

/// Three quarters of them are taken at most, and somewhat more while a larger array is filled.
#[derive(Default)]
struct Places(Vec<u64>);

fn place_of(hash: u32, number: u32) -> u64 {
    !(u64::from(hash) << 32 | u64::from(number))
}

fn hash_in(place: u64) -> u32 {
    (!place >> 32) as u32
}

fn number_in(place: u64) -> u32 {
    !place as u32
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
        (self.places.0.capacity() + self.smaller.0.capacity()) * size_of::<u64>()
    }

    /// The same without a smaller array that is left soon: it never falls while numbers come.
    pub fn lasting_bytes(&self) -> usize {
        self.places.0.capacity() * size_of::<u64>()
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
    #[inline]
    pub fn all(&self, hash: u32) -> impl Iterator<Item = u32> {
        let places = if self.has_moved(hash) { &self.places } else { &self.smaller };
        places
            .probe(hash)
            .filter(move |&(_, place)| hash_in(place) == hash)
            .map(|(_, place)| number_in(place))
    }

    /// Adds a number with this hash. Not the last of all numbers with the last of all hashes.
    pub fn insert(&mut self, hash: u32, number: u32) {
        if self.is_moving() {
            self.move_some(MOVED_PER_STEP);
        } else if (self.taken + 1) * 4 > self.places.0.len() * 3 {
            self.resize((self.places.0.len() * 3 / 2).max(PLACES_MIN));
        }
        self.of(hash).put(place_of(hash, number));
        self.taken += 1;
    }

    /// Moves a little: where no more numbers come, who looks for some has them in one array soon.
    #[inline]
    pub fn settle(&mut self) {
        if self.is_moving() {
            self.move_some(MOVED_PER_STEP);
        }
    }

    fn is_moving(&self) -> bool {
        !self.smaller.0.is_empty()
    }

    /// What was at one place is at another.
    pub fn replace(&mut self, hash: u32, old: u32, new: u32) {
        let places = self.of(hash);
        if let Some(at) = places.find(place_of(hash, old)) {
            places.0[at] = place_of(hash, new);
        }
    }

    /// Takes out a number with this hash.
    pub fn remove(&mut self, hash: u32, number: u32) {
        let places = self.of(hash);
        if let Some(at) = places.find(place_of(hash, number)) {
            places.free(at);
            self.taken -= 1;
        }
    }

    /// Has no more than so many times the places that it needs, and none if there are no numbers.
    pub fn shrink(&mut self, times: usize) {
        let enough = (self.taken * 2).max(PLACES_MIN);
        if self.taken == 0 {
            *self = Self::default();
        } else if self.places.0.len() > times * enough {
            self.move_some(usize::MAX);
            self.resize(enough);
            self.move_some(usize::MAX);
        }
    }

    /// Whether the numbers with this hash are in the array that all will be in.
    fn has_moved(&self, hash: u32) -> bool {
        let smaller = self.smaller.0.len();
        smaller == 0 || own_place(hash, smaller) < self.moved
    }

    /// The array that has the numbers with this hash.
    fn of(&mut self, hash: u32) -> &mut Places {
        if self.has_moved(hash) { &mut self.places } else { &mut self.smaller }
    }

    /// Has so many places from now on; where there are more than a few numbers, they move later.
    fn resize(&mut self, places: usize) {
        self.smaller = std::mem::replace(&mut self.places, Places(vec![EMPTY; places]));
        self.moved = 0;
        if self.smaller.0.len() <= MOVED_AT_ONCE_MAX {
            self.move_some(usize::MAX);
        }
    }

    /// Goes over so many places of the smaller array.
    fn move_some(&mut self, places: usize) {
        let end = self.moved.saturating_add(places).min(self.smaller.0.len());
        for own in self.moved..end {
            let here = self.smaller.probe_from(own).map(|(_, place)| place);
            here.filter(|&place| self.smaller.own(place) == own).for_each(|place| self.places.put(place));
        }
        self.moved = end;
        if end == self.smaller.0.len() {
            self.smaller = Places::default();
        }
    }
}

impl Places {
    fn own(&self, place: u64) -> usize {
        own_place(hash_in(place), self.0.len())
    }

    /// The places in which a number with this hash may be, and what they hold, up to the first that is free.
    fn probe(&self, hash: u32) -> Probe<'_> {
        self.probe_from(own_place(hash, self.0.len()))
    }

    fn probe_from(&self, at: usize) -> Probe<'_> {
        Probe { places: &self.0, at }
    }

    fn find(&self, place: u64) -> Option<usize> {
        self.probe(hash_in(place)).find(|&(_, there)| there == place).map(|(at, _)| at)
    }

    fn put(&mut self, place: u64) {
        assert!(place != EMPTY, "a place that counts as free");
        let mut at = self.own(place);
        while self.0[at] != EMPTY {
            at = behind(at, self.0.len());
        }
        self.0[at] = place;
    }

    /// Frees a place. Whoever stepped aside for what was there comes back: between a number and its own place none is free.
    fn free(&mut self, mut free: usize) {
        let mut at = free;
        loop {
            at = behind(at, self.0.len());
            let place = self.0[at];
            if place == EMPTY {
                break;
            }
            if self.steps(self.own(place), at) >= self.steps(free, at) {
                self.0[free] = place;
                free = at;
            }
        }
        self.0[free] = EMPTY;
    }

    /// How many places `to` is behind `from`.
    fn steps(&self, from: usize, to: usize) -> usize {
        if to >= from { to - from } else { to + self.0.len() - from }
    }
}

/// The place behind this one; behind the last one is the first.
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
        // While a larger array is filled, that in which most are.
        let places = if index.moved * 2 < index.smaller.0.len() { &index.smaller.0 } else { &index.places.0 };
        note(&self.address, places.as_ptr().addr());
        note(&self.places, places.len());
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
