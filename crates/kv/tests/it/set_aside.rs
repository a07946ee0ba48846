//! Key tables of which part does not read: merging leaves them alone and goes on with everything else.

use std::path::Path;
use std::time::Duration;

use crate::common::{self, device, formatted, no_progress, open, put, write};
use pumice_flash::{Device, DeviceSpec};
use pumice_kv::{Batch, SliceId, Store, StoreError, record, table};
use pumice_reactor::sim::{FaultOp, HostOptions, RandomEffect, RandomFault, World};
use pumice_reactor::sleep;

const SHAPE: &str = "emu:tiny,channels=2,blocks=64,pages=64";
/// Keys of all slices, and bytes of their values, which lie in the tables.
const KEYS: u64 = 3600;
const LEN: usize = 50;
/// Of slice 2, whose tables are damaged, so many in a hundred are never written again.
const STILL_PERCENT: u64 = 20;

fn key(n: u64) -> Vec<u8> {
    format!("key{n:06}").into_bytes()
}

fn value(n: u64, version: u64) -> Vec<u8> {
    format!("{n} in version {version}, {:LEN$}", "").into_bytes()[..LEN].to_vec()
}

/// What each key holds.
struct Load(Vec<u64>);

impl Load {
    async fn new(store: &Store) -> Self {
        for n in 0..KEYS {
            put(store, (n % 3) as u16, &key(n), &value(n, 0)).await;
            if n % 600 == 599 {
                store.checkpoint().await.expect("checkpoint");
            }
        }
        // Four runs are enough for a first bottom run.
        sleep(Duration::from_secs(5)).await;
        Self(vec![0; KEYS as usize])
    }

    fn is_still(n: u64) -> bool {
        n % 3 == 2 && n % 100 < STILL_PERCENT
    }

    /// Overwrites a part of the keys, and makes key tables of that.
    async fn round(&mut self, store: &Store, version: u64) {
        for n in (version % 4..KEYS).step_by(4).filter(|n| !Self::is_still(*n)) {
            self.0[n as usize] = version;
            put(store, (n % 3) as u16, &key(n), &value(n, version)).await;
        }
        store.checkpoint().await.expect("checkpoint");
        sleep(Duration::from_millis(200)).await;
    }

    /// Compares every key; answers which are answered with an error.
    async fn lost(&self, store: &Store) -> Vec<u64> {
        let mut lost = Vec::new();
        for n in 0..KEYS {
            match store.get(SliceId((n % 3) as u16), &key(n)).await {
                Ok(entry) => {
                    assert!(entry.expect("there").value == value(n, self.0[n as usize])[..], "key {n}");
                }
                Err(StoreError::Read { .. } | StoreError::Damaged { .. }) => lost.push(n),
                Err(error) => panic!("key {n}: {error}"),
            }
        }
        lost
    }
}

/// A store of which the first page of each table of slice 2 does not read.
async fn damaged(device: &Device) -> (Store, Load) {
    let store = formatted(device).await;
    let load = Load::new(&store).await;
    store.close().await.expect("close");
    let store = Store::open(device.clone(), common::options(), &no_progress).await.expect("open").store;
    let Device::Emulated(nand) = device else { panic!("not emulated") };
    let geometry = device.geometry();
    for segment in store.heap().segments_in_use() {
        for record in store.heap().contents(segment).await.expect("contents").records {
            let footer = (record.kind == record::TABLE).then(|| table::decode_footer(&record.payload));
            if footer.flatten().is_some_and(|footer| footer.slice == SliceId(2)) {
                let page = record.ptr.addr.offset() / geometry.page_bytes;
                nand.tear_page(geometry.block(record.ptr.addr.segment().0), page);
            }
        }
    }
    store.start_background();
    (store, load)
}

/// In virtual time.
fn run(work: impl Future<Output = ()> + 'static) {
    let world = World::new(5);
    let host = world.add_host(HostOptions { cores: 1, ..HostOptions::default() });
    world.block_on(host, work).expect("the host is up");
}

#[test]
fn a_key_table_that_does_not_read_is_left_alone_and_all_others_are_merged() {
    run(async {
        let device = device(SHAPE).await;
        let (store, mut load) = damaged(&device).await;
        let bytes_before = store.stats().table_bytes;
        let mut rounds = 1..;
        for version in rounds.by_ref().take(10) {
            load.round(&store, version).await;
        }
        assert!(store.stats().tables_set_aside > 0, "none was met");
        // Nothing is to be done: what did not read is tried a few times, further and further apart.
        let (reads, written) = (store.stats().heap.reads, store.stats().heap.table_bytes);
        sleep(Duration::from_secs(600)).await;
        let (reads, written) = (store.stats().heap.reads - reads, store.stats().heap.table_bytes - written);
        println!("{reads} reads, {written} bytes written");
        assert!(reads < 100 && written < 1 << 20, "{reads} reads, {written} bytes written");

        let merges = store.stats().counters.merges;
        for version in rounds.by_ref().take(80) {
            load.round(&store, version).await;
        }
        let stats = store.stats();
        println!("{} -> {} bytes, {} runs", bytes_before, stats.table_bytes, stats.runs_max);
        assert!(stats.counters.merges > merges + 80, "{:?}", stats.counters);
        assert!(stats.tables_set_aside > 0 && stats.runs_max <= 5, "{} runs", stats.runs_max);
        // Versions that were overwritten go, although the bottom of slice 2 stays as it is.
        assert!(stats.table_bytes < 2 * bytes_before, "{bytes_before} became {}", stats.table_bytes);

        let lost = load.lost(&store).await;
        assert!(lost.iter().all(|n| Load::is_still(*n)), "{lost:?}");
        assert!(!lost.is_empty() && lost.len() < KEYS as usize / 30, "{}: {lost:?}", lost.len());
        let report = store.check(&no_progress).await.expect("check");
        let named = |problem: &String| problem.starts_with("key table ") && problem.contains("slice 2");
        assert!(report.problems.iter().any(named), "{:?}", report.problems);

        // Nothing of it is on flash: an opening finds out anew, to the same end.
        store.close().await.expect("close");
        let store = open(&device).await;
        for version in rounds.by_ref().take(20) {
            load.round(&store, version).await;
        }
        assert!(store.stats().tables_set_aside > 0);
        assert_eq!(load.lost(&store).await, lost);
        store.close().await.expect("close");
    });
}

#[test]
fn a_damaged_table_goes_when_all_its_keys_are_retired() {
    run(async {
        let device = device(SHAPE).await;
        let (store, mut load) = damaged(&device).await;
        for version in 1..10 {
            load.round(&store, version).await;
        }
        assert!(store.stats().tables_set_aside > 0, "none was met");
        let mut batch = Batch::new();
        batch.retire(SliceId(2), b"key");
        write(&store, &batch).await;
        store.checkpoint().await.expect("checkpoint");
        sleep(Duration::from_secs(30)).await;
        assert_eq!(store.stats().tables_set_aside, 0);
        for n in (2..KEYS).step_by(3) {
            assert!(store.get(SliceId(2), &key(n)).await.expect("no error is left").is_none());
        }
        let report = store.check(&no_progress).await.expect("check");
        let named = |problem: &String| problem.starts_with("key table ");
        assert!(!report.problems.iter().any(named), "{:?}", report.problems);
        store.close().await.expect("close");
    });
}

#[test]
fn what_did_not_read_for_a_while_is_merged_later() {
    let world = World::new(7);
    let host = world.add_host(HostOptions { cores: 1, ..HostOptions::default() });
    let prepared = world.block_on(host, async {
        let spec = DeviceSpec::Path("/drive".into());
        let device = Device::create(&spec, 32 << 20).await.expect("a device");
        let store = formatted(&device).await;
        let load = Load::new(&store).await;
        (store, load)
    });
    let (store, mut load) = prepared.expect("the host is up");
    let (op, effect) = (FaultOp::Read, RandomEffect::Flip);
    world.add_random_fault(host, RandomFault { path: Path::new("/drive").into(), op, chance: 1.0, effect });
    let writing = store.clone();
    let load = world.block_on(host, async move {
        for version in 1..12 {
            load.round(&writing, version).await;
        }
        load
    });
    let mut load = load.expect("the host is up");
    assert!(store.stats().tables_set_aside > 0, "none was met");
    world.clear_faults(host);
    let done = world.block_on(host, async move {
        for version in 12..100 {
            if store.stats().tables_set_aside == 0 {
                break;
            }
            sleep(Duration::from_secs(5)).await;
            load.round(&store, version).await;
        }
        assert_eq!(store.stats().tables_set_aside, 0, "{} runs", store.stats().runs_max);
        assert_eq!(load.lost(&store).await, []);
        let report = store.check(&no_progress).await.expect("check");
        assert!(report.is_clean(), "{:?}", report.problems.first());
        store.close().await.expect("close");
    });
    done.expect("the host is up");
}
