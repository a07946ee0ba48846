//! SDF's figures (Ouyang et al., "SDF: Software-Defined Flash for Web-Scale Internet Storage Systems", ASPLOS 2014) over
//! our raw-flash layer (`pumice_segment::ftl`) and the emulated 44-channel card, in virtual time. Sections bear the numbers
//! of the list below; files are named after the paper's own figure or table, or `sdf-ours-…` where it has none.
//!
//! 1. Throughput by request size, with the card's raw bandwidth (the paper's Table 4; `throughput.rs`).
//! 2. Throughput of 8 MiB requests against the number of channels (Figure 7; `throughput.rs`).
//! 3. Latency of 8 MiB writes against a conventional SSD of the same chips (Figure 8; `write_latency.rs`, `conventional.rs`).
//! 4. Random reads by batch and slices, beside the conventional SSD (Figures 10 to 12; `random_reads.rs`).
//! 5. Writes by slices with the LSM of the real `kv` on top (Figure 14; `lsm.rs`).
//! 6. Usable capacity, and wear after writing the drive many times (`capacity.rs`).
//! 7. Not in the paper: latency of small reads while segments are erased and rewritten (`under_erase.rs`).
//! 8. Sequential reads by slices, without an LSM (Figure 13; `sequential.rs`).
//!
//! The mapping, the scheduler, the tags, the device model and the LSM are the code that serves; where nothing is verified
//! contents are dropped (`data=drop`). CPU is not modelled. `--cut N` runs section N alone; `--ops N` makes everything smaller
//! in the proportion that takes the busiest client's requests from [`OPS`] to N, for tests.

mod capacity;
mod card;
mod conventional;
mod lsm;
mod plot;
mod random_reads;
mod sequential;
mod throughput;
mod under_erase;
mod write_latency;

use std::future::Future;
use std::time::Duration;

use plot::Section;
use pumice_base::hash::stable_hash64;
use pumice_reactor::sim::{HostOptions, World};

use crate::report::{Report, RunOptions};
use crate::worlds::{Broken, Outcome};

/// What has to be known to read any of the figures.
const NOTES: [&str; 4] = [
    "CPU is not modelled: these are the card's limits and the scheduler's, not this machine's speed",
    "inputs, published: link 1.61/1.40 GB/s, erase 40 GB/s over 44 channels (9.2 ms a segment), 3 µs of software a request",
    "inputs, derived: page 8,192 + 448 B, bus 40 MB/s a channel, tR 75 µs, two-plane tPROG 1.0 ms; GB are 10^9 B",
    "everything else is predicted; rows with a band are judged, the others shown",
];

/// Requests of the busiest client of a whole run.
const OPS: u64 = 1500;
/// Virtual time that one measurement may take: far more than any needs.
const LIMIT: Duration = Duration::from_secs(3600);

/// What the measurements add up to.
struct Run {
    seed: u64,
    /// Of a whole run's size.
    scale: f64,
    hash: u64,
    virtual_ms: u64,
    events: u64,
}

impl Run {
    /// Measures in a world of its own.
    fn world<T, F>(&mut self, name: &str, measure: impl FnOnce() -> F + 'static) -> Result<T, Broken>
    where
        F: Future<Output = Result<T, String>> + 'static,
        T: 'static,
    {
        let world = World::new(stable_hash64(self.seed, name.as_bytes()));
        let host = world.add_host(HostOptions { quirks: false, ..HostOptions::default() });
        let measured = world.block_on_for(host, LIMIT, async move { measure().await });
        let measured = measured.map_err(|halt| format!("{name}: {halt}"))?;
        let measured = measured.map_err(|error| format!("{name}: {error}"))?;
        self.hash = stable_hash64(self.hash, &world.event_hash().to_le_bytes());
        self.virtual_ms += world.now().0 / 1_000_000;
        self.events += world.events();
        Ok(measured)
    }

    /// So many of a whole run's `count`, at least `least`.
    fn times(&self, count: u32, least: u32) -> u32 {
        ((f64::from(count) * self.scale).round() as u32).clamp(least.min(count), count)
    }
}

/// Makes a section.
type Measurement = fn(&mut Run) -> Result<Section, Broken>;

/// Runs all figures.
pub(crate) fn run(seed: u64, options: &RunOptions, report: &mut Report) -> Outcome {
    let scale = options.ops.map_or(1.0, |ops| (ops as f64 / OPS as f64).min(1.0));
    let mut run = Run { seed, scale, hash: 0, virtual_ms: 0, events: 0 };
    let all: [Measurement; 8] = [
        throughput::by_size,
        throughput::by_channels,
        write_latency::section,
        random_reads::section,
        lsm::section,
        capacity::section,
        under_erase::section,
        sequential::section,
    ];
    let mut sections = Vec::new();
    for (number, section) in (1..).zip(all) {
        if options.cut.is_none_or(|only| only == number) {
            let measured = section(&mut run);
            let measured =
                measured.map_err(|broken| Broken { replay_args: format!(" --cut {number}"), ..broken });
            sections.push(measured?);
        }
    }
    if let Some(dir) = &options.plot {
        let written = plot::write_all(dir, seed, &sections);
        let written = written.map_err(|error| format!("plots in {}: {error}", dir.display()))?;
        report.count("files written", written);
    }
    report.count("virtual ms", run.virtual_ms);
    report.count("events of the reactor", run.events);
    report.notes = NOTES.iter().map(ToString::to_string).collect();
    report.rows.clear();
    for section in sections {
        report.rows.extend(section.rows);
        report.notes.extend(section.notes.iter().map(|note| format!("{}: {note}", section.title)));
    }
    Ok(run.hash)
}
