//! Figure 4: random reads by batch and slices (the paper's Figures 10, 11 and 12).
//!
//! A slice is a hash partition of the keys with one client here, which sends a batch of reads, waits until all of them are
//! answered, and sends the next. The patches of a slice have consecutive ids and so lie on all channels; a read asks for
//! a random aligned place of a random patch. On SDF each read is served by one channel, so that a batch is as slow as the
//! fullest channel's share of it. The conventional drive stripes by 8 KiB: a single read of 512 KiB keeps all channels busy,
//! and more at a time win little.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use pumice_base::rng::Rng;
use pumice_reactor::{IoBuf, LocalBoxFuture, Nanos, now, spawn};
use pumice_segment::ftl::{Client, RawFlash};

use super::Run;
use super::card::{CARD, SEGMENT_BYTES, all, card, fill, settle};
use super::conventional::{Drive, SPLIT_NS};
use super::plot::{Figure, Section, Series};
use crate::report::Row;
use crate::worlds::Broken;

const SLICES: [u32; 5] = [1, 4, 8, 16, 32];
const BATCHES: [u32; 8] = [1, 4, 8, 16, 32, 44, 64, 128];
/// The same of a run that is made smaller.
const SLICES_FEW: [u32; 3] = [1, 4, 8];
const BATCHES_FEW: [u32; 4] = [1, 8, 44, 128];
/// The batch of the paper's Figure 12, a read for each channel.
const BATCH: u32 = 44;
const SIZES_KIB: [u32; 4] = [8, 32, 128, 512];
const SIZES_KIB_FEW: [u32; 2] = [8, 512];
const READ_KIB: u32 = 512;
const PAGE_KIB: u32 = 8;
/// Blocks of a channel of the conventional drive.
const BLOCKS: u32 = 10;
/// Segments of each channel that hold data.
const FILLED: u16 = 2;
/// A count of slices is at the peak when it reaches this share of the best.
const PEAK_SHARE: f64 = 0.95;

/// Buffers that no read uses: memory that was touched before costs far less than new.
type Buffers = Rc<RefCell<Vec<IoBuf>>>;

/// What is read, by one client each.
enum Reader {
    Sdf(RawFlash, Client, Buffers),
    Conventional(Rc<Drive>),
}

impl Reader {
    /// Another client's.
    fn another(&self) -> Self {
        match self {
            Self::Sdf(raw, _, unused) => Self::Sdf(raw.clone(), raw.client(), Rc::clone(unused)),
            Self::Conventional(drive) => Self::Conventional(Rc::clone(drive)),
        }
    }

    /// One read of a batch.
    fn read(&self, kib: u32, rng: &mut Rng) -> LocalBoxFuture<'static, Result<(), String>> {
        match self {
            Self::Sdf(raw, client, unused) => {
                let id = u128::from(rng.below(u64::from(raw.segment_count())));
                let places = (SEGMENT_BYTES >> 10) as u64 / u64::from(kib);
                let offset = rng.below(places) as u32 * (kib << 10);
                let (raw, client, unused) = (raw.clone(), client.clone(), Rc::clone(unused));
                Box::pin(async move {
                    let len = (kib << 10) as usize;
                    // Of another size they are no longer wanted.
                    let found = unused.borrow_mut().pop().filter(|buf| buf.len() == len);
                    let buf = found.unwrap_or_else(|| IoBuf::for_read(len));
                    let (result, buf) = raw.read(&client, id, offset, buf).await;
                    unused.borrow_mut().push(buf);
                    result.map(drop).map_err(|error| error.to_string())
                })
            }
            Self::Conventional(drive) => {
                let pages = kib / PAGE_KIB;
                let first = rng.below(u64::from(drive.requests() * 1024 / pages)) as u32 * pages;
                let drive = Rc::clone(drive);
                Box::pin(async move { drive.read(first, pages).await })
            }
        }
    }
}

/// GB/s of one count of slices, batch and size: the sum of what each client gets in whole rounds. A fixed time would cut
/// through the last of them, and of large batches most answers come at once.
async fn measure(
    reader: &Reader,
    rng: &Rng,
    point: Point,
    rounds_min: u32,
    ms_min: u64,
) -> Result<f64, String> {
    // Clients that have not measured yet, and the sum of those that have.
    let (left, rate) = (Rc::new(Cell::new(point.slices)), Rc::new(Cell::new(0.0)));
    let begun = now();
    let mut clients = Vec::new();
    for slice in 0..point.slices {
        let (reader, left, rate) = (reader.another(), Rc::clone(&left), Rc::clone(&rate));
        let mut rng = rng.split(&format!("{} slices, {} a batch, slice {slice}", point.slices, point.batch));
        clients.push(spawn(async move {
            let (mut from, mut rounds, mut is_measured) = (None::<Nanos>, 0, false);
            // Whoever has measured goes on, so that the others do not find the drive idle.
            while left.get() > 0 {
                let batch = (0..point.batch).map(|_| spawn(reader.read(point.kib, &mut rng)));
                all(batch.collect()).await?;
                let Some(from) = from else {
                    // Queues fill first.
                    from = (begun.elapsed() >= Duration::from_millis(ms_min / 4)).then(now);
                    continue;
                };
                rounds += 1;
                let elapsed = from.elapsed();
                let is_enough = rounds >= rounds_min && elapsed >= Duration::from_millis(ms_min);
                if !is_measured && is_enough {
                    let bytes = f64::from(rounds * point.batch) * f64::from(point.kib << 10);
                    rate.set(rate.get() + bytes / elapsed.as_nanos() as f64);
                    left.set(left.get() - 1);
                    is_measured = true;
                }
            }
            Ok(())
        }));
    }
    all(clients).await?;
    Ok(rate.get())
}

#[derive(Clone, Copy)]
struct Point {
    slices: u32,
    batch: u32,
    kib: u32,
}

/// GB/s of each point, on a drive that was filled once.
fn rates(run: &mut Run, name: &str, split_ns: Option<u64>, points: Vec<Point>) -> Result<Vec<f64>, Broken> {
    // Dies take requests in turn, so that the batches under way end at about the same time, when the fullest channel is
    // through: however many clients, a round is one draw, and a mean wants many.
    // The conventional drive spreads each read over its channels, and every round is like the others.
    let rounds = run.times(24, if split_ns.is_none() { 8 } else { 2 });
    let (seed, ms) = (run.seed, u64::from(run.times(300, 40)));
    run.world(name, move || async move {
        let reader = match split_ns {
            None => {
                let raw = card(CARD, 0).await?;
                fill(&raw, FILLED).await?;
                let client = raw.client();
                Reader::Sdf(raw, client, Buffers::default())
            }
            Some(split_ns) => {
                let drive = Drive::open(BLOCKS, split_ns).await?;
                drive.fill().await?;
                Reader::Conventional(drive)
            }
        };
        settle().await;
        let mut rates = Vec::new();
        for point in points {
            // Few clients wait for whole batches: their rate needs longer to show.
            let ms = if split_ns.is_none() { ms * u64::from((32 / point.slices).clamp(1, 4)) } else { ms };
            rates.push(measure(&reader, &Rng::from_seed(seed), point, rounds, ms).await?);
        }
        Ok(rates)
    })
}

/// The least of each number to the one before it: 1 or more where they never fall.
fn least_step(rates: &[f64]) -> f64 {
    rates.windows(2).map(|pair| pair[1] / pair[0]).fold(f64::MAX, f64::min)
}

/// Where the first line passes the second, between two batches; `None` where it never does.
fn crossing(batches: &[u32], first: &[f64], second: &[f64]) -> Option<f64> {
    let ahead = first.iter().zip(second).position(|(first, second)| first > second)?;
    if ahead == 0 {
        return Some(f64::from(batches[0]));
    }
    // Straight lines between the points.
    let (before, after) = (first[ahead - 1] - second[ahead - 1], first[ahead] - second[ahead]);
    let (from, to) = (f64::from(batches[ahead - 1]), f64::from(batches[ahead]));
    Some(from + (to - from) * before / (before - after))
}

pub(super) fn section(run: &mut Run) -> Result<Section, Broken> {
    let (by_batch, mut rows) = by_batch(run)?;
    let by_size = by_size(run, &mut rows)?;
    Ok(Section {
        title: "4. Random reads by batch and slices (the paper's Figures 10 to 12)",
        figures: vec![by_batch, by_size],
        rows,
        notes: vec![
            "published as words alone: with one slice SDF is behind the conventional drive at batches below 32; with 4 and 8 it is \
             behind at small batches and gains with them, while the conventional drive stays about where it is"
                .into(),
            "the conventional SSD cuts reads into stripes of 8 KiB, 6.8 µs each of its controller's: an input, set so that it \
             reads 1.20 GB/s at most (from memory of the paper's Table 1); the dashed line is the same drive without"
                .into(),
            "missed: with one slice ours is behind up to larger batches than 32, because our conventional drive answers a batch \
             of one client at nearly its full rate, and the paper's did not; no band"
                .into(),
        ],
    })
}

/// Figures 10 and 11.
fn by_batch(run: &mut Run) -> Result<(Figure, Vec<Row>), Broken> {
    let (mut rows, mut series) = (Vec::new(), Vec::new());
    let is_whole = run.scale >= 1.0;
    let all_slices: &[u32] = if is_whole { &SLICES } else { &SLICES_FEW };
    let batches: &[u32] = if is_whole { &BATCHES } else { &BATCHES_FEW };
    let grid = |slices: &[u32]| -> Vec<Point> {
        let of = |&slices: &u32| batches.iter().map(move |&batch| Point { slices, batch, kib: READ_KIB });
        slices.iter().flat_map(of).collect()
    };
    let sdf = rates(run, "random reads", None, grid(all_slices))?;
    let compared = [1, 4, 8];
    let split = rates(run, "random reads, conventional", Some(SPLIT_NS), grid(&compared))?;
    let ideal = rates(run, "random reads, conventional without splitting", Some(0), grid(&compared[..1]))?;
    let line =
        |rates: &[f64]| batches.iter().map(|&batch| f64::from(batch)).zip(rates.iter().copied()).collect();
    let at = |batch: u32| batches.iter().position(|&found| found == batch).unwrap_or(0);
    let mut least = f64::MAX;
    for (slices, rates) in all_slices.iter().zip(sdf.chunks(batches.len())) {
        series.push(Series::new(format!("SDF, {slices} slices"), line(rates)));
        least = least.min(least_step(rates));
        for batch in [1, BATCH, 128] {
            let name = format!("random reads of 512 KiB, {slices} slices, batches of {batch}");
            rows.push(Row::shown(&name, "GB/s", rates[at(batch)], None));
        }
    }
    for (slices, rates) in compared.iter().zip(split.chunks(batches.len())) {
        series.push(Series::reference(format!("conventional, {slices} slices"), line(rates)));
    }
    series.push(Series::reference("conventional, 1 slice, without splitting", line(&ideal)));
    let name = "batch to batch, all counts of slices: least gain";
    rows.push(Row::within(name, "", least, None, 0.97, 10.0));
    // All counts of slices at each batch: more slices are never slower.
    let mut least = f64::MAX;
    for batch in 0..batches.len() {
        let column: Vec<f64> = sdf.chunks(batches.len()).map(|rates| rates[batch]).collect();
        least = least.min(least_step(&column));
    }
    let name = "slices to slices, all batches: least gain";
    rows.push(Row::within(name, "", least, None, 0.97, 10.0));
    let of = |rates: &[f64], slices: &[u32], wanted: u32| -> Vec<f64> {
        let index = slices.iter().position(|&found| found == wanted).unwrap_or(0);
        rates[index * batches.len()..(index + 1) * batches.len()].to_vec()
    };
    let mut crossings = Vec::new();
    for (slices, published) in [(1, Some(32.0)), (4, None), (8, None)] {
        let (sdf, conventional) = (of(&sdf, all_slices, slices), of(&split, &compared, slices));
        let crossed = crossing(batches, &sdf, &conventional);
        crossings.push(crossed.unwrap_or(f64::INFINITY));
        let name = format!("{slices} slices: batch from which SDF is ahead of the conventional SSD");
        rows.push(match crossed {
            Some(crossed) => Row::shown(&name, "", crossed, published),
            None => Row::beyond(&name, "", f64::from(batches[batches.len() - 1]), published),
        });
        let name = format!("{slices} slices, batches of 1: SDF's share of the conventional SSD's rate");
        rows.push(Row::within(&name, "", sdf[0] / conventional[0], None, 0.0, 0.9));
        if slices > 1 {
            let (from, to) = (at(8), at(128));
            let name = format!("{slices} slices, batches of 8 to 128: SDF's gain");
            rows.push(Row::within(&name, "", sdf[to] / sdf[from], None, 1.15, 10.0));
            let name = format!("{slices} slices, batches of 8 to 128: the conventional SSD's gain");
            rows.push(Row::within(&name, "", conventional[to] / conventional[from], None, 0.9, 1.1));
        }
    }
    let name = "crossings at 8 slices to 4: more slices, smaller batches";
    rows.push(Row::within(name, "", crossings[2] / crossings[1], None, 0.1, 0.9));
    let name = "8 slices, batches of 128: SDF's rate to the conventional SSD's";
    let share = of(&sdf, all_slices, 8)[at(128)] / of(&split, &compared, 8)[at(128)];
    rows.push(Row::within(name, "", share, None, 1.05, 2.0));
    let figure = Figure {
        file: "sdf-fig10-11-random-reads-by-batch",
        title: "Random reads of 512 KiB: throughput by batch and slices",
        x: "reads in a batch",
        y: "GB/s",
        log_x: true,
        series,
    };
    Ok((figure, rows))
}

/// Figure 12: batches of 44, by slices, for several sizes.
fn by_size(run: &mut Run, rows: &mut Vec<Row>) -> Result<Figure, Broken> {
    let sizes: &[u32] = if run.scale < 1.0 { &SIZES_KIB_FEW } else { &SIZES_KIB };
    let of = |&kib: &u32| SLICES.map(|slices| Point { slices, batch: BATCH, kib });
    let points: Vec<Point> = sizes.iter().flat_map(of).collect();
    let all = rates(run, "random reads by size", None, points)?;
    let mut series = Vec::new();
    for (kib, rates) in sizes.iter().zip(all.chunks(SLICES.len())) {
        let line = SLICES.iter().map(|&slices| f64::from(slices)).zip(rates.iter().copied());
        series.push(Series::new(format!("{kib} KiB"), line.collect()));
        let best = rates.iter().copied().fold(0.0, f64::max);
        let peak = rates.iter().position(|rate| *rate >= PEAK_SHARE * best).map_or(0, |at| SLICES[at]);
        let name =
            format!("random reads of {kib} KiB, batches of 44: slices at which they reach 95% of their best");
        rows.push(Row::within(&name, "", f64::from(peak), Some(16.0), 8.0, 32.0));
        rows.push(Row::shown(&format!("random reads of {kib} KiB, batches of 44: best"), "GB/s", best, None));
    }
    Ok(Figure {
        file: "sdf-fig12-random-reads-by-size",
        title: "Random reads in batches of 44: throughput by slices and size",
        x: "slices",
        y: "GB/s",
        log_x: true,
        series,
    })
}
