//! Blocks near the end of their life on raw media: a first page that reads well does not speak for the others.

use std::sync::Arc;
use std::time::Duration;

use crate::common::mini::{History, Mini, Write};
use crate::common::{self, format_options, options};
use bytes::Bytes;
use pumice_base::rng::Rng;
use pumice_flash::{Access, Device, DeviceSpec, Emulated, Wear};
use pumice_segment::{Heap, HeapOptions, MetaEdit};

const RATED: f64 = 1000.0;
/// Eight bits are corrected in 512 B, which with their parity are so many bits.
const CODEWORD_BITS: f64 = 4200.0;

fn small() -> HeapOptions {
    HeapOptions { commit_max_bytes: 16 << 10, reserve_segments: Some(4), ..options() }
}

/// A formatted drive of raw media on which nothing fails but bits; a block at its rated erases has `flips` in a codeword.
async fn drive(flips: f64, seed: u64) -> (Device, Arc<Emulated>) {
    decaying(flips, 0.0, seed).await
}

/// The same where at their rated erases codewords come to have so many more flips in a year.
async fn decaying(flips: f64, flips_a_year: f64, seed: u64) -> (Device, Arc<Emulated>) {
    let spec = format!("emu:tiny,channels=2,blocks=64,pages=16,oob=128,wear=on,ecc=off,seed={seed}");
    let DeviceSpec::Emulated(mut spec) = spec.parse().expect("spec") else { panic!("not emulated") };
    spec.wear = Wear {
        rated_erases: RATED,
        fresh: 0.0,
        worn: flips / CODEWORD_BITS,
        retention: flips_a_year / CODEWORD_BITS / 365.0,
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
        // First pages only, and the few records of metadata.
        let (reads, programs, erases) = counts_of(0.05, 60).await;
        assert!(
            programs >= 60 && reads <= 2 * erases + 1,
            "{reads} reads, {programs} programs, {erases} erases"
        );
        // A quarter of eight bits is passed somewhere in nearly every first page.
        let (reads, programs, _) = counts_of(2.0, 60).await;
        assert!(reads >= programs / 2, "{reads} reads of {programs} programs");
    });
}

#[test]
fn a_metadata_record_that_does_not_read_is_written_elsewhere_before_anything_counts_on_it() {
    let mut records = 0;
    for seed in 1..=16u64 {
        pumice_reactor::block_on(async {
            let said = |what: &str| format!("seed {seed}: {what}");
            // The log's next half is worn, and everything else: a page in thirty is beyond repair.
            let (device, nand) = drive(3.0, seed).await;
            wear_out(&nand, 1);
            let mut acknowledged: Vec<Bytes> = Vec::new();
            for round in 0..4u8 {
                let opened = Heap::open(device.clone(), small(), &common::no_progress).await;
                let opened = opened.unwrap_or_else(|error| panic!("{}", said(&error.to_string())));
                let mut opened = opened;
                while opened.replay.next().await.expect("replay").is_some() {}
                assert!(opened.client_state == acknowledged, "{}", said("an edit is gone"));
                for step in 0..60u8 {
                    let state = Bytes::from(vec![round * 64 + step; 700]);
                    let edit = match opened.heap.wants_snapshot() {
                        true => MetaEdit::Snapshot(state.clone()),
                        false => MetaEdit::Edit(state.clone()),
                    };
                    if matches!(edit, MetaEdit::Snapshot(_)) {
                        acknowledged.clear();
                    }
                    // Where too much is worn the drive says so.
                    if opened.heap.commit_meta(edit, 0).await.is_err() {
                        return;
                    }
                    acknowledged.push(state);
                    records += 1;
                }
                nand.cut_power();
                drop(opened);
                nand.power_on();
            }
        });
    }
    assert!(records > 1000, "{records}");
}

/// A record that reads well when it is written and decays: nothing is written for years, so that no snapshot comes for its own
/// sake. Twelve bits a year are more than the code corrects in any.
#[test]
fn metadata_that_decay_are_written_again_by_the_patrol_before_they_are_lost() {
    const DAYS: u32 = 5;
    for patrols in [true, false] {
        let (mut lost, mut renewed) = (0, 0);
        for seed in 1..=8u64 {
            pumice_reactor::block_on(async {
                let (device, nand) = decaying(0.0, 12.0, seed).await;
                let state = Bytes::from(vec![seed as u8; 3000]);
                {
                    let mut opened =
                        Heap::open(device.clone(), small(), &common::no_progress).await.expect("open");
                    while opened.replay.next().await.expect("replay").is_some() {}
                    let edit = MetaEdit::Snapshot(state.clone());
                    opened.heap.commit_meta(edit, 0).await.expect("metadata");
                    for number in 0..nand.geometry().block_count() {
                        nand.wear_out(nand.geometry().block(number), RATED as u32);
                    }
                    for _ in 0..2 * 365 / DAYS {
                        nand.age(Duration::from_secs(86_400 * u64::from(DAYS)));
                        if patrols {
                            pass(&opened.heap).await;
                        }
                    }
                    renewed += opened.heap.patrol_stats().renewed;
                    nand.cut_power();
                }
                nand.power_on();
                match Heap::open(device.clone(), small(), &common::no_progress).await {
                    Ok(opened) => assert!(opened.client_state == [state], "seed {seed}"),
                    Err(error) if patrols => panic!("seed {seed}: {error}"),
                    Err(_) => lost += 1,
                }
            });
        }
        assert_eq!((lost, renewed > 8), if patrols { (0, true) } else { (8, false) }, "{renewed}");
    }
}

/// Walks over the whole drive.
async fn pass(heap: &Heap) {
    let (mut patrol, passes) = (heap.patrol(), heap.patrol_stats().passes);
    while heap.patrol_stats().passes == passes {
        let step = patrol.step().await.expect("step");
        assert!(step.damage.is_empty(), "{:?}", step.damage);
    }
}
