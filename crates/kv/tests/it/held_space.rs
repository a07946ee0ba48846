//! Cleaning while readers hold what it has released: it moves no more than will be of use once they are gone, and then
//! goes on.

use std::time::Duration;

use crate::common::*;
use pumice_base::rng::Rng;
use pumice_flash::{Device, DeviceSpec};
use pumice_kv::{Batch, SliceId, Store, StoreFormat, WriteError};
use pumice_reactor::sim::{HostOptions, World};
use pumice_reactor::sleep;

const SEGMENTS: u64 = 96;
const SEGMENT_BYTES: u64 = 512 << 10;
const LEN: usize = 4000;
/// So many are alive: six tenths of the drive.
const KEYS: u64 = SEGMENTS * SEGMENT_BYTES / 10 * 6 / LEN as u64;

fn in_virtual_time(test: impl Future<Output = ()> + 'static) {
    let world = World::new(5);
    let host = world.add_host(HostOptions { quirks: false, ..HostOptions::default() });
    world.block_on(host, test).unwrap_or_else(|halt| panic!("{halt}"));
}

fn key(n: u64) -> Vec<u8> {
    format!("key:{n:08}").into_bytes()
}

fn value(n: u64) -> Vec<u8> {
    let mut value = vec![0; LEN];
    Rng::from_seed(n).fill(&mut value);
    value
}

/// A drive that was overwritten at random until hardly a segment was free.
async fn written_over() -> Store {
    let spec: DeviceSpec = "/drive".parse().expect("spec");
    let device = Device::create(&spec, SEGMENTS * SEGMENT_BYTES).await.expect("file");
    let shape = StoreFormat { segment_bytes: Some(SEGMENT_BYTES as u32), ..format() };
    Store::format(&device, &shape).await.expect("format");
    let store = open(&device).await;
    let mut rng = Rng::from_seed(7);
    for step in 0..3 * KEYS {
        let n = if step < KEYS { step } else { rng.below(KEYS) };
        put(&store, (n % 3) as u16, &key(n), &value(n)).await;
    }
    store
}

/// Held segments beyond those that cleaning keeps free on a drive of this size: what was under way.
const MORE_MAX: u64 = 2;

/// Overwrites keys until there is no room while `held` keeps cleaning from using what it wins, waits, and lets go of it.
async fn check<T>(store: &Store, held: T) {
    let mut rng = Rng::from_seed(8);
    let before = store.stats().counters.cleaned_segments;
    loop {
        let mut batch = Batch::new();
        let n = rng.below(KEYS);
        batch.put(SliceId((n % 3) as u16), &key(n), 0, 0, &value(n));
        match store.write(&batch) {
            Ok(_) => sleep(Duration::from_millis(1)).await,
            Err(WriteError::Busy) => break,
            Err(error) => panic!("{error}"),
        }
    }
    sleep(Duration::from_secs(60)).await;
    let (space, heap) = (store.space(), store.heap());
    let cleaned = store.stats().counters.cleaned_segments - before;
    assert!(heap.released().held > 0, "nothing is held: {space}");
    assert!(u64::from(heap.released().held) <= 4 + MORE_MAX, "too much was won for nobody: {space}");
    assert!(cleaned <= 4 + MORE_MAX, "{cleaned} segments were cleaned while all was held");
    assert!(space.reserved > 0, "cleaning has used up the reserve for nothing: {space}");
    assert!(!heap.is_futile(), "it is not full: {space}");
    drop(held);
    sleep(Duration::from_millis(200)).await;
    let free = heap.free_segments();
    assert!(free > 0 && heap.released().held == 0, "{free} segments are free: {}", store.space());
}

#[test]
fn cleaning_rests_while_a_snapshot_holds_what_it_wins_and_goes_on_behind_it() {
    in_virtual_time(async {
        let store = written_over().await;
        check(&store, store.snapshot()).await;
        store.close().await.expect("close");
    });
}

#[test]
fn cleaning_rests_while_a_large_value_holds_what_it_wins_and_goes_on_behind_it() {
    in_virtual_time(async {
        let store = written_over().await;
        put_large(&store, 0, b"large", 0, &vec![7; 300_000]).await;
        let held = store.get(SliceId(0), b"large").await.expect("get").expect("there");
        check(&store, held.large.expect("large")).await;
        store.close().await.expect("close");
    });
}
