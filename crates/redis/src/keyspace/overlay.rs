//! What a running EXEC has written so far: its own commands read it, nobody else does until all is written.
//!
//! The overlay holds the final state of each key that the transaction touched, sorted as the ordered map is, so
//! that scans merge both. [`Overlay::batch`] turns it into one batch.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use pumice_base::hash::HashMap;
use pumice_kv::gaps::Gaps;
use pumice_kv::{Entry, Stored};
use pumice_node::{NodeBatch, Place};
use smallvec::SmallVec;

use super::change::{Change, Op, Value};
use super::key::{RawKey, Space, space_of};
use super::ranks::Move;

/// Gaps that a transaction remembers.
const GAPS_MAX: usize = 1 << 16;

/// The state of one key: there, or removed.
#[derive(Clone, Debug)]
pub(super) struct Pending {
    place: Place,
    /// Whether nothing was stored under the key before the transaction.
    is_new: bool,
    pub(super) entry: Option<Entry>,
    /// What is stored under the key, if the entry has its value.
    again: Option<Box<Stored>>,
}

/// What a pending state takes in memory.
fn weight(key: &RawKey, pending: &Pending) -> usize {
    let value = pending.entry.as_ref().map_or(0, |entry| entry.value.len());
    size_of::<(RawKey, Pending)>() + key.len() + value
}

/// Where a transaction's scans found nothing; it sees one time alone.
pub(super) struct OverlayGaps(pub(super) Gaps<RawKey>);

impl Default for OverlayGaps {
    fn default() -> Self {
        Self(Gaps::new(GAPS_MAX))
    }
}

/// The uncommitted writes of a transaction.
#[derive(Default)]
pub struct Overlay {
    keys: BTreeMap<RawKey, Pending>,
    /// What they take in memory.
    bytes: usize,
    /// Where its scans found nothing.
    pub(super) gaps: OverlayGaps,
    version: u64,
    retired: Vec<(Place, RawKey)>,
    tallies: HashMap<(Space, u16), (Place, i64)>,
    /// What came into orders and went from them.
    pub(super) moves: Vec<Move>,
    pub(super) touched: BTreeSet<(u32, SmallVec<[u8; 40]>)>,
    /// Databases that the transaction emptied, and their new spaces.
    pub(super) moved: Option<Vec<(usize, Space)>>,
}

impl Overlay {
    /// True when nothing was written.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty() && self.retired.is_empty()
    }

    /// The space of a database that the transaction emptied.
    pub(crate) fn space_of(&self, database: usize) -> Option<Space> {
        self.moved.as_ref()?.iter().find(|(d, _)| *d == database).map(|(_, space)| *space)
    }

    /// Forgets everything in a space that the transaction itself made.
    pub(super) fn drop_space(&mut self, space: Space) {
        self.keys.retain(|key, _| space_of(key) != space);
        self.bytes = self.keys.iter().map(|(key, pending)| weight(key, pending)).sum();
        self.retired.retain(|(_, prefix)| space_of(prefix) != space);
        self.tallies.retain(|(known, _), _| *known != space && *known != space.expiring());
    }

    /// Adds a command's writes.
    pub(super) fn apply(&mut self, change: &mut Change) {
        for op in change.ops.drain(..) {
            match op {
                Op::Put { place, key, tag, expire_ms, value, is_new, again } => {
                    let (value, large) = match value {
                        Value::Bytes(bytes) => (bytes, None),
                        Value::Large(large) => (bytes::Bytes::new(), Some(large)),
                    };
                    let entry = Some(Entry { tag, expire_ms, seq: 0, value, large });
                    self.version += 1;
                    self.gaps.0.fill(&key);
                    self.put(key, Pending { place, is_new, entry, again });
                }
                Op::Delete { place, key } => {
                    self.put(key, Pending { place, is_new: false, entry: None, again: None });
                }
                Op::Retire { place, prefix } => {
                    // Nobody reads under the prefix again: what the transaction wrote there need not exist.
                    let behind = self.keys.range(prefix.clone()..).map(|(key, _)| key);
                    let dropped: Vec<RawKey> =
                        behind.take_while(|key| key.starts_with(&prefix)).cloned().collect();
                    for key in &dropped {
                        if let Some(pending) = self.keys.remove(key) {
                            self.bytes -= weight(key, &pending);
                        }
                    }
                    self.retired.push((place, prefix));
                }
                Op::Tally { place, space, delta } => {
                    self.tallies.entry((space, place.drive)).or_insert((place, 0)).1 += delta;
                }
            }
        }
        self.touched.extend(change.touched.drain(..));
        self.moves.append(&mut change.moves);
    }

    fn put(&mut self, key: RawKey, mut pending: Pending) {
        self.bytes += weight(&key, &pending);
        if let Some(old) = self.keys.get(&key) {
            self.bytes -= weight(&key, old);
            // What the command says is of what the transaction wrote before.
            pending.is_new = old.is_new;
        }
        self.keys.insert(key, pending);
    }

    /// What the writes take in memory, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes + self.moves.len() * size_of::<Move>()
    }

    /// The pending state of `key`; `None`: the transaction did not touch it.
    pub(super) fn get(&self, key: &[u8]) -> Option<&Option<Entry>> {
        self.keys.get(key).map(|pending| &pending.entry)
    }

    /// What is stored under `key`, if its pending state has that value; `None`: the transaction did not touch it.
    pub(super) fn again(&self, key: &[u8]) -> Option<Option<&Stored>> {
        self.keys.get(key).map(|pending| pending.again.as_deref())
    }

    /// The pending states from `low` up to `high`, in order.
    pub(super) fn range(
        &self,
        low: &[u8],
        high: Option<&RawKey>,
    ) -> impl DoubleEndedIterator<Item = (&RawKey, &Option<Entry>)> {
        // BTreeMap panics on bounds that cross.
        let crossed = high.is_some_and(|high| high[..] <= *low);
        let upper = high.map_or(Bound::Unbounded, |high| Bound::Excluded(&high[..]));
        let range = (!crossed).then(|| self.keys.range::<[u8], _>((Bound::Included(low), upper)));
        range.into_iter().flatten().map(|(key, pending)| (key, &pending.entry))
    }

    /// Rises with everything put.
    pub(super) fn version(&self) -> u64 {
        self.version
    }

    /// How many keys of `space` the transaction added, less those it removed.
    pub(crate) fn tally(&self, space: Space) -> i64 {
        self.tallies.iter().filter(|((s, _), _)| *s == space).map(|(_, (_, delta))| delta).sum()
    }

    /// The same on one drive.
    pub(super) fn tally_on(&self, drive: u16, space: Space) -> i64 {
        self.tallies.get(&(space, drive)).map_or(0, |(_, delta)| *delta)
    }

    /// Everything as one batch.
    pub(super) fn batch(&self) -> NodeBatch {
        let mut batch = NodeBatch::new();
        for (key, Pending { place, is_new, entry, again }) in &self.keys {
            match entry {
                Some(Entry { expire_ms, .. }) if let Some(stored) = again => {
                    batch.put_again(*place, key, *expire_ms, stored);
                }
                Some(Entry { tag, expire_ms, large: Some(large), .. }) => {
                    batch.put_large(*place, key, *tag, *expire_ms, large);
                }
                Some(Entry { tag, expire_ms, value, .. }) => batch.put(*place, key, *tag, *expire_ms, value),
                None => batch.delete(*place, key),
            }
            if *is_new && entry.is_some() {
                batch.of_new_key(*place);
            }
        }
        for (place, prefix) in &self.retired {
            batch.retire(*place, prefix);
        }
        let mut tallies: Vec<_> = self.tallies.iter().filter(|(_, (_, delta))| *delta != 0).collect();
        tallies.sort_unstable_by_key(|((space, drive), _)| (*space, *drive));
        for ((space, _), (place, delta)) in tallies {
            batch.tally(*place, space.0, *delta);
        }
        batch
    }
}
