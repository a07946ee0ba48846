//! Checkpoints, when they are written, and the drive's end.
//!
//! One is written when a block turns bad, before whoever met it is answered; when so many erases have passed that a crash
//! would forget more than wear levelling forgives; as the patrol scrub goes on; and on close, which lets the next open read
//! nothing else.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard};

use pumice_base::sync::lock;

use super::area::Place;
use super::blocks::{BlockState, Role};
use super::checkpoint::{PartHeader, encode_payload};
use super::{Inner, RawError, RawFlash, ScrubStats};

/// Erases between checkpoints: a quarter of the blocks, but at least so many.
const ERASES_MIN: u32 = 256;

/// What a drive did since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RawStats {
    /// Segments written, copies of refreshed ones among them.
    pub writes: u64,
    /// Blocks erased.
    pub erases: u64,
    /// Blocks that turned bad.
    pub retired: u64,
    /// Those of them that no checkpoint knows yet, and no answer was given of.
    pub unsaved_bad: u64,
    /// Reads, the patrol's among them, that met a page that is not what was written.
    pub unverified: u64,
    /// Checkpoints written.
    pub checkpoints: u64,
}

#[derive(Default)]
pub(super) struct Counters(Mutex<RawStats>);

impl Counters {
    pub(super) fn count(&self, change: impl FnOnce(&mut RawStats)) {
        change(&mut lock(&self.0));
    }
}

/// The newest checkpoint.
#[derive(Clone, Debug, Default)]
pub(super) struct Newest {
    pub place: Place,
    pub generation: u64,
}

/// A request that changes something is under way: closing waits for it.
pub(super) struct UnderWay(Arc<Inner>);

impl UnderWay {
    pub(super) fn new(inner: &Arc<Inner>) -> Result<Self, RawError> {
        // First counted, then looked: closing looks the other way round.
        inner.under_way.fetch_add(1, Ordering::SeqCst);
        let this = Self(Arc::clone(inner));
        if inner.is_closing() {
            Err(RawError::Closed)
        } else if inner.is_unmarked.load(Ordering::Acquire) {
            Err(inner.checkpoints_worn())
        } else {
            Ok(this)
        }
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::SeqCst);
        self.0.changed.notify_all();
    }
}

impl RawFlash {
    /// What was done since the drive was opened.
    pub fn stats(&self) -> RawStats {
        let mut stats = *lock(&self.0.counters.0);
        stats.retired = u64::from(self.0.bad_found.load(Ordering::Acquire));
        stats.unsaved_bad = stats.retired.saturating_sub(u64::from(self.0.bad_saved.load(Ordering::Acquire)));
        stats
    }

    /// Ends the drive's use: what is under way ends, what comes is refused, and the next open reads one checkpoint only.
    ///
    /// # Errors
    /// The device's; the drive is as after a crash then, and nothing acknowledged is lost.
    pub async fn close(&self) -> Result<(), RawError> {
        let inner = &self.0;
        if inner.is_unmarked.load(Ordering::Acquire) {
            // Nothing has changed since it was closed.
            inner.closing.store(true, Ordering::SeqCst);
            return Ok(());
        }
        // Later nothing can be moved.
        self.clear_window().await;
        if inner.closing.swap(true, Ordering::SeqCst) {
            return Err(RawError::Closed);
        }
        while inner.under_way.load(Ordering::SeqCst) > 0 {
            inner.until_changed().await;
        }
        inner.write_checkpoint(true, || true).await
    }
}

impl Inner {
    pub(super) fn newest(&self) -> MutexGuard<'_, Newest> {
        lock(&self.checkpoint)
    }

    pub(super) fn scrub_stats(&self) -> MutexGuard<'_, ScrubStats> {
        lock(&self.scrub)
    }

    pub(super) fn next_sequence(&self) -> u64 {
        self.sequence.fetch_add(1, Ordering::AcqRel)
    }

    /// An erase has ended. Every so many a checkpoint keeps the counts.
    pub(super) fn count_erase(self: &Arc<Self>) {
        self.counters.count(|counts| counts.erases += 1);
        let limit = ERASES_MIN.max(self.media.geometry().block_count() / 4);
        if self.erases_since_checkpoint.fetch_add(1, Ordering::AcqRel) + 1 == limit {
            self.checkpoint_in_background();
        }
    }

    pub(super) fn checkpoint_in_background(self: &Arc<Self>) {
        let Ok(under_way) = UnderWay::new(self) else { return };
        let this = Arc::clone(self);
        drop(pumice_reactor::spawn(async move {
            // Counted where it fails; the next occasion tries again.
            drop(this.write_checkpoint(false, || true).await);
            drop(under_way);
        }));
    }

    /// Returns when a checkpoint knows every block that has turned bad so far.
    pub(super) async fn save_bad(self: &Arc<Self>) -> Result<(), RawError> {
        let found = self.bad_found.load(Ordering::Acquire);
        let is_wanted = || self.bad_saved.load(Ordering::Acquire) < found;
        if is_wanted() { self.write_checkpoint(false, is_wanted).await } else { Ok(()) }
    }

    /// Writes a checkpoint, if it is still wanted when those before are done.
    pub(super) async fn write_checkpoint(
        self: &Arc<Self>,
        clean: bool,
        is_wanted: impl Fn() -> bool,
    ) -> Result<(), RawError> {
        let _turn = self.writing_checkpoint.acquire(1).await;
        if !is_wanted() {
            return Ok(());
        }
        loop {
            if !self.recruit().await? {
                RawFlash(Arc::clone(self)).clear_window_in_background();
            }
            let bad = self.bad_found.load(Ordering::Acquire);
            let Newest { place, generation } = self.newest().clone();
            let (header, payload) = self.snapshot(generation + 1, clean);
            match self.write_parts(header, &payload, &place).await {
                Ok(Some(place)) => {
                    *self.newest() = Newest { place, generation: header.generation };
                    self.is_unmarked.store(false, Ordering::Release);
                    self.bad_saved.fetch_max(bad, Ordering::AcqRel);
                    self.erases_since_checkpoint.store(0, Ordering::Release);
                    self.counters.count(|counts| counts.checkpoints += 1);
                    return Ok(());
                }
                // One of the blocks for checkpoints failed, which the next attempt says.
                Ok(None) => self.newest().generation = header.generation,
                Err(error) => {
                    self.newest().generation = header.generation;
                    return Err(error);
                }
            }
        }
    }

    fn snapshot(&self, generation: u64, clean: bool) -> (PartHeader, Vec<u8>) {
        let geometry = self.media.geometry();
        let mut states: Vec<BlockState> = Vec::with_capacity(geometry.block_count() as usize);
        for number in 0..geometry.block_count() {
            let at = geometry.block(number);
            states.push(self.blocks(at.channel).state(at.block));
        }
        let map = self.map();
        for (state, number) in states.iter_mut().zip(0..) {
            // What is passing by is told by what a restart has to make of it.
            let role = match (state.role(), map.borne(number)) {
                (role @ (Role::Bad | Role::System | Role::Erased), _) => role,
                (_, None) => Role::Dirty,
                (Role::Used, Some((_, true))) => continue,
                // Another core has written it since its state was looked at.
                (_, Some((_, true))) => Role::Used,
                (_, Some((_, false))) => Role::Dead,
            };
            *state = BlockState::new(role, state.erases());
        }
        let payload = encode_payload(&states, |block| map.borne(block).map_or(0, |(id, _)| id));
        drop(map);
        let scrub = *self.scrub_stats();
        let header = PartHeader {
            drive_id: self.drive_id,
            generation,
            clean,
            in_band: self.media.in_band(),
            has_sums: self.media.layout().has_sums,
            part: 0,
            parts: 0,
            channels: geometry.channels,
            blocks_per_channel: geometry.blocks_per_channel,
            pages_per_block: geometry.pages_per_block,
            page_bytes: geometry.page_bytes,
            oob_bytes: geometry.oob_bytes,
            sequence: self.sequence.load(Ordering::Acquire),
            scrub_block: scrub.next_block,
            scrub_passes: scrub.passes,
        };
        (header, payload)
    }
}
