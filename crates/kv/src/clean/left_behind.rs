//! Lists of large values that only a merge will find dead, whose records cleaning is about to let go.
//!
//! 1. The pieces of a value that is gone are told dead by its list, which may lie in a record: at once where memory knows the
//!    version that was shadowed, else when a merge comes to it (`shadow.rs`). No key points at the record by then, so
//!    cleaning moves it nowhere, and what is written in its place tells nobody where the pieces are.
//! 2. So cleaning, which has the list in hand, looks whether a table still holds the version that points at it and nobody was
//!    told. If so, it buries the value itself, once the segment is released.
//!
//! (Rejected: to bury every list that is pointed at no more. Most of them were buried when they were overwritten, and what is
//! counted twice makes segments look worth cleaning that are not.)

use bytes::Bytes;
use pumice_base::sync::lock;
use pumice_segment::Replayed;

use crate::cache::BlockPlace;
use crate::entry::{Body, KeyEntry};
use crate::large::pieces::DeadLarge;
use crate::record;
use crate::slice::key_hash;
use crate::store::Inner;
use crate::table::filter::filter_hash;
use crate::table::version::Table;

impl Inner {
    /// Those of a victim's records that hold a large value's list alone: a short one lies beside its key, too.
    pub fn lists_in_records(&self, records: &[Replayed]) -> Vec<Replayed> {
        let is_list = |record: &&Replayed| {
            record.kind == record::PUT_LARGE
                && record::decode_key(&record.payload).is_some_and(|owner| owner.rest.len() > self.inline_max)
        };
        records.iter().filter(is_list).cloned().collect()
    }

    /// The version of a key whose list lies in `record` with the list beside it, if it is gone and nobody was told so.
    pub async fn left_behind(&self, record: &Replayed) -> Option<DeadLarge> {
        let owner = record::decode_key(&record.payload)?;
        let (id, key) = (owner.slice, &record.payload[owner.key]);
        if usize::from(id.0) >= self.slices.len() {
            return None;
        }
        let hash = key_hash(key);
        // Each version says whether the heap was told that the next older one is dead; the newest is, if its prefix was retired.
        let is_retired = self.is_retired(id, key);
        let (newer, version) = {
            let slice = self.slice(id);
            let memtables = std::iter::once(&slice.active).chain(&slice.sealed);
            let newer = memtables.filter_map(|memtable| lock(memtable).get(hash, key)).next_back();
            (newer, slice.version.clone())
        };
        let mut is_told = newer.map_or(!is_retired, |newer| newer.counted);
        for table in version.covering(key) {
            let Some(found) = self.entry_in(table, key).await else { continue };
            if found.record().map(|ptr| self.place_of(ptr)) == Some(record.ptr) {
                let list = Bytes::copy_from_slice(&record.payload[owner.rest]);
                let entry = KeyEntry { body: Body::Inline(list), ..found };
                return (!is_told).then(|| DeadLarge::new(id, key, entry));
            }
            is_told = found.counted;
        }
        None
    }

    /// What one table says of a key; nothing where it does not read.
    async fn entry_in(&self, table: &Table, key: &[u8]) -> Option<KeyEntry> {
        let place = {
            let head = self.head(table).await.ok()?;
            if !head.may_contain(filter_hash(key)) {
                return None;
            }
            BlockPlace::of(&head, head.index.block_of(key)?)
        };
        self.passing_block(table, place).await.ok()?.get(key).ok()?
    }
}
