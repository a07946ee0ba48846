//! Counting anew what is alive of large values.
//!
//! What tells that a piece is dead is in memory only: the list of a value that a merge has just dropped, or a writer of which no
//! entry knows. A crash forgets it, what counts as alive is no victim for cleaning, and nobody would ever look at it again. So after
//! a crash, and once before a drive is left full, all keys are gone over, and the hints of the segments of pieces are set by what
//! the lists of the large values among them name.
//!
//! 1. The heap says what it takes for alive, then a snapshot is taken: what dies later is told the heap meanwhile, and taken off
//!    what is counted.
//! 2. Of keys whose newest version is large the pieces are added up by segment. Those that no entry names yet are known by their
//!    writers.
//! 3. Versions that are shadowed or retired do not count, although the heap may still be told of them: others may lie where their
//!    pieces were. So what is alive may be taken for less than it is, which costs cleaning some work, and never for more.
//!
//! It takes half of its core's time at most, and memory by the number of segments. A drive without large values is not gone over. A
//! snapshot keeps what was cleaned since from being used: where users need that, this ends and comes again later.

use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use pumice_base::hash::HashMap;
use pumice_base::sync::lock;
use pumice_reactor::{now, sleep, timeout};
use pumice_segment::{RecordPtr, SegmentId, Stream};

use crate::errors::StoreError;
use crate::scan::{SliceSet, Want};
use crate::store::{Inner, Store};
use crate::types::{Direction, SliceId};

/// How often it is looked whether the drive is full.
const TICK: Duration = Duration::from_millis(500);
/// Before what did not succeed is tried again, at first and at most: users may need what a snapshot keeps from them for long.
const PAUSE_MIN: Duration = Duration::from_secs(60);
const PAUSE_MAX: Duration = Duration::from_secs(3600);
/// Keys gone over before others have their turn.
const KEYS_AT_ONCE: u32 = 512;
/// Their turn is as long as it took, and not longer than this.
const TURN_MAX: Duration = Duration::from_millis(100);

/// Counts after a crash, or when the drive is full for the first time since it was opened.
pub async fn recount_task(store: Arc<Inner>) {
    let mut pause = PAUSE_MIN;
    while !store.is_closing() {
        let mut wait = TICK;
        if store.large.recount_is_due.load(Ordering::Relaxed) || store.heap.refuses_segments() {
            match store.recount_large_values().await {
                Ok(()) | Err(StoreError::Closing) => return,
                Err(error) => {
                    tracing::info!(%error, ?pause, "counting what is alive of large values is put off");
                    wait = pause;
                    pause = PAUSE_MAX.min(2 * pause);
                }
            }
        }
        let _ = timeout(wait, store.background.recount_wanted.notified()).await;
    }
}

impl Inner {
    /// See the head of this file.
    async fn recount_large_values(self: &Arc<Self>) -> Result<(), StoreError> {
        // What is known to be dead is taken off now and not while this counts.
        self.bury_large_values().await;
        let segments = self.heap.begin_recount(Stream::Large);
        if segments.is_empty() {
            return Ok(());
        }
        let store = Store { inner: self.clone() };
        let snapshot = store.snapshot();
        let retired = lock(&self.manifest).retired.clone();
        let mut named: HashMap<SegmentId, u64> = HashMap::default();
        let mut add = |ptr: RecordPtr| {
            *named.entry(ptr.addr.segment()).or_default() += u64::from(ptr.len);
        };
        // After the snapshot: what an entry names by then is forgotten here.
        lock(&self.large.writers).values().flatten().for_each(|ptr| add(*ptr));
        for slice in 0..store.slice_count() {
            let one = SliceSet::One(SliceId(slice));
            let (from, to) = (Bound::Unbounded, Bound::Unbounded);
            let mut scan = store.scan(&snapshot, one, from, to, Direction::Forward, Want::Keys);
            let (mut looked_at, mut started) = (0u32, now());
            while let Some((slice, key, found)) = scan.next_key().await? {
                // The pieces of a list that does not read may lie anywhere: cleaning will keep what it finds of them.
                if found.large
                    && !retired.covers(slice, &key)
                    && let Ok(Some(list)) = self.list_of(&found).await
                {
                    list.pieces.iter().for_each(|piece| add(piece.ptr));
                }
                looked_at += 1;
                if looked_at.is_multiple_of(KEYS_AT_ONCE) {
                    if self.is_closing() {
                        return Err(StoreError::Closing);
                    }
                    snapshot.inner.still_holds()?;
                    sleep(started.elapsed().min(TURN_MAX)).await;
                    started = now();
                }
            }
        }
        snapshot.inner.still_holds()?;
        drop(snapshot);
        let segments = segments.into_iter().map(|one| (one, named.get(&one.segment).copied().unwrap_or(0)));
        self.heap.end_recount(segments);
        self.background.clean_wanted.notify_one();
        Ok(())
    }
}
