//! The heap's commits against the bare device, in one run on one file.
//!
//!     cargo run --release -p pumice-segment --example commit_floor -- DIR
//!
//! Prints one line per measurement: bare durable writes one at a time, on fresh and on written space; then group
//! commits of records by closed-loop writers; then the time of one `append` alone.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use pumice_flash::{Device, DeviceSpec};
use pumice_reactor::{File, IoBuf, OpenOptions, WriteSync, block_on, spawn};
use pumice_segment::{
    AppendClass, AppendError, Durability, FormatOptions, Heap, HeapOptions, MetaEdit, Outline, RecordIn,
};

#[allow(clippy::disallowed_methods)] // A benchmark measures wall time, outside any simulation.
fn clock() -> Instant {
    Instant::now()
}

const SPAN: u64 = 256 << 20;

async fn bare(path: &std::path::Path, size: usize, prewritten: bool) {
    let options = OpenOptions { create: true, direct: true, ..OpenOptions::default() };
    let file = File::open(path, &options).await.expect("file");
    file.set_len(0).await.expect("empty");
    file.set_len(SPAN).await.expect("length");
    let data = IoBuf::zeroed(1 << 20).freeze();
    if prewritten {
        for at in (0..SPAN).step_by(1 << 20) {
            file.write_at(data.clone(), at, WriteSync::Cached).await.expect("write");
        }
        file.sync_data().await.expect("sync");
    }
    let (started, mut writes, mut at) = (clock(), 0u64, 0);
    while started.elapsed() < Duration::from_secs(1) && at + size as u64 <= SPAN {
        file.write_at(data.slice(..size), at, WriteSync::Durable).await.expect("write");
        at += size as u64;
        writes += 1;
        if prewritten && at + size as u64 > SPAN {
            at = 0;
        }
    }
    let seconds = started.elapsed().as_secs_f64();
    println!(
        "bare {:>8} B {}: {:>7.0} writes/s {:>7.1} MB/s",
        size,
        if prewritten { "written" } else { "fresh  " },
        writes as f64 / seconds,
        (writes * size as u64) as f64 / seconds / 1e6
    );
}

async fn commits(heap: &Heap, writers: usize, size: usize, batch: usize, seconds: u64) {
    let stop = Rc::new(Cell::new(false));
    let before = heap.stats();
    let started = clock();
    let tasks: Vec<_> = (0..writers)
        .map(|_| {
            let (heap, stop) = (heap.clone(), stop.clone());
            spawn(async move {
                let payload = vec![7u8; size];
                let parts = [&payload[..]];
                let records = vec![RecordIn { kind: 1, parts: &parts, outline: Outline::Whole }; batch];
                while !stop.get() {
                    let appended = loop {
                        match heap.append(&records, AppendClass::User) {
                            Ok(appended) => break appended,
                            Err(AppendError::Busy) => {
                                recycle(&heap).await;
                                heap.room().await;
                            }
                            Err(error) => panic!("{error}"),
                        }
                    };
                    for ptr in &appended.ptrs {
                        heap.mark_dead(*ptr);
                    }
                    heap.wait_durable(appended.first_seq + batch as u64 - 1).await.expect("durable");
                }
            })
        })
        .collect();
    pumice_reactor::sleep(Duration::from_secs(seconds)).await;
    stop.set(true);
    for task in tasks {
        task.await.expect("writer");
    }
    let seconds = started.elapsed().as_secs_f64();
    let stats = heap.stats();
    let rate = |after: u64, before: u64| (after - before) as f64 / seconds;
    println!(
        "heap {writers:>4} writers × {batch} × {size:>6} B: {:>8.0} appends/s {:>7.0} commits/s {:>7.1} MB/s user \
         {:>7.1} MB/s flash, commit p50 {:.0} µs p99 {:.0} µs, opened {}",
        rate(stats.appends, before.appends),
        rate(stats.commits, before.commits),
        rate(stats.payload_bytes, before.payload_bytes) / 1e6,
        rate(stats.commit_bytes, before.commit_bytes) / 1e6,
        stats.commit_latency.quantile_ns(0.5) as f64 / 1e3,
        stats.commit_latency.quantile_ns(0.99) as f64 / 1e3,
        stats.segments_opened - before.segments_opened,
    );
}

/// Everything written so far is dead: gives the segments back.
async fn recycle(heap: &Heap) {
    if heap.free_segments() > 16 {
        return;
    }
    heap.commit_meta(MetaEdit::Edit(bytes::Bytes::new()), heap.last_seq()).await.expect("meta");
    while let Some(segment) = heap.victim(|_| 0) {
        heap.release(segment);
    }
    heap.commit_meta(MetaEdit::Edit(bytes::Bytes::new()), heap.last_seq()).await.expect("meta");
}

async fn append_alone(heap: &Heap, size: usize) {
    let payload = vec![7u8; size];
    let parts = [&payload[..]];
    let (mut nanos, mut count) = (0u128, 0u64);
    for _ in 0..20 {
        let started = clock();
        let mut appended = 0;
        while appended * (size + 12) < 4 << 20 {
            match heap
                .append(&[RecordIn { kind: 1, parts: &parts, outline: Outline::Whole }], AppendClass::User)
            {
                Ok(_) => appended += 1,
                Err(_) => break,
            }
        }
        nanos += started.elapsed().as_nanos();
        count += appended as u64;
        heap.wait_durable(heap.last_seq()).await.expect("durable");
    }
    println!("append alone {size:>6} B: {:.0} ns", nanos as f64 / count as f64);
}

fn main() {
    let dir = std::env::args().nth(1).unwrap_or_else(|| ".".into());
    let dir = std::path::Path::new(&dir);
    block_on(async {
        let plain = dir.join("commit_floor.bare");
        for size in [4 << 10, 64 << 10, 256 << 10, 1 << 20] {
            bare(&plain, size, false).await;
            bare(&plain, size, true).await;
        }
        let _ = std::fs::remove_file(&plain);
        let path = dir.join("commit_floor.drive");
        let _ = std::fs::remove_file(&path);
        let device = Device::create(&DeviceSpec::Path(path.clone()), 1 << 30).await.expect("device");
        let options = FormatOptions { drive_id: [7; 16], force: true, ..FormatOptions::default() };
        Heap::format(&device, &options).await.expect("format");
        let seconds = std::env::args().nth(2).and_then(|s| s.parse().ok()).unwrap_or(2);
        for durability in [Durability::Always, Durability::EverySecond] {
            let options = HeapOptions { durability, ..HeapOptions::default() };
            let mut opened = Heap::open(device.clone(), options, &|_, _| {}).await.expect("open");
            while opened.replay.next().await.expect("replay").is_some() {}
            let heap = opened.heap;
            println!("durability {durability}");
            for (writers, size, batch) in [
                (1, 100, 1),
                (50, 100, 1),
                (50, 1024, 1),
                (50, 8192, 1),
                (50, 8192, 16),
                (8, 65536, 1),
                (64, 65536, 1),
            ] {
                commits(&heap, writers, size, batch, seconds).await;
            }
            for size in [100, 1024, 8192] {
                append_alone(&heap, size).await;
            }
            heap.close().await.expect("close");
        }
        let _ = std::fs::remove_file(&path);
    });
}
