//! Readers that take their time do not keep one memtable after another in memory.

use std::ops::Bound;
use std::time::Duration;

use crate::common::*;
use pumice_kv::{Batch, Direction, Scan, SliceId, SliceSet, Snapshot, Store, StoreError, Want};
use pumice_reactor::sim::{HostOptions, World};
use pumice_reactor::sleep;

/// Keys that make most of a memtable, whose budget is 48 KiB here.
const KEYS: u32 = 250;
const MEMTABLE: u64 = 48 << 10;
const ROUNDS: u8 = 20;
/// Longer than a read may hold what others need.
const LONG: Duration = Duration::from_secs(6);

fn in_virtual_time(test: impl Future<Output = ()> + 'static) {
    let world = World::new(1);
    let host = world.add_host(HostOptions { cores: 1, ..HostOptions::default() });
    world.block_on(host, test).expect("the world ran");
}

async fn put_all(store: &Store, round: u8) {
    let mut batch = Batch::new();
    for n in 0..KEYS {
        batch.put(SliceId(0), &n.to_be_bytes(), 0, 0, &[round; 60]);
    }
    write(store, &batch).await;
}

/// Begins to read all, as one client that asks for a large collection.
async fn begun(store: &Store, round: u8) -> (Snapshot, Scan) {
    let snapshot = store.snapshot_of(SliceId(0));
    let set = SliceSet::One(SliceId(0));
    let mut scan =
        store.scan(&snapshot, set, Bound::Unbounded, Bound::Unbounded, Direction::Forward, Want::Values);
    let (_, entry) = scan.next().await.expect("scan").expect("there");
    assert_eq!(entry.value[..], [round; 60]);
    (snapshot, scan)
}

/// Reads what is left; answers how many there were, or why there were no more.
async fn rest(scan: &mut Scan, round: u8) -> Result<u32, StoreError> {
    let mut found = 0;
    loop {
        while let Some((_, entry)) = scan.view_at_hand() {
            assert_eq!(entry.value.bytes(), [round; 60]);
            found += 1;
        }
        let Some((_, entry)) = scan.next().await? else { return Ok(found) };
        assert_eq!(entry.value[..], [round; 60]);
        found += 1;
    }
}

#[test]
fn of_readers_that_hold_many_memtables_those_that_began_long_ago_are_ended() {
    in_virtual_time(async {
        let store = formatted(&device("emu:small").await).await;
        let mut readers = Vec::new();
        for round in 0..ROUNDS {
            put_all(&store, round).await;
            readers.push((round, begun(&store, round).await));
            store.checkpoint().await.expect("checkpoint");
            let held = store.stats().held_memtable_bytes;
            assert!(held > MEMTABLE / 2, "{held} B are held, at least by the last");
            assert!(held < 3 * MEMTABLE, "{held} B are held after {round} rounds");
            sleep(LONG).await;
        }
        for (round, (snapshot, mut scan)) in readers {
            let rest = rest(&mut scan, round).await;
            match rest {
                // Each holds half of one at least, and what three hold may be held.
                Ok(found) => assert!(found == KEYS - 1 && round + 6 >= ROUNDS, "round {round}: {found}"),
                Err(StoreError::TooOld) => assert!(round + 1 < ROUNDS, "the last one is young"),
                Err(error) => panic!("{error}"),
            }
            drop((scan, snapshot));
        }
        store.close().await.expect("close");
    });
}

#[test]
fn readers_that_hold_little_may_take_their_time() {
    in_virtual_time(async {
        let store = formatted(&device("emu:small").await).await;
        put_all(&store, 0).await;
        let (snapshot, mut scan) = begun(&store, 0).await;
        store.checkpoint().await.expect("checkpoint");
        for round in 1..ROUNDS {
            put_all(&store, round).await;
            store.checkpoint().await.expect("checkpoint");
            sleep(LONG).await;
        }
        assert_eq!(rest(&mut scan, 0).await.expect("one memtable is not much"), KEYS - 1);
        drop((scan, snapshot));
        store.checkpoint().await.expect("checkpoint");
        assert_eq!(store.stats().held_memtable_bytes, 0);
        store.close().await.expect("close");
    });
}
