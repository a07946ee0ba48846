//! What the seam costs: 4 KiB reads through `File` against a bare ring, on the same file, in turns.
//!
//! `cargo bench -p pumice-reactor --bench seam [-- --file PATH]` prints operations per second, CPU per operation and
//! the ratio of the medians. Without `--bench` (under `cargo test`) each case runs once and small.
#![allow(unsafe_code)]

use io_uring::{IoUring, opcode, types};
use pumice_base::rng::Rng;
use pumice_reactor::{Config, File, IoBuf, OpenOptions, WriteSync, block_on_with, now, spawn};
use std::cell::Cell;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

const BLOCK_BYTES: usize = 4096;

#[derive(Clone, Copy)]
struct Case {
    depth: usize,
    operations: usize,
    file_bytes: u64,
    direct: bool,
}

/// One run: seconds, and CPU seconds of the process.
#[derive(Clone, Copy)]
struct Cost {
    seconds: f64,
    cpu_seconds: f64,
}

fn clock(id: libc::clockid_t) -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes one timespec.
    unsafe { libc::clock_gettime(id, &mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

fn measure(run: impl FnOnce()) -> Cost {
    let (start, cpu) = (clock(libc::CLOCK_MONOTONIC), clock(libc::CLOCK_THREAD_CPUTIME_ID));
    run();
    Cost {
        seconds: clock(libc::CLOCK_MONOTONIC) - start,
        cpu_seconds: clock(libc::CLOCK_THREAD_CPUTIME_ID) - cpu,
    }
}

fn offsets(case: Case, seed: u64) -> impl FnMut() -> u64 {
    let mut rng = Rng::from_seed(seed);
    move || rng.below(case.file_bytes / BLOCK_BYTES as u64) * BLOCK_BYTES as u64
}

/// The least that can be done: one ring, one buffer per slot, one enter for all that is due.
fn bare(path: &Path, case: Case, seed: u64) -> Cost {
    let file = std::fs::OpenOptions::new()
        .read(true)
        .custom_flags(if case.direct { libc::O_DIRECT } else { 0 })
        .open(path)
        .expect("the file opens");
    let mut ring: IoUring =
        IoUring::builder().setup_single_issuer().setup_defer_taskrun().build(256).expect("a ring");
    let mut bufs: Vec<IoBuf> = (0..case.depth).map(|_| IoBuf::zeroed(BLOCK_BYTES)).collect();
    let mut next = offsets(case, seed);
    let fd = types::Fd(file.as_raw_fd());
    measure(|| {
        let (mut started, mut ended) = (0, 0);
        let mut idle: Vec<usize> = (0..case.depth).collect();
        while ended < case.operations {
            while started < case.operations
                && let Some(slot) = idle.pop()
            {
                let entry =
                    opcode::Read::new(fd, bufs[slot].as_mut_ptr(), BLOCK_BYTES as u32).offset(next()).build();
                // SAFETY: the buffer stays until its completion, and the ring has room for all slots.
                unsafe { ring.submission().push(&entry.user_data(slot as u64)).expect("room") };
                started += 1;
            }
            ring.submit_and_wait(1).expect("enter");
            for entry in ring.completion() {
                assert_eq!(entry.result(), BLOCK_BYTES as i32);
                idle.push(entry.user_data() as usize);
                ended += 1;
            }
        }
    })
}

fn through_reactor(path: &Path, case: Case, seed: u64, registered: bool) -> Cost {
    let config =
        Config { registered_buffer_bytes: if registered { 1 << 20 } else { 0 }, ..Config::default() };
    let path = path.to_owned();
    let cost = block_on_with(&config, async move {
        let options = OpenOptions { read_only: true, direct: case.direct, ..OpenOptions::default() };
        let file = File::open(&path, &options).await.expect("the file opens");
        let left = Rc::new(Cell::new(case.operations));
        let (start, cpu) = (now(), clock(libc::CLOCK_THREAD_CPUTIME_ID));
        let readers: Vec<_> = (0..case.depth)
            .map(|reader| {
                let (file, left) = (file.clone(), Rc::clone(&left));
                let mut next = offsets(case, seed + reader as u64);
                spawn(async move {
                    let mut buf = IoBuf::zeroed(BLOCK_BYTES);
                    while left.get() > 0 {
                        left.set(left.get() - 1);
                        let result;
                        (result, buf) = file.read_at(buf, next()).await;
                        assert_eq!(result.expect("reads"), BLOCK_BYTES);
                    }
                })
            })
            .collect();
        for reader in readers {
            reader.await.expect("ends");
        }
        Cost {
            seconds: now().since(start).as_secs_f64(),
            cpu_seconds: clock(libc::CLOCK_THREAD_CPUTIME_ID) - cpu,
        }
    });
    cost.expect("a ring")
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn prepare(path: &Path, bytes: u64) {
    let path = path.to_owned();
    let made = block_on_with(&Config::default(), async move {
        let options = OpenOptions { create: true, direct: true, ..OpenOptions::default() };
        let file = File::open(&path, &options).await.expect("the file is made");
        let mut buf = IoBuf::zeroed(1 << 20);
        let mut rng = Rng::from_seed(1);
        for chunk in buf.chunks_exact_mut(8) {
            chunk.copy_from_slice(&rng.next_u64().to_le_bytes());
        }
        let data = buf.freeze();
        for at in (0..bytes).step_by(1 << 20) {
            file.write_at(data.clone(), at, WriteSync::Cached).await.expect("writes");
        }
        file.sync_data().await.expect("syncs");
    });
    made.expect("a ring");
}

fn compare(name: &str, path: &Path, case: Case, rounds: u64) {
    let mut costs: [Vec<Cost>; 3] = Default::default();
    for round in 0..rounds {
        costs[0].push(bare(path, case, round));
        costs[1].push(through_reactor(path, case, round, false));
        costs[2].push(through_reactor(path, case, round, true));
    }
    let operations = case.operations as f64;
    let rate = |costs: &[Cost]| median(costs.iter().map(|cost| operations / cost.seconds).collect());
    let cpu = |costs: &[Cost]| median(costs.iter().map(|cost| cost.cpu_seconds / operations * 1e9).collect());
    for (kind, costs) in ["bare ring", "reactor", "reactor, registered memory"].iter().zip(&costs) {
        println!("{name:24} {kind:28} {:>9.0} ops/s {:>7.0} ns CPU/op", rate(costs), cpu(costs));
    }
    println!(
        "{name:24} reactor / bare: throughput {:.3}, CPU {:+.0} ns",
        rate(&costs[1]) / rate(&costs[0]),
        cpu(&costs[1]) - cpu(&costs[0]),
    );
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let full = arguments.iter().any(|argument| argument == "--bench");
    let given =
        arguments.iter().position(|argument| argument == "--file").and_then(|at| arguments.get(at + 1));
    let dir = tempfile::tempdir().expect("a directory");
    let path = given.map_or_else(|| dir.path().join("seam"), PathBuf::from);
    let file_bytes = if full { 512 << 20 } else { 1 << 20 };
    prepare(&path, file_bytes);
    let (small, rounds) = if full { (1, 7) } else { (1000, 1) };
    // For a profiler: one case of one kind, again and again.
    if let Some(kind) =
        arguments.iter().position(|argument| argument == "--only").and_then(|at| arguments.get(at + 1))
    {
        let given = arguments.iter().position(|argument| argument == "--depth").map(|at| &arguments[at + 1]);
        let depth = given.map_or(32, |depth| depth.parse().expect("a depth"));
        let case = Case { depth, operations: 2_000_000, file_bytes, direct: false };
        let cost = match kind.as_str() {
            "bare" => bare(&path, case, 1),
            "reactor" => through_reactor(&path, case, 1, false),
            other => panic!("--only bare or --only reactor, not {other}"),
        };
        return println!("{kind}: {:.0} ns CPU/op", cost.cpu_seconds / case.operations as f64 * 1e9);
    }
    for (name, depth, operations, direct) in [
        ("direct, depth 1", 1, 30_000, true),
        ("direct, depth 32", 32, 100_000, true),
        ("page cache, depth 1", 1, 500_000, false),
        ("page cache, depth 32", 32, 500_000, false),
    ] {
        compare(name, &path, Case { depth, operations: operations / small, file_bytes, direct }, rounds);
    }
}
