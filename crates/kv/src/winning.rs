//! Two ways to win space where it is short, and which one is cheaper.
//!
//! Cleaning writes what is live in a segment to win what is dead in it. Merging a slice into its bottom run writes that
//! run again to win the upper runs, each of whose entries shadows one below, or is there to stay. Beside large values
//! key tables are small and cleaning is the cheaper way. Where values lie in the tables themselves it is not: what is
//! dead of them is spread thin until a merge brings it out, and then whole segments die in the order of their keys.
//! So a victim has to promise more, for each byte written, than the best merge; where none does, that merge comes first,
//! and until it has ended only segments are cleaned in which next to nothing is live.

use std::sync::atomic::Ordering;

use pumice_segment::{Group, TABLE_GROUPS};

use crate::plan::{Job, Prospect, stretches};
use crate::slice::lock;
use crate::store::Inner;
use crate::table::Footer;
use crate::types::SliceId;
use crate::version::{Run, RunOrder};

/// Free segments, the reserve included, with which a merge that goes first can work; with fewer cleaning goes on.
const MERGE_SEGMENTS: u64 = 3;

/// Tables that are moved as they are leave a rest in the segments that they go to: of a segment of tables one part in so
/// many is not won. A merge cuts its tables to fit.
const PACKING_LOSS: u32 = 4;

impl Inner {
    /// Dead bytes that a victim must hold to be worth cleaning now.
    pub fn least_dead(&self) -> u32 {
        let segment_bytes = self.heap.segment_bytes();
        if self.merge_first().is_some() && self.free_of_all_kinds() >= MERGE_SEGMENTS {
            return segment_bytes - segment_bytes / 16;
        }
        let Some(merge) = self.best_merge() else { return 0 };
        let dead = merge.dead_as_cheap(segment_bytes);
        let least = if merge.is_worth_its_while() && self.are_tables_much() {
            segment_bytes / PACKING_LOSS
        } else {
            0
        };
        dead.max(least)
    }

    /// No victim was worth it: a merge goes first, if one would win anything. Answers whether one does.
    pub fn put_merge_first(&self) -> bool {
        if self.merge_first().is_none() {
            let Some(best) = self.best_merge() else { return false };
            *lock(&self.merge_first) = Some(best.slice);
            self.merge_wanted.notify_one();
        }
        true
    }

    /// The slice whose merge cleaning waits for.
    pub fn merge_first(&self) -> Option<SliceId> {
        *lock(&self.merge_first)
    }

    /// The merge that went first has ended, or found no room: then cleaning makes some before the next one.
    pub fn merged_first(&self, found_room: bool) {
        *lock(&self.merge_first) = None;
        self.merge_found_no_room.store(!found_room, Ordering::Relaxed);
        self.clean_wanted.notify_one();
    }

    /// The job that merges all runs of a slice, or of the stretch of them that wins most.
    pub fn whole_merge(&self, slice: SliceId) -> Option<Job> {
        let barred = self.barred_tables();
        let version = lock(&self.manifest).versions[usize::from(slice.0)].clone();
        let stretches = stretches(&version, &barred);
        let prospects = stretches.iter().filter_map(|stretch| Some((Prospect::of(slice, stretch)?, stretch)));
        let best = prospects.reduce(|best, other| if other.0.beats(&best.0) { other } else { best });
        best?.1.whole(slice)
    }

    /// Where a run's tables lie. Where tables are much of the drive the bottom run has segments of its own, and upper
    /// runs share theirs with those of one slice in four: they die together. Elsewhere it would win little and leave
    /// segments open.
    pub fn group_of(&self, slice: SliceId, order: RunOrder) -> Group {
        const UPPER_GROUPS: u16 = TABLE_GROUPS as u16 - 1;
        match order {
            _ if !self.are_tables_much() => Group::Tables(0),
            0 => Group::Tables(0),
            _ => Group::Tables((1 + slice.0 % UPPER_GROUPS) as u8),
        }
    }

    /// The run that a table is in; the newest where it is not named yet.
    pub fn order_of(&self, footer: &Footer) -> RunOrder {
        let manifest = lock(&self.manifest);
        let runs =
            manifest.versions.get(usize::from(footer.slice.0)).map_or(&[][..], |version| &version.runs);
        let run = runs.iter().find(|run| run.tables.iter().any(|table| table.meta.id == footer.id));
        run.map_or(RunOrder::MAX, |run| run.order)
    }

    fn are_tables_much(&self) -> bool {
        // The manifest's lock is a leaf: the heap is not asked under it.
        let drive_bytes = u64::from(self.segments) * u64::from(self.heap.segment_bytes());
        let manifest = lock(&self.manifest);
        let tables: u64 = manifest.versions.iter().flat_map(|version| &version.runs).map(Run::bytes).sum();
        tables > drive_bytes / 8
    }

    fn best_merge(&self) -> Option<Prospect> {
        if self.merge_found_no_room.load(Ordering::Relaxed) {
            return None;
        }
        let barred = self.barred_tables();
        let manifest = lock(&self.manifest);
        let mut best: Option<Prospect> = None;
        for (id, version) in manifest.versions.iter().enumerate() {
            let stretches = stretches(version, &barred);
            for prospect in stretches.iter().filter_map(|each| Prospect::of(SliceId(id as u16), each)) {
                if best.is_none_or(|best| prospect.beats(&best)) {
                    best = Some(prospect);
                }
            }
        }
        best
    }
}
