//! What the cores of one server know of each other: a queue of messages each, and a way to end a sleeper's wait.
//!
//! A sender pushes, then kicks only a core that said it sleeps; the core says so before it looks at the queue a last
//! time. Both are sequentially consistent, so a message is either seen by that look or followed by a kick.

use crate::driver::Kick;
use crate::executor::defer_kick;
use crate::metrics::Counters;
use crate::task::TaskId;
use crate::{CoreId, LocalBoxFuture};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use pumice_base::sync::lock;

pub(crate) type MakeFuture = Box<dyn FnOnce() -> LocalBoxFuture<'static, ()> + Send>;

pub(crate) enum Message {
    Wake(TaskId),
    Spawn(MakeFuture),
}

/// The part of a core that other threads may touch.
pub(crate) struct Remote {
    queue: Mutex<Queue>,
    pending: AtomicBool,
    sleeping: AtomicBool,
    kick: Arc<dyn Kick>,
    pub(crate) counters: Counters,
}

struct Queue {
    messages: Vec<Message>,
    closed: bool,
}

impl Remote {
    fn new(kick: Arc<dyn Kick>) -> Self {
        Self {
            queue: Mutex::new(Queue { messages: Vec::new(), closed: false }),
            pending: AtomicBool::new(false),
            sleeping: AtomicBool::new(false),
            kick,
            counters: Counters::default(),
        }
    }

    /// Leaves a message; drops it if the core has stopped.
    pub(crate) fn send(self: &Arc<Self>, message: Message) {
        let refused = {
            let mut queue = lock(&self.queue);
            if queue.closed {
                Some(message)
            } else {
                queue.messages.push(message);
                None
            }
        };
        if refused.is_some() {
            return;
        }
        self.poke();
    }

    /// Makes the core's next look at its messages, or the current wait, end.
    pub(crate) fn poke(self: &Arc<Self>) {
        self.pending.store(true, Ordering::SeqCst);
        // It counts as asleep until it is kicked: who defers that may work on for long, and others need not wait for him.
        if self.sleeping.load(Ordering::SeqCst) && !defer_kick(self) {
            self.kick();
        }
    }

    /// Ends its sleep, once.
    pub(crate) fn kick(&self) {
        if self.sleeping.swap(false, Ordering::SeqCst) {
            self.kick.kick();
        }
    }

    /// Moves all messages to `into`, which is empty.
    pub(crate) fn take(&self, into: &mut Vec<Message>) {
        if self.pending.load(Ordering::SeqCst) && self.pending.swap(false, Ordering::SeqCst) {
            let mut queue = lock(&self.queue);
            std::mem::swap(&mut queue.messages, into);
        }
    }

    /// Says that the core is about to sleep; false if a message came meanwhile, so it must not.
    pub(crate) fn may_sleep(&self) -> bool {
        self.sleeping.store(true, Ordering::SeqCst);
        if self.pending.load(Ordering::SeqCst) {
            self.sleeping.store(false, Ordering::SeqCst);
            return false;
        }
        true
    }

    pub(crate) fn awake(&self) {
        self.sleeping.store(false, Ordering::SeqCst);
    }

    /// Refuses further messages and drops those that wait.
    pub(crate) fn close(&self) {
        let messages = {
            let mut queue = lock(&self.queue);
            queue.closed = true;
            std::mem::take(&mut queue.messages)
        };
        drop(messages);
    }
}

/// The cores of one server.
pub struct Server {
    remotes: Vec<Arc<Remote>>,
}

impl Server {
    /// A server with a core for each kick.
    pub fn new(kicks: Vec<Arc<dyn Kick>>) -> Arc<Self> {
        let remotes = kicks.into_iter().map(|kick| Arc::new(Remote::new(kick))).collect();
        Arc::new(Self { remotes })
    }

    /// How many cores.
    pub fn core_count(&self) -> usize {
        self.remotes.len()
    }

    /// The counters of one core.
    pub fn counters(&self, core: CoreId) -> &Counters {
        &self.remote(core).counters
    }

    pub(crate) fn remote(&self, core: CoreId) -> &Arc<Remote> {
        &self.remotes[usize::from(core.0)]
    }
}
