//! An event that happens once: whoever waits before or after goes on.

use super::waiters::{WaiterId, Waiters};
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::task::Poll;

use pumice_base::sync::lock;

/// A flag that is set once; waiters wait until it is.
pub struct Event {
    set: AtomicBool,
    waiters: Mutex<Waiters<()>>,
}

impl Default for Event {
    fn default() -> Self {
        Self::new()
    }
}

impl Event {
    /// Not set.
    pub const fn new() -> Self {
        Self { set: AtomicBool::new(false), waiters: Mutex::new(Waiters::new()) }
    }

    fn waiters(&self) -> MutexGuard<'_, Waiters<()>> {
        lock(&self.waiters)
    }

    /// Sets it and wakes all waiters.
    pub fn set(&self) {
        {
            let _waiters = self.waiters();
            self.set.store(true, Ordering::Release);
        }
        loop {
            let Some(waiter) = self.waiters().pop() else { return };
            waiter.waker.wake();
        }
    }

    /// Whether it is set.
    pub fn is_set(&self) -> bool {
        self.set.load(Ordering::Acquire)
    }

    /// Waits until it is set.
    pub async fn wait(&self) {
        let mut waiting = Waiting { event: self, id: None };
        poll_fn(|context| {
            if self.is_set() {
                return Poll::Ready(());
            }
            let mut waiters = self.waiters();
            if self.is_set() {
                return Poll::Ready(());
            }
            match waiting.id.and_then(|id| waiters.get_mut(id)) {
                Some(waiter) => waiter.waker.clone_from(context.waker()),
                None => waiting.id = Some(waiters.push((), context.waker().clone())),
            }
            Poll::Pending
        })
        .await;
    }
}

struct Waiting<'a> {
    event: &'a Event,
    id: Option<WaiterId>,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            let waiter = self.event.waiters().remove(id);
            drop(waiter);
        }
    }
}
