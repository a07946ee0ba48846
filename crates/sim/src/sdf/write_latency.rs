//! Figure 3: how long writes of 8 MiB take, one after the other, on SDF and on the conventional drive.
//!
//! The conventional drive is filled once in order and overwritten at random until it has written twice its size more; then
//! the same load goes on and is measured: so it is in its steady state, which a row checks (the write amplification of the
//! two halves). Its writers keep the buffer of 1 GiB full all the time. By hand, a page-mapped drive of which 70% is in use and that is overwritten
//! at random writes 1.9 pages for each of the host's if it collects in order of age (P. Desnoyers, "Analytic modeling of SSD
//! write performance", SYSTOR 2012: W = a / (a + W0(-a e^-a)) with a = 1 / 0.7). Of our 24 blocks a channel 2 to 3 are
//! kept free or open, which leaves a = 1.27 and W = 2.5; greedy collection does a little better.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use pumice_base::rng::Rng;
use pumice_reactor::{now, spawn};

use super::Run;
use super::card::{CARD, Spread, card, rewrite};
use super::conventional::Drive;
use super::plot::{Figure, Section, Series};
use crate::report::Row;
use crate::worlds::Broken;

/// Writers of the conventional drive, one request each. The paper does not say how many it had.
const WRITERS: u32 = 4;
/// Blocks of a channel of the conventional drive.
const BLOCKS: u32 = 24;
/// Pieces of 8 MiB in the paper's largest request.
const LARGE: u32 = 44;

/// Writes to the conventional drive: when each began and how long it took, in ms; and how many pages each half of them
/// programmed for one of the host's.
struct Conventional {
    writes: Vec<(f64, f64)>,
    amplification: [f64; 2],
}

/// `count` writes of so many times 8 MiB, on a drive that was overwritten `times` over before.
async fn conventional(seed: u64, pieces: u32, times: u32, count: u32) -> Result<Conventional, String> {
    let drive = Drive::open(BLOCKS, 0).await?;
    drive.fill().await?;
    let places = drive.requests() / pieces;
    let before = places * times;
    let total = before + count;
    let (done, begun) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(now())));
    let writes = Rc::new(RefCell::new(Vec::new()));
    let marks = Rc::new(RefCell::new(Vec::new()));
    let mut writers = Vec::new();
    for writer in 0..WRITERS {
        let (drive, done, begun) = (Rc::clone(&drive), Rc::clone(&done), Rc::clone(&begun));
        let (writes, marks) = (Rc::clone(&writes), Rc::clone(&marks));
        let mut rng = Rng::from_seed(seed).split(&format!("writer {writer}"));
        writers.push(spawn(async move {
            loop {
                let index = done.replace(done.get() + 1);
                if index >= total {
                    return Ok::<(), String>(());
                }
                if index == before {
                    begun.set(now());
                }
                if index == before || index == before + count / 2 {
                    marks.borrow_mut().push(drive.programmed());
                }
                let start = now();
                drive.write(rng.below(u64::from(places)) as u32 * pieces, pieces).await?;
                if index >= before {
                    let at = start.since(begun.get()).as_secs_f64() * 1e3;
                    writes.borrow_mut().push((at, start.elapsed().as_secs_f64() * 1e3));
                }
            }
        }));
    }
    for writer in writers {
        writer.await.map_err(|_| "a writer went away".to_string())??;
    }
    let mut marks = marks.take();
    marks.push(drive.programmed());
    let amplification = |half: usize| {
        let (host, moved) = (marks[half + 1].0 - marks[half].0, marks[half + 1].1 - marks[half].1);
        1.0 + moved as f64 / host.max(1) as f64
    };
    Ok(Conventional { writes: writes.take(), amplification: [amplification(0), amplification(1)] })
}

/// By time of beginning, in s.
fn over_time(writes: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let mut points: Vec<(f64, f64)> = writes.iter().map(|&(at, ms)| (at / 1e3, ms)).collect();
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    points
}

pub(super) fn section(run: &mut Run) -> Result<Section, Broken> {
    let (seed, mut rows) = (run.seed, Vec::new());
    let each = run.times(40, 6);
    let sdf = run.world("write latency", move || async move {
        let seen = Rc::new(RefCell::new(Vec::new()));
        let kept = Rc::clone(&seen);
        rewrite(&card(CARD, 0).await?, each, move |at, ms| kept.borrow_mut().push((at, ms))).await?;
        Ok(seen.take())
    })?;
    let (times, count, large_count) = (2, run.times(1000, 300), run.times(60, 20));
    let small = run.world("conventional", move || conventional(seed, 1, times, count))?;
    // The same shape of drive twice is too much for a test.
    let large = match run.scale < 1.0 {
        true => None,
        false => {
            Some(run.world("conventional, 352 MiB", move || conventional(seed, LARGE, times, large_count))?)
        }
    };
    let latencies = |writes: &[(f64, f64)]| Spread::of(writes.iter().map(|&(_, ms)| ms).collect());
    let (sdf_spread, spread) = (latencies(&sdf), latencies(&small.writes));
    let large_spread = large.map(|large| latencies(&large.writes));
    rows.push(Row::about("8 MiB program and erase, mean", "ms", sdf_spread.mean(), 383.0, 0.05));
    let name = "8 MiB program and erase, coefficient of variation";
    rows.push(Row::within(name, "", sdf_spread.variation(), None, 0.0, 0.05));
    rows.push(Row::shown("conventional SSD, mean", "ms", spread.mean(), Some(73.0)));
    rows.push(Row::shown("conventional SSD, shortest", "ms", spread.quantile(0.0), Some(7.0)));
    rows.push(Row::shown("conventional SSD, longest", "ms", spread.quantile(1.0), Some(650.0)));
    let name = "conventional SSD, coefficient of variation";
    let least = 5.0 * sdf_spread.variation().max(0.02);
    rows.push(Row::within(name, "", spread.variation(), None, least, 10.0));
    let amplification = small.amplification;
    rows.push(Row::within(
        "conventional SSD, pages written for one of the host's",
        "",
        amplification[1],
        None,
        1.3,
        2.5,
    ));
    let name = "conventional SSD, the same in the first half of the run to the second: steady";
    rows.push(Row::within(name, "", amplification[0] / amplification[1], None, 0.95, 1.05));
    if let Some(large) = &large_spread {
        rows.push(Row::shown("conventional SSD, 352 MiB, mean", "ms", large.mean(), Some(2940.0)));
        let name = "conventional SSD, coefficient of variation of 352 MiB to that of 8 MiB";
        rows.push(Row::within(name, "", large.variation() / spread.variation(), None, 0.0, 0.5));
    }
    // One channel's writes stand for all: they are alike.
    let own = over_time(&sdf).into_iter().step_by(44).collect();
    let end = over_time(&small.writes).last().map_or(0.0, |point| point.0);
    let own: Vec<(f64, f64)> = own_until(own, end);
    let by_time = Figure {
        file: "sdf-fig08-write-latency",
        title: "8 MiB writes: latency by time of beginning",
        x: "s",
        y: "ms",
        log_x: false,
        series: vec![
            Series::new("SDF, one of 44 channels", own),
            Series::new("conventional SSD", over_time(&small.writes)),
        ],
    };
    let mut cumulative = Figure {
        file: "sdf-fig08-write-latency-share",
        title: "8 MiB writes: share that took no longer",
        x: "ms",
        y: "%",
        log_x: true,
        series: vec![
            Series::new("SDF", sdf_spread.cumulative()),
            Series::new("conventional SSD", spread.cumulative()),
        ],
    };
    if let Some(large) = &large_spread {
        cumulative.series.push(Series::reference("conventional SSD, 352 MiB", large.cumulative()));
    }
    Ok(Section {
        title: "3. Latency of 8 MiB writes (the paper's Figure 8)",
        figures: vec![by_time, cumulative],
        rows,
        notes: vec![
            "383 ms and 7, 73 and 650 ms are published; by hand SDF takes 256 groups of (432 µs of bus + 1 ms) on each of \
             two dies side by side, 1.2 ms for the last page that commits the segment, and 9.2 ms of erase: 377 ms"
                .into(),
            "the conventional SSD is a model of our own with the same chips (44 channels, 8 KiB stripes, 1 GiB of buffer, 30% \
             over-provisioning, greedy collection), four writers: compare its shape only"
                .into(),
        ],
    })
}

/// The points up to this time.
fn own_until(points: Vec<(f64, f64)>, end: f64) -> Vec<(f64, f64)> {
    points.into_iter().filter(|point| point.0 <= end).collect()
}
