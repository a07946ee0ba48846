//! The streams beside the commit stream: moved records, key tables, pieces of large values. Each has an open
//! segment of its own and one write under way; a write is durable when it returns. Large values have up to four such *lanes*
//! on a drive that has room for them: while the core receives, copies and checks pieces, others are on their way. Moved records
//! have several where the commit stream has.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;
use pumice_base::sync::lock;
use pumice_flash::{Device, FlashError};
use pumice_reactor::WriteSync;
use pumice_reactor::sync::{Permit, Semaphore};
use smallvec::SmallVec;

use crate::framebuf::{FrameBuf, Place};
use crate::inner::Inner;
use crate::layout::frame::{self, FrameHeader};
use crate::layout::header::SegmentHeader;
use crate::layout::record;
use crate::table::OpenSegment;
use crate::{
    Addr, AppendClass, AppendError, Group, MovedRecord, Object, RecordPtr, SegmentId, Stream, TABLE_GROUPS,
    metalog,
};

const CHUNK_BYTES: usize = 1 << 20;
/// A lane for each stream (the commit stream's is not used), the second one of large values, those of further groups of
/// tables, further ones of moved records, and the last ones of large values.
pub(crate) const LANES: usize = LAST_LARGE_LANES + 2;
const FIRST_MOVED_LANE: usize = 4 + TABLE_GROUPS;
/// Less than the commit stream's may be: what is moved is less than what users write.
const MOVED_LANES_MAX: usize = 16;
const MOVED_LANES: [usize; MOVED_LANES_MAX] = {
    let mut lanes = [Stream::Moved as usize; MOVED_LANES_MAX];
    let mut at = 1;
    while at < MOVED_LANES_MAX {
        lanes[at] = FIRST_MOVED_LANE + at - 1;
        at += 1;
    }
    lanes
};
const LAST_LARGE_LANES: usize = FIRST_MOVED_LANE + MOVED_LANES_MAX - 1;
const LARGE_LANES: [usize; 4] = [Stream::Large as usize, 4, LAST_LARGE_LANES, LAST_LARGE_LANES + 1];
const TABLE_LANES: [usize; TABLE_GROUPS] = [Stream::Table as usize, 5, 6, 7, 8];
/// Segments of a drive for each that is half written, so that large values fly side by side.
const SEGMENTS_A_LARGE_LANE: u32 = 128;
/// Segments of a drive that can spare some more, so that tables which die together lie together: worth more.
const SEGMENTS_FOR_TABLE_GROUPS: u32 = 64;
/// Segments that may fail in a row before the write is given up.
const TRIES: usize = 8;

pub(crate) struct Writer {
    turn: Semaphore,
    state: Mutex<WriterState>,
}

#[derive(Default)]
struct WriterState {
    open: Option<OpenSegment>,
    /// What will be open when the write under way has ended, if anything.
    expected: Option<OpenSegment>,
}

impl Default for Writer {
    fn default() -> Self {
        Self { turn: Semaphore::new(1), state: Mutex::default() }
    }
}

impl Writer {
    fn state(&self) -> MutexGuard<'_, WriterState> {
        lock(&self.state)
    }

    pub(crate) fn set_open(&self, open: OpenSegment) {
        self.state().open = Some(open);
    }

    /// The segment that the next write goes to, as far as can be told.
    fn next_open(&self) -> Option<OpenSegment> {
        let state = self.state();
        state.open.or(state.expected)
    }

    fn expect(&self, open: Option<OpenSegment>) {
        self.state().expected = open;
    }

    /// Takes the open segment away from the writer.
    pub(crate) fn take_open(&self) -> Option<OpenSegment> {
        self.state().open.take()
    }

    pub(crate) fn open(&self) -> Option<OpenSegment> {
        self.state().open
    }

    /// One caller at a time.
    pub(crate) fn turn(&self) -> &Semaphore {
        &self.turn
    }
}

/// Whether the drive can have `segments` and one more written in part; a zoned drive counts those.
fn can_spare_lane(inner: &Inner, segments: u32) -> bool {
    inner.superblock.segment_count >= segments && !matches!(inner.device, Device::Zoned(_))
}

/// The lanes of a group: who comes takes the first that is free.
fn lanes(inner: &Inner, group: Group) -> &'static [usize] {
    match group {
        Group::Large if matches!(inner.device, Device::File(_)) => {
            let affordable = (inner.superblock.segment_count / SEGMENTS_A_LARGE_LANE) as usize;
            &LARGE_LANES[..affordable.clamp(1, LARGE_LANES.len())]
        }
        Group::Large => &LARGE_LANES[..1],
        Group::Tables(kind) if can_spare_lane(inner, SEGMENTS_FOR_TABLE_GROUPS) => {
            let at = usize::from(kind) % TABLE_GROUPS;
            &TABLE_LANES[at..=at]
        }
        Group::Tables(_) => &TABLE_LANES[..1],
    }
}

/// Gives a segment that was open when the drive was closed to a lane of its stream; seals it when none is left. Which
/// of two groups filled it is not known: whichever goes on costs nothing but order.
pub(crate) fn reopen(inner: &Inner, stream: Stream, open: OpenSegment) {
    let lane = match stream {
        Stream::Commit => Some(stream as usize),
        Stream::Moved => {
            moved_lanes(inner).iter().copied().find(|&lane| inner.writers[lane].open().is_none())
        }
        Stream::Table => {
            let groups = (0..TABLE_GROUPS as u8).map(|kind| lanes(inner, Group::Tables(kind))[0]);
            groups.into_iter().find(|&lane| inner.writers[lane].open().is_none())
        }
        Stream::Large => {
            lanes(inner, Group::Large).iter().copied().find(|&lane| inner.writers[lane].open().is_none())
        }
    };
    match lane.filter(|&lane| inner.writers[lane].open().is_none()) {
        Some(lane) => inner.writers[lane].set_open(open),
        None => inner.table().seal(open.id),
    }
}

/// Seals what is open of tables and not being written, and what several lanes of other streams do not use: where space is at
/// its end, the rests of segments count, and a group that is used no more would keep its own for ever.
pub(crate) fn seal_tables(inner: &Inner) {
    crate::commit::seal_idle(inner);
    for &lane in TABLE_LANES.iter().chain(&MOVED_LANES[1..]).chain(&LARGE_LANES[1..]) {
        if let Some(_turn) = inner.writers[lane].turn().try_acquire(1)
            && let Some(open) = inner.writers[lane].take_open()
        {
            inner.table().seal(open.id);
        }
    }
}

/// Waits for the turn on a lane of the group, for a frame of `padded` bytes.
async fn take_lane(inner: &Inner, group: Group, padded: usize) -> (usize, Permit<'_>) {
    let lanes = lanes(inner, group);
    if let Some(shared) = shared_lane(inner, lanes, padded) {
        return (shared, inner.writers[shared].turn().acquire(1).await);
    }
    let free = |&lane: &usize| Some((lane, inner.writers[lane].turn().try_acquire(1)?));
    if let Some(taken) = lanes.iter().find_map(free) {
        return taken;
    }
    let lane = lanes[inner.next_lane.fetch_add(1, Ordering::Relaxed) % lanes.len()];
    (lane, inner.writers[lane].turn().acquire(1).await)
}

/// While segments are short a group of tables opens none of its own: it goes where there is room, and where there is none what
/// is nearly full makes way, so that what is left of the others is not lost.
fn shared_lane(inner: &Inner, lanes: &[usize], padded: usize) -> Option<usize> {
    if lanes.len() > 1 || !TABLE_LANES.contains(&lanes[0]) || !inner.table().is_short() {
        return None;
    }
    let own = lanes[0];
    let room = |lane: usize| Some(open_room(inner, inner.writers[lane].next_open()?));
    if room(own).is_some_and(|room| room >= padded) {
        return Some(own);
    }
    let open = TABLE_LANES.into_iter().filter_map(|lane| Some((room(lane)?, lane)));
    let fits = open.clone().filter(|&(room, _)| room >= padded).min();
    fits.or_else(|| open.min()).map(|(_, lane)| lane)
}

/// Bytes that are left in an open segment.
fn open_room(inner: &Inner, open: OpenSegment) -> usize {
    inner.segment_bytes as usize - (open.offset as usize).max(inner.page_bytes())
}

/// Bytes of a frame with one record.
fn frame_bytes(payload: usize, has_seq: bool) -> usize {
    frame::HEADER_BYTES + record::padded(record::total_bytes(payload, has_seq))
}

/// Largest payload that fits in a fresh segment.
pub(crate) fn object_max_bytes(inner: &Inner) -> u32 {
    inner.segment_bytes - inner.page_bytes() as u32 - frame_bytes(0, true) as u32
}

/// See [`crate::Heap::object_room`].
pub(crate) fn object_room(inner: &Inner, group: Group) -> u32 {
    let fresh = object_max_bytes(inner);
    // Of the lane that is free, if one is.
    let lanes = lanes(inner, group);
    let free = lanes.iter().find(|&&lane| inner.writers[lane].turn().available() > 0);
    // Less than a sixteenth of a segment is not worth a piece: the segment is sealed.
    let least = inner.segment_bytes / 16;
    let shared = shared_lane(inner, lanes, frame_bytes(least as usize, true));
    let lane = shared.unwrap_or(*free.unwrap_or(&lanes[0]));
    let Some(open) = inner.writers[lane].next_open() else { return fresh };
    match (open_room(inner, open) as u32).checked_sub(frame_bytes(0, true) as u32) {
        Some(room) if room >= least => room,
        _ => fresh,
    }
}

/// The lanes of moved records.
pub(crate) fn moved_lanes(inner: &Inner) -> &'static [usize] {
    &MOVED_LANES[..inner.lanes.min(MOVED_LANES_MAX)]
}

/// Waits for the turn on a lane of moved records: one that has nothing to do, with a segment first, and without one only while
/// segments are not short.
async fn take_moved_lane(inner: &Inner) -> (usize, Permit<'_>) {
    let lanes = moved_lanes(inner);
    let take = |&lane: &usize| Some((lane, inner.writers[lane].turn().try_acquire(1)?));
    let is_open = |lane: &usize| inner.writers[*lane].next_open().is_some();
    let open = lanes.iter().filter(|lane| is_open(lane));
    if let Some(taken) = open.clone().find_map(take) {
        return taken;
    }
    let open: SmallVec<[usize; MOVED_LANES_MAX]> = open.copied().collect();
    if (open.is_empty() || !inner.table().is_short())
        && let Some(taken) = lanes.iter().find_map(take)
    {
        return taken;
    }
    let waits = if open.is_empty() { &lanes[..1] } else { &open };
    let lane = waits[inner.next_lane.fetch_add(1, Ordering::Relaxed) % waits.len()];
    (lane, inner.writers[lane].turn().acquire(1).await)
}

/// Largest frame of moved records: what is left of the open segment is filled, but for a sliver.
fn moved_frame_max(inner: &Inner, lane: usize) -> usize {
    let page = inner.page_bytes();
    let max = inner.frame_max_bytes();
    let Some(open) = inner.writers[lane].open() else { return max };
    let left = inner.segment_bytes as usize - (open.offset as usize).max(page);
    if left > page { max.min(left / page * page) } else { max }
}

/// The segment being written: sealed if the write is abandoned, because how far it came is not known then.
struct Writing<'a> {
    inner: &'a Arc<Inner>,
    writer: &'a Writer,
    segment: Option<SegmentId>,
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        self.writer.expect(None);
        if let Some(segment) = self.segment {
            self.inner.table().seal(segment);
        }
    }
}

/// While held, a segment in which moved records lie is not offered as a victim: nothing names them yet.
pub struct Hold {
    inner: Arc<Inner>,
    segment: SegmentId,
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.inner.table().let_go(self.segment);
    }
}

/// A frame's records, on flash.
struct Written {
    ptrs: Vec<RecordPtr>,
    /// Of what cleaning moves.
    hold: Option<Hold>,
}

/// Writes one frame of several records, numbered by its page unless `number` is given. The caller holds the
/// lane's turn.
async fn write_frame(
    inner: &Arc<Inner>,
    lane: usize,
    stream: Stream,
    class: AppendClass,
    frame: &mut FrameBuf,
    number: Option<u64>,
) -> Result<Written, AppendError> {
    let page = inner.page_bytes();
    let writer = &inner.writers[lane];
    let used = frame.frame_bytes();
    let max = inner.segment_bytes as usize - page;
    if used > max {
        return Err(AppendError::Oversize { len_bytes: used as u64, max_bytes: max as u64 });
    }
    let padded = used.next_multiple_of(page);
    for _ in 0..TRIES {
        inner.check_writable()?;
        metalog::ensure_dirty(inner)
            .await
            .map_err(|error| AppendError::ReadOnly(error.to_string().into()))?;
        let open = take_segment(inner, lane, stream, class, padded).await?;
        let mut writing = Writing { inner, writer, segment: Some(open.id) };
        let number = number.unwrap_or(u64::from(open.offset) / page as u64);
        let last_seq = inner.commit().next_seq - 1;
        let start = Addr::new(open.id, open.offset);
        let head = if open.offset == 0 { page } else { 0 };
        let segment_header = SegmentHeader {
            drive_id: inner.superblock.drive_id,
            segment: open.id.0,
            segment_bytes: inner.segment_bytes,
            life: open.life,
            stream,
            first_frame: number,
            seq: last_seq,
            durable_frames: number,
        };
        let frame_header = FrameHeader {
            life: open.life,
            number,
            seq: last_seq,
            meta_stamp: inner.meta.stamp(),
            bytes: used as u32,
            count: frame.count() as u32,
            lag: 0,
            has_summary: false,
            stream,
            more: false,
            skipped: 0,
            head: None,
        };
        let (data, ptrs) = frame.place(&Place {
            segment_header: (head > 0).then_some(&segment_header),
            frame_header: &frame_header,
            addr: Addr::new(open.id, open.offset + head as u32),
        });
        let end = start.offset() + (head + padded) as u32;
        let full = end + 2 * page as u32 > inner.segment_bytes;
        writer.expect((!full).then_some(OpenSegment { offset: end, ..open }));
        match program(inner, start, data).await {
            Ok(()) => {
                let live = ptrs.iter().map(|ptr| ptr.len).sum();
                let is_moved = class == AppendClass::System;
                writing.segment = None;
                let newest = if stream == Stream::Moved { number } else { last_seq };
                {
                    let mut table = inner.table();
                    table.wrote(open.id, end, live, newest);
                    if is_moved {
                        table.hold(open.id);
                    }
                    if full {
                        table.seal(open.id);
                    }
                }
                if !full {
                    writer.set_open(OpenSegment { offset: end, ..open });
                }
                let counter = match stream {
                    Stream::Moved => &inner.counters.moved_bytes,
                    Stream::Large => &inner.counters.large_bytes,
                    _ => &inner.counters.table_bytes,
                };
                counter.fetch_add((head + padded) as u64, Ordering::Relaxed);
                inner.kick_meta();
                return Ok(Written {
                    ptrs,
                    hold: is_moved.then(|| Hold { inner: inner.clone(), segment: open.id }),
                });
            }
            Err(FlashError::ProgramFailed { .. } | FlashError::EraseFailed { .. }) => {
                writing.segment = None;
                inner.counters.relocations.fetch_add(1, Ordering::Relaxed);
                inner.table().seal_failed(open.id, open.offset);
                // Retired for good before anything is acknowledged that lies elsewhere because of it.
                metalog::write_meta(inner, metalog::Write::internal())
                    .await
                    .map_err(|error| AppendError::ReadOnly(error.to_string().into()))?;
            }
            // Nothing was lost: what was durable is, and the caller may try again once the host has space.
            Err(error @ FlashError::NoSpace { .. }) => {
                return Err(AppendError::ReadOnly(error.to_string().into()));
            }
            Err(error) => {
                let reason = format!("write to {start} failed: {error}");
                inner.fail(&reason);
                return Err(AppendError::ReadOnly(reason.into()));
            }
        }
    }
    let reason = format!("programs failed in {TRIES} segments in a row");
    inner.fail(&reason);
    Err(AppendError::ReadOnly(reason.into()))
}

/// The lane's open segment if the frame fits, else a fresh one.
async fn take_segment(
    inner: &Arc<Inner>,
    lane: usize,
    stream: Stream,
    class: AppendClass,
    padded: usize,
) -> Result<OpenSegment, AppendError> {
    let writer = &inner.writers[lane];
    inner.check_reserve(class)?;
    if let Some(open) = writer.take_open() {
        if padded <= open_room(inner, open) {
            return Ok(open);
        }
        inner.table().seal(open.id);
    }
    let mut out = VecDeque::new();
    match inner.open_segments(stream, 1, class, &mut out) {
        Ok(()) => {}
        // Nor would a metadata record bring any.
        Err(AppendError::Busy) if !inner.table().record_brings_segments() => return Err(AppendError::Busy),
        Err(AppendError::Busy) => {
            // The pool is used up: a metadata record names more.
            metalog::write_meta(inner, metalog::Write::internal())
                .await
                .map_err(|error| AppendError::ReadOnly(error.to_string().into()))?;
            inner.open_segments(stream, 1, class, &mut out)?;
        }
        Err(error) => return Err(error),
    }
    out.pop_front().ok_or(AppendError::Busy)
}

async fn program(inner: &Inner, start: Addr, data: Bytes) -> Result<(), FlashError> {
    let block = inner.block(start.segment());
    if start.offset() == 0 {
        inner.device.erase(block).await?;
    }
    let mut done = 0;
    while done < data.len() {
        let chunk = (data.len() - done).min(CHUNK_BYTES);
        let page = (start.offset() + done as u32) / inner.superblock.page_bytes;
        inner.device.program(block, page, data.slice(done..done + chunk), WriteSync::Durable).await?;
        done += chunk;
    }
    let page = start.offset() / inner.superblock.page_bytes;
    let pages = page..page + data.len() as u32 / inner.superblock.page_bytes;
    crate::wear::check_written(&inner.device, block, pages).await
}

/// See [`crate::Heap::write_object`].
pub(crate) async fn write_object(
    inner: &Arc<Inner>,
    kind: u8,
    group: Group,
    class: AppendClass,
    object: &mut Object,
) -> Result<(RecordPtr, Option<Hold>), AppendError> {
    // Before the turn: others write meanwhile.
    object.frame.end(kind);
    let padded = object.frame.frame_bytes().next_multiple_of(inner.page_bytes());
    let (lane, _turn) = take_lane(inner, group, padded).await;
    let Written { ptrs, hold } =
        write_frame(inner, lane, group.stream(), class, &mut object.frame, None).await?;
    Ok((ptrs[0], hold))
}

/// See [`crate::Heap::write_moved`].
pub(crate) struct MovedFrames {
    pub ptrs: Vec<RecordPtr>,
    pub numbers: Vec<u64>,
    pub holds: Vec<Hold>,
}

/// See [`crate::Heap::write_moved`].
pub(crate) async fn write_moved(
    inner: &Arc<Inner>,
    records: &[MovedRecord],
) -> Result<MovedFrames, AppendError> {
    let (lane, _turn) = take_moved_lane(inner).await;
    let mut ptrs = Vec::with_capacity(records.len());
    let (mut numbers, mut holds) = (Vec::new(), Vec::new());
    let mut rest = records;
    while !rest.is_empty() {
        let max = moved_frame_max(inner, lane);
        let (mut bytes, mut count) = (frame::HEADER_BYTES, 0);
        while let Some(next) = rest.get(count) {
            let need = record::padded(record::total_bytes(next.payload.len(), true));
            if count > 0 && bytes + need > max {
                break;
            }
            bytes += need;
            count += 1;
        }
        let mut frame = FrameBuf::new(inner.page_bytes(), bytes - frame::HEADER_BYTES);
        for record in &rest[..count] {
            frame.begin(record.kind, Some(record.seq));
            frame.extend(&record.payload);
            frame.end(record.kind);
        }
        let number = inner.moves().begin();
        numbers.push(number);
        match write_frame(inner, lane, Stream::Moved, AppendClass::System, &mut frame, Some(number)).await {
            Ok(written) => {
                ptrs.extend(written.ptrs);
                holds.extend(written.hold);
            }
            Err(error) => {
                // Nobody learns where the frames before it lie: no recovery needs them, nor will anything name them.
                let mut moves = inner.moves();
                numbers.iter().for_each(|&number| moves.forget(number));
                drop(moves);
                let mut table = inner.table();
                ptrs.iter().for_each(|ptr: &RecordPtr| table.mark_dead(ptr.addr.segment(), ptr.len));
                return Err(error);
            }
        }
        rest = &rest[count..];
    }
    Ok(MovedFrames { ptrs, numbers, holds })
}
