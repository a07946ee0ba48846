//! What memtables lend to row caches is taken back by whatever makes them grow, cleaning too.

use std::time::Duration;

use crate::common::*;
use pumice_flash::{Device, DeviceSpec};
use pumice_kv::{SliceId, StoreOptions};
use pumice_reactor::sim::{HostOptions, World};
use pumice_reactor::sleep;
use pumice_segment::Stream;

/// More than there is room for.
const ROWS: u64 = 22_000;
const ROW_BYTES: usize = 4_000;
/// Values in one piece each. What cleaning writes of one is its key and its place.
const LARGE_VALUES: u32 = 5_000;
const LARGE_BYTES: usize = 20_000;
const KEY_BYTES: usize = 4_000;

fn row(n: u64) -> Vec<u8> {
    format!("row:{n:08}").into_bytes()
}

fn large(n: u32) -> Vec<u8> {
    let mut key = format!("large:{n:08}").into_bytes();
    key.resize(KEY_BYTES, b'.');
    key
}

#[test]
fn cleaning_that_moves_pieces_takes_back_what_memtables_lend() {
    let world = World::new(9);
    let host = world.add_host(HostOptions { quirks: false, ..HostOptions::default() });
    let test = async move {
        let spec: DeviceSpec = "/drive".parse().expect("spec");
        let device = Device::create(&spec, 1 << 30).await.expect("file");
        drop(formatted(&device).await);
        let options = || StoreOptions {
            memory_bytes: 128 << 20,
            memtable_bytes: Some(20 << 20),
            // The file is kept near what is alive, so that segments with little in them are emptied.
            slack_bytes: 4 << 20,
            ..StoreOptions::default()
        };
        let store = open_with(&device, options()).await.store;
        for n in 0..ROWS {
            put(&store, (n % 3) as u16, &row(n), &[n as u8; ROW_BYTES]).await;
        }
        for n in 0..LARGE_VALUES {
            put_large(&store, (n % 3) as u16, &large(n), 1, &vec![n as u8; LARGE_BYTES]).await;
        }
        store.close().await.expect("close");
        drop(store);
        let store = open_with(&device, options()).await.store;
        // Rows take all that they get.
        for n in 0..ROWS {
            store.get(SliceId((n % 3) as u16), &row(n)).await.expect("get").expect("there");
        }
        let before = store.stats();
        // Nobody writes: the drive's file is made smaller by emptying segments of pieces, which the heap takes for dead.
        for segment in store.heap().segments_in_use() {
            if store.heap().contents(segment).await.expect("read").stream == Stream::Large {
                store.heap().set_live(segment, 0);
            }
        }
        let (mut grown, mut held) = (0, 0);
        for _ in 0..1000 {
            sleep(Duration::from_millis(100)).await;
            let stats = store.stats();
            grown = grown.max(stats.memtable_bytes);
            held = held.max(stats.row_bytes + stats.memtable_bytes);
        }
        assert!(grown > 4 << 20, "memtables grew to {grown} B");
        let before = before.row_bytes + before.memtable_bytes;
        assert!(held < before + (3 << 20), "{held} B of rows and memtables, {before} before");
    };
    world.block_on(host, test).unwrap_or_else(|halt| panic!("{halt}"));
}
