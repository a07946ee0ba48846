//! One server's drives as one store.
//!
//! - [`Node`] opens the drives, puts each key on one of them by its Redis Cluster slot, and passes reads and
//!   writes to that drive's engine.
//! - [`Latches`] order commands that read, think and write the same key; [`Gate`]s hold replies back until what
//!   they tell is durable; [`Watches`] tell clients that a key they watch has changed.
//! - A core owns connections and I/O, never data: everything here may be used from any core of the server.
//!   Lock order: latch (async) > engine locks. Nothing here holds a lock across I/O.

mod batch;
mod condition;
mod error;
mod gate;
mod latch;
mod memory;
mod node;
mod options;
mod place;
mod scan;
mod set;
mod stats;
mod watch;
mod write;

pub use batch::NodeBatch;
pub use condition::{DriveCondition, DriveState, NewDamage};
pub use error::{CloseError, OpenError, WaitError, WriteError};
pub use gate::Gate;
pub use latch::{KeyHash, LatchSet, Latches, Latching, STRIPES};
pub use memory::keep_within;
pub use node::{Node, Recovered};
pub use options::NodeOptions;
pub use place::Place;
pub use scan::{NodeScan, NodeSnapshot};
pub use set::{DriveSet, MEMBER_KEY, Member, StoredMember};
pub use stats::NodeStats;
pub use watch::{WatchFlag, Watches, Watching};
