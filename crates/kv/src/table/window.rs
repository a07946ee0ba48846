//! Reading the blocks of a table ahead of look-ups in key order.
//!
//! 1. A table remembers the blocks that were read last, its *window*. A look-up that needs the block behind it goes on where others
//!    left off, so twice as many are read as before, up to [`BLOCKS_MAX`]; any other reads one.
//! 2. Readers that go through keys side by side come to a block out of turn: one that is a block further begins at the window's
//!    end all the same, and who needs a block of a window that is being read waits for that.
//!
//! Scattered look-ups hardly ever meet a window's end: of a table of 512 blocks twice in 512, and read one block in vain then.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// Blocks read together, at most: 128 KiB.
const BLOCKS_MAX: u32 = 32;

/// Which blocks of a table were read last. A hint: look-ups may race.
#[derive(Debug, Default)]
pub struct Window(AtomicU64);

impl Window {
    /// The blocks that were read last, or are being read.
    pub fn current(&self) -> Range<usize> {
        let packed = self.0.load(Ordering::Relaxed);
        (packed >> 32) as usize..(packed & u64::from(u32::MAX)) as usize
    }

    /// The blocks to be read for block `at` of `blocks`, which is not in memory: `most` and one at least.
    pub fn next(&self, at: usize, blocks: usize, most: usize) -> Range<usize> {
        let last = self.current();
        let goes_on = last.end > 0 && (last.end..=last.end + 1).contains(&at);
        let (start, len) = if goes_on { (last.end, 2 * last.len()) } else { (at, 1) };
        let end = (start + len.min(most).min(BLOCKS_MAX as usize)).max(at + 1).min(blocks);
        self.0.store((start as u64) << 32 | end as u64, Ordering::Relaxed);
        start..end
    }
}
