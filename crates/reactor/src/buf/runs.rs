//! Which pages of a region are free: a bit for each, so that a buffer takes exactly the pages it needs.
//!
//! Short runs are taken from the front and long ones from the back, so that what comes and goes with every read does not
//! lie between commits that stay for a while. (Blocks of powers of two, cut by halves, wasted half of a commit's memory and a
//! quarter of a read's: those of 132 KiB took 256, and those of 12 KiB took 16.)

use super::ALIGNMENT_BYTES;

/// Runs from this length on are taken from the back.
const LONG_PAGES: usize = 16;
const WORD_BITS: usize = u64::BITS as usize;

/// Pages that hold so many bytes.
pub(super) fn pages_of(bytes: usize) -> usize {
    bytes.div_ceil(ALIGNMENT_BYTES)
}

/// The pages of a region.
pub(super) struct Runs {
    /// Set: in use.
    used: Vec<u64>,
    pages: usize,
    free_pages: usize,
    /// No free run is longer.
    longest_at_most: usize,
}

impl Runs {
    /// All of `bytes` free.
    pub(super) fn new(bytes: usize) -> Self {
        let pages = bytes / ALIGNMENT_BYTES;
        let mut used = vec![0; pages.div_ceil(WORD_BITS)];
        // What the last word has too many.
        if let (Some(last), over @ 1..) = (used.last_mut(), pages % WORD_BITS) {
            *last = u64::MAX << over;
        }
        Self { used, pages, free_pages: pages, longest_at_most: pages }
    }

    /// Takes a run of so many pages, at least one: its first page.
    pub(super) fn take(&mut self, pages: usize) -> Option<usize> {
        assert!(pages > 0, "a run of no page");
        if pages > self.longest_at_most.min(self.free_pages) {
            return None;
        }
        let found = if pages < LONG_PAGES { self.first_run(pages) } else { self.last_run(pages) };
        let Some(first) = found else {
            self.longest_at_most = pages - 1;
            return None;
        };
        for (word, bits) in words_of(first, pages) {
            self.used[word] |= bits;
        }
        self.free_pages -= pages;
        Some(first)
    }

    /// Takes a run back, or a part of one.
    pub(super) fn give_back(&mut self, first: usize, pages: usize) {
        for (word, bits) in words_of(first, pages) {
            assert!(self.used[word] & bits == bits, "a buffer was given back twice");
            self.used[word] &= !bits;
        }
        self.free_pages += pages;
        self.longest_at_most = self.pages;
    }

    /// Whether nothing is in use.
    pub(super) fn is_free(&self) -> bool {
        self.free_pages == self.pages
    }

    fn first_run(&self, pages: usize) -> Option<usize> {
        let (mut at, mut run) = (0, 0);
        while at < self.pages {
            // As many pages of one kind as lie next in this word.
            let rest = self.used[at / WORD_BITS] >> (at % WORD_BITS);
            let left = WORD_BITS - at % WORD_BITS;
            if rest & 1 == 0 {
                let free = (rest.trailing_zeros() as usize).min(left);
                run += free;
                at += free;
                if run >= pages {
                    return Some(at - run);
                }
            } else {
                run = 0;
                at += rest.trailing_ones() as usize;
            }
        }
        None
    }

    fn last_run(&self, pages: usize) -> Option<usize> {
        // The pages below `end` are still to be looked at.
        let (mut end, mut run) = (self.used.len() * WORD_BITS, 0);
        while end > 0 {
            let left = (end - 1) % WORD_BITS + 1;
            let rest = self.used[(end - 1) / WORD_BITS] << (WORD_BITS - left);
            if rest >> (WORD_BITS - 1) == 0 {
                let free = (rest.leading_zeros() as usize).min(left);
                run += free;
                end -= free;
                if run >= pages {
                    return Some(end + run - pages);
                }
            } else {
                run = 0;
                end -= (rest.leading_ones() as usize).min(left);
            }
        }
        None
    }
}

/// The words that a run lies in, each with its bits there.
fn words_of(first: usize, pages: usize) -> impl Iterator<Item = (usize, u64)> {
    let end = first + pages;
    (first / WORD_BITS..=(end - 1) / WORD_BITS).map(move |word| {
        let from = first.saturating_sub(word * WORD_BITS);
        let to = (end - word * WORD_BITS).min(WORD_BITS);
        (word, (u64::MAX >> (WORD_BITS - (to - from))) << from)
    })
}
