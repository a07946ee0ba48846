//! The value of a version that was looked up.
//!
//! A place does not say which life of its segment it means. Who looked it up and then waited, without a pin, says how many lives the
//! heap had given out when it was looked up, under the slice's lock: whatever was named then lies in a segment of a lower one.
//! Rejected: a pin for each look-up, which takes the heap's table lock twice.

use std::sync::Arc;

use bytes::Bytes;
use pumice_segment::{ReadError, Record, RecordPtr};

use crate::entry::{Body, KeyEntry};
use crate::errors::StoreError;
use crate::large::LargeRef;
use crate::large::again::Origin;
use crate::record;
use crate::store::{Inner, entry_of, value_in};
use crate::types::{Entry, SliceId};

impl Inner {
    /// A version with its value, for those who hold a pin from before the look-up, or look it up again before anything comes of it.
    pub async fn value_of(&self, slice: SliceId, key: &[u8], found: &KeyEntry) -> Result<Entry, StoreError> {
        self.value_since(slice, key, found, u64::MAX).await
    }

    /// A version with its value, of one that was looked up at `lives`.
    pub async fn value_since(
        &self,
        slice: SliceId,
        key: &[u8],
        found: &KeyEntry,
        lives: u64,
    ) -> Result<Entry, StoreError> {
        let value = match &found.body {
            Body::Tombstone => Bytes::new(),
            Body::Inline(value) => Bytes::copy_from_slice(value),
            Body::Record(ptr) => self.read_value(slice, key, *ptr, lives).await?,
        };
        if !found.large {
            return Ok(entry_of(found, value));
        }
        let mut large = LargeRef::decode(&value).ok_or_else(|| StoreError::Damaged {
            what: format!("the list of pieces of {}", self.show_key(key)),
            ptr: found.record().unwrap_or_default(),
            reason: "lengths do not add up".into(),
        })?;
        large.owner = Some((slice, Bytes::copy_from_slice(key)));
        large.origin = Some(Origin::Read { seq: found.seq, epoch: None });
        let mut entry = entry_of(found, Bytes::new());
        entry.large = Some(Arc::new(large));
        Ok(entry)
    }

    /// Reads the value at a place that was looked up at `lives`. Reused since, it may hold a later version of the same key, of the
    /// same length: nothing that is read there tells, and the type and the expiry are those of the version that was found.
    pub async fn read_value(
        &self,
        slice: SliceId,
        key: &[u8],
        ptr: RecordPtr,
        lives: u64,
    ) -> Result<Bytes, StoreError> {
        let ptr = self.place_of(ptr);
        let of_key = |source| StoreError::Read { what: self.show_key(key), source };
        let record = match self.heap.peek(ptr) {
            Some(record) => record,
            None => {
                self.counters.value_reads.add(1);
                self.heap.read_flash(ptr).await.map_err(of_key)?
            }
        };
        if self.heap.was_opened_since(ptr, lives) {
            return Err(of_key(ReadError::Stale { ptr }));
        }
        self.value_in_record(slice, key, ptr, &record)
    }

    /// The value in a record that was read for `key`.
    pub fn value_in_record(
        &self,
        slice: SliceId,
        key: &[u8],
        ptr: RecordPtr,
        record: &Record,
    ) -> Result<Bytes, StoreError> {
        let owner = record::decode_key(&record.payload);
        let matches = owner
            .as_ref()
            .is_some_and(|owner| owner.slice == slice && record.payload[owner.key.clone()] == *key);
        match value_in(&record.payload, key) {
            Some(value) if matches => Ok(value),
            _ => Err(StoreError::Damaged {
                what: self.show_key(key),
                ptr,
                reason: "the record there belongs to another key".into(),
            }),
        }
    }
}
