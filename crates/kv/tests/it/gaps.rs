//! Stretches without keys: scans that begin in one skip it, and never what is there.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use crate::common::*;
use bytes::Bytes;
use pumice_base::rng::Rng;
use pumice_kv::gaps::Gaps;
use pumice_kv::{Batch, Direction, SliceId, SliceSet, Snapshot, Store, StoreOptions, Want};

const SLICE: SliceId = SliceId(1);

fn key(n: u64) -> Vec<u8> {
    format!("key:{n:06}").into_bytes()
}

async fn first_of(
    store: &Store,
    snapshot: &Snapshot,
    lower: Bound<Bytes>,
    upper: Bound<Bytes>,
    direction: Direction,
) -> Option<Bytes> {
    let mut scan = store.scan(snapshot, SliceSet::One(SLICE), lower, upper, direction, Want::Keys);
    if let Some((key, _)) = scan.next_at_hand() {
        return Some(key);
    }
    scan.next().await.expect("scan").map(|(key, _)| key)
}

async fn remove(store: &Store, key: &[u8]) {
    let mut batch = Batch::new();
    batch.delete(SLICE, key);
    write(store, &batch).await;
}

#[test]
fn gaps_hold_nothing_that_was_put_and_forget_no_more_than_they_must() {
    for seed in 0..200 {
        let mut rng = Rng::from_seed(seed);
        let mut gaps: Gaps<Box<[u8]>> = Gaps::new(if seed % 2 == 0 { 1000 } else { 4 });
        // What is known to be empty, by key, and from which number on.
        let mut empty: BTreeMap<u64, u64> = BTreeMap::new();
        for seq in 1..200 {
            let at = rng.below(100);
            if rng.below(3) == 0 {
                gaps.fill(&key(at));
                empty.remove(&at);
            } else {
                let end = at + rng.below(12);
                gaps.note(key(at)[..].into(), key(end)[..].into(), seq);
                empty.extend((at..end).map(|n| (n, seq)));
            }
            assert!(gaps.len() <= 1000 && (seed % 2 == 0 || gaps.len() <= 4), "seed {seed}");
            for n in 0..112 {
                let known = gaps.around(&key(n), seq).map(|(start, end)| (start.to_vec(), end.to_vec()));
                if let Some((start, end)) = &known {
                    assert!(*start <= key(n) && key(n) < *end, "seed {seed}");
                }
                assert!(
                    known.is_none() || empty.contains_key(&n),
                    "seed {seed}: {n} was put at or before {seq}"
                );
                assert!(
                    seed % 2 == 1 || known.is_some() || !empty.contains_key(&n),
                    "seed {seed}: {n} forgotten"
                );
                let early = gaps.around(&key(n), seq - 1).is_some();
                assert!(!early || empty[&n] < seq, "seed {seed}: {n} is gone since {seq}");
                let before = gaps.before(&key(n), seq).map(|(start, _)| start.to_vec());
                assert!(before.is_none_or(|start| start < key(n)), "seed {seed}");
            }
        }
    }
}

#[test]
fn taking_the_first_or_the_last_key_of_many_costs_no_more_for_those_taken_before() {
    for direction in [Direction::Forward, Direction::Backward] {
        pumice_reactor::block_on(async move {
            let device = device("emu:small").await;
            let store = formatted(&device).await;
            let keys = 6_000;
            for n in 0..keys {
                put(&store, SLICE.0, &key(n), b"v").await;
            }
            let before = store.stats().counters.gone_passed;
            let bound = |text: &'static [u8]| Bound::Included(Bytes::from_static(text));
            for n in 0..keys {
                let snapshot = store.snapshot_of(SLICE);
                let found = first_of(&store, &snapshot, bound(b"key:"), bound(b"key;"), direction).await;
                let expected = if direction == Direction::Forward { n } else { keys - 1 - n };
                assert_eq!(found.as_deref(), Some(&key(expected)[..]));
                drop(snapshot);
                remove(&store, &key(expected)).await;
                // Others put in the same slice meanwhile.
                put(&store, SLICE.0, format!("other:{n}").as_bytes(), b"v").await;
            }
            let passed = store.stats().counters.gone_passed - before;
            assert!(passed < keys * 64, "{passed} keys that are gone were gone over for {keys} taken");
            store.close().await.expect("close");
        });
    }
}

#[test]
fn what_is_gone_between_keys_is_gone_over_once() {
    let (keys, step) = (2_000u64, 100);
    for (direction, is_flushed) in
        [Direction::Forward, Direction::Backward].into_iter().flat_map(|way| [(way, false), (way, true)])
    {
        pumice_reactor::block_on(async move {
            let device = device("emu:small").await;
            Store::format(&device, &format()).await.expect("format");
            // What is gone stays in the memtable.
            let options = StoreOptions { memtable_bytes: Some(4 << 20), ..options() };
            let store = open_with(&device, options).await.store;
            for n in 0..keys {
                put(&store, SLICE.0, &key(n), &[b'v'; 40]).await;
            }
            if is_flushed {
                store.checkpoint().await.expect("checkpoint");
            }
            for n in (0..keys).filter(|n| n % step != 0) {
                remove(&store, &key(n)).await;
            }
            let mut passed = Vec::new();
            for round in 0..3 {
                let before = store.stats().counters.gone_passed;
                let (snapshot, slice) = (store.snapshot_of(SLICE), SliceSet::One(SLICE));
                let (low, high) = (Bound::Unbounded, Bound::Unbounded);
                let mut scan = store.scan(&snapshot, slice, low, high, direction, Want::Values);
                let mut found = Vec::new();
                while let Some((key, entry)) = scan.next().await.expect("scan") {
                    assert_eq!(entry.value[..], [b'v'; 40], "round {round}");
                    found.push(key);
                }
                if direction == Direction::Backward {
                    found.reverse();
                }
                let expected: Vec<Bytes> = (0..keys).step_by(step as usize).map(|n| key(n).into()).collect();
                assert_eq!(found, expected, "{direction:?}, round {round}, flushed: {is_flushed}");
                passed.push(store.stats().counters.gone_passed - before);
            }
            // Few beside each of the 20 that are there.
            let behind_last = step - 1;
            let gone = keys - keys / step - if direction == Direction::Forward { behind_last } else { 0 };
            assert_eq!(passed[0], gone);
            assert!(passed[1] < 20 * 32 && passed[2] < 20 * 32, "{passed:?}");
            store.close().await.expect("close");
        });
    }
}

#[test]
fn scans_find_what_a_map_holds_whatever_was_taken_and_put_again() {
    for seed in 0..12 {
        pumice_reactor::block_on(async move {
            let mut rng = Rng::from_seed(seed);
            let device = device("emu:small").await;
            let store = formatted(&device).await;
            let mut held: BTreeSet<u64> = BTreeSet::new();
            let mut kept: Vec<(Snapshot, BTreeSet<u64>)> = Vec::new();
            for step in 0..6_000u64 {
                match rng.below(100) {
                    // Runs are taken from one end or the middle, now and then long ones.
                    0..60 => {
                        let from = if rng.below(2) == 0 { 0 } else { rng.below(600) };
                        let most = if rng.below(20) == 0 { 150 } else { 3 };
                        for n in held.range(from..).take(most).copied().collect::<Vec<_>>() {
                            remove(&store, &key(n)).await;
                            held.remove(&n);
                        }
                    }
                    60..98 => {
                        let from = rng.below(600);
                        for n in from..from + rng.below(8) {
                            // Long enough that a table has many blocks.
                            put(&store, SLICE.0, &key(n), &step.to_le_bytes().repeat(8)).await;
                            held.insert(n);
                        }
                    }
                    98 => {
                        kept.push((store.snapshot_of(SLICE), held.clone()));
                        if kept.len() > 4 {
                            kept.remove(rng.below(5) as usize);
                        }
                    }
                    _ => store.checkpoint().await.expect("checkpoint"),
                }
                let now = (store.snapshot_of(SLICE), held.clone());
                let (snapshot, held) = if rng.below(4) == 0 && !kept.is_empty() {
                    &kept[rng.below(kept.len() as u64) as usize]
                } else {
                    &now
                };
                let (low, high) = (rng.below(300), 300 + rng.below(308));
                let bound = |n| Bound::Included(Bytes::from(key(n)));
                let first = first_of(&store, snapshot, bound(low), bound(high), Direction::Forward).await;
                assert_eq!(
                    first,
                    held.range(low..=high).next().map(|n| key(*n).into()),
                    "seed {seed} step {step}"
                );
                let bound = |n| Bound::Excluded(Bytes::from(key(n)));
                let last = first_of(&store, snapshot, bound(low), bound(high), Direction::Backward).await;
                let expected = held.range(low + 1..high).next_back().map(|n| key(*n).into());
                assert_eq!(last, expected, "seed {seed} step {step}");
                if step % 8 != 0 {
                    continue;
                }
                // Counted without being looked at, and one by one.
                let range = (Bound::Included(Bytes::from(key(low))), Bound::Excluded(Bytes::from(key(high))));
                let direction = if rng.below(2) == 0 { Direction::Forward } else { Direction::Backward };
                let scan = || {
                    let (low, high) = range.clone();
                    store.scan(snapshot, SliceSet::One(SLICE), low, high, direction, Want::Keys)
                };
                let counted = scan().skip(u64::MAX).await.expect("skip");
                assert_eq!(counted, held.range(low..high).count() as u64, "seed {seed} step {step}");
                let (mut all, mut scan) = (Vec::new(), scan());
                // Waited for, at hand as far as there is nothing to wait for, or now this and now that.
                let way = rng.below(3);
                while !scan.is_at_end() {
                    let at_hand = way > rng.below(2);
                    if let Some((key, _)) = if at_hand { scan.next_at_hand() } else { None } {
                        all.push(key);
                        continue;
                    }
                    match scan.next().await.expect("scan") {
                        Some((key, _)) => all.push(key),
                        None => break,
                    }
                }
                if direction == Direction::Backward {
                    all.reverse();
                }
                let expected: Vec<Bytes> = held.range(low..high).map(|n| key(*n).into()).collect();
                assert_eq!(all, expected, "seed {seed} step {step}");
            }
            kept.clear();
            store.close().await.expect("close");
        });
    }
}
