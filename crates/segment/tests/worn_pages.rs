//! Blocks near the end of their life on raw media: a first page that reads well does not speak for the others.

#[path = "common/mod.rs"]
mod common;
#[path = "common/mini.rs"]
mod mini;

use std::sync::Arc;

use common::{format_options, options};
use mini::{History, Mini, Write};
use pumice_base::rng::Rng;
use pumice_flash::{Access, Device, DeviceSpec, Emulated, Wear};
use pumice_segment::{Heap, HeapOptions};

const RATED: f64 = 1000.0;
/// Eight bits are corrected in 512 B, which with their parity are so many bits.
const CODEWORD_BITS: f64 = 4200.0;

fn small() -> HeapOptions {
    HeapOptions { commit_max_bytes: 16 << 10, reserve_segments: Some(4), ..options() }
}

/// A formatted drive of raw media on which nothing fails but bits; a block at its rated erases has `flips` in a codeword.
async fn drive(flips: f64, seed: u64) -> (Device, Arc<Emulated>) {
    let spec = format!("emu:tiny,channels=2,blocks=64,pages=16,oob=128,wear=on,ecc=off,seed={seed}");
    let DeviceSpec::Emulated(mut spec) = spec.parse().expect("spec") else { panic!("not emulated") };
    spec.wear = Wear {
        rated_erases: RATED,
        fresh: 0.0,
        worn: flips / CODEWORD_BITS,
        retention: 0.0,
        disturb: 0.0,
        program_failure: 0.0,
        erase_failure: 0.0,
        factory_bad: 0.0,
        ..spec.wear
    };
    let device = Device::open(&DeviceSpec::Emulated(spec), Access::ReadWrite).await.expect("device");
    let nand = device.emulated().expect("emulated").clone();
    Heap::format(&device, &format_options()).await.expect("format");
    (device, nand)
}

/// Ages blocks that nothing was written to yet, all or every other one.
fn wear_out(nand: &Emulated, step: usize) {
    let geometry = nand.geometry();
    let blocks = (0..geometry.block_count()).map(|number| geometry.block(number));
    for block in blocks.filter(|&block| nand.write_pointer(block) == Some(0)).step_by(step) {
        nand.wear_out(block, RATED as u32);
    }
}

#[test]
fn nothing_is_acknowledged_in_a_page_that_does_not_read_though_its_block_began_well() {
    let mut went_elsewhere = 0;
    for seed in 1..=8u64 {
        pumice_reactor::block_on(async {
            // Three flips in a codeword: of five blocks one begins with a page below half, and a third of these have pages
            // beyond the eight bits that are corrected.
            let (device, nand) = drive(3.0, seed).await;
            wear_out(&nand, 2);
            let (mut rng, mut history) = (Rng::from_seed(seed), History::default());
            let mut mini =
                Mini::open(&device, small()).await.unwrap_or_else(|what| panic!("seed {seed}: {what}"));
            for step in 0..150 {
                mini.step(&mut history, &mut rng, 24, 6000)
                    .await
                    .unwrap_or_else(|what| panic!("seed {seed}: {what}"));
                if step % 10 == 9 {
                    mini.verify(&history).await.unwrap_or_else(|what| panic!("seed {seed}: {what}"));
                }
            }
            went_elsewhere += mini.heap.stats().relocations;
            // After a power cut the copy that was acknowledged is found, and not the one that failed.
            nand.cut_power();
            let _ = mini.heap.close().await;
            drop(mini);
            nand.power_on();
            let mini =
                Mini::open(&device, small()).await.unwrap_or_else(|what| panic!("seed {seed}: {what}"));
            mini.verify(&history).await.unwrap_or_else(|what| panic!("seed {seed}: {what}"));
        });
    }
    assert!(went_elsewhere > 20, "{went_elsewhere}");
}

/// Reads and programs of so many frames of a page, each its own commit.
async fn counts_of(flips: f64, frames: u16) -> (u64, u64, u64) {
    let (device, nand) = drive(flips, 1).await;
    wear_out(&nand, 1);
    let mut history = History::default();
    let mut mini = Mini::open(&device, small()).await.expect("open");
    let before = nand.counts();
    for key in 0..frames {
        let write = Write { key, value: Some((u64::from(key), 500)) };
        mini.write(&mut history, vec![write]).await.expect("write");
    }
    let after = nand.counts();
    (after.reads - before.reads, after.programs - before.programs, after.erases - before.erases)
}

#[test]
fn what_is_programmed_is_read_back_only_in_blocks_that_have_shown_wear() {
    pumice_reactor::block_on(async {
        // First pages only, of segments and of metadata.
        let (reads, programs, erases) = counts_of(0.05, 60).await;
        assert!(programs >= 60 && reads <= erases + 1, "{reads} reads, {programs} programs, {erases} erases");
        // A quarter of eight bits is passed somewhere in nearly every first page.
        let (reads, programs, _) = counts_of(2.0, 60).await;
        assert!(reads >= programs / 2, "{reads} reads of {programs} programs");
    });
}
