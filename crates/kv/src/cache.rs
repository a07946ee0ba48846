//! Key tables in memory: heads (filter and block index) first, blocks in what is left of the budget.
//!
//! Heads live in their tables and are swept (`cache/heads.rs`) when they exceed three quarters of the budget; blocks lie
//! in several caches by where they are (all keys of a large collection are in one slice), whose capacity is what the heads
//! leave. Where heads do not fit, a head of tens of KiB is read for most look-ups, and hundreds of these may be under way: heads being
//! read have a part of the budget, too, blocks being read have as much, and nobody keeps a head while it waits for a block. What
//! all tables together do not need is the row caches': with values of a few KiB the tables are a small part of the data, and half of
//! the memory would lie idle. So is what memtables do not need for now, see [`lending`].

pub(crate) mod flights;
pub(crate) mod heads;
pub(crate) mod kept_pieces;
pub(crate) mod lending;
pub(crate) mod refused;
pub mod rows;
pub(crate) mod shares;

use std::ops::Range;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use pumice_base::hash::HashState;
use pumice_base::sync::lock;
use pumice_reactor::sync::{Permit, Semaphore};
use quick_cache::Weighter;
use quick_cache::unsync::Cache;
use smallvec::SmallVec;

use crate::cache::flights::Flights;
use crate::cache::heads::HeadSweep;
use crate::cache::lending::LENDING_STEP_BYTES;
use crate::cache::shares::Shares;
use crate::entry::KeyEntry;
use crate::errors::StoreError;
use crate::store::Inner;
use crate::table::block::{Block, Malformed};
use crate::table::filter::filter_hash;
use crate::table::version::{Table, Version};
use crate::table::{BLOCK_BYTES, Head, TableMeta};
use crate::types::{Hint, Peek};

#[derive(Clone)]
struct BlockWeight;

/// Memory of a cached block besides its bytes.
const BLOCK_OVERHEAD_BYTES: u64 = 160;

impl Weighter<(u64, u32), Block> for BlockWeight {
    fn weight(&self, _: &(u64, u32), block: &Block) -> u64 {
        block.bytes() as u64 + BLOCK_OVERHEAD_BYTES
    }
}

/// Kept for key tables however few there are: the next flush writes some.
const NEEDED_MIN_BYTES: u64 = 4 << 20;
/// Rows given up under a slice's lock at a time.
const SHRINK_BYTES: u64 = 1 << 20;

/// Caches of blocks, each with a lock of its own.
const BLOCK_CACHES: u64 = 16;

/// Heads being read have this part of the budget, and blocks being read as much, alone or together.
const UNDER_WAY_PART: u64 = 8;

type Blocks = Cache<(u64, u32), Block, BlockWeight, HashState>;

/// Where a block lies in its table.
#[derive(Clone, Copy, Debug)]
pub struct BlockPlace {
    /// Its number.
    at: usize,
    /// How many the table has.
    of: usize,
    offset: u32,
    len: u32,
}

impl BlockPlace {
    /// Of block `at`.
    pub fn of(head: &Head, at: usize) -> Self {
        let (offset, len) = head.index.place(at);
        Self { at, of: head.index.blocks(), offset, len }
    }
}

/// See the head of this file.
pub struct TableCache {
    budget: u64,
    head_bytes: AtomicU64,
    /// Bytes of heads that may be read at a time.
    heads_under_way: Semaphore,
    /// The same of blocks.
    blocks_under_way: Semaphore,
    heads: HeadSweep,
    /// Bytes of all tables, as of the last sweep.
    table_bytes: AtomicU64,
    blocks: Box<[Mutex<Blocks>]>,
    row_shares: Mutex<Shares>,
    head_reads: Flights<u64, Arc<Head>>,
    block_reads: Flights<(u64, u32), Block>,
    /// By the first block's number. What does not verify is missing.
    window_reads: Flights<(u64, usize), Arc<[Option<Block>]>>,
}

impl TableCache {
    /// In `budget` bytes, for the tables of `slices` slices.
    pub fn new(slices: usize, budget: u64) -> Self {
        let each = budget / BLOCK_CACHES;
        let blocks = (0..BLOCK_CACHES).map(|_| {
            let items = (each / 4096).max(16) as usize;
            Mutex::new(Cache::with(items, each, BlockWeight, HashState, Default::default()))
        });
        Self {
            budget,
            head_bytes: AtomicU64::new(0),
            heads_under_way: Semaphore::new(budget / UNDER_WAY_PART),
            blocks_under_way: Semaphore::new(budget / UNDER_WAY_PART),
            heads: HeadSweep::new(budget / 4 * 3),
            table_bytes: AtomicU64::new(0),
            blocks: blocks.collect(),
            row_shares: Mutex::new(Shares::new(slices)),
            head_reads: Flights::default(),
            block_reads: Flights::default(),
            window_reads: Flights::default(),
        }
    }

    /// Whether all key tables fit in memory.
    pub fn holds_all(&self) -> bool {
        self.table_bytes.load(Ordering::Relaxed) < self.budget
    }

    /// Memory that all tables need, heads and blocks, as far as the budget goes.
    fn needed(&self) -> u64 {
        let bytes = self.table_bytes.load(Ordering::Relaxed);
        (bytes + bytes / 4 + NEEDED_MIN_BYTES).min(self.budget)
    }

    /// Memory of heads, in bytes.
    pub fn head_bytes(&self) -> u64 {
        self.head_bytes.load(Ordering::Relaxed)
    }

    /// Memory of blocks, in bytes.
    pub fn block_bytes(&self) -> u64 {
        self.blocks.iter().map(|blocks| lock(blocks).weight()).sum()
    }

    /// The cache of the block at `offset` of a table: those behind each other are in different ones.
    fn blocks_at(&self, table: u64, offset: u32) -> &Mutex<Blocks> {
        let mixed = (table << 32 | u64::from(offset)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        &self.blocks[(mixed >> 32) as usize % self.blocks.len()]
    }

    fn get(&self, table: u64, offset: u32) -> Option<Block> {
        lock(self.blocks_at(table, offset)).get(&(table, offset)).cloned()
    }

    /// What the block at `offset` says of `key`, if the block is in memory. Under the lock, because a handle to the block would
    /// cost more than looking the key up.
    fn look_up(&self, table: u64, offset: u32, key: &[u8]) -> Option<Result<Option<KeyEntry>, Malformed>> {
        lock(self.blocks_at(table, offset)).get(&(table, offset)).map(|block| block.get(key))
    }

    /// Blocks that are read at once, at most: those behind must not push out those before.
    fn window_max(&self) -> usize {
        (lock(&self.blocks[0]).capacity() / 4 * BLOCK_CACHES) as usize / BLOCK_BYTES
    }

    fn insert(&self, table: u64, offset: u32, block: Block) {
        lock(self.blocks_at(table, offset)).insert((table, offset), block);
    }
}

impl Inner {
    /// Keeps the blocks of a table that was just written where memory holds all of them: they are asked for next.
    pub fn keep_blocks(&self, meta: &TableMeta, head: &Head, payload: &[u8]) {
        if !self.cache.holds_all() {
            return;
        }
        for at in 0..head.index.blocks() {
            let (offset, len) = head.index.place(at);
            // Copies, or each would hold the whole table.
            let bytes = Bytes::copy_from_slice(&payload[offset as usize..(offset + len) as usize]);
            let block = Block::verify(meta.id, offset, bytes).expect("the builder's own block verifies");
            self.cache.insert(meta.id, offset, block);
        }
    }

    /// Counts heads anew and lets go of cold ones when they exceed their share; gives blocks the rest. Called
    /// when tables come or go, and when heads were loaded.
    pub fn sweep_heads(&self) {
        let cache = &self.cache;
        let versions: Vec<Arc<Version>> =
            self.slices.iter().map(|slice| lock(slice).version.clone()).collect();
        let mut bounds_bytes = 0;
        let table_bytes: Vec<u64> = versions
            .iter()
            .map(|version| {
                let tables = version.tables().map(|table| &table.meta);
                tables.fold(0, |bytes, meta| {
                    bounds_bytes += (meta.min_key.len() + meta.max_key.len()) as u64;
                    bytes + u64::from(meta.ptr.len)
                })
            })
            .collect();
        self.metadata_room.set_bounds(bounds_bytes);
        cache.table_bytes.store(table_bytes.iter().sum(), Ordering::Relaxed);
        lock(&cache.row_shares).set(&table_bytes);
        let bytes = cache.heads.sweep(&versions);
        cache.head_bytes.store(bytes, Ordering::Relaxed);
        let tables = cache.needed();
        self.fit_row_caches();
        let each = tables.saturating_sub(bytes) / cache.blocks.len() as u64;
        for blocks in &cache.blocks {
            let mut blocks = lock(blocks);
            if blocks.capacity().abs_diff(each) > each / 16 {
                blocks.set_capacity(each);
            }
        }
    }

    /// What key tables and memtables leave row caches, in bytes. Who asks gives it to them: [`Inner::lend`] takes it for given.
    pub fn planned_for_rows(&self) -> u64 {
        self.budget.rows + (self.cache.budget - self.cache.needed()) + self.lend()
    }

    /// Gives the row caches what is planned for them, but for what is withheld and what kept pieces have.
    pub fn fit_row_caches(&self) {
        let bytes =
            self.planned_for_rows().saturating_sub(self.lending.withheld_bytes.load(Ordering::Relaxed));
        self.large.kept.set_most(bytes / 2);
        self.size_row_caches(bytes.saturating_sub(self.large.kept.bytes()));
    }

    /// Gives the row caches `bytes` together. A slice is not held up for longer than [`SHRINK_BYTES`] of rows take to go.
    fn size_row_caches(&self, bytes: u64) {
        for (at, slice) in self.slices.iter().enumerate() {
            let (each, step) = {
                let shares = lock(&self.cache.row_shares);
                (shares.of(bytes, at), shares.of(LENDING_STEP_BYTES, at))
            };
            // Less than what is lent or taken back at a time, or that would be ignored.
            let ignored = (each / 16).min(step / 2);
            loop {
                let mut slice = lock(slice);
                let now = slice.rows.capacity();
                if now.abs_diff(each) <= ignored {
                    break;
                }
                slice.rows.set_capacity(each.max(now.saturating_sub(SHRINK_BYTES)));
            }
        }
    }

    /// The newest version of `key` in the tables, if memory knows.
    pub fn peek_tables(&self, version: &Version, key: &[u8]) -> Peek<KeyEntry> {
        let hash = filter_hash(key);
        let mut heads: SmallVec<[(&Table, Arc<Head>); 8]> = SmallVec::new();
        let mut are_all_here = true;
        for table in version.covering(key) {
            match table.head() {
                Some(head) => heads.push((table, head)),
                None => {
                    are_all_here = false;
                    break;
                }
            }
        }
        // All filters are asked before any block, with nothing in between that a processor waits for: their lines of memory, none
        // of them in its cache, come side by side.
        let passed: SmallVec<[bool; 8]> = heads.iter().map(|(_, head)| head.may_contain(hash)).collect();
        for ((table, head), passed) in heads.iter().zip(passed) {
            if !passed {
                continue;
            }
            let Some(block) = head.index.block_of(key) else { continue };
            let (offset, _) = head.index.place(block);
            let Some(found) = self.cache.look_up(table.meta.id, offset, key) else {
                return Peek::NeedsFlash(Hint::default());
            };
            match found {
                Ok(Some(entry)) => {
                    self.counters.block_hits.add(1);
                    return Peek::Found(entry);
                }
                Ok(None) => self.counters.false_positives.add(1),
                Err(_) => return Peek::NeedsFlash(Hint::default()),
            }
        }
        if are_all_here { Peek::Absent } else { Peek::NeedsFlash(Hint::default()) }
    }

    /// The newest version of `key` in the tables, tombstones too.
    pub async fn find_in_tables(
        &self,
        version: &Version,
        key: &[u8],
    ) -> Result<Option<KeyEntry>, StoreError> {
        let hash = filter_hash(key);
        for table in version.covering(key) {
            let place = {
                let head = self.head(table).await?;
                if !head.may_contain(hash) {
                    continue;
                }
                let Some(at) = head.index.block_of(key) else { continue };
                BlockPlace::of(&head, at)
            };
            match self.block(table, place).await?.get(key) {
                Ok(Some(entry)) => return Ok(Some(entry)),
                Ok(None) => self.counters.false_positives.add(1),
                Err(_) => return Err(damaged(table, "a block's entries do not parse")),
            }
        }
        Ok(None)
    }

    /// A table's head, read when it is not in memory.
    pub async fn head(&self, table: &Table) -> Result<Arc<Head>, StoreError> {
        if let Some(head) = table.head() {
            return Ok(head);
        }
        // Boxed, like all that is rare on this path: each look-up under way holds this future, and it is moved about.
        self.cache.head_reads.share(table.meta.id, Box::pin(self.read_head(table))).await
    }

    async fn read_head(&self, table: &Table) -> Result<Arc<Head>, StoreError> {
        let meta = &table.meta;
        let bytes = u64::from(meta.head_len).min(self.cache.budget / UNDER_WAY_PART);
        let _permit = self.cache.heads_under_way.acquire(bytes).await;
        if let Some(head) = table.head() {
            return Ok(head);
        }
        self.counters.head_reads.add(1);
        let bytes = self.read_of(table, meta.head_at, meta.head_len).await?;
        let head =
            Head::verify(meta, &bytes).ok_or_else(|| damaged(table, "the head's checksum does not match"))?;
        let head = Arc::new(head);
        *lock(&table.head) = Some(head.clone());
        table.used.store(true, Ordering::Relaxed);
        let bytes = self.cache.head_bytes.fetch_add(head.bytes() as u64, Ordering::Relaxed);
        if bytes > self.cache.heads.most() {
            self.sweep_heads();
        }
        Ok(head)
    }

    /// The block at an offset of a table, if it is in the cache.
    pub fn cached_block(&self, table: &Table, offset: u32) -> Option<Block> {
        let block = self.cache.get(table.meta.id, offset)?;
        self.counters.block_hits.add(1);
        Some(block)
    }

    /// Puts a block of a table that has its bytes to itself into the cache.
    pub fn keep_block(&self, table: &Table, offset: u32, block: &Block) {
        self.cache.insert(table.meta.id, offset, block.clone());
    }

    /// A block of a table, from the cache, or from flash, which puts it there.
    pub async fn block(&self, table: &Table, place: BlockPlace) -> Result<Block, StoreError> {
        let meta = &table.meta;
        if let Some(block) = self.cached_block(table, place.offset) {
            return Ok(block);
        }
        if let Some(block) = self.block_in_window(table, place).await {
            return Ok(block);
        }
        let BlockPlace { offset, len, .. } = place;
        let read = pin!(async {
            let _permit = self.block_permit(len).await;
            // A copy of its own: the buffer that was read into is larger, and pooled.
            let block = self.read_block(table, offset, len, |bytes| Bytes::copy_from_slice(&bytes)).await?;
            self.cache.insert(meta.id, offset, block.clone());
            Ok(block)
        });
        self.cache.block_reads.share((meta.id, offset), read).await
    }

    /// [`Inner::block`] for who goes over all of a table: it does not push others' blocks out.
    pub async fn passing_block(&self, table: &Table, place: BlockPlace) -> Result<Block, StoreError> {
        match self.cached_block(table, place.offset) {
            Some(block) => Ok(block),
            None => self.read_block(table, place.offset, place.len, |bytes| bytes).await,
        }
    }

    /// A block of a table, read together with those behind it, where look-ups come in key order. `None`: read it alone.
    async fn block_in_window(&self, table: &Table, place: BlockPlace) -> Option<Block> {
        let (meta, at) = (&table.meta, place.at);
        let mut window = table.window.current();
        let is_awaited = window.len() > 1
            && window.contains(&at)
            && self.cache.window_reads.is_under_way(&(meta.id, window.start));
        if !is_awaited {
            window = table.window.next(at, place.of, self.cache.window_max());
            if window.len() < 2 {
                return None;
            }
        }
        let start = window.start;
        let read = Box::pin(self.read_window(table, window));
        let blocks = self.cache.window_reads.share((meta.id, start), read).await;
        blocks.ok()?.get(at - start).cloned().flatten()
    }

    /// A look-up in key order may go on in each of many tables at once.
    async fn read_window(
        &self,
        table: &Table,
        window: Range<usize>,
    ) -> Result<Arc<[Option<Block>]>, StoreError> {
        let head = self.head(table).await?;
        let (start, _) = head.index.place(window.start);
        let (offset, len) = head.index.place(window.end - 1);
        let len = offset + len - start;
        let permit = self.block_permit(len).await;
        self.counters.block_reads.add(1);
        let bytes = self.read_of(table, start, len).await?;
        let verified = window.map(|at| {
            let (offset, len) = head.index.place(at);
            let from = (offset - start) as usize;
            let own = Bytes::copy_from_slice(&bytes[from..from + len as usize]);
            let block = Block::verify(table.meta.id, offset, own)?;
            self.cache.insert(table.meta.id, offset, block.clone());
            Some(block)
        });
        let verified = verified.collect();
        drop((bytes, permit));
        Ok(verified)
    }

    /// For who reads so many bytes of blocks, alone or together.
    async fn block_permit(&self, bytes: u32) -> Permit<'_> {
        let most = self.cache.budget / UNDER_WAY_PART;
        self.cache.blocks_under_way.acquire(u64::from(bytes).min(most)).await
    }

    async fn read_block(
        &self,
        table: &Table,
        offset: u32,
        len: u32,
        own: impl FnOnce(Bytes) -> Bytes,
    ) -> Result<Block, StoreError> {
        self.counters.block_reads.add(1);
        let bytes = own(self.read_of(table, offset, len).await?);
        Block::verify(table.meta.id, offset, bytes)
            .ok_or_else(|| damaged(table, "a block's checksum does not match"))
    }

    /// Bytes of a table's payload, as they lie on flash.
    pub async fn read_of(&self, table: &Table, offset: u32, len: u32) -> Result<Bytes, StoreError> {
        let what = || format!("key table {} of slice {}", table.meta.id, table.meta.slice.0);
        self.heap
            .read_range(table.meta.ptr, offset, len)
            .await
            .map_err(|source| StoreError::Read { what: what(), source })
    }
}

/// Damage in a key table.
pub fn damaged(table: &Table, reason: &str) -> StoreError {
    StoreError::Damaged {
        what: format!("key table {} of slice {}", table.meta.id, table.meta.slice.0),
        ptr: table.meta.ptr,
        reason: reason.into(),
    }
}
