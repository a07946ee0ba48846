//! Background work: flush, merging and cleaning, each a task on the core that started it.
//!
//! Flush comes first: writers wait for it. Merging works half of the time, more when runs pile up. Each failure
//! is logged and the task tries again after a while; reads go on whatever happens here.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pumice_base::sync::lock;
use pumice_reactor::sync::Notify;
use pumice_reactor::{now, sleep, spawn, timeout};

use crate::errors::StoreError;
use crate::large::recount::recount_task;
use crate::merge::plan::{self, Job};
use crate::store::{Inner, Store};
use crate::types::SliceId;

/// How often a task looks around when nobody calls it.
const TICK: Duration = Duration::from_millis(100);
/// How long closing waits for background work while the drive takes no writes.
const STUCK_MAX: Duration = Duration::from_secs(2);
/// The pause after a failure.
const AFTER_FAILURE: Duration = Duration::from_millis(200);
/// Runs of a slice from which on merging no longer pauses.
const RUNS_PRESSING: usize = 14;

/// What the tasks of a store share.
#[derive(Default)]
pub(crate) struct Background {
    /// There is work for the flush.
    pub flush_wanted: Notify,
    /// There is work for merging.
    pub merge_wanted: Notify,
    /// There is work for cleaning.
    pub clean_wanted: Notify,
    /// There are shadowed versions to be found.
    pub shadow_wanted: Notify,
    pub patrol_wanted: Notify,
    pub recount_wanted: Notify,
    /// A flush made room.
    pub flushed: Notify,
    pub closing: AtomicBool,
    /// Tasks that run.
    pub running: Mutex<u32>,
    pub stopped: Notify,
}

impl Store {
    /// Starts flush, merging, cleaning and the patrol on the current core. They run until [`Store::close`].
    pub fn start_background(&self) {
        let inner = &self.inner;
        inner.run(flush_task(inner.clone()));
        inner.run(merge_task(inner.clone()));
        inner.run(crate::clean::clean_task(inner.clone()));
        inner.run(crate::shadow::shadow_task(inner.clone()));
        inner.run(crate::patrol::patrol_task(inner.clone()));
        inner.run(recount_task(inner.clone()));
    }

    /// Puts everything written so far into key tables and moves the log's start: what SAVE is to Redis.
    ///
    /// # Errors
    /// When the drive cannot be written.
    pub async fn checkpoint(&self) -> Result<(), StoreError> {
        self.inner.flush().await
    }
}

async fn flush_task(store: Arc<Inner>) {
    while !store.is_closing() {
        let _ = timeout(TICK, store.background.flush_wanted.notified()).await;
        if store.flush_is_due()
            && !store.is_closing()
            && let Err(error) = store.flush().await
        {
            tracing::warn!(%error, "flush failed");
            sleep(AFTER_FAILURE).await;
        }
    }
}

/// Merges of upper runs of a slice that wait for those of later ones, and the one under way.
const TIERS_MAX: usize = 3;

/// What is being merged of a slice.
#[derive(Clone, Default)]
struct Jobs {
    /// Into its bottom run, which may take long.
    whole: Option<Job>,
    /// Meanwhile, of runs that came since; behind one that takes long, of those that came after it began.
    tiers: Vec<Job>,
}

async fn merge_task(store: Arc<Inner>) {
    let mut jobs = vec![Jobs::default(); store.slices.len()];
    while !store.is_closing() {
        let mut idle = true;
        for (id, jobs) in jobs.iter_mut().enumerate() {
            if store.is_closing() {
                return;
            }
            let slice = SliceId(id as u16);
            let started = now();
            let did_tier = store.step_tier(slice, jobs).await;
            let did_whole = store.step_whole(slice, jobs).await;
            if !did_tier && !did_whole {
                continue;
            }
            idle = false;
            let runs = lock(&store.manifest).versions[id].runs.len();
            if runs < RUNS_PRESSING && store.merge_first().is_none() && !store.is_closing() {
                sleep(started.elapsed().min(TICK)).await;
            }
        }
        if idle {
            store.forget_prefixes().await;
            let _ = timeout(TICK * 5, store.background.merge_wanted.notified()).await;
        }
    }
}

impl Inner {
    /// A step of merging upper runs, the newest first. Answers whether there was anything to do.
    async fn step_tier(self: &Arc<Self>, slice: SliceId, jobs: &mut Jobs) -> bool {
        if jobs.tiers.len() < TIERS_MAX {
            let version = lock(&self.manifest).versions[usize::from(slice.0)].clone();
            let below = jobs.tiers.last().or(jobs.whole.as_ref());
            let above = below.and_then(|below| below.runs.first().copied()).unwrap_or(0);
            jobs.tiers.extend(plan::plan_tier(slice, &version, above, &self.barred_tables()));
        }
        let Some(job) = jobs.tiers.last() else { return false };
        if self.try_step(job).await.unwrap_or(true) {
            jobs.tiers.pop();
        }
        true
    }

    /// A step of merging into the bottom run; of the slice that goes first alone, if one does, and of one at a time where
    /// tables are much of the drive: what is merged together lies together and dies together.
    async fn step_whole(self: &Arc<Self>, slice: SliceId, jobs: &mut Jobs) -> bool {
        let first = self.merge_first();
        let one_at_a_time = self.are_tables_much();
        let under_way = lock(&self.merges.under_way).filter(|_| one_at_a_time);
        if first.or(under_way).is_some_and(|turn| turn != slice) {
            return false;
        }
        if jobs.whole.is_none() {
            jobs.whole = if first.is_some() { self.whole_merge(slice) } else { self.plan_whole(slice) };
            if jobs.whole.is_some() {
                // Tiers that are half merged are part of it.
                jobs.tiers.clear();
            }
        }
        let Some(job) = &jobs.whole else {
            if first.is_some() {
                self.merged_first(true);
            }
            return false;
        };
        *lock(&self.merges.under_way) = Some(slice);
        let mut step = self.try_step(job).await;
        // What a job merges is free when it ends: where space is short, it is not shared among several. Upper runs would pile up
        // beside a long one.
        let is_long = self.are_merges_long();
        let is_urgent = || self.merges.eagerly.load(Ordering::Relaxed) && !is_long;
        while step == Ok(false) && is_urgent() && !self.is_closing() {
            step = self.try_step(job).await;
        }
        if step != Ok(false) {
            jobs.whole = None;
            *lock(&self.merges.under_way) = None;
            // It may have been put first meanwhile.
            if self.merge_first() == Some(slice) {
                self.merged_first(step.is_ok());
            }
        }
        self.background.clean_wanted.notify_one();
        true
    }

    /// A step of a job. Answers whether the job is done; a failure is logged. A table that does not read ends the job, and
    /// is barred from the next one.
    async fn try_step(self: &Arc<Self>, job: &Job) -> Result<bool, ()> {
        match self.merge_step(job).await {
            Ok(done) => Ok(done),
            Err(error) if error.is_of_the_media() => {
                // The table has been named when it was set aside; if it was only moved away, there is nothing to name.
                tracing::debug!(%error, slice = job.slice.0, "a merge ends early");
                sleep(AFTER_FAILURE).await;
                Ok(true)
            }
            Err(error) => {
                tracing::warn!(%error, slice = job.slice.0, "merge failed");
                sleep(AFTER_FAILURE).await;
                Err(())
            }
        }
    }
}

impl Inner {
    pub fn is_closing(&self) -> bool {
        self.background.closing.load(Ordering::Acquire)
    }

    /// Whether memtables or the log since the last checkpoint have reached their limits.
    pub fn flush_is_due(&self) -> bool {
        // Full because of what a flush that failed has left, too: nobody else would try again.
        if self.memtables.active_bytes.load(Ordering::Relaxed) >= self.budget.memtable
            || self.memtables_full()
            || self.memtables.log_bytes.load(Ordering::Relaxed) >= self.options.log_max_bytes
            || self.memtables.moved_bytes.load(Ordering::Relaxed) >= self.options.log_max_bytes
        {
            return true;
        }
        // Small commits are padded to pages, which a replay reads too.
        let sealed_at = self.memtables.commit_bytes_at_seal.load(Ordering::Relaxed);
        // Another core may have sealed in between.
        self.heap.stats().commit_bytes.saturating_sub(sealed_at) >= self.options.log_max_bytes
    }

    fn plan_whole(&self, slice: SliceId) -> Option<Job> {
        let barred = self.barred_tables();
        let manifest = lock(&self.manifest);
        let version = manifest.versions[usize::from(slice.0)].clone();
        let eager = self.merges.eagerly.load(Ordering::Relaxed);
        plan::plan_whole(slice, &version, &manifest.retired, eager, self.cache.holds_all(), &barred)
    }

    /// Writes down which retired prefixes no table speaks of any more.
    async fn forget_prefixes(&self) {
        if lock(&self.manifest).retired.is_empty() {
            return;
        }
        let _turn = self.commit_turn.acquire(1).await;
        let changes = self.forgotten_prefixes().await;
        if !changes.is_empty()
            && let Err(error) = self.commit(&changes, &Default::default()).await
        {
            tracing::warn!(%error, "forgetting retired prefixes failed");
        }
    }

    /// Tells background tasks to stop and waits until they have.
    pub async fn stop_background(self: &Arc<Self>) {
        self.background.closing.store(true, Ordering::Release);
        let mut stuck_since = None;
        loop {
            self.background.flush_wanted.notify_all();
            self.background.merge_wanted.notify_all();
            self.background.clean_wanted.notify_all();
            self.background.shadow_wanted.notify_all();
            self.background.patrol_wanted.notify_all();
            self.background.recount_wanted.notify_all();
            if *lock(&self.background.running) == 0 {
                return;
            }
            let _ = timeout(Duration::from_millis(10), self.background.stopped.notified()).await;
            // What waits for space on the host's disk may wait for ever: whoever closes the heap then says why.
            match self.heap.read_only() {
                None => stuck_since = None,
                Some(reason) if stuck_since.get_or_insert_with(now).elapsed() >= STUCK_MAX => {
                    tracing::warn!(%reason, "background work does not end, and is left");
                    return;
                }
                Some(_) => {}
            }
        }
    }

    /// Runs `task` as one of those that [`Inner::stop_background`] waits for.
    pub fn run<F: Future<Output = ()> + 'static>(self: &Arc<Self>, task: F) {
        *lock(&self.background.running) += 1;
        let inner = self.clone();
        spawn(async move {
            task.await;
            *lock(&inner.background.running) -= 1;
            inner.background.stopped.notify_all();
        });
    }
}
