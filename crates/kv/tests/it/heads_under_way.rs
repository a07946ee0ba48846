//! Where the heads of key tables do not fit into memory, most look-ups read one of tens of KiB: those being read are bounded, however
//! many look-ups are under way.

use std::rc::Rc;

use crate::common::*;
use pumice_flash::{Device, DeviceSpec};
use pumice_kv::{Batch, SliceId, StoreOptions};
use pumice_reactor::sim::{HostOptions, World};
use pumice_reactor::{spawn, yield_now};

const MEMORY: u64 = 24 << 20;
/// What key tables have of it, and heads that are being read of that.
const TABLES: u64 = 8 << 20;
const UNDER_WAY: u64 = TABLES / 8;
const SLICES: u64 = 3;
const KEYS: u64 = 1_200_000;
const READERS: u64 = 1_200;

fn key(n: u64) -> Vec<u8> {
    format!("key:{n:010}").into_bytes()
}

#[test]
fn heads_being_read_are_bounded() {
    let world = World::new(8);
    let host = world.add_host(HostOptions { quirks: false, ..HostOptions::default() });
    let test = async move {
        let spec: DeviceSpec = "/drive".parse().expect("spec");
        let device = Device::create(&spec, 512 << 20).await.expect("file");
        drop(formatted(&device).await);
        let options = StoreOptions { memory_bytes: MEMORY, ..StoreOptions::default() };
        let store = open_with(&device, options.clone()).await.store;
        let mut batch = Batch::new();
        for n in 0..KEYS {
            batch.put(SliceId((n % SLICES) as u16), &key(n), 0, 0, &[n as u8; 8]);
            if n % 300 == 299 {
                write(&store, &batch).await;
                batch.clear();
            }
            if n % 30_000 == 29_999 {
                store.wait_durable(store.last_seq()).await.expect("durable");
            }
        }
        store.close().await.expect("close");
        let store = open_with(&device, options.clone()).await.store;
        let get = async |n: u64| {
            let entry = store.get(SliceId((n % SLICES) as u16), &key(n)).await.expect("get").expect("there");
            assert_eq!(entry.value[..], [n as u8; 8]);
        };
        let wanted: Vec<u64> = (0..READERS).map(|n| n * (KEYS / READERS)).collect();
        for &n in &wanted {
            get(n).await;
        }
        let stats = store.stats();
        let head_bytes = stats.head_bytes / stats.tables;
        assert!(
            stats.head_bytes > UNDER_WAY + UNDER_WAY / 2,
            "{} tables with {head_bytes} B heads",
            stats.tables
        );
        drop(store);

        let store = Rc::new(open_with(&device, options).await.store);
        let readers: Vec<_> = wanted
            .into_iter()
            .map(|n| {
                let store = store.clone();
                spawn(async move {
                    store.get(SliceId((n % SLICES) as u16), &key(n)).await.expect("get").expect("there");
                })
            })
            .collect();
        yield_now().await;
        yield_now().await;
        let begun = store.stats().counters.head_reads;
        assert!(begun > 1, "heads are read side by side");
        // In memory they take a little more than on flash.
        assert!(
            begun * head_bytes <= UNDER_WAY + UNDER_WAY / 4,
            "{begun} heads of {head_bytes} B are being read"
        );
        for reader in readers {
            reader.await.expect("reader");
        }
        assert!(store.stats().counters.head_reads > begun, "others had to wait");
    };
    world.block_on(host, test).unwrap_or_else(|halt| panic!("{halt}"));
}
