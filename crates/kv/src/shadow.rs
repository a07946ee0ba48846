//! Telling the heap early which records an overwrite or a delete has killed.
//!
//! Cleaning is as good as its hints. A merge finds every shadowed version in the end, but by then as much may
//! have been written again as the drive has to spare. So a write of a separated or large value looks its key up in the
//! tables, in memory only, and marks the older record dead at once; the row is then `counted`, which keeps the
//! merge from counting twice. What memory does not know is left to a task that reads key blocks in, as long as
//! all of them fit in the cache; beyond that reading would cost more than it wins.
//!
//! Hints are lost in a crash, and so is `counted` of what is replayed: both sides start over.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pumice_base::sync::lock;
use pumice_reactor::timeout;
use pumice_segment::RecordPtr;

use crate::entry::KeyEntry;
use crate::memtable::{NewBody, NewVersion, RowAt};
use crate::slice::{Slice, key_hash};
use crate::store::Inner;
use crate::types::{Peek, Seq, SliceId};

/// Writes that wait for their shadows to be found; more are left to merges.
const QUEUE_MAX: usize = 4096;
const TICK: Duration = Duration::from_millis(200);

impl Inner {
    /// Marks a record dead that entry `seq` pointed at, unless its segment was released since.
    pub fn mark_dead(&self, ptr: RecordPtr, seq: Seq) {
        let ptr = self.place_of(ptr);
        if !self.was_released(ptr, seq) {
            self.heap.mark_dead(ptr);
        }
    }

    /// Whether the segment of a record that entry `seq` pointed at was released since.
    pub fn was_released(&self, ptr: RecordPtr, seq: Seq) -> bool {
        lock(&self.released_at).get(&ptr.addr.segment().0).is_some_and(|released| *released >= seq)
    }

    /// A moved record has a number from before its segment was released: others were emptied while it waited for one. Its end is to
    /// be told all the same; what pointed at the segment before was written earlier.
    pub fn lies_in_later_life(&self, ptr: RecordPtr, seq: Seq) {
        if let Some(released) = lock(&self.released_at).get_mut(&ptr.addr.segment().0)
            && *released >= seq
        {
            *released = seq - 1;
        }
    }

    /// Finds what a new row of the active memtable shadows, if memory knows.
    pub fn count_shadow(&self, id: SliceId, slice: &mut Slice, key: &[u8], row: RowAt, new: &NewVersion<'_>) {
        // A small value is not looked up; of a large one only the list of its pieces is small.
        if (matches!(new.body, NewBody::Inline(_)) && !new.large) || new.counted {
            return;
        }
        let hash = key_hash(key);
        let shadowed = slice.sealed.iter().find_map(|sealed| lock(sealed).get(hash, key));
        let shadowed = match shadowed {
            Some(shadowed) => Some(shadowed),
            None => match self.peek_tables(&slice.version, key) {
                Peek::Found(shadowed) => Some(shadowed),
                Peek::Absent => None,
                Peek::NeedsFlash(_) => {
                    let mut queue = lock(&self.uncounted);
                    if queue.len() < QUEUE_MAX && self.cache.holds_all() {
                        queue.push_back((id, Bytes::copy_from_slice(key)));
                        drop(queue);
                        self.background.shadow_wanted.notify_one();
                    }
                    return;
                }
            },
        };
        lock(&slice.active).set_counted(row);
        if let Some(shadowed) = shadowed {
            self.bury_shadow(id, key, &shadowed);
        }
    }

    fn bury_shadow(&self, id: SliceId, key: &[u8], shadowed: &KeyEntry) {
        if shadowed.holds_space() {
            self.bury(id, key, shadowed);
        }
    }

    /// Reads what a row shadows and marks it dead, unless the row was sealed meanwhile, or what was read is not what lies below it
    /// any more.
    async fn count_late(&self, id: SliceId, key: &[u8]) {
        let hash = key_hash(key);
        let (epoch, version) = {
            let slice = self.slice(id);
            if lock(&slice.active).uncounted_row(hash, key).is_none() {
                return;
            }
            (slice.epoch, slice.version.clone())
        };
        let Ok(shadowed) = self.find_in_tables(&version, key).await else { return };
        let slice = self.slice(id);
        // Nor if a flush ended that held a version in between, or a merge.
        let was_flushed = !Arc::ptr_eq(&slice.version, &version);
        let is_sealed = || slice.sealed.iter().any(|sealed| lock(sealed).seq_of(hash, key).is_some());
        if slice.epoch != epoch || was_flushed || is_sealed() {
            return;
        }
        let mut active = lock(&slice.active);
        let Some(row) = active.uncounted_row(hash, key) else { return };
        active.set_counted(row);
        drop(active);
        if let Some(shadowed) = shadowed {
            self.bury_shadow(id, key, &shadowed);
        }
    }
}

pub async fn shadow_task(store: Arc<Inner>) {
    while !store.is_closing() {
        let next = lock(&store.uncounted).pop_front();
        match next {
            Some((slice, key)) => store.count_late(slice, &key).await,
            None => {
                let _ = timeout(TICK, store.background.shadow_wanted.notified()).await;
            }
        }
    }
}
