//! What is special about the first frames: of a segment, which erase it, and of a batch, which mean nothing without the last.

use std::future::Future;
use std::path::Path;

use crate::common::{self, append, format_options, no_progress};
use bytes::Bytes;
use pumice_flash::{Access, Device, DeviceSpec};
use pumice_reactor::sim::{CutMode, FaultOp, FileFault, HostId, HostOptions, PowerCut, World};
use pumice_reactor::spawn;
use pumice_segment::{
    AppendClass, Durability, FormatOptions, Heap, HeapOptions, MetaEdit, Outline, RecordIn,
};

const SEGMENT_BYTES: u32 = 64 << 10;

fn in_windows() -> HeapOptions {
    HeapOptions { durability: Durability::Always, commit_max_bytes: 16 << 10, ..common::in_windows() }
}
fn up<T: 'static>(world: &World, host: HostId, future: impl Future<Output = T> + 'static) -> T {
    world.block_on(host, future).unwrap_or_else(|halt| panic!("{halt}"))
}
fn spec() -> DeviceSpec {
    "/drive".parse().expect("spec")
}
async fn fresh() -> Heap {
    let device = Device::create(&spec(), u64::from(SEGMENT_BYTES) * 64).await.expect("file");
    let format = FormatOptions { segment_bytes: SEGMENT_BYTES, ..format_options() };
    Heap::format(&device, &format).await.expect("format");
    let mut opened = Heap::open(device, in_windows(), &no_progress).await.expect("open");
    while opened.replay.next().await.expect("replay").is_some() {}
    opened.heap
}

/// The first frame of a segment finds no space, the one behind it (on its way beside it) does.
#[test]
fn a_first_frame_without_space_leaves_what_was_written_behind_it() {
    let world = World::new(1);
    let host = world.add_host(HostOptions { quirks: false, ..HostOptions::default() });
    let here = world.clone();
    up(&world, host, async move {
        let heap = fresh().await;
        // Where the first commit segment will be is learnt from the pointer.
        let mut ptrs = Vec::new();
        let mut last = 0;
        for round in 0..4u8 {
            let a = append(&heap, 1, &[round; 9000]).expect("append");
            ptrs.push(a.ptrs[0]);
            last = a.first_seq;
        }
        let segment = ptrs[0].addr.segment();
        let at = u64::from(segment.0) * u64::from(SEGMENT_BYTES);
        here.add_fault(
            host,
            FileFault {
                path: None,
                op: FaultOp::Write,
                range: Some(at..at + 1),
                skip: 0,
                times: 1,
                errno: 28,
            },
        );
        heap.wait_durable(last).await.expect("durable");
        for ptr in &ptrs {
            heap.read_flash(*ptr).await.expect("what is durable reads");
        }
        let next = append(&heap, 1, &[9; 500]).expect("append");
        heap.wait_durable(next.first_seq).await.expect("the drive goes on once there is space");
    });
}

/// The first frame of a segment that is still open rots; a metadata record knows it as durable.
#[test]
fn a_rotten_first_frame_of_an_open_segment_is_reported() {
    let world = World::new(5);
    let host = world.add_host(HostOptions { quirks: false, ..HostOptions::default() });
    let at = up(&world, host, async move {
        let heap = fresh().await;
        let first = append(&heap, 1, &[1; 500]).expect("append");
        heap.wait_durable(first.first_seq).await.expect("durable");
        let second = append(&heap, 1, &[2; 500]).expect("append");
        heap.wait_durable(second.first_seq).await.expect("durable");
        heap.commit_meta(MetaEdit::Edit(Bytes::from_static(b"x")), 0).await.expect("meta");
        let third = append(&heap, 1, &[3; 500]).expect("append");
        heap.wait_durable(third.first_seq).await.expect("durable");
        let ptr = first.ptrs[0];
        u64::from(ptr.addr.segment().0) * u64::from(SEGMENT_BYTES) + 4096 + 20
    });
    world.crash(host);
    world.flip(host, Path::new("/drive"), at, 0x20);
    world.restart(host);
    let (found, damage) = up(&world, host, async move {
        let device = Device::open(&spec(), Access::ReadWrite).await.expect("file");
        let mut opened = Heap::open(device, in_windows(), &no_progress).await.expect("open");
        let (mut found, mut damage) = (Vec::new(), Vec::new());
        while let Some(batch) = opened.replay.next().await.expect("replay") {
            damage.extend(batch.damage.iter().map(ToString::to_string));
            found.extend(batch.records.iter().map(|record| record.payload[0]));
        }
        (found, damage)
    });
    assert_eq!(found, [2, 3]);
    assert!(!damage.is_empty(), "an acknowledged commit is gone and nobody is told: {found:?}");
}

fn batch(heap: &Heap, round: u8) -> u64 {
    let payload = [round; 9000];
    let parts: [&[u8]; 1] = [&payload];
    let record = RecordIn { kind: 1, parts: &parts, outline: Outline::Whole };
    let appended = heap.append(&[record; 8], AppendClass::User).expect("append");
    appended.first_seq + 7
}

/// Power goes within a batch of several frames, after a metadata record that counts the first; then again.
#[test]
fn a_batch_that_power_cut_short_is_no_damage_to_the_next_life() {
    let mut bad = Vec::new();
    for cut in 0..150u64 {
        for mode in [CutMode::Before, CutMode::After] {
            let world = World::new(100 + cut);
            let host = world.add_host(HostOptions { quirks: true, ..HostOptions::default() });
            let heap = up(&world, host, fresh());
            let at = world.counters(host).mutations + cut;
            world.cut_power(host, PowerCut { at, mode, fate: None });
            let ended = world.block_on(host, async move {
                for _ in 0..6 {
                    let saver = heap.clone();
                    drop(spawn(async move {
                        // Metadata as it comes while others write (a table was moved, the pool ran low, ...).
                        while saver.commit_meta(MetaEdit::Edit(Bytes::from_static(b"x")), 0).await.is_ok() {}
                    }));
                }
                for round in 0..8u8 {
                    let last = batch(&heap, round);
                    let _ = heap.wait_durable(last).await;
                }
            });
            if ended.is_ok() {
                world.crash(host);
            }
            for life in 0..2 {
                world.restart(host);
                let far = world.counters(host).mutations + 1_000_000;
                world.cut_power(host, PowerCut { at: far, mode: CutMode::Before, fate: None });
                let damage = up(&world, host, async move {
                    let device = Device::open(&spec(), Access::ReadWrite).await.expect("file");
                    let mut opened = Heap::open(device, in_windows(), &no_progress).await.expect("open");
                    let mut damage = Vec::new();
                    while let Some(batch) = opened.replay.next().await.expect("replay") {
                        damage.extend(batch.damage.iter().map(ToString::to_string));
                    }
                    for round in 0..3u8 {
                        let next = append(&opened.heap, 1, &[round; 300]).expect("append");
                        opened.heap.wait_durable(next.first_seq).await.expect("durable");
                    }
                    damage
                });
                if !damage.is_empty() {
                    bad.push(format!("cut {cut} {mode:?} life {life}: {damage:?}"));
                }
                world.crash(host);
            }
        }
    }
    assert!(bad.is_empty(), "{} damaged:\n{}", bad.len(), bad.join("\n"));
}
