//! Background work: flush, merging and cleaning, each a task on the core that started it.
//!
//! Flush comes first: writers wait for it. Merging works half of the time, more when runs pile up. Each failure
//! is logged and the task tries again after a while; reads go on whatever happens here.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use pumice_reactor::{now, sleep, spawn, timeout};

use crate::errors::StoreError;
use crate::merge::{self, Job};
use crate::slice::lock;
use crate::store::{Inner, Store};
use crate::types::SliceId;

/// How often a task looks around when nobody calls it.
const TICK: Duration = Duration::from_millis(100);
/// The pause after a failure.
const AFTER_FAILURE: Duration = Duration::from_millis(200);
/// Runs of a slice from which on merging no longer pauses.
const RUNS_PRESSING: usize = 10;

impl Store {
    /// Starts flush, merging and cleaning on the current core. They run until [`Store::close`].
    pub fn start_background(&self) {
        let inner = &self.inner;
        inner.run(flush_task(inner.clone()));
        inner.run(merge_task(inner.clone()));
        inner.run(crate::clean::clean_task(inner.clone()));
        inner.run(crate::shadow::shadow_task(inner.clone()));
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
        let _ = timeout(TICK, store.flush_wanted.notified()).await;
        if store.flush_is_due()
            && !store.is_closing()
            && let Err(error) = store.flush().await
        {
            tracing::warn!(%error, "flush failed");
            sleep(AFTER_FAILURE).await;
        }
    }
}

async fn merge_task(store: Arc<Inner>) {
    let mut jobs: Vec<Option<Job>> = vec![None; store.slices.len()];
    while !store.is_closing() {
        let mut idle = true;
        for (id, slot) in jobs.iter_mut().enumerate() {
            if store.is_closing() {
                return;
            }
            if slot.is_none() {
                *slot = store.plan_merge(SliceId(id as u16));
            }
            let Some(job) = &*slot else { continue };
            idle = false;
            let started = now();
            // What a job merges is free when it ends: where space is short, it is not shared among several.
            let mut step = store.merge_step(job).await;
            while matches!(step, Ok(false))
                && store.merge_eagerly.load(Ordering::Relaxed)
                && !store.is_closing()
            {
                step = store.merge_step(job).await;
            }
            match step {
                Ok(true) => *slot = None,
                Ok(false) => {}
                Err(error) => {
                    tracing::warn!(%error, slice = id, "merge failed");
                    *slot = None;
                    sleep(AFTER_FAILURE).await;
                }
            }
            let runs = lock(&store.manifest).versions[id].runs.len();
            if runs < RUNS_PRESSING && !store.is_closing() {
                sleep(started.elapsed().min(TICK)).await;
            }
        }
        if idle {
            store.forget_prefixes().await;
            let _ = timeout(TICK * 5, store.merge_wanted.notified()).await;
        }
    }
}

impl Inner {
    pub fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    /// Whether memtables or the log since the last checkpoint have reached their limits.
    pub fn flush_is_due(&self) -> bool {
        if self.active_bytes.load(Ordering::Relaxed) >= self.budget.memtable
            || self.log_bytes.load(Ordering::Relaxed) >= self.options.log_max_bytes
        {
            return true;
        }
        // Small commits are padded to pages, which a replay reads too.
        let committed = self.heap.stats().commit_bytes - self.commit_bytes_at_seal.load(Ordering::Relaxed);
        committed >= self.options.log_max_bytes
    }

    fn plan_merge(&self, slice: SliceId) -> Option<Job> {
        let manifest = lock(&self.manifest);
        let version = manifest.versions[usize::from(slice.0)].clone();
        merge::plan(slice, &version, &manifest.retired, self.merge_eagerly.load(Ordering::Relaxed))
    }

    /// Writes down which retired prefixes no table speaks of any more.
    async fn forget_prefixes(&self) {
        if lock(&self.manifest).retired.is_empty() {
            return;
        }
        let _turn = self.commit_turn.acquire(1).await;
        let changes = self.forgotten_prefixes();
        if !changes.is_empty()
            && let Err(error) = self.commit(&changes, &Default::default()).await
        {
            tracing::warn!(%error, "forgetting retired prefixes failed");
        }
    }

    /// Tells background tasks to stop and waits until they have.
    pub async fn stop_background(self: &Arc<Self>) {
        self.closing.store(true, Ordering::Release);
        loop {
            self.flush_wanted.notify_all();
            self.merge_wanted.notify_all();
            self.clean_wanted.notify_all();
            self.shadow_wanted.notify_all();
            if *lock(&self.running) == 0 {
                return;
            }
            let _ = timeout(Duration::from_millis(10), self.stopped.notified()).await;
        }
    }

    /// Runs `task` as one of those that [`Inner::stop_background`] waits for.
    pub fn run<F: Future<Output = ()> + 'static>(self: &Arc<Self>, task: F) {
        *lock(&self.running) += 1;
        let inner = self.clone();
        spawn(async move {
            task.await;
            *lock(&inner.running) -= 1;
            inner.stopped.notify_all();
        });
    }
}
