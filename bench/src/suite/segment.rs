//! The segment layer's raw interface on a plain file, on the reactor's io_uring, against fio on the same file with the same
//! settings: what the layer costs beside the device.
//!
//! 1. One file, written once. Each row is run by fio and by the layer in turns; a row shows the medians.
//! 2. fio's writes are `O_DSYNC`, as the layer acknowledges what is durable only; both are O_DIRECT.
//! 3. Each job is also run by fio with checksums of its own, on a second file: the layer makes one for each page it writes,
//!    and verifies all it reads.
//! 4. CPU is the process's (`getrusage`): the layer runs in this process, which does nothing else meanwhile.
//!
//! The layer gives six pages of each 8 MiB block to tags and checksums, writes and verifies a CRC-32C for each of the others;
//! fio moves whole 8 MiB. Bytes are what the user gets.

use std::cell::{Cell, RefCell};
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use pumice_base::rng::Rng;
use pumice_flash::{Access, Device, DeviceSpec, Geometry};
use pumice_reactor::{IoBuf, block_on, spawn};
use pumice_segment::ftl::{Place, RawFlash, RawFormat, RawOptions};

use super::{Context, limit, remove};
use crate::fio::{self, Limit, Pattern};
use crate::phase::{PhaseResult, ratio};
use crate::report::{Report, Table, bytes, count, micros, percent, size};
use crate::{Result, usage};

const SEGMENT_BYTES: u64 = 8 << 20;
const READ_BYTES: u32 = 8 << 10;
/// Blocks that the layer keeps free beside what the reads need: writes discard the oldest segment.
const FREE_BLOCKS: u64 = 16;

/// A row of the table.
struct Job {
    name: &'static str,
    pattern: Pattern,
    block_bytes: u64,
    depth: u32,
}

const JOBS: [Job; 3] = [
    Job { name: "sequential writes of 8 MiB", pattern: Pattern::Write, block_bytes: SEGMENT_BYTES, depth: 2 },
    Job { name: "sequential reads of 8 MiB", pattern: Pattern::Read, block_bytes: SEGMENT_BYTES, depth: 2 },
    Job {
        name: "random reads of 8 KiB",
        pattern: Pattern::RandomRead,
        block_bytes: READ_BYTES as u64,
        depth: 32,
    },
];

pub fn run(context: &Context, report: &mut Report) -> Result<()> {
    let space_bytes = context.pick(4 << 30, 256 << 20);
    let seconds = context.seconds(8.0, 0.3);
    let rounds = context.pick(3, 1);
    let dir = context.fresh_dir("segment")?;
    let (file, checked) = (dir.join("drive0"), dir.join("checked"));
    let mut table = Table::new(
        "The segment layer beside fio, on one file",
        &[
            "work",
            "in flight",
            "fio ops/s",
            "ops/s",
            "fio B/s",
            "B/s",
            "of fio",
            "fio p99",
            "p99",
            "fio CPU s/GiB",
            "checking fio",
            "CPU s/GiB",
        ],
    );
    let mut raw = serde_json::Map::new();
    for job in JOBS {
        eprintln!("  {}, {} in flight", job.name, job.depth);
        let (mut peers, mut checking, mut ours) = (Vec::new(), Vec::new(), Vec::new());
        // Random and sequential reads find the segments that the layer wrote; fio's writes spoil them, and so come before.
        fio::prewrite(&file, space_bytes)?;
        fio::prewrite_checked(&checked, space_bytes, job.block_bytes)?;
        if !job.pattern.destroys() {
            ours.push(layer(&file, &job, space_bytes, seconds, true)?);
        }
        for _ in 0..rounds {
            let durable = job.pattern.destroys();
            let of_fio = Limit { durable, ..limit(job.pattern, job.block_bytes, job.depth, seconds) };
            peers.push(fio::run(&of_fio, &file)?);
            checking.push(fio::run(&Limit { is_checked: true, ..of_fio }, &checked)?);
            // What fio has written over is no drive any more.
            ours.push(layer(&file, &job, space_bytes, seconds, durable)?);
        }
        let (peer, checking, our) = (median(peers), median(checking), median(ours));
        table.row(row(&job, &peer, &checking, &our));
        let figures = serde_json::json!({ "fio": peer, "checking fio": checking, "segment": our });
        raw.insert(job.name.into(), figures);
    }
    remove(&dir);
    table.note(format!(
        "Medians of {rounds} runs of {seconds} s each, fio and the layer in turns, on a file of {} that was written once. \
         Writes are durable before they count, on both sides. fio: io_uring, O_DIRECT, one job. The layer: one core, tags \
         scheduling and checksums included; its \"8 MiB\" is a block of 8 MiB less six pages. Checking fio: the CPU of the same \
         job with fio's own CRC-32C of each block written or verified (--verify=crc32c), as the layer's are: whoever looks at \
         the bytes pays for fetching them from memory, and fio otherwise never does.",
        size(space_bytes)
    ));
    report.tables.push(table);
    report.raw = raw.into();
    Ok(())
}

fn row(job: &Job, peer: &PhaseResult, checking: &PhaseResult, our: &PhaseResult) -> Vec<String> {
    let per_gib = |r: &PhaseResult| match r.user_bytes {
        0 => "-".into(),
        bytes => format!("{:.3}", ratio(r.cpu_seconds * (1u64 << 30) as f64, bytes as f64)),
    };
    vec![
        job.name.into(),
        job.depth.to_string(),
        count(peer.ops_per_second()),
        count(our.ops_per_second()),
        bytes(peer.bytes_per_second()),
        bytes(our.bytes_per_second()),
        percent(ratio(our.bytes_per_second(), peer.bytes_per_second())),
        micros(peer.p99_us),
        micros(our.p99_us),
        per_gib(peer),
        per_gib(checking),
        per_gib(our),
    ]
}

/// The run of median throughput.
fn median(mut runs: Vec<PhaseResult>) -> PhaseResult {
    runs.sort_by(|a, b| a.bytes_per_second().total_cmp(&b.bytes_per_second()));
    let middle = runs.len() / 2;
    runs.into_iter().nth(middle).unwrap_or_default()
}

/// The layer at the job for so long. `fresh`: it formats the file first, and writes the segments that it reads.
fn layer(file: &Path, job: &Job, space_bytes: u64, seconds: f64, fresh: bool) -> Result<PhaseResult> {
    let (file, depth, pattern) = (file.to_owned(), job.depth, job.pattern);
    block_on(async move {
        let device = Device::open(&DeviceSpec::Path(file), Access::ReadWrite).await?;
        let found = device.geometry();
        let blocks = (space_bytes / SEGMENT_BYTES) as u32;
        let pages_per_block = (SEGMENT_BYTES / u64::from(found.page_bytes)) as u32;
        let device = device.with_geometry(Geometry {
            channels: 1,
            blocks_per_channel: blocks,
            pages_per_block,
            ..found
        })?;
        let raw = if fresh {
            let mut drive_id = [0; 16];
            Rng::from_seed(1).fill(&mut drive_id);
            let format = RawFormat { drive_id, force: true };
            RawFlash::format(device, format, RawOptions::default()).await?
        } else {
            RawFlash::open(device, RawOptions::default(), &|_, _| ()).await?.raw
        };
        let live = u64::from(blocks) - FREE_BLOCKS;
        let data = noise(raw.segment_bytes());
        if fresh && !pattern.destroys() {
            let client = raw.client();
            for id in 0..live {
                raw.write(&client, u128::from(id), Place::ById, data.clone()).await?;
            }
        }
        let bench =
            Bench { raw: raw.clone(), live, pattern, data, next: Rc::default(), latencies: Rc::default() };
        let result = bench.run(depth, seconds).await?;
        raw.close().await?;
        Ok(result)
    })
}

fn noise(len: u32) -> Bytes {
    let mut buf = IoBuf::zeroed(len as usize);
    Rng::from_seed(2).fill(&mut buf);
    buf.freeze()
}

#[derive(Clone)]
struct Bench {
    raw: RawFlash,
    /// Segments that are kept, or read.
    live: u64,
    pattern: Pattern,
    /// What a write writes: made before the time runs.
    data: Bytes,
    next: Rc<Cell<u64>>,
    latencies: Rc<RefCell<Vec<f64>>>,
}

impl Bench {
    async fn run(&self, depth: u32, seconds: f64) -> Result<PhaseResult> {
        let (began, cpu) = (Instant::now(), usage::cpu_seconds(libc::RUSAGE_SELF));
        let until = began + Duration::from_secs_f64(seconds);
        let tasks: Vec<_> = (0..depth)
            .map(|number| {
                let this = self.clone();
                spawn(async move { this.client(u64::from(number), until).await })
            })
            .collect();
        let mut out = PhaseResult { name: "segment".into(), ..PhaseResult::default() };
        for task in tasks {
            let (ops, bytes) = task.await.map_err(|_| "a client is gone")??;
            out.ops += ops;
            out.user_bytes += bytes;
        }
        out.seconds = began.elapsed().as_secs_f64();
        out.cpu_seconds = usage::cpu_seconds(libc::RUSAGE_SELF) - cpu;
        let mut latencies = self.latencies.take();
        latencies.sort_by(f64::total_cmp);
        let at =
            |share: f64| latencies.get((latencies.len() as f64 * share) as usize).copied().unwrap_or(0.0);
        (out.p50_us, out.p99_us, out.p999_us) = (at(0.5), at(0.99), at(0.999));
        out.max_us = latencies.last().copied().unwrap_or(0.0);
        Ok(out)
    }

    /// One request after the other until the time is over; answers requests and bytes.
    async fn client(&self, number: u64, until: Instant) -> Result<(u64, u64)> {
        let segment_bytes = self.raw.segment_bytes();
        let client = self.raw.client();
        let mut rng = Rng::from_seed(number);
        let mut whole =
            IoBuf::for_read(if self.pattern == Pattern::Read { segment_bytes as usize } else { 0 });
        let mut part = IoBuf::for_read(READ_BYTES as usize);
        let (mut ops, mut bytes) = (0, 0);
        let mut start = Instant::now();
        while start < until {
            let turn = self.next.replace(self.next.get() + 1);
            bytes += match self.pattern {
                Pattern::Write => {
                    self.raw.write(&client, u128::from(turn), Place::ById, self.data.clone()).await?;
                    if let Some(oldest) = turn.checked_sub(self.live) {
                        self.raw.discard(u128::from(oldest))?;
                    }
                    u64::from(segment_bytes)
                }
                Pattern::Read => {
                    let (read, buf) = self.raw.read(&client, u128::from(turn % self.live), 0, whole).await;
                    read?;
                    whole = buf;
                    u64::from(segment_bytes)
                }
                _ => {
                    let id = u128::from(rng.below(self.live));
                    let places = u64::from(segment_bytes / READ_BYTES);
                    let at = rng.below(places) as u32 * READ_BYTES;
                    let (read, buf) = self.raw.read(&client, id, at, part).await;
                    read?;
                    part = buf;
                    u64::from(READ_BYTES)
                }
            };
            ops += 1;
            // One look at the clock a request, as fio's: it costs as much as a look-up of the layer.
            let end = Instant::now();
            self.latencies.borrow_mut().push((end - start).as_secs_f64() * 1e6);
            start = end;
        }
        Ok((ops, bytes))
    }
}
