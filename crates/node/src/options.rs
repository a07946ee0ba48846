//! Settings of a server's drives.

use pumice_segment::Durability;

/// How to open a server's drives.
#[derive(Clone, Debug)]
pub struct NodeOptions {
    /// Memory for caches, memtables and buffers over all drives, in bytes; each drive gets an equal share.
    pub memory_bytes: u64,
    /// When a write counts as durable.
    pub durability: Durability,
    /// The time in which the patrol reads each drive once; `None`: there is none.
    pub patrol_pass: Option<std::time::Duration>,
    /// Random bits for the id of a set that is made on the spot.
    pub set_id: [u8; 16],
}

impl Default for NodeOptions {
    fn default() -> Self {
        Self { memory_bytes: 256 << 20, durability: Durability::Always, patrol_pass: None, set_id: [0; 16] }
    }
}
