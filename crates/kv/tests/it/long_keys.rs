//! Keys longer than what bounds a table: tables are told apart by short keys between them.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::time::Duration;

use crate::common::*;
use bytes::Bytes;
use pumice_base::rng::Rng;
use pumice_flash::{Device, DeviceSpec};
use pumice_kv::bounds::{Before, Behind, SHORT_KEY_BYTES, lower, upper};
use pumice_kv::{Batch, Direction, KEY_BYTES_MAX, SliceId, Store, StoreFormat, StoreOptions, WriteError};
use pumice_reactor::sim::{HostOptions, World};
use pumice_reactor::sleep;

/// Key number `n`: random bytes, a long common beginning, nested in another, bytes that have no successor, or short.
fn key(n: u64) -> Vec<u8> {
    let mut rng = Rng::from_seed(n);
    match n % 6 {
        0 => (0..65 + rng.below(900)).map(|_| rng.below(256) as u8).collect(),
        1 => [vec![b'p'; 500], n.to_be_bytes().to_vec()].concat(),
        2 => [key(n - 2), vec![0; (n % 3) as usize], n.to_be_bytes().to_vec()].concat(),
        3 => [vec![u8::MAX; 60 + (n % 30) as usize], n.to_le_bytes().to_vec()].concat(),
        4 => vec![b'x'; (n % 1200) as usize],
        _ => format!("short:{n:04}").into_bytes(),
    }
}

#[test]
fn a_store_of_long_keys_holds_what_its_model_holds() {
    for seed in 0..6 {
        println!("seed {seed}");
        pumice_reactor::block_on(with_a_model(seed));
    }
}

async fn with_a_model(seed: u64) {
    const KEYS: u64 = 1500;
    let device = device("emu:small").await;
    let mut store = formatted(&device).await;
    let mut rng = Rng::from_seed(seed);
    let (mut model, mut merges) = (BTreeMap::new(), 0);
    for step in 0..6000 {
        match rng.below(1000) {
            0..700 => {
                let (slice, key) = (rng.below(3) as u16, key(rng.below(KEYS)));
                let value = vec![step as u8; 1 + rng.below(200) as usize];
                put(&store, slice, &key, &value).await;
                model.insert((slice, key), (0, 0, value));
            }
            700..990 => {
                let (slice, key) = (rng.below(3) as u16, key(rng.below(KEYS)));
                delete(&store, slice, &key).await;
                model.remove(&(slice, key));
            }
            990..996 => store.checkpoint().await.expect("checkpoint"),
            996..998 => {
                merges += store.stats().counters.merges;
                store.close().await.expect("close");
                store = open(&device).await;
            }
            998 => {
                store.wait_durable(store.last_seq()).await.expect("durable");
                store.abandon().await;
                store = open(&device).await;
            }
            _ => {
                let (a, b) = (key(rng.below(KEYS)), key(rng.below(KEYS)));
                let (lower, upper) = (Bound::Included(a), Bound::Excluded(b));
                let direction = if rng.chance(0.5) { Direction::Forward } else { Direction::Backward };
                let (snapshot, slice) = (store.snapshot(), rng.below(3) as u16);
                compare_scan(&store, &snapshot, &model, slice, lower, upper, direction).await;
            }
        }
    }
    store.checkpoint().await.expect("checkpoint");
    for direction in [Direction::Forward, Direction::Backward] {
        for slice in 0..3 {
            let (all, snapshot) = (Bound::Unbounded, store.snapshot());
            compare_scan(&store, &snapshot, &model, slice, all.clone(), all, direction).await;
        }
    }
    for n in 0..KEYS {
        let key = key(n);
        // Itself, and what lies right behind it and before.
        let behind = [&key[..], &[0]].concat();
        let before = &key[..key.len().saturating_sub(1)];
        for slice in 0..3u16 {
            for key in [&key[..], &behind, before] {
                let wanted = model.get(&(slice, key.to_vec()));
                assert_eq!(get(&store, slice, key).await.as_ref(), wanted, "key {n}");
            }
        }
    }
    merges += store.stats().counters.merges;
    assert!(merges > 5, "{merges} merges");
    let report = store.check(&no_progress).await.expect("check");
    assert!(report.is_clean(), "{report:?}");
}

/// As they are, the bounds of their tables would not fit into the metadata log: the drive took no writes any more.
#[test]
fn a_drive_takes_as_many_of_the_longest_keys_as_fit() {
    pumice_reactor::block_on(async {
        let device = device("emu:small,blocks=200").await;
        let format = StoreFormat { segment_bytes: Some(1 << 20), ..format() };
        Store::format(&device, &format).await.expect("format");
        let options = StoreOptions { memtable_bytes: Some(1 << 20), ..StoreOptions::default() };
        let store = open_with(&device, options.clone()).await.store;
        let space = store.space();
        let longest = |n: u64| {
            let mut key = vec![0; KEY_BYTES_MAX];
            Rng::from_seed(n).fill(&mut key);
            key
        };
        // Each is there twice: in the log, and in a key table.
        let keys = space.raw * 3 / 10 / KEY_BYTES_MAX as u64;
        for n in 0..keys {
            put(&store, (n % 3) as u16, &longest(n), b"value").await;
        }
        store.close().await.expect("close");
        let store = open_with(&device, options).await.store;
        for n in 0..keys {
            assert_eq!(get(&store, (n % 3) as u16, &longest(n)).await.expect("there").2, b"value");
        }
        println!("{keys} keys in {} tables, {}", store.stats().tables, store.space());
        assert!(store.stats().tables > 20);
    });
}

/// Keys that begin alike for 64 KiB cannot be told apart by short ones. They are refused before they fill the metadata log, which
/// would be the end of all writes; others are not, and deletes make room again.
#[test]
fn keys_that_begin_alike_are_refused_before_they_fill_the_metadata_log() {
    let world = World::new(1);
    let host = world.add_host(HostOptions { quirks: false, ..HostOptions::default() });
    let test = async {
        let spec: DeviceSpec = "/drive".parse().expect("spec");
        let device = Device::create(&spec, 2 << 30).await.expect("file");
        Store::format(&device, &StoreFormat { segment_bytes: None, ..format() }).await.expect("format");
        let options = StoreOptions { memtable_bytes: Some(8 << 20), ..StoreOptions::default() };
        let mut store = open_with(&device, options.clone()).await.store;
        let alike = |n: u32| [&vec![b'p'; KEY_BYTES_MAX - 4][..], &n.to_be_bytes()].concat();
        let mut batch = Batch::new();
        for round in 0..3 {
            let (mut n, mut refusals) = (0, 0);
            let refused = loop {
                batch.clear();
                batch.put(SliceId(0), &alike(n), 0, 0, b"value");
                match store.write_ready(&batch).await {
                    Ok(_) => n += 1,
                    // What was deleted in the round before must be merged first.
                    Err(_) if n < 100 && refusals < 500 => {
                        refusals += 1;
                        sleep(Duration::from_millis(10)).await;
                    }
                    Err(error) => break error,
                }
                assert!(n < 20_000, "never refused");
            };
            assert!(
                matches!(&refused, WriteError::TooLarge(why) if why.contains("begin alike")),
                "{refused}"
            );
            assert!(n >= 100, "round {round}: {refused} after {n} keys");
            println!("round {round}: {n} keys, {} tables: {refused}", store.stats().tables);
            put(&store, 0, b"short", b"value").await;
            put(&store, 1, &[b'o'; 1000], b"value").await;
            store.checkpoint().await.expect("checkpoint");
            store.close().await.expect("close");
            store = open_with(&device, options.clone()).await.store;
            assert_eq!(get(&store, 0, &alike(n - 1)).await.expect("there").2, b"value");
            for n in 0..n {
                delete(&store, 0, &alike(n)).await;
            }
            store.checkpoint().await.expect("checkpoint");
        }
    };
    world.block_on(host, test).unwrap_or_else(|halt| panic!("{halt}"));
}

#[test]
fn bounds_lie_between_their_table_and_its_neighbours() {
    let mut keys: Vec<Vec<u8>> = (0..3000).map(key).filter(|key| !key.is_empty()).collect();
    keys.sort();
    keys.dedup();
    let mut saved = 0;
    for pair in keys.windows(2) {
        let [last, next] = pair else { unreachable!() };
        let bound = upper(last, Behind::From(next));
        assert!(bound >= last[..] && bound < next[..], "{} and {}", last.escape_ascii(), next.escape_ascii());
        let from = lower(next, &Before::UpTo(bound.clone()));
        assert!(from > bound && from <= next[..]);
        assert!(bound.len() <= last.len().max(next.len()) && from.len() <= next.len());
        saved += last.len() - bound.len().min(last.len());
        let open = upper(last, Behind::Nothing);
        assert!(open >= last[..]);
        assert!(open.len() <= SHORT_KEY_BYTES || last[..SHORT_KEY_BYTES] == [u8::MAX; SHORT_KEY_BYTES]);
        assert!(lower(next, &Before::Nothing) <= next[..]);
        // Never beyond what lies behind, though that is no key of the table.
        for most in [last, next] {
            let bound = upper(last, Behind::Above(most));
            assert!(bound >= last[..] && (bound <= most[..] || bound == last[..]));
        }
        let floor = Bytes::copy_from_slice(&next[..next.len() / 2]);
        assert!(lower(next, &Before::From(floor.clone())) >= floor);
    }
    assert!(saved > 100_000, "{saved} B");
}
