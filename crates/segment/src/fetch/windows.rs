//! A segment of a recovery, read in windows: its frames, and what does not read between and behind them.

use bytes::Bytes;
use pumice_flash::{Device, FlashError};

use super::{Fetched, LOOKS_MAX};
use crate::layout::frame::{self, FrameHeader};
use crate::scan::{self, Frame, Stretch, Window};
use crate::{Addr, SegmentId};

/// Frames passed over by their first pages, and beyond that those that are longer than that on average: to read what is short in one go is
/// faster.
const HEADS_MAX: usize = 32;
const LONG_BYTES: u32 = 256 << 10;

/// A segment to be read.
pub(super) struct Segment<'a> {
    pub device: &'a Device,
    pub id: SegmentId,
    pub life: u64,
    pub page: u32,
    /// Of a window. A frame that is longer is read at once all the same.
    pub window_bytes: u32,
    pub needed: Needed,
}

/// What a recovery needs of a segment's frames.
#[derive(Clone, Copy)]
pub(super) enum Needed {
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

/// What is left to be read of a segment, and what is known of what was.
pub(super) struct Windows {
    /// Where the next one begins.
    at: u32,
    /// Where the last one ends.
    end: u32,
    /// Where the frames end that were met, and those of them that are whole.
    last_end: u32,
    whole_end: u32,
    /// Pages from `whole_end` on that do not read.
    lost: Vec<u32>,
    /// Those from `last_end` on that the drive did not answer for.
    failed: Vec<(u32, FlashError)>,
}

impl Windows {
    /// Of a segment: from a frame, or a page behind one or its header, on, up to where the last may end.
    pub(super) fn new(at: u32, end: u32) -> Self {
        Self { at, end, last_end: at, whole_end: at, lost: Vec::new(), failed: Vec::new() }
    }
}

/// What one look at a window found.
struct Look {
    frames: Vec<Frame>,
    /// Where the next window begins: behind this one, or at a frame that reaches beyond it.
    next: u32,
    is_cut: bool,
    lost: Vec<u32>,
    failed: Vec<(u32, FlashError)>,
    bytes_read: u64,
}

impl Look {
    /// Frames that are whole, as far as it saw them.
    fn whole_frames(&self) -> usize {
        self.frames.iter().filter(|frame| frame.damage.is_empty()).count() + usize::from(self.is_cut)
    }

    /// Whether two looks found the same frames, whole or not in the same places.
    fn agrees_with(&self, other: &Self) -> bool {
        let found =
            |frame: &Frame| (frame.offset, frame.header, frame.damage.first().map(|damage| damage.offset));
        (self.next, self.is_cut) == (other.next, other.is_cut)
            && self.frames.iter().map(found).eq(other.frames.iter().map(found))
    }
}

impl Segment<'_> {
    /// Reads the next window; answers with what is left, which is nothing behind the last one.
    pub(super) async fn next(&self, mut windows: Windows) -> Result<(Fetched, Option<Windows>), FlashError> {
        let (mut frames, mut bytes_read) = (Vec::new(), 0);
        if windows.at < windows.end {
            let (at, end) = (windows.at, windows.end);
            let look = self.looked(&windows, async || self.look(at, end).await).await?;
            bytes_read = look.bytes_read;
            frames = self.take(&mut windows, look)?;
        }
        if windows.at < windows.end {
            return Ok((Fetched { frames, bytes_read, unread_at: None }, Some(windows)));
        }
        self.refuse_last(&mut windows)?;
        let behind = windows.whole_end..=windows.last_end.max(windows.whole_end);
        let unread_at = windows.lost.iter().any(|at| behind.contains(at)).then_some(windows.whole_end);
        Ok((Fetched { frames, bytes_read, unread_at }, None))
    }

    /// The frames from `from` on, without their records: those that could be passed over, and what lies behind.
    pub(super) async fn extent(&self, from: u32, end: u32) -> Result<Fetched, FlashError> {
        let begin = from.next_multiple_of(self.page).max(self.page);
        let all = Windows::new(begin, end);
        let look = self.looked(&all, async || self.look_at_extent(begin, end).await).await?;
        Ok(Fetched { frames: look.frames, bytes_read: look.bytes_read, unread_at: None })
    }

    /// The numbers of all frames before `end`, whole or not. What the drive does not answer for stays in doubt.
    pub(super) async fn numbers(&self, end: u32) -> Result<Vec<u64>, FlashError> {
        let (mut at, mut numbers) = (self.page, Vec::new());
        while at < end {
            let look = self.look(at, end).await?;
            numbers.extend(look.frames.iter().map(|frame| frame.header.number));
            at = look.next;
        }
        Ok(numbers)
    }

    /// Looks again until two looks agree or nothing is in doubt. Answers with that which saw most, and all that was read for it.
    async fn looked(
        &self,
        windows: &Windows,
        look: impl AsyncFn() -> Result<Look, FlashError>,
    ) -> Result<Look, FlashError> {
        let mut best = look().await?;
        let mut bytes_read = best.bytes_read;
        for _ in 1..LOOKS_MAX {
            if !self.may_hide_frames(&best, windows).await? {
                break;
            }
            let again = look().await?;
            bytes_read += again.bytes_read;
            let agree = again.agrees_with(&best);
            if again.whole_frames() > best.whole_frames() {
                best = again;
            }
            if agree {
                break;
            }
        }
        Ok(Look { bytes_read, ..best })
    }

    async fn look_at_extent(&self, begin: u32, end: u32) -> Result<Look, FlashError> {
        let mut frames: Vec<Frame> = Vec::new();
        let mut bytes_read = 0;
        let mut at = begin;
        let are_long = |frames: usize, at: u32| (at - begin) / LONG_BYTES >= frames as u32;
        while at < end && (frames.len() < HEADS_MAX || are_long(frames.len(), at)) {
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
        // The last one may be torn.
        let base = frames.pop().map_or(at, |last| last.offset);
        let mut windows = Windows::new(base, end);
        while windows.at < end {
            let look = self.look(windows.at, end).await?;
            bytes_read += look.bytes_read;
            frames.extend(self.take(&mut windows, look)?.into_iter().map(|mut frame| {
                frame.records = Vec::new();
                frame
            }));
        }
        self.refuse_last(&mut windows)?;
        let next = end.max(begin);
        Ok(Look { frames, next, is_cut: false, lost: Vec::new(), failed: Vec::new(), bytes_read })
    }

    /// One look at the window from `at` on, of what ends at `end`. It grows until it holds a frame that begins there.
    async fn look(&self, at: u32, end: u32) -> Result<Look, FlashError> {
        let mut bytes_read = 0;
        let mut wanted = self.window_bytes.next_multiple_of(self.page).max(self.page);
        loop {
            let len = wanted.min(end - at);
            let stretch = scan::read_patiently(self.device, self.id, at, len as usize).await?;
            bytes_read += u64::from(len);
            let Stretch { bytes, mut lost, mut failed } = stretch;
            let (segment, life, page_bytes) = (self.id, self.life, self.page);
            let window = Window { segment, life, bytes: &bytes, base: at, page_bytes, end };
            let (mut frames, next, cut_bytes) = window.frames();
            if let Some(needed) = cut_bytes.filter(|_| next == at) {
                wanted = needed.next_multiple_of(self.page);
                continue;
            }
            // Those of the frame that is cut off are met again.
            lost.retain(|&at| at < next);
            failed.retain(|&(at, _)| at < next);
            // Of tables and large values only the extent is wanted, and reads verify them.
            if !matches!(self.needed, Needed::All) {
                frames.iter_mut().for_each(|frame| frame.note_lost(self.id, &lost, self.page));
            }
            return Ok(Look { frames, next, is_cut: cut_bytes.is_some(), lost, failed, bytes_read });
        }
    }

    /// Goes on behind what a look found.
    fn take(&self, windows: &mut Windows, look: Look) -> Result<Vec<Frame>, FlashError> {
        let Look { frames, next, lost, failed, .. } = look;
        windows.failed.extend(failed);
        self.refuse_failed(windows, &frames)?;
        let end_of = |frame: &Frame| frame.end(self.page);
        if let Some(whole) = frames.iter().rfind(|frame| frame.damage.is_empty()) {
            windows.whole_end = end_of(whole);
        }
        windows.lost.extend(lost);
        windows.lost.retain(|&at| at >= windows.whole_end);
        windows.last_end = frames.last().map_or(windows.last_end, end_of);
        windows.at = next;
        Ok(frames)
    }

    /// Ends the opening when a page that the drive did not answer lies in `frames` or before one of them, unless only what is not
    /// needed lies there. Each of them is asked about: the first may lie in a frame that nobody needs, and the next be the header
    /// of one that is. What lies behind them all is kept for the next window.
    fn refuse_failed(&self, windows: &mut Windows, frames: &[Frame]) -> Result<(), FlashError> {
        let Some(end) = frames.last().map(|frame| frame.end(self.page)) else { return Ok(()) };
        let is_needed = |at: u32| {
            let next = frames.iter().find(|frame| frame.end(self.page) > at);
            next.is_none_or(|next| match next.offset <= at {
                true => !self.needed.is_beyond(&next.header),
                false => !self.needed.begins_with(&next.header),
            })
        };
        let (before, behind) = std::mem::take(&mut windows.failed).into_iter().partition(|&(at, _)| at < end);
        windows.failed = behind;
        let before: Vec<(u32, FlashError)> = before;
        match before.into_iter().find(|&(at, _)| is_needed(at)) {
            Some((_, error)) => Err(error),
            None => Ok(()),
        }
    }

    /// [`Segment::refuse_failed`] of the page right behind the last frame, where one could follow.
    fn refuse_last(&self, windows: &mut Windows) -> Result<(), FlashError> {
        let failed = std::mem::take(&mut windows.failed);
        match failed.into_iter().find(|&(at, _)| at == windows.last_end) {
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

    /// Whether another look at the next window may find more: some frame is not whole, there is something between two, or where
    /// they ended the next one begins after all. Where they end before the window does, and windows follow, those may hold the
    /// next.
    async fn may_hide_frames(&self, look: &Look, windows: &Windows) -> Result<bool, FlashError> {
        let mut at = windows.at;
        for frame in &look.frames {
            if frame.offset != at || !frame.damage.is_empty() {
                return Ok(true);
            }
            at = frame.end(self.page);
        }
        if at >= look.next {
            return Ok(false);
        }
        if look.frames.is_empty() && at > windows.last_end {
            // Far behind the last one.
            return Ok(look.is_cut);
        }
        if look.is_cut || (look.next < windows.end && !look.frames.is_empty()) {
            return Ok(true);
        }
        let next = self.page_at(at).await?;
        Ok(FrameHeader::decode(&next, self.life, Addr::new(self.id, at)).is_some())
    }
}
