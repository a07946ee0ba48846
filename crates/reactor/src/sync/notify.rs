//! A wake-up for one waiter or for all, kept when nobody waits yet.

use super::waiters::{WaiterId, Waiters};
use std::future::poll_fn;
use std::sync::{Mutex, MutexGuard};
use std::task::Poll;

use pumice_base::sync::lock;

/// Wakes one waiter, or all. A `notify_one` that finds nobody waiting is kept for the next (one only).
pub struct Notify {
    state: Mutex<State>,
}

struct State {
    waiters: Waiters<()>,
    kept: bool,
}

impl Default for Notify {
    fn default() -> Self {
        Self::new()
    }
}

impl Notify {
    /// Nobody notified.
    pub const fn new() -> Self {
        Self { state: Mutex::new(State { waiters: Waiters::new(), kept: false }) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Wakes the one who has waited longest, or lets the next waiter pass.
    pub fn notify_one(&self) {
        let waiter = {
            let mut state = self.state();
            let waiter = state.waiters.pop();
            state.kept |= waiter.is_none();
            waiter
        };
        if let Some(waiter) = waiter {
            waiter.waker.wake();
        }
    }

    /// Wakes everyone who waits now.
    pub fn notify_all(&self) {
        let mut woken = Vec::new();
        {
            let mut state = self.state();
            while let Some(waiter) = state.waiters.pop() {
                woken.push(waiter.waker);
            }
        }
        for waker in woken {
            waker.wake();
        }
    }

    /// Waits for a notification.
    pub async fn notified(&self) {
        let mut waiting = Waiting { notify: self, id: None };
        poll_fn(|context| {
            let mut state = self.state();
            match waiting.id {
                None => {
                    if std::mem::take(&mut state.kept) {
                        return Poll::Ready(());
                    }
                    waiting.id = Some(state.waiters.push((), context.waker().clone()));
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
    notify: &'a Notify,
    id: Option<WaiterId>,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let Some(id) = self.id else { return };
        let waiter = self.notify.state().waiters.remove(id);
        // Notified, but gone before it could act on it: pass it on.
        if waiter.is_none() {
            self.notify.notify_one();
        }
    }
}
