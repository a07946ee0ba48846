//! Drives of small values, nearly full: no write is refused for want of space while cleaning and merging get anywhere, nor while segments
//! are free.

use crate::common::*;
use pumice_base::rng::Rng;
use pumice_flash::{Device, DeviceSpec};
use pumice_kv::{Batch, SliceId, SpaceReport, Store, StoreFormat, StoreOptions, WriteError};
use pumice_reactor::sim::{HostOptions, World};

/// Segments of the drive.
const SEGMENTS: u64 = 96;
const SEGMENT_BYTES: u64 = 512 << 10;

/// Overwrites random small values on a drive filled to so many hundredths; answers what the first refusal said.
fn refusal(seed: u64, hundredths: u64) -> Option<SpaceReport> {
    let world = World::new(seed);
    let host = world.add_host(HostOptions { quirks: false, ..HostOptions::default() });
    let test = async move {
        let spec: DeviceSpec = "/drive".parse().expect("spec");
        let device = Device::create(&spec, SEGMENTS * SEGMENT_BYTES).await.expect("file");
        let shape = StoreFormat { segment_bytes: Some(SEGMENT_BYTES as u32), ..format() };
        Store::format(&device, &shape).await.expect("format");
        let options = StoreOptions { memtable_bytes: Some(512 << 10), ..StoreOptions::default() };
        let store = open_with(&device, options).await.store;
        let mut rng = Rng::from_seed(seed);
        // Of 35 B in a table each.
        let keys = SEGMENTS * SEGMENT_BYTES / 100 * hundredths / 35;
        for step in 0..2 * keys {
            let n = if step < keys { step } else { rng.below(keys) };
            let mut value = [0; 24];
            rng.fill(&mut value);
            let mut batch = Batch::new();
            batch.put(SliceId((n % 3) as u16), format!("key:{n:08}").as_bytes(), 0, 0, &value);
            match store.write_ready(&batch).await {
                Ok(_) => {}
                Err(WriteError::Full(space)) => return Some(*space),
                Err(error) => panic!("seed {seed}: {error}"),
            }
        }
        None
    };
    world.block_on(host, test).unwrap_or_else(|halt| panic!("seed {seed}: {halt}"))
}

/// Tables that do not fit their segments well lose a tenth; the reserve and the metadata log take another.
#[test]
fn a_drive_three_quarters_full_of_small_values_takes_overwrites() {
    for seed in [4, 6] {
        let refusal = refusal(seed, 75);
        assert!(refusal.is_none(), "seed {seed}: {}", refusal.expect("there is one"));
    }
}

#[test]
fn no_segment_is_free_when_a_drive_is_called_full() {
    for seed in [6, 8] {
        let refusal = refusal(seed, 78).unwrap_or_else(|| panic!("seed {seed}: it should be too full"));
        assert!(refusal.free < SEGMENT_BYTES, "seed {seed}: {refusal}");
    }
}
