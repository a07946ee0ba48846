//! The pump: writes the commit stream's frames one after the other. See `commit.rs`.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use pumice_base::sync::lock;
use pumice_flash::FlashError;
use pumice_reactor::{Nanos, WriteSync, now, sleep, spawn, timeout};
use smallvec::SmallVec;

use crate::commit::{Commit, Flying, Sealed};
use crate::inner::Inner;
use crate::layout::meta::SegmentState;
use crate::metalog::{Closing, NO_SPACE_RETRY};
use crate::{CommitFailed, Durability, HeapError, Stream, metalog};

/// How long records may wait for company when nobody waits for them.
const GATHER: Duration = Duration::from_millis(100);
/// Everything is synced this often in everysec mode.
const SYNC_EVERY: Duration = Duration::from_millis(900);

enum Step {
    Write(Sealed),
    Sync,
    Wait(Duration),
    Idle,
}

fn after(start: Nanos, wait: Duration, at: Nanos) -> Duration {
    wait.saturating_sub(at.since(start))
}

impl Commit {
    fn next_step(&mut self, inner: &Inner) -> Step {
        let mode = inner.options.durability;
        self.awaits_sync = false;
        if !self.may_write(inner) {
            // Whoever writes goes on with the rest.
            self.pumps -= 1;
            return Step::Idle;
        }
        let at = now();
        let unsynced =
            mode == Durability::EverySecond && !self.is_syncing && self.written_frames > self.durable_frames;
        let sync_in = unsynced.then(|| after(self.last_sync, SYNC_EVERY, at));
        // Before the next frame: under load there always is one.
        if sync_in.is_some_and(|rest| rest.is_zero()) {
            self.is_syncing = true;
            return Step::Sync;
        }
        if let Some(frame) = self.take_ready() {
            return self.fly(frame);
        }
        if let (Some(since), Some(first_seq)) = (self.forming_since(), self.forming_first_seq()) {
            let forced = first_seq <= self.force_seq;
            let rest = after(since, GATHER, at);
            if mode == Durability::Always
                && !forced
                && let Some(rest) = self.awaits_company(inner, at)
            {
                return Step::Wait(rest);
            }
            if mode == Durability::Always || forced || rest.is_zero() {
                self.seal(inner, false);
                let Some(frame) = self.take_ready() else { unreachable!("a frame was just sealed") };
                return self.fly(frame);
            }
            return Step::Wait(sync_in.map_or(rest, |sync| sync.min(rest)));
        }
        if let Some(rest) = sync_in {
            self.awaits_sync = true;
            return Step::Wait(rest);
        }
        self.pumps -= 1;
        Step::Idle
    }

    fn fly(&mut self, frame: Sealed) -> Step {
        self.beside += u64::from(self.flying.iter().any(|other| other.written.is_none()));
        let flying = Flying { number: frame.number, is_issued: false, written: None };
        let at = self.flying.partition_point(|other| other.number < frame.number);
        self.flying.insert(at, flying);
        self.lanes.flies(frame.lane);
        Step::Write(frame)
    }
}

pub(crate) async fn pump(inner: Arc<Inner>) {
    loop {
        if inner.failed().is_some() {
            return;
        }
        let (step, has_company) = {
            let mut commit = inner.commit();
            let step = commit.next_step(&inner);
            // Another lane's frame needs not wait until the device has this one.
            let has_company =
                commit.is_wide() && matches!(step, Step::Write(_)) && commit.starts_pump(&inner);
            (step, has_company)
        };
        if has_company {
            drop(spawn(pump(inner.clone())));
        }
        match step {
            Step::Write(frame) => {
                if write(&inner, frame).await.is_err() {
                    return;
                }
            }
            Step::Sync => {
                // Frames go on being written: what is with the host outlives the process, however long the drive takes.
                let inner = inner.clone();
                drop(spawn(async move { sync_beside(&inner).await }));
            }
            Step::Wait(rest) => {
                let _ = timeout(rest, inner.pump_wake.notified()).await;
            }
            Step::Idle => return,
        }
    }
}

/// A sync beside the pump's writes; sees to it that another one follows for what was written meanwhile.
async fn sync_beside(inner: &Arc<Inner>) {
    let synced = sync(inner).await;
    let starts_pump = {
        let mut commit = inner.commit();
        commit.is_syncing = false;
        synced.is_ok() && commit.starts_pump(inner)
    };
    if starts_pump {
        drop(spawn(pump(inner.clone())));
    } else {
        inner.pump_wake.notify_one();
    }
}

/// Makes every written frame durable in the relaxed modes.
pub(crate) async fn sync(inner: &Arc<Inner>) -> Result<(), ()> {
    let (written, seq) = {
        let mut commit = inner.commit();
        commit.last_sync = now();
        (commit.written_frames, inner.written.current())
    };
    match inner.device.sync().await {
        Ok(()) => {
            let mut commit = inner.commit();
            commit.durable_frames = commit.durable_frames.max(written);
            commit.durable_seq = commit.durable_seq.max(seq);
            Ok(())
        }
        Err(error) => {
            inner.fail(&format!("sync failed: {error}"));
            Err(())
        }
    }
}

async fn write(inner: &Arc<Inner>, mut frame: Sealed) -> Result<(), ()> {
    let mode =
        if inner.options.durability == Durability::Always { WriteSync::Durable } else { WriteSync::Cached };
    let (mut was_full, mut is_erased) = (false, false);
    loop {
        if metalog::ensure_dirty(inner).await.is_err() {
            return Err(());
        }
        let started = now();
        let (segment, offset) = (frame.start.segment(), frame.start.offset());
        let page = offset / inner.superblock.page_bytes;
        let pages = page..page + frame.data.len() as u32 / inner.superblock.page_bytes;
        let block = inner.block(segment);
        // Once: what comes behind it in the segment may be there already when this is tried again.
        let erased = if offset == 0 && !is_erased { inner.device.erase(block).await } else { Ok(()) };
        is_erased = erased.is_ok();
        let result = match erased {
            Ok(()) => {
                let program = inner.device.program(block, page, frame.data.clone(), mode);
                match issue(inner, frame.number, program).await {
                    Ok(()) => crate::wear::check_written(&inner.device, block, pages).await,
                    result => result,
                }
            }
            Err(error) => Err(error),
        };
        match result {
            Ok(()) => {
                if was_full {
                    inner.host_full(None);
                }
                written(inner, frame, now().since(started));
                if offset == 0 {
                    inner.kick_prewrite();
                }
                return Ok(());
            }
            Err(error @ (FlashError::ProgramFailed { .. } | FlashError::EraseFailed { .. })) => {
                if !inner.commit().withdraw(frame.number) {
                    // The commit behind it lies in the same segment and would be lost with it. Neither was acknowledged.
                    inner.fail(&format!("{error}, with another commit behind it: start again"));
                    return Err(());
                }
                frame = match crate::relocate::relocate(inner, frame).await {
                    Ok(frame) => {
                        is_erased = false;
                        frame
                    }
                    Err(reason) => {
                        inner.fail(&reason);
                        return Err(());
                    }
                };
                // Retired for good before anything is acknowledged that lies elsewhere because of it.
                if metalog::write_meta(inner, metalog::Write::internal()).await.is_err() {
                    return Err(());
                }
            }
            Err(error @ FlashError::NoSpace { .. }) => {
                was_full = true;
                inner.host_full(Some(&format!("{error}; trying again")));
                sleep(NO_SPACE_RETRY).await;
            }
            Err(error) => {
                inner.fail(&format!("commit write failed: {error}"));
                return Err(());
            }
        }
    }
}

/// Programs a frame; once the device has the program, a pump for the next one may start.
async fn issue(
    inner: &Arc<Inner>,
    number: u64,
    program: impl Future<Output = Result<(), FlashError>>,
) -> Result<(), FlashError> {
    let mut program = pin!(program);
    let mut is_issued = false;
    poll_fn(|context| {
        let result = program.as_mut().poll(context);
        if !is_issued && inner.is_pipelined() {
            let mut commit = inner.commit();
            if let Some(flying) = commit.flying.iter_mut().find(|flying| flying.number == number) {
                flying.is_issued = true;
            }
            if commit.starts_pump(inner) {
                drop(spawn(pump(inner.clone())));
            }
        }
        is_issued = true;
        result
    })
    .await
}

/// The frame is written. Whatever is now written without a gap counts: opens the gates, seals segments that are
/// complete.
fn written(inner: &Arc<Inner>, frame: Sealed, took: Duration) {
    let is_always = inner.options.durability == Durability::Always;
    let mut ended: SmallVec<[(Sealed, Duration); 2]> = SmallVec::new();
    let mut open_to = None;
    let room;
    {
        let mut commit = inner.commit();
        let number = frame.number;
        commit.lanes.written(frame.lane);
        if let Some(flying) = commit.flying.iter_mut().find(|flying| flying.number == number) {
            flying.written = Some((frame, took));
        }
        let before = commit.undurable_bytes;
        // Of several lanes a later frame may have overtaken one that is not on its way yet.
        let next = |commit: &mut Commit| {
            let first = commit.flying.front_mut().filter(|first| first.number == commit.written_frames);
            first.and_then(|first| first.written.take())
        };
        while let Some((frame, took)) = next(&mut commit) {
            commit.flying.pop_front();
            commit.written_frames = frame.number + 1;
            if is_always {
                commit.durable_frames = frame.number + 1;
            }
            commit.undurable_bytes -= frame.counted;
            commit.company.left(frame.appends, took);
            // Numbers that were taken for moves count once nothing waits before them.
            let last_seq = if commit.is_idle() { commit.next_seq - 1 } else { frame.last_seq };
            if !frame.more {
                open_to = Some(last_seq);
                if is_always {
                    commit.durable_seq = last_seq;
                }
            }
            let mut table = inner.table();
            while commit.closing.front().is_some_and(|&(number, _)| number <= frame.number) {
                if let Some((_, segment)) = commit.closing.pop_front() {
                    table.seal(segment);
                }
            }
            drop(table);
            ended.push((frame, took));
        }
        if commit.flying.is_empty() {
            commit.company.quiet(now());
        }
        let max = inner.options.undurable_max_bytes;
        room = before > max / 2 && commit.undurable_bytes <= max / 2;
    }
    inner.tail().written(ended.len());
    let counters = &inner.counters;
    for (frame, took) in &ended {
        counters.commits.fetch_add(1, Ordering::Relaxed);
        counters.commit_bytes.fetch_add(frame.data.len() as u64, Ordering::Relaxed);
        counters.commit_padding_bytes.fetch_add(frame.padding as u64, Ordering::Relaxed);
        lock(&inner.latency).record(took.as_nanos() as u64);
    }
    if let Some(open_to) = open_to {
        inner.written.open_to(open_to);
        if is_always {
            inner.durable.open_to(open_to);
        }
    }
    if room {
        inner.room_came();
    }
    inner.kick_meta();
}

/// See [`crate::Heap::write_out`]; answers whether there was nothing to write nor to sync.
pub(crate) async fn write_out(inner: &Inner) -> Result<bool, CommitFailed> {
    let (last, synced) = {
        let mut commit = inner.commit();
        let last = commit.next_seq - 1;
        commit.force_seq = commit.force_seq.max(last);
        (last, commit.is_idle() && commit.durable_frames == commit.written_frames)
    };
    if !synced {
        inner.pump_wake.notify_one();
        inner.written.wait_for(last).await.map_err(|error| CommitFailed(error.reason))?;
    }
    Ok(synced)
}

/// See [`crate::Heap::flush`].
pub(crate) async fn flush(inner: &Arc<Inner>) -> Result<(), CommitFailed> {
    let synced = write_out(inner).await?;
    // In a task of its own: what fails is taken note of though nobody waits any more.
    let sync_once = || {
        spawn({
            let inner = inner.clone();
            async move { sync(&inner).await }
        })
    };
    if !synced && inner.options.durability != Durability::Always && !matches!(sync_once().await, Ok(Ok(()))) {
        let reason = inner.failed().unwrap_or_else(|| "sync failed".into());
        return Err(CommitFailed(reason));
    }
    Ok(())
}

/// [`flush`] for those who close: given up when the host has no space, which may last.
async fn flush_before_close(inner: &Arc<Inner>) -> Result<(), HeapError> {
    let mut flushing = pin!(flush(inner));
    loop {
        match timeout(8 * NO_SPACE_RETRY, &mut flushing).await {
            Ok(done) => return done.map_err(|CommitFailed(reason)| HeapError::ReadOnly(reason)),
            Err(_) => {
                if let Some(reason) = inner.why_host_full() {
                    return Err(HeapError::ReadOnly(reason));
                }
            }
        }
    }
}

/// See [`crate::Heap::close`].
pub(crate) async fn close(inner: &Arc<Inner>, leaves_log: bool) -> Result<(), HeapError> {
    if let Some(reason) = inner.blocked() {
        return Err(HeapError::ReadOnly(reason));
    }
    flush_before_close(inner).await?;
    inner.pause(Some("closed"));
    // Whatever slipped in before the pause.
    flush_before_close(inner).await?;
    for writer in &inner.writers {
        drop(writer.turn().acquire(1).await);
    }
    // Nothing of this heap may still write when the next opener begins.
    while inner.table().is_prewriting() {
        sleep(Duration::from_millis(1)).await;
    }
    inner.table().log_all_hints();
    let replay_from = inner.meta.state().replay_from;
    let is_beyond = |entry: &crate::table::Entry| {
        entry.stream == Stream::Commit as u8
            && matches!(entry.state, SegmentState::Open | SegmentState::Sealed)
            && entry.last_seq > replay_from
    };
    let needs_log = leaves_log || inner.table().entries().any(|(_, entry)| is_beyond(entry));
    let closing = if needs_log { Closing::WithLog } else { Closing::Clean };
    metalog::write_meta(inner, metalog::Write { closes: Some(closing), ..metalog::Write::internal() }).await
}
