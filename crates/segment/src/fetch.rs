//! What a recovery reads, and no more than that.
//!
//! 1. Commit and moved segments are read whole, up to where they were sealed: their records are wanted.
//! 2. Of a table or large segment only its extent is wanted. From where the last metadata record knew it to end,
//!    frames are passed over by their first pages, up to [`HEADS_MAX`] of them; from the last one that was met on,
//!    everything is read, because that frame may be torn and a damaged header must not hide what lies behind it.
//! 3. Segments are read ahead of the replay, [`AHEAD_BYTES`] of them.
//! 4. What the drive does not answer is asked for again, and then ends the opening, unless it lies behind the frames' end: taken
//!    for lost, it would be.
//! 5. Where frames are not whole, or seem to end and another look at the next page says otherwise, a segment is read
//!    again, until two looks agree: an error that passes must not be taken for the torn end of the log, which is dropped in
//!    silence.
//! 6. A segment of the pool of which neither the header nor the first frame's verifies may have been opened all the same: it is
//!    searched for any other frame's ([`later_life`]).

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use pumice_flash::{Device, FlashError, Operation};
use pumice_reactor::{JoinHandle, spawn};

use crate::inner::Inner;
use crate::layout::{
    self,
    frame::{self, FrameHeader},
};
use crate::scan::{self, Frame, Stretch, Window};
use crate::{Addr, HeapError, SegmentId, Stream};

/// Frames passed over by their first pages. Beyond that they are small, and one large read is faster.
const HEADS_MAX: usize = 32;
/// Bytes of segments under way beside the one that is replayed.
const AHEAD_BYTES: usize = 16 << 20;
const AHEAD_SEGMENTS: usize = 8;
/// Times that a segment is read, at most.
pub(crate) const LOOKS_MAX: usize = 4;
/// First pages read at once.
const FIRST_PAGES: usize = 32;
/// Segments of the pool that are searched. One may have a torn first frame, and few rot; more of them hold what lay on the media before
/// they were formatted.
pub(crate) const SEARCHED_MAX: usize = 8;
/// Bytes searched at once.
const SEARCHED_BYTES: u32 = 256 << 10;

/// A segment to be read.
pub(crate) struct Found {
    pub id: SegmentId,
    pub life: u64,
    pub stream: Stream,
    /// Where it ends when it was sealed before the last metadata record.
    pub sealed_end: Option<u32>,
    /// What the last metadata record knew of it.
    pub known_end: u32,
    pub known_live: u32,
    pub last_seq: u64,
    /// Number of its first frame, when it can be read.
    pub first_frame: Option<u64>,
    /// Its first program may have failed, of which nothing need read, however much it was: it is written elsewhere before anybody is
    /// told. Not if the last metadata record knew its first frame to be durable.
    pub may_have_failed: bool,
    /// It does not begin as a segment that was written: what was counted of it never got there.
    pub is_blank: bool,
}

impl Found {
    /// Bytes that are read of it at most.
    pub(crate) fn bytes_max(&self, segment_bytes: u32) -> u64 {
        u64::from(self.sealed_end.unwrap_or(segment_bytes))
    }
}

/// Frames of a segment that was read.
pub(crate) struct Fetched {
    pub frames: Vec<Frame>,
    pub bytes_read: u64,
    /// Where the frames that are whole end, when what lies there does not read: one more may have been there.
    pub unread_at: Option<u32>,
}

impl Fetched {
    fn whole_frames(&self) -> usize {
        self.frames.iter().filter(|frame| frame.damage.is_empty()).count()
    }

    /// Whether two looks found the same frames, whole or not in the same places.
    fn agrees_with(&self, other: &Self) -> bool {
        let found =
            |frame: &Frame| (frame.offset, frame.header, frame.damage.first().map(|damage| damage.offset));
        self.frames.iter().map(found).eq(other.frames.iter().map(found))
    }
}

/// The first two pages of each of `segments`, in their order.
pub(crate) async fn first_pages(
    device: &Device,
    segments: &[u32],
    page_bytes: u32,
) -> Result<Vec<Stretch>, FlashError> {
    let mut pages = Vec::with_capacity(segments.len());
    for some in segments.chunks(FIRST_PAGES) {
        let reads: Vec<_> = some
            .iter()
            .map(|&id| {
                let device = device.clone();
                spawn(async move {
                    scan::read_patiently(&device, SegmentId(id), 0, 2 * page_bytes as usize).await
                })
            })
            .collect();
        for read in reads {
            pages.push(finished(read).await?);
        }
    }
    Ok(pages)
}

/// Life and stream of a segment that was opened with one of these `lives`, if any frame in it says so. It was written from its
/// beginning on: where a frame of an older life verifies, none of a newer one lies behind it.
///
/// # Errors
/// [`HeapError::FreeSegment`] when no frame says so and the drive did not answer for a page that may be the first of one. It could
/// be passed over: the segment is a free one, and hardly ever anything else. But if it was opened, what was acknowledged last
/// would be gone without a word.
pub(crate) async fn later_life(
    device: &Device,
    segment: SegmentId,
    lives: Range<u64>,
    page_bytes: u32,
) -> Result<Option<(u64, Stream)>, HeapError> {
    let segment_bytes = device.geometry().block_bytes();
    let mut unanswered = None;
    'searched: for base in (page_bytes..segment_bytes).step_by(SEARCHED_BYTES.max(page_bytes) as usize) {
        let len = SEARCHED_BYTES.max(page_bytes).min(segment_bytes - base);
        let stretch = scan::read_patiently(device, segment, base, len as usize).await?;
        let mut failed = stretch.failed.into_iter().peekable();
        for at in (0..len).step_by(page_bytes as usize) {
            if let Some((_, error)) = failed.next_if(|&(failed, _)| failed == base + at) {
                unanswered = unanswered.or(Some(error));
                continue;
            }
            let head = &stretch.bytes[at as usize..];
            let life = layout::u64_at(head, 8);
            match FrameHeader::decode(head, life, Addr::new(segment, base + at)) {
                Some(frame) if lives.contains(&life) => return Ok(Some((life, frame.stream))),
                Some(_) if life < lives.start => break 'searched,
                _ => {}
            }
        }
    }
    match unanswered {
        Some(source) => Err(HeapError::FreeSegment { segment, source }),
        None => Ok(None),
    }
}

pub(crate) async fn finished<T>(read: JoinHandle<Result<T, FlashError>>) -> Result<T, FlashError> {
    // The core is closing when a task is gone: nothing is known of what it read.
    read.await.unwrap_or(Err(FlashError::Gone { operation: Operation::Read }))
}

/// The segments of a recovery in their order, read ahead.
pub(crate) struct Ahead {
    waiting: VecDeque<Found>,
    under_way: VecDeque<(Found, JoinHandle<Result<Fetched, FlashError>>)>,
}

impl Ahead {
    pub(crate) fn new(found: Vec<Found>) -> Self {
        Self { waiting: found.into(), under_way: VecDeque::new() }
    }

    /// The next segment and its frames; `None` after the last.
    pub(crate) async fn next(&mut self, inner: &Arc<Inner>) -> Result<Option<(Found, Fetched)>, HeapError> {
        let depth = (AHEAD_BYTES / inner.segment_bytes as usize).clamp(1, AHEAD_SEGMENTS);
        while self.under_way.len() < depth
            && let Some(found) = self.waiting.pop_front()
        {
            let inner = inner.clone();
            let (id, life, stream) = (found.id, found.life, found.stream);
            let from = found.known_end;
            let len = found.sealed_end.unwrap_or(inner.segment_bytes);
            let read = spawn(async move {
                let page = inner.superblock.page_bytes;
                let len = len.next_multiple_of(page).min(inner.segment_bytes);
                let needed = {
                    let state = inner.meta.state();
                    match stream {
                        Stream::Commit => Needed::Beyond(state.replay_from),
                        Stream::Moved => Needed::From(state.moved_from),
                        Stream::Table | Stream::Large => Needed::All,
                    }
                };
                let segment = Segment { device: &inner.device, id, life, page, needed };
                let look = async || match stream {
                    Stream::Commit | Stream::Moved => segment.whole(len).await,
                    Stream::Table | Stream::Large => segment.extent(from, len).await,
                };
                let mut best = look().await?;
                let begin = if matches!(stream, Stream::Commit | Stream::Moved) { 0 } else { from };
                for _ in 1..LOOKS_MAX {
                    if !segment.may_hide_frames(&best, begin, len).await? {
                        break;
                    }
                    let again = look().await?;
                    let (agree, bytes_read) = (again.agrees_with(&best), best.bytes_read + again.bytes_read);
                    let better = if again.whole_frames() > best.whole_frames() { again } else { best };
                    best = Fetched { bytes_read, ..better };
                    if agree {
                        break;
                    }
                }
                Ok(best)
            });
            self.under_way.push_back((found, read));
        }
        let Some((found, read)) = self.under_way.pop_front() else { return Ok(None) };
        Ok(Some((found, finished(read).await?)))
    }
}

struct Segment<'a> {
    device: &'a Device,
    id: SegmentId,
    life: u64,
    page: u32,
    needed: Needed,
}

/// What a recovery needs of a segment's frames.
#[derive(Clone, Copy)]
enum Needed {
    /// Records with numbers beyond this one.
    Beyond(u64),
    /// Frames from this one on.
    From(u64),
    All,
}

impl Needed {
    /// Whether it needs nothing of what lies before a frame.
    fn begins_with(self, frame: &FrameHeader) -> bool {
        match self {
            Self::Beyond(seq) => frame.seq <= seq + 1,
            Self::From(number) => frame.number <= number,
            Self::All => false,
        }
    }

    /// Whether it needs nothing of a frame.
    fn is_beyond(self, frame: &FrameHeader) -> bool {
        match self {
            Self::Beyond(seq) => frame.newest_seq() <= seq,
            Self::From(number) => frame.number < number,
            Self::All => false,
        }
    }
}

impl Segment<'_> {
    async fn whole(&self, len: u32) -> Result<Fetched, FlashError> {
        if len == 0 {
            return Ok(Fetched { frames: Vec::new(), bytes_read: 0, unread_at: None });
        }
        let stretch = scan::read_patiently(self.device, self.id, 0, len as usize).await?;
        let mut frames = scan::frames(self.id, self.life, &stretch.bytes, self.page);
        self.refuse_failed(stretch.failed, self.page, &frames)?;
        frames.iter_mut().for_each(|frame| frame.note_lost(self.id, &stretch.lost, self.page));
        let end_of = |frame: Option<&Frame>| frame.map_or(self.page, |frame| frame.end(self.page));
        let end = end_of(frames.iter().rfind(|frame| frame.damage.is_empty()));
        let behind = end..=end_of(frames.last()).max(end);
        let unread_at = stretch.lost.iter().any(|at| behind.contains(at)).then_some(end);
        Ok(Fetched { frames, bytes_read: u64::from(len), unread_at })
    }

    /// Ends the opening when a page that the drive did not answer lies in or between frames, the first of which may begin at
    /// `begin`, or where one could follow them, unless only what is not needed lies there. Each of them is asked about: the
    /// first may lie in a frame that nobody needs, and the next be the header of one that is.
    fn refuse_failed(
        &self,
        failed: Vec<(u32, FlashError)>,
        begin: u32,
        frames: &[Frame],
    ) -> Result<(), FlashError> {
        let end = frames.last().map_or(begin, |frame| frame.end(self.page));
        let is_needed = |at: u32| {
            let next = frames.iter().find(|frame| frame.end(self.page) > at);
            next.is_none_or(|next| match next.offset <= at {
                true => !self.needed.is_beyond(&next.header),
                false => !self.needed.begins_with(&next.header),
            })
        };
        match failed.into_iter().find(|&(at, _)| (begin..=end).contains(&at) && is_needed(at)) {
            Some((_, error)) => Err(error),
            None => Ok(()),
        }
    }

    async fn page_at(&self, at: u32) -> Result<Bytes, FlashError> {
        let page = scan::read_patiently(self.device, self.id, at, self.page as usize).await?;
        match page.failed.into_iter().next() {
            Some((_, error)) => Err(error),
            None => Ok(page.bytes),
        }
    }

    /// Whether another look at `begin..end` may find more: some frame is not whole, there is something between two, or where
    /// they ended the next one begins after all.
    async fn may_hide_frames(&self, found: &Fetched, begin: u32, end: u32) -> Result<bool, FlashError> {
        let mut at = begin.next_multiple_of(self.page).max(self.page);
        for frame in &found.frames {
            if frame.offset != at || !frame.damage.is_empty() {
                return Ok(true);
            }
            at = frame.end(self.page);
        }
        if at >= end {
            return Ok(false);
        }
        let next = self.page_at(at).await?;
        Ok(FrameHeader::decode(&next, self.life, Addr::new(self.id, at)).is_some())
    }

    /// The frames from `from` on. Those that were passed over have no records.
    async fn extent(&self, from: u32, end: u32) -> Result<Fetched, FlashError> {
        let mut frames: Vec<Frame> = Vec::new();
        let mut bytes_read = 0;
        let mut at = from.next_multiple_of(self.page).max(self.page);
        while at < end && frames.len() < HEADS_MAX {
            bytes_read += u64::from(self.page);
            let head = self.page_at(at).await?;
            let Some(header) = FrameHeader::decode(&head, self.life, Addr::new(self.id, at)) else { break };
            let records = header.bytes.saturating_sub(frame::HEADER_BYTES as u32);
            if records == 0 || u64::from(at) + u64::from(header.bytes) > u64::from(end) {
                break;
            }
            let frame = Frame {
                header,
                offset: at,
                records: Vec::new(),
                live: records,
                damage: Vec::new(),
                summary_damage: None,
            };
            at = frame.end(self.page);
            frames.push(frame);
        }
        let base = frames.pop().map_or(at, |last| last.offset);
        if base < end {
            let stretch = scan::read_patiently(self.device, self.id, base, (end - base) as usize).await?;
            bytes_read += u64::from(end - base);
            let (segment, life, page_bytes) = (self.id, self.life, self.page);
            let window = Window { segment, life, bytes: &stretch.bytes, base, page_bytes, end };
            let rest = window.frames().0;
            self.refuse_failed(stretch.failed, base, &rest)?;
            frames.extend(rest);
        }
        Ok(Fetched { frames, bytes_read, unread_at: None })
    }
}
