//! The engine's decoders: record payloads, the manifest, key tables.

use bytes::Bytes;
use pumice_base::checksum::crc32c_seeded;
use pumice_kv::block::Block;
use pumice_kv::bounds::{Before, Behind};
use pumice_kv::entry::{Body, KeyEntry};
use pumice_kv::filter::filter_hash;
use pumice_kv::manifest::{self, Change, Manifest};
use pumice_kv::record::{self, PieceName, ValuePlace};
use pumice_kv::table::{self, Head, TableBuilder, TableMeta};
use pumice_kv::{KEY_BYTES_MAX, SliceId};
use pumice_segment::{Addr, RecordPtr};

use super::split;

/// Record payloads of each kind.
pub fn record_seeds() -> Vec<Vec<u8>> {
    let mut out = vec![Vec::new(); 5];
    record::encode_key(&mut out[0], SliceId(3), 1, 0, b"key");
    out[0].extend_from_slice(b"value");
    record::encode_key(&mut out[1], SliceId(0), 0, 1_700_000_000_000, b"key that expires");
    record::encode_tally(&mut out[2], 7, -3);
    record::encode_piece_head(&mut out[3], SliceId(1), b"large", PieceName { id: 9, index: 2 });
    out[3].extend_from_slice(&[7; 100]);
    record::encode_key(&mut out[4], SliceId(2), 5, 1_700_000_000_000, b"again");
    let ptr = RecordPtr { addr: Addr(9 << 32 | 4096), len: 8300 };
    out[4].extend_from_slice(&record::encode_value_place(&ValuePlace { ptr, value_len: 8192 }));
    out
}

/// What a payload is taken for depends on its record's kind: try all.
pub fn record(input: &[u8]) {
    if let Some(found) = record::decode_key(input) {
        assert!(found.key.len() <= KEY_BYTES_MAX && found.key.end == found.rest.start);
        assert_eq!(found.rest.end, input.len());
        let mut again = Vec::new();
        record::encode_key(&mut again, found.slice, found.tag, found.expire_ms, &input[found.key.clone()]);
        again.extend_from_slice(&input[found.rest.clone()]);
        let rest = &input[found.rest.clone()];
        if let Some(place) = record::decode_value_place(rest) {
            assert_eq!(record::encode_value_place(&place)[..], *rest, "a place is written one way");
        }
        // An explicit expiry of zero is the one thing that has two spellings.
        if found.expire_ms != 0 || input[3] == 0 {
            assert_eq!(again, input, "a record is written one way");
        }
    }
    if let Some((owner, _, data)) = record::decode_piece(input) {
        assert!(data.start >= owner.rest.start && data.end == input.len() && data.start <= data.end);
    }
    let _ = record::decode_tally(input);
}

fn meta(id: u64) -> TableMeta {
    TableMeta {
        id,
        slice: SliceId(1),
        ptr: RecordPtr { addr: Addr(9 << 32 | 4096), len: 70_000 },
        min_key: Bytes::from_static(b"aardvark"),
        max_key: Bytes::from_static(b"zebra"),
        entries: 1000,
        tombstones: 3,
        max_seq: 1 << 40,
        earliest_expiry_ms: 0,
        record_bytes: 1 << 20,
        head_at: 60_000,
        head_len: 9_000,
    }
}

/// A snapshot and an edit.
pub fn manifest_seeds() -> Vec<Vec<u8>> {
    let key = Bytes::from_static(b"key");
    let snapshot = [
        Change::Checkpoint(1000),
        Change::Add(5, meta(1)),
        Change::Add(
            5,
            TableMeta { min_key: Bytes::from_static(b"zoo"), max_key: Bytes::from_static(b"zz"), ..meta(2) },
        ),
        Change::Tally(1, 1 << 33),
        Change::Retire(SliceId(2), key.clone(), 900),
    ];
    let edit = [
        Change::Add(6, meta(3)),
        Change::Drop(SliceId(1), 3),
        Change::Add(6, meta(4)),
        Change::Trim(SliceId(1), 4, key.clone()),
        Change::Move(SliceId(1), 4, RecordPtr { addr: Addr(1), len: 2 }),
        Change::Retire(SliceId(2), key.clone(), 950),
        Change::Retired(SliceId(2), key),
    ];
    [&snapshot[..], &edit[..]].iter().map(|changes| manifest::encode(changes).to_vec()).collect()
}

/// Decodes; what decodes is written one way, and is refused or loads, change by change, into a state that can be written and
/// loaded again.
pub fn manifest(input: &[u8]) {
    let Ok(changes) = manifest::decode(input) else { return };
    assert_eq!(manifest::decode(&manifest::encode(&changes)).as_ref(), Ok(&changes), "it is written one way");
    let mut state = Manifest::new(3);
    for change in &changes {
        let _ = state.load(std::slice::from_ref(change));
    }
    let snapshot = state.snapshot();
    let mut again = Manifest::new(3);
    again.load(&snapshot).expect("what was loaded is no worse when it is written again");
    assert_eq!(again.snapshot(), snapshot, "a snapshot makes the state anew");
}

const TABLE_ID: u64 = 77;

fn entries() -> Vec<(Vec<u8>, KeyEntry)> {
    let entry = |i: u64| KeyEntry {
        counted: false,
        on_flash: true,
        seq: 1000 + i,
        expire_ms: if i.is_multiple_of(5) { 1_700_000_000_000 + i } else { 0 },
        tag: (i % 3) as u8,
        large: i.is_multiple_of(7),
        value_len: 8192,
        body: Body::Record(RecordPtr { addr: Addr(i << 32 | 4096), len: 8300 }),
    };
    (0..300u64)
        .map(|i| {
            let mut entry = entry(i);
            if i.is_multiple_of(11) {
                (entry.body, entry.large, entry.value_len) = (Body::Tombstone, false, 0);
            } else if i.is_multiple_of(4) {
                (entry.body, entry.large, entry.value_len) =
                    (Body::Inline(Bytes::from(vec![i as u8; 9])), false, 9);
            }
            (format!("user:{i:06}:{}", "x".repeat((i % 13) as usize)).into_bytes(), entry)
        })
        .collect()
}

/// An input of the table target: which part it is, then the part. Parts: a block, a head, a whole table.
pub fn table_seeds() -> Vec<Vec<u8>> {
    let mut builder = TableBuilder::new(TABLE_ID, SliceId(1), 10, 64 << 10);
    entries().iter().for_each(|(key, entry)| builder.add(key, entry));
    let (meta, table) = builder.finish(&Before::Nothing, Behind::Nothing);
    let head = &table[meta.head_at as usize..][..meta.head_len as usize];
    let index = Head::verify(&meta, head).expect("a table that was just built").index;
    let block = index.place(0);
    let block = &table[block.0 as usize..][..block.1 as usize];
    let head_at = meta.head_at.to_le_bytes();
    let part = |which: u8, bytes: &[u8]| [&[which][..], &head_at, bytes].concat();
    vec![part(0, block), part(1, head), part(2, &table), part(2, &table[table.len() - table::FOOTER_BYTES..])]
}

/// Checksums are made right for blocks and heads, or hardly any change would get past them.
pub fn table(input: &[u8]) {
    let ([which, head_at @ ..], part) = split::<5>(input);
    let mut bytes = part.to_vec();
    match which % 3 {
        0 => {
            fix_checksum(&mut bytes, TABLE_ID.rotate_left(32));
            if let Some(block) = Block::verify(TABLE_ID, 0, Bytes::from(bytes)) {
                check_block(&block);
            }
        }
        1 => {
            fix_checksum(&mut bytes, TABLE_ID.rotate_left(32) ^ u64::from(u32::MAX));
            let meta = TableMeta { id: TABLE_ID, head_at: u32::from_le_bytes(head_at), ..meta(TABLE_ID) };
            if let Some(head) = Head::verify(&meta, &bytes) {
                check_head(&head, meta.head_at);
            }
        }
        _ => {
            if let Some(footer) = table::decode_footer(&bytes) {
                assert!(bytes.len() >= table::FOOTER_BYTES, "{footer:?} of {} bytes", bytes.len());
            }
        }
    }
}

fn fix_checksum(bytes: &mut [u8], seed: u64) {
    if bytes.len() >= 4 {
        let crc = crc32c_seeded(seed, &[&bytes[4..]]);
        bytes[..4].copy_from_slice(&crc.to_le_bytes());
    }
}

fn check_block(block: &Block) {
    for key in [&b""[..], b"user:000000:", b"user:000010:xxxxxxxxxx", b"user:000150:", b"zzz"] {
        let _ = block.get(key);
    }
    let Ok(entries) = block.entries() else { return };
    assert_eq!(entries.len(), block.count() as usize);
    assert!(entries.windows(2).all(|pair| pair[0].0 < pair[1].0), "entries come in key order");
}

fn check_head(head: &Head, blocks_end: u32) {
    let mut end = 0;
    for block in 0..head.index.blocks() {
        let (offset, len) = head.index.place(block);
        assert_eq!(offset, end, "blocks follow each other");
        end = offset + len;
    }
    assert_eq!(end, blocks_end);
    for key in [&b""[..], b"user:000150:", b"zzz"] {
        let _ = head.may_contain(filter_hash(key));
        if let Some(block) = head.index.block_of(key) {
            assert!(block < head.index.blocks());
        }
    }
}
