//! The executor of one core.
//!
//! A turn of the loop:
//! 1. take messages from other cores (wakes and new tasks);
//! 2. wake what waits for timers that have run out;
//! 3. poll ready tasks, at most [`POLLS_PER_TURN`], which submit operations to the driver, and then wake the other
//!    cores that they left messages for;
//! 4. one driver turn: hands over together what the driver still holds, fetches completions, and waits (until the
//!    earliest timer) only if nothing is ready;
//! 5. deliver the completions, which makes tasks ready.
//!
//! The order of everything depends on the driver's completions alone: that is what makes a simulation replay.

use crate::CoreId;
use crate::buf::Pool;
use crate::driver::{Completion, Driver, Wait};
use crate::operation::Operations;
use crate::paced::Paced;
use crate::remote::{MakeFuture, Message, Remote, Server};
use crate::task::{JoinHandle, TaskId, Tasks, joined};
use crate::time::{Nanos, Timers};
use std::cell::{Cell, RefCell, RefMut};
use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

/// Polls between two looks at the driver: bounds how long finished I/O waits behind ready tasks.
const POLLS_PER_TURN: usize = 128;

thread_local! {
    static CURRENT: RefCell<Option<Rc<Core>>> = const { RefCell::new(None) };
}

/// Calls `f` with the current core. Panics outside a core.
#[inline]
pub(crate) fn with_core<R>(f: impl FnOnce(&Rc<Core>) -> R) -> R {
    CURRENT.with_borrow(|current| match current {
        Some(core) => f(core),
        None => panic!("called outside a reactor core: run inside reactor::start or reactor::block_on"),
    })
}

pub(crate) fn current() -> Rc<Core> {
    with_core(Rc::clone)
}

pub(crate) fn has_core() -> bool {
    CURRENT.try_with(|current| current.borrow().is_some()).unwrap_or(false)
}

/// The current core's buffer memory.
pub(crate) fn pool() -> Option<Arc<Pool>> {
    CURRENT.try_with(|current| current.borrow().as_ref().map(|core| Arc::clone(&core.pool))).ok().flatten()
}

/// Queues a task if it belongs to the current core.
#[inline]
pub(crate) fn wake_local(remote: &Arc<Remote>, id: TaskId) -> bool {
    CURRENT
        .try_with(|current| match &*current.borrow() {
            Some(core) if Arc::ptr_eq(&core.remote, remote) => {
                core.ready.borrow_mut().push_back(id);
                true
            }
            _ => false,
        })
        .unwrap_or(false)
}

/// Leaves a kick to the end of the current core's batch of polls, so that many wakes of one sleeper cost one wake-up.
/// False outside a core.
pub(crate) fn defer_kick(remote: &Arc<Remote>) -> bool {
    CURRENT
        .try_with(|current| match &*current.borrow() {
            Some(core) => {
                let mut kicks = core.kicks.borrow_mut();
                if !kicks.iter().any(|known| Arc::ptr_eq(known, remote)) {
                    kicks.push(Arc::clone(remote));
                }
                true
            }
            None => false,
        })
        .unwrap_or(false)
}

/// When a core that was stepped has something to do again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// At once.
    Now,
    /// When its earliest timer runs out, or when kicked.
    At(Nanos),
    /// When kicked.
    Idle,
}

/// One core. `Rc`: it never leaves its thread.
pub struct Core {
    id: CoreId,
    server: Arc<Server>,
    pub(crate) remote: Arc<Remote>,
    pub(crate) driver: RefCell<Paced>,
    pool: Arc<Pool>,
    tasks: RefCell<Tasks>,
    ready: RefCell<VecDeque<TaskId>>,
    deferred: RefCell<Vec<Waker>>,
    /// Other cores to be woken, unless somebody else does before.
    kicks: RefCell<Vec<Arc<Remote>>>,
    timers: RefCell<Timers>,
    pub(crate) operations: RefCell<Operations>,
    /// Reused between turns.
    completions: Cell<Vec<Completion>>,
    messages: Cell<Vec<Message>>,
    closed: Cell<bool>,
}

impl Core {
    /// A core of `server` over `driver`. The simulated world makes its own; the real ones come from `start`.
    pub fn new(server: &Arc<Server>, id: CoreId, driver: Driver) -> Rc<Self> {
        let pool = match &driver {
            Driver::Uring(uring) => Arc::clone(uring.pool()),
            Driver::Epoll(epoll) => Arc::clone(epoll.pool()),
            Driver::Sim(_) => Arc::new(Pool::unregistered(true, Pool::KEPT_LARGE_BYTES)),
        };
        Rc::new(Self {
            pool,
            id,
            server: Arc::clone(server),
            remote: Arc::clone(server.remote(id)),
            driver: RefCell::new(Paced::new(driver)),
            tasks: RefCell::default(),
            ready: RefCell::default(),
            deferred: RefCell::default(),
            kicks: RefCell::default(),
            timers: RefCell::default(),
            operations: RefCell::default(),
            completions: Cell::default(),
            messages: Cell::default(),
            closed: Cell::new(false),
        })
    }

    /// Which core of its server.
    pub fn id(&self) -> CoreId {
        self.id
    }

    /// The server it belongs to.
    pub fn server(&self) -> &Arc<Server> {
        &self.server
    }

    pub(crate) fn tasks(&self) -> RefMut<'_, Tasks> {
        self.tasks.borrow_mut()
    }

    pub(crate) fn timers(&self) -> RefMut<'_, Timers> {
        self.timers.borrow_mut()
    }

    pub(crate) fn now(&self) -> Nanos {
        self.driver.borrow().now()
    }

    pub(crate) fn wall_ms(&self) -> u64 {
        self.driver.borrow().wall_ms()
    }

    pub(crate) fn wall_us(&self) -> u64 {
        self.driver.borrow().wall_us()
    }

    pub(crate) fn defer(&self, waker: Waker) {
        self.deferred.borrow_mut().push(waker);
    }

    /// Makes this the current core while `f` runs.
    pub fn enter<R>(self: &Rc<Self>, f: impl FnOnce() -> R) -> R {
        struct Restore<'a>(&'a Core, Option<Rc<Core>>);
        impl Drop for Restore<'_> {
            fn drop(&mut self) {
                self.0.send_kicks();
                let previous = self.1.take();
                CURRENT.set(previous);
            }
        }
        let _restore = Restore(self, CURRENT.replace(Some(Rc::clone(self))));
        f()
    }

    /// Adds a task. It runs in the next turn.
    pub fn spawn<F: Future + 'static>(self: &Rc<Self>, future: F) -> JoinHandle<F::Output> {
        joined(self, future, |future| self.spawn_boxed(future))
    }

    fn spawn_boxed(&self, future: Pin<Box<dyn Future<Output = ()>>>) -> Option<TaskId> {
        if self.closed.get() {
            return None;
        }
        self.remote.counters.spawns.add(1);
        let id = self.tasks.borrow_mut().insert(&self.remote, future);
        self.ready.borrow_mut().push_back(id);
        Some(id)
    }

    pub(crate) fn spawn_on(&self, core: CoreId, make: MakeFuture) {
        assert!(usize::from(core.0) < self.server.core_count(), "this server has no core {}", core.0);
        self.server.remote(core).send(Message::Spawn(make));
    }

    fn take_messages(&self) {
        let mut messages = self.messages.take();
        self.remote.take(&mut messages);
        self.remote.counters.remote_messages.add(messages.len() as u64);
        for message in messages.drain(..) {
            match message {
                Message::Wake(id) => self.ready.borrow_mut().push_back(id),
                Message::Spawn(make) => {
                    self.spawn_boxed(make());
                }
            }
        }
        self.messages.set(messages);
    }

    fn fire_timers(&self) {
        if self.timers.borrow().earliest().is_none() {
            return;
        }
        let now = self.now();
        loop {
            let Some(waker) = self.timers.borrow_mut().pop_due(now) else { return };
            self.remote.counters.timers.add(1);
            waker.wake();
        }
    }

    fn poll_ready(&self) {
        for _ in 0..POLLS_PER_TURN {
            let Some(id) = self.ready.borrow_mut().pop_front() else { return };
            let Some(mut body) = self.tasks.borrow_mut().take(id) else { continue };
            self.remote.counters.polls.add(1);
            let ended = match body.poll() {
                Poll::Ready(()) => {
                    self.tasks.borrow_mut().remove(id);
                    Some(body)
                }
                Poll::Pending => self.tasks.borrow_mut().put_back(id, body),
            };
            drop(ended);
        }
    }

    fn send_kicks(&self) {
        loop {
            let Some(remote) = self.kicks.borrow_mut().pop() else { return };
            remote.kick();
        }
    }

    fn wake_deferred(&self) {
        if self.deferred.borrow().is_empty() {
            return;
        }
        let mut deferred = std::mem::take(&mut *self.deferred.borrow_mut());
        for waker in deferred.drain(..) {
            waker.wake();
        }
        let mut current = self.deferred.borrow_mut();
        if current.is_empty() {
            *current = deferred;
        }
    }

    fn turn_driver(&self, wait: Wait) -> io::Result<()> {
        let mut completions = self.completions.take();
        let (result, counts) = {
            let mut driver = self.driver.borrow_mut();
            (driver.turn(wait, &mut completions), driver.take_counts())
        };
        self.remote.counters.enters.add(counts.enters);
        self.remote.counters.receive_waits.add(counts.receive_waits);
        for completion in completions.drain(..) {
            self.deliver(completion);
        }
        self.completions.set(completions);
        result
    }

    /// One turn of the loop; waits if there is nothing to do and `may_wait` agrees. That is asked once the messages are
    /// taken: what another thread does before is seen by the question, and what it does after keeps the core awake.
    /// The core must be entered.
    pub(crate) fn turn(&self, may_wait: impl Fn() -> bool) -> io::Result<()> {
        self.remote.counters.turns.add(1);
        self.take_messages();
        self.fire_timers();
        self.poll_ready();
        self.send_kicks();
        let idle = self.ready.borrow().is_empty() && self.deferred.borrow().is_empty();
        if !(idle && may_wait() && self.remote.may_sleep()) {
            if self.driver.borrow().has_work() {
                self.turn_driver(Wait::Poll)?;
            }
        } else {
            self.remote.counters.sleeps.add(1);
            let earliest = self.timers.borrow().earliest();
            let result = self.turn_driver(earliest.map_or(Wait::Forever, Wait::Until));
            self.remote.awake();
            result?;
        }
        self.wake_deferred();
        Ok(())
    }

    /// Runs `future` on this core, beside its tasks, until it returns, or `stop` is raised and the core kicked (`None`).
    /// Not boxed and not `'static`: it is polled here and not in the slab; a flag that any thread may raise stands in
    /// for the ready queue.
    pub(crate) fn block_on<F: Future>(
        self: &Rc<Self>,
        future: F,
        stop: &AtomicBool,
    ) -> io::Result<Option<F::Output>> {
        struct Flag {
            raised: AtomicBool,
            remote: Arc<Remote>,
        }
        impl Wake for Flag {
            fn wake(self: Arc<Self>) {
                self.raised.store(true, Ordering::SeqCst);
                self.remote.poke();
            }
        }
        let flag = Arc::new(Flag { raised: AtomicBool::new(true), remote: Arc::clone(&self.remote) });
        let waker = Waker::from(Arc::clone(&flag));
        self.enter(|| {
            let mut future = pin!(future);
            loop {
                if flag.raised.swap(false, Ordering::SeqCst)
                    && let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker))
                {
                    return Ok(Some(output));
                }
                if stop.load(Ordering::SeqCst) {
                    return Ok(None);
                }
                self.turn(|| !flag.raised.load(Ordering::SeqCst))?;
            }
        })
    }

    /// One turn, for a world that drives its cores. Never waits.
    pub(crate) fn step(self: &Rc<Self>) -> io::Result<Next> {
        self.enter(|| {
            self.remote.awake();
            self.turn(|| false)?;
            let busy = !self.ready.borrow().is_empty() || self.driver.borrow().has_work();
            if busy || !self.remote.may_sleep() {
                return Ok(Next::Now);
            }
            Ok(self.timers.borrow().earliest().map_or(Next::Idle, Next::At))
        })
    }

    /// Drops every task, so that their operations are cancelled, and refuses new ones. A real core then drains its
    /// ring; a world that kills a host forgets the operations.
    pub fn close(self: &Rc<Self>) {
        self.enter(|| {
            self.closed.set(true);
            self.remote.close();
            // No task is added any more.
            let mut end = usize::MAX;
            loop {
                let body = self.tasks.borrow_mut().pop_any(&mut end);
                if body.is_none() {
                    break;
                }
                drop(body);
            }
            let timers = self.timers.borrow_mut().clear();
            drop(timers);
            self.ready.borrow_mut().clear();
            let deferred = self.deferred.take();
            drop(deferred);
        });
    }

    /// Cancels what is still in flight (its owner lives on outside the core) and waits for the final completion of
    /// every operation. Called after `close`.
    pub(crate) fn drain(self: &Rc<Self>) -> io::Result<()> {
        self.enter(|| {
            let live = self.operations.borrow().waiting();
            for token in live {
                self.abandon(token);
            }
            while self.operations.borrow().in_flight > 0 {
                self.turn_driver(Wait::Until(self.now() + std::time::Duration::from_millis(100)))?;
            }
            Ok(())
        })
    }
}
