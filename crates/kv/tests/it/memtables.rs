//! The memtable by itself: it answers what was put, whatever hashes the keys have, now and as a snapshot saw it.

use std::collections::BTreeMap;
use std::ops::Bound;

use bytes::Bytes;
use pumice_base::hash::HashState;
use pumice_base::rng::Rng;
use pumice_kv::entry::{Body, KeyEntry};
use pumice_kv::memtable::sorting::sorted_rows;
use pumice_kv::memtable::{Memtable, NewBody, NewVersion, Replaced, RowAt, Sight};
use pumice_segment::{Addr, RecordPtr};
use std::hash::BuildHasher;
use std::sync::Mutex;

/// A key's versions, the oldest first.
type Model = BTreeMap<Vec<u8>, Vec<KeyEntry>>;

fn hash_of(kind: u64, key: &[u8]) -> u64 {
    let hash = HashState.hash_one(key);
    match kind {
        0 => hash,
        // All the same, a few, and such as differ where an index may not look.
        1 => 7,
        2 => hash % 5,
        3 => hash << 28,
        _ => u64::MAX - hash % 3,
    }
}

/// A memtable that is not written any more, and its rows as a flush finds them.
fn sorted(memtable: Memtable) -> (Memtable, Vec<RowAt>) {
    let memtable = Mutex::new(memtable);
    let rows = pumice_reactor::block_on(sorted_rows(&memtable));
    (memtable.into_inner().expect("no panic"), rows)
}

/// Keys that begin alike for long, end early, and differ in zeros only.
#[test]
fn a_flush_finds_rows_in_the_order_of_their_keys() {
    for (seed, count) in [(1, 0), (2, 1), (3, 60), (4, 3000), (5, 20_000)] {
        let mut rng = Rng::from_seed(seed);
        let (mut memtable, mut model) = (Memtable::default(), Model::new());
        for seq in 1..=count {
            let mut key = b"space".to_vec();
            for _ in 0..rng.below(4) {
                let part: &[u8] = match rng.below(6) {
                    0 => b"",
                    1 => &[0; 3],
                    2 => &[255; 9],
                    3 => b"12345678",
                    4 => &[b'x'; 300],
                    _ => &rng.next_u64().to_be_bytes(),
                };
                key.extend_from_slice(part);
            }
            if rng.chance(0.3) {
                key = format!("space:key:{:012}", rng.below(count)).into_bytes();
            }
            let entry = version(&mut rng, seq);
            put(&mut memtable, 0, &key, &entry, 0);
            model.entry(key).or_default().push(entry);
        }
        let (memtable, rows) = sorted(memtable);
        let found: Vec<&[u8]> = rows.iter().map(|&row| memtable.key(row)).collect();
        assert!(found.into_iter().eq(model.keys().map(|key| &key[..])), "seed {seed}");
    }
}

fn value_len(rng: &mut Rng) -> usize {
    match rng.below(40) {
        0 => 0,
        1 => 5000 + rng.below(10_000) as usize,
        // More than a chunk.
        2 => 150_000,
        _ => rng.below(60) as usize,
    }
}

fn version(rng: &mut Rng, seq: u64) -> KeyEntry {
    let body = match rng.below(6) {
        0 => Body::Tombstone,
        1 => Body::Record(RecordPtr { addr: Addr(rng.next_u64()), len: rng.below(1 << 32) as u32 }),
        _ => Body::Inline(Bytes::from(vec![seq as u8; value_len(rng)])),
    };
    let large = matches!(body, Body::Inline(_)) && rng.below(9) == 0;
    KeyEntry {
        seq,
        expire_ms: rng.below(3) * seq,
        tag: seq as u8,
        large,
        value_len: rng.next_u64(),
        counted: false,
        on_flash: rng.below(2) == 0,
        body,
    }
}

fn put(memtable: &mut Memtable, kind: u64, key: &[u8], entry: &KeyEntry, newest_snapshot: u64) -> Replaced {
    put_as(memtable, kind, key, entry, newest_snapshot, false)
}

fn put_as(
    memtable: &mut Memtable,
    kind: u64,
    key: &[u8],
    entry: &KeyEntry,
    newest_snapshot: u64,
    new_key: bool,
) -> Replaced {
    let body = match &entry.body {
        Body::Tombstone => NewBody::Tombstone,
        Body::Record(ptr) => NewBody::Record(*ptr),
        Body::Inline(value) => NewBody::Inline(value),
    };
    let KeyEntry { seq, expire_ms, tag, large, value_len, counted, on_flash, .. } = *entry;
    let new = NewVersion { seq, expire_ms, tag, large, value_len, counted, on_flash, new_key, body };
    memtable.insert(hash_of(kind, key), key, &new, newest_snapshot)
}

/// What the model's versions up to `max_seq` are, in the keys' order.
fn as_of(model: &Model, max_seq: u64) -> Vec<(Bytes, KeyEntry)> {
    let seen = |(key, versions): (&Vec<u8>, &Vec<KeyEntry>)| {
        let version = versions.iter().rev().find(|version| version.seq <= max_seq)?;
        Some((Bytes::copy_from_slice(key), version.clone()))
    };
    model.iter().filter_map(seen).collect()
}

fn listed(memtable: &mut Memtable, max_seq: u64) -> Vec<(Bytes, KeyEntry)> {
    collected(memtable, (Bound::Unbounded, Bound::Unbounded), false, sight(max_seq), usize::MAX)
}

/// Of who sees versions up to `max_seq`, where nothing is known to be seen by all.
fn sight(max_seq: u64) -> Sight {
    Sight { max_seq, settled: 0 }
}

/// A range, `limit` rows at a time.
fn collected(
    memtable: &mut Memtable,
    (from, to): (Bound<&[u8]>, Bound<&[u8]>),
    backward: bool,
    sight: Sight,
    limit: usize,
) -> Vec<(Bytes, KeyEntry)> {
    let (mut all, mut rest) = (Vec::new(), None);
    loop {
        let collected = memtable.collect((from, to), rest.as_ref(), backward, sight, limit);
        let mut piece = collected.piece;
        rest = collected.rest;
        assert!(piece.left() + collected.left_out <= limit, "{} rows", piece.left());
        while !piece.is_empty() {
            let next = piece.next_key().map(Bytes::copy_from_slice);
            let row = piece.take();
            assert_eq!(next.as_deref(), Some(piece.key(row)));
            all.push((piece.key_bytes(row), piece.entry(row)));
        }
        assert!(piece.next_key().is_none());
        if rest.is_none() {
            return all;
        }
    }
}

fn bound<'a>(rng: &mut Rng, key: &'a [u8]) -> Bound<&'a [u8]> {
    match rng.below(5) {
        0 => Bound::Unbounded,
        1 | 2 => Bound::Excluded(key),
        _ => Bound::Included(key),
    }
}

/// Ranges of any bounds, either way, in any number of pieces.
#[test]
fn ranges_hold_what_lies_between_their_bounds() {
    for seed in 0..40 {
        let mut rng = Rng::from_seed(seed);
        let keys = [1, 5, 255, 256, 257, 513, 3000][seed as usize % 7];
        let mut memtable = Memtable::default();
        let mut model = Model::new();
        let snapshot = 700;
        for seq in 1..3000 {
            let key = format!("{:04}", rng.below(keys) * 2 + 1).into_bytes();
            let entry = version(&mut rng, seq);
            put(&mut memtable, 0, &key, &entry, snapshot);
            let versions = model.entry(key).or_default();
            // Of those that are overwritten the newest that the snapshot sees is left, and none after it.
            if versions.last().is_some_and(|last| last.seq > snapshot) {
                versions.pop();
            }
            versions.push(entry);
            if seq % 50 != 0 && seq != 2999 {
                continue;
            }
            let [low, high] = [0; 2].map(|_| format!("{:04}", rng.below(2 * keys + 2)).into_bytes());
            let (lower, upper) = (bound(&mut rng, &low), bound(&mut rng, &high));
            let max_seq = if rng.below(2) == 0 { snapshot } else { u64::MAX };
            let within = |key: &[u8]| {
                let is_above = match lower {
                    Bound::Unbounded => true,
                    Bound::Included(lower) => key >= lower,
                    Bound::Excluded(lower) => key > lower,
                };
                is_above
                    && match upper {
                        Bound::Unbounded => true,
                        Bound::Included(upper) => key <= upper,
                        Bound::Excluded(upper) => key < upper,
                    }
            };
            let mut wanted = as_of(&model, max_seq);
            wanted.retain(|(key, _)| within(key));
            let newest = wanted.iter().map(|(_, entry)| entry.seq).max().unwrap_or(0);
            assert_eq!(memtable.newest_between((lower, upper), max_seq), newest, "seed {seed}, step {seq}");
            for backward in [false, true] {
                let range = if backward { (upper, lower) } else { (lower, upper) };
                let limit = [1, 2, 31, 32, 33, 256, 5000][rng.below(7) as usize];
                let found = collected(&mut memtable, range, backward, sight(max_seq), limit);
                assert!(found == wanted, "seed {seed}, step {seq}, {range:?}, {limit} at a time");
                let there = wanted.iter().filter(|(_, entry)| !entry.is_tombstone());
                let count = there.clone().count() as u64;
                let skip = rng.below(count + 2).max(1);
                let (skipped, last) = memtable.skip(range, backward, sight(max_seq), skip);
                let reached = there.clone().nth(skip as usize - 1).map(|(key, _)| key.clone());
                assert_eq!((skipped, last), (skip.min(count), reached), "seed {seed}, step {seq}, {range:?}");
                wanted.reverse();
            }
        }
    }
}

/// Between the pieces of a range others put rows: before it, within it, behind it, few and many.
#[test]
fn ranges_go_on_where_they_were_left() {
    for seed in 0..60 {
        let mut rng = Rng::from_seed(seed);
        let mut memtable = Memtable::default();
        let mut model = Model::new();
        let put_one = |memtable: &mut Memtable, model: &mut Model, rng: &mut Rng, seq: u64, snapshot: u64| {
            let key = format!("{:05}", rng.below(20_000)).into_bytes();
            let entry = version(rng, seq);
            put(memtable, 0, &key, &entry, snapshot);
            model.entry(key).or_default().push(entry);
        };
        let snapshot = 2000;
        for seq in 1..=snapshot {
            put_one(&mut memtable, &mut model, &mut rng, seq, 0);
        }
        let mut wanted = as_of(&model, snapshot);
        let backward = seed % 2 == 1;
        if backward {
            wanted.reverse();
        }
        let all = (Bound::Unbounded, Bound::Unbounded);
        let (mut found, mut rest, mut seq) = (Vec::new(), None, snapshot);
        loop {
            let limit = 1 + rng.below(200) as usize;
            let collected = memtable.collect(all, rest.as_ref(), backward, sight(snapshot), limit);
            let mut piece = collected.piece;
            rest = collected.rest;
            while !piece.is_empty() {
                let row = piece.take();
                found.push((piece.key_bytes(row), piece.entry(row)));
            }
            if rest.is_none() {
                break;
            }
            for _ in 0..[0, 1, 10, 1500][rng.below(4) as usize] {
                seq += 1;
                put_one(&mut memtable, &mut model, &mut rng, seq, snapshot);
            }
        }
        assert!(found == wanted, "seed {seed}: {} rows of {}", found.len(), wanted.len());
    }
}

/// Rows of keys that were new, and are gone again for everybody: nobody meets them, until they come back.
#[test]
fn what_came_and_went_is_left_out() {
    let mut left_out = 0;
    for seed in 0..40 {
        let mut rng = Rng::from_seed(seed);
        let keys = [2, 30, 600, 4000][seed as usize % 4];
        let mut memtable = Memtable::default();
        let mut model = Model::new();
        let mut new_keys = std::collections::BTreeSet::new();
        let (mut snapshot, mut settled) = (0, 0);
        for seq in 1..4000 {
            let key = format!("{:04}", rng.below(keys)).into_bytes();
            let is_known = model.contains_key(&key);
            let mut entry = version(&mut rng, seq);
            // Mostly what is there goes, and what is not there comes.
            let is_there =
                model.get(&key).is_some_and(|versions| !versions[versions.len() - 1].is_tombstone());
            if is_there && rng.below(3) > 0 {
                entry.body = Body::Tombstone;
            } else if !is_there && entry.is_tombstone() {
                // What is gone and left out may be deleted again, and stays out: no case for this model.
                entry.body = Body::Inline(Bytes::from_static(b"v"));
            }
            let is_new = !entry.is_tombstone() && !is_there && rng.below(4) > 0;
            // What is called new although the memtable has spoken of it is as it was.
            put_as(&mut memtable, 0, &key, &entry, snapshot, is_new);
            if is_new && !is_known {
                new_keys.insert(key.clone());
            }
            let versions = model.entry(key).or_default();
            if versions.last().is_some_and(|last| last.seq > snapshot) {
                versions.pop();
            }
            versions.push(entry);
            if rng.below(500) == 0 {
                snapshot = seq;
            }
            if rng.below(60) > 0 && seq != 3999 {
                continue;
            }
            // What is durable, and seen by the snapshot, which may be the only one or none.
            let max_seq = [snapshot, u64::MAX][rng.below(2) as usize];
            settled = settled.max(rng.below(seq + 1)).min(snapshot);
            let sight = Sight { max_seq, settled };
            let mut wanted = as_of(&model, max_seq);
            let all = wanted.len();
            wanted.retain(|(key, entry)| {
                let newest = model[&key[..]].last().map(|newest| newest.seq);
                let is_out = entry.is_tombstone()
                    && newest == Some(entry.seq)
                    && entry.seq <= settled
                    && new_keys.contains(&key[..]);
                !is_out
            });
            left_out += all - wanted.len();
            let [low, high] = [0; 2].map(|_| format!("{:04}", rng.below(keys)).into_bytes());
            for backward in [false, true] {
                let limit = [1, 2, 31, 256, 5000][rng.below(5) as usize];
                // Some rows at first, then all of them.
                let range = if backward {
                    (Bound::Included(&high[..]), Bound::Excluded(&low[..]))
                } else {
                    (Bound::Included(&low[..]), Bound::Excluded(&high[..]))
                };
                let is_within = |key: &[u8]| {
                    if backward {
                        *key <= high[..] && *key > low[..]
                    } else {
                        *key >= low[..] && *key < high[..]
                    }
                };
                let part: Vec<_> = wanted.iter().filter(|(key, _)| is_within(key)).cloned().collect();
                let what =
                    format!("seed {seed}, step {seq}, {limit} at a time, up to {settled} of {max_seq}");
                assert!(collected(&mut memtable, range, backward, sight, limit) == part, "{what}, {range:?}");
                let everything = (Bound::Unbounded, Bound::Unbounded);
                let found = collected(&mut memtable, everything, backward, sight, limit);
                assert!(found == wanted, "{what}: {} rows of {}", found.len(), wanted.len());
                let there = wanted.iter().filter(|(_, entry)| !entry.is_tombstone());
                let count = there.count() as u64;
                let (skipped, _) = memtable.skip(everything, backward, sight, u64::MAX);
                assert_eq!(skipped, count, "{what}");
                wanted.reverse();
            }
        }
        // What a flush takes: everything but what may be left out.
        let (memtable, in_order) = sorted(memtable);
        let written: Vec<Vec<u8>> = in_order
            .into_iter()
            .filter(|&row| !memtable.hides_nothing(row))
            .map(|row| memtable.key(row).to_vec())
            .collect();
        let newest = as_of(&model, u64::MAX);
        let wanted =
            newest.iter().filter(|(key, entry)| !(entry.is_tombstone() && new_keys.contains(&key[..])));
        assert!(written.iter().map(|key| &key[..]).eq(wanted.map(|(key, _)| &key[..])), "seed {seed}");
        assert_eq!(memtable.len(), model.len(), "seed {seed}");
    }
    assert!(left_out > 30_000, "{left_out}");
}

#[test]
fn it_answers_what_was_put_now_and_as_of_the_newest_snapshot() {
    for seed in 0..30 {
        let mut rng = Rng::from_seed(seed);
        let kind = seed % 5;
        let mut memtable = Memtable::default();
        let mut model = Model::new();
        let keys = [3, 40, 900][seed as usize / 5 % 3];
        let (mut snapshot, mut newest) = (0, Vec::new());
        for seq in 1..2500 {
            let mut key = format!("key:{}", rng.below(keys)).into_bytes();
            if key.ends_with(b"3") {
                key.resize(300, b'.');
            }
            let hash = hash_of(kind, &key);
            let versions = model.entry(key.clone()).or_default();
            assert_eq!(memtable.get(hash, &key).as_ref(), versions.last(), "seed {seed}, step {seq}");
            let entry = version(&mut rng, seq);
            let replaced = put(&mut memtable, kind, &key, &entry, snapshot);
            match (&replaced, versions.last()) {
                (Replaced::NewRow(row), None) => assert_eq!(memtable.key(*row), key, "seed {seed}"),
                (Replaced::Large(old), Some(last)) => assert!(last.large && **old == *last, "seed {seed}"),
                (Replaced::Record(ptr), Some(last)) => {
                    assert_eq!(last.body, Body::Record(*ptr), "seed {seed}")
                }
                (Replaced::Nothing, Some(last)) => {
                    assert!(!last.large && !matches!(last.body, Body::Record(_)), "seed {seed}");
                }
                other => panic!("seed {seed}, step {seq}: {other:?}"),
            }
            versions.push(entry);
            if rng.below(4) == 0 {
                let stale = KeyEntry { seq: seq - 1, ..version(&mut rng, seq) };
                assert_eq!(put(&mut memtable, kind, &key, &stale, snapshot), Replaced::Newer, "seed {seed}");
            }
            if rng.below(300) == 0 {
                // Those before are gone: so are versions that only they saw.
                snapshot = seq;
                newest = as_of(&model, seq);
            }
            if rng.below(100) == 0 {
                assert!(
                    listed(&mut memtable, u64::MAX) == as_of(&model, u64::MAX),
                    "seed {seed}, step {seq}"
                );
                assert!(listed(&mut memtable, snapshot) == newest, "seed {seed}, step {seq}");
            }
        }
        assert_eq!(memtable.len(), model.len(), "seed {seed}");
        let (memtable, in_order) = sorted(memtable);
        assert!(in_order.iter().map(|&row| memtable.key(row)).eq(model.keys().map(|key| &key[..])));
        let mut by_number: Vec<&[u8]> = (0..memtable.len()).map(|n| memtable.key(memtable.nth(n))).collect();
        by_number.sort_unstable();
        assert!(by_number.into_iter().eq(model.keys().map(|key| &key[..])), "seed {seed}");
    }
}

#[test]
fn what_is_counted_stays_so_when_it_is_overwritten() {
    let mut rng = Rng::from_seed(1);
    for snapshot in [0, 10] {
        let mut memtable = Memtable::default();
        put(&mut memtable, 0, b"k", &version(&mut rng, 1), snapshot);
        let row = memtable.uncounted_row(hash_of(0, b"k"), b"k").expect("it is there and not counted");
        put(&mut memtable, 0, b"k", &version(&mut rng, 2), snapshot);
        assert_eq!(memtable.uncounted_row(hash_of(0, b"k"), b"k"), Some(row));
        memtable.set_counted(row);
        for seq in 3..6 {
            let entry = version(&mut rng, seq);
            put(&mut memtable, 0, b"k", &entry, snapshot);
            let found = memtable.get(hash_of(0, b"k"), b"k").expect("it is there");
            assert_eq!(found, KeyEntry { counted: true, ..entry });
        }
        assert_eq!(memtable.uncounted_row(hash_of(0, b"k"), b"k"), None);
    }
}
