//! Recovery: the frames that the client's durable state does not cover yet.
//!
//! 1. Commit segments are read in the order in which they were opened, and frames count as they come while their numbers
//!    follow each other.
//! 2. A frame that is missing or not whole is *damage* when a later frame says that it was durable before the
//!    later one was written (`lag`); otherwise it is the torn end of the log, and it and all after it are dropped. The next one
//!    need not know it yet, but any may: from there on all that is left is looked through first, and put in order (`merge.rs`).
//!    Of a log that lies in several segments at once that goes for all of it, and of one of which a segment that holds frames
//!    does not say with which it begins.
//! 3. A batch over several frames (MORE) counts once its last frame is there.
//! 4. Of key tables and pieces of large values only the extent is wanted (`crate::fetch`): the client names those that
//!    count, and reads verify them.
//! 5. At the end the segments that were read are sealed where their accepted frames end, and a snapshot is
//!    written: what was dropped is never met again.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use pumice_flash::Device;

use crate::covered::Covered;
use crate::fetch::{Ahead, Fetched, Found, Part};
use crate::inner::Inner;
use crate::layout::meta::{FLAG_CUT, FLAG_TORN_SUMMARY, MetaRecord};
use crate::merge::{self, Frames, Next, Place};
use crate::metalog::{self, Write};
use crate::scan::Frame;
use crate::{Damage, HeapError, Progress, Replayed, SegmentId, Stream};

/// One frame, or the frames of one batch: all or nothing.
#[derive(Clone, Debug)]
pub struct ReplayedBatch {
    /// The stream it was written to.
    pub stream: Stream,
    /// Its records in order. Empty when only damage is reported.
    pub records: Vec<Replayed>,
    /// What was once durable and does not verify any more, found before this batch: acknowledged data is lost.
    pub damage: Vec<Damage>,
}

/// What was found out about a segment.
#[derive(Default)]
struct Extent {
    end: u32,
    live: u32,
    last_seq: u64,
    /// `live` covers what lies below.
    known_end: u32,
    /// Commit frames behind `end` have this number at least.
    next_frame: u64,
}

/// A segment whose windows are read.
#[derive(Default)]
struct Segment {
    /// Where its frames end so far.
    end: u32,
    /// Some frame was met, and one of which it is known that it was durable.
    has_frames: bool,
    has_known: bool,
    /// Of other streams than the log: where the next frame is expected, and the last one so far, which may be torn.
    expected_at: u32,
    last: Option<Frame>,
}

/// The frames that follow the client's durable state.
pub struct Replay {
    inner: Arc<Inner>,
    segments: Ahead,
    clean: bool,
    finished: bool,
    replay_from: u64,
    moved_from: u64,
    loaded_stamp: u64,
    known_durable: u64,
    /// Of a log in several segments at once, and of what comes behind the first doubt in any other.
    wide: Option<Wide>,
    /// Number and newest sequence number of the commit frames that count and that the next recovery would replay.
    marks: VecDeque<(u64, u64)>,
    /// Of the segment whose windows are read.
    reading: Segment,
    /// Next commit frame's number, once one was seen.
    expected: Option<u64>,
    /// Commit frames that were met one after the other, as long as no doubt arose.
    in_order: Range<u64>,
    /// Frames of a batch that is not complete.
    pending: Vec<(SegmentId, Frame)>,
    damage: Vec<Damage>,
    /// Commit frames that were durable were not found.
    has_lost: bool,
    /// Of commit frames below this number some that were durable may be where they were written and not have been found, though
    /// nothing needs them for the replay: see [`merge::Order::found_from`].
    sought_below: u64,
    /// Commit frames below that number that were found.
    older: BTreeSet<u64>,
    /// Where frames lie of which it was not known that they are durable.
    newest: BTreeSet<(SegmentId, u32)>,
    /// Where commit segments end as far as they read, and what lies there does not.
    unread: Vec<(SegmentId, u32)>,
    /// Frames that count though their summaries do not verify: numbers and segments.
    without_summary: Vec<(u64, SegmentId)>,
    /// Commit frames below this number were durable, as far as those that were looked at say.
    proven: u64,
    extents: BTreeMap<SegmentId, Extent>,
    ready: VecDeque<ReplayedBatch>,
    last_seq: u64,
    next_frame: u64,
    next_moved: u64,
    first_moved: Option<u64>,
    bytes_read: u64,
    bytes_max: u64,
}

/// Frames that are put in order before they count.
struct Wide {
    /// The first that is wanted.
    first: u64,
    /// Those before it are where they belong, and were not handed out.
    has_older: bool,
    /// What is known of where the log begins when some segment does not say with which frame it does itself.
    begin: Option<Begin>,
    found: Vec<Place>,
    /// In their order, once all commit segments were read.
    frames: Option<Frames>,
    /// The first window of another stream, until the log is through.
    held: Option<Part>,
    /// The segments were read to their end.
    is_read: bool,
}

impl Wide {
    fn new(first: u64, has_older: bool, found: Vec<Place>) -> Self {
        Self { first, has_older, begin: None, found, frames: None, held: None, is_read: false }
    }
}

/// Where a log begins of which a segment does not read where it says so: only its frames tell.
#[derive(Default)]
struct Begin {
    /// The lowest frame with which other segments begin.
    known: Option<u64>,
    /// Segments that hold frames, as metadata knows, and do not say with which they begin.
    headless: Vec<Headless>,
}

struct Headless {
    id: SegmentId,
    is_sealed: bool,
    /// What is counted of it need never have been there.
    may_be_nothing: bool,
    /// The newest sequence number in it that metadata knows.
    last_seq: u64,
    /// Where it ends as far as metadata knows.
    known_end: u32,
}

impl Begin {
    /// `None` when every segment says with which frame it begins: they are in order then.
    fn of(segments: &[Found], page_bytes: u32) -> Option<Self> {
        let mut begin = Self::default();
        for found in segments.iter().filter(|found| found.stream == Stream::Commit) {
            match found.first_frame {
                Some(first) if found.sealed_end != Some(0) => {
                    begin.known = Some(begin.known.map_or(first, |known| known.min(first)));
                }
                None if found.known_end > page_bytes => begin.headless.push(Headless {
                    id: found.id,
                    is_sealed: found.sealed_end.is_some(),
                    may_be_nothing: found.is_blank || found.may_have_failed,
                    last_seq: found.last_seq,
                    known_end: found.known_end,
                }),
                // Nothing is known to lie there, or nothing that counts: the frames before it tell where it belongs.
                _ => {}
            }
        }
        (!begin.headless.is_empty()).then_some(begin)
    }

    /// The first frame that is wanted, and no later one than `durable`. What is known to be missing before the lowest that was
    /// found was one frame at least: if that was durable it is damage, and otherwise all that was found is behind the torn end.
    fn first(&self, found: &[Place], durable: u64, page_bytes: u32) -> u64 {
        let (lowest, lacks_some) = match found.iter().min_by_key(|place| place.header.number) {
            Some(Place { segment, offset, header, .. }) => {
                let here = self.headless.iter().any(|headless| headless.id == *segment);
                let before = self.headless.iter().any(|headless| headless.last_seq < header.seq);
                (header.number, before || (here && *offset > page_bytes))
            }
            None => (durable, self.headless.iter().any(|headless| headless.is_sealed)),
        };
        let lowest = lowest.saturating_sub(u64::from(lacks_some));
        lowest.min(self.known.unwrap_or(lowest)).min(durable)
    }

    /// Segments in which something was written that a checkpoint up to `replay_from` does not cover, and nothing was found. What they
    /// held may have been torn, all of it, and then nobody was told that it is durable; nothing says so.
    fn unread<'a>(&'a self, found: &'a [Place], replay_from: u64) -> impl Iterator<Item = &'a Headless> {
        self.headless.iter().filter(move |headless| {
            !headless.may_be_nothing
                && headless.last_seq > replay_from
                && found.iter().all(|place| place.segment != headless.id)
        })
    }
}

impl Replay {
    pub(crate) fn new(inner: Arc<Inner>, found: Vec<Found>, last: &MetaRecord, clean: bool) -> Self {
        let wide = match last.replay_frame {
            Some(first) => Some(Wide::new(first, true, Vec::new())),
            None => Begin::of(&found, inner.superblock.page_bytes)
                .map(|begin| Wide { begin: Some(begin), ..Wide::new(0, false, Vec::new()) }),
        };
        let bytes_max = found.iter().map(|found| found.bytes_max(inner.segment_bytes)).sum();
        Self {
            inner,
            segments: Ahead::new(found),
            clean,
            finished: false,
            replay_from: last.replay_from,
            moved_from: last.moved_from,
            loaded_stamp: last.generation << 32 | u64::from(last.index),
            known_durable: last.durable_frames[0],
            wide: wide.filter(|_| !clean),
            marks: VecDeque::new(),
            reading: Segment::default(),
            expected: None,
            in_order: 0..0,
            pending: Vec::new(),
            damage: Vec::new(),
            has_lost: false,
            sought_below: 0,
            older: BTreeSet::new(),
            newest: BTreeSet::new(),
            unread: Vec::new(),
            without_summary: Vec::new(),
            proven: last.durable_frames[0],
            extents: BTreeMap::new(),
            ready: VecDeque::new(),
            last_seq: last.last_seq,
            next_frame: last.durable_frames[0],
            next_moved: last.durable_frames[1],
            first_moved: None,
            bytes_read: 0,
            bytes_max,
        }
    }

    /// The next batch; `None` at the end, after which the heap takes appends. Commit frames come in order, frames
    /// of other streams anywhere between. A torn end of the log is dropped in silence, damage before it is not.
    ///
    /// # Errors
    /// [`HeapError`] when the media fail or the recovered state cannot be written.
    pub async fn next(&mut self) -> Result<Option<ReplayedBatch>, HeapError> {
        self.next_telling(&|_, _| {}).await
    }

    /// [`Replay::next`] that tells how far it is with what is to be read.
    ///
    /// # Errors
    /// As [`Replay::next`].
    pub async fn next_telling(&mut self, progress: Progress<'_>) -> Result<Option<ReplayedBatch>, HeapError> {
        loop {
            if let Some(batch) = self.ready.pop_front() {
                return Ok(Some(batch));
            }
            if self.finished {
                return Ok(None);
            }
            if self.step_wide().await? {
                continue;
            }
            if let Some(part) = self.segments.next(&self.inner).await? {
                self.bytes_read += part.fetched.bytes_read;
                progress(self.bytes_read.min(self.bytes_max), self.bytes_max);
                match &mut self.wide {
                    // Commit segments come first.
                    Some(wide) if part.found.stream != Stream::Commit && wide.frames.is_none() => {
                        wide.held = Some(part);
                        self.put_in_order();
                    }
                    _ => self.take_part(part)?,
                }
            } else if self.wide.as_ref().is_some_and(|wide| wide.frames.is_none()) {
                self.put_in_order();
            } else {
                self.finish().await?;
            }
        }
    }

    /// Bytes read so far.
    pub fn bytes_read(&self) -> u64 {
        self.bytes_read
    }

    /// Bytes to read, at most.
    pub(crate) fn bytes_max(&self) -> u64 {
        self.bytes_max
    }

    /// All commit segments were read: puts their frames in order.
    fn put_in_order(&mut self) {
        let Some(wide) = &mut self.wide else { return };
        if let Some(begin) = &wide.begin {
            let page_bytes = self.inner.superblock.page_bytes;
            wide.first = begin.first(&wide.found, self.known_durable, page_bytes);
            for unread in begin.unread(&wide.found, self.replay_from) {
                let what =
                    format!("nothing of it reads, up to byte {}: commits may be lost", unread.known_end);
                self.damage.push(Damage { segment: unread.id, offset: 0, what });
                self.has_lost = true;
            }
        }
        let newest = wide.found.iter().filter(|place| place.header.number >= self.known_durable);
        self.newest = newest.map(|place| (place.segment, place.offset)).collect();
        let order = merge::order(std::mem::take(&mut wide.found), wide.first, self.known_durable);
        wide.frames = Some(Frames::new(order.steps));
        self.proven = self.proven.max(order.proven);
        // Those that came in their order were handed out before.
        let is_joined = order.found_from <= self.in_order.end;
        self.sought_below =
            if is_joined { order.found_from.min(self.in_order.start) } else { order.found_from };
        self.older = order.older.iter().map(|place| place.header.number).collect();
        if wide.has_older {
            for place in order.older {
                self.extend(place.segment, &place);
            }
        }
    }

    /// Hands out the next of the frames that were put in order; answers false when it is not their turn.
    async fn step_wide(&mut self) -> Result<bool, HeapError> {
        let Some(wide) = &mut self.wide else { return Ok(false) };
        let Some(frames) = wide.frames.as_mut().filter(|_| !wide.is_read) else { return Ok(false) };
        match frames.next(&self.inner).await? {
            Some(Next::Frame { segment, mut frame, bytes_read }) => {
                self.bytes_read += bytes_read;
                self.damage.append(&mut frame.damage);
                let more = frame.header.more;
                self.pending.push((segment, frame));
                if !more {
                    self.accept();
                }
            }
            Some(Next::Lost(numbers)) => {
                self.lose_pending();
                self.has_lost = true;
                let what = format!("commit frames {} to {} are lost", numbers.start, numbers.end - 1);
                let segment = self.extents.keys().next_back().copied().unwrap_or(SegmentId(0));
                self.damage.push(Damage { segment, offset: 0, what });
            }
            None => {
                wide.is_read = true;
                // A batch that is not complete is the torn end of the log, though some of its frames were durable: their
                // numbers come again, and what lies there now is beyond the segments' ends.
                // Those below the first are never looked at again.
                self.next_frame = match self.pending.first() {
                    Some((_, held)) => held.header.number,
                    None => self.next_frame.max(self.proven).max(wide.first),
                };
                self.pending.clear();
                if let Some(part) = wide.held.take() {
                    self.take_part(part)?;
                }
            }
        }
        Ok(true)
    }

    /// What is left of a batch whose other frames are gone is lost with them.
    fn lose_pending(&mut self) {
        for (segment, held) in self.pending.drain(..) {
            let what = format!("frame {} belongs to a batch of which parts are lost", held.header.number);
            self.damage.push(Damage { segment, offset: held.offset, what });
        }
    }

    /// Takes the next window of a segment.
    fn take_part(&mut self, part: Part) -> Result<(), HeapError> {
        let Part { found, fetched: Fetched { frames, unread_at, .. }, is_first, is_last } = part;
        if is_first {
            self.begin_segment(&found);
        }
        let known_durable = self.known_durable;
        let reading = &mut self.reading;
        reading.end = frames.last().map_or(reading.end, |frame| frame.end(self.inner.superblock.page_bytes));
        reading.has_frames |= !frames.is_empty();
        reading.has_known |= frames.iter().any(|frame| frame.header.number < known_durable);
        for frame in &frames {
            if frame.header.meta_stamp > self.loaded_stamp {
                return Err(HeapError::Damaged(format!(
                    "{} was written under metadata record {:#x}, the newest readable one is {:#x}: metadata was \
                     lost, restore the drive from a copy",
                    found.id, frame.header.meta_stamp, self.loaded_stamp
                )));
            }
        }
        match (found.stream, &mut self.wide) {
            (Stream::Commit, Some(wide)) => {
                wide.found.extend(frames.iter().map(|frame| Place::of(found.id, frame)));
            }
            (Stream::Commit, None) => self.commit_frames(&found, frames, is_first),
            _ => self.other_frames(&found, frames),
        }
        if is_last {
            self.end_segment(&found, unread_at);
        }
        Ok(())
    }

    fn begin_segment(&mut self, found: &Found) {
        // A commit segment may have been sealed before its frames were durable: it ends where accepted frames end, unless a
        // checkpoint covers all that is known of it. Other streams count what is durable only.
        let end = if found.stream == Stream::Commit && !self.is_covered(found) { 0 } else { found.known_end };
        let (live, last_seq, known_end) = (found.known_live, found.last_seq, found.known_end);
        self.extents.insert(found.id, Extent { end, live, last_seq, known_end, next_frame: 0 });
        let page = self.inner.superblock.page_bytes;
        self.reading = Segment { end: page, expected_at: page, ..Segment::default() };
    }

    fn is_covered(&self, found: &Found) -> bool {
        found.stream == Stream::Commit && found.last_seq <= self.replay_from
    }

    /// All windows of the segment were read.
    fn end_segment(&mut self, found: &Found, unread_at: Option<u32>) {
        if let Some(last) = self.reading.last.take() {
            self.other_frame(found, last, true);
        }
        let Segment { end, has_frames, has_known, .. } = self.reading;
        if self.is_covered(found) && end < found.known_end {
            // Their records are needed, though not for this, and cleaning looks for them up to here.
            let what = "frames that a checkpoint covers are lost".into();
            self.damage.push(Damage { segment: found.id, offset: end, what });
        }
        if found.stream == Stream::Moved && end < found.known_end {
            let what = "moved frames are lost".into();
            self.damage.push(Damage { segment: found.id, offset: end, what });
        }
        // Where not even the header got to, none of it was durable. Where nothing reads of what may have been written elsewhere
        // for a program that failed, nothing was either when the last metadata record was written: what came since is asked for by number.
        let may_be_nothing = (found.is_blank && !has_known) || (found.may_have_failed && !has_frames);
        let next_frame = if may_be_nothing { u64::MAX } else { found.first_frame.unwrap_or(0) };
        let extent = self.extents.entry(found.id).or_default();
        extent.next_frame = extent.next_frame.max(next_frame);
        // Raw media do not read where a write was torn.
        let is_told = matches!(self.inner.device, Device::File(_) | Device::Zoned(_));
        if is_told && found.stream == Stream::Commit {
            self.unread.extend(unread_at.map(|at| (found.id, at)));
        }
    }

    fn commit_frames(&mut self, found: &Found, frames: Vec<Frame>, is_first: bool) {
        let page = self.inner.superblock.page_bytes;
        if self.expected.is_none()
            && is_first
            && found.sealed_end.is_some_and(|end| end > page)
            // A segment may be sealed before the sync that makes it durable.
            && found.first_frame.is_some_and(|first| first < self.known_durable)
            && frames.first().is_none_or(|first| first.offset != page)
        {
            self.has_lost = true;
            let what = "the first frames of the segment are lost".into();
            self.damage.push(Damage { segment: found.id, offset: page, what });
        }
        if let (None, Some(first)) = (self.expected, found.first_frame)
            && is_first
            && found.sealed_end != Some(0)
        {
            self.expected = Some(first.min(self.known_durable));
        }
        let mut frames = frames.into_iter();
        while let Some(frame) = frames.next() {
            let number = frame.header.number;
            // All frames that the newest metadata record knew as durable are in segments that it named.
            let expected = *self.expected.get_or_insert(number.min(self.known_durable));
            if number < expected {
                continue;
            }
            if number > expected || !frame.damage.is_empty() {
                // Damage, or the torn end, or a program failed and it was written again elsewhere.
                let rest = std::iter::once(frame).chain(frames);
                let places = rest.map(|frame| Place::of(found.id, &frame)).collect();
                self.wide = Some(Wide::new(expected, false, places));
                self.expected = None;
                return;
            }
            self.expected = Some(number + 1);
            let start = if self.in_order.is_empty() { number } else { self.in_order.start };
            self.in_order = start..number + 1;
            let more = frame.header.more;
            self.pending.push((found.id, frame));
            if !more {
                self.accept();
            }
        }
    }

    /// Hands out the pending frames as one batch.
    fn accept(&mut self) {
        let mut records = Vec::new();
        for (segment, frame) in std::mem::take(&mut self.pending) {
            let header = frame.header;
            let newest = header.newest_seq();
            self.last_seq = self.last_seq.max(newest);
            self.next_frame = self.next_frame.max(header.number + 1);
            self.proven = self.proven.max(header.number.saturating_sub(u64::from(header.lag)));
            self.extend(segment, &Place::of(segment, &frame));
            if frame.summary_damage.is_some() {
                self.without_summary.push((header.number, segment));
            }
            if newest > self.replay_from && self.keeps_marks() {
                self.marks.push_back((header.number, newest));
            }
            if newest > self.replay_from {
                records.extend(frame.records.into_iter().filter(|record| record.seq > self.replay_from));
            }
        }
        self.hand_out(Stream::Commit, records);
    }

    /// Whether the records that follow tell from which frame on a recovery replays.
    fn keeps_marks(&self) -> bool {
        self.inner.meta.keeps_marks() || self.inner.lanes > 1
    }

    /// The segment holds this frame, which counts.
    fn extend(&mut self, segment: SegmentId, frame: &Place) {
        let extent = self.extents.entry(segment).or_default();
        let end = frame.end(self.inner.superblock.page_bytes);
        if end > extent.known_end {
            extent.live += frame.live;
        }
        extent.end = extent.end.max(end);
        extent.last_seq = extent.last_seq.max(frame.header.newest_seq());
        extent.next_frame = extent.next_frame.max(frame.header.number + 1);
    }

    fn hand_out(&mut self, stream: Stream, records: Vec<Replayed>) {
        if !records.is_empty() || !self.damage.is_empty() {
            let damage = std::mem::take(&mut self.damage);
            self.ready.push_back(ReplayedBatch { stream, records, damage });
        }
    }

    /// Frames of another stream. The last one is not looked at before another follows or none does.
    fn other_frames(&mut self, found: &Found, frames: Vec<Frame>) {
        for frame in frames {
            if let Some(before) = self.reading.last.replace(frame) {
                self.other_frame(found, before, false);
            }
        }
    }

    fn other_frame(&mut self, found: &Found, mut frame: Frame, is_last: bool) {
        if !frame.damage.is_empty() {
            if is_last && frame.offset >= found.known_end {
                // Torn: its writer was never answered.
                return;
            }
            self.damage.append(&mut frame.damage);
        }
        let end = frame.end(self.inner.superblock.page_bytes);
        // Numbers do not tell: of several segments that are written at once each has some.
        if found.stream == Stream::Moved && frame.offset > self.reading.expected_at {
            let what = "moved frames before this one are lost".into();
            self.damage.push(Damage { segment: found.id, offset: frame.offset, what });
        }
        self.reading.expected_at = end;
        let extent = self.extents.entry(found.id).or_default();
        if end > found.known_end {
            extent.live += frame.live;
        }
        extent.end = extent.end.max(end);
        self.last_seq = self.last_seq.max(frame.header.seq);
        if found.stream != Stream::Moved {
            extent.last_seq = extent.last_seq.max(frame.header.seq);
            return;
        }
        extent.last_seq = extent.last_seq.max(frame.header.number);
        self.next_moved = self.next_moved.max(frame.header.number + 1);
        for record in &frame.records {
            self.last_seq = self.last_seq.max(record.seq);
        }
        if frame.header.number >= self.moved_from {
            self.first_moved = Some(self.first_moved.unwrap_or(u64::MAX).min(frame.header.number));
            self.hand_out(Stream::Moved, frame.records);
        }
    }

    /// Whether a segment that ends early may lack frames that the client's durable state covers, given that none of the others do.
    fn may_lack(&self, id: SegmentId, extent: &Extent) -> bool {
        let end = extent.end.max(self.inner.superblock.page_bytes);
        extent.next_frame < self.sought_below && !self.newest.contains(&(id, end))
    }

    /// Looks for the frames that segments may lack in those that a checkpoint covers: they are hardly ever anywhere else.
    async fn seek_covered(&mut self) -> Result<(), HeapError> {
        let doubtful = self.extents.iter().filter(|(id, extent)| {
            !self.has_lost && extent.end < extent.known_end && self.may_lack(**id, extent)
        });
        let Some(wanted) = doubtful.map(|(_, extent)| extent.next_frame).min() else { return Ok(()) };
        let is_read = |id| self.extents.contains_key(&id);
        let mut covered = Covered::new(&self.inner, is_read);
        let mut older = std::mem::take(&mut self.older);
        while self.sought_below > wanted {
            while self.sought_below > wanted && older.remove(&(self.sought_below - 1)) {
                self.sought_below -= 1;
            }
            if self.sought_below > wanted {
                match covered.next(&self.inner).await? {
                    Some(numbers) => older.extend(numbers),
                    None => break,
                }
            }
        }
        Ok(())
    }

    async fn finish(&mut self) -> Result<(), HeapError> {
        self.finished = true;
        if self.clean {
            return Ok(());
        }
        // What the newest metadata record knew as durable is damage when it is not there.
        if let Some(expected) = self.expected.filter(|&expected| expected < self.known_durable) {
            self.has_lost = true;
            let what = format!("commit frames {expected} to {} are lost", self.known_durable - 1);
            let segment = self.extents.keys().next_back().copied().unwrap_or(SegmentId(0));
            self.damage.push(Damage { segment, offset: 0, what });
        }
        // Nothing else tells whether the log's last frame was lost, of which somebody may have been told.
        for (segment, at) in std::mem::take(&mut self.unread) {
            let end = self.extents.get(&segment).map_or(0, |extent| extent.end);
            if end.max(self.inner.superblock.page_bytes) == at {
                let what =
                    "the page behind its last commit does not read: if one lay there, it is lost".into();
                self.damage.push(Damage { segment, offset: at, what });
            }
        }
        // What is still pending is the torn end of the log; its numbers come again.
        if let Some((_, held)) = self.pending.first() {
            self.next_frame = held.header.number;
        }
        self.pending.clear();
        if !self.inner.device.is_read_only() {
            // What was read may still be in a cache: what follows will call it durable.
            self.inner.device.sync().await?;
        }
        self.seek_covered().await?;
        {
            let mut commit = self.inner.commit();
            *commit = crate::commit::Commit::new(self.last_seq + 1, self.next_frame, self.inner.lanes);
            if self.keeps_marks() {
                if !self.inner.meta.keeps_marks() {
                    // The log was in one piece so far.
                    let first = self.marks.front().map_or(self.next_frame, |&(number, _)| number);
                    self.inner.meta.keep_marks(first);
                }
                commit.marks = std::mem::take(&mut self.marks);
                commit.mark_all(self.last_seq);
            }
            // Nobody was told that these are durable, so that their summaries may never have got there.
            let torn = self.without_summary.iter().filter(|&&(number, _)| number >= self.proven);
            let torn: BTreeSet<SegmentId> = torn.map(|&(_, segment)| segment).collect();
            let mut table = self.inner.table();
            for (id, extent) in &self.extents {
                let live = if extent.end == 0 { 0 } else { extent.live };
                // Frames that a checkpoint covers may lie behind the end, and the client name records in them: they are not met
                // again, but cleaning must not take them for dropped. Frames are counted before they are durable, so that most
                // segments that end early lack none of those. A segment's frames follow each other in the order of their numbers: what
                // reads where it ends tells that no earlier one is missing there.
                let is_cut = extent.end < extent.known_end && (self.has_lost || self.may_lack(*id, extent));
                let flags =
                    if is_cut { FLAG_CUT } else { 0 } | if torn.contains(id) { FLAG_TORN_SUMMARY } else { 0 };
                table.recovered(*id, extent.end, live, extent.last_seq, flags);
            }
            table.skip_lives();
        }
        {
            let mut moves = self.inner.moves();
            moves.set_next(self.next_moved);
            if let Some(first) = self.first_moved {
                moves.found(first, self.last_seq);
            }
        }
        self.inner.written.open_to(self.last_seq);
        self.inner.durable.open_to(self.last_seq);
        if self.inner.failed().is_none() {
            match metalog::write_meta(&self.inner, Write { snapshot: true, ..Write::internal() }).await {
                Ok(()) => {}
                // So worn that not even this finds a place: what is there reads, and the heap says why it takes nothing any more.
                Err(error) if error.is_of_wear() && self.inner.failed().is_some() => {}
                Err(error) => return Err(error),
            }
            self.inner.pause(None);
        }
        if !self.damage.is_empty() {
            self.hand_out(Stream::Commit, Vec::new());
        }
        Ok(())
    }
}
