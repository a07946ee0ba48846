//! What is merged next.
//!
//! Upper runs of similar size are merged eight at a time; when they hold together a given share of the bottom run, or
//! space is short (`winning`), all of them are merged into the bottom. Fewer merges into the bottom write less; how few
//! depends on what the tables point at: beside values of 8 KiB, keys cost little to rewrite, and where memory does not hold
//! all tables, knowing early what is dead is worth it. A merge into the bottom may take long; runs that come meanwhile are
//! merged among themselves.
//!
//! A run with a table that does not read (`aside`) is left alone, and parts the others: those above it are merged as if the
//! oldest of them were the bottom, those below it into the bottom.

use std::sync::Arc;

use bytes::Bytes;

use crate::retired::Retired;
use crate::table::TableMeta;
use crate::table::version::{Run, RunOrder, Version};
use crate::types::SliceId;

/// Upper runs of similar size that are merged into one.
const TIER_RUNS: usize = 8;
/// Upper runs beyond which some are merged that differ more in size.
const UPPER_RUNS_MANY: usize = 16;
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

/// Adjacent runs that may be merged with one another, newest first; at least one.
#[derive(Clone, Copy, Debug)]
pub struct Stretch<'a> {
    runs: &'a [Arc<Run>],
    /// Below them is a run that is left alone.
    is_fenced: bool,
}

/// A slice's runs, parted by those that hold a table of `barred`.
pub fn stretches<'a>(version: &'a Version, barred: &[u64]) -> Vec<Stretch<'a>> {
    let is_barred = |run: &Arc<Run>| run.tables().iter().any(|table| barred.contains(&table.meta.id));
    let runs = &version.runs[..];
    let mut stretches: Vec<Stretch<'_>> = match barred {
        [] => vec![Stretch { runs, is_fenced: false }],
        _ => runs.split(is_barred).map(|runs| Stretch { runs, is_fenced: true }).collect(),
    };
    if let Some(last) = stretches.last_mut() {
        last.is_fenced = false;
    }
    stretches.retain(|stretch| !stretch.runs.is_empty());
    stretches
}

impl<'a> Stretch<'a> {
    /// The runs that come from above, and the one that they go into, if there is one yet.
    fn parts(&self) -> (&'a [Arc<Run>], Option<&'a Arc<Run>>) {
        match self.runs.split_last() {
            Some((last, upper)) if self.is_fenced || last.order == 0 => (upper, Some(last)),
            _ => (self.runs, None),
        }
    }

    /// The job that merges all of them.
    pub fn whole(&self, slice: SliceId) -> Option<Job> {
        (self.runs.len() > 1).then(|| job(slice, self.runs))
    }
}

/// The next merge of a slice into its bottom run, if one is due. `eager` asks for one that finds dead records though none
/// is due. `knows_dead`: the heap is told of what dies when it dies, not only by merges. `barred`: tables to be left alone.
pub fn plan_whole(
    slice: SliceId,
    version: &Version,
    retired: &Retired,
    eager: bool,
    knows_dead: bool,
    barred: &[u64],
) -> Option<Job> {
    let stretches = stretches(version, barred);
    let due = stretches.iter().find_map(|stretch| plan_bottom(slice, stretch, eager, knows_dead));
    due.or_else(|| plan_rewrite(slice, version, retired, eager, barred))
}

fn job(slice: SliceId, runs: &[Arc<Run>]) -> Job {
    Job { slice, runs: runs.iter().map(|run| run.order).collect() }
}

fn plan_bottom(slice: SliceId, stretch: &Stretch<'_>, eager: bool, knows_dead: bool) -> Option<Job> {
    let (upper, bottom) = stretch.parts();
    let is_due = match bottom {
        _ if upper.is_empty() => false,
        None => upper.len() >= FIRST_RUNS || eager,
        Some(bottom) => {
            let upper_bytes: u64 = upper.iter().map(|run| run.bytes()).sum();
            let tables = stretch.runs.iter().flat_map(|run| run.tables());
            let record_bytes: u64 = tables.map(|table| table.meta.record_bytes).sum();
            // All tables are rewritten once per 1/`share` of their size in new entries.
            let points_at_much = record_bytes > 16 * (upper_bytes + bottom.bytes());
            let share = if points_at_much && !knows_dead { 8 } else { 3 };
            upper_bytes * share >= bottom.bytes() || (eager && upper_bytes * 32 >= bottom.bytes())
        }
    };
    is_due.then(|| {
        let mut all = job(slice, upper);
        all.runs.push(bottom.map_or(0, |run| run.order));
        all
    })
}

/// The next merge among a slice's upper runs that are newer than `above`, if one is due; none of them holds a table of
/// `barred`.
pub fn plan_tier(slice: SliceId, version: &Version, above: RunOrder, barred: &[u64]) -> Option<Job> {
    let stretches = stretches(version, barred);
    let newer = |stretch: &Stretch<'_>| -> Option<Job> {
        let upper = stretch.runs.partition_point(|run| run.order > above);
        plan_tier_of(slice, &stretch.runs[..upper])
    };
    stretches.iter().find_map(newer)
}

fn plan_tier_of(slice: SliceId, upper: &[Arc<Run>]) -> Option<Job> {
    let is_tier = |tier: &&[Arc<Run>]| {
        let sizes = tier.iter().map(|run| run.bytes());
        let (least, most) = (sizes.clone().min().unwrap_or(0), sizes.max().unwrap_or(0));
        most <= least.saturating_mul(4)
    };
    let tiers = || upper.windows(TIER_RUNS);
    let bytes = |tier: &&[Arc<Run>]| tier.iter().map(|run| run.bytes()).sum::<u64>();
    let of_one_size = tiers().find(is_tier);
    // Small ones between larger ones: each row comes to lie in a run of twice the size.
    let doubles = |tier: &&[Arc<Run>]| {
        upper.len() >= UPPER_RUNS_MANY && tier.iter().map(|run| run.bytes()).max() <= Some(bytes(tier) / 2)
    };
    let any = || tiers().min_by_key(bytes).filter(|_| upper.len() >= UPPER_RUNS_MAX);
    of_one_size.or_else(|| tiers().find(doubles)).or_else(any).map(|tier| job(slice, tier))
}

/// Tables that hold keys under retired prefixes are rewritten when nothing else of them is left, when space is
/// wanted, or when the list of prefixes grows long; else the next ordinary merge drops the keys.
fn plan_rewrite(
    slice: SliceId,
    version: &Version,
    retired: &Retired,
    eager: bool,
    barred: &[u64],
) -> Option<Job> {
    if retired.is_empty() {
        return None;
    }
    let pressing = eager || retired.len() > RETIRED_MAX;
    let is_due = |meta: &TableMeta| {
        (pressing || retired.covers_all(meta)) && is_to_be_rewritten(meta, retired, barred)
    };
    let run = version.runs.iter().find(|run| run.tables().iter().any(|table| is_due(&table.meta)))?;
    Some(Job { slice, runs: vec![run.order] })
}

/// Whether a table is worth rewriting without keys under retired prefixes. Where that is all of them, what does not read of
/// it is in nobody's way.
pub fn is_to_be_rewritten(table: &TableMeta, retired: &Retired, barred: &[u64]) -> bool {
    retired.may_be_in(table) && (retired.covers_all(table) || !barred.contains(&table.id))
}

/// The numbers of the tables whose range overlaps no other's.
pub fn alone(runs: &[Arc<Run>]) -> Vec<u64> {
    let mut tables: Vec<&TableMeta> =
        runs.iter().flat_map(|run| run.tables().iter().map(|table| &table.meta)).collect();
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

/// What a merge of all runs of a stretch would write and win, in bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prospect {
    /// The slice whose runs they are.
    pub slice: SliceId,
    /// Bytes of tables that it would write.
    pub written: u64,
    /// Bytes of upper runs that it would free.
    pub won: u64,
}

impl Prospect {
    /// What a stretch of a slice's would; `None` when there is nothing to merge.
    pub fn of(slice: SliceId, stretch: &Stretch<'_>) -> Option<Self> {
        let (upper, Some(bottom)) = stretch.parts() else { return None };
        let won: u64 = upper.iter().map(|run| run.bytes()).sum();
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
