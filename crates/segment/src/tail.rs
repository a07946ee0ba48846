//! The log's tail in memory: recent commit frames as they were written, so that what was just written is read
//! without flash. Oldest frames go first once the budget is spent.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::{Addr, RecordPtr, SegmentId};

struct Frame {
    start: u32,
    data: Bytes,
    /// What it costs: the buffer's capacity, which may exceed the data.
    cost: usize,
}

struct SegmentFrames {
    segment: SegmentId,
    /// Ascending by start.
    frames: VecDeque<Frame>,
}

pub(crate) struct Tail {
    budget: usize,
    used: usize,
    /// Frames at the back that are not on flash yet: they stay whatever the budget.
    undurable: usize,
    frames: usize,
    segments: VecDeque<SegmentFrames>,
}

impl Tail {
    pub(crate) fn new(budget: usize) -> Self {
        Self { budget, used: 0, undurable: 0, frames: 0, segments: VecDeque::new() }
    }

    /// Adds the bytes at `start` of `segment`, not on flash yet; frames of a segment come in order.
    pub(crate) fn insert(&mut self, segment: SegmentId, start: u32, data: Bytes, cost: usize) {
        self.used += cost;
        self.frames += 1;
        self.undurable += 1;
        match self.segments.back_mut() {
            Some(last) if last.segment == segment => last.frames.push_back(Frame { start, data, cost }),
            _ => self
                .segments
                .push_back(SegmentFrames { segment, frames: VecDeque::from([Frame { start, data, cost }]) }),
        }
        self.evict();
    }

    /// The oldest `count` frames that were not on flash are now.
    pub(crate) fn written(&mut self, count: usize) {
        self.undurable = self.undurable.saturating_sub(count);
        self.evict();
    }

    fn evict(&mut self) {
        while self.used > self.budget && self.frames > self.undurable {
            let Some(first) = self.segments.front_mut() else { break };
            match first.frames.pop_front() {
                Some(frame) => {
                    self.used -= frame.cost;
                    self.frames -= 1;
                }
                None => drop(self.segments.pop_front()),
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
        let moved =
            moved.into_iter().zip(replaced).map(|(frame, (start, data))| Frame { start, data, ..frame });
        let frames = moved.collect();
        self.segments.insert(index + 1, SegmentFrames { segment: target, frames });
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
        self.segments.retain(|frames| {
            if frames.segment == segment {
                self.used -= frames.frames.iter().map(|frame| frame.cost).sum::<usize>();
                self.frames -= frames.frames.len();
            }
            frames.segment != segment
        });
    }
}

/// True when `addr` lies in the `len` bytes from `start` on.
pub(crate) fn holds(start: Addr, len: usize, addr: Addr) -> bool {
    addr.segment() == start.segment()
        && addr.offset() >= start.offset()
        && u64::from(addr.offset() - start.offset()) < len as u64
}
