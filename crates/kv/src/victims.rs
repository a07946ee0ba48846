//! The victims that cleaning has claimed besides the one it works on.
//!
//! While users wait for what cleaning wins, the next victim is chosen as soon as the last window of the current one has
//! been asked for, and its first windows are read while the current one's last values are moved: else the drive would
//! have nothing to read at the end of each. It is chosen a few milliseconds early, which costs next to nothing of what is
//! dead in it.

use pumice_segment::{Heap, SegmentId, Stream, Sweep};

use crate::winning::LeastDead;

/// Claimed victims.
#[derive(Default)]
pub struct Victims {
    /// In use, or beyond cleaning: claimed so that others come next.
    aside: Vec<SegmentId>,
    /// The next one, being read.
    next: Option<Sweep>,
}

impl Victims {
    /// The victim to clean now, if there is one that is worth it.
    pub fn choose(&self, heap: &Heap, least: &LeastDead) -> Option<SegmentId> {
        let next = self.next.as_ref().map(Sweep::segment);
        next.or_else(|| heap.victim(|stream: Stream| least.of(stream)))
    }

    /// Starts reading the victim, or goes on with it.
    pub fn sweep(&mut self, heap: &Heap, victim: SegmentId) -> Sweep {
        self.next.take_if(|next| next.segment() == victim).unwrap_or_else(|| heap.sweep(victim))
    }

    /// Chooses the next victim and starts to read it, unless there is one.
    pub fn read_ahead(&mut self, heap: &Heap, least: impl FnOnce() -> LeastDead) {
        if self.next.is_none() {
            let least = least();
            self.next = heap.victim(|stream| least.of(stream)).map(|victim| heap.sweep(victim));
        }
    }

    /// Keeps a victim claimed that cannot be cleaned now.
    pub fn put_aside(&mut self, victim: SegmentId) {
        self.aside.push(victim);
    }

    /// All may be victims again.
    pub fn offer_again(&mut self, heap: &Heap) {
        let next = self.next.take().map(|next| next.segment());
        self.aside.drain(..).chain(next).for_each(|victim| heap.unclaim(victim));
    }
}
