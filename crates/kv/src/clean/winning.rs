//! Two ways to win space where it is short, and which one is cheaper.
//!
//! Cleaning writes what is live in a segment to win what is dead in it. Merging a slice into its bottom run writes that
//! run again to win the upper runs, each of whose entries shadows one below, or is there to stay. Beside large values
//! key tables are small and cleaning is the cheaper way. Where values lie in the tables themselves it is not: what is
//! dead of them is spread thin until a merge brings it out, and then whole segments die in the order of their keys.
//! So a victim has to promise more, for each byte written, than the best merge; where none does, that merge comes first.
//! Until it has ended only segments are cleaned in which next to nothing is live where tables are much, and others beside it
//! where they are little. Of tables, where they are much, most must be dead in any case, because the rest of a segment dies
//! with the next merge; while a merge that takes long goes on and room runs out, half.

use std::sync::atomic::Ordering;

use pumice_base::sync::lock;
use pumice_segment::{Group, Stream, TABLE_GROUPS};

use crate::merge::plan::{Job, Prospect, stretches};
use crate::store::Inner;
use crate::table::Footer;
use crate::table::version::RunOrder;
use crate::types::SliceId;

/// Free segments, the reserve included, with which a merge that goes first can work; with fewer cleaning goes on.
const UPKEEP_SEGMENTS: u64 = 3;

/// Bytes of a bottom run of which a merge takes a second or more.
const LONG_BYTES: u64 = 256 << 20;

/// What is alive of a segment of tables dies with it when its slices are merged next, so moving it wins space only until
/// then: where tables are much, so much of a victim has to be dead, whatever merges cost.
const MOSTLY_DEAD: (u32, u32) = (3, 4);

/// Where tables are little a merge that goes first wins a segment or two, and cleaning as much in a third of the time: users would
/// stand still for what is cheaper by a hair. So it goes on meanwhile with victims of which such a part is dead. (Not of tables: the
/// merge is about to empty these.)
const MEANWHILE_DEAD: u32 = 8;

/// Dead bytes that a victim must hold.
pub struct LeastDead {
    /// In a segment of key tables.
    tables: u32,
    /// In any other.
    others: u32,
}

impl LeastDead {
    /// In a segment of `stream`.
    pub fn of(&self, stream: Stream) -> u32 {
        if stream == Stream::Table { self.tables } else { self.others }
    }
}

impl Inner {
    /// What a victim must hold of dead bytes to be worth cleaning now.
    pub fn least_dead(&self) -> LeastDead {
        let segment_bytes = self.heap.segment_bytes();
        let next_to_all = segment_bytes - segment_bytes / 16;
        let waits = self.merge_first().is_some();
        if waits && !self.has_room_for_upkeep() {
            // The merge waits for room in its turn.
            return LeastDead { tables: 0, others: 0 };
        }
        let merge = self.best_merge();
        let as_cheap = merge.map_or(0, |merge| merge.dead_as_cheap(segment_bytes));
        if !self.are_tables_much() {
            if waits {
                return LeastDead { tables: next_to_all, others: segment_bytes / MEANWHILE_DEAD };
            }
            return LeastDead { tables: as_cheap, others: as_cheap };
        }
        let tables = match merge {
            // It would bring out the rest, too, but users do not wait so long: the less is free, the less is enough.
            Some(_) if self.are_merges_long() => {
                let (free, most) = (self.heap.free_segments(), self.paced_below());
                let half = segment_bytes / 2;
                half + (next_to_all - half) / most * free.min(most)
            }
            _ if waits => next_to_all,
            Some(merge) if merge.is_worth_its_while() => segment_bytes / MOSTLY_DEAD.1 * MOSTLY_DEAD.0,
            _ => as_cheap,
        };
        LeastDead { tables, others: as_cheap }
    }

    /// No victim was worth it: a merge goes first, if one would win anything. Answers whether one does.
    pub fn put_merge_first(&self) -> bool {
        if self.merge_first().is_none() {
            let Some(best) = self.best_merge() else { return false };
            // One that is under way wins when it ends.
            let under_way = if self.are_tables_much() { *lock(&self.merges.under_way) } else { None };
            *lock(&self.merges.first) = Some(under_way.unwrap_or(best.slice));
            self.background.merge_wanted.notify_one();
        }
        true
    }

    /// The slice whose merge cleaning waits for.
    pub fn merge_first(&self) -> Option<SliceId> {
        *lock(&self.merges.first)
    }

    /// The merge that went first has ended, or found no room: then cleaning makes some before the next one.
    pub fn merged_first(&self, found_room: bool) {
        *lock(&self.merges.first) = None;
        self.merges.found_no_room.store(!found_room, Ordering::Relaxed);
        self.background.clean_wanted.notify_one();
    }

    /// Whether merges and flushes find segments, so that cleaning may wait for them.
    pub fn has_room_for_upkeep(&self) -> bool {
        self.free_of_all_kinds() >= UPKEEP_SEGMENTS + u64::from(self.heap.kept_for_cleaning())
    }

    /// A segment was cleaned: once there are enough of them merges go first again. With each that comes free they would take
    /// turns with cleaning, and wait for one another most of the time.
    pub fn cleaned_for_merges(&self) {
        if self.has_room_for_upkeep() {
            self.merges.found_no_room.store(false, Ordering::Relaxed);
        }
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

    /// Where the tables of a run of `bytes` lie. Where tables are much of the drive, those of the bottom run have segments of
    /// their own. Upper runs share theirs with those of one slice in four, because its next merge takes them all; where that
    /// is long in coming, with those of their size: small ones are merged soon, large ones late, so that they die together.
    /// Elsewhere it would win little and leave segments open.
    pub fn group_of(&self, slice: SliceId, order: RunOrder, bytes: u64) -> Group {
        const UPPER_GROUPS: u16 = TABLE_GROUPS as u16 - 1;
        let segment_bytes = u64::from(self.heap.segment_bytes());
        match order {
            _ if !self.are_tables_much() => Group::Tables(0),
            0 => Group::Tables(0),
            _ if !self.are_merges_long() => Group::Tables((1 + slice.0 % UPPER_GROUPS) as u8),
            _ if bytes < segment_bytes / 2 => Group::Tables(1),
            _ if bytes < 4 * segment_bytes => Group::Tables(2 + (slice.0 % 2) as u8),
            _ => Group::Tables(4),
        }
    }

    /// The run that a table is in, and its bytes; the newest where it is not named yet.
    pub fn run_of(&self, footer: &Footer) -> (RunOrder, u64) {
        let manifest = lock(&self.manifest);
        let runs =
            manifest.versions.get(usize::from(footer.slice.0)).map_or(&[][..], |version| &version.runs);
        let run = runs.iter().find(|run| run.tables().iter().any(|table| table.meta.id == footer.id));
        run.map_or((RunOrder::MAX, 0), |run| (run.order, run.bytes()))
    }

    /// Whether key tables are much of the drive.
    pub fn are_tables_much(&self) -> bool {
        // The manifest's lock is a leaf: the heap is not asked under it.
        let drive_bytes = u64::from(self.segments) * u64::from(self.heap.segment_bytes());
        let manifest = lock(&self.manifest);
        let tables: u64 =
            manifest.versions.iter().flat_map(|version| &version.runs).map(|run| run.bytes()).sum();
        tables > drive_bytes / 8
    }

    /// Finds out how many segments to keep for users while the best merge goes on: most of what it wins comes free when it
    /// ends. Goes through all tables, so it is done for each victim and not for each look at the target.
    pub fn reckon_merge_room(&self) {
        let mut room = 0;
        if self.are_tables_much() && self.are_merges_long() {
            let won = self.best_merge().map_or(0, |best| best.won / u64::from(self.heap.segment_bytes()));
            room = (won as u32).min(self.segments / 16);
        }
        self.merges.room.store(room, Ordering::Relaxed);
    }

    /// Whether users would notice if they waited for a merge to end.
    pub fn are_merges_long(&self) -> bool {
        let manifest = lock(&self.manifest);
        manifest
            .versions
            .iter()
            .any(|version| version.runs.last().is_some_and(|run| run.bytes() > LONG_BYTES))
    }

    fn best_merge(&self) -> Option<Prospect> {
        if self.merges.found_no_room.load(Ordering::Relaxed) {
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
