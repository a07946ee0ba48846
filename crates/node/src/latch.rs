//! Key latches: they order commands that read, think and then write the same key.
//!
//! 1. A key's hash chooses one of [`STRIPES`] stripes; two keys may share one, which only makes them wait for
//!    each other. A command takes all its stripes at once, in ascending order and each once, so that no two
//!    commands wait for each other in a circle.
//! 2. A free stripe is taken by one compare-and-swap, without a lock and without a future: that is what an
//!    uncontended SET pays. A held one queues the waiter, first come, first served.
//! 3. Whoever releases *calls* the head of the queue and leaves the stripe free: until the waiter has woken up, which takes as
//!    long as a hundred commands, others may take it. One that comes and finds it taken is *handed* the stripe at the next
//!    release, so that a busy core cannot overtake a sleeping one for ever.
//! 4. A set is released when it is dropped, after the write is visible and before it is durable; wakers may
//!    live on other cores.
//!
//! Rejected: handing over at every release. On a key that everybody writes each hand-over took a wake-up, meanwhile all others
//! queued, and the queue never ended (`docs/decisions/0007`). One map entry per held key: it never makes strangers wait, but costs
//! a hash-map insert and removal per command, and its memory follows the load.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use pumice_base::hash::stable_hash64;
use pumice_base::sync::lock;
use smallvec::SmallVec;

/// Stripes in a [`Latches`]. With 4,096 of them, 50 connections that each hold one meet by chance in 1.2% of
/// their commands, and the table takes 256 KiB.
pub const STRIPES: usize = 4096;

/// Nobody holds the stripe.
const FREE: u32 = 0;
/// Held, and nobody waits.
const HELD: u32 = 1;
/// Held, and the queue may have waiters: the release must look.
const CONTENDED: u32 = 2;
/// Nobody holds the stripe, and the head of its queue was called.
const CALLED: u32 = 3;

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

/// Where a waiter is. Changed only by holders of its stripe's queue, but for `Abandoned`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Turn {
    Waiting,
    /// It may try.
    Called,
    /// It tried in vain: next time it is handed the stripe.
    Overtaken,
    /// It holds the stripe.
    Granted,
    Abandoned,
}

struct Waiter {
    state: Mutex<(Turn, Option<Waker>)>,
}

/// A line of its own, so that neighbours do not slow each other down.
#[repr(align(64))]
struct Stripe {
    state: AtomicU32,
    waiters: Mutex<VecDeque<Arc<Waiter>>>,
}

impl Stripe {
    fn try_take(&self) -> bool {
        match self.state.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => true,
            Err(CALLED) => self.try_overtake(),
            Err(_) => false,
        }
    }

    /// Takes the stripe that was left free for the head of the queue.
    fn try_overtake(&self) -> bool {
        self.state.compare_exchange(CALLED, CONTENDED, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Takes the stripe (`None`) or queues behind its holder (`Some`).
    fn take_or_queue(&self, waker: &Waker) -> Option<Arc<Waiter>> {
        let mut waiters = lock(&self.waiters);
        loop {
            if self.try_take() {
                return None;
            }
            match self.state.compare_exchange(HELD, CONTENDED, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) | Err(CONTENDED) => break,
                // Freed between the two: try again. The holder frees it at most once per taking.
                Err(_) => {}
            }
        }
        let waiter = Arc::new(Waiter { state: Mutex::new((Turn::Waiting, Some(waker.clone()))) });
        waiters.push_back(waiter.clone());
        Some(waiter)
    }

    /// Looks again for a waiter that was woken, or polled for another reason: whether the stripe is its own now.
    fn is_turn_of(&self, waiter: &Arc<Waiter>, waker: &Waker) -> bool {
        let mut waiters = lock(&self.waiters);
        let mut state = lock(&waiter.state);
        if state.0 == Turn::Called {
            if self.try_overtake() {
                state.0 = Turn::Granted;
                waiters.retain(|other| !Arc::ptr_eq(other, waiter));
                self.note_queue(&waiters);
            } else {
                state.0 = Turn::Overtaken;
            }
        }
        if state.0 == Turn::Granted {
            return true;
        }
        state.1 = Some(waker.clone());
        false
    }

    /// After waiters left the queue of a stripe that is held.
    fn note_queue(&self, waiters: &VecDeque<Arc<Waiter>>) {
        if waiters.is_empty() {
            self.state.store(HELD, Ordering::Relaxed);
        }
    }

    fn release(&self) {
        if self.state.compare_exchange(HELD, FREE, Ordering::Release, Ordering::Relaxed).is_ok() {
            return;
        }
        let mut waiters = lock(&self.waiters);
        let waker = loop {
            let Some(waiter) = waiters.front().cloned() else {
                self.state.store(FREE, Ordering::Release);
                return;
            };
            let mut state = lock(&waiter.state);
            match state.0 {
                Turn::Abandoned => {
                    waiters.pop_front();
                    continue;
                }
                // It is on its way, and may still be overtaken.
                Turn::Waiting | Turn::Called => {
                    state.0 = Turn::Called;
                    self.state.store(CALLED, Ordering::Release);
                }
                Turn::Overtaken => {
                    // Without passing through a state in which others may take it. The mutex orders the memory.
                    state.0 = Turn::Granted;
                    waiters.pop_front();
                    self.note_queue(&waiters);
                }
                Turn::Granted => unreachable!("who holds the stripe waits no more"),
            }
            break state.1.take();
        };
        drop(waiters);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// A waiter goes away, which may hold the stripe by now, or be the one that was called.
    fn abandon(&self, waiter: &Waiter) {
        let waiters = lock(&self.waiters);
        let turn = std::mem::replace(&mut lock(&waiter.state).0, Turn::Abandoned);
        let passes_on = match turn {
            Turn::Granted => true,
            // Whoever holds it otherwise calls the next one.
            Turn::Called => self.try_overtake(),
            Turn::Waiting | Turn::Overtaken | Turn::Abandoned => false,
        };
        drop(waiters);
        if passes_on {
            self.release();
        }
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
        let stripes = (0..STRIPES)
            .map(|_| Stripe { state: AtomicU32::new(FREE), waiters: Mutex::new(VecDeque::new()) })
            .collect();
        Self { table: Arc::new(Table { stripes, waits: AtomicU64::new(0) }) }
    }
}

type StripeSet = SmallVec<[u16; 4]>;

fn stripes_of(keys: &[KeyHash]) -> StripeSet {
    let mut set: StripeSet = keys.iter().map(|key| key.stripe()).collect();
    if set.len() > 1 {
        set.sort_unstable();
        set.dedup();
    }
    set
}

impl Latches {
    /// Takes the latches of all `keys` at once, or none when any is held. Never waits.
    pub fn try_latch(&self, keys: &[KeyHash]) -> Option<LatchSet> {
        let mut held = LatchSet { table: self.table.clone(), stripes: SmallVec::new() };
        for stripe in stripes_of(keys) {
            if !self.table.stripes[usize::from(stripe)].try_take() {
                return None; // `held` gives back what it has
            }
            held.stripes.push(stripe);
        }
        Some(held)
    }

    /// Takes the latches of all `keys`, waiting for holders in turn. Dropping the future gives everything back.
    pub fn latch(&self, keys: &[KeyHash]) -> Latching {
        self.latch_stripes(stripes_of(keys))
    }

    /// Takes every latch: nobody else is between read and write then. For commands over whole spaces.
    pub fn latch_all(&self) -> Latching {
        self.latch_stripes((0..STRIPES as u16).collect())
    }

    fn latch_stripes(&self, wanted: StripeSet) -> Latching {
        let held = LatchSet { table: self.table.clone(), stripes: SmallVec::with_capacity(wanted.len()) };
        Latching { wanted, held: Some(held), queued: None }
    }

    /// How often a command had to queue for a stripe since start.
    pub fn waits(&self) -> u64 {
        self.table.waits.load(Ordering::Relaxed)
    }
}

/// Held latches; dropping them releases all.
pub struct LatchSet {
    table: Arc<Table>,
    stripes: StripeSet,
}

impl Drop for LatchSet {
    fn drop(&mut self) {
        for &stripe in &self.stripes {
            self.table.stripes[usize::from(stripe)].release();
        }
    }
}

/// The future of [`Latches::latch`].
#[must_use = "latches are taken when the future is awaited"]
pub struct Latching {
    wanted: StripeSet,
    /// Taken so far; `None` once handed to the caller.
    held: Option<LatchSet>,
    /// The place in the queue of the next wanted stripe.
    queued: Option<Arc<Waiter>>,
}

impl Future for Latching {
    type Output = LatchSet;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<LatchSet> {
        let this = &mut *self;
        let held = this.held.as_mut().expect("a latch future is not polled after it is done");
        if let Some(waiter) = &this.queued {
            let stripe = this.wanted[held.stripes.len()];
            if !held.table.stripes[usize::from(stripe)].is_turn_of(waiter, cx.waker()) {
                return Poll::Pending;
            }
            held.stripes.push(stripe);
            this.queued = None;
        }
        while held.stripes.len() < this.wanted.len() {
            let stripe = this.wanted[held.stripes.len()];
            let place = &held.table.stripes[usize::from(stripe)];
            if !place.try_take()
                && let Some(waiter) = place.take_or_queue(cx.waker())
            {
                held.table.waits.fetch_add(1, Ordering::Relaxed);
                this.queued = Some(waiter);
                return Poll::Pending;
            }
            held.stripes.push(stripe);
        }
        Poll::Ready(this.held.take().expect("checked above"))
    }
}

impl Drop for Latching {
    fn drop(&mut self) {
        let (Some(waiter), Some(held)) = (&self.queued, &self.held) else { return };
        held.table.stripes[usize::from(self.wanted[held.stripes.len()])].abandon(waiter);
    }
}
