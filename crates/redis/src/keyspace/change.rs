//! What a command writes: collected first, then written in one piece.
//!
//! Outside of a transaction the operations go straight into the node's batch. Inside of EXEC they are kept as
//! they are, so that the commands that follow read them ([`super::overlay`]); EXEC writes all of them at its end.

use std::sync::Arc;

use bytes::Bytes;
use pumice_kv::{Entry, LargeRef, Stored, VALUE_BYTES_MAX};
use pumice_node::{NodeBatch, Place};
use smallvec::SmallVec;

use super::head::{Collection, HINT_MANY, Type};
use super::key::{HeadKey, RawKey, Space, element_key};
use super::ranks::Move;

/// The value of a string: bytes, or what was streamed to flash.
#[derive(Clone, Debug)]
pub enum StringValue<'a> {
    /// Bytes to be stored.
    Bytes(&'a [u8]),
    /// Pieces already on flash.
    Large(&'a Arc<LargeRef>),
}

impl<'a> StringValue<'a> {
    /// The value of a stored string, to be stored again under the same key.
    pub fn of(entry: &'a Entry) -> Self {
        match &entry.large {
            Some(large) => Self::Large(large),
            None => Self::Bytes(&entry.value),
        }
    }

    /// Length in bytes.
    pub fn len(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::Large(large) => large.len(),
        }
    }

    /// True for the empty string.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// One operation, owned.
#[derive(Clone, Debug)]
pub(super) enum Op {
    /// `is_new`: nothing is stored under the key before it, nor was in the same transaction. `again`: the value is that of what is
    /// stored there.
    Put {
        place: Place,
        key: RawKey,
        tag: u8,
        expire_ms: u64,
        value: Value,
        is_new: bool,
        again: Option<Box<Stored>>,
    },
    Delete {
        place: Place,
        key: RawKey,
    },
    Retire {
        place: Place,
        prefix: RawKey,
    },
    Tally {
        place: Place,
        space: Space,
        delta: i64,
    },
}

/// A value to be stored, owned.
#[derive(Clone, Debug)]
pub(super) enum Value {
    Bytes(Bytes),
    Large(Arc<LargeRef>),
}

/// The writes of one command, made by [`crate::context::Ctx::change`] and written by
/// [`crate::context::Ctx::commit`].
#[derive(Default)]
pub struct Change {
    /// Small operations outside of a transaction.
    pub(super) batch: NodeBatch,
    /// Everything inside of a transaction; outside, only values that must be written in pieces first.
    pub(super) ops: Vec<Op>,
    /// What the operations of a transaction take in memory.
    pub(super) ops_bytes: usize,
    pub(super) in_transaction: bool,
    pub(super) touched: SmallVec<[(u32, SmallVec<[u8; 40]>); 1]>,
    pub(super) note_touched: bool,
    /// What came into an order and went from it, where somebody counts it.
    pub(super) moves: Vec<Move>,
    pub(super) note_moves: bool,
}

impl Change {
    /// True when nothing is to be written.
    pub fn is_empty(&self) -> bool {
        self.batch.is_empty() && self.ops.is_empty()
    }

    /// Bytes that are to be written in one batch: outside of a transaction, which is one batch however long.
    pub fn bytes(&self) -> usize {
        // Outside of a transaction, `ops` holds long values alone: few.
        let long = self.ops.iter().filter(|_| !self.in_transaction).map(|op| match op {
            Op::Put { value: Value::Bytes(bytes), .. } => bytes.len(),
            _ => 0,
        });
        self.batch.bytes() + long.sum::<usize>()
    }

    /// Bytes that a transaction's command keeps in memory until it is done.
    pub(crate) fn kept_bytes(&self) -> usize {
        self.ops_bytes
    }

    pub(super) fn keep(&mut self, op: Op) {
        self.ops_bytes += size_of::<Op>()
            + match &op {
                Op::Put { key, value: Value::Bytes(bytes), .. } => key.len() + bytes.len(),
                Op::Put { key, .. } | Op::Delete { key, .. } => key.len(),
                Op::Retire { prefix, .. } => prefix.len(),
                Op::Tally { .. } => 0,
            };
        self.ops.push(op);
    }

    /// Adds element `field`, which is not there, to `collection`. Give each field at most once per change.
    pub fn add_element(&mut self, collection: &Collection, sub: u8, field: &[u8], value: &[u8]) {
        self.store_element(collection, sub, field, value, true);
    }

    /// Sets element `field` of `collection`, there or not, to `value`. Give each field at most once per change.
    pub fn put_element(&mut self, collection: &Collection, sub: u8, field: &[u8], value: &[u8]) {
        self.store_element(collection, sub, field, value, false);
    }

    fn store_element(&mut self, collection: &Collection, sub: u8, field: &[u8], value: &[u8], is_new: bool) {
        let key = element_key(collection.key.space(), collection.id, sub, field);
        let tag = collection.kind.tag();
        self.store(collection.elements, &key, tag, 0, &StringValue::Bytes(value), is_new);
    }

    /// Removes element `field` of `collection`, there or not.
    pub fn delete_element(&mut self, collection: &Collection, sub: u8, field: &[u8]) {
        let key = element_key(collection.key.space(), collection.id, sub, field);
        self.delete(collection.elements, &key);
    }

    /// Says that `field` came into an order (1), or went from it (-1): beside the element that is added or deleted.
    pub fn note_move(&mut self, collection: &Collection, sub: u8, field: &[u8], by: i8) {
        if self.note_moves {
            self.moves.push((element_key(collection.key.space(), collection.id, sub, field), by));
        }
    }

    /// Stores the head of `collection` as it now is; an empty collection's key is removed. Call it last, once,
    /// in each command that changed the collection in any way: watchers of the key learn of it here. The
    /// head itself is written only if `head_changed` (count, ends or hints differ), or the collection is new.
    pub fn put_collection(&mut self, collection: &mut Collection, head_changed: bool) {
        self.touch(&collection.key);
        if collection.count == 0 {
            if !collection.is_new {
                self.delete_head(&collection.key, collection.expire_ms);
            }
            return;
        }
        // As in Redis, where something is added, or set in a hash: what shrinks stays as it is, though the limit was lowered since.
        let may_grow = match collection.kind {
            Type::Hash => collection.count >= collection.stored_count,
            _ => collection.count > collection.stored_count,
        };
        if may_grow && collection.count > collection.compact.entries {
            collection.hints |= HINT_MANY;
        }
        if !head_changed && !collection.is_new && collection.hints == collection.stored_hints {
            return;
        }
        collection.stored_hints = collection.hints;
        let (value, len) = collection.encode();
        let (key, tag) = (&collection.key, collection.kind.tag());
        let (value, is_new) = (StringValue::Bytes(&value[..len]), collection.is_new);
        self.store(key.place, key.raw(), tag, collection.expire_ms, &value, is_new);
        if is_new {
            self.count_head(key, None, Some(collection.expire_ms));
            collection.is_new = false;
        }
    }

    /// Sets a string. `was`: the expiry of the head of any type, live or expired, that is being replaced (its
    /// elements are the caller's to remove, with [`crate::context::Ctx::erase_elements`]); `None`: there is none.
    pub fn put_string(&mut self, key: &HeadKey, expire_ms: u64, value: &StringValue<'_>, was: Option<u64>) {
        self.put_head(key, Type::String.tag(), expire_ms, value, was);
    }

    /// Removes the head of `key`, which must be there and expire at `was`. Elements are the
    /// caller's to remove.
    pub fn delete_head(&mut self, key: &HeadKey, was: u64) {
        self.touch(key);
        self.delete(key.place, key.raw());
        self.count_head(key, Some(was), None);
    }

    /// [`Change::delete_head`] of one whose time is over: that it goes is no change to who watches it, who has seen that it
    /// had expired, or sees at EXEC that it has.
    pub fn delete_expired_head(&mut self, key: &HeadKey, was: u64) {
        self.delete(key.place, key.raw());
        self.count_head(key, Some(was), None);
    }

    /// Stores a head of any type as raw bytes: RENAME, EXPIRE and such. `was` as in [`Change::put_string`].
    pub(crate) fn put_head(
        &mut self,
        key: &HeadKey,
        tag: u8,
        expire_ms: u64,
        value: &StringValue<'_>,
        was: Option<u64>,
    ) {
        self.touch(key);
        self.store(key.place, key.raw(), tag, expire_ms, value, was.is_none());
        self.count_head(key, was, Some(expire_ms));
    }

    /// What is written from here on changes nothing that a client could see: watchers are not told.
    pub(crate) fn go_unseen(&mut self) {
        self.note_touched = false;
    }

    /// Tells watchers of `key` that it changed.
    pub fn touch(&mut self, key: &HeadKey) {
        let database = key.database as u32;
        // To be told twice does no harm; a look at all that a long command touched would.
        let is_last = |(d, k): &(u32, SmallVec<[u8; 40]>)| *d == database && k[..] == *key.user();
        if self.note_touched && !self.touched.last().is_some_and(is_last) {
            self.touched.push((database, SmallVec::from_slice(key.user())));
        }
    }

    pub(crate) fn put(&mut self, place: Place, key: &[u8], tag: u8, expire_ms: u64, value: &StringValue<'_>) {
        self.store(place, key, tag, expire_ms, value, false);
    }

    /// Puts a key, under which nothing is stored if it `is_new`, nothing expired either.
    fn store(
        &mut self,
        place: Place,
        key: &[u8],
        tag: u8,
        expire_ms: u64,
        value: &StringValue<'_>,
        is_new: bool,
    ) {
        let value = match value {
            StringValue::Bytes(bytes) if !self.in_transaction && bytes.len() <= VALUE_BYTES_MAX => {
                self.batch.put(place, key, tag, expire_ms, bytes);
                None
            }
            StringValue::Large(large) if !self.in_transaction => {
                self.batch.put_large(place, key, tag, expire_ms, large);
                None
            }
            StringValue::Bytes(bytes) => Some(Value::Bytes(Bytes::copy_from_slice(bytes))),
            StringValue::Large(large) => Some(Value::Large(Arc::clone(large))),
        };
        if let Some(value) = value {
            let key = RawKey::from_slice(key);
            self.keep(Op::Put { place, key, tag, expire_ms, value, is_new, again: None });
        } else if is_new {
            self.batch.of_new_key(place);
        }
    }

    pub(crate) fn delete(&mut self, place: Place, key: &[u8]) {
        if self.in_transaction {
            self.keep(Op::Delete { place, key: RawKey::from_slice(key) });
        } else {
            self.batch.delete(place, key);
        }
    }

    pub(crate) fn retire(&mut self, place: Place, prefix: &[u8]) {
        if self.in_transaction {
            self.keep(Op::Retire { place, prefix: RawKey::from_slice(prefix) });
        } else {
            self.batch.retire(place, prefix);
        }
    }

    /// Keeps count of the keys of a space, and of those that expire. `was` and `is`: when the head expired before
    /// and expires now, 0 for never, `None` for no head.
    pub(super) fn count_head(&mut self, key: &HeadKey, was: Option<u64>, is: Option<u64>) {
        let keys = i64::from(is.is_some()) - i64::from(was.is_some());
        if keys != 0 {
            self.tally(key.place, key.space(), keys);
        }
        let expires = |at: Option<u64>| i64::from(at.is_some_and(|at| at != 0));
        if expires(is) != expires(was) {
            self.tally(key.place, key.space().expiring(), expires(is) - expires(was));
        }
    }

    pub(super) fn tally(&mut self, place: Place, space: Space, delta: i64) {
        if self.in_transaction {
            self.keep(Op::Tally { place, space, delta });
        } else {
            self.batch.tally(place, space.0, delta);
        }
    }
}
