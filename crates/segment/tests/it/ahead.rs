//! Records read in the order of their writing come in long reads; others do not pay for it; what is damaged is told of as
//! ever.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use crate::common::*;
use pumice_base::rng::Rng;
use pumice_flash::{Device, Emulated};
use pumice_reactor::spawn;
use pumice_segment::{FormatOptions, Heap, ReadError, RecordPtr};

const RECORD_BYTES: usize = 1000;
const RECORDS: u32 = 6000;

/// A heap of sealed segments (and an open one) of 1 MiB, full of records that begin with their number.
async fn filled() -> (Heap, Arc<Emulated>, Vec<RecordPtr>) {
    let (device, emulated) = emulated("emu:small").await;
    let (heap, ptrs) = filled_on(device).await;
    (heap, emulated, ptrs)
}

async fn filled_on(device: Device) -> (Heap, Vec<RecordPtr>) {
    let format = FormatOptions { segment_bytes: 1 << 20, ..format_options() };
    Heap::format(&device, &format).await.expect("format");
    let mut opened = Heap::open(device, options(), &no_progress).await.expect("open");
    while opened.replay.next().await.expect("replay").is_some() {}
    let heap = opened.heap;
    let mut ptrs = Vec::new();
    for first in (0..RECORDS).step_by(20) {
        let payloads: Vec<Vec<u8>> = (first..first + 20).map(payload).collect();
        let payloads: Vec<&[u8]> = payloads.iter().map(Vec::as_slice).collect();
        ptrs.extend(append_waiting(&heap, &payloads).await.ptrs);
    }
    heap.wait_durable(heap.last_seq()).await.expect("durable");
    (heap, ptrs)
}

fn payload(number: u32) -> Vec<u8> {
    let mut payload = vec![number as u8; RECORD_BYTES];
    payload[..4].copy_from_slice(&number.to_le_bytes());
    payload
}

async fn read(heap: &Heap, ptrs: &[RecordPtr], number: u32) {
    let record = heap.read(ptrs[number as usize]).await.expect("read");
    assert_eq!(record.payload[..], payload(number)[..], "record {number}");
}

#[test]
fn records_read_in_order_come_in_long_reads() {
    pumice_reactor::block_on(async {
        let (heap, _, ptrs) = filled().await;
        let before = heap.stats();
        for number in 0..RECORDS {
            read(&heap, &ptrs, number).await;
        }
        let now = heap.stats();
        let (reads, bytes) = (now.reads - before.reads, now.read_bytes - before.read_bytes);
        // The open segment's are read one by one.
        assert!(reads < u64::from(RECORDS) / 4, "{reads} reads");
        assert!(bytes < u64::from(RECORDS) * RECORD_BYTES as u64 * 2, "{bytes} bytes");
        assert_eq!(now.ahead_hits + reads - now.ahead_reads, u64::from(RECORDS));
    });
}

#[test]
fn readers_that_do_not_keep_step_share_them() {
    pumice_reactor::block_on(async {
        // In real time: in an emulated device none passes, and one reader is done before the next begins.
        let dir = tempfile::tempdir().expect("dir");
        let (heap, ptrs) = filled_on(file(dir.path(), 64 << 20).await).await;
        let (heap, ptrs, next) = (Arc::new(heap), Arc::new(ptrs), Rc::new(Cell::new(0)));
        let readers: Vec<_> = (0..32)
            .map(|_| {
                let (heap, ptrs, next) = (heap.clone(), ptrs.clone(), next.clone());
                spawn(async move {
                    while next.get() < RECORDS {
                        read(&heap, &ptrs, next.replace(next.get() + 1)).await;
                    }
                })
            })
            .collect();
        for reader in readers {
            reader.await.expect("reader");
        }
        let stats = heap.stats();
        assert!(stats.reads < u64::from(RECORDS) / 4, "{} reads", stats.reads);
    });
}

#[test]
fn a_reader_that_goes_away_in_the_midst_leaves_nobody_waiting() {
    pumice_reactor::block_on(async {
        let (heap, _, ptrs) = filled().await;
        let (heap, ptrs) = (Arc::new(heap), Arc::new(ptrs));
        for number in 0..RECORDS {
            let (own, all) = (heap.clone(), ptrs.clone());
            let reader = spawn(async move { read(&own, &all, number).await });
            pumice_reactor::yield_now().await;
            if number % 3 == 0 {
                reader.abort();
                read(&heap, &ptrs, number).await;
            } else {
                reader.await.expect("reader");
            }
        }
        assert!(heap.stats().ahead_hits > 0);
    });
}

#[test]
fn scattered_reads_are_not_read_ahead() {
    pumice_reactor::block_on(async {
        const LARGE: u32 = 20_000;
        let dir = tempfile::tempdir().expect("dir");
        let device = file(dir.path(), 256 << 20).await;
        let format = FormatOptions { segment_bytes: 8 << 20, ..format_options() };
        Heap::format(&device, &format).await.expect("format");
        let mut opened = Heap::open(device, options(), &no_progress).await.expect("open");
        while opened.replay.next().await.expect("replay").is_some() {}
        let (heap, mut ptrs) = (opened.heap, Vec::new());
        for _ in (0..LARGE).step_by(50) {
            ptrs.extend(append_waiting(&heap, &[&[5; 4000][..]; 50]).await.ptrs);
        }
        heap.wait_durable(heap.last_seq()).await.expect("durable");
        let mut rng = Rng::from_seed(1);
        for _ in 0..5000 {
            heap.read(ptrs[rng.below(u64::from(LARGE)) as usize]).await.expect("read");
        }
        assert_eq!(heap.stats().ahead_reads, 0);
    });
}

#[test]
fn a_flipped_bit_costs_one_record_of_a_stretch() {
    pumice_reactor::block_on(async {
        let (heap, emulated, ptrs) = filled().await;
        let bad = 777;
        let ptr = ptrs[bad as usize];
        let block = heap.device().geometry().block(ptr.addr.segment().0);
        emulated.flip_bit(block, ptr.addr.offset() + ptr.len - 1, 3).await.expect("flip");
        for number in (0..RECORDS).filter(|&number| number != bad) {
            read(&heap, &ptrs, number).await;
            if number == bad - 1 {
                let error = heap.read(ptr).await.expect_err("a flipped bit is not data");
                assert!(matches!(error, ReadError::Corrupt { .. }), "{error}");
            }
        }
        assert!(heap.stats().ahead_hits > u64::from(RECORDS) / 2);
    });
}
