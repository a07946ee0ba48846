//! Merging of runs, so that a look-up has few to ask and shadowed versions go. What is merged when: `plan`.
//!
//! A job merges adjacent runs into the oldest of them, in steps of a few MiB. A step merges everything up to some key,
//! writes tables, and one metadata record makes the change: inputs wholly below the key are dropped, those that straddle it
//! are trimmed. So a step costs little, a crash between two steps loses nothing, and readers never wait. Tables whose range
//! no other input touches change their run and are not written again.

pub(crate) mod aside;
pub mod plan;
pub mod queue;
pub(crate) mod source;

use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use pumice_base::hash::HashMap;
use pumice_base::sync::lock;
use pumice_reactor::yield_now;

use crate::entry::{Body, KeyEntry};
use crate::errors::StoreError;
use crate::flush::{BOTTOM_FILTER_BITS, NewTables, TableWriter, UPPER_FILTER_BITS};
use crate::large::pieces::DeadLarge;
use crate::manifest::Change;
use crate::merge::aside::Aside;
use crate::merge::plan::{Job, alone, is_to_be_rewritten};
use crate::merge::queue::SourceQueue;
use crate::merge::source::RunReader;
use crate::retired::{Retired, may_hold};
use crate::store::Inner;
use crate::table::bounds::{Before, Behind, lower};
use crate::table::version::{Run, RunOrder, Table, Version};
use crate::types::{Direction, SliceId};

/// Bytes of tables that a step writes before it ends; less where free space is short, because what a step merges is
/// not free before it ends.
const STEP_BYTES: u64 = 8 << 20;
/// Tables that are looked at before others get their turn.
const LOOKS_AT_ONCE: usize = 20_000;
/// Table numbers reserved for a step; it writes far fewer.
pub const STEP_TABLES: u64 = 4096;

/// What tasks agree upon about merging.
#[derive(Default)]
pub(crate) struct Merges {
    /// Space is wanted: merge to find out what is dead.
    pub eagerly: AtomicBool,
    /// Leaf lock; see `winning`.
    pub first: Mutex<Option<SliceId>>,
    /// Leaf lock: the slice that is being merged into its bottom run.
    pub under_way: Mutex<Option<SliceId>>,
    /// Segments kept for users while a long merge goes on; see `winning`.
    pub room: AtomicU32,
    /// The last merge that went first found no room, and no segment was cleaned since.
    pub found_no_room: AtomicBool,
    /// Leaf lock; see `aside`.
    pub aside: Mutex<Aside>,
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
        let Some(from) = newer.filter_map(|run| run.tables().first()).map(|table| &table.meta.min_key).min()
        else {
            return Ok(true);
        };
        // What the oldest run holds below that was merged by earlier steps, or needs no merging.
        let inputs: Vec<Arc<Run>> = inputs()
            .map(|run| {
                let tables = run.tables().iter().filter(|table| table.meta.max_key >= *from);
                Arc::new(Run::new(run.order, tables.cloned().collect()))
            })
            .collect();
        // Nothing lies below the target: what is deleted needs no tombstone any more.
        let is_bottom = version.runs.last().is_none_or(|run| run.order >= target);
        let sunk = self.sink(job.slice, &inputs, is_bottom, &retired).await?;
        if sunk {
            return Ok(false);
        }
        let longest = inputs.iter().max_by_key(|run| run.bytes()).map(|run| run.order);
        let all_bytes: u64 = inputs.iter().map(|run| run.bytes()).sum::<u64>().max(1);
        let step_bytes = self.step_bytes();
        let reader = |run: &Arc<Run>| {
            let wanted = u128::from(step_bytes) * u128::from(run.bytes()) / u128::from(all_bytes);
            RunReader::new(self, run, &retired, wanted as u64, Some(run.order) == longest)
        };
        let mut sources: Vec<_> = inputs.iter().map(reader).collect();
        for source in &mut sources {
            source.advance(self).await?;
        }
        // Whatever lies before in the target lies below all that is merged.
        let lowest =
            inputs.iter().filter_map(|run| run.tables().first()).map(|table| &table.meta.min_key).min();
        let before = lowest.map_or(Before::Nothing, |key| Before::From(key.clone()));
        let place = Place { slice: job.slice, target, is_bottom, run_bytes: all_bytes, ids, before };
        let mut step = self.merge_sources(&place, &mut sources, &retired, Behind::Nothing).await?;
        let mut changes = step.new.changes.clone();
        for (run, source) in inputs.iter().zip(&sources) {
            consumed(run, source, job.slice, step.reached(), &mut changes);
        }
        let done =
            sources.iter().zip(&inputs).all(|(source, run)| run.order == target || source.key.is_none());
        self.finish_step(job.slice, changes, &mut step).await?;
        Ok(done)
    }

    /// Gives tables whose range no other input touches to the oldest run as they are: keys that come in order are
    /// written once. Answers whether there were any.
    async fn sink(
        &self,
        slice: SliceId,
        inputs: &[Arc<Run>],
        is_bottom: bool,
        retired: &Retired,
    ) -> Result<bool, StoreError> {
        let Some((target, newer)) = inputs.split_last() else { return Ok(false) };
        let alone = alone(inputs);
        let fits = |table: &&Arc<Table>| {
            let meta = &table.meta;
            // Small ones are better put together.
            meta.ptr.len as usize >= self.table_bytes / 4
                && alone.contains(&meta.id)
                && !(is_bottom && meta.tombstones > 0)
                && !retired.may_be_in(meta)
        };
        let sinking: Vec<_> = newer.iter().flat_map(|run| run.tables().iter().filter(fits)).collect();
        if sinking.is_empty() {
            return Ok(false);
        }
        let _turn = self.commit_turn.acquire(1).await;
        let version = lock(&self.manifest).versions[usize::from(slice.0)].clone();
        let mut changes = Vec::new();
        let mut heads = HashMap::default();
        for table in sinking {
            // Where it is now: cleaning may have moved it.
            let Some(now) = version.tables().find(|now| now.meta.id == table.meta.id) else { continue };
            changes.push(Change::Drop(slice, now.meta.id));
            changes.push(Change::Add(target.order, now.meta.clone()));
            self.counters.sunk_tables.add(1);
            heads.extend(now.head().map(|head| (now.meta.id, head)));
        }
        self.commit(&changes, &heads).await?;
        self.show_tables(slice, &[]);
        Ok(true)
    }

    /// Numbers for new tables, and the prefixes retired so far: a table never holds a key under a prefix that was
    /// retired by a record with a lower number than the table's.
    pub fn ids_and_retired(&self, slice: SliceId) -> (u64, Arc<Retired>) {
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
        match step.taken_bytes.checked_sub(step.new.bytes) {
            Some(won) => self.let_users_write(won),
            None => self.heap.earn(step.taken_bytes as i64 - step.new.bytes as i64),
        }
        self.sweep_heads();
        Ok(())
    }

    /// Bytes of tables that a step writes.
    fn step_bytes(&self) -> u64 {
        let space = self.heap.space();
        ((space.free + space.reserved) / 4).clamp(1, STEP_BYTES)
    }

    /// Merges sources, newest first, into tables until the step is long enough or all sources but the last,
    /// which is the target, are at their end. What is behind the sources' `end` is told by the caller.
    async fn merge_sources(
        self: &Arc<Self>,
        place: &Place,
        sources: &mut [RunReader],
        retired: &Retired,
        end: Behind<'_>,
    ) -> Result<Step, StoreError> {
        let bits = if place.is_bottom { BOTTOM_FILTER_BITS } else { UPPER_FILTER_BITS };
        let mut writer = TableWriter::new(
            self,
            (place.slice, place.target),
            place.ids,
            bits,
            place.run_bytes,
            place.before.clone(),
        );
        let mut step = Step::default();
        let mut since_yield = 0;
        let alone = sources.len() == 1;
        let step_bytes = self.step_bytes();
        let most_bytes = 2 * (step_bytes + self.table_bytes as u64);
        let mut queue = SourceQueue::new(Direction::Forward);
        (0..sources.len()).for_each(|at| queue.push(at, |at| sources[at].key.as_deref()));
        while let Some(first) = queue.first() {
            // Hardly ever inside of a table of the target: its rest would keep the whole table's space, for ever where no newer
            // key lies in it. But between two of its keys newer runs may hold more than there is room for.
            let may_end =
                sources.iter().all(|source| source.order != place.target || source.is_between_tables());
            let written = step.new.bytes + writer.full_bytes();
            let is_long = written >= step_bytes || step.dropped.len() >= 200_000;
            let is_rest =
                !alone && sources.iter().all(|source| source.key.is_none() || source.order == place.target);
            if (may_end && (is_long || is_rest)) || written >= most_bytes {
                break;
            }
            let (key, entry) = sources[first].take();
            let mut entry = entry.expect("a source with a key has its entry");
            let is_retired = retired.covers(place.slice, &key);
            step.last_key = Some(key.clone());
            sources[first].advance(self).await?;
            queue.update(|at| sources[at].key.as_deref());
            while let Some(other) = queue.first_at(&key, |at| sources[at].key.as_deref()) {
                let (_, shadowed) = sources[other].take();
                let shadowed = shadowed.expect("a source with a key has its entry");
                let counted = std::mem::replace(&mut entry.counted, shadowed.counted);
                // A crash in the middle of a merge may have left the same version twice; it dies once.
                if !counted && shadowed.seq != entry.seq && shadowed.holds_space() {
                    step.dropped.push((key.clone(), shadowed));
                }
                sources[other].advance(self).await?;
                queue.update(|at| sources[at].key.as_deref());
            }
            if is_retired {
                if entry.holds_space() {
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
        let next = sources.iter().filter_map(|source| source.key.as_ref()).min();
        writer.finish(&mut step.new, next.map_or(end, |key| Behind::From(key))).await?;
        step.taken_bytes = sources.iter().map(|source| source.taken_bytes).sum();
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
        let barred = self.barred_tables();
        let is_due = |table: &&Arc<Table>| is_to_be_rewritten(&table.meta, &retired, &barred);
        let Some(table) = run.tables().iter().find(is_due) else {
            return Ok(true);
        };
        let one = Run::new(order, vec![table.clone()]);
        let mut source = RunReader::new(self, &one, &retired, one.bytes(), true);
        source.advance(self).await?;
        let is_bottom = version.runs.last().is_some_and(|run| run.order == order);
        let before = Before::From(table.meta.min_key.clone());
        let place = Place { slice, target: order, is_bottom, run_bytes: run.bytes(), ids, before };
        let end = Behind::Above(&table.meta.max_key);
        let mut step = self.merge_sources(&place, std::slice::from_mut(&mut source), &retired, end).await?;
        let mut changes = step.new.changes.clone();
        consumed(&one, &source, slice, step.reached(), &mut changes);
        self.finish_step(slice, changes, &mut step).await?;
        Ok(false)
    }

    /// Tells the heap that an entry's record is dead; pieces of a large value are looked up in the background.
    pub fn bury(&self, slice: SliceId, key: &[u8], entry: &KeyEntry) {
        if entry.large {
            lock(&self.large.dead).push(DeadLarge::new(slice, key, entry.clone()));
            self.background.clean_wanted.notify_one();
        } else if let Body::Record(ptr) = entry.body {
            self.mark_dead(ptr, entry.seq);
        }
    }

    /// Prefixes of a slice that no table speaks of any more, by the number that retired them. Hold `commit_turn`.
    pub async fn forgotten_prefixes(&self) -> Vec<Change> {
        let (retired, versions, checkpoint) = {
            let manifest = lock(&self.manifest);
            (manifest.retired.clone(), manifest.versions.clone(), manifest.checkpoint)
        };
        let (mut gone, mut looks) = (Vec::new(), 0);
        for (slice, prefix, seq) in retired.iter().filter(|(.., seq)| *seq <= checkpoint) {
            let version = &versions[usize::from(slice.0)];
            if !version.tables().any(|table| may_hold(&table.meta, prefix, seq)) {
                gone.push((slice, prefix.clone(), seq));
            }
            looks += 1 + version.tables().count();
            if looks > LOOKS_AT_ONCE {
                looks = 0;
                yield_now().await;
            }
        }
        // Not those that were retired again meanwhile.
        let now = lock(&self.manifest).retired.clone();
        gone.retain(|(slice, prefix, seq)| now.seq_of(*slice, prefix) == Some(*seq));
        gone.into_iter().map(|(slice, prefix, _)| Change::Retired(slice, prefix)).collect()
    }
}

/// Where a step's tables go.
struct Place {
    slice: SliceId,
    target: RunOrder,
    is_bottom: bool,
    /// Bytes of the runs that are merged.
    run_bytes: u64,
    /// The first of their numbers.
    ids: u64,
    /// What lies before them in the run.
    before: Before,
}

#[derive(Default)]
struct Step {
    new: NewTables,
    dropped: Vec<(Bytes, KeyEntry)>,
    /// The last key that was merged.
    last_key: Option<Bytes>,
    /// Bytes of the entries that were merged, their tables' filters and indexes in proportion.
    taken_bytes: u64,
}

impl Step {
    /// Up to where its tables reach, and what it used up.
    fn reached(&self) -> Option<&Bytes> {
        let tables = self.new.changes.iter().filter_map(|change| match change {
            Change::Add(_, meta) => Some(&meta.max_key),
            _ => None,
        });
        tables.chain(&self.last_key).max()
    }
}

/// Notes what a source has used up of a run, up to the key that was reached.
fn consumed(
    run: &Run,
    source: &RunReader,
    slice: SliceId,
    reached: Option<&Bytes>,
    changes: &mut Vec<Change>,
) {
    for table in run.tables() {
        match &source.key {
            Some(next) if table.meta.max_key >= *next => {
                if let Some(reached) = reached
                    && table.meta.min_key <= *reached
                {
                    let from = lower(next, &Before::UpTo(reached.clone()));
                    changes.push(Change::Trim(slice, table.meta.id, from));
                }
            }
            _ => changes.push(Change::Drop(slice, table.meta.id)),
        }
    }
    // Drops and trims make room for the new tables of the same run: they come first.
    changes.sort_by_key(|change| matches!(change, Change::Add(..)));
}
