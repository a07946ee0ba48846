//! What is on its way to one client: batches of replies in order, each with the gate that it waits for.
//!
//! The connection's processing half puts batches in, its sending half takes them out. Limits: above
//! [`PAUSE_BYTES`] the processing half waits for the client to read; a client that does not read because it is
//! itself still busy sending (it wrote a long pipeline before reading anything) would wait for ever, so after
//! [`PAUSE_MAX`] without progress processing goes on and output piles up as Redis lets it: up to the client's
//! limit (client-output-buffer-limit) and the total of all clients. There processing waits again, and only a
//! client that takes nothing for [`STUCK_MAX`] is closed: one that reads [`SEND_BYTES`] in that time never is.
//! (Redis cannot hold a command back, so it closes at the hard limit at once: `docs/commands.md` tells what differs.)

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use pumice_kv::PIECE_BYTES_MAX;
use pumice_node::{Gate, WaitError};

use crate::clients::Client;
use crate::server::Server;

/// Output of one client at which its further commands wait, where there is plenty of memory.
pub const PAUSE_BYTES: usize = 4 << 20;
/// The same where there is little: this share of what all clients may have waiting.
const PAUSE_SHARE: u64 = 8;
/// How long they wait while the client takes nothing.
pub const PAUSE_MAX: Duration = Duration::from_millis(100);
/// How long a client above a limit may take nothing before it is closed.
pub const STUCK_MAX: Duration = Duration::from_secs(10);
/// Most bytes of one send: progress is seen at this grain.
const SEND_BYTES: usize = 256 << 10;
/// What every client may have waiting whatever the others have, so that each that reads gets on.
pub const SHARE_BYTES: u64 = 256 << 10;
/// A vector of parts with room for so many is used again.
const PARTS_KEPT: usize = 64;

/// What an [`Outgoing`] consists of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holds {
    /// The reply to one command, whole.
    OneReply,
    /// Replies, from the beginning of the first on.
    Replies,
    /// It begins in the midst of a reply.
    Rest,
}

/// Replies that leave together.
pub struct Outgoing {
    /// What to send.
    pub parts: Vec<Bytes>,
    /// Bytes of it.
    pub bytes: usize,
    /// What must be durable before.
    pub gate: Gate,
    /// What the parts are.
    pub holds: Holds,
}

impl Outgoing {
    /// Keeps the first `at` bytes, which may leave, and gives what is behind them, which may then leave too.
    fn split_off(&mut self, at: usize) -> Option<Self> {
        if self.bytes <= at {
            return None;
        }
        let mut kept = 0;
        let whole = self.parts.iter().take_while(|part| {
            let fits = kept + part.len() <= at;
            kept += if fits { part.len() } else { 0 };
            fits
        });
        let index = whole.count();
        let mut parts = self.parts.split_off(index);
        if let Some(part) = parts.first_mut()
            && kept < at
        {
            self.parts.push(part.split_to(at - kept));
        }
        let rest = Self { parts, bytes: self.bytes - at, gate: Gate::open(), holds: Holds::Rest };
        self.bytes = at;
        Some(rest)
    }
}

/// Why replies may not leave.
#[derive(Debug)]
pub enum Closed {
    /// What they depend on will never be durable.
    Failed(WaitError),
    /// It is not durable, and may be when there is room below a drive.
    Stalled(String),
}

/// What is on its way to one client.
pub struct Output {
    server: Arc<Server>,
    client: Arc<Client>,
    queue: RefCell<VecDeque<Outgoing>>,
    /// Bytes at which further commands wait.
    pause_bytes: usize,
    /// Bytes queued or being sent.
    waiting_bytes: Cell<usize>,
    /// Rises with every send that begins or ends.
    progress: Cell<u64>,
    /// The progress at which waiting for more was given up.
    stalled_at: Cell<Option<u64>>,
    /// Whether it is up to the client that nothing moves, not to drives that make its replies durable.
    is_sending: Cell<bool>,
    /// The sending half looks at the queue anyway before the connection's task rests.
    is_sending_next: Cell<bool>,
    /// The drives that it waits for have had no room below them for long.
    gives_up: Cell<bool>,
    /// What was queued last ended in the midst of a reply.
    is_cut: Cell<bool>,
    is_closed: Cell<bool>,
    is_finished: Cell<bool>,
    sender: RefCell<Option<Waker>>,
    processor: RefCell<Option<Waker>>,
    spare: RefCell<Vec<Vec<Bytes>>>,
}

impl Output {
    /// Nothing on its way yet.
    pub fn new(server: Arc<Server>, client: Arc<Client>) -> Self {
        let pause_bytes = PAUSE_BYTES.min((server.options.output_bytes_max / PAUSE_SHARE) as usize);
        Self {
            server,
            client,
            pause_bytes,
            queue: RefCell::default(),
            waiting_bytes: Cell::new(0),
            progress: Cell::new(0),
            stalled_at: Cell::new(None),
            is_sending: Cell::new(false),
            is_sending_next: Cell::new(false),
            gives_up: Cell::new(false),
            is_cut: Cell::new(false),
            is_closed: Cell::new(false),
            is_finished: Cell::new(false),
            sender: RefCell::default(),
            processor: RefCell::default(),
            spare: RefCell::default(),
        }
    }

    /// Queues replies. Whoever makes them waits in [`Output::drain`] between them.
    pub fn push(&self, outgoing: Outgoing) {
        if outgoing.bytes == 0 || self.is_closed.get() {
            return;
        }
        self.server.stats.output_waiting_bytes.fetch_add(outgoing.bytes as u64, Ordering::Relaxed);
        let own = self.waiting_bytes.get() + outgoing.bytes;
        self.waiting_bytes.set(own);
        self.client.output_bytes.store(own as u64, Ordering::Relaxed);
        self.queue.borrow_mut().push_back(outgoing);
        if !self.is_sending_next.get() {
            wake(&self.sender);
        }
    }

    /// Carries out `process`, after which the sending half is polled: it need not be woken, which would have the task polled once
    /// more for nothing.
    pub fn sending_next<T>(&self, process: impl FnOnce() -> T) -> T {
        self.is_sending_next.set(true);
        let result = process();
        self.is_sending_next.set(false);
        result
    }

    /// Queues what the client did not ask for piece by piece and nothing can hold back (MONITOR): closes the
    /// connection when that is more than a limit allows.
    pub fn push_unpaced(&self, outgoing: Outgoing) {
        self.push(outgoing);
        if self.waiting_bytes.get() > self.pause_bytes && self.patience().is_some() {
            self.close_stuck();
        }
    }

    /// Notes whether what was queued last ended in the midst of a reply. Lines of MONITOR wait for its end.
    pub fn set_cut(&self, is_cut: bool) {
        if self.is_cut.replace(is_cut) && !is_cut && self.client.is_monitor() {
            self.client.wake.notify_one();
        }
    }

    /// Whether it did.
    pub fn is_cut(&self) -> bool {
        self.is_cut.get()
    }

    /// When the output is above a limit: how long the client may take nothing.
    fn patience(&self) -> Option<Duration> {
        let settings = &self.server.settings;
        let own = self.waiting_bytes.get() as u64;
        // The total counts this client's bytes already.
        let total = self.server.stats.output_waiting_bytes.load(Ordering::Relaxed);
        let hard = settings.output_hard_bytes.load(Ordering::Relaxed);
        let soft = settings.output_soft_bytes.load(Ordering::Relaxed);
        if (hard > 0 && own > hard) || (own > SHARE_BYTES && total > self.server.options.output_bytes_max) {
            return Some(STUCK_MAX);
        }
        let soft_seconds = || settings.output_soft_seconds.load(Ordering::Relaxed);
        (soft > 0 && own > soft).then(|| Duration::from_secs(soft_seconds()).max(PAUSE_MAX))
    }

    fn close_stuck(&self) {
        self.server.stats.output_limit_closes.fetch_add(1, Ordering::Relaxed);
        let bytes = self.waiting_bytes.get();
        tracing::warn!(client = self.client.id, bytes, "closed: it does not take its replies");
        self.close();
    }

    /// What leaves next; `None` when nothing more will come.
    pub async fn next(&self) -> Option<Outgoing> {
        poll_fn(|context| {
            if self.is_closed.get() {
                return Poll::Ready(None);
            }
            let mut queue = self.queue.borrow_mut();
            match queue.pop_front() {
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

    /// No longer waits for drives that have no room below them.
    pub async fn give_up(&self) {
        self.gives_up.set(true);
        // The sending half, which looks at it, may have been polled before this.
        poll_fn(|context| {
            context.waker().wake_by_ref();
            Poll::Ready(())
        })
        .await;
    }

    /// Waits until `gate` is open. On [`Output::give_up`] answers why it is not, if that is for want of room below a drive.
    pub async fn pass(&self, gate: &Gate) -> Result<(), Closed> {
        let node = &self.server.node;
        let mut waiting = pin!(node.wait(gate));
        // Of an earlier stall, which is over: in one that lasts it is said again and again.
        self.gives_up.set(false);
        poll_fn(|context| {
            if let Poll::Ready(waited) = waiting.as_mut().poll(context) {
                return Poll::Ready(waited.map_err(Closed::Failed));
            }
            match self.gives_up.take().then(|| node.why_stalled(gate)).flatten() {
                Some(why) => Poll::Ready(Err(Closed::Stalled(why))),
                None => Poll::Pending,
            }
        })
        .await
    }

    /// Makes one send of `first`, whose gate is open: without what is too much for one, which leaves next; with the batches behind
    /// it whose gates it passes too. Not to be done before: what waits is answered as a whole where it may not leave.
    pub fn fit(&self, first: &mut Outgoing, is_open: impl Fn(&Gate) -> bool) {
        let mut queue = self.queue.borrow_mut();
        if let Some(rest) = first.split_off(SEND_BYTES) {
            queue.push_front(rest);
        }
        let fits = |next: &Outgoing, bytes| bytes + next.bytes <= SEND_BYTES && is_open(&next.gate);
        while queue.front().is_some_and(|next| fits(next, first.bytes)) {
            let Some(mut next) = queue.pop_front() else { break };
            first.bytes += next.bytes;
            first.parts.append(&mut next.parts);
        }
    }

    /// What waits in `outgoing` is answered with `parts` instead.
    pub fn replace(&self, outgoing: &mut Outgoing, parts: Vec<Bytes>) {
        let bytes = parts.iter().map(Bytes::len).sum();
        let waiting = self.waiting_bytes.get() - outgoing.bytes + bytes;
        self.waiting_bytes.set(waiting);
        self.client.output_bytes.store(waiting as u64, Ordering::Relaxed);
        let total = &self.server.stats.output_waiting_bytes;
        total.fetch_add(bytes as u64, Ordering::Relaxed);
        total.fetch_sub(outgoing.bytes as u64, Ordering::Relaxed);
        (outgoing.parts, outgoing.bytes) = (parts, bytes);
    }

    /// A send begins: from here on it is the client that takes it or does not.
    pub fn sending(&self) {
        self.is_sending.set(true);
        self.progress.set(self.progress.get() + 1);
        wake(&self.processor);
    }

    /// `bytes` no longer wait: they have left, or are so few that they count as if they had.
    pub fn count_sent(&self, bytes: usize) {
        self.waiting_bytes.set(self.waiting_bytes.get() - bytes);
        self.client.output_bytes.store(self.waiting_bytes.get() as u64, Ordering::Relaxed);
        self.server.stats.output_waiting_bytes.fetch_sub(bytes as u64, Ordering::Relaxed);
        self.server.stats.output_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// A send has ended; `parts` is the vector of what was sent.
    pub fn sent(&self, mut parts: Vec<Bytes>) {
        self.is_sending.set(false);
        self.progress.set(self.progress.get() + 1);
        parts.clear();
        if parts.capacity() <= PARTS_KEPT && self.spare.borrow().len() < 2 {
            self.spare.borrow_mut().push(parts);
        }
        wake(&self.processor);
    }

    /// Whether the end of a send is waited for: something is queued, or nothing more will be.
    pub fn goes_on(&self) -> bool {
        self.is_finished.get() || !self.queue.borrow().is_empty()
    }

    /// An empty vector, used before if there is one.
    pub fn spare_parts(&self) -> Vec<Bytes> {
        self.spare.borrow_mut().pop().unwrap_or_default()
    }

    /// Whether further commands must wait.
    pub fn is_full(&self) -> bool {
        if self.is_closed.get() {
            return false;
        }
        let is_stalled = self.stalled_at.get() == Some(self.progress.get());
        (self.waiting_bytes.get() > self.pause_bytes && !is_stalled) || self.patience().is_some()
    }

    /// Bytes that may be queued before further commands wait: `None` where all clients together have as much waiting as they
    /// may, so that each may have its share alone.
    pub fn room_bytes(&self) -> Option<usize> {
        let total = self.server.stats.output_waiting_bytes.load(Ordering::Relaxed);
        let has_room = total + PIECE_BYTES_MAX as u64 <= self.server.options.output_bytes_max;
        has_room.then(|| self.pause_bytes.saturating_sub(self.waiting_bytes.get()))
    }

    /// Waits until the client has taken enough, or takes nothing for [`PAUSE_MAX`] and may have more piled up.
    /// Closes it when it may not and takes nothing for as long as the limit says.
    pub async fn drain(&self) {
        while self.is_full() {
            let before = self.progress.get();
            let patience = self.patience();
            if self.moves_within(patience.unwrap_or(PAUSE_MAX)).await {
                continue;
            }
            match patience {
                None => {
                    self.stalled_at.set(Some(before));
                    return;
                }
                // Others may have made room meanwhile.
                Some(_) if self.is_sending.get() && self.patience().is_some() => self.close_stuck(),
                Some(_) => {}
            }
        }
    }

    /// Ends when the client, no command of which is being carried out, has taken nothing for [`STUCK_MAX`], and is closed.
    pub async fn stuck(&self) {
        loop {
            let moves = self.moves_within(STUCK_MAX).await;
            if self.is_closed.get() {
                return;
            }
            if !moves && !self.client.awaits_drives() {
                return self.close_stuck();
            }
        }
    }

    /// Whether a send begins or ends within `limit`, or it is closed.
    async fn moves_within(&self, limit: Duration) -> bool {
        let before = self.progress.get();
        let moved = poll_fn(|context| {
            if self.progress.get() != before || self.is_closed.get() {
                return Poll::Ready(());
            }
            *self.processor.borrow_mut() = Some(context.waker().clone());
            Poll::Pending
        });
        pumice_reactor::timeout(limit, moved).await.is_ok()
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
