//! Pages of the log for which a drive gives no reason that they do not read (EIO): few of them, beside others that read, are bad
//! places, and what they held is damage. More than that, or what comes with another number, may come back: the drive stays closed.

use std::collections::BTreeSet;

use crate::common::{append, format_options, no_progress, options};
use pumice_flash::{Access, Device, DeviceSpec};
use pumice_reactor::sim::{DiskImage, FaultOp, FileFault, HostId, HostOptions, World};
use pumice_segment::{FormatOptions, Heap, HeapError};

const PATH: &str = "/drive";
const PAGE_BYTES: u64 = 4096;
const SEGMENT_BYTES: u32 = 512 << 10;
const EIO: i32 = 5;
const EAGAIN: i32 = 11;
const FRAMES: u64 = 40;

/// Frames from one to before another.
type Frames = (u64, u64);

/// A drive that lost power, and where its log lies: a page for each frame.
struct Written {
    world: World,
    host: HostId,
    image: DiskImage,
    first_page: u64,
}

fn written() -> Written {
    let world = World::new(1);
    let host = world.add_host(HostOptions { quirks: false, ..HostOptions::default() });
    let first = world.block_on(host, async {
        let spec: DeviceSpec = PATH.parse().expect("spec");
        let device = Device::create(&spec, 32 << 20).await.expect("file");
        let format = FormatOptions { segment_bytes: SEGMENT_BYTES, channels: 1, ..format_options() };
        Heap::format(&device, &format).await.expect("format");
        let mut opened = Heap::open(device, options(), &no_progress).await.expect("open");
        while opened.replay.next().await.expect("replay").is_some() {}
        let mut first = None;
        for n in 0..FRAMES {
            let appended = append(&opened.heap, 1, &[n as u8; 3000]).expect("append");
            opened.heap.wait_durable(appended.first_seq).await.expect("durable");
            first = first.or(appended.ptrs.first().map(|ptr| ptr.addr));
        }
        first.expect("a record")
    });
    let first = first.expect("the host is up");
    world.crash(host);
    let first_page = u64::from(first.segment().0) * u64::from(SEGMENT_BYTES) / PAGE_BYTES
        + u64::from(first.offset()) / PAGE_BYTES;
    Written { image: world.disk(host), world, host, first_page }
}

impl Written {
    /// Opens the drive where the pages of these frames answer with an error; how many frames are not there, and whether it is told.
    fn opened(&self, frames: &[Frames], errno: i32) -> Result<(u64, bool), HeapError> {
        let Self { world, host, image, first_page } = self;
        world.set_disk(*host, image);
        world.restart(*host);
        for (from, to) in frames {
            let range = Some((first_page + from) * PAGE_BYTES..(first_page + to) * PAGE_BYTES);
            let fault = FileFault { path: None, op: FaultOp::Read, range, skip: 0, times: u64::MAX, errno };
            world.add_fault(*host, fault);
        }
        let opened = world.block_on(*host, async {
            let device = Device::open(&PATH.parse().expect("spec"), Access::ReadWrite).await.expect("file");
            let mut opened = Heap::open(device, options(), &no_progress).await?;
            let (mut found, mut is_told) = (BTreeSet::new(), false);
            while let Some(batch) = opened.replay.next().await? {
                is_told |= !batch.damage.is_empty();
                for record in &batch.records {
                    assert!(record.payload.iter().all(|&byte| byte == record.payload[0]));
                    found.insert(record.payload[0]);
                }
            }
            Ok((FRAMES - found.len() as u64, is_told))
        });
        world.clear_faults(*host);
        world.crash(*host);
        opened.unwrap_or_else(|halt| panic!("{halt}"))
    }

    fn is_refused(&self, frames: &[Frames], errno: i32) {
        match self.opened(frames, errno) {
            Err(HeapError::Flash(_)) => {}
            other => panic!("{frames:?} answer {errno}: {other:?}"),
        }
        // Nothing was given up.
        let image = self.world.disk(self.host);
        let later = Self { world: self.world.clone(), image, ..*self };
        assert_eq!(
            later.opened(&[], 0).expect("it answers again"),
            (0, false),
            "{frames:?} answered {errno}"
        );
    }
}

#[test]
fn a_few_pages_beside_others_that_read_are_damage() {
    let written = written();
    assert_eq!(written.opened(&[], 0).expect("whole"), (0, false));
    for frames in
        [&[(0, 1)][..], &[(7, 8)], &[(3, 11)], &[(2, 6), (9, 13), (20, 28)], &[(FRAMES - 1, FRAMES)]]
    {
        let lost = frames.iter().map(|(from, to)| to - from).sum();
        let opened = written.opened(frames, EIO).unwrap_or_else(|error| panic!("{frames:?}: {error}"));
        assert_eq!(opened, (lost, true), "{frames:?}");
    }
}

#[test]
fn a_part_of_the_drive_that_does_not_answer_keeps_it_closed() {
    let written = written();
    // In one place, in all, and as far as anybody looks.
    for frames in [&[(3, 12)][..], &[(1, 7), (8, 14), (15, 21)], &[(0, FRAMES + 40)]] {
        written.is_refused(frames, EIO);
    }
    written.is_refused(&[(7, 8)], EAGAIN);
}

/// The end of the segment has a neighbour on one side only.
#[test]
fn what_reads_on_one_side_is_enough() {
    let written = written();
    let segment_pages = u64::from(SEGMENT_BYTES) / PAGE_BYTES;
    let to_end = segment_pages - written.first_page % segment_pages;
    assert_eq!(written.opened(&[(to_end - 8, to_end)], EIO).expect("nothing was written there"), (0, false));
}
