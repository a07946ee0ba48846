//! Versions that are put again with another expiry: their values stay where they lie, whatever happens.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use crate::common::*;
use pumice_base::rng::Rng;
use pumice_flash::{Device, DeviceSpec, Fault, Operation};
use pumice_kv::{
    Batch, Durability, Entry, Peek, SliceId, Store, StoreFormat, StoreOptions, Stored, WriteError,
};
use pumice_reactor::sim::{DiskModel, HostOptions, World};
use pumice_reactor::{sleep, spawn};

const VALUE: usize = 8000;
const SLICE: SliceId = SliceId(0);

fn in_virtual_time(test: impl Future<Output = ()> + 'static) {
    let world = World::new(1);
    let host = world.add_host(HostOptions { cores: 1, ..HostOptions::default() });
    world.block_on(host, test).unwrap_or_else(|halt| panic!("{halt}"));
}

/// The same several times, with a formatted drive in a file.
fn on_a_slow_disk(test: impl AsyncFn(Device) + Copy + 'static) {
    for seed in 1..=4 {
        let world = World::new(seed);
        let disk = DiskModel { write_ns: 1_000_000, ..DiskModel::default() };
        let host = world.add_host(HostOptions { cores: 1, quirks: false, disk, ..HostOptions::default() });
        let test = async move {
            let spec: DeviceSpec = "/drive".parse().expect("spec");
            let device = Device::create(&spec, 16 << 20).await.expect("file");
            Store::format(&device, &format()).await.expect("format");
            test(device).await;
        };
        world.block_on(host, test).unwrap_or_else(|halt| panic!("seed {seed}: {halt}"));
    }
}

fn key(n: u32) -> Vec<u8> {
    format!("session:{n}").into_bytes()
}

fn filled(n: u32) -> Vec<u8> {
    let mut value = vec![0; VALUE];
    Rng::from_seed(u64::from(n)).fill(&mut value);
    value
}

async fn put_filled(store: &Store, n: u32, expire_ms: u64) -> u64 {
    let mut batch = Batch::new();
    batch.put(SLICE, &key(n), 3, expire_ms, &filled(n));
    write(store, &batch).await
}

async fn stored(store: &Store, n: u32) -> Stored {
    store.get_stored(SLICE, &key(n)).await.expect("read").expect("there")
}

fn again(stored: &Stored, n: u32, expire_ms: u64) -> Batch {
    let mut batch = Batch::new();
    batch.put_again(SLICE, &key(n), expire_ms, stored);
    batch
}

/// Durable on return, so that the next time finds a place to name.
async fn put_again(store: &Store, n: u32, expire_ms: u64) -> u64 {
    let seq = write(store, &again(&stored(store, n).await, n, expire_ms)).await;
    store.wait_durable(seq).await.expect("durable");
    seq
}

async fn entry(store: &Store, n: u32) -> Entry {
    store.get(SLICE, &key(n)).await.expect("get").expect("there")
}

async fn expires(store: &Store, n: u32, expire_ms: u64) {
    let entry = entry(store, n).await;
    assert_eq!((entry.tag, entry.expire_ms), (3, expire_ms), "of {n}");
    assert!(entry.value == filled(n), "the value of {n}");
}

/// Closed, or left as a crash leaves it, and opened again.
async fn reopened(device: &Device, store: Store, cleanly: bool) -> Store {
    if cleanly {
        store.close().await.expect("close");
    } else {
        store.abandon().await;
    }
    drop(store);
    open(device).await
}

#[test]
fn a_value_in_the_key_tables_is_neither_read_nor_written() {
    in_virtual_time(async {
        let device = device("emu:small").await;
        let mut store = formatted(&device).await;
        for n in 0..50 {
            put_filled(&store, n, 0).await;
        }
        store.checkpoint().await.expect("checkpoint");
        let before = store.stats();
        for n in 0..50 {
            let found = stored(&store, n).await;
            assert!(found.is_in_place());
            assert_eq!((found.meta().tag, found.meta().value_len), (3, VALUE as u64));
            write(&store, &again(&found, n, 5000 + u64::from(n))).await;
        }
        let after = store.stats();
        assert_eq!(after.counters.value_reads, before.counters.value_reads);
        let written = after.counters.user_bytes - before.counters.user_bytes;
        assert!(written < 50 * 100, "{written} B");
        for cleanly in [false, false, true, true] {
            for n in 0..50 {
                expires(&store, n, 5000 + u64::from(n)).await;
            }
            store = reopened(&device, store, cleanly).await;
        }
        // And again, for ever.
        for n in 0..50 {
            put_again(&store, n, 0).await;
        }
        store = reopened(&device, store, false).await;
        for n in 0..50 {
            expires(&store, n, 0).await;
        }
        let report = store.check(&no_progress).await.expect("check");
        assert!(report.is_clean(), "{:?}", report.problems);
        store.close().await.expect("close");
    });
}

/// Only what is on flash has a place that a crash leaves where it is.
#[test]
fn a_value_that_is_not_on_flash_yet_is_written_again() {
    in_virtual_time(async {
        let device = device("emu:small").await;
        let store = formatted(&device).await;
        let seq = put_filled(&store, 1, 0).await;
        if !store.is_durable(seq) {
            assert!(!stored(&store, 1).await.is_in_place());
        }
        store.wait_durable(seq).await.expect("durable");
        assert!(stored(&store, 1).await.is_in_place());
        write(&store, &again(&stored(&store, 1).await, 1, 60)).await;
        assert!(stored(&store, 1).await.is_in_place(), "the value is where it was, durable or not");
        write(&store, &again(&stored(&store, 1).await, 1, 70)).await;
        expires(&store, 1, 70).await;
        let store = reopened(&device, store, false).await;
        expires(&store, 1, 70).await;
        store.close().await.expect("close");
        drop(store);
        // What counts as durable may not be on flash.
        let options = StoreOptions { durability: Durability::EverySecond, ..options() };
        let store = open_with(&device, options).await.store;
        assert!(stored(&store, 1).await.is_in_place(), "key tables name it");
        let seq = put_filled(&store, 2, 0).await;
        assert!(store.is_durable(seq) && !stored(&store, 2).await.is_in_place());
        put_again(&store, 2, 80).await;
        expires(&store, 2, 80).await;
        put_again(&store, 1, 90).await;
        assert!(stored(&store, 1).await.is_in_place(), "as often as one likes");
        put_again(&store, 1, 91).await;
        let store = reopened(&device, store, false).await;
        expires(&store, 1, 91).await;
        store.close().await.expect("close");
    });
}

#[test]
fn small_and_large_values_are_put_again_too() {
    in_virtual_time(async {
        let device = device("emu:small").await;
        let store = formatted(&device).await;
        put(&store, 0, b"small", b"a").await;
        put_large(&store, 0, b"large", 7, &[9; 600_000]).await;
        store.checkpoint().await.expect("checkpoint");
        for name in [&b"small"[..], b"large"] {
            let found = store.get_stored(SLICE, name).await.expect("read").expect("there");
            assert!(!found.is_in_place());
            let mut batch = Batch::new();
            batch.put_again(SLICE, name, 33, &found);
            write(&store, &batch).await;
        }
        assert!(store.get_stored(SLICE, b"none").await.expect("read").is_none());
        let store = reopened(&device, store, false).await;
        assert_eq!(get(&store, 0, b"small").await, Some((0, 33, b"a".to_vec())));
        assert_eq!(get(&store, 0, b"large").await, Some((7, 33, vec![9; 600_000])));
        store.close().await.expect("close");
    });
}

/// Overwrites others until cleaning has moved `keys` of the first hundred keys with no flush since: a crash now would have these moves
/// replayed.
async fn until_moved(store: &Store, keys: usize) {
    let numbers = |store: &Store| {
        let meta = |n| store.peek_meta(SLICE, &key(n));
        (0..100).map(|n| if let Peek::Found(meta) = meta(n) { meta.seq } else { 0 }).collect::<Vec<_>>()
    };
    let flushes = |store: &Store| store.stats().counters.flushes;
    let (mut before, mut flushed) = (numbers(store), flushes(store));
    for round in 0..200u32 {
        for n in 1000..1200 {
            put(store, 0, &key(n), &[round as u8; VALUE]).await;
            if flushes(store) != flushed {
                (before, flushed) = (numbers(store), flushes(store));
            }
            if numbers(store).iter().zip(&before).filter(|(now, was)| now != was).count() >= keys {
                return;
            }
        }
    }
    panic!("too few were moved");
}

fn rare_flushes() -> StoreOptions {
    StoreOptions { memtable_bytes: Some(4 << 20), ..StoreOptions::default() }
}

/// A drive with `keys` keys that were put again, on which flushes are as rare as may be.
async fn opened_with(device: &Device, keys: u32) -> Store {
    let store = open_with(device, rare_flushes()).await.store;
    for n in 0..keys {
        put_filled(&store, n, 0).await;
    }
    store.checkpoint().await.expect("checkpoint");
    for n in 0..keys {
        put_again(&store, n, 9000 + u64::from(n)).await;
    }
    store
}

/// What cleaning moves is replayed with the expiry that its key had then, not with that of the record that it moved.
#[test]
fn what_is_moved_keeps_the_expiry_that_it_was_put_again_with() {
    on_a_slow_disk(async |device| {
        let keys = 100;
        let store = opened_with(&device, keys).await;
        until_moved(&store, 5).await;
        let seq = put(&store, 0, &key(1000), b"another").await;
        store.wait_durable(seq).await.expect("durable");
        let mut store = reopened(&device, store, false).await;
        for n in 0..keys {
            expires(&store, n, 9000 + u64::from(n)).await;
        }
        for round in 1..4u64 {
            for n in 0..keys {
                put_again(&store, n, round * 10_000 + u64::from(n)).await;
            }
            store = reopened(&device, store, false).await;
            for n in 0..keys {
                expires(&store, n, round * 10_000 + u64::from(n)).await;
            }
        }
        let report = store.check(&no_progress).await.expect("check");
        assert!(report.is_clean(), "{:?}", report.problems);
        store.close().await.expect("close");
    });
}

/// A replay meets the moved records last, with the lower numbers: they are not dead, a newer version names them.
#[test]
fn what_was_moved_and_then_put_again_is_alive_after_a_crash() {
    on_a_slow_disk(async |device| {
        let keys = 100;
        let mut store = opened_with(&device, keys).await;
        for round in 1..5 {
            // Among others, so that they are moved out of the way.
            for n in 0..keys {
                put_filled(&store, n, 0).await;
                put(&store, 0, &key(1000 + n), &[0; VALUE]).await;
            }
            store.checkpoint().await.expect("checkpoint");
            until_moved(&store, 5).await;
            // From then on the new places count as being on flash.
            let seq = put(&store, 0, &key(1000), b"another").await;
            store.wait_durable(seq).await.expect("durable");
            let mut batch = Batch::new();
            for n in 0..keys {
                batch.put_again(SLICE, &key(n), 7000 * round, &stored(&store, n).await);
            }
            write(&store, &batch).await;
            store.abandon().await;
            drop(store);
            store = open_with(&device, rare_flushes()).await.store;
            // Before the background gets to work.
            let live = store.space().live;
            for n in 0..keys {
                expires(&store, n, 7000 * round).await;
            }
            let values = store.check(&no_progress).await.expect("check").value_bytes;
            assert!(live >= values, "round {round}: {live} of {values} B are taken for alive");
        }
        store.close().await.expect("close");
    });
}

/// Cleaning moves values that are put again all the time, by several at once, on a disk that takes its time.
#[test]
fn what_is_put_again_while_it_is_moved_is_not_lost() {
    const KEYS: u32 = 400;
    on_a_slow_disk(async |device| {
        let mut store = open_with(&device, rare_flushes()).await.store;
        for n in 0..KEYS {
            // Each segment has some that die soon.
            put_filled(&store, n, 0).await;
            put(&store, 0, &key(1000 + n), &[0; VALUE]).await;
        }
        store.checkpoint().await.expect("checkpoint");
        let ends = Rc::new(Cell::new(false));
        let touching: Vec<_> = (0..4)
            .map(|part| {
                let (store, ends) = (store.clone(), ends.clone());
                spawn(async move {
                    let (mut rng, mut last) = (Rng::from_seed(u64::from(part)), vec![0; KEYS as usize]);
                    let (mut time, mut in_place) = (0, 0u32);
                    while !ends.get() {
                        time += 1;
                        // Each has keys of its own.
                        let n = rng.below(u64::from(KEYS / 4)) as u32 * 4 + part;
                        let found = stored(&store, n).await;
                        in_place += u32::from(found.is_in_place());
                        let batch = again(&found, n, time);
                        // Most do not queue for room: that would be when nothing is moved.
                        if store.write(&batch).is_ok() {
                            last[n as usize] = time;
                        } else if rng.chance(0.1) {
                            write(&store, &batch).await;
                            last[n as usize] = time;
                        }
                        sleep(Duration::from_micros(rng.below(100))).await;
                    }
                    (last, in_place)
                })
            })
            .collect();
        let moved = store.stats().counters.moved_records;
        for n in 0..8000u32 {
            put(&store, 0, &key(1000 + n % KEYS), &[n as u8; VALUE]).await;
        }
        ends.set(true);
        let mut last = vec![0; KEYS as usize];
        for one in touching {
            let (times, in_place) = one.await.expect("it ended");
            assert!(in_place > 20, "{in_place} in place");
            last.iter_mut().zip(times).for_each(|(last, time)| *last = time.max(*last));
        }
        let moved = store.stats().counters.moved_records - moved;
        assert!(moved > 300, "{moved} moved");
        for reopens in [false, true] {
            if reopens {
                store = reopened(&device, store, false).await;
            }
            for n in 0..KEYS {
                expires(&store, n, last[n as usize]).await;
            }
        }
        let report = store.check(&no_progress).await.expect("check");
        assert!(report.is_clean(), "{:?}", report.problems);
        store.close().await.expect("close");
    });
}

/// Nobody may point at a place from which cleaning is moving what lies there.
#[test]
fn what_lies_in_a_victim_is_written_again() {
    in_virtual_time(async {
        let device = device("emu:small").await;
        let store = formatted(&device).await;
        for n in 0..200 {
            put_filled(&store, n, 0).await;
        }
        // Until all of these lie in sealed segments.
        for n in 1000..2000 {
            put_filled(&store, n, 0).await;
        }
        for n in (0..200).filter(|n| n % 10 != 3) {
            delete(&store, 0, &key(n)).await;
        }
        store.checkpoint().await.expect("checkpoint");
        let early = stored(&store, 3).await;
        assert!(early.is_in_place());
        let mut victims = Vec::new();
        while let Some(victim) = store.heap().victim(|_| 0) {
            victims.push(victim);
        }
        assert!(!victims.is_empty());
        assert!(!stored(&store, 3).await.is_in_place(), "looked up now it comes whole");
        let refused = store.write(&again(&early, 3, 2));
        assert!(matches!(refused, Err(WriteError::Busy)), "{refused:?}");
        let before = store.stats().counters.user_bytes;
        write(&store, &again(&early, 3, 2)).await;
        assert!(store.stats().counters.user_bytes - before >= VALUE as u64);
        expires(&store, 3, 2).await;
        victims.into_iter().for_each(|victim| store.heap().unclaim(victim));
        assert!(stored(&store, 13).await.is_in_place());
        let store = reopened(&device, store, false).await;
        expires(&store, 3, 2).await;
        store.close().await.expect("close");
    });
}

#[test]
fn what_was_overwritten_meanwhile_is_not_brought_back() {
    in_virtual_time(async {
        let device = device("emu:small").await;
        let store = formatted(&device).await;
        put_filled(&store, 1, 0).await;
        put_filled(&store, 2, 0).await;
        store.checkpoint().await.expect("checkpoint");
        let (one, two) = (stored(&store, 1).await, stored(&store, 2).await);
        put(&store, 0, &key(1), &[7; 3000]).await;
        delete(&store, 0, &key(2)).await;
        assert!(matches!(store.write(&again(&one, 1, 90)), Err(WriteError::Busy)));
        write(&store, &again(&one, 1, 90)).await;
        assert_eq!(get(&store, 0, &key(1)).await, Some((0, 90, vec![7; 3000])), "what is there now");
        let gone = store.write_ready(&again(&two, 2, 90)).await;
        assert!(matches!(gone, Err(WriteError::Gone(_))), "{gone:?}");
        assert_eq!(get(&store, 0, &key(2)).await, None);
        store.close().await.expect("close");
    });
}

/// The record dies with the last version that points at it, and once: what the heap takes for alive is what there is.
#[test]
fn nothing_dies_until_the_value_does() {
    in_virtual_time(async {
        let device = device("emu:small").await;
        let store = formatted(&device).await;
        for n in 0..40 {
            put_filled(&store, n, 0).await;
        }
        store.checkpoint().await.expect("checkpoint");
        let live = |store: &Store| store.space().live as i64;
        let all = live(&store);
        let close_to = |what: &str, now: i64, wanted: i64| {
            let tables = 20_000;
            assert!((now - wanted).abs() < tables, "{what}: {now} B are taken for alive, not {wanted}");
        };
        for round in 1..=20 {
            for n in 0..40 {
                put_again(&store, n, round * 1000).await;
            }
            if round % 4 == 0 {
                store.checkpoint().await.expect("checkpoint");
            }
            close_to("put again", live(&store), all);
        }
        for n in 0..20 {
            delete(&store, 0, &key(n)).await;
        }
        close_to("half deleted", live(&store), all / 2);
        for n in 20..40 {
            put_again(&store, n, 0).await;
        }
        for _ in 0..3 {
            store.checkpoint().await.expect("checkpoint");
        }
        close_to("merged", live(&store), all / 2);
        for n in 20..40 {
            put(&store, 0, &key(n), &[1; 100]).await;
        }
        close_to("overwritten", live(&store), 0);
        store.close().await.expect("close");
    });
}

/// After a crash nobody knows any more what the heap was told.
#[test]
fn a_crash_kills_nothing_that_was_put_again() {
    in_virtual_time(async {
        let device = device("emu:small").await;
        let mut store = formatted(&device).await;
        for n in 0..40 {
            put_filled(&store, n, 0).await;
        }
        store.checkpoint().await.expect("checkpoint");
        let all = store.space().live;
        let mut merges = 0;
        for round in 1..12 {
            for n in 0..40 {
                put_again(&store, n, round * 1000).await;
            }
            store = reopened(&device, store, false).await;
            for _ in 0..3 {
                put(&store, 0, b"another", b"small").await;
                store.checkpoint().await.expect("checkpoint");
            }
            sleep(Duration::from_secs(2)).await;
            merges += store.stats().counters.merges;
        }
        assert!(merges > 3, "{merges} merges");
        let live = store.space().live;
        assert!(live > all - all / 10, "{live} of {all} B are taken for alive");
        store.close().await.expect("close");
    });
}

/// A session that is read and touched over and over is read from memory.
#[test]
fn a_cached_row_stays() {
    in_virtual_time(async {
        let device = device("emu:small").await;
        Store::format(&device, &StoreFormat { segment_bytes: Some(1 << 20), ..format() })
            .await
            .expect("format");
        let store = open_with(&device, StoreOptions { memory_bytes: 64 << 20, ..options() }).await.store;
        put_filled(&store, 1, 0).await;
        // The log's tail must not have it.
        for n in 0..400 {
            put(&store, 1, &key(n), &[1; VALUE]).await;
        }
        store.checkpoint().await.expect("checkpoint");
        let store = reopened(&device, store, true).await;
        expires(&store, 1, 0).await;
        let before = store.stats().counters;
        for at in 1..20 {
            put_again(&store, 1, at).await;
            expires(&store, 1, at).await;
        }
        let after = store.stats().counters;
        assert_eq!(after.value_reads, before.value_reads, "read from flash");
        assert!(after.row_hits >= before.row_hits + 19);
        store.close().await.expect("close");
    });
}

/// A snapshot sees the version that was there, and what was put again since at its own time.
#[test]
fn snapshots_see_their_own_version() {
    in_virtual_time(async {
        let device = device("emu:small").await;
        let store = formatted(&device).await;
        put_filled(&store, 1, 11).await;
        store.checkpoint().await.expect("checkpoint");
        let snapshot = store.snapshot();
        put_again(&store, 1, 12).await;
        let later = store.snapshot();
        put(&store, 0, &key(1), b"gone").await;
        store.checkpoint().await.expect("checkpoint");
        for (snapshot, expire_ms) in [(&snapshot, 11), (&later, 12)] {
            let model = Model::from([((0, key(1)), (3, expire_ms, filled(1)))]);
            let (low, high) = (std::ops::Bound::Unbounded, std::ops::Bound::Unbounded);
            compare_scan(&store, snapshot, &model, 0, low, high, pumice_kv::Direction::Forward).await;
        }
        drop((snapshot, later));
        store.close().await.expect("close");
    });
}

/// Where the program of a value's commit failed, the value lies elsewhere: memory knows, and after a crash the record must.
#[test]
fn a_place_is_that_to_which_a_failed_commit_went() {
    in_virtual_time(async {
        let device = device("emu:tiny,channels=2,blocks=64,pages=64,program_us=2000").await;
        let Device::Emulated(nand) = &device else { panic!("not emulated") };
        let store = formatted(&device).await;
        for n in 0..4 {
            nand.fail_at(Operation::Program, 1, Fault::Failed);
            let seq = put_filled(&store, n, 0).await;
            store.wait_durable(seq).await.expect("durable");
            assert!(stored(&store, n).await.is_in_place());
            put_again(&store, n, 40 + u64::from(n)).await;
        }
        assert!(store.heap().stats().relocations > 0, "no program failed: {:?}", store.heap().stats());
        let store = reopened(&device, store, false).await;
        for n in 0..4 {
            expires(&store, n, 40 + u64::from(n)).await;
        }
        store.close().await.expect("close");
    });
}
