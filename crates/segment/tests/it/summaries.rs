//! Summaries at the ends of commit frames: whose the records are, without the records.

use std::collections::BTreeMap;
use std::path::Path;

use bytes::Bytes;
use pumice_base::rng::Rng;
use pumice_flash::{Access, Device, DeviceSpec, Fault, Operation};
use pumice_reactor::sim::{HostOptions, World};
use pumice_segment::layout::frame::{self, FrameHeader};
use pumice_segment::layout::summary;
use pumice_segment::{
    AppendClass, AppendError, Appended, Heap, HeapOptions, Outline, RecordHead, RecordIn, RecordPtr,
    SegmentId,
};

use crate::common::{emulated, file, format_options, formatted, no_progress, options, reopen};

const PATH: &str = "/drive";
const HEAD: u16 = 20;

/// A record to append.
struct Given {
    payload: Vec<u8>,
    outline: Outline,
}

fn given(number: u64, len: usize, outline: Outline) -> Given {
    let mut payload = vec![0; len];
    Rng::from_seed(number).fill(&mut payload);
    Given { payload, outline }
}

fn append(heap: &Heap, all: &[Given]) -> Result<Appended, AppendError> {
    let parts: Vec<[&[u8]; 1]> = all.iter().map(|given| [&given.payload[..]]).collect();
    let records = all.iter().zip(&parts).enumerate();
    let records: Vec<RecordIn<'_>> = records
        .map(|(at, (given, parts))| RecordIn { kind: at as u8, parts, outline: given.outline })
        .collect();
    heap.append(&records, AppendClass::User)
}

/// Eight of 9 KB that are to be asked about among short ones that are not: a frame.
fn frame_of(first: u64) -> Vec<Given> {
    (0..24)
        .map(|n| match n % 3 {
            1 => given(first + n, 9000, Outline::Head(HEAD)),
            _ => given(first + n, 100, Outline::Nothing),
        })
        .collect()
}

fn heads_of(all: &[Given], ptrs: &[RecordPtr]) -> Vec<RecordHead> {
    let heads = all.iter().zip(ptrs).enumerate();
    heads
        .filter_map(|(at, (given, &ptr))| match given.outline {
            Outline::Head(bytes) => {
                let head = Bytes::copy_from_slice(&given.payload[..usize::from(bytes)]);
                Some(RecordHead { kind: at as u8, ptr, head })
            }
            _ => None,
        })
        .collect()
}

#[derive(Default)]
struct Swept {
    heads: Vec<RecordHead>,
    records: Vec<RecordPtr>,
    damage: Vec<String>,
    newest_seq: u64,
    record_bytes: u64,
    read_bytes: u64,
}

async fn sweep(heap: &Heap, segment: SegmentId) -> Swept {
    let before = heap.stats().read_bytes;
    let (mut sweep, mut swept) = (heap.sweep(segment), Swept::default());
    while let Some(contents) = sweep.next().await.expect("sweep") {
        swept.heads.extend(contents.heads);
        swept.records.extend(contents.records.iter().map(|record| record.ptr));
        swept.damage.extend(contents.damage.iter().map(|damage| damage.what.clone()));
        swept.newest_seq = swept.newest_seq.max(contents.newest_seq);
        swept.record_bytes += contents.record_bytes;
    }
    swept.read_bytes = heap.stats().read_bytes - before;
    swept
}

#[test]
fn of_a_log_in_which_nothing_is_alive_only_summaries_are_read() {
    pumice_reactor::block_on(async {
        let (device, _) = emulated("emu:small,channels=1,blocks=64").await;
        let heap = formatted(&device).await;
        let mut heads: BTreeMap<SegmentId, Vec<RecordHead>> = BTreeMap::new();
        let mut newest: BTreeMap<SegmentId, u64> = BTreeMap::new();
        for n in 0..60 {
            let all = frame_of(100 * n);
            let appended = append(&heap, &all).expect("append");
            let last = appended.first_seq + all.len() as u64 - 1;
            heap.wait_durable(last).await.expect("durable");
            for head in heads_of(&all, &appended.ptrs) {
                heads.entry(head.ptr.addr.segment()).or_default().push(head);
            }
            for (seq, ptr) in (appended.first_seq..).zip(&appended.ptrs) {
                newest.insert(ptr.addr.segment(), seq);
            }
        }
        assert!(heads.len() > 3, "{} segments", heads.len());
        for (&segment, heads) in &heads {
            // Nothing says that it is dead: it is read in a row.
            let swept = sweep(&heap, segment).await;
            assert!(swept.heads.is_empty() && swept.damage.is_empty(), "{:?}", swept.damage);
            assert!(swept.records.len() > heads.len());
            let (all_bytes, records) = (swept.read_bytes, swept.records);
            let record_bytes: u64 = records.iter().map(|ptr| u64::from(ptr.len)).sum();
            assert_eq!(swept.record_bytes, record_bytes);
            heap.set_live(segment, 0);
            let swept = sweep(&heap, segment).await;
            // The first frame and the last one may be parts of one that is not short: these are read.
            let by_head = |head: &&RecordHead| swept.heads.contains(head);
            let (seen, rest): (Vec<_>, Vec<_>) = heads.iter().partition(by_head);
            assert!(
                seen.len() == swept.heads.len() && seen.len() > 4 * rest.len(),
                "{} of {}",
                seen.len(),
                heads.len()
            );
            assert!(rest.iter().all(|head| swept.records.contains(&head.ptr)) && swept.damage.is_empty());
            assert_eq!(swept.newest_seq, newest[&segment], "{segment}");
            // Of the short ones, too, which have no heads; their padding with them.
            let most = record_bytes + 8 * records.len() as u64;
            assert!((record_bytes..=most).contains(&swept.record_bytes), "{}", swept.record_bytes);
            assert!(swept.read_bytes * 3 < all_bytes, "{} of {all_bytes} B", swept.read_bytes);
            let contents = heap.contents(segment).await.expect("contents");
            assert!(contents.damage.is_empty() && contents.newest_seq == newest[&segment]);
            assert_eq!(contents.record_bytes, record_bytes);
        }
        drop(heap);
        // A recovery passes summaries over.
        let (_, commit, _) = reopen(&device).await;
        assert_eq!(commit.len(), 60 * 24);
    });
}

#[test]
fn frames_that_are_short_or_hold_what_must_be_read_whole_have_no_summary() {
    pumice_reactor::block_on(async {
        let mut whole = frame_of(1);
        whole.push(given(50, 5000, Outline::Whole));
        // A head that is long for its record.
        let mut long_head = frame_of(1);
        long_head.push(given(50, 2000, Outline::Head(200)));
        let short = vec![given(7, 9000, Outline::Head(HEAD))];
        for all in [whole, long_head, short] {
            let (device, _) = emulated("emu:small,channels=1,blocks=64").await;
            let heap = formatted(&device).await;
            let appended = append(&heap, &all).expect("append");
            heap.wait_durable(appended.first_seq + all.len() as u64 - 1).await.expect("durable");
            let segment = appended.ptrs[0].addr.segment();
            heap.set_live(segment, 0);
            let swept = sweep(&heap, segment).await;
            assert!(swept.heads.is_empty() && swept.damage.is_empty());
            assert_eq!(swept.records[..], appended.ptrs[..]);
        }
    });
}

/// Frame ends, segment ends and batches that go on in the next frame, where a summary takes room, too.
#[test]
fn summaries_never_take_the_room_of_records() {
    for seed in 0..12 {
        let run = async |device: Device| {
            let mut rng = Rng::from_seed(seed);
            let format = pumice_segment::FormatOptions { segment_bytes: 512 << 10, ..format_options() };
            Heap::format(&device, &format).await.expect("format");
            let small = HeapOptions { commit_max_bytes: 64 << 10 << rng.below(3), ..options() };
            let heap = Heap::open(device.clone(), small, &no_progress).await.expect("open").heap;
            let mut written = Vec::new();
            let mut bytes = 0;
            while bytes < 8 << 20 {
                let outline = |rng: &mut Rng| match rng.below(40) {
                    0 => Outline::Whole,
                    n if n % 2 == 0 => Outline::Nothing,
                    _ => Outline::Head(rng.below(60) as u16 + 1),
                };
                let count = 1 + rng.below(12);
                let all: Vec<Given> = (0..count)
                    .map(|n| {
                        let longest = if rng.chance(0.2) { 90_000 } else { 6000 };
                        let len = 64 + rng.below(longest) as usize;
                        let outline = outline(&mut rng);
                        given((seed << 32) | (written.len() as u64 + n), len, outline)
                    })
                    .collect();
                bytes += all.iter().map(|given| given.payload.len()).sum::<usize>();
                if rng.chance(0.1) {
                    // The next record carries its own number.
                    heap.next_seq(1 + rng.below(3));
                }
                let appended = loop {
                    match append(&heap, &all) {
                        Ok(appended) => break appended,
                        Err(AppendError::Busy) => heap.room().await,
                        Err(error) => panic!("seed {seed}: {error}"),
                    }
                };
                if rng.chance(0.5) {
                    heap.wait_durable(appended.first_seq + count - 1).await.expect("durable");
                }
                written.extend(all.into_iter().zip(appended.ptrs));
            }
            heap.flush().await.expect("flush");
            let mut summaries = 0;
            for segment in heap.segments_in_use() {
                let contents = heap.contents(segment).await.expect("contents");
                assert!(contents.damage.is_empty(), "seed {seed}: {:?}", contents.damage);
                let here: Vec<_> = written.iter().filter(|(_, ptr)| ptr.addr.segment() == segment).collect();
                assert_eq!(contents.records.len(), here.len(), "seed {seed}");
                heap.set_live(segment, 0);
                let swept = sweep(&heap, segment).await;
                assert!(swept.damage.is_empty());
                summaries += usize::from(!swept.heads.is_empty());
                for head in swept.heads {
                    let (given, _) = here.iter().find(|(_, ptr)| *ptr == head.ptr).expect("one of them");
                    assert_eq!(given.outline, Outline::Head(head.head.len() as u16), "seed {seed}");
                    assert_eq!(head.head[..], given.payload[..head.head.len()], "seed {seed}");
                }
            }
            assert!(summaries > 0, "seed {seed}");
            for (given, ptr) in &written {
                assert_eq!(
                    heap.read(*ptr).await.expect("read").payload[..],
                    given.payload[..],
                    "seed {seed}"
                );
            }
            drop(heap);
            let (_, commit, _) = reopen(&device).await;
            assert_eq!(commit.len(), written.len(), "seed {seed}");
        };
        pumice_reactor::block_on(async {
            let dir = tempfile::tempdir().expect("dir");
            run(file(dir.path(), 32 << 20).await).await;
            let (device, _) = emulated("emu:small,channels=8,blocks=64").await;
            run(device).await;
        });
    }
}

#[test]
fn a_frame_that_goes_elsewhere_takes_its_summary_along() {
    pumice_reactor::block_on(async {
        let (device, nand) = emulated("emu:small,channels=1,blocks=64").await;
        let heap = formatted(&device).await;
        let first = append(&heap, &frame_of(1)).expect("append");
        heap.wait_durable(first.first_seq + 23).await.expect("durable");
        nand.fail_at(Operation::Program, 1, Fault::Failed);
        let all = frame_of(100);
        let moved = append(&heap, &all).expect("append");
        heap.wait_durable(moved.first_seq + 23).await.expect("durable");
        assert_eq!(heap.stats().relocations, 1);
        let mut found = 0;
        for segment in heap.segments_in_use().into_iter().filter(|&id| id != first.ptrs[0].addr.segment()) {
            heap.set_live(segment, 0);
            let swept = sweep(&heap, segment).await;
            assert!(swept.damage.is_empty(), "{:?}", swept.damage);
            assert!(swept.records.is_empty(), "it is not read whole");
            for (head, old) in swept.heads.iter().zip(heads_of(&all, &moved.ptrs)) {
                assert_eq!((head.kind, &head.head), (old.kind, &old.head));
                found += 1;
            }
            let contents = heap.contents(segment).await.expect("contents");
            assert!(contents.damage.is_empty(), "{:?}", contents.damage);
        }
        assert_eq!(found, 8);
    });
}

/// What a summary says wrong costs a sweep of all of the frame, and no recovery a record.
#[test]
fn no_flip_in_a_summary_makes_one_head_another() {
    let world = World::new(3);
    let host = world.add_host(HostOptions { quirks: false, ..HostOptions::default() });
    let all = frame_of(1);
    let heads = all.iter().filter(|given| given.outline != Outline::Nothing).count();
    let summary_bytes = heads * (summary::ENTRY_BYTES + usize::from(HEAD)) + summary::TRAILER_BYTES;
    let (heap, appended) = world
        .block_on(host, async {
            let device = Device::create(&DeviceSpec::Path(PATH.into()), 16 << 20).await.expect("file");
            let heap = formatted(&device).await;
            let appended = append(&heap, &frame_of(1)).expect("append");
            heap.wait_durable(appended.first_seq + 23).await.expect("durable");
            (heap, appended)
        })
        .expect("the host is up");
    let last = appended.ptrs[23];
    let segment = last.addr.segment();
    heap.set_live(segment, 0);
    let records_end = last.addr.offset() + last.len.next_multiple_of(8);
    let start = u64::from(segment.0) * u64::from(heap.segment_bytes()) + u64::from(records_end);
    let whole = {
        let heap = heap.clone();
        world.block_on(host, async move { sweep(&heap, segment).await }).expect("the host is up")
    };
    assert_eq!(whole.heads, heads_of(&all, &appended.ptrs));
    for at in start..start + summary_bytes as u64 {
        let mask = 1 << (at % 8);
        assert!(world.flip(host, Path::new(PATH), at, mask));
        let heap = heap.clone();
        let (swept, contents) = world
            .block_on(host, async move {
                (sweep(&heap, segment).await, heap.contents(segment).await.expect("contents"))
            })
            .expect("the host is up");
        let at_byte = at - start;
        assert!(swept.heads.is_empty(), "byte {at_byte}");
        assert_eq!(swept.records[..], appended.ptrs[..], "byte {at_byte}");
        for damage in [&swept.damage, &contents.damage.iter().map(|damage| damage.what.clone()).collect()] {
            assert!(damage.len() == 1 && damage[0].contains("summary"), "byte {at_byte}: {damage:?}");
        }
        assert!(world.flip(host, Path::new(PATH), at, mask));
    }
    // A recovery takes the frame for whole.
    assert!(world.flip(host, Path::new(PATH), start + 5, 4));
    drop(heap);
    world.crash(host);
    world.restart(host);
    let records = world
        .block_on(host, async {
            let device =
                Device::open(&DeviceSpec::Path(PATH.into()), Access::ReadWrite).await.expect("device");
            reopen(&device).await.1.len()
        })
        .expect("the host is up");
    assert_eq!(records, 24);
}

/// The last write before the power failed may lack its summary alone. Its records are there and count; that it was ever whole nobody
/// said. One that later writes say was durable has rotted.
#[test]
fn a_summary_that_a_power_failure_tore_is_no_damage() {
    for is_proven in [false, true] {
        let world = World::new(4);
        let host = world.add_host(HostOptions { quirks: false, ..HostOptions::default() });
        let last = world
            .block_on(host, async move {
                let device = Device::create(&DeviceSpec::Path(PATH.into()), 16 << 20).await.expect("file");
                let heap = formatted(&device).await;
                let appended = append(&heap, &frame_of(1)).expect("append");
                heap.wait_durable(appended.first_seq + 23).await.expect("durable");
                if is_proven {
                    let next = append(&heap, &frame_of(100)).expect("append");
                    heap.wait_durable(next.first_seq + 23).await.expect("durable");
                }
                appended.ptrs[23]
            })
            .expect("the host is up");
        world.crash(host);
        let segment = last.addr.segment();
        let summary = last.addr.offset() + last.len.next_multiple_of(8);
        let at = u64::from(segment.0) * u64::from(format_options().segment_bytes) + u64::from(summary);
        assert!(world.flip(host, Path::new(PATH), at, 1));
        // Recovered, and closed cleanly before.
        for _ in 0..2 {
            world.restart(host);
            let (records, damage) = world
                .block_on(host, async move {
                    let device = Device::open(&DeviceSpec::Path(PATH.into()), Access::ReadWrite)
                        .await
                        .expect("device");
                    let heap = reopen(&device).await.0.heap;
                    heap.set_live(segment, 0);
                    let contents = heap.contents(segment).await.expect("contents");
                    let damage = sweep(&heap, segment).await.damage;
                    assert_eq!(damage.len(), contents.damage.len());
                    heap.close().await.expect("close");
                    (contents.records.len(), damage)
                })
                .expect("the host is up");
            world.kill(host);
            assert_eq!(records, if is_proven { 48 } else { 24 });
            assert_eq!(damage.len(), usize::from(is_proven), "{damage:?}");
        }
    }
}

/// Where a frame's header lies in front of its records, as the tests above take it.
#[test]
fn a_frame_ends_with_its_summary() {
    pumice_reactor::block_on(async {
        let (device, _) = emulated("emu:small,channels=1,blocks=64").await;
        let heap = formatted(&device).await;
        let appended = append(&heap, &frame_of(1)).expect("append");
        heap.wait_durable(appended.first_seq + 23).await.expect("durable");
        let (first, last) = (appended.ptrs[0], appended.ptrs[23]);
        let start = first.addr.offset() - frame::HEADER_BYTES as u32;
        let geometry = device.geometry();
        let len = (last.addr.offset() + last.len + 200 - start).next_multiple_of(geometry.page_bytes);
        let buf = pumice_reactor::IoBuf::for_read(len as usize);
        let (read, bytes) = device.read(geometry.block(first.addr.segment().0), start, buf).await;
        read.expect("read");
        let life = u64::from_le_bytes(bytes[8..16].try_into().expect("eight"));
        let addr = pumice_segment::Addr::new(first.addr.segment(), start);
        let header = FrameHeader::decode(&bytes, life, addr).expect("a frame");
        let records_end = (last.addr.offset() - start + last.len.next_multiple_of(8)) as usize;
        let entries = summary::decode(&bytes[records_end..header.bytes as usize], life, addr);
        let entries = entries.expect("a summary");
        assert_eq!(entries.len(), 8);
        for (entry, ptr) in entries.iter().zip(appended.ptrs.iter().skip(1).step_by(3)) {
            assert_eq!((start + entry.at, entry.payload_bytes), (ptr.addr.offset(), 9000));
        }
    });
}

/// The header says that there is one: what a client writes at a frame's end is none, whatever it knows of the place.
#[test]
fn a_value_that_looks_like_a_summary_is_none() {
    pumice_reactor::block_on(async {
        let (device, _) = emulated("emu:small,channels=1,blocks=64").await;
        let heap = formatted(&device).await;
        let first = append(&heap, &frame_of(1)).expect("append");
        heap.wait_durable(first.first_seq + 23).await.expect("durable");
        let geometry = device.geometry();
        let segment = first.ptrs[0].addr.segment();
        let start = first.ptrs[0].addr.offset() - frame::HEADER_BYTES as u32;
        let buf = pumice_reactor::IoBuf::for_read(geometry.page_bytes as usize);
        let (read, page) = device.read(geometry.block(segment.0), start, buf).await;
        read.expect("read");
        let life = u64::from_le_bytes(page[8..16].try_into().expect("eight"));
        let header =
            FrameHeader::decode(&page, life, pumice_segment::Addr::new(segment, start)).expect("a frame");
        let next = (start + header.bytes).next_multiple_of(geometry.page_bytes);
        // So long that its end is the frame's.
        let mut forged = given(9, 70_004, Outline::Whole);
        let trailer = forged.payload.len() - summary::TRAILER_BYTES;
        summary::encode_trailer(
            &mut forged.payload[trailer..],
            life,
            pumice_segment::Addr::new(segment, next),
        );
        let second = append(&heap, &[forged]).expect("append");
        heap.wait_durable(second.first_seq).await.expect("durable");
        assert_eq!(second.ptrs[0].addr.offset(), next + frame::HEADER_BYTES as u32);
        heap.set_live(segment, 0);
        let swept = sweep(&heap, segment).await;
        assert_eq!(swept.heads.len(), 8);
        assert!(swept.records == second.ptrs[..] && swept.damage.is_empty(), "{:?}", swept.damage);
    });
}
