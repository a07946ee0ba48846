//! Figure 5: writes by slices with the real LSM (`pumice_kv`) on top (the paper's Figure 14).
//!
//! Each slice has one client that writes a batch of values at random keys of its slice, waits until the batch is durable,
//! and writes the next; flush, merging and cleaning run beside it as when the store is served. Two ways to put the
//! LSM on the card:
//!
//! 1. *One store over the whole card*, as `pumice serve --device emu:sdf` has it. The card is scaled down to a few blocks a
//!    channel, half of it is live, and it was overwritten until cleaning had to work. Reads are those of merging and
//!    cleaning: clients do not read.
//! 2. *The same, fresh*, with more blocks: nothing is cleaned yet, so that it shows what the log takes.
//! 3. *A store for each channel*, keys hashed over the 44 of them as `node` hashes keys over its drives: the way in which SDF
//!    shows its channels to software, each a device of its own. Fresh stores, so that nothing is cleaned yet.
//!
//! By hand: a frame of the log lies in one block, which is on one channel, and a channel programs 4 pages of 8 KiB in 1.432 ms:
//! 22.9 MB/s. The log has a block open on each of the 44 channels, and deals its
//! frames over them. Cleaning empties up to 16 victims at a time, each read at 40 MB/s at most, and alone on its channel.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use pumice_base::hash::stable_hash64;
use pumice_base::rng::Rng;
use pumice_flash::{Access, Device};
use pumice_kv::{Batch, SliceId, Store, StoreFormat, StoreOptions};
use pumice_reactor::{JoinHandle, now, sleep, spawn};

use super::Run;
use super::card::{CHANNELS, all};
use super::plot::{Figure, Section, Series};
use crate::report::Row;
use crate::worlds::Broken;

const SLICES: [u16; 5] = [1, 4, 8, 16, 32];
const VALUE_BYTES: usize = 128 << 10;
/// Values of a batch: 1 MiB.
const BATCH: u64 = 8;
/// Blocks of a channel, of the preset's 2,048: of the whole card, and of each channel alone, which needs more for a store's
/// reserve.
const BLOCKS: u32 = 16;
const BLOCKS_ALONE: u32 = 24;
/// GB/s that one block takes: 2 planes × 2 dies × 8 KiB in 432 µs of bus and 1 ms of programming.
const BLOCK_RATE: f64 = 32_768.0 / 1_432_000.0;
/// Of the store over the whole card: in proportion to it as a hundredth of the paper's server would be.
const MEMORY_BYTES: u64 = 1 << 30;
/// Of each store where every channel has one.
const MEMORY_BYTES_ALONE: u64 = 64 << 20;
/// Log between two checkpoints, in bytes: the default is a third of the scaled card.
const LOG_MAX_BYTES: u64 = 64 << 20;

/// What was written and read in a stretch of time.
struct Seen {
    /// GB/s of values that were acknowledged.
    users: f64,
    /// GB/s of the media.
    read: f64,
    written: f64,
    /// Share of the dies' time in use.
    dies: f64,
}

/// The stores, and which of them has which key.
struct Stores(Vec<(Device, Store)>);

impl Stores {
    async fn open(spec: &str, count: u64, slices: u16, memory_bytes: u64) -> Result<Self, String> {
        let mut stores = Vec::new();
        for number in 0..count {
            let spec = spec.parse().map_err(|error| format!("{error}"))?;
            let device = Device::open(&spec, Access::ReadWrite).await.map_err(|error| error.to_string())?;
            let format = StoreFormat { slices, drive_id: [number as u8 + 1; 16], ..StoreFormat::default() };
            Store::format(&device, &format).await.map_err(|error| error.to_string())?;
            let options =
                StoreOptions { log_max_bytes: LOG_MAX_BYTES, memory_bytes, ..StoreOptions::default() };
            let opened = Store::open(device.clone(), options, &|_, _| {}).await;
            let store = opened.map_err(|error| error.to_string())?.store;
            store.start_background();
            stores.push((device, store));
        }
        Ok(Self(stores))
    }

    fn of(&self, key: &[u8]) -> usize {
        (stable_hash64(0, key) % self.0.len() as u64) as usize
    }

    /// Writes these keys of the slice; durable on return. A batch for each store that has any of them.
    async fn write(&self, slice: u16, keys: &[u64], value: &Bytes) -> Result<(), String> {
        let mut batches: Vec<Option<Batch>> = (0..self.0.len()).map(|_| None).collect();
        for key in keys {
            let key = format!("slice {slice} key {key}");
            let batch = batches[self.of(key.as_bytes())].get_or_insert_with(Batch::new);
            batch.put_bytes(SliceId(slice), key.as_bytes(), 0, 0, value.clone());
        }
        let mut written = Vec::new();
        for ((_, store), batch) in self.0.iter().zip(batches) {
            let Some(batch) = batch else { continue };
            let store = store.clone();
            written.push(spawn(async move { durable(&store, &batch).await }));
        }
        all(written).await
    }

    /// Bytes that the media have read and programmed, and ns that their dies were busy.
    fn counts(&self) -> (u64, u64, u64) {
        let (mut read, mut written, mut busy) = (0, 0, 0);
        for (device, store) in &self.0 {
            let heap = store.stats().heap;
            read += heap.read_bytes;
            written +=
                heap.commit_bytes + heap.moved_bytes + heap.table_bytes + heap.large_bytes + heap.meta_bytes;
            if let Device::Emulated(emulated) = device {
                busy += emulated.busy_ns().0;
            }
        }
        (read, written, busy)
    }
}

async fn durable(store: &Store, batch: &Batch) -> Result<(), String> {
    let seq = store.write_ready(batch).await.map_err(|error| error.to_string())?;
    store.wait_durable(seq).await.map_err(|error| error.to_string())
}

/// What clients of `slices` slices get in `ms`, each with `keys` keys.
async fn load(stores: &Rc<Stores>, slices: u16, keys: u64, rng: &Rng, ms: u64) -> Result<Seen, String> {
    let (stop, bytes) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(0)));
    let clients: Vec<JoinHandle<Result<(), String>>> = (0..slices)
        .map(|slice| {
            let (stores, stop, bytes) = (Rc::clone(stores), Rc::clone(&stop), Rc::clone(&bytes));
            let mut rng = rng.split(&format!("client {slice} of {slices}"));
            let value = Bytes::from(vec![slice as u8; VALUE_BYTES]);
            spawn(async move {
                while !stop.get() {
                    let keys: Vec<u64> = (0..BATCH).map(|_| rng.below(keys)).collect();
                    stores.write(slice, &keys, &value).await?;
                    bytes.set(bytes.get() + BATCH * VALUE_BYTES as u64);
                }
                Ok(())
            })
        })
        .collect();
    sleep(Duration::from_millis(ms / 4)).await;
    let (start, before, counts) = (now(), bytes.get(), stores.counts());
    sleep(Duration::from_millis(ms)).await;
    let (ns, after) = (start.elapsed().as_nanos() as f64, stores.counts());
    let users = (bytes.get() - before) as f64 / ns;
    stop.set(true);
    all(clients).await?;
    Ok(Seen {
        users,
        read: (after.0 - counts.0) as f64 / ns,
        written: (after.1 - counts.1) as f64 / ns,
        dies: (after.2 - counts.2) as f64 / ns / f64::from(2 * CHANNELS),
    })
}

/// One store over the whole card, in its steady state.
async fn whole_card(seed: u64, slices: u16, blocks: u32, ms: u64) -> Result<Seen, String> {
    let stores = Rc::new(Stores::open(&format!("emu:sdf,blocks={blocks}"), 1, slices, MEMORY_BYTES).await?);
    let card_bytes = u64::from(CHANNELS) * u64::from(blocks) * (8 << 20);
    let keys = card_bytes / 2 / VALUE_BYTES as u64 / u64::from(slices);
    let value = Bytes::from(vec![0; VALUE_BYTES]);
    let fill: Vec<JoinHandle<Result<(), String>>> = (0..slices)
        .map(|slice| {
            let (stores, value) = (Rc::clone(&stores), value.clone());
            spawn(async move {
                for first in (0..keys).step_by(BATCH as usize) {
                    let keys: Vec<u64> = (first..keys.min(first + BATCH)).collect();
                    stores.write(slice, &keys, &value).await?;
                }
                Ok(())
            })
        })
        .collect();
    all(fill).await?;
    // As much again as was free: from then on every write needs space that was cleaned.
    let mut rng = Rng::from_seed(seed).split("overwrites");
    for _ in 0..keys * u64::from(slices) / BATCH {
        let slice = rng.below(u64::from(slices)) as u16;
        let keys: Vec<u64> = (0..BATCH).map(|_| rng.below(keys)).collect();
        stores.write(slice, &keys, &value).await?;
    }
    load(&stores, slices, keys, &Rng::from_seed(seed), ms).await
}

/// Fresh stores: one for each channel, or one over all of them.
async fn fresh(seed: u64, points: Vec<u16>, ms: u64, by_channel: bool) -> Result<Vec<Seen>, String> {
    let most = points.iter().copied().max().unwrap_or(1);
    let stores = if by_channel {
        let spec = format!("emu:sdf,channels=1,blocks={BLOCKS_ALONE}");
        Stores::open(&spec, u64::from(CHANNELS), most, MEMORY_BYTES_ALONE).await?
    } else {
        Stores::open(&format!("emu:sdf,blocks={BLOCKS_ALONE}"), 1, most, MEMORY_BYTES).await?
    };
    let stores = Rc::new(stores);
    let mut seen = Vec::new();
    for slices in points {
        seen.push(load(&stores, slices, 10_000, &Rng::from_seed(seed), ms).await?);
    }
    Ok(seen)
}

pub(super) fn section(run: &mut Run) -> Result<Section, Broken> {
    let (seed, mut rows) = (run.seed, Vec::new());
    let (points, blocks) =
        if run.scale < 1.0 { (vec![1, 16], BLOCKS / 8) } else { (SLICES.to_vec(), BLOCKS) };
    let ms = u64::from(run.times(4000, 2000));
    let (mut whole, mut shares) = (Vec::new(), Vec::new());
    for &slices in &points {
        let name = format!("kv over the whole card, {slices} slices");
        let seen = run.world(&name, move || whole_card(seed, slices, blocks, ms))?;
        let share = seen.read / (seen.read + seen.written);
        rows.push(Row::shown(
            &format!("one store over the card, {slices} slices: users' writes"),
            "GB/s",
            seen.users,
            None,
        ));
        let name = format!("one store over the card, {slices} slices: reads, share of what the card moves");
        rows.push(Row::shown(&name, "", share, None));
        let name =
            format!("one store over the card, {slices} slices: bytes programmed for one of the users'");
        rows.push(Row::shown(&name, "", seen.written / seen.users, None));
        whole.push((f64::from(slices), seen));
        shares.push((f64::from(slices), 100.0 * share));
    }
    let best = whole.iter().map(|(_, seen)| seen.users).fold(0.0, f64::max);
    rows.push(Row::shown("one store over the card: best", "GB/s", best, Some(1.0)));
    let name = "one store over the card: best, in what one block takes (22.9 MB/s)";
    rows.push(Row::shown(name, "", best / BLOCK_RATE, None));
    let dies = whole.iter().map(|(_, seen)| seen.dies).fold(0.0, f64::max);
    rows.push(Row::shown("one store over the card: most of the dies' time in use", "", dies, None));

    let ms = u64::from(run.times(600, 300));
    let again = points.clone();
    let fresh_whole = run.world("kv over the whole card, fresh", move || fresh(seed, again, ms, false))?;
    let fresh_whole: Vec<(f64, f64)> = points
        .iter()
        .map(|&slices| f64::from(slices))
        .zip(fresh_whole.iter().map(|seen| seen.users))
        .collect();
    for (slices, users) in &fresh_whole {
        let name = format!("one store over the card, fresh, {slices} slices: users' writes");
        rows.push(Row::shown(&name, "GB/s", *users, None));
    }
    let best = fresh_whole.iter().map(|(_, users)| *users).fold(0.0, f64::max);
    rows.push(Row::shown("one store over the card, fresh: best", "GB/s", best, Some(1.0)));
    let name = "one store over the card, fresh: best, in what one block takes (22.9 MB/s)";
    let least = if run.scale < 1.0 { 4.0 } else { 11.0 };
    rows.push(Row::within(name, "", best / BLOCK_RATE, None, least, 44.0));

    let again = points.clone();
    let alone = run.world("kv, a store for each channel", move || fresh(seed, again, ms, true))?;
    let alone: Vec<(f64, f64)> =
        points.iter().map(|&slices| f64::from(slices)).zip(alone.iter().map(|seen| seen.users)).collect();
    for (slices, users) in &alone {
        let name = format!("a store for each channel, fresh, {slices} slices: users' writes");
        rows.push(Row::shown(&name, "GB/s", *users, None));
    }
    let best = alone.iter().map(|(_, users)| *users).fold(0.0, f64::max);
    rows.push(Row::shown("a store for each channel, fresh: best", "GB/s", best, Some(1.0)));
    let throughput = Figure {
        file: "sdf-fig14-writes-by-slices",
        title: "Writes by slices, with kv's LSM on the card",
        x: "slices",
        y: "GB/s",
        log_x: true,
        series: vec![
            Series::new("one store over the card", whole.iter().map(|(n, seen)| (*n, seen.users)).collect()),
            Series::new("its programs", whole.iter().map(|(n, seen)| (*n, seen.written)).collect()),
            Series::new("its reads", whole.iter().map(|(n, seen)| (*n, seen.read)).collect()),
            Series::new("one store, fresh", fresh_whole),
            Series::reference("a store for each channel, fresh", alone),
        ],
    };
    let reads = Figure {
        file: "sdf-fig14-reads-share",
        title: "Writes by slices: reads of merging and cleaning, share of all bytes the card moves",
        x: "slices",
        y: "%",
        log_x: true,
        series: vec![Series::new("one store over the card", shares)],
    };
    Ok(Section {
        title: "5. Writes by slices with the LSM of kv (the paper's Figure 14)",
        figures: vec![throughput, reads],
        rows,
        notes: vec![
            "published: the peak is at 16 slices and near 1 GB/s; from 16 to 32 slices the share of reads falls".into(),
            format!(
                "scaled: {blocks} blocks a channel of 2,048 ({BLOCKS_ALONE} where each channel has a store), and a checkpoint \
                 every 64 MiB of log; timing, channels and dies are the preset's; values of 128 KiB in batches of 1 MiB are assumed"
            ),
            "missed, and why: in its steady state a store writes what cleaning wins, from 16 victims at a time at most, each of \
             which is read whole, on a channel that others write to meanwhile. Fresh, when nothing is cleaned, a slice's client \
             waits for each MiB, and 22 MiB may wait to be written"
                .into(),
            "a store for each channel has a host link of its own, but all together ask less than the card's 1.4 GB/s"
                .into(),
        ],
    })
}
