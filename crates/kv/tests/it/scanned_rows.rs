//! What short scans read of values becomes rows like what look-ups read, and never outlives a write.

use std::ops::Bound;

use crate::common::*;
use pumice_kv::{Direction, SliceId, SliceSet, Snapshot, Store, Want};
use pumice_reactor::sim::{HostOptions, World};

const KEYS: u64 = 1_000;
const SLICE: u16 = 2;

fn key(n: u64) -> Vec<u8> {
    format!("key:{n:08}").into_bytes()
}

/// So long that they lie beside their keys.
fn filled(n: u64, version: u64) -> Vec<u8> {
    vec![(n + version) as u8; 300 + n as usize]
}

/// A store just opened, with nothing in memory.
async fn cold() -> Store {
    let device = device("emu:small").await;
    let store = formatted(&device).await;
    for n in 0..KEYS {
        put(&store, SLICE, &key(n), &filled(n, 0)).await;
    }
    store.close().await.expect("close");
    open(&device).await
}

/// Scans from one key on and answers how often the drive was read for it.
async fn scan(store: &Store, snapshot: &Snapshot, from: u64, count: u64, version: u64) -> u64 {
    let before = store.stats().heap.reads;
    let bounds = (Bound::Included(key(from).into()), Bound::Excluded(key(from + count).into()));
    let set = SliceSet::One(SliceId(SLICE));
    let mut scan = store.scan(snapshot, set, bounds.0, bounds.1, Direction::Forward, Want::Values);
    for n in from..from + count {
        let (found, entry) = scan.next().await.expect("scan").expect("not at its end");
        assert_eq!((&found[..], &entry.value[..]), (&key(n)[..], &filled(n, version)[..]), "key {n}");
    }
    assert!(scan.next().await.expect("scan").is_none());
    store.stats().heap.reads - before
}

fn now(store: &Store) -> Snapshot {
    store.snapshot_of(SliceId(SLICE))
}

/// Where merging is not some time or other.
fn in_a_world(test: impl Future<Output = ()> + 'static) {
    let world = World::new(3);
    let host = world.add_host(HostOptions { quirks: false, ..HostOptions::default() });
    world.block_on(host, test).unwrap_or_else(|halt| panic!("{halt}"));
}

#[test]
fn values_of_a_short_range_are_read_from_flash_once() {
    in_a_world(async {
        let store = cold().await;
        for from in [0, 500] {
            assert!(scan(&store, &now(&store), from, 50, 0).await > 0, "nothing was on flash");
            // Behind the first block of keys another may follow, which is the first to be read now.
            let reads = scan(&store, &now(&store), from, 50, 0).await;
            assert!(reads <= 1, "{reads} reads");
            assert_eq!(scan(&store, &now(&store), from, 50, 0).await, 0, "the third time");
            let before = store.stats().heap.reads;
            for n in from..from + 50 {
                assert_eq!(get(&store, SLICE, &key(n)).await.expect("there").2, filled(n, 0));
            }
            assert_eq!(store.stats().heap.reads, before, "look-ups find them, too");
        }
        // Nor do rows that are there need to be read by a scan.
        for n in 800..850 {
            get(&store, SLICE, &key(n)).await.expect("there");
        }
        let with_blocks = scan(&store, &now(&store), 800, 50, 0).await;
        assert!(with_blocks <= 4, "{with_blocks} reads");
        store.close().await.expect("close");
    });
}

#[test]
fn a_long_scan_keeps_what_it_began_with_and_no_more() {
    in_a_world(async {
        let store = cold().await;
        scan(&store, &now(&store), 0, KEYS, 0).await;
        let rows = store.stats().row_bytes;
        let most: usize = (0..300).map(|n| filled(n, 0).len() + 200).sum();
        assert!(rows > 0 && rows < most as u64, "{rows} B of rows");
        store.close().await.expect("close");
    });
}

/// Who looks at an earlier time reads what was there then, and nobody else does afterwards.
#[test]
fn what_a_snapshot_shows_is_no_row_once_it_was_written_over() {
    for flushed in [false, true] {
        in_a_world(async move {
            let store = cold().await;
            let earlier = now(&store);
            for n in 0..100 {
                put(&store, SLICE, &key(n), &filled(n, 1)).await;
            }
            if flushed {
                store.checkpoint().await.expect("checkpoint");
            }
            scan(&store, &earlier, 0, 100, 0).await;
            for n in 0..100 {
                assert_eq!(get(&store, SLICE, &key(n)).await.expect("there").2, filled(n, 1), "key {n}");
            }
            scan(&store, &now(&store), 0, 100, 1).await;
            // Rows of the new versions are not what the snapshot shows.
            scan(&store, &earlier, 0, 100, 0).await;
            drop(earlier);
            store.close().await.expect("close");
        });
    }
}
