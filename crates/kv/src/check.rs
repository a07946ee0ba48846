//! The whole drive, read and verified.
//!
//! 1. Every segment that is in use, record by record: damage anywhere, in dead data too.
//! 2. Every key table: head, blocks, order of keys, counts.
//! 3. Every key of every slice: its value is where the key says and belongs to it; large values piece by piece.

use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pumice_base::sync::lock;
use pumice_reactor::{sleep, yield_now};

use crate::errors::StoreError;
use crate::open::Progress;
use crate::retired::Retired;
use crate::scan::{SliceSet, Want};
use crate::store::{Inner, Store};
use crate::table;
use crate::table::version::Table;
use crate::types::{Direction, SliceId};

/// Problems listed in full, of keys and of all else alike; the rest is counted.
const PROBLEMS_MAX: usize = 1000;

/// What a check found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// Segments read.
    pub segments: u64,
    /// Records that verified, dead ones too.
    pub records: u64,
    /// Key tables read.
    pub tables: u64,
    /// Keys that are there: entries of the ordered map, of which the layers above make one key or many.
    pub keys: u64,
    /// Bytes of their values.
    pub value_bytes: u64,
    /// Keys whose value cannot be read.
    pub unreadable_keys: u64,
    /// What is wrong, one line each; empty when the drive is sound. First at most a thousand of those keys, because they are what users
    /// lose; then at most a thousand places.
    pub problems: Vec<String>,
    /// Problems beyond those.
    pub more_problems: u64,
}

impl CheckReport {
    /// Whether nothing is wrong.
    pub fn is_clean(&self) -> bool {
        self.problems.is_empty()
    }

    /// Problems, listed or not.
    pub fn problem_count(&self) -> u64 {
        self.problems.len() as u64 + self.more_problems
    }

    fn problem(&mut self, text: String) {
        let listed = self.problems.len() as u64 - self.unreadable_keys.min(PROBLEMS_MAX as u64);
        if listed < PROBLEMS_MAX as u64 {
            self.problems.push(text);
        } else {
            self.more_problems += 1;
        }
    }

    fn key_problem(&mut self, text: String) {
        let before = self.unreadable_keys as usize;
        if before < PROBLEMS_MAX {
            self.problems.insert(before, text);
        } else {
            self.more_problems += 1;
        }
        self.unreadable_keys += 1;
    }
}

impl Inner {
    /// What is wrong with a key: most errors name it already.
    fn of_key(&self, key: &[u8], error: &StoreError) -> String {
        let (name, error) = (self.show_key(key), error.to_string());
        if error.contains(&name) { error } else { format!("{name}: {error}") }
    }
}

impl Store {
    /// Reads and verifies everything: every record of every segment, every key table, and that every key's value
    /// is where the key says. `progress` hears bytes done and bytes to do of the segments.
    ///
    /// # Errors
    /// When the drive does not answer; damage is in the report.
    pub async fn check(&self, progress: Progress<'_>) -> Result<CheckReport, StoreError> {
        let inner = &self.inner;
        let mut report = CheckReport::default();
        let flushed = inner.heap.flush().await;
        if let Err(error) = flushed {
            report.problem(error.to_string());
        }
        for found in [inner.heap.superblock_damage().await, inner.heap.metadata_damage().await] {
            match found {
                Ok(damage) => damage.iter().for_each(|damage| report.problem(damage.to_string())),
                Err(error) => report.problem(error.to_string()),
            }
        }
        // What is retired at the snapshot's time: later the list forgets prefixes of which no table speaks any more, which
        // the snapshot's tables may do.
        let before = lock(&inner.manifest).retired.clone();
        let snapshot = self.snapshot();
        let retired = [before, lock(&inner.manifest).retired.clone()];
        let segments = inner.heap.segments_in_use();
        let each = u64::from(inner.heap.segment_bytes());
        for (done, segment) in segments.iter().enumerate() {
            progress(done as u64 * each, segments.len() as u64 * each);
            // A segment that had been released when this began may be reused under the reader: what is damaged
            // stays damaged.
            let mut tries = 0;
            let (records, problems) = loop {
                let (records, problems) = match inner.heap.contents(*segment).await {
                    Ok(contents) => {
                        let problems: Vec<String> = contents.damage.iter().map(ToString::to_string).collect();
                        (contents.records.len() as u64, problems)
                    }
                    Err(error) => (0, vec![format!("{segment}: {error}")]),
                };
                tries += 1;
                if problems.is_empty() || tries == 3 {
                    break (records, problems);
                }
                sleep(Duration::from_millis(20)).await;
                if !inner.heap.segments_in_use().contains(segment) {
                    break (0, Vec::new());
                }
            };
            report.records += records;
            problems.into_iter().for_each(|problem| report.problem(problem));
            report.segments += 1;
            yield_now().await;
        }
        progress(segments.len() as u64 * each, segments.len() as u64 * each);
        for view in &snapshot.inner.slices {
            for table in view.version.tables() {
                if let Err(problem) = self.check_table(table).await {
                    report.problem(format!(
                        "key table {} of slice {} at {}: {problem}",
                        table.meta.id, table.meta.slice.0, table.meta.ptr
                    ));
                }
                report.tables += 1;
            }
        }
        for slice in 0..self.slice_count() {
            let set = SliceSet::One(SliceId(slice));
            let mut scan = self.scan(
                &snapshot,
                set,
                Bound::Unbounded,
                Bound::Unbounded,
                Direction::Forward,
                Want::Values,
            );
            if let Err(error) = self.check_keys(SliceId(slice), &mut scan, &retired, &mut report).await {
                report.problem(format!("slice {slice}, where its keys cannot be read on: {error}"));
            }
        }
        let space = inner.heap.space();
        if space.accounted() != space.raw {
            report.problem(format!("space does not add up: {} of {} bytes", space.accounted(), space.raw));
        }
        Ok(report)
    }

    async fn check_keys(
        &self,
        slice: SliceId,
        scan: &mut crate::Scan,
        retired: &[Arc<Retired>],
        report: &mut CheckReport,
    ) -> Result<(), StoreError> {
        loop {
            let (key, entry) = match scan.next_key_and_value().await {
                Ok(None) => return Ok(()),
                // Nobody reads these any more: tables may name them while their values are cleaned away.
                Ok(Some((key, _)))
                    if self.inner.is_retired(slice, &key)
                        || retired.iter().any(|retired| retired.covers(slice, &key)) =>
                {
                    continue;
                }
                Ok(Some((key, Ok(entry)))) => (key, entry),
                Ok(Some((key, Err(error)))) => {
                    report.key_problem(self.inner.of_key(&key, &error));
                    continue;
                }
                Err(error) => return Err(error),
            };
            report.keys += 1;
            report.value_bytes += entry.value_len();
            if let Some(large) = &entry.large {
                let mut reader = self.read_large(large, 0..large.len());
                loop {
                    match reader.next().await {
                        Ok(Some(_)) => {}
                        Ok(None) => break,
                        Err(error) => {
                            report.key_problem(self.inner.of_key(&key, &error));
                            break;
                        }
                    }
                }
            }
        }
    }

    async fn check_table(&self, table: &Table) -> Result<(), String> {
        let inner = &self.inner;
        let meta = &table.meta;
        let text = |error: StoreError| error.to_string();
        // From flash, whatever is in memory.
        let cached = lock(&table.head).take();
        let head = inner.head(table).await;
        if let (Err(_), Some(cached)) = (&head, cached) {
            *lock(&table.head) = Some(cached);
        }
        let head = head.map_err(text)?;
        let footer_at = meta.head_at + meta.head_len;
        let footer = inner.read_of(table, footer_at, table::FOOTER_BYTES as u32).await.map_err(text)?;
        let footer = table::decode_footer(&footer).ok_or("the footer does not verify")?;
        if footer.id != meta.id || footer.slice != meta.slice || footer.head_at != meta.head_at {
            return Err("the footer is another table's".into());
        }
        let (mut entries, mut last) = (0, Bytes::new());
        for at in 0..head.index.blocks() {
            let (offset, len) = head.index.place(at);
            let bytes = inner.read_of(table, offset, len).await.map_err(text)?;
            let block = table::block::Block::verify(meta.id, offset, bytes);
            let block = block.ok_or_else(|| format!("the block at {offset} does not verify"))?;
            for (key, _) in block.entries().map_err(|_| format!("the block at {offset} does not parse"))? {
                if entries > 0 && key <= last {
                    return Err(format!("{} is out of order", inner.show_key(&key)));
                }
                if head.index.block_of(&key) != Some(at) {
                    return Err(format!("the block index misses {}", inner.show_key(&key)));
                }
                if !head.may_contain(table::filter::filter_hash(&key)) {
                    return Err(format!("the filter misses {}", inner.show_key(&key)));
                }
                entries += 1;
                last = key;
            }
            yield_now().await;
        }
        if entries != footer.entries || last > meta.max_key {
            return Err(format!(
                "{entries} entries up to {} are not what was written",
                inner.show_key(&last)
            ));
        }
        Ok(())
    }
}
