//! The index of rows in memory, against a list.

use std::collections::{BTreeMap, BTreeSet};

use pumice_base::rng::Rng;
use pumice_kv::hash_index::HashIndex;

/// By kind: few that many share; such as lie at both ends, so that numbers step aside around them; any; any and some at the ends.
fn hash_of(kind: u64, rng: &mut Rng) -> u32 {
    match kind {
        0 => rng.below(40) as u32 * 0x0101_0101,
        // Those whose own places are the last, and the first: what they are multiplied by has an inverse.
        1 => (u32::MAX - 20).wrapping_add(rng.below(40) as u32).wrapping_mul(inverse(0x9E37_79B9)),
        3 if rng.below(16) == 0 => hash_of(1, rng),
        _ => rng.next_u64() as u32,
    }
}

/// What undoes a multiplication by an odd number (Newton's iteration).
fn inverse(odd: u32) -> u32 {
    (0..5).fold(odd, |x, _| x.wrapping_mul(2u32.wrapping_sub(odd.wrapping_mul(x))))
}

/// What the index is to have.
#[derive(Default)]
struct Listed {
    /// In no order.
    all: Vec<(u32, u32)>,
    by_hash: BTreeMap<u32, BTreeSet<u32>>,
}

impl Listed {
    fn add(&mut self, hash: u32, number: u32) {
        self.all.push((hash, number));
        self.by_hash.entry(hash).or_default().insert(number);
    }

    fn take(&mut self, at: usize) -> (u32, u32) {
        let (hash, number) = self.all.swap_remove(at);
        self.by_hash.get_mut(&hash).expect("it is listed").remove(&number);
        (hash, number)
    }

    fn check(&self, index: &HashIndex, hash: u32, at: &str) {
        let mut found: Vec<u32> = index.all(hash).collect();
        found.sort_unstable();
        let listed: Vec<u32> = self.by_hash.get(&hash).into_iter().flatten().copied().collect();
        assert_eq!(found, listed, "{at}, hash {hash}");
    }
}

#[test]
fn it_has_what_was_put_into_it_and_nothing_else() {
    assert_eq!(inverse(0x9E37_79B9).wrapping_mul(0x9E37_79B9), 1);
    for seed in 0..60 {
        let (kind, mut rng) = (seed % 4, Rng::from_seed(seed));
        let mut index = HashIndex::default();
        let mut listed = Listed::default();
        // Those of few hashes are gone over one by one. Of the others so many that they move a few at a time.
        let rows_max = if kind < 2 { 1 << rng.below(10) } else { 256 << rng.below(6) };
        for step in 0..20_000u32 {
            let at = format!("seed {seed}, step {step}");
            match rng.below(8) {
                0..=4 if listed.all.len() < rows_max => {
                    let hash = hash_of(kind, &mut rng);
                    index.insert(hash, step);
                    listed.add(hash, step);
                }
                5 if !listed.all.is_empty() => {
                    let (hash, old) = listed.take(rng.below(listed.all.len() as u64) as usize);
                    index.replace(hash, old, step);
                    listed.add(hash, step);
                }
                6 => {
                    // Nobody's.
                    let hash = hash_of(kind, &mut rng);
                    index.remove(hash, u32::MAX - 1);
                    index.replace(hash, u32::MAX - 1, step);
                    if rng.below(500) == 0 {
                        for _ in 0..listed.all.len() / 8 * 7 {
                            let (hash, number) = listed.take(0);
                            index.remove(hash, number);
                        }
                        let before = index.bytes();
                        index.shrink(2);
                        assert!(index.bytes() <= before, "{at}");
                    }
                }
                _ if !listed.all.is_empty() => {
                    let (hash, number) = listed.take(rng.below(listed.all.len() as u64) as usize);
                    index.remove(hash, number);
                }
                _ => {}
            }
            assert_eq!(index.len(), listed.all.len(), "{at}");
            if step % 64 == 0 {
                let known = listed.all.iter().map(|&(hash, _)| hash).take(20);
                known.chain([0, 1, u32::MAX]).for_each(|hash| listed.check(&index, hash, &at));
            }
            if step % 4096 == 0 {
                listed.by_hash.keys().for_each(|&hash| listed.check(&index, hash, &at));
            }
        }
    }
}

/// Each moves a few places when it comes, and all are found at every moment of the move.
#[test]
fn all_are_found_while_a_larger_array_is_filled() {
    const ROWS: u32 = 9000;
    let mut rng = Rng::from_seed(3);
    let hashes: Vec<u32> = (0..ROWS).map(|_| hash_of(3, &mut rng)).collect();
    let mut index = HashIndex::default();
    let mut moves = 0;
    for (n, &hash) in hashes.iter().enumerate() {
        let before = (index.bytes(), index.lasting_bytes());
        index.insert(hash, n as u32);
        moves += u32::from(index.bytes() != before.0);
        assert!(index.lasting_bytes() >= before.1 && index.lasting_bytes() <= index.bytes());
        if n % 50 == 0 {
            let is_found = |n: usize| index.all(hashes[n]).any(|number| number == n as u32);
            assert!((0..=n).all(is_found), "after {n}");
        }
    }
    // Twenty larger arrays. From the sixth last on the smaller one is still there and goes later; the last of these has not yet.
    assert_eq!(moves, 25);
    // Who looks has it end, too.
    (0..ROWS).for_each(|_| index.settle());
    assert_eq!(index.bytes(), index.lasting_bytes());
    assert!(hashes.iter().enumerate().all(|(n, &hash)| index.all(hash).any(|number| number == n as u32)));
}

#[test]
fn it_takes_few_bytes_for_each_and_gives_back_what_many_took() {
    let mut index = HashIndex::default();
    assert_eq!(index.bytes(), 0);
    let mut rng = Rng::from_seed(7);
    let hashes: Vec<u32> = (0..100_000).map(|_| rng.next_u64() as u32).collect();
    for (n, &hash) in hashes.iter().enumerate() {
        index.insert(hash, n as u32);
        // 16, and 11 more while it moves.
        assert!(index.bytes() <= 27 * (n + 1) + 64, "{} bytes for {}", index.bytes(), n + 1);
    }
    for (n, &hash) in hashes.iter().enumerate().skip(1000) {
        index.remove(hash, n as u32);
    }
    index.shrink(4);
    assert!(index.bytes() <= 32_000, "{} bytes for a thousand", index.bytes());
    let found = hashes.iter().take(1000).enumerate().all(|(n, &hash)| index.all(hash).any(|m| m == n as u32));
    assert!(found);
}
