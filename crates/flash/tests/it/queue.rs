//! No more reads at a time than the queue of a disk takes, and room left for writes.

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use pumice_flash::{Access, Device, DeviceSpec};
use pumice_reactor::sim::{DiskModel, HostOptions, World};
use pumice_reactor::{IoBuf, WriteSync, now, sleep, spawn};

const READ_NS: u64 = 1_000_000_000;
const DEPTH: usize = 8;
const PAGE_BYTES: usize = 4096;

#[test]
fn reads_leave_room_in_the_queue_for_writes() {
    let disk = DiskModel { read_ns: READ_NS, lanes: DEPTH, jitter: 0.0, ..DiskModel::default() };
    let world = World::new(1);
    let host = world.add_host(HostOptions { disk, quirks: false, ..HostOptions::default() });
    world.set_queue_depth(host, DEPTH as u32);
    let took = world.block_on(host, async {
        let spec: DeviceSpec = "/drive".parse().expect("spec");
        drop(Device::create(&spec, 64 << 20).await.expect("created"));
        let device = Device::open(&spec, Access::ReadWrite).await.expect("opened");
        let (first, second) = (device.geometry().block(0), device.geometry().block(1));
        let pages = |count: usize| Bytes::from_owner(IoBuf::zeroed(count * PAGE_BYTES).freeze());
        device.program(first, 0, pages(16), WriteSync::Durable).await.expect("programmed");
        let began = now();
        let reads: Vec<_> = (0..24)
            .map(|n| {
                let device = device.clone();
                spawn(async move {
                    let at = n % 16 * PAGE_BYTES as u32;
                    device.read(first, at, IoBuf::for_read(PAGE_BYTES)).await.0.expect("read");
                })
            })
            .collect();
        pumice_reactor::yield_now().await;
        assert_eq!(
            device.requests().expect("a file").reads.under_way,
            24,
            "who waits for its turn was asked for"
        );
        device.program(second, 0, pages(1), WriteSync::Durable).await.expect("programmed");
        let write = began.elapsed();
        for read in reads {
            read.await.expect("ran");
        }
        let requests = device.requests().expect("a file");
        assert_eq!((requests.reads.under_way, requests.reads.answered), (0, 24));
        assert_eq!((requests.changes.under_way, requests.changes.answered), (0, 2));
        (write, began.elapsed())
    });
    let (write, reads) = took.expect("the host is up");
    // The disk carries one after the other: it comes behind the reads that were under way, and before all others.
    assert!(write < Duration::from_millis(1100), "a write waited {write:?} for reads");
    // Seven of eight at a time.
    assert!((4.0..4.5).contains(&reads.as_secs_f64()), "{reads:?}");
}

/// What was read ahead for somebody who is busy with something else is not asked for any more.
#[test]
fn what_is_answered_and_not_fetched_is_answered() {
    let world = World::new(2);
    let host = world.add_host(HostOptions { quirks: false, ..HostOptions::default() });
    let looked = world.block_on(host, async {
        let spec: DeviceSpec = "/drive".parse().expect("spec");
        let device = Device::create(&spec, 64 << 20).await.expect("created");
        let block = device.geometry().block(0);
        let pages = Bytes::from_owner(IoBuf::zeroed(16 * PAGE_BYTES).freeze());
        device.program(block, 0, pages, WriteSync::Durable).await.expect("programmed");
        let mut reads: Vec<_> =
            (0..8).map(|_| Box::pin(device.read(block, 0, IoBuf::for_read(PAGE_BYTES)))).collect();
        poll_fn(|cx| {
            reads.iter_mut().for_each(|read| drop(read.as_mut().poll(cx)));
            Poll::Ready(())
        })
        .await;
        let before = device.requests().expect("a file");
        sleep(Duration::from_secs(1)).await;
        let after = device.requests().expect("a file");
        drop(reads);
        (before, after)
    });
    let (before, after) = looked.expect("the host is up");
    assert_eq!((before.reads.under_way, after.reads.under_way), (8, 0));
    assert_eq!(after.reads.answered, before.reads.answered + 8);
}
