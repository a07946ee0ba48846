//! Reads and writes of one command: [`Ctx`]'s methods over the node.

use std::cell::Cell;
use std::sync::Arc;

use bytes::Bytes;
use pumice_kv::{Entry, Hint, LargeRef, Meta, Peek, VALUE_BYTES_MAX};
use pumice_node::{KeyHash, LatchSet, Node, Place};
use pumice_reactor::join_all;
use smallvec::SmallVec;

use super::change::{Change, Op, Value};
use super::head::{Collection, HINT_NONE_OUTSIDE, Head, StringHead, Type, is_expired};
use super::key::{HeadKey, RawKey, collection_prefix, element_key, latch_hash};
use super::record::RECORD_DRIVE;
use super::unlatched::Look;
use crate::context::Ctx;
use crate::errors::{self, CommandResult, Failure};

/// Held latches of some keys; dropping it lets others at them. Empty within EXEC, which holds all it needs.
#[must_use = "dropping it at once protects nothing"]
pub struct Latched(#[allow(dead_code)] Option<LatchSet>);

/// Collections up to this many elements are removed element by element, larger ones by retiring their prefix:
/// a retired prefix costs the engine memory and a look-up until compaction has dropped its last element.
const ERASE_ONE_BY_ONE_MAX: u64 = 128;
/// The same while so many others are retired that the drive is behind with forgetting them.
const ERASE_ONE_BY_ONE_WHERE_MANY_ARE_RETIRED_MAX: u64 = 4096;

/// So many keys of a command are kept without an allocation.
pub const FEW_KEYS: usize = 16;
/// How many flash reads one command has in flight.
pub const PARALLEL_READS_MAX: usize = 64;
/// Bytes of values up to which a reply is of one moment: a client that takes a longer one slowly must not hold up those who write.
pub const ONE_MOMENT_BYTES_MAX: usize = 4 << 20;
/// Bytes of changes whose buffer is kept for the next.
const SPARE_BYTES_MAX: usize = 64 << 10;

thread_local! {
    /// The memory of a written change, for the next one of the core. Not of each connection: thousands of them may do nothing.
    static SPARE_CHANGE: Cell<Option<Change>> = const { Cell::new(None) };
}

/// An entry that is read from flash.
struct ColdEntry<'k> {
    /// Of those asked for.
    i: usize,
    place: Place,
    key: &'k [u8],
    hint: Hint,
}

impl Ctx {
    /// The user's `key` in the selected database.
    pub fn key(&self, key: &[u8]) -> HeadKey {
        self.key_in(self.session.database, key)
    }

    /// The user's `key` in a database.
    pub fn key_in(&self, database: usize, key: &[u8]) -> HeadKey {
        HeadKey::new(database, self.space_of(database), key, &self.server.node)
    }

    /// Waits until nobody else is between reading and writing any of `keys`, and keeps it so until the result is
    /// dropped. Not to be called again while the first is held: give all keys at once.
    pub async fn latch<'k>(&mut self, keys: impl IntoIterator<Item = &'k [u8]>) -> Latched {
        if self.transaction.is_some() {
            return Latched(None);
        }
        let database = self.session.database;
        let hashes: SmallVec<[KeyHash; 4]> = keys.into_iter().map(|key| latch_hash(database, key)).collect();
        self.latch_hashes(&hashes).await
    }

    /// [`Ctx::latch`] by hash: for keys of other databases.
    pub async fn latch_hashes(&mut self, hashes: &[KeyHash]) -> Latched {
        if self.transaction.is_some() {
            return Latched(None);
        }
        if let Some(set) = self.server.node.latches().try_latch(hashes) {
            return Latched(Some(set));
        }
        let set = self.server.node.latches().latch(hashes).await;
        self.take_time_anew();
        Latched(Some(set))
    }

    /// After a wait: of what expired meanwhile others were told that it is gone.
    pub(super) fn take_time_anew(&mut self) {
        self.now_ms = pumice_reactor::wall_ms();
    }

    /// Waits until no command is between reading and writing anything: for commands over whole databases.
    pub async fn latch_all(&mut self) -> Latched {
        if self.transaction.is_some() {
            return Latched(None);
        }
        let set = self.server.node.latches().latch_all().await;
        self.take_time_anew();
        Latched(Some(set))
    }

    /// The latch of one key if it is free, and its database is where it was when the key was made.
    pub fn try_latch(&self, key: &HeadKey) -> Option<Latched> {
        self.try_latch_hashes(key, &[key.hash()])
    }

    /// [`Ctx::try_latch`] of several keys of one database.
    pub fn try_latch_several<'k>(&self, keys: impl Iterator<Item = &'k HeadKey> + Clone) -> Option<Latched> {
        let hashes: SmallVec<[KeyHash; FEW_KEYS]> = keys.clone().map(HeadKey::hash).collect();
        keys.last().map_or(Some(Latched(None)), |key| self.try_latch_hashes(key, &hashes))
    }

    fn try_latch_hashes(&self, key: &HeadKey, hashes: &[KeyHash]) -> Option<Latched> {
        if self.transaction.is_some() {
            return Some(Latched(None));
        }
        let held = self.server.node.latches().try_latch(hashes)?;
        // Emptied since the key was made: what is written there now would be gone.
        (key.space() == self.space_of(key.database)).then_some(Latched(Some(held)))
    }

    /// What `key` holds; `None` when absent or expired.
    pub async fn head(&mut self, key: &HeadKey) -> Result<Option<Head>, Failure> {
        let entry = self.entry(key.place, key.raw()).await?;
        self.head_of(key, entry)
    }

    /// What the stored `entry` of `key` means; `None` when absent or expired.
    pub fn head_of(&self, key: &HeadKey, entry: Option<Entry>) -> Result<Option<Head>, Failure> {
        let Some(entry) = entry.filter(|entry| !is_expired(entry.expire_ms, self.now_ms)) else {
            return Ok(None);
        };
        match Type::from_tag(entry.tag) {
            Some(Type::String) => Ok(Some(Head::String(StringHead { expire_ms: entry.expire_ms, entry }))),
            Some(kind) => {
                let node = &self.server.node;
                let place = |slot| node.place_of_slot(slot);
                let (expire_ms, seq) = (entry.expire_ms, entry.seq);
                let compact = self.server.settings.compact(kind);
                match Collection::decode(key.clone(), kind, expire_ms, seq, &entry.value, compact, place) {
                    Some(collection) => Ok(Some(Head::Collection(collection))),
                    None => Err(unreadable(key, "its head does not decode")),
                }
            }
            None => Err(unreadable(key, "it has a type of a newer version")),
        }
    }

    /// The collection at `key`; `None` when absent or expired; WRONGTYPE when it is another type.
    pub async fn collection(&mut self, key: &[u8], kind: Type) -> Result<Option<Collection>, Failure> {
        let key = self.key(key);
        of_kind(self.head(&key).await?, kind)
    }

    /// [`Ctx::collection`] for what Redis looks up to read: the statistics count it, whatever the key holds.
    pub async fn collection_to_read(
        &mut self,
        key: &[u8],
        kind: Type,
    ) -> Result<Option<Collection>, Failure> {
        let key = self.key(key);
        let head = self.head(&key).await?;
        self.count_look_up(head.is_some());
        of_kind(head, kind)
    }

    /// The collection at `key`, or a new empty one that is stored when something was put into it. An expired
    /// head in the way is removed by `change`.
    pub async fn collection_or_new(
        &mut self,
        change: &mut Change,
        key: &[u8],
        kind: Type,
    ) -> Result<Collection, Failure> {
        let key = self.key(key);
        let entry = self.entry(key.place, key.raw()).await?;
        let was = entry.as_ref().map(|entry| entry.expire_ms);
        match self.head_of(&key, entry.clone())? {
            Some(Head::Collection(collection)) if collection.kind == kind => Ok(collection),
            Some(_) => Err(errors::WRONG_TYPE.into()),
            None => {
                if let Some(was) = was {
                    self.erase_stored(change, &key, entry).await?;
                    change.delete_expired_head(&key, was);
                }
                Ok(self.new_collection(key, kind))
            }
        }
    }

    /// A new empty collection, to be stored under `key`. Whatever is there now is the caller's to remove
    /// ([`Ctx::erase`]) in the same change.
    pub fn new_collection(&self, key: HeadKey, kind: Type) -> Collection {
        let hints = if kind == Type::List { HINT_NONE_OUTSIDE } else { 0 };
        Collection {
            kind,
            expire_ms: 0,
            id: self.server.node.allocate_id(key.place),
            home: key.slot,
            elements: key.place,
            count: 0,
            stored_count: 0,
            hints,
            stored_hints: hints,
            compact: self.server.settings.compact(kind),
            first: 0,
            end: 0,
            is_new: true,
            seq: 0,
            key,
        }
    }

    /// The value of one element; `None` when absent. Hold the latch.
    pub async fn element(
        &mut self,
        collection: &Collection,
        sub: u8,
        field: &[u8],
    ) -> Result<Option<Bytes>, Failure> {
        match self.element_entry(collection, sub, field).await? {
            Some(entry) => Ok(Some(self.whole_value(collection.elements, &entry).await?)),
            None => Ok(None),
        }
    }

    /// One element; `None` when absent. Hold the latch, or use [`Ctx::read_element`].
    pub(crate) async fn element_entry(
        &mut self,
        collection: &Collection,
        sub: u8,
        field: &[u8],
    ) -> Result<Option<Entry>, Failure> {
        if collection.is_new {
            return Ok(None);
        }
        let key = element_key(collection.key.space(), collection.id, sub, field);
        self.entry(collection.elements, &key).await
    }

    /// Several elements, read from flash side by side. Hold the latch.
    pub(crate) async fn elements<'k>(
        &mut self,
        collection: &Collection,
        sub: u8,
        fields: impl IntoIterator<Item = &'k [u8]>,
    ) -> Result<Vec<Option<Entry>>, Failure> {
        let keys: Vec<(Place, RawKey)> = fields
            .into_iter()
            .map(|field| {
                (collection.elements, element_key(collection.key.space(), collection.id, sub, field))
            })
            .collect();
        if collection.is_new {
            return Ok(vec![None; keys.len()]);
        }
        self.entries(&keys).await
    }

    /// Which of the elements are there; reads no values. Hold the latch.
    pub async fn contains_elements<'k>(
        &mut self,
        collection: &Collection,
        sub: u8,
        fields: impl ExactSizeIterator<Item = &'k [u8]>,
    ) -> Result<Vec<bool>, Failure> {
        if collection.is_new {
            return Ok(vec![false; fields.len()]);
        }
        let key = |field| element_key(collection.key.space(), collection.id, sub, field);
        let keys: Vec<RawKey> = fields.map(key).collect();
        self.contains_keys(collection.elements, &keys).await
    }

    /// Which of `keys` are stored, live or expired; looks at flash side by side where memory does not know.
    pub(crate) async fn contains_keys(
        &mut self,
        place: Place,
        keys: &[RawKey],
    ) -> Result<Vec<bool>, Failure> {
        let mut found = vec![false; keys.len()];
        let mut cold = Vec::new();
        for (i, key) in keys.iter().enumerate() {
            if let Some(pending) = self.transaction.as_ref().and_then(|overlay| overlay.get(key)) {
                found[i] = pending.is_some();
                continue;
            }
            match self.server.node.peek_meta(place, key) {
                Peek::Found(meta) => {
                    self.depend_on(place, key, Some(meta.seq));
                    found[i] = true;
                }
                Peek::Absent => self.depend_on(place, key, None),
                Peek::NeedsFlash(_) => match self.unlatched.meta(&self.server.node, place, key) {
                    Some(meta) => {
                        self.depend_on(place, key, meta.map(|meta| meta.seq));
                        found[i] = meta.is_some();
                    }
                    None => cold.push(i),
                },
            }
        }
        if !cold.is_empty() && self.may_want(cold.len()) {
            let wanted = cold.iter().map(|&i| self.want(place, &keys[i], Look::Meta));
            return wanted.last().map_or(Ok(found), Err);
        }
        for group in cold.chunks(PARALLEL_READS_MAX) {
            let node = self.server.node.clone();
            let looks = group.iter().map(|&i| {
                let (node, key) = (node.clone(), &keys[i]);
                async move { node.get_meta(place, key).await }
            });
            for (&i, result) in group.iter().zip(join_all(looks).await) {
                let meta = result.map_err(|e| store_failure(&e))?;
                self.depend_on(place, &keys[i], meta.map(|meta| meta.seq));
                found[i] = meta.is_some();
            }
        }
        Ok(found)
    }

    /// The length of an element's value in bytes; `None` when absent. Hold the latch.
    pub async fn element_len(
        &mut self,
        collection: &Collection,
        sub: u8,
        field: &[u8],
    ) -> Result<Option<u64>, Failure> {
        if collection.is_new {
            return Ok(None);
        }
        let key = element_key(collection.key.space(), collection.id, sub, field);
        Ok(self.meta(collection.elements, &key).await?.map(|meta| meta.value_len))
    }

    /// One element of the collection at `key`, as of one moment and without the latch. `Err` is WRONGTYPE or a
    /// damaged drive; `Ok(None)`: no such key or no such element. Counted as a look-up of the key. Its place is told with it.
    pub async fn read_element(
        &mut self,
        key: &[u8],
        kind: Type,
        sub: u8,
        field: &[u8],
    ) -> Result<Option<(Place, Entry)>, Failure> {
        self.has_waited = false;
        let mut found = self.collection_to_read(key, kind).await?;
        loop {
            let Some(collection) = found else { return Ok(None) };
            let entry = self.element_entry(&collection, sub, field).await?;
            let element = entry.map(|entry| (collection.elements, entry));
            let is_older = element.as_ref().is_some_and(|(place, entry)| {
                place.drive == collection.key.place.drive && entry.seq <= collection.seq
            });
            if is_older && !self.has_waited {
                return Ok(element);
            }
            // If the key holds another collection by now, there may never have been a moment when it held this element, which
            // was put there under the collection's new key; nor, if it is absent, one without it. Look again.
            self.has_waited = false;
            found = self.collection(key, kind).await?;
            if found.as_ref().is_some_and(|now| now.id == collection.id) {
                return Ok(element);
            }
        }
    }

    /// Starts a set of writes.
    pub fn change(&mut self) -> Change {
        let mut change = SPARE_CHANGE.take().unwrap_or_default();
        change.in_transaction = self.transaction.is_some();
        change.batch.set_rewrites(self.only_rewrites);
        change.note_touched = change.in_transaction || !self.server.node.watches().is_empty();
        change.note_moves = change.in_transaction || !self.server.ranks.is_empty();
        change
    }

    /// Removes what `key` holds, if anything, elements and all; the head too. `true` if a live key was there.
    pub async fn erase(&mut self, change: &mut Change, key: &HeadKey) -> Result<bool, Failure> {
        let entry = self.entry(key.place, key.raw()).await?;
        let Some(stored) = entry else { return Ok(false) };
        let was = stored.expire_ms;
        let live = !is_expired(was, self.now_ms);
        self.erase_stored(change, key, Some(stored)).await?;
        if live {
            change.delete_head(key, was);
        } else {
            change.delete_expired_head(key, was);
        }
        Ok(live)
    }

    /// Removes the elements that the stored `entry` of `key` (live or expired) owns, not the entry itself.
    pub async fn erase_stored(
        &mut self,
        change: &mut Change,
        key: &HeadKey,
        entry: Option<Entry>,
    ) -> CommandResult {
        let Some(entry) = entry else { return Ok(()) };
        let Some(kind) = Type::from_tag(entry.tag).filter(|kind| *kind != Type::String) else {
            return Ok(());
        };
        let node = self.server.node.clone();
        let place = |slot| node.place_of_slot(slot);
        let compact = self.server.settings.compact(kind);
        let (expire_ms, seq) = (entry.expire_ms, entry.seq);
        match Collection::decode(key.clone(), kind, expire_ms, seq, &entry.value, compact, place) {
            Some(collection) => self.erase_elements(change, &collection).await,
            // An unreadable head cannot name its elements; it can still be replaced.
            None => Ok(()),
        }
    }

    /// Removes all elements of `collection`; its head is the caller's.
    pub async fn erase_elements(&mut self, change: &mut Change, collection: &Collection) -> CommandResult {
        if collection.is_new {
            return Ok(());
        }
        let prefix = collection_prefix(collection.key.space(), collection.id);
        let most = if self.server.node.retires_many(collection.elements) {
            ERASE_ONE_BY_ONE_WHERE_MANY_ARE_RETIRED_MAX
        } else {
            ERASE_ONE_BY_ONE_MAX
        };
        if collection.count > most {
            change.retire(collection.elements, &prefix);
            return Ok(());
        }
        // Of a list that was being cut when something ended that, nobody knows how many are left outside.
        let mut left = 2 * most;
        let mut scan = self.scan_prefix(collection.elements, &prefix);
        while let Some((raw, _)) = scan.next_raw(self).await? {
            if left == 0 {
                change.retire(collection.elements, &prefix);
                return Ok(());
            }
            left -= 1;
            change.delete(collection.elements, &raw);
        }
        Ok(())
    }

    /// Writes `change`: visible to all when this returns, and durable before this command's reply goes out.
    pub async fn commit(&mut self, mut change: Change) -> CommandResult {
        self.write_large_values(&mut change).await?;
        if let Some(overlay) = &mut self.transaction {
            overlay.apply(&mut change);
            return self.weigh(0);
        }
        for op in change.ops.drain(..) {
            if let Op::Put { place, key, tag, expire_ms, value: Value::Large(large), is_new, .. } = op {
                change.batch.put_large(place, &key, tag, expire_ms, &large);
                if is_new {
                    change.batch.of_new_key(place);
                }
            }
        }
        let taken = self.server.ranks.take(&change.moves);
        self.write_batch(&change.batch).await?;
        self.server.ranks.give_back(taken, &change.moves);
        for (database, key) in change.touched.drain(..) {
            self.server.node.watches().touch(database, &key);
        }
        self.keep_for_next(change);
        Ok(())
    }

    /// Keeps the memory of a written change for the next, unless it is much.
    fn keep_for_next(&mut self, mut change: Change) {
        if change.batch.bytes() <= SPARE_BYTES_MAX && !change.touched.spilled() {
            change.batch.clear();
            change.ops_bytes = 0;
            change.moves.clear();
            SPARE_CHANGE.set(Some(change));
        }
    }

    /// [`Ctx::commit`] for a change of small values outside of EXEC, if it needs no waiting. `None`: nothing was
    /// written, use [`Ctx::commit`].
    pub fn try_commit(&mut self, mut change: Change) -> Option<CommandResult> {
        if change.in_transaction || !change.ops.is_empty() {
            return None;
        }
        let taken = (!change.moves.is_empty()).then(|| self.server.ranks.take(&change.moves));
        match self.server.node.write_in(&change.batch, &mut self.turn) {
            Ok(gate) => {
                if let Some(taken) = taken {
                    self.server.ranks.give_back(taken, &change.moves);
                }
                self.gate.merge(&gate);
                self.depend_on_spaces();
            }
            Err(error) => {
                // What was refused changed nothing.
                if let Some(taken) = taken {
                    self.server.ranks.give_back(taken, &[]);
                }
                if matches!(error.source, pumice_kv::WriteError::Busy) {
                    self.was_refused = true;
                    return None;
                }
                return Some(Err(refused(&error.source)));
            }
        }
        for (database, key) in change.touched.drain(..) {
            self.server.node.watches().touch(database, &key);
        }
        self.keep_for_next(change);
        Some(Ok(()))
    }

    /// Writes everything that the running EXEC collected.
    pub(crate) async fn commit_transaction(&mut self) -> CommandResult {
        let Some(mut overlay) = self.transaction.take() else { return Ok(()) };
        let mut batch = overlay.batch();
        batch.set_rewrites(self.only_rewrites);
        let taken = self.server.ranks.take(&overlay.moves);
        self.write_batch(&batch).await?;
        self.server.ranks.give_back(taken, &overlay.moves);
        for (database, key) in std::mem::take(&mut overlay.touched) {
            self.server.node.watches().touch(database, &key);
        }
        if let Some(moved) = overlay.moved.take() {
            self.finish_move(moved);
        }
        Ok(())
    }

    async fn write_batch(&mut self, batch: &pumice_node::NodeBatch) -> CommandResult {
        if batch.is_empty() {
            return Ok(());
        }
        let written = self.server.node.write_ready_in(batch, &mut self.turn).await;
        let written = written.map_err(|error| refused(&error.source))?;
        self.gate.merge(&written);
        self.depend_on_spaces();
        Ok(())
    }

    /// Writes the pieces of values too long for one record, so that the change only names them.
    async fn write_large_values(&mut self, change: &mut Change) -> CommandResult {
        for op in &mut change.ops {
            if let Op::Put { place, key, value, .. } = op
                && let Value::Bytes(bytes) = value
                && bytes.len() > VALUE_BYTES_MAX
            {
                let mut writer = self.server.node.large_writer(*place, key);
                let refused = |e: pumice_kv::WriteError| large_refused(&self.server.node, *place, &e);
                writer.push(bytes).await.map_err(refused)?;
                let large = writer.finish().await.map_err(refused)?;
                *value = Value::Large(Arc::new(large));
            }
        }
        Ok(())
    }

    /// The stored entry of any key, live or expired, as this command must see it.
    pub(crate) async fn entry(&mut self, place: Place, key: &[u8]) -> Result<Option<Entry>, Failure> {
        if let Some(pending) = self.transaction.as_ref().and_then(|overlay| overlay.get(key)) {
            return Ok(pending.clone());
        }
        let node = &self.server.node;
        let peeked = match self.peeked.take_if(|(peeked, _)| peeked[..] == *key) {
            Some((_, hint)) => Peek::NeedsFlash(hint),
            None => node.peek(place, key),
        };
        let entry = match peeked {
            Peek::Found(entry) => Some(entry),
            Peek::Absent => None,
            Peek::NeedsFlash(hint) => match self.unlatched.entry(node, place, key) {
                Some(entry) => entry,
                None if self.may_want(1) => return Err(self.want(place, key, Look::Value)),
                None => {
                    self.has_waited = true;
                    node.get_at(place, key, hint).await.map_err(|e| store_failure(&e))?
                }
            },
        };
        self.depend_on(place, key, entry.as_ref().map(|entry| entry.seq));
        Ok(entry)
    }

    /// Several stored entries, read from flash side by side. The first failure is the result.
    pub(crate) async fn entries(&mut self, keys: &[(Place, RawKey)]) -> Result<Vec<Option<Entry>>, Failure> {
        let keys = keys.iter().map(|(place, key)| (*place, &key[..], None));
        self.entries_each(keys).await.into_iter().collect()
    }

    /// Several stored entries, read from flash side by side; each may fail by itself. Who has asked memory for one gives
    /// what it knows.
    pub(crate) async fn entries_each<'k>(
        &mut self,
        keys: impl ExactSizeIterator<Item = (Place, &'k [u8], Option<Hint>)>,
    ) -> Vec<Result<Option<Entry>, Failure>> {
        let mut entries = Vec::with_capacity(keys.len());
        let mut cold: SmallVec<[ColdEntry<'k>; 1]> = SmallVec::new();
        let server = self.server.clone();
        let mut keys = keys.enumerate().map(|(i, (place, key, hint))| {
            let coming = hint.is_none().then(|| server.node.prefetch_index(place, key));
            (i, place, key, hint, coming)
        });
        let (mut next, mut behind) = (keys.next(), keys.next());
        let mut value_bytes = 0;
        while let Some((i, place, key, hint, _)) = next {
            next = std::mem::replace(&mut behind, keys.next());
            // The next one's row comes from memory while this one is looked up.
            if let Some((_, place, _, _, Some(coming))) = next {
                server.node.prefetch(place, coming, value_bytes);
            }
            let peeked = match (hint, self.transaction.as_ref().and_then(|overlay| overlay.get(key))) {
                (_, Some(pending)) => {
                    entries.push(Ok(pending.clone()));
                    continue;
                }
                (Some(hint), None) => Peek::NeedsFlash(hint),
                (None, None) => self.server.node.peek(place, key),
            };
            let peeked = match peeked {
                Peek::NeedsFlash(hint) => match self.unlatched.entry(&self.server.node, place, key) {
                    Some(found) => found.map_or(Peek::Absent, Peek::Found),
                    None => Peek::NeedsFlash(hint),
                },
                peeked => peeked,
            };
            let entry = match peeked {
                Peek::Found(entry) => {
                    self.depend_on(place, key, Some(entry.seq));
                    value_bytes = entry.value.len();
                    Some(entry)
                }
                Peek::Absent => {
                    self.depend_on(place, key, None);
                    None
                }
                Peek::NeedsFlash(hint) => {
                    cold.push(ColdEntry { i, place, key, hint });
                    None
                }
            };
            entries.push(Ok(entry));
        }
        if self.may_want(cold.len()) {
            for ColdEntry { i, place, key, .. } in cold.drain(..) {
                entries[i] = Err(self.want(place, key, Look::Value));
            }
        }
        for group in cold.chunks_mut(PARALLEL_READS_MAX) {
            let node = &self.server.node;
            let reads = group
                .iter_mut()
                .map(|cold| node.get_at(cold.place, cold.key, std::mem::take(&mut cold.hint)));
            let results = join_all(reads).await;
            for (cold, result) in group.iter().zip(results) {
                if let Ok(entry) = &result {
                    self.depend_on(cold.place, cold.key, entry.as_ref().map(|entry| entry.seq));
                }
                entries[cold.i] = result.map_err(|e| store_failure(&e));
            }
        }
        entries
    }

    /// What is stored of a key besides its value, live or expired; reads no value.
    pub(crate) async fn meta(&mut self, place: Place, key: &[u8]) -> Result<Option<Meta>, Failure> {
        if let Some(pending) = self.transaction.as_ref().and_then(|overlay| overlay.get(key)) {
            return Ok(pending.as_ref().map(|entry| Meta {
                tag: entry.tag,
                expire_ms: entry.expire_ms,
                value_len: entry.value_len(),
                seq: entry.seq,
            }));
        }
        let node = &self.server.node;
        let meta = match node.peek_meta(place, key) {
            Peek::Found(meta) => Some(meta),
            Peek::Absent => None,
            Peek::NeedsFlash(_) => match self.unlatched.meta(node, place, key) {
                Some(meta) => meta,
                None if self.may_want(1) => return Err(self.want(place, key, Look::Meta)),
                None => node.get_meta(place, key).await.map_err(|e| store_failure(&e))?,
            },
        };
        self.depend_on(place, key, meta.map(|meta| meta.seq));
        Ok(meta)
    }

    /// Makes the reply wait for what it tells of: version `seq` of `key`, or, when it is absent, its removal if there was one, and
    /// that the database is where it was looked for.
    pub(crate) fn depend_on(&mut self, place: Place, key: &[u8], seq: Option<u64>) {
        let node = &self.server.node;
        match seq {
            Some(seq) => node.depend(&mut self.gate, place.drive, seq),
            None => node.depend_on_absence(&mut self.gate, place, key),
        }
        self.depend_on_spaces();
    }

    /// Makes the reply wait until the databases' spaces are those that it tells of also after a crash.
    pub(super) fn depend_on_spaces(&mut self) {
        let moved = self.server.spaces.moved_at();
        if moved != 0 {
            self.server.node.depend(&mut self.gate, RECORD_DRIVE, moved);
        }
    }

    /// The bytes of a value that may be large. Bounded by the longest value that there can be.
    pub async fn whole_value(&mut self, place: Place, entry: &Entry) -> Result<Bytes, Failure> {
        match &entry.large {
            None => Ok(entry.value.clone()),
            Some(large) => self.large_range(place, large, 0, large.len()).await,
        }
    }

    /// Bytes `start..start + len` of a large value.
    pub(crate) async fn large_range(
        &mut self,
        place: Place,
        large: &Arc<LargeRef>,
        start: u64,
        len: u64,
    ) -> Result<Bytes, Failure> {
        let mut whole = Vec::with_capacity(usize::try_from(len).unwrap_or(0));
        let mut pieces = self.server.node.read_large(place, large, start..start + len);
        while let Some(piece) =
            pieces.next().await.map_err(|e| large_failure(&self.server.node, place, &e))?
        {
            whole.extend_from_slice(&piece);
        }
        Ok(Bytes::from(whole))
    }
}

fn of_kind(head: Option<Head>, kind: Type) -> Result<Option<Collection>, Failure> {
    match head {
        None => Ok(None),
        Some(Head::Collection(collection)) if collection.kind == kind => Ok(Some(collection)),
        Some(_) => Err(errors::WRONG_TYPE.into()),
    }
}

/// What the client is told when a read failed.
pub(crate) fn store_failure(error: &pumice_kv::StoreError) -> Failure {
    Failure::new(format!("ERR {error}"))
}

/// [`store_failure`] of a read of a large value's pieces, or by one of several scans: it is noted of its drive.
pub(crate) fn large_failure(node: &Node, place: Place, error: &pumice_kv::StoreError) -> Failure {
    node.note_read(place.drive, error);
    store_failure(error)
}

/// [`refused`] of a piece of a large value: it is noted of its drive.
pub(crate) fn large_refused(node: &Node, place: Place, error: &pumice_kv::WriteError) -> Failure {
    node.note_refused(place.drive, error);
    refused(error)
}

/// What the client is told when a write was refused.
pub(crate) fn refused(error: &pumice_kv::WriteError) -> Failure {
    match error {
        pumice_kv::WriteError::Full(_) => Failure::new(format!("OOM {error}")),
        pumice_kv::WriteError::ReadOnly { .. } => Failure::new(format!("MISCONF {error}")),
        _ => Failure::new(format!("ERR {error}")),
    }
}

fn unreadable(key: &HeadKey, why: &str) -> Failure {
    Failure::new(format!("ERR key '{}' cannot be read: {why}", String::from_utf8_lossy(key.user())))
}
