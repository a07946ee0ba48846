//! Which blocks of a region are free: a buddy allocator over bits, blocks of powers of two of pages.

use super::ALIGNMENT_BYTES;

/// The power of two of pages that holds so many bytes.
pub(super) fn order_of(bytes: usize) -> usize {
    bytes.div_ceil(ALIGNMENT_BYTES).next_power_of_two().trailing_zeros() as usize
}

/// Free blocks of each power of two of pages, as bits.
pub(super) struct Buddies {
    free: Vec<Vec<u64>>,
    used_pages: usize,
}

impl Buddies {
    /// All of `bytes` free, in blocks of at most `largest` bytes; both are powers of two of pages.
    pub(super) fn new(bytes: usize, largest: usize) -> Self {
        let largest = bytes.min(largest);
        let mut free: Vec<Vec<u64>> = (0..=order_of(largest))
            .map(|order| vec![0; (bytes / (ALIGNMENT_BYTES << order)).div_ceil(64)])
            .collect();
        let top = order_of(largest);
        for block in 0..bytes / largest {
            free[top][block / 64] |= 1 << (block % 64);
        }
        Self { free, used_pages: 0 }
    }

    /// A block of `1 << order` pages: its number among blocks of that size.
    pub(super) fn take(&mut self, order: usize) -> Option<usize> {
        let (found, mut block) = (order..self.free.len()).find_map(|order| {
            let words = &mut self.free[order];
            let word = words.iter().position(|&word| word != 0)?;
            let bit = words[word].trailing_zeros() as usize;
            words[word] &= !(1 << bit);
            Some((order, word * 64 + bit))
        })?;
        for order in (order..found).rev() {
            block *= 2;
            self.free[order][(block + 1) / 64] |= 1 << ((block + 1) % 64);
        }
        self.used_pages += 1 << order;
        Some(block)
    }

    /// Takes a block back, and joins it with its free neighbours.
    pub(super) fn give_back(&mut self, mut order: usize, mut block: usize) {
        self.used_pages -= 1 << order;
        while order + 1 < self.free.len() {
            let buddy = block ^ 1;
            let word = &mut self.free[order][buddy / 64];
            if *word & (1 << (buddy % 64)) == 0 {
                break;
            }
            *word &= !(1 << (buddy % 64));
            block /= 2;
            order += 1;
        }
        let word = &mut self.free[order][block / 64];
        assert!(*word & (1 << (block % 64)) == 0, "a buffer was given back twice");
        *word |= 1 << (block % 64);
    }

    /// Whether nothing is in use.
    pub(super) fn is_free(&self) -> bool {
        self.used_pages == 0
    }
}
