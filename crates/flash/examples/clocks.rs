//! The same work on the same emulated device on the real clock and on the virtual one:
//! `cargo run --release -p pumice-flash --example clocks -- [DEVICE]`. The model is one, so the times should differ by what
//! this machine's timers and CPU add, and by nothing else. `tests/clocks.rs` holds them to that.

use std::time::Duration;

use bytes::Bytes;
use pumice_flash::{Access, BlockAddr, Device};
use pumice_reactor::sim::{HostOptions, World};
use pumice_reactor::{IoBuf, JoinHandle, WriteSync, block_on, now, spawn};

/// What was done, and how long it took.
pub type Steps = Vec<(&'static str, Duration)>;

/// What every channel does side by side in one step.
#[derive(Clone, Copy)]
enum Step {
    Erase,
    Program,
    ReadWhole,
    ReadSmall,
}

fn main() {
    let name = std::env::args().nth(1).unwrap_or_else(|| "emu:sdf,channels=8,blocks=4,data=drop".to_string());
    let (simulated, real) = (on_virtual_clock(&name), on_real_clock(&name));
    println!("{name}");
    println!("{:<36} {:>12} {:>12} {:>8}", "", "virtual ms", "real ms", "ratio");
    for ((what, virtual_time), (_, real_time)) in simulated.iter().zip(&real) {
        let (simulated, real) = (virtual_time.as_secs_f64() * 1e3, real_time.as_secs_f64() * 1e3);
        println!("{what:<36} {simulated:>12.3} {real:>12.3} {:>8.4}", real / simulated);
    }
}

/// The work as it takes in this machine's time.
pub fn on_real_clock(name: &str) -> Steps {
    block_on(work(name.to_string()))
}

/// The work as it takes in virtual time.
pub fn on_virtual_clock(name: &str) -> Steps {
    let world = World::new(1);
    let host = world.add_host(HostOptions { quirks: false, ..HostOptions::default() });
    match world.block_on(host, work(name.to_string())) {
        Ok(steps) => steps,
        Err(halt) => panic!("the simulated world: {halt}"),
    }
}

async fn work(name: String) -> Steps {
    let device = match name.parse() {
        Ok(spec) => Device::open(&spec, Access::ReadWrite).await,
        Err(error) => panic!("{error}"),
    };
    let device = match device {
        Ok(device) => device,
        Err(error) => panic!("{error}"),
    };
    let mut steps = Vec::new();
    // Memory is taken before the clock starts.
    let geometry = device.geometry();
    let block = IoBuf::zeroed(geometry.block_bytes() as usize).freeze();
    for (what, step) in [
        ("erase a block on each channel", Step::Erase),
        ("program it", Step::Program),
        ("read it whole", Step::ReadWhole),
        ("100 small reads, one at a time", Step::ReadSmall),
    ] {
        let len = match step {
            Step::ReadWhole => geometry.block_bytes(),
            Step::ReadSmall => geometry.page_bytes,
            _ => 0,
        };
        let bufs: Vec<IoBuf> = (0..geometry.channels).map(|_| IoBuf::for_read(len as usize)).collect();
        let start = now();
        let tasks = bufs
            .into_iter()
            .enumerate()
            .map(|(channel, buf)| spawn(one(device.clone(), channel as u16, step, block.clone(), buf)));
        let tasks: Vec<JoinHandle<IoBuf>> = tasks.collect();
        let mut kept = Vec::new();
        for task in tasks {
            match task.await {
                Ok(buf) => kept.push(buf),
                Err(_) => panic!("a channel's task went away"),
            }
        }
        steps.push((what, start.elapsed()));
    }
    steps
}

async fn one(device: Device, channel: u16, step: Step, data: Bytes, mut buf: IoBuf) -> IoBuf {
    let (block, geometry) = (BlockAddr { channel, block: 0 }, device.geometry());
    let mut result = Ok(());
    match step {
        Step::Erase => result = device.erase(block).await,
        Step::Program => result = device.program(block, 0, data, WriteSync::Durable).await,
        Step::ReadWhole => (result, buf) = device.read(block, 0, buf).await,
        Step::ReadSmall => {
            for page in 0..100 {
                (result, buf) = device.read(block, page * geometry.page_bytes, buf).await;
            }
        }
    }
    assert!(result.is_ok(), "{result:?}");
    buf
}
