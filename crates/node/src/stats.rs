//! What a server's drives have done and hold.

use pumice_kv::StoreStats;

/// Counters of every drive, in set order, and the node's own.
#[derive(Clone, Debug)]
pub struct NodeStats {
    /// One entry per drive.
    pub drives: Vec<StoreStats>,
    /// How often a command queued for a key latch.
    pub latch_waits: u64,
    /// Watched (key, client) pairs.
    pub watched: u64,
}
