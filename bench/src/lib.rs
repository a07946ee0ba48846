//! Pumice beside its peers and the device's own limit.
//!
//! One command (`bench/run`) runs *suites*; a suite starts one *worker* process per engine and configuration, so that
//! CPU, memory and I/O counters belong to that engine alone; a worker runs *phases* (load, read, overwrite, settle) and
//! hands back one JSON line. The suites turn those into tables with ratios, and keep the newest in `bench/results/`.

pub mod bound;
pub mod engine;
pub mod fio;
pub mod keys;
pub mod machine;
pub mod net;
pub mod phase;
pub mod report;
pub mod suite;
pub mod usage;
pub mod worker;

/// Errors here are read by a person at a terminal: text is enough.
pub type Error = Box<dyn std::error::Error + Send + Sync>;
/// A result with [`Error`].
pub type Result<T> = std::result::Result<T, Error>;
