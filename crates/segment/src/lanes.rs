//! The commit stream's open segments: one *lane* for each, on channels of their own where the drive has several.
//!
//! 1. Frames are formed and numbered one after the other, whatever lane they go to; a lane has one frame on its way at a time,
//!    because what follows a failed program in its segment would be lost with it.
//! 2. A frame goes to the first lane that has nothing to do. So a stream that one channel carries fills one segment at a time,
//!    and what others left half filled is used before anything is opened.
//! 3. A lane without a segment gets one when all others are at work and free segments are plenty, never at the cost of what a
//!    batch was promised.
//!
//! Rejected: one lane after the other, which opens all of them for a trickle; a lane for each core or slice (a batch over
//! slices would need a protocol).

use std::collections::VecDeque;

use pumice_flash::Device;

use crate::table::OpenSegment;

/// Lanes of a drive at most: of the 64 segments that a metadata record names as next, some must be left for other streams.
const LANES_MAX: u32 = 44;
/// Segments of a drive for each lane: what is open is neither free nor to be won.
const SEGMENTS_A_LANE: u32 = 16;

/// Lanes of a drive: one a channel, and at most a sixteenth of its segments. A zoned drive counts what is written in part.
pub(crate) fn lanes_of(device: &Device, segments: u32, most: Option<u16>) -> usize {
    let geometry = device.geometry();
    if matches!(device, Device::Zoned(_)) {
        return 1;
    }
    let by_shape = u32::from(geometry.channels).min(segments / SEGMENTS_A_LANE).min(LANES_MAX);
    by_shape.min(most.map_or(u32::MAX, u32::from)).max(1) as usize
}

#[derive(Default)]
pub(crate) struct Lane {
    pub open: Option<OpenSegment>,
    /// Its frames that are sealed and not written yet.
    queued: u32,
    is_flying: bool,
}

pub(crate) struct Lanes {
    lanes: Vec<Lane>,
    /// Segments that were opened ahead.
    pub spares: VecDeque<OpenSegment>,
    /// Of them, what the batch being appended may need.
    kept: usize,
}

impl Lanes {
    pub(crate) fn new(count: usize) -> Self {
        let lanes = (0..count.max(1)).map(|_| Lane::default()).collect();
        Self { lanes, spares: VecDeque::with_capacity(4), kept: 0 }
    }

    pub(crate) fn count(&self) -> usize {
        self.lanes.len()
    }

    pub(crate) fn open(&self, lane: usize) -> Option<OpenSegment> {
        self.lanes[lane].open
    }

    pub(crate) fn open_mut(&mut self, lane: usize) -> &mut Option<OpenSegment> {
        &mut self.lanes[lane].open
    }

    /// The segments that are open, and their lanes.
    pub(crate) fn all_open(&self) -> impl Iterator<Item = (usize, OpenSegment)> + '_ {
        self.lanes.iter().enumerate().filter_map(|(at, lane)| Some((at, lane.open?)))
    }

    /// Gives a lane without a segment this one; answers false when none is left.
    pub(crate) fn adopt(&mut self, open: OpenSegment) -> bool {
        let Some(lane) = self.lanes.iter_mut().find(|lane| lane.open.is_none()) else { return false };
        lane.open = Some(open);
        true
    }

    /// A batch is about to be appended that may need so many spares.
    pub(crate) fn keep(&mut self, spares: usize) {
        self.kept = spares;
    }

    /// Spares that could be put to use for `frames` frames, beside those that are there: for lanes that have nothing to do
    /// and no room.
    pub(crate) fn spares_wanted(&self, frames: usize, fits: impl Fn(&OpenSegment) -> bool) -> usize {
        let idle = self.lanes.iter().filter(|lane| lane.queued == 0);
        let (ready, roomless): (Vec<&Lane>, Vec<&Lane>) =
            idle.partition(|lane| lane.open.as_ref().is_some_and(&fits));
        let wanted = frames.saturating_sub(ready.len()).min(roomless.len());
        wanted.saturating_sub(self.spares.len().saturating_sub(self.kept))
    }

    /// The lane of the next frame, and whether it needs a spare for it.
    pub(crate) fn pick(&self, fits: impl Fn(&OpenSegment) -> bool) -> (usize, bool) {
        let has_room = |lane: &Lane| lane.open.as_ref().is_some_and(&fits);
        let idle = |lane: &Lane| lane.queued == 0;
        if let Some(at) = self.lanes.iter().position(|lane| idle(lane) && has_room(lane)) {
            return (at, false);
        }
        if self.spares.len() > self.kept
            && let Some(at) = self.lanes.iter().position(idle)
        {
            return (at, true);
        }
        let least = |lanes: &mut dyn Iterator<Item = (usize, &Lane)>| {
            lanes.min_by_key(|(_, lane)| lane.queued).map(|(at, _)| at)
        };
        // What a batch was promised lasts because a spare is taken only when no lane has room.
        match least(&mut self.lanes.iter().enumerate().filter(|(_, lane)| has_room(lane))) {
            Some(at) => (at, false),
            None => (least(&mut self.lanes.iter().enumerate()).unwrap_or(0), true),
        }
    }

    /// Puts a spare in the place of the lane's segment, which is answered.
    pub(crate) fn replace(&mut self, lane: usize) -> Option<OpenSegment> {
        let full = self.lanes[lane].open.take();
        self.lanes[lane].open = self.spares.pop_front();
        self.kept = self.kept.min(self.spares.len());
        full
    }

    /// Segments of lanes that have nothing to do, but for the first unless it is as good as full: where space is at its end the
    /// rests of segments count, and what is dead in them.
    pub(crate) fn take_idle(
        &mut self,
        is_busy: impl Fn(&OpenSegment) -> bool,
        is_full: impl Fn(&OpenSegment) -> bool,
    ) -> Vec<OpenSegment> {
        let mut taken = Vec::new();
        let mut is_first = true;
        for lane in &mut self.lanes {
            if lane.open.as_ref().is_some_and(|open| !is_full(open)) && std::mem::take(&mut is_first) {
                continue;
            }
            if lane.queued == 0 && lane.open.as_ref().is_some_and(|open| open.offset > 0 && !is_busy(open)) {
                taken.extend(lane.open.take());
            }
        }
        taken
    }

    pub(crate) fn sealed(&mut self, lane: usize) {
        self.lanes[lane].queued += 1;
    }

    pub(crate) fn is_flying(&self, lane: usize) -> bool {
        self.lanes[lane].is_flying
    }

    pub(crate) fn flies(&mut self, lane: usize) {
        self.lanes[lane].is_flying = true;
    }

    pub(crate) fn written(&mut self, lane: usize) {
        let lane = &mut self.lanes[lane];
        (lane.is_flying, lane.queued) = (false, lane.queued - 1);
    }
}
