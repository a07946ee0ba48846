//! The node: the drives of one server behind one handle.
//!
//! 1. [`Node::open`] opens every drive, sorts them by their membership (`set.rs`) and splits the memory budget.
//! 2. [`Node::place`] says where a user key lives. Reads go to that drive's engine; a [`NodeBatch`] is written to all of its
//!    drives at once or to none (`write.rs`), and comes back as the [`Gate`] that its reply waits for.
//! 3. The core that calls [`Node::start_background`] (the cold one) runs flush, compaction and cleaning.

use std::cell::Cell;
use std::ops::{Bound, Range};
use std::sync::Arc;

use bytes::Bytes;
use pumice_base::rng::Rng;
use pumice_flash::Device;
use pumice_kv::{
    Coming, Direction, Entry, EntryView, Hint, LargeReader, LargeRef, LargeWriter, Meta, Moment, Opened,
    Peek, Seq, SliceId, SliceSet, Store, StoreError, StoreOptions, Stored, Turn, Want,
};
use pumice_reactor::{sleep, spawn};

use crate::batch::NodeBatch;
use crate::condition::{DriveCondition, LOOK_INTERVAL, Met, NewDamage};
use crate::error::{CloseError, OpenError, WaitError};
use crate::gate::Gate;
use crate::latch::{KeyHash, LatchSet, Latches, Latching};
use crate::options::NodeOptions;
use crate::place::{Place, Placement};
use crate::scan::{NodeScan, NodeSnapshot};
use crate::set::{self, Found, MEMBER_KEY, Member, StoredMember};
use crate::stats::NodeStats;
use crate::watch::Watches;

/// One server's drives. Cheap to clone, usable from any core.
#[derive(Clone)]
pub struct Node {
    inner: Arc<Inner>,
}

struct Inner {
    stores: Vec<Store>,
    names: Vec<Arc<str>>,
    placement: Placement,
    latches: Latches,
    watches: Watches,
    recovered: Vec<Recovered>,
    /// What users met on each drive.
    met: Vec<Met>,
}

/// How one drive was found when it was opened.
#[derive(Clone, Debug)]
pub struct Recovered {
    /// The drive, as it was named.
    pub drive: String,
    /// It had been closed cleanly: nothing had to be replayed.
    pub clean: bool,
    /// Records replayed from the log.
    pub replayed_records: u64,
    /// What was durable once and no longer verifies.
    pub damage: Vec<String>,
}

/// Whether a drive holds nothing but its member entry.
async fn is_empty(store: &Store) -> bool {
    let snapshot = store.snapshot();
    let mut scan = store.scan(
        &snapshot,
        SliceSet::All,
        Bound::Unbounded,
        Bound::Unbounded,
        Direction::Forward,
        Want::Keys,
    );
    // The member entry sorts last: whatever comes before it is data.
    match scan.next().await {
        Ok(first) => first.is_none_or(|(key, _)| key == MEMBER_KEY),
        Err(_) => false,
    }
}

/// Where an id holds the index of its drive.
const DRIVE_SHIFT: u32 = 48;

impl Node {
    /// Opens `devices` (each with the name to call it by in messages) as one set. `progress` hears how far
    /// recovery has come, summed over the drives.
    pub async fn open(
        devices: Vec<(String, Device)>,
        options: &NodeOptions,
        progress: &dyn Fn(u64, u64),
    ) -> Result<Self, OpenError> {
        if devices.is_empty() {
            return Err(OpenError::NoDrives);
        }
        let share = options.memory_bytes / devices.len() as u64;
        let mut stores = Vec::with_capacity(devices.len());
        let mut found = Vec::with_capacity(devices.len());
        let mut recovered = Vec::with_capacity(devices.len());
        let mut members = Vec::with_capacity(devices.len());
        // Bytes of the drives before the one being opened; the total grows as drives say what they have.
        let before = Cell::new((0, 0));
        for (name, device) in devices {
            let store_options = StoreOptions {
                memory_bytes: share,
                durability: options.durability,
                patrol_pass: options.patrol_pass,
                ..StoreOptions::default()
            };
            let last = Cell::new((0, 0));
            let heard = |done, total| {
                last.set((done, total));
                progress(before.get().0 + done, before.get().1 + total);
            };
            let opened = Store::open(device, store_options, &heard).await;
            before.set((before.get().0 + last.get().1, before.get().1 + last.get().1));
            let Opened { store, clean, replayed, damage, .. } =
                opened.map_err(|source| OpenError::Drive { drive: name.clone(), source })?;
            let stored = StoredMember::read(&store, &name).await?;
            let member = stored.member;
            members.push(stored);
            let is_empty = is_empty(&store).await;
            recovered.push(Recovered {
                drive: name.clone(),
                clean,
                replayed_records: replayed,
                damage: damage.iter().map(ToString::to_string).collect(),
            });
            found.push(Found { name, member, is_empty });
            stores.push(store);
        }
        let set = set::arrange(&found, options.set_id)?;
        // Of a drive of an older build, or one of which a copy does not read any more.
        stores.iter().zip(&members).for_each(|(store, stored)| stored.complete(store));
        let mut slots: Vec<Option<Store>> = stores.into_iter().map(Some).collect();
        let stores: Vec<Store> =
            set.order.iter().map(|&at| slots[at].take().expect("each drive has one place")).collect();
        let names = set.order.iter().map(|&at| found[at].name.as_str().into()).collect();
        let slices = stores[0].slice_count();
        if let Some(odd) = stores.iter().position(|s| s.slice_count() != slices) {
            let (name, has) = (&found[set.order[odd]].name, stores[odd].slice_count());
            return Err(OpenError::WrongSet {
                why: format!("{name} has {has} slices, others have {slices}"),
            });
        }
        let count = stores.len() as u16;
        let met = stores.iter().map(|_| Met::default()).collect();
        let node = Self {
            inner: Arc::new(Inner {
                met,
                stores,
                names,
                placement: Placement { drives: count, slices },
                latches: Latches::default(),
                watches: Watches::default(),
                recovered,
            }),
        };
        for &index in &set.unwritten {
            node.write_member(Member { set: set.set, index, count }).await?;
        }
        Ok(node)
    }

    /// Writes the entry into one slice after the other, on flash in every durability: a drive that forgets its place after others hold
    /// data is no member of their set any more. What one batch writes lies in one frame, and one bad place would take both.
    async fn write_member(&self, member: Member) -> Result<(), OpenError> {
        let failed = |why: String| {
            let drive = self.inner.names[usize::from(member.index)].to_string();
            OpenError::Membership { drive, why }
        };
        for slice in set::member_slices(self.store(member.index)) {
            let mut batch = NodeBatch::new();
            batch.put(Place { drive: member.index, slice }, MEMBER_KEY, 0, 0, &member.encode());
            self.write_ready(&batch).await.map_err(|error| failed(error.to_string()))?;
            self.sync_drive(member.index).await.map_err(|error| failed(error.source.to_string()))?;
        }
        Ok(())
    }

    /// Drives in the set.
    pub fn drive_count(&self) -> u16 {
        self.inner.placement.drives
    }

    /// Slices of each drive.
    pub fn slice_count(&self) -> u16 {
        self.inner.placement.slices
    }

    /// The engine of drive `drive`.
    pub fn store(&self, drive: u16) -> &Store {
        &self.inner.stores[usize::from(drive)]
    }

    /// How a drive was named.
    pub fn name(&self, drive: u16) -> Arc<str> {
        self.inner.names[usize::from(drive)].clone()
    }

    /// How each drive was found when it was opened, in the order they were given.
    pub fn recovered(&self) -> &[Recovered] {
        &self.inner.recovered
    }

    /// Where `user_key` lives: by its Redis Cluster slot, so that keys with one `{tag}` live together.
    pub fn place(&self, user_key: &[u8]) -> Place {
        self.inner.placement.of_key(user_key)
    }

    /// Where the keys of `slot` live.
    pub fn place_of_slot(&self, slot: u16) -> Place {
        self.inner.placement.of_slot(slot)
    }

    /// Whether it is better there to delete a few thousand keys one by one than to retire their prefix.
    pub fn retires_many(&self, place: Place) -> bool {
        self.store(place.drive).retires_many()
    }

    /// Every place, for changes that concern all of them (a flush).
    pub fn places(&self) -> impl Iterator<Item = Place> + use<> {
        let Placement { drives, slices } = self.inner.placement;
        (0..drives)
            .flat_map(move |drive| (0..slices).map(move |slice| Place { drive, slice: SliceId(slice) }))
    }

    // Reading. Keys here are encoded keys, not user keys.

    /// The entry of `key` if memory alone can tell.
    pub fn peek(&self, place: Place, key: &[u8]) -> Peek<Entry> {
        self.store(place.drive).peek(place.slice, key)
    }

    /// Begins to bring from memory what tells [`Node::prefetch`] where `key` lies; see the engine's `prefetch_index`.
    #[inline]
    pub fn prefetch_index(&self, place: Place, key: &[u8]) -> Coming {
        self.store(place.drive).prefetch_index(place.slice, key)
    }

    /// Begins to bring from memory what a look at a key meets soon; see the engine's `prefetch`.
    pub fn prefetch(&self, place: Place, coming: Coming, value_bytes: usize) {
        self.store(place.drive).prefetch(place.slice, coming, value_bytes);
    }

    /// Shows `look` the entry of `key` if memory alone can tell; see the engine's `peek_with`.
    pub fn peek_with<R>(&self, place: Place, key: &[u8], look: impl FnOnce(EntryView<'_>) -> R) -> Peek<R> {
        self.store(place.drive).peek_with(place.slice, key, look)
    }

    /// The entry of `key`: at most one flash read when its key table is cached.
    pub async fn get(&self, place: Place, key: &[u8]) -> Result<Option<Entry>, StoreError> {
        self.noted(place.drive, self.store(place.drive).get(place.slice, key).await)
    }

    /// [`Node::get`] of a key that was looked up a moment ago, and goes on from there.
    pub async fn get_at(&self, place: Place, key: &[u8], hint: Hint) -> Result<Option<Entry>, StoreError> {
        self.noted(place.drive, self.store(place.drive).get_at(place.slice, key, hint).await)
    }

    /// Now, for [`Node::is_newest`].
    pub fn moment(&self, place: Place) -> Moment {
        self.store(place.drive).moment(place.slice)
    }

    /// As [`pumice_kv::Store::is_newest`] has it.
    pub fn is_newest(&self, place: Place, key: &[u8], seq: Option<Seq>, since: Moment) -> bool {
        self.store(place.drive).is_newest(place.slice, key, seq, since)
    }

    /// Type, expiry and length of `key` if memory alone can tell.
    pub fn peek_meta(&self, place: Place, key: &[u8]) -> Peek<Meta> {
        self.store(place.drive).peek_meta(place.slice, key)
    }

    /// Type, expiry and length of `key`, without its value.
    pub async fn get_meta(&self, place: Place, key: &[u8]) -> Result<Option<Meta>, StoreError> {
        self.noted(place.drive, self.store(place.drive).get_meta(place.slice, key).await)
    }

    /// Whether a value of so many bytes lies with its key wherever that is.
    pub fn is_beside_key(&self, place: Place, bytes: usize) -> bool {
        bytes <= self.store(place.drive).inline_max()
    }

    /// What is stored under `key`, to be put again, if memory alone can tell.
    pub fn peek_stored(&self, place: Place, key: &[u8]) -> Peek<Stored> {
        self.store(place.drive).peek_stored(place.slice, key)
    }

    /// What is stored under `key`, to be put again; its value is not read if it stays where it is.
    pub async fn get_stored(&self, place: Place, key: &[u8]) -> Result<Option<Stored>, StoreError> {
        self.noted(place.drive, self.store(place.drive).get_stored(place.slice, key).await)
    }

    /// What a read of `drive` answered; notes what does not verify.
    fn noted<T>(&self, drive: u16, found: Result<T, StoreError>) -> Result<T, StoreError> {
        if let Err(error) = &found {
            self.note_read(drive, error);
        }
        found
    }

    /// Notes that a read of `drive` failed that was not made by the node itself: of a large value, or a scan of one drive.
    pub fn note_read(&self, drive: u16, error: &StoreError) {
        self.inner.met[usize::from(drive)].read(self.store(drive), error);
    }

    /// Notes that `drive` refused a write that was not made by the node itself: of a piece of a large value.
    pub fn note_refused(&self, drive: u16, error: &pumice_kv::WriteError) {
        self.inner.met[usize::from(drive)].refused(error);
    }

    /// A snapshot of every drive, at one moment.
    pub fn snapshot(&self) -> NodeSnapshot {
        NodeSnapshot { drives: Store::snapshots_together(&self.inner.stores).into_iter().collect() }
    }

    /// Keys (and values, if wanted) of all drives and slices from `lower` to `upper`, in key order.
    pub fn scan(
        &self,
        snapshot: &NodeSnapshot,
        lower: Bound<Bytes>,
        upper: Bound<Bytes>,
        direction: Direction,
        want: Want,
    ) -> NodeScan {
        NodeScan::new(self.clone(), snapshot, lower, upper, direction, want)
    }

    // Large values.

    /// Starts a value too long for one record; see the engine's `large_writer`.
    pub fn large_writer(&self, place: Place, key: &[u8]) -> LargeWriter {
        self.store(place.drive).large_writer(place.slice, key)
    }

    /// Reads a part of a large value piece by piece.
    pub fn read_large(&self, place: Place, value: &LargeRef, range: Range<u64>) -> LargeReader {
        self.store(place.drive).read_large(value, range)
    }

    // Writing: see `write.rs`.

    /// Whether writers wait for room on a drive.
    pub fn users_wait(&self, drive: u16) -> bool {
        self.store(drive).users_wait()
    }

    /// Waits for a turn on a drive: before latches are taken, which others would wait for as long.
    pub async fn wait_for_turn(&self, drive: u16, turn: &mut Turn) {
        self.store(drive).wait_for_turn(turn).await;
    }

    /// An id never used before on any drive, across crashes too; it names its drive. What lies under it need not say where, so
    /// ids of two drives must not be the same.
    pub fn allocate_id(&self, place: Place) -> u64 {
        let number = self.store(place.drive).allocate_id();
        assert!(number < 1 << DRIVE_SHIFT, "a drive takes fewer records than 2^{DRIVE_SHIFT}");
        u64::from(place.drive) << DRIVE_SHIFT | number
    }

    // Durability.

    /// True when all that `gate` depends on is durable. Never waits.
    pub fn is_open(&self, gate: &Gate) -> bool {
        gate.needs().iter().all(|&(drive, seq)| self.store(drive).is_durable(seq))
    }

    /// Drops from `gate` what is durable already: later checks are cheaper.
    pub fn prune(&self, gate: &mut Gate) {
        gate.retain(|drive, seq| !self.store(drive).is_durable(seq));
    }

    /// Waits until all that `gate` depends on is durable.
    pub async fn wait(&self, gate: &Gate) -> Result<(), WaitError> {
        for &(drive, seq) in gate.needs() {
            let waited = self.store(drive).wait_durable(seq).await;
            waited.map_err(|source| WaitError { name: self.name(drive), source })?;
        }
        Ok(())
    }

    /// Waits until everything written so far is on flash, also where writes are acknowledged before that.
    pub async fn sync(&self) -> Result<(), WaitError> {
        for drive in 0..self.drive_count() {
            self.sync_drive(drive).await?;
        }
        Ok(())
    }

    /// [`Node::sync`] of one drive.
    pub async fn sync_drive(&self, drive: u16) -> Result<(), WaitError> {
        self.store(drive).heap().flush().await.map_err(|failed| {
            let source = StoreError::Write { what: "the log".into(), reason: failed.to_string() };
            WaitError { name: self.name(drive), source }
        })
    }

    /// Makes `gate` depend on a version that was just read from `drive`, unless that is durable already.
    pub fn depend(&self, gate: &mut Gate, drive: u16, seq: Seq) {
        if !self.store(drive).is_durable(seq) {
            gate.add(drive, seq);
        }
    }

    /// Makes `gate` depend on the removal of a key that was just found absent at `place`, if there was one that is not durable.
    pub fn depend_on_absence(&self, gate: &mut Gate, place: Place, key: &[u8]) {
        self.depend(gate, place.drive, self.store(place.drive).newest_of(place.slice, key));
    }

    /// Makes `gate` depend on everything written so far, but for drives of which it cannot be told when more becomes durable.
    pub fn depend_on_all_but_stalled(&self, gate: &mut Gate) {
        for drive in (0..self.drive_count()).filter(|&drive| !self.is_drive_stalled(drive)) {
            self.depend(gate, drive, self.store(drive).last_seq());
        }
    }

    /// Why nothing that is written becomes durable now, and may later: there is no room below the drive.
    fn stall_of(&self, drive: u16) -> Option<String> {
        let heap = self.store(drive).heap();
        let why = heap.read_only().filter(|_| heap.durable().failure().is_none())?;
        Some(format!("drive {}: {why}", self.inner.names[usize::from(drive)]))
    }

    /// Whether there is no room below a drive.
    pub fn is_drive_stalled(&self, drive: u16) -> bool {
        self.stall_of(drive).is_some()
    }

    /// Whether there is no room below some drive.
    pub fn is_stalled(&self) -> bool {
        self.stall().is_some()
    }

    /// Why nothing that is written to some drive becomes durable now; `None` where there is room below all of them.
    pub fn stall(&self) -> Option<String> {
        (0..self.drive_count()).find_map(|drive| self.stall_of(drive))
    }

    /// Why `gate` does not open, if that is for want of room below a drive.
    pub fn why_stalled(&self, gate: &Gate) -> Option<String> {
        let undurable = gate.needs().iter().filter(|&&(drive, seq)| !self.store(drive).is_durable(seq));
        undurable.map(|&(drive, _)| drive).find_map(|drive| self.stall_of(drive))
    }

    // Ordering of commands on the same key.

    /// The key latches.
    pub fn latches(&self) -> &Latches {
        &self.inner.latches
    }

    /// Takes the latches of `keys`, or none when one is held.
    pub fn try_latch(&self, keys: &[KeyHash]) -> Option<LatchSet> {
        self.inner.latches.try_latch(keys)
    }

    /// Takes the latches of `keys`, waiting in turn.
    pub fn latch(&self, keys: &[KeyHash]) -> Latching {
        self.inner.latches.latch(keys)
    }

    /// The watched keys.
    pub fn watches(&self) -> &Watches {
        &self.inner.watches
    }

    // Whole spaces.

    /// The sum of all tallies of `space` over the drives.
    pub fn tally(&self, space: u32) -> i64 {
        self.inner.stores.iter().map(|store| store.tally(space)).sum()
    }

    /// The tallies of a drive that are not 0, by rising name.
    pub fn tallies(&self, drive: u16) -> Vec<(u32, i64)> {
        self.store(drive).tallies()
    }

    /// The tally of `space` on a drive.
    pub fn tally_on(&self, drive: u16, space: u32) -> i64 {
        self.store(drive).tally(space)
    }

    /// Up to `limit` encoded keys (with their places) of a drive whose time is over at `now_ms`, for the caller to delete; without
    /// those that it puts off, see the engine's `expired_but`.
    pub async fn expired_but(
        &self,
        drive: u16,
        now_ms: u64,
        limit: usize,
        put_off: impl Fn(&[u8]) -> u64,
    ) -> Result<Vec<(Place, Bytes)>, StoreError> {
        let keys = self.store(drive).expired_but(now_ms, limit, put_off).await?;
        Ok(keys.into_iter().map(|(slice, key)| (Place { drive, slice }, key)).collect())
    }

    /// A random encoded key under `prefix`, from a random place that has one.
    pub async fn random_key(
        &self,
        prefix: &[u8],
        rng: &mut Rng,
    ) -> Result<Option<(Place, Bytes)>, StoreError> {
        let mut places: Vec<Place> = self.places().collect();
        rng.shuffle(&mut places);
        for place in places {
            let drawn = self.store(place.drive).random_key(place.slice, prefix, rng);
            if let Some(key) = self.noted(place.drive, drawn.await)? {
                return Ok(Some((place, key)));
            }
        }
        Ok(None)
    }

    // Running.

    /// Starts flush, compaction and cleaning of every drive on the current core, and somebody who looks whether drives answer: call it
    /// on the cold one.
    pub fn start_background(&self) {
        self.inner.stores.iter().for_each(Store::start_background);
        let inner = Arc::downgrade(&self.inner);
        spawn(async move {
            while let Some(inner) = inner.upgrade() {
                inner.stores.iter().zip(&inner.met).for_each(|(store, met)| met.look(store));
                drop(inner);
                sleep(LOOK_INTERVAL).await;
            }
        });
    }

    /// What every drive has done and holds.
    pub fn stats(&self) -> NodeStats {
        NodeStats {
            drives: self.inner.stores.iter().map(Store::stats).collect(),
            latch_waits: self.inner.latches.waits(),
            watched: self.inner.watches.len(),
        }
    }

    /// Keeps the drives' row caches from so many bytes together, or from all they have; answers how many:
    /// [`Store::withhold_from_rows`].
    pub(crate) fn withhold_from_rows(&self, bytes: u64) -> u64 {
        let stores = &self.inner.stores;
        let each = bytes.div_ceil(stores.len() as u64);
        stores.iter().map(|store| store.withhold_from_rows(each)).sum()
    }

    /// How each drive does, in set order.
    pub fn conditions(&self) -> Vec<DriveCondition> {
        let drives = self.inner.stores.iter().zip(&self.inner.met).zip(&self.inner.names);
        drives.map(|((store, met), name)| met.condition(store, name.to_string())).collect()
    }

    /// What is wrong with any drive, in one line; `None` when all is well with all of them.
    pub fn trouble(&self) -> Option<String> {
        let troubles: Vec<String> = self.conditions().iter().filter_map(DriveCondition::trouble).collect();
        (!troubles.is_empty()).then(|| troubles.join("; "))
    }

    /// The damage that reads of `drive` met and that nobody has been told of.
    pub fn take_new_damage(&self, drive: u16) -> NewDamage {
        self.inner.met[usize::from(drive)].take_new_damage()
    }

    /// Writes everything back and closes every drive cleanly. Nothing may be in flight any more.
    pub async fn close(&self) -> Result<(), CloseError> {
        let mut outcome = Ok(());
        for (store, name) in self.inner.stores.iter().zip(&self.inner.names) {
            if let Err(source) = store.close().await {
                outcome = Err(CloseError { drive: name.to_string(), source });
            }
        }
        outcome
    }
}
