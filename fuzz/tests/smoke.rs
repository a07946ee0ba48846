//! A small budget of every target, on stable. `PUMICE_FUZZ_RUNS` and `PUMICE_FUZZ_SEED` choose another.

use pumice_fuzz::runner::{self, Watching};
use pumice_fuzz::targets;

#[global_allocator]
static ALLOCATOR: Watching = Watching;

fn from_environment(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

#[test]
fn no_target_falls_over_malformed_input() {
    let (runs, seed) =
        (from_environment("PUMICE_FUZZ_RUNS", 50_000), from_environment("PUMICE_FUZZ_SEED", 1));
    for target in targets::ALL {
        if let Err(failure) = runner::run(target, seed, 0, runner::budget(target, runs)) {
            panic!("{failure}");
        }
    }
}

/// A superblock whose count of segments was believed before the device was asked.
#[test]
fn a_superblock_of_more_segments_than_the_drive_has_costs_no_memory() {
    let target = targets::ALL.iter().find(|target| target.name == "drive_image").expect("a target");
    if let Err(failure) = runner::run(target, 11, 404, 1) {
        panic!("{failure}");
    }
}

#[test]
fn every_target_has_its_libfuzzer_file() {
    for target in targets::ALL {
        let path = format!("{}/fuzz_targets/{}.rs", env!("CARGO_MANIFEST_DIR"), target.name);
        let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
        assert!(text.contains("fuzz_target!"), "{path}");
        let manifest = include_str!("../Cargo.toml");
        assert!(
            manifest.contains(&format!("fuzz_targets/{}.rs", target.name)),
            "{} is not in Cargo.toml",
            target.name
        );
    }
}
