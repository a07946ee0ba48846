//! A drive on a file system without space: writes wait for space, and whoever closes the drive does not.

use std::future::Future;
use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use crate::common::{append, format_options, no_progress, options};
use bytes::Bytes;
use pumice_flash::{Access, Device, DeviceSpec};
use pumice_reactor::sim::{FaultOp, FileFault, HostId, HostOptions, World};
use pumice_reactor::{IoBuf, now, sleep, spawn, yield_now};
use pumice_segment::{AppendError, FormatOptions, Heap, HeapError, MetaEdit, Opened};

const SEGMENT_BYTES: u32 = 1 << 20;
const ENOSPC: i32 = 28;

fn spec() -> DeviceSpec {
    "/drive".parse().expect("spec")
}

fn up<T: 'static>(world: &World, host: HostId, future: impl Future<Output = T> + 'static) -> T {
    world.block_on(host, future).unwrap_or_else(|halt| panic!("{halt}"))
}

fn world() -> (World, HostId) {
    let world = World::new(1);
    let host = world.add_host(HostOptions { quirks: false, ..HostOptions::default() });
    (world, host)
}

async fn formatted() -> Heap {
    let device = Device::create(&spec(), 64 << 20).await.expect("file");
    let format = FormatOptions { segment_bytes: SEGMENT_BYTES, ..format_options() };
    Heap::format(&device, &format).await.expect("format");
    let mut opened = Heap::open(device, options(), &no_progress).await.expect("open");
    while opened.replay.next().await.expect("replay").is_some() {}
    opened.heap
}

/// The heap as the next process finds it, and the first bytes of what it replays.
fn restarted(world: &World, host: HostId) -> (Opened, Vec<u8>) {
    world.crash(host);
    world.clear_faults(host);
    world.restart(host);
    up(world, host, async {
        let device = Device::open(&spec(), Access::ReadWrite).await.expect("file");
        let mut opened = Heap::open(device, options(), &no_progress).await.expect("open");
        let mut found = Vec::new();
        while let Some(batch) = opened.replay.next().await.expect("replay") {
            assert!(batch.damage.is_empty(), "damage: {:?}", batch.damage);
            found.extend(batch.records.iter().map(|record| record.payload[0]));
        }
        (opened, found)
    })
}

/// So many writes to some bytes of the drive find no space.
fn fill(world: &World, host: HostId, range: Option<Range<u64>>, times: u64) {
    let (path, op) = (None, FaultOp::Write);
    world.add_fault(host, FileFault { path, op, range, skip: 0, times, errno: ENOSPC });
}

/// A record slips in while the heap closes, and its commit finds no space at first: when it does, the heap is closed all the
/// same. What no checkpoint covers is replayed.
#[test]
fn a_closed_heap_stays_closed_when_space_comes_back() {
    let (world, host) = world();
    let here = world.clone();
    up(&world, host, async move {
        let heap = formatted().await;
        let before = append(&heap, 1, &[0; 500]).expect("append");
        heap.wait_durable(before.first_seq).await.expect("durable");
        append(&heap, 1, &[1; 500]).expect("append");
        let closing = spawn({
            let heap = heap.clone();
            async move { heap.close().await }
        });
        for _ in 0..20 {
            yield_now().await;
        }
        // The close waits for the commit that is on its way; the next one forms behind it, and finds no space once.
        let behind = append(&heap, 1, &[2; 500]).expect("it is not closed yet").ptrs[0];
        let page = u64::from(behind.addr.segment().0) * u64::from(SEGMENT_BYTES)
            + u64::from(behind.addr.offset()) / 4096 * 4096;
        fill(&here, host, Some(page..page + 1), 1);
        closing.await.expect("task").expect("closed");
        let refused = append(&heap, 1, &[3; 500]);
        assert!(
            matches!(&refused, Err(AppendError::ReadOnly(reason)) if reason.contains("closed")),
            "{refused:?}"
        );
    });
    let (opened, found) = restarted(&world, host);
    assert!(!opened.clean, "no checkpoint covers it");
    assert_eq!(found, [0, 1, 2]);
}

#[test]
fn metadata_waits_for_space_and_nothing_is_lost() {
    let (world, host) = world();
    let here = world.clone();
    let state = Bytes::from(vec![7; 600 << 10]);
    let expected = state.clone();
    up(&world, host, async move {
        let heap = formatted().await;
        let before = append(&heap, 1, &[0; 500]).expect("append");
        heap.wait_durable(before.first_seq).await.expect("durable");
        // Segments 2 and 3 are the metadata log.
        fill(&here, host, Some(2 * u64::from(SEGMENT_BYTES)..4 * u64::from(SEGMENT_BYTES)), 12);
        let writing = spawn({
            let heap = heap.clone();
            async move { heap.commit_meta(MetaEdit::Edit(state), 0).await }
        });
        sleep(Duration::from_secs(1)).await;
        let reason = heap.read_only().expect("it takes no writes meanwhile");
        assert!(reason.contains("no space") && reason.contains("trying again"), "{reason}");
        assert!(matches!(append(&heap, 1, &[1; 500]), Err(AppendError::ReadOnly(_))));
        writing.await.expect("task").expect("written, once there was space");
        assert_eq!(heap.read_only(), None);
        let after = append(&heap, 1, &[2; 500]).expect("append");
        heap.wait_durable(after.first_seq).await.expect("durable");
    });
    let (opened, found) = restarted(&world, host);
    assert_eq!(opened.client_state, [expected]);
    assert_eq!(found, [0, 2]);
}

#[test]
fn who_closes_a_drive_without_space_is_told_so_and_what_was_acknowledged_is_there() {
    let (world, host) = world();
    let here = world.clone();
    up(&world, host, async move {
        let heap = formatted().await;
        let before = append(&heap, 1, &[0; 500]).expect("append");
        heap.wait_durable(before.first_seq).await.expect("durable");
        fill(&here, host, None, u64::MAX);
        append(&heap, 1, &[1; 200_000]).expect("there is room in memory");
        let began = now();
        let closed = heap.close().await;
        assert!(
            matches!(&closed, Err(HeapError::ReadOnly(reason)) if reason.contains("no space")),
            "{closed:?}"
        );
        assert!(now().since(began) < Duration::from_secs(10));
    });
    let (opened, found) = restarted(&world, host);
    assert!(!opened.clean);
    assert_eq!(found, [0]);
}

/// A long log of metadata is closed with a snapshot, in its other half. Where there is no space for that, an edit will do.
#[test]
fn a_snapshot_that_finds_no_space_keeps_no_drive_from_being_closed() {
    let (world, host) = world();
    let here = world.clone();
    up(&world, host, async move {
        let heap = formatted().await;
        for _ in 0..20 {
            let edit =
                MetaEdit::Edit(Bytes::from_static(b"an edit, a page of its own and another for its copy"));
            heap.commit_meta(edit, 0).await.expect("edit");
        }
        let other_half = 3 * u64::from(SEGMENT_BYTES)..4 * u64::from(SEGMENT_BYTES);
        fill(&here, host, Some(other_half), u64::MAX);
        heap.close().await.expect("close");
    });
    let (opened, found) = restarted(&world, host);
    assert!(opened.clean);
    assert_eq!((opened.client_state.len(), found), (20, Vec::new()));
}

/// Of a closing record one copy is lost: whoever opens the drive writes both again, and waits for no space for that.
#[test]
fn a_copy_that_finds_no_space_keeps_no_drive_from_being_opened() {
    for has_space in [true, false] {
        let (world, host) = world();
        let log_begin = 2 * u64::from(SEGMENT_BYTES);
        let log_end = up(&world, host, async move {
            let heap = formatted().await;
            heap.commit_meta(MetaEdit::Edit(Bytes::from_static(b"x")), 0).await.expect("edit");
            heap.close().await.expect("close");
            let device = Device::open(&spec(), Access::ReadOnly).await.expect("file");
            let block = device.geometry().block(0);
            let buf = IoBuf::for_read(SEGMENT_BYTES as usize);
            let (read, log) = device.read(block, log_begin as u32, buf).await;
            read.expect("read");
            log_begin + log.iter().rposition(|&byte| byte != 0).expect("a log") as u64
        });
        world.crash(host);
        assert!(world.flip(host, Path::new("/drive"), log_end, 1));
        world.restart(host);
        let here = world.clone();
        let (damage, clean) = up(&world, host, async move {
            let device = Device::open(&spec(), Access::ReadWrite).await.expect("file");
            if !has_space {
                fill(&here, host, None, u64::MAX);
            }
            let opened = Heap::open(device, options(), &no_progress).await.expect("open");
            (opened.heap.metadata_damage().await.expect("check").len(), opened.clean)
        });
        assert_eq!((damage, clean), (usize::from(!has_space), true), "space: {has_space}");
    }
}
