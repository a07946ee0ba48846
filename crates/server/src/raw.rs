//! Raw-flash drives (`pumice_segment::ftl`) for `pumice info` and `pumice check`.

use pumice_flash::{Device, FlashError, Geometry};
use pumice_reactor::IoBuf;
use pumice_segment::ftl::{ChannelSpace, RawError, RawFlash, RawOpened, RawOptions};
use serde_json::{Value, json};

use crate::exit::Stop;
use crate::format::hex;

/// Bytes that a check reads at a time.
const READ_BYTES: u32 = 1 << 20;

/// Opens the raw-flash drive that the device holds, if it holds one. Nothing is written to media that are opened read-only.
pub async fn open(device: &Device, progress: &dyn Fn(u64, u64)) -> Result<Option<RawOpened>, Stop> {
    let failed = |error: RawError| Stop::because(format!("raw flash: {error}"));
    let device = match RawFlash::probe(device).await {
        Ok(Some(device)) => device,
        // Too short for a first page: whoever looks for other kinds of drives says what it is.
        Ok(None) | Err(RawError::Flash(FlashError::Truncated { .. })) => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    match RawFlash::open(device, RawOptions::default(), progress).await {
        Ok(opened) => Ok(Some(opened)),
        Err(RawError::NotFormatted) => Ok(None),
        Err(error) => Err(failed(error)),
    }
}

/// What the drive holds, as JSON.
pub fn info(target: &str, opened: &RawOpened, geometry: impl Fn(Geometry) -> Value) -> Value {
    let raw = &opened.raw;
    let (space, scrub, shape) = (raw.space(), raw.scrub_stats(), raw.geometry());
    let channels: Vec<Value> = (0..shape.channels)
        .map(|channel| {
            let mut of = kinds(&space.channels[usize::from(channel)]);
            of["channel"] = json!(channel.to_string());
            of
        })
        .collect();
    let mut total = kinds(&space.total());
    (total["raw"], total["leftover"]) = (json!(space.raw), json!(space.leftover));
    let wear: Vec<Value> = (0..shape.channels)
        .map(|channel| {
            let (fewest, most) = raw.erase_range(channel).unwrap_or_default();
            json!({ "channel": channel, "erases_fewest": fewest, "erases_most": most })
        })
        .collect();
    json!({
        "device": target,
        "kind": "raw flash",
        "drive_id": hex(&raw.drive_id()),
        "closed_cleanly": opened.clean,
        "segment_bytes": raw.segment_bytes(),
        "checksums": raw.has_sums(),
        "segments": raw.segment_count(),
        "weak_segments": raw.weak().len(),
        "table_memory_bytes": raw.memory_bytes(),
        "geometry": geometry(shape),
        "space": total,
        "channel_space_bytes": channels,
        "wear": wear,
        "patrol": {
            "next_block": scrub.next_block, "blocks": shape.block_count(), "passes": scrub.passes,
            "percent": 100.0 * f64::from(scrub.next_block) / f64::from(shape.block_count()),
        },
        "damage": opened.damage.iter().map(ToString::to_string).collect::<Vec<_>>(),
    })
}

fn kinds(space: &ChannelSpace) -> Value {
    json!({
        "raw": space.raw, "usable": space.usable, "live": space.live, "dead": space.dead,
        "writing": space.writing, "free_erased": space.erased, "free_unerased": space.unerased,
        "reserved": space.reserved, "tags": space.tags, "checksums": space.sums, "bad": space.bad,
    })
}

/// Reads every segment, and what its block says of it; answers segments and bytes read, and what is wrong.
pub async fn check(
    opened: &RawOpened,
    progress: &dyn Fn(u64, u64),
) -> Result<(u64, u64, Vec<String>), FlashError> {
    let raw = &opened.raw;
    let (client, ids) = (raw.client(), raw.ids());
    let mut problems: Vec<String> = opened.damage.iter().map(ToString::to_string).collect();
    let (mut bytes, total) = (0, ids.len() as u64);
    for (done, &id) in (1..).zip(&ids) {
        let mut at = 0;
        while at < raw.segment_bytes() {
            let len = READ_BYTES.min(raw.segment_bytes() - at);
            let (result, _) = raw.read(&client, id, at, IoBuf::for_read(len as usize)).await;
            match result {
                Ok(_) => bytes += u64::from(len),
                Err(RawError::Flash(error @ FlashError::Uncorrectable { .. })) => {
                    problems.push(format!("segment {id:032x}: {error}"));
                }
                Err(RawError::Flash(error)) => return Err(error),
                Err(error) => problems.push(error.to_string()),
            }
            at += len;
        }
        match raw.ends_agree(&client, id).await {
            Ok(true) => {}
            Ok(false) => problems.push(format!(
                "segment {id:032x}: a tag or a table of checksums of its block is damaged; the other one serves, the patrol \
                 moves it"
            )),
            Err(RawError::Flash(error)) => return Err(error),
            Err(error) => problems.push(error.to_string()),
        }
        progress(done, total);
    }
    Ok((total, bytes, problems))
}
