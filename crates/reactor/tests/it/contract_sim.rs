//! The driver contract in the simulation.

use crate::contract::{Check, Place};
use pumice_reactor::sim::{HostOptions, World};

fn run(name: &str, check: Check) {
    for seed in 0..4 {
        let world = World::new(seed);
        let host = world.add_host(HostOptions { cores: 2, quirks: seed % 2 == 1, ..HostOptions::default() });
        if seed >= 2 {
            world.set_queue_depth(host, 6);
        }
        let (any_port, own_address) = (world.addr(host, 0), world.addr(host, 0));
        let place = Place { dir: "/files".into(), any_port, own_address, many: 200 };
        if let Err(halt) = world.block_on(host, async move { check(place).await }) {
            panic!("{name} with seed {seed}: {halt}");
        }
    }
}

contract_tests!(run);
