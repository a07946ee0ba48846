//! The row cache by itself: what it answers, what it keeps, and what it counts.

use std::collections::BTreeMap;

use bytes::Bytes;
use pumice_base::hash::HashState;
use pumice_base::rng::Rng;
use pumice_kv::rows::{APART_FROM_BYTES, RowCache};
use pumice_kv::{Entry, ValueView};
use std::hash::BuildHasher;

fn hash(key: &[u8]) -> u64 {
    HashState.hash_one(key)
}

fn row(seq: u64, value: Vec<u8>) -> Entry {
    Entry { tag: seq as u8, expire_ms: seq * 3, seq, value: Bytes::from(value), large: None }
}

fn held(cache: &mut RowCache, key: &[u8]) -> Option<(u64, u64, u8, Vec<u8>)> {
    cache.get(hash(key), key).map(|row| {
        let value = match row.value {
            ValueView::Inline(value) => value.to_vec(),
            ValueView::Shared(value) => value.to_vec(),
        };
        (row.seq, row.expire_ms, row.tag, value)
    })
}

fn put(cache: &mut RowCache, key: &[u8], row: &Entry) {
    cache.insert(hash(key), key, row);
}

fn key(n: u64) -> Vec<u8> {
    format!("key:{n:08}").into_bytes()
}

fn length(rng: &mut Rng) -> usize {
    match rng.below(8) {
        0 => 0,
        1..=4 => rng.below(300) as usize,
        5 => APART_FROM_BYTES - 2 + rng.below(4) as usize,
        6 => rng.below(4 * APART_FROM_BYTES as u64) as usize,
        _ => rng.below(70_000) as usize,
    }
}

#[test]
fn it_answers_what_was_put_last_or_nothing_whatever_happens() {
    for seed in 0..60 {
        let mut rng = Rng::from_seed(seed);
        let mut cache = RowCache::new([0, 40_000, 300_000, 4 << 20][seed as usize % 4]);
        let mut model: BTreeMap<Vec<u8>, Entry> = BTreeMap::new();
        // Few keys are overwritten often, many are pushed out.
        let keys = [20, 200, 5000][seed as usize / 4 % 3];
        for step in 1..4000 {
            let mut key = key(rng.below(keys));
            if key.last().is_some_and(|last| *last == b'7') {
                key.resize(length(&mut rng).max(12), b'.');
            }
            match rng.below(20) {
                0..=7 => {
                    let row = row(step, vec![step as u8; length(&mut rng)]);
                    put(&mut cache, &key, &row);
                    model.insert(key.clone(), row);
                }
                8..=10 => {
                    cache.remove(hash(&key), &key);
                    model.remove(&key);
                    assert_eq!(held(&mut cache, &key), None, "seed {seed}, step {step}");
                }
                11 if rng.chance(0.05) => cache.set_capacity(rng.below(3) * (1 << rng.below(22))),
                _ => {}
            }
            for _ in 0..rng.below(4) {
                if let Some(found) = held(&mut cache, &key) {
                    let row =
                        model.get(&key).unwrap_or_else(|| panic!("seed {seed}, step {step}: it was removed"));
                    let expected = (row.seq, row.expire_ms, row.tag, row.value.to_vec());
                    assert!(found == expected, "seed {seed}, step {step}: a row of number {}", found.0);
                }
            }
            let most = cache.capacity() + cache.capacity() / 16;
            assert!(cache.weight() <= most, "seed {seed}, step {step}: {} of {most} B", cache.weight());
        }
        let there = model.keys().filter(|key| held(&mut cache, key).is_some()).count();
        assert_eq!(there, cache.len(), "seed {seed}: rows of keys that are gone");
        for key in model.keys() {
            cache.remove(hash(key), key);
        }
        assert!(cache.is_empty(), "seed {seed}");
        cache.set_capacity(0);
        assert_eq!(cache.weight(), 0, "seed {seed}: nothing is left");
    }
}

/// Comes and goes as `turn` says: which values, and whether all go at the end of a turn. Answers the most memory asked for, in parts of
/// what it may hold.
fn most_allocated(turns: impl Iterator<Item = (usize, bool)>) -> f64 {
    let mut cache = RowCache::new(1 << 20);
    let (mut n, mut most) = (0u64, 0u64);
    for (value_bytes, all_go) in turns {
        let fits = cache.capacity() / (value_bytes as u64 + 48);
        let first = n;
        for _ in 0..2 * fits {
            // Those of a turn before stay in use: all are hot.
            for asked in [n, n.saturating_sub(fits / 2)] {
                held(&mut cache, &key(asked)[4..]);
            }
            n += 1;
            put(&mut cache, &key(n)[4..], &row(n, vec![1; value_bytes]));
            if n.is_multiple_of(997) {
                most = most.max(cache.allocated());
            }
        }
        most = most.max(cache.allocated());
        if all_go {
            for n in first..=n {
                cache.remove(hash(&key(n)[4..]), &key(n)[4..]);
            }
            assert_eq!(cache.len(), 0);
            most = most.max(cache.allocated());
        }
    }
    most as f64 / cache.capacity() as f64
}

#[test]
fn its_memory_is_bounded_whatever_lengths_come_and_go() {
    let steps = |all_go| (0..400).step_by(16).map(move |bytes| (bytes, all_go));
    let mixes: [(&str, f64); 5] = [
        ("lengths rise, and all of one go before the next", most_allocated(steps(true))),
        ("lengths rise", most_allocated(steps(false))),
        ("values that lie apart go together", most_allocated([(APART_FROM_BYTES, true); 60].into_iter())),
        ("short ones make way for long ones", most_allocated([(0, false), (3000, false)].into_iter())),
        (
            "short ones and long ones in turns",
            most_allocated([(0, true), (APART_FROM_BYTES, true)].into_iter().cycle().take(40)),
        ),
    ];
    for (mix, most) in mixes {
        println!("{most:.3}: {mix}");
    }
    for (mix, most) in mixes {
        assert!(most < 1.0 + 1.0 / 16.0 + 1.0 / 32.0, "{mix}: {most:.2} of what it may hold");
    }
}

#[test]
fn a_row_takes_little_more_than_its_bytes() {
    for value_bytes in [100, 1000, 3000, 8192] {
        let mut cache = RowCache::new(8 << 20);
        for n in 0..100_000 {
            put(&mut cache, &key(n), &row(n, vec![1; value_bytes]));
        }
        let each = cache.capacity() / cache.len() as u64 - (12 + value_bytes as u64);
        let most = if value_bytes < APART_FROM_BYTES { 70 + value_bytes as u64 / 10 } else { 350 };
        assert!(each < most, "{each} B beside each value of {value_bytes} B");
    }
}

#[test]
fn what_is_looked_at_stays_while_others_come_and_go() {
    for value_bytes in [100, 1000, 8192] {
        let mut cache = RowCache::new(4 << 20);
        let fits = 4 * (1 << 20) / (value_bytes + 64);
        let hot = fits / 2;
        for n in 0..hot {
            put(&mut cache, &key(n), &row(n, vec![1; value_bytes as usize]));
            held(&mut cache, &key(n));
        }
        let mut lost = 0;
        for cold in 0..fits * 10 {
            put(&mut cache, &key(1 << 30 | cold), &row(cold, vec![2; value_bytes as usize]));
            let asked = key(cold % hot);
            if held(&mut cache, &asked).is_none() {
                lost += 1;
                put(&mut cache, &asked, &row(cold, vec![1; value_bytes as usize]));
            }
        }
        assert!(lost <= hot / 50, "{lost} of {hot} hot rows of {value_bytes} B were pushed out");
    }
}

#[test]
fn what_is_overwritten_leaves_its_place_to_others() {
    let mut cache = RowCache::new(4 << 20);
    let mut rng = Rng::from_seed(5);
    let keys = 3000;
    let mut missed = 0;
    for step in 0..200_000 {
        let key = key(rng.below(keys));
        if rng.chance(0.2) {
            cache.remove(hash(&key), &key);
        } else if held(&mut cache, &key).is_none() {
            missed += u64::from(step > 100_000);
            put(&mut cache, &key, &row(step, vec![1; 1000]));
        }
    }
    // All keys would fit were nothing ever dead: each removal makes one miss. Twice as many would, were the dead never replaced.
    assert!(missed < 24_000, "{missed} of 80,000 looks missed");
}

#[test]
fn a_reply_keeps_the_value_that_it_shares() {
    let mut cache = RowCache::new(1 << 20);
    put(&mut cache, b"kept", &row(1, vec![7; APART_FROM_BYTES]));
    let Some(ValueView::Shared(value)) = cache.get(hash(b"kept"), b"kept").map(|row| row.value) else {
        panic!("a value of {APART_FROM_BYTES} B lies apart");
    };
    let value = value.clone();
    cache.remove(hash(b"kept"), b"kept");
    for n in 0..2000 {
        put(&mut cache, &key(n), &row(n, vec![n as u8; 5000]));
    }
    assert_eq!(value, [7; APART_FROM_BYTES][..]);
}
