//! Where key tables are little of a drive that is short of segments, cleaning does not stand still until a merge has ended.

use std::time::Duration;

use crate::common::{format, no_progress};
use pumice_base::rng::Rng;
use pumice_flash::{Device, DeviceSpec};
use pumice_kv::{Batch, SliceId, Store, StoreFormat, StoreOptions, WriteError};
use pumice_reactor::sim::{HostOptions, World};
use pumice_reactor::{sleep, spawn};

const DRIVE_BYTES: u64 = 64 << 20;
const VALUE_BYTES: usize = 1000;
/// Half of the drive.
const KEYS: u64 = 32_000;
/// Values that lie in key tables.
const SMALL: u64 = 40_000;

/// Answers whether there was room.
async fn write(store: &Store, key: u64, value: &[u8]) -> bool {
    let mut batch = Batch::new();
    batch.put(SliceId(0), &key.to_be_bytes(), 0, 0, value);
    loop {
        match store.write(&batch) {
            Ok(seq) if key.is_multiple_of(2048) => store.wait_durable(seq).await.expect("durable"),
            Ok(_) => {}
            Err(WriteError::Busy) if store.heap().free_segments() > 0 => {
                sleep(Duration::from_millis(1)).await;
                continue;
            }
            Err(WriteError::Busy | WriteError::Full(_)) => return false,
            Err(error) => panic!("{error}"),
        }
        return true;
    }
}

#[test]
fn cleaning_goes_on_beside_a_merge_that_goes_first() {
    let world = World::new(1);
    let host = world.add_host(HostOptions { cores: 1, quirks: false, ..HostOptions::default() });
    let test = async {
        let spec: DeviceSpec = "/drive".parse().expect("spec");
        let device = Device::create(&spec, DRIVE_BYTES).await.expect("file");
        let shape = StoreFormat { slices: 1, segment_bytes: Some(1 << 20), ..format() };
        Store::format(&device, &shape).await.expect("format");
        let open = async || {
            let options = StoreOptions { memtable_bytes: Some(16 << 20), ..StoreOptions::default() };
            Store::open(device.clone(), options, &no_progress).await.expect("open").store
        };
        let store = open().await;
        store.start_background();
        for part in 0..4 {
            for key in (0..KEYS).filter(|key| key % 4 == part) {
                assert!(write(&store, key * 32, &[0; VALUE_BYTES]).await);
            }
            store.checkpoint().await.expect("checkpoint");
        }
        while store.stats().runs_max > 1 {
            sleep(Duration::from_millis(100)).await;
        }
        store.close().await.expect("close");
        // Nothing happens by itself from here on.
        let store = open().await;
        let mut rng = Rng::from_seed(1);
        // Upper runs that are much beside the bottom run, and segments of which a third is dead at most.
        for n in 0..SMALL {
            assert!(write(&store, rng.below(KEYS * 16) * 2 + 1, &[n as u8; 40]).await);
        }
        store.checkpoint().await.expect("checkpoint");
        while write(&store, rng.below(KEYS) * 32, &[1; VALUE_BYTES]).await {}
        store.start_background();
        let users: Vec<_> = (0..8)
            .map(|user| {
                let store = store.clone();
                spawn(async move {
                    let mut rng = Rng::from_seed(user);
                    for _ in 0..4000 {
                        let mut batch = Batch::new();
                        batch.put(SliceId(0), &(rng.below(KEYS) * 32).to_be_bytes(), 0, 0, &[2; VALUE_BYTES]);
                        store.write_ready(&batch).await.expect("written");
                    }
                })
            })
            .collect();
        let meanwhile = loop {
            let counters = store.stats().counters;
            if counters.merges > 0 {
                break counters;
            }
            sleep(Duration::from_micros(100)).await;
        };
        for user in users {
            user.await.expect("not aborted");
        }
        // What was all dead won segments before, too.
        assert!(meanwhile.moved_records > 0, "{meanwhile:?}");
    };
    world.block_on(host, test).unwrap_or_else(|halt| panic!("{halt}"));
}
