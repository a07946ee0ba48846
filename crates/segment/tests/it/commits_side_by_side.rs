//! Two commits on their way, and the medium refuses one: on a file, in virtual time.

use std::collections::BTreeSet;
use std::future::Future;
use std::ops::Range;

use crate::common::{append, format_options, in_windows, no_progress};
use pumice_flash::{Access, Device, DeviceSpec};
use pumice_reactor::sim::{FaultOp, FileFault, HostId, HostOptions, World};
use pumice_reactor::{JoinHandle, spawn, yield_now};
use pumice_segment::{AppendError, CommitFailed, FormatOptions, Heap, RecordPtr};

const SEGMENT_BYTES: u32 = 1 << 20;
const PAGE_BYTES: u64 = 4096;
/// What a block layer makes of a sector that cannot be written, and what a failing link gives.
const ENODATA: i32 = 61;
const EIO: i32 = 5;
/// A full file system.
const ENOSPC: i32 = 28;
/// Formed during a write, so much starts a second one.
const MUCH: usize = 160 << 10;

fn spec() -> DeviceSpec {
    "/drive".parse().expect("spec")
}

fn up<T: 'static>(world: &World, host: HostId, future: impl Future<Output = T> + 'static) -> T {
    world.block_on(host, future).unwrap_or_else(|halt| panic!("{halt}"))
}

fn offset(ptr: RecordPtr) -> u64 {
    u64::from(ptr.addr.segment().0) * u64::from(SEGMENT_BYTES) + u64::from(ptr.addr.offset())
}

fn payload(number: u8) -> Vec<u8> {
    vec![number; if number == 2 { MUCH } else { 500 }]
}

/// Who was told what.
struct Flown {
    heap: Heap,
    first: Result<(), CommitFailed>,
    second: Result<(), CommitFailed>,
    first_ptr: RecordPtr,
    second_ptr: RecordPtr,
}

/// Writes record 0 alone, then 1 and, while that is being written, 2; the write of one of the two fails.
async fn fly(world: World, host: HostId, strikes_second: bool, errno: i32) -> Flown {
    let device = Device::create(&spec(), 64 << 20).await.expect("file");
    let format = FormatOptions { segment_bytes: SEGMENT_BYTES, ..format_options() };
    Heap::format(&device, &format).await.expect("format");
    let mut opened = Heap::open(device, in_windows(), &no_progress).await.expect("open");
    while opened.replay.next().await.expect("replay").is_some() {}
    let heap = opened.heap;
    let before = append(&heap, 1, &payload(0)).expect("append");
    heap.wait_durable(before.first_seq).await.expect("nothing fails yet");
    let first = append(&heap, 1, &payload(1)).expect("append");
    let writes = world.counters(host).writes;
    issued().await;
    let second = append(&heap, 1, &payload(2)).expect("append");
    issued().await;
    assert_eq!(world.counters(host).writes, writes, "both are on their way");
    let struck = if strikes_second { second.ptrs[0] } else { first.ptrs[0] };
    world.add_fault(host, fault(offset(struck), errno));
    let wait = |seq: u64| -> JoinHandle<Result<(), CommitFailed>> {
        let heap = heap.clone();
        spawn(async move { heap.wait_durable(seq).await })
    };
    let (one, two) = (wait(first.first_seq), wait(second.first_seq));
    let (one, two) = (one.await.expect("task"), two.await.expect("task"));
    Flown { heap, first: one, second: two, first_ptr: first.ptrs[0], second_ptr: second.ptrs[0] }
}

/// Lets pumps seal and issue what they have; virtual time stands still meanwhile.
async fn issued() {
    for _ in 0..50 {
        yield_now().await;
    }
}

/// The next write of the page that holds `at` fails.
fn fault(at: u64, errno: i32) -> FileFault {
    let page: Range<u64> = at / PAGE_BYTES * PAGE_BYTES..at / PAGE_BYTES * PAGE_BYTES + 1;
    FileFault { path: None, op: FaultOp::Write, range: Some(page), skip: 0, times: 1, errno }
}

/// The first bytes of all records that a new opener finds.
fn survivors(world: &World, host: HostId) -> Vec<u8> {
    world.crash(host);
    world.restart(host);
    up(world, host, async {
        let device = Device::open(&spec(), Access::ReadWrite).await.expect("file");
        let mut opened = Heap::open(device, in_windows(), &no_progress).await.expect("open");
        let mut found = Vec::new();
        while let Some(batch) = opened.replay.next().await.expect("replay") {
            assert!(batch.damage.is_empty(), "damage: {:?}", batch.damage);
            for record in batch.records {
                assert_eq!(record.payload[..], payload(record.payload[0]), "records are whole");
                found.push(record.payload[0]);
            }
        }
        let next = append(&opened.heap, 1, &payload(9)).expect("it takes writes again");
        opened.heap.wait_durable(next.first_seq).await.expect("durable");
        found
    })
}

fn world(seed: u64) -> (World, HostId) {
    let world = World::new(seed);
    let host = world.add_host(HostOptions { quirks: false, ..HostOptions::default() });
    (world, host)
}

#[test]
fn what_follows_a_failed_commit_is_not_acknowledged_and_the_heap_stops() {
    let told = [(ENODATA, "with another commit behind it"), (EIO, "commit write failed")];
    // How much of what failed is there nevertheless differs by seed.
    let mut lengths = BTreeSet::new();
    for (seed, (errno, says)) in (1..=12).flat_map(|seed| told.map(|told| (seed, told))) {
        let (world, host) = world(seed);
        let flown = up(&world, host, fly(world.clone(), host, false, errno));
        for told in [&flown.first, &flown.second] {
            let error = told.as_ref().expect_err("not acknowledged").to_string();
            assert!(error.contains(says), "errno {errno}: {error}");
        }
        let refused = append(&flown.heap, 1, &payload(3));
        assert!(
            matches!(&refused, Err(AppendError::ReadOnly(reason)) if reason.contains(says)),
            "errno {errno}: {refused:?}"
        );
        let found = survivors(&world, host);
        assert!(found[0] == 0, "seed {seed}, errno {errno}: what was acknowledged is not there: {found:?}");
        assert!(
            [0, 1, 2].starts_with(&found),
            "seed {seed}, errno {errno}: nothing without what was before it: {found:?}"
        );
        lengths.insert(found.len());
    }
    assert!(lengths.len() > 1, "what failed was always there, or never: {lengths:?}");
}

#[test]
fn a_failed_commit_that_nothing_follows_is_written_elsewhere_and_acknowledged() {
    let (world, host) = world(1);
    let flown = up(&world, host, fly(world.clone(), host, true, ENODATA));
    flown.first.expect("the first was written");
    flown.second.expect("the second was written again");
    let heap = flown.heap.clone();
    up(&world, host, async move {
        for (ptr, number) in [(flown.first_ptr, 1), (flown.second_ptr, 2)] {
            let record = heap.read(ptr).await.expect("read by its old place");
            assert_eq!(record.payload[..], payload(number));
        }
        assert_eq!(heap.stats().relocations, 1);
    });
    assert_eq!(survivors(&world, host), [0, 1, 2]);
}

#[test]
fn commits_that_a_full_file_system_refuses_are_tried_again_until_it_has_space() {
    for strikes_second in [false, true] {
        let (world, host) = world(1);
        let flown = up(&world, host, fly(world.clone(), host, strikes_second, ENOSPC));
        flown.first.expect("the first was written");
        flown.second.expect("the second was written");
        assert_eq!(survivors(&world, host), [0, 1, 2]);
    }
}
