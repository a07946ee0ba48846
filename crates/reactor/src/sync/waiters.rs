//! A slab of wakers with generations, in order of arrival: what every primitive keeps its waiters in.

use std::collections::VecDeque;
use std::task::Waker;

/// Names a waiter; never reused.
pub(super) type WaiterId = u64;

/// Waiters in order of arrival, each with what it waits for.
pub(super) struct Waiters<T> {
    queue: VecDeque<Option<Waiter<T>>>,
    /// The id of the front of the queue.
    first: WaiterId,
}

pub(super) struct Waiter<T> {
    pub(super) wants: T,
    pub(super) waker: Waker,
}

impl<T> Waiters<T> {
    pub(super) const fn new() -> Self {
        Self { queue: VecDeque::new(), first: 0 }
    }

    pub(super) fn push(&mut self, wants: T, waker: Waker) -> WaiterId {
        let id = self.first + self.queue.len() as u64;
        self.queue.push_back(Some(Waiter { wants, waker }));
        id
    }

    pub(super) fn get_mut(&mut self, id: WaiterId) -> Option<&mut Waiter<T>> {
        let index = usize::try_from(id.checked_sub(self.first)?).ok()?;
        self.queue.get_mut(index)?.as_mut()
    }

    pub(super) fn remove(&mut self, id: WaiterId) -> Option<Waiter<T>> {
        let index = usize::try_from(id.checked_sub(self.first)?).ok()?;
        let waiter = self.queue.get_mut(index)?.take();
        self.trim();
        waiter
    }

    fn trim(&mut self) {
        while let Some(None) = self.queue.front() {
            self.queue.pop_front();
            self.first += 1;
        }
    }

    pub(super) fn front(&mut self) -> Option<&Waiter<T>> {
        self.trim();
        self.queue.front()?.as_ref()
    }

    pub(super) fn pop(&mut self) -> Option<Waiter<T>> {
        self.trim();
        let waiter = self.queue.pop_front()?;
        self.first += 1;
        waiter
    }
}
