//! Figures 1 and 2: throughput by request size and by channels.

use pumice_base::rng::Rng;
use pumice_reactor::{IoBuf, now, spawn};
use pumice_segment::ftl::RawFlash;

use super::Run;
use super::card::{
    BLOCKS, CARD, CHANNELS, LINK_READ, Measured, SEGMENT_BYTES, all, card, fill, fill_from, rewrite, settle,
};
use super::plot::{Figure, Section, Series};
use crate::report::Row;
use crate::worlds::Broken;

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
    rewrite(raw, each, |_, _| ()).await?;
    let total = u64::from(channels) * u64::from(each) * SEGMENT_BYTES as u64;
    Ok(total as f64 / start.elapsed().as_nanos() as f64)
}

/// Figure 1.
pub(super) fn by_size(run: &mut Run) -> Result<Section, Broken> {
    let (seed, mut rows) = (run.seed, Vec::new());
    let raw_spec = format!("{CARD},link_read=0,link_write=0");
    let (spec, each) = (raw_spec.clone(), run.times(32, 8));
    let raw_read =
        run.world(
            "raw read",
            move || async move { reads(&card(&spec, 4).await?, seed, 1 << 20, 2, each).await },
        )?;
    let each = run.times(8, 2) as u16;
    let raw_write = run.world("raw write", move || async move {
        // Every block is erased beforehand: programs alone.
        let raw = card(&raw_spec, BLOCKS).await?;
        fill(&raw, 1).await?;
        settle().await;
        let start = now();
        fill_from(&raw, u128::from(CHANNELS), each).await?;
        let total = u64::from(CHANNELS) * u64::from(each) * SEGMENT_BYTES as u64;
        Ok(total as f64 / start.elapsed().as_nanos() as f64)
    })?;
    rows.push(Row::about("raw flash, reads", "GB/s", raw_read, 1.67, 0.02));
    rows.push(Row::about("raw flash, programs alone", "GB/s", raw_write, 1.01, 0.02));
    let mut points = Vec::new();
    for (kib, each, published) in [(8, 1500, 1.23), (16, 800, 1.42), (64, 200, 1.51)] {
        let name = format!("random reads of {kib} KiB");
        let each = run.times(each, 60);
        let measured =
            run.world(
                &name,
                move || async move { reads(&card(CARD, 4).await?, seed, kib << 10, 1, each).await },
            )?;
        points.push((kib as f64, measured));
        rows.push(Row::about(&name, "GB/s", measured, published, 0.08));
    }
    let (large, rewrites, in_background) = (run.times(12, 4), run.times(6, 2), run.times(12, 6));
    let large_read = run.world("reads of 8 MiB", move || async move {
        reads(&card(CARD, 4).await?, seed, SEGMENT_BYTES, 1, large).await
    })?;
    let large_write =
        run.world("writes of 8 MiB", move || async move { writes(&card(CARD, 0).await?, rewrites).await })?;
    rows.push(Row::about("reads of 8 MiB", "GB/s", large_read, 1.59, 0.08));
    rows.push(Row::about("writes of 8 MiB, erased just before", "GB/s", large_write, 0.96, 0.08));
    let ahead = run.world("writes, erased ahead", move || async move {
        writes(&card(CARD, 4).await?, in_background).await
    })?;
    // The paper delivered 95% of the raw bandwidth.
    let share = large_read / raw_read.min(LINK_READ);
    rows.push(Row::within(
        "8 MiB reads, share of what flash and link allow",
        "",
        share,
        Some(0.95),
        0.98,
        1.01,
    ));
    rows.push(Row::shown("writes of 8 MiB, erased in the background", "GB/s", ahead, None));
    // A channel's cycle: its programs, then 9.2 ms for the erase.
    let channels_bytes = SEGMENT_BYTES as f64 * f64::from(CHANNELS);
    let cycle_ms = channels_bytes / raw_write / 1e6 + 9.2;
    let share = ahead / (channels_bytes / cycle_ms / 1e6);
    rows.push(Row::within(
        "8 MiB writes, share of what programs and erases allow",
        "",
        share,
        Some(0.95),
        0.98,
        1.03,
    ));
    points.push((8192.0, large_read));
    let published = vec![(8.0, 1.23), (16.0, 1.42), (64.0, 1.51), (8192.0, 1.59)];
    let figure = Figure {
        file: "sdf-table4-request-size",
        title: "SDF: random reads by request size, 44 clients",
        x: "request, KiB",
        y: "GB/s",
        log_x: true,
        series: vec![Series::new("measured", points), Series::reference("published", published)],
    };
    Ok(Section {
        title: "1. Throughput by request size (the paper's Table 4)",
        figures: vec![figure],
        rows,
        notes: vec![
            "published values of 8, 16, 64 KiB and 8 MiB requests are from memory of the paper's Table 4, hence bands of \
             8%; the raw bandwidths and 95% of them are stated in our source"
                .into(),
            "44 clients, one on each channel, one request each at a time; a write has its block erased just before".into(),
        ],
    })
}

/// Figure 2.
pub(super) fn by_channels(run: &mut Run) -> Result<Section, Broken> {
    let (seed, mut rows) = (run.seed, Vec::new());
    let (mut read, mut written) = (Vec::new(), Vec::new());
    let (each_read, each_write) = (run.times(6, 3), run.times(3, 1));
    let step = if run.scale < 1.0 { 20 } else { 4 };
    for channels in (4..=CHANNELS).step_by(step) {
        let spec = format!("{CARD},channels={channels}");
        let again = spec.clone();
        let rate = run.world(&format!("reads on {channels} channels"), move || async move {
            reads(&card(&spec, 4).await?, seed, SEGMENT_BYTES, 1, each_read).await
        })?;
        read.push((f64::from(channels), rate));
        let rate = run.world(&format!("writes on {channels} channels"), move || async move {
            writes(&card(&again, 0).await?, each_write).await
        })?;
        written.push((f64::from(channels), rate));
    }
    let off = |points: &[(f64, f64)], limit: f64| {
        let slope = points[0].1 / points[0].0;
        let off = points.iter().map(|&(n, rate)| (rate / (n * slope).min(limit) - 1.0).abs());
        off.fold(0.0, f64::max)
    };
    for (name, off) in [
        ("8 MiB reads, 4 … 44 channels: most off the line and its knee", off(&read, LINK_READ)),
        ("8 MiB writes, 4 … 44 channels: most off the line", off(&written, f64::MAX)),
    ] {
        rows.push(Row::within(name, "", off, None, 0.0, 0.05));
    }
    let slope = read[0].1 / read[0].0;
    rows.push(Row::shown("channels at which the link is full with reads", "", LINK_READ / slope, None));
    let figure = Figure {
        file: "sdf-fig07-channels",
        title: "SDF: 8 MiB requests by channels",
        x: "channels",
        y: "GB/s",
        log_x: false,
        series: vec![Series::new("reads", read), Series::new("writes", written)],
    };
    Ok(Section {
        title: "2. Throughput by channels (the paper's Figure 7)",
        figures: vec![figure],
        rows,
        notes: vec![
            "linear up to the link's 1.61 GB/s; the line is drawn through what 4 channels give, the band is 5%"
                .into(),
        ],
    })
}
