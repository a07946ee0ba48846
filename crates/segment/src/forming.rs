//! A commit frame that takes records.

use std::sync::atomic::Ordering;

use pumice_reactor::{IoBuf, Nanos};

use crate::Addr;
use crate::inner::Inner;
use crate::summary::{Summary, frame_bytes_min};

/// With so much a commit waits for no company: writing more takes longer in proportion, and half of the users can fill the next
/// one meanwhile.
const LARGE_BYTES: usize = 64 << 10;
/// The same where what it pads is cleaned soon.
const LARGE_BYTES_SPARING: usize = 256 << 10;

/// A frame that takes records.
pub(crate) struct Forming {
    /// Its length is its capacity; `used` says how far it is filled.
    pub buf: IoBuf,
    pub used: usize,
    /// Where the frame header is: after the segment header's page in a segment's first frame.
    pub frame_at: usize,
    /// `used` must not exceed this.
    pub limit: usize,
    /// Where `buf` goes.
    pub start: Addr,
    pub life: u64,
    pub first_seq: u64,
    pub count: u32,
    pub live: u32,
    /// Appends that end in it.
    pub appends: u32,
    pub since: Nanos,
    pub lane: usize,
    /// `None`: some record must be read whole.
    pub summary: Option<Summary>,
}

impl Forming {
    pub(crate) fn is_large(&self, inner: &Inner) -> bool {
        let is_sparing = inner.is_sparing.load(Ordering::Relaxed);
        self.used >= if is_sparing { LARGE_BYTES_SPARING } else { LARGE_BYTES }
    }

    /// Of the numbers up to `next_seq`, those that are none of its records'.
    pub(crate) fn skipped(&self, next_seq: u64) -> u16 {
        let skipped = next_seq - self.first_seq - u64::from(self.count);
        u16::try_from(skipped).unwrap_or_else(|_| panic!("a frame skips {skipped} numbers"))
    }

    pub(crate) fn grow(&mut self, needed: usize) {
        let capacity = needed.next_power_of_two().min(self.limit.max(needed)).next_multiple_of(4096);
        let mut larger = IoBuf::for_read(capacity);
        larger[..self.used].copy_from_slice(&self.buf[..self.used]);
        self.buf = larger;
    }

    /// Bytes of the buffer that are taken, by the summary too that it may end in.
    pub(crate) fn taken(&self) -> usize {
        self.used + self.summary.as_ref().map_or(0, Summary::bytes)
    }

    /// Ends the frame with its summary, where that is worth its bytes and there is room; answers whether it did.
    pub(crate) fn add_summary(&mut self, inner: &Inner, frame_addr: Addr) -> bool {
        let end = self.taken();
        let is_worth_it = end - self.frame_at >= frame_bytes_min(inner.segment_bytes) && end <= self.limit;
        let Some(summary) = self.summary.take().filter(|_| is_worth_it) else { return false };
        if end > self.buf.len() {
            self.grow(end);
        }
        summary.encode(&mut self.buf[self.frame_at..end], self.life, frame_addr);
        self.used = end;
        true
    }
}
