//! Memory that is much beside the drive: what is flushed at once finds room nevertheless.

use std::time::Duration;

use crate::common::*;
use pumice_base::rng::Rng;
use pumice_flash::{Device, DeviceSpec};
use pumice_kv::{Batch, SliceId, Store, StoreFormat, StoreOptions, WriteError};
use pumice_reactor::sim::{HostOptions, World};
use pumice_reactor::timeout;

const SEGMENTS: u64 = 96;
const SEGMENT_BYTES: u64 = 512 << 10;
/// Of which memtables would have a tenth: half of the drive.
const MEMORY_BYTES: u64 = 256 << 20;
/// Nobody waits longer than cleaning takes to find that nothing is to be won.
const PATIENCE: Duration = Duration::from_secs(30);

fn key(n: u64) -> Vec<u8> {
    format!("key:{n:08}").into_bytes()
}

/// Writes small values until the drive is full, deletes half of them, and writes again.
fn fill(seed: u64, value_bytes: usize, crashes: bool) {
    let world = World::new(seed);
    let host = world.add_host(HostOptions { quirks: false, ..HostOptions::default() });
    let test = async move {
        let spec: DeviceSpec = "/drive".parse().expect("spec");
        let device = Device::create(&spec, SEGMENTS * SEGMENT_BYTES).await.expect("file");
        let shape = StoreFormat { segment_bytes: Some(SEGMENT_BYTES as u32), ..format() };
        Store::format(&device, &shape).await.expect("format");
        let options = StoreOptions { memory_bytes: MEMORY_BYTES, ..StoreOptions::default() };
        let mut store = open_with(&device, options.clone()).await.store;
        let mut rng = Rng::from_seed(seed);
        let mut n = 0;
        for round in 0..2 {
            loop {
                let mut value = vec![0; value_bytes];
                rng.fill(&mut value);
                let mut batch = Batch::new();
                batch.put(SliceId((n % 3) as u16), &key(n), 0, 0, &value);
                match timeout(PATIENCE, store.write_ready(&batch)).await {
                    Ok(Ok(_)) => n += 1,
                    Ok(Err(WriteError::Full(_))) => break,
                    Ok(Err(error)) => panic!("seed {seed}: {error}"),
                    Err(_) => panic!("round {round}: put {n} waits: {} {:?}", store.space(), store.stats()),
                }
            }
            if crashes {
                // Memtables are as full as they may be.
                store.abandon().await;
                store = open_with(&device, options.clone()).await.store;
            }
            for gone in (0..n).filter(|gone| gone % 2 == round % 2) {
                let mut batch = Batch::new();
                batch.delete(SliceId((gone % 3) as u16), &key(gone));
                match timeout(PATIENCE, store.write_ready(&batch)).await {
                    Ok(Ok(_)) => {}
                    Ok(Err(error)) => panic!("seed {seed}, round {round}: delete {gone}: {error}"),
                    Err(_) => {
                        panic!("round {round}: delete {gone} waits: {} {:?}", store.space(), store.stats())
                    }
                }
            }
        }
        store.close().await.expect("close");
    };
    world.block_on(host, test).unwrap_or_else(|halt| panic!("seed {seed}: {halt}"))
}

#[test]
fn writes_end_though_a_flush_finds_no_room() {
    fill(1, 24, false);
}

#[test]
fn so_they_do_with_values_beside_the_tables() {
    fill(1, 100, false);
}

#[test]
fn so_they_do_after_a_crash() {
    fill(2, 24, true);
    fill(2, 100, true);
}
