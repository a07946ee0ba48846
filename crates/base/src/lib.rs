//! What every layer of Pumice shares and none of them owns: checksums, hashing, sizes, seeded random
//! streams, how latencies are counted and how a lock is taken. Nothing in this crate does I/O, reads a clock or starts a thread.

pub mod checksum;
pub mod hash;
pub mod latency;
pub mod rng;
pub mod size;
pub mod slot;
pub mod sync;
