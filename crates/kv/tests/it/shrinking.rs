//! A drive's file stays near the size of what is alive in it, and gives back what it took.

use std::time::Duration;

use crate::common::*;
use pumice_base::rng::Rng;
use pumice_flash::{Access, Device, DeviceSpec};
use pumice_kv::{SliceId, Store, StoreFormat, StoreOptions};
use pumice_reactor::sim::{HostOptions, World};
use pumice_reactor::{now, sleep};

const MIB: u64 = 1 << 20;
const FILE: u64 = 512 * MIB;
const SLACK: u64 = 16 * MIB;
const KEYS: u64 = 500;
const LEN: usize = 8000;

fn options_here() -> StoreOptions {
    StoreOptions { slack_bytes: SLACK, ..options() }
}

async fn device_here() -> Device {
    let spec: DeviceSpec = "/drive".parse().expect("spec");
    Device::open(&spec, Access::ReadWrite).await.expect("file")
}

async fn formatted_here(format: &StoreFormat) -> Store {
    let spec: DeviceSpec = "/drive".parse().expect("spec");
    let device = Device::create(&spec, FILE).await.expect("file");
    Store::format(&device, format).await.expect("format");
    open_with(&device, options_here()).await.store
}

fn in_virtual_time(test: impl Future<Output = ()> + 'static) {
    let world = World::new(3);
    let host = world.add_host(HostOptions { cores: 1, quirks: false, ..HostOptions::default() });
    world.block_on(host, test).expect("the world ran");
}

/// Bytes of the file that were written and not given back.
fn file_bytes(store: &Store) -> u64 {
    let fresh = store.heap().growth().map_or(0, |growth| u64::from(growth.fresh));
    FILE - fresh * u64::from(store.heap().segment_bytes())
}

fn value_of(n: u64, version: u64) -> Vec<u8> {
    let mut value = vec![0; LEN];
    Rng::from_seed(version * KEYS + n).fill(&mut value);
    value
}

/// Overwrites keys at random for so many bytes, with a rest between any two writes. Answers each key's version.
async fn overwrite(store: &Store, bytes: u64, rest: Duration) -> Vec<u64> {
    let mut versions = vec![0; KEYS as usize];
    let mut rng = Rng::from_seed(9);
    for i in 0..bytes / LEN as u64 {
        let n = if i < KEYS { i } else { rng.below(KEYS) };
        versions[n as usize] += 1;
        put(store, (n % 3) as u16, &n.to_be_bytes(), &value_of(n, versions[n as usize])).await;
        if !rest.is_zero() {
            sleep(rest).await;
        }
    }
    versions
}

async fn check(store: &Store, versions: &[u64]) {
    for (n, &version) in versions.iter().enumerate() {
        let held = get(store, (n % 3) as u16, &(n as u64).to_be_bytes()).await.expect("there").2;
        assert!(held == value_of(n as u64, version), "key {n}");
    }
}

#[test]
fn a_file_stays_small_while_little_of_it_is_alive_and_gives_back_what_it_took() {
    in_virtual_time(async {
        let store = formatted_here(&format()).await;
        // Twice the file, at 8 MB a second.
        let versions = overwrite(&store, 2 * FILE, Duration::from_millis(1)).await;
        let busy = file_bytes(&store);
        let may_be = 2 * (KEYS * LEN as u64) + SLACK;
        assert!(busy < may_be + 48 * MIB, "{} MiB while users write", busy / MIB);
        // As fast as it goes: then it may grow, and shrinks later.
        let started = now();
        overwrite(&store, 2 * FILE, Duration::ZERO).await;
        let fast = file_bytes(&store);
        println!("{} MiB, {} MiB after {:?}", busy / MIB, fast / MIB, started.elapsed());
        sleep(Duration::from_secs(120)).await;
        let quiet = file_bytes(&store);
        assert!(quiet < may_be + 24 * MIB, "{} MiB after a while", quiet / MIB);
        let given_back = store.stats().counters.given_back_segments;
        sleep(Duration::from_secs(60)).await;
        assert_eq!(store.stats().counters.given_back_segments, given_back, "it has come to rest");
        check(&store, &versions).await;
        store.close().await.expect("close");
        drop(store);
        let device = device_here().await;
        let store = open_with(&device, options_here()).await.store;
        assert!(file_bytes(&store) <= quiet + MIB, "{} MiB when opened again", file_bytes(&store) / MIB);
        check(&store, &versions).await;
        let report = store.check(&no_progress).await.expect("check");
        assert!(report.is_clean(), "{:?}", report.problems.first());
        // All that was given back can be had again.
        for n in 0..FILE / 10 * 8 / 30_000 {
            put(&store, 0, format!("ballast:{n}").as_bytes(), &[7; 30_000]).await;
        }
        assert!(file_bytes(&store) > FILE / 10 * 8);
        check(&store, &versions).await;
        store.close().await.expect("close");
    });
}

/// Large values that die cost next to nothing to be rid of: at 250 MB a second the file stays as small.
#[test]
fn a_file_of_large_values_stays_small_however_fast_they_are_written() {
    in_virtual_time(async {
        let store = formatted_here(&StoreFormat { segment_bytes: Some(1 << 20), ..format() }).await;
        let (len, keys) = (4 * MIB, 8u64);
        let value = |n: u64| vec![n as u8; len as usize];
        for n in 0..2 * FILE / len {
            put_large(&store, 0, &(n % keys).to_be_bytes(), 0, &value(n)).await;
            sleep(Duration::from_millis(14)).await;
        }
        let busy = file_bytes(&store);
        // Beside what may be dead, the free segments that are kept.
        let may_be = 2 * keys * len + SLACK + 64 * MIB;
        assert!(busy < may_be + 32 * MIB, "{} MiB, {} MiB alive", busy / MIB, keys * len / MIB);
        assert_eq!(store.stats().counters.given_back_segments, 0);
        for n in 2 * FILE / len - keys..2 * FILE / len {
            let entry = store.get(SliceId(0), &(n % keys).to_be_bytes()).await.expect("get").expect("there");
            assert!(crate::common::value(&store, &entry).await == value(n), "value {n}");
        }
        store.close().await.expect("close");
    });
}

#[test]
fn a_file_that_was_written_in_advance_keeps_its_space() {
    in_virtual_time(async {
        let progress = pumice_segment::PrewriteProgress(std::sync::Arc::new(|_, _| {}));
        let store = formatted_here(&StoreFormat { prewrite: Some(progress), ..format() }).await;
        overwrite(&store, FILE / 4, Duration::ZERO).await;
        sleep(Duration::from_secs(60)).await;
        let counters = store.stats().counters;
        assert_eq!((counters.given_back_segments, counters.cleaned_segments), (0, 0));
        store.close().await.expect("close");
    });
}
