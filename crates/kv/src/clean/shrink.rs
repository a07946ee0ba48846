//! Keeping a drive's file near the size of what is alive in it.
//!
//! Cleaning costs the less the more is dead, so while a drive has room none is needed. But a file takes that room from others, and one
//! that grows to all it may have for a data set of a hundredth of it, which is overwritten again and again, is no good neighbour.
//!
//! 1. Where more is dead than alive, and some slack, segments that are mostly dead are emptied before ones that were never written
//!    are opened. This takes an eighth of the time at first, a quarter and in the end half of it as the file grows nevertheless: what
//!    users write has to be read again for it. Not of large values that are dead: those are emptied as fast as they come.
//! 2. When nobody has written for a while it goes on until no more is dead than may be, and the space of free segments is given back.
//!
//! Not on block devices, nor on files that were written in advance (`pumice format --prewrite`): there nobody else could use it.
//! See decision 0038.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use pumice_reactor::{Nanos, now, sleep};
use pumice_segment::{SegmentId, Stream};

use crate::clean::victims::Victims;
use crate::clean::{AFTER_FAILURE, Cleaned, TICK};
use crate::store::Inner;

/// Nobody has written for so long when space is given back: what is opened next commits slower for it.
const QUIET: Duration = Duration::from_secs(10);
/// Between looks that find nothing to do.
const LOOK_AGAIN: Duration = Duration::from_millis(250);
/// With fewer free segments whose space is held, the next ones to be opened may be fresh.
const HELD_MIN: u32 = 16;
/// Free segments whose space stays held, and as many as are won where that costs next to nothing: those that a metadata record
/// names as next.
const HELD_MAX: u32 = 64;
/// Of a segment so much must be dead, as a part.
const WORTH: u32 = 2;
/// Rests between victims, in times of what one took: a victim costs what users could read or write meanwhile, so the file rather
/// grows, up to a point.
const REST: u32 = 7;
/// The rest when so many times what may be dead is dead, and more.
const REST_GROWN: (u64, u32) = (16, 3);
/// And then.
const REST_LARGE: (u64, u32) = (64, 1);
/// No rest takes longer: meanwhile nothing else is cleaned.
const REST_MAX: Duration = TICK.saturating_mul(4);

/// What was seen so far.
#[derive(Default)]
pub struct Shrink {
    look_at: Option<Nanos>,
    /// Users' writes, and since when there are no more.
    writes: (u64, Option<Nanos>),
    /// A checkpoint was made because nobody writes any more.
    has_checkpoint: bool,
    /// The file system gives nothing back.
    is_refused: bool,
    /// The last segment was emptied at next to no cost.
    was_cheap: bool,
}

impl Shrink {
    fn is_due(&self) -> bool {
        self.look_at.is_none_or(|at| now() >= at)
    }

    /// Whether nobody has written for a while.
    fn is_quiet(&mut self, accepted: u64) -> bool {
        match self.writes {
            (writes, Some(since)) if writes == accepted => now().since(since) >= QUIET,
            _ => {
                self.writes = (accepted, Some(now()));
                self.has_checkpoint = false;
                false
            }
        }
    }
}

impl Inner {
    /// Does one step if one is due. Answers whether it did.
    pub async fn shrink(
        self: &Arc<Self>,
        shrink: &mut Shrink,
        released: &mut u32,
        victims: &mut Victims,
    ) -> bool {
        if !shrink.is_due() || self.heap.read_only().is_some() {
            return false;
        }
        let stepped = self.shrink_step(shrink, released, victims).await;
        let again = if shrink.was_cheap { TICK } else { LOOK_AGAIN };
        shrink.look_at = if stepped { None } else { Some(now() + again) };
        stepped
    }

    async fn shrink_step(
        self: &Arc<Self>,
        shrink: &mut Shrink,
        released: &mut u32,
        victims: &mut Victims,
    ) -> bool {
        let Some(growth) = self.heap.growth() else { return false };
        let is_quiet = shrink.is_quiet(self.accepted.get());
        let space = self.heap.space();
        let times = space.dead / (space.live + self.options.slack_bytes).max(1);
        let enough = if shrink.was_cheap { HELD_MAX } else { HELD_MIN };
        let grows = growth.held < enough && growth.fresh > 0;
        if times > 0 && (is_quiet || grows) {
            let rest = match times {
                times if times >= REST_LARGE.0 => REST_LARGE.1,
                times if times >= REST_GROWN.0 => REST_GROWN.1,
                _ => REST,
            };
            if self.empty_for_space(shrink, rest, released, victims).await {
                return true;
            }
            shrink.was_cheap = false;
            if is_quiet && !shrink.has_checkpoint {
                // What a replay needs is no victim.
                shrink.has_checkpoint = true;
                return self.checkpoint_if_any().await;
            }
        }
        is_quiet && growth.held > HELD_MAX && !shrink.is_refused && self.give_back(shrink).await
    }

    /// Empties a segment that is mostly dead, and rests. Answers whether there was one.
    async fn empty_for_space(
        self: &Arc<Self>,
        shrink: &mut Shrink,
        rest: u32,
        released: &mut u32,
        victims: &mut Victims,
    ) -> bool {
        let worth = self.heap.segment_bytes() / WORTH;
        let Some(victim) = victims.choose_worth(self, worth) else { return false };
        shrink.was_cheap = self.costs_little(victim);
        if shrink.was_cheap {
            victims.read_ahead(self, worth);
        }
        let started = now();
        match self.clean_victim(victim, victims).await {
            Ok(Cleaned::Released) => {
                *released += 1;
                self.free_released(released).await;
            }
            Ok(_) => sleep(TICK).await,
            Err(error) => {
                tracing::warn!(%error, "emptying a segment to save space failed");
                sleep(AFTER_FAILURE).await;
            }
        }
        if !shrink.was_cheap {
            sleep((started.elapsed() * rest).min(REST_MAX)).await;
        }
        true
    }

    /// Whether it takes next to nothing to empty the segment: of large values that are dead some heads are read, one for a MiB.
    fn costs_little(&self, segment: SegmentId) -> bool {
        self.heap.stream_of(segment) == Some(Stream::Large) && self.heap.is_nearly_dead(segment)
    }

    async fn checkpoint_if_any(self: &Arc<Self>) -> bool {
        if self.memtables.active_bytes.load(Ordering::Relaxed) == 0 {
            return false;
        }
        if let Err(error) = self.flush().await {
            tracing::warn!(%error, "a checkpoint before giving space back failed");
            sleep(AFTER_FAILURE).await;
        }
        true
    }

    /// Gives one segment's space back. Answers whether it did.
    async fn give_back(&self, shrink: &mut Shrink) -> bool {
        match self.heap.give_back().await {
            Ok(given) => {
                if given {
                    self.counters.given_back_segments.add(1);
                    sleep(TICK).await;
                }
                given
            }
            Err(error) => {
                tracing::warn!(%error, "the file system takes no space back: the drive's file stays as large as it is");
                shrink.is_refused = true;
                false
            }
        }
    }
}
