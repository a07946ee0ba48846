//! Figure 5: sequential reads by slices (the paper's Figure 13), the requests of CCDB without its LSM.
//!
//! A slice is a hash partition of the keys; its patches of 8 MiB have consecutive ids, so that they lie on consecutive
//! channels from a place of its own on. Each slice scans with six readers, a patch at a time each, in requests of 512 KiB one
//! after the other (the paper's six threads with synchronous requests; their size is assumed). With few slices most channels have nothing to do; with many every channel has a queue.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use pumice_base::rng::Rng;
use pumice_reactor::{IoBuf, now, sleep, spawn};
use pumice_segment::ftl::Place;

use super::Run;
use super::figures::{Measured, SEGMENT_BYTES, all, card, contents, settle};
use super::plot::{Figure, Series};
use crate::report::Row;
use crate::worlds::Broken;

const CARD: &str = "emu:sdf,data=drop,blocks=36";
const SLICES: [u64; 7] = [1, 2, 4, 8, 16, 32, 64];
const READERS: u32 = 6;
const REQUEST_BYTES: usize = 512 << 10;
/// Patches of a slice.
const PATCHES: u64 = 18;
/// A slice count is at the peak when it reaches this share of the best.
const PEAK_SHARE: f64 = 0.95;

async fn scan(seed: u64, slices: u64) -> Measured {
    let raw = card(CARD, 0).await?;
    let mut rng = Rng::from_seed(seed).split("slices");
    let first: Vec<u128> = (0..slices).map(|slice| u128::from(slice << 32 | rng.below(44))).collect();
    let data = contents();
    let writes = first.iter().flat_map(|&first| (0..PATCHES).map(move |patch| first + u128::from(patch)));
    let writes = writes.map(|id| {
        let (raw, data) = (raw.clone(), data.clone());
        spawn(async move {
            let written = raw.write(&raw.client(), id, Place::ById, data).await;
            written.map(drop).map_err(|error| error.to_string())
        })
    });
    all(writes.collect()).await?;
    settle().await;
    let (stop, bytes) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(0u64)));
    let mut readers = Vec::new();
    for first in first {
        let next = Rc::new(Cell::new(0));
        for _ in 0..READERS {
            let (raw, next, stop, bytes) =
                (raw.clone(), Rc::clone(&next), Rc::clone(&stop), Rc::clone(&bytes));
            readers.push(spawn(async move {
                let (client, mut buf) = (raw.client(), IoBuf::for_read(REQUEST_BYTES));
                while !stop.get() {
                    let patch = next.replace((next.get() + 1) % PATCHES);
                    for offset in (0..SEGMENT_BYTES).step_by(REQUEST_BYTES) {
                        let id = first + u128::from(patch);
                        let done;
                        (done, buf) = raw.read(&client, id, offset as u32, buf).await;
                        done.map_err(|error| error.to_string())?;
                        bytes.set(bytes.get() + REQUEST_BYTES as u64);
                    }
                }
                Ok(())
            }));
        }
    }
    // Queues fill first.
    sleep(Duration::from_secs(1)).await;
    let (start, before) = (now(), bytes.get());
    sleep(Duration::from_secs(3)).await;
    let rate = (bytes.get() - before) as f64 / start.elapsed().as_nanos() as f64;
    stop.set(true);
    all(readers).await?;
    Ok(rate)
}

pub(super) fn sequential_reads(
    run: &mut Run,
    rows: &mut Vec<Row>,
    plots: &mut Vec<Figure>,
) -> Result<(), Broken> {
    let seed = run.seed;
    let mut points = Vec::new();
    for slices in SLICES {
        let rate = run.world(&format!("{slices} slices"), move || async move { scan(seed, slices).await })?;
        rows.push(Row::shown(&format!("sequential reads, {slices} slices of 6 readers"), "GB/s", rate, None));
        points.push((slices as f64, rate));
    }
    let best = points.iter().map(|(_, rate)| *rate).fold(0.0, f64::max);
    let peak = points.iter().find(|(_, rate)| *rate >= PEAK_SHARE * best).map_or(0.0, |(slices, _)| *slices);
    // A miss, and shown as one: ours still gain beyond the paper's 16, because the readers of a slice follow each other
    // over the channels and queue on the same ones.
    rows.push(Row::shown("slices at which sequential reads reach 95% of their best", "", peak, Some(16.0)));
    plots.push(Figure {
        file: "sdf-5-slices",
        title: "SDF: sequential reads by slices, six readers each",
        x: "slices",
        y: "GB/s",
        log_x: true,
        series: vec![Series { name: "measured".into(), points }],
    });
    Ok(())
}
