//! Drives of before pages had checksums (checkpoint version 2), put together byte for byte as they lie in the field: they are
//! read and written as they were, and stay readable for builds that know no checksums.

use crate::raw::disk::{Disk, shape};
use crate::raw::{in_virtual_time, segment};
use pumice_flash::{BlockAddr, Device};
use pumice_reactor::{IoBuf, WriteSync};
use pumice_segment::ftl::{
    BlockTag, PART_HEADER_BYTES, PartHeader, Place, RawFlash, RawFormat, RawOpened, RawOptions, ScrubOptions,
    TagEnd, TagKind,
};

const DRIVE: [u8; 16] = *b"an older drive 1";
/// A block that is kept for checkpoints, as the payload says it.
const KEPT: u32 = 5 << 29;
const BESIDE: &str = "emu:tiny,channels=4,blocks=16,pages=8,oob=64";
/// Segments by block number and id.
const HELD: [(u32, u128); 3] = [(6, 2), (9, 1), (20, 77 << 64)];

fn data(len: usize, id: u128) -> Vec<u8> {
    let mut data = vec![0; len];
    pumice_base::rng::Rng::from_seed(id as u64 ^ (id >> 64) as u64).fill(&mut data);
    data
}

async fn program(device: &Device, block: BlockAddr, page: u32, data: &[u8], oob: &[u8]) {
    let (data, sync) = (IoBuf::copy_of(data).freeze(), WriteSync::Durable);
    let programmed = match oob.is_empty() {
        true => device.program(block, page, data, sync).await,
        false => device.program_with_oob(block, page, data, IoBuf::copy_of(oob).freeze(), sync).await,
    };
    programmed.expect("program");
}

/// A drive of version 2 that was not closed: one checkpoint, and segments that their tags name.
async fn older(disk: &Disk) {
    let (device, geometry) = (&disk.device, disk.device.geometry());
    let page_bytes = geometry.page_bytes as usize;
    let in_band = geometry.oob_bytes == 0;
    let header = PartHeader {
        drive_id: DRIVE,
        generation: 3,
        clean: false,
        in_band,
        has_sums: false,
        part: 0,
        parts: 1,
        channels: geometry.channels,
        blocks_per_channel: geometry.blocks_per_channel,
        pages_per_block: geometry.pages_per_block,
        page_bytes: geometry.page_bytes,
        oob_bytes: geometry.oob_bytes,
        sequence: 9,
        scrub_block: 0,
        scrub_passes: 0,
    };
    let states: Vec<u8> = (0..geometry.block_count())
        .flat_map(|number| if number < 4 { KEPT } else { 0 }.to_le_bytes())
        .collect();
    let mut part = header.encode(0, &states);
    assert_eq!(part[8], 2, "its version");
    assert_eq!(part.len(), PART_HEADER_BYTES + 64 * 4);
    part.resize(page_bytes, 0);
    device.erase(geometry.block(0)).await.expect("erase");
    program(device, geometry.block(0), 0, &part, &[]).await;
    for (sequence, (number, id)) in (10..).zip(HELD) {
        let block = geometry.block(number);
        device.erase(block).await.expect("erase");
        let pages = geometry.pages_per_block - if in_band { 2 } else { 0 };
        let bytes = data(pages as usize * page_bytes, id);
        let end = TagEnd::SegmentBytes(bytes.len() as u32);
        let tag = BlockTag { kind: TagKind::Segment, drive_id: DRIVE, id, sequence, erases: 1, end };
        let tag = tag.encode(number);
        assert_eq!(tag[8], 1, "its version");
        let pages: Vec<&[u8]> = bytes.chunks(page_bytes).collect();
        let mut beside = tag.to_vec();
        beside.resize(if in_band { page_bytes } else { geometry.oob_bytes as usize }, 0);
        let last = geometry.pages_per_block - 1;
        for page in 0..=last {
            let is_tagged = page == 0 || page == last;
            match (in_band, is_tagged) {
                (true, true) => program(device, block, page, &beside, &[]).await,
                (true, false) => program(device, block, page, pages[page as usize - 1], &[]).await,
                (false, true) => program(device, block, page, pages[page as usize], &beside).await,
                (false, false) => program(device, block, page, pages[page as usize], &[]).await,
            }
        }
    }
}

async fn open(device: &Device) -> RawOpened {
    let opened = RawFlash::open(device.clone(), RawOptions::default(), &|_, _| ()).await;
    opened.unwrap_or_else(|error| panic!("{error}"))
}

async fn reads(raw: &RawFlash, id: u128, expected: &[u8]) {
    let (result, buf) = raw.read(&raw.client(), id, 0, IoBuf::zeroed(raw.segment_bytes() as usize)).await;
    result.unwrap_or_else(|error| panic!("{id:x}: {error}"));
    assert!(buf[..] == *expected, "{id:x}");
}

#[test]
fn a_drive_without_checksums_is_opened_read_written_and_stays_one() {
    in_virtual_time(|| async {
        for disk in [Disk::file(shape(8, 4096)).await, Disk::nand(BESIDE).await] {
            let name = disk.name.clone();
            older(&disk).await;
            let RawOpened { raw, clean, damage } = open(&disk.device).await;
            assert!(!clean && damage.is_empty() && !raw.has_sums(), "{name}: {damage:?}");
            let len = raw.segment_bytes() as usize;
            let geometry = raw.geometry();
            let tags = if geometry.oob_bytes == 0 { 2 } else { 0 };
            assert_eq!(len as u32, geometry.block_bytes() - tags * geometry.page_bytes, "{name}");
            for (number, id) in HELD {
                reads(&raw, id, &data(len, id)).await;
                assert_eq!(raw.place_of(id), Some(geometry.block(number)));
            }
            // It goes on as it was: written, moved, patrolled, closed.
            raw.write(&raw.client(), 5, Place::ById, segment(&raw, 5)).await.expect("write");
            raw.refresh(&raw.client(), 1).await.expect("refresh");
            raw.erase(&raw.client(), 2).await.expect("erase");
            let patrol = ScrubOptions { bytes_per_second: u64::MAX, refresh: true };
            raw.scrub_pass(patrol).await.expect("patrol");
            assert_eq!((raw.scrub_stats().lost, raw.scrub_stats().weak), (0, 0), "{name}");
            let (space, total) = (raw.space(), raw.space().total());
            assert_eq!((space.accounted(), total.sums), (space.raw, 0), "{name}");
            raw.close().await.expect("close");
            // Checkpoints that builds without checksums read, and tags that they do.
            let mut generations = Vec::new();
            for number in 0..geometry.block_count() {
                let (first, beside) = disk.page(geometry.block(number), 0).await;
                match &first[..8] {
                    b"PUMFTLCP" => {
                        assert_eq!((first[8], first[10] & 4), (2, 0), "{name}");
                        generations.push(first[32]);
                    }
                    b"PUMFTLTG" => assert_eq!(first[8], 1, "{name}"),
                    _ => assert!(beside.is_empty() || beside[8] <= 1, "{name}"),
                }
            }
            assert!(generations.contains(&3) && generations.len() > 1, "{name}: {generations:?}");
            for clean in [true, false] {
                let opened = open(&disk.device).await;
                let raw = opened.raw;
                assert!(opened.clean == clean && !raw.has_sums());
                reads(&raw, 1, &data(len, 1)).await;
                reads(&raw, 77 << 64, &data(len, 77 << 64)).await;
                reads(&raw, 5, &segment(&raw, 5)).await;
                assert_eq!(raw.ids(), [1, 5, 77 << 64], "{name}");
            }
            // Formatted anew it has them.
            let format = RawFormat { drive_id: [8; 16], force: true };
            let made = RawFlash::format(disk.device.clone(), format, RawOptions::default()).await;
            assert!(made.expect("forced").has_sums());
            assert!(open(&disk.device).await.raw.has_sums());
        }
    });
}
