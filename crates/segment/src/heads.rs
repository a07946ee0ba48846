//! Reading the heads of a segment's records without the records: see [`crate::Object::end_head`].

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use pumice_flash::FlashError;

use crate::inner::Inner;
use crate::layout::frame::{self, FrameHeader};
use crate::layout::record;
use crate::scan::read_tolerant;
use crate::{Addr, RecordHead, RecordPtr, SegmentId};

/// Bytes read for a head. Little more than a page costs no more than one, and short records come in several at once.
const READ_BYTES: u32 = 16 << 10;
/// Heads handed out at a time.
const HEADS_MAX: usize = 64;

/// The heads of a segment's frames, each of which tells where the next one begins.
pub(crate) struct Heads {
    inner: Arc<Inner>,
    segment: SegmentId,
    life: u64,
    /// The frames that are still to be read.
    rest: Range<u32>,
    /// What was read last, from this offset in the segment on.
    read: (u32, Bytes),
}

impl Heads {
    pub(crate) fn new(inner: &Arc<Inner>, segment: SegmentId, life: u64, frames: Range<u32>) -> Self {
        Self { inner: inner.clone(), segment, life, rest: frames, read: (0, Bytes::new()) }
    }

    /// Where the frame begins that is read next.
    pub(crate) fn read_at(&self) -> u32 {
        self.rest.start
    }

    /// The next ones; none at the end, and before a frame whose head does not read or verify, or that has none.
    pub(crate) async fn next(&mut self) -> Result<Vec<RecordHead>, FlashError> {
        let mut heads = Vec::new();
        while heads.len() < HEADS_MAX && !self.rest.is_empty() {
            let Some((header, page)) = self.frame().await? else { break };
            let Some(head) = self.head_of(&header, &page) else { break };
            heads.push(head);
            self.rest.start += header.bytes.next_multiple_of(self.inner.superblock.page_bytes);
        }
        Ok(heads)
    }

    /// The next frame's header, and its first page.
    async fn frame(&mut self) -> Result<Option<(FrameHeader, Bytes)>, FlashError> {
        let (at, page_bytes) = (self.rest.start, self.inner.superblock.page_bytes);
        let is_read = self.read.0 <= at && at + page_bytes <= self.read.0 + self.read.1.len() as u32;
        if !is_read {
            let len = READ_BYTES.max(page_bytes).min(self.rest.end - at);
            self.inner.counters.reads.fetch_add(1, Ordering::Relaxed);
            self.inner.counters.read_bytes.fetch_add(u64::from(len), Ordering::Relaxed);
            let read = read_tolerant(&self.inner.device, self.segment, at, len as usize).await?;
            if !read.lost.is_empty() {
                return Ok(None);
            }
            self.read = (at, read.bytes);
        }
        let from = (at - self.read.0) as usize;
        let page = self.read.1.slice(from..from + page_bytes as usize);
        let header = FrameHeader::decode(&page, self.life, Addr::new(self.segment, at));
        Ok(header.map(|header| (header, page)))
    }

    fn head_of(&self, header: &FrameHeader, page: &[u8]) -> Option<RecordHead> {
        let sum = header.head?;
        let bytes = &page[frame::HEADER_BYTES..];
        let record = record::parse_head(bytes, sum)?;
        // A frame of one record and nothing else.
        let frame_bytes = frame::HEADER_BYTES + record::padded(record.total);
        if header.count != 1
            || frame_bytes != header.bytes as usize
            || header.bytes > self.rest.end - self.rest.start
        {
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
