//! Reading the heads of a segment's records without the records: see [`crate::Object::end_head`] and [`crate::Outline`].

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use pumice_flash::FlashError;

use crate::inner::Inner;
use crate::layout::frame::{self, FrameHeader};
use crate::layout::{record, summary};
use crate::scan::{Frame, Window, read_tolerant};
use crate::summary::frame_bytes_min;
use crate::{Addr, Contents, RecordHead, RecordPtr, SegmentId, Stream};

/// Bytes read for a head. Little more than a page costs no more than one, and short records come in several at once.
const READ_BYTES: u32 = 16 << 10;
/// Heads and frames handed out at a time.
const HEADS_MAX: usize = 64;
const FRAMES_MAX: u32 = 64;
/// Frames without a summary that are read whole: what is left of a segment ends in a short one, and the next begins with one.
const WHOLE_MAX: u32 = 8;
/// A summary is read with its frame's last bytes: so many, or a part of the frame.
const SUMMARY_BYTES_MIN: u32 = 1 << 10;
const SUMMARY_PART: u32 = 64;

/// The heads of a segment's frames, each of which tells where the next one begins.
pub(crate) struct Heads {
    inner: Arc<Inner>,
    segment: SegmentId,
    life: u64,
    stream: Stream,
    /// The frames that are still to be read.
    rest: Range<u32>,
    /// Frames that may still be read whole.
    whole_left: u32,
    /// What was read last, from this offset in the segment on.
    read: (u32, Bytes),
}

/// Heads that were read.
pub(crate) struct Headed {
    pub contents: VecDeque<Contents>,
    /// Where the frames begin whose heads could not be had; the segment's end if none.
    pub end: u32,
}

impl Heads {
    pub(crate) fn new(
        inner: &Arc<Inner>,
        segment: SegmentId,
        (life, stream): (u64, Stream),
        frames: Range<u32>,
    ) -> Self {
        let inner = inner.clone();
        let read = (0, Bytes::new());
        Self { inner, segment, life, stream, rest: frames, whole_left: WHOLE_MAX, read }
    }

    /// All that can be had.
    pub(crate) async fn all(mut self) -> Result<Headed, FlashError> {
        let mut contents = VecDeque::new();
        while let Some(more) = self.next().await? {
            contents.push_back(more);
        }
        Ok(Headed { contents, end: self.rest.start })
    }

    /// The next ones, and records of short frames; `None` at the end, and before a frame whose heads do not read or verify, or that
    /// has none.
    async fn next(&mut self) -> Result<Option<Contents>, FlashError> {
        let mut contents = Contents::nothing(self.stream);
        let mut frames = 0;
        while contents.heads.len() < HEADS_MAX && frames < FRAMES_MAX && !self.rest.is_empty() {
            let Some((header, page)) = self.frame().await? else { break };
            if header.stream != self.stream || header.bytes > self.rest.end - self.rest.start {
                break;
            }
            let found = match self.stream {
                Stream::Commit => self.summary_of(&header).await?,
                _ => self.head_of(&header, &page).map(|head| (u64::from(head.ptr.len), vec![head])),
            };
            match found {
                Some((record_bytes, heads)) => {
                    contents.record_bytes += record_bytes;
                    contents.heads.extend(heads);
                }
                None => match self.whole(&header).await? {
                    Some(frame) => {
                        contents.record_bytes += u64::from(frame.live);
                        contents.records.extend(frame.records);
                    }
                    None => break,
                },
            }
            contents.newest_seq = contents.newest_seq.max(header.newest_seq());
            self.rest.start += header.bytes.next_multiple_of(self.inner.superblock.page_bytes);
            frames += 1;
        }
        Ok((frames > 0).then_some(contents))
    }

    /// These bytes of the segment, from what was read last or from the medium, which is asked for pages up to `to` then; `None` when
    /// it does not read.
    async fn bytes(&mut self, wanted: Range<u32>, to: u32) -> Result<Option<Bytes>, FlashError> {
        let is_read =
            |read: &(u32, Bytes)| read.0 <= wanted.start && wanted.end <= read.0 + read.1.len() as u32;
        if !is_read(&self.read) {
            let page_bytes = self.inner.superblock.page_bytes;
            let from = wanted.start / page_bytes * page_bytes;
            let len = to.next_multiple_of(page_bytes).min(self.rest.end).max(wanted.end) - from;
            self.inner.counters.reads.fetch_add(1, Ordering::Relaxed);
            self.inner.counters.read_bytes.fetch_add(u64::from(len), Ordering::Relaxed);
            let read = read_tolerant(&self.inner.device, self.segment, from, len as usize).await?;
            if !read.lost.is_empty() {
                return Ok(None);
            }
            self.read = (from, read.bytes);
        }
        let from = (wanted.start - self.read.0) as usize;
        Ok(Some(self.read.1.slice(from..from + wanted.len())))
    }

    /// The next frame's header, and its first page.
    async fn frame(&mut self) -> Result<Option<(FrameHeader, Bytes)>, FlashError> {
        let at = self.rest.start;
        let wanted = at..at + self.inner.superblock.page_bytes;
        let Some(page) = self.bytes(wanted, at + READ_BYTES).await? else { return Ok(None) };
        let header = FrameHeader::decode(&page, self.life, Addr::new(self.segment, at));
        Ok(header.map(|header| (header, page)))
    }

    /// The heads in a commit frame's summary, and bytes of all records of the frame.
    async fn summary_of(
        &mut self,
        header: &FrameHeader,
    ) -> Result<Option<(u64, Vec<RecordHead>)>, FlashError> {
        if self.is_short(header) || !header.has_summary {
            return Ok(None);
        }
        let (start, page_bytes) = (self.rest.start, self.inner.superblock.page_bytes);
        let end = start + header.bytes;
        let trailer = summary::TRAILER_BYTES as u32;
        let mut bytes = (header.bytes / SUMMARY_PART).max(SUMMARY_BYTES_MIN);
        for _ in 0..2 {
            if bytes > header.bytes - frame::HEADER_BYTES as u32 || bytes < trailer {
                return Ok(None);
            }
            // The next frame's first page with it.
            let to = end.next_multiple_of(page_bytes) + page_bytes;
            let Some(tail) = self.bytes(end - bytes..end, to).await? else { return Ok(None) };
            let Some(summary_bytes) = summary::peek_bytes(&tail) else { return Ok(None) };
            if summary_bytes <= tail.len() {
                let heads = self.heads_in(header, &tail[tail.len() - summary_bytes..]);
                let record_bytes = header.bytes as usize - frame::HEADER_BYTES - summary_bytes;
                return Ok(heads.map(|heads| (record_bytes as u64, heads)));
            }
            bytes = u32::try_from(summary_bytes).unwrap_or(u32::MAX);
        }
        Ok(None)
    }

    /// Whether a frame is too short for a summary.
    fn is_short(&self, header: &FrameHeader) -> bool {
        (header.bytes as usize) < frame_bytes_min(self.inner.segment_bytes)
    }

    /// The next frame with its records, if it is short and all of it verifies.
    async fn whole(&mut self, header: &FrameHeader) -> Result<Option<Frame>, FlashError> {
        let Range { start, end } = self.rest;
        if self.whole_left == 0 || !self.is_short(header) || self.stream != Stream::Commit {
            return Ok(None);
        }
        self.whole_left -= 1;
        let page_bytes = self.inner.superblock.page_bytes;
        let frame_end = start + header.bytes.next_multiple_of(page_bytes);
        let Some(bytes) = self.bytes(start..frame_end.min(end), frame_end + page_bytes).await? else {
            return Ok(None);
        };
        let (segment, life, base) = (self.segment, self.life, start);
        let (frames, ..) = Window { segment, life, bytes: &bytes, base, page_bytes, end }.frames();
        let mut frames = frames.into_iter();
        Ok(frames.next().filter(|frame| {
            frame.offset == start && frame.damage.is_empty() && frame.summary_damage.is_none()
        }))
    }

    fn heads_in(&self, header: &FrameHeader, bytes: &[u8]) -> Option<Vec<RecordHead>> {
        let start = Addr::new(self.segment, self.rest.start);
        let records_end = header.bytes as usize - bytes.len();
        let entries = summary::decode(bytes, self.life, start)?;
        let head = |entry: summary::Entry<'_>| {
            let total = record::total_bytes(entry.payload_bytes as usize, entry.has_seq);
            let end = entry.at as usize + record::padded(total);
            if end > records_end {
                return None;
            }
            let addr = Addr::new(self.segment, start.offset() + entry.at);
            let head = Bytes::copy_from_slice(entry.head);
            Some(RecordHead { kind: entry.kind, ptr: RecordPtr { addr, len: total as u32 }, head })
        };
        entries.into_iter().map(head).collect()
    }

    fn head_of(&self, header: &FrameHeader, page: &[u8]) -> Option<RecordHead> {
        let sum = header.head?;
        let bytes = &page[frame::HEADER_BYTES..];
        let record = record::parse_head(bytes, sum)?;
        // A frame of one record and nothing else.
        let frame_bytes = frame::HEADER_BYTES + record::padded(record.total);
        if header.count != 1 || frame_bytes != header.bytes as usize {
            return None;
        }
        let addr = Addr::new(self.segment, self.rest.start + frame::HEADER_BYTES as u32);
        let head = &bytes[record.payload_at..record.payload_at + usize::from(sum.bytes)];
        Some(RecordHead {
            kind: record.kind,
            ptr: RecordPtr { addr, len: record.total as u32 },
            // Not the page: the heads of a segment are held together.
            head: Bytes::copy_from_slice(head),
        })
    }
}
