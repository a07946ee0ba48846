//! What commit frames hold: numbers that others take while they form.

use crate::common::*;
use pumice_flash::{Access, Device, DeviceSpec};
use pumice_reactor::sim::{FaultOp, FileFault, HostId, HostOptions, World};
use pumice_segment::{AppendClass, FormatOptions, Heap, HeapOptions, Outline, RecordIn};

async fn on_both<F: AsyncFn(Device)>(check: F) {
    let (device, _) = emulated("emu:tiny").await;
    check(device).await;
    let dir = tempfile::tempdir().expect("dir");
    check(file(dir.path(), 32 << 20).await).await;
}

fn batch(heap: &Heap, payloads: &[&[u8]]) -> pumice_segment::Appended {
    let parts: Vec<[&[u8]; 1]> = payloads.iter().map(|payload| [*payload]).collect();
    let records: Vec<RecordIn<'_>> =
        parts.iter().map(|parts| RecordIn { kind: 1, parts, outline: Outline::Whole }).collect();
    heap.append(&records, AppendClass::User).expect("append")
}

/// Moved records take numbers all the time: a frame for each would pad a page for each.
#[test]
fn numbers_that_others_take_do_not_split_a_frame() {
    pumice_reactor::block_on(on_both(async |device: Device| {
        drop(formatted(&device).await);
        let heap = Heap::open(device.clone(), HeapOptions::default(), &no_progress).await.expect("open").heap;
        let commits = heap.stats().commits;
        // No await between these: they form one frame.
        let a = batch(&heap, &[b"a"]);
        assert_eq!(heap.next_seq(3), a.first_seq + 1);
        let bc = batch(&heap, &[b"b", b"c"]);
        assert_eq!(bc.first_seq, a.first_seq + 4);
        assert_eq!(heap.next_seq(1), bc.first_seq + 2);
        let d = batch(&heap, &[b"d"]);
        let taken = heap.next_seq(5);
        assert_eq!((d.first_seq, taken), (bc.first_seq + 3, d.first_seq + 1));
        let ptrs = [a.ptrs[0], bc.ptrs[0], bc.ptrs[1], d.ptrs[0]];
        let all = [b"a", b"b", b"c", b"d"];
        for (ptr, payload) in ptrs.iter().zip(all) {
            assert_eq!(heap.peek(*ptr).expect("it forms").payload[..], payload[..]);
        }
        heap.wait_durable(taken + 4).await.expect("the frame opens the gate for the numbers behind it");
        assert_eq!(heap.stats().commits, commits + 1, "one frame");
        for (ptr, payload) in ptrs.iter().zip(all) {
            assert_eq!(heap.peek(*ptr).expect("in memory").payload[..], payload[..]);
        }
        drop(heap);
        let (opened, commit, _) = reopen(&device).await;
        let found: Vec<_> = commit.iter().map(|record| (record.seq, &record.payload[..])).collect();
        let seqs = [a.first_seq, bc.first_seq, bc.first_seq + 1, d.first_seq];
        assert_eq!(found, seqs.into_iter().zip(all.map(|payload| &payload[..])).collect::<Vec<_>>());
        for (ptr, payload) in ptrs.iter().zip(all) {
            assert_eq!(opened.heap.read(*ptr).await.expect("read").payload[..], payload[..]);
        }
        assert_eq!(append_waiting(&opened.heap, &[b"e"]).await.first_seq, taken + 5, "no number comes twice");
    }));
}

/// Its checksum would be computed anew under the lock.
#[test]
fn a_large_record_behind_taken_numbers_begins_a_frame() {
    pumice_reactor::block_on(async {
        let dir = tempfile::tempdir().expect("dir");
        let device = file(dir.path(), 32 << 20).await;
        let heap = formatted(&device).await;
        let commits = heap.stats().commits;
        batch(&heap, &[b"small"]);
        heap.next_seq(1);
        let last = batch(&heap, &[&[1; 33 << 10], b"small"]);
        heap.wait_durable(last.first_seq + 1).await.expect("durable");
        assert_eq!(heap.stats().commits, commits + 2);
        let (_, commit, _) = reopen(&device).await;
        let seqs: Vec<u64> = commit.iter().map(|record| record.seq).collect();
        assert_eq!(seqs, [last.first_seq - 2, last.first_seq, last.first_seq + 1]);
    });
}

#[test]
fn more_numbers_than_a_frame_can_pass_over_end_it() {
    pumice_reactor::block_on(async {
        let (device, _) = emulated("emu:tiny").await;
        let heap = formatted(&device).await;
        batch(&heap, &[b"a"]);
        heap.next_seq(60_000);
        batch(&heap, &[b"b"]);
        let taken = heap.next_seq(60_000);
        let last = batch(&heap, &[b"c"]).first_seq;
        assert_eq!(last, taken + 60_000);
        heap.wait_durable(last).await.expect("durable");
        let (opened, commit, _) = reopen(&device).await;
        let seqs: Vec<u64> = commit.iter().map(|record| record.seq).collect();
        assert_eq!(seqs, [last - 120_002, last - 60_001, last]);
        assert_eq!(append_waiting(&opened.heap, &[b"d"]).await.first_seq, last + 1);
    });
}

#[test]
fn a_damaged_record_does_not_shift_the_numbers_behind_it() {
    pumice_reactor::block_on(async {
        let (device, emulated) = emulated("emu:tiny").await;
        let heap = formatted(&device).await;
        let a = batch(&heap, &[b"a"]);
        heap.next_seq(10);
        let b = batch(&heap, &[b"b"]);
        let c = batch(&heap, &[b"c"]);
        heap.wait_durable(c.first_seq).await.expect("durable");
        // A later frame proves that this one was durable.
        let d = append_waiting(&heap, &[b"d"]).await;
        heap.wait_durable(d.first_seq).await.expect("durable");
        drop(heap);
        let ptr = b.ptrs[0];
        let block = device.geometry().block(ptr.addr.segment().0);
        emulated.flip_bit(block, ptr.addr.offset() + ptr.len - 1, 3).await.expect("flip");
        let mut opened = Heap::open(device.clone(), in_windows(), &no_progress).await.expect("open");
        let (mut seqs, mut damage) = (Vec::new(), 0);
        while let Some(batch) = opened.replay.next().await.expect("replay") {
            damage += batch.damage.len();
            seqs.extend(batch.records.iter().map(|record| record.seq));
        }
        assert_eq!((seqs, damage), (vec![a.first_seq, c.first_seq, d.first_seq], 1));
    });
}

const SEGMENT_BYTES: u32 = 1 << 20;

fn world() -> (World, HostId) {
    let world = World::new(1);
    let host = world.add_host(HostOptions { quirks: false, ..HostOptions::default() });
    (world, host)
}

async fn fresh(options: HeapOptions) -> Heap {
    let spec: DeviceSpec = "/drive".parse().expect("spec");
    let device = Device::create(&spec, 64 << 20).await.expect("file");
    let format = FormatOptions { segment_bytes: SEGMENT_BYTES, ..format_options() };
    Heap::format(&device, &format).await.expect("format");
    let mut opened = Heap::open(device, options, &no_progress).await.expect("open");
    while opened.replay.next().await.expect("replay").is_some() {}
    opened.heap
}

#[test]
fn records_keep_their_own_numbers_where_a_failed_program_moves_them() {
    let (world, host) = world();
    let inner = world.clone();
    let last = world
        .block_on(host, async move {
            let heap = fresh(in_windows()).await;
            append_waiting(&heap, &[b"before"]).await;
            heap.wait_durable(1).await.expect("durable");
            let a = batch(&heap, &[b"a"]);
            heap.next_seq(7);
            let b = batch(&heap, &[b"b"]);
            let at = u64::from(a.ptrs[0].addr.segment().0) * u64::from(SEGMENT_BYTES)
                + u64::from(a.ptrs[0].addr.offset()) / 4096 * 4096;
            let fault = FileFault {
                path: None,
                op: FaultOp::Write,
                range: Some(at..at + 1),
                skip: 0,
                times: 1,
                errno: 61,
            };
            inner.add_fault(host, fault);
            heap.wait_durable(b.first_seq).await.expect("it is written elsewhere");
            assert_eq!(heap.stats().relocations, 1);
            assert_eq!(heap.read(b.ptrs[0]).await.expect("by its old place").payload[..], b"b"[..]);
            b.first_seq
        })
        .unwrap_or_else(|halt| panic!("{halt}"));
    world.crash(host);
    world.restart(host);
    world
        .block_on(host, async move {
            let spec: DeviceSpec = "/drive".parse().expect("spec");
            let device = Device::open(&spec, Access::ReadWrite).await.expect("file");
            let (_, commit, _) = reopen(&device).await;
            let found: Vec<_> = commit.iter().map(|record| (record.seq, record.payload.to_vec())).collect();
            let expected = [(1, &b"before"[..]), (last - 8, b"a"), (last, b"b")];
            assert_eq!(found, expected.map(|(seq, payload)| (seq, payload.to_vec())));
        })
        .unwrap_or_else(|halt| panic!("{halt}"));
}
