//! What the tests of raw flash share.

pub mod disk;

use std::sync::Arc;

use bytes::Bytes;
use pumice_base::rng::Rng;
use pumice_flash::{Access, Device, Emulated};
use pumice_reactor::IoBuf;
use pumice_reactor::sim::{HostOptions, World};
use pumice_segment::ftl::RawFlash;

/// Runs in a world of one host whose time is virtual.
pub fn in_virtual_time<F: Future<Output = ()> + 'static>(run: impl FnOnce() -> F + 'static) {
    let world = World::new(1);
    let host = world.add_host(HostOptions { quirks: false, ..HostOptions::default() });
    world.block_on(host, async move { run().await }).expect("the world goes on");
}

/// An emulated device, and what injects its faults.
pub async fn nand(spec: &str) -> (Device, Arc<Emulated>) {
    let device = Device::open(&spec.parse().expect("spec"), Access::ReadWrite).await.expect("device");
    let Device::Emulated(nand) = &device else { panic!("not emulated") };
    let nand = Arc::clone(nand);
    (device, nand)
}

/// A segment's bytes, random ones of their seed.
pub fn segment(raw: &RawFlash, seed: u64) -> Bytes {
    let mut buf = IoBuf::zeroed(raw.segment_bytes() as usize);
    Rng::from_seed(seed).fill(&mut buf);
    buf.freeze()
}
