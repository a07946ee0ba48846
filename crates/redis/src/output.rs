//! What is on its way to one client: batches of replies in order, each with the gate that it waits for.
//!
//! The connection's processing half puts batches in, its sending half takes them out. Limits: above
//! [`PAUSE_BYTES`] the processing half waits for the client to read; a client that does not read because it is
//! itself still busy sending (it wrote a long pipeline before reading anything) would wait for ever, so after
//! [`PAUSE_MAX`] without progress processing goes on and output piles up as Redis lets it: up to the client's
//! limit (client-output-buffer-limit) and the total of all clients, above which the client is closed.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use pumice_node::Gate;

use crate::clients::Client;
use crate::server::Server;

/// Output of one client at which its further commands wait.
pub const PAUSE_BYTES: usize = 4 << 20;
/// How long they wait while the client takes nothing.
pub const PAUSE_MAX: Duration = Duration::from_millis(100);

/// Replies that leave together.
pub struct Outgoing {
    /// What to send.
    pub parts: Vec<Bytes>,
    /// Bytes of it.
    pub bytes: usize,
    /// What must be durable before.
    pub gate: Gate,
}

/// What is on its way to one client.
pub struct Output {
    server: Arc<Server>,
    client: Arc<Client>,
    queue: RefCell<VecDeque<Outgoing>>,
    /// Bytes queued or being sent.
    waiting_bytes: Cell<usize>,
    /// Rises with every send that ended.
    progress: Cell<u64>,
    /// The progress at which waiting for more was given up.
    stalled_at: Cell<Option<u64>>,
    over_soft_since: Cell<Option<u64>>,
    is_closed: Cell<bool>,
    is_finished: Cell<bool>,
    sender: RefCell<Option<Waker>>,
    processor: RefCell<Option<Waker>>,
    spare: RefCell<Vec<Vec<Bytes>>>,
}

impl Output {
    /// Nothing on its way yet.
    pub fn new(server: Arc<Server>, client: Arc<Client>) -> Self {
        Self {
            server,
            client,
            queue: RefCell::default(),
            waiting_bytes: Cell::new(0),
            progress: Cell::new(0),
            stalled_at: Cell::new(None),
            over_soft_since: Cell::new(None),
            is_closed: Cell::new(false),
            is_finished: Cell::new(false),
            sender: RefCell::default(),
            processor: RefCell::default(),
            spare: RefCell::default(),
        }
    }

    /// Queues replies. Closes the connection when that is more than a limit allows.
    pub fn push(&self, outgoing: Outgoing) {
        if outgoing.bytes == 0 || self.is_closed.get() {
            return;
        }
        let stats = &self.server.stats;
        let total = stats.output_waiting_bytes.fetch_add(outgoing.bytes as u64, Ordering::Relaxed);
        let own = self.waiting_bytes.get() + outgoing.bytes;
        self.waiting_bytes.set(own);
        self.client.output_bytes.store(own as u64, Ordering::Relaxed);
        self.queue.borrow_mut().push_back(outgoing);
        if own > PAUSE_BYTES && self.is_over_limit(own as u64, total + own as u64) {
            stats.output_limit_closes.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(client = self.client.id, bytes = own, "closed: it does not take its replies");
            self.close();
        }
        wake(&self.sender);
    }

    fn is_over_limit(&self, own: u64, total: u64) -> bool {
        let settings = &self.server.settings;
        let hard = settings.output_hard_bytes.load(Ordering::Relaxed);
        let soft = settings.output_soft_bytes.load(Ordering::Relaxed);
        if (hard > 0 && own > hard) || total > self.server.options.output_bytes_max {
            return true;
        }
        if soft == 0 || own <= soft {
            self.over_soft_since.set(None);
            return false;
        }
        let now_ms = pumice_reactor::wall_ms();
        let since = self.over_soft_since.get().unwrap_or(now_ms);
        self.over_soft_since.set(Some(since));
        now_ms.saturating_sub(since) > settings.output_soft_seconds.load(Ordering::Relaxed) * 1000
    }

    /// What leaves next; `None` when nothing more will come.
    pub async fn next(&self) -> Option<Outgoing> {
        poll_fn(|context| {
            if self.is_closed.get() {
                return Poll::Ready(None);
            }
            match self.queue.borrow_mut().pop_front() {
                Some(outgoing) => Poll::Ready(Some(outgoing)),
                None if self.is_finished.get() => Poll::Ready(None),
                None => {
                    *self.sender.borrow_mut() = Some(context.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
    }

    /// Takes what may leave with `first`: the batches behind it whose gates it passes too.
    pub fn merge(&self, first: &mut Outgoing, is_open: impl Fn(&Gate) -> bool) {
        let mut queue = self.queue.borrow_mut();
        while first.bytes < 256 * 1024 && queue.front().is_some_and(|next| is_open(&next.gate)) {
            let Some(mut next) = queue.pop_front() else { break };
            first.bytes += next.bytes;
            first.parts.append(&mut next.parts);
        }
    }

    /// `bytes` have left.
    pub fn sent(&self, bytes: usize, mut parts: Vec<Bytes>) {
        self.waiting_bytes.set(self.waiting_bytes.get() - bytes);
        self.progress.set(self.progress.get() + 1);
        self.client.output_bytes.store(self.waiting_bytes.get() as u64, Ordering::Relaxed);
        self.server.stats.output_waiting_bytes.fetch_sub(bytes as u64, Ordering::Relaxed);
        self.server.stats.output_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        parts.clear();
        if parts.capacity() <= 256 && self.spare.borrow().len() < 2 {
            self.spare.borrow_mut().push(parts);
        }
        wake(&self.processor);
    }

    /// An empty vector, used before if there is one.
    pub fn spare_parts(&self) -> Vec<Bytes> {
        self.spare.borrow_mut().pop().unwrap_or_default()
    }

    /// Whether further commands must wait.
    pub fn is_full(&self) -> bool {
        self.waiting_bytes.get() > PAUSE_BYTES
            && !self.is_closed.get()
            && self.stalled_at.get() != Some(self.progress.get())
    }

    /// Waits until the client has taken enough, or takes nothing for [`PAUSE_MAX`].
    pub async fn drain(&self) {
        while self.is_full() {
            let before = self.progress.get();
            let moved = poll_fn(|context| {
                if self.progress.get() != before || self.is_closed.get() {
                    return Poll::Ready(());
                }
                *self.processor.borrow_mut() = Some(context.waker().clone());
                Poll::Pending
            });
            if pumice_reactor::timeout(PAUSE_MAX, moved).await.is_err() {
                self.stalled_at.set(Some(before));
                return;
            }
        }
    }

    /// Nothing more is sent, not even what is queued.
    pub fn close(&self) {
        self.is_closed.set(true);
        wake(&self.sender);
        wake(&self.processor);
    }

    /// Whether it was closed.
    pub fn is_closed(&self) -> bool {
        self.is_closed.get()
    }

    /// What is queued is sent, then the connection may close.
    pub fn finish(&self) {
        self.is_finished.set(true);
        wake(&self.sender);
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        self.server.stats.output_waiting_bytes.fetch_sub(self.waiting_bytes.get() as u64, Ordering::Relaxed);
    }
}

fn wake(waker: &RefCell<Option<Waker>>) {
    if let Some(waker) = waker.borrow_mut().take() {
        waker.wake();
    }
}
