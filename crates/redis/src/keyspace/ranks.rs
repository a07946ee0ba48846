//! How many elements lie before a place in a long order: counts of stretches of it, in memory alone.
//!
//! The order of a sorted set is a plain sorted run of elements, without counts in it. Who asks for ranks far from its ends has it gone
//! over once, in the background, and from then on counts of stretches of some hundred elements are kept in memory: a rank is their sum and
//! a part of one stretch.
//!
//! 1. [`Ctx::count_order`] enters the order as one that is being gone over. That is done piece by piece, each as of a moment at which
//!    nobody was between writing and telling of it ([`super::Change::moves`]): what was written before lies in what is still to be gone
//!    over, where it is found, or before it, where it is added to what is counted already.
//! 2. Writers take the counts away while they write, and give them back with what they changed: if they fail, or their client goes, there
//!    are none, and the next who asks begins anew. Nobody misses them meanwhile: who asks needs the latch, too, and nobody begins.
//! 3. Within EXEC, what the transaction changed is added to what is asked.
//! 4. Whose counts come to another sum than the head says is forgotten.
//!
//! They have a share of the memory; those that were asked for longest ago go first. Nothing of it is on flash. (Rejected: counts kept beside
//! the order on flash, which cost every write a second read and write for ranks that few ask for.)

use std::borrow::Cow;
use std::ops::Bound;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use pumice_base::hash::HashMap;
use pumice_base::sync::lock;
use pumice_kv::{Direction, SliceSet, Snapshot, Want};
use pumice_node::{KeyHash, Place};
use pumice_reactor::sync::Event;
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
/// Stretches that are counted between two looks at what is written meanwhile.
const STRETCHES_PIECE: u64 = 64;
/// Changes that are noted meanwhile.
const MOVES_MAX: usize = 1 << 16;
/// Changes of a transaction that are looked through for each question.
const OWN_MOVES_MAX: usize = 1 << 12;
/// Stretches whose counts are summed up.
const GROUP: usize = 128;
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

/// Counts of stretches, and of groups of them.
#[derive(Clone, Default)]
struct Sums {
    counts: Vec<u32>,
    /// Elements of [`GROUP`] stretches each, of those that there were when it was made.
    groups: Vec<u64>,
}

impl Sums {
    /// `false`: what went was not there.
    fn add(&mut self, at: usize, by: i8) -> bool {
        let Some(count) = self.counts.get(at).and_then(|count| count.checked_add_signed(by.into())) else {
            return false;
        };
        self.counts[at] = count;
        if let Some(group) = self.groups.get_mut(at / GROUP) {
            *group = group.wrapping_add_signed(by.into());
        }
        true
    }

    /// Stretches came or went.
    fn group(&mut self) {
        self.groups = self.counts.chunks(GROUP).map(sum).collect();
    }

    fn before(&self, at: usize) -> u64 {
        let groups = at / GROUP;
        self.groups[..groups].iter().sum::<u64>() + sum(&self.counts[groups * GROUP..at])
    }

    /// The stretch that the element of a rank lies in, and how many lie before it.
    fn of_rank(&self, rank: u64) -> Option<(usize, u64)> {
        let mut before = 0;
        let mut is_behind = |len: u64| {
            let is_behind = rank >= before + len;
            before += if is_behind { len } else { 0 };
            is_behind
        };
        let group = self.groups.iter().position(|&len| !is_behind(len))?;
        let rest = self.counts[group * GROUP..].iter();
        let at = rest.map(|&len| u64::from(len)).position(|len| !is_behind(len))?;
        Some((group * GROUP + at, before))
    }
}

fn sum(counts: &[u32]) -> u64 {
    counts.iter().map(|&count| u64::from(count)).sum()
}

/// Counts of one order.
struct Counts {
    /// The first is empty.
    starts: Vec<Start>,
    sums: Sums,
    total: u64,
    /// Elements in a new stretch.
    stretch: u64,
    /// What they take in memory.
    bytes: usize,
}

impl Counts {
    fn new(stretch: u64) -> Self {
        Self { starts: Vec::new(), sums: Sums::default(), total: 0, stretch, bytes: 0 }
    }

    fn stretch_of(&self, field: &[u8]) -> usize {
        self.starts.partition_point(|start| start[..] <= *field).saturating_sub(1)
    }

    /// A stretch behind the others, of so many elements.
    fn push(&mut self, start: Start, len: u64) {
        self.starts.push(start);
        self.sums.counts.push(len as u32);
        self.total += len;
    }

    /// `false`: what went was not there.
    fn apply(&mut self, field: &[u8], by: i8) -> bool {
        let at = self.stretch_of(field);
        if !self.sums.add(at, by) {
            return false;
        }
        self.total = self.total.wrapping_add_signed(by.into());
        if self.sums.counts[at] == 0 && self.starts.len() > 1 {
            self.sums.counts.remove(at);
            self.starts.remove(at);
            self.weigh();
            if let Some(first) = self.starts.first_mut() {
                first.clear();
            }
        }
        true
    }

    /// `false`: they do not fit what is counted.
    fn apply_all(&mut self, mut moves: impl Iterator<Item = Move>) -> bool {
        moves.all(|(key, by)| self.apply(&key[ELEMENT_PREFIX_BYTES..], by))
    }

    /// Puts others in the place of a stretch.
    fn replace(&mut self, at: usize, mut by: Counts) {
        by.starts[0] = self.starts[at].clone();
        self.starts.splice(at..=at, by.starts);
        self.sums.counts.splice(at..=at, by.sums.counts);
        self.weigh();
    }

    /// Stretches came or went.
    fn weigh(&mut self) {
        self.sums.group();
        let long = self.starts.iter().filter(|start| start.spilled()).map(SmallVec::len);
        self.bytes = size_of::<(Prefix, Order)>() + self.starts.len() * STRETCH_BYTES + long.sum::<usize>();
    }
}

enum Order {
    Counting(Counting),
    Counted {
        counts: Counts,
        asked_at: u64,
    },
    /// Whoever writes has the counts, or had them and did not come to an end.
    Taken,
}

/// An order that is gone over now.
struct Counting {
    /// By whom.
    number: u64,
    /// What changed since its last look at them.
    moves: Vec<Move>,
    /// By somebody who has not said yet what he changed.
    is_written: bool,
    /// Set when it comes to an end.
    ended: Arc<Event>,
}

#[derive(Default)]
struct Orders {
    orders: HashMap<Prefix, Order>,
    bytes: usize,
    /// Rises with everything that is asked.
    clock: u64,
    /// Orders that were gone over to their ends.
    counted: u64,
}

impl Orders {
    /// Takes counts away, and when they were asked for last.
    fn remove(&mut self, prefix: &Prefix) -> Option<(Counts, u64)> {
        if !matches!(self.orders.get(prefix), Some(Order::Counted { .. })) {
            return None;
        }
        let Some(Order::Counted { counts, asked_at }) = self.orders.remove(prefix) else { return None };
        self.bytes -= counts.bytes;
        Some((counts, asked_at))
    }

    fn insert(&mut self, prefix: Prefix, counts: Counts, asked_at: u64, bytes_max: usize) {
        self.bytes += counts.bytes;
        self.orders.insert(prefix, Order::Counted { counts, asked_at });
        while self.bytes > bytes_max {
            let asked_at = |order: &Order| match order {
                Order::Counting(_) | Order::Taken => u64::MAX,
                Order::Counted { asked_at, .. } => *asked_at,
            };
            let oldest =
                self.orders.iter().min_by_key(|(_, order)| asked_at(order)).map(|(prefix, _)| *prefix);
            oldest.and_then(|prefix| self.remove(&prefix));
        }
    }

    fn counting(&mut self, prefix: &Prefix, number: u64) -> Option<&mut Counting> {
        match self.orders.get_mut(prefix)? {
            Order::Counting(counting) => Some(counting).filter(|counting| counting.number == number),
            Order::Counted { .. } | Order::Taken => None,
        }
    }

    fn counts(&mut self, prefix: &Prefix) -> Option<&mut Counts> {
        self.clock += 1;
        match self.orders.get_mut(prefix)? {
            Order::Counting(_) | Order::Taken => None,
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

/// What a server has counted.
pub struct Counted {
    /// Orders that are.
    pub orders: usize,
    /// What that takes in memory.
    pub bytes: usize,
    /// Orders that were counted since the start, some more than once.
    pub times: u64,
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

impl Stretch {
    /// Whether [`Ctx::cut_stretch`] has something to do.
    pub fn is_long(&self) -> bool {
        self.cut_to.is_some()
    }
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

    /// What there is.
    pub fn counted(&self) -> Counted {
        let orders = lock(&self.orders);
        let counted = orders.orders.values().filter(|order| matches!(order, Order::Counted { .. }));
        Counted { orders: counted.count(), bytes: orders.bytes, times: orders.counted }
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
                if let Some(Order::Counting(counting)) = orders.orders.get_mut(&prefix) {
                    counting.is_written = true;
                    taken.0.push((prefix, TakenOrder::Counting(counting.number)));
                } else if let Some((counts, asked_at)) = orders.remove(&prefix) {
                    orders.orders.insert(prefix, Order::Taken);
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
                TakenOrder::Counting(number) => self.change(|orders| {
                    if let Some(counting) = orders.counting(&prefix, number) {
                        counting.moves.extend(own.cloned());
                        // What is too much to be noted is as good as not known.
                        counting.is_written = counting.moves.len() > MOVES_MAX;
                    }
                }),
                TakenOrder::Counted { mut counts, asked_at } => {
                    let fits = own.all(|(key, by)| counts.apply(&key[ELEMENT_PREFIX_BYTES..], *by));
                    self.change(|orders| {
                        orders.orders.remove(&prefix);
                        if fits {
                            orders.insert(prefix, counts, asked_at, self.bytes_max);
                        }
                    });
                }
            }
        }
    }

    /// Enters an order as one that is being gone over, or finds that it is. Who is told a number does it.
    fn begin(&self, prefix: Prefix) -> Option<(Arc<Event>, Option<u64>)> {
        self.change(|orders| {
            match orders.orders.get(&prefix) {
                Some(Order::Counting(counting)) => return Some((counting.ended.clone(), None)),
                Some(Order::Counted { .. } | Order::Taken) => return None,
                None => {}
            }
            let under_way = orders.orders.values().filter(|order| matches!(order, Order::Counting(_)));
            if under_way.count() >= COUNTED_AT_ONCE {
                return None;
            }
            orders.clock += 1;
            let (number, ended) = (orders.clock, Arc::new(Event::new()));
            let counting = Counting { number, moves: Vec::new(), is_written: false, ended: ended.clone() };
            orders.orders.insert(prefix, Order::Counting(counting));
            Some((ended, Some(number)))
        })
    }
}

/// One who goes over an order; if it is dropped, nobody does.
struct Counter {
    server: Arc<Server>,
    place: Place,
    /// Of the key's latch.
    hash: KeyHash,
    prefix: Prefix,
    number: u64,
    ended: Arc<Event>,
}

impl Drop for Counter {
    fn drop(&mut self) {
        self.server.ranks.change(|orders| {
            if orders.counting(&self.prefix, self.number).is_some() {
                orders.orders.remove(&self.prefix);
            }
        });
        self.ended.set();
    }
}

impl Counter {
    /// Goes over it all. `None`: it could not be read, or somebody who wrote did not come to an end.
    async fn count(&self, stretch: u64) -> Option<()> {
        let mut counts = Counts::new(stretch);
        let end = after_prefix(&self.prefix);
        let mut from = Some(RawKey::from_slice(&self.prefix));
        while let Some(lower) = from {
            let store = self.server.node.store(self.place.drive);
            let snapshot = self
                .at_moment(|moves, _| {
                    let known = moves.drain(..).filter(|(key, _)| *key < lower);
                    counts.apply_all(known).then(|| store.snapshot_of(self.place.slice))
                })
                .await?;
            let bounds = (lower, end.clone());
            from = go_over(&self.server, self.place, &snapshot, bounds, &mut counts, STRETCHES_PIECE).await?;
        }
        let bytes_max = self.server.ranks.bytes_max;
        self.at_moment(|moves, orders| {
            if !counts.apply_all(moves.drain(..)) {
                return None;
            }
            counts.weigh();
            let counts = std::mem::replace(&mut counts, Counts::new(stretch));
            orders.insert(self.prefix, counts, orders.clock, bytes_max);
            orders.counted += 1;
            Some(())
        })
        .await
    }

    /// Looks at what changed since it last did, while nobody is between writing and telling of it.
    async fn at_moment<T>(&self, look: impl FnOnce(&mut Vec<Move>, &mut Orders) -> Option<T>) -> Option<T> {
        // Writers come one by one, and let this one have its turn. Where the key was renamed meanwhile they use another latch.
        let _held = self.server.node.latches().latch(&[self.hash]).await;
        self.server.ranks.change(|orders| {
            let counting = orders.counting(&self.prefix, self.number)?;
            if counting.is_written {
                return None;
            }
            let mut moves = std::mem::take(&mut counting.moves);
            look(&mut moves, orders)
        })
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
            // Nobody writes now: who took them did not come to an end.
            if matches!(orders.orders.get(&prefix), Some(Order::Taken)) {
                orders.orders.remove(&prefix);
            }
            let counts = orders.counts(&prefix)?;
            let (mut now, mut total) = (Cow::Borrowed(&counts.sums), counts.total);
            for (field, by) in &own {
                now.to_mut().add(counts.stretch_of(field), *by);
                total = total.wrapping_add_signed((*by).into());
            }
            if total != collection.count {
                orders.remove(&prefix);
                return None;
            }
            let (at, before) = match asked {
                Asked::Field(field) => {
                    let at = counts.stretch_of(field);
                    (at, now.before(at))
                }
                Asked::Rank(rank) => now.of_rank(rank)?,
            };
            let start = |at: usize| counts.starts.get(at).map(|start| RawKey::from_slice(start));
            let len = u64::from(now.counts[at]);
            let cut_to = (len > STRETCH_GROWTH * counts.stretch).then_some(counts.stretch);
            Some(Stretch { lower: start(at)?, upper: start(at + 1), before, len, cut_to })
        })?;
        // The walk that follows does as much, unless the drive has stalled by then.
        self.server.node.depend(&mut self.gate, drive, self.server.node.store(drive).last_seq());
        Some(found)
    }

    /// Has an order gone over in the background, so that ranks in it are known; answers what will be set when it ends. `None`: it is
    /// not, or was.
    pub fn count_order(&mut self, collection: &Collection, sub: u8) -> Option<Arc<Event>> {
        let place = collection.elements;
        if self.server.node.is_drive_stalled(place.drive) {
            return None;
        }
        let prefix = prefix_of(&element_key(collection.key.space(), collection.id, sub, &[]))?;
        let (ended, number) = self.server.ranks.begin(prefix)?;
        if let Some(number) = number {
            let stretches = (self.server.ranks.bytes_max / 2 / STRETCH_BYTES) as u64;
            let stretch = self.server.ranks.stretch.max(collection.count / stretches.max(1));
            let (server, hash) = (self.server.clone(), collection.key.hash());
            let counter = Counter { server, place, hash, prefix, number, ended: ended.clone() };
            pumice_reactor::spawn(async move {
                counter.count(stretch).await;
            });
        }
        Some(ended)
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
        let mut cut = Counts::new(len);
        let rest = go_over(&self.server, collection.elements, &snapshot, bounds, &mut cut, u64::MAX).await;
        let bytes_max = self.server.ranks.bytes_max;
        self.server.ranks.change(|orders| {
            let Some((mut counts, asked_at)) = orders.remove(&prefix) else { return };
            let at = counts.stretch_of(&stretch.lower);
            if rest.is_none() || cut.total != u64::from(counts.sums.counts[at]) {
                return;
            }
            counts.replace(at, cut);
            orders.insert(prefix, counts, asked_at, bytes_max);
        });
    }
}

/// Counts the elements between two keys behind what `counts` has, so many stretches at most, and answers where to go on. `None`: they
/// could not be read.
async fn go_over(
    server: &Server,
    place: Place,
    snapshot: &Snapshot,
    (lower, upper): (RawKey, Option<RawKey>),
    counts: &mut Counts,
    stretches: u64,
) -> Option<Option<RawKey>> {
    let owned = |key: &RawKey| Bytes::copy_from_slice(key);
    let upper = upper.as_ref().map_or(Bound::Unbounded, |upper| Bound::Excluded(owned(upper)));
    let (from, slice) = (Bound::Included(owned(&lower)), SliceSet::One(place.slice));
    let store = server.node.store(place.drive);
    let mut scan = store.scan(snapshot, slice, from, upper, Direction::Forward, Want::Keys);
    let mut start = Start::from_slice(&lower[ELEMENT_PREFIX_BYTES..]);
    let mut seen = 0;
    for _ in 0..stretches {
        // The last of this stretch and the first of the next say where one begins.
        seen += scan.skip(counts.stretch - 1 - seen).await.ok()?;
        let last = scan.next().await.ok()?;
        seen += u64::from(last.is_some());
        if seen == 0 && !counts.starts.is_empty() {
            return Some(None);
        }
        counts.push(start, seen);
        let Some((last, _)) = last else { return Some(None) };
        let Some((first, _)) = scan.next().await.ok()? else { return Some(None) };
        start = between(&last[ELEMENT_PREFIX_BYTES..], &first[ELEMENT_PREFIX_BYTES..]);
        seen = 1;
        pumice_reactor::yield_now().await;
    }
    Some(Some(element_from(&lower, &start)))
}

/// The key of what begins with `start`, in the order that `key` is of.
fn element_from(key: &RawKey, start: &Start) -> RawKey {
    let mut from = RawKey::from_slice(&key[..ELEMENT_PREFIX_BYTES]);
    from.extend_from_slice(start);
    from
}

/// The shortest that lies behind `last`, and not behind `first`.
fn between(last: &[u8], first: &[u8]) -> Start {
    let same = last.iter().zip(first).take_while(|(a, b)| a == b).count();
    Start::from_slice(&first[..(same + 1).min(first.len())])
}
