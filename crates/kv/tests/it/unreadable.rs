//! Cleaning meets what does not read: for a moment, for good in a value, for good in a key table.

use std::path::Path;
use std::time::Duration;

use crate::common::{self, delete, device, formatted, get, no_progress, open, put};
use pumice_base::rng::Rng;
use pumice_flash::{Device, DeviceSpec, Emulated, Fault, Operation};
use pumice_kv::{SliceId, Store, StoreError, record, table};
use pumice_reactor::sim::{FaultOp, HostOptions, RandomEffect, RandomFault, World};
use pumice_reactor::{sleep, timeout};
use pumice_segment::{Replayed, Stream};

const KEYS: u64 = 1500;
const LEN: usize = 8000;
const SHAPE: &str = "emu:tiny,channels=2,blocks=64,pages=64";

fn key(n: u64) -> Vec<u8> {
    format!("key{n:06}").into_bytes()
}

fn value(n: u64, version: u64) -> Vec<u8> {
    let mut value = vec![0; LEN];
    Rng::from_seed(n + version * KEYS).fill(&mut value);
    value
}

fn nand(device: &Device) -> &Emulated {
    match device {
        Device::Emulated(nand) => nand,
        _ => panic!("not emulated"),
    }
}

/// Keys that are never overwritten: one in a segment or so, which is why their segments become victims all the same.
fn is_still(n: u64) -> bool {
    n % 30 == 7
}

/// Keys of slices 0 and 1, and the version that each has.
struct Load {
    versions: Vec<u64>,
    rng: Rng,
    steps: u64,
}

impl Load {
    async fn new(store: &Store) -> Self {
        for n in 0..KEYS {
            put(store, (n % 2) as u16, &key(n), &value(n, 0)).await;
        }
        Self { versions: vec![0; KEYS as usize], rng: Rng::from_seed(11), steps: 0 }
    }

    /// Overwrites a key that is not still.
    async fn step(&mut self, store: &Store) {
        self.steps += 1;
        let mut n = self.rng.below(KEYS);
        while is_still(n) {
            n = self.rng.below(KEYS);
        }
        self.versions[n as usize] = self.steps;
        put(store, (n % 2) as u16, &key(n), &value(n, self.steps)).await;
    }

    /// Steps until `done`, within a bound that a healthy store stays far below.
    async fn until(&mut self, what: &str, store: &Store, mut done: impl FnMut(&Store) -> bool) {
        for _ in 0..20 * KEYS {
            if done(store) {
                return;
            }
            self.step(store).await;
        }
        panic!("{what} does not happen: {:?}, {}", store.stats().counters, store.space());
    }

    /// Compares all keys but some.
    async fn compare(&self, store: &Store, but: &[u64]) {
        for n in (0..KEYS).filter(|n| !but.contains(n)) {
            let held = get(store, (n % 2) as u16, &key(n)).await.expect("there").2;
            assert!(held == value(n, self.versions[n as usize]), "key {n}");
        }
    }
}

/// The records that `wanted` picks, wherever they lie.
async fn records(store: &Store, wanted: impl Fn(Stream, &Replayed) -> bool) -> Vec<Replayed> {
    let mut found = Vec::new();
    for segment in store.heap().segments_in_use() {
        let contents = store.heap().contents(segment).await.expect("contents");
        found.extend(contents.records.into_iter().filter(|record| wanted(contents.stream, record)));
    }
    found
}

/// Makes the page unreadable that holds byte `at` of a record.
fn tear(device: &Device, torn: &Replayed, at: u32) {
    let geometry = device.geometry();
    let block = geometry.block(torn.ptr.addr.segment().0);
    nand(device).tear_page(block, (torn.ptr.addr.offset() + at) / geometry.page_bytes);
}

#[test]
fn errors_that_pass_cost_nothing() {
    pumice_reactor::block_on(async {
        let device = device(SHAPE).await;
        let store = formatted(&device).await;
        let mut load = Load::new(&store).await;
        load.until("cleaning", &store, |store| store.stats().counters.cleaned_segments > 3).await;
        for _ in 0..8 {
            // The read of a whole window, and then those of its first pages.
            (1..=12).for_each(|n| nand(&device).fail_at(Operation::Read, n, Fault::Failed));
            let before = store.stats().counters.cleaned_segments;
            let cleaned = |store: &Store| store.stats().counters.cleaned_segments > before + 4;
            load.until("cleaning among errors", &store, cleaned).await;
        }
        // What was planned and did not strike yet is used up.
        for n in 0..100 {
            let _ = store.get(SliceId((n % 2) as u16), &key(n)).await;
        }
        load.compare(&store, &[]).await;
        let report = store.check(&no_progress).await.expect("check");
        assert!(report.is_clean(), "{:?}", report.problems.first());
        assert_eq!(store.space().bad, 0, "nothing is kept for good: {}", store.space());
    });
}

#[test]
fn a_value_that_does_not_read_is_answered_with_an_error_until_it_is_overwritten_and_then_its_space_comes_back()
 {
    pumice_reactor::block_on(async {
        let device = device(SHAPE).await;
        let store = formatted(&device).await;
        let mut load = Load::new(&store).await;
        store.checkpoint().await.expect("checkpoint");
        let is_ours = |record: &Replayed| {
            record::decode_key(&record.payload).is_some_and(|owner| record.payload[owner.key] == key(7)[..])
        };
        let ours = records(&store, |_, record| is_ours(record)).await;
        assert_eq!(ours.len(), 1, "written once");
        tear(&device, &ours[0], LEN as u32 / 2);
        load.until("a kept victim", &store, |store| store.stats().counters.kept_victims > 0).await;

        let mut lost = Vec::new();
        for n in (0..KEYS).filter(|n| is_still(*n)) {
            match store.get(SliceId((n % 2) as u16), &key(n)).await {
                Ok(entry) => assert!(entry.expect("there").value == value(n, 0), "key {n}"),
                Err(StoreError::Read { what, .. } | StoreError::Damaged { what, .. }) => {
                    assert!(what.contains(&format!("key{n:06}")), "it names the key: {what}");
                    lost.push(n);
                }
                Err(error) => panic!("key {n}: {error}"),
            }
        }
        assert_eq!(lost, [7]);
        load.compare(&store, &lost).await;
        let report = store.check(&no_progress).await.expect("check");
        for n in &lost {
            let name = format!("key{n:06}");
            assert!(
                report.problems.iter().any(|problem| problem.contains(&name)),
                "{name}: {:?}",
                report.problems
            );
        }
        let space = store.space();
        assert!(space.bad > 0 && space.accounted() == space.raw, "{space}");
        let kept = store.stats().counters.kept_victims;
        assert!(kept < 20, "a kept victim is left alone for a while: {kept}");

        // The next opening tries again, to the same end.
        store.close().await.expect("close");
        let store = open(&device).await;
        load.until("kept again", &store, |store| store.stats().counters.kept_victims > 0).await;
        assert!(store.get(SliceId(1), &key(7)).await.is_err());

        for &n in &lost {
            delete(&store, (n % 2) as u16, &key(n)).await;
            assert!(get(&store, (n % 2) as u16, &key(n)).await.is_none(), "a delete takes the error away");
        }
        load.until("the victim is offered again", &store, |store| store.space().bad == 0).await;
        let cleaned = store.stats().counters.cleaned_segments;
        let much = |store: &Store| store.stats().counters.cleaned_segments > cleaned + 200;
        load.until("more cleaning", &store, much).await;
        load.compare(&store, &lost).await;
        let report = store.check(&no_progress).await.expect("check");
        assert!(report.is_clean(), "{:?}", report.problems.first());
        assert_eq!(store.space().bad, 0);
    });
}

#[test]
fn what_did_not_read_for_a_while_is_looked_at_again() {
    let world = World::new(7);
    let host = world.add_host(HostOptions { cores: 1, ..HostOptions::default() });
    let path = Path::new("/drive");
    let prepared = world.block_on(host, async {
        let spec = DeviceSpec::Path("/drive".into());
        let device = Device::create(&spec, 32 << 20).await.expect("a device");
        let store = formatted(&device).await;
        let mut load = Load::new(&store).await;
        load.until("cleaning", &store, |store| store.stats().counters.cleaned_segments > 3).await;
        (store, load)
    });
    let (store, mut load) = prepared.expect("the host is up");
    let (op, effect) = (FaultOp::Read, RandomEffect::Flip);
    world.add_random_fault(host, RandomFault { path: path.into(), op, chance: 1.0, effect });
    let writing = store.clone();
    let load = world.block_on(host, async move {
        load.until("kept victims", &writing, |store| store.stats().counters.kept_victims > 3).await;
        load
    });
    let mut load = load.expect("the host is up");
    assert!(store.space().bad > 0, "{}", store.space());
    world.clear_faults(host);
    let done = world.block_on(host, async move {
        for _ in 0..100 {
            if store.space().bad == 0 {
                break;
            }
            sleep(Duration::from_secs(60)).await;
            for _ in 0..KEYS {
                load.step(&store).await;
            }
        }
        assert_eq!(store.space().bad, 0, "{}", store.space());
        load.compare(&store, &[]).await;
        let report = store.check(&no_progress).await.expect("check");
        assert!(report.is_clean(), "{:?}", report.problems.first());
    });
    done.expect("the host is up");
}

#[test]
fn a_page_of_a_key_table_costs_the_keys_in_it_and_no_others() {
    pumice_reactor::block_on(async {
        let device = device(SHAPE).await;
        let store = formatted(&device).await;
        let small = 300u64;
        for n in 0..small {
            put(&store, 2, &key(n), &value(n, 0)[..50]).await;
        }
        store.checkpoint().await.expect("checkpoint");
        // Nothing more is written to slice 2, so that no merge drops or rewrites its table.
        let mut load = Load::new(&store).await;
        let is_ours = |record: &Replayed| {
            record.kind == record::TABLE
                && table::decode_footer(&record.payload).is_some_and(|footer| footer.slice == SliceId(2))
        };
        let ours = records(&store, |_, record| is_ours(record)).await;
        tear(&device, ours.first().expect("a table of slice 2"), 0);
        load.until("a kept victim", &store, |store| store.stats().counters.kept_victims > 0).await;
        // Key blocks stay in memory where all of them fit: a store that was opened anew has to read them.
        store.close().await.expect("close");
        let store = open(&device).await;
        let (mut right, mut lost) = (0, 0);
        for n in 0..small {
            match store.get(SliceId(2), &key(n)).await {
                Ok(entry) => {
                    assert!(entry.expect("there").value == value(n, 0)[..50], "key {n}");
                    right += 1;
                }
                Err(StoreError::Read { .. } | StoreError::Damaged { .. }) => lost += 1,
                Err(error) => panic!("key {n}: {error}"),
            }
        }
        assert!(lost > 0 && lost < small / 2 && right + lost == small, "{lost} of {small} are lost");
        load.compare(&store, &[]).await;
        assert!(!store.check(&no_progress).await.expect("check").is_clean());
    });
}

#[test]
fn runs_do_not_pile_up_behind_a_key_table_that_does_not_read() {
    pumice_reactor::block_on(async {
        let device = device(SHAPE).await;
        let store = formatted(&device).await;
        // A table of every slice, torn: whatever is merged into the bottom meets it.
        for n in 0..900u64 {
            put(&store, (n % 3) as u16, &key(n), &value(n, 0)[..50]).await;
        }
        store.checkpoint().await.expect("checkpoint");
        store.close().await.expect("close");
        let store = Store::open(device.clone(), common::options(), &no_progress).await.expect("open").store;
        for table in records(&store, |_, record| record.kind == record::TABLE).await {
            tear(&device, &table, 0);
        }
        store.start_background();
        for round in 1..=80 {
            for n in (0..900u64).step_by(9) {
                put(&store, (n % 3) as u16, &key(n), &value(n, round)[..50]).await;
            }
            store.checkpoint().await.expect("checkpoint");
            sleep(Duration::from_millis(10)).await;
        }
        let merging = async {
            while store.stats().runs_max > 24 {
                sleep(Duration::from_millis(50)).await;
            }
        };
        let merged = timeout(Duration::from_secs(180), merging).await;
        assert!(merged.is_ok(), "still {} runs after three minutes", store.stats().runs_max);
        for n in (0..900u64).step_by(9) {
            let entry = store.get(SliceId((n % 3) as u16), &key(n)).await.expect("it was written again");
            assert!(entry.expect("there").value == value(n, 80)[..50], "key {n}");
        }
    });
}

/// Cleaning asks by the heads of pieces, which read: that the rest does not shows where a piece is moved.
#[test]
fn a_piece_of_a_large_value_that_does_not_read_is_kept_and_told_of() {
    const LARGE: usize = 400_000;
    let large = |n: u64, version: u64| {
        let mut value = vec![0; LARGE];
        Rng::from_seed(n + version * 1000).fill(&mut value);
        value
    };
    pumice_reactor::block_on(async {
        let device = device("emu:small,channels=2,blocks=64").await;
        let store = formatted(&device).await;
        let keys = store.space().raw / LARGE as u64 / 2;
        for n in 0..keys {
            common::put_large(&store, 0, &key(n), 0, &large(n, 0)).await;
        }
        store.checkpoint().await.expect("checkpoint");
        let is_ours = |record: &Replayed| {
            record.kind == record::PIECE
                && record::decode_key(&record.payload)
                    .is_some_and(|owner| record.payload[owner.key] == key(7)[..])
        };
        let ours = records(&store, |_, record| is_ours(record)).await;
        tear(&device, &ours[0], LARGE as u32 / 2);
        // So that it is a victim soon.
        store.heap().set_live(ours[0].ptr.addr.segment(), 0);
        // All but every tenth are overwritten, over and over.
        let mut versions = vec![0; keys as usize];
        for version in 1..40 {
            for n in (0..keys).filter(|n| n % 10 != 7) {
                versions[n as usize] = version;
                common::put_large(&store, 0, &key(n), 0, &large(n, version)).await;
            }
            if store.stats().counters.kept_victims > 0 {
                break;
            }
        }
        assert!(store.stats().counters.kept_victims > 0, "{:?}", store.stats().counters);
        for n in 0..keys {
            let entry = store.get(SliceId(0), &key(n)).await.expect("get").expect("there");
            let whole = entry.large.clone().expect("large");
            let mut reader = store.read_large(&whole, 0..whole.len());
            let (mut value, mut error) = (Vec::new(), None);
            loop {
                match reader.next().await {
                    Ok(Some(part)) => value.extend_from_slice(&part),
                    Ok(None) => break,
                    Err(found) => {
                        error = Some(found);
                        break;
                    }
                }
            }
            if n == 7 {
                let error = error.expect("it does not read").to_string();
                assert!(error.contains("key000007"), "{error}");
            } else {
                assert!(error.is_none() && value == large(n, versions[n as usize]), "value {n}: {error:?}");
            }
        }
        delete(&store, 0, &key(7)).await;
        store.checkpoint().await.expect("checkpoint");
        let report = store.check(&no_progress).await.expect("check");
        let named = report.problems.iter().any(|problem| problem.contains("key000007"));
        assert!(!named, "{:?}", report.problems);
    });
}
