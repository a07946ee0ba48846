//! A scan whose caller stops waiting and asks again later goes on where it was: nothing is left out, and nobody waits for ever.

use std::ops::Bound;
use std::time::Duration;

use crate::common::*;
use bytes::Bytes;
use pumice_base::rng::Rng;
use pumice_flash::{Device, DeviceSpec};
use pumice_kv::{Direction, SliceSet, Store, Want};
use pumice_reactor::sim::{HostOptions, World};
use pumice_reactor::timeout;

const KEYS: u32 = 4_000;
const VALUE_BYTES: usize = 700;

/// So long that few fit in a block, and blocks have to be read all the time.
fn key_of(n: u32) -> Vec<u8> {
    let mut key = format!("key:{n:08}").into_bytes();
    key.resize(600, b'.');
    key
}

/// A store that was just opened, with values that do not lie beside their keys.
async fn filled() -> Store {
    let spec: DeviceSpec = "/drive".parse().expect("spec");
    let device = Device::create(&spec, 256 << 20).await.expect("file");
    let store = formatted(&device).await;
    let mut order: Vec<u32> = (0..KEYS).collect();
    Rng::from_seed(5).shuffle(&mut order);
    for n in order {
        put(&store, (n % 3) as u16, &key_of(n), &[n as u8; VALUE_BYTES]).await;
    }
    store.close().await.expect("close");
    drop(store);
    open(&device).await
}

/// About what all keys and values are.
fn file_bytes() -> u64 {
    u64::from(KEYS) * (2 * 600 + VALUE_BYTES as u64)
}

fn check(seed: u64, direction: Direction, skips: bool) {
    let world = World::new(seed);
    let host = world.add_host(HostOptions { quirks: false, ..HostOptions::default() });
    let test = async move {
        let store = filled().await;
        let before = store.stats();
        let mut rng = Rng::from_seed(seed);
        let snapshot = store.snapshot();
        let first = Bound::Included(Bytes::from(key_of(0)));
        let mut scan = store.scan(&snapshot, SliceSet::All, first, Bound::Unbounded, direction, Want::Values);
        let mut given_up = 0;
        let mut wanted: Vec<u32> = (0..KEYS).collect();
        if direction == Direction::Backward {
            wanted.reverse();
        }
        let mut wanted = wanted.into_iter();
        loop {
            if skips && rng.below(100) == 0 {
                // Whatever was read ahead is gone over, too.
                let skipped = scan.skip(rng.below(1500)).await.expect("skip");
                assert!((0..skipped).all(|_| wanted.next().is_some()));
            }
            let most_ns = 1 << rng.below(22);
            let patience = Duration::from_nanos(rng.below(most_ns));
            let next = match timeout(patience, scan.next()).await {
                Ok(next) => next,
                Err(_) => {
                    given_up += 1;
                    timeout(Duration::from_secs(10), scan.next()).await.expect("the next key comes")
                }
            };
            let Some((key, entry)) = next.expect("scan") else { break };
            let n = wanted.next().expect("no more than there are");
            assert_eq!(key, key_of(n));
            assert_eq!(entry.value[..], [n as u8; VALUE_BYTES]);
        }
        assert_eq!(wanted.next(), None, "all of them came");
        assert!(given_up > 4, "{given_up} were given up");
        let read = store.stats().heap.read_bytes - before.heap.read_bytes;
        assert!(read < 3 * file_bytes(), "{read} B were read");
    };
    world.block_on(host, test).unwrap_or_else(|halt| panic!("seed {seed}: {halt}"));
}

#[test]
fn a_scan_that_is_given_up_and_asked_again_leaves_nothing_out() {
    for seed in 1..3 {
        for direction in [Direction::Forward, Direction::Backward] {
            check(seed, direction, false);
            check(seed, direction, true);
        }
    }
}

/// What was planned when the caller gave up is read when it asks again, also when that is more than half of what may be ahead.
#[test]
fn what_was_planned_and_given_up_is_read_when_it_is_asked_for() {
    for patience_us in (0..3_000).step_by(50) {
        let world = World::new(1);
        let host = world.add_host(HostOptions { quirks: false, ..HostOptions::default() });
        let test = async move {
            let store = filled().await;
            let snapshot = store.snapshot();
            let (lower, upper) = (Bound::Unbounded, Bound::Unbounded);
            let mut scan =
                store.scan(&snapshot, SliceSet::All, lower, upper, Direction::Forward, Want::Values);
            for _ in 0..300 {
                scan.next().await.expect("scan").expect("a key");
            }
            // More than is ahead.
            let skipped = scan.skip(1_000).await.expect("skip");
            let _ = timeout(Duration::from_micros(patience_us), scan.next()).await;
            let next = timeout(Duration::from_secs(10), scan.next()).await;
            let (key, _) = next.expect("the next key comes").expect("scan").expect("a key");
            let n = 300 + skipped as u32;
            assert!(key == key_of(n) || key == key_of(n + 1), "{patience_us} µs");
        };
        world.block_on(host, test).unwrap_or_else(|halt| panic!("{halt}"));
    }
}
