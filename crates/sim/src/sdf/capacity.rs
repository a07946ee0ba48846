//! Figure 6: what of the raw capacity software gets, and how even the wear is after writing the drive many times over.
//!
//! Capacity: the whole card of 704 GiB with its factory bad blocks (`wear=on`), as the layer itself accounts for it.
//! Wear: all channels, blocks of 1 MiB and 64 of them a channel, so that a minute is enough; no timing. Every block is
//! filled, then some segments are discarded, and segments drawn at random are rewritten until the drive has been written
//! [`TIMES`] times over: once with a tenth of the blocks free to choose from, once with one block of each channel, where
//! there is nothing to choose and wear is as even as the draw.

use pumice_base::rng::Rng;
use pumice_flash::{Access, Device};
use pumice_reactor::{IoBuf, yield_now};
use pumice_segment::ftl::{Place, RawFlash, RawFormat, RawOptions, RawSpace};

use super::Run;
use super::plot::{Figure, Section, Series};
use crate::report::Row;
use crate::worlds::Broken;

const WHOLE: &str = "emu:sdf,data=drop,timing=off,wear=on";
const CARD: &str = "emu:sdf,data=drop,timing=off,wear=on,blocks=64,pages=128";
/// How often the whole drive is written.
const TIMES: u32 = 20;
/// Free blocks of a channel: a tenth, and the least that a rewrite needs.
const SPARE: u32 = 6;
const SPARE_MIN: u32 = 1;

struct Seen {
    /// Share of the raw blocks that held segments when nothing more fitted.
    handed_out: f64,
    /// Where the bytes are at the end.
    space: RawSpace,
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

async fn formatted(card: &str, seed: u64) -> Result<RawFlash, String> {
    let spec = format!("{card},seed={seed}").parse().map_err(|error| format!("{error}"))?;
    let device = Device::open(&spec, Access::ReadWrite).await.map_err(|error| error.to_string())?;
    let format = RawFormat { drive_id: *b"sdf figures wear", force: false };
    let formatted =
        RawFlash::format(device, format, RawOptions { erased_ahead: 0, ..RawOptions::default() }).await;
    formatted.map_err(|error| error.to_string())
}

/// Bytes that no kind accounts for, of any channel or of all.
fn unexplained(space: &RawSpace) -> f64 {
    let of_channel = space.channels.iter().map(|channel| channel.raw.abs_diff(channel.accounted()));
    (of_channel.sum::<u64>() + space.raw.abs_diff(space.accounted())) as f64
}

async fn wear_out(seed: u64, spare: u32, times: u32) -> Result<Seen, String> {
    let raw = formatted(CARD, seed).await?;
    let device = raw.device().clone();
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
    for step in 0..u64::from(times - 1) * written.len() as u64 {
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
    let good = (0..geometry.block_count()).map(|number| geometry.block(number));
    let good = good.filter(|&block| !device.is_factory_bad(block));
    let mut erases: Vec<u32> = good.map(|block| device.erase_count(block).unwrap_or(0)).collect();
    erases.sort_unstable();
    Ok(Seen { handed_out, space: raw.space(), erases })
}

pub(super) fn section(run: &mut Run) -> Result<Section, Broken> {
    let (seed, mut rows) = (run.seed, Vec::new());
    let times = TIMES;
    let whole = run.world("capacity", move || async move {
        let raw = formatted(WHOLE, seed).await?;
        // Its kinds are known once all is erased or written; nothing is, so all that is neither bad nor reserved is usable.
        Ok(raw.space())
    })?;
    let total = whole.total();
    let share = |bytes: u64| bytes as f64 / whole.raw as f64;
    let name = "704 GiB card: raw capacity handed to software";
    rows.push(Row::within(name, "", share(total.usable), Some(0.99), 0.99, 1.0));
    rows.push(Row::shown("704 GiB card: bad from the factory", "", share(total.bad), None));
    rows.push(Row::shown("704 GiB card: kept for checkpoints", "", share(total.reserved), None));
    let name = "704 GiB card: bytes that neither a channel nor the whole accounts for";
    rows.push(Row::within(name, "B", unexplained(&whole), None, 0.0, 0.0));
    let seen = run.world("wear", move || async move { wear_out(seed, SPARE, times).await })?;
    let packed = run.world("wear, packed", move || async move { wear_out(seed, SPARE_MIN, times).await })?;
    let name = "small card: raw capacity that was full of segments";
    rows.push(Row::within(name, "", seen.handed_out, Some(0.99), 0.99, 1.0));
    let name = "small card, after all writes: bytes that neither a channel nor the whole accounts for";
    rows.push(Row::within(name, "B", unexplained(&seen.space), None, 0.0, 0.0));
    for (name, seen, high) in
        [("a tenth free", &seen, Some(1.5)), ("one block a channel free", &packed, None)]
    {
        let name = |what: &str| format!("erases after {times} times the drive, {name}, {what}");
        rows.push(Row::shown(&name("mean"), "", seen.mean(), None));
        rows.push(Row::shown(&name("fewest"), "", seen.at(0.0), None));
        let most = seen.at(1.0) / seen.mean();
        rows.push(match high {
            Some(high) => Row::within(&name("most / mean"), "", most, None, 1.0, high),
            None => Row::shown(&name("most / mean"), "", most, None),
        });
    }
    let by_channel = |of: fn(&pumice_segment::ftl::ChannelSpace) -> u64| -> Vec<(f64, f64)> {
        let channels = (0..).zip(&whole.channels);
        channels
            .map(|(at, channel)| (f64::from(at), 100.0 * of(channel) as f64 / channel.raw as f64))
            .collect()
    };
    let capacity = Figure {
        file: "sdf-ours-capacity",
        title: "The 704 GiB card by channel: shares of the raw capacity",
        x: "channel",
        y: "%",
        log_x: false,
        series: vec![
            Series::new("handed to software", by_channel(|channel| channel.usable)),
            Series::new("bad", by_channel(|channel| channel.bad)),
            Series::new("kept for checkpoints", by_channel(|channel| channel.reserved)),
        ],
    };
    let cumulative = |seen: &Seen| -> Vec<(f64, f64)> {
        (0..=100).map(|share| (seen.at(f64::from(share) / 100.0), f64::from(share))).collect()
    };
    let wear = Figure {
        file: "sdf-ours-wear",
        title: "Erases of a block after writing the drive many times: share with no more",
        x: "erases",
        y: "%",
        log_x: false,
        series: vec![
            Series::new("a tenth free", cumulative(&seen)),
            Series::new("one block a channel free", cumulative(&packed)),
        ],
    };
    Ok(Section {
        title: "6. Usable capacity and wear (the paper: 99%, no figure)",
        figures: vec![capacity, wear],
        rows,
        notes: vec![
            "factory bad blocks are an input: 0.5% of them, drawn from the seed (assumed)".into(),
            format!(
                "wear is of a small card: 44 channels of 64 blocks of 1 MiB, written {times} times over at random, without timing"
            ),
        ],
    })
}
