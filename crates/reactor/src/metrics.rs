//! Counters of each core: written by their core alone, read by anyone, so a plain load and store suffice.

use crate::CoreId;
use crate::executor::with_core;
use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// The live counters of one core.
        #[derive(Debug, Default)]
        pub struct Counters { $($(#[$doc])* pub(crate) $name: Counter,)* }

        /// The counters of one core at one moment, since its start.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct CoreMetrics { $($(#[$doc])* pub $name: u64,)* }

        impl Counters {
            /// All counters now.
            pub fn snapshot(&self) -> CoreMetrics {
                CoreMetrics { $($name: self.$name.get(),)* }
            }
        }

        impl CoreMetrics {
            /// Name and value of each counter.
            pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name)),*].into_iter()
            }
        }
    };
}

counters! {
    /// Turns of the loop: batches of ready tasks.
    turns,
    /// Tasks polled.
    polls,
    /// Tasks started.
    spawns,
    /// Waits that slept.
    sleeps,
    /// Messages from other cores: wakes and spawned tasks.
    remote_messages,
    /// System calls that handed over operations of files or waited (io_uring_enter; io_submit, io_getevents, epoll_wait).
    enters,
    /// Timers that ran out.
    timers,
    /// File reads.
    reads,
    /// Bytes asked for by file reads.
    read_bytes,
    /// File writes.
    writes,
    /// Bytes handed to file writes.
    write_bytes,
    /// File syncs.
    syncs,
    /// Punches and allocations.
    allocations,
    /// Connections accepted or made.
    connections,
    /// Receives that brought bytes.
    receives,
    /// Bytes received.
    receive_bytes,
    /// Receives that waited for a shared buffer.
    receive_waits,
    /// Sends.
    sends,
    /// Operations cancelled.
    cancels,
}

/// One counter.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Counts `n` more. Called by the owning core only.
    #[inline]
    pub(crate) fn add(&self, n: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    /// The count.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The counters of every core of the current server, by core.
pub fn all_cores() -> Vec<CoreMetrics> {
    with_core(|core| {
        let server = core.server();
        (0..server.core_count()).map(|id| server.counters(CoreId(id as u16)).snapshot()).collect()
    })
}
