//! What many scans at once read ahead, where memory is short.

use std::ops::Bound;

use crate::common::*;
use pumice_flash::{Device, DeviceSpec};
use pumice_kv::{
    Batch, Direction, MEMORY_BYTES_MIN, Scan, SliceId, SliceSet, Store, StoreFormat, StoreOptions, Want,
};
use pumice_reactor::sim::{HostOptions, World};

/// What scans read ahead in so little memory.
const ROOM: u64 = 2 << 20;
const SCANS: usize = 48;
/// What is looked at: a store, how many scans, how many keys each goes over before it rests, and how long values are.
type Case<'a> = (&'a Store, usize, u64, usize);

fn key(n: u64) -> Vec<u8> {
    format!("key:{n:010}").into_bytes()
}

fn value(n: u64, value_bytes: usize) -> Vec<u8> {
    vec![n as u8; value_bytes]
}

fn options() -> StoreOptions {
    StoreOptions { memory_bytes: MEMORY_BYTES_MIN, ..StoreOptions::default() }
}

async fn drive_of(keys: u64, value_bytes: usize) -> Device {
    let spec: DeviceSpec = "/drive".parse().expect("spec");
    let device = Device::create(&spec, 1 << 30).await.expect("file");
    // Tables long enough to be read ahead in.
    let format = StoreFormat { segment_bytes: Some(4 << 20), ..format() };
    Store::format(&device, &format).await.expect("format");
    let store = open_with(&device, options()).await.store;
    let mut batch = Batch::new();
    for n in 0..keys {
        batch.put(SliceId((n % 3) as u16), &key(n), 0, 0, &value(n, value_bytes));
        if n % 100 == 99 {
            write(&store, &batch).await;
            store.wait_durable(store.last_seq()).await.expect("durable");
            batch.clear();
        }
    }
    store.close().await.expect("close");
    device
}

async fn step(scan: &mut Scan, n: u64, value_bytes: usize) {
    let (found, entry) = scan.next().await.expect("next").expect("not at its end");
    assert_eq!(found, key(n));
    assert_eq!(entry.value[..], value(n, value_bytes));
}

fn begin(store: &Store, from: u64) -> Scan {
    let (snapshot, from) = (store.snapshot(), Bound::Included(key(from).into()));
    store.scan(&snapshot, SliceSet::All, from, Bound::Unbounded, Direction::Forward, Want::Values)
}

/// Where a scan begins. Of what lies beside keys most is read once, by the first of those that begin near each other: these begin far
/// from others.
fn start(scan: usize, value_bytes: usize) -> u64 {
    if value_bytes < 100 { 1000 * scan as u64 } else { 0 }
}

/// Scans side by side, which rest now.
async fn resting((store, scans, keys_each, value_bytes): Case<'_>) -> Vec<Scan> {
    let mut scans: Vec<Scan> = (0..scans).map(|scan| begin(store, start(scan, value_bytes))).collect();
    for n in 0..keys_each {
        for (at, scan) in scans.iter_mut().enumerate() {
            step(scan, start(at, value_bytes) + n, value_bytes).await;
        }
    }
    scans
}

/// Bytes that they read beyond what they handed out.
async fn read_beyond(case: Case<'_>) -> u64 {
    let (store, scans, keys_each, value_bytes) = case;
    let before = store.stats().heap.read_bytes;
    let _resting = resting(case).await;
    let handed_out = scans as u64 * keys_each * (value_bytes as u64 + 16);
    (store.stats().heap.read_bytes - before).saturating_sub(handed_out)
}

/// Bytes of values that each hands out, before it has something read again.
async fn held_by_each(case: Case<'_>) -> Vec<u64> {
    let (store, _, keys_each, value_bytes) = case;
    let mut held = Vec::new();
    // None goes meanwhile: others would have its room.
    for (at, scan) in resting(case).await.iter_mut().enumerate() {
        let (before, mut values) = (store.stats().heap.reads, 0);
        for n in start(at, value_bytes) + keys_each.. {
            step(scan, n, value_bytes).await;
            if store.stats().heap.reads > before {
                break;
            }
            values += 1;
        }
        held.push(values * value_bytes as u64);
    }
    held
}

async fn held_ahead(case: Case<'_>) -> u64 {
    held_by_each(case).await.iter().sum()
}

/// Calls `measure` for one scan, and for many: each may have `of_each` bytes, which it needs next, beside what all may have together.
fn check(
    (keys, keys_each, value_bytes): (u64, u64, usize),
    of_each: u64,
    measure: impl AsyncFn(Case<'_>) -> u64 + 'static,
) {
    let world = World::new(11);
    let host = world.add_host(HostOptions { quirks: false, ..HostOptions::default() });
    let test = async move {
        let device = drive_of(keys, value_bytes).await;
        let store = open_with(&device, options()).await.store;
        let one = measure((&store, 1, keys_each, value_bytes)).await;
        let all = measure((&store, SCANS, keys_each, value_bytes)).await;
        println!("values of {value_bytes} B: {one} B ahead of one scan, {all} B ahead of {SCANS}");
        assert!(one > 4 * of_each, "one alone reads {one} B ahead");
        assert!(all > ROOM / 8, "{all} B were read ahead: there is room for more");
        let most = ROOM + ROOM / 2 + SCANS as u64 * of_each;
        assert!(all <= most, "{all} B were read ahead");
    };
    world.block_on(host, test).unwrap_or_else(|halt| panic!("{halt}"));
}

#[test]
fn blocks_that_many_scans_read_ahead_are_bounded() {
    // Beside their keys; a block of each run.
    check((60_000, 6_000, 60), 3 * 3 * 4096, read_beyond);
}

#[test]
fn values_that_many_scans_read_ahead_are_bounded() {
    check((6_000, 1_500, 6_000), 2 * 6_000, held_ahead);
}

/// Who came first leaves room for the others.
#[test]
fn scans_share_what_they_read_ahead() {
    let world = World::new(12);
    let host = world.add_host(HostOptions { quirks: false, ..HostOptions::default() });
    let test = async {
        let device = drive_of(6_000, 6_000).await;
        let store = open_with(&device, options()).await.store;
        // One has gone far, and has all that it may have, when the others begin.
        let first = resting((&store, 1, 3_000, 6_000)).await;
        let held = held_by_each((&store, 3, 1_500, 6_000)).await;
        drop(first);
        println!("{held:?}");
        assert!(held.iter().all(|&bytes| bytes > ROOM / 64), "{held:?} of {ROOM}");
    };
    world.block_on(host, test).unwrap_or_else(|halt| panic!("{halt}"));
}
