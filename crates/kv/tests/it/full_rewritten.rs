//! On a full drive what makes nothing larger is taken still, again and again, and deletes after it.

use std::time::Duration;

use crate::common::*;
use pumice_base::rng::Rng;
use pumice_flash::{Device, DeviceSpec};
use pumice_kv::{Batch, SliceId, Store, StoreFormat, WriteError};
use pumice_reactor::sim::{HostOptions, World};
use pumice_reactor::{sleep, timeout};

const DRIVE_BYTES: u64 = 64 << 20;
/// 256 of them, as a drive of half a GiB has.
const SEGMENT_BYTES: u32 = 256 << 10;
/// Looking at 96 victims, and the pauses after them.
const PATIENCE: Duration = Duration::from_secs(10);
const ROUNDS: u64 = 3;

fn slice(n: u64) -> SliceId {
    SliceId((n % 3) as u16)
}

fn key(n: u64) -> Vec<u8> {
    format!("key:{n:08}").into_bytes()
}

fn value(n: u64, len: usize) -> Vec<u8> {
    let mut value = vec![0; len];
    Rng::from_seed(n).fill(&mut value);
    value
}

async fn put_new(store: &Store, n: u64, len: usize) -> Result<u64, WriteError> {
    let mut batch = Batch::new();
    batch.put(slice(n), &key(n), 0, u64::MAX / 2, &value(n, len));
    store.write_ready(&batch).await
}

/// Writes new keys until the drive is full for good; answers how many it took.
async fn fill(store: &Store, len: usize) -> u64 {
    let (mut n, mut refused) = (0, 0);
    while refused < 20 {
        match put_new(store, n, len).await {
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

/// Answers whether it was taken.
async fn touch(store: &Store, n: u64, expire_ms: u64, rewrites: bool) -> bool {
    let stored = store.get_stored(slice(n), &key(n)).await.expect("read").expect("there");
    let mut batch = Batch::new();
    batch.put_again(slice(n), &key(n), expire_ms, &stored);
    batch.set_rewrites(rewrites);
    let written = timeout(PATIENCE, store.write_ready(&batch)).await;
    match written.unwrap_or_else(|_| panic!("{n} still waits: {}", store.space())) {
        Ok(_) => true,
        Err(WriteError::Full(_)) => false,
        Err(error) => panic!("{error}"),
    }
}

/// `at_least`: how many are taken of each round.
async fn fill_and_touch(device: Device, len: usize, at_least: impl Fn(u64, u64) -> u64) {
    let shape = StoreFormat { segment_bytes: Some(SEGMENT_BYTES), ..format() };
    Store::format(&device, &shape).await.expect("format");
    let store = open(&device).await;
    let keys = fill(&store, len).await;
    let mut expiries = vec![u64::MAX / 2; keys as usize];
    for round in 1..=ROUNDS {
        let mut taken = 0;
        for n in 0..keys {
            let expire_ms = u64::MAX / 2 + round;
            if touch(&store, n, expire_ms, true).await {
                expiries[n as usize] = expire_ms;
                taken += 1;
            }
        }
        assert!(
            taken >= at_least(round, keys),
            "{len}: {taken} of {keys} in round {round}: {}",
            store.space()
        );
    }
    store.close().await.expect("close");
    let store = open(&device).await;
    for n in (0..keys).step_by(7) {
        let entry = store.get(slice(n), &key(n)).await.expect("get").expect("there");
        assert_eq!((entry.expire_ms, &entry.value[..]), (expiries[n as usize], &value(n, len)[..]));
    }
    // Deletes have a part of their own.
    for n in 0..keys / 2 {
        timeout(PATIENCE, delete(&store, slice(n).0, &key(n))).await.expect("taken");
    }
    store.checkpoint().await.expect("checkpoint");
    for n in 0..keys / 3 {
        put_new(&store, n, len).await.expect("half of it was deleted");
    }
    store.close().await.expect("close");
}

fn on_a_drive(seed: u64, test: impl AsyncFnOnce(Device) + 'static) {
    let world = World::new(seed);
    let host = world.add_host(HostOptions { quirks: false, ..HostOptions::default() });
    let test = async move {
        let spec: DeviceSpec = "/drive".parse().expect("spec");
        test(Device::create(&spec, DRIVE_BYTES).await.expect("file")).await;
    };
    world.block_on(host, test).unwrap_or_else(|halt| panic!("{halt}"));
}

#[test]
fn a_full_drive_takes_new_expiries_of_values_that_stay_where_they_are() {
    for len in [700, 4000, 30_000] {
        on_a_drive(len as u64, async move |device| fill_and_touch(device, len, |_, keys| keys).await);
    }
}

#[test]
fn a_full_drive_of_short_values_takes_new_expiries_as_far_as_they_fit() {
    on_a_drive(60, async |device| {
        fill_and_touch(device, 60, |round, keys| if round == 1 { keys / 100 } else { 0 }).await
    });
}

/// Without saying that it rewrites, a batch is a user's like any other.
#[test]
fn a_full_drive_refuses_what_does_not_say_that_it_makes_nothing_larger() {
    on_a_drive(3, async |device| {
        let shape = StoreFormat { segment_bytes: Some(SEGMENT_BYTES), ..format() };
        Store::format(&device, &shape).await.expect("format");
        let store = open(&device).await;
        let keys = fill(&store, 4000).await;
        let mut taken = 0;
        for n in 0..keys {
            taken += u64::from(touch(&store, n, u64::MAX / 2 + 1, false).await);
        }
        assert!(taken < keys / 4, "{taken} of {keys}");
        store.close().await.expect("close");
    });
}
