//! Hashing: of what stays in memory, under a seed of the process, and of what is stored, under fixed ones.
//!
//! Clients name keys, fields and members. Whoever knows how they are hashed sends as many with one hash as he likes, and each look-up
//! among these goes over all of them, for everybody. So a process that strangers talk to seeds its hashes ([`seed_hashes`]); in all
//! others, the simulator's above all, the same keys give the same order in every run.

use std::hash::BuildHasher;
use std::sync::OnceLock;

use foldhash::SharedSeed;
use foldhash::fast::FoldHasher;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// A hash map whose iteration order depends on its contents and the process's seed alone.
pub type HashMap<K, V> = hashbrown::HashMap<K, V, HashState>;
/// A hash set whose iteration order depends on its contents and the process's seed alone.
pub type HashSet<K> = hashbrown::HashSet<K, HashState>;

/// What a hash begins with, and what it folds bytes with. Both must be unknown: a word of a key that equals either makes a product zero,
/// whatever the rest of the key is.
struct Seed {
    first: u64,
    shared: SharedSeed,
}

impl Seed {
    const fn of(seed: u64) -> Self {
        Self { first: seed.rotate_left(32) ^ 0x9E37_79B9_7F4A_7C15, shared: SharedSeed::from_u64(seed) }
    }
}

static SEED: OnceLock<Seed> = OnceLock::new();
/// Where nobody chose one.
const DEFAULT_SEED: u64 = 0x5EED;

/// How everything in memory is hashed in this process.
#[derive(Clone, Copy, Debug, Default)]
pub struct HashState;

impl BuildHasher for HashState {
    type Hasher = FoldHasher<'static>;

    #[inline]
    fn build_hasher(&self) -> FoldHasher<'static> {
        let seed = SEED.get_or_init(|| const { Seed::of(DEFAULT_SEED) });
        FoldHasher::with_seed(seed.first, &seed.shared)
    }
}

/// Seeds all hashes of this process. To be called before anything was hashed: answers false if something was, and changes nothing then.
#[must_use]
pub fn seed_hashes(seed: u64) -> bool {
    SEED.set(Seed::of(seed)).is_ok()
}

/// XXH3-64 of `bytes` under `seed`: stable over versions and machines, so it may be stored.
pub fn stable_hash64(seed: u64, bytes: &[u8]) -> u64 {
    xxh3_64_with_seed(bytes, seed)
}
