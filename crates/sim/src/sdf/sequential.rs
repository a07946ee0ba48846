//! Sequential reads by slices (the paper's Figure 13), the requests of CCDB without its LSM.
//!
//! A slice is a hash partition of the keys; its patches of 8 MiB have consecutive ids, from a channel of its own on, and lie
//! on all channels in turn, as those of a slice of many GB do. Each slice scans with six readers, a patch at a time each, in
//! requests of 512 KiB one after the other (the paper's six threads with synchronous requests; their size is assumed).
//!
//! By hand: M = 44 channels among which N readers go about are a closed network of queues; were its times exponential, a
//! channel would be busy for N / (N + M - 1) of the time (0.12, 0.36, 0.53, 0.69, 0.82 for 1, 4, 8, 16, 32 slices). Ours
//! are constant, so it does better: readers queue on some channels while others idle, less and less so the more
//! there are. There is no sharp peak, hence two rows: where 95% of the best are reached, and the knee, from which on twice as
//! many slices win less than a tenth.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use pumice_base::rng::Rng;
use pumice_reactor::{IoBuf, now, sleep, spawn};
use pumice_segment::ftl::RawFlash;

use super::Run;
use super::card::{CHANNELS, SEGMENT_BYTES, all, card, fill, settle};
use super::plot::{Figure, Section, Series};
use crate::report::Row;
use crate::worlds::Broken;

const CARD: &str = "emu:sdf,data=drop,blocks=16";
const SLICES: [u32; 7] = [1, 2, 4, 8, 16, 32, 64];
const READERS: u32 = 6;
const REQUEST_BYTES: usize = 512 << 10;
/// Draws of where slices begin, over which a figure is the mean: slices that begin together stay together for long.
const DRAWS: u32 = 4;
/// Segments of each channel that hold data; slices share them and begin at different ones.
const FILLED: u16 = 4;
/// A slice count is at the peak when it reaches this share of the best.
const PEAK_SHARE: f64 = 0.95;
/// Beyond the knee, twice as many slices win less than this.
const KNEE_GAIN: f64 = 1.1;

async fn scan(raw: &RawFlash, mut rng: Rng, slices: u32, ms: u64) -> Result<f64, String> {
    let patches = u64::from(CHANNELS) * u64::from(FILLED);
    let (stop, bytes) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(0u64)));
    let mut readers = Vec::new();
    for _ in 0..slices {
        let next = Rc::new(Cell::new(rng.below(patches)));
        for _ in 0..READERS {
            let (raw, next, stop, bytes) =
                (raw.clone(), Rc::clone(&next), Rc::clone(&stop), Rc::clone(&bytes));
            readers.push(spawn(async move {
                let (client, mut buf) = (raw.client(), IoBuf::for_read(REQUEST_BYTES));
                while !stop.get() {
                    let patch = next.replace((next.get() + 1) % patches);
                    for offset in (0..SEGMENT_BYTES).step_by(REQUEST_BYTES) {
                        if stop.get() {
                            break;
                        }
                        let done;
                        (done, buf) = raw.read(&client, u128::from(patch), offset as u32, buf).await;
                        done.map_err(|error| error.to_string())?;
                        bytes.set(bytes.get() + REQUEST_BYTES as u64);
                    }
                }
                Ok(())
            }));
        }
    }
    // Queues fill first.
    sleep(Duration::from_millis(ms)).await;
    let (start, before) = (now(), bytes.get());
    sleep(Duration::from_millis(ms)).await;
    let rate = (bytes.get() - before) as f64 / start.elapsed().as_nanos() as f64;
    stop.set(true);
    all(readers).await?;
    Ok(rate)
}

pub(super) fn section(run: &mut Run) -> Result<Section, Broken> {
    let (seed, mut rows) = (run.seed, Vec::new());
    let ms = u64::from(run.times(700, 250));
    let rates = run.world("sequential reads", move || async move {
        let raw = card(CARD, 0).await?;
        fill(&raw, FILLED).await?;
        settle().await;
        let mut rates = Vec::new();
        for slices in SLICES {
            let mut sum = 0.0;
            for draw in 0..DRAWS {
                let rng = Rng::from_seed(seed).split(&format!("{slices} slices, {draw}"));
                sum += scan(&raw, rng, slices, ms).await?;
            }
            rates.push(sum / f64::from(DRAWS));
        }
        Ok(rates)
    })?;
    for (slices, rate) in SLICES.iter().zip(&rates) {
        let name = format!("sequential reads, {slices} slices of 6 readers");
        rows.push(Row::shown(&name, "GB/s", *rate, None));
    }
    let best = rates.iter().copied().fold(0.0, f64::max);
    let peak = rates.iter().position(|rate| *rate >= PEAK_SHARE * best).map_or(0, |at| SLICES[at]);
    let name = "slices at which sequential reads reach 95% of their best";
    rows.push(Row::shown(name, "", f64::from(peak), Some(16.0)));
    let knee = rates.windows(2).position(|pair| pair[1] < pair[0] * KNEE_GAIN);
    let knee = knee.map_or(SLICES[SLICES.len() - 1], |at| SLICES[at]);
    let name = "slices from which on twice as many win less than a tenth";
    rows.push(Row::within(name, "", f64::from(knee), Some(16.0), 8.0, 32.0));
    let points = SLICES.iter().map(|&slices| f64::from(slices)).zip(rates);
    let figure = Figure {
        file: "sdf-fig13-sequential-reads",
        title: "SDF: sequential reads by slices, six readers each",
        x: "slices",
        y: "GB/s",
        log_x: true,
        series: vec![Series::new("measured", points.collect())],
    };
    Ok(Section {
        title: "8. Sequential reads by slices (the paper's Figure 13)",
        figures: vec![figure],
        rows,
        notes: vec![
            "published: the peak is at 16 slices; six readers a slice are an input, their requests of 512 KiB assumed"
                .into(),
            "missed by the strict rule: ours still gain a little beyond 32, because readers meet on some channels while others \
             have none (a closed network of queues); the paper's limit is not the card's, and no part of this model"
                .into(),
        ],
    })
}
