//! A number that only rises, and tasks that wait until it has reached theirs, lowest first.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt;
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Poll, Waker};

use pumice_base::sync::lock;

/// A number that only grows, and waiters that each wait until it reaches theirs: "durable up to here".
pub struct Gate {
    current: AtomicU64,
    failed: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    slots: Vec<Slot>,
    free: Vec<usize>,
    /// (what is waited for, slot). Who gave up leaves an entry without a waker; at most half of the heap is such.
    heap: BinaryHeap<Reverse<(u64, usize)>>,
    abandoned: usize,
    failure: Option<Arc<str>>,
    /// Reused between openings.
    woken: Vec<Waker>,
}

struct Slot {
    /// How often the slot was used before: a waiter that was woken no longer owns it.
    generation: u64,
    waker: Option<Waker>,
}

impl State {
    fn insert(&mut self, target: u64, waker: Waker) -> (usize, u64) {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { generation: 0, waker: None });
            self.slots.len() - 1
        });
        self.heap.push(Reverse((target, index)));
        let slot = &mut self.slots[index];
        slot.waker = Some(waker);
        (index, slot.generation)
    }

    fn owned(&mut self, (index, generation): (usize, u64)) -> Option<&mut Slot> {
        self.slots.get_mut(index).filter(|slot| slot.generation == generation)
    }

    fn release(&mut self, index: usize) -> Option<Waker> {
        self.free.push(index);
        let slot = &mut self.slots[index];
        slot.generation += 1;
        let waker = slot.waker.take();
        self.abandoned -= usize::from(waker.is_none());
        waker
    }

    /// Its waiter goes away.
    fn abandon(&mut self, slot: (usize, u64)) -> Option<Waker> {
        let waker = self.owned(slot)?.waker.take();
        self.abandoned += 1;
        // What is waited for may not come for as long as the process lives.
        if self.abandoned > self.heap.len() / 2 {
            let Self { slots, free, heap, .. } = self;
            heap.retain(|&Reverse((_, index))| {
                let slot = &mut slots[index];
                if slot.waker.is_none() {
                    slot.generation += 1;
                    free.push(index);
                }
                slot.waker.is_some()
            });
            self.abandoned = 0;
        }
        waker
    }
}

/// The gate failed before it opened far enough.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GateFailed {
    /// Why.
    pub reason: Arc<str>,
}

impl fmt::Display for GateFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

impl std::error::Error for GateFailed {}

impl Gate {
    /// Open to `current`.
    pub fn new(current: u64) -> Self {
        Self { current: AtomicU64::new(current), failed: AtomicBool::new(false), state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// How far it is open.
    pub fn current(&self) -> u64 {
        self.current.load(Ordering::Acquire)
    }

    /// Whether it is open to `n`.
    pub fn is_open(&self, n: u64) -> bool {
        self.current() >= n
    }

    /// Opens it to `n`, and wakes those who waited for up to `n`; nothing if it is open further.
    pub fn open_to(&self, n: u64) {
        let mut woken = {
            let mut state = self.state();
            if n <= self.current() {
                return;
            }
            self.current.store(n, Ordering::Release);
            // Nobody to be woken, nothing to be put back: without a second look under the lock.
            if state.heap.peek().is_none_or(|&Reverse((target, _))| target > n) {
                return;
            }
            let mut woken = std::mem::take(&mut state.woken);
            while let Some(&Reverse((target, slot))) = state.heap.peek() {
                if target > n {
                    break;
                }
                state.heap.pop();
                woken.extend(state.release(slot));
            }
            woken
        };
        for waker in woken.drain(..) {
            waker.wake();
        }
        self.state().woken = woken;
    }

    /// Fails everyone who waits or will wait for more than is open now. The first reason stays.
    pub fn fail(&self, reason: &str) {
        let woken = {
            let mut state = self.state();
            if state.failure.is_some() {
                return;
            }
            state.failure = Some(reason.into());
            self.failed.store(true, Ordering::Release);
            let waiting = std::mem::take(&mut state.heap);
            waiting.into_iter().filter_map(|Reverse((_, slot))| state.release(slot)).collect::<Vec<_>>()
        };
        for waker in woken {
            waker.wake();
        }
    }

    /// Why it failed, if it did.
    pub fn failure(&self) -> Option<GateFailed> {
        if !self.failed.load(Ordering::Acquire) {
            return None;
        }
        self.state().failure.clone().map(|reason| GateFailed { reason })
    }

    /// Waits until it is open to `n`.
    pub async fn wait_for(&self, n: u64) -> Result<(), GateFailed> {
        if self.is_open(n) {
            return Ok(());
        }
        let mut waiting = Waiting { gate: self, slot: None };
        poll_fn(|context| {
            if self.is_open(n) {
                return Poll::Ready(Ok(()));
            }
            let mut state = self.state();
            if self.is_open(n) {
                return Poll::Ready(Ok(()));
            }
            if let Some(reason) = &state.failure {
                return Poll::Ready(Err(GateFailed { reason: Arc::clone(reason) }));
            }
            match waiting.slot.and_then(|slot| state.owned(slot)) {
                Some(slot) => slot.waker = Some(context.waker().clone()),
                None => waiting.slot = Some(state.insert(n, context.waker().clone())),
            }
            Poll::Pending
        })
        .await
    }
}

struct Waiting<'a> {
    gate: &'a Gate,
    slot: Option<(usize, u64)>,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if let Some(slot) = self.slot {
            let waker = self.gate.state().abandon(slot);
            drop(waker);
        }
    }
}
