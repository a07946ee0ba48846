//! Whole drives of a few hundred KiB, in the simulator: a log, raw flash, an emulated drive's file. An input is a list of changes to
//! what lies there, at the borders of what is decoded; checksums are made right, unless a change says otherwise. Then the drive
//! is opened, looked at and written to. It may refuse or report whatever it likes.
//!
//! A change is eight bytes: which structure (two), where in it, how, and a value (four).

mod image;

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use image::{Drives, Kind};
use pumice_flash::{Access, Device, DeviceSpec, FlashError, Geometry};
use pumice_reactor::{IoBuf, WriteSync};
use pumice_segment::ftl::{MARK_BYTES, PartHeader, Place, RawError, RawFlash, RawFormat, RawOptions};
use pumice_segment::layout::frame::FrameHeader;
use pumice_segment::layout::header::{Decoded, SegmentHeader};
use pumice_segment::layout::meta::MetaRecord;
use pumice_segment::layout::superblock::Superblock;
use pumice_segment::{
    Addr, AppendClass, Durability, FormatOptions, Heap, HeapError, HeapOptions, MetaEdit, Outline, RecordIn,
    SegmentId,
};

const PATH: &str = "/drive";
/// Virtual time in which a drive of this size was opened, looked at and closed, whatever it waits for.
const PATIENCE: Duration = Duration::from_secs(3600);
const PAGE_BYTES: usize = 4096;
/// Batches that a replay may give: of frames there are fewer.
const BATCHES_MAX: usize = 1000;

/// No change, and one to each of the first structures: mutations find the others.
pub fn seeds() -> Vec<Vec<u8>> {
    let change = |structure: u16, at: u8, how: u8, value: u32| {
        [&structure.to_le_bytes()[..], &[at, how], &value.to_le_bytes()].concat()
    };
    let heads = (0..24).map(|structure| change(structure, 16 + 2 * structure as u8, 2, u32::MAX));
    // What a checkpoint says of a block: its use is in the highest bits.
    let uses = (0..4 * 16).map(|at| change(at / 16, 131 + 4 * (at % 16) as u8, 0, u32::MAX));
    let many = (0..8).flat_map(|structure| change(7 * structure, 40, 1, 1)).collect();
    [Vec::new(), many].into_iter().chain(heads).chain(uses).collect()
}

/// What can be written: drives want it aligned.
fn buffer(bytes: &[u8]) -> Bytes {
    IoBuf::copy_of(bytes).freeze()
}

fn spec() -> DeviceSpec {
    DeviceSpec::Path(Path::new(PATH).into())
}

const SEGMENT_BYTES: usize = 64 << 10;
const SEGMENTS: usize = 16;
const DRIVE_ID: [u8; 16] = *b"a drive to fuzz.";

thread_local! {
    static HEAPS: Drives = Drives::new(SEGMENTS * SEGMENT_BYTES, &[false, true], written_heap, |bytes| {
        bytes.chunks(PAGE_BYTES).enumerate().filter_map(|(page, bytes)| heap_kind(page, bytes)).collect()
    });
    static RAWS: Drives = Drives::new(RAW_SHAPE.capacity_bytes() as usize, &[false, true], written_raw, |bytes| {
        bytes.chunks(PAGE_BYTES).enumerate().filter_map(|(page, bytes)| raw_kind(page, bytes)).collect()
    });
    static EMULATED: Drives = Drives::new(EMULATED_BYTES, &[false], written_emulated, |_| {
        (0..EMULATED_BLOCKS).map(|number| (EMULATED_CAPACITY + number * 16, Kind::Saved(number as u64))).collect()
    });
}

fn heap_options() -> HeapOptions {
    let durability = Durability::Always;
    HeapOptions {
        tail_bytes: 0,
        commit_max_bytes: 16 << 10,
        reserve_segments: Some(2),
        durability,
        ..HeapOptions::default()
    }
}

async fn written_heap(closes: bool) {
    let device = Device::create(&spec(), (SEGMENTS * SEGMENT_BYTES) as u64).await.expect("file");
    let format = FormatOptions {
        segment_bytes: SEGMENT_BYTES as u32,
        drive_id: DRIVE_ID,
        config: Bytes::from_static(b"the client's"),
        ..FormatOptions::default()
    };
    Heap::format(&device, &format).await.expect("format");
    let mut opened = Heap::open(device, heap_options(), &|_, _| ()).await.expect("open");
    while opened.replay.next().await.expect("replay").is_some() {}
    let heap = opened.heap;
    for round in 0..12u8 {
        let payload = vec![round; 1000 * (1 + usize::from(round) % 9)];
        let parts: [&[u8]; 1] = [&payload];
        let record = RecordIn { kind: 1, parts: &parts, outline: Outline::Whole };
        let appended = heap.append(&[record; 2], AppendClass::User).expect("append");
        heap.flush().await.expect("flush");
        if round == 6 {
            let state = MetaEdit::Edit(Bytes::from_static(b"state"));
            heap.commit_meta(state, appended.first_seq).await.expect("record");
        }
    }
    if closes {
        heap.close().await.expect("close");
    }
}

/// What a page of the log's drive begins with.
fn heap_kind(page: usize, bytes: &[u8]) -> Option<(usize, Kind)> {
    let at = page * PAGE_BYTES;
    let (segment, offset) = (at / SEGMENT_BYTES, at % SEGMENT_BYTES);
    let addr = Addr::new(SegmentId(segment as u32), offset as u32);
    let life = u64::from_le_bytes(std::array::from_fn(|i| bytes[8 + i]));
    let kind = if Superblock::peek_bytes(bytes).is_some() {
        Kind::Superblock
    } else if matches!(SegmentHeader::decode(bytes), Decoded::Header(_)) {
        Kind::Segment
    } else if FrameHeader::decode(bytes, life, addr).is_some() {
        Kind::Frame(addr)
    } else if MetaRecord::peek_bytes(bytes).is_some() {
        Kind::Meta { drive_id: DRIVE_ID, offset: offset as u64 }
    } else {
        return None;
    };
    Some((at, kind))
}

/// A drive of the log.
pub fn heap(input: &[u8]) {
    let looked_at = HEAPS.with(|drives| drives.change_and_run(PATH, input, PATIENCE, look_at_heap()));
    // What is wrong with a changed one is the drive's to say.
    assert!(looked_at.is_ok() || input.len() >= 8, "{looked_at:?}");
}

async fn look_at_heap() -> Result<(), HeapError> {
    let device = Device::open(&spec(), Access::ReadWrite).await?;
    let mut opened = Heap::open(device, heap_options(), &|_, _| ()).await?;
    let (mut batches, mut ptrs) = (0, Vec::new());
    while let Some(batch) = opened.replay.next().await? {
        batches += 1;
        assert!(batches < BATCHES_MAX, "a replay without end");
        ptrs.extend(batch.records.iter().map(|record| record.ptr));
    }
    let heap = opened.heap;
    for ptr in ptrs {
        // A record that replayed was verified a moment ago.
        heap.read(ptr).await.unwrap_or_else(|error| panic!("{error}"));
    }
    for segment in 0..SEGMENTS as u32 {
        let _ = heap.contents(SegmentId(segment)).await;
    }
    let _ = (heap.space(), heap.channels(), heap.free_segments());
    let record = RecordIn { kind: 1, parts: &[b"one more"], outline: Outline::Whole };
    if let Ok(appended) = heap.append(&[record], AppendClass::User)
        && heap.flush().await.is_ok()
    {
        heap.read_flash(appended.ptrs[0]).await.unwrap_or_else(|error| panic!("what is durable: {error}"));
    }
    heap.close().await
}

const RAW_SHAPE: Geometry = Geometry {
    channels: 4,
    dies_per_channel: 1,
    planes_per_die: 1,
    dies_per_block: 1,
    blocks_per_channel: 4,
    pages_per_block: 8,
    page_bytes: PAGE_BYTES as u32,
    read_bytes: PAGE_BYTES as u32,
    oob_bytes: 0,
};

async fn written_raw(closes: bool) {
    let device = Device::create(&spec(), RAW_SHAPE.capacity_bytes()).await.expect("file");
    let device = device.with_geometry(RAW_SHAPE).expect("shape");
    let format = RawFormat { drive_id: DRIVE_ID, force: false };
    let raw = RawFlash::format(device, format, RawOptions::default()).await.expect("format");
    for id in 0..6u8 {
        let segment = buffer(&vec![id; raw.segment_bytes() as usize]);
        raw.write(&raw.client(), u128::from(id), Place::ById, segment).await.expect("write");
    }
    raw.erase(&raw.client(), 3).await.expect("erase");
    if closes {
        raw.close().await.expect("close");
    }
}

/// What a page of raw flash begins with.
fn raw_kind(page: usize, bytes: &[u8]) -> Option<(usize, Kind)> {
    let block = (page / RAW_SHAPE.pages_per_block as usize) as u32;
    let kind = if PartHeader::part_bytes(bytes).is_some() {
        Kind::Part(block)
    } else if bytes.starts_with(b"PUMFTLTG") {
        Kind::Sealed { block, bytes: pumice_segment::ftl::TAG_BYTES }
    } else if bytes.starts_with(b"PUMFTLOP") {
        Kind::Sealed { block, bytes: MARK_BYTES }
    } else {
        return None;
    };
    Some((page * PAGE_BYTES, kind))
}

/// A drive of raw flash.
pub fn raw(input: &[u8]) {
    let looked_at = RAWS.with(|drives| drives.change_and_run(PATH, input, PATIENCE, look_at_raw()));
    assert!(looked_at.is_ok() || input.len() >= 8, "{looked_at:?}");
}

async fn look_at_raw() -> Result<(), RawError> {
    let device = Device::open(&spec(), Access::ReadWrite).await?.with_geometry(RAW_SHAPE)?;
    let raw = RawFlash::open(device, RawOptions::default(), &|_, _| ()).await?.raw;
    let client = raw.client();
    let ids = raw.ids();
    assert!(ids.len() == raw.segment_count() as usize && ids.len() <= 16, "{ids:?}");
    let space = raw.space();
    assert_eq!(space.accounted(), space.raw, "{space:?}");
    let _ = (raw.weak(), raw.memory_bytes(), raw.erase_range(0));
    for &id in &ids {
        let (result, bytes) = raw.read(&client, id, 0, IoBuf::zeroed(raw.segment_bytes() as usize)).await;
        let is_whole = raw.has_sums() && result.is_ok();
        assert!(!is_whole || bytes.iter().all(|&byte| byte == bytes[0]), "what verifies was written: {id}");
        let _ = raw.ends_agree(&client, id).await;
    }
    let new = 1 << 100;
    let segment = vec![9; raw.segment_bytes() as usize];
    if raw.write(&client, new, Place::ById, buffer(&segment)).await.is_ok() {
        let (result, _) = raw.read(&client, new, 0, IoBuf::zeroed(PAGE_BYTES)).await;
        result.unwrap_or_else(|error| panic!("what was written: {error}"));
    }
    if let Some(&id) = ids.first() {
        let _ = raw.erase(&client, id).await;
    }
    raw.close().await
}

const EMULATED_BLOCKS: usize = 8;
const EMULATED_PAGES: usize = 4;
const EMULATED_CAPACITY: usize = EMULATED_BLOCKS * EMULATED_PAGES * PAGE_BYTES;
const EMULATED_BYTES: usize = EMULATED_CAPACITY + EMULATED_BLOCKS * 16;

async fn open_emulated() -> Result<Device, FlashError> {
    let spec =
        format!("emu:tiny,channels=1,blocks={EMULATED_BLOCKS},pages={EMULATED_PAGES},page=4096,path={PATH}");
    Device::open(&spec.parse().expect("spec"), Access::ReadWrite).await
}

async fn written_emulated(_closes: bool) {
    let device = open_emulated().await.expect("open");
    let geometry = device.geometry();
    assert_eq!(geometry.raw_bytes() as usize, EMULATED_CAPACITY, "{geometry}");
    for number in 0..EMULATED_BLOCKS as u32 {
        let block = geometry.block(number);
        let data = buffer(&vec![number as u8; (number as usize % 4) * PAGE_BYTES]);
        if !data.is_empty() {
            device.program(block, 0, data, WriteSync::Cached).await.expect("program");
        }
    }
    device.sync().await.expect("sync");
}

/// The file of an emulated drive.
pub fn emulated(input: &[u8]) {
    let looked_at = EMULATED.with(|drives| drives.change_and_run(PATH, input, PATIENCE, look_at_emulated()));
    assert!(looked_at.is_ok() || input.len() >= 8, "{looked_at:?}");
}

async fn look_at_emulated() -> Result<(), FlashError> {
    let device = open_emulated().await?;
    let geometry = device.geometry();
    let page = || buffer(&[7; PAGE_BYTES]);
    for number in 0..EMULATED_BLOCKS as u32 {
        let block = geometry.block(number);
        let written = device.write_pointer(block).expect("NAND knows it");
        assert!(written as usize <= EMULATED_PAGES, "{written} pages of a block are written");
        for at in 0..EMULATED_PAGES as u32 {
            let offset = at * PAGE_BYTES as u32;
            let result = device.read(block, offset, IoBuf::for_read(PAGE_BYTES)).await.0;
            assert!(result.is_err() || at < written, "page {at} of {written} reads");
        }
        let _ = device.program(block, written, page(), WriteSync::Cached).await;
        if device.erase(block).await.is_ok() {
            device.program(block, 0, page(), WriteSync::Cached).await?;
            device.read(block, 0, IoBuf::for_read(PAGE_BYTES)).await.0?;
        }
    }
    device.sync().await
}
