//! Recovery of a log that lies in several segments at once, or of what lies behind a frame that is missing or not whole: which of
//! the frames that were found count, and in what order.
//!
//! 1. The segments are read one after the other, as any are, and of each frame only its header and whether it is whole are
//!    kept. Of several segments at once the metadata record names the first frame that is wanted; all of those lie in the segments
//!    that are read.
//! 2. Any header that verifies says up to which frame all were durable when it was written (`lag`), wherever it lies. The most
//!    of that is the *proven* end: what is missing or not whole below it is damage, and is reported.
//! 3. From there on frames count up to the first that is missing or not whole: the torn end of the log. What lies behind it
//!    was never acknowledged, in whatever segment it is, and is dropped.
//! 4. The frames that count are read again in the order of their numbers, and handed out: memory holds headers, and
//!    [`AHEAD_BYTES`] of frames or one.
//!
//! Rejected: reading all segments side by side in windows, once: whether a gap is the end is only known when all that may prove
//! otherwise was read, so that what lies behind it would have to be held; and a segment of each channel in memory, 352 MiB on
//! a drive of 44 channels.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use pumice_flash::FlashError;
use pumice_reactor::{JoinHandle, spawn};

use crate::fetch::{LOOKS_MAX, finished};
use crate::inner::Inner;
use crate::layout::frame::FrameHeader;
use crate::scan::{Frame, Window, read_patiently};
use crate::{Damage, HeapError, SegmentId};

/// Bytes of frames under way beside the one that is replayed.
const AHEAD_BYTES: usize = 16 << 20;
const AHEAD_FRAMES: usize = 64;

/// A commit frame whose header was found.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub segment: SegmentId,
    pub offset: u32,
    pub header: FrameHeader,
    pub live: u32,
    pub is_whole: bool,
}

impl Place {
    pub(crate) fn of(segment: SegmentId, frame: &Frame) -> Self {
        let is_whole = frame.damage.is_empty();
        Self { segment, offset: frame.offset, header: frame.header, live: frame.live, is_whole }
    }

    pub(crate) fn end(&self, page_bytes: u32) -> u32 {
        (self.offset + self.header.bytes).next_multiple_of(page_bytes)
    }
}

/// A step of the replay.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// A frame that counts; one that is not whole is damaged.
    Frame(Place),
    /// Frames that were durable and are not there.
    Lost(Range<u64>),
}

/// What to do with frames that were found.
pub(crate) struct Order {
    /// Frames before the first that is wanted: they stay where they are, and are not handed out.
    pub older: Vec<Place>,
    pub steps: VecDeque<Step>,
    /// Frames below this number were durable.
    pub proven: u64,
    /// All frames from this one on that the newest metadata record knew as durable were found. Where those before it are is
    /// not known: some lie in segments that a checkpoint covers and that nobody read.
    pub found_from: u64,
}

/// Puts frames in order, of which those from `first` on are wanted, and those below `durable` were durable when the newest
/// metadata record was written.
pub(crate) fn order(mut found: Vec<Place>, first: u64, durable: u64) -> Order {
    let proof = |place: &Place| place.header.number.saturating_sub(u64::from(place.header.lag));
    let proven = found.iter().map(proof).max().unwrap_or(0).max(durable);
    // Of two with one number, because a program failed, the whole one counts, and of two whole ones that which was written
    // in the place of the other.
    found.sort_by_key(|place| {
        (place.header.number, !place.is_whole, std::cmp::Reverse(place.header.life), place.offset)
    });
    found.dedup_by_key(|place| place.header.number);
    let mut found_from = durable;
    let below = found.iter().rev().map(|place| place.header.number).filter(|&number| number < durable);
    for number in below {
        if number + 1 != found_from {
            break;
        }
        found_from = number;
    }
    let wanted = found.split_off(found.partition_point(|place| place.header.number < first));
    let mut steps = VecDeque::new();
    let mut next = first;
    for place in wanted {
        let number = place.header.number;
        if number > next {
            if next < proven {
                steps.push_back(Step::Lost(next..number.min(proven)));
            }
            if number > proven.max(next) || next >= proven {
                next = next.max(proven);
                break;
            }
        }
        if !place.is_whole && number >= proven {
            next = number;
            break;
        }
        next = number + 1;
        steps.push_back(Step::Frame(place));
    }
    if next < proven {
        steps.push_back(Step::Lost(next..proven));
    }
    Order { older: found, steps, proven, found_from }
}

/// Frames in their order, read ahead.
pub(crate) struct Frames {
    waiting: VecDeque<Step>,
    under_way: VecDeque<Reading>,
    bytes: usize,
}

enum Reading {
    Frame(Place, JoinHandle<Result<(Frame, u64), FlashError>>),
    Lost(Range<u64>),
}

/// What comes next.
pub(crate) enum Next {
    Frame { segment: SegmentId, frame: Frame, bytes_read: u64 },
    Lost(Range<u64>),
}

impl Frames {
    pub(crate) fn new(steps: VecDeque<Step>) -> Self {
        Self { waiting: steps, under_way: VecDeque::new(), bytes: 0 }
    }

    pub(crate) async fn next(&mut self, inner: &Arc<Inner>) -> Result<Option<Next>, HeapError> {
        while self.under_way.is_empty() || (self.bytes < AHEAD_BYTES && self.under_way.len() < AHEAD_FRAMES) {
            let reading = match self.waiting.pop_front() {
                None => break,
                Some(Step::Lost(numbers)) => Reading::Lost(numbers),
                Some(Step::Frame(place)) => {
                    self.bytes += place.header.bytes as usize;
                    let (inner, wanted) = (inner.clone(), place.clone());
                    Reading::Frame(place, spawn(async move { read(&inner, &wanted).await }))
                }
            };
            self.under_way.push_back(reading);
        }
        match self.under_way.pop_front() {
            None => Ok(None),
            Some(Reading::Lost(numbers)) => Ok(Some(Next::Lost(numbers))),
            Some(Reading::Frame(place, read)) => {
                self.bytes -= place.header.bytes as usize;
                let (frame, bytes_read) = finished(read).await?;
                Ok(Some(Next::Frame { segment: place.segment, frame, bytes_read }))
            }
        }
    }
}

/// Reads a frame again, until it is as whole as it was. What the drive does not answer ends the opening, unless the client's
/// durable state covers the frame: then it is damage that costs nobody a record.
async fn read(inner: &Inner, place: &Place) -> Result<(Frame, u64), FlashError> {
    let page_bytes = inner.superblock.page_bytes;
    let (end, mut bytes_read) = (place.end(page_bytes), 0);
    let is_needed = place.header.newest_seq() > inner.meta.state().replay_from;
    let mut best: Option<Frame> = None;
    for _ in 0..LOOKS_MAX {
        let len = end - place.offset;
        let stretch = read_patiently(&inner.device, place.segment, place.offset, len as usize).await?;
        if is_needed && let Some((_, error)) = stretch.failed.into_iter().next() {
            return Err(error);
        }
        bytes_read += u64::from(len);
        let (segment, life, base) = (place.segment, place.header.life, place.offset);
        let window = Window { segment, life, bytes: &stretch.bytes, base, page_bytes, end };
        let (frames, ..) = window.frames();
        let mut found = frames.into_iter().find(|frame| frame.offset == place.offset);
        if let Some(found) = &mut found {
            found.note_lost(segment, &stretch.lost, page_bytes);
        }
        let is_enough = found.as_ref().is_some_and(|frame| frame.damage.is_empty() || !place.is_whole);
        let better = |best: &Frame, found: &Frame| {
            (found.records.len(), found.damage.is_empty()) > (best.records.len(), best.damage.is_empty())
        };
        if let Some(found) = found
            && best.as_ref().is_none_or(|best| better(best, &found))
        {
            best = Some(found);
        }
        if is_enough {
            break;
        }
    }
    let lost = || {
        let what = format!("frame {} was there and does not read any more", place.header.number);
        let damage = vec![Damage { segment: place.segment, offset: place.offset, what }];
        Frame {
            header: place.header,
            offset: place.offset,
            records: Vec::new(),
            live: 0,
            damage,
            summary_damage: None,
        }
    };
    Ok((best.unwrap_or_else(lost), bytes_read))
}
