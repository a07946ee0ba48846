//! The on-flash layouts, pinned: what these tests compare with is what drives in the field hold. A change here needs a
//! new version number and code that reads the old one.

use bytes::Bytes;
use pumice_segment::layout::meta::{MetaKind, MetaRecord, SegmentEntry, SegmentState};
use pumice_segment::layout::superblock::{Placed, SUPERBLOCK_BYTES, Superblock};
use pumice_segment::layout::{frame, header, meta, record, superblock};
use pumice_segment::{Addr, SegmentId, Stream};

const DRIVE: [u8; 16] = *b"pumice fixture 1";

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Lower-case hex of `bytes` without the zeros at its end.
fn fixture(bytes: &[u8]) -> String {
    let end = bytes.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
    hex(&bytes[..end])
}

#[track_caller]
fn check(bytes: &[u8], expected: &str) {
    assert_eq!(fixture(bytes), expected.split_whitespace().collect::<String>());
}

#[test]
fn superblocks_keep_their_layout() {
    let block = Superblock {
        drive_id: DRIVE,
        sequence: 3,
        segment_bytes: 8 << 20,
        page_bytes: 4096,
        read_bytes: 512,
        channels: 2,
        segment_count: 8192,
        meta_half_segments: 1,
        config: Bytes::from_static(b"kv"),
        placed: None,
    };
    let mut page = vec![0; SUPERBLOCK_BYTES];
    block.encode(&mut page);
    check(
        &page,
        "\
         50554d494345534201000000779887cb70756d696365206669787475726520310300000000000000 \
         00008000001000000002000002000000002000000100000002000000000000000000000000000000 \
         00000000000000000000000000000000000000000000000000000000000000000000000000000000 \
         00000000000000006b76",
    );
    assert_eq!(Superblock::decode(&page), superblock::Decoded::Superblock(block));
    for at in [0, 9, 20, 50, 130, 4000] {
        let mut flipped = page.clone();
        flipped[at] ^= 1;
        assert_eq!(Superblock::decode(&flipped), superblock::Decoded::Nothing, "byte {at}");
    }
}

/// Media whose blocks turn bad: where superblocks and metadata log lie is written down, over several pages if need be.
#[test]
fn superblocks_that_name_their_places_keep_their_layout() {
    let placed = Placed { superblocks: [1, 3], meta: vec![16, 18], retired: vec![17] };
    let block = Superblock {
        drive_id: DRIVE,
        sequence: 7,
        segment_bytes: 128 << 10,
        page_bytes: 2048,
        read_bytes: 2048,
        channels: 4,
        segment_count: 1024,
        meta_half_segments: 1,
        config: Bytes::from_static(b"store"),
        placed: Some(placed),
    };
    let mut bytes = vec![0; 4096];
    block.encode(&mut bytes);
    assert_eq!(block.encoded_bytes(), 128 + 8 + 12);
    check(
        &bytes,
        "\
         50554d494345534202000000d402e1d770756d696365206669787475726520310700000000000000 \
         00000200000800000008000004000000000400000100000005000000940000000100000001000000 \
         03000000000000000000000000000000000000000000000000000000000000000000000000000000 \
         000000000000000073746f7265000000100000001200000011",
    );
    assert_eq!(Superblock::decode(&bytes), superblock::Decoded::Superblock(block.clone()));
    assert_eq!(Superblock::decode(&bytes[..148]), superblock::Decoded::Superblock(block.clone()));
    assert_eq!(Superblock::decode(&bytes[..147]), superblock::Decoded::Nothing);
    for at in [0, 9, 20, 50, 70, 80, 130, 140] {
        let mut flipped = bytes.clone();
        flipped[at] ^= 1;
        assert_eq!(Superblock::decode(&flipped), superblock::Decoded::Nothing, "byte {at}");
    }
    // A segment that the drive does not have names no place.
    for segments in [1, 16, 17, 18] {
        let small = Superblock { segment_count: segments, ..block.clone() };
        small.encode(&mut bytes);
        assert_eq!(Superblock::decode(&bytes), superblock::Decoded::Nothing, "{segments} segments");
    }
    // The longest: with what it may come to hold it fits a block of 64 pages of 2 KiB.
    let most = Placed { retired: vec![9; 256], meta: vec![9; 400], superblocks: [1, 3] };
    let config = Bytes::from(vec![5; 2048]);
    let long = Superblock { meta_half_segments: 200, config, placed: Some(most), ..block };
    assert!(superblock::fits(400, 64 << 10) && long.encoded_bytes() < 8 << 10);
    let mut bytes = vec![0; 8 << 10];
    long.encode(&mut bytes);
    assert_eq!(Superblock::peek_bytes(&bytes), Some(long.encoded_bytes()));
    assert_eq!(Superblock::decode(&bytes), superblock::Decoded::Superblock(long));
}

#[test]
fn segment_headers_keep_their_layout() {
    let written = header::SegmentHeader {
        drive_id: DRIVE,
        segment: 77,
        segment_bytes: 8 << 20,
        life: 0x0102_0304_0506_0708,
        stream: Stream::Moved,
        first_frame: 9,
        seq: 1000,
        durable_frames: 8,
    };
    let mut page = vec![0; 4096];
    written.encode(&mut page);
    check(
        &page,
        "\
         50554d5345474d5401000100772581ec70756d696365206669787475726520314d00000000008000 \
         08070605040302010900000000000000e80300000000000008",
    );
    assert_eq!(header::SegmentHeader::decode(&page), header::Decoded::Header(written));
    // Commit segments are of version 2; those of version 1 are read.
    let commit = header::SegmentHeader { stream: Stream::Commit, ..written };
    let mut page = vec![0; 4096];
    commit.encode(&mut page);
    check(
        &page,
        "\
         50554d5345474d540200000048826eca70756d696365206669787475726520314d00000000008000 \
         08070605040302010900000000000000e80300000000000008",
    );
    page[8] = 1;
    let crc = pumice_base::checksum::crc32c_seeded(0, &[&page[..12], &page[16..header::HEADER_BYTES]]);
    page[12..16].copy_from_slice(&crc.to_le_bytes());
    assert_eq!(header::SegmentHeader::decode(&page), header::Decoded::Header(commit));
}

#[test]
fn frames_and_records_keep_their_layout() {
    let written = frame::FrameHeader {
        life: 0x0102_0304_0506_0708,
        number: 42,
        seq: 1001,
        meta_stamp: 5 << 32 | 6,
        bytes: 92,
        count: 2,
        lag: 1,
        has_summary: false,
        stream: Stream::Commit,
        more: true,
        skipped: 0,
        head: None,
    };
    let addr = Addr::new(SegmentId(77), 8192);
    let mut bytes = vec![0; frame::HEADER_BYTES];
    written.encode(&mut bytes, addr);
    check(
        &bytes,
        "\
         5046524d5c7eac9508070605040302012a00000000000000e9030000000000000600000005000000 \
         5c00000002000000010000000001",
    );
    assert_eq!(frame::FrameHeader::decode(&bytes, written.life, addr), Some(written));
    let passing_over = frame::FrameHeader { skipped: 0x0203, ..written };
    let mut other = vec![0; frame::HEADER_BYTES];
    passing_over.encode(&mut other, addr);
    check(
        &other,
        "\
         5046524d32a6704008070605040302012a00000000000000e9030000000000000600000005000000 \
         5c000000020000000100000000010302",
    );
    assert_eq!(frame::FrameHeader::decode(&other, written.life, addr), Some(passing_over));
    assert_eq!((written.newest_seq(), passing_over.newest_seq()), (1002, 1002 + 0x0203));
    // Of large values, the sum of their record's head lies where others have `lag` and `skipped`; older builds left it zero.
    let large = frame::FrameHeader { lag: 0, stream: Stream::Large, more: false, count: 1, ..written };
    let mut plain = vec![0; frame::HEADER_BYTES];
    large.encode(&mut plain, addr);
    assert_eq!(frame::FrameHeader::decode(&plain, written.life, addr), Some(large));
    let head = Some(frame::HeadSum { bytes: 0x0405, crc: 0x0607_0809 });
    let with_head = frame::FrameHeader { head, ..large };
    let mut other = vec![0; frame::HEADER_BYTES];
    with_head.encode(&mut other, addr);
    assert_eq!((&plain[48..], &other[48..]), (&[0, 0, 0, 0, 3, 0, 0, 0][..], &[9, 8, 7, 6, 3, 0, 5, 4][..]));
    assert_eq!(frame::FrameHeader::decode(&other, written.life, addr), Some(with_head));
    assert_eq!(with_head.newest_seq(), large.newest_seq());
    assert_eq!(frame::FrameHeader::decode(&bytes, written.life + 1, addr), None);
    assert_eq!(frame::FrameHeader::decode(&bytes, written.life, Addr(addr.0 + 4096)), None);
    for (seq, expected) in [
        (
            None,
            "\
         cad2c610090000000700000061207061796c6f6164",
        ),
        (
            Some(0x1122_3344_5566_7788),
            "\
         4ea288ab0900000007010000887766554433221161207061796c6f6164",
        ),
    ] {
        let addr = Addr::new(SegmentId(77), 8248);
        let payload = b"a payload";
        let mut bytes = vec![0; record::total_bytes(payload.len(), seq.is_some())];
        let crc = record::payload_crc(seq, &[b"a pay", b"load"]);
        let at = record::encode_head(&mut bytes, written.life, addr, payload.len() as u32, 7, seq, crc);
        bytes[at..].copy_from_slice(payload);
        check(&bytes, expected);
        let parsed = record::parse(&bytes, written.life, addr).expect("verifies");
        assert_eq!((parsed.kind, parsed.seq, &bytes[parsed.payload_at..]), (7, seq, &payload[..]));
        if seq.is_none() {
            check(&bytes[4..12 + 5], "09000000070000006120706179");
            let sum = record::head_sum(&bytes, 5).expect("it has so many bytes");
            assert_eq!(
                sum,
                frame::HeadSum { bytes: 5, crc: pumice_base::checksum::crc32c(&bytes[4..12 + 5]) }
            );
            assert_eq!(record::parse_head(&bytes[..12 + 5], sum), Some(parsed));
            assert_eq!(record::parse_head(&bytes[..12 + 4], sum), None);
            assert_eq!((record::head_sum(&bytes, 0), record::head_sum(&bytes, 10)), (None, None));
        }
        assert!(record::parse(&bytes, written.life ^ 1, addr).is_err(), "another life");
        assert!(record::parse(&bytes, written.life, Addr(addr.0 + 8)).is_err(), "another place");
        for at in 0..bytes.len() {
            let mut flipped = bytes.clone();
            flipped[at] ^= 0x10;
            assert!(record::parse(&flipped, written.life, addr).is_err(), "byte {at}");
        }
    }
}

#[test]
fn metadata_records_keep_their_layout() {
    let written = MetaRecord {
        kind: MetaKind::Edit,
        clean: true,
        is_twice: false,
        generation: 5,
        index: 6,
        replay_from: 100,
        moved_from: 3,
        last_seq: 200,
        next_life: 50,
        durable_frames: [40, 4],
        patrol: [0, 0],
        replay_frame: None,
        segments: vec![SegmentEntry {
            segment: 9,
            state: SegmentState::Sealed,
            stream: 1,
            flags: 3,
            erase_count: 2,
            end: 8192,
            live: 100,
            life: 49,
            last_seq: 199,
        }],
        pool: vec![10, 11],
        blobs: vec![Bytes::from_static(b"edit")],
    };
    let mut bytes = vec![0; written.encoded_bytes()];
    written.encode(&mut bytes, &DRIVE, 4096);
    check(
        &bytes,
        "\
         504d4554594d5d270100020198000000050000000000000006000000010000000200000001000000 \
         64000000000000000300000000000000c80000000000000032000000000000002800000000000000 \
         04000000000000000000000000000000090000000201030002000000002000006400000000000000 \
         3100000000000000c7000000000000000a0000000b0000000400000065646974",
    );
    let bytes = Bytes::from(bytes);
    assert_eq!(MetaRecord::decode(&bytes, &DRIVE, 4096), meta::Decoded::Record(Box::new(written)),);
    assert_eq!(MetaRecord::decode(&bytes, &DRIVE, 8192), meta::Decoded::Nothing);
    for at in 0..bytes.len() {
        let mut flipped = bytes.to_vec();
        flipped[at] ^= 4;
        assert_eq!(MetaRecord::decode(&flipped.into(), &DRIVE, 4096), meta::Decoded::Nothing, "byte {at}");
    }
}

/// Written twice: version 3, with or without the frame at which a log in several segments begins.
#[test]
fn metadata_records_that_are_there_twice_keep_their_layout() {
    let mut written = MetaRecord {
        kind: MetaKind::Edit,
        clean: false,
        is_twice: true,
        generation: 5,
        index: 6,
        replay_from: 100,
        moved_from: 3,
        last_seq: 200,
        next_life: 50,
        durable_frames: [40, 4],
        patrol: [7, 8],
        replay_frame: None,
        segments: vec![],
        pool: vec![10],
        blobs: vec![Bytes::from_static(b"edit")],
    };
    let layouts = [
        (
            None,
            "504d4554cd09ea83030002007400000005000000000000000600000000000000010000000100000064000000000000000300000000000000c800000000000000320000000000000028000000000000000400000000000000070000000800000000000000000000000a0000000400000065646974",
        ),
        (
            Some(0x0102_0304_0506_0708),
            "504d4554a4d76161030002027400000005000000000000000600000000000000010000000100000064000000000000000300000000000000c800000000000000320000000000000028000000000000000400000000000000070000000800000008070605040302010a0000000400000065646974",
        ),
    ];
    for (replay_frame, layout) in layouts {
        written.replay_frame = replay_frame;
        let mut bytes = vec![0; written.encoded_bytes()];
        written.encode(&mut bytes, &DRIVE, 4096);
        assert_eq!((bytes.len(), bytes[8]), (104 + 4 + 8, 3));
        check(&bytes, layout);
        let decoded = MetaRecord::decode(&Bytes::from(bytes), &DRIVE, 4096);
        assert_eq!(decoded, meta::Decoded::Record(Box::new(written.clone())));
    }
}

/// Of a log in several segments at once: version 2, eight bytes longer, which builds that know version 1 only refuse.
#[test]
fn metadata_records_of_a_wide_log_keep_their_layout() {
    let written = MetaRecord {
        kind: MetaKind::Edit,
        clean: false,
        is_twice: false,
        generation: 5,
        index: 6,
        replay_from: 100,
        moved_from: 3,
        last_seq: 200,
        next_life: 50,
        durable_frames: [40, 4],
        patrol: [7, 8],
        replay_frame: Some(0x0102_0304_0506_0708),
        segments: vec![SegmentEntry {
            segment: 9,
            state: SegmentState::Open,
            stream: 0,
            flags: 1,
            erase_count: 2,
            end: 8192,
            live: 100,
            life: 49,
            last_seq: 199,
        }],
        pool: vec![10],
        blobs: vec![Bytes::from_static(b"edit")],
    };
    let mut bytes = vec![0; written.encoded_bytes()];
    written.encode(&mut bytes, &DRIVE, 4096);
    assert_eq!((bytes.len(), bytes[8]), (104 + 40 + 4 + 8, 2));
    check(
        &bytes,
        "\
         504d45548be89baf020002009c000000050000000000000006000000010000000100000001000000 \
         64000000000000000300000000000000c80000000000000032000000000000002800000000000000 \
         04000000000000000700000008000000080706050403020109000000010001000200000000200000 \
         64000000000000003100000000000000c7000000000000000a0000000400000065646974",
    );
    let decoded = MetaRecord::decode(&Bytes::copy_from_slice(&bytes), &DRIVE, 4096);
    assert_eq!(decoded, meta::Decoded::Record(Box::new(written.clone())));
    for at in 0..bytes.len() {
        let mut flipped = bytes.clone();
        flipped[at] ^= 4;
        assert_eq!(MetaRecord::decode(&flipped.into(), &DRIVE, 4096), meta::Decoded::Nothing, "byte {at}");
    }
    // One that is too short for its version is none, whatever its checksum says.
    let short = MetaRecord { replay_frame: None, segments: vec![], pool: vec![], blobs: vec![], ..written };
    let mut bytes = vec![0; short.encoded_bytes()];
    short.encode(&mut bytes, &DRIVE, 0);
    for (version, found) in
        [(2, meta::Decoded::Nothing), (3, meta::Decoded::Nothing), (4, meta::Decoded::Newer(4))]
    {
        bytes[8] = version;
        let crc = pumice_base::checksum::crc32c_seeded(0, &[&DRIVE, &bytes[8..]]);
        bytes[4..8].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(MetaRecord::decode(&Bytes::copy_from_slice(&bytes), &DRIVE, 0), found);
    }
}

#[test]
fn newer_versions_are_refused_by_their_number() {
    use pumice_base::checksum::crc32c_seeded;
    let mut page = vec![0u8; SUPERBLOCK_BYTES];
    page[..8].copy_from_slice(b"PUMICESB");
    page[8] = 9;
    let crc = crc32c_seeded(0, &[&page[..12], &page[16..]]);
    page[12..16].copy_from_slice(&crc.to_le_bytes());
    assert_eq!(Superblock::decode(&page), superblock::Decoded::Newer(9));
}
