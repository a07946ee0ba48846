//! Latencies, counted in a fixed number of buckets: quantiles of any number of them in 4 KiB, at most 12.5% off.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Powers of two, each cut in eight; below 8 ns each has its own.
const BUCKETS: usize = 8 + 61 * 8;

/// Where a latency is counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bucket(u16);

impl Bucket {
    /// That of so many ns.
    pub fn of(ns: u64) -> Self {
        if ns < 8 {
            return Self(ns as u16);
        }
        let exponent = 63 - ns.leading_zeros();
        Self(((exponent - 2) * 8) as u16 + ((ns >> (exponent - 3)) & 7) as u16)
    }

    /// The longest latency that is counted here, in ns.
    pub fn last_ns(self) -> u64 {
        if self.0 < 8 {
            return u64::from(self.0);
        }
        let (exponent, part) = (u32::from(self.0 / 8 + 2), u128::from(self.0 % 8));
        (((8 + part + 1) << (exponent - 3)) - 1) as u64
    }
}

/// Latencies of one owner.
#[derive(Clone, Debug)]
pub struct LatencyHistogram {
    counts: [u64; BUCKETS],
    total: u64,
    max_ns: u64,
}

impl Default for LatencyHistogram {
    fn default() -> Self {
        Self { counts: [0; BUCKETS], total: 0, max_ns: 0 }
    }
}

impl LatencyHistogram {
    /// Counts one.
    pub fn record(&mut self, ns: u64) {
        self.counts[usize::from(Bucket::of(ns).0)] += 1;
        self.total += 1;
        self.max_ns = self.max_ns.max(ns);
    }

    /// How many were counted.
    pub fn count(&self) -> u64 {
        self.total
    }

    /// The longest, in ns.
    pub fn max_ns(&self) -> u64 {
        self.max_ns
    }

    /// The latency that `quantile` (0 to 1) of all stay below, in ns.
    pub fn quantile_ns(&self, quantile: f64) -> u64 {
        let rank = (quantile * self.total as f64).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (bucket, count) in self.buckets() {
            seen += count;
            if count > 0 && seen >= rank {
                return bucket.last_ns().min(self.max_ns);
            }
        }
        self.max_ns
    }

    /// How long all took together, in ns: as if each were in the middle of its bucket.
    pub fn sum_ns(&self) -> f64 {
        let firsts = (0..).map(|at: u16| at.checked_sub(1).map_or(0, |before| Bucket(before).last_ns() + 1));
        let buckets = self.buckets().zip(firsts);
        buckets.map(|((bucket, n), first)| (first as f64 + bucket.last_ns() as f64) / 2.0 * n as f64).sum()
    }

    /// How many took less than `2^exponent` ns: exact.
    pub fn below_power_of_two(&self, exponent: u32) -> u64 {
        self.buckets().take_while(|(bucket, _)| bucket.last_ns() >> exponent == 0).map(|(_, n)| n).sum()
    }

    fn buckets(&self) -> impl Iterator<Item = (Bucket, u64)> + '_ {
        (0..).map(Bucket).zip(self.counts.iter().copied())
    }
}

/// Latencies that any thread counts. Takes no memory before the first.
#[derive(Debug, Default)]
pub struct SharedHistogram {
    counts: OnceLock<Box<[AtomicU64; BUCKETS]>>,
}

impl SharedHistogram {
    /// Counts `n` latencies of the same bucket.
    pub fn add(&self, bucket: Bucket, n: u64) {
        let counts = self.counts.get_or_init(|| Box::new([const { AtomicU64::new(0) }; BUCKETS]));
        counts[usize::from(bucket.0)].fetch_add(n, Ordering::Relaxed);
    }

    /// What was counted, if anything was. The longest is known by its bucket only.
    pub fn load(&self) -> Option<LatencyHistogram> {
        let mut loaded = LatencyHistogram::default();
        for (at, count) in self.counts.get()?.iter().enumerate() {
            let count = count.load(Ordering::Relaxed);
            loaded.counts[at] = count;
            loaded.total += count;
            if count > 0 {
                loaded.max_ns = Bucket(at as u16).last_ns();
            }
        }
        (loaded.total > 0).then_some(loaded)
    }

    /// Forgets all.
    pub fn reset(&self) {
        if let Some(counts) = self.counts.get() {
            counts.iter().for_each(|count| count.store(0, Ordering::Relaxed));
        }
    }
}
