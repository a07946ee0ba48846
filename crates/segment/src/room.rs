//! Who waits for room: users in the order in which they came, and everybody else.
//!
//! While space is short or the drive is behind, what may be appended comes in small portions. Users who were refused queue up, and of
//! each portion as many are called, from the front, as it is likely to do for. A call promises nothing: who is refused again keeps
//! its place. Who comes while others wait is to queue up behind them ([`crate::Heap::users_wait`]), but for the rest of a [`Turn`]:
//! who is called and has more to append at once goes on for a while. A connection that queued for each of its
//! commands would be woken for each, and of many every one finds its input out of the processor's cache.
//!
//! When all who wait were called and there is room for more, who comes need not queue. It only lets them go first. Otherwise a
//! queue once there would never end while those who left it come again before the last has gone.
//!
//! Rejected: waking all, who then take what they find. Of 32 writers one that never had to wait for anything else took the
//! whole of each portion, and others waited 20 s; of 500, nearly all woke in vain. Portions counted out in bytes, as a semaphore
//! does: credit, memory and segments each set a bound, and what a batch takes of them is only known when it is appended.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};
use std::time::Duration;

use pumice_base::sync::lock;
use pumice_reactor::sync::Notify;
use pumice_reactor::{timeout, yield_now};
use smallvec::SmallVec;

use crate::inner::Inner;

/// Longest wait before whoever is first, or does not queue, looks again: room may come without anybody noticing.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// The same behind the first: its leaving calls the next.
const LOOK_AGAIN_BEHIND: Duration = Duration::from_millis(320);
/// Of what may be un-durable, those who pass while others wait take so much between two calls at most: what the turns of those who
/// were called have still to append is not counted once these have left the queue.
const SPARE_SHARE: usize = 8;

/// See the head of this file.
#[derive(Default)]
pub(crate) struct Room {
    /// Those who do not queue: upkeep, cleaning and deletes, which have other bounds.
    others: Notify,
    users: AtomicUsize,
    /// Bytes that there is room for beyond what all users who wait were called for, as of the last call.
    spare: AtomicU64,
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
    /// Of those, how many were not called, and what the others were called for.
    uncalled: usize,
    called_bytes: u64,
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

    /// Takes so many bytes of what is left beyond those who were called, if there are as many.
    fn takes_spare(&self, bytes: u64) -> bool {
        let rest = |spare: u64| spare.checked_sub(bytes);
        self.spare.fetch_update(Ordering::Relaxed, Ordering::Relaxed, rest).is_ok()
    }

    /// Calls users from the front until what there is will be used up by those who are called.
    fn call(&self, guess: Guess) {
        let mut woken = SmallVec::<[Waker; 16]>::new();
        {
            let queue = &mut *lock(&self.queue);
            let mut left = guess.bytes.saturating_sub(queue.called_bytes);
            if left > 0 && queue.uncalled > 0 {
                for waiting in queue.waiting.values_mut().filter(|waiting| !waiting.is_called) {
                    left = left.saturating_sub(waiting.bytes);
                    waiting.is_called = true;
                    queue.called_bytes += waiting.bytes;
                    queue.uncalled -= 1;
                    woken.extend(waiting.waker.take());
                    if left == 0 {
                        break;
                    }
                }
            }
            self.spare.store(left.min(guess.spare_max), Ordering::Relaxed);
        }
        woken.into_iter().for_each(Waker::wake);
    }
}

/// How much users may append now.
struct Guess {
    bytes: u64,
    /// What those who come may take at most of what others leave.
    spare_max: u64,
}

impl Guess {
    const NOTHING: Self = Self { bytes: 0, spare_max: 0 };
    const ALL: Self = Self { bytes: u64::MAX, spare_max: 0 };
}

impl Queue {
    fn insert(&mut self, bytes: u64) -> u64 {
        let number = self.next;
        self.next += 1;
        self.waiting.insert(number, Waiting { bytes, is_called: false, waker: None });
        self.uncalled += 1;
        number
    }

    fn remove(&mut self, number: u64) {
        match self.waiting.remove(&number) {
            Some(Waiting { is_called: true, bytes, .. }) => self.called_bytes -= bytes,
            Some(_) => self.uncalled -= 1,
            None => {}
        }
    }

    /// Takes back that one was called; answers whether it was.
    fn take_call(&mut self, number: u64) -> bool {
        let waiting = self.waiting.get_mut(&number).expect("it has a place until it is dropped");
        let was_called = std::mem::take(&mut waiting.is_called);
        if was_called {
            self.called_bytes -= waiting.bytes;
            self.uncalled += 1;
        }
        was_called
    }

    fn is_first(&self, number: u64) -> bool {
        self.waiting.keys().next() == Some(&number)
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
            self.room.call(self.room_guess());
        }
    }

    /// What users may append now; more than they will where they would be refused for good, and should hear of it.
    fn room_guess(&self) -> Guess {
        if self.blocked().is_some() || self.table().is_futile() {
            return Guess::ALL;
        }
        let (max, undurable) = (self.options.undurable_max_bytes, self.commit().undurable_bytes);
        if undurable > max / 2 {
            return Guess::NOTHING;
        }
        let lacks_nothing = self.room.lacks(Lacks::Nothing);
        let may_fit = lacks_nothing
            || if self.room.lacks(Lacks::Reserve) {
                self.table().leaves_reserve()
            } else {
                self.table().has_room()
            };
        if !may_fit {
            return Guess::NOTHING;
        }
        // Of segments it is not known how much they take.
        let spare_max = if lacks_nothing { (max / SPARE_SHARE) as u64 } else { 0 };
        Guess { bytes: self.pace.allows().min((max - undurable) as u64), spare_max }
    }

    /// Waits, as one who does not queue, until another try may be worth it.
    pub(crate) async fn wait_for_room(&self) {
        if self.blocked().is_none() && self.room_guess().bytes > 0 && self.table().has_room() {
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
    bytes: u64,
    /// It need not queue before it was refused.
    passes: bool,
    /// Its number in the queue, once it is there.
    number: Option<u64>,
}

impl Place {
    /// The last one, for an append of about `bytes`, and what else belongs to the user's turn, which begins.
    pub(crate) fn last(inner: &Arc<Inner>, bytes: u64, turn: &mut Turn) -> Self {
        let bytes = turn.begin(bytes.max(1));
        let passes = inner.room.users_wait() && inner.room.takes_spare(bytes);
        let mut place = Self { inner: Arc::clone(inner), bytes, passes, number: None };
        if !passes {
            place.line_up();
        }
        place
    }

    fn line_up(&mut self) -> u64 {
        let room = &self.inner.room;
        let mut queue = lock(&room.queue);
        let number = queue.insert(self.bytes);
        room.users.store(queue.waiting.len(), Ordering::Relaxed);
        drop(queue);
        self.number = Some(number);
        number
    }

    /// Waits until a try may be worth it: there seems to be room for this one and those before it, or it is the first and has waited
    /// for a while. To be awaited again after a try that was refused.
    pub async fn called(&mut self) {
        if std::mem::take(&mut self.passes) {
            // Those who were called go first.
            return yield_now().await;
        }
        let number = self.number.unwrap_or_else(|| self.line_up());
        if lock(&self.inner.room.queue).take_call(number) {
            // Refused, though there seemed to be room: others must get on.
            yield_now().await;
        }
        loop {
            self.inner.call_users();
            let is_first = lock(&self.inner.room.queue).is_first(number);
            let patience = if is_first { LOOK_AGAIN } else { LOOK_AGAIN_BEHIND };
            let called = poll_fn(|context| {
                let mut queue = lock(&self.inner.room.queue);
                let waiting = queue.waiting.get_mut(&number).expect("it has a place until it is dropped");
                if waiting.is_called {
                    return Poll::Ready(());
                }
                waiting.waker = Some(context.waker().clone());
                Poll::Pending
            });
            if timeout(patience, called).await.is_ok() || is_first {
                return;
            }
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let Some(number) = self.number else { return };
        let others_wait = {
            let mut queue = lock(&self.inner.room.queue);
            queue.remove(number);
            self.inner.room.users.store(queue.waiting.len(), Ordering::Relaxed);
            queue.uncalled > 0
        };
        if others_wait {
            // It may have left some of what it was called for, or all.
            self.inner.call_users();
        }
    }
}
