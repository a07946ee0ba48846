//! Merges on a drive that has less room than one of its key tables spans.

use std::time::Duration;

use crate::common::{device, format, get, no_progress, put};
use pumice_base::rng::Rng;
use pumice_kv::{Store, StoreFormat, StoreOptions, WriteError};
use pumice_reactor::sim::{HostOptions, World};
use pumice_reactor::sleep;

const ROWS: u32 = 66_000;

fn row(n: u32) -> Vec<u8> {
    format!("k{n:06}").into_bytes()
}

async fn open() -> (Store, impl AsyncFn() -> Store) {
    let device = device("emu:tiny,channels=2,blocks=48,pages=64").await;
    let shape = StoreFormat { slices: 2, ..format() };
    Store::format(&device, &shape).await.expect("format");
    let reopen = async move || {
        let options = StoreOptions { memtable_bytes: Some(16 << 20), ..StoreOptions::default() };
        Store::open(device.clone(), options, &no_progress).await.expect("open").store
    };
    (reopen().await, reopen)
}

/// The bottom run is one table of two keys, and all others lie between them, in a run that is twice what is free. A step that
/// went on to the table's end would never find the room, and begin again for ever.
#[test]
fn a_table_that_spans_more_than_there_is_room_for_is_merged_in_parts() {
    let world = World::new(1);
    let host = world.add_host(HostOptions { cores: 1, ..HostOptions::default() });
    let ran = world.block_on(host, async {
        let (store, reopen) = open().await;
        store.start_background();
        for round in 0..4 {
            put(&store, 0, b"a", &[round; 40]).await;
            put(&store, 0, b"z", &[round; 40]).await;
            store.checkpoint().await.expect("checkpoint");
        }
        while store.stats().runs_max > 1 {
            sleep(Duration::from_millis(100)).await;
        }
        store.close().await.expect("close");
        // Nothing happens by itself from here on.
        let store = reopen().await;
        let mut order: Vec<u32> = (0..ROWS).collect();
        Rng::from_seed(1).shuffle(&mut order);
        for n in order {
            put(&store, 0, &row(n), &[n as u8; 40]).await;
        }
        store.checkpoint().await.expect("checkpoint");
        let mut ballast = 0u32;
        loop {
            let mut batch = pumice_kv::Batch::new();
            batch.put(pumice_kv::SliceId(1), &ballast.to_be_bytes(), 0, 0, &[7; 3000]);
            match store.write(&batch) {
                Ok(seq) => store.wait_durable(seq).await.expect("durable"),
                Err(WriteError::Busy) if store.heap().free_segments() > 0 => {
                    sleep(Duration::from_millis(1)).await
                }
                Err(WriteError::Busy | WriteError::Full(_)) => break,
                Err(error) => panic!("{error}"),
            }
            ballast += 1;
        }
        // What the log leaves behind is called alive, so that cleaning makes no room.
        for segment in store.heap().segments_in_use() {
            store.heap().set_live(segment, store.heap().segment_bytes());
        }
        let space = store.space();
        assert!(space.free + space.reserved < store.stats().table_bytes / 2 + (256 << 10), "{space}");
        store.start_background();
        for _ in 0..600 {
            if store.stats().runs_max == 1 {
                break;
            }
            sleep(Duration::from_millis(100)).await;
        }
        let counters = store.stats().counters;
        assert_eq!(store.stats().runs_max, 1, "{counters:?}, {}", store.space());
        for n in (0..ROWS).step_by(997) {
            assert_eq!(get(&store, 0, &row(n)).await.expect("there").2, [n as u8; 40], "row {n}");
        }
        for edge in [b"a", b"z"] {
            assert_eq!(get(&store, 0, edge).await.expect("there").2, [3; 40]);
        }
    });
    ran.expect("the host is up");
}
