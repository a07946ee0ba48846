//! The example of raw flash's interface, on every backend and both drivers.

#[path = "../../examples/patches.rs"]
#[allow(dead_code, unreachable_pub)] // an example: its `main` is not used here
mod example;

use std::path::{Path, PathBuf};
use std::process::Command;

use pumice_flash::{Device, DeviceSpec};
use pumice_reactor::block_on;
use pumice_reactor::sim::{HostOptions, World, ZonedModel};

/// Sixteen blocks of 8 MiB.
const BYTES: u64 = 128 << 20;
const PATCHES: u64 = 6;
const MEMORY: &str = "emu:sdf,channels=4,blocks=8,pages=16,timing=off";
const RAW: &str = "emu:tiny,channels=4,blocks=16,pages=16,oob=128,ecc=off";
/// Zoned block devices to run on, with commas between; all they hold is lost.
const ZONED: &str = "PUMICE_ZONED";

async fn works(name: &str) {
    example::run(name, PATCHES).await.unwrap_or_else(|error| panic!("{name}: {error}"));
}

async fn file(path: &Path) {
    drop(Device::create(&DeviceSpec::Path(path.to_owned()), BYTES).await.expect("file"));
}

/// A loop device over a new file; where there is none, why.
fn attach(file: &Path) -> Result<PathBuf, String> {
    std::fs::File::create(file).and_then(|made| made.set_len(BYTES)).map_err(|error| error.to_string())?;
    let run = Command::new("losetup").arg("--find").arg("--show").arg(file).output();
    let output = run.map_err(|error| format!("losetup: {error}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).trim().into()),
        false => Err(format!("losetup: {}", String::from_utf8_lossy(&output.stderr).trim())),
    }
}

struct Attached(PathBuf);

impl Drop for Attached {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.0).status();
    }
}

#[test]
fn patches_are_written_read_and_erased_on_every_backend() {
    if let Ok(paths) = std::env::var(ZONED) {
        return block_on(async {
            for path in paths.split(',') {
                works(path).await;
            }
        });
    }
    block_on(async {
        let dir = tempfile::tempdir().expect("dir");
        let path = |name: &str| dir.path().join(name);
        file(&path("file")).await;
        works(&path("file").display().to_string()).await;
        match attach(&path("disk")).map(Attached) {
            Ok(attached) => works(&attached.0.display().to_string()).await,
            Err(why) => eprintln!("SKIPPED the block device on loop: {why}"),
        }
        works(MEMORY).await;
        works(RAW).await;
        works(&format!("{MEMORY},path={}", path("nand").display())).await;
    });
}

#[test]
fn patches_are_written_read_and_erased_on_every_simulated_backend() {
    let world = World::new(1);
    let host = world.add_host(HostOptions { quirks: false, ..HostOptions::default() });
    world.add_block_device(host, Path::new("/dev/sim"), BYTES);
    let zones = ZonedModel {
        zones: 34,
        conventional: 2,
        zone_bytes: 512 << 10,
        capacity_bytes: 256 << 10,
        // Fewer than there are writers, and than there are patches.
        open_max: 3,
        active_max: 5,
    };
    world.add_zoned_device(host, Path::new("/dev/zoned"), zones);
    let ran = world.block_on(host, async {
        file(Path::new("/file")).await;
        for name in ["/file", "/dev/sim", "/dev/zoned", MEMORY, RAW] {
            works(name).await;
        }
        works(&format!("{MEMORY},path=/nand")).await;
        works("emu:sdf,channels=4,blocks=8,pages=16").await;
    });
    ran.expect("the world goes on");
}
