//! Seeded worlds over the production code: servers, drives, clients and faults on one thread in virtual time.
//!
//! A *world* is a named experiment. It takes one seed, builds hosts on the reactor's simulated driver, runs the
//! very code that serves production on them, breaks things, and compares what came back with an oracle.
//! Everything random in it is drawn from the seed, so that a failing seed replays exactly: every failure in a
//! [`Report`] carries the one command that does so.
//!
//! An *experiment* (`sdf`) is a world that redraws a paper's figures: its report has rows with what was measured, what was
//! published and whether it lies in the band.
//!
//! CPU time is free in virtual time: a world shows what is *correct*, and how long devices and links take, not
//! how fast the code is.

mod ftl;
mod kv;
pub mod linear;
pub mod oracle;
pub mod redis;
mod report;
mod sdf;
mod worlds;

pub use report::{Failure, Report, Row, RunError, RunOptions};
pub use worlds::{WorldInfo, list, run, run_watched};
