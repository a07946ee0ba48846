//! The model of the keyspace accepts exactly the states that a crash may leave.

use pumice_sim::oracle::{Change, Key, Oracle, Seen, Value};
use std::collections::BTreeMap;
use std::ops::Bound;

fn key(name: &str) -> Key {
    (0, name.as_bytes().to_vec())
}

fn put(oracle: &mut Oracle, name: &str) -> Change {
    Change::Put(key(name), Value { stamp: oracle.stamp(), len: 20, tag: 1, expire_ms: 0 })
}

fn seen(change: &Change) -> (Key, Seen) {
    match change {
        Change::Put(key, value) => {
            (key.clone(), Seen { bytes: value.bytes(key), tag: value.tag, expire_ms: value.expire_ms })
        }
        other => panic!("{other:?}"),
    }
}

fn state(changes: &[&Change]) -> BTreeMap<Key, Seen> {
    changes.iter().map(|change| seen(change)).collect()
}

/// Three writes, the first acknowledged: a = 1; a = 2 and b = 1 together; delete a.
fn three_writes() -> (Oracle, [Change; 3]) {
    let mut oracle = Oracle::default();
    let (a1, a2, b1) = (put(&mut oracle, "a"), put(&mut oracle, "a"), put(&mut oracle, "b"));
    let first = oracle.write(&[a1.clone(), Change::Tally(7, 5)]);
    oracle.acknowledge(first);
    oracle.write(&[a2.clone(), b1.clone(), Change::Tally(7, -2)]);
    oracle.write(&[Change::Delete(key("a"))]);
    (oracle, [a1, a2, b1])
}

#[test]
fn every_prefix_from_the_acknowledged_write_on_may_survive() {
    let (oracle, [a1, a2, b1]) = three_writes();
    for (state, tally, survivor) in [(state(&[&a1]), 5, 1), (state(&[&a2, &b1]), 3, 2), (state(&[&b1]), 3, 3)]
    {
        let mut after = oracle.clone();
        assert_eq!(after.survivors(&state, |_| tally), Ok(survivor));
        assert_eq!(after.newest(), survivor);
        assert_eq!(after.tally(7), tally);
        // And from then on nothing older or newer may.
        assert_eq!(after.survivors(&state, |_| tally), Ok(survivor));
        assert!(after.survivors(&BTreeMap::new(), |_| tally).is_err());
    }
}

#[test]
fn lost_acknowledgements_half_batches_and_resurrections_are_refused() {
    let (oracle, [a1, a2, b1]) = three_writes();
    for (what, state, tally) in [
        ("the acknowledged write is gone", state(&[]), 5),
        ("half of the batch", state(&[&a1, &b1]), 3),
        ("the other half", state(&[&a2]), 3),
        ("a batch without its tally", state(&[&a2, &b1]), 5),
    ] {
        assert!(oracle.clone().survivors(&state, |_| tally).is_err(), "{what} was accepted");
    }
    let mut after = oracle.clone();
    after.acknowledge(3);
    assert!(
        after.clone().survivors(&state(&[&a2, &b1]), |_| 3).is_err(),
        "a delete that came back was accepted"
    );
    assert_eq!(after.survivors(&state(&[&b1]), |_| 3), Ok(3));
}

/// Keys of two slices under one prefix, one beside it: they go together or not at all.
#[test]
fn a_retired_prefix_is_gone_from_all_slices_or_from_none() {
    let mut oracle = Oracle::default();
    let of = |slice, name: &str| (slice, name.as_bytes().to_vec());
    let keys = [of(0, "p1"), of(1, "p2"), of(1, "q1")];
    let puts = keys
        .clone()
        .map(|key| Change::Put(key, Value { stamp: oracle.stamp(), len: 20, tag: 1, expire_ms: 0 }));
    let written = oracle.write(&puts);
    oracle.acknowledge(written);
    let retired = oracle.write(&[Change::Retire(b"p".to_vec())]);
    let [p1, p2, q1] = &puts;
    assert_eq!(oracle.clone().survivors(&state(&[p1, p2, q1]), |_| 0), Ok(written));
    assert_eq!(oracle.clone().survivors(&state(&[q1]), |_| 0), Ok(retired));
    for (what, left) in
        [("one slice", state(&[p2, q1])), ("another", state(&[p1, q1])), ("too much", state(&[]))]
    {
        assert!(oracle.clone().survivors(&left, |_| 0).is_err(), "gone from {what} was accepted");
    }
    oracle.acknowledge(retired);
    assert!(oracle.survivors(&state(&[p1, p2, q1]), |_| 0).is_err(), "all of it came back");
}

#[test]
fn bytes_of_another_key_another_version_or_with_a_bit_flipped_are_refused() {
    let (oracle, [a1, ..]) = three_writes();
    for spoil in 0..4 {
        let mut state = state(&[&a1]);
        let entry = state.get_mut(&key("a")).expect("is there");
        match spoil {
            0 => entry.bytes[19] ^= 1,
            1 => entry.tag = 2,
            2 => entry.expire_ms = 1,
            _ => {
                entry.bytes =
                    seen(&Change::Put(key("b"), Value { stamp: 1, len: 20, tag: 1, expire_ms: 0 })).1.bytes
            }
        }
        assert!(oracle.clone().survivors(&state, |_| 5).is_err(), "spoilt in way {spoil}");
    }
    let mut stranger = state(&[&a1]);
    stranger.insert(key("never"), Seen { bytes: vec![], tag: 0, expire_ms: 0 });
    assert!(oracle.clone().survivors(&stranger, |_| 5).is_err());
}

#[test]
fn a_read_may_see_what_was_there_while_it_ran() {
    let mut oracle = Oracle::default();
    let (a1, a2) = (put(&mut oracle, "a"), put(&mut oracle, "a"));
    let (one, two) = (seen(&a1).1, seen(&a2).1);
    let a = key("a");
    let begun: Vec<u64> = [vec![], vec![a1], vec![a2], vec![Change::Delete(a.clone())]]
        .into_iter()
        .map(|changes| {
            if !changes.is_empty() {
                let write = oracle.write(&changes);
                oracle.acknowledge(write);
            }
            oracle.begin_read()
        })
        .collect();
    for (from, may_see) in [
        (begun[0], [true, true, true]),
        (begun[1], [true, true, true]),
        (begun[2], [false, true, true]),
        (begun[3], [false, false, true]),
    ] {
        for (seen, may) in [Some(&one), Some(&two), None].into_iter().zip(may_see) {
            assert_eq!(oracle.clone().end_read(&a, from, seen).is_ok(), may, "from {from}, {seen:?}");
        }
    }
    assert!(oracle.clone().end_read(&key("c"), 0, None).is_ok());
    assert!(oracle.clone().end_read(&key("c"), 0, Some(&one)).is_err());
}

#[test]
fn a_range_shows_what_is_there_now() {
    let (oracle, _) = three_writes();
    let keys =
        |lower, upper| oracle.range(0, lower, upper).into_iter().map(|(key, _)| key.1).collect::<Vec<_>>();
    assert_eq!(keys(Bound::Unbounded, Bound::Unbounded), [b"b"]);
    assert!(keys(Bound::Excluded(b"b".to_vec()), Bound::Unbounded).is_empty());
    assert!(oracle.range(1, Bound::Unbounded, Bound::Unbounded).is_empty());
}
