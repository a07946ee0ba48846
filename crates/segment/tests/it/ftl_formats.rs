//! Raw flash's on-flash layouts, pinned: what these tests compare with is what drives in the field hold. A change here needs a
//! new version number and code that reads the old one.

use bytes::Bytes;
use pumice_flash::{Access, BlockAddr, Device};
use pumice_reactor::IoBuf;
use pumice_reactor::sim::{HostOptions, World};
use pumice_segment::ftl::{
    BlockTag, MARK_BYTES, PART_HEADER_BYTES, PartHeader, Place, RawError, RawFlash, RawFormat, RawOptions,
    TAG_BYTES, TagDecoded, TagEnd, TagKind, encode_mark, is_mark,
};

const DRIVE: [u8; 16] = *b"pumice fixture 1";
const BLOCK: u32 = 90_111;

#[track_caller]
fn check(bytes: &[u8], expected: &str) {
    let found: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(found, expected.split_whitespace().collect::<String>());
}

#[test]
fn tags_keep_their_layout() {
    let tag = BlockTag {
        kind: TagKind::Segment,
        drive_id: DRIVE,
        id: 0x0011_2233_4455_6677_8899_aabb_ccdd_eeff,
        sequence: 42,
        erases: 7,
        end: TagEnd::SegmentBytes(8 << 20),
    };
    let bytes = tag.encode(BLOCK);
    check(
        &bytes,
        "\
         50554d46544c544701000000d7c5400e70756d69636520666978747572652031ffeeddccbbaa9988 \
         77665544332211002a000000000000000700000000008000",
    );
    assert_eq!(BlockTag::decode(BLOCK, &bytes), TagDecoded::Tag(tag));
    let erased = BlockTag { kind: TagKind::Erased, id: 0, end: TagEnd::SegmentBytes(0), ..tag };
    check(
        &erased.encode(BLOCK),
        "\
         50554d46544c544701000100a316cae070756d696365206669787475726520310000000000000000 \
         00000000000000002a000000000000000700000000000000",
    );
    assert_eq!(BlockTag::decode(BLOCK, &erased.encode(BLOCK)), TagDecoded::Tag(erased));
    // Beside a page with a checksum: version 2, and that at its end.
    let with_sum = BlockTag { end: TagEnd::PageSum(0x1234_5678), ..tag };
    check(
        &with_sum.encode(BLOCK),
        "\
         50554d46544c5447020000001502a8e670756d69636520666978747572652031ffeeddccbbaa9988 \
         77665544332211002a000000000000000700000078563412",
    );
    assert_eq!(BlockTag::decode(BLOCK, &with_sum.encode(BLOCK)), TagDecoded::Tag(with_sum));
    for at in 0..TAG_BYTES {
        let mut flipped = bytes;
        flipped[at] ^= 1;
        assert_eq!(BlockTag::decode(BLOCK, &flipped), TagDecoded::Nothing, "byte {at}");
        assert_eq!(BlockTag::decode(BLOCK, &bytes[..at]), TagDecoded::Nothing, "{at} bytes");
    }
    assert_eq!(BlockTag::decode(BLOCK - 1, &bytes), TagDecoded::Nothing, "of another block");
}

fn header() -> PartHeader {
    PartHeader {
        drive_id: DRIVE,
        generation: 5,
        clean: true,
        in_band: true,
        has_sums: false,
        part: 1,
        parts: 2,
        channels: 44,
        blocks_per_channel: 2048,
        pages_per_block: 1024,
        page_bytes: 8192,
        oob_bytes: 448,
        sequence: 43,
        scrub_block: 17,
        scrub_passes: 3,
    }
}

#[test]
fn checkpoints_keep_their_layout() {
    let bytes = header().encode(1, &[7, 0, 0, 0x40]);
    check(
        &bytes,
        "\
         50554d46544c435002000300c70e977e70756d696365206669787475726520310500000000000000 \
         0100000002000000040000000020000000040000000800002c000000c00100002b00000000000000 \
         11000000030000000000000000000000000000000000000000000000000000000000000000000000 \
         000000000000000007000040",
    );
    assert_eq!(PartHeader::part_bytes(&bytes), Some(PART_HEADER_BYTES + 4));
    assert_eq!(PartHeader::decode(1, &bytes), Ok(Some((header(), &bytes[128..]))));
    assert_eq!(PartHeader::decode(2, &bytes), Ok(None), "on another block");
    // Of a drive whose pages have checksums: version 3, and a flag.
    let with_sums = PartHeader { has_sums: true, ..header() };
    let newest = with_sums.encode(1, &[7, 0, 0, 0x40]);
    check(&newest[..32], "50554d46544c4350030007003c34c67d70756d69636520666978747572652031");
    assert_eq!(newest[32..], bytes[32..]);
    assert_eq!(PartHeader::decode(1, &newest), Ok(Some((with_sums, &newest[128..]))));
    // As drives of version 1 have it: the same bytes but for the version.
    let mut older = bytes.clone();
    older[8] = 1;
    older[12..16].copy_from_slice(&[0x71, 0xaf, 0xda, 0x69]);
    assert_eq!(PartHeader::decode(1, &older), Ok(Some((header(), &older[128..]))));
    for at in 0..bytes.len() {
        let mut flipped = bytes.clone();
        flipped[at] ^= 1;
        assert_eq!(PartHeader::decode(1, &flipped), Ok(None), "byte {at}");
        assert_eq!(PartHeader::decode(1, &bytes[..at]), Ok(None), "{at} bytes");
    }
    let mark = encode_mark(1, DRIVE, 5);
    check(
        &mark,
        "\
         50554d46544c4f5001000000ec43a3e570756d696365206669787475726520310500000000000000 \
         0000000000000000",
    );
    assert!(is_mark(1, DRIVE, 5, &mark) && !is_mark(1, DRIVE, 6, &mark) && !is_mark(2, DRIVE, 5, &mark));
    assert!(!is_mark(1, DRIVE, 5, &mark[..MARK_BYTES - 1]));
}

/// A segment on a file, byte for byte: pages of 512 bytes that are all 3, 5 of them, so that the head takes one page.
#[test]
fn pages_and_their_checksums_keep_their_layout() {
    let world = World::new(1);
    let host = world.add_host(HostOptions { quirks: false, ..HostOptions::default() });
    let run = async move {
        for (spec, is_beside) in [
            ("emu:tiny,channels=1,blocks=16,pages=7,page=512,oob=0", false),
            ("emu:tiny,channels=1,blocks=16,pages=5,page=512,oob=64", true),
        ] {
            let device = Device::open(&spec.parse().expect("spec"), Access::ReadWrite).await.expect("device");
            let format = RawFormat { drive_id: DRIVE, force: false };
            let raw = RawFlash::format(device.clone(), format, RawOptions::default()).await.expect("format");
            assert_eq!(raw.segment_bytes(), 5 * 512);
            let data = Bytes::from(vec![3; 5 * 512]);
            raw.write(&raw.client(), 0xabc, Place::ById, data).await.expect("write");
            let block = raw.place_of(0xabc).expect("there");
            assert_eq!(device.geometry().number(block), 4, "the first behind those for checkpoints");
            let sums = [0x8501_69d4, 0x2812_5f25, 0xdacb_72c7, 0x77d8_4436, 0x3a95_5ff2];
            // What the page of the format says, by hand.
            for (page, sum) in (0u32..).zip(sums) {
                let erases = 1u32;
                let whose = [
                    &page.to_le_bytes()[..],
                    &erases.to_le_bytes(),
                    &DRIVE,
                    &0xabcu128.to_le_bytes(),
                    &4u32.to_le_bytes(),
                ];
                let covered = [whose.concat(), vec![3; 512]].concat();
                assert_eq!(pumice_base::checksum::crc32c(&covered), sum, "page {page}");
            }
            let found = match is_beside {
                true => {
                    let (buf, oob) = (IoBuf::zeroed(5 * 512), IoBuf::zeroed(5 * 64));
                    let (result, _, oob) = device.read_with_oob(block, 0, buf, oob).await;
                    result.expect("read");
                    assert!((1..4).all(|page| oob[page * 64..page * 64 + 60].iter().all(|&byte| byte == 0)));
                    oob.chunks(64).flat_map(|oob| oob[60..].to_vec()).collect::<Vec<_>>()
                }
                false => {
                    let (result, whole) = device.read(block, 0, IoBuf::zeroed(7 * 512)).await;
                    result.expect("read");
                    assert_eq!(whole[..512], whole[6 * 512..], "the tail is the head");
                    assert!(whole[64 + 20..512].iter().all(|&byte| byte == 0));
                    whole[64..64 + 20].to_vec()
                }
            };
            assert_eq!(found, sums.map(u32::to_le_bytes).concat());
        }
    };
    world.block_on(host, run).expect("the world goes on");
}

/// The next version of what was encoded for `block`, with a checksum that fits.
fn newer(block: u32, bytes: &[u8]) -> Vec<u8> {
    let mut newer = bytes.to_vec();
    newer[8] += 1;
    let crc = pumice_base::checksum::crc32c_seeded(u64::from(block), &[&newer[..12], &newer[16..]]);
    newer[12..16].copy_from_slice(&crc.to_le_bytes());
    newer
}

#[test]
fn newer_versions_are_refused() {
    let tag = BlockTag {
        kind: TagKind::Erased,
        drive_id: DRIVE,
        id: 0,
        sequence: 1,
        erases: 1,
        end: TagEnd::PageSum(0),
    };
    assert_eq!(BlockTag::decode(3, &newer(3, &tag.encode(3))), TagDecoded::Newer(3));
    let with_sums = PartHeader { has_sums: true, ..header() };
    assert_eq!(PartHeader::decode(1, &newer(1, &with_sums.encode(1, &[]))), Err(4));
    let world = World::new(1);
    let host = world.add_host(HostOptions { quirks: false, ..HostOptions::default() });
    let run = async move {
        let spec = "emu:tiny,channels=1,blocks=16,pages=8,oob=64".parse().expect("spec");
        let device = Device::open(&spec, Access::ReadWrite).await.expect("device");
        let format = RawFormat { drive_id: DRIVE, force: false };
        let raw = RawFlash::format(device.clone(), format, RawOptions::default()).await.expect("format");
        let data = Bytes::from(vec![0; raw.segment_bytes() as usize]);
        raw.write(&raw.client(), 1, Place::ById, data).await.expect("write");
        let block: BlockAddr = raw.place_of(1).expect("there");
        drop(raw);
        // Programmed as a newer build might, on a block of its own.
        let other = BlockAddr { channel: 0, block: 15 };
        assert_ne!(block, other);
        let number = device.geometry().number(other);
        let mut oob = IoBuf::zeroed(8 * 64);
        oob[7 * 64..].copy_from_slice(&newer(number, &tag.encode(number)));
        let pages = Bytes::from(vec![0; 8 * 4096]);
        device.erase(other).await.expect("erase");
        let sync = pumice_reactor::WriteSync::Durable;
        device.program_with_oob(other, 0, pages, oob.freeze(), sync).await.expect("program");
        let refused = RawFlash::open(device.clone(), RawOptions::default(), &|_, _| ()).await.err();
        assert!(matches!(refused, Some(RawError::Version { block, version: 3 }) if block == other));
    };
    world.block_on(host, run).expect("the world goes on");
}
