//! The suites: each measures one of the promises, and returns its tables.

mod collections;
mod contender;
mod five;
mod index;
mod memory;
mod network;
mod network_cold;
mod network_large;
mod overwrite;
pub mod own;
mod redis_benchmark;
mod reply_floor;
pub mod rounds;
mod scaling;
mod segment;
mod sizes;
mod startup;

use std::path::{Path, PathBuf};

use crate::fio::{Limit, Pattern};
use crate::keys::{Distribution, KEY_BYTES};
use crate::phase::{EngineKind, PhaseResult, PhaseSpec, Work, WorkerResult, WorkerSpec};
use crate::report::Report;
use crate::{Result, fio, machine, worker};

/// What the caller asked for.
#[derive(Clone, Debug)]
pub struct Context {
    /// Tiny data and short phases: shows that everything runs, not how fast.
    pub quick: bool,
    /// What timed phases are shortened by: 1 is the full length.
    pub brevity: f64,
    /// Whether the running suite's phases were.
    pub was_cut: std::cell::Cell<bool>,
    /// Where the data goes; emptied after each step.
    pub dir: PathBuf,
    /// `pumice`, if it was built.
    pub pumice: Option<PathBuf>,
    /// Only these stores.
    pub engines: Vec<EngineKind>,
    /// Only these value sizes (empty: the suite's own).
    pub values: Vec<usize>,
}

/// A suite by name.
pub struct Suite {
    /// For `--only`.
    pub name: &'static str,
    /// One line for `list`.
    pub about: &'static str,
    /// Measures and fills in the tables.
    pub run: fn(&Context, &mut Report) -> Result<()>,
}

/// All suites, in the order they run.
pub const SUITES: &[Suite] = &[
    Suite {
        name: "five",
        about: "LightStore's five workloads as a share of the device's limit",
        run: five::run,
    },
    Suite {
        name: "sizes",
        about: "value sizes from 100 B to 1 MiB against RocksDB and fjall",
        run: sizes::run,
    },
    Suite {
        name: "sizes-roomy",
        about: "the same on drives a fifth full, where all stores fit, overwritten until cleaning is steady",
        run: sizes::run_roomy,
    },
    Suite {
        name: "index",
        about: "flash reads per GET, index bytes per key, memory within budget",
        run: index::run,
    },
    Suite { name: "memory", about: "the most memory that the server takes, by phase", run: memory::run },
    Suite { name: "network", about: "operations over the network against redis-server", run: network::run },
    Suite {
        name: "reply-floor",
        about: "hot GETs beside the least that a server can be, which parses and answers a constant",
        run: reply_floor::run,
    },
    Suite { name: "network-large", about: "32 MiB values over 4 connections", run: network_large::run },
    Suite { name: "redis-benchmark", about: "the same by redis-benchmark", run: redis_benchmark::run },
    Suite {
        name: "collections",
        about: "commands over elements against redis-server, and over elements that lie on flash",
        run: collections::run,
    },
    Suite { name: "overwrite", about: "latency and stalls during a long overwrite", run: overwrite::run },
    Suite {
        name: "startup",
        about: "opening after a clean close and after a crash, by size",
        run: startup::run,
    },
    Suite { name: "seam", about: "the reactor's driver seam against a bare ring", run: own::seam },
    Suite {
        name: "translation",
        about: "raw flash on one core: from an id to its place, checksums of pages, BCH",
        run: own::translation,
    },
    Suite {
        name: "segment",
        about: "the segment layer on a file against fio: 8 MiB writes and reads, 8 KiB random reads",
        run: segment::run,
    },
    Suite {
        name: "scaling",
        about: "1 to 2 cores; commits by depth against the commit floor",
        run: scaling::run,
    },
];

impl Context {
    /// Runs one suite and returns its report, complete with where and when.
    pub fn report(&self, suite: &Suite) -> Result<Report> {
        std::fs::create_dir_all(&self.dir)?;
        let mut report = Report {
            name: suite.name.into(),
            date: machine::today(),
            command: format!("bench/run --only {}", suite.name),
            machine: machine::describe(&self.dir),
            about: vec![format!("*{}.*", capital(suite.about))],
            ..Report::default()
        };
        if self.quick {
            report
                .about
                .push("**A quick run: tiny data, short phases. It shows that everything runs.**".into());
        }
        self.was_cut.set(false);
        (suite.run)(self, &mut report)?;
        if self.was_cut.get() {
            report
                .about
                .push(format!("Timed phases were cut to {} of their length (`--brief`).", self.brevity));
        }
        Ok(report)
    }

    /// Seconds of a timed phase: the full length (or what is left of it), or the quick one.
    pub fn seconds(&self, full: f64, quick: f64) -> f64 {
        self.was_cut.set(self.brevity != 1.0 && !self.quick);
        self.pick(full * self.brevity, quick)
    }

    /// The full figure, or the quick one.
    pub fn pick<T>(&self, full: T, quick: T) -> T {
        if self.quick { quick } else { full }
    }

    /// `kinds` without those that the caller left out.
    pub fn engines(&self, kinds: &[EngineKind]) -> Vec<EngineKind> {
        kinds.iter().copied().filter(|k| self.engines.is_empty() || self.engines.contains(k)).collect()
    }

    /// An empty folder for one step, its predecessor's data gone.
    pub fn fresh_dir(&self, name: &str) -> Result<PathBuf> {
        let dir = self.dir.join(name);
        remove(&dir);
        std::fs::create_dir_all(&dir)?;
        Ok(dir)
    }

    /// A worker's spec with no phases yet.
    pub fn worker(&self, engine: EngineKind, dir: &Path, value_bytes: usize, data: Data) -> WorkerSpec {
        WorkerSpec {
            engine,
            dir: dir.into(),
            value_bytes,
            keys: data.keys(value_bytes),
            memory_bytes: data.memory_bytes,
            cores: 2,
            space_bytes: data.space_bytes,
            fresh: true,
            prewritten: false,
            phases: Vec::new(),
        }
    }
}

/// Removes a step's data.
pub fn remove(dir: &Path) {
    let _ = std::fs::remove_dir_all(dir);
}

/// Thirty-two segments: on fewer, metadata and reserve are most of a drive.
const SPACE_BYTES_MIN: u64 = 256 << 20;

/// How large a data set is, and what the stores are given for it.
#[derive(Clone, Copy, Debug)]
pub struct Data {
    /// Keys and values together.
    pub bytes: u64,
    /// Memory budget.
    pub memory_bytes: u64,
    /// Drive or disk space.
    pub space_bytes: u64,
}

impl Data {
    /// A data set that fills `fill` of the space it is given.
    pub fn filling(bytes: u64, memory_bytes: u64, fill: f64) -> Data {
        // Whole segments; the drive's own metadata comes on top.
        let space_bytes = ((bytes as f64 / fill) as u64).next_multiple_of(8 << 20).max(SPACE_BYTES_MIN);
        Data { bytes, memory_bytes, space_bytes }
    }

    /// Keys of `value_bytes` values that make up the data set.
    pub fn keys(&self, value_bytes: usize) -> u64 {
        (self.bytes / (KEY_BYTES + value_bytes) as u64).max(16)
    }
}

/// A phase of `work`.
pub fn phase(name: &str, work: Work, ops: u64, seconds_max: f64, depth: u32) -> PhaseSpec {
    PhaseSpec {
        name: name.into(),
        work,
        ops,
        seconds_max,
        depth,
        durable: false,
        distribution: Distribution::Uniform,
    }
}

impl PhaseSpec {
    /// The same with durable SETs.
    pub fn durable(mut self) -> PhaseSpec {
        self.durable = true;
        self
    }

    /// The same with Zipfian keys.
    pub fn zipfian(mut self) -> PhaseSpec {
        self.distribution = Distribution::Zipfian;
        self
    }
}

/// No bound on operations: the time limit ends the phase.
pub const UNTIL_TIME: u64 = u64::MAX;

/// A phase that finds the device's limit on the store's own file (patterns that only read).
pub fn limit_phase(name: &str, pattern: Pattern, block_bytes: u64, depth: u32, seconds: f64) -> PhaseSpec {
    phase(name, Work::Limit(limit(pattern, block_bytes, depth, seconds)), 0, seconds, depth)
}

/// An fio job on a whole file.
pub fn limit(pattern: Pattern, block_bytes: u64, depth: u32, seconds: f64) -> Limit {
    // O_DIRECT takes whole sectors.
    let block_bytes = block_bytes.next_multiple_of(512);
    Limit { pattern, block_bytes, depth, durable: false, seconds, span_bytes: 0, is_checked: false }
}

/// Runs an fio job, says so, and returns its figures.
pub fn run_limit(name: &str, limit: &Limit, file: &Path) -> Result<PhaseResult> {
    eprintln!("  fio: {name}");
    let mut result = fio::run(limit, file)?;
    result.name = name.into();
    Ok(result)
}

/// Runs a worker; a failed one still gives the phases it finished, and the reason is kept as a note.
pub fn run_worker(spec: &WorkerSpec, notes: &mut Vec<String>) -> WorkerResult {
    eprintln!(
        "  {}: {} phases, {} keys of {} B",
        spec.engine,
        spec.phases.len(),
        spec.keys,
        spec.value_bytes
    );
    let result = worker::start(spec)
        .unwrap_or_else(|e| WorkerResult { error: Some(e.to_string()), ..WorkerResult::default() });
    if let Some(error) = &result.error {
        let note = format!("**{} stopped early**: {error}", spec.engine);
        eprintln!("  {note}");
        notes.push(note);
    }
    for phase in &result.phases {
        if phase.wrong > 0 || phase.misses > 0 {
            notes.push(format!(
                "**{}, {}: {} wrong and {} missing of {} operations**",
                spec.engine, phase.name, phase.wrong, phase.misses, phase.ops
            ));
        }
    }
    result
}

fn capital(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or(String::new(), |c| c.to_uppercase().collect::<String>() + chars.as_str())
}
