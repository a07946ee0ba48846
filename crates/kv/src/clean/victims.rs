//! The victims that cleaning has claimed besides the one it works on.
//!
//! While users wait for what cleaning wins, the next victim is chosen as soon as the last window of the current one has
//! been asked for, and its first windows are read while the current one's last values are moved: else the drive would
//! have nothing to read at the end of each. It is chosen a few milliseconds early, which costs next to nothing of what is
//! dead in it. Of victims of which only heads are read (decision 45) several are: heads are small, and the reads of one victim
//! wait for each other.
//!
//! On a drive of several channels a victim and what is moved of it keep two of them busy. So several are emptied at once there,
//! as many as segments are wanted, and are settled in the order in which they began. Two bounds: what they have in memory, and
//! free segments, because what is moved comes before what is won: all that may be alive in them is kept free for
//! them from the second on.

use std::collections::VecDeque;
use std::sync::Arc;

use pumice_reactor::{JoinHandle, spawn};
use pumice_segment::{Heap, SegmentId, Stream, Sweep};

use crate::clean::Outcome;
use crate::clean::winning::LeastDead;
use crate::errors::StoreError;
use crate::store::Inner;

/// Memory of a victim that is emptied beside others: its windows, and two batches of what is moved of it.
const VICTIM_BYTES: u64 = 3 << 20;

/// Victims of which heads are read ahead, at most. Four hide what their reads wait for each other.
const HEADS_AHEAD: u64 = 4;

/// Claimed victims.
#[derive(Default)]
pub struct Victims {
    /// In use, or beyond cleaning: claimed so that others come next.
    aside: Vec<SegmentId>,
    /// The next ones, being read.
    next: VecDeque<Sweep>,
    /// Being emptied, the first of them for longest.
    under_way: VecDeque<UnderWay>,
}

/// A victim that is being emptied beside others.
struct UnderWay {
    segment: SegmentId,
    task: JoinHandle<Result<Outcome, StoreError>>,
}

impl Victims {
    /// The victim to clean now, if there is one that is worth it.
    pub fn choose(&self, heap: &Heap, least: &LeastDead) -> Option<SegmentId> {
        self.choose_of(heap, least, 0)
    }

    /// The victim to clean now if as much as `least_bytes` is to be won.
    pub fn choose_worth(&self, store: &Inner, least_bytes: u32) -> Option<SegmentId> {
        self.choose_of(&store.heap, &store.least_dead(), least_bytes)
    }

    fn choose_of(&self, heap: &Heap, least: &LeastDead, least_bytes: u32) -> Option<SegmentId> {
        let next = self.next.front().map(Sweep::segment);
        next.or_else(|| heap.victim(|stream: Stream| least.of(stream).max(least_bytes)))
    }

    /// Starts reading the victim, or goes on with it.
    pub fn sweep(&mut self, heap: &Heap, victim: SegmentId) -> Sweep {
        let is_next = self.next.front().is_some_and(|next| next.segment() == victim);
        let next = if is_next { self.next.pop_front() } else { None };
        next.unwrap_or_else(|| heap.sweep(victim))
    }

    /// Chooses the next victims, each with so many dead bytes at least, and starts to read them: one, or several of which heads are
    /// read.
    pub fn read_ahead(&mut self, store: &Inner, least_bytes: u32) {
        while self.next.len() < store.heads_ahead() && self.next.iter().all(Sweep::reads_heads) {
            let least = store.least_dead();
            let Some(victim) = store.heap.victim(|stream| least.of(stream).max(least_bytes)) else {
                break;
            };
            self.next.push_back(store.heap.sweep(victim));
        }
    }

    /// Whether some are being emptied.
    pub fn are_under_way(&self) -> bool {
        !self.under_way.is_empty()
    }

    /// Begins to empty as many victims as are wanted, each with so many dead bytes at least. Answers which has been under way for
    /// longest, and what came of it.
    pub async fn empty(
        &mut self,
        store: &Arc<Inner>,
        wanted: usize,
        least_bytes: u32,
    ) -> Option<(SegmentId, Result<Outcome, StoreError>)> {
        while self.under_way.len() < wanted
            && let Some(victim) = self.choose_of(&store.heap, &store.least_dead(), least_bytes)
        {
            let mut room = None;
            if self.are_under_way() {
                room = store.heap.keep_for_cleaning(store.heap.live_bytes(victim));
                if room.is_none() {
                    if self.next.front().is_none_or(|next| next.segment() != victim) {
                        store.heap.unclaim(victim);
                    }
                    break;
                }
                store.counters.victims_beside.add(1);
            }
            let sweep = self.sweep(&store.heap, victim);
            let store = store.clone();
            let task = spawn(async move {
                let emptied = store.empty_victim(sweep).await;
                drop(room);
                emptied
            });
            self.under_way.push_back(UnderWay { segment: victim, task });
        }
        let UnderWay { segment, task, .. } = self.under_way.pop_front()?;
        Some((segment, task.await.unwrap_or(Err(StoreError::Closing))))
    }

    /// Waits for those that are being emptied.
    pub async fn settle(&mut self, store: &Arc<Inner>) {
        while self.empty(store, 0, 0).await.is_some() {}
    }

    /// Keeps a victim claimed that cannot be cleaned now.
    pub fn put_aside(&mut self, victim: SegmentId) {
        self.aside.push(victim);
    }

    /// Those that were put aside may be victims again.
    pub fn offer_aside_again(&mut self, heap: &Heap) {
        self.aside.drain(..).for_each(|victim| heap.unclaim(victim));
    }

    /// All may be victims again, those that were read ahead, too.
    pub fn offer_again(&mut self, heap: &Heap) {
        self.offer_aside_again(heap);
        self.next.drain(..).for_each(|next| heap.unclaim(next.segment()));
    }
}

impl Inner {
    /// Victims of which heads are read ahead: heads take an eighth of a segment's bytes or less, and have a 32nd of the memory.
    fn heads_ahead(&self) -> usize {
        let each = u64::from(self.heap.segment_bytes()) / 8;
        (self.options.memory_bytes / 32 / each).clamp(1, HEADS_AHEAD) as usize
    }

    /// Victims emptied at a time, at most.
    pub fn victims_at_once(&self) -> usize {
        let each = VICTIM_BYTES.min(2 * u64::from(self.heap.segment_bytes()));
        self.heap.victims_at_once().min((self.victims_bytes / each) as usize).max(1)
    }
}
