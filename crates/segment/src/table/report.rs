//! Where the drive's bytes are, and how it wears.

use super::Table;
use crate::layout::meta::{FLAG_WRITTEN, SegmentState};
use crate::{ChannelReport, SpaceReport, Wear};

impl Table {
    /// Bytes by kind.
    pub(crate) fn space(&self) -> SpaceReport {
        let mut report = self.kinds(0..self.entries.len());
        report.raw = self.raw_bytes;
        report.leftover = self.raw_bytes.saturating_sub(self.geometry.capacity_bytes());
        let reserved = report.free.min(u64::from(self.reserve) * u64::from(self.geometry.block_bytes()));
        (report.reserved, report.free) = (reserved, report.free - reserved);
        report
    }

    /// Bytes by kind of these segments, the reserve among what is free.
    fn kinds(&self, segments: impl Iterator<Item = usize>) -> SpaceReport {
        let segment_bytes = u64::from(self.geometry.block_bytes());
        let mut report = SpaceReport::default();
        for id in segments {
            let entry = &self.entries[id];
            report.raw += segment_bytes;
            if (id as u32) < self.first_data {
                report.meta += segment_bytes;
                continue;
            }
            let live = (entry.live.max(0) as u64).min(segment_bytes);
            let end = u64::from(entry.end).max(live);
            match entry.state {
                SegmentState::Free if self.is_spare(id as u32) => report.meta += segment_bytes,
                SegmentState::Free if self.freeing.contains(&(id as u32)) => report.pending += segment_bytes,
                SegmentState::Free => report.free += segment_bytes,
                SegmentState::Open => {
                    report.live += live;
                    report.dead += end - live;
                    report.open += segment_bytes - end;
                }
                SegmentState::Sealed if entry.releasing => report.pending += segment_bytes,
                SegmentState::Sealed if entry.unreadable_above.is_some() => {
                    report.live += live;
                    report.bad += segment_bytes - live;
                }
                SegmentState::Sealed => {
                    report.live += live;
                    report.dead += segment_bytes - live;
                }
                SegmentState::Bad => report.bad += segment_bytes,
                SegmentState::System => report.meta += segment_bytes,
            }
        }
        report
    }

    /// Space and wear by channel.
    pub(crate) fn channels(&self) -> Vec<ChannelReport> {
        let (step, segment_bytes) =
            (usize::from(self.geometry.channels), u64::from(self.geometry.block_bytes()));
        let of = |channel: usize| (channel..self.entries.len()).step_by(step);
        let data = |channel: usize| of(channel).filter(|&id| id as u32 >= self.first_data);
        let mut reports: Vec<ChannelReport> = (0..step)
            .map(|channel| {
                let is = |id: usize, state: SegmentState| self.entries[id].state == state;
                let holds = |id: &usize| !is(*id, SegmentState::Bad) && !is(*id, SegmentState::System);
                let is_kept = |id: u32| self.freeing.contains(&id) || self.is_spare(id);
                let free = data(channel).filter(|&id| is(id, SegmentState::Free) && !is_kept(id as u32));
                ChannelReport {
                    space: self.kinds(of(channel)),
                    unerased: free.filter(|&id| self.is_unerased(id as u32)).count() as u64 * segment_bytes,
                    bad_segments: data(channel).filter(|&id| is(id, SegmentState::Bad)).count() as u32,
                    wear: Wear::of(data(channel).filter(holds).map(|id| self.erases(id as u32))),
                }
            })
            .collect();
        // Segment by segment from the channel that has most left.
        for _ in 0..self.space().reserved / segment_bytes {
            let Some(most) = reports.iter_mut().max_by_key(|report| report.space.free) else { break };
            most.space.free -= segment_bytes;
            most.space.reserved += segment_bytes;
        }
        reports
    }

    /// Erases of a segment, by the media's own count where they keep one.
    fn erases(&self, id: u32) -> u32 {
        let counted = self.device.erase_count(self.geometry.block(id));
        counted.unwrap_or(self.entries[id as usize].erase_count)
    }

    fn is_unerased(&self, id: u32) -> bool {
        match self.device.write_pointer(self.geometry.block(id)) {
            Some(page) if self.device.has_own_blocks() => page > 0,
            _ => self.entries[id as usize].flags & FLAG_WRITTEN != 0,
        }
    }
}
