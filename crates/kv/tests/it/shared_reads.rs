//! Who asks at one moment for the same part of a key table waits for one read of it.

use std::rc::Rc;

use crate::common::*;
use pumice_flash::{Device, DeviceSpec};
use pumice_kv::{Batch, SliceId, Store, StoreOptions};
use pumice_reactor::sim::{HostOptions, World};
use pumice_reactor::{spawn, yield_now};

const SLICE: SliceId = SliceId(0);
const KEYS: u64 = 2_000;

fn key(n: u64) -> Vec<u8> {
    format!("key:{n:08}").into_bytes()
}

/// A store whose tables are on flash alone.
async fn cold() -> Rc<Store> {
    let spec: DeviceSpec = "/drive".parse().expect("spec");
    let device = Device::create(&spec, 256 << 20).await.expect("file");
    drop(formatted(&device).await);
    let store = open_with(&device, StoreOptions::default()).await.store;
    let mut batch = Batch::new();
    for n in 0..KEYS {
        batch.clear();
        batch.put(SLICE, &key(n), 0, 0, &[n as u8; 40]);
        write(&store, &batch).await;
    }
    store.close().await.expect("close");
    Rc::new(open_with(&device, StoreOptions::default()).await.store)
}

async fn get(store: &Store, n: u64) {
    let entry = store.get(SLICE, &key(n)).await.expect("get").expect("there");
    assert_eq!(entry.value[..], [n as u8; 40]);
}

fn in_a_world<F: Future<Output = ()> + 'static>(test: F) {
    let world = World::new(1);
    let host = world.add_host(HostOptions { quirks: false, ..HostOptions::default() });
    world.block_on(host, test).unwrap_or_else(|halt| panic!("{halt}"));
}

#[test]
fn one_read_serves_all_who_ask_meanwhile() {
    in_a_world(async {
        let store = cold().await;
        let readers: Vec<_> = (0..200)
            .map(|n| {
                let store = store.clone();
                spawn(async move { get(&store, 500 + n % 3).await })
            })
            .collect();
        for reader in readers {
            reader.await.expect("reader");
        }
        let counters = store.stats().counters;
        assert_eq!(counters.head_reads, 1);
        assert!((1..=2).contains(&counters.block_reads), "{} reads of blocks", counters.block_reads);
    });
}

#[test]
fn a_reader_that_goes_away_leaves_nobody_waiting() {
    in_a_world(async {
        let store = cold().await;
        let readers: Vec<_> = (0..20)
            .map(|n| {
                let store = store.clone();
                spawn(async move { get(&store, n).await })
            })
            .collect();
        // The first is the one that reads.
        yield_now().await;
        let mut readers = readers.into_iter();
        readers.next().expect("the first").abort();
        for reader in readers {
            reader.await.expect("reader");
        }
        let counters = store.stats().counters;
        assert!(counters.head_reads > 1, "what it read is read by others");
    });
}
