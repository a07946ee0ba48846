//! Where the drive's bytes are, and how it wears.

use super::Table;
use super::entries::Sums;
use crate::layout::meta::{FLAG_WRITTEN, SegmentState};
use crate::{ChannelReport, SpaceReport, Wear};

impl Table {
    /// Bytes by kind.
    pub(crate) fn space(&self) -> SpaceReport {
        let segment_bytes = u64::from(self.geometry.block_bytes());
        let mut report = self.of_kinds(self.entries.sums(), u64::from(self.first_data), |_| true);
        report.raw = self.raw_bytes;
        report.leftover = self.raw_bytes.saturating_sub(self.geometry.capacity_bytes());
        let reserved = report.free.min(u64::from(self.reserve) * segment_bytes);
        (report.reserved, report.free) = (reserved, report.free - reserved);
        report
    }

    /// Bytes by kind of data segments with these sums, and of so many before them; the reserve is among what is free. `is_one`: whether a
    /// segment is one of them.
    fn of_kinds(&self, sums: &Sums, first: u64, is_one: impl Fn(u32) -> bool) -> SpaceReport {
        let segment_bytes = u64::from(self.geometry.block_bytes());
        let mut report = SpaceReport {
            meta: first * segment_bytes + sums.system,
            live: sums.live,
            dead: sums.dead,
            open: sums.open,
            pending: sums.pending,
            bad: sums.bad,
            free: sums.free,
            ..SpaceReport::default()
        };
        // Free by their state, and nobody's to take.
        let is_counted = |id: &u32| *id >= self.first_data && self.is_free(*id) && is_one(*id);
        let spares = self.spares().filter(is_counted).count() as u64 * segment_bytes;
        let coming = self.freeing.iter().copied().filter(|&id| !self.is_spare(id)).filter(is_counted);
        let coming = coming.count() as u64 * segment_bytes;
        report.meta += spares;
        report.pending += coming;
        report.free -= spares + coming;
        report.raw =
            report.meta + report.live + report.dead + report.open + report.pending + report.bad + report.free;
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
                    space: self.of_kinds(
                        &self.entries.sums_of(of(channel)),
                        of(channel).filter(|&id| (id as u32) < self.first_data).count() as u64,
                        |id| usize::from(self.geometry.block(id).channel) == channel,
                    ),
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
