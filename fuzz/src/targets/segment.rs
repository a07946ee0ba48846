//! The heap's layouts: segment and frame headers, records, superblocks, metadata records.

use bytes::Bytes;
use pumice_base::checksum::crc32c_seeded;
use pumice_segment::layout::frame::{FrameHeader, HeadSum};
use pumice_segment::layout::header::{self, SegmentHeader};
use pumice_segment::layout::meta::{self, MetaKind, MetaRecord, SegmentEntry, SegmentState};
use pumice_segment::layout::superblock::{self, Placed, Superblock};
use pumice_segment::layout::{frame, record, summary};
use pumice_segment::{Addr, Stream};

const LIFE: u64 = 41;
const ADDR: Addr = Addr(7 << 32 | 4096);
const DRIVE_ID: [u8; 16] = *b"a drive to fuzz.";

/// A segment header, a frame header and a superblock, each at the front of a page.
pub fn header_seeds() -> Vec<Vec<u8>> {
    let mut segment = vec![0; 4096];
    let header = SegmentHeader {
        drive_id: DRIVE_ID,
        segment: 7,
        segment_bytes: 8 << 20,
        life: LIFE,
        stream: Stream::Commit,
        first_frame: 12,
        seq: 1000,
        durable_frames: 10,
    };
    header.encode(&mut segment);
    let mut frame = vec![0; 4096];
    let header = FrameHeader {
        life: LIFE,
        number: 12,
        seq: 1001,
        meta_stamp: 3,
        bytes: 4000,
        count: 9,
        lag: 0,
        has_summary: false,
        stream: Stream::Commit,
        more: true,
        skipped: 5,
        head: None,
    };
    header.encode(&mut frame, ADDR);
    let mut large = vec![0; 4096];
    let head = Some(HeadSum { bytes: 40, crc: 77 });
    FrameHeader { count: 1, lag: 0, stream: Stream::Large, more: false, skipped: 0, head, ..header }
        .encode(&mut large, ADDR);
    let placed = Placed { superblocks: [0, 5], meta: vec![2, 3, 4, 9], retired: vec![1] };
    let superblocks = [None, Some(placed)].map(|placed| {
        let superblock = superblock_of(placed);
        let mut block = vec![0; superblock.encoded_bytes()];
        superblock.encode(&mut block);
        block
    });
    [vec![segment, frame, large], superblocks.to_vec()].concat()
}

fn superblock_of(placed: Option<Placed>) -> Superblock {
    Superblock {
        drive_id: DRIVE_ID,
        sequence: 2,
        segment_bytes: 8 << 20,
        page_bytes: 4096,
        read_bytes: 512,
        channels: 4,
        segment_count: 1000,
        meta_half_segments: 2,
        config: Bytes::from_static(b"the client's"),
        placed,
    }
}

/// Each page as each kind; checksums are made right, or hardly any change would get past them.
pub fn headers(input: &[u8]) {
    let _ = (SegmentHeader::decode(input), FrameHeader::decode(input, LIFE, ADDR), Superblock::decode(input));
    let mut page = input.to_vec();
    if page.len() >= header::HEADER_BYTES {
        put_checksum(&mut page, 12, |p| crc32c_seeded(0, &[&p[..12], &p[16..header::HEADER_BYTES]]));
        let _ = SegmentHeader::decode(&page);
    }
    if page.len() >= frame::HEADER_BYTES {
        page[8..16].copy_from_slice(&LIFE.to_le_bytes());
        let of = |p: &[u8]| crc32c_seeded(LIFE, &[&ADDR.0.to_le_bytes(), &p[8..frame::HEADER_BYTES]]);
        put_checksum(&mut page, 4, of);
        if let Some(found) = FrameHeader::decode(&page, LIFE, ADDR) {
            let mut again = page.clone();
            found.encode(&mut again, ADDR);
            assert_eq!(FrameHeader::decode(&again, LIFE, ADDR), Some(found), "a header survives writing");
            assert_eq!(FrameHeader::decode(&again, LIFE + 1, ADDR), None, "another life's");
            assert_eq!(FrameHeader::decode(&again, LIFE, Addr(ADDR.0 + 4096)), None, "another place's");
        }
    }
    let mut page = input.to_vec();
    if let Some(total) = Superblock::peek_bytes(&page).filter(|&total| total <= page.len()) {
        put_checksum(&mut page, 12, |p| crc32c_seeded(0, &[&p[..12], &p[16..total]]));
        if let superblock::Decoded::Superblock(found) = Superblock::decode(&page) {
            assert!(found.config.len() <= superblock::CONFIG_MAX_BYTES);
            let placed = found.placed.as_ref();
            assert!(placed.is_none_or(|placed| placed.retired.len() <= superblock::RETIRED_MAX));
            let mut again = vec![0; found.encoded_bytes()];
            found.encode(&mut again);
            let survives =
                matches!(Superblock::decode(&again), superblock::Decoded::Superblock(one) if one == found);
            assert!(survives, "a superblock survives writing");
        }
    }
}

fn put_checksum(bytes: &mut [u8], at: usize, of: impl Fn(&[u8]) -> u32) {
    let crc = of(bytes).to_le_bytes();
    bytes[at..at + 4].copy_from_slice(&crc);
}

/// Records with and without a sequence number of their own.
pub fn record_seeds() -> Vec<Vec<u8>> {
    [None, Some(77)]
        .iter()
        .map(|&seq| {
            let payload = b"a payload of some length";
            let mut out = vec![0; record::total_bytes(payload.len(), seq.is_some())];
            let crc = record::payload_crc(seq, &[payload]);
            let at = record::encode_head(&mut out, LIFE, ADDR, payload.len() as u32, 1, seq, crc);
            out[at..].copy_from_slice(payload);
            out
        })
        .collect()
}

/// What verifies lies inside the input, and verifies nowhere else.
pub fn records(input: &[u8]) {
    let Ok(found) = record::parse(input, LIFE, ADDR) else { return };
    assert!(found.payload_at <= found.total && found.total <= input.len());
    assert_eq!(record::peek_total(input), Some(found.total));
    assert!(record::parse(input, LIFE + 1, ADDR).is_err(), "a record of another life");
    assert!(record::parse(input, LIFE, Addr(ADDR.0 + 8)).is_err(), "a record of another place");
}

/// Summaries of no record, of one and of several.
pub fn summary_seeds() -> Vec<Vec<u8>> {
    let entry = |n: u32| summary::Entry {
        at: 56 + n * 9000,
        payload_bytes: 8900,
        kind: 1,
        has_seq: n == 1,
        head: &b"whose the record is"[n as usize..],
    };
    [0, 1, 4]
        .map(|count| {
            let entries = (0..count).map(entry);
            let bytes: usize = entries.clone().map(|entry| summary::ENTRY_BYTES + entry.head.len()).sum();
            let mut out = vec![0; bytes + summary::TRAILER_BYTES];
            let mut end = 0;
            for entry in entries {
                end += summary::encode_entry(&mut out[end..], &entry);
            }
            summary::encode_trailer(&mut out, LIFE, ADDR);
            out
        })
        .to_vec()
}

/// With the trailer made right; what verifies is what is written again.
pub fn summaries(input: &[u8]) {
    let _ = (summary::peek_bytes(input), summary::decode(input, LIFE, ADDR));
    if input.len() < summary::TRAILER_BYTES {
        return;
    }
    let mut bytes = input.to_vec();
    summary::encode_trailer(&mut bytes, LIFE, ADDR);
    assert_eq!(summary::peek_bytes(&bytes), Some(bytes.len()));
    let Some(entries) = summary::decode(&bytes, LIFE, ADDR) else { return };
    assert_eq!(summary::decode(&bytes, LIFE + 1, ADDR), None, "a summary of another life");
    assert_eq!(summary::decode(&bytes, LIFE, Addr(ADDR.0 + 4096)), None, "a summary of another place");
    let mut again = vec![0; bytes.len()];
    let mut end = 0;
    for entry in &entries {
        end += summary::encode_entry(&mut again[end..], entry);
    }
    assert_eq!(end + summary::TRAILER_BYTES, bytes.len());
    summary::encode_trailer(&mut again, LIFE, ADDR);
    assert_eq!(summary::decode(&again, LIFE, ADDR), Some(entries), "a summary survives writing");
}

const OFFSET: u64 = 8192;

/// A snapshot, and an edit of a log in several segments.
pub fn meta_seeds() -> Vec<Vec<u8>> {
    let entry = |segment: u32| SegmentEntry {
        segment,
        state: SegmentState::Sealed,
        stream: 0,
        flags: 1,
        erase_count: 3,
        end: 8 << 20,
        live: 5 << 20,
        life: LIFE,
        last_seq: 900,
    };
    [MetaKind::Snapshot, MetaKind::Edit]
        .iter()
        .flat_map(|kind| [(kind, false), (kind, true)])
        .map(|(&kind, is_twice)| {
            let record = MetaRecord {
                kind,
                clean: kind == MetaKind::Edit,
                is_twice,
                generation: 4,
                index: u32::from(kind == MetaKind::Edit),
                replay_from: 800,
                moved_from: 2,
                last_seq: 1000,
                next_life: LIFE + 1,
                durable_frames: [13, 5],
                patrol: [7, 1],
                replay_frame: (kind == MetaKind::Edit).then_some(12),
                segments: (4..9).map(entry).collect(),
                pool: vec![10, 11, 12],
                blobs: vec![Bytes::from_static(b"one"), Bytes::new(), Bytes::from_static(b"three")],
            };
            let mut out = vec![0; record.encoded_bytes()];
            record.encode(&mut out, &DRIVE_ID, OFFSET);
            out
        })
        .collect()
}

/// With the checksum made right over what the length field says.
pub fn metas(input: &[u8]) {
    let mut bytes = input.to_vec();
    if let Some(total) = MetaRecord::peek_bytes(&bytes)
        && (meta::HEADER_BYTES..=bytes.len()).contains(&total)
    {
        put_checksum(&mut bytes, 4, |b| crc32c_seeded(OFFSET, &[&DRIVE_ID, &b[8..total]]));
    }
    let bytes = Bytes::from(bytes);
    if let meta::Decoded::Record(found) = MetaRecord::decode(&bytes, &DRIVE_ID, OFFSET) {
        let mut again = vec![0; found.encoded_bytes()];
        found.encode(&mut again, &DRIVE_ID, OFFSET);
        let again = MetaRecord::decode(&Bytes::from(again), &DRIVE_ID, OFFSET);
        assert_eq!(again, meta::Decoded::Record(found), "a record survives writing");
    }
}
