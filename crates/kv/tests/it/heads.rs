//! Heads of key tables where not all of them fit into memory, and how much of tables is being read at a time.

use std::rc::Rc;

use crate::common::*;
use pumice_flash::{Device, DeviceSpec};
use pumice_kv::{Batch, SliceId, Store, StoreOptions};
use pumice_reactor::sim::{HostOptions, World};
use pumice_reactor::{spawn, yield_now};

const MEMORY: u64 = 24 << 20;
/// What key tables have of it, heads of that, and heads that are being read.
const TABLES: u64 = 8 << 20;
const HEADS: u64 = TABLES / 4 * 3;
const UNDER_WAY: u64 = TABLES / 8;
const SLICES: u64 = 3;
/// Look-ups, which come to every table.
const ASKED: u64 = 3_000;

fn key(n: u64) -> Vec<u8> {
    format!("key:{n:010}").into_bytes()
}

fn options() -> StoreOptions {
    StoreOptions { memory_bytes: MEMORY, ..StoreOptions::default() }
}

/// A drive with so many keys, whose values lie in key tables. Keys are even numbers.
async fn drive_of(keys: u64) -> Device {
    drive_with(keys, 8).await
}

/// The same, with values of so many bytes.
async fn drive_with(keys: u64, value_bytes: usize) -> Device {
    let spec: DeviceSpec = "/drive".parse().expect("spec");
    let device = Device::create(&spec, 1 << 30).await.expect("file");
    drop(formatted(&device).await);
    let store = open_with(&device, options()).await.store;
    let mut batch = Batch::new();
    for n in 0..keys {
        batch.put(slice_of(2 * n), &key(2 * n), 0, 0, &vec![n as u8; value_bytes]);
        if n % 300 == 299 {
            write(&store, &batch).await;
            batch.clear();
        }
        if n % 30_000 == 29_999 {
            store.wait_durable(store.last_seq()).await.expect("durable");
        }
    }
    store.close().await.expect("close");
    device
}

fn slice_of(n: u64) -> SliceId {
    SliceId((n / 2 % SLICES) as u16)
}

/// Of the keys that are looked up: all over the drive, and over its slices.
fn asked(at: u64, keys: u64) -> u64 {
    2 * (at * (keys / ASKED) + at % SLICES)
}

/// Looks up keys of all tables.
async fn get_everywhere(store: &Store, keys: u64) {
    for at in 0..ASKED {
        let n = asked(at, keys);
        let entry = store.get(slice_of(n), &key(n)).await.expect("get").expect("there");
        assert_eq!(entry.value[..], [(n / 2) as u8; 8]);
        assert!(store.get(slice_of(n), &key(n + 1)).await.expect("get").is_none());
    }
}

fn in_a_world<F: Future<Output = ()> + 'static>(test: F) {
    let world = World::new(8);
    let host = world.add_host(HostOptions { quirks: false, ..HostOptions::default() });
    world.block_on(host, test).unwrap_or_else(|halt| panic!("{halt}"));
}

/// Where heads fit, hundreds of look-ups may each wait for a block.
#[test]
fn blocks_being_read_are_bounded() {
    const KEYS: u64 = 900_000;
    const BLOCK: u64 = 4096;
    in_a_world(async {
        let device = drive_of(KEYS).await;
        let store = Rc::new(open_with(&device, options()).await.store);
        get_everywhere(&store, KEYS).await;
        let before = store.stats().counters;
        let readers: Vec<_> = (0..ASKED)
            .map(|at| {
                // Rows of others are in memory; in key order several would be read at once.
                let n = asked(at * 1_009 % ASKED, KEYS) + KEYS / ASKED / SLICES * SLICES;
                let store = store.clone();
                spawn(async move {
                    store.get(slice_of(n), &key(n)).await.expect("get").expect("there");
                })
            })
            .collect();
        yield_now().await;
        yield_now().await;
        let begun = store.stats().counters.block_reads - before.block_reads;
        assert!(begun > 1, "blocks are read side by side");
        assert!(begun * BLOCK <= UNDER_WAY + UNDER_WAY / 8, "{begun} blocks are being read");
        for reader in readers {
            reader.await.expect("reader");
        }
        let blocks = store.stats().counters.block_reads - before.block_reads;
        assert!(blocks * BLOCK > 2 * UNDER_WAY, "{blocks} blocks were read in all");
    });
}

/// Where look-ups come in key order, a block is read together with those behind it, in each of many tables.
#[test]
fn blocks_read_ahead_are_bounded() {
    const KEYS: u64 = 300_000;
    const READERS: u64 = 150;
    const READ_ALONE: u64 = 8192;
    /// Nth look-up of a reader: each goes through keys of one slice, about as many as a table has, ten at a time.
    fn nth(reader: u64, look: u64) -> u64 {
        2 * (reader * (KEYS / READERS) + look * 10 * SLICES)
    }
    async fn look_up(store: &Store, n: u64) {
        store.get(slice_of(n), &key(n)).await.expect("get").expect("there");
    }
    in_a_world(async {
        let device = drive_with(KEYS, 60).await;
        let store = Rc::new(open_with(&device, options()).await.store);
        for n in (0..KEYS).step_by(100) {
            look_up(&store, 2 * n).await;
        }
        for reader in 0..READERS {
            for look in 0..20 {
                look_up(&store, nth(reader, look)).await;
            }
        }
        let before = store.stats();
        let readers: Vec<_> = (0..READERS)
            .map(|reader| {
                let store = store.clone();
                spawn(async move {
                    for look in 20..60 {
                        look_up(&store, nth(reader, look)).await;
                    }
                })
            })
            .collect();
        yield_now().await;
        yield_now().await;
        let begun = store.stats();
        let reads = begun.heap.reads - before.heap.reads;
        let bytes = begun.heap.read_bytes - before.heap.read_bytes;
        println!("{reads} reads of {bytes} B, {} tables", begun.tables);
        assert!(bytes > reads * READ_ALONE, "{reads} reads of {bytes} B: blocks are read together");
        assert!(bytes <= UNDER_WAY + UNDER_WAY / 4, "{bytes} B of blocks are being read");
        for reader in readers {
            reader.await.expect("reader");
        }
        let read = store.stats().heap.read_bytes - before.heap.read_bytes;
        assert!(read > 2 * UNDER_WAY, "{read} B were read in all");
    });
}

/// Most look-ups read one of tens of KiB where heads do not fit, and hundreds may be under way.
#[test]
fn those_being_read_are_bounded() {
    const KEYS: u64 = 1_200_000;
    in_a_world(async {
        let device = drive_of(KEYS).await;
        let store = open_with(&device, options()).await.store;
        get_everywhere(&store, KEYS).await;
        let stats = store.stats();
        let head_bytes = stats.head_bytes / stats.tables;
        assert!(
            stats.head_bytes > UNDER_WAY + UNDER_WAY / 2,
            "{} tables with heads of {head_bytes} B",
            stats.tables
        );
        drop(store);

        let store = Rc::new(open_with(&device, options()).await.store);
        let readers: Vec<_> = (0..ASKED)
            .map(|at| {
                let (store, n) = (store.clone(), asked(at, KEYS));
                spawn(async move {
                    store.get(slice_of(n), &key(n)).await.expect("get").expect("there");
                })
            })
            .collect();
        yield_now().await;
        yield_now().await;
        let begun = store.stats().counters.head_reads;
        assert!(begun > 1, "heads are read side by side");
        // In memory they take a little more than on flash.
        assert!(
            begun * head_bytes <= UNDER_WAY + UNDER_WAY / 4,
            "{begun} heads of {head_bytes} B are being read"
        );
        for reader in readers {
            reader.await.expect("reader");
        }
        assert!(store.stats().counters.head_reads > begun, "others had to wait");
    });
}

#[test]
fn filters_of_last_runs_go_before_heads() {
    const KEYS: u64 = 4_500_000;
    in_a_world(async {
        let device = drive_of(KEYS).await;
        let store = open_with(&device, options()).await.store;
        get_everywhere(&store, KEYS).await;
        let first = store.stats();
        assert!(first.head_bytes <= HEADS, "{} B of heads", first.head_bytes);
        get_everywhere(&store, KEYS).await;
        let second = store.stats();
        assert_eq!(second.counters.head_reads, first.counters.head_reads, "heads were read again");
        let in_vain = second.counters.false_positives - first.counters.false_positives;
        assert!(
            in_vain > ASKED / 50,
            "all filters fit, which shows nothing: {in_vain} blocks were read in vain"
        );
    });
}
