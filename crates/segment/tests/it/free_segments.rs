//! Segments of the pool, which may have been opened all the same, when the drive does not answer for a page of one.

use std::future::Future;
use std::path::Path;

use crate::common::{self, append, format_options, no_progress};
use bytes::Bytes;
use pumice_flash::{Access, Device, DeviceSpec};
use pumice_reactor::sim::{FaultOp, FileFault, HostId, HostOptions, World};
use pumice_reactor::{File, OpenOptions, WriteSync};
use pumice_segment::layout::frame::FrameHeader;
use pumice_segment::{Addr, FormatOptions, Heap, HeapError, SegmentId, Stream};

const PATH: &str = "/drive";
const SEGMENT_BYTES: u32 = 64 << 10;
const PAGE_BYTES: u32 = 4096;
/// One that is named as one of the next, and that nobody opens before the others.
const SEGMENT: SegmentId = SegmentId(40);
/// The page for which the drive does not answer.
const SILENT: u32 = 5;
/// A life that the metadata log has not given out yet, and one that it has.
const NEWER: u64 = FIRST + 20;
const OLDER: u64 = FIRST - 1;
/// The first life of a drive, by its identity.
const FIRST: u64 = u64::from_le_bytes(*b"01234567") >> 16 | 1;

fn up<T: 'static>(world: &World, host: HostId, future: impl Future<Output = T> + 'static) -> T {
    world.block_on(host, future).unwrap_or_else(|halt| panic!("{halt}"))
}

/// What opening says of a drive that was not closed, of which a free segment holds nothing that verifies but these frames: life and
/// page.
fn opened(frames: &[(u64, u32)]) -> Result<(), HeapError> {
    let world = World::new(1);
    let host = world.add_host(HostOptions { quirks: false, ..HostOptions::default() });
    up(&world, host, async {
        let spec: DeviceSpec = PATH.parse().expect("spec");
        let device = Device::create(&spec, u64::from(SEGMENT_BYTES) * 64).await.expect("file");
        let format = FormatOptions { segment_bytes: SEGMENT_BYTES, ..format_options() };
        Heap::format(&device, &format).await.expect("format");
        let heap = Heap::open(device, common::options(), &no_progress).await.expect("open").heap;
        let written = append(&heap, 1, b"something").expect("append");
        heap.wait_durable(written.first_seq).await.expect("durable");
        assert!(written.ptrs[0].addr.segment() != SEGMENT);
    });
    world.kill(host);
    world.restart(host);
    let mut bytes = vec![0xa5; SEGMENT_BYTES as usize];
    for &(life, page) in frames {
        let header = FrameHeader {
            life,
            number: 1,
            seq: 100,
            meta_stamp: 0,
            bytes: 100,
            count: 1,
            lag: 0,
            has_summary: false,
            stream: Stream::Commit,
            more: false,
            skipped: 0,
            head: None,
        };
        let at = page * PAGE_BYTES;
        header.encode(&mut bytes[at as usize..], Addr::new(SEGMENT, at));
    }
    let start = u64::from(SEGMENT.0) * u64::from(SEGMENT_BYTES);
    up(&world, host, async move {
        let file = File::open(Path::new(PATH), &OpenOptions::default()).await.expect("file");
        file.write_at(Bytes::from(bytes), start, WriteSync::Cached).await.expect("write");
    });
    world.kill(host);
    world.restart(host);
    let at = start + u64::from(SILENT * PAGE_BYTES);
    let silent = FileFault {
        path: None,
        op: FaultOp::Read,
        range: Some(at..at + 1),
        skip: 0,
        times: u64::MAX,
        // A time-out: EIO of one page alone would be a bad place.
        errno: 110,
    };
    world.add_fault(host, silent);
    up(&world, host, async {
        let device = Device::open(&PATH.parse().expect("spec"), Access::ReadWrite).await.expect("file");
        let mut opened = Heap::open(device, common::options(), &no_progress).await?;
        while opened.replay.next().await?.is_some() {}
        Ok(())
    })
}

#[test]
fn a_page_of_a_free_segment_that_the_drive_does_not_answer_matters_if_it_could_be_of_a_newer_life() {
    opened(&[(OLDER, 3)]).expect("what lies behind a frame of an older life is older");
    for frames in [&[][..], &[(OLDER, 7)]] {
        let error = opened(frames).expect_err("the newest commits may lie there");
        assert!(matches!(error, HeapError::FreeSegment { segment: SEGMENT, .. }), "{frames:?}: {error}");
        let text = error.to_string();
        assert!(text.contains("a free segment") && text.contains("block"), "{text}");
    }
    // It was opened: a frame may be missing from its middle, and that is the replay's to say.
    let error = opened(&[(NEWER, 7)]).expect_err("a frame may lie there");
    assert!(matches!(error, HeapError::Flash(_)), "{error}");
}
