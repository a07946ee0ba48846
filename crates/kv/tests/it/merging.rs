//! What is merged when, and in which order: pure functions of the runs there are.

use std::sync::Arc;

use bytes::Bytes;
use pumice_base::rng::Rng;
use pumice_kv::SliceId;
use pumice_kv::codec::{Cursor, put_varint};
use pumice_kv::plan::{Prospect, alone, is_to_be_rewritten, plan_tier, plan_whole, stretches};
use pumice_kv::retired::Retired;
use pumice_kv::table::TableMeta;
use pumice_kv::version::{Run, Table, Version};
use pumice_segment::{Addr, RecordPtr};

fn table(id: u64, keys: (&str, &str), bytes: u32) -> Arc<Table> {
    let meta = TableMeta {
        id,
        slice: SliceId(0),
        ptr: RecordPtr { addr: Addr(id << 32), len: bytes },
        min_key: Bytes::copy_from_slice(keys.0.as_bytes()),
        max_key: Bytes::copy_from_slice(keys.1.as_bytes()),
        entries: 1,
        tombstones: 0,
        max_seq: id,
        earliest_expiry_ms: 0,
        record_bytes: 0,
        head_at: 0,
        head_len: 0,
    };
    Arc::new(Table::new(meta, None))
}

/// Runs of the given bytes, newest first; the last is the bottom.
fn version(bytes: &[u32]) -> Version {
    let orders = (0..bytes.len() as u64).rev();
    let run = |(order, bytes): (u64, &u32)| Arc::new(Run::new(order, vec![table(order, ("a", "z"), *bytes)]));
    Version { runs: orders.zip(bytes).map(run).collect() }
}

#[test]
fn tiers_are_of_one_size_and_newer_than_the_merge_under_way() {
    let orders =
        |bytes: &[u32], above| plan_tier(SliceId(0), &version(bytes), above, &[]).map(|job| job.runs);
    assert_eq!(orders(&[1, 1, 1, 1, 1, 1, 1, 100], 0), None, "seven runs");
    assert_eq!(orders(&[1, 2, 1, 3, 1, 4, 1, 2, 100], 0), Some((1..=8).rev().collect()));
    assert_eq!(orders(&[1, 2, 1, 3, 1, 5, 1, 2, 100], 0), None, "one is too large");
    assert_eq!(orders(&[1, 1, 1, 1, 1, 1, 1, 1, 9, 100], 0), Some((2..=9).rev().collect()));
    assert_eq!(orders(&[1, 1, 1, 1, 1, 1, 1, 1, 9, 100], 2), None, "the eighth is being merged");
    let mut odd: Vec<u32> = (0..40).map(|run| if run % 2 == 0 { 1 } else { 100 }).collect();
    odd.push(1000);
    assert!(orders(&odd, 0).is_some(), "too many of any size");
}

/// Small runs that came between larger ones would pile up.
#[test]
fn many_runs_are_merged_where_each_comes_to_lie_in_one_of_twice_its_size() {
    let orders = |bytes: &[u32]| plan_tier(SliceId(0), &version(bytes), 0, &[]).map(|job| job.runs);
    let mixed = [1, 7, 1, 1, 7, 1, 1, 1, 14, 1, 1, 7, 1, 1, 1, 7, 1, 100];
    let newest = mixed.len() as u64 - 1;
    assert_eq!(
        orders(&mixed),
        Some((newest - 7..=newest).rev().collect()),
        "twenty bytes, the largest of seven"
    );
    assert_eq!(orders(&mixed[4..]), None, "not so many");
    let large = [1, 1, 1, 9, 1, 1, 1, 1, 1, 1, 1, 99, 1, 1, 1, 1, 1, 1, 1, 100];
    assert_eq!(orders(&large), None, "the small ones do not come to half of any window");
}

#[test]
fn the_bottom_is_merged_when_enough_lies_above_it() {
    let none = Retired::default();
    let is_due =
        |bytes: &[u32], eager| plan_whole(SliceId(0), &version(bytes), &none, eager, true, &[]).is_some();
    assert!(!is_due(&[100], true), "there is nothing above it");
    assert!(!is_due(&[10, 20, 100], false));
    assert!(is_due(&[14, 20, 100], false), "a third");
    assert!(is_due(&[4, 100], true) && !is_due(&[3, 100], true), "a thirty-second for space's sake");
}

/// Run n holds table n.
#[test]
fn runs_above_and_below_one_that_does_not_read_are_merged_by_themselves() {
    let none = Retired::default();
    let whole = |bytes: &[u32], barred: &[u64]| {
        plan_whole(SliceId(0), &version(bytes), &none, false, true, barred).map(|job| job.runs)
    };
    for (bytes, barred, due) in [
        (&[50, 100][..], &[0][..], None),
        // The oldest above it takes the place of the bottom.
        (&[20, 50, 100], &[0], Some(vec![2, 1])),
        (&[10, 50, 100], &[0], None),
        // What lies below it goes on to be merged into the bottom.
        (&[50, 9, 50, 100], &[2], Some(vec![1, 0])),
        (&[5, 20, 9, 5, 100], &[2], None),
        (&[8, 20, 9, 50, 100], &[2], Some(vec![4, 3])),
        (&[50, 50, 100], &[0, 1, 2], None),
        (&[50, 100], &[7], Some(vec![1, 0])),
    ] {
        assert_eq!(whole(bytes, barred), due, "{bytes:?} without {barred:?}");
    }
    let tier =
        |bytes: &[u32], barred: &[u64]| plan_tier(SliceId(0), &version(bytes), 0, barred).map(|job| job.runs);
    assert_eq!(tier(&[1, 1, 1, 1, 1, 1, 1, 1, 100], &[5]), None, "seven may be merged");
    assert_eq!(tier(&[1, 1, 1, 1, 1, 1, 1, 1, 1, 100], &[9]), Some((1..=8).rev().collect()));
    let three = version(&[10, 50, 100]);
    let prospects = |barred: &[u64]| -> Vec<(u64, u64)> {
        let each = stretches(&three, barred);
        let prospects = each.iter().filter_map(|stretch| Prospect::of(SliceId(0), stretch));
        prospects.map(|prospect| (prospect.written, prospect.won)).collect()
    };
    assert_eq!(prospects(&[]), [(100, 60)]);
    assert_eq!(prospects(&[0]), [(50, 10)]);
    assert_eq!(prospects(&[1]), [], "one run each");
}

#[test]
fn a_table_that_does_not_read_is_rewritten_once_nobody_misses_anything_of_it() {
    let table = table(1, ("key1", "key2"), 1);
    let mut retired = Retired::default();
    retired.add(SliceId(0), b"key1", 10);
    assert!(
        is_to_be_rewritten(&table.meta, &retired, &[]) && !is_to_be_rewritten(&table.meta, &retired, &[1])
    );
    retired.add(SliceId(0), b"key", 11);
    assert!(is_to_be_rewritten(&table.meta, &retired, &[1]), "all of it is retired");
}

#[test]
fn tables_that_touch_no_other_are_alone() {
    let run = Run::new;
    let runs = [
        run(2, vec![table(1, ("a", "b"), 1), table(2, ("m", "n"), 1), table(3, ("x", "z"), 1)]),
        run(0, vec![table(4, ("b", "c"), 1), table(5, ("d", "l"), 1), table(6, ("o", "y"), 1)]),
    ];
    assert_eq!(alone(&runs.map(Arc::new)), [5, 2]);
    let covered = [run(2, vec![table(1, ("a", "z"), 1)]), run(0, vec![table(2, ("c", "d"), 1)])];
    assert!(alone(&covered.map(Arc::new)).is_empty(), "a range inside of another");
}

#[test]
fn the_merge_that_wins_most_for_what_it_writes_sets_the_price() {
    let prospect = |written, won| Prospect { slice: SliceId(0), written, won };
    let (small, large) = (prospect(100, 30), prospect(1000, 200));
    assert!(small.beats(&large) && !large.beats(&small) && !small.beats(&small));
    // 30 won for 100 written: a segment of which 30 in 130 are dead costs the same.
    assert_eq!(small.dead_as_cheap(1300), 300);
    assert!(large.is_worth_its_while() && !prospect(1000, 62).is_worth_its_while());
}

/// Every length, at every distance from the end: the fast way and the slow one answer alike.
#[test]
fn varints_come_back_wherever_they_lie() {
    let numbers = (0..64).flat_map(|bit| [1u64 << bit, (1 << bit) - 1, (1 << bit) | 1]);
    for number in numbers.chain([u64::MAX]) {
        for after in 0..12 {
            let mut bytes = vec![0xFF];
            put_varint(&mut bytes, number);
            let end = bytes.len();
            bytes.resize(end + after, 0x80);
            let mut cursor = Cursor::new(&bytes, 1);
            assert_eq!(cursor.varint(), Some(number));
            assert_eq!(cursor.at, end, "{number} before {after} bytes");
            let mut cursor = Cursor::new(&bytes, 1);
            assert_eq!(cursor.skip_varint(), Some(()));
            assert_eq!(cursor.at, end, "{number} passed over before {after} bytes");
            assert_eq!(Cursor::new(&bytes[..end - 1], 1).varint(), None, "{number} cut off");
        }
    }
    // Several in a row, from every place on.
    let numbers: Vec<u64> = (0..40).map(|at| 1u64 << (at * 7 % 64)).collect();
    let mut bytes = Vec::new();
    let mut ends = vec![0];
    for &number in &numbers {
        put_varint(&mut bytes, number);
        ends.push(bytes.len());
    }
    for from in 0..numbers.len() {
        for n in 0..=numbers.len() - from {
            let mut cursor = Cursor::new(&bytes, ends[from]);
            assert_eq!(cursor.skip_varints(n as u32), Some(()));
            assert_eq!(cursor.at, ends[from + n], "{n} from number {from} on");
        }
        let mut cursor = Cursor::new(&bytes, ends[from]);
        assert_eq!(cursor.skip_varints((numbers.len() - from + 1) as u32), None);
    }
    let too_long = [0xFF; 11];
    assert_eq!(Cursor::new(&too_long, 0).varint(), None);
    assert_eq!(Cursor::new(&too_long, 0).skip_varint(), None);
}

/// Against what the words say, for tables of one key and of several, with and without gaps between them.
#[test]
fn a_walk_begins_with_the_first_table_that_may_hold_its_keys() {
    let letters: Vec<String> = ('a'..='z').map(String::from).collect();
    for seed in 0..200 {
        let mut rng = Rng::from_seed(seed);
        let mut tables = Vec::new();
        let mut at = rng.below(3) as usize;
        while at < letters.len() {
            let end = (at + rng.below(4) as usize).min(letters.len() - 1);
            tables.push(table(tables.len() as u64, (&letters[at], &letters[end]), 1));
            at = end + 1 + rng.below(3) as usize;
        }
        let (first, last) =
            (|t: &Arc<Table>| t.meta.min_key.clone(), |t: &Arc<Table>| t.meta.max_key.clone());
        let run = Run::new(1, tables.clone());
        for key in
            letters.iter().flat_map(|letter| [letter.clone(), format!("{letter}m")]).chain([String::new()])
        {
            let forward = tables.iter().position(|table| last(table) >= key);
            let backward = tables.iter().rposition(|table| first(table) <= key);
            assert_eq!(run.table_from(key.as_bytes(), false), forward, "seed {seed}: from {key:?} forward");
            assert_eq!(run.table_from(key.as_bytes(), true), backward, "seed {seed}: from {key:?} backward");
        }
    }
}
