//! Tasks: a slab of futures, wakers that work from any thread, and handles to what they return.

use crate::executor::{Core, wake_local};
use crate::remote::{Message, Remote};
use std::cell::RefCell;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

/// A slot of the slab and how often it was used before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TaskId {
    index: u32,
    generation: u32,
}

type BoxFuture = Pin<Box<dyn Future<Output = ()>>>;

/// What a waker points to.
pub(crate) struct Header {
    id: TaskId,
    remote: Arc<Remote>,
    /// In a ready queue already: waking again does nothing.
    queued: AtomicBool,
}

impl Header {
    /// Called as the task leaves the ready queue, before it is polled: later wakes queue it again.
    fn unqueue(&self) {
        self.queued.swap(false, Ordering::AcqRel);
    }
}

impl Wake for Header {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.queued.swap(true, Ordering::AcqRel) && !wake_local(&self.remote, self.id) {
            self.remote.send(Message::Wake(self.id));
        }
    }
}

struct Slot {
    generation: u32,
    header: Option<Arc<Header>>,
    /// Out while the task is polled.
    body: Option<Body>,
    aborted: bool,
}

/// A task as it is polled.
pub(crate) struct Body {
    future: BoxFuture,
    waker: Waker,
}

impl Body {
    pub(crate) fn poll(&mut self) -> Poll<()> {
        self.future.as_mut().poll(&mut Context::from_waker(&self.waker))
    }
}

/// All tasks of a core.
#[derive(Default)]
pub(crate) struct Tasks {
    slots: Vec<Slot>,
    free: Vec<u32>,
}

impl Tasks {
    /// Adds a task, queued from the start: the caller puts the id into the ready queue.
    pub(crate) fn insert(&mut self, remote: &Arc<Remote>, future: BoxFuture) -> TaskId {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { generation: 0, header: None, body: None, aborted: false });
            (self.slots.len() - 1) as u32
        });
        let slot = &mut self.slots[index as usize];
        let id = TaskId { index, generation: slot.generation };
        let header = Arc::new(Header { id, remote: Arc::clone(remote), queued: AtomicBool::new(true) });
        slot.body = Some(Body { future, waker: Waker::from(Arc::clone(&header)) });
        slot.header = Some(header);
        slot.aborted = false;
        id
    }

    fn slot(&mut self, id: TaskId) -> Option<&mut Slot> {
        self.slots.get_mut(id.index as usize).filter(|slot| slot.generation == id.generation)
    }

    /// Takes a task out to poll it; `None` if it has ended.
    pub(crate) fn take(&mut self, id: TaskId) -> Option<Body> {
        let slot = self.slot(id)?;
        if let Some(header) = &slot.header {
            header.unqueue();
        }
        slot.body.take()
    }

    /// Puts a task back that is not done; gives it back to be dropped if it was aborted meanwhile.
    pub(crate) fn put_back(&mut self, id: TaskId, body: Body) -> Option<Body> {
        match self.slot(id) {
            Some(slot) if !slot.aborted => {
                slot.body = Some(body);
                None
            }
            _ => {
                self.remove(id);
                Some(body)
            }
        }
    }

    /// Forgets a task that is done.
    pub(crate) fn remove(&mut self, id: TaskId) -> Option<Body> {
        let slot = self.slot(id)?;
        slot.generation = slot.generation.wrapping_add(1);
        slot.header = None;
        let body = slot.body.take();
        self.free.push(id.index);
        body
    }

    /// Ends a task early: gives its future to be dropped, or marks it if it is being polled right now.
    fn abort(&mut self, id: TaskId) -> Option<Body> {
        let slot = self.slot(id)?;
        if slot.body.is_some() {
            return self.remove(id);
        }
        slot.aborted = true;
        None
    }

    /// Any one task that is not being polled, below slot `end`, which falls with each.
    pub(crate) fn pop_any(&mut self, end: &mut usize) -> Option<Body> {
        let below = self.slots.get(..*end).unwrap_or(&self.slots);
        let index = below.iter().rposition(|slot| slot.body.is_some())?;
        *end = index;
        let id = TaskId { index: index as u32, generation: self.slots[index].generation };
        self.remove(id)
    }
}

/// A task ended before it returned: it was aborted, or its core stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aborted;

impl fmt::Display for Aborted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the task ended before it returned")
    }
}

impl std::error::Error for Aborted {}

enum Join<T> {
    Running(Option<Waker>),
    Done(Result<T, Aborted>),
    Taken,
}

/// Sets the result of a task, `Aborted` if it is dropped first.
struct Finish<T>(Rc<RefCell<Join<T>>>);

impl<T> Finish<T> {
    fn set(&self, result: Result<T, Aborted>) {
        let waker = {
            let mut join = self.0.borrow_mut();
            match std::mem::replace(&mut *join, Join::Taken) {
                Join::Running(waker) => {
                    *join = Join::Done(result);
                    waker
                }
                done => {
                    *join = done;
                    None
                }
            }
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<T> Drop for Finish<T> {
    fn drop(&mut self) {
        self.set(Err(Aborted));
    }
}

/// A task's result to come. Await it, [`abort`](Self::abort) it, or drop it to let the task run on.
pub struct JoinHandle<T> {
    join: Rc<RefCell<Join<T>>>,
    core: Weak<Core>,
    id: Option<TaskId>,
}

impl<T> JoinHandle<T> {
    /// Ends the task now; its future is dropped before this returns (a task that aborts itself: when it next waits).
    pub fn abort(&self) {
        if let (Some(core), Some(id)) = (self.core.upgrade(), self.id) {
            let body = core.tasks().abort(id);
            core.enter(|| drop(body));
        }
    }

    /// Whether the task has returned or was aborted.
    pub fn is_finished(&self) -> bool {
        !matches!(*self.join.borrow(), Join::Running(_))
    }
}

impl<T> Future for JoinHandle<T> {
    type Output = Result<T, Aborted>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut join = self.join.borrow_mut();
        match std::mem::replace(&mut *join, Join::Taken) {
            Join::Done(result) => Poll::Ready(result),
            Join::Running(_) => {
                *join = Join::Running(Some(context.waker().clone()));
                Poll::Pending
            }
            Join::Taken => panic!("a JoinHandle was polled after it was ready"),
        }
    }
}

/// A future whose result reaches a handle. Written out: an async block would keep room for the future twice, where it is captured and
/// where it is awaited.
struct Joined<F: Future> {
    /// `None` once it has returned.
    future: Option<F>,
    finish: Finish<F::Output>,
}

impl<F: Future> Future for Joined<F> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        // SAFETY: the future is pinned with the whole: it is not moved from here on, only dropped in its place, and neither is
        // anything else done with it (`Joined` implements neither `Drop` nor `Unpin`).
        let mut future = unsafe { self.as_mut().map_unchecked_mut(|joined| &mut joined.future) };
        let running = future.as_mut().as_pin_mut().expect("a future was polled after it had returned");
        let Poll::Ready(result) = running.poll(context) else { return Poll::Pending };
        // Before anybody hears of its end.
        future.set(None);
        self.finish.set(Ok(result));
        Poll::Ready(())
    }
}

/// Wraps a future so that its result reaches the handle; `start` makes it a task.
pub(crate) fn joined<F: Future + 'static>(
    core: &Rc<Core>,
    future: F,
    start: impl FnOnce(BoxFuture) -> Option<TaskId>,
) -> JoinHandle<F::Output> {
    let join = Rc::new(RefCell::new(Join::Running(None)));
    let finish = Finish(Rc::clone(&join));
    let id = start(Box::pin(Joined { future: Some(future), finish }));
    JoinHandle { join, core: Rc::downgrade(core), id }
}
