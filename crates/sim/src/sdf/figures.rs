//! The measurements.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use pumice_base::rng::Rng;
use pumice_flash::{Access, Device};
use pumice_reactor::{IoBuf, JoinHandle, now, sleep, spawn};
use pumice_segment::ftl::{Client, Place, RawFlash, RawFormat, RawOptions};

use super::plot::{Figure, Series};
use super::{Run, conventional};
use crate::report::Row;
use crate::worlds::Broken;

/// The card, with so many blocks on each channel as an experiment uses.
const CARD: &str = "emu:sdf,data=drop,blocks=16";
const BLOCKS: u32 = 16;
pub(super) const SEGMENT_BYTES: usize = 8 << 20;
const CHANNELS: u16 = 44;

pub(super) type Measured = Result<f64, String>;

/// Mean, standard deviation over the mean, and quantiles.
struct Spread {
    sorted: Vec<f64>,
}

impl Spread {
    fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        Self { sorted: values }
    }

    fn mean(&self) -> f64 {
        self.sorted.iter().sum::<f64>() / self.sorted.len().max(1) as f64
    }

    fn variation(&self) -> f64 {
        let mean = self.mean();
        let squares: f64 = self.sorted.iter().map(|value| (value - mean).powi(2)).sum();
        (squares / self.sorted.len().max(1) as f64).sqrt() / mean
    }

    fn quantile(&self, share: f64) -> f64 {
        let at = (self.sorted.len() as f64 * share) as usize;
        self.sorted.get(at.min(self.sorted.len().saturating_sub(1))).copied().unwrap_or(0.0)
    }
}

pub(super) async fn card(spec: &str, erased_ahead: u32) -> Result<RawFlash, String> {
    let spec = spec.parse().map_err(|error| format!("{error}"))?;
    let device = Device::open(&spec, Access::ReadWrite).await.map_err(|error| error.to_string())?;
    let format = RawFormat { drive_id: *b"sdf figures card", force: false };
    let formatted = RawFlash::format(device, format, RawOptions { erased_ahead }).await;
    formatted.map_err(|error| error.to_string())
}

/// One segment's contents; nobody keeps them.
pub(super) fn contents() -> Bytes {
    IoBuf::zeroed(SEGMENT_BYTES).freeze()
}

async fn write(raw: &RawFlash, client: &Client, id: u128, data: &Bytes) -> Result<(), String> {
    raw.write(client, id, Place::ById, data.clone()).await.map(drop).map_err(|error| error.to_string())
}

pub(super) async fn all(tasks: Vec<JoinHandle<Result<(), String>>>) -> Result<(), String> {
    for task in tasks {
        task.await.map_err(|_| "a client went away".to_string())??;
    }
    Ok(())
}

/// Erases that were begun in the background shall not count.
pub(super) async fn settle() {
    sleep(Duration::from_secs(1)).await;
}

/// Writes `count` segments on every channel: ids 0, 1 ….
async fn fill(raw: &RawFlash, count: u16) -> Result<(), String> {
    fill_from(raw, 0, count).await
}

/// Writes `count` segments on every channel, from this id on.
async fn fill_from(raw: &RawFlash, first: u128, count: u16) -> Result<(), String> {
    let channels = raw.geometry().channels;
    let data = contents();
    let tasks = (first..first + u128::from(channels) * u128::from(count)).map(|id| {
        let (raw, data) = (raw.clone(), data.clone());
        spawn(async move { write(&raw, &raw.client(), id, &data).await })
    });
    all(tasks.collect()).await
}

/// GB/s of reads of `bytes` at random aligned places, `each` of them by each of `per_channel` clients of every channel
/// (the paper: a thread per channel, one request at a time).
async fn reads(raw: &RawFlash, seed: u64, bytes: usize, per_channel: u16, each: u32) -> Measured {
    let channels = raw.geometry().channels;
    fill(raw, 2).await?;
    settle().await;
    let start = now();
    let mut tasks = Vec::new();
    for channel in 0..channels {
        for reader in 0..per_channel {
            let raw = raw.clone();
            let mut rng = Rng::from_seed(seed).split(&format!("reader {channel} {reader}"));
            tasks.push(spawn(async move {
                let client = raw.client();
                let mut buf = IoBuf::for_read(bytes);
                for _ in 0..each {
                    let id = u128::from(channel) + u128::from(channels) * u128::from(rng.below(2));
                    let offset = rng.below((SEGMENT_BYTES / bytes) as u64) * bytes as u64;
                    let result;
                    (result, buf) = raw.read(&client, id, offset as u32, buf).await;
                    result.map_err(|error| error.to_string())?;
                }
                Ok(())
            }));
        }
    }
    all(tasks).await?;
    let total = u64::from(channels) * u64::from(per_channel) * u64::from(each) * bytes as u64;
    Ok(total as f64 / start.elapsed().as_nanos() as f64)
}

/// GB/s of segment writes, `each` of them by a client of every channel; each rewrites its segments in turn.
async fn writes(raw: &RawFlash, each: u32) -> Measured {
    let channels = raw.geometry().channels;
    settle().await;
    let start = now();
    rewrite(raw, each, |_| ()).await?;
    let total = u64::from(channels) * u64::from(each) * SEGMENT_BYTES as u64;
    Ok(total as f64 / start.elapsed().as_nanos() as f64)
}

/// Every channel's client writes `each` segments one after the other, and erases what it wrote three writes before.
async fn rewrite(raw: &RawFlash, each: u32, seen: impl Fn(f64) + Clone + 'static) -> Result<(), String> {
    let channels = raw.geometry().channels;
    let data = contents();
    let tasks = (0..channels).map(|channel| {
        let (raw, data, seen) = (raw.clone(), data.clone(), seen.clone());
        spawn(async move {
            let client = raw.client();
            for index in 0..each {
                let id = |index: u32| u128::from(channel) + u128::from(channels) * u128::from(1000 + index);
                let start = now();
                write(&raw, &client, id(index), &data).await?;
                seen(start.elapsed().as_secs_f64() * 1e3);
                if index >= 3 {
                    raw.discard(id(index - 3)).map_err(|error| error.to_string())?;
                }
            }
            Ok(())
        })
    });
    all(tasks.collect()).await
}

/// Figure 1: by request size.
pub(super) fn by_size(run: &mut Run, rows: &mut Vec<Row>, plots: &mut Vec<Figure>) -> Result<(), Broken> {
    let seed = run.seed;
    let raw_spec = format!("{CARD},link_read=0,link_write=0");
    let spec = raw_spec.clone();
    let raw_read =
        run.world(
            "raw read",
            move || async move { reads(&card(&spec, 4).await?, seed, 1 << 20, 2, 32).await },
        )?;
    let raw_write = run.world("raw write", move || async move {
        // Every block is erased beforehand: programs alone.
        let raw = card(&raw_spec, BLOCKS).await?;
        fill(&raw, 1).await?;
        settle().await;
        let start = now();
        let (first, each) = (u128::from(CHANNELS), 8);
        fill_from(&raw, first, each).await?;
        let total = u64::from(CHANNELS) * u64::from(each) * SEGMENT_BYTES as u64;
        Ok(total as f64 / start.elapsed().as_nanos() as f64)
    })?;
    rows.push(Row::about("raw flash, reads", "GB/s", raw_read, 1.67, 0.02));
    rows.push(Row::about("raw flash, programs alone", "GB/s", raw_write, 1.01, 0.02));
    let mut points = Vec::new();
    for (kib, each, published) in [(8, 1500, 1.23), (16, 800, 1.42), (64, 200, 1.51)] {
        let name = format!("random reads of {kib} KiB");
        let measured =
            run.world(
                &name,
                move || async move { reads(&card(CARD, 4).await?, seed, kib << 10, 1, each).await },
            )?;
        points.push((kib as f64, measured));
        rows.push(Row::about(&name, "GB/s", measured, published, 0.08));
    }
    let large_read = run.world("reads of 8 MiB", move || async move {
        reads(&card(CARD, 4).await?, seed, SEGMENT_BYTES, 1, 12).await
    })?;
    let large_write = run.world("writes of 8 MiB", || async { writes(&card(CARD, 0).await?, 6).await })?;
    rows.push(Row::about("reads of 8 MiB", "GB/s", large_read, 1.59, 0.08));
    rows.push(Row::about("writes of 8 MiB, erased just before", "GB/s", large_write, 0.96, 0.08));
    let ahead = run.world("writes, erased ahead", || async { writes(&card(CARD, 4).await?, 12).await })?;
    // The paper delivered 95% of the raw bandwidth.
    let read_bound = raw_read.min(1.61);
    rows.push(Row::within(
        "8 MiB reads, share of what flash and link allow",
        "",
        large_read / read_bound,
        Some(0.95),
        0.98,
        1.01,
    ));
    rows.push(Row::shown("writes of 8 MiB, erased in the background", "GB/s", ahead, None));
    let cycle_ms = SEGMENT_BYTES as f64 * f64::from(CHANNELS) / raw_write / 1e6 + 9.2;
    let write_bound = SEGMENT_BYTES as f64 * f64::from(CHANNELS) / cycle_ms / 1e6;
    rows.push(Row::within(
        "8 MiB writes, share of what programs and erases allow",
        "",
        ahead / write_bound,
        Some(0.95),
        0.98,
        1.03,
    ));
    points.push((8192.0, large_read));
    plots.push(Figure {
        file: "sdf-1-request-size",
        title: "SDF: random reads by request size, 44 clients",
        x: "request, KiB",
        y: "GB/s",
        log_x: true,
        series: vec![
            Series { name: "measured".into(), points },
            Series {
                name: "published".into(),
                points: vec![(8.0, 1.23), (16.0, 1.42), (64.0, 1.51), (8192.0, 1.59)],
            },
        ],
    });
    Ok(())
}

/// Figure 2: by channels.
pub(super) fn by_channels(run: &mut Run, rows: &mut Vec<Row>, plots: &mut Vec<Figure>) -> Result<(), Broken> {
    let seed = run.seed;
    let (mut read, mut written) = (Vec::new(), Vec::new());
    for channels in (4..=CHANNELS).step_by(4) {
        let spec = format!("{CARD},channels={channels}");
        let again = spec.clone();
        let rate = run.world(&format!("reads on {channels} channels"), move || async move {
            reads(&card(&spec, 4).await?, seed, SEGMENT_BYTES, 1, 6).await
        })?;
        read.push((f64::from(channels), rate));
        let rate = run.world(&format!("writes on {channels} channels"), move || async move {
            writes(&card(&again, 0).await?, 3).await
        })?;
        written.push((f64::from(channels), rate));
    }
    let off = |points: &[(f64, f64)], limit: f64| {
        let slope = points[0].1 / points[0].0;
        let off = points.iter().map(|&(n, rate)| (rate / (n * slope).min(limit) - 1.0).abs());
        off.fold(0.0, f64::max)
    };
    rows.push(Row::within(
        "8 MiB reads, 4 … 44 channels: most off the line and its knee",
        "",
        off(&read, 1.61),
        None,
        0.0,
        0.05,
    ));
    rows.push(Row::within(
        "8 MiB writes, 4 … 44 channels: most off the line",
        "",
        off(&written, f64::MAX),
        None,
        0.0,
        0.05,
    ));
    let slope = read[0].1 / read[0].0;
    rows.push(Row::shown("channels at which the link is full with reads", "", 1.61 / slope, None));
    plots.push(Figure {
        file: "sdf-2-channels",
        title: "SDF: 8 MiB requests by channels",
        x: "channels",
        y: "GB/s",
        log_x: false,
        series: vec![
            Series { name: "reads".into(), points: read },
            Series { name: "writes".into(), points: written },
        ],
    });
    Ok(())
}

/// Figure 3: write latency.
pub(super) fn write_latency(
    run: &mut Run,
    rows: &mut Vec<Row>,
    plots: &mut Vec<Figure>,
) -> Result<(), Broken> {
    let sdf = run.world("write latency", || async {
        let seen = Rc::new(RefCell::new(Vec::new()));
        let kept = Rc::clone(&seen);
        rewrite(&card(CARD, 0).await?, 10, move |ms| kept.borrow_mut().push(ms)).await?;
        Ok(Spread::of(seen.take()))
    })?;
    let seed = run.seed;
    let conventional =
        run.world("conventional", move || async move { conventional::write_latencies_ms(seed).await })?;
    let conventional = Spread::of(conventional);
    rows.push(Row::about("8 MiB program and erase, mean", "ms", sdf.mean(), 383.0, 0.05));
    rows.push(Row::within(
        "8 MiB program and erase, coefficient of variation",
        "",
        sdf.variation(),
        None,
        0.0,
        0.05,
    ));
    rows.push(Row::shown("conventional SSD, mean", "ms", conventional.mean(), Some(73.0)));
    rows.push(Row::shown("conventional SSD, shortest", "ms", conventional.quantile(0.0), Some(7.0)));
    rows.push(Row::shown("conventional SSD, longest", "ms", conventional.quantile(1.0), Some(650.0)));
    rows.push(Row::within(
        "conventional SSD, coefficient of variation",
        "",
        conventional.variation(),
        None,
        5.0 * sdf.variation().max(0.02),
        10.0,
    ));
    let series = |name: &str, spread: &Spread| Series {
        name: name.into(),
        points: (0..=100).map(|at| (spread.quantile(f64::from(at) / 100.0), f64::from(at))).collect(),
    };
    plots.push(Figure {
        file: "sdf-3-write-latency",
        title: "8 MiB writes: share that took no longer",
        x: "ms",
        y: "%",
        log_x: true,
        series: vec![series("SDF", &sdf), series("conventional SSD", &conventional)],
    });
    Ok(())
}

/// Figure 4, not in the paper: small reads beside erases and writes.
pub(super) fn read_latency(
    run: &mut Run,
    rows: &mut Vec<Row>,
    plots: &mut Vec<Figure>,
) -> Result<(), Broken> {
    let mut series = Vec::new();
    // Which channels are rewritten meanwhile.
    for (name, busy) in
        [("idle card", None), ("other channels rewritten", Some(1)), ("all channels rewritten", Some(0))]
    {
        let seed = run.seed;
        let spread = run.world(name, move || async move {
            let raw = card(&format!("{CARD},channels=8"), 2).await?;
            fill(&raw, 2).await?;
            settle().await;
            let stop = Rc::new(Cell::new(false));
            let mut writers = Vec::new();
            for channel in busy.map_or(8..8, |from| from..8u128) {
                let (raw, stop, data) = (raw.clone(), Rc::clone(&stop), contents());
                writers.push(spawn(async move {
                    let client = raw.client();
                    let mut id = channel + 8000;
                    while !stop.get() {
                        write(&raw, &client, id, &data).await?;
                        raw.discard(id).map_err(|error| error.to_string())?;
                        id += 8;
                    }
                    Ok(())
                }));
            }
            // One client of channel 0, a read every 2 ms or so.
            let (client, mut rng) = (raw.client(), Rng::from_seed(seed).split("reader"));
            let (mut seen, mut buf) = (Vec::new(), IoBuf::for_read(8192));
            for _ in 0..2000 {
                sleep(Duration::from_micros(1000 + rng.below(2000))).await;
                let start = now();
                let result;
                (result, buf) = raw.read(&client, 0, rng.below(1024) as u32 * 8192, buf).await;
                result.map_err(|error| error.to_string())?;
                seen.push(start.elapsed().as_secs_f64() * 1e3);
            }
            stop.set(true);
            all(writers).await?;
            Ok(Spread::of(seen))
        })?;
        for (what, share) in [("median", 0.5), ("99th percentile", 0.99), ("longest", 1.0)] {
            rows.push(Row::shown(
                &format!("8 KiB reads, {name}, {what}"),
                "ms",
                spread.quantile(share),
                None,
            ));
        }
        let points = (0..=100).map(|at| (spread.quantile(f64::from(at) / 100.0), f64::from(at))).collect();
        series.push(Series { name: name.into(), points });
    }
    plots.push(Figure {
        file: "sdf-4-read-latency",
        title: "8 KiB reads beside writes and erases: share that took no longer",
        x: "ms",
        y: "%",
        log_x: true,
        series,
    });
    Ok(())
}
