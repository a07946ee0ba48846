//! Snapshots: the store at one time, for scans.
//!
//! Taking one holds the slice locks for a moment and keeps handles on every memtable and table list of that
//! time; a pin keeps the heap from reusing what they point at. A snapshot of one slice takes that slice's lock alone:
//! small collections are read by one, each time. So flushes and merges need not know of
//! snapshots; only memtables keep the versions that a live snapshot may ask for.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use pumice_base::sync::lock;
use pumice_segment::Pin;
use smallvec::SmallVec;

use crate::errors::StoreError;
use crate::memtable::Sight;
use crate::scan::SliceSet;
use crate::slice::{SharedMemtable, Slice};
use crate::store::{Inner, Store};
use crate::table::version::Version;
use crate::types::{Seq, SliceId};

/// The live snapshots' numbers.
pub(crate) struct Snapshots {
    live: Mutex<BTreeMap<Seq, u32>>,
    newest: AtomicU64,
    oldest: AtomicU64,
}

impl Default for Snapshots {
    fn default() -> Self {
        Self { live: Mutex::default(), newest: AtomicU64::new(0), oldest: AtomicU64::new(Seq::MAX) }
    }
}

impl Snapshots {
    /// The newest live snapshot's number, 0 when there is none. Exact for holders of a slice lock.
    pub fn newest(&self) -> Seq {
        self.newest.load(Ordering::Acquire)
    }

    /// The number of the oldest live one; above all others when there is none.
    pub fn oldest(&self) -> Seq {
        self.oldest.load(Ordering::Acquire)
    }

    /// How many are live.
    pub fn count(&self) -> usize {
        lock(&self.live).values().map(|&n| n as usize).sum()
    }

    fn add(&self, seq: Seq) {
        let mut live = lock(&self.live);
        *live.entry(seq).or_insert(0) += 1;
        self.note_ends(&live);
    }

    fn remove(&self, seq: Seq) {
        let mut live = lock(&self.live);
        let count = live.get_mut(&seq).expect("a live snapshot is counted");
        *count -= 1;
        if *count == 0 {
            live.remove(&seq);
        }
        self.note_ends(&live);
    }

    fn note_ends(&self, live: &BTreeMap<Seq, u32>) {
        self.newest.store(live.keys().next_back().copied().unwrap_or(0), Ordering::Release);
        self.oldest.store(live.keys().next().copied().unwrap_or(Seq::MAX), Ordering::Release);
    }
}

/// The store as it was when [`Store::snapshot`] was called. Keep it briefly: while it is held, memory of its
/// memtables and the space of everything cleaned or merged since stay in use. When that space is needed for writing, scans of
/// snapshots held for long end with [`crate::StoreError::TooOld`]; so they do when that memory is more than memtables may have.
#[derive(Clone)]
pub struct Snapshot {
    pub(crate) inner: Arc<SnapshotInner>,
}

pub(crate) struct SnapshotInner {
    pub store: Arc<Inner>,
    pub seq: Seq,
    pub slices: SmallVec<[SliceView; 1]>,
    pub pin: Arc<Pin>,
}

/// A slice as a snapshot sees it.
#[derive(Clone)]
pub(crate) struct SliceView {
    pub slice: SliceId,
    /// Newest first.
    pub memtables: SmallVec<[SharedMemtable; 2]>,
    pub version: Arc<Version>,
    /// [`Slice::puts`] of that time.
    pub puts: u64,
    /// [`Slice::epoch`] of that time.
    pub epoch: u64,
    /// Whether the slice knew of gaps.
    pub has_gaps: bool,
}

impl SliceView {
    fn of(id: SliceId, slice: &Slice) -> Self {
        let memtables = std::iter::once(&slice.active)
            .chain(&slice.sealed)
            .filter(|memtable| !lock(memtable).is_empty())
            .cloned()
            .collect();
        Self {
            slice: id,
            memtables,
            version: slice.version.clone(),
            puts: slice.puts,
            epoch: slice.epoch,
            has_gaps: !slice.gaps.is_empty(),
        }
    }
}

impl Store {
    /// The store as it is now.
    pub fn snapshot(&self) -> Snapshot {
        let store = self.inner.clone();
        // Before the tables are looked up, so that none of them is reused.
        let pin = Arc::new(store.heap.pin());
        let slices = store.all_slices();
        Self::seen(&store, &slices, pin)
    }

    /// Several stores as they are at one moment: what is written to some of them together ([`crate::write_together`]) is seen on all
    /// or on none. Name them in the order in which everybody does.
    pub fn snapshots_together(stores: &[Self]) -> Vec<Snapshot> {
        let pins: Vec<_> = stores.iter().map(|store| Arc::new(store.inner.heap.pin())).collect();
        let slices: Vec<_> = stores.iter().map(|store| store.inner.all_slices()).collect();
        let made = stores.iter().zip(&slices).zip(pins);
        made.map(|((store, slices), pin)| Self::seen(&store.inner, slices, pin)).collect()
    }

    /// All slices, which are locked.
    fn seen(store: &Arc<Inner>, slices: &[MutexGuard<'_, Slice>], pin: Arc<Pin>) -> Snapshot {
        let seq = store.heap.last_seq();
        store.snapshots.add(seq);
        let views = (0u16..).zip(slices).map(|(id, slice)| SliceView::of(SliceId(id), slice));
        let (store, slices) = (store.clone(), views.collect());
        Snapshot { inner: Arc::new(SnapshotInner { store, seq, slices, pin }) }
    }

    /// One slice as it is now; scans of others find nothing.
    pub fn snapshot_of(&self, slice: SliceId) -> Snapshot {
        let store = self.inner.clone();
        let pin = Arc::new(store.heap.pin());
        // Who writes to the slice looks at the live snapshots under the same lock.
        let state = store.slice(slice);
        let seq = store.heap.last_seq();
        store.snapshots.add(seq);
        let view = SliceView::of(slice, &state);
        drop(state);
        Snapshot { inner: Arc::new(SnapshotInner { store, seq, slices: SmallVec::from_iter([view]), pin }) }
    }
}

impl Inner {
    /// What was written up to this number is durable, and all snapshots see it, those that are yet to be made too.
    pub fn settled(&self) -> Seq {
        // In this order: of what is durable by now, each snapshot that does not see it was noted before it was written.
        let durable = self.heap.durable().current();
        durable.min(self.snapshots.oldest())
    }
}

impl Snapshot {
    /// The last write that it sees.
    pub fn seq(&self) -> Seq {
        self.inner.seq
    }

    /// The last write that it sees of a key between the bounds and that was not in the key tables yet, a delete too; 0 when
    /// there is none. What else a scan between them tells is durable. Goes over all such keys.
    pub fn newest_between(&self, slices: SliceSet, lower: Bound<&[u8]>, upper: Bound<&[u8]>) -> Seq {
        let views = self.inner.slices.iter().filter(|view| slices.has(view.slice));
        let memtables = views.flat_map(|view| &view.memtables);
        memtables.map(|each| lock(each).newest_between((lower, upper), self.inner.seq)).max().unwrap_or(0)
    }
}

impl SnapshotInner {
    /// What its scans see of memtables.
    pub fn sight(&self) -> Sight {
        Sight { max_seq: self.seq, settled: self.store.settled() }
    }

    /// [`Slice::epoch`] as it was, of a slice that it holds.
    pub fn epoch(&self, slice: SliceId) -> Option<u64> {
        self.slices.iter().find(|view| view.slice == slice).map(|view| view.epoch)
    }

    /// To be asked after each read: nothing that was read before is from a later time.
    pub fn still_holds(&self) -> Result<(), StoreError> {
        under(&self.pin, Ok(()))
    }
}

/// What was read under a pin, unless it was revoked meanwhile: then it may be of any time, or look like damage.
pub(crate) fn under<T>(pin: &Pin, read: Result<T, StoreError>) -> Result<T, StoreError> {
    if pin.is_revoked() { Err(StoreError::TooOld) } else { read }
}

impl Drop for SnapshotInner {
    fn drop(&mut self) {
        self.store.snapshots.remove(self.seq);
    }
}
