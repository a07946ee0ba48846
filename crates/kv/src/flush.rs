//! Memtables become key tables, and the log's start moves on: a checkpoint.
//!
//! 1. *Seal*: under all slice locks the active memtables are put aside and the last number is taken. Everything
//!    up to it is in sealed memtables or tables, nothing above it is; tallies are copied in the same instant.
//! 2. *Write*: each slice's sealed rows go in key order into tables of a new run. Keys under retired prefixes are
//!    left out, and tombstones when there is nothing below to hide or there never was.
//! 3. *Commit*: one metadata record names the tables, tallies, newly retired prefixes and the number. Then the
//!    sealed memtables go, and the heap is told what died with them: not before, because a try that fails would tell it again,
//!    and because pieces of a large value are spared that the key's newest list names, which would be the one that goes.
//!
//! If any step fails the sealed memtables stay readable, and the next flush takes them along.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use pumice_base::hash::HashMap;
use pumice_base::sync::lock;
use pumice_reactor::{JoinHandle, sleep, spawn, yield_now};
use pumice_segment::{AppendError, CommitFailed, Group, Hold, RecordPtr};

use crate::clean::SEAL_TURNS;
use crate::entry::{Body, KeyEntry};
use crate::errors::StoreError;
use crate::manifest::{Change, Manifest};
use crate::memtable::sorting::sorted_rows;
use crate::record;
use crate::retired::Retired;
use crate::slice::{SharedMemtable, key_hash};
use crate::store::Inner;
use crate::table::bounds::{Before, Behind};
use crate::table::version::RunOrder;
use crate::table::{Head, TableBuilder, TableMeta};
use crate::types::{Seq, SliceId};

/// Filter bits per key of upper runs, which are asked for keys that they mostly lack.
pub const UPPER_FILTER_BITS: usize = 14;
/// Filter bits per key of the bottom run.
pub const BOTTOM_FILTER_BITS: usize = 10;
/// How often what needs a segment asks for room before it gives up what it has done so far.
pub const ROOM_TRIES: u32 = 50;
const ROOM_PAUSE: Duration = Duration::from_millis(2);
/// Between the limit of a table and its share of a segment: the last block, the frame, the page's rest.
const TABLE_MARGIN_BYTES: usize = 12 * 1024;
/// Rows taken from a memtable at a time, so that its lock is held for microseconds.
const ROWS_AT_ONCE: usize = 128;

/// What was put aside.
struct Sealed {
    seq: Seq,
    memtables: Vec<Vec<SharedMemtable>>,
    tallies: HashMap<u32, i64>,
    bytes: u64,
    /// What their keys were thought to add to bounds.
    bounds_ahead: u64,
}

/// What decides which rows a flush leaves out.
struct RowContext {
    slice: SliceId,
    nothing_below: bool,
    retired: Arc<Retired>,
}

/// Tables on flash that no metadata record names yet. Cleaning moves them all the same, see [`Inner::place_tables`];
/// those that are dropped before [`NewTables::committed`] die.
#[derive(Default)]
pub struct NewTables {
    making: Vec<Making>,
    /// Their additions to the manifest.
    pub changes: Vec<Change>,
    /// Their heads, to be kept in memory.
    pub heads: HashMap<u64, Arc<Head>>,
    /// Their bytes.
    pub bytes: u64,
    /// What the memtables hold and the tables do not, of which nobody was told that it is dead.
    dropped: Vec<(SliceId, Bytes, KeyEntry)>,
    /// The same of records of keys under retired prefixes. Emptying a database leaves as many as there are rows.
    dropped_records: Vec<(RecordPtr, Seq)>,
}

impl Inner {
    /// Makes a checkpoint: everything written before it was called is in key tables when it returns.
    pub async fn flush(self: &Arc<Self>) -> Result<(), StoreError> {
        self.flush_up_to(None).await
    }

    /// The same of a store that a part of its log was replayed into: up to `part`, and nothing else.
    pub async fn flush_up_to(self: &Arc<Self>, part: Option<Seq>) -> Result<(), StoreError> {
        let _turn = self.flush_turn.acquire(1).await;
        let mut sealed = self.seal().await;
        sealed.seq = part.unwrap_or(sealed.seq);
        // Tables name places: what is not written may yet go elsewhere, and after a restart nothing would tell where.
        self.heap.write_out().await.map_err(|CommitFailed(reason)| StoreError::Write {
            what: "the log before a key table".into(),
            reason: reason.to_string(),
        })?;
        let mut new = NewTables::default();
        for (id, memtables) in sealed.memtables.iter().enumerate() {
            self.flush_slice(SliceId(id as u16), memtables, &mut new).await?;
        }
        let commit_turn = self.commit_turn.acquire(1).await;
        let mut changes = std::mem::take(&mut new.changes);
        self.place_tables(&mut changes);
        {
            let manifest = lock(&self.manifest);
            changes.extend(tally_changes(&manifest, &sealed.tallies));
            let retired =
                manifest.retired.iter().filter(|(.., seq)| *seq > manifest.checkpoint && *seq <= sealed.seq);
            changes.extend(retired.map(|(slice, prefix, seq)| Change::Retire(slice, prefix.clone(), seq)));
        }
        changes.push(Change::Checkpoint(sealed.seq));
        self.commit(&changes, &new.heads).await?;
        new.committed();
        for (id, memtables) in sealed.memtables.iter().enumerate() {
            self.show_tables(SliceId(id as u16), memtables);
        }
        drop(commit_turn);
        self.let_memtables_go(sealed.memtables.into_iter().flatten().collect());
        self.bury_dropped(&mut new);
        self.memtables.sealed_bytes.fetch_sub(sealed.bytes, Ordering::Relaxed);
        self.metadata_room.flushed(sealed.bounds_ahead);
        self.counters.flushes.add(1);
        self.counters.flush_bytes.add(new.bytes);
        self.heap.earn(-(new.bytes as i64));
        self.sweep_heads();
        self.background.flushed.notify_all();
        self.background.merge_wanted.notify_one();
        self.background.clean_wanted.notify_one();
        Ok(())
    }

    /// Puts a slice's tables from the manifest in force, and lets go of flushed memtables.
    pub fn show_tables(&self, slice: SliceId, flushed: &[SharedMemtable]) {
        let version = lock(&self.manifest).versions[usize::from(slice.0)].clone();
        let mut state = self.slice(slice);
        state.version = version;
        state.sealed.retain(|memtable| !flushed.iter().any(|gone| Arc::ptr_eq(gone, memtable)));
    }

    /// Tells the heap of what the tables leave out. The memtables that held it are gone.
    fn bury_dropped(&self, new: &mut NewTables) {
        for (slice, key, entry) in new.dropped.drain(..) {
            self.bury(slice, &key, &entry);
        }
        for (ptr, seq) in new.dropped_records.drain(..) {
            self.mark_dead(ptr, seq);
        }
    }

    /// Leaves out a row below a retired prefix.
    fn drop_retired(&self, slice: SliceId, key: &[u8], entry: KeyEntry, new: &mut NewTables) {
        // What was written after the seal and before the prefix was retired has told of what it shadows; since then nobody writes there.
        let is_told = || {
            let newer = lock(&self.slice(slice).active).get(key_hash(key), key);
            newer.is_some_and(|newer| newer.counted)
        };
        match entry.body {
            _ if !entry.holds_space() || is_told() => {}
            Body::Record(ptr) if !entry.large => new.dropped_records.push((ptr, entry.seq)),
            _ => new.dropped.push((slice, Bytes::copy_from_slice(key), entry)),
        }
    }

    async fn seal(&self) -> Sealed {
        let _turn = self.seal_turn.acquire(SEAL_TURNS).await;
        let mut slices = self.all_slices();
        for slice in &mut slices {
            if !lock(&slice.active).is_empty() {
                let active = std::mem::take(&mut slice.active);
                slice.sealed.insert(0, active);
            }
            slice.epoch += 1;
        }
        let bytes = self.memtables.active_bytes.swap(0, Ordering::Relaxed);
        let bytes = self.memtables.sealed_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.memtables.log_bytes.store(0, Ordering::Relaxed);
        self.memtables.moved_bytes.store(0, Ordering::Relaxed);
        self.memtables.commit_bytes_at_seal.store(self.heap.stats().commit_bytes, Ordering::Relaxed);
        Sealed {
            seq: self.heap.last_seq(),
            memtables: slices.iter().map(|slice| slice.sealed.clone()).collect(),
            tallies: lock(&self.tallies).clone(),
            bytes,
            bounds_ahead: self.metadata_room.ahead(),
        }
    }

    /// Writes the rows of a slice's sealed memtables, newest first, as a new run.
    async fn flush_slice(
        self: &Arc<Self>,
        slice: SliceId,
        memtables: &[SharedMemtable],
        new: &mut NewTables,
    ) -> Result<(), StoreError> {
        let Some((first, older)) = memtables.split_first() else { return Ok(()) };
        let version = lock(&self.manifest).versions[usize::from(slice.0)].clone();
        let (order, nothing_below) = (version.newest_order() + 1, version.runs.is_empty());
        let (ids, retired) = self.ids_and_retired(slice);
        let mut writer = TableWriter::new(self, (slice, order), ids, UPPER_FILTER_BITS, 0, Before::Nothing);
        let context = RowContext { slice, nothing_below, retired };
        if !older.is_empty() {
            // A flush before this one failed: its rows go along, each key's newest version.
            let mut rows: BTreeMap<Bytes, KeyEntry> = BTreeMap::new();
            for memtable in memtables {
                let count = lock(memtable).len();
                for from in (0..count).step_by(ROWS_AT_ONCE) {
                    let memtable = lock(memtable);
                    for number in from..count.min(from + ROWS_AT_ONCE) {
                        let row = memtable.nth(number);
                        if memtable.hides_nothing(row) {
                            continue;
                        }
                        let key = Bytes::copy_from_slice(memtable.key(row));
                        let Some(entry) = memtable.row(row, Seq::MAX) else { continue };
                        match rows.entry(key) {
                            Entry::Vacant(place) => drop(place.insert(entry)),
                            Entry::Occupied(mut place) => {
                                // What the newer one says is of this one; of what lies below, this one says it.
                                let counted = std::mem::replace(&mut place.get_mut().counted, entry.counted);
                                if !counted && entry.holds_space() {
                                    new.dropped.push((slice, place.key().clone(), entry));
                                }
                            }
                        }
                    }
                }
            }
            for (key, entry) in rows {
                self.flush_row(&mut writer, &key, entry, &context, new).await?;
            }
            return writer.finish(new, Behind::Nothing).await;
        }
        let order = sorted_rows(first).await;
        let mut rows = Vec::with_capacity(ROWS_AT_ONCE);
        for piece in order.chunks(ROWS_AT_ONCE) {
            {
                let memtable = lock(first);
                let rows_left = piece.iter().filter(|&&row| !memtable.hides_nothing(row));
                rows.extend(rows_left.filter_map(|&row| {
                    let entry = memtable.row(row, Seq::MAX)?;
                    Some((Bytes::copy_from_slice(memtable.key(row)), entry))
                }));
            }
            for (key, entry) in rows.drain(..) {
                self.flush_row(&mut writer, &key, entry, &context, new).await?;
            }
            yield_now().await;
        }
        writer.finish(new, Behind::Nothing).await
    }

    async fn flush_row(
        &self,
        writer: &mut TableWriter<'_>,
        key: &[u8],
        mut entry: KeyEntry,
        context: &RowContext,
        new: &mut NewTables,
    ) -> Result<(), StoreError> {
        if entry.is_tombstone() && context.nothing_below {
            return Ok(());
        }
        if context.retired.covers(context.slice, key) {
            self.drop_retired(context.slice, key, entry, new);
            return Ok(());
        }
        if let Body::Record(ptr) = &mut entry.body {
            *ptr = self.place_of(*ptr);
        }
        writer.add(key, &entry, new).await
    }

    /// Corrects where new tables lie: cleaning may have moved them since they were written. For holders of the commit
    /// turn.
    pub fn place_tables(&self, changes: &mut [Change]) {
        let making = lock(&self.making);
        for change in changes {
            if let Change::Add(_, meta) = change
                && let Some(Some(ptr)) = making.get(&meta.id)
            {
                meta.ptr = *ptr;
            }
        }
    }
}

/// A table that no metadata record names yet.
struct Making {
    store: Arc<Inner>,
    id: u64,
}

impl Making {
    /// To be called before the table is written, so that cleaning never takes it for dead.
    fn begin(store: &Arc<Inner>, id: u64) -> Self {
        lock(&store.making).insert(id, None);
        Self { store: store.clone(), id }
    }

    fn written(&self, ptr: RecordPtr) {
        lock(&self.store.making).insert(self.id, Some(ptr));
    }
}

impl Drop for Making {
    fn drop(&mut self) {
        let made = lock(&self.store.making).remove(&self.id);
        if let Some(Some(ptr)) = made {
            self.store.heap.mark_dead(ptr);
        }
    }
}

impl NewTables {
    /// The manifest names them now.
    pub fn committed(&mut self) {
        for made in &self.making {
            lock(&made.store.making).remove(&made.id);
        }
    }
}

fn tally_changes(manifest: &Manifest, tallies: &HashMap<u32, i64>) -> Vec<Change> {
    let changed = tallies.iter().filter(|(space, value)| manifest.tallies.get(*space) != Some(*value));
    let gone = manifest.tallies.keys().filter(|space| !tallies.contains_key(*space));
    let mut changes: Vec<(u32, i64)> = changed.map(|(space, value)| (*space, *value)).collect();
    changes.extend(gone.map(|space| (*space, 0)));
    changes.sort_unstable();
    changes.into_iter().map(|(space, value)| Change::Tally(space, value)).collect()
}

/// Writes entries in key order into as many tables as they need: one is on its way while the next one is built.
pub struct TableWriter<'a> {
    store: &'a Arc<Inner>,
    slice: SliceId,
    order: RunOrder,
    next_id: u64,
    filter_bits: usize,
    group: Group,
    /// What lies before the table that is open, or opened next.
    before: Before,
    builder: Option<(TableBuilder, usize)>,
    writing: Option<JoinHandle<Result<Written, StoreError>>>,
}

/// A table that was written.
struct Written {
    making: Making,
    meta: TableMeta,
    head: Head,
}

impl<'a> TableWriter<'a> {
    /// Tables for a run, numbered from `ids` on; the run will have about `run_bytes`.
    pub fn new(
        store: &'a Arc<Inner>,
        (slice, order): (SliceId, RunOrder),
        ids: u64,
        filter_bits: usize,
        run_bytes: u64,
        before: Before,
    ) -> Self {
        let group = store.group_of(slice, order, run_bytes);
        Self { store, slice, order, next_id: ids, filter_bits, group, before, builder: None, writing: None }
    }

    /// Adds an entry, whose key is above all before it.
    pub async fn add(&mut self, key: &[u8], entry: &KeyEntry, new: &mut NewTables) -> Result<(), StoreError> {
        if self.full_bytes() > 0 {
            self.send(new, Behind::From(key)).await?;
        }
        let (builder, _) = self.builder.get_or_insert_with(|| {
            self.next_id += 1;
            let limit = self.store.table_limit(self.group);
            (TableBuilder::new(self.next_id - 1, self.slice, self.filter_bits, limit), limit)
        });
        builder.add(key, entry);
        Ok(())
    }

    /// Bytes of the table that is open, if it takes no more: it waits for the key behind it.
    pub fn full_bytes(&self) -> u64 {
        let full = self.builder.as_ref().filter(|(builder, limit)| builder.payload_bytes() >= *limit);
        full.map_or(0, |(builder, _)| builder.payload_bytes() as u64)
    }

    /// Closes the table that is open, before what is `behind`, and waits until all are written.
    pub async fn finish(&mut self, new: &mut NewTables, behind: Behind<'_>) -> Result<(), StoreError> {
        self.send(new, behind).await?;
        self.settle(new).await
    }

    /// Closes the table that is open, and has it written once the one before it is.
    async fn send(&mut self, new: &mut NewTables, behind: Behind<'_>) -> Result<(), StoreError> {
        let Some((builder, _)) = self.builder.take() else { return Ok(()) };
        self.settle(new).await?;
        let (mut meta, payload) = builder.finish(&self.before, behind);
        self.before = Before::UpTo(meta.max_key.clone());
        let head_at = meta.head_at as usize;
        let head = Head::verify(&meta, &payload[head_at..head_at + meta.head_len as usize])
            .expect("the builder's own head verifies");
        new.bytes += payload.len() as u64;
        let making = Making::begin(self.store, meta.id);
        let (store, group) = (self.store.clone(), self.group);
        self.writing = Some(spawn(async move {
            meta.ptr = store.write_table(&payload, group, false).await?.0;
            making.written(meta.ptr);
            store.keep_blocks(&meta, &head, &payload);
            Ok(Written { making, meta, head })
        }));
        // It takes its place before the next table is cut to fit what is left of the segment.
        yield_now().await;
        Ok(())
    }

    /// Waits for the table that is on its way.
    async fn settle(&mut self, new: &mut NewTables) -> Result<(), StoreError> {
        let Some(writing) = self.writing.take() else { return Ok(()) };
        let Written { making, meta, head } = writing.await.unwrap_or(Err(StoreError::Closing))?;
        new.making.push(making);
        new.heads.insert(meta.id, Arc::new(head));
        new.changes.push(Change::Add(self.order, meta));
        Ok(())
    }
}

impl Inner {
    /// Bytes at which a table for `group` ends, so that whole ones fill the segment that is open: four to a segment.
    fn table_limit(&self, group: Group) -> usize {
        let room = self.heap.object_room(group) as usize;
        let tables = ((room + self.table_bytes / 2) / self.table_bytes).max(1);
        (room / tables).saturating_sub(TABLE_MARGIN_BYTES).max(self.table_bytes / 4)
    }

    /// Waits before background work asks for a segment again. There may be room for users and none for it, so it always
    /// waits a little: its tries are counted.
    pub async fn segment_may_come(&self) {
        sleep(ROOM_PAUSE).await;
        self.heap.room().await;
    }

    /// Writes a key table's payload, durable on return; for cleaning when it is `moved`.
    pub async fn write_table(
        &self,
        payload: &[u8],
        group: Group,
        moved: bool,
    ) -> Result<(RecordPtr, Option<Hold>), StoreError> {
        let mut object = self.heap.object_of(&[payload]);
        for _ in 0..ROOM_TRIES {
            let written = if moved {
                self.heap.move_object(record::TABLE, group, &mut object).await
            } else {
                self.heap.write_object(record::TABLE, group, &mut object).await.map(|ptr| (ptr, None))
            };
            match written {
                Ok(written) => return Ok(written),
                // When the store closes nobody makes room any more; the log is replayed instead. Nor does anybody while
                // this holds what it has written so far, when that is all there was: so it is given up after a while.
                Err(AppendError::Busy) if !self.is_closing() => self.segment_may_come().await,
                Err(error) => {
                    return Err(StoreError::Write { what: "a key table".into(), reason: error.to_string() });
                }
            }
        }
        self.counters.given_up_tables.add(1);
        Err(StoreError::Write { what: "a key table".into(), reason: "no segment came free in time".into() })
    }
}
