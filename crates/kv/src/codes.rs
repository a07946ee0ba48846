//! Comparing keys by eight of their bytes.
//!
//! Keys that are compared with each other mostly begin alike (`user:000012…`), and lie in memory far from each other, so that a
//! comparison costs a call and a cache miss. Behind what all of them share, eight bytes as a number decide nearly always,
//! and such numbers can lie side by side.

/// Bytes that both begin with.
pub fn shared_len(a: &[u8], b: &[u8]) -> usize {
    let words = a.chunks_exact(8).zip(b.chunks_exact(8)).take_while(|(a, b)| a == b).count() * 8;
    words + a[words..].iter().zip(&b[words..]).take_while(|(a, b)| a == b).count()
}

/// Bytes of a code.
pub const CODE_BYTES: usize = size_of::<u64>();

/// The eight bytes of `key` behind its first `shared`, as a number. Of two keys that share these, the one with the lower code is
/// lower; equal codes say nothing.
#[inline]
pub fn code(key: &[u8], shared: usize) -> u64 {
    let rest = &key[shared..];
    match rest.first_chunk() {
        Some(word) => u64::from_be_bytes(*word),
        None => {
            let mut word = [0; 8];
            word[..rest.len()].copy_from_slice(rest);
            u64::from_be_bytes(word)
        }
    }
}

/// Bytes that fences keep of what keys share. Where they share more the keys decide.
const SHARED_BYTES_MAX: usize = 1024;

/// Finds keys among sorted ones, which their owner keeps.
#[derive(Clone, Debug, Default)]
pub struct Fences {
    /// All keys begin with it, and codes are of what comes behind.
    shared: Box<[u8]>,
    codes: Box<[u64]>,
    /// The last of each full group of [`GROUP`] codes: a search goes over a few lines of memory, one behind the other, and over one
    /// or two of codes, where halving would go from line to line and wait for each.
    tops: Box<[u64]>,
}

/// Codes in a group: two lines of a processor's cache.
const GROUP: usize = 16;
/// Up to so many numbers are counted rather than halved.
const COUNTED_MAX: usize = 64;

/// How many of these, which rise, are below `code`.
#[inline]
fn count_below(sorted: &[u64], code: u64) -> usize {
    if sorted.len() <= COUNTED_MAX {
        sorted.iter().map(|&other| usize::from(other < code)).sum()
    } else {
        sorted.partition_point(|&other| other < code)
    }
}

impl Fences {
    /// Of keys in rising order.
    pub fn of<'a>(keys: impl Iterator<Item = &'a [u8]> + Clone) -> Self {
        let (first, last) = (keys.clone().next(), keys.clone().last());
        let shared = match (first, last) {
            (Some(first), Some(last)) => &first[..shared_len(first, last).min(SHARED_BYTES_MAX)],
            _ => &[],
        };
        let codes: Box<[u64]> = keys.map(|key| code(key, shared.len())).collect();
        let tops = codes.chunks_exact(GROUP).map(|group| group[GROUP - 1]).collect();
        Self { shared: shared.into(), codes, tops }
    }

    /// What all keys begin with, or the first of it.
    pub fn shared(&self) -> &[u8] {
        &self.shared
    }

    /// Memory, in bytes.
    pub fn bytes(&self) -> usize {
        self.shared.len() + (self.codes.len() + self.tops.len()) * 8
    }

    /// How many of the keys are below `wanted`. `is_below` tells it of a key, by its number and its code, where the code is that of
    /// `wanted`.
    pub fn below(&self, wanted: &[u8], is_below: impl Fn(usize, u64) -> bool) -> usize {
        if !wanted.starts_with(&self.shared) {
            return if *wanted < *self.shared { 0 } else { self.codes.len() };
        }
        let code = code(wanted, self.shared.len());
        let group = count_below(&self.tops, code) * GROUP;
        let mut at = group + count_below(&self.codes[group..self.codes.len().min(group + GROUP)], code);
        // Equal codes are rare, but where keys share much behind them there may be many.
        if self.codes.get(at) == Some(&code) {
            let same = self.codes[at..].partition_point(|&other| other == code);
            let (mut low, mut high) = (at, at + same);
            while low < high {
                let middle = low + (high - low) / 2;
                if is_below(middle, code) { low = middle + 1 } else { high = middle }
            }
            at = low;
        }
        at
    }
}
