//! Figure 7, not in the paper: how long small reads take while segments are erased and rewritten.
//!
//! By hand: a lone read of 8 KiB senses for tR = 75 µs, holds the bus for 8,640 B / 40 MB/s = 216 µs and the link for 5.1 µs,
//! and has 3 µs of software: 299 µs. Writes and erases of *other channels* share nothing with it, not even the link's
//! direction. Beside it on its own channel
//!
//! - an *erase* of its die takes 9.2 ms: the read waits for 9.2 ms at most;
//! - a *program* of its die holds the bus for 432 µs and the die for 1 ms more; dies take groups of different requests in
//!   turn, so that a read waits for one group at most;
//! - the *other die* meets it on the bus alone, for one transfer of 432 µs;
//! - where the raw-flash layer rewrites the channel, the read may find all of these before it: its scheduler lets no further
//!   chunk of a write and no erase begin while a read waits, but what has begun ends.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use pumice_base::rng::Rng;
use pumice_flash::BlockAddr;
use pumice_reactor::{IoBuf, WriteSync, now, sleep, spawn};
use pumice_segment::ftl::RawFlash;

use super::Run;
use super::card::{CARD, Spread, all, card, contents, fill, settle, write};
use super::plot::{Figure, Section, Series};
use crate::report::Row;
use crate::worlds::Broken;

const CHANNELS: u128 = 8;
const READ_BYTES: usize = 8192;
/// What a lone read takes, in ms.
const ALONE_MS: f64 = 0.075 + 8640.0 / 40e3 + 8192.0 / 1.61e6 + 0.003;
/// Two pages on the bus.
const BUS_MS: f64 = 2.0 * 8640.0 / 40e3;
/// Two pages on the bus and tPROG: what a die does at once.
const GROUP_MS: f64 = BUS_MS + 1.0;
const ERASE_MS: f64 = 9.2;
/// A read of 8 KiB of another channel on the link.
const LINK_MS: f64 = 8192.0 / 1.61e6;
/// As many pages as the raw-flash layer programs at once.
const CHUNK_PAGES: u32 = 16;

/// What happens beside the reads.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Beside {
    Nothing,
    /// Segments of all channels but the reader's are erased and rewritten.
    OtherChannels,
    /// A block on the other die of the reader's channel is erased and programmed, past the scheduler.
    OtherDie,
    /// A block on the reader's own die.
    SameDie,
    /// Segments of all channels are erased and rewritten.
    AllChannels,
}

/// Writes and discards segments of the channel until told to stop.
async fn rewrite(raw: RawFlash, channel: u128, stop: Rc<Cell<bool>>) -> Result<(), String> {
    let (client, data) = (raw.client(), contents());
    let mut id = channel + 1000 * CHANNELS;
    while !stop.get() {
        write(&raw, &client, id, &data).await?;
        raw.discard(id).map_err(|error| error.to_string())?;
        id += CHANNELS;
    }
    Ok(())
}

/// Erases and programs a block of channel 0 that holds nothing, on this die, over and over; past the raw-flash layer,
/// whose scheduler would hold that back while reads come.
async fn churn(raw: RawFlash, die: u16, stop: Rc<Cell<bool>>) -> Result<(), String> {
    let geometry = raw.geometry();
    let used: Vec<BlockAddr> = raw.ids().into_iter().filter_map(|id| raw.place_of(id)).collect();
    let blocks = (0..geometry.blocks_per_channel).map(|block| BlockAddr { channel: 0, block });
    let mut free = blocks.filter(|&block| !used.contains(&block) && geometry.first_die(block) == die);
    let free = free.next_back().ok_or("no block is free")?;
    let chunk = IoBuf::zeroed((CHUNK_PAGES * geometry.page_bytes) as usize).freeze();
    while !stop.get() {
        raw.device().erase(free).await.map_err(|error| error.to_string())?;
        for page in (0..geometry.pages_per_block).step_by(CHUNK_PAGES as usize) {
            let programmed = raw.device().program(free, page, chunk.clone(), WriteSync::Durable).await;
            programmed.map_err(|error| error.to_string())?;
        }
    }
    Ok(())
}

async fn latencies(seed: u64, beside: Beside, reads: u32) -> Result<Spread, String> {
    // A segment lies across both dies of a channel; to tell the dies apart it has to lie on one.
    let stripe = if matches!(beside, Beside::OtherDie | Beside::SameDie) { ",stripe=1" } else { "" };
    let raw = card(&format!("{CARD},channels={CHANNELS}{stripe}"), 2).await?;
    fill(&raw, 2).await?;
    settle().await;
    let stop = Rc::new(Cell::new(false));
    let channels = match beside {
        Beside::Nothing | Beside::OtherDie | Beside::SameDie => 0..0,
        Beside::OtherChannels => 1..CHANNELS,
        Beside::AllChannels => 0..CHANNELS,
    };
    let mut others: Vec<_> =
        channels.map(|channel| spawn(rewrite(raw.clone(), channel, Rc::clone(&stop)))).collect();
    let own_die = raw.geometry().first_die(raw.place_of(0).ok_or("the segment is not there")?);
    match beside {
        Beside::OtherDie => others.push(spawn(churn(raw.clone(), 1 - own_die, Rc::clone(&stop)))),
        Beside::SameDie => others.push(spawn(churn(raw.clone(), own_die, Rc::clone(&stop)))),
        _ => {}
    }
    // One client of channel 0, a read every 2 ms or so.
    let (client, mut rng) = (raw.client(), Rng::from_seed(seed).split("reader"));
    let (mut seen, mut buf) = (Vec::new(), IoBuf::for_read(READ_BYTES));
    for _ in 0..reads {
        sleep(Duration::from_micros(1000 + rng.below(2000))).await;
        let start = now();
        let result;
        (result, buf) = raw.read(&client, 0, rng.below(1024) as u32 * READ_BYTES as u32, buf).await;
        result.map_err(|error| error.to_string())?;
        seen.push(start.elapsed().as_secs_f64() * 1e3);
    }
    stop.set(true);
    all(others).await?;
    Ok(Spread::of(seen))
}

pub(super) fn section(run: &mut Run) -> Result<Section, Broken> {
    let (mut rows, mut series) = (Vec::new(), Vec::new());
    let reads = run.times(4000, 1600);
    let worlds = [
        ("idle card", Beside::Nothing, ALONE_MS, ALONE_MS),
        ("other channels erased and rewritten", Beside::OtherChannels, ALONE_MS, ALONE_MS + LINK_MS),
        ("other die erased and programmed", Beside::OtherDie, ALONE_MS, ALONE_MS + BUS_MS),
        ("same die erased and programmed", Beside::SameDie, ERASE_MS * 0.9, ALONE_MS + ERASE_MS),
        (
            "all channels erased and rewritten",
            Beside::AllChannels,
            ERASE_MS * 0.5,
            ALONE_MS + ERASE_MS + GROUP_MS + BUS_MS,
        ),
    ];
    for (name, beside, low, high) in worlds {
        let seed = run.seed;
        let spread = run.world(name, move || async move { latencies(seed, beside, reads).await })?;
        for (what, share) in [("median", 0.5), ("99th percentile", 0.99), ("99.9th percentile", 0.999)] {
            let row = format!("8 KiB reads, {name}, {what}");
            rows.push(Row::shown(&row, "ms", spread.quantile(share), None));
        }
        let row = format!("8 KiB reads, {name}, longest");
        rows.push(Row::within(&row, "ms", spread.quantile(1.0), None, low * 0.99, high * 1.01));
        series.push(Series::new(name, spread.cumulative()));
    }
    let figure = Figure {
        file: "sdf-ours-read-under-erase",
        title: "8 KiB reads beside erases and writes: share that took no longer",
        x: "ms",
        y: "%",
        log_x: true,
        series,
    };
    Ok(Section {
        title: "7. Latency of reads under erases (not in the paper)",
        figures: vec![figure],
        rows,
        notes: vec![
            "bands by hand: alone tR 75 µs + 8,640 B on the bus 216 µs + link 5 µs + software 3 µs = 0.299 ms; an erase on the \
             read's die keeps it for 9.2 ms at most, a program there for 1.43 ms, one on the other die for 0.43 ms of bus"
                .into(),
            "where dies are told apart a segment lies on one (stripe=1) and the writer goes past the raw-flash layer; else a \
             segment lies across both dies, so that an erase on the channel meets every read there"
                .into(),
            "8 channels, one client that reads channel 0 every 1 to 3 ms; the raw-flash layer's scheduler holds writes and \
             erases back while reads wait"
                .into(),
        ],
    })
}
