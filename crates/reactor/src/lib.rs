//! One core of a server: a `!Send` executor, timers, buffers, files and sockets, over a driver: io_uring,
//! epoll where that is not to be had, or a simulation.
//!
//! Everything here acts on the *current core*, which the executor names while it polls a task. Code above this
//! crate is the same in both worlds: it never sees a thread, a clock or a file descriptor. Wakers, [`sync`]
//! primitives, [`File`] and [`IoBuf`] may cross cores; futures and [`Stream`]s stay where they were made.
//!
//! The seam is [`driver`]: operations with owned buffers go down, completions come back in batches. Rejected:
//! a trait with an associated type for each operation (its bounds leak into every layer above).
//!
//! All of Pumice's `unsafe` but one foreign call (`server/src/allocator.rs`) is in this crate.

#![allow(unsafe_code)]

mod addr;
pub mod buf;
pub mod driver;
mod epoll;
pub mod executor;
pub mod file;
mod file_queue;
mod join;
pub mod metrics;
pub mod net;
mod operation;
mod paced;
mod prefetch;
mod remote;
mod run;
pub mod sim;
pub mod sync;
mod sys;
mod task;
pub mod time;
mod uring;
pub mod zones;

pub use addr::{Addr, PeerAddr};
pub use buf::{IoBuf, RecvBuf};
pub use driver::{KEEPALIVE_SECONDS, ListenOptions, OpenOptions, ShutdownHow, Signal, WriteSync};
pub use file::File;
pub use file_queue::{Answers, Requests};
pub use join::join_all;
pub use net::{Came, Listener, ListenerShare, RecvHalf, SendHalf, Sending, Stream};
pub use prefetch::{prefetch, prefetch_at};
pub use run::{Config, Init, KernelInterface, Running, Without, block_on, block_on_with, start};
pub use sys::{ignore_file_size_signal, raise_open_files_limit, somebody_listens};
pub use task::{Aborted, JoinHandle};
pub use time::{Elapsed, Nanos, now, sleep, sleep_until, timeout, wall_ms, wall_us, yield_now};

use std::future::Future;
use std::pin::Pin;

/// A boxed future that stays on its core.
pub type LocalBoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// A core of one server: 0 to [`core_count`] − 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CoreId(pub u16);

/// Runs `future` beside the caller on the current core. Dropping the handle lets it run on.
///
/// Panics outside a core.
pub fn spawn<F: Future + 'static>(future: F) -> JoinHandle<F::Output> {
    executor::with_core(|core| core.spawn(future))
}

/// Runs the future that `make` returns on another core of the same server; does nothing if that core has stopped.
pub fn spawn_on(core: CoreId, make: impl FnOnce() -> LocalBoxFuture<'static, ()> + Send + 'static) {
    executor::with_core(|current| current.spawn_on(core, Box::new(make)));
}

/// The core that polls the caller. Panics outside a core.
pub fn core() -> CoreId {
    executor::with_core(|core| core.id())
}

/// How many cores the current server has.
pub fn core_count() -> usize {
    executor::with_core(|core| core.server().core_count())
}

/// Through what the current core asks the kernel: `io_uring` or `epoll`; `simulation` where it does not.
pub fn driver_name() -> &'static str {
    executor::with_core(|core| core.driver.borrow().name())
}

/// Whether the caller is polled by a core at all.
pub fn on_core() -> bool {
    executor::has_core()
}

/// Waits for the next SIGTERM, SIGINT or SIGHUP. In a simulation none ever comes.
pub async fn signal() -> std::io::Result<Signal> {
    match operation::submit(driver::Op::Signal).await {
        driver::Outcome::Signal(result) => result,
        other => other.unexpected(),
    }
}
