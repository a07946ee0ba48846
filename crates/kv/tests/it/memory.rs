//! Who has the memory: key tables as much as they need up to their share, memtables what they hold, rows the rest.

use crate::common::*;
use pumice_flash::{Device, DeviceSpec};
use pumice_kv::{Batch, SliceId, Store, StoreOptions};
use pumice_reactor::sim::{HostOptions, World};

const MEMORY: u64 = 64 << 20;
const MEMTABLE: u64 = 6 << 20;
const TAIL: u64 = 4 << 20;
const UNDURABLE: u64 = 4 << 20;
const WORKING: u64 = 8 << 20;
/// What tables and rows share.
const SHARED: u64 = MEMORY - 2 * MEMTABLE - TAIL - UNDURABLE - WORKING;
const KEYS: u64 = 5_000;
const VALUE_BYTES: usize = 4_000;

fn key(n: u64) -> Vec<u8> {
    format!("key:{n:08}").into_bytes()
}

async fn made() -> Device {
    let spec: DeviceSpec = "/drive".parse().expect("spec");
    Device::create(&spec, 1 << 30).await.expect("file")
}

fn options(memory_bytes: u64, memtable_bytes: u64) -> StoreOptions {
    StoreOptions { memory_bytes, memtable_bytes: Some(memtable_bytes), ..StoreOptions::default() }
}

/// A store just opened, with nothing in memory, that holds so many rows.
async fn store_of_rows(device: &Device, rows: u64, options: StoreOptions) -> Store {
    drop(formatted(device).await);
    let store = open_with(device, options.clone()).await.store;
    let mut batch = Batch::new();
    for n in 0..rows {
        batch.clear();
        batch.put(SliceId((n % 3) as u16), &key(n), 0, 0, &[n as u8; VALUE_BYTES]);
        write(&store, &batch).await;
    }
    store.close().await.expect("close");
    open_with(device, options).await.store
}

async fn read_all(store: &Store) {
    for n in 0..KEYS {
        let entry = store.get(SliceId((n % 3) as u16), &key(n)).await.expect("get").expect("there");
        assert_eq!(entry.value[..], [n as u8; VALUE_BYTES]);
    }
}

#[test]
fn rows_have_what_few_key_tables_leave_and_give_it_back_when_these_grow() {
    let world = World::new(5);
    let host = world.add_host(HostOptions { quirks: false, ..HostOptions::default() });
    let counters = world.clone();
    let test = async move {
        let store = store_of_rows(&made().await, KEYS, options(MEMORY, MEMTABLE)).await;
        // 20 MB of rows: more than half of what is shared.
        read_all(&store).await;
        let rows = store.stats().row_bytes;
        assert!(rows > SHARED / 2 && rows >= KEYS * VALUE_BYTES as u64, "{rows} B of rows");
        let reads = counters.counters(host).reads;
        read_all(&store).await;
        assert_eq!(counters.counters(host).reads, reads, "all of it is in memory");
        // Small values lie in key tables: these come to more than their share.
        let mut batch = Batch::new();
        for n in 0..500_000u64 {
            batch.clear();
            batch.put(SliceId((n % 3) as u16), format!("small:{n:08}").as_bytes(), 0, 0, &[1; 40]);
            write(&store, &batch).await;
        }
        store.wait_durable(store.last_seq()).await.expect("durable");
        read_all(&store).await;
        let stats = store.stats();
        assert!(stats.table_bytes > SHARED / 2, "{} B of tables", stats.table_bytes);
        assert!(stats.row_bytes <= SHARED / 2 + SHARED / 32, "{} B of rows", stats.row_bytes);
    };
    world.block_on(host, test).unwrap_or_else(|halt| panic!("{halt}"));
}

#[test]
fn rows_have_what_memtables_do_not_hold_and_give_it_back_before_these_are_full() {
    /// Memory that both memtables may take, the part that is never lent, and what rows have in any case, at least.
    const MEMTABLES: u64 = 2 * (20 << 20);
    const KEPT_BACK: u64 = 16 << 20;
    const ALWAYS: u64 = 48 << 20;
    /// More than there is room for.
    const ROWS: u64 = 40_000;

    let world = World::new(6);
    let host = world.add_host(HostOptions { quirks: false, ..HostOptions::default() });
    let test = async move {
        let store = store_of_rows(&made().await, ROWS, options(128 << 20, MEMTABLES / 2)).await;
        let read_all = async || {
            for n in 0..ROWS {
                store.get(SliceId((n % 3) as u16), &key(n)).await.expect("get").expect("there");
            }
            store.stats().row_bytes
        };
        let idle = read_all().await;
        assert!(idle > ALWAYS + (MEMTABLES - KEPT_BACK) / 8 * 7, "{idle} B of rows, and nothing was written");
        let (mut lent_least, mut flushed) = (u64::MAX, 0);
        let mut batch = Batch::new();
        for n in 0..600_000u64 {
            batch.clear();
            batch.put(SliceId((n % 3) as u16), format!("new:{n:08}").as_bytes(), 0, 0, &[1; 100]);
            write(&store, &batch).await;
            if n % 1_000 == 0 {
                // Flushes need a turn.
                store.wait_durable(store.last_seq()).await.expect("durable");
                let stats = store.stats();
                let held = stats.row_bytes + stats.memtable_bytes;
                // Two steps: what was written since rows gave way, and what came after the flush had counted.
                assert!(
                    held < idle + KEPT_BACK + (4 << 20),
                    "{held} B of rows and memtables after {n} writes"
                );
                lent_least = lent_least.min(stats.row_bytes);
                flushed = stats.counters.flushes;
            }
        }
        assert!(flushed > 1, "{flushed} flushes");
        assert!(lent_least < idle - (8 << 20), "{lent_least} B of rows at least, {idle} B before");
        store.checkpoint().await.expect("flush");
        let after = read_all().await;
        // Key tables have grown a little.
        assert!(after > lent_least + (8 << 20), "{after} B of rows after a flush, {lent_least} B before");
    };
    world.block_on(host, test).unwrap_or_else(|halt| panic!("{halt}"));
}

/// The memtables of a store that crashed are full when it opens, and nobody need write.
#[test]
fn what_replayed_memtables_hold_is_not_lent() {
    const ROWS: u64 = 40_000;
    const MEMTABLE: u64 = 20 << 20;
    let world = World::new(7);
    let host = world.add_host(HostOptions { quirks: false, ..HostOptions::default() });
    let test = async move {
        let device = made().await;
        let store = store_of_rows(&device, ROWS, options(128 << 20, MEMTABLE)).await;
        let read_all = async |store: &Store| {
            for n in 0..ROWS {
                store.get(SliceId((n % 3) as u16), &key(n)).await.expect("get").expect("there");
            }
        };
        let mut batch = Batch::new();
        let mut n = 0u64;
        while store.stats().memtable_bytes < MEMTABLE / 20 * 19 {
            batch.clear();
            batch.put(SliceId((n % 3) as u16), format!("new:{n:08}").as_bytes(), 0, 0, &[1; 60]);
            write(&store, &batch).await;
            n += 1;
            if n.is_multiple_of(1_000) {
                store.wait_durable(store.last_seq()).await.expect("durable");
            }
        }
        read_all(&store).await;
        let before = store.stats();
        assert_eq!(before.counters.flushes, 0, "all of it is in the active memtable");
        store.abandon().await;
        drop(store);
        let store = open_with(&device, options(128 << 20, MEMTABLE)).await.store;
        read_all(&store).await;
        let after = store.stats();
        assert!(after.memtable_bytes > MEMTABLE / 20 * 18, "{} B replayed", after.memtable_bytes);
        assert!(
            after.row_bytes <= before.row_bytes + (2 << 20),
            "{} B of rows after the crash, {} before",
            after.row_bytes,
            before.row_bytes
        );
    };
    world.block_on(host, test).unwrap_or_else(|halt| panic!("{halt}"));
}

#[test]
fn rows_do_without_what_is_withheld_until_it_is_given_back() {
    let world = World::new(6);
    let host = world.add_host(HostOptions { quirks: false, ..HostOptions::default() });
    let test = async move {
        let store = store_of_rows(&made().await, KEYS, options(MEMORY, MEMTABLE)).await;
        let rows = async || {
            read_all(&store).await;
            let stats = store.stats();
            (stats.row_bytes, stats.withheld_bytes)
        };
        let (all, withheld) = rows().await;
        assert!(all >= KEYS * VALUE_BYTES as u64 && withheld == 0, "{all} B of rows, {withheld} withheld");
        let planned = store.withhold_from_rows(u64::MAX);
        assert!(planned > all && planned < MEMORY, "{planned} B are all that rows could have");
        assert_eq!(store.stats().row_bytes, 0, "they go at once");
        assert_eq!(rows().await, (0, planned), "and stay away");
        // A flush hands out memory anew, but for what is withheld.
        assert_eq!(store.withhold_from_rows(planned - (4 << 20)), planned - (4 << 20));
        let mut batch = Batch::new();
        for n in 0..20_000u64 {
            batch.clear();
            batch.put(SliceId((n % 3) as u16), format!("small:{n:08}").as_bytes(), 0, 0, &[1; 1000]);
            write(&store, &batch).await;
        }
        store.wait_durable(store.last_seq()).await.expect("durable");
        let (part, _) = rows().await;
        assert!(part > 2 << 20 && part <= 4 << 20, "{part} B of rows");
        assert_eq!(store.withhold_from_rows(0), 0);
        let (again, withheld) = rows().await;
        assert!(again >= all - all / 16 && withheld == 0, "{again} B of rows, {withheld} withheld");
    };
    world.block_on(host, test).unwrap_or_else(|halt| panic!("{halt}"));
}

/// All elements of a large collection are in one slice: it has more than its part, and others are left half of theirs.
#[test]
fn one_slice_that_holds_nearly_all_has_most_of_the_memory() {
    const ONE: SliceId = SliceId(1);
    const OTHER: SliceId = SliceId(2);
    let world = World::new(9);
    let host = world.add_host(HostOptions { quirks: false, ..HostOptions::default() });
    let counters = world.clone();
    let test = async move {
        let device = made().await;
        drop(formatted(&device).await);
        let store = open_with(&device, options(MEMORY, MEMTABLE)).await.store;
        let mut batch = Batch::new();
        // Of these 10 MB, more than a fourth of what rows have, and of these key tables 14, more than a fourth of what tables have.
        let values = (0..2_500u64).map(|n| (ONE, key(n), VALUE_BYTES));
        let small = (0..300_000u64).map(|n| (ONE, format!("small:{n:08}").into_bytes(), 40));
        let other = (0..500u64).map(|n| (OTHER, key(n), VALUE_BYTES));
        for (slice, key, len) in values.chain(small).chain(other) {
            batch.clear();
            batch.put(slice, &key, 0, 0, &vec![7; len]);
            write(&store, &batch).await;
        }
        store.close().await.expect("close");
        let store = open_with(&device, options(MEMORY, MEMTABLE)).await.store;
        let tables = store.stats().table_bytes;
        assert!(tables > SHARED / 4, "{tables} B of tables");
        let read = async || {
            let before = counters.counters(host).reads;
            for (slice, count) in [(ONE, 2_500), (OTHER, 500)] {
                for n in 0..count {
                    assert!(store.get(slice, &key(n)).await.expect("get").is_some());
                }
            }
            for n in (0..300_000).step_by(10) {
                let small = format!("small:{n:08}").into_bytes();
                assert!(store.get(ONE, &small).await.expect("get").is_some());
            }
            counters.counters(host).reads - before
        };
        read().await;
        assert_eq!(read().await, 0, "all of it is in memory: {} B of rows", store.stats().row_bytes);
    };
    world.block_on(host, test).unwrap_or_else(|halt| panic!("{halt}"));
}
