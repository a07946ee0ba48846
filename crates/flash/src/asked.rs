//! What a device was asked and what it has answered: so that somebody notices when it answers nothing any more.

use std::sync::atomic::{AtomicU64, Ordering};

/// How far a device is with what it was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Requests {
    /// Reads, programs and syncs that it has not answered.
    pub under_way: u64,
    /// Those that it has answered since it was opened, whatever the answer.
    pub answered: u64,
}

#[derive(Default)]
pub(crate) struct Asked {
    begun: AtomicU64,
    answered: AtomicU64,
}

/// A request under way, as long as it is held.
pub(crate) struct UnderWay<'a>(&'a Asked);

impl Asked {
    pub(crate) fn begin(&self) -> UnderWay<'_> {
        self.begun.fetch_add(1, Ordering::Relaxed);
        UnderWay(self)
    }

    pub(crate) fn requests(&self) -> Requests {
        // In this order: what ends in between is counted as under way, and the next look finds it answered.
        let answered = self.answered.load(Ordering::Acquire);
        let under_way = self.begun.load(Ordering::Relaxed).saturating_sub(answered);
        Requests { under_way, answered }
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.answered.fetch_add(1, Ordering::Release);
    }
}
