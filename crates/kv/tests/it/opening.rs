//! What opening a store reads, counted by a simulated host (`docs/format/meta-log.md` states the bounds): after a clean
//! close the metadata and nothing else, after a crash the log since the checkpoint as well.

use crate::common::*;
use pumice_base::rng::Rng;
use pumice_flash::{Access, Device, DeviceSpec};
use pumice_kv::{Batch, REPLAY_BYTES_MIN, SliceId, Store, StoreFormat, StoreOptions};
use pumice_reactor::sim::{FaultOp, FileFault, HostId, HostOptions, World, ZonedModel};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::rc::Rc;

const PAGE: u64 = 4096;
const SEGMENT: u64 = 256 << 10;
const WINDOW: u64 = 256 << 10;
const KEY_BYTES: u64 = 12;

fn spec() -> DeviceSpec {
    "/drive".parse().expect("spec")
}

/// Most bytes of the metadata log: its snapshot has 40 B a segment and at most 100 B and two keys a table; its edits come
/// to twice the snapshot or a sixteenth of the half, and one record more. All of that is there twice.
fn log_bytes_max(segments: u64, tables: u64) -> u64 {
    let snapshot = PAGE + 40 * segments + tables * (100 + 2 * KEY_BYTES);
    // 1/4096 of the drive, and room for four snapshots of the segment table, in whole segments.
    let half = (160 * segments + WINDOW).max(segments * SEGMENT / 4096).next_multiple_of(SEGMENT);
    2 * snapshot + (4 * snapshot).max(half / 16) + 2 * snapshot
}

struct Cost {
    reads: u64,
    bytes: u64,
    tables: u64,
}

/// Puts keys `from..to` of 8,000 B each, durable on return.
async fn put_all(store: &Store, from: u64, to: u64) {
    let mut newest = 0;
    let (mut batch, mut value) = (Batch::new(), vec![0; 8000]);
    Rng::from_seed(3).fill(&mut value);
    for n in from..to {
        batch.clear();
        batch.put(SliceId((n % 3) as u16), format!("key:{n:08}").as_bytes(), 0, 0, &value);
        newest = write(store, &batch).await;
    }
    store.wait_durable(newest).await.expect("durable");
}

/// Fills `percent` of a drive and closes it; then puts `logged` keys and crashes, if there are any. Counts what the next
/// open reads.
fn open_again(segments: u64, percent: u64, logged: u64) -> Cost {
    let world = World::new(7);
    let host = world.add_host(HostOptions { quirks: false, ..HostOptions::default() });
    run(&world, host, async move {
        let device = Device::create(&spec(), segments * SEGMENT).await.expect("file");
        let store = formatted(&device).await;
        let keys = segments * SEGMENT * percent / 100 / 8064;
        put_all(&store, 0, keys).await;
        store.close().await.expect("close");
        drop(store);
        if logged > 0 {
            let opened = Store::open(device, options(), &no_progress).await.expect("open");
            // Without its background work the store makes no checkpoint.
            put_all(&opened.store, keys, keys + logged).await;
        }
    });
    if logged > 0 {
        world.crash(host);
        world.restart(host);
    }
    let before = world.counters(host);
    let tables = run(&world, host, async move {
        let device = Device::open(&spec(), Access::ReadWrite).await.expect("device");
        let opened = Store::open(device, options(), &no_progress).await.expect("open");
        assert!(opened.damage.is_empty(), "{:?}", opened.damage);
        assert_eq!((opened.clean, opened.replayed), (logged == 0, logged));
        opened.store.stats().tables
    });
    let after = world.counters(host);
    Cost { reads: after.reads - before.reads, bytes: after.read_bytes - before.read_bytes, tables }
}

fn run<T: 'static>(world: &World, host: HostId, work: impl Future<Output = T> + 'static) -> T {
    world.block_on(host, work).unwrap_or_else(|halt| panic!("{halt}"))
}

#[test]
fn a_clean_open_reads_the_newest_metadata_and_nothing_else_however_full_the_drive() {
    for (segments, percent) in [(256, 5), (256, 70), (1024, 5), (1024, 70)] {
        let Cost { reads, bytes, tables } = open_again(segments, percent, 0);
        println!("{segments} segments, {percent}% full: {reads} reads, {bytes} B, {tables} tables");
        let log = log_bytes_max(segments, tables);
        // Three pages for the superblocks, one of each half of the log, then the log a window at a time.
        assert!(reads <= 5 + 2 * log.div_ceil(WINDOW), "{segments} segments, {percent}% full: {reads} reads");
        assert!(
            bytes <= 5 * PAGE + log + WINDOW,
            "{segments} segments, {percent}% full: {bytes} B were read, the log has at most {log} B"
        );
    }
}

#[test]
fn a_crash_costs_the_log_since_the_checkpoint_however_full_the_drive() {
    for percent in [5, 60] {
        let (segments, logged) = (1024, 500);
        let Cost { bytes, tables, .. } = open_again(segments, percent, logged);
        let clean = 5 * PAGE + log_bytes_max(segments, tables) + WINDOW;
        // A frame has its padding; the segment where the log begins, the one that is open and those opened ahead.
        let log = (logged * (8064 + PAGE)).next_multiple_of(SEGMENT) + 4 * SEGMENT;
        let first_pages = 2 * PAGE * (64 + log / SEGMENT);
        println!("{percent}% full: {bytes} B, {tables} tables; at most {}", clean + log + first_pages);
        assert!(bytes <= clean + log + first_pages, "{percent}% full: {bytes} B were read");
    }
}

#[test]
fn a_crash_costs_so_many_records_at_most_however_short_they_are() {
    const LOG_BYTES: u64 = 4 << 20;
    const A_BATCH: u64 = 500;
    let most = LOG_BYTES / u64::from(REPLAY_BYTES_MIN);
    let written = 5 * most / 2;
    let world = World::new(7);
    let host = world.add_host(HostOptions { quirks: false, ..HostOptions::default() });
    run(&world, host, async move {
        let device = Device::create(&spec(), 256 * SEGMENT).await.expect("file");
        Store::format(&device, &format()).await.expect("format");
        // Nothing but the log's length calls for a flush: one key takes no memory.
        let options = StoreOptions { log_max_bytes: LOG_BYTES, ..StoreOptions::default() };
        let store = open_with(&device, options).await.store;
        let mut batch = Batch::new();
        for n in 0..written / A_BATCH {
            batch.clear();
            for n in n * A_BATCH..(n + 1) * A_BATCH {
                batch.put(SliceId(0), b"key", 0, 0, &n.to_le_bytes());
            }
            let seq = write(&store, &batch).await;
            store.wait_durable(seq).await.expect("durable");
        }
        let bytes = store.stats().heap.commit_bytes;
        assert!(bytes < LOG_BYTES, "{bytes} B would call for a flush whatever the records' number");
    });
    world.crash(host);
    world.restart(host);
    let replayed = run(&world, host, async move {
        let device = Device::open(&spec(), Access::ReadWrite).await.expect("device");
        let opened = Store::open(device, options(), &no_progress).await.expect("open");
        opened.replayed
    });
    // What was written while the flush ran counts for the next.
    assert!(replayed <= most + most / 4, "{replayed} of {written} records were replayed, {most} may be");
}

const PART: u64 = 16 << 10;
const ROUNDS: u64 = 60;
const A_BATCH: u64 = 100;
/// Records of [`crashed_with_much`].
const RECORDS: u64 = ROUNDS * (A_BATCH + 1) + 3;

/// Keys and their values.
type Written = BTreeMap<(SliceId, Vec<u8>), Vec<u8>>;

/// What the drive is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Media {
    /// A file, the log of which lies in so many segments at once.
    File(u16),
    Zoned,
}

/// A drive that a server with more memory crashed with, and its keys.
fn crashed_with_much(media: Media) -> (World, HostId, Written) {
    let world = World::new(1);
    let host = world.add_host(HostOptions { quirks: false, ..HostOptions::default() });
    let channels = match media {
        Media::File(channels) => channels,
        Media::Zoned => {
            let zones = ZonedModel {
                zones: 256,
                conventional: 0,
                zone_bytes: 2 * SEGMENT,
                capacity_bytes: SEGMENT,
                open_max: 3,
                active_max: 7,
            };
            world.add_zoned_device(host, Path::new("/drive"), zones);
            1
        }
    };
    let written = run(&world, host, async move {
        let device = Device::create(&spec(), 256 * SEGMENT).await.expect("file");
        let format = StoreFormat { channels, ..format() };
        Store::format(&device, &format).await.expect("format");
        // Without background work there is no checkpoint.
        let opened = Store::open(device, StoreOptions::default(), &no_progress).await.expect("open");
        let (store, mut keys) = (opened.store, BTreeMap::new());
        let mut rng = Rng::from_seed(9);
        let mut batch = Batch::new();
        for round in 0..ROUNDS {
            batch.clear();
            for n in 0..A_BATCH {
                let n = (round * 997 + n * 7) % (ROUNDS * A_BATCH / 2);
                let slice = SliceId((n % 3) as u16);
                let key = format!("key:{n:08}").into_bytes();
                if rng.chance(0.2) {
                    batch.delete(slice, &key);
                    keys.remove(&(slice, key));
                } else {
                    let value = vec![round as u8; [10, 40, 300][(n % 3) as usize]];
                    batch.put(slice, &key, 0, 0, &value);
                    keys.insert((slice, key), value);
                }
            }
            batch.tally(1, round as i64);
            let seq = write(&store, &batch).await;
            // A part ends between two commits.
            store.wait_durable(seq).await.expect("durable");
        }
        // All of these are gone, whatever part of the log says so.
        batch.clear();
        for slice in (0..3).map(SliceId) {
            batch.retire(slice, b"key:0000000");
        }
        keys.retain(|(_, key), _| !key.starts_with(b"key:0000000"));
        let seq = write(&store, &batch).await;
        store.wait_durable(seq).await.expect("durable");
        keys
    });
    world.crash(host);
    world.restart(host);
    (world, host, written)
}

/// The store holds what [`crashed_with_much`] wrote, and nothing is wrong with it.
async fn holds(store: &Store, written: &Written) {
    for ((slice, key), value) in written {
        let found = store.get(*slice, key).await.expect("reads").map(|entry| entry.value.to_vec());
        assert_eq!(found.as_ref(), Some(value), "{}", String::from_utf8_lossy(key));
    }
    assert_eq!(store.tally(1), (ROUNDS * (ROUNDS - 1) / 2) as i64);
    let report = store.check(&no_progress).await.expect("check");
    assert!(report.is_clean(), "{:?}", report.problems);
}

#[test]
fn a_log_that_memory_has_no_room_for_is_replayed_in_parts() {
    for media in [Media::File(1), Media::File(2), Media::Zoned] {
        let (world, host, written) = crashed_with_much(media);
        run(&world, host, async move {
            let device = Device::open(&spec(), Access::ReadWrite).await.expect("device");
            assert_eq!(matches!(device, Device::Zoned(_)), media == Media::Zoned);
            let options = StoreOptions { replay_bytes: Some(PART), ..StoreOptions::default() };
            let opened = open_with(&device, options).await;
            assert!(opened.parts > 4, "{media:?}: {} parts", opened.parts);
            assert!(!opened.clean);
            assert_eq!(opened.replayed, RECORDS, "{media:?}: each once, in {} parts", opened.parts);
            let store = opened.store;
            // And what a batch adds to what is just not too much.
            let bytes = store.stats().memtable_bytes;
            assert!(bytes < PART + A_BATCH * 500, "{bytes} B of memtables");
            holds(&store, &written).await;
            store.close().await.expect("close");
            let again = open_with(&device, self::options()).await;
            assert_eq!((again.clean, again.replayed, again.parts), (true, 0, 1));
        });
    }
}

/// The disk is full, or fails, wherever key tables would go: the recovery takes what memory it takes.
#[test]
fn a_log_is_replayed_at_once_where_key_tables_find_no_room() {
    const ENOSPC: i32 = 28;
    const EIO: i32 = 5;
    for errno in [ENOSPC, EIO] {
        for (writes, parts) in [(0, 2), (1, 2), (3, 3)] {
            let (world, host, written) = crashed_with_much(Media::File(2));
            // Behind the superblocks and the metadata log.
            let (path, op, range) = (None, FaultOp::Write, Some(6 * SEGMENT..256 * SEGMENT));
            world.add_fault(host, FileFault { path, op, range, skip: writes, times: u64::MAX, errno });
            let written = Rc::new(written);
            let expected = written.clone();
            run(&world, host, async move {
                let device = Device::open(&spec(), Access::ReadWrite).await.expect("device");
                let options = StoreOptions { replay_bytes: Some(PART), ..StoreOptions::default() };
                let opened = open_with(&device, options).await;
                assert_eq!(
                    (opened.replayed, opened.parts),
                    (RECORDS, parts),
                    "{errno} after {writes} writes"
                );
                holds(&opened.store, &expected).await;
                opened.store.abandon().await;
            });
            world.clear_faults(host);
            world.crash(host);
            world.restart(host);
            run(&world, host, async move {
                let device = Device::open(&spec(), Access::ReadWrite).await.expect("device");
                let opened = open_with(&device, options()).await;
                holds(&opened.store, &written).await;
            });
        }
    }
}

/// Somebody waits for it, and learns how long still: also where the log is replayed in parts, each of which leaves less.
#[test]
fn a_recovery_tells_how_far_it_is() {
    for channels in [1, 4] {
        for replay_bytes in [None, Some(PART)] {
            let (world, host, _) = crashed_with_much(Media::File(channels));
            let (told, parts) = run(&world, host, async move {
                let device = Device::open(&spec(), Access::ReadWrite).await.expect("device");
                let options = StoreOptions {
                    replay_bytes,
                    replay_window_bytes: Some(64 << 10),
                    ..StoreOptions::default()
                };
                let told = RefCell::new(Vec::new());
                let tells = |done, all| told.borrow_mut().push((done, all));
                let opened = Store::open(device, options, &tells).await.expect("open");
                opened.store.close().await.expect("close");
                (told.into_inner(), opened.parts)
            });
            assert_eq!(parts > 1, replay_bytes.is_some(), "{parts} parts");
            let all = told[0].1;
            assert!(told.iter().all(|&(done, of)| of == all && done <= all), "{told:?}");
            assert!(told.is_sorted(), "{told:?}");
            let steps: BTreeSet<u64> = told.iter().map(|&(done, _)| done).collect();
            assert!(
                steps.len() > 4 && steps.last() >= Some(&(all / 4)),
                "{channels} {replay_bytes:?}: {told:?}"
            );
        }
    }
}
