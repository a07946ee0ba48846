//! What a run is asked to do and what it answers.

use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

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
    /// Where experiments write their plots (SVG) and what is in them (CSV); the directory is made when missing.
    pub plot: Option<PathBuf>,
}

impl Default for RunOptions {
    fn default() -> Self {
        Self { seed: 1, seeds: 1, ops: None, cut: None, stop_at_failure: false, plot: None }
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

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FAILED with seed {}: {}\n  replay: {}", self.seed, self.what, self.replay)
    }
}

/// One figure of an experiment: what was measured, beside what was published.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// What it is a figure of.
    pub name: String,
    /// What the model and the code came to; the last value tried when `is_beyond`.
    pub measured: f64,
    /// What was looked for did not come up to `measured`, where the search ended.
    pub is_beyond: bool,
    /// What the paper says; `None` when it says nothing.
    pub published: Option<f64>,
    /// The band to meet; `None` when there is none.
    pub low: Option<f64>,
    /// Its upper end.
    pub high: Option<f64>,
    /// Of all of these.
    pub unit: String,
    /// Whether what was measured lies in the band; `None` without one.
    pub within_band: Option<bool>,
}

impl Row {
    /// A figure with the band `low..=high`.
    pub(crate) fn within(
        name: &str,
        unit: &str,
        measured: f64,
        published: Option<f64>,
        low: f64,
        high: f64,
    ) -> Self {
        Self {
            name: name.to_string(),
            measured,
            is_beyond: false,
            published,
            low: Some(low),
            high: Some(high),
            unit: unit.to_string(),
            within_band: Some((low..=high).contains(&measured)),
        }
    }

    /// A figure that should be `published`, give or take a share of it.
    pub(crate) fn about(name: &str, unit: &str, measured: f64, published: f64, share: f64) -> Self {
        let (low, high) = (published * (1.0 - share), published * (1.0 + share));
        Self::within(name, unit, measured, Some(published), low, high)
    }

    /// A figure that is shown and not judged.
    pub(crate) fn shown(name: &str, unit: &str, measured: f64, published: Option<f64>) -> Self {
        let (name, unit) = (name.to_string(), unit.to_string());
        Self { name, measured, is_beyond: false, published, low: None, high: None, unit, within_band: None }
    }

    /// A figure that was looked for up to `tried` and is not among what was tried; not judged.
    pub(crate) fn beyond(name: &str, unit: &str, tried: f64, published: Option<f64>) -> Self {
        Self { is_beyond: true, ..Self::shown(name, unit, tried, published) }
    }

    /// What was measured, for people.
    pub(crate) fn measured_text(&self) -> String {
        let measured = significant(self.measured);
        if self.is_beyond { format!("not up to {measured}") } else { measured }
    }
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
    /// The figures of an experiment, in order; those of its last seed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rows: Vec<Row>,
    /// What has to be known to read the figures: inputs that are published results, what is not modelled.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// The event hashes of all seeds folded into one: equal for two runs of the same options, or the
    /// simulator has lost its determinism.
    pub event_hash: u64,
    /// How long the run took outside of virtual time; no part of what is the same for two runs.
    #[serde(skip)]
    pub wall: Duration,
}

impl Report {
    /// True when no seed failed and every figure lies in its band.
    pub fn passed(&self) -> bool {
        self.failures.is_empty() && self.rows.iter().all(|row| row.within_band != Some(false))
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
        if !self.rows.is_empty() {
            writeln!(f, "  {:<62} {:>15} {:>10}  {:<6} within band", "", "measured", "published", "")?;
        }
        for row in &self.rows {
            let published = row.published.map_or("-".to_string(), significant);
            write!(f, "  {:<62} {:>15} {published:>10}  {:<6}", row.name, row.measured_text(), row.unit)?;
            match (row.within_band, row.low, row.high) {
                (Some(within), Some(low), Some(high)) => {
                    let answer = if within { "yes" } else { "NO" };
                    writeln!(f, " {answer} ({} to {})", significant(low), significant(high))?;
                }
                _ => writeln!(f, " -")?,
            }
        }
        for note in &self.notes {
            writeln!(f, "  {note}")?;
        }
        for failure in &self.failures {
            writeln!(f, "{failure}")?;
        }
        if let Some(&ms) = self.counters.get("virtual ms") {
            let (seconds, wall) = (ms as f64 / 1e3, self.wall.as_secs_f64());
            let ratio = significant(seconds / wall.max(1e-3));
            writeln!(f, "  {seconds:.0} virtual seconds in {wall:.1} s: {ratio} for each")?;
        }
        if self.passed() {
            writeln!(f, "passed")?;
        }
        Ok(())
    }
}

/// A number with four significant digits, as people write it.
pub(crate) fn significant(value: f64) -> String {
    let digits = if value == 0.0 { 0 } else { value.abs().log10().floor() as i32 };
    format!("{value:.*}", (3 - digits).clamp(0, 6) as usize)
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
