//! Which key tables a slice has, in which order they are asked.
//!
//! A *run* is a list of tables with disjoint, rising key ranges. A slice has any number of upper runs, the newer
//! first, and at most one bottom run under them. A [`Version`] never changes; a flush or a merge makes the next
//! one, and readers keep theirs as long as they need it.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use bytes::Bytes;
use pumice_base::sync::lock;

use crate::codes::Fences;
use crate::table::window::Window;
use crate::table::{Head, TableMeta};

/// The place of a run: higher is newer. The bottom run has 0.
pub type RunOrder = u64;

/// A table and what of it is in memory.
#[derive(Debug)]
pub struct Table {
    /// What the manifest says.
    pub meta: TableMeta,
    /// Filter and block index, when in memory.
    pub head: Mutex<Option<Arc<Head>>>,
    /// Whether the head was asked for since the sweep last came by.
    pub used: AtomicBool,
    /// The earliest expiry that was not yet told to the layer above; 0 = none.
    pub next_expiry_ms: AtomicU64,
    /// The block with which the next look for expired keys begins.
    pub expiry_block: AtomicU32,
    /// The blocks that were read last.
    pub window: Window,
}

impl Table {
    /// A table whose head is not in memory, or is `head`.
    pub fn new(meta: TableMeta, head: Option<Arc<Head>>) -> Self {
        let next_expiry_ms = AtomicU64::new(meta.earliest_expiry_ms);
        Self {
            meta,
            head: Mutex::new(head),
            used: AtomicBool::new(true),
            next_expiry_ms,
            expiry_block: AtomicU32::new(0),
            window: Window::default(),
        }
    }

    /// The head, if in memory.
    pub fn head(&self) -> Option<Arc<Head>> {
        let head = lock(&self.head).clone()?;
        if !self.used.load(Ordering::Relaxed) {
            self.used.store(true, Ordering::Relaxed);
        }
        Some(head)
    }
}

/// Tables with disjoint, rising key ranges.
#[derive(Clone, Debug, Default)]
pub struct Run {
    /// The run's place.
    pub order: RunOrder,
    /// Its tables by key.
    tables: Vec<Arc<Table>>,
    /// Of their least and greatest keys in turn, from when the first key was looked for.
    fences: OnceLock<Fences>,
}

impl Run {
    /// A run of tables that are in order.
    pub fn new(order: RunOrder, tables: Vec<Arc<Table>>) -> Self {
        Self { order, tables, fences: OnceLock::new() }
    }

    /// Its tables by key.
    pub fn tables(&self) -> &[Arc<Table>] {
        &self.tables
    }

    /// To change them.
    fn tables_mut(&mut self) -> &mut Vec<Arc<Table>> {
        self.fences.take();
        &mut self.tables
    }

    /// The table whose range covers `key`.
    pub fn find(&self, key: &[u8]) -> Option<&Arc<Table>> {
        let below = self.bounds_below(key);
        let table = self.tables.get(below / 2)?;
        // Between a table's bounds, mostly; behind another's end only where it begins with this very key.
        (!below.is_multiple_of(2) || table.meta.min_key == key).then_some(table)
    }

    /// The number of the table where a walk from `key` on begins: of those that end at it or behind it the first, of those that begin at it
    /// or before it the last, if it goes backward.
    pub fn table_from(&self, key: &[u8], backward: bool) -> Option<usize> {
        let below = self.bounds_below(key);
        let (at, is_between) = (below / 2, below.is_multiple_of(2));
        let next = self.tables.get(at);
        if backward && is_between && next.is_none_or(|table| table.meta.min_key != key) {
            return at.checked_sub(1);
        }
        next.map(|_| at)
    }

    /// How many of the tables' least and greatest keys, in turn, are below `key`.
    fn bounds_below(&self, key: &[u8]) -> usize {
        let bound = |at: usize| {
            let meta = &self.tables[at / 2].meta;
            if at.is_multiple_of(2) { meta.min_key.as_ref() } else { meta.max_key.as_ref() }
        };
        let fences = self.fences.get_or_init(|| Fences::of((0..2 * self.tables.len()).map(bound)));
        fences.below(key, |at, _| bound(at) < key)
    }

    /// Where a table belongs; the one that it would overlap if there is no place for it.
    fn place_of(&self, meta: &TableMeta) -> Result<usize, u64> {
        let place = self.tables.partition_point(|other| other.meta.min_key < meta.min_key);
        let before = place.checked_sub(1).map(|at| &self.tables[at].meta);
        if let Some(before) = before.filter(|before| before.max_key >= meta.min_key) {
            return Err(before.id);
        }
        match self.tables.get(place).filter(|next| meta.max_key >= next.meta.min_key) {
            Some(next) => Err(next.meta.id),
            None => Ok(place),
        }
    }

    /// Bytes of its tables.
    pub fn bytes(&self) -> u64 {
        self.tables.iter().map(|table| u64::from(table.meta.ptr.len)).sum()
    }

    /// Entries in its tables.
    pub fn entries(&self) -> u64 {
        self.tables.iter().map(|table| table.meta.entries).sum()
    }
}

/// All runs of a slice at one time, newest first.
#[derive(Clone, Debug, Default)]
pub struct Version {
    /// The runs; the bottom run, if there, is the last. Scans keep them, and so do later versions where they stay as they are.
    pub runs: Vec<Arc<Run>>,
}

impl Version {
    /// The tables that cover `key`, newest first.
    pub fn covering<'a>(&'a self, key: &'a [u8]) -> impl Iterator<Item = &'a Arc<Table>> {
        self.runs.iter().filter_map(move |run| run.find(key))
    }

    /// All tables.
    pub fn tables(&self) -> impl Iterator<Item = &Arc<Table>> {
        self.runs.iter().flat_map(|run| &run.tables)
    }

    /// Puts a table into its run.
    pub fn add(&mut self, order: RunOrder, table: Arc<Table>) {
        let at = self.runs.partition_point(|run| run.order > order);
        if self.runs.get(at).is_none_or(|run| run.order != order) {
            self.runs.insert(at, Arc::new(Run::new(order, Vec::new())));
        }
        let place = self.runs[at]
            .place_of(&table.meta)
            .unwrap_or_else(|other| panic!("tables {other} and {} of run {order} overlap", table.meta.id));
        self.tables_of(at).insert(place, table);
    }

    /// Whether a table could be put into a run; the one that it would overlap if not.
    pub fn has_place(&self, order: RunOrder, meta: &TableMeta) -> Result<(), u64> {
        let run = self.runs.iter().find(|run| run.order == order);
        run.map_or(Ok(()), |run| run.place_of(meta).map(|_| ()))
    }

    /// What is known of a table.
    pub fn meta(&self, id: u64) -> Option<&TableMeta> {
        self.locate(id).map(|(run, at)| &self.runs[run].tables[at].meta)
    }

    /// Takes a table out; `None` when it is not there.
    pub fn remove(&mut self, id: u64) -> Option<Arc<Table>> {
        let (run, at) = self.locate(id)?;
        let table = self.tables_of(run).remove(at);
        if self.runs[run].tables.is_empty() {
            self.runs.remove(run);
        }
        Some(table)
    }

    /// Replaces what is known of a table; `None` when it is not there.
    pub fn alter(&mut self, id: u64, change: impl FnOnce(&mut TableMeta)) -> Option<()> {
        let (run, at) = self.locate(id)?;
        let old = &self.runs[run].tables[at];
        let mut meta = old.meta.clone();
        change(&mut meta);
        let head = lock(&old.head).clone();
        self.tables_of(run)[at] = Arc::new(Table::new(meta, head));
        Some(())
    }

    /// Those of a run, to change them.
    fn tables_of(&mut self, run: usize) -> &mut Vec<Arc<Table>> {
        Arc::make_mut(&mut self.runs[run]).tables_mut()
    }

    fn locate(&self, id: u64) -> Option<(usize, usize)> {
        self.runs.iter().enumerate().find_map(|(run, r)| {
            r.tables.iter().position(|table| table.meta.id == id).map(|table| (run, table))
        })
    }

    /// The order of the newest run, 0 when there is none above the bottom.
    pub fn newest_order(&self) -> RunOrder {
        self.runs.first().map_or(0, |run| run.order)
    }

    /// Where the entries of table `id` start that count.
    pub fn min_key(&self, id: u64) -> Option<Bytes> {
        self.locate(id).map(|(run, at)| self.runs[run].tables[at].meta.min_key.clone())
    }
}
