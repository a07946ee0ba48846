//! Permits that tasks wait for, first come, first served.

use super::waiters::{WaiterId, Waiters};
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Poll;

use pumice_base::sync::lock;

/// A bounded number of permits, handed out in order of asking (a large request is not overtaken by small ones).
pub struct Semaphore {
    state: Mutex<State>,
}

struct State {
    available: u64,
    waiters: Waiters<u64>,
}

impl Semaphore {
    /// With `permits` available.
    pub const fn new(permits: u64) -> Self {
        Self { state: Mutex::new(State { available: permits, waiters: Waiters::new() }) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Permits that nobody holds.
    pub fn available(&self) -> u64 {
        self.state().available
    }

    /// `n` permits if they can be had at once.
    pub fn try_acquire(&self, n: u64) -> Option<Permit<'_>> {
        self.try_take(n).then(|| Permit { semaphore: self, permits: n })
    }

    /// Waits for `n` permits. Waits for ever if there are never so many.
    pub async fn acquire(&self, n: u64) -> Permit<'_> {
        self.take(n).await;
        Permit { semaphore: self, permits: n }
    }

    /// [`acquire`](Self::acquire), with a permit that keeps the semaphore alive.
    pub async fn acquire_owned(self: &Arc<Self>, n: u64) -> OwnedPermit {
        self.take(n).await;
        OwnedPermit { semaphore: Arc::clone(self), permits: n }
    }

    /// Adds `n` permits: gives back, or raises the bound.
    pub fn release(&self, n: u64) {
        let mut state = self.state();
        state.available += n;
        // Permits are taken on behalf of whoever is woken, so that nobody overtakes.
        let mut woken = Vec::new();
        while let Some(wants) = state.waiters.front().map(|waiter| waiter.wants) {
            if wants > state.available {
                break;
            }
            state.available -= wants;
            woken.extend(state.waiters.pop().map(|waiter| waiter.waker));
        }
        drop(state);
        for waker in woken {
            waker.wake();
        }
    }

    fn try_take(&self, n: u64) -> bool {
        let mut state = self.state();
        let free = state.waiters.front().is_none() && state.available >= n;
        if free {
            state.available -= n;
        }
        free
    }

    async fn take(&self, n: u64) {
        if self.try_take(n) {
            return;
        }
        let mut waiting = Waiting { semaphore: self, permits: n, id: None };
        poll_fn(|context| {
            let mut state = self.state();
            match waiting.id {
                None => {
                    if state.waiters.front().is_none() && state.available >= n {
                        state.available -= n;
                        return Poll::Ready(());
                    }
                    waiting.id = Some(state.waiters.push(n, context.waker().clone()));
                }
                Some(id) => match state.waiters.get_mut(id) {
                    Some(waiter) => waiter.waker.clone_from(context.waker()),
                    None => {
                        waiting.id = None;
                        return Poll::Ready(());
                    }
                },
            }
            Poll::Pending
        })
        .await;
    }
}

struct Waiting<'a> {
    semaphore: &'a Semaphore,
    permits: u64,
    id: Option<WaiterId>,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let Some(id) = self.id else { return };
        let waiter = self.semaphore.state().waiters.remove(id);
        // Either the permits were granted just now, or whoever is behind may fit into what is available.
        self.semaphore.release(if waiter.is_none() { self.permits } else { 0 });
    }
}

/// Permits, given back on drop.
pub struct Permit<'a> {
    semaphore: &'a Semaphore,
    permits: u64,
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        self.semaphore.release(self.permits);
    }
}

/// Permits that keep their semaphore alive, given back on drop.
pub struct OwnedPermit {
    semaphore: Arc<Semaphore>,
    permits: u64,
}

impl Drop for OwnedPermit {
    fn drop(&mut self) {
        self.semaphore.release(self.permits);
    }
}
