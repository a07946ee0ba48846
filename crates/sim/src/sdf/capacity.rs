//! Figure 6: what of the raw capacity software gets, and how even the wear is after writing the drive many times over.
//!
//! The card with its wear (`wear=on`) and all channels, blocks of 1 MiB and 64 of them a channel, so that a minute is
//! enough; no timing. Every block is filled, then some segments are erased, and segments drawn at random are rewritten until
//! the drive has been written [`TIMES`] times over: once with a tenth of the blocks free to choose from, once with one
//! block of each channel, where there is nothing to choose and wear is as even as the draw.

use pumice_base::rng::Rng;
use pumice_flash::{Access, Device};
use pumice_reactor::{IoBuf, yield_now};
use pumice_segment::ftl::{Place, RawFlash, RawFormat, RawOptions};

use super::Run;
use super::plot::{Figure, Series};
use crate::report::Row;
use crate::worlds::Broken;

const CARD: &str = "emu:sdf,data=drop,timing=off,wear=on,blocks=64,pages=128";
/// How often the whole drive is written.
const TIMES: u32 = 20;
/// Free blocks of a channel: a tenth, and the least that a rewrite needs.
const SPARE: u32 = 6;
const SPARE_MIN: u32 = 1;

struct Seen {
    /// Share of the raw blocks that held segments when nothing more fitted.
    handed_out: f64,
    bad: u32,
    blocks: u32,
    /// Erase counts of all good blocks, in order.
    erases: Vec<u32>,
}

impl Seen {
    fn mean(&self) -> f64 {
        self.erases.iter().map(|&count| f64::from(count)).sum::<f64>() / self.erases.len().max(1) as f64
    }

    fn at(&self, share: f64) -> f64 {
        let at = (self.erases.len() as f64 * share) as usize;
        self.erases.get(at.min(self.erases.len().saturating_sub(1))).copied().map_or(0.0, f64::from)
    }
}

async fn wear_out(seed: u64, spare: u32) -> Result<Seen, String> {
    let spec = format!("{CARD},seed={seed}").parse().map_err(|error| format!("{error}"))?;
    let device = Device::open(&spec, Access::ReadWrite).await.map_err(|error| error.to_string())?;
    let format = RawFormat { drive_id: *b"sdf figures wear", force: false };
    let formatted = RawFlash::format(device.clone(), format, RawOptions { erased_ahead: 0 }).await;
    let raw = formatted.map_err(|error| error.to_string())?;
    let (geometry, client) = (raw.geometry(), raw.client());
    let data = IoBuf::zeroed(raw.segment_bytes() as usize).freeze();
    // Until every channel is full.
    let (mut written, mut full) = (Vec::new(), 0);
    let mut id = 0;
    while full < geometry.channels {
        full = 0;
        for _ in 0..geometry.channels {
            match raw.write(&client, id, Place::ById, data.clone()).await {
                Ok(_) => written.push(id),
                Err(_) => full += 1,
            }
            id += 1;
        }
    }
    let handed_out = written.len() as f64 / f64::from(geometry.block_count());
    // A rewrite puts the new copy beside the old one.
    for channel in 0..u128::from(geometry.channels) {
        for _ in 0..spare {
            let Some(at) = written.iter().rposition(|id| id % u128::from(geometry.channels) == channel)
            else {
                return Err(format!("channel {channel} holds nothing"));
            };
            raw.discard(written.swap_remove(at)).map_err(|error| error.to_string())?;
        }
    }
    let mut rng = Rng::from_seed(seed).split("rewrites");
    for step in 0..u64::from(TIMES - 1) * written.len() as u64 {
        let at = rng.below(written.len() as u64) as usize;
        let old = written[at];
        // The same channel, so that no channel runs full.
        let new = id + old % u128::from(geometry.channels);
        id += u128::from(geometry.channels);
        let failed = |error| format!("rewrite {step}: {error}");
        raw.write(&client, new, Place::ById, data.clone()).await.map_err(failed)?;
        raw.discard(old).map_err(|error| error.to_string())?;
        written[at] = new;
        yield_now().await;
    }
    let counts = (0..geometry.channels).map(|channel| raw.counts(channel).bad);
    let bad = counts.sum();
    let good = (0..geometry.block_count()).map(|number| geometry.block(number));
    let good = good.filter(|&block| !device.is_factory_bad(block));
    let mut erases: Vec<u32> = good.map(|block| device.erase_count(block).unwrap_or(0)).collect();
    erases.sort_unstable();
    Ok(Seen { handed_out, bad, blocks: geometry.block_count(), erases })
}

pub(super) fn capacity_and_wear(
    run: &mut Run,
    rows: &mut Vec<Row>,
    plots: &mut Vec<Figure>,
) -> Result<(), Broken> {
    let seed = run.seed;
    let seen = run.world("capacity", move || async move { wear_out(seed, SPARE).await })?;
    let packed = run.world("capacity, packed", move || async move { wear_out(seed, SPARE_MIN).await })?;
    rows.push(Row::within("raw capacity handed to software", "", seen.handed_out, Some(0.99), 0.99, 1.0));
    rows.push(Row::shown(
        "bad blocks, which are all the rest",
        "",
        f64::from(seen.bad) / f64::from(seen.blocks),
        None,
    ));
    for (name, seen, high) in
        [("a tenth free", &seen, Some(1.5)), ("one block a channel free", &packed, None)]
    {
        let name = |what: &str| format!("erases after 20 times the drive, {name}, {what}");
        rows.push(Row::shown(&name("mean"), "", seen.mean(), None));
        rows.push(Row::shown(&name("fewest"), "", seen.at(0.0), None));
        let most = seen.at(1.0) / seen.mean();
        rows.push(match high {
            Some(high) => Row::within(&name("most / mean"), "", most, None, 1.0, high),
            None => Row::shown(&name("most / mean"), "", most, None),
        });
    }
    let series = |name: &str, seen: &Seen| Series {
        name: name.into(),
        points: (0..=100).map(|share| (seen.at(f64::from(share) / 100.0), f64::from(share))).collect(),
    };
    plots.push(Figure {
        file: "sdf-6-wear",
        title: "Erases of a block after writing the drive 20 times: share with no more",
        x: "erases",
        y: "%",
        log_x: false,
        series: vec![series("a tenth free", &seen), series("one block a channel free", &packed)],
    });
    Ok(())
}
