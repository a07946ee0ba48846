//! What a recovery reads, and no more than that.
//!
//! 1. Commit and moved segments are read whole, up to where they were sealed: their records are wanted.
//! 2. Of a table or large segment only its extent is wanted. From where the last metadata record knew it to end,
//!    frames are passed over by their first pages, all that are long and some that are not; from the last one that was met on,
//!    everything is read, because that frame may be torn and a damaged header must not hide what lies behind it.
//! 3. Segments are read ahead of the replay, [`AHEAD_BYTES`] of them; large ones in windows, of which one is read ahead, so that memory
//!    holds two, however large a segment is (`windows.rs`).
//! 4. What the drive does not answer is asked for again, and then ends the opening, unless it lies behind the frames' end: taken
//!    for lost, it would be.
//! 5. Where frames are not whole, or seem to end and another look at the next page says otherwise, a window is read
//!    again, until two looks agree: an error that passes must not be taken for the torn end of the log, which is dropped in
//!    silence.
//! 6. A segment of the pool of which neither the header nor the first frame's verifies may have been opened all the same: it is
//!    searched for any other frame's ([`later_life`]).

mod windows;

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use pumice_flash::{Device, FlashError, Operation};
use pumice_reactor::{JoinHandle, spawn};

use crate::inner::Inner;
use crate::layout::{self, frame::FrameHeader};
use crate::scan::{self, Frame, Stretch};
use crate::{Addr, HeapError, SegmentId, Stream};
use windows::{Needed, Segment, Windows};

/// Bytes of segments under way beside the one that is replayed.
const AHEAD_BYTES: usize = 16 << 20;
const AHEAD_SEGMENTS: usize = 8;
/// Times that a window or a frame is read, at most.
pub(crate) const LOOKS_MAX: usize = 4;
/// First pages read at once.
const FIRST_PAGES: usize = 32;
/// Segments of the pool that are searched. One may have a torn first frame, and few rot; more of them hold what lay on the media before
/// they were formatted.
pub(crate) const SEARCHED_MAX: usize = 8;
/// Bytes searched at once.
const SEARCHED_BYTES: u32 = 256 << 10;

/// A segment to be read.
#[derive(Clone)]
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

/// The numbers of a commit segment's frames before `end`, whole or not. What the drive does not answer for stays in doubt.
pub(crate) async fn numbers(
    inner: &Inner,
    id: SegmentId,
    life: u64,
    end: u32,
) -> Result<Vec<u64>, FlashError> {
    let (page, window_bytes) = (inner.superblock.page_bytes, inner.options.replay_window_bytes);
    let end = end.next_multiple_of(page).min(inner.segment_bytes);
    Segment { device: &inner.device, id, life, page, window_bytes, needed: Needed::All }.numbers(end).await
}

/// The segments of a recovery in their order, read ahead.
pub(crate) struct Ahead {
    waiting: VecDeque<Found>,
    under_way: VecDeque<Reading>,
}

struct Reading {
    found: Found,
    is_first: bool,
    task: JoinHandle<Result<(Fetched, Option<Windows>), FlashError>>,
}

/// What a window of a segment holds.
pub(crate) struct Fetched {
    pub frames: Vec<Frame>,
    pub bytes_read: u64,
    /// At a segment's last window: where the frames that are whole end, when what lies there does not read: one more may have
    /// been there.
    pub unread_at: Option<u32>,
}

/// The next window of a segment, with the frames that begin in it.
pub(crate) struct Part {
    pub found: Found,
    pub fetched: Fetched,
    pub is_first: bool,
    pub is_last: bool,
}

impl Reading {
    /// Reads the segment's first window, or the next one of what is left.
    fn start(inner: &Arc<Inner>, found: Found, rest: Option<Windows>) -> Self {
        let is_first = rest.is_none();
        let page = inner.superblock.page_bytes;
        let from = found.known_end;
        let len = found.sealed_end.unwrap_or(inner.segment_bytes);
        let len = len.next_multiple_of(page).min(inner.segment_bytes);
        let (id, life, stream) = (found.id, found.life, found.stream);
        let inner = inner.clone();
        let task = spawn(async move {
            let needed = {
                let state = inner.meta.state();
                match stream {
                    Stream::Commit => Needed::Beyond(state.replay_from),
                    Stream::Moved => Needed::From(state.moved_from),
                    Stream::Table | Stream::Large => Needed::All,
                }
            };
            let window_bytes = inner.options.replay_window_bytes;
            let segment = Segment { device: &inner.device, id, life, page, window_bytes, needed };
            match stream {
                Stream::Commit | Stream::Moved => {
                    segment.next(rest.unwrap_or_else(|| Windows::new(page, len))).await
                }
                Stream::Table | Stream::Large => Ok((segment.extent(from, len).await?, None)),
            }
        });
        Self { found, is_first, task }
    }
}

impl Ahead {
    pub(crate) fn new(found: Vec<Found>) -> Self {
        Self { waiting: found.into(), under_way: VecDeque::new() }
    }

    /// What comes next; `None` after the last segment's last window.
    pub(crate) async fn next(&mut self, inner: &Arc<Inner>) -> Result<Option<Part>, HeapError> {
        let depth = (AHEAD_BYTES / inner.segment_bytes as usize).clamp(1, AHEAD_SEGMENTS);
        while self.under_way.len() < depth
            && let Some(found) = self.waiting.pop_front()
        {
            self.under_way.push_back(Reading::start(inner, found, None));
        }
        let Some(Reading { found, is_first, task }) = self.under_way.pop_front() else { return Ok(None) };
        let (fetched, rest) = finished(task).await?;
        let is_last = rest.is_none();
        if !is_last {
            self.under_way.push_front(Reading::start(inner, found.clone(), rest));
        }
        Ok(Some(Part { found, fetched, is_first, is_last }))
    }
}
