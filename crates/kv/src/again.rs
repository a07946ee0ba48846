//! A version that is put again under its key as it is, with another expiry.
//!
//! Sessions and caches are touched far more often than they are written. To write a value of 8 KiB again for each touch would wear the
//! flash, and so would reading it first take time. So a value in a record of its own stays there: what is written is a record of some
//! tens of bytes that names the place (`docs/format/kv-record.md`, kind 8), and the new version points where the old one did.
//!
//! 1. The place must be one that a crash leaves where it is, and with what it holds: of a version in key tables, of one that was moved
//!    or put again before, or that is durable. Of others the value is written again.
//! 2. Cleaning moves values. A version is put again only if, under its slice's lock, the place is still that of the key's newest version
//!    and no victim's: between a moved record's number and its redirection nobody else may point at the old place. Who cannot, waits,
//!    looks up again, and writes the value if it must.
//! 3. Nothing dies by it. The new version counts as one that has told the heap of what it shadows; when it goes, its record dies, once.
//!
//! What cleaning moves later has the expiry of the version that points at it, not that of the record.
//!
//! (Rejected: a look-up of the place under the lock, for what is put again by its key alone. It may need flash.)

use std::sync::Arc;

use bytes::Bytes;
use pumice_segment::Durability;

use crate::batch::{Batch, Op};
use crate::entry::{Body, KeyEntry};
use crate::errors::{StoreError, WriteError};
use crate::large::LargeRef;
use crate::record::{self, ValuePlace};
use crate::slice::{Slice, key_hash};
use crate::store::{Inner, Store};
use crate::types::{Entry, Meta, Peek, Seq, SliceId};

/// A key's newest version, to be put again: see [`Batch::put_again`].
#[derive(Clone, Debug)]
pub struct Stored {
    meta: Meta,
    /// The slice's, before the version was looked up.
    pub(crate) epoch: u64,
    pub(crate) value: StoredValue,
}

#[derive(Clone, Debug)]
pub(crate) enum StoredValue {
    /// It stays where it is.
    InPlace(ValuePlace),
    /// It is small, or too new to be named by its place.
    Whole(Bytes),
    Large(Arc<LargeRef>),
}

impl Stored {
    /// All besides the value.
    pub fn meta(&self) -> Meta {
        self.meta
    }

    /// Whether the value itself is not written again.
    pub fn is_in_place(&self) -> bool {
        matches!(self.value, StoredValue::InPlace(_))
    }

    fn whole(entry: Entry, epoch: u64) -> Self {
        let value_len = entry.value_len();
        let Entry { tag, expire_ms, seq, value, large } = entry;
        let value = large.map_or(StoredValue::Whole(value), StoredValue::Large);
        Self { meta: Meta { tag, expire_ms, value_len, seq }, epoch, value }
    }
}

/// A record of a batch that puts a version again.
#[derive(Clone, Debug)]
pub(crate) struct Again {
    /// Its number in the batch.
    pub op: usize,
    /// The version.
    pub seq: Seq,
    /// The slice's, before the version was looked up.
    pub epoch: u64,
}

impl Store {
    /// The key's newest version to be put again, if memory knows all that it takes.
    pub fn peek_stored(&self, slice: SliceId, key: &[u8]) -> Peek<Stored> {
        let inner = &*self.inner;
        let (epoch, found, version) = {
            let mut state = inner.slice(slice);
            let (hash, epoch) = (key_hash(key), state.epoch);
            // What is short is put again whole, and need not be looked for where it lies.
            if let Some(row) = state.rows.get(hash, key)
                && row.value.bytes().len() <= inner.inline_max
            {
                inner.counters.row_hits.add(1);
                return Peek::Found(Stored::whole(row.to_entry(), epoch));
            }
            (epoch, state.in_memtables(hash, key), state.version.clone())
        };
        let found = match found {
            Some(found) => found,
            None => match inner.peek_tables(&version, key) {
                Peek::Found(found) => found,
                Peek::Absent => return Peek::Absent,
                Peek::NeedsFlash(hint) => return Peek::NeedsFlash(hint),
            },
        };
        match inner.without_reading(&found, epoch) {
            Some(stored) => Peek::Found(stored),
            None => self.peek(slice, key).map(|entry| Stored::whole(entry, epoch)),
        }
    }

    /// The key's newest version to be put again.
    ///
    /// # Errors
    /// As [`Store::get`].
    pub async fn get_stored(&self, slice: SliceId, key: &[u8]) -> Result<Option<Stored>, StoreError> {
        let inner = &*self.inner;
        // Before the look-up: what is sealed after that may hold a newer one.
        let epoch = inner.slice(slice).epoch;
        let Some(found) = inner.find(slice, key).await? else { return Ok(None) };
        if let Some(stored) = inner.without_reading(&found, epoch) {
            return Ok(Some(stored));
        }
        Ok(self.get(slice, key).await?.map(|entry| Stored::whole(entry, epoch)))
    }
}

impl Inner {
    /// What was found, if its value lies beside the key or stays where it is.
    fn without_reading(&self, found: &KeyEntry, epoch: u64) -> Option<Stored> {
        let value = match &found.body {
            // A copy: it lies among others.
            Body::Inline(value) if !found.large => StoredValue::Whole(Bytes::copy_from_slice(value)),
            _ => StoredValue::InPlace(self.place_to_keep(found)?),
        };
        Some(Stored { meta: found.meta(), epoch, value })
    }

    /// Where the value of a version is, if that may be named anew.
    fn place_to_keep(&self, found: &KeyEntry) -> Option<ValuePlace> {
        let Body::Record(ptr) = found.body else { return None };
        // Others may yet go, or go elsewhere.
        let is_durable =
            || self.options.durability == Durability::Always && self.heap.durable().is_open(found.seq);
        if found.large || !(found.on_flash || is_durable()) {
            return None;
        }
        let ptr = self.place_of(ptr);
        let value_len = u32::try_from(found.value_len).ok()?;
        (!self.heap.is_being_emptied(ptr.addr.segment())).then_some(ValuePlace { ptr, value_len })
    }

    /// Whether what a batch puts again is what its keys have, and where they have it. `slice` finds one that is locked.
    pub fn is_current<'a>(&self, batch: &Batch, slice: impl Fn(SliceId) -> &'a Slice) -> bool {
        batch.lists_are_current(&slice)
            && batch.again.iter().all(|again| {
                let op = &batch.ops[again.op];
                self.is_as_found(again, op, &batch.buf, slice(op.slice))
            })
    }

    /// Whether a version that is put again is the newest still, and its value is not about to go elsewhere.
    fn is_as_found(&self, again: &Again, op: &Op, buf: &[u8], slice: &Slice) -> bool {
        let place =
            (op.kind == record::PUT_AGAIN).then(|| record::decode_value_place(op.value(buf))).flatten();
        slice.is_newest(Some(again.epoch), op.key(buf), Some(again.seq))
            && !place.is_some_and(|place| self.heap.is_being_emptied(place.ptr.addr.segment()))
    }

    /// The batch with what it puts again as the keys have it now, if that is not what was found.
    pub async fn renewed(self: &Arc<Self>, batch: &Batch) -> Result<Option<Batch>, WriteError> {
        let mut renewed = None;
        self.renew_lists(batch, &mut renewed).await?;
        let store = Store { inner: self.clone() };
        for (at, again) in batch.again.iter().enumerate() {
            let op = &batch.ops[again.op];
            if self.is_as_found(again, op, &batch.buf, &self.slice(op.slice)) {
                continue;
            }
            let key = op.key(&batch.buf);
            let stored = store.get_stored(op.slice, key).await;
            let stored = stored.map_err(|error| WriteError::Unreadable(Box::new(error)))?;
            let stored = stored.ok_or_else(|| WriteError::Gone(self.show_key(key)))?;
            renewed.get_or_insert_with(|| batch.clone()).renew(at, &stored);
        }
        Ok(renewed)
    }
}
