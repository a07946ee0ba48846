//! What a scan merges: memtables and runs, of which it fetches a piece at a time.

use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;
use pumice_base::sync::lock;

use crate::cache::damaged;
use crate::errors::StoreError;
use crate::memtable::{Rest, Sight};
use crate::scan::blocks::{BlocksAhead, number_in};
use crate::scan::piece::Piece;
use crate::slice::SharedMemtable;
use crate::store::Inner;
use crate::table::block::{Around, Block};
use crate::table::version::{Run, Table};
use crate::types::SliceId;

/// Rows of a memtable at a time: at first, as many scans end with the first key or soon after, and then, each time twice as many as
/// before, at most.
pub const ROWS_AT_FIRST: usize = 16;
const ROWS_AT_ONCE: usize = 256;

/// A memtable or a run, on the way through it.
pub struct Source {
    pub slice: SliceId,
    /// What was fetched and not gone over yet.
    pub piece: Piece,
    pub from: From,
    /// Of a run.
    pub blocks: BlocksAhead,
}

/// What comes behind a source's piece.
pub enum From {
    Memtable {
        memtable: SharedMemtable,
        start: Bound<Bytes>,
        /// Where it goes on, once it has begun at `start`.
        rest: Option<Rest>,
        rows_at_once: usize,
    },
    /// Tables still to come are before (backward) or after `table`; `block` is the next one of it.
    Run {
        run: Arc<Run>,
        table: usize,
        block: Option<usize>,
        start: Bound<Bytes>,
    },
    Exhausted,
}

impl Source {
    /// Fetches the next piece of a memtable, which may be empty. Says how many rows it went over that are not in it.
    pub fn feed_from_memtable(&mut self, end: &Bound<Bytes>, backward: bool, sight: Sight) -> u32 {
        let From::Memtable { memtable, start, rest, rows_at_once } = &mut self.from else { return 0 };
        let range = (as_slice(start), as_slice(end));
        let rows = std::mem::replace(rows_at_once, (2 * *rows_at_once).min(ROWS_AT_ONCE));
        let collected = lock(memtable).collect(range, rest.as_ref(), backward, sight, rows);
        (self.piece, *rest) = (collected.piece, collected.rest);
        if rest.is_none() {
            self.from = From::Exhausted;
        }
        collected.left_out as u32
    }

    /// Fetches the next piece of a run, which may be empty, if its block is in the cache.
    pub fn feed_from_cache(&mut self, store: &Inner, end: &Bound<Bytes>, backward: bool) -> bool {
        let From::Run { run, table, block, start } = &self.from else { return true };
        let current = &run.tables()[*table];
        let Some(head) = current.head() else { return false };
        let Some((number, last)) = number_in(current, &head, *block, start, backward) else { return false };
        let (offset, _) = head.index.place(number);
        let Some(found) = store.cached_block(current, offset) else { return false };
        // What does not parse is told of by who waits for it.
        self.take_block(&found, (number, last), end, backward).is_ok()
    }

    /// Takes what lies within bounds of block `number` of a run, whose table ends with block `last`, and goes on behind it.
    pub fn take_block(
        &mut self,
        found: &Block,
        (number, last): (usize, usize),
        end: &Bound<Bytes>,
        backward: bool,
    ) -> Result<(), StoreError> {
        let From::Run { run, table, start, .. } = &self.from else { return Ok(()) };
        let current = &run.tables()[*table];
        let (first, end) = (as_slice(start), as_slice(end));
        let (lower, upper) = if backward { (end, first) } else { (first, end) };
        let (lower, is_cut) = within_table(lower, current);
        let (piece, around) = found
            .entries_between(lower, upper, backward)
            .map_err(|_| damaged(current, "a block's entries do not parse"))?;
        self.piece = piece;
        match (backward, around) {
            // What follows lies past the end.
            (false, Around { above: true, .. }) => self.from = From::Exhausted,
            (true, Around { below: true, .. }) if !is_cut => self.from = From::Exhausted,
            // What is before in this table is no part of it any more.
            (true, Around { below: true, .. }) => self.from.advance(0, last, backward),
            _ => self.from.advance(number, last, backward),
        }
        Ok(())
    }
}

impl From {
    /// A memtable, from `start` on.
    pub fn memtable(memtable: &SharedMemtable, start: &Bound<Bytes>) -> Self {
        let (memtable, start) = (memtable.clone(), start.clone());
        Self::Memtable { memtable, start, rest: None, rows_at_once: ROWS_AT_FIRST }
    }

    /// A run, from its first table that may hold keys from `start` on.
    pub fn run(run: &Arc<Run>, start: &Bound<Bytes>, backward: bool) -> Option<Self> {
        let tables = run.tables();
        let table = match start {
            Bound::Unbounded if backward => tables.len().checked_sub(1)?,
            Bound::Unbounded => 0,
            Bound::Included(key) | Bound::Excluded(key) => run.table_from(key, backward)?,
        };
        (table < tables.len()).then(|| Self::Run {
            run: Arc::clone(run),
            table,
            block: None,
            start: start.clone(),
        })
    }

    /// Goes on to what follows block `number` of a run; `last` is the number of its table's last block.
    pub fn advance(&mut self, number: usize, last: usize, backward: bool) {
        let Self::Run { run, table, block, .. } = self else { return };
        *block = if backward { number.checked_sub(1) } else { Some(number + 1).filter(|&n| n <= last) };
        if block.is_none() {
            let next = if backward { table.checked_sub(1) } else { Some(*table + 1) };
            match next.filter(|&next| next < run.tables().len()) {
                Some(next) => *table = next,
                None => *self = Self::Exhausted,
            }
        }
    }
}

/// A lower bound within what `table` is in charge of (its blocks may hold keys before that), and whether that is
/// narrower.
pub fn within_table<'a>(lower: Bound<&'a [u8]>, table: &'a Table) -> (Bound<&'a [u8]>, bool) {
    let min_key: &[u8] = &table.meta.min_key;
    match lower {
        Bound::Included(key) | Bound::Excluded(key) if key >= min_key => (lower, false),
        _ => (Bound::Included(min_key), true),
    }
}

pub fn as_slice(bound: &Bound<Bytes>) -> Bound<&[u8]> {
    match bound {
        Bound::Included(key) => Bound::Included(key),
        Bound::Excluded(key) => Bound::Excluded(key),
        Bound::Unbounded => Bound::Unbounded,
    }
}
