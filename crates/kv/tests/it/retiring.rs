//! Prefixes that are retired while cleaning moves what lies under them.

use std::ops::{Bound, Range};
use std::time::Duration;

use crate::common::{device, format, no_progress, put, write};
use bytes::Bytes;
use pumice_kv::{Batch, Direction, SliceId, SliceSet, Store, StoreFormat, StoreOptions, Want};
use pumice_reactor::sim::{HostOptions, World};
use pumice_reactor::sleep;

/// Where the spaces lie: what is in their tables is theirs alone.
const SLICE: SliceId = SliceId(0);
/// Where that lies which fills the drive.
const BALLAST: SliceId = SliceId(1);
/// Values of a space: more than a segment of them.
const VALUES: u32 = 100;
const VALUE_BYTES: usize = 3000;
const SPACES: u32 = 24;

fn key(space: u32, n: u32) -> Vec<u8> {
    [space.to_be_bytes(), n.to_be_bytes()].concat()
}

async fn fill(store: &Store, slice: SliceId, space: u32, keys: Range<u32>) {
    for n in keys {
        put(store, slice.0, &key(space, n), &vec![n as u8; VALUE_BYTES]).await;
    }
}

/// Keys that are there and that no list of retired prefixes hides.
async fn left(store: &Store) -> Vec<Bytes> {
    let snapshot = store.snapshot();
    let (from, to) = (Bound::Unbounded, Bound::Unbounded);
    let mut scan = store.scan(&snapshot, SliceSet::One(SLICE), from, to, Direction::Forward, Want::Keys);
    let mut found = Vec::new();
    while let Some((key, _)) = scan.next().await.expect("scan") {
        if !store.is_retired(SLICE, &key) {
            found.push(key);
        }
    }
    found
}

/// A value whose prefix is retired between the look-up and the move gets a number above the prefix's. When the list has
/// forgotten the prefix by the time that the moved value reaches a key table, it is there for ever.
#[test]
fn what_cleaning_moves_of_a_prefix_that_is_being_retired_does_not_come_back() {
    let world = World::new(1);
    let host = world.add_host(HostOptions { cores: 1, ..HostOptions::default() });
    let ran = world.block_on(host, async {
        // Programs that take their time: a batch waits while the one before it is being written.
        let device = device("emu:tiny,channels=2,blocks=48,pages=64,program_us=2000").await;
        let shape = StoreFormat { slices: 2, ..format() };
        Store::format(&device, &shape).await.expect("format");
        let store = Store::open(device, StoreOptions::default(), &no_progress).await.expect("open").store;
        store.start_background();
        let mut ballast = 0;
        while store.heap().free_segments() > 6 {
            fill(&store, BALLAST, 0, ballast..ballast + 20).await;
            ballast += 20;
        }
        let mut caught = 0;
        for space in 1..=SPACES {
            let before = store.heap().segments_in_use();
            fill(&store, SLICE, space, 0..VALUES).await;
            store.checkpoint().await.expect("checkpoint");
            // Cleaning takes these next.
            for segment in store.heap().segments_in_use().into_iter().filter(|one| !before.contains(one)) {
                store.heap().set_live(segment, 0);
            }
            let moved = store.stats().counters.moved_records;
            for _ in 0..2000 {
                if store.stats().counters.moved_records > moved + u64::from(space) {
                    caught += 1;
                    break;
                }
                sleep(Duration::from_micros(300)).await;
            }
            let mut batch = Batch::new();
            batch.retire(SLICE, &space.to_be_bytes());
            write(&store, &batch).await;
            store.checkpoint().await.expect("checkpoint");
            // Until the tables that named them are gone, and the prefix with them.
            for _ in 0..100 {
                sleep(Duration::from_millis(100)).await;
                if !store.is_retired(SLICE, &key(space, 0)) {
                    break;
                }
            }
            assert!(!store.is_retired(SLICE, &key(space, 0)), "space {space} is not forgotten");
            store.checkpoint().await.expect("checkpoint");
            let left = left(&store).await;
            assert!(left.is_empty(), "space {space}: {} keys: {:?}", left.len(), left.first());
        }
        assert!(caught > SPACES / 2, "cleaning was caught in the act {caught} times");
    });
    ran.expect("the host is up");
}
