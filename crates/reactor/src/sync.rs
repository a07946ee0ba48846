//! Waiting for each other, across tasks and cores. All are `Send + Sync`; wakes go through the waker, which knows its
//! core. Each keeps its waiters behind a short mutex that is never held while waking.

mod event;
mod gate;
mod notify;
pub mod oneshot;
mod semaphore;
mod waiters;

pub use event::Event;
pub use gate::{Gate, GateFailed};
pub use notify::Notify;
pub use semaphore::{OwnedPermit, Permit, Semaphore};
