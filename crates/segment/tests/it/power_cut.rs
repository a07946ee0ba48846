//! Power cuts at every program, erase and sync: what was acknowledged is there, batches are whole or absent,
//! stale data is never taken for live.

use std::sync::Arc;

use crate::common::mini::{History, Mini};
use crate::common::{emulated, format_options, in_windows};
use pumice_base::rng::Rng;
use pumice_flash::{Device, Emulated};
use pumice_segment::{Durability, Heap, HeapOptions};

const SPEC: &str = "emu:tiny,channels=2,blocks=14,pages=16,page=4096";

fn small() -> HeapOptions {
    HeapOptions { commit_max_bytes: 16 << 10, reserve_segments: Some(4), ..in_windows() }
}

async fn fresh(seed: u64, faults: Faults) -> (Device, Arc<Emulated>) {
    let raw = if faults.is_raw { ",oob=128,ecc=off" } else { "" };
    let (device, emulated) = emulated(&format!("{SPEC},seed={seed}{raw}")).await;
    Heap::format(&device, &format_options()).await.expect("format");
    (device, emulated)
}

/// What else goes wrong beside the power.
#[derive(Clone, Copy, Debug)]
struct Faults {
    /// One program in this many fails; 0: none.
    failing_programs: u64,
    durability: Durability,
    /// Torn pages are handed out partly flipped, and parity is software's.
    is_raw: bool,
}

const NONE: Faults = Faults { failing_programs: 0, durability: Durability::Always, is_raw: false };

/// Runs the workload until `steps` are done or the power is cut.
async fn run(
    mini: &mut Mini,
    emulated: &Emulated,
    history: &mut History,
    rng: &mut Rng,
    (steps, faults): (u32, Faults),
) -> Result<(), String> {
    for _ in 0..steps {
        if faults.failing_programs > 0 && rng.below(faults.failing_programs) == 0 {
            emulated.fail_program_at(1 + rng.below(3));
        }
        let acknowledged = history.acknowledged;
        mini.step(history, rng, 24, 6000).await?;
        if faults.durability != Durability::Always {
            history.acknowledged = acknowledged;
            if rng.chance(0.1) {
                mini.heap.flush().await.map_err(|error| error.to_string())?;
                history.acknowledged = mini.batches;
            }
        }
    }
    Ok(())
}

async fn cut_at(seed: u64, first_cut: u64, steps: u32, faults: Faults) -> Result<bool, String> {
    let (device, emulated) = fresh(seed, faults).await;
    let options = HeapOptions { durability: faults.durability, ..small() };
    let mut history = History::default();
    let mut rng = Rng::from_seed(seed);
    let mut cut_at = first_cut;
    let mut reached = false;
    for life in 0..4 {
        emulated.cut_power_at(cut_at);
        let ended = match Mini::open(&device, options.clone()).await {
            Ok(mut mini) => {
                let verified = mini.verify(&history).await;
                verified.or_else(|error| if emulated.is_powered() { Err(error) } else { Ok(()) })?;
                let ended = run(&mut mini, &emulated, &mut history, &mut rng, (steps, faults)).await;
                let was_powered = emulated.is_powered();
                reached |= life == 0 && !was_powered;
                if was_powered {
                    emulated.cut_power();
                }
                // A dead process writes no more: the failure stops what the heap does in the background.
                let closed = mini.heap.close().await;
                assert!(closed.is_err(), "closed without power");
                ended.or_else(|error| if was_powered { Err(error) } else { Ok(()) })
            }
            Err(error) if emulated.is_powered() => Err(error),
            Err(_) => {
                reached |= life == 0;
                Ok(())
            }
        };
        ended.map_err(|error| format!("life {life}: {error}"))?;
        emulated.power_on();
        cut_at = 1 + rng.below(60);
    }
    let mini = Mini::open(&device, options).await?;
    mini.verify(&history).await?;
    if std::env::var("PUMICE_SHOW").is_ok() {
        let (batches, counts) = (history.batches.len(), emulated.counts());
        eprintln!("cut {first_cut}: {batches} batches, {counts:?}, {:?}", mini.heap.space());
    }
    Ok(reached)
}

/// Cuts at the `every`-th operations of the workload, each in a run of its own.
fn cut_everywhere(steps: u32, every: u64, faults: Faults) -> u64 {
    let variable = |name: &str| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    let seed = variable("PUMICE_SEED").unwrap_or(1);
    let only = variable("PUMICE_CUT");
    let mut cut = only.unwrap_or(1);
    loop {
        // Another workload for each cut: more is met, and every run replays by its own two numbers.
        match pumice_reactor::block_on(cut_at(seed * 1_000_003 + cut, cut, steps, faults)) {
            Ok(reached) if reached && only.is_none() => cut += every,
            Ok(_) => return cut,
            Err(error) => panic!(
                "cut {cut}, {faults:?}: {error}\nreplay: PUMICE_SEED={seed} PUMICE_CUT={cut} cargo test -p \
                 pumice-segment --test it power_cut::"
            ),
        }
    }
}

#[test]
fn a_power_cut_at_any_operation_loses_nothing_that_was_acknowledged() {
    let cuts = cut_everywhere(150, 1, NONE);
    assert!(cuts > 100 || std::env::var("PUMICE_CUT").is_ok(), "only {cuts} operations were cut");
}

#[test]
fn a_power_cut_among_failing_programs_loses_nothing_that_was_acknowledged() {
    cut_everywhere(100, 2, Faults { failing_programs: 40, ..NONE });
}

#[test]
fn a_power_cut_on_raw_media_loses_nothing_that_was_acknowledged() {
    cut_everywhere(60, 2, Faults { is_raw: true, ..NONE });
    cut_everywhere(60, 5, Faults { failing_programs: 40, is_raw: true, ..NONE });
}

#[test]
fn in_the_relaxed_modes_a_power_cut_leaves_a_prefix_that_holds_all_that_was_flushed() {
    cut_everywhere(100, 2, Faults { durability: Durability::EverySecond, ..NONE });
    cut_everywhere(100, 5, Faults { failing_programs: 40, durability: Durability::None, ..NONE });
}
