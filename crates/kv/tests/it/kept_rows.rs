//! Which rows that flash answered are kept: all while there is room, then those asked for again before long.

use crate::common::*;
use pumice_flash::{Device, DeviceSpec};
use pumice_kv::{Batch, SliceId, Store, StoreOptions};
use pumice_reactor::sim::{HostOptions, World};

const MEMORY: u64 = 64 << 20;
const VALUE_BYTES: usize = 16_000;
/// Twelve times what the row caches hold, and more than they remember.
const KEYS: u64 = 30_000;
/// A quarter of what they hold.
const HOT: u64 = 600;

fn key(n: u64) -> Vec<u8> {
    format!("key:{n:08}").into_bytes()
}

/// How many of these GETs read a value from flash.
async fn value_reads(store: &Store, keys: impl Iterator<Item = u64>) -> u64 {
    let before = store.stats().counters.value_reads;
    for n in keys {
        let held = get(store, (n % 3) as u16, &key(n)).await.expect("there");
        assert_eq!(held.2, [n as u8; VALUE_BYTES], "key {n}");
    }
    store.stats().counters.value_reads - before
}

#[test]
fn a_full_cache_takes_what_is_asked_for_again() {
    let world = World::new(7);
    let host = world.add_host(HostOptions { quirks: false, ..HostOptions::default() });
    let test = async move {
        let spec: DeviceSpec = "/drive".parse().expect("spec");
        let device = Device::create(&spec, 1 << 30).await.expect("file");
        drop(formatted(&device).await);
        let options = StoreOptions { memory_bytes: MEMORY, ..StoreOptions::default() };
        let store = open_with(&device, options.clone()).await.store;
        let mut batch = Batch::new();
        for n in 0..KEYS {
            batch.clear();
            batch.put(SliceId((n % 3) as u16), &key(n), 0, 0, &[n as u8; VALUE_BYTES]);
            write(&store, &batch).await;
        }
        store.close().await.expect("close");
        let store = open_with(&device, options).await.store;

        // There is room: once is enough.
        assert_eq!(value_reads(&store, 0..HOT).await, HOT);
        assert_eq!(value_reads(&store, 0..HOT).await, 0);
        // More than there is room for, each once, in no order.
        let cold = KEYS - HOT;
        let swept = |n: u64| HOT + n * 7_919 % cold;
        assert_eq!(value_reads(&store, (0..cold).map(swept)).await, cold);
        let full = store.stats().row_bytes;
        assert!(full > MEMORY / 3 && full < MEMORY, "{full} B of rows");
        let hot = value_reads(&store, 0..HOT).await;
        assert!(hot < HOT / 50, "{hot} of {HOT} hot rows were pushed out");
        // What came last was not kept, and is when it is asked for again.
        let last = |n: u64| swept(cold - 1 - n);
        let again = value_reads(&store, (0..30).map(last)).await;
        assert!(again > 27, "{} of 30 that were read once were kept", 30 - again);
        let third = value_reads(&store, (0..30).map(last)).await;
        assert!(third < 6, "{third} of 30 that were read twice were not kept");
        // Whom so many others followed is a stranger again.
        let first = |n: u64| swept(cold / 2 + n);
        assert_eq!(value_reads(&store, (0..100).map(first)).await, 100);
        assert!(value_reads(&store, (0..100).map(first)).await > 30, "those read long ago were kept");
        store.close().await.expect("close");
    };
    world.block_on(host, test).unwrap_or_else(|halt| panic!("{halt}"));
}
