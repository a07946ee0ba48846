//! What cleaning reads beside its victims: key blocks that memory does not hold.

use std::time::Duration;

use crate::common::*;
use pumice_base::rng::Rng;
use pumice_flash::{Device, DeviceSpec};
use pumice_kv::{Batch, SliceId, Store, StoreFormat, StoreOptions};
use pumice_reactor::now;
use pumice_reactor::sim::{DiskModel, HostOptions, World};

const KEYS: u64 = 60_000;
const OVERWRITES: u64 = 60_000;
const VALUE_BYTES: usize = 200;
const READ: Duration = Duration::from_millis(1);

/// So long that key tables are far larger than the memory for them.
fn key(n: u64) -> Vec<u8> {
    let mut rng = Rng::from_seed(n);
    let mut key = n.to_be_bytes().to_vec();
    key.extend((0..300).map(|_| rng.below(256) as u8));
    key
}

/// Runs the test in virtual time, on a drive of 96 segments whose reads take long.
fn with_slow_reads(options: StoreOptions, test: impl AsyncFnOnce(Store) + 'static) {
    let world = World::new(7);
    let disk = DiskModel { read_ns: READ.as_nanos() as u64, ..DiskModel::default() };
    let host = world.add_host(HostOptions { quirks: false, disk, ..HostOptions::default() });
    let test = async move {
        let spec: DeviceSpec = "/drive".parse().expect("spec");
        let device = Device::create(&spec, 96 << 20).await.expect("file");
        let format = StoreFormat { segment_bytes: Some(1 << 20), ..format() };
        Store::format(&device, &format).await.expect("format");
        test(open_with(&device, options).await.store).await;
    };
    world.block_on(host, test).unwrap_or_else(|halt| panic!("{halt}"));
}

/// A drive whose reads take long, and key tables that memory does not hold: one after the other cleaning would wait for each of its
/// questions.
#[test]
fn cleaning_asks_for_key_blocks_side_by_side() {
    let small =
        StoreOptions { memory_bytes: 20 << 20, memtable_bytes: Some(768 << 10), ..StoreOptions::default() };
    with_slow_reads(small, async |store| {
        let mut batch = Batch::new();
        let mut order: Vec<u64> = (0..KEYS).collect();
        Rng::from_seed(3).shuffle(&mut order);
        for n in order {
            batch.clear();
            batch.put(SliceId((n % 3) as u16), &key(n), 0, 0, &[n as u8; VALUE_BYTES]);
            write(&store, &batch).await;
        }
        let (began, reads) = (now(), store.stats().counters.block_reads);
        let mut rng = Rng::from_seed(4);
        for _ in 0..OVERWRITES {
            let n = rng.below(KEYS);
            batch.clear();
            batch.put(SliceId((n % 3) as u16), &key(n), 0, 0, &[n as u8; VALUE_BYTES]);
            write(&store, &batch).await;
        }
        let (took, stats) = (began.elapsed(), store.stats());
        let blocks = stats.counters.block_reads - reads;
        println!("{took:?} for {blocks} blocks, {} segments", stats.counters.cleaned_segments);
        assert!(
            stats.counters.cleaned_segments > 20 && blocks > 200,
            "{} segments, {blocks} blocks",
            stats.counters.cleaned_segments
        );
        assert!(
            took < READ * blocks as u32 * 3 / 4,
            "{took:?} for {blocks} blocks, which is one after the other"
        );
    });
}

fn large_value(n: u32, round: u32) -> Vec<u8> {
    let mut value = vec![0; 1_500_000 + (n as usize * 7919) % 100_000];
    Rng::from_seed(u64::from(n) << 32 | u64::from(round)).fill(&mut value);
    value
}

/// Values of several pieces that are overwritten in the order in which they were written: their segments die whole, and whose their
/// pieces were is in the pieces' heads.
#[test]
fn cleaning_reads_little_of_large_values_that_are_dead() {
    pumice_reactor::block_on(async {
        let store = formatted(&device("emu:small,channels=4,blocks=64").await).await;
        let raw = store.space().raw;
        let (mut written, mut round) = (0, 0);
        while written < 4 * raw {
            round += 1;
            for n in 0..(raw / 4_000_000) as u32 {
                let value = large_value(n, round);
                put_large(&store, 0, &key(u64::from(n)), 0, &value).await;
                written += value.len() as u64;
            }
        }
        let stats = store.stats();
        let cleaned = stats.counters.cleaned_segments * u64::from(store.heap().segment_bytes());
        assert!(cleaned > raw, "{cleaned} B were cleaned of {raw}");
        let read = stats.heap.read_bytes;
        assert!(read < cleaned / 10, "{read} B were read to clean {cleaned}");
        for n in 0..(raw / 4_000_000) as u32 {
            let entry = store.get(SliceId(0), &key(u64::from(n))).await.expect("get").expect("there");
            assert!(value(&store, &entry).await == large_value(n, round), "value {n}");
        }
        store.close().await.expect("close");
    });
}

/// A drive whose reads take long, and large values that die as fast as they are written: a frame says where the next one begins, so
/// one victim's heads are read one after the other, and were it one victim after the other users would wait for each read.
#[test]
fn heads_of_several_victims_are_read_side_by_side() {
    with_slow_reads(StoreOptions::default(), async |store| {
        for n in 0..20 {
            put_large(&store, 0, &key(u64::from(n)), 0, &large_value(n, 0)).await;
        }
        let (began, before) = (now(), store.stats());
        for n in 0..400 {
            put_large(&store, 0, &key(u64::from(n % 20)), 0, &large_value(n % 20, 1)).await;
        }
        let (took, after) = (began.elapsed(), store.stats());
        let cleaned = after.counters.cleaned_segments - before.counters.cleaned_segments;
        let reads = after.heap.reads - before.heap.reads;
        println!("{took:?} for {reads} reads, {cleaned} segments");
        assert!(cleaned > 400 && reads > 1600, "{cleaned} segments, {reads} reads");
        assert!(
            took < READ * reads as u32 * 3 / 4,
            "{took:?} for {reads} reads, which is one after the other"
        );
        assert!(reads < 4 * cleaned, "{reads} reads for {cleaned} segments: some were read ahead in vain");
    });
}

/// What is alive of large values is read, and has a head where it is written again.
#[test]
fn pieces_that_were_moved_are_asked_about_by_their_heads_too() {
    pumice_reactor::block_on(async {
        let store = formatted(&device("emu:small,channels=4,blocks=64").await).await;
        let raw = store.space().raw;
        let keys = (raw / 2_500_000) as u32;
        let mut rounds = vec![0; keys as usize];
        let mut rng = Rng::from_seed(5);
        for n in 0..keys {
            put_large(&store, 0, &key(u64::from(n)), 0, &large_value(n, 0)).await;
        }
        for round in 1..8 * keys {
            // Every fifth key is never overwritten: cleaning must move it.
            let n = rng.below(u64::from(keys)) as u32;
            if !n.is_multiple_of(5) {
                rounds[n as usize] = round;
                put_large(&store, 0, &key(u64::from(n)), 0, &large_value(n, round)).await;
            }
        }
        let stats = store.stats();
        assert!(stats.counters.moved_bytes > 2_000_000, "{:?}", stats.counters);
        let mut heads = 0;
        for segment in store.heap().segments_in_use() {
            let mut sweep = store.heap().sweep(segment);
            if sweep.stream() == pumice_segment::Stream::Large {
                while let Some(contents) = sweep.next().await.expect("sweep") {
                    heads += contents.heads.len();
                    assert!(contents.records.is_empty() && contents.damage.is_empty(), "{segment}");
                }
            }
        }
        assert!(heads > 2 * keys as usize, "{heads} heads");
        for n in 0..keys {
            let entry = store.get(SliceId(0), &key(u64::from(n))).await.expect("get").expect("there");
            assert!(value(&store, &entry).await == large_value(n, rounds[n as usize]), "value {n}");
        }
        let report = store.check(&no_progress).await.expect("check");
        assert!(report.is_clean(), "{:?}", report.problems.first());
        store.close().await.expect("close");
    });
}

/// Values that are overwritten in the order in which they were written, but for a few: nearly all that cleaning meets is dead, which
/// the frames' summaries tell. What is alive is read and moved.
#[test]
fn cleaning_reads_little_of_a_log_that_is_dead() {
    const AT_ONCE: u64 = 16;
    const LEN: usize = 6000;
    const STILL: u64 = 50;
    fn short_key(n: u64) -> Vec<u8> {
        format!("key {n:08}").into_bytes()
    }
    fn content(n: u64, round: u64) -> Vec<u8> {
        let mut value = vec![0; LEN];
        Rng::from_seed(n << 32 | round).fill(&mut value);
        value
    }
    pumice_reactor::block_on(async {
        let store = formatted(&device("emu:small,channels=1,blocks=64").await).await;
        let keys = store.space().raw / 8 * 5 / LEN as u64;
        let rounds = 12;
        for round in 0..rounds {
            let written: Vec<u64> = (0..keys).filter(|n| round == 0 || n % STILL > 0).collect();
            for together in written.chunks(AT_ONCE as usize) {
                let mut batch = Batch::new();
                for &n in together {
                    batch.put(SliceId((n % 3) as u16), &short_key(n), 0, 0, &content(n, round));
                }
                write(&store, &batch).await;
            }
        }
        let stats = store.stats();
        let cleaned = stats.counters.cleaned_segments * u64::from(store.heap().segment_bytes());
        assert!(cleaned > store.space().raw, "{cleaned} B were cleaned");
        assert!(stats.counters.moved_records > 2, "{} were moved", stats.counters.moved_records);
        let read = stats.heap.read_bytes;
        assert!(read < cleaned / 3, "{read} B were read to clean {cleaned}");
        for n in 0..keys {
            let round = if n.is_multiple_of(STILL) { 0 } else { rounds - 1 };
            let entry = store.get(SliceId((n % 3) as u16), &short_key(n)).await.expect("get").expect("there");
            assert!(entry.value == content(n, round), "key {n}");
        }
        let report = store.check(&no_progress).await.expect("check");
        assert!(report.is_clean(), "{:?}", report.problems.first());
        store.close().await.expect("close");
    });
}

/// Values that lie beside their keys, in frames of which summaries say nothing: what is won of their segments is what users may write,
/// and is counted.
#[test]
fn what_is_won_of_short_values_is_counted_though_nobody_asks_about_them() {
    pumice_reactor::block_on(async {
        let store = formatted(&device("emu:small,channels=1,blocks=64").await).await;
        let raw = store.space().raw;
        let (mut written, mut round) = (0, 0u8);
        while written < 3 * raw {
            round = round.wrapping_add(1);
            for first in (0..20_000u32).step_by(1000) {
                let mut batch = Batch::new();
                for n in first..first + 1000 {
                    batch.put(SliceId((n % 3) as u16), &n.to_be_bytes(), 0, 0, &[round; 60]);
                }
                written += batch.bytes() as u64;
                write(&store, &batch).await;
            }
        }
        let stats = store.stats();
        let cleaned = stats.counters.cleaned_segments * u64::from(store.heap().segment_bytes());
        assert!(cleaned > raw, "{cleaned} B were cleaned of {raw}");
        let won = stats.counters.victim_bytes;
        assert!(won > cleaned / 5 * 4, "{won} B were seen in {cleaned}");
        for n in 0..20_000u32 {
            let entry = store.get(SliceId((n % 3) as u16), &n.to_be_bytes()).await.expect("get");
            assert!(entry.expect("there").value == [round; 60][..], "key {n}");
        }
        store.close().await.expect("close");
    });
}
