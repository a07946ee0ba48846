//! A long scan reads ahead: many blocks at a time, none behind its end, and what it does not come to may be damaged.

use std::ops::Bound;

use crate::common::*;
use bytes::Bytes;
use pumice_base::rng::Rng;
use pumice_flash::{Device, Emulated};
use pumice_kv::{Direction, SliceId, SliceSet, Store, StoreError, Want, record};
use pumice_segment::Replayed;

const KEYS: u32 = 20_000;
const VALUE: &[u8] = b"a value of some bytes, beside its key in the table";

fn key_of(n: u32) -> Vec<u8> {
    format!("key:{n:08}").into_bytes()
}

/// A store that was just opened, so that nothing is cached; its keys lie in the slices that `slice_of` says.
async fn filled(device: &Device, slice_of: impl Fn(u32) -> u16) -> Store {
    let store = formatted(device).await;
    let mut order: Vec<u32> = (0..KEYS).collect();
    Rng::from_seed(5).shuffle(&mut order);
    for n in order {
        put(&store, slice_of(n), &key_of(n), VALUE).await;
    }
    store.close().await.expect("close");
    open(device).await
}

/// Scans keys number `range`; answers those numbers in the order in which they came.
async fn numbers(
    store: &Store,
    set: SliceSet,
    range: std::ops::Range<u32>,
    direction: Direction,
) -> Vec<u32> {
    let (lower, upper) = (Bytes::from(key_of(range.start)), Bytes::from(key_of(range.end)));
    let snapshot = store.snapshot();
    let mut scan =
        store.scan(&snapshot, set, Bound::Included(lower), Bound::Excluded(upper), direction, Want::Values);
    let mut found = Vec::new();
    while let Some((key, entry)) = scan.next().await.expect("scan") {
        assert_eq!(entry.value, VALUE);
        found.push(std::str::from_utf8(&key[4..]).expect("digits").parse().expect("a number"));
    }
    if direction == Direction::Backward {
        found.reverse();
    }
    found
}

struct Reads {
    blocks: u64,
    bytes: u64,
}

fn reads(store: &Store) -> Reads {
    let stats = store.stats();
    Reads { blocks: stats.counters.block_reads, bytes: stats.heap.read_bytes }
}

#[test]
fn reads_grow_with_the_scan_and_stop_at_its_end() {
    pumice_reactor::block_on(async {
        for (slices, set) in [(1, SliceSet::One(SliceId(0))), (3, SliceSet::All)] {
            for direction in [Direction::Forward, Direction::Backward] {
                let device = device("emu:small").await;
                let store = filled(&device, |n| (n % slices) as u16).await;
                let runs = u64::from(slices) * store.stats().runs_max as u64;
                let tables = store.stats().table_bytes;
                // Ranges first, while nothing was read; then everything.
                for range in [9_000..9_100, 15_000..16_000, 0..KEYS] {
                    let before = reads(&store);
                    let found = numbers(&store, set, range.clone(), direction).await;
                    assert!(found.iter().copied().eq(range.clone()), "{range:?} {direction:?}");
                    let after = reads(&store);
                    let (blocks, bytes) = (after.blocks - before.blocks, after.bytes - before.bytes);
                    let share = tables * range.len() as u64 / u64::from(KEYS);
                    // 16 KiB at a time, the first few of each run and each table's last shorter.
                    let most = share / (12 << 10) + 6 * runs;
                    let what =
                        format!("{range:?} {direction:?} of {slices} slices, {runs} runs, {share} bytes");
                    assert!(blocks <= most, "{what}: {blocks} reads, {most} allowed");
                    // Whole pages of blocks of 4 KiB at both ends of the range, and reads that end behind it: of each run.
                    let most = share + share / 2 + runs * (44 << 10);
                    assert!(bytes <= most, "{what}: {bytes} bytes, {most} allowed");
                }
                store.close().await.expect("close");
            }
        }
    });
}

fn nand(device: &Device) -> &Emulated {
    match device {
        Device::Emulated(nand) => nand,
        _ => panic!("not emulated"),
    }
}

/// The key tables, wherever they lie.
async fn tables(store: &Store) -> Vec<Replayed> {
    let mut found = Vec::new();
    for segment in store.heap().segments_in_use() {
        let contents = store.heap().contents(segment).await.expect("contents");
        found.extend(contents.records.into_iter().filter(|record| record.kind == record::TABLE));
    }
    found
}

/// The piece that is read ahead contains it, so the block that is wanted has to be read alone.
#[test]
fn damage_is_met_where_it_lies_and_not_before() {
    pumice_reactor::block_on(async {
        for direction in [Direction::Forward, Direction::Backward] {
            let device = device("emu:small").await;
            let store = filled(&device, |_| 0).await;
            let geometry = device.geometry();
            // Those that were merged already, too: they do not matter.
            let mut long = tables(&store).await;
            long.retain(|table| table.ptr.len > 64 << 10);
            assert!(!long.is_empty());
            for table in long {
                let block = geometry.block(table.ptr.addr.segment().0);
                let page = (table.ptr.addr.offset() + table.ptr.len / 2) / geometry.page_bytes;
                nand(&device).tear_page(block, page);
            }
            let snapshot = store.snapshot();
            let set = SliceSet::One(SliceId(0));
            let mut scan =
                store.scan(&snapshot, set, Bound::Unbounded, Bound::Unbounded, direction, Want::Values);
            let mut found = Vec::new();
            let error = loop {
                match scan.next().await {
                    Ok(Some((key, _))) => found.push(key),
                    Ok(None) => panic!("the torn page was not met"),
                    Err(error) => break error,
                }
            };
            assert!(matches!(error, StoreError::Read { .. } | StoreError::Damaged { .. }), "{error}");
            let mut expected: Vec<_> = (0..KEYS).map(key_of).collect();
            if direction == Direction::Backward {
                expected.reverse();
            }
            assert!(found.iter().zip(&expected).all(|(found, expected)| found == expected));
            // What comes before the damage, but for the entries of a block or two.
            let last = found.last().expect("some keys").clone();
            let error = store.get(SliceId(0), &last).await.err();
            assert!(error.is_none(), "{error:?}");
            let next = &expected[found.len() + 200];
            let mut damaged = 0;
            for key in &expected[found.len()..found.len() + 200] {
                damaged += u32::from(store.get(SliceId(0), key).await.is_err());
            }
            assert!(damaged > 0, "the scan ended {} keys in, before {next:?}", found.len());
            drop(snapshot);
        }
    });
}

/// Of values that do not lie beside their keys a short scan reads few that it does not hand out, a long one many at a time:
/// of small ones hundreds, of larger ones hundreds of KiB.
#[test]
fn values_are_read_ahead_by_what_the_scan_went_over() {
    pumice_reactor::block_on(async {
        for (keys, value_bytes) in [(10_000, 1000), (1_400, 8 << 10)] {
            let device = device("emu:small").await;
            let store = formatted(&device).await;
            for n in 0..keys {
                put(&store, 0, &key_of(n), &vec![n as u8; value_bytes]).await;
            }
            store.close().await.expect("close");
            let store = open(&device).await;
            let one = SliceSet::One(SliceId(0));
            let all_bytes = u64::from(keys) * value_bytes as u64;
            // A segment is of 256 KiB: what lies in one is read at once.
            let few = 100 * value_bytes as u64;
            for (wanted, bytes_most, reads_most) in [
                (100, few + 400 * value_bytes as u64, 32),
                (keys, all_bytes * 5 / 4, 3 * all_bytes / (256 << 10)),
            ] {
                let (before, read) = (store.stats().counters.value_reads, reads(&store).bytes);
                let snapshot = store.snapshot();
                let (from, to) = (Bound::Unbounded, Bound::Unbounded);
                let mut scan = store.scan(&snapshot, one, from, to, Direction::Forward, Want::Values);
                for n in 0..wanted {
                    let (key, entry) = scan.next().await.expect("scan").expect("it has so many keys");
                    assert_eq!(
                        (&key[..], &entry.value[..]),
                        (&key_of(n)[..], &vec![n as u8; value_bytes][..])
                    );
                }
                let (now, read) = (store.stats().counters.value_reads - before, reads(&store).bytes - read);
                let what = format!("{wanted} values of {value_bytes} B: {now} reads, {read} bytes");
                assert!(read < bytes_most && now < reads_most, "{what}");
            }
            store.close().await.expect("close");
        }
    });
}
