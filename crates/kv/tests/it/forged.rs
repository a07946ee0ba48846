//! Bytes with right checksums that no Pumice wrote: whoever opens or reads such a drive is told, and nothing panics.

use std::ops::Bound;
use std::time::Duration;

use crate::common::*;
use bytes::Bytes;
use pumice_base::checksum::crc32c_seeded;
use pumice_flash::Device;
use pumice_kv::block::Block;
use pumice_kv::bounds::{Before, Behind};
use pumice_kv::codec::put_varint;
use pumice_kv::entry::{Body, KeyEntry};
use pumice_kv::manifest::{self, Change};
use pumice_kv::table::{TableBuilder, TableMeta};
use pumice_kv::{Direction, OpenError, SliceId, SliceSet, Store, Want, record};
use pumice_reactor::sleep;
use pumice_segment::{Addr, AppendClass, Group, Heap, HeapOptions, MetaEdit, Outline, RecordIn, RecordPtr};

const SLICE: SliceId = SliceId(1);

async fn heap_of(device: &Device) -> Heap {
    let mut opened = Heap::open(device.clone(), HeapOptions::default(), &no_progress).await.expect("open");
    while opened.replay.next().await.expect("replay").is_some() {}
    opened.heap
}

async fn closed_store() -> Device {
    let device = device("emu:small").await;
    let store = formatted(&device).await;
    put(&store, 1, b"key", b"value").await;
    store.close().await.expect("close");
    device
}

async fn refused(device: &Device) -> String {
    match Store::open(device.clone(), options(), &no_progress).await {
        Ok(_) => panic!("the store opens"),
        Err(error) => error.to_string(),
    }
}

fn meta(id: u64, min_key: &'static [u8], max_key: &'static [u8]) -> TableMeta {
    TableMeta {
        id,
        slice: SLICE,
        ptr: RecordPtr { addr: Addr(9 << 32 | 4096), len: 70_000 },
        min_key: Bytes::from_static(min_key),
        max_key: Bytes::from_static(max_key),
        entries: 1000,
        tombstones: 3,
        max_seq: 1 << 40,
        earliest_expiry_ms: 0,
        record_bytes: 1 << 20,
        head_at: 60_000,
        head_len: 9_000,
    }
}

#[test]
fn a_manifest_that_cannot_be_is_refused() {
    let add = |order, meta| Change::Add(order, meta);
    let table = |change: fn(&mut TableMeta)| {
        let mut meta = meta(7, b"a", b"m");
        change(&mut meta);
        vec![add(1, meta)]
    };
    let key = Bytes::from_static(b"z");
    let forgeries = [
        ("tables that overlap", vec![add(1, meta(7, b"a", b"m")), add(1, meta(8, b"b", b"z"))]),
        ("one inside another", vec![add(1, meta(7, b"a", b"z")), add(1, meta(8, b"b", b"c"))]),
        ("one around another", vec![add(1, meta(7, b"b", b"c")), add(1, meta(8, b"a", b"z"))]),
        ("the last run", vec![add(u64::MAX, meta(7, b"a", b"m"))]),
        ("bounds the wrong way", table(|it| it.min_key = Bytes::from_static(b"n"))),
        ("a slice that is not there", table(|it| it.slice = SliceId(3))),
        ("more entries than bytes", table(|it| it.entries = u64::MAX)),
        ("more tombstones than entries", table(|it| it.tombstones = 1001)),
        ("more bytes than there are", table(|it| it.record_bytes = u64::MAX)),
        ("a head behind its end", table(|it| it.head_at = u32::MAX)),
        ("a long head", table(|it| it.head_len = u32::MAX)),
        ("the last number", table(|it| it.max_seq = u64::MAX)),
        (
            "trimmed beyond its end",
            vec![add(1, meta(7, b"b", b"m")), Change::Trim(SLICE, 7, Bytes::from_static(b"n"))],
        ),
        (
            "trimmed to more than it was",
            vec![add(1, meta(7, b"b", b"m")), Change::Trim(SLICE, 7, Bytes::from_static(b"a"))],
        ),
        (
            "moved to less than it is",
            vec![
                add(1, meta(7, b"b", b"m")),
                Change::Move(SLICE, 7, RecordPtr { addr: Addr(9 << 32), len: 60_100 }),
            ],
        ),
        ("a prefix of no slice", vec![Change::Retire(SliceId(3), key.clone(), 900)]),
        ("forgotten by no slice", vec![Change::Retired(SliceId(3), key.clone())]),
        ("retired by the last number", vec![Change::Retire(SLICE, key, u64::MAX)]),
        ("a tally without end", vec![Change::Tally(1, i64::MIN)]),
        ("a checkpoint of what never was", vec![Change::Checkpoint(u64::MAX)]),
    ];
    for (what, changes) in forgeries {
        pumice_reactor::block_on(async {
            let device = closed_store().await;
            let heap = heap_of(&device).await;
            let edit = MetaEdit::Snapshot(manifest::encode(&changes));
            heap.commit_meta(edit, heap.last_seq()).await.expect("written");
            heap.close().await.expect("close");
            drop(heap);
            let said = refused(&device).await;
            assert!(said.contains("restore the drive from a copy"), "{what}: {said}");
        });
    }
}

#[test]
fn tallies_of_the_log_that_do_not_add_up_are_refused() {
    pumice_reactor::block_on(async {
        let device = closed_store().await;
        let heap = heap_of(&device).await;
        let mut tally = Vec::new();
        record::encode_tally(&mut tally, 7, i64::MAX);
        for _ in 0..2 {
            let records = [RecordIn { kind: record::TALLY, parts: &[&tally], outline: Outline::Whole }];
            let appended = heap.append(&records, AppendClass::User).expect("append");
            heap.wait_durable(appended.first_seq).await.expect("durable");
        }
        drop(heap);
        let opened = Store::open(device.clone(), options(), &no_progress).await;
        assert!(matches!(opened.err(), Some(OpenError::Replay { .. })));
    });
}

const TABLE_ID: u64 = 77;

/// A block of these entries with one restart point, its checksum right.
fn block(count: u32, entries: &[u8]) -> Block {
    let mut bytes = vec![0; 4];
    bytes.extend_from_slice(&count.to_le_bytes());
    bytes.extend_from_slice(&1u32.to_le_bytes());
    bytes.extend_from_slice(&0u32.to_le_bytes());
    bytes.extend_from_slice(entries);
    let crc = crc32c_seeded(TABLE_ID.rotate_left(32), &[&bytes[4..]]);
    bytes[..4].copy_from_slice(&crc.to_le_bytes());
    Block::verify(TABLE_ID, 0, Bytes::from(bytes)).expect("it verifies")
}

/// The bytes of an entry that points at a record.
fn entry(key: &[u8], [segment, offset, len, value_len]: [u64; 4]) -> Vec<u8> {
    let mut out = Vec::new();
    put_varint(&mut out, 0);
    put_varint(&mut out, key.len() as u64);
    out.extend_from_slice(key);
    out.push(2);
    for number in [1, segment, offset, len, value_len] {
        put_varint(&mut out, number);
    }
    out
}

#[test]
fn blocks_that_point_beyond_any_segment_are_malformed() {
    assert!(block(1, &entry(b"k", [1, 4096, 100, 80])).get(b"k").expect("whole").is_some());
    for forged in
        [[1, u64::from(u32::MAX), 100, 80], [1, 4096, u64::from(u32::MAX), 80], [1, 4096, 100, u64::MAX]]
    {
        assert!(block(1, &entry(b"k", forged)).get(b"k").is_err(), "{forged:?}");
        assert!(block(1, &entry(b"k", forged)).entries().is_err(), "{forged:?}");
    }
}

/// Each key is the one before and a byte more, for which it takes five bytes.
#[test]
fn a_block_does_not_take_the_square_of_its_bytes() {
    const COUNT: u32 = 12_000;
    let mut entries = Vec::new();
    for shared in 0..COUNT {
        put_varint(&mut entries, u64::from(shared));
        put_varint(&mut entries, 1);
        // The byte, a tombstone, its number.
        entries.extend_from_slice(&[b'k', 0, 1]);
    }
    let forged = block(COUNT, &entries);
    assert!(forged.entries().is_err(), "72 MB of keys in a block of {} B", entries.len());
    assert!(forged.entries_between(Bound::Unbounded, Bound::Unbounded, false).is_err());
}

/// A table of two blocks, each in order, of which the second begins below the end of the first.
fn folded_table(id: u64) -> (TableMeta, Bytes) {
    let mut builder = TableBuilder::new(id, SLICE, 10, 64 << 10);
    let entry = KeyEntry {
        seq: 3,
        expire_ms: 0,
        tag: 0,
        large: false,
        value_len: 60,
        counted: false,
        on_flash: true,
        body: Body::Inline(Bytes::from_static(&[9; 60])),
    };
    // A block is closed at 4 KiB.
    let mut added = 0;
    for n in 0..1000u32 {
        if added > 4100 {
            break;
        }
        builder.add(format!("m{n:04}").as_bytes(), &entry);
        added += 60 + 8;
    }
    for n in 0..1000u32 {
        builder.add(format!("{}{n:04}", if n < 500 { 'c' } else { 'x' }).as_bytes(), &entry);
        if n >= 520 {
            break;
        }
    }
    let (mut meta, payload) = builder.finish(&Before::Nothing, Behind::Nothing);
    meta.min_key = Bytes::from_static(b"a");
    (meta, payload)
}

#[test]
fn a_table_whose_blocks_are_out_of_order_is_set_aside_and_not_merged() {
    pumice_reactor::block_on(async {
        let device = closed_store().await;
        let heap = heap_of(&device).await;
        let (mut meta, payload) = folded_table(heap.next_seq(1));
        let mut object = heap.object_of(&[&payload]);
        meta.ptr = heap.write_object(record::TABLE, Group::Tables(0), &mut object).await.expect("written");
        let changes = [Change::Checkpoint(heap.last_seq()), Change::Add(1, meta)];
        let edit = MetaEdit::Snapshot(manifest::encode(&changes));
        heap.commit_meta(edit, heap.last_seq()).await.expect("written");
        heap.close().await.expect("close");
        drop(heap);
        let store = open(&device).await;
        for round in 0..40u8 {
            for key in [&b"b"[..], b"m0001", b"n", b"y"] {
                put(&store, SLICE.0, key, &[round; 50]).await;
            }
            store.checkpoint().await.expect("checkpoint");
            sleep(Duration::from_millis(5)).await;
        }
        for _ in 0..400 {
            if store.stats().tables_set_aside > 0 {
                break;
            }
            sleep(Duration::from_millis(20)).await;
        }
        let stats = store.stats();
        assert_eq!(stats.tables_set_aside, 1, "{} merges", stats.counters.merges);
        let snapshot = store.snapshot();
        for direction in [Direction::Forward, Direction::Backward] {
            let (lower, upper) = (Bound::Unbounded, Bound::Unbounded);
            let mut scan = store.scan(&snapshot, SliceSet::One(SLICE), lower, upper, direction, Want::Values);
            while scan.next().await.is_ok_and(|next| next.is_some()) {}
        }
        assert_eq!(get(&store, SLICE.0, b"n").await.expect("there").2, [39; 50]);
    });
}
