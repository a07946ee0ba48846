//! Merging of runs, so that a look-up has few to ask and shadowed versions go.
//!
//! *What.* Upper runs of similar size are merged four at a time; when they hold together a given share of the
//! bottom run (or there are too many), all of them are merged into the bottom. Fewer merges into the bottom
//! write less; how few depends on what the tables point at: beside values of 8 KiB, keys cost little to rewrite
//! and knowing early what is dead is worth it.
//!
//! *How.* A job merges adjacent runs into the oldest of them, in steps of a few MiB. A step merges everything up
//! to some key, writes tables, and one metadata record makes the change: inputs wholly below the key are dropped,
//! those that straddle it are trimmed. So a step costs little, a crash between two steps loses nothing, and
//! readers never wait.

use std::cmp::Ordering as KeyOrder;
use std::sync::Arc;

use bytes::Bytes;
use pumice_reactor::yield_now;

use crate::block::Block;
use crate::cache::damaged;
use crate::entry::{Body, KeyEntry};
use crate::errors::StoreError;
use crate::flush::{BOTTOM_FILTER_BITS, NewTables, TableWriter, UPPER_FILTER_BITS};
use crate::manifest::Change;
use crate::retired::{Retired, may_hold};
use crate::slice::lock;
use crate::store::Inner;
use crate::table::Head;
use crate::types::SliceId;
use crate::version::{Run, RunOrder, Table, Version};

/// Upper runs of similar size that are merged into one.
const TIER_RUNS: usize = 4;
/// Upper runs beyond which all are merged into the bottom whatever their size.
const UPPER_RUNS_MAX: usize = 12;
/// Bytes of tables that a step writes before it ends; less where free space is short, because what a step merges is
/// not free before it ends.
const STEP_BYTES: u64 = 8 << 20;
/// Retired prefixes beyond which tables are rewritten to be rid of them.
const RETIRED_MAX: usize = 1024;
/// Table numbers reserved for a step; it writes far fewer.
pub const STEP_TABLES: u64 = 4096;
/// Bytes read of an input at a time.
const READ_BYTES: u32 = 128 * 1024;

/// Runs to merge into the oldest of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// The slice.
    pub slice: SliceId,
    /// The runs' orders, newest first.
    pub runs: Vec<RunOrder>,
}

/// The next job of a slice, if one is due. `eager` asks for one that finds dead records though none is due.
pub fn plan(slice: SliceId, version: &Version, retired: &Retired, eager: bool) -> Option<Job> {
    plan_merge(slice, version, eager).or_else(|| plan_rewrite(slice, version, retired, eager))
}

fn plan_merge(slice: SliceId, version: &Version, eager: bool) -> Option<Job> {
    let bottom = version.runs.last().filter(|run| run.order == 0);
    let upper = &version.runs[..version.runs.len() - usize::from(bottom.is_some())];
    let job = |runs: &[Run]| Job { slice, runs: runs.iter().map(|run| run.order).collect() };
    let all = || {
        let mut all = job(upper);
        all.runs.push(0);
        Some(all)
    };
    if upper.is_empty() {
        return None;
    }
    let Some(bottom) = bottom else {
        return if upper.len() >= TIER_RUNS || eager { all() } else { None };
    };
    let upper_bytes: u64 = upper.iter().map(Run::bytes).sum();
    let record_bytes: u64 = version.tables().map(|table| table.meta.record_bytes).sum();
    // All tables are rewritten once per 1/`share` of their size in new entries.
    let share = if record_bytes > 16 * (upper_bytes + bottom.bytes()) { 8 } else { 3 };
    if upper_bytes * share >= bottom.bytes() || upper.len() >= UPPER_RUNS_MAX {
        return all();
    }
    for tier in upper.windows(TIER_RUNS) {
        let sizes = tier.iter().map(Run::bytes);
        let (least, most) = (sizes.clone().min().unwrap_or(0), sizes.max().unwrap_or(0));
        if most <= least.saturating_mul(4) {
            return Some(job(tier));
        }
    }
    if eager && upper_bytes * 32 >= bottom.bytes() { all() } else { None }
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

impl Inner {
    /// Does one step of a job. Answers whether the job is done.
    pub async fn merge_step(self: &Arc<Self>, job: &Job) -> Result<bool, StoreError> {
        let version = lock(&self.manifest).versions[usize::from(job.slice.0)].clone();
        if let [order] = job.runs[..] {
            return self.rewrite_step(job.slice, order, &version).await;
        }
        let (ids, retired) = self.ids_and_retired(job.slice);
        let target = *job.runs.last().expect("a job has runs");
        let inputs = || version.runs.iter().filter(|run| job.runs.contains(&run.order));
        let newer = inputs().filter(|run| run.order != target);
        let Some(from) = newer.filter_map(|run| run.tables.first()).map(|table| &table.meta.min_key).min()
        else {
            return Ok(true);
        };
        // What the oldest run holds below that was merged by earlier steps, or needs no merging.
        let inputs: Vec<Run> = inputs()
            .map(|run| Run {
                order: run.order,
                tables: run.tables.iter().filter(|table| table.meta.max_key >= *from).cloned().collect(),
            })
            .collect();
        let mut sources = Vec::with_capacity(inputs.len());
        for run in &inputs {
            let mut source = RunReader::new(run);
            source.advance(self).await?;
            sources.push(source);
        }
        // Nothing lies below the target: what is deleted needs no tombstone any more.
        let is_bottom = version.runs.last().is_none_or(|run| run.order >= target);
        let place = Place { slice: job.slice, target, is_bottom, ids };
        let mut step = self.merge_sources(&place, &mut sources, &retired).await?;
        let mut changes = step.new.changes.clone();
        for (run, source) in inputs.iter().zip(&sources) {
            consumed(run, source, job.slice, &mut changes);
        }
        let done =
            sources.iter().zip(&inputs).all(|(source, run)| run.order == target || source.key.is_none());
        self.finish_step(job.slice, changes, &mut step).await?;
        Ok(done)
    }

    /// Numbers for new tables, and the prefixes retired so far: a table never holds a key under a prefix that was
    /// retired by a record with a lower number than the table's.
    pub fn ids_and_retired(&self, slice: SliceId) -> (u64, Retired) {
        // Retiring takes the slice's lock, so none is between its number and the list.
        let _state = self.slice(slice);
        (self.heap.next_seq(STEP_TABLES), lock(&self.manifest).retired.clone())
    }

    async fn finish_step(
        &self,
        slice: SliceId,
        mut changes: Vec<Change>,
        step: &mut Step,
    ) -> Result<(), StoreError> {
        let turn = self.commit_turn.acquire(1).await;
        self.place_tables(&mut changes);
        // Tables may have been moved by cleaning while this step read them: where they lie now is what dies.
        let before = lock(&self.manifest).versions[usize::from(slice.0)].clone();
        self.commit(&changes, &step.new.heads).await?;
        step.new.committed();
        self.show_tables(slice, &[]);
        drop(turn);
        let gone = |change: &Change| match change {
            Change::Drop(_, id) => {
                before.tables().find(|table| table.meta.id == *id).map(|table| table.meta.ptr)
            }
            _ => None,
        };
        for ptr in changes.iter().filter_map(gone) {
            self.heap.mark_dead(ptr);
        }
        for (key, entry) in &step.dropped {
            self.bury(slice, key, entry);
        }
        self.counters.merges.add(1);
        self.counters.merge_bytes.add(step.new.bytes);
        self.sweep_heads();
        Ok(())
    }

    /// Merges sources, newest first, into tables until the step is long enough or all sources but the last,
    /// which is the target, are at their end.
    async fn merge_sources(
        self: &Arc<Self>,
        place: &Place,
        sources: &mut [RunReader],
        retired: &Retired,
    ) -> Result<Step, StoreError> {
        let bits = if place.is_bottom { BOTTOM_FILTER_BITS } else { UPPER_FILTER_BITS };
        let mut writer = TableWriter::new(self, place.slice, place.target, place.ids, bits);
        let mut step = Step::default();
        let mut since_yield = 0;
        let alone = sources.len() == 1;
        let space = self.heap.space();
        let step_bytes = ((space.free + space.reserved) / 4).min(STEP_BYTES);
        while let Some(first) = next_source(sources) {
            // Never inside of a table of the target: its rest would keep the whole table's space, for ever where no newer
            // key lies in it.
            let may_end =
                sources.iter().all(|source| source.order != place.target || source.is_between_tables());
            let is_long = step.new.bytes >= step_bytes.max(1) || step.dropped.len() >= 200_000;
            let is_rest =
                !alone && sources.iter().all(|source| source.key.is_none() || source.order == place.target);
            if may_end && (is_long || is_rest) {
                break;
            }
            let (key, entry) = sources[first].take();
            let mut entry = entry.expect("a source with a key has its entry");
            let is_retired = retired.covers(place.slice, &key);
            for other in &mut sources[first + 1..] {
                if other.key.as_ref() == Some(&key) {
                    let (_, shadowed) = other.take();
                    let shadowed = shadowed.expect("a source with a key has its entry");
                    let counted = std::mem::replace(&mut entry.counted, shadowed.counted);
                    // A crash in the middle of a merge may have left the same version twice; it dies once.
                    if !counted && shadowed.seq != entry.seq && holds_space(&shadowed) {
                        step.dropped.push((key.clone(), shadowed));
                    }
                    other.advance(self).await?;
                }
            }
            sources[first].advance(self).await?;
            if is_retired {
                if holds_space(&entry) {
                    step.dropped.push((key, entry));
                }
            } else if !(entry.is_tombstone() && place.is_bottom) {
                writer.add(&key, &entry, &mut step.new).await?;
            }
            since_yield += 1;
            if since_yield >= 256 {
                since_yield = 0;
                yield_now().await;
            }
        }
        writer.finish(&mut step.new).await?;
        Ok(step)
    }

    /// Rewrites one table of a run without the keys under retired prefixes.
    async fn rewrite_step(
        self: &Arc<Self>,
        slice: SliceId,
        order: RunOrder,
        version: &Version,
    ) -> Result<bool, StoreError> {
        let (ids, retired) = self.ids_and_retired(slice);
        let Some(run) = version.runs.iter().find(|run| run.order == order) else { return Ok(true) };
        let Some(table) = run.tables.iter().find(|table| retired.may_be_in(&table.meta)) else {
            return Ok(true);
        };
        let one = Run { order, tables: vec![table.clone()] };
        let mut source = RunReader::new(&one);
        source.advance(self).await?;
        let is_bottom = version.runs.last().is_some_and(|run| run.order == order);
        let place = Place { slice, target: order, is_bottom, ids };
        let mut step = self.merge_sources(&place, std::slice::from_mut(&mut source), &retired).await?;
        let mut changes = step.new.changes.clone();
        consumed(&one, &source, slice, &mut changes);
        self.finish_step(slice, changes, &mut step).await?;
        Ok(false)
    }

    /// Tells the heap that an entry's record is dead; pieces of a large value are looked up in the background.
    pub fn bury(&self, slice: SliceId, key: &[u8], entry: &KeyEntry) {
        if entry.large {
            lock(&self.dead_large).push((slice, Bytes::copy_from_slice(key), entry.clone()));
            self.clean_wanted.notify_one();
        } else if let Body::Record(ptr) = entry.body {
            self.mark_dead(ptr, entry.seq);
        }
    }

    /// Prefixes of a slice that no table speaks of any more, by the number that retired them.
    pub fn forgotten_prefixes(&self) -> Vec<Change> {
        let manifest = lock(&self.manifest);
        let gone = manifest.retired.iter().filter(|(slice, prefix, seq)| {
            *seq <= manifest.checkpoint
                && !manifest.versions[usize::from(slice.0)]
                    .tables()
                    .any(|table| may_hold(&table.meta, prefix, *seq))
        });
        gone.map(|(slice, prefix, _)| Change::Retired(slice, prefix.clone())).collect()
    }
}

/// Where a step's tables go.
struct Place {
    slice: SliceId,
    target: RunOrder,
    is_bottom: bool,
    /// The first of their numbers.
    ids: u64,
}

#[derive(Default)]
struct Step {
    new: NewTables,
    dropped: Vec<(Bytes, KeyEntry)>,
}

/// Notes what a source has used up of a run.
fn consumed(run: &Run, source: &RunReader, slice: SliceId, changes: &mut Vec<Change>) {
    for table in &run.tables {
        match &source.key {
            Some(next) if table.meta.max_key >= *next => {
                if table.meta.min_key < *next {
                    changes.push(Change::Trim(slice, table.meta.id, next.clone()));
                }
            }
            _ => changes.push(Change::Drop(slice, table.meta.id)),
        }
    }
    // Drops and trims make room for the new tables of the same run: they come first.
    changes.sort_by_key(|change| matches!(change, Change::Add(..)));
}

/// Whether an entry's end is worth telling the heap.
fn holds_space(entry: &KeyEntry) -> bool {
    entry.large || entry.record().is_some()
}

/// The source with the lowest key; of equal keys the newest.
fn next_source(sources: &[RunReader]) -> Option<usize> {
    let mut best: Option<(usize, &Bytes)> = None;
    for (at, source) in sources.iter().enumerate() {
        if let Some(key) = &source.key
            && best.is_none_or(|(_, least)| key.cmp(least) == KeyOrder::Less)
        {
            best = Some((at, key));
        }
    }
    best.map(|(at, _)| at)
}

/// Reads a run in key order, large pieces at a time, past the caches.
struct RunReader {
    order: RunOrder,
    tables: std::vec::IntoIter<Arc<Table>>,
    /// The next table, whose head is being read.
    opening: Option<Arc<Table>>,
    current: Option<(Arc<Table>, Arc<Head>, usize)>,
    /// Bytes read ahead of the current table, and where they start in it.
    bytes: Bytes,
    bytes_at: u32,
    entries: std::vec::IntoIter<(Bytes, KeyEntry)>,
    /// The next key; `None` at the end.
    key: Option<Bytes>,
    entry: Option<KeyEntry>,
}

impl RunReader {
    fn new(run: &Run) -> Self {
        Self {
            order: run.order,
            tables: run.tables.clone().into_iter(),
            opening: None,
            current: None,
            bytes: Bytes::new(),
            bytes_at: 0,
            entries: Vec::new().into_iter(),
            key: None,
            entry: None,
        }
    }

    /// Whether the next key is the first of a table, or there is none.
    fn is_between_tables(&self) -> bool {
        match (&self.key, &self.current) {
            (Some(key), Some((table, ..))) => *key == table.meta.min_key,
            _ => true,
        }
    }

    fn take(&mut self) -> (Bytes, Option<KeyEntry>) {
        (self.key.take().expect("taken only while there is a key"), self.entry.take())
    }

    /// Goes to the next entry.
    async fn advance(&mut self, store: &Inner) -> Result<(), StoreError> {
        loop {
            match self.try_advance(store).await {
                // Cleaning may have moved the table and its old segment been reused. A pin would forbid that, and keep a
                // full drive from using what it wins meanwhile.
                Err(error) if error.may_be_stale() && self.follow_move(store) => {}
                done => return done,
            }
        }
    }

    /// Takes the current table where the manifest has it now. Answers whether that is elsewhere than before.
    fn follow_move(&mut self, store: &Inner) -> bool {
        let Some(table) = self.current.as_mut().map(|(table, ..)| table).or(self.opening.as_mut()) else {
            return false;
        };
        let manifest = lock(&store.manifest);
        let version = &manifest.versions[usize::from(table.meta.slice.0)];
        let Some(now) = version.tables().find(|other| other.meta.id == table.meta.id) else { return false };
        if now.meta.ptr == table.meta.ptr {
            return false;
        }
        *table = now.clone();
        (self.bytes, self.bytes_at) = (Bytes::new(), 0);
        true
    }

    async fn try_advance(&mut self, store: &Inner) -> Result<(), StoreError> {
        loop {
            if let Some((key, entry)) = self.entries.next() {
                (self.key, self.entry) = (Some(key), Some(entry));
                return Ok(());
            }
            let Some((table, head, block)) = &mut self.current else {
                if self.opening.is_none() {
                    self.opening = self.tables.next();
                }
                let Some(table) = &self.opening else {
                    (self.key, self.entry) = (None, None);
                    return Ok(());
                };
                let head = store.head(table).await?;
                let first = head.index.block_of(&table.meta.min_key).unwrap_or(head.index.blocks());
                self.current = self.opening.take().map(|table| (table, head, first));
                (self.bytes, self.bytes_at) = (Bytes::new(), 0);
                continue;
            };
            if *block >= head.index.blocks() {
                self.current = None;
                continue;
            }
            let (offset, len) = head.index.place(*block);
            let have = self.bytes_at..self.bytes_at + self.bytes.len() as u32;
            if offset < have.start || offset + len > have.end {
                let read = READ_BYTES.max(len).min(table.meta.head_at - offset);
                self.bytes = store.read_of(table, offset, read).await?;
                self.bytes_at = offset;
            }
            let start = (offset - self.bytes_at) as usize;
            let bytes = self.bytes.slice(start..start + len as usize);
            let verified = Block::verify(table.meta.id, offset, bytes)
                .ok_or_else(|| damaged(table, "a block's checksum does not match"))?;
            let mut entries =
                verified.entries().map_err(|_| damaged(table, "a block's entries do not parse"))?;
            if entries.first().is_some_and(|(key, _)| *key < table.meta.min_key) {
                entries.retain(|(key, _)| *key >= table.meta.min_key);
            }
            self.entries = entries.into_iter();
            *block += 1;
        }
    }
}
