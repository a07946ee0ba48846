//! The metadata log: a snapshot, then edits, in one of two halves; the next snapshot goes to the other half.
//!
//! 1. Records follow each other page by page; one is written at a time and is durable before the next begins, so the first
//!    place where none verifies is the log's end.
//! 2. A half is overwritten only once the other holds a newer, complete snapshot.
//! 3. Each record is written twice, one behind the other and at once: where the first does not verify the second counts, and the
//!    next record is a snapshot (`docs/decisions/0061`). Only of a snapshot that the half has little room for there is one.
//! 4. The client's state is kept as it was given (snapshot, edits), so that the heap can write a snapshot of its
//!    own when a half is full or its end is uncertain after a crash.

mod read;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use pumice_base::sync::lock;
use pumice_flash::FlashError;
use pumice_reactor::sync::Semaphore;
use pumice_reactor::{IoBuf, WriteSync, sleep};

use crate::home;
use crate::inner::Inner;
use crate::layout::meta::{MetaKind, MetaRecord};
use crate::layout::superblock::Superblock;
use crate::{HeapError, MetaEdit};

pub(crate) use read::{damage, read_newest};

const CHUNK_BYTES: usize = 1 << 20;
/// Failures that one record puts up with.
const TRIES: u32 = 8;
/// Pause between tries when the host's file system is full.
pub(crate) const NO_SPACE_RETRY: Duration = Duration::from_millis(250);
/// Zeros are written ahead of the log's end a sixteenth of a half at a time, and edits may come to as much before a snapshot is due;
/// but no more than this, however large the drive is: an opening reads them.
const HALF_PART: u64 = 16;
const PART_BYTES_MAX: u64 = 1 << 20;
/// A drive is closed with a snapshot where edits come to a quarter of one, and at least to this, or an eighth of a half.
const CLOSING_EDITS_BYTES: u64 = 256 << 10;
/// A snapshot of which two take more than this part of a half is written once: edits need room as well, and snapshots must not follow
/// each other because of their size.
const TWICE_PART: u64 = 4;

pub(crate) struct MetaLog {
    writer: Semaphore,
    state: Mutex<MetaState>,
    /// The newest record says that the drive was closed: another must be written before any data is.
    clean: AtomicBool,
    /// The drive's last record has had its turn. Set and looked at by who holds the turn.
    closed: AtomicBool,
    stamp: AtomicU64,
    /// Whether records tell from which commit frame on a recovery replays.
    keeps_marks: AtomicBool,
}

/// What the log holds.
#[derive(Clone, Debug, Default)]
pub(crate) struct MetaState {
    /// 0 or 1.
    pub half: usize,
    pub generation: u64,
    pub next_index: u32,
    /// Where the next record goes in the half.
    pub offset: u64,
    pub blobs: Vec<Bytes>,
    pub snapshot_bytes: u64,
    /// From `offset` to here the half holds zeros, as far as is known.
    pub zeroed_end: u64,
    /// A record of this generation was read from its copy: the next one is a snapshot.
    pub is_damaged: bool,
    pub replay_from: u64,
    pub moved_from: u64,
    /// Of a log in several segments at once: the first frame with a sequence number beyond `replay_from`.
    pub replay_frame: Option<u64>,
}

impl MetaState {
    fn stamp(&self) -> u64 {
        self.generation << 32 | u64::from(self.next_index.saturating_sub(1))
    }

    /// What follows the snapshot.
    fn edits_bytes(&self) -> u64 {
        self.offset.saturating_sub(self.snapshot_bytes)
    }

    /// Whether a drive that is closed should have one more.
    fn is_worth_a_snapshot(&self, half_bytes: u64) -> bool {
        self.edits_bytes() > CLOSING_EDITS_BYTES.min(half_bytes / 8).max(self.snapshot_bytes / 4)
    }
}

/// What a metadata record is to say.
pub(crate) struct Write {
    pub edit: Option<MetaEdit>,
    pub replay_from: Option<u64>,
    /// The drive's last record, and whether it says that a next opening need not look for more.
    pub closes: Option<Closing>,
    pub snapshot: bool,
    /// Nothing is lost without it: where the host has no space, there is none.
    pub is_optional: bool,
    /// The superblock is written elsewhere, too.
    pub renew_superblock: bool,
}

/// How a drive is closed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Closing {
    /// The client's state covers everything.
    Clean,
    /// There is something to be replayed.
    WithLog,
}

impl Write {
    pub(crate) fn internal() -> Self {
        Self {
            edit: None,
            replay_from: None,
            closes: None,
            snapshot: false,
            is_optional: false,
            renew_superblock: false,
        }
    }
}

impl MetaLog {
    pub(crate) fn new(state: MetaState, clean: bool) -> Self {
        let stamp = AtomicU64::new(state.stamp());
        let keeps_marks = AtomicBool::new(state.replay_frame.is_some());
        let (writer, clean) = (Semaphore::new(1), AtomicBool::new(clean));
        Self { writer, state: Mutex::new(state), clean, closed: AtomicBool::new(false), stamp, keeps_marks }
    }

    /// From now on records tell from which commit frame on a recovery replays; it is this one now.
    pub(crate) fn keep_marks(&self, replay_frame: u64) {
        self.state().replay_frame = Some(replay_frame);
        self.keeps_marks.store(true, Ordering::Release);
    }

    /// See [`MetaLog::keep_marks`].
    pub(crate) fn keeps_marks(&self) -> bool {
        self.keeps_marks.load(Ordering::Acquire)
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, MetaState> {
        lock(&self.state)
    }

    /// Names the newest durable record: generation in the high half, index in the low. Frames carry it, so that
    /// recovery notices when records that were durable are gone.
    pub(crate) fn stamp(&self) -> u64 {
        self.stamp.load(Ordering::Acquire)
    }

    /// See [`crate::Heap::wants_snapshot`].
    pub(crate) fn wants_snapshot(&self, superblock: &Superblock) -> bool {
        let state = self.state();
        let half = half_bytes(superblock);
        state.offset > half / 2 || state.edits_bytes() > (state.snapshot_bytes * 2).max(part_bytes(half))
    }
}

/// What is zeroed ahead, and how much of edits is nothing.
fn part_bytes(half_bytes: u64) -> u64 {
    (half_bytes / HALF_PART).min(PART_BYTES_MAX)
}

/// Bytes of a half of the log.
pub(crate) fn half_bytes(superblock: &Superblock) -> u64 {
    u64::from(superblock.meta_half_segments) * u64::from(superblock.segment_bytes)
}

/// Makes sure that the log does not say "clean" before data is written.
pub(crate) async fn ensure_dirty(inner: &Arc<Inner>) -> Result<(), HeapError> {
    if inner.meta.clean.load(Ordering::Acquire) {
        write_meta(inner, Write::internal()).await?;
    }
    Ok(())
}

/// Writes a record, durable on return.
pub(crate) async fn write_meta(inner: &Arc<Inner>, what: Write) -> Result<(), HeapError> {
    let _permit = inner.meta.writer.acquire(1).await;
    if let Some(reason) = inner.failed() {
        return Err(HeapError::ReadOnly(reason));
    }
    // Asked under the turn: of those that wait for it (a record that was kicked off, a client's) some stand behind the closing
    // one. What they wrote would take its word back, under the eyes of whoever opens the drive next. A pause does not tell: records
    // are written in one, at the end of a replay and before the closing one. Nor is it given back when the closing record fails.
    if inner.meta.closed.load(Ordering::Acquire) {
        return Err(HeapError::ReadOnly("closed".into()));
    }
    inner.meta.closed.store(what.closes.is_some(), Ordering::Release);
    if what.renew_superblock {
        home::renew(inner).await?;
    }
    let is_clean = what.closes == Some(Closing::Clean);
    let half_bytes = half_bytes(&inner.superblock);
    let page = inner.page_bytes();
    let (mut tries, mut was_full, mut has_place) = (TRIES, false, true);
    let mut snapshot =
        what.snapshot || matches!(what.edit, Some(MetaEdit::Snapshot(_))) || inner.meta.state().is_damaged;
    // So that the next opening has less to read. One can do without where the host has no space for it, and media that wear do.
    let mut tidies = !snapshot
        && what.closes.is_some()
        && !inner.device.wears()
        && inner.meta.state().is_worth_a_snapshot(half_bytes);
    snapshot |= tidies;
    loop {
        let mut next = inner.meta.state().clone();
        if snapshot {
            has_place = home::mend(inner, 1 - next.half).await.inspect_err(|error| {
                inner.fail(&format!("the metadata log cannot move: {error}"));
            })?;
        }
        next.replay_from = what.replay_from.unwrap_or(0).max(next.replay_from);
        match &what.edit {
            Some(MetaEdit::Snapshot(blob)) => next.blobs = vec![blob.clone()],
            Some(MetaEdit::Edit(blob)) => next.blobs.push(blob.clone()),
            None => {}
        }
        let (last_seq, durable_seq, next_commit) = {
            let commit = inner.commit();
            next.replay_frame =
                next.replay_frame.map(|frame| frame.max(commit.first_beyond(next.replay_from)));
            (commit.next_seq - 1, commit.durable_seq, commit.durable_frames)
        };
        let next_moved = {
            let mut moves = inner.moves();
            next.moved_from = moves.floor(next.replay_from).unwrap_or(moves.next());
            moves.next()
        };
        let composed = inner.table().compose(snapshot, durable_seq);
        let blobs = match (&what.edit, snapshot) {
            (_, true) => next.blobs.clone(),
            (Some(MetaEdit::Edit(blob)), false) => vec![blob.clone()],
            _ => Vec::new(),
        };
        if snapshot {
            next.half = 1 - next.half;
            next.generation += 1;
            (next.next_index, next.offset, next.zeroed_end, next.is_damaged) = (0, 0, 0, false);
        }
        let mut record = MetaRecord {
            kind: if snapshot { MetaKind::Snapshot } else { MetaKind::Edit },
            clean: is_clean,
            is_twice: true,
            generation: next.generation,
            index: next.next_index,
            replay_from: next.replay_from,
            moved_from: next.moved_from,
            last_seq,
            next_life: composed.next_life,
            durable_frames: [next_commit, next_moved],
            patrol: {
                let patrol = inner.patrol_stats();
                [patrol.next_segment, patrol.passes]
            },
            replay_frame: next.replay_frame,
            segments: composed.segments.clone(),
            pool: composed.pool.clone(),
            blobs,
        };
        record.is_twice = is_written_twice(&record, page, half_bytes);
        let len = written_bytes(&record, page);
        if next.offset + len > half_bytes {
            inner.table().composed(&composed, false);
            if !snapshot {
                snapshot = true;
                continue;
            }
            let reason = format!("metadata of {len} B does not fit in {half_bytes} B");
            inner.fail(&reason);
            return Err(HeapError::Damaged(reason));
        }
        let result = write_record(inner, &record, &mut next, len).await;
        {
            let mut table = inner.table();
            table.composed(&composed, result.is_ok());
            inner.note_reserve(&table);
        }
        match result {
            Ok(()) => {
                next.offset += len;
                next.next_index += 1;
                if snapshot {
                    next.snapshot_bytes = len;
                }
                inner.meta.stamp.store(next.stamp(), Ordering::Release);
                if let Some(frame) = next.replay_frame {
                    inner.commit().forget_marks(frame);
                }
                *inner.meta.state() = next;
                inner.meta.clean.store(is_clean, Ordering::Release);
                let counters = &inner.counters;
                counters.meta_records.fetch_add(1, Ordering::Relaxed);
                counters.meta_bytes.fetch_add(len, Ordering::Relaxed);
                if was_full {
                    inner.host_full(None);
                }
                inner.room_came();
                return Ok(());
            }
            Err(FlashError::NoSpace { .. }) if tidies => (snapshot, tidies) = (false, false),
            Err(FlashError::NoSpace { .. }) if what.is_optional => return Ok(()),
            // Space may come, but not for the sake of an opening or a closing that somebody waits for.
            Err(error @ FlashError::NoSpace { .. }) if !inner.is_paused() => {
                inner.host_full(Some(&format!("{error}; trying again")));
                (was_full, snapshot) = (true, true);
                sleep(NO_SPACE_RETRY).await;
            }
            // The half's end is spoilt, or the other one's erase failed: start afresh in the other one, after another erase, and
            // on media that have other segments for it without the one that failed.
            Err(error @ (FlashError::ProgramFailed { .. } | FlashError::EraseFailed { .. })) if tries > 0 => {
                inner.home.note_failure(&inner.device, &error);
                tries -= 1;
                snapshot = true;
            }
            Err(error) if has_place => {
                inner.fail(&format!("metadata write failed: {error}"));
                return Err(error.into());
            }
            Err(error) => {
                let reason =
                    format!("metadata write failed: {error}, and {}", home::no_place(&inner.superblock));
                inner.fail(&reason);
                return Err(HeapError::Damaged(reason));
            }
        }
    }
}

/// Whether a record is to be followed by a copy of itself.
pub(crate) fn is_written_twice(record: &MetaRecord, page_bytes: usize, half_bytes: u64) -> bool {
    let twice = 2 * record.encoded_bytes().next_multiple_of(page_bytes) as u64;
    record.kind == MetaKind::Edit || twice <= half_bytes / TWICE_PART
}

/// What a record takes, with its copy.
fn written_bytes(record: &MetaRecord, page_bytes: usize) -> u64 {
    let once = record.encoded_bytes().next_multiple_of(page_bytes) as u64;
    if record.is_twice { 2 * once } else { once }
}

async fn write_record(
    inner: &Inner,
    record: &MetaRecord,
    next: &mut MetaState,
    len: u64,
) -> Result<(), FlashError> {
    let superblock = inner.home.superblock();
    let half = next.half;
    let per_segment = u64::from(superblock.segment_bytes);
    if record.kind == MetaKind::Snapshot {
        erase_half(&inner.device, &superblock, half).await?;
    }
    let end = next.offset + len;
    zero_ahead(&inner.device, &superblock, next, end).await?;
    write_record_to(&inner.device, &superblock, record, half, next.offset).await?;
    let mut at = next.offset;
    while at < end {
        let (index, in_segment) = (at / per_segment, at % per_segment);
        let chunk = (end - at).min(per_segment - in_segment);
        let segment = superblock.meta_segment(half, index as u32);
        let block = inner.device.geometry().block(segment);
        let page_bytes = u64::from(superblock.page_bytes);
        let pages = (in_segment / page_bytes) as u32..((in_segment + chunk) / page_bytes) as u32;
        if crate::wear::check_vital(&inner.device, block, pages).await? {
            inner.home.spoil(segment);
        }
        at += chunk;
    }
    if record.kind == MetaKind::Snapshot {
        // What is worn keeps this snapshot, and not the next.
        for index in 0..len.div_ceil(per_segment) as u32 {
            let segment = superblock.meta_segment(half, index);
            let block = inner.device.geometry().block(segment);
            match crate::wear::check_written(&inner.device, block, 0..1).await {
                Ok(()) => {}
                Err(FlashError::ProgramFailed { .. }) => inner.home.spoil(segment),
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}

/// Erases a half for a snapshot.
pub(crate) async fn erase_half(
    device: &pumice_flash::Device,
    superblock: &Superblock,
    half: usize,
) -> Result<(), FlashError> {
    for index in 0..superblock.meta_half_segments {
        device.erase(device.geometry().block(superblock.meta_segment(half, index))).await?;
    }
    Ok(())
}

/// Where an erase keeps bytes: sees to it that zeros follow a record that ends at `end`, because they tell the log's end from
/// a record that was lost. A stretch at a time: a whole half for each snapshot would be most of what the log writes.
async fn zero_ahead(
    device: &pumice_flash::Device,
    superblock: &Superblock,
    next: &mut MetaState,
    end: u64,
) -> Result<(), FlashError> {
    let half = half_bytes(superblock);
    let page = u64::from(superblock.page_bytes);
    if !device.erase_keeps_bytes() || next.zeroed_end.max(end) == half || end + page <= next.zeroed_end {
        return Ok(());
    }
    let zeroed_end = (end + part_bytes(half).max(page)).next_multiple_of(page).min(half);
    let segment_bytes = u64::from(superblock.segment_bytes);
    let mut at = next.zeroed_end.max(end);
    while at < zeroed_end {
        let in_segment = at % segment_bytes;
        let len = (zeroed_end - at).min(segment_bytes - in_segment);
        let block = device.geometry().block(superblock.meta_segment(next.half, (at / segment_bytes) as u32));
        device.zero(block, in_segment as u32..(in_segment + len) as u32).await?;
        at += len;
    }
    next.zeroed_end = zeroed_end;
    Ok(())
}

/// Programs a record, and its copy if it has one; a snapshot's half is erased.
pub(crate) async fn write_record_to(
    device: &pumice_flash::Device,
    superblock: &Superblock,
    record: &MetaRecord,
    half: usize,
    offset: u64,
) -> Result<(), FlashError> {
    let geometry = device.geometry();
    let len = written_bytes(record, superblock.page_bytes as usize) as usize;
    let once = if record.is_twice { len / 2 } else { len };
    let mut buf = IoBuf::zeroed(len);
    for start in (0..len).step_by(once) {
        record.encode(&mut buf[start..start + once], &superblock.drive_id, offset + start as u64);
    }
    let data = buf.freeze();
    let segment_bytes = u64::from(superblock.segment_bytes);
    let mut done = 0;
    while done < len {
        let at = offset + done as u64;
        let in_segment = at % segment_bytes;
        let chunk = (len - done).min(CHUNK_BYTES).min((segment_bytes - in_segment) as usize);
        let block = geometry.block(superblock.meta_segment(half, (at / segment_bytes) as u32));
        let page = (in_segment / u64::from(superblock.page_bytes)) as u32;
        device.program(block, page, data.slice(done..done + chunk), WriteSync::Durable).await?;
        done += chunk;
    }
    Ok(())
}
