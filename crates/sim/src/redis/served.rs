//! World `redis`: the production server, its face on two cores, one drive, under everything that [`super::play`]
//! does to it.

use super::play::{Plan, play};
use crate::report::{Report, RunOptions};
use crate::worlds::Outcome;
use pumice_base::rng::Rng;
use pumice_flash::{Access, Device, DeviceSpec};
use pumice_kv::{Store, StoreFormat};
use pumice_node::{Node, NodeOptions};
use pumice_reactor::sim::{HostId, HostOptions, World};
use pumice_reactor::{Addr, CoreId, spawn, spawn_on};
use pumice_redis::face;
use pumice_redis::options::Options;
use pumice_redis::server::Server;
use std::sync::Arc;

const PATH: &str = "/drive0";
const SEGMENT_BYTES: u32 = 512 << 10;
const SEGMENTS: u64 = 128;
pub(super) const PORT: u16 = 6379;
/// Cores that serve clients; one more does background work.
pub(super) const SERVING_CORES: u16 = 2;

pub(super) async fn format() -> Result<(), String> {
    let bytes = SEGMENTS * u64::from(SEGMENT_BYTES);
    let device = Device::create(&DeviceSpec::Path(PATH.into()), bytes).await;
    let device = device.map_err(|error| format!("create: {error}"))?;
    let format = StoreFormat { drive_id: [7; 16], segment_bytes: SEGMENT_BYTES, ..StoreFormat::default() };
    Store::format(&device, &format).await.map_err(|error| format!("format: {error}"))
}

/// Opens the drive, as a node of one.
pub(super) async fn open_node() -> Node {
    let device = match Device::open(&DeviceSpec::Path(PATH.into()), Access::ReadWrite).await {
        Ok(device) => device,
        Err(error) => panic!("the drive did not open: {error}"),
    };
    let options = NodeOptions { set_id: [9; 16], ..NodeOptions::default() };
    match Node::open(vec![(PATH.into(), device)], &options, &|_, _| {}).await {
        Ok(node) => node,
        Err(error) => panic!("the drives did not open: {error}"),
    }
}

/// What `pumice serve` does, in the same order: listen, open the drives, serve, keep house.
async fn serve(seed: u64) {
    let options = Options { protected_mode: false, seed, ..Options::default() };
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
    let node = open_node().await;
    let background = node.clone();
    if let Err(error) = server.attach(node).await {
        panic!("the drives were not attached: {error}");
    }
    spawn_on(CoreId(SERVING_CORES), move || Box::pin(async move { background.start_background() }));
    drop(spawn(face::keep_house(server)));
}

pub(super) fn boot(world: &World, host: HostId, seed: u64) {
    drop(world.run(host, 0, serve(seed)));
}

pub(crate) fn run(seed: u64, options: &RunOptions, report: &mut Report) -> Outcome {
    let world = World::new(seed);
    let host = HostOptions {
        name: "server".into(),
        cores: usize::from(SERVING_CORES) + 1,
        ..HostOptions::default()
    };
    let server = world.add_host(host);
    world.block_on(server, format()).map_err(|halt| format!("format: {halt}"))??;
    let mut rng = Rng::from_seed(seed).split("redis");
    let mut plan = Plan::draw(&mut rng);
    if let Some(ops) = options.ops {
        plan.calls = ops;
    }
    let addr = world.addr(server, PORT);
    let played = play(&world, server, &addr, &mut |world| boot(world, server, seed), &mut rng, &plan);
    let counts = played.map_err(|what| format!("{what}\n  with {plan:?}"))?;
    for (name, count) in counts {
        report.count(name, count);
    }
    report.count("events", world.events());
    Ok(world.event_hash())
}
