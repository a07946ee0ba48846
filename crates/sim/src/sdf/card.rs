//! The card, and what the measurements share: filling it, waiting for clients, statistics of what they saw.

use std::time::Duration;

use bytes::Bytes;
use pumice_flash::{Access, Device};
use pumice_reactor::{IoBuf, JoinHandle, sleep, spawn};
use pumice_segment::ftl::{Client, Place, RawFlash, RawFormat, RawOptions};

/// The card, with so many blocks on each channel as most experiments use: timing, dies and channels are the preset's.
pub(super) const CARD: &str = "emu:sdf,data=drop,blocks=16";
pub(super) const BLOCKS: u32 = 16;
pub(super) const SEGMENT_BYTES: usize = 8 << 20;
pub(super) const CHANNELS: u16 = 44;
/// What the host's link carries of reads, in GB/s: an input.
pub(super) const LINK_READ: f64 = 1.61;

/// GB/s, or why there is none.
pub(super) type Measured = Result<f64, String>;

/// Mean, standard deviation over the mean, and quantiles.
pub(super) struct Spread {
    sorted: Vec<f64>,
}

impl Spread {
    pub(super) fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        Self { sorted: values }
    }

    pub(super) fn mean(&self) -> f64 {
        self.sorted.iter().sum::<f64>() / self.sorted.len().max(1) as f64
    }

    /// The coefficient of variation.
    pub(super) fn variation(&self) -> f64 {
        let mean = self.mean();
        let squares: f64 = self.sorted.iter().map(|value| (value - mean).powi(2)).sum();
        (squares / self.sorted.len().max(1) as f64).sqrt() / mean
    }

    pub(super) fn quantile(&self, share: f64) -> f64 {
        let at = (self.sorted.len() as f64 * share) as usize;
        self.sorted.get(at.min(self.sorted.len().saturating_sub(1))).copied().unwrap_or(0.0)
    }

    /// Share in % that took no longer, for each percent.
    pub(super) fn cumulative(&self) -> Vec<(f64, f64)> {
        (0..=100).map(|at| (self.quantile(f64::from(at) / 100.0), f64::from(at))).collect()
    }
}

/// Formats the device as raw flash.
pub(super) async fn card(spec: &str, erased_ahead: u32) -> Result<RawFlash, String> {
    let spec = spec.parse().map_err(|error| format!("{error}"))?;
    let device = Device::open(&spec, Access::ReadWrite).await.map_err(|error| error.to_string())?;
    let format = RawFormat { drive_id: *b"sdf figures card", force: false };
    let formatted =
        RawFlash::format(device, format, RawOptions { erased_ahead, ..RawOptions::default() }).await;
    formatted.map_err(|error| error.to_string())
}

/// One segment's contents; nobody keeps them.
pub(super) fn contents() -> Bytes {
    IoBuf::zeroed(SEGMENT_BYTES).freeze()
}

pub(super) async fn write(raw: &RawFlash, client: &Client, id: u128, data: &Bytes) -> Result<(), String> {
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

/// Writes `count` segments on every channel, with consecutive ids from this one on.
pub(super) async fn fill_from(raw: &RawFlash, first: u128, count: u16) -> Result<(), String> {
    let channels = raw.geometry().channels;
    let data = contents();
    let tasks = (first..first + u128::from(channels) * u128::from(count)).map(|id| {
        let (raw, data) = (raw.clone(), data.clone());
        spawn(async move { write(&raw, &raw.client(), id, &data).await })
    });
    all(tasks.collect()).await
}

/// Writes `count` segments on every channel: ids 0, 1 ….
pub(super) async fn fill(raw: &RawFlash, count: u16) -> Result<(), String> {
    fill_from(raw, 0, count).await
}

/// Every channel's client writes `each` segments one after the other, and discards what it wrote three writes before.
/// `seen` is told when each began and how long it took, in ms.
pub(super) async fn rewrite(
    raw: &RawFlash,
    each: u32,
    seen: impl Fn(f64, f64) + Clone + 'static,
) -> Result<(), String> {
    let channels = raw.geometry().channels;
    let data = contents();
    let begun = pumice_reactor::now();
    let tasks = (0..channels).map(|channel| {
        let (raw, data, seen) = (raw.clone(), data.clone(), seen.clone());
        spawn(async move {
            let client = raw.client();
            for index in 0..each {
                let id = |index: u32| u128::from(channel) + u128::from(channels) * u128::from(1000 + index);
                let start = pumice_reactor::now();
                write(&raw, &client, id(index), &data).await?;
                seen(start.since(begun).as_secs_f64() * 1e3, start.elapsed().as_secs_f64() * 1e3);
                if index >= 3 {
                    raw.discard(id(index - 3)).map_err(|error| error.to_string())?;
                }
            }
            Ok(())
        })
    });
    all(tasks.collect()).await
}
