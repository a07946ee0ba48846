//! Recovery: the frames that the client's durable state does not cover yet.
//!
//! 1. Commit segments are read in the order in which they were opened; frame numbers must follow each other.
//! 2. A frame that is missing or not whole is *damage* when a later frame says that it was durable before the
//!    later one was written (`lag`); otherwise it is the torn end of the log, and it and all after it are dropped.
//! 3. A batch over several frames (MORE) counts once its last frame is there.
//! 4. Of key tables and pieces of large values only the extent is wanted (`crate::fetch`): the client names those that
//!    count, and reads verify them.
//! 5. At the end the segments that were read are sealed where their accepted frames end, and a snapshot is
//!    written: what was dropped is never met again.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use crate::fetch::{Ahead, Found};
use crate::inner::Inner;
use crate::layout::meta::MetaRecord;
use crate::metalog::{self, Write};
use crate::scan::Frame;
use crate::{Damage, HeapError, Replayed, SegmentId, Stream};

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
    /// Next commit frame's number, once one was seen.
    expected: Option<u64>,
    log_ended: bool,
    /// Frames of a batch that is not complete.
    pending: Vec<(SegmentId, Frame)>,
    /// A frame that is not whole, until the next one tells what that means.
    broken: Option<(SegmentId, Frame)>,
    damage: Vec<Damage>,
    extents: BTreeMap<SegmentId, Extent>,
    ready: VecDeque<ReplayedBatch>,
    last_seq: u64,
    next_frame: u64,
    next_moved: u64,
    first_moved: Option<u64>,
    bytes_read: u64,
}

impl Replay {
    pub(crate) fn new(inner: Arc<Inner>, found: Vec<Found>, last: &MetaRecord, clean: bool) -> Self {
        Self {
            inner,
            segments: Ahead::new(found),
            clean,
            finished: false,
            replay_from: last.replay_from,
            moved_from: last.moved_from,
            loaded_stamp: last.generation << 32 | u64::from(last.index),
            known_durable: last.durable_frames[0],
            expected: None,
            log_ended: false,
            pending: Vec::new(),
            broken: None,
            damage: Vec::new(),
            extents: BTreeMap::new(),
            ready: VecDeque::new(),
            last_seq: last.last_seq,
            next_frame: last.durable_frames[0],
            next_moved: last.durable_frames[1],
            first_moved: None,
            bytes_read: 0,
        }
    }

    /// The next batch; `None` at the end, after which the heap takes appends. Commit frames come in order, frames
    /// of other streams anywhere between. A torn end of the log is dropped in silence, damage before it is not.
    ///
    /// # Errors
    /// [`HeapError`] when the media fail or the recovered state cannot be written.
    pub async fn next(&mut self) -> Result<Option<ReplayedBatch>, HeapError> {
        loop {
            if let Some(batch) = self.ready.pop_front() {
                return Ok(Some(batch));
            }
            if self.finished {
                return Ok(None);
            }
            if let Some((found, fetched)) = self.segments.next(&self.inner).await? {
                self.bytes_read += fetched.bytes_read;
                self.take_segment(&found, fetched.frames)?;
            } else {
                self.finish().await?;
            }
        }
    }

    /// Bytes read so far.
    pub fn bytes_read(&self) -> u64 {
        self.bytes_read
    }

    fn take_segment(&mut self, found: &Found, frames: Vec<Frame>) -> Result<(), HeapError> {
        // A commit segment may have been sealed before its frames were durable: it ends where accepted frames end.
        // Other streams count what is durable only.
        let end = if found.stream == Stream::Commit { 0 } else { found.known_end };
        let (live, last_seq, known_end) = (found.known_live, found.last_seq, found.known_end);
        self.extents.insert(found.id, Extent { end, live, last_seq, known_end });
        for frame in &frames {
            if frame.header.meta_stamp > self.loaded_stamp {
                return Err(HeapError::Damaged(format!(
                    "{} was written under metadata record {:#x}, the newest readable one is {:#x}: metadata was \
                     lost, restore the drive from a copy",
                    found.id, frame.header.meta_stamp, self.loaded_stamp
                )));
            }
        }
        match found.stream {
            Stream::Commit => self.commit_segment(found, frames),
            _ => self.other_segment(found, frames),
        }
        Ok(())
    }

    fn commit_segment(&mut self, found: &Found, frames: Vec<Frame>) {
        let page = self.inner.superblock.page_bytes;
        if self.expected.is_none()
            && found.sealed_end.is_some_and(|end| end > page)
            && frames.first().is_none_or(|first| first.offset != page)
        {
            let what = "the first frames of the segment are lost".into();
            self.damage.push(Damage { segment: found.id, offset: page, what });
        }
        for frame in frames {
            if self.log_ended {
                return;
            }
            let number = frame.header.number;
            let durable = number.saturating_sub(u64::from(frame.header.lag)).max(self.known_durable);
            // All frames that the newest metadata record knew as durable are in segments that it named.
            let expected = *self.expected.get_or_insert(number.min(self.known_durable));
            if number < expected {
                continue;
            }
            let mut expected = expected;
            if let Some((segment, mut broken)) = self.broken.take() {
                // It was written again elsewhere (a program failed), or it is damage if this frame proves that it
                // was durable, or the log ended with it.
                if number > broken.header.number {
                    if broken.header.number >= durable {
                        self.log_ended = true;
                        return;
                    }
                    self.damage.append(&mut broken.damage);
                    expected = broken.header.number + 1;
                    let more = broken.header.more;
                    self.pending.push((segment, broken));
                    if !more {
                        self.accept();
                    }
                }
            }
            if number > expected {
                if expected >= durable {
                    self.log_ended = true;
                    return;
                }
                // What is left of a batch whose other frames are gone is lost with them.
                for (segment, held) in self.pending.drain(..) {
                    let what =
                        format!("frame {} belongs to a batch of which parts are lost", held.header.number);
                    self.damage.push(Damage { segment, offset: held.offset, what });
                }
                let what = format!("commit frames {expected} to {} are lost", number - 1);
                self.damage.push(Damage { segment: found.id, offset: frame.offset, what });
            }
            if !frame.damage.is_empty() {
                self.expected = Some(number);
                self.broken = Some((found.id, frame));
                continue;
            }
            self.expected = Some(number + 1);
            let more = frame.header.more;
            self.pending.push((found.id, frame));
            if !more {
                self.accept();
            }
        }
    }

    /// Hands out the pending frames as one batch.
    fn accept(&mut self) {
        let page = self.inner.superblock.page_bytes;
        let mut records = Vec::new();
        for (segment, frame) in self.pending.drain(..) {
            let header = frame.header;
            let newest = header.newest_seq();
            self.last_seq = self.last_seq.max(newest);
            self.next_frame = self.next_frame.max(header.number + 1);
            let extent = self.extents.entry(segment).or_default();
            let end = frame.end(page);
            if end > extent.known_end {
                extent.live += frame.live;
            }
            extent.end = extent.end.max(end);
            extent.last_seq = extent.last_seq.max(newest);
            if newest > self.replay_from {
                records.extend(frame.records.into_iter().filter(|record| record.seq > self.replay_from));
            }
        }
        self.hand_out(Stream::Commit, records);
    }

    fn hand_out(&mut self, stream: Stream, records: Vec<Replayed>) {
        if !records.is_empty() || !self.damage.is_empty() {
            let damage = std::mem::take(&mut self.damage);
            self.ready.push_back(ReplayedBatch { stream, records, damage });
        }
    }

    fn other_segment(&mut self, found: &Found, frames: Vec<Frame>) {
        let page = self.inner.superblock.page_bytes;
        let last = frames.len().saturating_sub(1);
        let mut expected: Option<u64> = found.first_frame;
        let covered = frames.last().map_or(page, |frame| frame.end(page));
        if found.stream == Stream::Moved && covered < found.known_end {
            let what = "moved frames are lost".into();
            self.damage.push(Damage { segment: found.id, offset: covered, what });
        }
        for (index, mut frame) in frames.into_iter().enumerate() {
            if !frame.damage.is_empty() {
                if index == last && frame.offset >= found.known_end {
                    // Torn: its writer was never answered.
                    break;
                }
                self.damage.append(&mut frame.damage);
            }
            if found.stream == Stream::Moved
                && expected.is_some_and(|expected| frame.header.number > expected)
            {
                let what = "moved frames before this one are lost".into();
                self.damage.push(Damage { segment: found.id, offset: frame.offset, what });
            }
            expected = Some(frame.header.number + 1);
            let end = frame.end(page);
            let extent = self.extents.entry(found.id).or_default();
            if end > found.known_end {
                extent.live += frame.live;
            }
            extent.end = extent.end.max(end);
            self.last_seq = self.last_seq.max(frame.header.seq);
            if found.stream != Stream::Moved {
                extent.last_seq = extent.last_seq.max(frame.header.seq);
                continue;
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
    }

    async fn finish(&mut self) -> Result<(), HeapError> {
        self.finished = true;
        if self.clean {
            return Ok(());
        }
        // What the newest metadata record knew as durable is damage when it is not whole.
        if let Some((segment, mut broken)) =
            self.broken.take_if(|(_, broken)| broken.header.number < self.known_durable && !self.log_ended)
        {
            self.damage.append(&mut broken.damage);
            self.expected = Some(broken.header.number + 1);
            self.pending.push((segment, broken));
            self.accept();
        }
        if let Some(expected) = self.expected.filter(|&expected| expected < self.known_durable) {
            let what = format!("commit frames {expected} to {} are lost", self.known_durable - 1);
            let segment = self.extents.keys().next_back().copied().unwrap_or(SegmentId(0));
            self.damage.push(Damage { segment, offset: 0, what });
        }
        // What is still pending is the torn end of the log.
        self.pending.clear();
        self.broken = None;
        if !self.inner.device.is_read_only() {
            // What was read may still be in a cache: what follows will call it durable.
            self.inner.device.sync().await?;
        }
        {
            let mut commit = self.inner.commit();
            *commit = crate::commit::Commit::new(self.last_seq + 1, self.next_frame);
            let mut table = self.inner.table();
            for (id, extent) in &self.extents {
                let live = if extent.end == 0 { 0 } else { extent.live };
                table.recovered(*id, extent.end, live, extent.last_seq);
            }
            table.skip_lives();
        }
        self.inner.writers[Stream::Moved as usize].set_next_frame(self.next_moved);
        if let Some(first) = self.first_moved {
            let mut moves = self.inner.moves();
            moves.begin(first);
            moves.applied(first, self.last_seq);
        }
        self.inner.written.open_to(self.last_seq);
        self.inner.durable.open_to(self.last_seq);
        if self.inner.failed().is_none() {
            metalog::write_meta(&self.inner, Write { snapshot: true, ..Write::internal() }).await?;
            self.inner.pause(None);
        }
        if !self.damage.is_empty() {
            self.hand_out(Stream::Commit, Vec::new());
        }
        Ok(())
    }
}
