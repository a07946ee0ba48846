//! Holds user appends to what cleaning wins while it has to keep up: rather many short waits than a few long ones.
//!
//! While the client paces ([`crate::Heap::pace`]), user appends spend credit that it earns with every stretch of a
//! segment it has cleaned ([`crate::Heap::earn`]); without credit they are answered Busy. Deletes and upkeep are not
//! paced. Credit is bounded by a segment both ways, so that a pause is not followed by a burst, nor work by a long one.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

#[derive(Default)]
pub(crate) struct Pace {
    is_on: AtomicBool,
    credit_bytes: AtomicI64,
}

impl Pace {
    /// Starts or stops; starts with half of a segment.
    pub(crate) fn set(&self, on: bool, segment_bytes: u32) {
        if self.is_on.swap(on, Ordering::AcqRel) != on {
            self.credit_bytes.store(i64::from(segment_bytes / 2), Ordering::Release);
        }
    }

    pub(crate) fn earn(&self, bytes: i64, segment_bytes: u32) {
        let most = i64::from(segment_bytes);
        let more = |credit: i64| Some(credit.saturating_add(bytes).clamp(-most, most));
        let _ = self.credit_bytes.fetch_update(Ordering::AcqRel, Ordering::Acquire, more);
    }

    pub(crate) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Acquire)
    }

    /// Whether a user append may go on.
    pub(crate) fn lets_pass(&self) -> bool {
        !self.is_on() || self.credit_bytes.load(Ordering::Acquire) > 0
    }

    /// Bytes that user appends may take now, at least.
    pub(crate) fn allows(&self) -> u64 {
        if self.is_on() { self.credit_bytes.load(Ordering::Acquire).max(0) as u64 } else { u64::MAX }
    }

    pub(crate) fn spend(&self, bytes: usize) {
        if self.is_on() {
            self.credit_bytes.fetch_sub(bytes as i64, Ordering::AcqRel);
        }
    }
}
