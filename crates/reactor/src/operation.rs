//! Operations from the executor's side: who waits for each, and what came of it.
//!
//! A slot belongs to an operation until its final completion, and to its outcome until that is taken; the driver may
//! index by it. An owner that goes away leaves the slot to be freed by the completion.

use crate::driver::{Completion, Op, Outcome, Token};
use crate::executor::{Core, current};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

impl Core {
    pub(crate) fn submit(&self, op: Op, state: State) -> Token {
        self.count(&op);
        let token = self.operations.borrow_mut().insert(state);
        self.driver.borrow_mut().submit(token, op);
        token
    }

    fn count(&self, op: &Op) {
        let counters = &self.remote.counters;
        match op {
            Op::Read { buf, start, .. } => {
                counters.reads.add(1);
                counters.read_bytes.add((buf.len() - start) as u64);
            }
            Op::Write { data, .. } => {
                counters.writes.add(1);
                counters.write_bytes.add(data.len() as u64);
            }
            Op::Sync { .. } => counters.syncs.add(1),
            Op::Punch { .. } | Op::Allocate { .. } => counters.allocations.add(1),
            Op::Connect { .. } => counters.connections.add(1),
            Op::Send { .. } => counters.sends.add(1),
            _ => {}
        }
    }

    pub(crate) fn cancel(&self, token: Token) {
        if self.operations.borrow().is_live(token) {
            self.remote.counters.cancels.add(1);
            self.driver.borrow_mut().cancel(token);
        }
    }

    /// Nobody waits for an operation any more: cancels it, or forgets what came of it. Does nothing after `drain`.
    pub(crate) fn abandon(&self, token: Token) {
        let mut operations = self.operations.borrow_mut();
        if !operations.is_live(token) {
            return;
        }
        let state = std::mem::replace(&mut operations.slot(token).state, State::Dropped);
        let done = matches!(state, State::Done(_));
        if done {
            operations.release(token);
        }
        drop(operations);
        match state {
            State::Done(outcome) => outcome.forget(),
            state => drop(state),
        }
        if !done {
            self.cancel(token);
        }
    }

    pub(crate) fn deliver(&self, completion: Completion) {
        let Completion { token, outcome, more } = completion;
        match &outcome {
            Outcome::Received(Ok(buf)) => {
                self.remote.counters.receives.add(1);
                self.remote.counters.receive_bytes.add(buf.len() as u64);
            }
            Outcome::Accepted(Ok(_)) => self.remote.counters.connections.add(1),
            _ => {}
        }
        let mut operations = self.operations.borrow_mut();
        let slot = operations.slot(token);
        let state = if more { None } else { Some(std::mem::replace(&mut slot.state, State::Free)) };
        let mut dropped = None;
        let (waker, overflow) = match state.as_ref().unwrap_or(&slot.state) {
            State::Many(many) => many.push(outcome, more),
            State::One(_) | State::Quiet { .. } => {
                let waker = match state {
                    Some(State::One(waker)) => waker,
                    Some(State::Quiet { bytes, .. }) if matches!(outcome, Outcome::Sent(Ok(sent), _) if sent == bytes) => {
                        None
                    }
                    Some(State::Quiet { waker, .. }) => waker,
                    Some(_) => unreachable!("matched just above"),
                    None => panic!("{token:?} completed twice"),
                };
                slot.state = State::Done(outcome);
                operations.in_flight -= 1;
                drop(operations);
                if let Some(waker) = waker {
                    waker.wake();
                }
                return;
            }
            State::Dropped => {
                dropped = Some(outcome);
                (None, false)
            }
            State::Done(_) | State::Free => panic!("{token:?} completed after its end"),
        };
        if !more {
            operations.in_flight -= 1;
            operations.release(token);
        }
        drop(operations);
        if let Some(outcome) = dropped {
            outcome.forget();
        }
        drop(state);
        if overflow && more {
            self.cancel(token);
        }
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// Operations in flight, and outcomes not taken yet.
#[derive(Default)]
pub(crate) struct Operations {
    slots: Vec<Slot>,
    free: Vec<u32>,
    pub(crate) in_flight: usize,
}

struct Slot {
    generation: u32,
    state: State,
}

/// Who waits for an operation.
pub(crate) enum State {
    Free,
    /// One outcome awaited.
    One(Option<Waker>),
    /// One outcome that wakes nobody if it is that so many bytes were sent.
    Quiet {
        waker: Option<Waker>,
        bytes: usize,
    },
    /// Several, kept by the stream or listener.
    Many(Rc<Many>),
    /// The outcome is here.
    Done(Outcome),
    /// Nobody any more.
    Dropped,
}

impl Operations {
    fn insert(&mut self, state: State) -> Token {
        self.in_flight += 1;
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { generation: 0, state: State::Free });
            (self.slots.len() - 1) as u32
        });
        let slot = &mut self.slots[index as usize];
        slot.state = state;
        Token::new(index, slot.generation)
    }

    fn is_live(&self, token: Token) -> bool {
        self.slots.get(token.index()).is_some_and(|slot| slot.generation == token.generation())
    }

    fn slot(&mut self, token: Token) -> &mut Slot {
        let slot = &mut self.slots[token.index()];
        assert_eq!(slot.generation, token.generation(), "{token:?} completed after its end");
        slot
    }

    pub(crate) fn waiting(&self) -> Vec<Token> {
        let slots = self.slots.iter().enumerate();
        let waiting = slots
            .filter(|(_, slot)| matches!(slot.state, State::One(_) | State::Quiet { .. } | State::Many(_)));
        waiting.map(|(index, slot)| Token::new(index as u32, slot.generation)).collect()
    }

    fn release(&mut self, token: Token) {
        let slot = self.slot(token);
        slot.generation = slot.generation.wrapping_add(1);
        slot.state = State::Free;
        self.free.push(token.index() as u32);
    }
}

/// Outcomes of a multishot operation that wait to be taken. When `limit` of them do, the operation is cancelled, and
/// started again when all are taken.
pub(crate) struct Many {
    limit: usize,
    queue: RefCell<VecDeque<Outcome>>,
    waker: RefCell<Option<Waker>>,
    token: Cell<Option<Token>>,
    /// Cancelled because too much lies here, or to be started differently.
    paused: Cell<bool>,
}

impl Many {
    pub(crate) fn new(limit: usize) -> Rc<Self> {
        Rc::new(Self {
            limit,
            queue: RefCell::default(),
            waker: RefCell::default(),
            token: Cell::default(),
            paused: Cell::default(),
        })
    }

    /// Keeps an outcome. Returns whom to wake and whether the operation should be cancelled for now.
    fn push(&self, outcome: Outcome, more: bool) -> (Option<Waker>, bool) {
        let mut queue = self.queue.borrow_mut();
        if !more {
            self.token.set(None);
        }
        let paused = self.paused.get();
        if !(paused && !more && outcome.is_cancelled()) {
            queue.push_back(outcome);
        }
        let overflow = more && !paused && queue.len() >= self.limit;
        if overflow {
            self.paused.set(true);
        }
        (self.waker.borrow_mut().take(), overflow)
    }

    /// The next outcome; `start` begins (again) when nothing lies here and nothing is in flight.
    pub(crate) fn poll_next(
        self: &Rc<Self>,
        core: &Core,
        context: &mut Context<'_>,
        start: impl FnOnce() -> Op,
    ) -> Poll<Outcome> {
        if let Some(outcome) = self.queue.borrow_mut().pop_front() {
            return Poll::Ready(outcome);
        }
        if self.token.get().is_none() {
            self.paused.set(false);
            let token = core.submit(start(), State::Many(Rc::clone(self)));
            self.token.set(Some(token));
        }
        let mut waker = self.waker.borrow_mut();
        match &mut *waker {
            Some(waker) => waker.clone_from(context.waker()),
            none => *none = Some(context.waker().clone()),
        }
        Poll::Pending
    }

    /// The next outcome if one lies here.
    pub(crate) fn try_next(&self) -> Option<Outcome> {
        self.queue.borrow_mut().pop_front()
    }

    /// Ends the operation, to start it anew (and perhaps differently) when all that lies here is taken.
    pub(crate) fn restart(&self, core: &Core) {
        if let Some(token) = self.token.get()
            && !self.paused.replace(true)
        {
            core.cancel(token);
        }
    }

    /// Ends the operation and forgets what lies here.
    pub(crate) fn close(&self, core: &Core) {
        if let Some(token) = self.token.take() {
            core.abandon(token);
        }
        let queue = self.queue.take();
        drop(queue);
    }
}

/// An operation in flight on the core that submitted it. Dropping it cancels the operation.
pub(crate) struct Operation {
    core: Rc<Core>,
    token: Token,
    taken: bool,
}

/// Submits an operation on the current core.
pub(crate) fn submit(op: Op) -> Operation {
    let core = current();
    let token = core.submit(op, State::One(None));
    Operation { core, token, taken: false }
}

impl Future for Operation {
    type Output = Outcome;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome> {
        self.poll_outcome(context, None)
    }
}

impl Operation {
    /// Polls it. With `quiet_bytes`, that so many bytes were sent wakes nobody: whoever asks next time sees it.
    pub(crate) fn poll_outcome(
        &mut self,
        context: &mut Context<'_>,
        quiet_bytes: Option<usize>,
    ) -> Poll<Outcome> {
        assert!(!self.taken, "an operation was polled after it was ready");
        let mut operations = self.core.operations.borrow_mut();
        let slot = operations.slot(self.token);
        let known = match std::mem::replace(&mut slot.state, State::Free) {
            State::One(waker) | State::Quiet { waker, .. } => waker,
            State::Done(outcome) => {
                operations.release(self.token);
                self.taken = true;
                return Poll::Ready(outcome);
            }
            State::Many(_) | State::Dropped | State::Free => panic!("an awaited operation lost its slot"),
        };
        let waker = known.filter(|known| known.will_wake(context.waker()));
        let waker = Some(waker.unwrap_or_else(|| context.waker().clone()));
        slot.state = match quiet_bytes {
            Some(bytes) => State::Quiet { waker, bytes },
            None => State::One(waker),
        };
        Poll::Pending
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        if self.taken {
            return;
        }
        self.core.abandon(self.token);
    }
}
