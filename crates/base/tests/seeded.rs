//! Hashes under a seed of the process: a program of its own, since there is one seed for all of it.

use std::collections::BTreeSet;
use std::hash::BuildHasher;

use pumice_base::hash::{HashState, seed_hashes};

/// What foldhash 0.2 folds the last eight bytes of a short key with where nobody seeds it (its `ARBITRARY7`). The product of that and
/// the first eight is zero where they are the same.
const KNOWN: u64 = 0x3F84_D5B5_B547_0917;
const KEYS: u64 = 500;

#[test]
fn keys_that_are_made_to_fall_together_do_not() {
    let with_last = |n: u64| [n.to_le_bytes(), KNOWN.to_le_bytes()].concat();
    let with_first = |n: u64| [[0; 8], n.to_le_bytes()].concat();
    let crafted: Vec<Vec<u8>> = (1..=KEYS).map(with_last).chain((1..=KEYS).map(with_first)).collect();
    let hashes =
        |state: &dyn Fn(&[u8]) -> u64| crafted.iter().map(|key| state(key)).collect::<BTreeSet<u64>>();
    let known = foldhash::fast::FixedState::default();
    let alike = hashes(&|key| known.hash_one(key)).len() as u64;
    assert!(alike <= KEYS + 1, "{alike}: the keys are not what they should be");

    assert!(seed_hashes(7), "nothing was hashed yet");
    let seeded = hashes(&|key| HashState.hash_one(key));
    assert_eq!(seeded.len() as u64, 2 * KEYS);
    assert!(!seed_hashes(8), "a second seed was taken");
    assert_eq!(hashes(&|key| HashState.hash_one(key)), seeded);
}
