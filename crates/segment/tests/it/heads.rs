//! Heads of large values' records: read without the rest, and never taken for what was not written.

use std::path::Path;

use bytes::Bytes;
use pumice_flash::{Device, DeviceSpec};
use pumice_reactor::sim::{HostOptions, World};
use pumice_segment::layout::{frame, record};
use pumice_segment::{Damage, Group, Heap, RecordHead, RecordPtr, Replayed, SegmentId};

use crate::common::{emulated, format_options, formatted};

const PATH: &str = "/drive";
const KIND: u8 = 4;
const PAYLOAD_BYTES: usize = 50_000;

/// What a sweep brings of a segment.
#[derive(Default)]
struct Swept {
    heads: Vec<RecordHead>,
    records: Vec<Replayed>,
    damage: Vec<Damage>,
    read_bytes: u64,
}

async fn sweep(heap: &Heap, segment: SegmentId) -> Swept {
    let before = heap.stats().read_bytes;
    let (mut sweep, mut swept) = (heap.sweep(segment), Swept::default());
    while let Some(contents) = sweep.next().await.expect("sweep") {
        swept.heads.extend(contents.heads);
        swept.records.extend(contents.records);
        swept.damage.extend(contents.damage);
    }
    swept.read_bytes = heap.stats().read_bytes - before;
    swept
}

fn payload(number: u8, len: usize) -> Vec<u8> {
    (0..len).map(|at| number.wrapping_mul(31).wrapping_add((at % 251) as u8)).collect()
}

/// Writes a record of large values with so long a head.
async fn put(heap: &Heap, payload: &[u8], head_bytes: usize) -> RecordHead {
    let mut object = heap.object(payload.len());
    object.extend_from_slice(&payload[..head_bytes]);
    if head_bytes > 0 {
        object.end_head();
    }
    object.extend_from_slice(&payload[head_bytes..]);
    let ptr = heap.write_object(KIND, Group::Large, &mut object).await.expect("written");
    RecordHead { kind: KIND, ptr, head: Bytes::copy_from_slice(&payload[..head_bytes]) }
}

#[test]
fn of_large_values_only_heads_are_read() {
    pumice_reactor::block_on(async {
        let (device, _) = emulated("emu:small").await;
        let heap = formatted(&device).await;
        let page = device.geometry().page_bytes as usize;
        // Heads of one byte and of as many as fit on a page, short records and long ones.
        let longest = page - frame::HEADER_BYTES - record::HEADER_BYTES;
        let shapes = [(PAYLOAD_BYTES, 20), (100, 100), (PAYLOAD_BYTES, longest), (60_000, 1), (300, 7)];
        let mut written = Vec::new();
        for number in 0..100u8 {
            let (len, head_bytes) = shapes[usize::from(number) % shapes.len()];
            written.push(put(&heap, &payload(number, len), head_bytes).await);
        }
        let segments: std::collections::BTreeSet<_> =
            written.iter().map(|head| head.ptr.addr.segment()).collect();
        assert!(segments.len() > 2, "{}", segments.len());
        for segment in segments {
            let swept = sweep(&heap, segment).await;
            let ours: Vec<_> =
                written.iter().filter(|head| head.ptr.addr.segment() == segment).cloned().collect();
            assert_eq!(swept.heads, ours);
            assert!(swept.records.is_empty() && swept.damage.is_empty());
            let most = ours.len() as u64 * (16 << 10);
            assert!(swept.read_bytes <= most, "{} B for {} heads", swept.read_bytes, ours.len());
            for head in ours {
                let record = heap.read(head.ptr).await.expect("reads");
                assert_eq!((record.kind, &record.payload[..head.head.len()]), (KIND, &head.head[..]));
            }
        }
    });
}

/// As on drives that older builds wrote, and where a head is longer than a page.
#[test]
fn a_record_without_a_head_is_read_and_so_are_those_behind_it() {
    for head_bytes in [0, 10_000] {
        pumice_reactor::block_on(async {
            let (device, _) = emulated("emu:small").await;
            let heap = formatted(&device).await;
            let first = put(&heap, &payload(1, PAYLOAD_BYTES), 20).await;
            let second = put(&heap, &payload(2, PAYLOAD_BYTES), head_bytes).await;
            let third = put(&heap, &payload(3, PAYLOAD_BYTES), 20).await;
            let segment = first.ptr.addr.segment();
            assert!([second.ptr, third.ptr].iter().all(|ptr| ptr.addr.segment() == segment));
            let swept = sweep(&heap, segment).await;
            assert_eq!(swept.heads, [first]);
            let found: Vec<_> =
                swept.records.iter().map(|record| (record.ptr, &record.payload[..])).collect();
            let (b, c) = (payload(2, PAYLOAD_BYTES), payload(3, PAYLOAD_BYTES));
            assert_eq!(found, [(second.ptr, &b[..]), (third.ptr, &c[..])]);
            assert!(swept.damage.is_empty());
        });
    }
}

#[test]
fn a_page_that_does_not_read_hides_no_other_record() {
    pumice_reactor::block_on(async {
        let (device, nand) = emulated("emu:small").await;
        let heap = formatted(&device).await;
        let mut written = Vec::new();
        for number in 0..4 {
            written.push(put(&heap, &payload(number, PAYLOAD_BYTES), 20).await);
        }
        let segment = written[0].ptr.addr.segment();
        assert!(written.iter().all(|head| head.ptr.addr.segment() == segment));
        let page_of = |ptr: RecordPtr| ptr.addr.offset() / device.geometry().page_bytes;
        nand.tear_page(device.geometry().block(segment.0), page_of(written[1].ptr));
        let swept = sweep(&heap, segment).await;
        assert_eq!(swept.heads, written[..1]);
        let found: Vec<_> = swept.records.iter().map(|record| record.ptr).collect();
        assert_eq!(found, [written[2].ptr, written[3].ptr]);
        assert!(!swept.damage.is_empty(), "and it is told of");
    });
}

/// Where the rest of a record rots its head tells whose it is, and who reads the record is told.
#[test]
fn no_flip_makes_one_head_another() {
    const HEAD_BYTES: usize = 20;
    let world = World::new(3);
    let host = world.add_host(HostOptions { quirks: false, ..HostOptions::default() });
    let (heap, first, second) = world
        .block_on(host, async {
            let device = Device::create(&DeviceSpec::Path(PATH.into()), 16 << 20).await.expect("file");
            let heap = formatted(&device).await;
            let first = put(&heap, &payload(1, PAYLOAD_BYTES), HEAD_BYTES).await;
            let second = put(&heap, &payload(2, PAYLOAD_BYTES), HEAD_BYTES).await;
            (heap, first, second)
        })
        .expect("the host is up");
    let segment = first.ptr.addr.segment();
    let segment_bytes = format_options().segment_bytes;
    let record_at = u64::from(segment.0) * u64::from(segment_bytes) + u64::from(first.ptr.addr.offset());
    let frame_at = record_at - frame::HEADER_BYTES as u64;
    let head_end = record_at + (record::HEADER_BYTES + HEAD_BYTES) as u64;
    // The record's own checksum is none of its head's.
    let checksum = record_at..record_at + 4;
    for at in frame_at..head_end + 40 {
        for mask in [1, 0x80] {
            assert!(world.flip(host, Path::new(PATH), at, mask));
            let swept = {
                let heap = heap.clone();
                world.block_on(host, async move { sweep(&heap, segment).await }).expect("the host is up")
            };
            let is_in_head = at < head_end && !checksum.contains(&at);
            if is_in_head {
                assert!(swept.heads.is_empty(), "byte {}: {:?}", at - frame_at, swept.heads);
                let found: Vec<_> = swept.records.iter().map(|record| record.ptr).collect();
                assert_eq!(found, [second.ptr], "byte {}", at - frame_at);
                assert!(!swept.damage.is_empty(), "byte {}", at - frame_at);
            } else {
                assert_eq!(swept.heads, [first.clone(), second.clone()], "byte {}", at - frame_at);
                let (heap, ptr) = (heap.clone(), first.ptr);
                let read = world.block_on(host, async move { heap.read(ptr).await }).expect("the host is up");
                assert!(read.is_err(), "byte {}", at - frame_at);
            }
            assert!(world.flip(host, Path::new(PATH), at, mask));
        }
    }
}
