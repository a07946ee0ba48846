//! Wakers in order of arrival, each found by the number it came with: what every primitive keeps its waiters in.

use std::collections::VecDeque;
use std::task::Waker;

/// Names a waiter; never reused.
pub(super) type WaiterId = u64;

/// Waiters in order of arrival, each with what it waits for.
pub(super) struct Waiters<T> {
    /// By rising id. Who gave up leaves a hole; at most half of the queue is holes.
    queue: VecDeque<(WaiterId, Option<Waiter<T>>)>,
    holes: usize,
    next: WaiterId,
}

pub(super) struct Waiter<T> {
    pub(super) wants: T,
    pub(super) waker: Waker,
}

impl<T> Waiters<T> {
    pub(super) const fn new() -> Self {
        Self { queue: VecDeque::new(), holes: 0, next: 0 }
    }

    pub(super) fn push(&mut self, wants: T, waker: Waker) -> WaiterId {
        let id = self.next;
        self.next += 1;
        self.queue.push_back((id, Some(Waiter { wants, waker })));
        id
    }

    fn slot(&mut self, id: WaiterId) -> Option<&mut Option<Waiter<T>>> {
        let index = self.queue.binary_search_by_key(&id, |(id, _)| *id).ok()?;
        Some(&mut self.queue[index].1)
    }

    pub(super) fn get_mut(&mut self, id: WaiterId) -> Option<&mut Waiter<T>> {
        self.slot(id)?.as_mut()
    }

    pub(super) fn remove(&mut self, id: WaiterId) -> Option<Waiter<T>> {
        let waiter = self.slot(id)?.take();
        self.holes += usize::from(waiter.is_some());
        self.trim();
        // The front may wait for as long as the process lives.
        if self.holes > self.queue.len() / 2 {
            self.queue.retain(|(_, waiter)| waiter.is_some());
            self.holes = 0;
        }
        waiter
    }

    fn trim(&mut self) {
        while let Some((_, None)) = self.queue.front() {
            self.queue.pop_front();
            self.holes -= 1;
        }
    }

    pub(super) fn front(&mut self) -> Option<&Waiter<T>> {
        self.trim();
        self.queue.front()?.1.as_ref()
    }

    pub(super) fn pop(&mut self) -> Option<Waiter<T>> {
        self.trim();
        self.queue.pop_front()?.1
    }
}
