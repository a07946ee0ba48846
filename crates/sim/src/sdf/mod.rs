//! SDF's figures (Ouyang et al., "SDF: Software-Defined Flash for Web-Scale Internet Storage Systems", ASPLOS 2014) over
//! our raw-flash layer (`pumice_segment::ftl`) and the emulated 44-channel card, in virtual time.
//!
//! 1. Throughput by request size (Table 4 and section 3.2), with the card's raw bandwidth.
//! 2. Throughput of 8 MiB requests against the number of channels (Figure 7).
//! 3. Latency of 8 MiB writes (Figure 8), against a conventional SSD of the same chips (`conventional.rs`).
//! 4. Not in the paper: latency of small reads while segments are erased and rewritten.
//! 5. Sequential reads by slices (Figure 13; `slices.rs`).
//! 6. Usable capacity and wear after writing the drive many times (`capacity.rs`).
//!
//! Still missing of the paper's: random reads by batch and slices (Figures 10–12), the LSM on top (Figure 14).
//!
//! The mapping, the scheduler, the tags and the device model are the code that serves `pumice serve --device emu:sdf` or
//! stands beside it; contents are dropped (`data=drop`), CPU is not modelled.

mod capacity;
mod conventional;
mod figures;
mod plot;
mod slices;

use std::future::Future;
use std::time::Duration;

use pumice_base::hash::stable_hash64;
use pumice_reactor::sim::{HostOptions, World};

use crate::report::{Report, RunOptions};
use crate::worlds::{Broken, Outcome};

/// What has to be known to read the figures.
const NOTES: [&str; 6] = [
    "inputs, published: link 1.61/1.40 GB/s, erase 40 GB/s over 44 channels (9.2 ms a segment), 3 µs of software a request",
    "inputs, derived: page 8,192 + 448 B, bus 40 MB/s a channel, tR 75 µs, two-plane tPROG 1.0 ms; GB are 10^9 B",
    "published values of 8, 16, 64 KiB and 8 MiB requests are from memory of the paper's Table 4, hence bands of 8%",
    "missed: sequential reads gain beyond the paper's 16 slices here (its peak), see crates/sim/src/sdf/slices.rs; no band",
    "CPU is not modelled: these are the card's limits and the scheduler's, not this machine's speed",
    "the conventional SSD is a model of our own (see crates/sim/src/sdf/conventional.rs): compare its shape only",
];

/// Virtual time that one measurement may take: far more than any needs.
const LIMIT: Duration = Duration::from_secs(3600);

/// What the measurements add up to.
#[derive(Default)]
struct Run {
    seed: u64,
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
}

/// Runs all figures.
pub(crate) fn run(seed: u64, options: &RunOptions, report: &mut Report) -> Outcome {
    let mut run = Run { seed, ..Run::default() };
    let (mut rows, mut plots) = (Vec::new(), Vec::new());
    figures::by_size(&mut run, &mut rows, &mut plots)?;
    figures::by_channels(&mut run, &mut rows, &mut plots)?;
    figures::write_latency(&mut run, &mut rows, &mut plots)?;
    figures::read_latency(&mut run, &mut rows, &mut plots)?;
    slices::sequential_reads(&mut run, &mut rows, &mut plots)?;
    capacity::capacity_and_wear(&mut run, &mut rows, &mut plots)?;
    if let Some(dir) = &options.plot {
        for figure in &plots {
            figure.write(dir).map_err(|error| format!("plots in {}: {error}", dir.display()))?;
        }
        report.count("plots written", plots.len() as u64);
    }
    report.count("virtual ms", run.virtual_ms);
    report.count("events of the reactor", run.events);
    report.rows = rows;
    report.notes = NOTES.iter().map(ToString::to_string).collect();
    Ok(run.hash)
}
