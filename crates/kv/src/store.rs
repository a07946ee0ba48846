//! The store of one drive: reads and writes. Opening is in `open`, background work in `flush`, `merge` and
//! `clean`.
//!
//! A write appends its records to the heap's commit stream and inserts them into the memtables of its slices,
//! all under those slices' locks, taken in ascending order. So it is visible when [`Store::write`] returns, each
//! memtable sees its versions in order, and whoever holds all slice locks sees no write half done: that is how
//! snapshots and checkpoints get an exact cut.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use pumice_base::hash::HashMap;
use pumice_base::sync::lock;
use pumice_reactor::sync::Semaphore;
use pumice_segment::{AppendClass, AppendError, Appended, Heap, RecordPtr, SpaceReport, Turn};
use smallvec::SmallVec;

use crate::ahead::Indexes;
use crate::background::Background;
use crate::batch::{Batch, Op};
use crate::cache::TableCache;
use crate::cache::lending::Lending;
use crate::clean::relocate::Relocated;
use crate::entry::KeyEntry;
use crate::errors::{StoreError, WriteError};
use crate::large::again::Origin;
use crate::large::{LargeRef, LargeValues};
use crate::manifest::{Manifest, set_tally};
use crate::memtable::{Memtables, NewBody, NewVersion, Replaced};
use crate::merge::Merges;
use crate::metadata_room::MetadataRoom;
use crate::options::{Budget, StoreOptions, to_replay};
use crate::record;
use crate::rewrites::Rewrites;
use crate::scan::room::ScanRooms;
use crate::slice::{Slice, key_hash};
use crate::snapshot::Snapshots;
use crate::stats::{Counter, Counters};
use crate::table::version::Version;
use crate::types::{Entry, Hint, Known, Meta, Moment, Seq, SliceId};

/// The store of one drive. Clones are handles on the same store; any core may use them.
#[derive(Clone)]
pub struct Store {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub heap: Heap,
    pub options: StoreOptions,
    /// The drive's: see [`crate::StoreFormat::inline_max`].
    pub inline_max: usize,
    pub budget: Budget,
    pub config: Bytes,
    /// See [`Store::call_keys`].
    pub key_names: OnceLock<KeyNames>,
    pub slices: Box<[Mutex<Slice>]>,
    pub indexes: Box<[Indexes]>,
    pub cache: TableCache,
    pub snapshots: Snapshots,
    /// Leaf lock. Changed only by holders of a slice lock.
    pub tallies: Mutex<HashMap<u32, i64>>,
    /// What is durable of the key tables; leaf lock. Changed only by holders of `commit_turn`.
    pub manifest: Mutex<Manifest>,
    /// One metadata commit at a time.
    pub commit_turn: Semaphore,
    /// Memory of victims that are emptied at once.
    pub victims_bytes: u64,
    /// One is held from the reservation of a moved record's number to its redirection, all while memtables are sealed: a moved
    /// record must not be older than the checkpoint that could have held it.
    pub seal_turn: Semaphore,
    /// One flush at a time.
    pub flush_turn: Semaphore,
    pub merges: Merges,
    pub large: LargeValues,
    /// Writes whose shadowed versions memory does not know; see `shadow`.
    pub uncounted: Mutex<VecDeque<(SliceId, Bytes)>>,
    /// The last number given out when a segment was released.
    pub released_at: Mutex<HashMap<u32, Seq>>,
    /// Bytes of blocks after which a table is closed: it must fit in a segment.
    pub table_bytes: usize,
    /// Segments of the drive.
    pub segments: u32,
    pub memtables: Memtables,
    /// Batches of users that were taken: how the cleaner sees that it helps.
    pub accepted: Counter,
    pub rewrites: Rewrites,
    pub lending: Lending,
    pub metadata_room: MetadataRoom,
    pub background: Background,
    pub scan_rooms: ScanRooms,
    /// Key tables that no metadata record names yet, and where they lie; `None` while they are being written.
    pub making: Mutex<HashMap<u64, Option<RecordPtr>>>,
    pub relocated: Relocated,
    pub counters: Counters,
}

impl Store {
    /// Slices of this store.
    pub fn slice_count(&self) -> u16 {
        self.inner.slices.len() as u16
    }

    /// The longest value that lies beside its key, in bytes.
    pub fn inline_max(&self) -> usize {
        self.inner.inline_max
    }

    /// What the layer above stored when the drive was formatted.
    pub fn config(&self) -> Bytes {
        self.inner.config.clone()
    }

    /// The key's newest version.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] when what lies on flash is not what was written.
    pub fn get(&self, slice: SliceId, key: &[u8]) -> impl Future<Output = Result<Option<Entry>, StoreError>> {
        self.get_at(slice, key, Hint::default())
    }

    /// [`Store::get`] of a key that was looked up a moment ago, and goes on from there.
    ///
    /// # Errors
    /// As [`Store::get`].
    pub async fn get_at(&self, slice: SliceId, key: &[u8], hint: Hint) -> Result<Option<Entry>, StoreError> {
        let inner = &*self.inner;
        inner.counters.gets.add(1);
        if let Some(Known { epoch, lives, found }) = hint.0
            && let Some(ptr) = found.record()
        {
            match inner.read_value(slice, key, ptr, lives).await {
                Ok(value) => {
                    let mut entry = entry_of(&found, value);
                    inner.keep_read(slice, epoch, key, &found, &mut entry);
                    return Ok(Some(entry));
                }
                // It was moved, or overwritten and cleaned, since it was looked up.
                Err(error) if error.may_be_stale() => {}
                Err(error) => return Err(error),
            }
        }
        // A small future for the usual case: a connection with many GETs at once holds one for each.
        Box::pin(inner.look_up(slice, key)).await
    }

    /// [`Store::get`] without reading the value.
    ///
    /// # Errors
    /// As [`Store::get`].
    pub async fn get_meta(&self, slice: SliceId, key: &[u8]) -> Result<Option<Meta>, StoreError> {
        let found = self.inner.find(slice, key).await?;
        Ok(found.filter(|entry| !entry.is_tombstone()).map(|entry| entry.meta()))
    }

    /// Now. To be asked before reading what [`Store::is_newest`] is to be asked of.
    pub fn moment(&self, slice: SliceId) -> Moment {
        Moment(self.inner.slice(slice).epoch)
    }

    /// Whether version `seq` of `key` (`None`: that there is none), which was read after `since`, is the newest still. `false` also where
    /// memory cannot tell any more.
    pub fn is_newest(&self, slice: SliceId, key: &[u8], seq: Option<Seq>, since: Moment) -> bool {
        self.inner.slice(slice).is_newest(Some(since.0), key, seq)
    }

    /// Writes a batch: visible at once, all of it, and durable once [`Store::is_durable`] says so of the number
    /// answered.
    ///
    /// # Errors
    /// [`WriteError::Busy`]: there is no room now, or others wait for it; use [`Store::write_ready`]. [`WriteError::Full`]: the drive
    /// has none for it.
    pub fn write(&self, batch: &Batch) -> Result<Seq, WriteError> {
        self.write_in(batch, &mut Turn::default())
    }

    /// [`Store::write`] of who may be in the midst of its turn.
    ///
    /// # Errors
    /// As [`Store::write`].
    pub fn write_in(&self, batch: &Batch, turn: &mut Turn) -> Result<Seq, WriteError> {
        if self.inner.wants_merges(batch) {
            return Err(WriteError::Busy);
        }
        if batch.only_frees() {
            return self.inner.write(batch, AppendClass::Delete);
        }
        let bytes = batch.bytes() as u64;
        if self.inner.heap.users_wait() && !turn.goes_on() {
            return Err(WriteError::Busy);
        }
        let written = self.inner.append_as(batch, |class| self.inner.write(batch, class));
        if written.is_ok() {
            turn.spend(bytes);
        }
        written
    }

    /// [`Store::write`] that waits for room, behind those who wait already. What only makes space does not queue.
    ///
    /// # Errors
    /// As [`Store::write`], but never `Busy`.
    pub async fn write_ready(&self, batch: &Batch) -> Result<Seq, WriteError> {
        self.write_ready_in(batch, &mut Turn::default()).await
    }

    /// [`Store::write_ready`] of who has more to write behind it, and tells so with [`Turn::wants`]: called once, it writes more than
    /// one batch.
    ///
    /// # Errors
    /// As [`Store::write_ready`].
    pub async fn write_ready_in(&self, batch: &Batch, turn: &mut Turn) -> Result<Seq, WriteError> {
        match self.write_in(batch, turn) {
            Err(WriteError::Busy) => self.inner.write_when_there_is_room(batch, turn).await,
            done => done,
        }
    }

    /// Whether writers wait for room.
    pub fn users_wait(&self) -> bool {
        self.inner.heap.users_wait()
    }

    /// Waits for a turn, behind those who wait already, of who is about to write and has nothing in hand that others might wait for.
    /// The write that follows at once is likely to be taken, not sure.
    pub async fn wait_for_turn(&self, turn: &mut Turn) {
        let mut place = self.inner.heap.queue(0, turn);
        self.inner.until_flushed().await;
        self.inner.end_long_reads();
        place.called().await;
    }

    /// The number of the last write.
    pub fn last_seq(&self) -> Seq {
        self.inner.heap.last_seq()
    }

    /// All writes up to this number are durable.
    pub fn durable_seq(&self) -> Seq {
        self.inner.heap.durable().current()
    }

    /// Whether the write with this number is durable.
    pub fn is_durable(&self, seq: Seq) -> bool {
        self.inner.heap.durable().is_open(seq)
    }

    /// Waits until the write with this number is durable.
    ///
    /// # Errors
    /// When it will never be: the drive failed, and takes no more writes.
    pub async fn wait_durable(&self, seq: Seq) -> Result<(), StoreError> {
        self.inner.heap.wait_durable(seq).await.map_err(|failed| StoreError::Write {
            what: format!("the log up to {seq}"),
            reason: failed.to_string(),
        })
    }

    /// The number of the newest version of `key` that is not in the key tables yet, a delete too; 0 when there is none. What was
    /// found absent a moment ago is so because of that, or because of something durable: tables are made of what is.
    pub fn newest_of(&self, slice: SliceId, key: &[u8]) -> Seq {
        self.inner.slice(slice).seq_in_memtables(key_hash(key), key).unwrap_or(0)
    }

    /// A number that nothing on this drive had before, nor will have again.
    ///
    /// An id that nothing durable followed may come again after a crash: nothing on the drive bears it.
    pub fn allocate_id(&self) -> u64 {
        self.inner.heap.next_seq(1)
    }

    /// Whether [`Store::close`] has begun: writes are refused from then on.
    pub fn is_closing(&self) -> bool {
        self.inner.is_closing()
    }

    /// The tally of `space`: the sum of what batches added to it. Each that is not 0 takes room in memory and in the
    /// metadata log for ever: who gives a name up takes back what it counts.
    pub fn tally(&self, space: u32) -> i64 {
        lock(&self.inner.tallies).get(&space).copied().unwrap_or(0)
    }

    /// The tallies that are not 0, by rising name.
    pub fn tallies(&self) -> Vec<(u32, i64)> {
        let mut tallies: Vec<_> =
            lock(&self.inner.tallies).iter().map(|(space, sum)| (*space, *sum)).collect();
        tallies.sort_unstable();
        tallies
    }

    /// Whether `key` lies under a prefix that was retired: nobody looks there any more.
    pub fn is_retired(&self, slice: SliceId, key: &[u8]) -> bool {
        self.inner.is_retired(slice, key)
    }

    /// From now on errors call keys by these names: the layer above knows what its users call them. Once only.
    pub fn call_keys(&self, names: KeyNames) {
        let _ = self.inner.key_names.set(names);
    }

    /// Where the drive's bytes are.
    pub fn space(&self) -> SpaceReport {
        self.inner.heap.space()
    }

    /// Whether the drive is full, as the next write would be told. It is asked while nobody writes, too: after a restart cleaning
    /// finds it out by itself.
    pub fn is_full(&self) -> bool {
        let heap = &self.inner.heap;
        heap.refuses_users() || (heap.is_futile() && self.inner.memtables_full())
    }

    /// The heap below, for its statistics.
    pub fn heap(&self) -> &Heap {
        &self.inner.heap
    }
}

impl Inner {
    pub fn slice(&self, slice: SliceId) -> MutexGuard<'_, Slice> {
        lock(&self.slices[usize::from(slice.0)])
    }

    /// All slices' locks, in order.
    pub fn all_slices(&self) -> Vec<MutexGuard<'_, Slice>> {
        self.slices.iter().map(lock).collect()
    }

    /// Twice the budget: the flush is a whole memtable behind. Or of so long keys that they must become tables first.
    pub fn memtables_full(&self) -> bool {
        self.memtables_hold() >= 2 * self.budget.memtable || self.metadata_room.wants_flush()
    }

    pub fn write(&self, batch: &Batch, class: AppendClass) -> Result<Seq, WriteError> {
        if batch.is_empty() {
            return Ok(self.heap.durable().current());
        }
        self.check(batch, class)?;
        let ids = batch.slices();
        let mut guards: SmallVec<[MutexGuard<'_, Slice>; 4]> =
            ids.iter().map(|&id| self.slice(SliceId(id))).collect();
        let place = |slice: SliceId| ids.binary_search(&slice.0).expect("the batch's slices are locked");
        if !self.is_current(batch, |slice| &guards[place(slice)]) {
            return Err(WriteError::Busy);
        }
        let seq = self.write_locked(batch, class, place, &mut guards)?;
        drop(guards);
        self.written();
        Ok(seq)
    }

    /// Refuses what there is no room for in the metadata log or in memory.
    pub fn check(&self, batch: &Batch, class: AppendClass) -> Result<(), WriteError> {
        self.check_metadata(batch, class)?;
        if class == AppendClass::System || !self.memtables_full() {
            return Ok(());
        }
        // Nor would a flush end on a drive that takes no writes.
        if let Some(reason) = self.heap.read_only() {
            return Err(WriteError::ReadOnly(reason.to_string()));
        }
        self.background.flush_wanted.notify_one();
        if class == AppendClass::Delete {
            self.heap.reconsider();
        }
        // A flush that finds no segment will not end: say so rather than let the writer wait for it.
        Err(if self.heap.is_futile() {
            WriteError::Full(Box::new(self.heap.space()))
        } else {
            WriteError::Busy
        })
    }

    /// Called when a user's batch was written, with no slice locked.
    pub fn written(&self) {
        self.accepted.add(1);
        self.wake_flush();
        self.take_back_lent();
    }

    /// Writes a batch whose slices' locks are held; `place` finds a slice's guard.
    pub fn write_locked(
        &self,
        batch: &Batch,
        class: AppendClass,
        place: impl Fn(SliceId) -> usize,
        guards: &mut [MutexGuard<'_, Slice>],
    ) -> Result<Seq, WriteError> {
        let payloads = batch.payloads();
        let appended =
            self.heap.append(&batch.records(&payloads, self.inline_max), class).map_err(write_error)?;
        Ok(self.show(batch, &appended, place, guards))
    }

    /// Makes a batch visible that was appended. Answers the number of its last record.
    pub fn show(
        &self,
        batch: &Batch,
        appended: &Appended,
        place: impl Fn(SliceId) -> usize,
        guards: &mut [MutexGuard<'_, Slice>],
    ) -> Seq {
        let newest_snapshot = self.snapshots.newest();
        let (mut grown, mut log) = (0, 0);
        for (i, (op, ptr)) in batch.ops.iter().zip(&appended.ptrs).enumerate() {
            log += to_replay(*ptr);
            let seq = appended.first_seq + i as u64;
            grown += self.apply(&mut guards[place(op.slice)], &batch.buf, op, seq, *ptr, newest_snapshot);
        }
        batch.lists_are_named();
        self.memtables.active_bytes.fetch_add(grown as u64, Ordering::Relaxed);
        self.memtables.log_bytes.fetch_add(log, Ordering::Relaxed);
        self.counters.writes.add(batch.ops.len() as u64);
        self.counters.user_bytes.add(batch.bytes() as u64);
        appended.first_seq + batch.ops.len() as u64 - 1
    }

    /// Makes one record visible. Answers by how many bytes the memtable grew.
    fn apply(
        &self,
        slice: &mut Slice,
        buf: &[u8],
        op: &Op,
        seq: Seq,
        ptr: RecordPtr,
        newest_snapshot: Seq,
    ) -> usize {
        let value = op.value(buf);
        let body = match op.kind {
            record::PUT | record::PUT_LARGE if value.len() <= self.inline_max => NewBody::Inline(value),
            record::PUT | record::PUT_LARGE => NewBody::Record(ptr),
            record::PUT_AGAIN => {
                NewBody::Record(record::decode_value_place(value).expect("the batch encoded it").ptr)
            }
            record::DELETE => NewBody::Tombstone,
            record::RETIRE => {
                lock(&self.manifest).retired_mut().add(op.slice, op.key(buf), seq);
                self.heap.mark_dead(ptr);
                return 0;
            }
            record::TALLY => {
                let (space, delta) = record::decode_tally(&buf[op.start as usize..op.end as usize])
                    .expect("the batch encoded it");
                let mut tallies = lock(&self.tallies);
                let sum = tallies.get(&space).copied().unwrap_or(0) + delta;
                set_tally(&mut tallies, space, sum);
                drop(tallies);
                self.heap.mark_dead(ptr);
                return 0;
            }
            kind => unreachable!("batches hold no records of kind {kind}"),
        };
        let new = NewVersion {
            seq,
            expire_ms: op.expire_ms,
            tag: op.tag,
            large: op.kind == record::PUT_LARGE,
            value_len: op.value_len,
            // There is nothing that could be dead: nothing was there, or its value is this one's.
            counted: op.new_key || op.kind == record::PUT_AGAIN,
            on_flash: op.kind == record::PUT_AGAIN,
            new_key: op.new_key,
            body,
        };
        self.insert(op.slice, slice, op.key(buf), &new, ptr, Some(newest_snapshot))
    }

    /// Inserts a version that came in the record at `ptr`, telling the heap what died by it. Its value may be in another record: that of
    /// the version before it, which is put again. `newest_snapshot`: `None` in a replay. Answers by how many bytes the memtable grew.
    pub fn insert(
        &self,
        id: SliceId,
        slice: &mut Slice,
        key: &[u8],
        new: &NewVersion<'_>,
        ptr: RecordPtr,
        newest_snapshot: Option<Seq>,
    ) -> usize {
        self.note_key(key.len());
        let (is_replay, newest_snapshot) = (newest_snapshot.is_none(), newest_snapshot.unwrap_or(0));
        let is_elsewhere = matches!(new.body, NewBody::Record(place) if place != ptr);
        let (replaced, grown) = if is_elsewhere {
            slice.insert_with_same_value(key, new, newest_snapshot)
        } else {
            slice.insert(key, new, newest_snapshot)
        };
        match replaced {
            Replaced::NewRow(row) => self.count_shadow(id, slice, key, row, new),
            Replaced::Newer => self.heap.mark_dead(ptr),
            Replaced::Record(old) => {
                let old = self.place_of(old);
                let stays = matches!(new.body, NewBody::Record(place) if place == old);
                // Put again, and moved or overwritten before the crash, it may lie where something else does by now. Whoever finds
                // what it was before in the key tables tells of it.
                let is_stale = || is_replay && lock(&slice.active).take_counted(key_hash(key), key);
                if !stays && !is_stale() {
                    self.heap.mark_dead(old);
                }
            }
            Replaced::Large(old) => self.bury(id, key, &old),
            Replaced::Again | Replaced::Nothing => {}
        }
        // Replay needs the record until the next checkpoint, which is why cleaning waits for it; after that its
        // bytes are of no use when the value lies in a key table, or in another record.
        if is_elsewhere || !matches!(new.body, NewBody::Record(_)) {
            self.heap.mark_dead(ptr);
        }
        grown
    }

    pub fn wake_flush(&self) {
        if self.memtables.active_bytes.load(Ordering::Relaxed) >= self.budget.memtable
            || self.memtables.log_bytes.load(Ordering::Relaxed) >= self.options.log_max_bytes
        {
            self.background.flush_wanted.notify_one();
        }
    }

    /// [`Store::get`] from the beginning.
    async fn look_up(&self, slice: SliceId, key: &[u8]) -> Result<Option<Entry>, StoreError> {
        let mut last_stale = None;
        loop {
            // Under the lock: whatever is named now lies in a segment that was opened before.
            let (epoch, lives, found, version) = {
                let mut state = self.slice(slice);
                let hash = key_hash(key);
                if let Some(row) = state.rows.get(hash, key) {
                    self.counters.row_hits.add(1);
                    return Ok(Some(row.to_entry()));
                }
                (state.epoch, self.heap.lives(), state.in_memtables(hash, key), state.version.clone())
            };
            let found = match found {
                Some(entry) => Some(entry),
                None => match self.find_in_tables(&version, key).await {
                    Err(error) if self.version_changed(slice, &version) && error.may_be_stale() => continue,
                    found => found?,
                },
            };
            let Some(found) = found.filter(|entry| !entry.is_tombstone()) else { return Ok(None) };
            // The pin comes before the look-up that the pieces are taken from, so that none is reused.
            let pin = if found.large { Some(Arc::new(self.heap.pin())) } else { None };
            if found.large && self.newest_seq(slice, key, &version).is_some_and(|seq| seq != found.seq) {
                continue;
            }
            match self.value_since(slice, key, &found, lives).await {
                Ok(mut entry) => {
                    if let (Some(pin), Some(large)) = (pin, entry.large.take()) {
                        let mut pinned = LargeRef::clone(&large);
                        pinned.pin = Some(pin);
                        pinned.origin = Some(Origin::Read { seq: found.seq, epoch: Some(epoch) });
                        entry.large = Some(Arc::new(pinned));
                    } else {
                        self.keep_read(slice, epoch, key, &found, &mut entry);
                    }
                    return Ok(Some(entry));
                }
                Err(error) if error.may_be_stale() && last_stale != Some(found.seq) => {
                    last_stale = Some(found.seq);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Version `seq` of a key, if its row is cached.
    pub fn row_of(&self, slice: SliceId, key: &[u8], seq: Seq) -> Option<Entry> {
        let mut state = self.slice(slice);
        let row = state.rows.get(key_hash(key), key).filter(|row| row.seq == seq)?;
        self.counters.row_hits.add(1);
        Some(row.to_entry())
    }

    /// Caches what flash answered of a key as it was in `epoch`, if the cache has room for it or refused it lately.
    pub fn keep_read(&self, slice: SliceId, epoch: u64, key: &[u8], found: &KeyEntry, entry: &mut Entry) {
        own_value(found, entry);
        let mut slice = self.slice(slice);
        if slice.keeps_read(key, entry) {
            slice.fill(epoch, key, entry);
        }
    }

    /// Caches what is known of a key as it was in `epoch`.
    pub fn keep_row(&self, slice: SliceId, epoch: u64, key: &[u8], found: &KeyEntry, entry: &mut Entry) {
        own_value(found, entry);
        self.slice(slice).fill(epoch, key, entry);
    }

    /// The newest version of a key, from memtables or tables, tombstones too.
    pub async fn find(&self, slice: SliceId, key: &[u8]) -> Result<Option<KeyEntry>, StoreError> {
        loop {
            let (found, version) = {
                let state = self.slice(slice);
                (state.in_memtables(key_hash(key), key), state.version.clone())
            };
            if found.is_some() {
                return Ok(found);
            }
            match self.find_in_tables(&version, key).await {
                Err(error) if error.may_be_stale() && self.version_changed(slice, &version) => {}
                found => return found,
            }
        }
    }

    pub fn version_changed(&self, slice: SliceId, version: &Arc<Version>) -> bool {
        !Arc::ptr_eq(&self.slice(slice).version, version)
    }

    /// The newest number of the key in the memtables, or one that matches nothing when the tables changed.
    fn newest_seq(&self, slice: SliceId, key: &[u8], version: &Arc<Version>) -> Option<Seq> {
        let state = self.slice(slice);
        let changed = !Arc::ptr_eq(&state.version, version);
        state.seq_in_memtables(key_hash(key), key).or(changed.then_some(Seq::MAX))
    }
}

/// What errors call a key; `None`: as bytes.
pub type KeyNames = Arc<dyn Fn(&[u8]) -> Option<String> + Send + Sync>;

impl Inner {
    /// How errors call a key.
    pub fn show_key(&self, key: &[u8]) -> String {
        self.key_names.get().and_then(|names| names(key)).unwrap_or_else(|| show_bytes(key))
    }
}

/// A short, printable form of a key for error texts.
fn show_bytes(key: &[u8]) -> String {
    let shown = key.get(..64).unwrap_or(key);
    format!("key \"{}\"{}", shown.escape_ascii(), if key.len() > 64 { "…" } else { "" })
}

/// The value in a record of `key`, which holds the buffer that the record was read into.
pub(crate) fn value_in(payload: &Bytes, key: &[u8]) -> Option<Bytes> {
    let owner = record::decode_key(payload)?;
    if payload[owner.key] != *key {
        return None;
    }
    Some(payload.slice(owner.rest))
}

pub(crate) fn entry_of(found: &KeyEntry, value: Bytes) -> Entry {
    Entry { tag: found.tag, expire_ms: found.expire_ms, seq: found.seq, value, large: None }
}

pub(crate) fn write_error(error: AppendError) -> WriteError {
    match error {
        AppendError::Full(space) => WriteError::Full(Box::new(space)),
        AppendError::Busy => WriteError::Busy,
        AppendError::ReadOnly(reason) => WriteError::ReadOnly(reason.to_string()),
        error @ AppendError::Oversize { .. } => WriteError::TooLarge(error.to_string()),
    }
}

/// How long a read may keep what was overwritten since it began while users wait for that space: long enough for all but
/// readers whose clients take their time, short enough for writers to bear.
pub(crate) const READS_MAY_HOLD: Duration = Duration::from_secs(5);

impl Inner {
    async fn write_when_there_is_room(
        self: &Arc<Self>,
        batch: &Batch,
        turn: &mut Turn,
    ) -> Result<Seq, WriteError> {
        let mut batch = Cow::Borrowed(batch);
        let mut line = self.line_up(&batch, turn);
        loop {
            self.called(&batch, &mut line).await;
            if let Some(renewed) = self.renewed(&batch).await? {
                batch = Cow::Owned(renewed);
            }
            match self.append_as(&batch, |class| self.write(&batch, class)) {
                Err(WriteError::Busy) => {}
                done => {
                    turn.spend(batch.bytes() as u64);
                    return done;
                }
            }
        }
    }

    /// Waits until a large value's piece that found no segment is worth another try. Pieces do not queue: they are written to
    /// segments of their own, and take no credit.
    pub async fn room_for_pieces(&self) {
        self.end_long_reads();
        self.heap.room().await;
    }

    /// Waits while memtables are full.
    pub async fn until_flushed(&self) {
        // A flush that finds no segment will not end: the writer tries again and is told that the drive is full.
        let may_end = || !self.is_closing() && !self.heap.is_futile() && self.heap.read_only().is_none();
        while self.memtables_full() && may_end() {
            self.background.flush_wanted.notify_one();
            // A flush needs segments, too.
            self.end_long_reads();
            let _ =
                pumice_reactor::timeout(Duration::from_millis(20), self.background.flushed.notified()).await;
        }
    }

    /// A user waits: what long reads hold back is given to writers if that is what they wait for.
    pub fn end_long_reads(&self) {
        let revoked = self.heap.revoke_pins(READS_MAY_HOLD);
        if revoked > 0 {
            tracing::warn!(readers = revoked, "the space that long reads kept from writers is used again");
        }
    }
}

impl StoreError {
    /// Whether something on the media does not read or is not what was written.
    pub(crate) fn is_of_the_media(&self) -> bool {
        matches!(self, Self::Read { .. } | Self::Damaged { .. })
    }

    /// Whether looking up again may help: what was looked up may lie in a segment that was reused since. A pointer does
    /// not say which life of its segment it means, so what was reused before the read began looks like damage. Who
    /// gets the same place again knows that it is.
    pub(crate) fn may_be_stale(&self) -> bool {
        matches!(self, Self::Read { .. } | Self::Damaged { .. })
    }
}

/// Gives an entry a value of its own: a record came in a larger buffer, a frame of many perhaps, which neither the cache nor a client
/// that takes its time may hold, and what reads come into is the best memory for that.
fn own_value(found: &KeyEntry, entry: &mut Entry) {
    if found.record().is_some() {
        entry.value = Bytes::copy_from_slice(&entry.value);
    }
}
