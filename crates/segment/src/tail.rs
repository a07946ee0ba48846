//! The log's tail in memory: recent commit frames as they were written, so that what was just written is read
//! without flash. Oldest frames go first once the budget is spent.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::{Addr, RecordPtr, SegmentId};

struct Frame {
    number: u64,
    start: u32,
    data: Bytes,
    /// What it costs: the buffer's capacity, which may exceed the data.
    cost: usize,
}

struct SegmentFrames {
    segment: SegmentId,
    /// Ascending by start, and by number.
    frames: VecDeque<Frame>,
}

pub(crate) struct Tail {
    budget: usize,
    used: usize,
    /// Of the newest frames, so many are not on flash yet: they stay whatever the budget.
    undurable: usize,
    /// By number, with the segment of each: several segments are filled side by side.
    order: VecDeque<(u64, SegmentId)>,
    segments: VecDeque<SegmentFrames>,
}

impl Tail {
    pub(crate) fn new(budget: usize) -> Self {
        Self { budget, used: 0, undurable: 0, order: VecDeque::new(), segments: VecDeque::new() }
    }

    /// Adds frame `number`, the bytes at `start`, not on flash yet; frames come in order.
    pub(crate) fn insert(&mut self, number: u64, start: Addr, data: Bytes, cost: usize) {
        let (segment, start) = (start.segment(), start.offset());
        self.used += cost;
        self.undurable += 1;
        self.order.push_back((number, segment));
        let frame = Frame { number, start, data, cost };
        match self.segments.iter_mut().rev().find(|frames| frames.segment == segment) {
            Some(frames) => frames.frames.push_back(frame),
            None => self.segments.push_back(SegmentFrames { segment, frames: VecDeque::from([frame]) }),
        }
        self.evict();
    }

    /// The oldest `count` frames that were not on flash are now.
    pub(crate) fn written(&mut self, count: usize) {
        self.undurable = self.undurable.saturating_sub(count);
        self.evict();
    }

    fn evict(&mut self) {
        while self.used > self.budget && self.order.len() > self.undurable {
            let Some((number, segment)) = self.order.pop_front() else { break };
            let Some(at) = self.segments.iter().position(|frames| frames.segment == segment) else {
                continue;
            };
            let frames = &mut self.segments[at].frames;
            if let Some(frame) = frames.pop_front_if(|frame| frame.number == number) {
                self.used -= frame.cost;
            }
            if frames.is_empty() {
                self.segments.remove(at);
            }
        }
    }

    /// Frames of `source` from `from` on were written to `target` instead, at these offsets with these bytes.
    pub(crate) fn relocate(
        &mut self,
        source: SegmentId,
        from: u32,
        target: SegmentId,
        replaced: Vec<(u32, Bytes)>,
    ) {
        let Some(index) = self.segments.iter().rposition(|frames| frames.segment == source) else { return };
        let frames = &mut self.segments[index].frames;
        let kept = frames.partition_point(|frame| frame.start < from);
        let moved = frames.split_off(kept);
        for frame in &moved {
            if let Ok(at) = self.order.binary_search_by_key(&frame.number, |&(number, _)| number) {
                self.order[at].1 = target;
            }
        }
        let moved =
            moved.into_iter().zip(replaced).map(|(frame, (start, data))| Frame { start, data, ..frame });
        let frames = moved.collect();
        if self.segments[index].frames.is_empty() {
            self.segments.remove(index);
        }
        self.segments.push_back(SegmentFrames { segment: target, frames });
    }

    /// The record's bytes, if the frame that holds them is here.
    pub(crate) fn get(&self, ptr: RecordPtr) -> Option<Bytes> {
        let (segment, offset) = (ptr.addr.segment(), ptr.addr.offset());
        let found = self.segments.iter().rev().find(|frames| frames.segment == segment)?;
        let after = found.frames.partition_point(|frame| frame.start <= offset);
        let frame = found.frames.get(after.checked_sub(1)?)?;
        let at = (offset - frame.start) as usize;
        let end = at.checked_add(ptr.len as usize)?;
        (end <= frame.data.len()).then(|| frame.data.slice(at..end))
    }

    /// Forgets a segment that is opened anew; nothing of its old life is on its way to flash.
    pub(crate) fn forget(&mut self, segment: SegmentId) {
        let before = self.segments.len();
        self.segments.retain(|frames| {
            if frames.segment == segment {
                self.used -= frames.frames.iter().map(|frame| frame.cost).sum::<usize>();
            }
            frames.segment != segment
        });
        if self.segments.len() < before {
            self.order.retain(|&(_, other)| other != segment);
        }
    }
}

/// True when `addr` lies in the `len` bytes from `start` on.
pub(crate) fn holds(start: Addr, len: usize, addr: Addr) -> bool {
    addr.segment() == start.segment()
        && addr.offset() >= start.offset()
        && u64::from(addr.offset() - start.offset()) < len as u64
}
