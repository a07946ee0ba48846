//! The index of rows in memory, against a list.

use pumice_base::rng::Rng;
use pumice_kv::hash_index::HashIndex;

/// Of few hashes, so that many share one; of such as lie at both ends, so that they step aside around them; of any.
fn hashes(seed: u64, rng: &mut Rng) -> u32 {
    match seed % 3 {
        0 => rng.below(40) as u32 * 0x0101_0101,
        // Those whose own places are the last, and the first: what they are multiplied by has an inverse.
        1 => (u32::MAX - 20).wrapping_add(rng.below(40) as u32).wrapping_mul(inverse(0x9E37_79B9)),
        _ => rng.next_u64() as u32,
    }
}

/// What undoes a multiplication by an odd number (Newton's iteration).
fn inverse(odd: u32) -> u32 {
    (0..5).fold(odd, |x, _| x.wrapping_mul(2u32.wrapping_sub(odd.wrapping_mul(x))))
}

fn sorted(numbers: impl Iterator<Item = u32>) -> Vec<u32> {
    let mut numbers: Vec<u32> = numbers.collect();
    numbers.sort_unstable();
    numbers
}

#[test]
fn it_has_what_was_put_into_it_and_nothing_else() {
    assert_eq!(inverse(0x9E37_79B9).wrapping_mul(0x9E37_79B9), 1);
    for seed in 0..60 {
        let mut rng = Rng::from_seed(seed);
        let mut index = HashIndex::default();
        let mut listed: Vec<(u32, u32)> = Vec::new();
        let rows_max = 1 << rng.below(10);
        for step in 0..4000u32 {
            match rng.below(8) {
                0..=3 if listed.len() < rows_max => {
                    let hash = hashes(seed, &mut rng);
                    index.insert(hash, step);
                    listed.push((hash, step));
                }
                4 if !listed.is_empty() => {
                    let at = rng.below(listed.len() as u64) as usize;
                    let (hash, old) = listed[at];
                    listed[at] = (hash, step);
                    index.replace(hash, old, step);
                }
                5 => {
                    // Nobody's.
                    let hash = hashes(seed, &mut rng);
                    index.remove(hash, u32::MAX - 1);
                    index.replace(hash, u32::MAX - 1, step);
                }
                6 if rng.below(50) == 0 => {
                    listed.drain(listed.len() / 8..).for_each(|(hash, number)| index.remove(hash, number));
                    let before = index.bytes();
                    index.shrink(4);
                    assert!(index.bytes() <= before, "seed {seed}");
                }
                _ if !listed.is_empty() => {
                    let at = rng.below(listed.len() as u64) as usize;
                    let (hash, number) = listed.swap_remove(at);
                    index.remove(hash, number);
                }
                _ => {}
            }
            assert_eq!(index.len(), listed.len(), "seed {seed}, step {step}");
            if step % 16 == 0 {
                for hash in listed.iter().map(|&(hash, _)| hash).chain([0, 1, u32::MAX]) {
                    let of_hash = listed.iter().filter(|&&(of, _)| of == hash).map(|&(_, number)| number);
                    assert_eq!(
                        sorted(index.all(hash)),
                        sorted(of_hash),
                        "seed {seed}, step {step}, hash {hash}"
                    );
                }
            }
        }
    }
}

#[test]
fn it_takes_sixteen_bytes_for_each_and_gives_back_what_many_took() {
    let mut index = HashIndex::default();
    assert_eq!(index.bytes(), 0);
    let mut rng = Rng::from_seed(7);
    let hashes: Vec<u32> = (0..100_000).map(|_| rng.next_u64() as u32).collect();
    for (n, &hash) in hashes.iter().enumerate() {
        index.insert(hash, n as u32);
        assert!(index.bytes() <= 16 * (n + 1) + 64, "{} bytes for {}", index.bytes(), n + 1);
    }
    for (n, &hash) in hashes.iter().enumerate().skip(1000) {
        index.remove(hash, n as u32);
    }
    index.shrink(4);
    assert!(index.bytes() <= 32_000, "{} bytes for a thousand", index.bytes());
    let found = hashes.iter().take(1000).enumerate().all(|(n, &hash)| index.all(hash).any(|m| m == n as u32));
    assert!(found);
}
