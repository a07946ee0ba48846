//! The list of worlds, and the loop over seeds that all of them share.

use crate::ftl;
use crate::kv;
use crate::redis;
use crate::report::{Failure, Report, RunError, RunOptions};
use crate::sdf;
use pumice_base::hash::stable_hash64;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// One world that can be run.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub struct WorldInfo {
    /// What `run` takes.
    pub name: &'static str,
    /// One sentence for people.
    pub about: &'static str,
}

/// What one seed of a world answers: its event hash, or what went wrong (with the arguments beyond
/// `--seed` which the replay needs).
pub(crate) struct Broken {
    pub what: String,
    pub replay_args: String,
}

impl From<String> for Broken {
    fn from(what: String) -> Self {
        Self { what, replay_args: String::new() }
    }
}

pub(crate) type Outcome = Result<u64, Broken>;

struct World {
    info: WorldInfo,
    run: fn(u64, &RunOptions, &mut Report) -> Outcome,
}

const WORLDS: &[World] = &[
    World {
        info: WorldInfo {
            name: "ftl",
            about: "power cut at every operation of a raw-flash drive, and again while it recovers",
        },
        run: ftl::run,
    },
    World {
        info: WorldInfo {
            name: "kv",
            about: "one drive under a mixed workload, ended by power cuts, kills and clean closes",
        },
        run: kv::run_crash,
    },
    World {
        info: WorldInfo { name: "kv-cut", about: "power cut at every operation of a small workload" },
        run: kv::run_cut,
    },
    World {
        info: WorldInfo {
            name: "kv-each",
            about: "power cut at every operation inside of each kind of change: set, delete, flush, merge, cleaning, …",
        },
        run: kv::run_each,
    },
    World {
        info: WorldInfo {
            name: "kv-fault",
            about: "programs, erases and syncs fail, planned and by chance, on a file and on emulated NAND",
        },
        run: kv::run_fault,
    },
    World {
        info: WorldInfo { name: "kv-flip", about: "bits flip anywhere on a drive, and pages do not read" },
        run: kv::run_flip,
    },
    World {
        info: WorldInfo { name: "kv-full", about: "a drive is filled, half emptied, filled again" },
        run: kv::run_full,
    },
    World {
        info: WorldInfo {
            name: "kv-worn",
            about: "a small drive of raw NAND ages until its blocks die, with power cuts in between",
        },
        run: kv::run_worn,
    },
    World {
        info: WorldInfo {
            name: "node-cut",
            about: "power cut at every operation of commands that change keys on two drives",
        },
        run: redis::run_drives,
    },
    World {
        info: WorldInfo {
            name: "redis",
            about: "links, media and the server fail under its clients; every key, and commands on several, must stay linearizable",
        },
        run: redis::run,
    },
    World {
        info: WorldInfo {
            name: "redis-cut",
            about: "power cut, or a write fails, inside of commands that write a large collection in many batches",
        },
        run: redis::run_cut,
    },
    World {
        info: WorldInfo {
            name: "sdf",
            about: "software-defined flash: the paper's figures, measured in virtual time over the emulated card",
        },
        run: sdf::run,
    },
];

/// Every world there is.
pub fn list() -> Vec<WorldInfo> {
    WORLDS.iter().map(|world| world.info).collect()
}

/// Runs the world `name` over the seeds asked for. A panic of the code under test counts as that seed's failure.
pub fn run(name: &str, options: &RunOptions) -> Result<Report, RunError> {
    run_watched(name, options, |_, _| {})
}

/// [`run`] for who waits: `watch` is told after each seed how many have been run, and what went wrong with it.
pub fn run_watched(
    name: &str,
    options: &RunOptions,
    mut watch: impl FnMut(u64, Option<&Failure>),
) -> Result<Report, RunError> {
    let world =
        WORLDS.iter().find(|world| world.info.name == name).ok_or_else(|| RunError::UnknownWorld {
            name: name.to_string(),
            known: list().iter().map(|info| info.name).collect::<Vec<_>>().join(", "),
        })?;
    let mut report = Report { world: name.to_string(), seed: options.seed, ..Report::default() };
    let started = wall_clock();
    for seed in options.seed..options.seed.saturating_add(options.seeds) {
        report.seeds += 1;
        let outcome = caught(|| (world.run)(seed, options, &mut report));
        match outcome {
            Ok(hash) => {
                report.event_hash = stable_hash64(report.event_hash, &hash.to_le_bytes());
                watch(report.seeds, None);
            }
            Err(broken) => {
                let ops = options.ops.map(|ops| format!(" --ops {ops}")).unwrap_or_default();
                let cut = options.cut.filter(|_| broken.replay_args.is_empty());
                let cut = cut.map(|cut| format!(" --cut {cut}")).unwrap_or_default();
                let replay = format!("pumice sim run {name} --seed {seed}{ops}{cut}{}", broken.replay_args);
                let failure = Failure { seed, what: broken.what, replay };
                watch(report.seeds, Some(&failure));
                report.failures.push(failure);
                if options.stop_at_failure {
                    break;
                }
            }
        }
    }
    report.wall = started.elapsed();
    Ok(report)
}

#[allow(clippy::disallowed_methods)] // How fast the simulator is; nothing in a world sees it.
fn wall_clock() -> std::time::Instant {
    std::time::Instant::now()
}

/// Runs `f`; a panic in it becomes an error.
pub(crate) fn caught<T, E: From<String>>(f: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
    catch_unwind(AssertUnwindSafe(f))
        .unwrap_or_else(|panic| Err(format!("panicked: {}", panic_text(&*panic)).into()))
}

/// The message of a caught panic.
fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    panic
        .downcast_ref::<String>()
        .cloned()
        .or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string))
        .unwrap_or_else(|| "without a message".to_string())
}
