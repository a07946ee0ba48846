//! Who waits for room: users in the order in which they came, and everybody else.
//!
//! While space is short or the drive is behind, what may be appended comes in small portions. Users who were refused queue up, and of
//! each portion as many are called, from the front, as it is likely to do for. A call promises nothing: who is refused again keeps
//! its place. Who comes while others wait is to queue up behind them ([`crate::Heap::users_wait`]), but for the rest of a [`Turn`]:
//! who is called and has more to append at once goes on for a while. A connection that queued for each of its
//! commands would be woken for each, and of many every one finds its input out of the processor's cache.
//!
//! Rejected: waking all, who then take what they find. Of 32 writers one that never had to wait for anything else took the
//! whole of each portion, and others waited 20 s; of 500, nearly all woke in vain. Portions counted out in bytes, as a semaphore
//! does: credit, memory and segments each set a bound, and what a batch takes of them is only known when it is appended.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};
use std::time::Duration;

use pumice_base::sync::lock;
use pumice_reactor::sync::Notify;
use pumice_reactor::{timeout, yield_now};

use crate::inner::Inner;

/// Longest wait before whoever is first, or does not queue, looks again: room may come without anybody noticing.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// The same behind the first: its leaving calls the next.
const LOOK_AGAIN_BEHIND: Duration = Duration::from_millis(320);

/// See the head of this file.
#[derive(Default)]
pub(crate) struct Room {
    /// Those who do not queue: upkeep, cleaning and deletes, which have other bounds.
    others: Notify,
    users: AtomicUsize,
    /// What the last user who tried was refused for; a [`Lacks`].
    lacks: AtomicU8,
    /// A leaf lock.
    queue: Mutex<Queue>,
}

/// What a user has to wait for besides credit and memory.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Lacks {
    Nothing,
    /// Too much of the reserve is in use, though an open segment might take the append.
    Reserve,
    /// The open segments are too full for it.
    Segment,
}

#[derive(Default)]
struct Queue {
    next: u64,
    /// In order of arrival.
    waiting: BTreeMap<u64, Waiting>,
}

struct Waiting {
    bytes: u64,
    is_called: bool,
    waker: Option<Waker>,
}

impl Room {
    pub(crate) fn users_wait(&self) -> bool {
        self.users.load(Ordering::Relaxed) > 0
    }

    /// Notes what a user who tried was refused for.
    pub(crate) fn tried(&self, lacks: Lacks) {
        if self.lacks.load(Ordering::Relaxed) != lacks as u8 {
            self.lacks.store(lacks as u8, Ordering::Relaxed);
        }
    }

    fn lacks(&self, lacks: Lacks) -> bool {
        self.lacks.load(Ordering::Relaxed) == lacks as u8
    }

    /// Calls users from the front until `bytes` will be used up by those who are called.
    fn call(&self, bytes: u64) {
        let mut woken = Vec::new();
        {
            let mut queue = lock(&self.queue);
            let mut left = bytes;
            for waiting in queue.waiting.values_mut() {
                if left == 0 {
                    break;
                }
                left = left.saturating_sub(waiting.bytes);
                if !std::mem::replace(&mut waiting.is_called, true) {
                    woken.extend(waiting.waker.take());
                }
            }
        }
        woken.into_iter().for_each(Waker::wake);
    }
}

impl Inner {
    /// Something may have made room.
    pub(crate) fn room_came(&self) {
        self.room.others.notify_all();
        self.call_users();
    }

    fn call_users(&self) {
        if self.room.users_wait() {
            self.room.call(self.room_bytes());
        }
    }

    /// What users may append now, by a guess; more than they will where they would be refused for good, and should hear of it.
    fn room_bytes(&self) -> u64 {
        if self.blocked().is_some() || self.table().is_futile() {
            return u64::MAX;
        }
        let (max, undurable) = (self.options.undurable_max_bytes, self.commit().undurable_bytes);
        let is_quiet = undurable <= max / 2;
        let may_fit = if self.room.lacks(Lacks::Reserve) {
            self.table().leaves_reserve()
        } else {
            self.room.lacks(Lacks::Nothing) || self.table().has_room()
        };
        if is_quiet && may_fit { self.pace.allows().min((max - undurable) as u64) } else { 0 }
    }

    /// Waits, as one who does not queue, until another try may be worth it.
    pub(crate) async fn wait_for_room(&self) {
        if self.blocked().is_none() && self.room_bytes() > 0 && self.table().has_room() {
            // A caller in a loop must let others work, whatever it was refused for.
            return yield_now().await;
        }
        // A notification may slip in between the look and the wait: the time-out bounds what that costs.
        let _ = timeout(LOOK_AGAIN, self.room.others.notified()).await;
    }
}

/// A user appends so many bytes at most before it queues again.
const TURN_BYTES_MAX: u64 = 128 << 10;

/// What a user who was called for room may append while others go on waiting. Of one who does not say that it has more, that is the
/// batch which it was called for.
#[derive(Debug, Default)]
pub struct Turn {
    wanted: u64,
    left: u64,
}

impl Turn {
    /// About so many bytes are there to be appended now, those of the next batch included.
    pub fn wants(&mut self, bytes: u64) {
        self.wanted = bytes;
        self.left = self.left.min(bytes);
    }

    /// It begins when a batch of so many bytes is called. Answers what is to be called for.
    fn begin(&mut self, bytes: u64) -> u64 {
        self.left = bytes.max(self.wanted.min(TURN_BYTES_MAX));
        self.left
    }

    /// Whether it goes on. Its last batch may be longer than what is left.
    pub fn goes_on(&self) -> bool {
        self.left > 0
    }

    /// A batch of so many bytes was appended.
    pub fn spend(&mut self, bytes: u64) {
        self.left = self.left.saturating_sub(bytes);
    }
}

/// A user's place among those who wait for room; given up on drop.
pub struct Place {
    inner: Arc<Inner>,
    number: u64,
}

impl Place {
    /// The last one, for an append of about `bytes`, and what else belongs to the user's turn, which begins.
    pub(crate) fn last(inner: &Arc<Inner>, bytes: u64, turn: &mut Turn) -> Self {
        let bytes = turn.begin(bytes.max(1));
        let mut queue = lock(&inner.room.queue);
        let number = queue.next;
        queue.next += 1;
        queue.waiting.insert(number, Waiting { bytes, is_called: false, waker: None });
        inner.room.users.store(queue.waiting.len(), Ordering::Relaxed);
        drop(queue);
        Self { inner: Arc::clone(inner), number }
    }

    /// Waits until a try may be worth it: there seems to be room for this one and those before it, or it is the first and has waited
    /// for a while. To be awaited again after a try that was refused.
    pub async fn called(&mut self) {
        if self.with(|waiting, _| std::mem::take(&mut waiting.is_called)) {
            // Refused, though there seemed to be room: others must get on.
            yield_now().await;
        }
        loop {
            self.inner.call_users();
            let is_first = self.with(|_, is_first| is_first);
            let patience = if is_first { LOOK_AGAIN } else { LOOK_AGAIN_BEHIND };
            let called = poll_fn(|context| {
                self.with(|waiting, _| {
                    if waiting.is_called {
                        return Poll::Ready(());
                    }
                    waiting.waker = Some(context.waker().clone());
                    Poll::Pending
                })
            });
            if timeout(patience, called).await.is_ok() || is_first {
                return;
            }
        }
    }

    /// With what the queue knows of this one, and whether it is the first.
    fn with<T>(&self, f: impl FnOnce(&mut Waiting, bool) -> T) -> T {
        let mut queue = lock(&self.inner.room.queue);
        let is_first = queue.waiting.keys().next() == Some(&self.number);
        f(queue.waiting.get_mut(&self.number).expect("it has a place until it is dropped"), is_first)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        {
            let mut queue = lock(&self.inner.room.queue);
            queue.waiting.remove(&self.number);
            self.inner.room.users.store(queue.waiting.len(), Ordering::Relaxed);
        }
        // It may have left some of what it was called for, or all.
        self.inner.call_users();
    }
}
