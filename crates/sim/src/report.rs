//! What a run is asked to do and what it answers.

use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;

/// What to run. The default is one seed at the size of a smoke test.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// The first seed.
    pub seed: u64,
    /// How many consecutive seeds to run, each a world of its own.
    pub seeds: u64,
    /// Operations per client and seed; `None` takes the world's own choice.
    pub ops: Option<u64>,
    /// Replays one case of a world that goes through many: the number that its failure names (a power cut, a
    /// flipped bit).
    pub cut: Option<u64>,
    /// Stop after the first seed that fails.
    pub stop_at_failure: bool,
}

impl Default for RunOptions {
    fn default() -> Self {
        Self { seed: 1, seeds: 1, ops: None, cut: None, stop_at_failure: false }
    }
}

/// One seed that failed.
#[derive(Clone, Debug, Serialize)]
pub struct Failure {
    /// The seed of the failing run.
    pub seed: u64,
    /// What went wrong, for people.
    pub what: String,
    /// The one command that replays it.
    pub replay: String,
}

/// The outcome of [`crate::run`].
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// The world's name.
    pub world: String,
    /// The first seed.
    pub seed: u64,
    /// How many seeds were run.
    pub seeds: u64,
    /// Seeds that failed, in order.
    pub failures: Vec<Failure>,
    /// What was done, summed over the seeds: operations, cuts, checks (names say the unit).
    pub counters: BTreeMap<String, u64>,
    /// The event hashes of all seeds folded into one: equal for two runs of the same options, or the
    /// simulator has lost its determinism.
    pub event_hash: u64,
}

impl Report {
    /// True when no seed failed.
    pub fn passed(&self) -> bool {
        self.failures.is_empty()
    }

    /// Adds `n` to the counter `name`.
    pub(crate) fn count(&mut self, name: &str, n: u64) {
        *self.counters.entry(name.to_string()).or_default() += n;
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let last = self.seed + self.seeds.saturating_sub(1);
        writeln!(f, "{}: seeds {}..={last}, event hash {:016x}", self.world, self.seed, self.event_hash)?;
        for (name, value) in &self.counters {
            writeln!(f, "  {name:<28} {value:>12}")?;
        }
        for failure in &self.failures {
            writeln!(f, "FAILED with seed {}: {}", failure.seed, failure.what)?;
            writeln!(f, "  replay: {}", failure.replay)?;
        }
        if self.passed() {
            writeln!(f, "passed")?;
        }
        Ok(())
    }
}

/// Why nothing was run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// No world of that name.
    #[error("there is no world called '{name}': choose one of {known} (see `pumice sim list`)")]
    UnknownWorld {
        /// The name asked for.
        name: String,
        /// The names there are.
        known: String,
    },
}
