//! The memtable by itself: it finds what was put, whatever hashes the keys have.

use std::collections::BTreeMap;
use std::ops::Bound;

use pumice_base::hash::FixedState;
use pumice_base::rng::Rng;
use pumice_kv::entry::Body;
use pumice_kv::memtable::{Memtable, NewBody, NewVersion};
use std::hash::BuildHasher;

fn version(seq: u64, value: &[u8]) -> NewVersion<'_> {
    NewVersion {
        seq,
        expire_ms: 0,
        tag: 0,
        large: false,
        value_len: value.len() as u64,
        counted: false,
        body: NewBody::Inline(value),
    }
}

#[test]
fn keys_are_found_however_their_hashes_fall() {
    let hash_of = |kind: u64, key: &[u8]| {
        let hash = FixedState::default().hash_one(key);
        match kind {
            0 => hash,
            // All the same, a few, and such as differ where the index does not look first.
            1 => 7,
            2 => hash % 5,
            3 => hash << 28,
            _ => u64::MAX - hash % 3,
        }
    };
    for seed in 0..25 {
        let mut rng = Rng::from_seed(seed);
        let kind = seed % 5;
        let mut memtable = Memtable::default();
        let mut model: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
        let keys = [3, 40, 900][seed as usize / 5 % 3];
        for seq in 1..3000 {
            let key = format!("key:{}", rng.below(keys)).into_bytes();
            let hash = hash_of(kind, &key);
            let found = memtable.get(hash, &key).map(|entry| match entry.body {
                Body::Inline(value) => value.to_vec(),
                _ => panic!("seed {seed}: another body"),
            });
            assert_eq!(found.as_ref(), model.get(&key), "seed {seed}, step {seq}");
            assert_eq!(memtable.seq_of(hash, &key).is_some(), found.is_some());
            let value = vec![seq as u8; rng.below(40) as usize];
            memtable.insert(hash, &key, &version(seq, &value), 0);
            model.insert(key, value);
        }
        assert_eq!(memtable.len(), model.len(), "seed {seed}");
        let mut listed = Vec::new();
        memtable.collect((Bound::Unbounded, Bound::Unbounded), false, u64::MAX, usize::MAX, &mut listed);
        assert!(listed.iter().map(|(key, _)| &key[..]).eq(model.keys().map(|key| &key[..])), "seed {seed}");
    }
}
