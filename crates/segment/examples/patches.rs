//! What CCDB's block layer does with SDF (ASPLOS 2014, section 2.5), over raw flash: patches of one segment each with
//! 128-bit ids, batched random reads, a sequential scan, erases.
//!
//! `cargo run --release -p pumice-segment --example patches -- [DEVICE] [PATCHES]`: DEVICE is a path or `emu:PRESET[,…]`.
//! Whatever a file or block device holds is overwritten. `tests/it/patches.rs` runs it on every backend.

use std::time::Duration;

use bytes::Bytes;
use pumice_base::rng::Rng;
use pumice_flash::{Access, Device, DeviceSpec, Geometry};
use pumice_reactor::{IoBuf, JoinHandle, block_on, now, spawn};
use pumice_segment::ftl::{Place, RawFlash, RawFormat, RawOptions};

/// Writers under way; reads of one batch.
const WRITERS: usize = 16;
const BATCH: usize = 44;
const READ_BYTES: usize = 8192;
/// Reads of a scan.
const SCAN_BYTES: usize = 1 << 20;

/// Why it stopped.
pub type Failed = Box<dyn std::error::Error>;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let name = arguments.next().unwrap_or_else(|| "emu:sdf,channels=8,blocks=32".to_string());
    let patches = arguments.next().and_then(|count| count.parse().ok()).unwrap_or(64);
    if let Err(error) = block_on(run(&name, patches)) {
        eprintln!("{error}");
        std::process::exit(1);
    }
}

async fn open(name: &str) -> Result<Device, Failed> {
    let spec: DeviceSpec = name.parse()?;
    let device = Device::open(&spec, Access::ReadWrite).await?;
    if device.has_own_blocks() {
        return Ok(device);
    }
    // Files and disks have neither channels nor blocks: four queues of 8 MiB blocks.
    let found = device.geometry();
    let pages = (8 << 20) / found.page_bytes;
    let blocks = (device.raw_bytes() / (8 << 20) / 4) as u32;
    let shape = Geometry { channels: 4, pages_per_block: pages, blocks_per_channel: blocks, ..found };
    Ok(device.with_geometry(shape)?)
}

/// A page's contents follow from its patch and place, so that reads can be checked.
fn page(id: u128, offset: usize, out: &mut [u8]) {
    Rng::from_seed(id as u64 ^ (id >> 64) as u64 ^ (offset as u64) << 20).fill(out);
}

fn patch(id: u128, len: usize) -> Bytes {
    let mut buf = IoBuf::zeroed(len);
    for (index, out) in buf.chunks_exact_mut(READ_BYTES).enumerate() {
        page(id, index * READ_BYTES, out);
    }
    buf.freeze()
}

fn report(what: &str, bytes: usize, took: Duration) {
    let (mb, seconds) = (bytes as f64 / 1e6, took.as_secs_f64());
    println!("{what:<28} {mb:>9.1} MB {seconds:>8.3} s {:>9.1} MB/s", mb / seconds.max(1e-9));
}

async fn all(tasks: Vec<JoinHandle<Result<(), String>>>) -> Result<(), Failed> {
    for task in tasks {
        task.await??;
    }
    Ok(())
}

/// All of it, on this device.
///
/// # Errors
/// The device's, and what reads wrong.
pub async fn run(name: &str, patches: u64) -> Result<(), Failed> {
    let mut drive_id = [0; 16];
    Rng::from_seed(pumice_reactor::wall_ms()).fill(&mut drive_id);
    let format = RawFormat { drive_id, force: true };
    let raw = RawFlash::format(open(name).await?, format, RawOptions::default()).await?;
    let len = raw.segment_bytes() as usize;
    println!("{name}: {}; patches of {len} B", raw.geometry());
    // The high half names the table, the low half counts its patches: they spread over the channels in turn.
    let id = |number: u64| 7u128 << 64 | u128::from(number);

    let start = now();
    let next = std::rc::Rc::new(std::cell::Cell::new(0));
    let writers = (0..WRITERS).map(|_| {
        let (raw, next) = (raw.clone(), next.clone());
        spawn(async move {
            let client = raw.client();
            while next.get() < patches {
                let number = next.replace(next.get() + 1);
                let written = raw.write(&client, id(number), Place::ById, patch(id(number), len)).await;
                written.map_err(|error| error.to_string())?;
            }
            Ok(())
        })
    });
    all(writers.collect()).await?;
    report("write patches", patches as usize * len, start.elapsed());

    let mut rng = Rng::from_seed(1);
    let client = raw.client();
    let (start, batches) = (now(), 20);
    for _ in 0..batches {
        let reads = (0..BATCH).map(|_| {
            let (raw, client) = (raw.clone(), client.clone());
            let (id, offset) =
                (id(rng.below(patches)), rng.below((len / READ_BYTES) as u64) as usize * READ_BYTES);
            spawn(async move {
                let (result, buf) = raw.read(&client, id, offset as u32, IoBuf::for_read(READ_BYTES)).await;
                result.map_err(|error| error.to_string())?;
                let mut expected = vec![0; READ_BYTES];
                page(id, offset, &mut expected);
                if buf[..] == expected[..] {
                    Ok(())
                } else {
                    Err(format!("patch {id:032x} offset {offset} reads wrong"))
                }
            })
        });
        all(reads.collect()).await?;
    }
    report("batched random reads, checked", batches * BATCH * READ_BYTES, start.elapsed());

    // In order, as many at a time as there are readers: consecutive patches lie on different channels.
    let start = now();
    next.set(0);
    let readers = (0..WRITERS).map(|_| {
        let (raw, next) = (raw.clone(), next.clone());
        spawn(async move {
            let client = raw.client();
            while next.get() < patches {
                let number = next.replace(next.get() + 1);
                for offset in (0..len).step_by(SCAN_BYTES) {
                    // Where tags take pages of their own a patch is no multiple of it.
                    let buf = IoBuf::for_read(SCAN_BYTES.min(len - offset));
                    let (result, _) = raw.read(&client, id(number), offset as u32, buf).await;
                    result.map_err(|error| error.to_string())?;
                }
            }
            Ok(())
        })
    });
    all(readers.collect()).await?;
    report("sequential scan", patches as usize * len, start.elapsed());

    for number in 0..patches {
        raw.erase(&client, id(number)).await?;
    }
    for channel in 0..raw.geometry().channels {
        let counts = raw.counts(channel);
        assert_eq!(counts.used, 0, "channel {channel}");
    }
    println!("erased all; channel 0: {:?}", raw.counts(0));
    Ok(())
}
