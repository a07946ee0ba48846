//! Key latches: they order commands that read, think and then write the same key.
//!
//! 1. A key's hash chooses one of [`STRIPES`] stripes. Who holds a stripe alone is told by one word, with the key's hash in it: a free one
//!    is taken by one compare-and-swap, without a lock and without a future. That is what an uncontended SET pays.
//! 2. Where a second one comes, a stripe has a list of who holds what of it, and a queue, under a mutex. Strangers whose keys share a
//!    stripe hold it side by side: some commands hold a key for seconds, and a stripe is met by every client within so many commands.
//! 3. A command takes all its stripes in ascending order and each once, the whole of it where two of its keys share one, so that no two
//!    commands wait for each other in a circle.
//! 4. Whoever releases *calls* the first who waits for the same, and leaves it free: until the waiter has woken up, which takes as
//!    long as a hundred commands, others may take it. One that comes and finds it taken is *handed* it at the next
//!    release, so that a busy core cannot overtake a sleeping one for ever.
//! 5. A set is released when it is dropped, after the write is visible and before it is durable; wakers may
//!    live on other cores.
//!
//! Rejected: handing over at every release. On a key that everybody writes each hand-over took a wake-up, meanwhile all others
//! queued, and the queue never ended (`docs/decisions/0007`). One map entry per held key: it costs a hash-map insert and removal
//! per command, and its memory follows the load. Stripes alone: while one SUNIONSTORE held three of them for six seconds, SETs of other
//! keys fell to a hundredth.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use pumice_base::hash::stable_hash64;
use pumice_base::sync::lock;
use smallvec::SmallVec;

/// Stripes in a [`Latches`]. With 4,096 of them, 50 connections that each hold a key meet in one by chance, which takes its list, in 1.2% of
/// their commands, and the table takes 256 KiB.
pub const STRIPES: usize = 4096;

/// What is held of a stripe: a key of it, by its hash, or the whole.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Part(u64);

impl Part {
    const WHOLE: Self = Self(HELD);

    fn of(key: KeyHash) -> Self {
        Self(key.0 | HELD)
    }

    /// Whether the two cannot be held at the same time.
    fn meets(self, other: Self) -> bool {
        self == other || self == Self::WHOLE || other == Self::WHOLE
    }
}

/// A stripe's word while nobody holds any of it, nor waits.
const FREE: u64 = 0;
/// In a stripe's word while one holds a part of it and nobody waits: the word is the part.
const HELD: u64 = 1;
/// A stripe's word while its list says the rest.
const LISTED: u64 = 2;

/// The hash of a user key in its space: what latches and watches tell keys apart by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KeyHash(pub u64);

impl KeyHash {
    /// The hash of `key` in `space` (a Redis database's key space).
    pub fn of(space: u32, key: &[u8]) -> Self {
        Self(stable_hash64(u64::from(space), key))
    }

    fn stripe(self) -> u16 {
        // The high bits: the low ones choose hash-map buckets elsewhere.
        (self.0 >> 52) as u16
    }
}

/// Where a waiter is. Changed only by who has its stripe's list.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Turn {
    Waiting,
    /// It may try.
    Called,
    /// It tried in vain: next time it is handed what it waits for.
    Overtaken,
    /// It holds it, and is not in the queue any more.
    Granted,
}

struct Waiter {
    part: Part,
    state: Mutex<(Turn, Option<Waker>)>,
}

/// Who holds parts of a stripe, and who waits for one, while they are more than one altogether.
#[derive(Default)]
struct List {
    held: Vec<Part>,
    /// First come, first called, of those that wait for the same.
    waiters: VecDeque<Arc<Waiter>>,
}

impl List {
    fn is_free(&self, part: Part) -> bool {
        !self.held.iter().any(|held| held.meets(part))
    }

    /// Whether one that comes now may take `part`: nobody holds it, nor is handed it next.
    fn may_take(&self, part: Part) -> bool {
        let first = || self.waiters.iter().find(|waiter| waiter.part.meets(part));
        self.is_free(part) && first().is_none_or(|first| lock(&first.state).0 == Turn::Called)
    }

    /// After one let `part` go, or waits for it no more: whom to wake.
    fn call(&mut self, part: Part) -> SmallVec<[Waker; 1]> {
        let mut wakers = SmallVec::new();
        let mut at = 0;
        while let Some(waiter) = self.waiters.get(at).cloned() {
            let is_next = waiter.part.meets(part)
                && self.is_free(waiter.part)
                && !self.waiters.range(..at).any(|before| before.part.meets(waiter.part));
            let mut state = lock(&waiter.state);
            if is_next {
                wakers.extend(state.1.take());
            }
            match state.0 {
                Turn::Overtaken if is_next => {
                    state.0 = Turn::Granted;
                    self.held.push(waiter.part);
                    self.waiters.remove(at);
                }
                _ => {
                    if is_next {
                        // It is on its way, and may still be overtaken.
                        state.0 = Turn::Called;
                    }
                    at += 1;
                }
            }
            // Others that wait for the same are behind it.
            if part != Part::WHOLE && waiter.part == part {
                break;
            }
        }
        wakers
    }

    fn forget(&mut self, waiter: &Arc<Waiter>) {
        self.waiters.retain(|other| !Arc::ptr_eq(other, waiter));
    }
}

/// A line of its own, so that neighbours do not slow each other down.
#[repr(align(64))]
struct Stripe {
    word: AtomicU64,
    /// Made when it is needed first, and kept.
    list: Mutex<Option<Box<List>>>,
}

impl Stripe {
    fn try_take(&self, part: Part) -> bool {
        match self.word.compare_exchange(FREE, part.0, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => true,
            // Who meets the holder alone needs no list to see it.
            Err(word) if word & HELD != 0 && Part(word).meets(part) => false,
            Err(_) => self.listed(|list| {
                let takes = list.may_take(part);
                if takes {
                    list.held.push(part);
                }
                takes
            }),
        }
    }

    /// Looks at the list, which holds all that there is meanwhile, or changes it.
    fn listed<T>(&self, change: impl FnOnce(&mut List) -> T) -> T {
        let mut list = lock(&self.list);
        let list = list.get_or_insert_default();
        let mut word = self.word.load(Ordering::Relaxed);
        // Only who has the mutex sets or clears it.
        while word != LISTED {
            match self.word.compare_exchange_weak(word, LISTED, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) if word == FREE => break,
                Ok(_) => {
                    list.held.push(Part(word));
                    break;
                }
                Err(now) => word = now,
            }
        }
        let result = change(list);
        match (&list.held[..], list.waiters.is_empty()) {
            ([], true) => self.word.store(FREE, Ordering::Release),
            ([part], true) => {
                self.word.store(part.0, Ordering::Release);
                list.held.clear();
            }
            _ => {}
        }
        result
    }

    /// Takes a part of the stripe (`None`) or queues for it (`Some`).
    fn take_or_queue(&self, part: Part, waker: &Waker) -> Option<Arc<Waiter>> {
        self.listed(|list| {
            if list.may_take(part) {
                list.held.push(part);
                return None;
            }
            let waiter = Arc::new(Waiter { part, state: Mutex::new((Turn::Waiting, Some(waker.clone()))) });
            list.waiters.push_back(waiter.clone());
            Some(waiter)
        })
    }

    /// Looks again for a waiter that was woken, or polled for another reason: whether what it waited for is its own now.
    fn is_turn_of(&self, waiter: &Arc<Waiter>, waker: &Waker) -> bool {
        self.listed(|list| {
            let mut state = lock(&waiter.state);
            if state.0 == Turn::Called {
                if list.is_free(waiter.part) {
                    state.0 = Turn::Granted;
                    list.held.push(waiter.part);
                    list.forget(waiter);
                } else {
                    state.0 = Turn::Overtaken;
                }
            }
            if state.0 == Turn::Granted {
                return true;
            }
            state.1 = Some(waker.clone());
            false
        })
    }

    fn release(&self, part: Part) {
        if self.word.compare_exchange(part.0, FREE, Ordering::Release, Ordering::Relaxed).is_ok() {
            return;
        }
        let wakers = self.listed(|list| {
            if let Some(at) = list.held.iter().position(|held| *held == part) {
                list.held.swap_remove(at);
            }
            list.call(part)
        });
        wakers.into_iter().for_each(Waker::wake);
    }

    /// A waiter goes away, which may hold what it waited for by now, or be the one that was called.
    fn abandon(&self, waiter: &Arc<Waiter>) {
        let wakers = self.listed(|list| {
            if lock(&waiter.state).0 == Turn::Granted
                && let Some(at) = list.held.iter().position(|held| *held == waiter.part)
            {
                list.held.swap_remove(at);
            }
            list.forget(waiter);
            list.call(waiter.part)
        });
        wakers.into_iter().for_each(Waker::wake);
    }
}

struct Table {
    stripes: Box<[Stripe]>,
    waits: AtomicU64,
}

/// The latches of one server. Cheap to clone; any core may take and release.
#[derive(Clone)]
pub struct Latches {
    table: Arc<Table>,
}

impl Default for Latches {
    fn default() -> Self {
        let stripes =
            (0..STRIPES).map(|_| Stripe { word: AtomicU64::new(FREE), list: Mutex::new(None) }).collect();
        Self { table: Arc::new(Table { stripes, waits: AtomicU64::new(0) }) }
    }
}

/// Parts of stripes, in the order in which they are taken.
type Parts = SmallVec<[(u16, Part); 4]>;

fn parts_of(keys: &[KeyHash]) -> Parts {
    let mut parts: Parts = keys.iter().map(|&key| (key.stripe(), Part::of(key))).collect();
    if parts.len() > 1 {
        parts.sort_unstable_by_key(|&(stripe, part)| (stripe, part.0));
        parts.dedup();
        for i in 1..parts.len() {
            if parts[i - 1].0 == parts[i].0 {
                (parts[i - 1].1, parts[i].1) = (Part::WHOLE, Part::WHOLE);
            }
        }
        parts.dedup();
    }
    parts
}

impl Latches {
    /// Takes the latches of all `keys` at once, or none when any is held. Never waits.
    pub fn try_latch(&self, keys: &[KeyHash]) -> Option<LatchSet> {
        let mut held = LatchSet { table: self.table.clone(), parts: SmallVec::new() };
        for (stripe, part) in parts_of(keys) {
            if !self.table.stripes[usize::from(stripe)].try_take(part) {
                return None; // `held` gives back what it has
            }
            held.parts.push((stripe, part));
        }
        Some(held)
    }

    /// Takes the latches of all `keys`, waiting for holders in turn. Dropping the future gives everything back.
    pub fn latch(&self, keys: &[KeyHash]) -> Latching {
        self.latch_parts(parts_of(keys))
    }

    /// Takes every latch: nobody else is between read and write then. For commands over whole spaces.
    pub fn latch_all(&self) -> Latching {
        self.latch_parts((0..STRIPES as u16).map(|stripe| (stripe, Part::WHOLE)).collect())
    }

    fn latch_parts(&self, wanted: Parts) -> Latching {
        let held = LatchSet { table: self.table.clone(), parts: SmallVec::with_capacity(wanted.len()) };
        Latching { wanted, held: Some(held), queued: None }
    }

    /// How often a command had to queue since start.
    pub fn waits(&self) -> u64 {
        self.table.waits.load(Ordering::Relaxed)
    }
}

/// Held latches; dropping them releases all.
pub struct LatchSet {
    table: Arc<Table>,
    parts: Parts,
}

impl Drop for LatchSet {
    fn drop(&mut self) {
        for &(stripe, part) in &self.parts {
            self.table.stripes[usize::from(stripe)].release(part);
        }
    }
}

/// The future of [`Latches::latch`].
#[must_use = "latches are taken when the future is awaited"]
pub struct Latching {
    wanted: Parts,
    /// Taken so far; `None` once handed to the caller.
    held: Option<LatchSet>,
    /// The place in the queue for the next that is wanted.
    queued: Option<Arc<Waiter>>,
}

impl Future for Latching {
    type Output = LatchSet;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<LatchSet> {
        let this = &mut *self;
        let held = this.held.as_mut().expect("a latch future is not polled after it is done");
        if let Some(waiter) = &this.queued {
            let (stripe, part) = this.wanted[held.parts.len()];
            if !held.table.stripes[usize::from(stripe)].is_turn_of(waiter, cx.waker()) {
                return Poll::Pending;
            }
            held.parts.push((stripe, part));
            this.queued = None;
        }
        while held.parts.len() < this.wanted.len() {
            let (stripe, part) = this.wanted[held.parts.len()];
            let place = &held.table.stripes[usize::from(stripe)];
            if !place.try_take(part)
                && let Some(waiter) = place.take_or_queue(part, cx.waker())
            {
                held.table.waits.fetch_add(1, Ordering::Relaxed);
                this.queued = Some(waiter);
                return Poll::Pending;
            }
            held.parts.push((stripe, part));
        }
        Poll::Ready(this.held.take().expect("checked above"))
    }
}

impl Drop for Latching {
    fn drop(&mut self) {
        let (Some(waiter), Some(held)) = (&self.queued, &self.held) else { return };
        held.table.stripes[usize::from(self.wanted[held.parts.len()].0)].abandon(waiter);
    }
}
