//! Worlds over the engine of one drive: one host, a drive file, clients on its cores, faults.
//!
//! Writes become visible in the call that makes them, and everything runs on one thread, so the model changes in
//! the same instant as the store: reads and scans are compared exactly, whatever runs beside them.

mod bench;
mod client;
mod crash;
mod cut;
mod each;
mod fault;
mod flip;
mod full;
mod worn;

pub(crate) use crash::run as run_crash;
pub(crate) use cut::run as run_cut;
pub(crate) use each::run as run_each;
pub(crate) use fault::run as run_fault;
pub(crate) use flip::run as run_flip;
pub(crate) use full::run as run_full;
pub(crate) use worn::run as run_worn;
