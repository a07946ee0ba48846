//! Look-ups in key order read a table's blocks together; scattered ones, and what a damaged block lies beside, do not suffer from it.

use std::cell::Cell;
use std::ops::Bound;
use std::rc::Rc;
use std::time::Duration;

use crate::common::*;
use pumice_base::rng::Rng;
use pumice_flash::Device;
use pumice_kv::{Direction, SliceId, SliceSet, Store, StoreOptions, Want};
use pumice_reactor::{sleep, spawn, yield_now};

const SLICE: SliceId = SliceId(0);
const KEYS: u64 = 20_000;
const READERS: u64 = 32;

fn key(n: u64) -> Vec<u8> {
    format!("key:{n:08}").into_bytes()
}

fn value(n: u64) -> Vec<u8> {
    format!("the value of number {n:08}, which lies beside its key").into_bytes()
}

/// A store whose tables are on flash alone, and which has nothing to do.
async fn cold(device: &Device) -> Rc<Store> {
    let store = formatted(device).await;
    for n in 0..KEYS {
        put(&store, 0, &key(n), &value(n)).await;
    }
    store.close().await.expect("close");
    let store = open_with(device, StoreOptions { patrol_pass: None, ..options() }).await.store;
    let (mut calm, mut before) = (0, 0);
    while calm < 10 {
        sleep(Duration::from_millis(5)).await;
        let reads = store.stats().heap.reads;
        calm = if reads == before { calm + 1 } else { 0 };
        before = reads;
    }
    Rc::new(store)
}

/// Gets the keys in order by readers side by side; answers which failed.
async fn in_order(store: &Rc<Store>) -> Vec<u64> {
    let next = Rc::new(Cell::new(0));
    let readers: Vec<_> = (0..READERS)
        .map(|_| {
            let (store, next) = (store.clone(), next.clone());
            spawn(async move {
                let mut failed = Vec::new();
                while next.get() < KEYS {
                    let n = next.replace(next.get() + 1);
                    match store.get(SLICE, &key(n)).await {
                        Ok(Some(entry)) => assert_eq!(entry.value[..], value(n)[..]),
                        Ok(None) => panic!("key {n} is missing"),
                        Err(_) => failed.push(n),
                    }
                    if n % 7 == 0 {
                        yield_now().await;
                    }
                }
                failed
            })
        })
        .collect();
    let mut failed = Vec::new();
    for reader in readers {
        failed.extend(reader.await.expect("reader"));
    }
    failed.sort_unstable();
    failed
}

/// Blocks that all tables have, about.
fn blocks(store: &Store) -> u64 {
    store.stats().table_bytes / 4096
}

#[test]
fn look_ups_in_key_order_read_blocks_together() {
    pumice_reactor::block_on(async {
        let device = device("emu:small").await;
        let store = cold(&device).await;
        assert_eq!(in_order(&store).await, [0; 0]);
        let (reads, blocks) = (store.stats().counters.block_reads, blocks(&store));
        assert!(blocks > 250, "{blocks} blocks are too few to tell");
        assert!(reads < blocks / 4, "{reads} reads of {blocks} blocks");
    });
}

#[test]
fn scattered_look_ups_read_hardly_more_than_a_block_each() {
    pumice_reactor::block_on(async {
        let device = device("emu:small").await;
        let store = cold(&device).await;
        let mut rng = Rng::from_seed(9);
        let before = store.stats().heap.read_bytes;
        for _ in 0..150 {
            let n = rng.below(KEYS);
            let entry = store.get(SLICE, &key(n)).await.expect("get").expect("there");
            assert_eq!(entry.value[..], value(n)[..]);
        }
        let stats = store.stats();
        let reads = stats.counters.block_reads;
        // A block lies on two pages of 4 KiB, mostly; heads are read once.
        let most = reads * (10 << 10) + stats.table_bytes / 20 + (64 << 10);
        let bytes = stats.heap.read_bytes - before;
        assert!(bytes <= most, "{bytes} bytes in {reads} reads of blocks, {most} allowed");
    });
}

#[test]
fn a_damaged_block_fails_its_own_keys_alone() {
    pumice_reactor::block_on(async {
        let device = device("emu:small").await;
        let store = cold(&device).await;
        let torn = tear_a_page_of_each_table(&store, &device, 64 << 10).await;
        let failed = in_order(&store).await;
        // A page of 4 KiB lies in two blocks, of about fifty keys each.
        assert!(!failed.is_empty() && failed.len() < 250 * torn, "{} keys failed of {torn}", failed.len());
        let stretches = 1 + failed.windows(2).filter(|pair| pair[1] - pair[0] > 1).count();
        assert!(stretches <= torn, "{torn} were torn: {failed:?}");
        // And again, when what is around it is known.
        for &n in &failed {
            store.get(SLICE, &key(n)).await.expect_err("it is damaged");
        }
    });
}

/// Nothing but the scan runs: whatever it asked for is on its way all the same.
#[test]
fn what_a_scan_asks_for_is_on_its_way_at_once() {
    pumice_reactor::block_on(async {
        let device = device("emu:small").await;
        let store = cold(&device).await;
        let snapshot = store.snapshot();
        let set = SliceSet::One(SLICE);
        let mut scan =
            store.scan(&snapshot, set, Bound::Unbounded, Bound::Unbounded, Direction::Forward, Want::Values);
        let counted = || {
            let stats = store.stats();
            (stats.counters.block_reads + stats.counters.head_reads, stats.heap.reads)
        };
        let (mut n, mut before) = (0, counted());
        while let Some((found, entry)) = scan.next().await.expect("scan") {
            assert!(found == key(n) && entry.value[..] == value(n)[..], "number {n}");
            n += 1;
            // Others read, too, when the scan gives them a turn.
            let now = counted();
            let (asked, read) = (now.0 - before.0, now.1 - before.1);
            assert!(read >= asked, "{read} of {asked} reads are under way after {n} keys");
            before = now;
        }
        assert!(before.0 > 20, "{} reads are too few to tell", before.0);
        assert_eq!(n, KEYS);
    });
}

/// All of it is in memory, so the scan never waits for the drive.
#[test]
fn a_scan_lets_others_have_their_turn() {
    pumice_reactor::block_on(async {
        let device = device("emu:small").await;
        let store = cold(&device).await;
        let turns = Rc::new(Cell::new(0));
        let other = {
            let turns = turns.clone();
            spawn(async move {
                loop {
                    turns.set(turns.get() + 1);
                    yield_now().await;
                }
            })
        };
        for is_warm in [false, true] {
            let snapshot = store.snapshot();
            let set = SliceSet::One(SLICE);
            let mut scan = store.scan(
                &snapshot,
                set,
                Bound::Unbounded,
                Bound::Unbounded,
                Direction::Forward,
                Want::Keys,
            );
            let (mut keys, before) = (0, turns.get());
            while scan.next().await.expect("scan").is_some() {
                keys += 1;
            }
            assert_eq!(keys, KEYS);
            let turns = turns.get() - before;
            assert!(turns >= KEYS / 1000, "{turns} turns in {keys} keys (warm: {is_warm})");
        }
        other.abort();
    });
}
