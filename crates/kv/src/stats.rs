//! Counters, and what they say together with the heap's.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use pumice_base::sync::lock;
use pumice_segment::{HeapStats, SpaceReport};

use crate::store::Store;
use crate::types::SliceId;

/// Parts of a counter; threads beyond so many share them.
const SHARDS: usize = 8;

/// A cache line of its own.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Shard(AtomicU64);

/// A counter that any core may raise, each its own part: a line that all cores write would cost more than what is
/// counted.
#[derive(Debug, Default)]
pub struct Counter([Shard; SHARDS]);

static THREADS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static SHARD: usize = THREADS.fetch_add(1, Ordering::Relaxed) % SHARDS;
}

impl Counter {
    /// Raises it.
    pub fn add(&self, n: u64) {
        self.0[SHARD.with(|shard| *shard)].0.fetch_add(n, Ordering::Relaxed);
    }

    /// Its value.
    pub fn get(&self) -> u64 {
        self.0.iter().map(|shard| shard.0.load(Ordering::Relaxed)).sum()
    }
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// What a store counts.
        #[derive(Debug, Default)]
        pub(crate) struct Counters { $($(#[$doc])* pub $name: Counter),* }

        /// A store's counters since it was opened.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct CounterValues { $($(#[$doc])* pub $name: u64),* }

        impl Counters {
            pub fn values(&self) -> CounterValues {
                CounterValues { $($name: self.$name.get()),* }
            }
        }
    };
}

counters! {
    /// GETs that went past [`Store::peek`].
    gets,
    /// GETs and peeks answered by the row cache.
    row_hits,
    /// Values read from flash.
    value_reads,
    /// Key blocks found in memory.
    block_hits,
    /// Reads of key blocks from flash; a scan reads several at a time.
    block_reads,
    /// Filters and block indexes read from flash.
    head_reads,
    /// Key tables asked because their filter let an absent key pass.
    false_positives,
    /// Keys that are gone and that scans went over before they met the first that is there.
    gone_passed,
    /// Records written.
    writes,
    /// Bytes of their payloads.
    user_bytes,
    /// Checkpoints.
    flushes,
    /// Bytes of key tables written by flushes.
    flush_bytes,
    /// Merge steps.
    merges,
    /// Bytes of key tables written by merges.
    merge_bytes,
    /// Key tables that merges took over as they are.
    sunk_tables,
    /// Key tables that were given up because no segment came free in time: their flush or merge begins again.
    given_up_tables,
    /// Segments cleaned.
    cleaned_segments,
    /// Victims that were begun while another one was being emptied.
    victims_beside,
    /// Segments emptied because they failed, or a page of them was near its end.
    rescued_segments,
    /// Free segments whose space was given back to the file system.
    given_back_segments,
    /// Records that cleaning moved.
    moved_records,
    /// Their bytes.
    moved_bytes,
    /// Bytes of records that the victims held when they were chosen.
    victim_bytes,
    /// Victims that did not read whole and were kept, because the index still names something in them.
    kept_victims,
}

/// A store at one time.
#[derive(Clone, Debug, Default)]
pub struct StoreStats {
    /// Counters since it was opened.
    pub counters: CounterValues,
    /// The heap's counters.
    pub heap: HeapStats,
    /// Where the drive's bytes are.
    pub space: SpaceReport,
    /// Entries in key tables, tombstones and shadowed versions too.
    pub table_entries: u64,
    /// Bytes of key tables.
    pub table_bytes: u64,
    /// Key tables.
    pub tables: u64,
    /// Key tables of which part does not read, as far as merging met them: it leaves them alone.
    pub tables_set_aside: u64,
    /// Runs of the slice that has most.
    pub runs_max: u64,
    /// Memory of memtables, in bytes.
    pub memtable_bytes: u64,
    /// Memory of those that were flushed and that readers hold, in bytes, as of the last flush.
    pub held_memtable_bytes: u64,
    /// Memory of filters and block indexes, in bytes.
    pub head_bytes: u64,
    /// Memory of cached key blocks, in bytes.
    pub block_bytes: u64,
    /// Memory of cached rows and of kept pieces of large values, in bytes.
    pub row_bytes: u64,
    /// What is withheld from these, in bytes: see [`Store::withhold_from_rows`].
    pub withheld_bytes: u64,
    /// Live snapshots.
    pub snapshots: u64,
}

impl StoreStats {
    /// Bytes written to flash, those ahead of need included.
    pub fn flash_written_bytes(&self) -> u64 {
        let heap = &self.heap;
        let data = heap.commit_bytes + heap.moved_bytes + heap.table_bytes + heap.large_bytes;
        data + heap.meta_bytes + heap.prewritten_bytes
    }

    /// Bytes written to flash because of what users wrote: all but those ahead of need, which are written once in a drive's life
    /// and soon after it was made, whatever users do.
    pub fn amplified_bytes(&self) -> u64 {
        self.flash_written_bytes() - self.heap.prewritten_bytes
    }

    /// [`StoreStats::amplified_bytes`] per byte of users' records; 0 while none was written.
    pub fn write_amplification(&self) -> f64 {
        match self.counters.user_bytes {
            0 => 0.0,
            user => self.amplified_bytes() as f64 / user as f64,
        }
    }
}

impl Store {
    /// Counters and sizes.
    pub fn stats(&self) -> StoreStats {
        let inner = &*self.inner;
        let mut stats = StoreStats {
            counters: inner.counters.values(),
            heap: inner.heap.stats(),
            space: inner.heap.space(),
            held_memtable_bytes: inner.memtables.held.bytes(),
            head_bytes: inner.cache.head_bytes(),
            block_bytes: inner.cache.block_bytes(),
            row_bytes: inner.large.kept.bytes(),
            withheld_bytes: inner.lending.withheld_bytes.load(Ordering::Relaxed),
            snapshots: inner.snapshots.count() as u64,
            ..StoreStats::default()
        };
        for id in 0..inner.slices.len() as u16 {
            let slice = inner.slice(SliceId(id));
            for memtable in std::iter::once(&slice.active).chain(&slice.sealed) {
                let memtable = lock(memtable);
                stats.memtable_bytes += memtable.bytes() as u64;
            }
            stats.row_bytes += slice.rows.weight();
            let version = slice.version.clone();
            drop(slice);
            stats.runs_max = stats.runs_max.max(version.runs.len() as u64);
            let aside = lock(&inner.merges.aside);
            for table in version.tables() {
                stats.tables += 1;
                stats.tables_set_aside += u64::from(aside.contains(table.meta.id));
                stats.table_entries += table.meta.entries;
                stats.table_bytes += u64::from(table.meta.ptr.len);
            }
        }
        stats
    }
}
