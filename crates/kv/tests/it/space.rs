//! Small drives written many times over: cleaning, full drives, what is reclaimed.

use std::time::Duration;

use crate::common::{self, *};
use pumice_base::rng::Rng;
use pumice_flash::{Device, DeviceSpec};
use pumice_kv::{Batch, SliceId, Store, StoreFormat, StoreOptions, WriteError, fitting_segment_bytes};
use pumice_reactor::sim::{HostOptions, World};
use pumice_reactor::{sleep, timeout};

async fn world(spec: &str) -> (Device, Store) {
    let device = device(spec).await;
    let store = formatted(&device).await;
    (device, store)
}

fn numbered(n: u64) -> Vec<u8> {
    format!("key:{n:08}").into_bytes()
}

fn filled(n: u64, len: usize) -> Vec<u8> {
    let mut value = vec![0; len];
    Rng::from_seed(n).fill(&mut value);
    value
}

/// Writes until the drive is full; answers how many keys it took.
async fn fill(store: &Store, len: usize) -> u64 {
    let mut batch = Batch::new();
    let mut n = 0;
    let mut refused = 0;
    loop {
        batch.clear();
        batch.put(SliceId((n % 3) as u16), &numbered(n), 0, 0, &filled(n, len));
        match store.write_ready(&batch).await {
            Ok(_) => (n, refused) = (n + 1, 0),
            Err(WriteError::Full(_)) if refused < 20 => {
                refused += 1;
                sleep(Duration::from_millis(20)).await;
            }
            Err(WriteError::Full(space)) => {
                assert_eq!(space.accounted(), space.raw, "the refusal explains itself");
                return n;
            }
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn segments_suit_the_drive() {
    const MIB: u64 = 1 << 20;
    const TIB: u64 = 1 << 20;
    let small = [(1, 2), (128, 2), (736, 2), (1023, 2), (1024, 4), (2047, 4), (2048, 8), (TIB / 4, 8)];
    let large = [(TIB / 4 + 1, 16), (TIB / 2, 16), (953_869, 32), (TIB, 32), (2 * TIB, 64), (16 * TIB, 64)];
    for (raw, expected) in small.into_iter().chain(large) {
        assert_eq!(u64::from(fitting_segment_bytes(raw * MIB)), expected * MIB, "{raw} MiB");
    }
    pumice_reactor::block_on(async {
        let dir = tempfile::tempdir().expect("a directory");
        let spec = DeviceSpec::Path(dir.path().join("drive"));
        let device = Device::create(&spec, 600 * MIB).await.expect("a file");
        let shape = StoreFormat { segment_bytes: None, ..format() };
        Store::format(&device, &shape).await.expect("format");
        let store = open(&device).await;
        assert_eq!(u64::from(store.heap().segment_bytes()), 2 * MIB);
        store.close().await.expect("close");
    });
}

#[test]
fn a_drive_three_quarters_full_is_overwritten_many_times_and_nothing_is_lost() {
    pumice_reactor::block_on(async {
        let (device, store) = world("emu:small").await;
        let (keys, len) = (20_000u64, 8000usize);
        let mut versions = vec![0u64; keys as usize];
        let mut rng = Rng::from_seed(5);
        for n in 0..keys {
            put(&store, (n % 3) as u16, &numbered(n), &filled(n, len)).await;
        }
        for step in 0..3 * keys {
            let n = rng.below(keys);
            versions[n as usize] = step + 1;
            put(&store, (n % 3) as u16, &numbered(n), &filled(n + (step + 1) * keys, len)).await;
        }
        let stats = store.stats();
        println!(
            "write amplification {:.2}, cleaned {}, moved {} MiB",
            stats.write_amplification(),
            stats.counters.cleaned_segments,
            stats.counters.moved_bytes >> 20
        );
        assert!(stats.counters.cleaned_segments > 100, "cleaning has worked");
        let check = async |store: &Store| {
            for n in 0..keys {
                let value = get(store, (n % 3) as u16, &numbered(n)).await.expect("there").2;
                assert!(value == filled(n + versions[n as usize] * keys, len), "key {n}");
            }
        };
        check(&store).await;
        store.close().await.expect("close");
        let opened = open_with(&device, options()).await;
        assert!(opened.clean && opened.replayed == 0);
        check(&opened.store).await;
        let report = opened.store.check(&no_progress).await.expect("check");
        assert!(report.is_clean(), "{:?}", report.problems.first());
        assert_eq!(report.keys, keys);
    });
}

/// Values that lie in key tables: what is dead of them comes out in merges only, which need room themselves.
#[test]
fn a_drive_of_small_values_two_thirds_full_is_overwritten_twice() {
    // In virtual time: how much cleaning does depends on when it last had something to do, and a machine that stands still for a
    // second makes it move whole tables.
    let world = World::new(1);
    let host = world.add_host(HostOptions { cores: 1, ..HostOptions::default() });
    let done = world.block_on(host, async {
        let device = device("emu:small,blocks=24,pages=128").await;
        Store::format(&device, &format()).await.expect("format");
        let options = StoreOptions { memtable_bytes: Some(512 << 10), ..StoreOptions::default() };
        let store = open_with(&device, options).await.store;
        // Of 35 B in a table each.
        let (keys, len) = (970_000u64, 24usize);
        let mut rng = Rng::from_seed(6);
        let mut versions = vec![0u8; keys as usize];
        let value = |n: u64, version: u8| filled(n << 8 | u64::from(version), len);
        for n in 0..keys {
            put(&store, (n % 3) as u16, &numbered(n), &value(n, 0)).await;
        }
        store.checkpoint().await.expect("checkpoint");
        let filled = store.stats();
        assert!(
            filled.table_bytes * 3 > filled.space.raw * 2,
            "{} of {}",
            filled.table_bytes,
            filled.space.raw
        );
        println!("filled: {:?}", filled.counters);
        // Keys that come in order are written to the log and to one table; what cleaning asks for early ends in small ones, which are merged.
        assert!(filled.counters.merge_bytes < filled.counters.flush_bytes, "{:?}", filled.counters);
        for _ in 0..2 * keys {
            let n = rng.below(keys);
            versions[n as usize] = versions[n as usize].wrapping_add(1);
            put(&store, (n % 3) as u16, &numbered(n), &value(n, versions[n as usize])).await;
        }
        let stats = store.stats();
        println!("{} B written a B, {:?}", stats.write_amplification(), stats.counters);
        assert!(
            stats.write_amplification() < 16.0,
            "{:.1} bytes written a byte",
            stats.write_amplification()
        );
        for n in (0..keys).step_by(31) {
            let held = get(&store, (n % 3) as u16, &numbered(n)).await.expect("there").2;
            assert!(held == value(n, versions[n as usize]), "key {n}");
        }
        store.close().await.expect("close");
        let opened = open_with(&device, common::options()).await;
        let report = opened.store.check(&no_progress).await.expect("check");
        assert!(report.is_clean(), "{:?}", report.problems.first());
        assert_eq!(report.keys, keys);
    });
    done.expect("the world ran");
}

/// Sixteen slices write many tables at a time for the few segments of the reserve. In virtual time, because what waits too long
/// for a segment is given up.
#[test]
fn merges_flushes_and_cleaning_do_not_wait_for_one_another() {
    let world = World::new(8);
    let host = world.add_host(HostOptions { quirks: false, ..HostOptions::default() });
    let test = async {
        let spec: DeviceSpec = "/drive".parse().expect("spec");
        let device = Device::create(&spec, 48 << 20).await.expect("file");
        let shape = StoreFormat { slices: 16, segment_bytes: Some(512 << 10), ..format() };
        Store::format(&device, &shape).await.expect("format");
        let options = StoreOptions { memtable_bytes: Some(1 << 20), ..StoreOptions::default() };
        let store = open_with(&device, options).await.store;
        let (keys, len) = (920_000u64, 24usize);
        let mut rng = Rng::from_seed(8);
        for n in 0..keys {
            put(&store, (n % 16) as u16, &numbered(n), &filled(n, len)).await;
        }
        for step in 0..keys / 2 {
            let n = rng.below(keys);
            put(&store, (n % 16) as u16, &numbered(n), &filled(step, len)).await;
        }
        let given_up = store.stats().counters.given_up_tables;
        assert!(given_up <= 2, "{given_up} key tables were given up for want of a segment");
    };
    world.block_on(host, test).unwrap_or_else(|halt| panic!("{halt}"));
}

#[test]
fn a_full_drive_still_reads_and_deletes_and_after_deleting_half_half_fits_again() {
    pumice_reactor::block_on(async {
        let (device, store) = world("emu:small").await;
        let len = 4000;
        let keys = fill(&store, len).await;
        assert!(keys * len as u64 > 128 << 20, "only {keys} keys fit in 256 MiB");
        for n in (0..keys).step_by(97) {
            assert!(get(&store, (n % 3) as u16, &numbered(n)).await.expect("there").2 == filled(n, len));
        }
        for n in (0..keys).step_by(2) {
            delete(&store, (n % 3) as u16, &numbered(n)).await;
        }
        let again = async {
            for n in (0..keys).step_by(2).take(keys as usize * 45 / 100) {
                let mut batch = Batch::new();
                batch.put(SliceId((n % 3) as u16), &numbered(n), 0, 0, &filled(n + keys, len));
                loop {
                    match store.write_ready(&batch).await {
                        Ok(_) => break,
                        Err(WriteError::Full(_)) => sleep(Duration::from_millis(20)).await,
                        Err(error) => panic!("{error}"),
                    }
                }
            }
        };
        timeout(Duration::from_secs(180), again).await.expect("what was deleted makes room");
        for n in (1..keys).step_by(98) {
            assert!(get(&store, (n % 3) as u16, &numbered(n)).await.expect("there").2 == filled(n, len));
        }
        store.close().await.expect("a full drive closes");
        let store = open(&device).await;
        assert!(get(&store, 1, &numbered(1)).await.is_some());
    });
}

#[test]
fn the_space_of_retired_prefixes_and_of_large_values_comes_back() {
    pumice_reactor::block_on(async {
        let (_device, store) = world("emu:small").await;
        for round in 0..12u64 {
            let mut batch = Batch::new();
            for n in 0..6000u64 {
                batch.clear();
                let mut key = vec![7, round as u8];
                key.extend_from_slice(&numbered(n));
                batch.put(SliceId(0), &key, 0, 0, &filled(n, 4000));
                write(&store, &batch).await;
            }
            for n in 0..20u64 {
                put_large(&store, 1, &numbered(n), 0, &filled(n + round, 1 << 20)).await;
            }
            batch.clear();
            batch.retire(SliceId(0), &[7, round as u8]);
            write(&store, &batch).await;
        }
        for n in 0..20u64 {
            assert!(get(&store, 1, &numbered(n)).await.expect("there").2 == filled(n + 11, 1 << 20));
        }
    });
}

#[test]
fn expired_keys_are_found_once_and_random_keys_are_there() {
    pumice_reactor::block_on(async {
        let (device, mut store) = world("emu:small").await;
        let mut batch = Batch::new();
        for n in 0..3000u64 {
            batch.clear();
            let expire = if n % 3 == 0 { 1000 + n } else { 0 };
            batch.put(SliceId((n % 3) as u16), &numbered(n), 0, expire, &filled(n, 50));
            write(&store, &batch).await;
            if n == 1500 {
                store.checkpoint().await.expect("checkpoint");
            }
        }
        assert!(store.expired(999, 100).await.expect("expired").is_empty());
        for round in 0..2 {
            let mut found = 0;
            loop {
                let expired = store.expired(2000, 64).await.expect("expired");
                if expired.is_empty() {
                    break;
                }
                for (slice, key) in expired {
                    delete(&store, slice.0, &key).await;
                    found += 1;
                }
            }
            assert_eq!(found, if round == 0 { 334 } else { 0 });
            store.close().await.expect("close");
            store = open(&device).await;
        }
        let mut rng = Rng::from_seed(3);
        for _ in 0..200 {
            let key = store.random_key(SliceId(1), b"key:", &mut rng).await.expect("random").expect("some");
            assert!(get(&store, 1, &key).await.is_some());
        }
        assert_eq!(store.random_key(SliceId(1), b"nothing", &mut rng).await.expect("random"), None);
    });
}
