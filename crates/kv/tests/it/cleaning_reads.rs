//! What cleaning reads beside its victims: key blocks that memory does not hold.

use std::time::Duration;

use crate::common::*;
use pumice_base::rng::Rng;
use pumice_flash::{Device, DeviceSpec};
use pumice_kv::{Batch, SliceId, Store, StoreFormat, StoreOptions};
use pumice_reactor::now;
use pumice_reactor::sim::{DiskModel, HostOptions, World};

const KEYS: u64 = 60_000;
const OVERWRITES: u64 = 40_000;
const VALUE_BYTES: usize = 200;
const READ: Duration = Duration::from_millis(1);

/// So long that key tables are far larger than the memory for them.
fn key(n: u64) -> Vec<u8> {
    let mut rng = Rng::from_seed(n);
    let mut key = n.to_be_bytes().to_vec();
    key.extend((0..300).map(|_| rng.below(256) as u8));
    key
}

/// A drive whose reads take long, and key tables that memory does not hold: one after the other cleaning would wait for each of its
/// questions.
#[test]
fn cleaning_asks_for_key_blocks_side_by_side() {
    let world = World::new(7);
    let disk = DiskModel { read_ns: READ.as_nanos() as u64, ..DiskModel::default() };
    let host = world.add_host(HostOptions { quirks: false, disk, ..HostOptions::default() });
    let test = async move {
        let spec: DeviceSpec = "/drive".parse().expect("spec");
        let device = Device::create(&spec, 96 << 20).await.expect("file");
        let format = StoreFormat { segment_bytes: Some(1 << 20), ..format() };
        Store::format(&device, &format).await.expect("format");
        let small =
            StoreOptions { memory_bytes: 24 << 20, memtable_bytes: Some(1 << 20), ..StoreOptions::default() };
        let store = open_with(&device, small).await.store;
        let mut batch = Batch::new();
        let mut order: Vec<u64> = (0..KEYS).collect();
        Rng::from_seed(3).shuffle(&mut order);
        for n in order {
            batch.clear();
            batch.put(SliceId((n % 3) as u16), &key(n), 0, 0, &[n as u8; VALUE_BYTES]);
            write(&store, &batch).await;
        }
        let (began, reads) = (now(), store.stats().counters.block_reads);
        let mut rng = Rng::from_seed(4);
        for _ in 0..OVERWRITES {
            let n = rng.below(KEYS);
            batch.clear();
            batch.put(SliceId((n % 3) as u16), &key(n), 0, 0, &[n as u8; VALUE_BYTES]);
            write(&store, &batch).await;
        }
        let (took, stats) = (began.elapsed(), store.stats());
        let blocks = stats.counters.block_reads - reads;
        println!("{took:?} for {blocks} blocks, {} segments", stats.counters.cleaned_segments);
        assert!(
            stats.counters.cleaned_segments > 20 && blocks > 200,
            "{} segments, {blocks} blocks",
            stats.counters.cleaned_segments
        );
        assert!(
            took < READ * blocks as u32 / 2,
            "{took:?} for {blocks} blocks, which is one after the other"
        );
    };
    world.block_on(host, test).unwrap_or_else(|halt| panic!("{halt}"));
}
