//! What is merged next.
//!
//! Upper runs of similar size are merged eight at a time; when they hold together a given share of the bottom run, or
//! space is short (`winning`), all of them are merged into the bottom. Fewer merges into the bottom write less; how few
//! depends on what the tables point at: beside values of 8 KiB, keys cost little to rewrite, and where memory does not hold
//! all tables, knowing early what is dead is worth it. A merge into the bottom may take long; runs that come meanwhile are
//! merged among themselves.

use bytes::Bytes;

use crate::retired::Retired;
use crate::table::TableMeta;
use crate::types::SliceId;
use crate::version::{Run, RunOrder, Version};

/// Upper runs of similar size that are merged into one.
const TIER_RUNS: usize = 8;
/// Upper runs beyond which some are merged whatever their sizes.
const UPPER_RUNS_MAX: usize = 32;
/// Runs that become the first bottom run.
const FIRST_RUNS: usize = 4;
/// Retired prefixes beyond which tables are rewritten to be rid of them.
const RETIRED_MAX: usize = 1024;

/// Runs to merge into the oldest of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// The slice.
    pub slice: SliceId,
    /// The runs' orders, newest first.
    pub runs: Vec<RunOrder>,
}

/// The next merge of a slice into its bottom run, if one is due. `eager` asks for one that finds dead records though none
/// is due. `knows_dead`: the heap is told of what dies when it dies, not only by merges.
pub fn plan_whole(
    slice: SliceId,
    version: &Version,
    retired: &Retired,
    eager: bool,
    knows_dead: bool,
) -> Option<Job> {
    plan_bottom(slice, version, eager, knows_dead).or_else(|| plan_rewrite(slice, version, retired, eager))
}

fn job(slice: SliceId, runs: &[Run]) -> Job {
    Job { slice, runs: runs.iter().map(|run| run.order).collect() }
}

fn plan_bottom(slice: SliceId, version: &Version, eager: bool, knows_dead: bool) -> Option<Job> {
    let bottom = version.runs.last().filter(|run| run.order == 0);
    let upper = &version.runs[..version.runs.len() - usize::from(bottom.is_some())];
    let is_due = match bottom {
        _ if upper.is_empty() => false,
        None => upper.len() >= FIRST_RUNS || eager,
        Some(bottom) => {
            let upper_bytes: u64 = upper.iter().map(Run::bytes).sum();
            let record_bytes: u64 = version.tables().map(|table| table.meta.record_bytes).sum();
            // All tables are rewritten once per 1/`share` of their size in new entries.
            let points_at_much = record_bytes > 16 * (upper_bytes + bottom.bytes());
            let share = if points_at_much && !knows_dead { 8 } else { 3 };
            upper_bytes * share >= bottom.bytes() || (eager && upper_bytes * 32 >= bottom.bytes())
        }
    };
    is_due.then(|| {
        let mut all = job(slice, upper);
        all.runs.push(0);
        all
    })
}

/// The next merge among a slice's upper runs that are newer than `above`, if one is due.
pub fn plan_tier(slice: SliceId, version: &Version, above: RunOrder) -> Option<Job> {
    let upper = &version.runs[..version.runs.partition_point(|run| run.order > above)];
    let is_tier = |tier: &&[Run]| {
        let sizes = tier.iter().map(Run::bytes);
        let (least, most) = (sizes.clone().min().unwrap_or(0), sizes.max().unwrap_or(0));
        most <= least.saturating_mul(4)
    };
    let mut tiers = upper.windows(TIER_RUNS);
    let of_one_size = tiers.clone().find(is_tier);
    // Of no size in common, but too many.
    let cheapest = || {
        let bytes = |tier: &&[Run]| tier.iter().map(Run::bytes).sum::<u64>();
        tiers.by_ref().min_by_key(bytes).filter(|_| upper.len() >= UPPER_RUNS_MAX)
    };
    of_one_size.or_else(cheapest).map(|tier| job(slice, tier))
}

/// Tables that hold keys under retired prefixes are rewritten when nothing else of them is left, when space is
/// wanted, or when the list of prefixes grows long; else the next ordinary merge drops the keys.
fn plan_rewrite(slice: SliceId, version: &Version, retired: &Retired, eager: bool) -> Option<Job> {
    if retired.is_empty() {
        return None;
    }
    let pressing = eager || retired.len() > RETIRED_MAX;
    let run = version.runs.iter().find(|run| {
        run.tables
            .iter()
            .any(|table| retired.covers_all(&table.meta) || (pressing && retired.may_be_in(&table.meta)))
    })?;
    Some(Job { slice, runs: vec![run.order] })
}

/// The numbers of the tables whose range overlaps no other's.
pub fn alone(runs: &[Run]) -> Vec<u64> {
    let mut tables: Vec<&TableMeta> =
        runs.iter().flat_map(|run| run.tables.iter().map(|table| &table.meta)).collect();
    tables.sort_by(|a, b| a.min_key.cmp(&b.min_key));
    let mut reached: Option<&Bytes> = None;
    let mut alone = Vec::new();
    for (at, table) in tables.iter().enumerate() {
        let is_clear_before = reached.is_none_or(|reached| *reached < table.min_key);
        let is_clear_after = tables.get(at + 1).is_none_or(|next| table.max_key < next.min_key);
        if is_clear_before && is_clear_after {
            alone.push(table.id);
        }
        reached = reached.max(Some(&table.max_key));
    }
    alone
}

/// What a merge into the bottom would write and win, in bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prospect {
    /// The slice whose bottom it is.
    pub slice: SliceId,
    /// Bytes of tables that it would write.
    pub written: u64,
    /// Bytes of upper runs that it would free.
    pub won: u64,
}

impl Prospect {
    /// What a slice's would; `None` when there is nothing to merge.
    pub fn of(slice: SliceId, version: &Version) -> Option<Self> {
        let bottom = version.runs.last().filter(|run| run.order == 0)?;
        let won: u64 = version.runs.iter().map(Run::bytes).sum::<u64>() - bottom.bytes();
        (won > 0).then(|| Self { slice, written: bottom.bytes(), won })
    }

    /// Whether it wins more for each byte written.
    pub fn beats(&self, other: &Self) -> bool {
        u128::from(self.won) * u128::from(other.written) > u128::from(other.won) * u128::from(self.written)
    }

    /// Whether it wins enough to be done for space's sake alone.
    pub fn is_worth_its_while(&self) -> bool {
        self.won * 16 >= self.written
    }

    /// Dead bytes of a segment that is as cheap to clean: dead : live as won : written.
    pub fn dead_as_cheap(&self, segment_bytes: u32) -> u32 {
        let share = u128::from(self.won) * u128::from(segment_bytes) / u128::from(self.won + self.written);
        share as u32
    }
}
