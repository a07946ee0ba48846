//! The backends that the suite runs on, each under both drivers where it exists there: io_uring with the machine's own
//! files, and the simulation in virtual time.

use std::path::{Path, PathBuf};
use std::process::Command;

use pumice_flash::{Access, Device, DeviceSpec};
use pumice_reactor::block_on;
use pumice_reactor::sim::{HostOptions, World, ZonedModel};

use super::{geometry, open};

const TIMED: &str = "emu:tiny,blocks=8,pages=16,timing=on,dies=2,planes=2,stripe=2,read_us=20,program_us=50,\
                     erase_us=100,bus=400,link_read=800,link_write=800";
const STRIPED: &str = "emu:tiny,blocks=8,pages=16,dies=2,planes=2,oob=128";

/// Zoned block devices to run on instead, with commas between; all they hold is lost. Each has at least 16 zones of a
/// capacity of 64 KiB (`tests/zoned` makes them in a virtual machine).
const ZONED: &str = "PUMICE_ZONED";

/// Runs `check` on every backend that this machine has. Each is 2 channels of 8 blocks of 16 pages of 4 KiB.
pub fn on_all(check: impl AsyncFn(&'static str, Device) + Copy + 'static) {
    if let Ok(paths) = std::env::var(ZONED) {
        return block_on(async {
            for path in paths.split(',') {
                check("zoned block device", emptied(zoned(Path::new(path)).await).await).await;
            }
        });
    }
    block_on(async {
        let dir = tempfile::tempdir().expect("dir");
        check("file", file(dir.path().join("drive")).await).await;
        let loop_device = LoopDevice::attach(&dir.path().join("disk"));
        match &loop_device {
            Ok(attached) => check("block device on loop", block_device(&attached.device).await).await,
            Err(why) => eprintln!("SKIPPED the block device on loop: {why}"),
        }
        check("memory", open("emu:tiny,blocks=8,pages=16").await).await;
        check("striped over dies and planes", open(STRIPED).await).await;
        let raw = open("emu:tiny,blocks=8,pages=16,oob=128,ecc=off").await;
        check("raw, corrected", raw.corrected().expect("room for parity")).await;
        check("sparse file", open(&sparse(&dir.path().join("nand"))).await).await;
        check("timed", open(TIMED).await).await;
    });
    let world = World::new(1);
    let host = world.add_host(HostOptions { quirks: false, ..HostOptions::default() });
    world.add_block_device(host, Path::new("/dev/sim"), geometry(2).capacity_bytes());
    world.add_zoned_device(host, Path::new("/dev/zoned"), ZONES);
    let hosts = world.clone();
    let done = world.block_on(host, async move {
        check("simulated file", file("/drive".into()).await).await;
        hosts.set_direct_bytes(host, 0);
        check("simulated file in the page cache", file("/cached".into()).await).await;
        hosts.set_direct_bytes(host, 512);
        check("simulated block device", block_device(Path::new("/dev/sim")).await).await;
        check("simulated zoned device", zoned(Path::new("/dev/zoned")).await).await;
        check("simulated: memory", open("emu:tiny,blocks=8,pages=16").await).await;
        check("simulated: sparse file", open(&sparse(Path::new("/nand"))).await).await;
        check("simulated: timed", open(TIMED).await).await;
    });
    done.expect("the simulated world goes on");
}

/// The simulated zoned drive: with conventional zones before the others, and zones that are larger than what can be
/// written of them.
pub const ZONES: ZonedModel = ZonedModel {
    zones: 16,
    conventional: 2,
    zone_bytes: 128 << 10,
    capacity_bytes: 64 << 10,
    open_max: 3,
    active_max: 6,
};

/// A zoned device as 2 channels of 8 blocks.
pub async fn zoned(path: &Path) -> Device {
    let device = Device::open(&DeviceSpec::Path(path.to_owned()), Access::ReadWrite).await.expect("device");
    device.with_geometry(geometry(2)).expect("zones of 64 KiB")
}

/// The device with every block erased.
pub async fn emptied(device: Device) -> Device {
    for number in 0..device.geometry().block_count() {
        device.erase(device.geometry().block(number)).await.expect("erase");
    }
    device
}

fn sparse(path: &Path) -> String {
    format!("emu:tiny,blocks=8,pages=16,path={}", path.display())
}

async fn file(path: PathBuf) -> Device {
    let device = Device::create(&DeviceSpec::Path(path), geometry(2).capacity_bytes()).await.expect("file");
    device.with_geometry(geometry(2)).expect("shape")
}

async fn block_device(path: &Path) -> Device {
    let device = Device::open(&DeviceSpec::Path(path.to_owned()), Access::ReadWrite).await.expect("device");
    device.with_geometry(geometry(2)).expect("shape")
}

/// A loop device over a file of its own, detached on drop.
struct LoopDevice {
    device: PathBuf,
}

impl LoopDevice {
    fn attach(file: &Path) -> Result<Self, String> {
        let made = std::fs::File::create(file).and_then(|made| made.set_len(geometry(2).capacity_bytes()));
        made.map_err(|error| error.to_string())?;
        let run = Command::new("losetup").arg("--find").arg("--show").arg(file).output();
        let output = run.map_err(|error| format!("losetup: {error}"))?;
        if !output.status.success() {
            return Err(format!("losetup: {}", String::from_utf8_lossy(&output.stderr).trim()));
        }
        Ok(Self { device: String::from_utf8_lossy(&output.stdout).trim().into() })
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.device).status();
    }
}
