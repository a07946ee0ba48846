//! The engine's on-flash layouts, pinned byte for byte: what these tests compare with is what drives in the field hold
//! (`docs/format/kv-record.md`, `key-table.md`, `kv-manifest.md`). A change here needs a new version number and code
//! that reads the old one.

use crate::common::{self, device, format, formatted, no_progress, options, put_large};
use bytes::Bytes;
use pumice_base::checksum::crc32c_seeded;
use pumice_base::hash::stable_hash64;
use pumice_kv::block::Block;
use pumice_kv::bounds::{Before, Behind};
use pumice_kv::codec::{Cursor, put_varint};
use pumice_kv::entry::{Body, KeyEntry};
use pumice_kv::filter::filter_hash;
use pumice_kv::manifest::{self, Change};
use pumice_kv::record::{self, PieceName, ValuePlace};
use pumice_kv::table::{FOOTER_BYTES, Head, TableBuilder, TableMeta, decode_footer};
use pumice_kv::{Batch, SliceId, Store};
use pumice_segment::{Addr, Heap, HeapOptions, RecordPtr};

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[track_caller]
fn check(bytes: &[u8], expected: &str) {
    assert_eq!(hex(bytes), expected.split_whitespace().collect::<String>());
}

#[test]
fn varints_keep_their_layout() {
    for (value, expected) in [
        (0, "00"),
        (127, "7f"),
        (128, "8001"),
        (300, "ac02"),
        (u64::from(u32::MAX), "ffffffff0f"),
        (u64::MAX, "ffffffffffffffffff01"),
    ] {
        let mut bytes = Vec::new();
        put_varint(&mut bytes, value);
        check(&bytes, expected);
        assert_eq!(Cursor::new(&bytes, 0).varint(), Some(value));
    }
    assert_eq!(Cursor::new(&[0xFF; 10], 0).varint(), None, "more than 64 bits");
    assert_eq!(Cursor::new(&[0x80], 0).varint(), None, "cut off");
}

#[test]
fn records_keep_their_layout() {
    let mut put = Vec::new();
    record::encode_key(&mut put, SliceId(0x0102), 3, 0, b"key");
    put.extend_from_slice(b"value");
    check(&put, "0201 03 00 03000000 6b6579 76616c7565");

    let mut expiring = Vec::new();
    record::encode_key(&mut expiring, SliceId(1), 0, 0x1122_3344_5566_7788, b"k");
    check(&expiring, "0100 00 01 01000000 8877665544332211 6b");
    let found = record::decode_key(&expiring).expect("it was just encoded");
    assert_eq!((found.expire_ms, &expiring[found.key]), (0x1122_3344_5566_7788, &b"k"[..]));
    for flags in 2..=255u8 {
        expiring[3] = flags;
        assert_eq!(record::decode_key(&expiring), None, "flags {flags} are unknown");
    }

    let mut piece = Vec::new();
    record::encode_piece_head(&mut piece, SliceId(1), b"k", PieceName { id: 9, index: 2 });
    piece.extend_from_slice(b"data");
    check(&piece, "0100 00 00 01000000 6b 0900000000000000 02000000 00000000 64617461");
    let (_, name, data) = record::decode_piece(&piece).expect("it was just encoded");
    assert_eq!((name, &piece[data]), (PieceName { id: 9, index: 2 }, &b"data"[..]));

    let mut tally = Vec::new();
    record::encode_tally(&mut tally, 7, -3);
    check(&tally, "07000000 00000000 fdffffffffffffff");
    assert_eq!(record::decode_tally(&tally), Some((7, -3)));
    assert_eq!(record::decode_tally(&tally[1..]), None);

    // The kinds, as the heap's records carry them.
    let kinds = [
        record::PUT,
        record::DELETE,
        record::PUT_LARGE,
        record::PIECE,
        record::RETIRE,
        record::TALLY,
        record::TABLE,
        record::PUT_AGAIN,
    ];
    assert_eq!(kinds, [1, 2, 3, 4, 5, 6, 7, 8]);

    let place = ValuePlace { ptr: RecordPtr { addr: Addr(5 << 32 | 8192), len: 1000 }, value_len: 980 };
    let bytes = record::encode_value_place(&place);
    check(&bytes, "00200000 05000000 e8030000 d4030000");
    assert_eq!(record::decode_value_place(&bytes), Some(place));
    assert_eq!(record::decode_value_place(&bytes[1..]), None);
    let longer = record::encode_value_place(&ValuePlace { value_len: 1001, ..place });
    assert_eq!(record::decode_value_place(&longer), None, "a value longer than its record");
}

fn entries() -> Vec<(&'static [u8], KeyEntry)> {
    let plain = KeyEntry {
        seq: 300,
        expire_ms: 0,
        tag: 0,
        large: false,
        value_len: 2,
        counted: false,
        on_flash: true,
        body: Body::Inline(Bytes::from_static(b"hi")),
    };
    let record = Body::Record(RecordPtr { addr: Addr(5 << 32 | 8192), len: 1000 });
    vec![
        (b"aa", plain.clone()),
        (b"aab", KeyEntry { body: Body::Tombstone, value_len: 0, counted: true, ..plain.clone() }),
        (b"ab", KeyEntry { seq: 1, expire_ms: 1000, tag: 9, value_len: 980, body: record, ..plain.clone() }),
        (b"b", KeyEntry { large: true, value_len: 1 << 20, ..plain }),
    ]
}

fn table() -> (TableMeta, Bytes) {
    let mut builder = TableBuilder::new(77, SliceId(2), 10, 64 << 10);
    entries().iter().for_each(|(key, entry)| builder.add(key, entry));
    builder.finish(&Before::Nothing, Behind::Nothing)
}

#[test]
fn key_tables_keep_their_layout() {
    let (meta, payload) = table();
    check(
        &payload,
        "\
        3976981d0400000001000000000000000002616101ac0202686902016220ac020101621a01e80709 \
        058040e807d40700016205ac0202808040686936fd20a84000000004000000001000020100002000 \
        02000000840010300000000000000080000000001000000002000400800000000280004000008000 \
        48000000010001000000000101623b50554d4b5654414201000000020000004d0000000000000004 \
        000000000000002c010000000000003b0000004c00000000000000000000000000000010f8ad16",
    );
    assert_eq!((meta.entries, meta.tombstones, meta.max_seq), (4, 1, 300));
    assert_eq!((meta.earliest_expiry_ms, meta.record_bytes), (1000, 1000));
    assert_eq!((&meta.min_key[..], &meta.max_key[..]), (&b"aa"[..], &b"b"[..]));
    let head = &payload[meta.head_at as usize..][..meta.head_len as usize];
    let head = Head::verify(&meta, head).expect("the head verifies");
    let (offset, len) = head.index.place(0);
    let block = payload.slice(offset as usize..(offset + len) as usize);
    let found = Block::verify(77, offset, block.clone()).expect("the block verifies").entries();
    let expected: Vec<_> =
        entries().into_iter().map(|(key, entry)| (Bytes::from_static(key), entry)).collect();
    assert_eq!(found, Ok(expected));
    // Neither another table's, nor another place's, nor a flipped bit passes.
    assert!(Block::verify(78, offset, block.clone()).is_none());
    assert!(Block::verify(77, offset + 1, block.clone()).is_none());
    for at in 0..payload.len() - FOOTER_BYTES {
        let mut flipped = payload.to_vec();
        flipped[at] ^= 0x20;
        let flipped = Bytes::from(flipped);
        let head = &flipped[meta.head_at as usize..][..meta.head_len as usize];
        let block = flipped.slice(offset as usize..(offset + len) as usize);
        let both = Head::verify(&meta, head).is_some() && Block::verify(77, offset, block).is_some();
        assert!(!both, "byte {at}");
    }
    let footer = decode_footer(&payload).expect("the footer verifies");
    assert_eq!((footer.id, footer.slice, footer.entries), (77, SliceId(2), 4));
    for at in payload.len() - FOOTER_BYTES..payload.len() {
        let mut flipped = payload.to_vec();
        flipped[at] ^= 0x20;
        assert_eq!(decode_footer(&flipped), None, "byte {at}");
    }
    let mut newer = payload.to_vec();
    let start = newer.len() - FOOTER_BYTES;
    newer[start + 8] = 2;
    let crc = crc32c_seeded(77, &[&newer[start..start + 60]]);
    newer[start + 60..].copy_from_slice(&crc.to_le_bytes());
    assert_eq!(decode_footer(&newer), None, "a newer version is no table that this build knows");
}

/// Blocks of many entries: restart points, prefix compression, separators, a filter of several lines.
#[test]
fn long_key_tables_keep_their_layout() {
    let mut builder = TableBuilder::new(5, SliceId(0), 14, 64 << 10);
    for i in 0..2000u64 {
        let entry = KeyEntry {
            seq: 10 * i,
            expire_ms: if i % 7 == 0 { 1_700_000_000_000 + i } else { 0 },
            tag: (i % 3) as u8,
            large: false,
            value_len: 100 + i,
            counted: i % 5 == 0,
            on_flash: true,
            body: Body::Record(RecordPtr {
                addr: Addr((i / 50) << 32 | (i % 50 * 4096)),
                len: 130 + i as u32,
            }),
        };
        builder.add(format!("user:{i:06}:{}", "x".repeat((i % 13) as usize)).as_bytes(), &entry);
    }
    let (meta, payload) = builder.finish(&Before::Nothing, Behind::Nothing);
    let head = &payload[meta.head_at as usize..][..meta.head_len as usize];
    let blocks = Head::verify(&meta, head).expect("the head verifies").index.blocks();
    let print = format!("{} B, {blocks} blocks, {:016x}", payload.len(), stable_hash64(0, &payload));
    assert_eq!(print, "51094 B, 12 blocks, 1b00a0e1d5ef931b");
}

#[test]
fn filters_keep_their_hash() {
    let hashes: Vec<String> =
        [&b""[..], b"a", b"user:000001"].iter().map(|key| format!("{:016x}", filter_hash(key))).collect();
    assert_eq!(hashes, ["14d25a204aedc5f4", "5d2c5940b92f52ce", "557857573c7a61c4"]);
}

#[test]
fn manifests_keep_their_layout() {
    let meta = TableMeta {
        id: 300,
        slice: SliceId(2),
        ptr: RecordPtr { addr: Addr(9 << 32 | 4096), len: 70_000 },
        min_key: Bytes::from_static(b"a"),
        max_key: Bytes::from_static(b"zz"),
        entries: 1000,
        tombstones: 3,
        max_seq: 1 << 40,
        earliest_expiry_ms: 5,
        record_bytes: 1 << 20,
        head_at: 60_000,
        head_len: 9_000,
    };
    let key = Bytes::from_static(b"key");
    let changes = vec![
        Change::Add(6, meta),
        Change::Drop(SliceId(1), 3),
        Change::Trim(SliceId(1), 4, key.clone()),
        Change::Move(SliceId(1), 4, RecordPtr { addr: Addr(8 << 32 | 512), len: 2 }),
        Change::Tally(7, -2),
        Change::Retire(SliceId(2), key.clone(), 950),
        Change::Retired(SliceId(2), key),
        Change::Checkpoint(1000),
    ];
    let bytes = manifest::encode(&changes);
    check(
        &bytes,
        "\
        010000000106ac02020010000009000000f0a2040161027a7ae8070380808080802005808040e0d4 \
        03a846020103030104036b65790401040002000008000000020000000507000000feffffffffffff \
        ff0602036b6579b6070702036b657908e807",
    );
    assert_eq!(manifest::decode(&bytes), Ok(changes));
    for end in 5..bytes.len() {
        // Whatever is cut off inside of a change is noticed.
        if let Ok(fewer) = manifest::decode(&bytes[..end]) {
            assert_eq!(manifest::encode(&fewer), bytes[..end], "cut at {end}");
        }
    }
    let mut newer = bytes.to_vec();
    newer[0] = 2;
    assert!(manifest::decode(&newer).is_err_and(|why| why.contains("version 2") && why.contains("newer")));
    let unknown = [&bytes[..4], &[9, 0, 0]].concat();
    assert!(manifest::decode(&unknown).is_err_and(|why| why.contains("byte 4")));
}

/// What a store puts into the heap's records for each kind of change, seen through the heap.
#[test]
fn a_store_writes_records_of_the_documented_kinds() {
    pumice_reactor::block_on(async {
        let device = device("emu:small").await;
        let store = formatted(&device).await;
        let mut batch = Batch::new();
        batch.put(SliceId(1), b"put", 4, 0, b"value");
        batch.put(SliceId(1), b"put", 4, 77, b"value");
        batch.delete(SliceId(2), b"gone");
        batch.retire(SliceId(0), b"prefix");
        batch.tally(7, 3);
        common::write(&store, &batch).await;
        put_large(&store, 1, b"large", 9, &[5; 300_000]).await;
        store.abandon().await;
        drop(store);
        let opened = Heap::open(device, HeapOptions::default(), &|_, _| {}).await.expect("open");
        let mut replay = opened.replay;
        let mut log = Vec::new();
        while let Some(batch) = replay.next().await.expect("replay") {
            log.extend(batch.records.into_iter().map(|record| (record.kind, record.payload)));
        }
        let shown: Vec<String> =
            log.iter().map(|(kind, payload)| format!("{kind} {}", hex(payload))).collect();
        let (list, others) = shown.split_last().expect("records were written");
        assert_eq!(
            others,
            [
                "1 010004000300000070757476616c7565",
                "1 01000401030000004d0000000000000070757476616c7565",
                "2 0200000004000000676f6e65",
                "5 0000000006000000707265666978",
                "6 07000000000000000300000000000000"
            ]
        );
        // A list of pieces: id, length, then address, length of the record and bytes of the value of each.
        let expected = "3 01000900 05000000 6c61726765 0600000000000000 e093040000000000 \
                        3810000008000000 29000400 00000400 3820040008000000 09940000 e0930000";
        assert_eq!(
            list.split_once(' ').map(|(kind, rest)| format!("{kind}{rest}")),
            Some(expected.replace(' ', ""))
        );
    });
}

#[test]
fn the_configuration_holds_version_slices_and_inline_length() {
    pumice_reactor::block_on(async {
        let device = device("emu:small").await;
        Store::format(&device, &format()).await.expect("format");
        let opened = Heap::open(device, HeapOptions::default(), &no_progress).await.expect("open");
        assert_eq!(&opened.heap.config()[..], b"\x02\x00\x00\x00\x03\x00\x40\x00mine");
    });
}

#[test]
fn a_store_of_a_newer_version_is_refused_by_its_number() {
    pumice_reactor::block_on(async {
        let device = device("emu:small").await;
        let config = Bytes::from_static(&[3, 0, 0, 0, 3, 0, 128, 0]);
        let newer = pumice_segment::FormatOptions {
            drive_id: format().drive_id,
            config,
            ..pumice_segment::FormatOptions::default()
        };
        Heap::format(&device, &newer).await.expect("format");
        let refused = Store::open(device, options(), &no_progress).await.err().expect("refused").to_string();
        assert!(refused.contains("version 3") && refused.contains("newer"), "{refused}");
    });
}
