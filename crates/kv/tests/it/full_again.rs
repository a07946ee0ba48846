//! A full drive says that it is full also after it was opened again, before anybody writes.

use std::time::Duration;

use crate::common::*;
use pumice_base::rng::Rng;
use pumice_flash::{Device, DeviceSpec};
use pumice_kv::{Batch, SliceId, Store, StoreFormat, WriteError};
use pumice_reactor::sim::{HostOptions, World};
use pumice_reactor::sleep;

const DRIVE_BYTES: u64 = 48 << 20;

fn batch_of(n: u64, len: usize) -> Batch {
    let mut value = vec![0; len];
    Rng::from_seed(n).fill(&mut value);
    let mut batch = Batch::new();
    batch.put(SliceId((n % 3) as u16), format!("key:{n:08}").as_bytes(), 0, 0, &value);
    batch
}

/// Writes new keys from `n` on until the drive is full for good; answers with which it was.
async fn fill(store: &Store, mut n: u64, len: usize) -> u64 {
    let mut refused = 0;
    while refused < 20 {
        match store.write_ready(&batch_of(n, len)).await {
            Ok(_) => (n, refused) = (n + 1, 0),
            Err(WriteError::Full(_)) => {
                refused += 1;
                sleep(Duration::from_millis(20)).await;
            }
            Err(error) => panic!("{error}"),
        }
    }
    n
}

/// Where what is dead lies between what is alive, cleaning must look at it first, and does so without being asked.
#[test]
fn a_full_drive_is_known_to_be_full_when_it_was_opened_again() {
    for (len, at_once) in [(24, false), (700, true), (4000, true), (30_000, true)] {
        let world = World::new(len as u64);
        let host = world.add_host(HostOptions { quirks: false, ..HostOptions::default() });
        let test = async move {
            let spec: DeviceSpec = "/drive".parse().expect("spec");
            let device = Device::create(&spec, DRIVE_BYTES).await.expect("file");
            let shape = StoreFormat { segment_bytes: Some(512 << 10), ..format() };
            Store::format(&device, &shape).await.expect("format");
            let store = open(&device).await;
            assert!(!store.is_full());
            let mut keys = fill(&store, 0, len).await;
            assert!(store.is_full(), "{}", store.space());
            store.close().await.expect("close");
            let mut store = open(&device).await;
            assert!(!at_once || store.is_full(), "{}", store.space());
            sleep(Duration::from_secs(10)).await;
            for _ in 0..2 {
                if !at_once && !store.is_full() {
                    // Cleaning has won some.
                    let more = fill(&store, keys, len).await;
                    assert!(more > keys, "it was full and did not say so: {}", store.space());
                    keys = more;
                    store.close().await.expect("close");
                    store = open(&device).await;
                    sleep(Duration::from_secs(10)).await;
                }
            }
            assert!(store.is_full(), "{}", store.space());
            let refused = store.write(&batch_of(keys, len)).expect_err("there is no room");
            assert!(matches!(refused, WriteError::Full(_)), "{refused}");
            // Not while there is room for more.
            for n in 0..keys / 2 {
                delete(&store, (n % 3) as u16, format!("key:{n:08}").as_bytes()).await;
            }
            store.checkpoint().await.expect("checkpoint");
            sleep(Duration::from_secs(10)).await;
            assert!(!store.is_full(), "{}", store.space());
            store.write_ready(&batch_of(keys, len)).await.expect("there is room");
            store.close().await.expect("close");
        };
        world.block_on(host, test).unwrap_or_else(|halt| panic!("{len}: {halt}"));
    }
}
