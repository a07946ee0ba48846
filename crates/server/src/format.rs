//! `pumice format`: makes a drive out of a file or block device.

use std::sync::Arc;

use pumice_base::size::format_size;
use pumice_flash::{Device, DeviceSpec};
use pumice_kv::{PrewriteProgress, StoreFormat};

use crate::cli::FormatArgs;
use crate::drives;
use crate::exit::{Outcome, Stop};
use crate::progress::Progress;

/// Runs the command.
pub fn run(args: FormatArgs) -> Outcome {
    let spec = drives::parse(&args.device)?;
    let DeviceSpec::Path(path) = &spec else {
        return Err(Stop::because(
            "an emulated drive is formatted when it is served; name a file or block device",
        ));
    };
    if !args.force {
        drives::refuse_foreign(path)?;
    }
    let segment_bytes = u32::try_from(args.segment)
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
    let size = match (args.size, path.exists()) {
        (Some(size), _) => size,
        (None, true) => 0,
        (None, false) => drives::fitting_bytes(path)?,
    };
    let made = !path.exists();
    let outcome = pumice_reactor::block_on(async {
        let device =
            Device::create(&spec, size).await.map_err(|e| Stop::doing(format!("drive {spec}"), e))?;
        let raw = device.raw_bytes();
        drives::format(&spec, &device, &options).await.map(|()| raw)
    });
    bar.finish();
    let raw = match outcome {
        Ok(raw) => raw,
        Err(stop) => {
            if made {
                // Leave nothing half-made behind.
                let _ = std::fs::remove_file(path);
            }
            return Err(stop);
        }
    };
    if args.json {
        println!(
            "{}",
            serde_json::json!({
                "device": args.device, "bytes": raw, "segment_bytes": options.segment_bytes,
                "slices": options.slices, "channels": options.channels, "drive_id": hex(&options.drive_id),
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
