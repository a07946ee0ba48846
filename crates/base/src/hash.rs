//! Hashing with fixed seeds: the same keys give the same order in every run.

pub use foldhash::fast::FixedState;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// A hash map whose iteration order depends on its contents alone.
pub type HashMap<K, V> = hashbrown::HashMap<K, V, FixedState>;
/// A hash set whose iteration order depends on its contents alone.
pub type HashSet<K> = hashbrown::HashSet<K, FixedState>;

/// XXH3-64 of `bytes` under `seed`: stable over versions and machines, so it may be stored.
pub fn stable_hash64(seed: u64, bytes: &[u8]) -> u64 {
    xxh3_64_with_seed(bytes, seed)
}
