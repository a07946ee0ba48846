//! Metadata with right checksums that no Pumice wrote: whoever opens such a drive is told what is wrong with it.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use bytes::Bytes;
use pumice_flash::{Access, Device, DeviceSpec, FlashError};
use pumice_segment::ftl::{BlockTag, PartHeader, TagDecoded, TagEnd, TagKind};
use pumice_segment::layout::frame::FrameHeader;
use pumice_segment::layout::header::{self, SegmentHeader};
use pumice_segment::layout::meta::{self, MetaRecord, SegmentEntry, SegmentState};
use pumice_segment::layout::superblock::{self, SUPERBLOCK_BYTES, Superblock};
use pumice_segment::{Addr, FormatOptions, Heap, HeapError, Opened, SegmentId, Stream};

use crate::common::{append, file, format_options, no_progress, options};

const SEGMENT_BYTES: u32 = 256 << 10;
const PAGE_BYTES: usize = 4096;
const DRIVE_BYTES: u64 = 16 << 20;
const SEGMENTS: u32 = (DRIVE_BYTES / SEGMENT_BYTES as u64) as u32;

/// A drive that holds a record; its device is closed.
async fn drive(dir: &Path, is_closed: bool) {
    let device = file(dir, DRIVE_BYTES).await;
    let format = FormatOptions { segment_bytes: SEGMENT_BYTES, ..format_options() };
    Heap::format(&device, &format).await.expect("format");
    let mut opened = Heap::open(device.clone(), options(), &no_progress).await.expect("open");
    assert!(opened.replay.next().await.expect("replay").is_none());
    let appended = append(&opened.heap, 1, &[7; 5000]).expect("append");
    opened.heap.wait_durable(appended.first_seq).await.expect("durable");
    if is_closed {
        opened.heap.close().await.expect("close");
    }
}

fn on_disk(dir: &Path) -> File {
    File::options().read(true).write(true).open(dir.join("drive")).expect("drive")
}

fn read(dir: &Path, at: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    on_disk(dir).read_exact_at(&mut bytes, at).expect("read");
    bytes
}

/// Opens the drive and writes to it, which uses what the metadata say.
async fn open(dir: &Path) -> Result<Opened, HeapError> {
    let spec = DeviceSpec::Path(dir.join("drive"));
    let mut tries = 0;
    let device = loop {
        match Device::open(&spec, Access::ReadWrite).await {
            Err(FlashError::Locked { .. }) if tries < 1000 => tries += 1,
            opened => break opened.expect("file"),
        }
        pumice_reactor::sleep(std::time::Duration::from_millis(10)).await;
    };
    let mut opened = Heap::open(device, options(), &no_progress).await?;
    while opened.replay.next().await?.is_some() {}
    for _ in 0..100 {
        let appended = append(&opened.heap, 1, &[8; 50_000]).expect("append");
        opened.heap.wait_durable(appended.first_seq).await.expect("durable");
    }
    opened.heap.close().await?;
    Ok(opened)
}

/// Rewrites the superblock, both times.
fn forge_superblock(dir: &Path, forge: impl Fn(&mut Superblock)) {
    let superblock::Decoded::Superblock(mut found) = Superblock::decode(&read(dir, 0, SUPERBLOCK_BYTES))
    else {
        panic!("no superblock")
    };
    forge(&mut found);
    let mut page = vec![0; SUPERBLOCK_BYTES];
    found.encode(&mut page);
    for place in [0, u64::from(SEGMENT_BYTES)] {
        on_disk(dir).write_all_at(&page, place).expect("write");
    }
}

/// Rewrites the newest record of the metadata log.
fn forge_log(dir: &Path, forge: impl Fn(&mut MetaRecord)) {
    let superblock::Decoded::Superblock(found) = Superblock::decode(&read(dir, 0, SUPERBLOCK_BYTES)) else {
        panic!("no superblock")
    };
    let half_bytes = u64::from(found.meta_half_segments) * u64::from(SEGMENT_BYTES);
    let halves = [0, 1].map(|half| 2 * u64::from(SEGMENT_BYTES) + half * half_bytes);
    let (mut newest, mut place) = (None, (0, 0));
    for start in halves {
        let half = Bytes::from(read(dir, start, half_bytes as usize));
        let mut at = 0;
        while let meta::Decoded::Record(record) =
            MetaRecord::decode(&half.slice(at as usize..), &found.drive_id, at)
        {
            let len = record.encoded_bytes().next_multiple_of(PAGE_BYTES) as u64;
            let len = if record.is_twice { 2 * len } else { len };
            let age = |record: &MetaRecord| (record.generation, record.index);
            if newest.as_ref().is_none_or(|newest| age(newest) < age(&record)) {
                (newest, place) = (Some(*record), (start, at));
            }
            at += len;
        }
    }
    let mut record = newest.expect("a record");
    forge(&mut record);
    let once = record.encoded_bytes().next_multiple_of(PAGE_BYTES);
    for at in [place.1, place.1 + once as u64].into_iter().take(1 + usize::from(record.is_twice)) {
        let mut bytes = vec![0; once];
        record.encode(&mut bytes, &found.drive_id, at);
        on_disk(dir).write_all_at(&bytes, place.0 + at).expect("write");
    }
}

fn check(what: &str, is_closed: bool, forge: impl Fn(&Path)) {
    pumice_reactor::block_on(async {
        let dir = tempfile::tempdir().expect("directory");
        drive(dir.path(), is_closed).await;
        forge(dir.path());
        match open(dir.path()).await {
            Err(HeapError::Damaged(reason)) => {
                assert!(reason.contains("restore the drive from a copy"), "{what}: {reason}");
            }
            Err(HeapError::Flash(FlashError::Geometry(_))) => {}
            Err(error) => panic!("{what}: {error}"),
            Ok(_) => panic!("{what}: the drive opens"),
        }
    });
}

#[test]
fn a_superblock_that_cannot_be_is_refused() {
    type Forge = fn(&mut Superblock);
    let forgeries: [(&str, Forge); 10] = [
        ("no pages", |it| it.page_bytes = 0),
        ("odd pages", |it| it.page_bytes = 4095),
        ("no segments", |it| it.segment_bytes = 0),
        ("segments of parts of pages", |it| it.segment_bytes += 512),
        ("no channels", |it| it.channels = 0),
        ("segments that no channel has", |it| it.channels = 3),
        ("too many segments", |it| it.segment_count = u32::MAX),
        ("no metadata log", |it| it.meta_half_segments = 0),
        ("a metadata log larger than the drive", |it| it.meta_half_segments = u32::MAX / 2),
        ("the last number", |it| it.sequence = u64::MAX),
    ];
    for (what, forge) in forgeries {
        check(what, true, |dir| forge_superblock(dir, forge));
    }
}

#[test]
fn a_drive_with_a_superblock_that_cannot_be_may_be_formatted() {
    pumice_reactor::block_on(async {
        let dir = tempfile::tempdir().expect("directory");
        drive(dir.path(), true).await;
        forge_superblock(dir.path(), |it| it.sequence = u64::MAX);
        let spec = DeviceSpec::Path(dir.path().join("drive"));
        let device = Device::open(&spec, Access::ReadWrite).await.expect("file");
        let format = FormatOptions { segment_bytes: SEGMENT_BYTES, ..format_options() };
        let refused = Heap::format(&device, &format).await;
        assert!(matches!(refused, Err(HeapError::Damaged(_))), "{refused:?}");
        Heap::format(&device, &FormatOptions { force: true, ..format }).await.expect("format");
        drop(device);
        open(dir.path()).await.expect("a drive");
    });
}

#[test]
fn a_metadata_record_that_cannot_be_is_refused() {
    type Forge = fn(&mut MetaRecord);
    // The only one, so that no later one takes it back.
    fn put(it: &mut MetaRecord, forge: impl Fn(&mut SegmentEntry)) {
        it.segments.truncate(1);
        forge(it.segments.first_mut().expect("a segment"));
    }
    let forgeries: [(&str, Forge); 18] = [
        ("an open segment beyond the drive", |it| put(it, |entry| entry.segment = SEGMENTS)),
        ("data where superblocks are", |it| put(it, |entry| entry.segment = 1)),
        ("an unknown stream", |it| put(it, |entry| entry.stream = 4)),
        ("more written than there is", |it| put(it, |entry| entry.end = SEGMENT_BYTES + 4096)),
        ("parts of a page written", |it| put(it, |entry| entry.end = 5000)),
        ("the last life", |it| put(it, |entry| entry.life = u64::MAX)),
        ("the last number in a segment", |it| put(it, |entry| entry.last_seq = u64::MAX)),
        ("as many erases as fit", |it| {
            let first = it.pool[0];
            put(it, |entry| {
                *entry = SegmentEntry { segment: first, erase_count: u32::MAX, ..SegmentEntry::default() };
            });
        }),
        ("a pool beyond the drive", |it| it.pool[0] = SEGMENTS),
        ("a pool where superblocks are", |it| it.pool[0] = 0),
        ("a pool with one segment twice", |it| it.pool[1] = it.pool[0]),
        ("a pool with a segment in use", |it| {
            let first = it.pool[0];
            put(it, |entry| (entry.segment, entry.state) = (first, SegmentState::Sealed));
        }),
        ("the last number", |it| it.last_seq = u64::MAX),
        ("the next life", |it| it.next_life = u64::MAX),
        ("the last frame", |it| it.durable_frames[0] = u64::MAX),
        ("the last moved frame", |it| it.durable_frames[1] = u64::MAX),
        ("more passes of the patrol than fit", |it| it.patrol[1] = u32::MAX),
        ("a checkpoint of what never was", |it| it.replay_from = u64::MAX),
    ];
    for (what, forge) in forgeries {
        for is_closed in [true, false] {
            check(what, is_closed, |dir| forge_log_with_entry(dir, forge));
        }
    }
}

/// [`forge_log`] of a record that speaks of a segment.
fn forge_log_with_entry(dir: &Path, forge: impl Fn(&mut MetaRecord)) {
    forge_log(dir, |it| {
        if it.segments.is_empty() {
            let segment = it.pool.pop().expect("a pool");
            it.segments.push(SegmentEntry { segment, ..SegmentEntry::default() });
        }
        forge(it);
    });
}

/// What the half of the log that does not hold begins with counts as far as can be, and does not verify.
#[test]
fn a_generation_behind_which_there_is_none_ends_no_opening() {
    pumice_reactor::block_on(async {
        let dir = tempfile::tempdir().expect("directory");
        drive(dir.path(), true).await;
        let superblock::Decoded::Superblock(found) =
            Superblock::decode(&read(dir.path(), 0, SUPERBLOCK_BYTES))
        else {
            panic!("no superblock")
        };
        let half_bytes = u64::from(found.meta_half_segments) * u64::from(SEGMENT_BYTES);
        let halves = [0, 1].map(|half| 2 * u64::from(SEGMENT_BYTES) + half * half_bytes);
        let heads = halves.map(|start| read(dir.path(), start, PAGE_BYTES));
        let generation = |half: usize| MetaRecord::peek_generation(&heads[half]);
        let newer = usize::from(generation(1) > generation(0));
        let mut head = heads[newer].clone();
        head[16..24].fill(0xFF);
        on_disk(dir.path()).write_all_at(&head, halves[1 - newer]).expect("write");
        assert_eq!(MetaRecord::peek_generation(&head), Some(u64::MAX));
        // Refused or not: it must not panic, and the record that verifies may count.
        match open(dir.path()).await {
            Ok(_) => {}
            Err(error) => assert!(matches!(error, HeapError::Damaged(_)), "{error}"),
        }
    });
}

/// Live bytes are a hint, and a wrong one is no reason to refuse a drive.
#[test]
fn a_hint_that_cannot_be_does_no_harm() {
    pumice_reactor::block_on(async {
        let dir = tempfile::tempdir().expect("directory");
        drive(dir.path(), true).await;
        forge_log(dir.path(), |it| it.segments.iter_mut().for_each(|entry| entry.live = u32::MAX));
        let opened = open(dir.path()).await.expect("opens");
        let live = opened.heap.space().live;
        assert!(live <= DRIVE_BYTES, "{live} B alive");
    });
}

#[test]
fn tags_and_checkpoints_of_raw_flash_that_count_too_far_do_not_verify() {
    let tag = BlockTag {
        kind: TagKind::Segment,
        drive_id: [1; 16],
        id: 7,
        sequence: u64::MAX,
        erases: u32::MAX,
        end: TagEnd::PageSum(0),
    };
    assert_eq!(BlockTag::decode(3, &tag.encode(3)), TagDecoded::Nothing);
    let header = PartHeader {
        drive_id: [1; 16],
        generation: 1,
        clean: true,
        in_band: false,
        has_sums: true,
        part: 0,
        parts: 1,
        channels: 1,
        blocks_per_channel: 16,
        pages_per_block: 8,
        page_bytes: 4096,
        oob_bytes: 64,
        sequence: 1,
        scrub_block: 0,
        scrub_passes: u32::MAX,
    };
    assert_eq!(PartHeader::decode(3, &header.encode(3, &[])), Ok(Some((header, &[][..]))));
    for beyond in [PartHeader { generation: u64::MAX, ..header }, PartHeader { sequence: u64::MAX, ..header }]
    {
        assert_eq!(PartHeader::decode(3, &beyond.encode(3, &[])), Ok(None));
    }
}

/// The segment that the first frame of a drive that was not closed lies in.
fn first_segment(dir: &Path) -> u32 {
    let is_first = |&id: &u32| {
        let page = read(dir, u64::from(id) * u64::from(SEGMENT_BYTES), PAGE_BYTES);
        matches!(SegmentHeader::decode(&page), header::Decoded::Header(header) if header.stream == Stream::Commit)
    };
    (0..SEGMENTS).find(is_first).expect("a segment of commits")
}

/// Who forges frames can lose what is in them, and no more than that.
#[test]
fn frames_and_headers_that_count_too_far_do_not_end_an_opening() {
    let heads: [fn(&mut SegmentHeader); 4] = [
        |it| it.life = u64::MAX,
        |it| it.first_frame = u64::MAX,
        |it| it.seq = u64::MAX,
        |it| it.durable_frames = u64::MAX,
    ];
    let frames: [fn(&mut FrameHeader); 4] = [
        |it| it.number = u64::MAX,
        |it| it.seq = u64::MAX,
        |it| (it.count, it.skipped) = (u32::MAX, u16::MAX),
        |it| it.bytes = u32::MAX,
    ];
    let forge_head = |dir: &Path, forge: fn(&mut SegmentHeader)| {
        let at = u64::from(first_segment(dir)) * u64::from(SEGMENT_BYTES);
        let mut page = read(dir, at, PAGE_BYTES);
        let header::Decoded::Header(mut found) = SegmentHeader::decode(&page) else { panic!("no header") };
        forge(&mut found);
        found.encode(&mut page);
        on_disk(dir).write_all_at(&page, at).expect("write");
    };
    let forge_frame = |dir: &Path, forge: fn(&mut FrameHeader)| {
        let segment = first_segment(dir);
        let at = u64::from(segment) * u64::from(SEGMENT_BYTES) + PAGE_BYTES as u64;
        let mut page = read(dir, at, PAGE_BYTES);
        let life = u64::from_le_bytes(page[8..16].try_into().expect("eight bytes"));
        let addr = Addr::new(SegmentId(segment), PAGE_BYTES as u32);
        let mut found = FrameHeader::decode(&page, life, addr).expect("a frame");
        forge(&mut found);
        found.encode(&mut page, addr);
        on_disk(dir).write_all_at(&page, at).expect("write");
    };
    pumice_reactor::block_on(async {
        for forge in heads {
            let dir = tempfile::tempdir().expect("directory");
            drive(dir.path(), false).await;
            forge_head(dir.path(), forge);
            open(dir.path()).await.expect("opens");
        }
        for forge in frames {
            let dir = tempfile::tempdir().expect("directory");
            drive(dir.path(), false).await;
            forge_frame(dir.path(), forge);
            open(dir.path()).await.expect("opens");
        }
    });
}

/// A pointer comes from flash, too, and may lead into the frame that forms in memory.
#[test]
fn a_pointer_that_cannot_be_finds_nothing_in_memory() {
    pumice_reactor::block_on(async {
        let dir = tempfile::tempdir().expect("directory");
        let heap = crate::common::formatted(&file(dir.path(), DRIVE_BYTES).await).await;
        let written = append(&heap, 1, &[7; 500]).expect("append");
        let ptr = written.ptrs[0];
        assert!(heap.peek(ptr).is_some(), "it forms");
        for len in 0..600 {
            let forged = pumice_segment::RecordPtr { len, ..ptr };
            assert_eq!(heap.peek(forged).is_some(), len == ptr.len, "{len} B");
        }
        heap.wait_durable(written.first_seq).await.expect("durable");
    });
}
