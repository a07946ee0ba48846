//! SCAN cursors. Keys lie in order, not by hash, and a cursor is only a number, so the server remembers which
//! key each cursor it gave out stands for.
//!
//! The table is bounded: the oldest cursors go first. A cursor that is not known any more (or never was, or is
//! from before a restart) starts the scan over: the client sees some keys twice, which SCAN allows, and still
//! misses none that was there throughout.

use std::collections::VecDeque;
use std::sync::Mutex;

use bytes::Bytes;
use pumice_base::hash::{HashMap, stable_hash64};
use pumice_base::sync::lock;

/// Cursors remembered.
const CURSORS_MAX: usize = 65_536;
/// Bytes of keys remembered with them.
const BYTES_MAX: usize = 8 << 20;

#[derive(Default)]
struct Table {
    by_cursor: HashMap<u64, Bytes>,
    order: VecDeque<u64>,
    bytes: usize,
}

/// The cursors that this server gave out.
#[derive(Default)]
pub struct Cursors {
    table: Mutex<Table>,
}

impl Cursors {
    /// The cursor that stands for `resume`: the first key (of whatever is scanned) not yet answered. Give all
    /// that names the place: a cursor of one collection must mean nothing to another.
    pub fn save(&self, resume: &[u8]) -> u64 {
        let mut table = lock(&self.table);
        // Below 2^53: some clients keep cursors in doubles.
        let mut cursor = (stable_hash64(0x5CA9, resume) >> 12).max(1);
        while let Some(known) = table.by_cursor.get(&cursor) {
            if known == resume {
                return cursor;
            }
            cursor += 1;
        }
        while table.order.len() >= CURSORS_MAX || table.bytes + resume.len() > BYTES_MAX {
            let Some(oldest) = table.order.pop_front() else { break };
            if let Some(key) = table.by_cursor.remove(&oldest) {
                table.bytes -= key.len();
            }
        }
        table.bytes += resume.len();
        table.order.push_back(cursor);
        table.by_cursor.insert(cursor, Bytes::copy_from_slice(resume));
        cursor
    }

    /// What `cursor` stands for, if it begins with `prefix` (what is being scanned).
    pub fn load(&self, cursor: u64, prefix: &[u8]) -> Option<Bytes> {
        let table = lock(&self.table);
        table.by_cursor.get(&cursor).filter(|key| key.starts_with(prefix)).cloned()
    }
}
