//! The commit stream: what callers append, in order, one contiguous write at a time, or two under load.
//!
//! 1. [`append`] takes the commit lock, copies the records behind each other into the *forming* frame's buffer and
//!    gives them sequence numbers and addresses. Payload checksums are computed before the lock, the rest of the
//!    checksum (life, address) under it.
//! 2. The first append on an idle stream starts the *pump* on its core. The pump seals the forming frame, writes
//!    it, opens the durability gate, and goes on with what formed meanwhile; it ends when there is nothing. When much
//!    forms during a write ([`PIPELINE_BYTES`]), or half of those who write came with large values, the append that makes
//!    it so starts a second pump, so that a drive that takes two writes at once is kept busy; frames still count in order.
//! 3. A frame that is full, or reaches its segment's end, is sealed at once and queued; a batch that goes on in the
//!    next frame says so (MORE), and counts only when all its frames are there.
//! 4. Where the drive has several channels, frames are dealt over several open segments (`lanes.rs`), and as many are written
//!    at once. They are numbered in one order all the same, and one counts only when all before it are on flash.
//!
//! Rejected: small writes side by side (one write of what they hold is faster and costs less); a frame per core
//! (batches over slices would need a protocol).

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use pumice_reactor::{IoBuf, Nanos, spawn};
use smallvec::SmallVec;

use crate::company::Company;
use crate::forming::Forming;
use crate::inner::Inner;
use crate::lanes::Lanes;
use crate::layout::frame::{self, FrameHeader};
use crate::layout::header::SegmentHeader;
use crate::layout::{record, summary};
use crate::pump::pump;
use crate::relocate::reencode_records;
use crate::room::Lacks;
use crate::stats::AppendCounts;
use crate::summary::{Summary, entry_bytes};
use crate::table::{NoSegment, OpenSegment, POOL_SEGMENTS};
use crate::{Addr, AppendClass, AppendError, Appended, Durability, Record, RecordIn, RecordPtr, SegmentId};
use crate::{Stream, tail};

const FRAME_BUFFER_MIN_BYTES: usize = 16 << 10;
/// Bytes formed during a write that are worth a second one beside it (decision 0013). Of less, one write of all that forms until
/// the first has ended is as fast and costs less, and every commit ends in half a page of padding. Of small segments an
/// eighth.
const PIPELINE_BYTES: usize = 256 << 10;
/// Payload whose checksum may be computed anew under the lock, because its record carries its own number.
const NUMBERED_MAX_BYTES: u32 = 32 << 10;
/// Writes side by side in one segment, at most.
const FLYING_MAX: usize = 2;
/// Of several lanes, a frame that holds so much is full: what is appended at once is written at once, on several channels. Of
/// small segments a thirty-second, or four pages.
const STRIPE_BYTES: usize = 256 << 10;
/// Of several lanes, frames from the oldest that is not written yet to the newest that may be written: so many for each lane.
/// Bounds what recovery does not know of the order in which frames became durable.
const WINDOW_PER_LANE: u64 = 4;

/// Segments that a batch may take: all of them are opened at once, out of those that the metadata log names ahead, of which one may
/// be in the making.
const BATCH_SEGMENTS_MAX: usize = POOL_SEGMENTS - 2;

/// A frame on its way to flash.
pub(crate) struct Sealed {
    pub data: Bytes,
    pub start: Addr,
    pub lane: usize,
    pub number: u64,
    /// Everything up to here is in this frame or before it.
    pub last_seq: u64,
    pub more: bool,
    /// Bytes counted against the bound on un-durable bytes.
    pub counted: usize,
    /// Appends that end in it.
    pub appends: u32,
    pub padding: usize,
}

/// A frame being written.
pub(crate) struct Flying {
    pub number: u64,
    /// The device has the write: the next one may follow.
    pub is_issued: bool,
    /// It is written, and took so long.
    pub written: Option<(Sealed, Duration)>,
}

/// The commit stream's state, behind the commit lock.
pub(crate) struct Commit {
    pub next_seq: u64,
    pub next_frame: u64,
    /// Frames below this number are on flash.
    pub durable_frames: u64,
    /// Everything up to this sequence number is on flash.
    pub durable_seq: u64,
    /// Frames below this number are written, perhaps not synced.
    pub written_frames: u64,
    pub lanes: Lanes,
    /// Of several lanes: number and newest sequence number of each frame that a recovery would replay.
    pub marks: VecDeque<(u64, u64)>,
    pub forming: Option<Forming>,
    pub sealed: VecDeque<Sealed>,
    /// Segments that are complete once this frame is on flash.
    pub closing: VecDeque<(u64, SegmentId)>,
    /// Pumps at work.
    pub pumps: usize,
    /// Frames being written, in order.
    pub flying: VecDeque<Flying>,
    /// Frames that set out while another was being written.
    pub beside: u64,
    pub company: Company,
    pub undurable_bytes: usize,
    pub appended: AppendCounts,
    frame_bytes_lately: usize,
    /// Write everything up to here without waiting for more.
    pub force_seq: u64,
    pub last_sync: Nanos,
    /// A pump waits for the next sync to be due, and for nothing else.
    pub awaits_sync: bool,
    /// A sync is under way, begun by a pump.
    pub is_syncing: bool,
}

impl Commit {
    pub(crate) fn new(next_seq: u64, next_frame: u64, lanes: usize) -> Self {
        Self {
            next_seq,
            next_frame,
            durable_frames: next_frame,
            durable_seq: next_seq - 1,
            written_frames: next_frame,
            lanes: Lanes::new(lanes),
            marks: VecDeque::new(),
            forming: None,
            sealed: VecDeque::with_capacity(64),
            closing: VecDeque::with_capacity(8),
            pumps: 0,
            flying: VecDeque::with_capacity(FLYING_MAX.max(lanes)),
            beside: 0,
            company: Company::default(),
            undurable_bytes: 0,
            appended: AppendCounts::default(),
            frame_bytes_lately: FRAME_BUFFER_MIN_BYTES,
            force_seq: 0,
            last_sync: Nanos(0),
            awaits_sync: false,
            is_syncing: false,
        }
    }

    /// Half of the users came, with much, and it can set out at once: the other half follows beside it.
    fn is_half(&self, inner: &Inner) -> bool {
        let is_half = |forming: &Forming| forming.is_large(inner) && self.company.is_half(forming.appends);
        inner.options.durability == Durability::Always
            && inner.is_pipelined()
            && !self.is_wide()
            && self.sealed.is_empty()
            && self.flying.len() < FLYING_MAX
            && self.forming.as_ref().is_some_and(is_half)
    }

    /// The pump waits for company, which is now complete.
    fn is_gathered(&self, inner: &Inner) -> bool {
        let is_gathered =
            |forming: &Forming| forming.is_large(inner) || self.company.is_complete(forming.appends);
        self.company.is_awaited() && self.forming.as_ref().is_some_and(is_gathered)
    }

    /// The first frame that a recovery replays from `replay_from` on, as far as is known here; 0 when nothing is.
    pub(crate) fn first_beyond(&self, replay_from: u64) -> u64 {
        let at = self.marks.partition_point(|&(_, newest)| newest <= replay_from);
        at.checked_sub(1).map_or(0, |last| self.marks[last].0 + 1)
    }

    /// No frame so far has a newer sequence number than this. Without it a checkpoint would not know that it covers those of which
    /// nothing is known here: from before a clean opening, or lost.
    pub(crate) fn mark_all(&mut self, newest: u64) {
        let Some(last) = self.next_frame.checked_sub(1) else { return };
        if self.marks.back().is_none_or(|&(number, _)| number < last) {
            self.marks.push_back((last, newest));
        }
    }

    /// Recoveries replay from `frame` on.
    pub(crate) fn forget_marks(&mut self, frame: u64) {
        let at = self.marks.partition_point(|&(number, _)| number < frame);
        self.marks.drain(..at);
    }

    /// Whether frames are dealt over several segments.
    pub(crate) fn is_wide(&self) -> bool {
        self.lanes.count() > 1
    }

    /// Frames that may be on their way, from the oldest on.
    fn window(&self) -> u64 {
        WINDOW_PER_LANE * self.lanes.count() as u64
    }

    fn may_fly(&self, lane: usize, number: u64) -> bool {
        !self.lanes.is_flying(lane) && number < self.written_frames + self.window()
    }

    /// Of several lanes: the sealed frame that is written next, if one can be.
    fn ready(&self) -> Option<usize> {
        // The first of a lane comes first: one behind it finds the lane at work, or about to be.
        let mut passed: SmallVec<[usize; 64]> = SmallVec::new();
        for (at, sealed) in self.sealed.iter().enumerate() {
            if sealed.number >= self.written_frames + self.window() {
                break;
            }
            if !passed.contains(&sealed.lane) {
                if self.may_fly(sealed.lane, sealed.number) {
                    return Some(at);
                }
                passed.push(sealed.lane);
            }
        }
        None
    }

    /// Takes the sealed frame that is written next.
    pub(crate) fn take_ready(&mut self) -> Option<Sealed> {
        if !self.is_wide() {
            return self.sealed.pop_front();
        }
        let at = self.ready()?;
        self.sealed.remove(at)
    }

    /// Nothing is forming, queued or being written.
    pub(crate) fn is_idle(&self) -> bool {
        self.forming.is_none() && self.sealed.is_empty() && self.flying.is_empty()
    }

    /// Whether a frame may be written now beside what is being written.
    pub(crate) fn may_write(&self, inner: &Inner) -> bool {
        let enough = match self.is_wide() {
            true => stripe_bytes(inner) / 4,
            false => PIPELINE_BYTES.min(inner.segment_bytes as usize / 8),
        };
        let is_much = |forming: &&Forming| forming.used >= enough;
        match self.flying.back() {
            None => true,
            Some(_) if self.is_wide() => {
                let forming = self.forming.as_ref().filter(is_much);
                self.ready().is_some()
                    || forming.is_some_and(|forming| self.may_fly(forming.lane, self.next_frame))
            }
            Some(last) => {
                let much = self.forming.as_ref().is_some_and(|forming| is_much(&forming));
                inner.is_pipelined()
                    && last.is_issued
                    && self.flying.len() < FLYING_MAX
                    && (much || !self.sealed.is_empty())
            }
        }
    }

    /// Takes back that a frame whose program failed was issued, so that nothing follows it while it goes elsewhere.
    /// Answers false when something is behind it already.
    pub(crate) fn withdraw(&mut self, number: u64) -> bool {
        if self.is_wide() {
            // Nothing follows it in its lane while it flies.
            return true;
        }
        match self.flying.back_mut() {
            Some(last) if last.number == number => {
                last.is_issued = false;
                true
            }
            _ => false,
        }
    }

    /// Counts a new pump if one should start.
    pub(crate) fn starts_pump(&mut self, inner: &Inner) -> bool {
        // Each pump but one that is about to look for work has a frame flying.
        let flying = match self.is_wide() {
            // What waits for an earlier frame has no pump any more.
            true => self.flying.iter().filter(|flying| flying.written.is_none()).count(),
            false => self.flying.len(),
        };
        let starts = self.pumps == 0 || (self.pumps == flying && self.may_write(inner));
        self.pumps += usize::from(starts);
        starts
    }

    /// How long the forming frame should wait for more.
    pub(crate) fn awaits_company(&mut self, inner: &Inner, at: Nanos) -> Option<Duration> {
        let forming = self.forming.as_ref().filter(|forming| !forming.is_large(inner))?;
        if !self.flying.is_empty() {
            return None;
        }
        self.company.wait(forming.appends, forming.since, at, inner.is_sparing.load(Ordering::Relaxed))
    }

    /// When the forming frame took its first record.
    pub(crate) fn forming_since(&self) -> Option<Nanos> {
        self.forming.as_ref().map(|forming| forming.since)
    }

    /// First sequence number of the forming frame.
    pub(crate) fn forming_first_seq(&self) -> Option<u64> {
        self.forming.as_ref().map(|forming| forming.first_seq)
    }

    /// Makes sure that a batch of `total` padded bytes finds room, opening segments ahead.
    fn reserve_segments(
        &mut self,
        inner: &Inner,
        total: usize,
        largest: usize,
        count: usize,
        class: AppendClass,
    ) -> Result<(), AppendError> {
        let segment_bytes = inner.segment_bytes as usize;
        let is_wide = self.is_wide();
        let stripe = if is_wide { stripe_bytes(inner) } else { usize::MAX };
        let Need { total, largest, loss, fill, cost } = Need::of(inner, total, largest, count, stripe);
        if self.takes(inner, cost) {
            self.lanes.keep(0);
        } else {
            let frames_in_segment = segment_bytes / if is_wide { fill } else { inner.frame_max_bytes() } + 2;
            let room = segment_bytes.saturating_sub(inner.page_bytes() + largest + frames_in_segment * loss);
            let needed = if room == 0 { count } else { (cost.div_ceil(room) + 1).min(count.max(1)) };
            if needed > BATCH_SEGMENTS_MAX {
                let (len_bytes, max_bytes) = (total as u64, (BATCH_SEGMENTS_MAX - 1) as u64 * room as u64);
                return Err(AppendError::Oversize { len_bytes, max_bytes });
            }
            let missing = needed.saturating_sub(self.lanes.spares.len());
            if missing > 0 {
                inner.open_segments(Stream::Commit, missing, class, &mut self.lanes.spares)?;
            }
            self.lanes.keep(needed);
        }
        if is_wide && self.undurable_bytes + total >= stripe / 4 {
            let fits = |open: &OpenSegment| Self::has_room(inner, open, largest);
            let wanted = self.lanes.spares_wanted(total / stripe + 1, fits);
            if wanted > 0 && inner.can_spare(wanted) {
                // They make it faster, and it goes without them.
                let _ = inner.open_segments(Stream::Commit, wanted, class, &mut self.lanes.spares);
            }
        }
        Ok(())
    }

    /// Whether one lane takes all of what costs so much: others may take part of it, and none takes more.
    fn takes(&self, inner: &Inner, cost: usize) -> bool {
        let forming = self.forming.as_ref();
        let used = |(lane, open): (usize, OpenSegment)| match forming {
            Some(forming) if forming.lane == lane => forming.start.offset() as usize + forming.taken(),
            _ => (open.offset as usize).max(inner.page_bytes()),
        };
        self.lanes.all_open().any(|open| cost + used(open) <= inner.segment_bytes as usize)
    }

    /// Whether segments that are open take a write of a page, as [`Self::reserve_segments`] would find. Most are of more than one
    /// record, for which it wants two spares.
    pub(crate) fn takes_a_page(&self, inner: &Inner) -> bool {
        self.lanes.spares.len() > 1 || self.takes(inner, self.page_cost(inner))
    }

    /// What a record of a page costs at most.
    fn page_cost(&self, inner: &Inner) -> usize {
        let record = record::padded(record::HEADER_BYTES + inner.page_bytes());
        let stripe = if self.is_wide() { stripe_bytes(inner) } else { usize::MAX };
        Need::of(inner, record, record, 1, stripe).cost
    }

    fn has_room(inner: &Inner, open: &OpenSegment, need: usize) -> bool {
        (open.offset as usize).max(inner.page_bytes()) + frame::HEADER_BYTES + need
            <= inner.segment_bytes as usize
    }

    /// Starts a frame that takes a record of `need` bytes. The segments were reserved.
    fn begin(&mut self, inner: &Inner, need: usize) {
        let page = inner.page_bytes();
        let segment_bytes = inner.segment_bytes as usize;
        let (lane, needs_spare) = self.lanes.pick(|open| Self::has_room(inner, open, need));
        if needs_spare && let Some(full) = self.lanes.replace(lane) {
            self.closing.push_back((self.next_frame.saturating_sub(1), full.id));
        }
        let Some(open) = self.lanes.open(lane) else {
            panic!("no segment for a frame although segments were reserved")
        };
        let frame_at = if open.offset == 0 { page } else { 0 };
        let first = frame_at + frame::HEADER_BYTES;
        let limit = (frame_at + inner.frame_max_bytes().max((first + need).next_multiple_of(page)))
            .min(segment_bytes - open.offset as usize);
        let capacity = self.frame_bytes_lately.max(first + need).next_power_of_two().min(limit.max(page));
        let start = Addr::new(open.id, open.offset);
        inner.forming_at.store(start.0, Ordering::Release);
        self.forming = Some(Forming {
            buf: IoBuf::for_read(capacity),
            used: first,
            frame_at,
            limit,
            start,
            life: open.life,
            first_seq: self.next_seq,
            count: 0,
            live: 0,
            appends: 0,
            since: pumice_reactor::now(),
            lane,
            summary: Some(Summary::default()),
        });
    }

    /// Copies one record in; `batch_begun` says that records of the same batch precede it in the forming frame.
    fn put(
        &mut self,
        inner: &Inner,
        input: &RecordIn<'_>,
        shape: Shape,
        batch_begun: &mut bool,
    ) -> RecordPtr {
        // Behind numbers that others took, a record says its own.
        let mut seq = match &self.forming {
            Some(forming) if forming.first_seq + u64::from(forming.count) != self.next_seq => {
                Some(self.next_seq)
            }
            _ => None,
        };
        let need = |seq: Option<u64>| record::padded(record::total_bytes(shape.len as usize, seq.is_some()));
        let stripe = if self.is_wide() { stripe_bytes(inner) } else { usize::MAX };
        let entry = entry_bytes(input.outline, shape.len as usize);
        let is_over = |forming: &Forming| {
            forming.used >= stripe
                || forming.taken() + need(seq) + entry.unwrap_or(0) > forming.limit
                || (seq.is_some() && shape.len > NUMBERED_MAX_BYTES)
        };
        if self.forming.as_ref().is_some_and(is_over) {
            self.seal(inner, *batch_begun);
            (*batch_begun, seq) = (false, None);
        }
        let need = need(seq);
        if self.forming.is_none() {
            self.begin(inner, need);
        }
        let Some(forming) = self.forming.as_mut() else { unreachable!("a frame was just begun") };
        let total = record::total_bytes(shape.len as usize, seq.is_some());
        let crc = if seq.is_some() { record::payload_crc(seq, input.parts) } else { shape.crc };
        let end = forming.used + need;
        if end > forming.buf.len() {
            forming.grow(end);
        }
        match (&mut forming.summary, entry) {
            (Some(summary), Some(_)) => summary.add(input.outline, forming.used - forming.frame_at),
            (summary, _) => *summary = None,
        }
        let addr = Addr::new(forming.start.segment(), forming.start.offset() + forming.used as u32);
        let out = &mut forming.buf[forming.used..end];
        let mut at = record::encode_head(out, forming.life, addr, shape.len, input.kind, seq, crc);
        for part in input.parts {
            out[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        out[at..].fill(0);
        forming.used = end;
        forming.count += 1;
        forming.live += total as u32;
        self.next_seq += 1;
        *batch_begun = true;
        RecordPtr { addr, len: total as u32 }
    }

    /// Ends the forming frame and queues it.
    pub(crate) fn seal(&mut self, inner: &Inner, more: bool) {
        let Some(mut forming) = self.forming.take() else { return };
        self.company.sealed(forming.appends);
        let page = inner.page_bytes();
        let frame_addr = Addr::new(forming.start.segment(), forming.start.offset() + forming.frame_at as u32);
        let counted = forming.used - forming.frame_at - frame::HEADER_BYTES;
        let has_summary = forming.add_summary(inner, frame_addr);
        let padded = forming.used.next_multiple_of(page);
        if padded > forming.buf.len() {
            forming.grow(padded);
        }
        let number = self.next_frame;
        self.next_frame += 1;
        // At most so many frames fly when one is written; in the relaxed modes any number may be unsynced.
        let durable_frames = match inner.options.durability {
            // Of several lanes: those at whose end the window begins.
            Durability::Always if self.is_wide() => {
                self.durable_frames.max((number + 1).saturating_sub(self.window()))
            }
            Durability::Always if inner.is_pipelined() => {
                self.durable_frames.max(number.saturating_sub(FLYING_MAX as u64 - 1))
            }
            Durability::Always => number,
            _ => self.durable_frames,
        };
        forming.buf[forming.used..padded].fill(0);
        if forming.frame_at > 0 {
            let header = SegmentHeader {
                drive_id: inner.superblock.drive_id,
                segment: forming.start.segment().0,
                segment_bytes: inner.segment_bytes,
                life: forming.life,
                stream: Stream::Commit,
                first_frame: number,
                seq: forming.first_seq - 1,
                durable_frames,
            };
            forming.buf[..forming.frame_at].fill(0);
            header.encode(&mut forming.buf[..forming.frame_at]);
        }
        FrameHeader {
            life: forming.life,
            number,
            seq: forming.first_seq,
            meta_stamp: inner.meta.stamp(),
            bytes: (forming.used - forming.frame_at) as u32,
            count: forming.count,
            lag: (number - durable_frames).min(u64::from(u32::MAX / 2)) as u32,
            has_summary,
            stream: Stream::Commit,
            more,
            skipped: forming.skipped(self.next_seq),
            head: None,
        }
        .encode(&mut forming.buf[forming.frame_at..], frame_addr);
        forming.buf.truncate(padded);
        // It stays in the tail for a while.
        forming.buf.shrink_to_fit();
        let cost = forming.buf.capacity();
        let data = forming.buf.freeze();
        let end = forming.start.offset() + padded as u32;
        let open = self.lanes.open_mut(forming.lane);
        let Some(here) = open.as_mut() else { unreachable!("a frame forms in an open segment") };
        here.offset = end;
        if end + 2 * page as u32 > inner.segment_bytes {
            self.closing.push_back((number, here.id));
            *open = None;
        }
        self.lanes.sealed(forming.lane);
        self.frame_bytes_lately = (self.frame_bytes_lately * 7 / 8).max(padded).max(FRAME_BUFFER_MIN_BYTES);
        let last_seq = self.next_seq - 1;
        if inner.meta.keeps_marks() {
            self.marks.push_back((number, last_seq));
        }
        inner.tail().insert(number, forming.start, data.clone(), cost);
        inner.forming_at.store(u64::MAX, Ordering::Release);
        inner.table().wrote(forming.start.segment(), end, forming.live, last_seq);
        self.sealed.push_back(Sealed {
            data,
            start: forming.start,
            lane: forming.lane,
            number,
            last_seq,
            more,
            counted,
            appends: forming.appends,
            padding: padded - forming.used,
        });
    }

    /// Moves the forming frame, if it lies in `source`, to `offset` of `target`, behind frames that are there already.
    pub(crate) fn move_forming(
        &mut self,
        inner: &Inner,
        source: SegmentId,
        (target, offset): (OpenSegment, u32),
        pairs: &mut Vec<(RecordPtr, RecordPtr)>,
    ) {
        let Some(mut forming) = self.forming.take_if(|forming| forming.start.segment() == source) else {
            return;
        };
        let old_addr = Addr::new(forming.start.segment(), forming.start.offset() + forming.frame_at as u32);
        let start = Addr::new(target.id, offset);
        let used = forming.used - forming.frame_at;
        let mut buf = IoBuf::for_read(forming.buf.len());
        buf[..used].copy_from_slice(&forming.buf[forming.frame_at..forming.used]);
        reencode_records(&mut buf, used, forming.count, target.life, old_addr, start, pairs);
        forming.limit = (forming.limit - forming.frame_at).min((inner.segment_bytes - offset) as usize);
        (forming.buf, forming.used, forming.frame_at) = (buf, used, 0);
        (forming.start, forming.life) = (start, target.life);
        inner.forming_at.store(start.0, Ordering::Release);
        self.forming = Some(forming);
    }

    /// The record, when it lies in the forming frame.
    pub(crate) fn peek(&self, ptr: RecordPtr) -> Option<Record> {
        let forming = self.forming.as_ref()?;
        if !tail::holds(forming.start, forming.used, ptr.addr) {
            return None;
        }
        let at = (ptr.addr.offset() - forming.start.offset()) as usize;
        let bytes = forming.buf.get(at..at + ptr.len as usize)?;
        // A pointer from flash may be anything.
        record::peek_total(bytes).filter(|&total| total == bytes.len())?;
        let payload = bytes.get(record::peek_payload_at(bytes)..)?;
        Some(Record { kind: bytes[8], payload: Bytes::copy_from_slice(payload) })
    }
}

/// What is known of a record before the lock.
#[derive(Clone, Copy)]
struct Shape {
    len: u32,
    crc: u32,
}

/// What a batch may take of the segments that it goes to.
struct Need {
    total: usize,
    largest: usize,
    /// Beside the records, for each frame.
    loss: usize,
    /// Of records, that a frame surely takes.
    fill: usize,
    cost: usize,
}

impl Need {
    /// Of `count` records, padded.
    fn of(inner: &Inner, total: usize, largest: usize, count: usize, stripe: usize) -> Self {
        let page = inner.page_bytes();
        // A frame loses its header, its padding, the end of its summary, and at its end at most the largest record that did
        // not fit. Each record may come to carry its number.
        let (total, largest) = (total + count * record::SEQ_BYTES, largest + record::SEQ_BYTES);
        let loss = page + frame::HEADER_BYTES + 8 + summary::TRAILER_BYTES;
        // One that holds a stripe is not filled on.
        let fill = inner.frame_max_bytes().saturating_sub(largest + loss).min(stripe).max(page);
        let frames = total / fill + 2;
        Self { total, largest, loss, fill, cost: total + frames * loss }
    }
}

/// What a frame holds before the next one begins, on another lane. Its last page is half empty, so it has a few.
fn stripe_bytes(inner: &Inner) -> usize {
    STRIPE_BYTES.min(inner.segment_bytes as usize / 32).max(4 * inner.page_bytes())
}

/// Room for records, which nobody takes meanwhile: the commit stream is locked until they are appended. See
/// [`crate::Heap::admit`].
pub struct Admitted<'h> {
    inner: &'h Arc<Inner>,
    commit: MutexGuard<'h, Commit>,
    shapes: SmallVec<[Shape; 8]>,
    class: AppendClass,
    total: usize,
    payload: u64,
}

/// See [`crate::Heap::admit`].
#[inline]
pub(crate) fn admit<'h>(
    inner: &'h Arc<Inner>,
    records: &[RecordIn<'_>],
    class: AppendClass,
) -> Result<Admitted<'h>, AppendError> {
    inner.check_writable()?;
    inner.check_reserve(class)?;
    let max_bytes = u64::from(inner.append_max_bytes());
    let mut shapes: SmallVec<[Shape; 8]> = SmallVec::new();
    let (mut total, mut largest, mut payload, mut entries) = (0usize, 0usize, 0u64, 0usize);
    for input in records {
        let len = input.parts.iter().map(|part| part.len()).sum::<usize>();
        if len as u64 > max_bytes {
            return Err(AppendError::Oversize { len_bytes: len as u64, max_bytes });
        }
        let padded = record::padded(record::HEADER_BYTES + len);
        total += padded;
        let entry = entry_bytes(input.outline, len).unwrap_or(0);
        largest = largest.max(padded + entry);
        entries += entry;
        payload += len as u64;
        shapes.push(Shape { len: len as u32, crc: record::payload_crc(None, input.parts) });
    }
    let mut commit = inner.commit();
    // Under the lock once more: who closes writes out what is in here when nothing more comes.
    inner.check_writable()?;
    // What is more than half of the bound itself waits for no more than that others leave the other half: it would wait for ever while
    // these go on, and all who queue behind it with it.
    let undurable_max = inner.options.undurable_max_bytes;
    if commit.undurable_bytes > undurable_max.saturating_sub(total).max(undurable_max / 2)
        && class != AppendClass::System
    {
        inner.counters.busy.fetch_add(1, Ordering::Relaxed);
        return Err(AppendError::Busy);
    }
    if class == AppendClass::User && !inner.pace.lets_pass() {
        inner.counters.busy.fetch_add(1, Ordering::Relaxed);
        return Err(AppendError::Busy);
    }
    let reserved = commit.reserve_segments(inner, total + entries, largest, records.len(), class);
    if class == AppendClass::User {
        let lacks = if matches!(reserved, Err(AppendError::Busy)) { Lacks::Segment } else { Lacks::Nothing };
        inner.room.tried(lacks);
    }
    reserved?;
    Ok(Admitted { inner, commit, shapes, class, total, payload })
}

impl Admitted<'_> {
    /// Appends the records that were admitted.
    #[inline]
    pub fn append(self, records: &[RecordIn<'_>]) -> Appended {
        let Self { inner, mut commit, shapes, class, total, payload } = self;
        assert_eq!(records.len(), shapes.len(), "others were admitted");
        let mut ptrs = SmallVec::new();
        if class == AppendClass::User {
            // Not before it is certain: who is refused and tries again must not use up what others could.
            inner.pace.spend(total);
        }
        let first_seq = commit.next_seq;
        let mut batch_begun = false;
        let queued = commit.sealed.len();
        for (input, shape) in records.iter().zip(&shapes) {
            let ptr = commit.put(inner, input, *shape, &mut batch_begun);
            commit.undurable_bytes += record::padded(ptr.len as usize);
            ptrs.push(ptr);
        }
        if let Some(forming) = &mut commit.forming {
            forming.appends += 1;
            commit.company.came();
        }
        if commit.is_half(inner) {
            commit.seal(inner, false);
        }
        commit.appended.count(records.len(), payload);
        let last_seq = commit.next_seq - 1;
        let start_pump = !records.is_empty() && commit.starts_pump(inner);
        // What forms now is due long before the next sync.
        let is_first = std::mem::take(&mut commit.awaits_sync);
        let wake_pump =
            !start_pump && (is_first || commit.sealed.len() > queued || commit.is_gathered(inner));
        drop(commit);
        if inner.options.durability != Durability::Always {
            inner.durable.open_to(last_seq);
        }
        if wake_pump {
            inner.pump_wake.notify_one();
        }
        if start_pump {
            drop(spawn(pump(inner.clone())));
        }
        Appended { first_seq, ptrs }
    }
}

/// What [`Inner::open_segments`] answers when there is none.
pub(crate) fn no_segment(inner: &Inner, why: NoSegment) -> AppendError {
    match why {
        NoSegment::Later => {
            inner.counters.busy.fetch_add(1, Ordering::Relaxed);
            AppendError::Busy
        }
        NoSegment::Full => AppendError::Full(inner.table().space()),
    }
}

/// See [`crate::Heap::next_seq`].
pub(crate) fn take_seqs(inner: &Arc<Inner>, n: u64) -> u64 {
    let mut commit = inner.commit();
    let first = commit.next_seq;
    // The forming frame can pass over so many numbers.
    let fits =
        |forming: &Forming| first + n - forming.first_seq - u64::from(forming.count) <= u64::from(u16::MAX);
    if !commit.forming.as_ref().is_none_or(fits) {
        commit.seal(inner, false);
    }
    commit.next_seq += n;
    let idle = commit.is_idle();
    let last = commit.next_seq - 1;
    if idle && commit.durable_frames == commit.written_frames {
        commit.durable_seq = last;
    }
    drop(commit);
    if idle {
        inner.written.open_to(last);
    }
    // What is acknowledged before it is on flash does not wait for the frames before it either: there may be no later
    // write to open the gate as far as this.
    if idle || inner.options.durability != Durability::Always {
        inner.durable.open_to(last);
    }
    first
}

/// Seals the segments of lanes that have nothing to do, but for the first that still takes a page.
pub(crate) fn seal_idle(inner: &Inner) {
    let mut commit = inner.commit();
    let forming = commit.forming.as_ref().map(|forming| forming.start.segment());
    let page = commit.page_cost(inner);
    let is_full = |open: &OpenSegment| open.offset as usize + page > inner.segment_bytes as usize;
    for open in commit.lanes.take_idle(|open| forming == Some(open.id), is_full) {
        inner.table().seal(open.id);
    }
}
