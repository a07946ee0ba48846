//! World `redis`: the production server, its face on two cores, one to three drives, under everything that
//! [`super::play`] does to it: crashes, faulty links and media, jumping clocks.

use super::play::{Plan, play};
use crate::report::{Report, RunOptions};
use crate::worlds::Outcome;
use pumice_base::rng::Rng;
use pumice_flash::{Access, Device, DeviceSpec};
use pumice_kv::{Store, StoreFormat};
use pumice_node::{Node, NodeOptions};
use pumice_reactor::sim::{HostId, HostOptions, World};
use pumice_reactor::{Addr, CoreId, sleep, spawn, spawn_on};
use pumice_redis::face;
use pumice_redis::options::{DebugAccess, Options};
use pumice_redis::server::Server;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// What differs from seed to seed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Setup {
    pub seed: u64,
    pub drives: u8,
    /// Of each drive.
    pub channels: u16,
    /// Of all drives.
    pub memory_bytes: u64,
    /// How often everything is put into key tables, which memory of the default size would not need for long.
    pub checkpoint_ms: Option<u64>,
}

impl Setup {
    /// With as much memory as by default.
    pub fn plain(seed: u64, drives: u8, channels: u16) -> Self {
        Self {
            seed,
            drives,
            channels,
            memory_bytes: NodeOptions::default().memory_bytes,
            checkpoint_ms: None,
        }
    }
}

pub(super) fn path(drive: u8) -> PathBuf {
    format!("/drive{drive}").into()
}

const SEGMENT_BYTES: u32 = 512 << 10;
const SEGMENTS: u64 = 128;
pub(super) const PORT: u16 = 6379;
/// Cores that serve clients; one more does background work.
pub(super) const SERVING_CORES: u16 = 2;

pub(super) async fn format(drives: u8, channels: u16) -> Result<(), String> {
    for drive in 0..drives {
        let bytes = SEGMENTS * u64::from(SEGMENT_BYTES);
        let device = Device::create(&DeviceSpec::Path(path(drive)), bytes).await;
        let device = device.map_err(|error| format!("create: {error}"))?;
        let format = StoreFormat {
            drive_id: [7 + drive; 16],
            segment_bytes: Some(SEGMENT_BYTES),
            channels,
            ..StoreFormat::default()
        };
        Store::format(&device, &format).await.map_err(|error| format!("format: {error}"))?;
    }
    Ok(())
}

/// Media may fail while drives are being opened, too: whoever supervises a server starts it again.
const OPENINGS_MAX: u32 = 20;
const OPENED_AGAIN_AFTER: Duration = Duration::from_millis(100);

/// Opens the drives as one node.
pub(super) async fn open_node(setup: Setup) -> Node {
    let mut openings = 1;
    loop {
        match try_to_open(setup).await {
            Ok(node) => return node,
            Err(error) if openings == OPENINGS_MAX => panic!("the drives did not open: {error}"),
            Err(_) => sleep(OPENED_AGAIN_AFTER).await,
        }
        openings += 1;
    }
}

async fn try_to_open(setup: Setup) -> Result<Node, String> {
    let mut devices = Vec::new();
    // In whatever order they are named: each knows its place.
    for drive in (0..setup.drives).rev() {
        let device = Device::open(&DeviceSpec::Path(path(drive)), Access::ReadWrite).await;
        devices.push((path(drive).display().to_string(), device.map_err(|error| error.to_string())?));
    }
    let memory_bytes = setup.memory_bytes;
    let options = NodeOptions { set_id: [9; 16], memory_bytes, ..NodeOptions::default() };
    Node::open(devices, &options, &|_, _| {}).await.map_err(|error| error.to_string())
}

/// What `pumice serve` does, in the same order: listen, open the drives, serve, keep house.
async fn serve(setup: Setup) {
    // Sets are small here.
    let rank_walk_max = if setup.seed.is_multiple_of(2) { 1 } else { Options::default().rank_walk_max };
    let options = Options {
        protected_mode: false,
        debug: DebugAccess::Yes,
        seed: setup.seed,
        rank_walk_max,
        ..Options::default()
    };
    let server = match Server::new(options) {
        Ok(server) => Arc::new(server),
        Err(error) => panic!("the server did not start: {error}"),
    };
    for core in 0..SERVING_CORES {
        let server = Arc::clone(&server);
        spawn_on(CoreId(core), move || {
            Box::pin(async move {
                let addr: Addr = match format!("0.0.0.0:{PORT}").parse() {
                    Ok(addr) => addr,
                    Err(error) => panic!("{error}"),
                };
                match face::bind(&server, &addr).await {
                    Ok(face) => face.run().await,
                    Err(error) => panic!("{error}"),
                }
            })
        });
    }
    let node = open_node(setup).await;
    let background = node.clone();
    spawn_on(CoreId(SERVING_CORES), move || {
        Box::pin(async move {
            background.start_background();
            while let Some(ms) = setup.checkpoint_ms {
                sleep(Duration::from_millis(ms)).await;
                for drive in 0..background.drive_count() {
                    // Media may fail.
                    let _ = background.store(drive).checkpoint().await;
                }
            }
        })
    });
    if let Err(error) = server.attach(node).await {
        panic!("the drives were not attached: {error}");
    }
    drop(spawn(face::keep_house(server)));
}

pub(super) fn boot(world: &World, host: HostId, setup: Setup) {
    drop(world.run(host, 0, serve(setup)));
}

pub(crate) fn run(seed: u64, options: &RunOptions, report: &mut Report) -> Outcome {
    let world = World::new(seed);
    let mut rng = Rng::from_seed(seed).split("redis");
    let drives = [1, 1, 2, 3][rng.split("drives").below(4) as usize];
    let channels = [1, 1, 2, 4][rng.split("channels").below(4) as usize];
    let mut setup = Setup::plain(seed, drives, channels);
    if rng.split("memory").chance(0.5) {
        setup.memory_bytes = 0; // the least that a store takes
    }
    if rng.split("checkpoints").chance(0.5) {
        setup.checkpoint_ms = Some(20 + rng.split("checkpoint").below(200));
    }
    let mut plan = Plan::draw(&mut rng);
    if plan.crashes {
        plan.media = (0..drives).map(path).collect();
    }
    let host = HostOptions {
        name: "server".into(),
        cores: usize::from(SERVING_CORES) + 1,
        disk: plan.disk,
        ..HostOptions::default()
    };
    let server = world.add_host(host);
    world.block_on(server, format(drives, channels)).map_err(|halt| format!("format: {halt}"))??;
    report.count("drives", u64::from(drives));
    report.count("drives of several channels", u64::from(drives) * u64::from(channels > 1));
    if let Some(ops) = options.ops {
        plan.calls = ops;
    }
    let addr = world.addr(server, PORT);
    let played = play(&world, server, &addr, &mut |world| boot(world, server, setup), &mut rng, &plan);
    let counts = played.map_err(|what| format!("{what}\n  with {setup:?}, {plan:?}"))?;
    for (name, count) in counts {
        report.count(name, count);
    }
    report.count("events", world.events());
    Ok(world.event_hash())
}
