//! A frame of the log in one segment after the other rots, and the drive was not closed: what is behind it is kept, and the
//! damage reported, unless nothing tells it from the torn end of the log. On a file, in virtual time, where two commits are on
//! their way at once.

use std::collections::BTreeSet;
use std::future::Future;
use std::path::Path;
use std::time::Duration;

use crate::common::{self, append, format_options, no_progress};
use bytes::Bytes;
use pumice_flash::{Access, Device, DeviceSpec};
use pumice_reactor::sim::{CrashFate, DiskImage, FaultOp, FileFault, HostId, HostOptions, World};
use pumice_reactor::{IoBuf, JoinHandle, sleep, spawn};
use pumice_segment::layout::frame::FrameHeader;
use pumice_segment::layout::header::{Decoded, SegmentHeader};
use pumice_segment::{
    Addr, Durability, FormatOptions, Heap, HeapError, HeapOptions, MetaEdit, SegmentId, Stream,
};

const PATH: &str = "/drive";
const SEGMENT_BYTES: u32 = 64 << 10;
const PAGE_BYTES: u32 = 4096;
const SEGMENTS: u32 = 64;
/// Where the log lies in several segments at once.
const CHANNELS: u16 = 4;

fn options(durability: Durability) -> HeapOptions {
    HeapOptions { durability, commit_max_bytes: 16 << 10, ..common::in_windows() }
}

fn up<T: 'static>(world: &World, host: HostId, future: impl Future<Output = T> + 'static) -> T {
    world.block_on(host, future).unwrap_or_else(|halt| panic!("{halt}"))
}

/// A new drive whose segments lie on so many channels, opened.
async fn new_heap(channels: u16, durability: Durability) -> Heap {
    let spec: DeviceSpec = PATH.parse().expect("spec");
    let bytes = u64::from(SEGMENT_BYTES) * u64::from(SEGMENTS);
    let device = Device::create(&spec, bytes).await.expect("file");
    let format = FormatOptions { segment_bytes: SEGMENT_BYTES, channels, ..format_options() };
    Heap::format(&device, &format).await.expect("format");
    let mut opened = Heap::open(device, options(durability), &no_progress).await.expect("open");
    while opened.replay.next().await.expect("replay").is_some() {}
    opened.heap
}

/// A commit frame on the drive.
#[derive(Clone, Debug)]
struct OnFlash {
    at: Addr,
    header: FrameHeader,
}

impl OnFlash {
    fn offset(&self) -> u64 {
        u64::from(self.at.segment().0) * u64::from(SEGMENT_BYTES) + u64::from(self.at.offset())
    }

    fn numbers(&self) -> impl Iterator<Item = u64> {
        self.header.seq..self.header.seq + u64::from(self.header.count)
    }
}

async fn frames(device: &Device) -> Vec<OnFlash> {
    let mut found = Vec::new();
    for segment in 0..SEGMENTS {
        let block = device.geometry().block(segment);
        let pages = device.write_pointer(block).unwrap_or(SEGMENT_BYTES / PAGE_BYTES);
        let (result, bytes) = device.read(block, 0, IoBuf::for_read((pages * PAGE_BYTES) as usize)).await;
        result.expect("read");
        let Decoded::Header(header) = SegmentHeader::decode(&bytes) else { continue };
        for offset in (PAGE_BYTES..bytes.len() as u32).step_by(PAGE_BYTES as usize) {
            let at = Addr::new(SegmentId(segment), offset);
            if let Some(header) = FrameHeader::decode(&bytes[offset as usize..], header.life, at)
                && header.stream == Stream::Commit
            {
                found.push(OnFlash { at, header });
            }
        }
    }
    found.sort_by_key(|frame| frame.header.number);
    found
}

/// A drive whose log was acknowledged and not checkpointed, as it lies there when the power has failed, and its frames.
fn written(durability: Durability) -> (World, HostId, DiskImage, Vec<OnFlash>) {
    let (world, host, image, all, _) = written_and_recorded(durability, 13, None);
    (world, host, image, all)
}

/// The same after so many rounds, with a metadata record that was written before one of them, and the frames that it knew.
fn written_and_recorded(
    durability: Durability,
    rounds: u8,
    recorded: Option<u8>,
) -> (World, HostId, DiskImage, Vec<OnFlash>, usize) {
    let world = World::new(5);
    let host = world.add_host(HostOptions { quirks: false, ..HostOptions::default() });
    let (all, named) = up(&world, host, async move {
        let heap = new_heap(1, durability).await;
        let mut named = 0;
        for round in 0..rounds {
            if recorded == Some(round) {
                heap.commit_meta(MetaEdit::Edit(Bytes::from_static(b"x")), 0).await.expect("record");
                named = frames(heap.device()).await.len();
            }
            let mut last = 0;
            // The last one is alone, and says that all before it are durable.
            let sizes = if round + 1 < rounds { &[9000, 500, 9000, 4000][..] } else { &[300] };
            for &size in sizes {
                last = append(&heap, 1, &vec![round; size]).expect("append").first_seq;
            }
            heap.wait_durable(last).await.expect("durable");
            if durability != Durability::Always {
                // All of it is written, and synced.
                sleep(Duration::from_secs(2)).await;
            }
        }
        (frames(heap.device()).await, named)
    });
    world.crash(host);
    let image = world.disk(host);
    (world, host, image, all, named)
}

/// The sequence numbers that an opener finds when these bytes have rotted, and the places that it calls damaged.
fn found_without(
    world: &World,
    host: HostId,
    durability: Durability,
    rotten: &[u64],
) -> (BTreeSet<u64>, Vec<String>) {
    for &at in rotten {
        assert!(world.flip(host, Path::new(PATH), at, 0x20), "byte {at}");
    }
    world.restart(host);
    let found = up(world, host, async move {
        let device = Device::open(&PATH.parse().expect("spec"), Access::ReadWrite).await.expect("file");
        let mut opened = Heap::open(device, options(durability), &no_progress).await.expect("open");
        let (mut found, mut damage) = (BTreeSet::new(), Vec::new());
        let mut newest = 0;
        while let Some(batch) = opened.replay.next().await.expect("replay") {
            damage.extend(batch.damage.iter().map(ToString::to_string));
            for record in batch.records {
                assert!(record.seq > newest, "{} follows {newest}", record.seq);
                newest = record.seq;
                found.insert(record.seq);
            }
        }
        let next = append(&opened.heap, 1, b"it goes on").expect("append");
        assert!(next.first_seq > newest);
        opened.heap.wait_durable(next.first_seq).await.expect("durable");
        (found, damage)
    });
    world.crash(host);
    found
}

fn rot_everywhere(durability: Durability) {
    let (world, host, image, all) = written(durability);
    let every: BTreeSet<u64> = all.iter().flat_map(OnFlash::numbers).collect();
    assert!(all.len() > 15 && every.len() == 49, "{} frames, {} records", all.len(), every.len());
    let segments: BTreeSet<u32> = all.iter().map(|frame| frame.at.segment().0).collect();
    assert!(segments.len() > 3, "{segments:?}");
    for in_header in [true, false] {
        let mut unproven = 0;
        for rotten in &all {
            world.set_disk(host, &image);
            // A byte of the header's, or of the first record's payload.
            let at = rotten.offset() + if in_header { 20 } else { 120 };
            let (found, damage) = found_without(&world, host, durability, &[at]);
            let number = rotten.header.number;
            let proof = |frame: &&OnFlash| !in_header || frame.header.number != number;
            let proven = all.iter().filter(proof).map(|f| f.header.number - u64::from(f.header.lag)).max();
            let gone: BTreeSet<u64> = rotten.numbers().collect();
            let said = format!(
                "{durability}, frame {number} of {} to {}, in its header {in_header}: {found:?}, {damage:?}",
                all[0].header.number,
                all[all.len() - 1].header.number
            );
            if Some(number) < proven {
                assert!(!damage.is_empty(), "nobody is told: {said}");
                assert!(
                    every.difference(&found).all(|seq| gone.contains(seq)),
                    "more is lost than rotted: {said}"
                );
            } else {
                unproven += 1;
                assert!(damage.is_empty(), "no damage that could be told from the torn end: {said}");
                let before = all.iter().filter(|frame| frame.header.number < number);
                assert_eq!(found, before.flat_map(OnFlash::numbers).collect(), "{said}");
            }
        }
        assert_eq!(unproven, 1, "frames that may go in silence");
    }
}

#[test]
fn a_rotten_frame_is_no_torn_end_though_two_commits_were_on_their_way() {
    rot_everywhere(Durability::Always);
}

/// Of several commits between two syncs the later ones prove nothing about the earlier, what comes after the sync does.
#[test]
fn a_rotten_frame_is_no_torn_end_though_only_later_syncs_prove_it() {
    rot_everywhere(Durability::EverySecond);
}

/// The header of the segment that this frame is the first of, and the frame's.
fn first_pages(frame: &OnFlash) -> [u64; 2] {
    assert_eq!(frame.at.offset(), PAGE_BYTES, "{frame:?}");
    [frame.offset() - u64::from(PAGE_BYTES), frame.offset()].map(|page| page + 20)
}

/// Where the numbers of a segment begin is not known then. Whatever else tells, its other frames count.
#[test]
fn a_segment_that_metadata_names_is_found_without_its_first_two_pages() {
    for recorded in 1..13 {
        let (world, host, image, all, named) = written_and_recorded(Durability::Always, 13, Some(recorded));
        let every: BTreeSet<u64> = all.iter().flat_map(OnFlash::numbers).collect();
        for rotten in all[..named].iter().filter(|frame| frame.at.offset() == PAGE_BYTES) {
            world.set_disk(host, &image);
            let (found, damage) = found_without(&world, host, Durability::Always, &first_pages(rotten));
            let said = format!(
                "recorded before round {recorded}, frame {} at {}: {found:?}, {damage:?}",
                rotten.header.number, rotten.at
            );
            let gone: BTreeSet<u64> = rotten.numbers().collect();
            assert!(!damage.is_empty(), "nobody is told: {said}");
            assert!(
                every.difference(&found).all(|seq| gone.contains(seq)),
                "more is lost than rotted: {said}"
            );
        }
    }
}

/// Metadata names it as one of those that are opened next only, as it does the newest segment most of the time.
#[test]
fn a_segment_that_was_opened_since_is_found_without_its_first_two_pages() {
    let mut behind_newest = 0;
    for rounds in 13..17 {
        let (world, host, image, all, _) = written_and_recorded(Durability::Always, rounds, None);
        let every: BTreeSet<u64> = all.iter().flat_map(OnFlash::numbers).collect();
        for rotten in all.iter().filter(|frame| frame.at.offset() == PAGE_BYTES) {
            let behind = |frame: &&OnFlash| frame.at.segment() == rotten.at.segment() && frame.at > rotten.at;
            let others = all.iter().filter(|frame| frame.header.number != rotten.header.number);
            let proven = others.map(|frame| frame.header.number - u64::from(frame.header.lag)).max();
            if Some(rotten.header.number) >= proven {
                // Nothing tells it from the torn end.
                continue;
            }
            let is_newest = all[all.len() - 1].at.segment() == rotten.at.segment();
            behind_newest += if is_newest { all.iter().filter(behind).count() } else { 0 };
            world.set_disk(host, &image);
            let (found, damage) = found_without(&world, host, Durability::Always, &first_pages(rotten));
            let said = format!("frame {} at {}: {found:?}, {damage:?}", rotten.header.number, rotten.at);
            let gone: BTreeSet<u64> = rotten.numbers().collect();
            assert!(!damage.is_empty(), "nobody is told: {said}");
            assert!(
                every.difference(&found).all(|seq| gone.contains(seq)),
                "more is lost than rotted: {said}"
            );
        }
    }
    assert!(behind_newest > 3, "{behind_newest} frames behind the first of the newest segment");
}

/// A drive whose log a checkpoint covers up to somewhere inside of a segment, its frames, and the sequence number covered. The
/// checkpoint was written after this round, the fifth or a later one.
fn checkpointed(recorded: u8) -> (World, HostId, DiskImage, Vec<OnFlash>, u64) {
    let world = World::new(6);
    let host = world.add_host(HostOptions { quirks: false, ..HostOptions::default() });
    let (all, covered) = up(&world, host, async move {
        let (heap, mut covered) = (new_heap(1, Durability::Always).await, 0);
        for round in 0..9u8 {
            let last = append(&heap, 1, &[round; 3000]).expect("append").first_seq;
            heap.wait_durable(last).await.expect("durable");
            if round == 4 {
                covered = last;
            }
            if round == recorded {
                let state = MetaEdit::Snapshot(Bytes::from_static(b"all of them"));
                heap.commit_meta(state, covered).await.expect("checkpoint");
            }
        }
        (frames(heap.device()).await, covered)
    });
    world.crash(host);
    let image = world.disk(host);
    (world, host, image, all, covered)
}

#[test]
fn of_several_pages_that_the_drive_does_not_answer_each_is_asked_about() {
    let (world, host, image, all, covered) = checkpointed(4);
    let segments: BTreeSet<u32> = all.iter().map(|frame| frame.at.segment().0).collect();
    assert!(all.len() == 9 && segments.len() == 1, "{all:?}");
    let silent = |frame: &OnFlash| FileFault {
        path: None,
        op: FaultOp::Read,
        range: Some(frame.offset()..frame.offset() + 1),
        skip: 0,
        times: u64::MAX,
        // A time-out: EIO of one page alone would be a bad place.
        errno: 110,
    };
    for first in all.iter().filter(|frame| frame.header.seq <= covered) {
        for second in all.iter().filter(|frame| frame.header.seq > covered) {
            world.set_disk(host, &image);
            world.restart(host);
            // Alone, the first is of a frame that nobody needs; the second is not.
            [first, second].into_iter().for_each(|frame| world.add_fault(host, silent(frame)));
            let said = format!("frames {} and {}", first.header.number, second.header.number);
            let opened = up(&world, host, async move {
                let device =
                    Device::open(&PATH.parse().expect("spec"), Access::ReadWrite).await.expect("file");
                let mut opened = Heap::open(device, options(Durability::Always), &no_progress).await?;
                while opened.replay.next().await?.is_some() {}
                Ok::<_, HeapError>(())
            });
            assert!(matches!(opened, Err(HeapError::Flash(_))), "{said}: {opened:?}");
            world.clear_faults(host);
            world.crash(host);
            world.restart(host);
            let found = up(&world, host, async move {
                let device =
                    Device::open(&PATH.parse().expect("spec"), Access::ReadWrite).await.expect("file");
                let mut opened =
                    Heap::open(device, options(Durability::Always), &no_progress).await.expect("open");
                let mut found = Vec::new();
                while let Some(batch) = opened.replay.next().await.expect("replay") {
                    assert!(batch.damage.is_empty(), "{:?}", batch.damage);
                    found.extend(batch.records.iter().map(|record| record.seq));
                }
                found
            });
            world.crash(host);
            let wanted: Vec<u64> =
                all.iter().flat_map(OnFlash::numbers).filter(|seq| *seq > covered).collect();
            assert_eq!(found, wanted, "{said}");
        }
    }
}

/// What rots at the end of a segment that is still open is looked for by nobody but cleaning, which must know that it was there.
#[test]
fn a_rotten_frame_that_a_checkpoint_covers_is_reported_and_not_forgotten() {
    let world = World::new(7);
    let host = world.add_host(HostOptions { quirks: false, ..HostOptions::default() });
    let all = up(&world, host, async move {
        let (heap, mut last) = (new_heap(CHANNELS, Durability::Always).await, 0);
        for round in 0..2u8 {
            for _ in 0..8 {
                last = append(&heap, 1, &[round; 12_000]).expect("append").first_seq;
            }
            heap.wait_durable(last).await.expect("durable");
        }
        heap.commit_meta(MetaEdit::Snapshot(Bytes::from_static(b"all of them")), last)
            .await
            .expect("checkpoint");
        frames(heap.device()).await
    });
    world.crash(host);
    let image = world.disk(host);
    let segments: BTreeSet<u32> = all.iter().map(|frame| frame.at.segment().0).collect();
    assert!(segments.len() > 1, "one lane: {segments:?}");
    for rotten in &all {
        world.set_disk(host, &image);
        world.flip(host, Path::new(PATH), rotten.offset() + 20, 0x20);
        world.restart(host);
        let (at, number) = (rotten.at, rotten.header.number);
        let (said, met) = up(&world, host, async move {
            let device = Device::open(&PATH.parse().expect("spec"), Access::ReadWrite).await.expect("file");
            let mut opened =
                Heap::open(device, options(Durability::Always), &no_progress).await.expect("open");
            let mut said = Vec::new();
            while let Some(batch) = opened.replay.next().await.expect("replay") {
                said.extend(batch.damage.iter().map(ToString::to_string));
            }
            (said, opened.heap.contents(at.segment()).await.expect("contents").damage)
        });
        assert!(met.iter().any(|damage| damage.offset == at.offset()), "frame {number} at {at}: {met:?}");
        let is_last = !all.iter().any(|next| next.at.segment() == at.segment() && next.at > at);
        assert!(!is_last || !said.is_empty(), "nobody is told of frame {number} at {at}");
        world.crash(host);
    }
}

/// Everything that reads of a segment's frames, as cleaning meets it, and what does not.
async fn met_by_cleaning(heap: &Heap, segment: SegmentId) -> Vec<u32> {
    let mut sweep = heap.sweep(segment);
    let mut damage = Vec::new();
    while let Some(contents) = sweep.next().await.expect("sweep") {
        damage.extend(contents.damage.iter().map(|damage| damage.offset));
    }
    let all = heap.contents(segment).await.expect("contents").damage;
    assert_eq!(all.iter().map(|damage| damage.offset).collect::<Vec<_>>(), damage);
    damage
}

/// A frame that a checkpoint covers rots, and all behind it, of which it covers none. The segment ends before all of them then; the
/// records of the first are named by the client nevertheless, and some of them may read.
#[test]
fn a_segment_that_ends_before_frames_that_were_durable_does_not_pass_for_whole() {
    let (world, host, image, all, covered) = checkpointed(5);
    assert!(all.len() == 9 && all[4].numbers().eq([covered]), "{covered} of {all:?}");
    let segment = all[0].at.segment();
    // The checkpoint knew six of them.
    for rotten in 4..7 {
        world.set_disk(host, &image);
        for frame in &all[rotten..] {
            world.flip(host, Path::new(PATH), frame.offset() + 20, 0x20);
        }
        let wanted = if rotten < 6 { vec![all[rotten].at.offset()] } else { Vec::new() };
        for is_closed in [false, true] {
            world.restart(host);
            let (said, met) = up(&world, host, async move {
                let device =
                    Device::open(&PATH.parse().expect("spec"), Access::ReadWrite).await.expect("file");
                let mut opened =
                    Heap::open(device, options(Durability::Always), &no_progress).await.expect("open");
                let mut said = 0;
                while let Some(batch) = opened.replay.next().await.expect("replay") {
                    said += batch.damage.len();
                }
                let met = met_by_cleaning(&opened.heap, segment).await;
                opened.heap.close().await.expect("close");
                (said, met)
            });
            world.crash(host);
            assert!(is_closed || (said > 0) == (rotten < 6), "frames from {rotten} on: {said} were told of");
            assert_eq!(met, wanted, "frames from {rotten} on, opened again: {is_closed}");
        }
    }
}

/// Two metadata records under way, checkpoints up to `last`. One waits for the other, when all is durable; what is written meanwhile
/// is counted in the second.
async fn two_records(heap: &Heap, last: u64) -> Vec<JoinHandle<()>> {
    let record = |state| {
        let (heap, state) = (heap.clone(), MetaEdit::Snapshot(Bytes::from_static(state)));
        spawn(async move { heap.commit_meta(state, last).await.expect("checkpoint") })
    };
    let records = [b"a", b"b"].map(|state| record(state)).into();
    sleep(Duration::from_nanos(1)).await;
    records
}

/// A log in several segments of which a checkpoint covers what is durable, and a frame behind that in the same segment, which the
/// metadata log has counted and which the power failure took. Answers the frames that are left.
fn covered_and_torn() -> (World, HostId, DiskImage, Vec<OnFlash>) {
    let world = World::new(8);
    let host = world.add_host(HostOptions { quirks: false, ..HostOptions::default() });
    world.set_crash_fate(host, Some(CrashFate::Lost));
    let (all, torn) = up(&world, host, async move {
        let (heap, mut last) = (new_heap(CHANNELS, Durability::EverySecond).await, 0);
        for round in 0..4u8 {
            // One after the other, they fill one segment.
            last = append(&heap, 1, &[round; 3000]).expect("append").first_seq;
            heap.flush().await.expect("durable");
        }
        let all = frames(heap.device()).await;
        let records = two_records(&heap, last).await;
        let torn = append(&heap, 1, &[9; 9000]).expect("append").ptrs[0].addr;
        append(&heap, 1, &[9; 9000]).expect("the first one's frame is full");
        for record in records {
            record.await.expect("no panic");
        }
        (all, torn)
    });
    world.crash(host);
    assert!(
        all.len() == 4 && all.iter().all(|frame| frame.at.segment() == torn.segment()),
        "{all:?}, {torn}"
    );
    let image = world.disk(host);
    (world, host, image, all)
}

/// Of a log in several segments nothing is missed of a frame that a checkpoint covers, and the segment ends before it because of
/// the frame behind it that never was durable.
#[test]
fn a_rotten_frame_that_is_covered_is_not_forgotten_for_the_torn_one_behind_it() {
    let (world, host, image, all) = covered_and_torn();
    for rotten in [None, Some(3), Some(0)] {
        world.set_disk(host, &image);
        for frame in rotten.map(|first| &all[first..]).unwrap_or_default() {
            world.flip(host, Path::new(PATH), frame.offset() + 20, 0x20);
        }
        for is_closed in [false, true] {
            world.restart(host);
            let segment = all[0].at.segment();
            let (found, met) = up(&world, host, async move {
                let device =
                    Device::open(&PATH.parse().expect("spec"), Access::ReadWrite).await.expect("file");
                let mut opened =
                    Heap::open(device, options(Durability::EverySecond), &no_progress).await.expect("open");
                let mut found = Vec::new();
                while let Some(batch) = opened.replay.next().await.expect("replay") {
                    assert!(batch.damage.is_empty(), "nobody needs it for the replay: {:?}", batch.damage);
                    found.extend(batch.records.iter().map(|record| record.seq));
                }
                let met = met_by_cleaning(&opened.heap, segment).await;
                opened.heap.close().await.expect("close");
                (found, met)
            });
            world.crash(host);
            assert_eq!(found, [0; 0], "what was not durable is gone");
            // Without any, nobody is sent to ask the index for what never was there.
            let wanted: Vec<u32> = rotten
                .iter()
                .map(|&first: &usize| if first == 0 { 0 } else { all[first].at.offset() })
                .collect();
            assert_eq!(met, wanted, "frames from {rotten:?} on, opened again: {is_closed}");
        }
    }
}

/// A log in one piece of which a checkpoint covers the first segment, which is full, and frames in the next one: the metadata log
/// has counted them, and none of them was synced. Answers those frames, as they lie there while the power is on.
fn counted_and_not_synced(count: usize) -> (World, HostId, Vec<OnFlash>) {
    let world = World::new(9);
    let host = world.add_host(HostOptions { quirks: false, ..HostOptions::default() });
    world.set_crash_fate(host, Some(CrashFate::Lost));
    let all = up(&world, host, async move {
        let (heap, mut last) = (new_heap(1, Durability::EverySecond).await, 0);
        for round in 0..5u8 {
            // Five frames of three pages fill a segment.
            last = append(&heap, 1, &[round; 9000]).expect("append").first_seq;
            heap.flush().await.expect("durable");
        }
        // Each record waits for the one before it, when all is durable; what is written meanwhile is counted in the last ones.
        let records: Vec<_> = (0..20)
            .map(|_| {
                let heap = heap.clone();
                let state = MetaEdit::Edit(Bytes::from_static(b"x"));
                spawn(async move { heap.commit_meta(state, last).await.expect("checkpoint") })
            })
            .collect();
        sleep(Duration::from_nanos(1)).await;
        for round in 0..=count as u8 {
            append(&heap, 1, &[100 + round; 9000]).expect("append");
        }
        for record in records {
            record.await.expect("no panic");
        }
        // The last of them only filled up the frame before it.
        frames(heap.device()).await.into_iter().skip(5).take(count).collect::<Vec<_>>()
    });
    assert!(all.len() == count && all[0].at.offset() == PAGE_BYTES, "{all:?}");
    assert!(all.iter().all(|frame| frame.at.segment() == all[0].at.segment()), "{all:?}");
    (world, host, all)
}

/// What an opener finds: the records' numbers, how many places it calls damaged, and those that cleaning meets in this segment.
fn found_and_met(world: &World, host: HostId, segment: SegmentId) -> (Vec<u64>, usize, Vec<u32>) {
    world.restart(host);
    up(world, host, async move {
        let device = Device::open(&PATH.parse().expect("spec"), Access::ReadWrite).await.expect("file");
        let mut opened =
            Heap::open(device, options(Durability::EverySecond), &no_progress).await.expect("open");
        let (mut found, mut damage) = (Vec::new(), 0);
        while let Some(batch) = opened.replay.next().await.expect("replay") {
            damage += batch.damage.len();
            found.extend(batch.records.iter().map(|record| record.seq));
        }
        let met = met_by_cleaning(&opened.heap, segment).await;
        opened.heap.close().await.expect("close");
        (found, damage, met)
    })
}

/// The segment was full and done with before the sync. Of its frames those behind the first got to the disk.
#[test]
fn the_first_frame_of_a_full_segment_is_not_lost_if_it_never_was_durable() {
    let (world, host, all) = counted_and_not_synced(5);
    world.kill(host);
    world.flip(host, Path::new(PATH), all[0].offset() + 20, 0x20);
    let (found, damage, met) = found_and_met(&world, host, all[0].at.segment());
    assert_eq!((found, damage, met), (vec![], 0, vec![]), "the torn end of the log is no damage");
}

/// Nothing of a segment reads that holds all that is not covered: no other frame tells that it is missed.
#[test]
fn a_segment_of_which_nothing_reads_is_reported_unless_nothing_was_written_there() {
    for count in 1..4 {
        let (world, host, all) = counted_and_not_synced(count);
        let segment = all[0].at.segment();
        world.crash(host);
        let nothing = found_and_met(&world, host, segment);
        assert_eq!(nothing, (vec![], 0, vec![]), "{count} frames that never got there");

        let (world, host, all) = counted_and_not_synced(count);
        world.kill(host);
        let pages = [first_pages(&all[0])[0]].into_iter().chain(all.iter().map(|frame| frame.offset() + 20));
        pages.for_each(|at| assert!(world.flip(host, Path::new(PATH), at, 0x20)));
        let (found, damage, met) = found_and_met(&world, host, segment);
        assert!(found.is_empty() && damage > 0, "{count} frames are gone and nobody is told");
        assert_eq!(met, [0], "{count} frames, and what is named there is not asked for");
    }
}

/// A log in two segments at once of which a checkpoint covers what is durable, so many frames of it one after the other in the second
/// one, and two frames behind that, which the metadata log has counted and no sync followed. Answers the frames, as they lie
/// there while the power is on: the second is one of few in its segment.
fn few_and_many(many: u8) -> (World, HostId, Vec<OnFlash>) {
    let world = World::new(10);
    let host = world.add_host(HostOptions { quirks: false, ..HostOptions::default() });
    let all = up(&world, host, async move {
        let heap = new_heap(CHANNELS, Durability::EverySecond).await;
        // Of two at once the second has a segment of its own.
        for byte in 0..2u8 {
            append(&heap, 1, &[byte; 12_000]).expect("append");
        }
        heap.flush().await.expect("durable");
        let mut last = 0;
        for round in 0..many {
            last = append(&heap, 1, &[round; 3000]).expect("append").first_seq;
            heap.flush().await.expect("durable");
        }
        let records = two_records(&heap, last).await;
        for byte in 7..10u8 {
            append(&heap, 1, &[byte; 12_000]).expect("append");
        }
        for record in records {
            record.await.expect("no panic");
        }
        frames(heap.device()).await
    });
    world.kill(host);
    assert_eq!(all.len(), 4 + usize::from(many), "{all:?}");
    (world, host, all)
}

/// Which of them lie in the segment of few.
fn in_few(all: &[OnFlash]) -> Vec<usize> {
    (0..all.len()).filter(|&at| all[at].at.segment() == all[1].at.segment()).collect()
}

/// The segment of few frames ends in one that never was durable. Some that were durable and have numbers in between are missing;
/// where it reads what lies next, none of them can lie there.
#[test]
fn a_segment_whose_next_frame_is_known_lacks_none_before_it() {
    let (_, _, all) = few_and_many(4);
    assert_eq!(in_few(&all), [1, 7]);
    let torn = 6;
    for (rotten, met) in [
        (vec![torn], None),
        (vec![torn, 3], None),
        (vec![torn, 3, 7], Some(all[7].at.offset())),
        (vec![torn, 3, 1], Some(0)),
        (vec![torn, 3, 1, 7], Some(0)),
    ] {
        let (world, host, all) = few_and_many(4);
        for &frame in &rotten {
            assert!(world.flip(host, Path::new(PATH), all[frame].offset() + 20, 0x20));
        }
        for is_opened_again in [false, true] {
            let found = found_and_met(&world, host, all[1].at.segment());
            world.kill(host);
            let wanted = (vec![], 0, Vec::from_iter(met));
            assert_eq!(found, wanted, "without {rotten:?}, opened again: {is_opened_again}");
        }
    }
}

/// The other segment became full, and a checkpoint covers it: a recovery reads it only to learn that it holds the numbers in between.
#[test]
fn a_segment_lacks_no_frames_that_lie_in_one_that_is_covered() {
    let torn = [13, 14];
    for rotten in [None, Some(5)] {
        let (world, host, all) = few_and_many(11);
        let few = all[1].at.segment();
        assert_eq!(in_few(&all), [1, torn[0], torn[1]]);
        for frame in torn.into_iter().chain(rotten) {
            assert!(world.flip(host, Path::new(PATH), all[frame].offset() + 20, 0x20));
        }
        // The number of one is nowhere, so that it may have been where the segment of few frames ends.
        let met = rotten.map(|_| all[torn[0]].at.offset());
        for is_opened_again in [false, true] {
            let found = found_and_met(&world, host, few);
            world.kill(host);
            let wanted = (vec![], 0, Vec::from_iter(met));
            assert_eq!(found, wanted, "without {rotten:?}, opened again: {is_opened_again}");
        }
    }
}
