//! A frame that is put together before it is known where it will lie, in the buffer that it is written from.
//!
//! The buffer begins with room for a segment's header, then the frame's header, then records, each behind room for its own
//! header. What depends on the place (addresses, the segment's life) is filled in by [`FrameBuf::place`] when a segment is
//! there, and again for another segment when the write failed: payloads are copied (or received) here once and nowhere else.

use std::ops::Range;

use bytes::Bytes;
use pumice_base::checksum::Crc32c;
use pumice_reactor::IoBuf;
use smallvec::SmallVec;

use crate::layout::frame::{self, FrameHeader};
use crate::layout::header::SegmentHeader;
use crate::layout::record;
use crate::{Addr, RecordPtr, Stream};

/// Bytes that are copied and then checked while they are near.
const AT_ONCE_BYTES: usize = 16 << 10;

pub(crate) struct FrameBuf {
    body: Body,
    /// Room for a segment's header.
    page: usize,
    /// Bytes of the frame so far, the last record's padding not among them.
    used: usize,
    records: SmallVec<[Slot; 1]>,
    /// Bytes of the only record's payload that are its head; 0: it has none.
    head_bytes: usize,
}

enum Body {
    Open(IoBuf),
    /// With whom fills it.
    Lent,
    /// On its way, or written: shared, so a change needs a copy. Only failed writes are placed again.
    Sent(Bytes),
}

struct Slot {
    /// Where its header begins, from the frame's start.
    at: usize,
    payload_bytes: usize,
    kind: u8,
    seq: Option<u64>,
    /// Of the payload so far and what else does not depend on the place.
    crc: Crc32c,
}

/// Whether the frame that is placed opens its segment.
pub(crate) struct Place<'a> {
    pub segment_header: Option<&'a SegmentHeader>,
    pub frame_header: &'a FrameHeader,
    /// Where the frame begins, behind the segment's header.
    pub addr: Addr,
}

impl FrameBuf {
    /// An empty one that takes records of `records_bytes`, headers and padding counted.
    pub(crate) fn new(page: usize, records_bytes: usize) -> Self {
        let frame_bytes = (frame::HEADER_BYTES + records_bytes).next_multiple_of(page);
        let body = Body::Open(IoBuf::for_read(page + frame_bytes));
        Self { body, page, used: frame::HEADER_BYTES, records: SmallVec::new(), head_bytes: 0 }
    }

    fn buf(&mut self) -> &mut IoBuf {
        if let Body::Sent(sent) = &self.body {
            self.body = Body::Open(IoBuf::copy_of(sent));
        }
        match &mut self.body {
            Body::Open(buf) => buf,
            Body::Lent => panic!("the buffer is lent"),
            Body::Sent(_) => unreachable!("it was just copied"),
        }
    }

    /// Begins a record whose payload follows.
    pub(crate) fn begin(&mut self, kind: u8, seq: Option<u64>) {
        self.used = record::padded(self.used);
        let crc = record::begin_payload_crc(seq);
        self.records.push(Slot { at: self.used, payload_bytes: 0, kind, seq, crc });
        self.used += record::total_bytes(0, seq.is_some());
    }

    /// Goes on with the last record's payload. Panics where the buffer ends. Its checksum goes on with it, while the bytes are
    /// in the processor's cache.
    pub(crate) fn extend(&mut self, bytes: &[u8]) {
        for bytes in bytes.chunks(AT_ONCE_BYTES) {
            let at = self.page + self.used;
            self.buf()[at..at + bytes.len()].copy_from_slice(bytes);
            self.used += bytes.len();
            let last = self.records.last_mut().expect("a record was begun");
            last.payload_bytes += bytes.len();
            last.crc.update(bytes);
        }
    }

    /// The buffer, and where the last record's payload goes on in it, for at most so many bytes. Until it is taken back nothing
    /// else may be done with the frame.
    pub(crate) fn lend(&mut self, most: usize) -> (IoBuf, Range<usize>) {
        let from = self.page + self.used;
        let to = from + most.min(self.room());
        match std::mem::replace(&mut self.body, Body::Lent) {
            Body::Open(buf) => (buf, from..to),
            Body::Sent(_) | Body::Lent => panic!("only a buffer that is being filled is lent"),
        }
    }

    /// The lent buffer with so many bytes more.
    pub(crate) fn take_back(&mut self, buf: IoBuf, filled: usize) {
        assert!(matches!(self.body, Body::Lent));
        let from = self.page + self.used;
        let last = self.records.last_mut().expect("a record was begun");
        last.crc.update(&buf[from..from + filled]);
        last.payload_bytes += filled;
        self.used += filled;
        self.body = Body::Open(buf);
    }

    /// Shortens the last record's payload.
    pub(crate) fn truncate(&mut self, payload_bytes: usize) {
        let last = self.records.last_mut().expect("a record was begun");
        self.used -= last.payload_bytes - payload_bytes;
        last.payload_bytes = payload_bytes;
        let mut crc = record::begin_payload_crc(last.seq);
        crc.update(self.payload());
        self.records.last_mut().expect("a record was begun").crc = crc;
    }

    /// Of the last record.
    pub(crate) fn payload(&self) -> &[u8] {
        let last = self.records.last().expect("a record was begun");
        &self.bytes()[self.page + self.used - last.payload_bytes..self.page + self.used]
    }

    /// Ends the last record. Whoever finds no room for the frame comes again with the same one.
    pub(crate) fn end(&mut self, kind: u8) {
        self.records.last_mut().expect("a record was begun").kind = kind;
    }

    /// Bytes that the last record's payload can still take.
    pub(crate) fn room(&self) -> usize {
        self.bytes().len() - self.page - self.used
    }

    /// Bytes of the buffer.
    pub(crate) fn capacity(&self) -> usize {
        self.bytes().len()
    }

    fn bytes(&self) -> &[u8] {
        match &self.body {
            Body::Open(buf) => buf,
            Body::Sent(sent) => sent,
            Body::Lent => panic!("the buffer is lent"),
        }
    }

    /// Bytes of the frame, without padding to the page.
    pub(crate) fn frame_bytes(&self) -> usize {
        record::padded(self.used)
    }

    pub(crate) fn count(&self) -> usize {
        self.records.len()
    }

    /// Fills in what depends on the place. The bytes to write, whole pages, and where the records lie then.
    pub(crate) fn place(&mut self, place: &Place<'_>) -> (Bytes, Vec<RecordPtr>) {
        let (page, used, head_bytes) = (self.page, self.used, self.head_bytes);
        let end = page + self.frame_bytes().next_multiple_of(page);
        let records = std::mem::take(&mut self.records);
        let buf = self.buf();
        let from = match place.segment_header {
            Some(header) => {
                buf[..page].fill(0);
                header.encode(&mut buf[..page]);
                0
            }
            None => page,
        };
        let frame = &mut buf[page..end];
        place.frame_header.encode(frame, place.addr);
        let life = place.frame_header.life;
        let mut ptrs = Vec::with_capacity(records.len());
        let ends = records.iter().skip(1).map(|next| next.at).chain([frame.len()]);
        for (slot, end) in records.iter().zip(ends) {
            let addr = Addr::new(place.addr.segment(), place.addr.offset() + slot.at as u32);
            let len = slot.payload_bytes as u32;
            let out = &mut frame[slot.at..end];
            record::encode_head(out, life, addr, len, slot.kind, slot.seq, slot.crc.value());
            let total = record::total_bytes(slot.payload_bytes, slot.seq.is_some());
            out[total..].fill(0);
            ptrs.push(RecordPtr { addr, len: total as u32 });
        }
        assert!(used <= end - page);
        if let [slot] = &records[..]
            && head_bytes > 0
            && place.frame_header.stream == Stream::Large
        {
            let head = record::head_sum(&frame[slot.at..page], head_bytes);
            FrameHeader { head, ..*place.frame_header }.encode(frame, place.addr);
        }
        self.records = records;
        let sent = match std::mem::replace(&mut self.body, Body::Sent(Bytes::new())) {
            Body::Open(buf) => buf.freeze(),
            Body::Sent(sent) => sent,
            Body::Lent => unreachable!("it was used just above"),
        };
        self.body = Body::Sent(sent.clone());
        (sent.slice(from..end), ptrs)
    }
}

/// One record's payload, put together in the buffer that it is written from: see [`crate::Heap::object`].
pub struct Object {
    pub(crate) frame: FrameBuf,
}

impl Object {
    pub(crate) fn new(page: usize, payload_bytes: usize) -> Self {
        let mut frame = FrameBuf::new(page, record::padded(record::total_bytes(payload_bytes, false)));
        frame.begin(0, None);
        Self { frame }
    }

    /// Appends to the payload. Panics beyond [`Object::room`].
    pub fn extend_from_slice(&mut self, bytes: &[u8]) {
        self.frame.extend(bytes);
    }

    /// What was put in so far is the payload's head: it can be read without the rest ([`crate::Contents::heads`]) where the object
    /// is one of large values and the head lies on the frame's first page.
    pub fn end_head(&mut self) {
        self.frame.head_bytes = self.frame.payload().len();
    }

    /// Memory for the payload's next bytes, `most` at most, to be filled from elsewhere. Nothing else may be done with the object
    /// until it is [taken back](Object::take_back).
    pub fn lend(&mut self, most: usize) -> (IoBuf, Range<usize>) {
        self.frame.lend(most)
    }

    /// What was lent, with so many bytes more.
    pub fn take_back(&mut self, buf: IoBuf, filled: usize) {
        self.frame.take_back(buf, filled);
    }

    /// Shortens the payload to so many bytes, its head among them; panics if it has fewer.
    pub fn truncate(&mut self, payload_bytes: usize) {
        self.frame.truncate(payload_bytes);
    }

    /// What was put in so far.
    pub fn payload(&self) -> &[u8] {
        self.frame.payload()
    }

    /// Bytes that still fit: at least as many as were asked for.
    pub fn room(&self) -> usize {
        self.frame.room()
    }

    /// Bytes of memory that it holds, filled or not.
    pub fn memory_bytes(&self) -> usize {
        self.frame.capacity()
    }
}
