//! What a workload measured, for people and as JSON.

use hdrhistogram::Histogram;
use pumice_base::size::format_size;
use serde::Serialize;

/// Latencies up to a minute are told apart, in nanoseconds, to three digits.
const LATENCY_NS_MAX: u64 = 60_000_000_000;

/// Counts of one worker, or of all of them together.
#[derive(Clone)]
pub struct Tally {
    /// Latency of each operation, in ns.
    pub latency_ns: Histogram<u64>,
    /// Operations done.
    pub ops: u64,
    /// Key and value bytes read by the user.
    pub read_bytes: u64,
    /// Key and value bytes written by the user.
    pub written_bytes: u64,
    /// Reads that found nothing.
    pub misses: u64,
    /// Operations that failed, and the first reason.
    pub errors: u64,
    /// Why the first one failed.
    pub first_error: Option<String>,
    /// Operations done in each second since the start.
    pub per_second: Vec<u64>,
}

impl Default for Tally {
    fn default() -> Self {
        Self {
            latency_ns: Histogram::new_with_max(LATENCY_NS_MAX, 3).expect("these bounds are valid"),
            ops: 0,
            read_bytes: 0,
            written_bytes: 0,
            misses: 0,
            errors: 0,
            first_error: None,
            per_second: Vec::new(),
        }
    }
}

impl Tally {
    /// Counts `n` operations that took `ns` each, `since_start_ns` into the run.
    pub fn done(&mut self, n: u64, ns: u64, since_start_ns: u64) {
        self.ops += n;
        self.latency_ns.saturating_record_n(ns.clamp(1, LATENCY_NS_MAX), n);
        let second = (since_start_ns / 1_000_000_000) as usize;
        if self.per_second.len() <= second {
            self.per_second.resize(second + 1, 0);
        }
        self.per_second[second] += n;
    }

    /// Counts a failed operation.
    pub fn failed(&mut self, why: impl std::fmt::Display) {
        self.errors += 1;
        self.first_error.get_or_insert_with(|| why.to_string());
    }

    /// Adds another worker's counts.
    pub fn merge(&mut self, other: &Tally) {
        self.latency_ns.add(&other.latency_ns).ok();
        self.ops += other.ops;
        self.read_bytes += other.read_bytes;
        self.written_bytes += other.written_bytes;
        self.misses += other.misses;
        self.errors += other.errors;
        if self.first_error.is_none() {
            self.first_error.clone_from(&other.first_error);
        }
        if self.per_second.len() < other.per_second.len() {
            self.per_second.resize(other.per_second.len(), 0);
        }
        for (mine, theirs) in self.per_second.iter_mut().zip(&other.per_second) {
            *mine += theirs;
        }
    }
}

/// What the store used meanwhile. Differences of counters at the end and at the start.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cost {
    /// CPU of the server (through the network) or of this process, in seconds.
    pub cpu_seconds: f64,
    /// Bytes read from flash.
    pub flash_read_bytes: u64,
    /// Bytes written to flash, everything counted: log, moves, key tables, metadata, writing ahead.
    pub flash_written_bytes: u64,
}

impl Cost {
    /// What was used between `earlier` and `self`.
    pub fn since(self, earlier: Self) -> Self {
        Self {
            cpu_seconds: self.cpu_seconds - earlier.cpu_seconds,
            flash_read_bytes: self.flash_read_bytes.saturating_sub(earlier.flash_read_bytes),
            flash_written_bytes: self.flash_written_bytes.saturating_sub(earlier.flash_written_bytes),
        }
    }
}

/// One workload's row.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    pub name: String,
    pub ops: u64,
    pub seconds: f64,
    pub ops_per_second: f64,
    /// Key and value bytes that users read or wrote, a second.
    pub bytes_per_second: f64,
    pub p50_us: f64,
    pub p99_us: f64,
    pub p999_us: f64,
    pub max_us: f64,
    pub cpu_seconds: f64,
    pub flash_read_bytes: u64,
    pub flash_written_bytes: u64,
    /// Key and value bytes that users read or wrote.
    pub user_bytes: u64,
    /// The part of `user_bytes` that was written.
    pub user_written_bytes: u64,
    pub misses: u64,
    pub errors: u64,
    /// Operations in the slowest full second over the median second's; 1 when the run was shorter than 3 s.
    pub slowest_second: f64,
}

impl Row {
    /// The row of a workload that ran for `seconds`.
    pub fn new(name: &str, tally: &Tally, seconds: f64, cost: Cost) -> Self {
        let quantile = |q| tally.latency_ns.value_at_quantile(q) as f64 / 1e3;
        let user_bytes = tally.read_bytes + tally.written_bytes;
        let full = &tally.per_second[..tally.per_second.len().saturating_sub(1)];
        let mut sorted = full.to_vec();
        sorted.sort_unstable();
        let slowest_second = match sorted.as_slice() {
            [slowest, .., _] if sorted.len() >= 3 => {
                *slowest as f64 / (sorted[sorted.len() / 2].max(1)) as f64
            }
            _ => 1.0,
        };
        Self {
            name: name.to_string(),
            ops: tally.ops,
            seconds,
            ops_per_second: tally.ops as f64 / seconds,
            bytes_per_second: user_bytes as f64 / seconds,
            p50_us: quantile(0.50),
            p99_us: quantile(0.99),
            p999_us: quantile(0.999),
            max_us: tally.latency_ns.max() as f64 / 1e3,
            cpu_seconds: cost.cpu_seconds,
            flash_read_bytes: cost.flash_read_bytes,
            flash_written_bytes: cost.flash_written_bytes,
            user_bytes,
            user_written_bytes: tally.written_bytes,
            misses: tally.misses,
            errors: tally.errors,
            slowest_second,
        }
    }

    /// The table's head line.
    pub fn headings() -> String {
        format!(
            "{:<9} {:>10} {:>8} {:>10} {:>10} {:>9} {:>9} {:>9} {:>9} {:>7} {:>10} {:>10} {:>6}",
            "workload",
            "ops",
            "s",
            "ops/s",
            "MB/s",
            "p50 us",
            "p99 us",
            "p99.9 us",
            "max us",
            "cpu s",
            "flash rd",
            "flash wr",
            "misses"
        )
    }

    /// The row as a line of the table.
    pub fn line(&self) -> String {
        format!(
            "{:<9} {:>10} {:>8.2} {:>10.0} {:>10.1} {:>9.0} {:>9.0} {:>9.0} {:>9.0} {:>7.2} {:>10} {:>10} {:>6}",
            self.name,
            self.ops,
            self.seconds,
            self.ops_per_second,
            self.bytes_per_second / 1e6,
            self.p50_us,
            self.p99_us,
            self.p999_us,
            self.max_us,
            self.cpu_seconds,
            format_size(self.flash_read_bytes),
            format_size(self.flash_written_bytes),
            self.misses
        )
    }
}
