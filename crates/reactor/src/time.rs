//! Time on the driver's clock, and timers.

use crate::executor::{self, Core, with_core};
use std::collections::BTreeMap;
use std::fmt;
use std::future::{Future, poll_fn};
use std::ops::{Add, AddAssign, Sub};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// A point on the driver's monotonic clock, in nanoseconds from an arbitrary start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nanos(pub u64);

impl Nanos {
    /// Later than anything that happens.
    pub const MAX: Self = Self(u64::MAX);

    /// Time from `earlier` to here; zero if `earlier` is later.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// Time from here to now.
    pub fn elapsed(self) -> Duration {
        now().since(self)
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl Add<Duration> for Nanos {
    type Output = Self;
    fn add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(nanos(duration)))
    }
}

impl AddAssign<Duration> for Nanos {
    fn add_assign(&mut self, duration: Duration) {
        *self = *self + duration;
    }
}

impl Sub<Duration> for Nanos {
    type Output = Self;
    fn sub(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(nanos(duration)))
    }
}

impl Sub for Nanos {
    type Output = Duration;
    fn sub(self, earlier: Self) -> Duration {
        self.since(earlier)
    }
}

/// Now, on the current core's clock. Panics outside a core.
pub fn now() -> Nanos {
    with_core(|core| core.now())
}

/// Unix time in milliseconds; may be as old as the core's current turn. Panics outside a core.
pub fn wall_ms() -> u64 {
    with_core(|core| core.wall_ms())
}

/// [`wall_ms`]'s clock in microseconds: for what is told to people and tools.
pub fn wall_us() -> u64 {
    with_core(|core| core.wall_us())
}

/// Timers of one core, ordered by (deadline, order of setting).
#[derive(Default)]
pub(crate) struct Timers {
    waiting: BTreeMap<(Nanos, u64), Waker>,
    next: u64,
}

impl Timers {
    fn insert(&mut self, deadline: Nanos, waker: Waker) -> u64 {
        let order = self.next;
        self.next += 1;
        self.waiting.insert((deadline, order), waker);
        order
    }

    pub(crate) fn earliest(&self) -> Option<Nanos> {
        self.waiting.first_key_value().map(|(&(deadline, _), _)| deadline)
    }

    /// Takes one timer that has run out.
    pub(crate) fn pop_due(&mut self, now: Nanos) -> Option<Waker> {
        let entry = self.waiting.first_entry()?;
        (entry.key().0 <= now).then(|| entry.remove())
    }

    pub(crate) fn clear(&mut self) -> BTreeMap<(Nanos, u64), Waker> {
        std::mem::take(&mut self.waiting)
    }
}

/// A wait for a point in time.
struct Sleep {
    deadline: Nanos,
    set: Option<(Rc<Core>, u64)>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let deadline = self.deadline;
        match self.set.take() {
            Some((core, order)) => {
                let waiting = match core.timers().waiting.get_mut(&(deadline, order)) {
                    Some(waker) => {
                        waker.clone_from(context.waker());
                        true
                    }
                    None => false,
                };
                if waiting {
                    self.set = Some((core, order));
                    return Poll::Pending;
                }
            }
            None => {
                let core = executor::current();
                if deadline > core.now() {
                    let order = core.timers().insert(deadline, context.waker().clone());
                    self.set = Some((core, order));
                    return Poll::Pending;
                }
            }
        }
        // Ran out; a later poll would see that at once.
        self.deadline = Nanos(0);
        Poll::Ready(())
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some((core, order)) = self.set.take() {
            let waker = core.timers().waiting.remove(&(self.deadline, order));
            drop(waker);
        }
    }
}

/// Waits for `duration`.
pub async fn sleep(duration: Duration) {
    sleep_until(now() + duration).await;
}

/// Waits until `deadline`; not at all if it has passed.
pub async fn sleep_until(deadline: Nanos) {
    Sleep { deadline, set: None }.await;
}

/// A [`timeout`] ran out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Elapsed;

impl fmt::Display for Elapsed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the time ran out")
    }
}

impl std::error::Error for Elapsed {}

/// What `future` returns, or `Elapsed` (and `future` dropped) if that takes longer than `limit`.
pub async fn timeout<F: Future>(limit: Duration, future: F) -> Result<F::Output, Elapsed> {
    let mut future = pin!(future);
    let mut sleep = pin!(Sleep { deadline: now() + limit, set: None });
    poll_fn(|context| {
        if let Poll::Ready(result) = future.as_mut().poll(context) {
            return Poll::Ready(Ok(result));
        }
        sleep.as_mut().poll(context).map(|()| Err(Elapsed))
    })
    .await
}

/// Lets every other ready task and finished operation go first.
pub async fn yield_now() {
    let mut yielded = false;
    poll_fn(|context| {
        if yielded {
            return Poll::Ready(());
        }
        yielded = true;
        with_core(|core| core.defer(context.waker().clone()));
        Poll::Pending
    })
    .await;
}
