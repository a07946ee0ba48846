//! `pumice format`: makes a drive out of a file or block device.

use std::sync::Arc;

use pumice_base::size::format_size;
use pumice_flash::{Device, DeviceSpec};
use pumice_kv::{PrewriteProgress, StoreFormat, fitting_segment_bytes};

use crate::cli::FormatArgs;
use crate::drives;
use crate::exit::{self, Outcome, Stop};
use crate::progress::Progress;

/// Less holds no drive, whatever its shape.
const DRIVE_BYTES_MIN: u64 = 512 << 10;

/// Runs the command.
pub fn run(args: FormatArgs) -> Outcome {
    let spec = drives::parse(&args.device)?;
    // Emulated media have their size and segments from their specification.
    let path = match &spec {
        DeviceSpec::Path(path) => path,
        DeviceSpec::Emulated(emulated) => emulated.path.as_ref().ok_or_else(|| {
            Stop::because(
                "an emulated drive in memory is formatted when it is served; keep it in a file with path=FILE",
            )
        })?,
    };
    drives::refuse_device_that_is_missing(&spec)?;
    if !args.force {
        drives::refuse_filled(path)?;
    }
    let segment_bytes = args
        .segment
        .map(u32::try_from)
        .transpose()
        .map_err(|_| Stop::because("--segment must be a power of two from 64KiB to 64MiB"))?;
    let defaults = StoreFormat::default();
    let bar = Progress::new("format", false);
    let options = StoreFormat {
        drive_id: drives::new_id()?,
        segment_bytes,
        channels: args.channels.unwrap_or(defaults.channels),
        slices: args.slices.unwrap_or(defaults.slices),
        force: args.force,
        prewrite: args.prewrite.then(|| {
            let bar = bar.clone();
            PrewriteProgress(Arc::new(move |done, total| bar.set(done, total)))
        }),
        ..defaults
    };
    let size = match (args.size, &spec) {
        (Some(_), DeviceSpec::Emulated(_)) => {
            return Err(Stop::because("an emulated drive's size is part of its name: emu:PRESET,size=SIZE"));
        }
        (Some(size), _) => size,
        (None, DeviceSpec::Path(path)) if !path.exists() => drives::fitting_bytes(path, drives::NAME_A_SIZE)?,
        _ => 0,
    };
    let made = !path.exists();
    let len_before = std::fs::metadata(path).ok().filter(std::fs::Metadata::is_file).map(|found| found.len());
    let outcome = drives::on_a_core(async {
        let device =
            Device::create(&spec, size).await.map_err(|e| Stop::doing(format!("drive {spec}"), e))?;
        if let Some(size) = args.size
            && device.raw_bytes() != size
        {
            // A file that was shorter has been made as long.
            return Err(Stop::because(format!(
                "{spec} has {}, and is used as a whole: leave out --size, or {}",
                format_size(device.raw_bytes()),
                if device.takes_space_as_written() {
                    "remove the file"
                } else {
                    "name a partition of that size"
                }
            )));
        }
        if device.raw_bytes() < DRIVE_BYTES_MIN {
            return Err(Stop::because(format!(
                "{spec} has {}, too little for a drive: name a larger --size, or make the file larger",
                format_size(device.raw_bytes())
            )));
        }
        // Files and block devices take the shape that was asked for; other media keep their own.
        let (segment_bytes, channels) = match device.geometry() {
            own if device.has_own_blocks() => (own.block_bytes(), own.channels),
            _ => (
                options.segment_bytes.unwrap_or_else(|| fitting_segment_bytes(device.raw_bytes())),
                options.channels,
            ),
        };
        let shape = (device.raw_bytes(), segment_bytes, channels);
        // Before it takes long.
        if let Some(warning) = drives::too_large_for_its_place(path) {
            exit::say(format_args!("pumice: warning: {warning}"));
        }
        drives::format(&spec, &device, &options).await.map(|()| shape)
    });
    bar.finish();
    let (raw, segment_bytes, channels) = match outcome {
        Ok(made) => made,
        Err(stop) => {
            if made {
                // Leave nothing half-made behind.
                let _ = std::fs::remove_file(path);
            } else if let Some(len) = len_before
                && let Ok(file) = std::fs::File::options().write(true).open(path)
                && file.metadata().is_ok_and(|now| now.len() > len)
            {
                let _ = file.set_len(len);
            }
            return Err(stop);
        }
    };
    if args.json {
        println!(
            "{}",
            serde_json::json!({
                "device": args.device, "bytes": raw, "segment_bytes": segment_bytes,
                "slices": options.slices, "channels": channels, "drive_id": hex(&options.drive_id),
            })
        );
    } else {
        println!("{}: formatted, {}, drive {}", args.device, format_size(raw), hex(&options.drive_id));
    }
    Ok(())
}

/// Bytes as lower-case hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}
