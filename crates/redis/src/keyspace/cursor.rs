//! SCAN cursors. Keys lie in order, not by hash, and a cursor is only a number, so the server remembers which
//! key each cursor it gave out stands for.
//!
//! The table is bounded: the cursors go first that were given out longest ago. A cursor that is not known any more (or never was, or is
//! from before a restart) starts the scan over: the client sees some keys twice, which SCAN allows, and still
//! misses none that was there throughout.

use std::collections::BTreeMap;
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
    /// What each stands for, and when it was given out last.
    by_cursor: HashMap<u64, (Bytes, u64)>,
    /// Cursors by when they were given out last.
    by_time: BTreeMap<u64, u64>,
    /// Rises with every cursor given out.
    time: u64,
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
        let table = &mut *lock(&self.table);
        table.time += 1;
        // Below 2^53: some clients keep cursors in doubles.
        let mut cursor = (stable_hash64(0x5CA9, resume) >> 12).max(1);
        while let Some((known, given)) = table.by_cursor.get_mut(&cursor) {
            if known == resume {
                table.by_time.remove(given);
                table.by_time.insert(table.time, cursor);
                *given = table.time;
                return cursor;
            }
            cursor += 1;
        }
        while table.by_time.len() >= CURSORS_MAX || table.bytes + resume.len() > BYTES_MAX {
            let Some((_, oldest)) = table.by_time.pop_first() else { break };
            if let Some((key, _)) = table.by_cursor.remove(&oldest) {
                table.bytes -= key.len();
            }
        }
        table.bytes += resume.len();
        table.by_time.insert(table.time, cursor);
        table.by_cursor.insert(cursor, (Bytes::copy_from_slice(resume), table.time));
        cursor
    }

    /// What `cursor` stands for, if it begins with `prefix` (what is being scanned).
    pub fn load(&self, cursor: u64, prefix: &[u8]) -> Option<Bytes> {
        let table = lock(&self.table);
        table.by_cursor.get(&cursor).map(|(key, _)| key).filter(|key| key.starts_with(prefix)).cloned()
    }
}
