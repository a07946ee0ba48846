//! How many elements lie before a place in a long order: counts of stretches of it, in memory alone.
//!
//! The order of a sorted set is a plain sorted run of elements, without counts in it. Who asks for ranks far from its ends has it gone
//! over once, in the background, and from then on counts of stretches of some hundred elements are kept in memory: a rank is their sum and
//! a part of one stretch.
//!
//! 1. [`Ctx::count_order`] enters the order as one that is being gone over, with a snapshot, under the key's latch. What writers change
//!    from then on is noted ([`super::Change::moves`]) and added when the counts are there.
//! 2. Writers take the counts away while they write, and give them back with what they changed: if they fail, or their client goes, there
//!    are none, and the next who asks begins anew. Nobody misses them meanwhile, as both need the latch.
//! 3. Within EXEC, what the transaction changed is added to what is asked.
//! 4. Whose counts come to another sum than the head says is forgotten.
//!
//! They have a share of the memory; those that were asked for longest ago go first. Nothing of it is on flash. (Rejected: counts kept beside
//! the order on flash, which cost every write a second read and write for ranks that few ask for.)

use std::borrow::Cow;
use std::ops::Bound;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use pumice_base::hash::HashMap;
use pumice_base::sync::lock;
use pumice_kv::{Direction, SliceSet, Snapshot, Want};
use pumice_node::Place;
use smallvec::SmallVec;

use super::head::Collection;
use super::key::{ELEMENT_PREFIX_BYTES, RawKey, after_prefix, element_key};
use crate::context::Ctx;
use crate::server::Server;

/// The part of the memory that counts have.
const MEMORY_PART: u64 = 64;
/// Stretches that are as long as a walk that is far, when they are new.
const STRETCHES_FAR: u64 = 8;
/// A stretch is cut anew when it has so many times the elements that it has when it is new.
const STRETCH_GROWTH: u64 = 4;
/// Orders that are gone over at a time; who comes when there are so many asks again.
const COUNTED_AT_ONCE: usize = 2;
/// Changes that are noted while an order is gone over.
const MOVES_MAX: usize = 1 << 16;
/// Changes of a transaction that are looked through for each question.
const OWN_MOVES_MAX: usize = 1 << 12;
/// What a stretch takes beside the bytes of its start.
const STRETCH_BYTES: usize = size_of::<Start>() + size_of::<u32>();

/// Where elements have their keys: all of them begin with it.
type Prefix = [u8; ELEMENT_PREFIX_BYTES];
/// Where a stretch begins, without the prefix: mostly a score's bytes and one more.
type Start = SmallVec<[u8; 16]>;

/// An element's key, and whether it came (1) or went (-1).
pub(super) type Move = (RawKey, i8);

fn prefix_of(key: &[u8]) -> Option<Prefix> {
    key.first_chunk().copied()
}

/// Counts of one order.
struct Counts {
    /// The first is empty.
    starts: Vec<Start>,
    counts: Vec<u32>,
    total: u64,
    /// Elements in a new stretch.
    stretch: u64,
    /// What they take in memory.
    bytes: usize,
}

impl Counts {
    fn stretch_of(&self, field: &[u8]) -> usize {
        self.starts.partition_point(|start| start[..] <= *field).saturating_sub(1)
    }

    /// `false`: what went was not there.
    fn apply(&mut self, field: &[u8], by: i8) -> bool {
        let at = self.stretch_of(field);
        let Some(count) = self.counts.get(at).and_then(|count| count.checked_add_signed(by.into())) else {
            return false;
        };
        self.counts[at] = count;
        self.total = self.total.wrapping_add_signed(by.into());
        if count == 0 && self.counts.len() > 1 {
            self.counts.remove(at);
            self.starts.remove(at);
            self.weigh();
            if let Some(first) = self.starts.first_mut() {
                first.clear();
            }
        }
        true
    }

    /// Stretches came or went.
    fn weigh(&mut self) {
        let long = self.starts.iter().filter(|start| start.spilled()).map(SmallVec::len);
        self.bytes = size_of::<(Prefix, Order)>() + self.starts.len() * STRETCH_BYTES + long.sum::<usize>();
    }
}

enum Order {
    /// Gone over now, by whoever has this number. `is_written`: by somebody who has not said yet what he changed.
    Counting {
        number: u64,
        moves: Vec<Move>,
        is_written: bool,
    },
    Counted {
        counts: Counts,
        asked_at: u64,
    },
}

#[derive(Default)]
struct Orders {
    orders: HashMap<Prefix, Order>,
    bytes: usize,
    /// Rises with everything that is asked.
    clock: u64,
}

impl Orders {
    fn remove(&mut self, prefix: &Prefix) -> Option<Order> {
        let order = self.orders.remove(prefix)?;
        if let Order::Counted { counts, .. } = &order {
            self.bytes -= counts.bytes;
        }
        Some(order)
    }

    fn insert(&mut self, prefix: Prefix, counts: Counts, asked_at: u64, bytes_max: usize) {
        self.bytes += counts.bytes;
        self.orders.insert(prefix, Order::Counted { counts, asked_at });
        while self.bytes > bytes_max {
            let asked_at = |order: &Order| match order {
                Order::Counting { .. } => u64::MAX,
                Order::Counted { asked_at, .. } => *asked_at,
            };
            let oldest =
                self.orders.iter().min_by_key(|(_, order)| asked_at(order)).map(|(prefix, _)| *prefix);
            oldest.and_then(|prefix| self.remove(&prefix));
        }
    }

    fn counts(&mut self, prefix: &Prefix) -> Option<&mut Counts> {
        self.clock += 1;
        match self.orders.get_mut(prefix)? {
            Order::Counting { .. } => None,
            Order::Counted { counts, asked_at } => {
                *asked_at = self.clock;
                Some(counts)
            }
        }
    }
}

/// The counts that a server keeps.
pub struct Ranks {
    orders: Mutex<Orders>,
    /// How many there are: writers look no further where there are none.
    len: AtomicUsize,
    /// What they may take in memory.
    bytes_max: usize,
    /// Elements in a new stretch, where there is room for so many stretches.
    stretch: u64,
}

/// Counts that their writer took away, until he has written.
#[must_use]
#[derive(Default)]
pub(super) struct Taken(Vec<(Prefix, TakenOrder)>);

enum TakenOrder {
    /// Left where it is: who goes over it has this number.
    Counting(u64),
    Counted {
        counts: Counts,
        asked_at: u64,
    },
}

/// Where to go on with a question: at a stretch's start.
#[derive(Debug)]
pub struct Stretch {
    /// The stretch, as bounds of fields.
    pub lower: RawKey,
    /// `None`: to the end.
    pub upper: Option<RawKey>,
    /// Elements before it.
    pub before: u64,
    /// Elements in it.
    pub len: u64,
    /// It has become long: into stretches of so many it is to be cut.
    cut_to: Option<u64>,
}

impl Ranks {
    /// None yet. They are for walks of more than `far` elements.
    pub fn new(memory_bytes: u64, far: u64) -> Self {
        Self {
            orders: Mutex::default(),
            len: AtomicUsize::new(0),
            bytes_max: (memory_bytes / MEMORY_PART) as usize,
            stretch: (far / STRETCHES_FAR).max(2),
        }
    }

    /// How many orders are counted, and what that takes in memory.
    pub fn counted(&self) -> (usize, usize) {
        let orders = lock(&self.orders);
        let counted = orders.orders.values().filter(|order| matches!(order, Order::Counted { .. }));
        (counted.count(), orders.bytes)
    }

    fn change<T>(&self, change: impl FnOnce(&mut Orders) -> T) -> T {
        let mut orders = lock(&self.orders);
        let result = change(&mut orders);
        self.len.store(orders.orders.len(), Ordering::Release);
        result
    }

    /// Whether there is nothing that writers could change.
    pub(super) fn is_empty(&self) -> bool {
        self.len.load(Ordering::Acquire) == 0
    }

    /// Takes away the counts that `moves` change. Hold the latches.
    pub(super) fn take(&self, moves: &[Move]) -> Taken {
        if moves.is_empty() || self.is_empty() {
            return Taken::default();
        }
        let mut taken = Taken::default();
        self.change(|orders| {
            let mut last = None;
            for prefix in moves.iter().filter_map(|(key, _)| prefix_of(key)) {
                if last.replace(prefix) == Some(prefix) {
                    continue;
                }
                if let Some(Order::Counting { number, is_written, .. }) = orders.orders.get_mut(&prefix) {
                    *is_written = true;
                    taken.0.push((prefix, TakenOrder::Counting(*number)));
                } else if let Some(Order::Counted { counts, asked_at }) = orders.remove(&prefix) {
                    taken.0.push((prefix, TakenOrder::Counted { counts, asked_at }));
                }
            }
        });
        taken
    }

    /// Gives back what was taken: `moves` are written.
    pub(super) fn give_back(&self, taken: Taken, moves: &[Move]) {
        for (prefix, order) in taken.0 {
            let mut own = moves.iter().filter(|(key, _)| key.starts_with(&prefix));
            match order {
                TakenOrder::Counting(taken) => self.change(|orders| {
                    if let Some(Order::Counting { number, moves, is_written }) =
                        orders.orders.get_mut(&prefix)
                        && *number == taken
                    {
                        moves.extend(own.cloned());
                        // What is too much to be noted is as good as not known.
                        *is_written = moves.len() > MOVES_MAX;
                    }
                }),
                TakenOrder::Counted { mut counts, asked_at } => {
                    if own.all(|(key, by)| counts.apply(&key[ELEMENT_PREFIX_BYTES..], *by)) {
                        self.change(|orders| orders.insert(prefix, counts, asked_at, self.bytes_max));
                    }
                }
            }
        }
    }

    /// Enters an order as one that is being gone over.
    fn begin(&self, prefix: Prefix) -> Option<u64> {
        self.change(|orders| {
            let under_way = orders.orders.values().filter(|order| matches!(order, Order::Counting { .. }));
            if under_way.count() >= COUNTED_AT_ONCE || orders.orders.contains_key(&prefix) {
                return None;
            }
            orders.clock += 1;
            let number = orders.clock;
            orders.orders.insert(prefix, Order::Counting { number, moves: Vec::new(), is_written: false });
            Some(number)
        })
    }

    /// It was gone over, or could not be.
    fn end(&self, prefix: Prefix, number: u64, counts: Option<Counts>) {
        self.change(|orders| {
            let is_own =
                |order: &Order| matches!(order, Order::Counting { number: own, .. } if *own == number);
            if !orders.orders.get(&prefix).is_some_and(is_own) {
                return;
            }
            let Some(Order::Counting { moves, is_written, .. }) = orders.remove(&prefix) else { return };
            let Some(mut counts) = counts.filter(|_| !is_written) else { return };
            if moves.iter().all(|(key, by)| counts.apply(&key[ELEMENT_PREFIX_BYTES..], *by)) {
                let asked_at = orders.clock;
                orders.insert(prefix, counts, asked_at, self.bytes_max);
            }
        });
    }
}

/// What of an order is asked for.
#[derive(Clone, Copy)]
pub enum Asked<'a> {
    /// The stretch that a field lies in.
    Field(&'a [u8]),
    /// The one that the element of a rank lies in.
    Rank(u64),
}

impl Ctx {
    /// The stretch of an order that a field or a rank lies in; `None` where there are no counts. Hold the latch.
    pub fn stretch(&mut self, collection: &Collection, sub: u8, asked: Asked<'_>) -> Option<Stretch> {
        let (ranks, drive) = (&self.server.ranks, collection.elements.drive);
        // There, replies depend on what they tell of alone (`untold.rs`): counts tell of everything.
        if ranks.is_empty() || self.server.node.is_drive_stalled(drive) {
            return None;
        }
        let prefix = prefix_of(&element_key(collection.key.space(), collection.id, sub, &[]))?;
        let moves = self.transaction.as_ref().map_or(&[][..], |overlay| &overlay.moves);
        if moves.len() > OWN_MOVES_MAX {
            return None;
        }
        let own = moves.iter().filter(|(key, _)| key.starts_with(&prefix));
        let own: Vec<(&[u8], i8)> = own.map(|(key, by)| (&key[ELEMENT_PREFIX_BYTES..], *by)).collect();
        let found = ranks.change(|orders| {
            let counts = orders.counts(&prefix)?;
            let mut now = Cow::Borrowed(&counts.counts);
            for (field, by) in &own {
                let count = &mut now.to_mut()[counts.stretch_of(field)];
                *count = count.wrapping_add_signed((*by).into());
            }
            let total =
                own.iter().fold(counts.total, |total, (_, by)| total.wrapping_add_signed((*by).into()));
            if total != collection.count {
                orders.remove(&prefix);
                return None;
            }
            let (at, before) = match asked {
                Asked::Field(field) => {
                    let at = counts.stretch_of(field);
                    (at, now[..at].iter().map(|&count| u64::from(count)).sum())
                }
                Asked::Rank(rank) => {
                    let mut before = 0;
                    let at = now.iter().position(|&count| {
                        let is_within = rank < before + u64::from(count);
                        before += if is_within { 0 } else { u64::from(count) };
                        is_within
                    });
                    (at?, before)
                }
            };
            let start = |at: usize| counts.starts.get(at).map(|start| RawKey::from_slice(start));
            let len = u64::from(now[at]);
            let cut_to = (len > STRETCH_GROWTH * counts.stretch).then_some(counts.stretch);
            Some(Stretch { lower: start(at)?, upper: start(at + 1), before, len, cut_to })
        })?;
        // The walk that follows does as much, unless the drive has stalled by then.
        self.server.node.depend(&mut self.gate, drive, self.server.node.store(drive).last_seq());
        Some(found)
    }

    /// Has an order gone over in the background, so that ranks in it are known. Hold the latch.
    pub fn count_order(&mut self, collection: &Collection, sub: u8) {
        if self.server.node.is_drive_stalled(collection.elements.drive) {
            return;
        }
        let whole = element_key(collection.key.space(), collection.id, sub, &[]);
        let Some(prefix) = prefix_of(&whole) else { return };
        let Some(number) = self.server.ranks.begin(prefix) else { return };
        let (server, place, count) = (self.server.clone(), collection.elements, collection.count);
        let snapshot = self.snapshot_of(collection);
        pumice_reactor::spawn(async move {
            let stretches = (server.ranks.bytes_max / 2 / STRETCH_BYTES) as u64;
            let len = server.ranks.stretch.max(count / stretches.max(1));
            let bounds = (RawKey::from_slice(&prefix), after_prefix(&prefix));
            let counts = go_over(&server, place, &snapshot, bounds, len).await;
            server.ranks.end(prefix, number, counts);
        });
    }

    /// Cuts a stretch that has become long into several. Hold the latch.
    pub async fn cut_stretch(&mut self, collection: &Collection, sub: u8, stretch: &Stretch) {
        // Within EXEC it is not known yet what will be there.
        let Some(len) = stretch.cut_to.filter(|_| self.transaction.is_none()) else { return };
        let key = |field: &[u8]| element_key(collection.key.space(), collection.id, sub, field);
        let Some(prefix) = prefix_of(&key(&[])) else { return };
        let upper = stretch.upper.as_ref().map_or_else(|| after_prefix(&prefix), |upper| Some(key(upper)));
        let snapshot = self.snapshot_of(collection);
        let bounds = (key(&stretch.lower), upper);
        let cut = go_over(&self.server, collection.elements, &snapshot, bounds, len).await;
        let bytes_max = self.server.ranks.bytes_max;
        self.server.ranks.change(|orders| {
            let Some(Order::Counted { mut counts, asked_at }) = orders.remove(&prefix) else { return };
            let Some(mut cut) = cut else { return };
            let at = counts.stretch_of(&stretch.lower);
            if cut.total != u64::from(counts.counts[at]) {
                return;
            }
            cut.starts[0] = counts.starts[at].clone();
            counts.starts.splice(at..=at, cut.starts);
            counts.counts.splice(at..=at, cut.counts);
            counts.weigh();
            orders.insert(prefix, counts, asked_at, bytes_max);
        });
    }
}

/// Counts the elements between two keys, `len` to a stretch. `None`: they could not be read.
async fn go_over(
    server: &Server,
    place: Place,
    snapshot: &Snapshot,
    (lower, upper): (RawKey, Option<RawKey>),
    len: u64,
) -> Option<Counts> {
    let owned = |key: &RawKey| Bytes::copy_from_slice(key);
    let upper = upper.as_ref().map_or(Bound::Unbounded, |upper| Bound::Excluded(owned(upper)));
    let (lower, slice) = (Bound::Included(owned(&lower)), SliceSet::One(place.slice));
    let store = server.node.store(place.drive);
    let mut scan = store.scan(snapshot, slice, lower, upper, Direction::Forward, Want::Keys);
    let mut counts = Counts { starts: vec![Start::new()], counts: vec![0], total: 0, stretch: len, bytes: 0 };
    loop {
        // The last of this stretch and the first of the next say where one begins.
        let unseen = scan.skip(len - 1).await.ok()?;
        let last = scan.next().await.ok()?;
        let at = counts.counts.len() - 1;
        let seen = unseen + u64::from(last.is_some());
        counts.counts[at] += seen as u32;
        counts.total += seen;
        let Some((last, _)) = last else { break };
        let Some((first, _)) = scan.next().await.ok()? else { break };
        counts.starts.push(between(&last[ELEMENT_PREFIX_BYTES..], &first[ELEMENT_PREFIX_BYTES..]));
        counts.counts.push(1);
        counts.total += 1;
        pumice_reactor::yield_now().await;
    }
    counts.weigh();
    Some(counts)
}

/// The shortest that lies behind `last`, and not behind `first`.
fn between(last: &[u8], first: &[u8]) -> Start {
    let same = last.iter().zip(first).take_while(|(a, b)| a == b).count();
    Start::from_slice(&first[..(same + 1).min(first.len())])
}
