//! Where a served drive's bytes are, how it wears and how it is cut, as JSON: what `pumice info` tells of a drive and of a
//! running server alike.

use pumice_flash::{Device, Geometry};
use pumice_kv::SpaceReport;
use pumice_segment::{ChannelReport, Heap, Wear};
use serde_json::{Value, json};

/// Adds what a drive's heap knows of its media: shape, zones, space and wear by channel, and what correction has done.
pub fn describe(heap: &Heap, fields: &mut serde_json::Map<String, Value>) {
    let device = heap.device();
    let channels = heap.channels();
    let unerased = channels.iter().map(|channel| channel.unerased).sum();
    fields.insert("geometry".into(), geometry(device.geometry()));
    fields.insert("zones".into(), zones(device));
    fields.insert("space".into(), space(&heap.space(), unerased));
    let by_channel = channels.iter().enumerate().map(|(number, channel)| {
        let mut kinds = space(&channel.space, channel.unerased);
        kinds["channel"] = number.to_string().into();
        kinds
    });
    fields.insert("channel_space_bytes".into(), by_channel.collect());
    fields.insert("wear".into(), wear(&channels));
    fields.insert("correction".into(), correction(device));
    fields.insert("weak_segments".into(), heap.weak_segments().into());
    let patrol = heap.patrol_stats();
    fields.insert(
        "patrol".into(),
        json!({
            "next_segment": patrol.next_segment, "segments": patrol.segments, "passes": patrol.passes,
            "percent": 100.0 * f64::from(patrol.next_segment) / f64::from(patrol.segments.max(1)),
            "read_bytes": patrol.read_bytes, "damaged": patrol.damaged, "renewed": patrol.renewed,
        }),
    );
}

/// How a drive's media are cut.
pub fn geometry(found: Geometry) -> Value {
    json!({
        "channels": found.channels, "dies_per_channel": found.dies_per_channel,
        "planes_per_die": found.planes_per_die, "dies_per_block": found.dies_per_block,
        "blocks_per_channel": found.blocks_per_channel, "pages_per_block": found.pages_per_block,
        "page_bytes": found.page_bytes, "read_bytes": found.read_bytes, "oob_bytes": found.oob_bytes,
    })
}

/// How a zoned drive's zones are cut, and its limits (0: none); null on other media.
fn zones(device: &Device) -> Value {
    let Device::Zoned(zoned) = device else { return Value::Null };
    let shape = zoned.shape();
    json!({
        "blocks": shape.blocks, "bad": shape.bad, "left_out": shape.left_out, "zone_bytes": shape.zone_bytes,
        "capacity_bytes": shape.capacity_bytes, "open_max": shape.open_max, "active_max": shape.active_max,
        "open": shape.open, "active": shape.active,
    })
}

/// Bytes by kind. Live, dead, open, pending, reserved, free_erased, free_unerased, meta, leftover and bad add up to raw; the
/// reserve is counted among what has still to be erased first.
fn space(report: &SpaceReport, unerased: u64) -> Value {
    let free_unerased = unerased.saturating_sub(report.reserved).min(report.free);
    json!({
        "raw": report.raw, "usable": report.usable(), "meta": report.meta, "leftover": report.leftover,
        "live": report.live, "dead": report.dead, "open": report.open, "pending": report.pending,
        "reserved": report.reserved, "free": report.free, "free_erased": report.free - free_unerased,
        "free_unerased": free_unerased, "bad": report.bad, "available": report.available(),
    })
}

fn wear(channels: &[ChannelReport]) -> Value {
    let of = |name: String, wear: Wear, bad: u32| {
        json!({
            "channel": name, "segments": wear.segments, "bad_segments": bad, "erases_least": wear.least,
            "erases_mean": wear.mean, "erases_most": wear.most,
        })
    };
    let mut rows: Vec<Value> = (0..)
        .zip(channels)
        .map(|(number, channel): (usize, _)| of(number.to_string(), channel.wear, channel.bad_segments))
        .collect();
    let worn = || channels.iter().map(|channel| channel.wear).filter(|wear| wear.segments > 0);
    let segments: u32 = worn().map(|wear| wear.segments).sum();
    let erases: f64 = worn().map(|wear| wear.mean * f64::from(wear.segments)).sum();
    let all = Wear {
        segments,
        least: worn().map(|wear| wear.least).min().unwrap_or(0),
        mean: erases / f64::from(segments.max(1)),
        most: worn().map(|wear| wear.most).max().unwrap_or(0),
    };
    rows.insert(0, of("all".into(), all, channels.iter().map(|channel| channel.bad_segments).sum()));
    rows.into()
}

/// What software has corrected since the drive was opened; null on media that correct themselves.
fn correction(device: &Device) -> Value {
    if !matches!(device, Device::Corrected(_)) {
        return Value::Null;
    }
    let counts = device.ecc_counts();
    json!({
        "corrected_bits": counts.corrected_bits, "corrected_codewords": counts.corrected_codewords,
        "uncorrectable_pages": counts.uncorrectable_pages,
    })
}
