//! The stores behind one trait, and the loop that drives the synchronous ones with a thread for each operation in flight.

#[cfg(feature = "fjall")]
pub mod fjall;
pub mod pumice;
#[cfg(feature = "rocksdb")]
pub mod rocksdb;
#[cfg(feature = "rocksdb")]
mod rocksdb_c;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use crate::Result;
use crate::keys::{self, Picker, Values};
use crate::phase::{PhaseResult, PhaseSpec, Work};

/// A store with blocking calls that any thread may make.
pub trait Blocking: Send + Sync {
    /// Sets `key`; `durable`: returns when it would survive a power cut.
    fn set(&self, key: &[u8], value: &[u8], durable: bool) -> Result<()>;
    /// Hands the value of `key` to `see`, without a copy where the store can; false if there is none.
    fn get(&self, key: &[u8], see: &mut dyn FnMut(&[u8])) -> Result<bool>;
    /// Hands every key and value in order to `see` until it returns false.
    fn scan(&self, see: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> Result<()>;
    /// Writes out what is only in memory and waits, at most `longest`, until the background is at rest.
    fn settle(&self, longest: Duration) -> Result<()>;
    /// Its own counters.
    fn counters(&self) -> BTreeMap<String, f64>;
}

/// Figures of one measured loop, before the process's counters are added.
pub struct Loop {
    /// Latencies in nanoseconds.
    pub latency_ns: Histogram<u64>,
    /// Operations.
    pub ops: u64,
    /// GETs that found nothing.
    pub misses: u64,
    /// GETs that found something else.
    pub wrong: u64,
    /// First error.
    pub error: Option<String>,
}

impl Default for Loop {
    fn default() -> Loop {
        // Three digits keep the buckets within 0.1%; the bound is ten minutes.
        let latency_ns =
            Histogram::new_with_bounds(1, 600_000_000_000, 3).expect("constant bounds are valid");
        Loop { latency_ns, ops: 0, misses: 0, wrong: 0, error: None }
    }
}

impl Loop {
    /// Counts one operation that took `ns`.
    pub fn record(&mut self, ns: u64) {
        self.ops += 1;
        self.latency_ns.saturating_record(ns.max(1));
    }

    /// Adds another client's figures.
    pub fn merge(&mut self, other: &Loop) {
        self.latency_ns.add(&other.latency_ns).expect("same bounds");
        self.ops += other.ops;
        self.misses += other.misses;
        self.wrong += other.wrong;
        self.error = self.error.take().or_else(|| other.error.clone());
    }

    /// Fills the figures that come from the loop.
    pub fn fill(&self, result: &mut PhaseResult) {
        let us = |q: f64| self.latency_ns.value_at_quantile(q) as f64 / 1000.0;
        result.ops = self.ops;
        (result.p50_us, result.p99_us, result.p999_us) = (us(0.5), us(0.99), us(0.999));
        result.max_us = self.latency_ns.max() as f64 / 1000.0;
        (result.misses, result.wrong) = (self.misses, self.wrong);
        result.error.clone_from(&self.error);
    }
}

/// What all clients of a phase share.
pub struct Shared {
    /// The step.
    pub spec: PhaseSpec,
    /// The values to write and to check against.
    pub values: Arc<Values>,
    /// Keys of the data set.
    pub keys: u64,
    /// Operations handed out.
    pub claimed: AtomicU64,
    /// Operations finished, for the per-second series.
    pub finished: AtomicU64,
    /// Set when time is up.
    pub stop: AtomicBool,
    /// Makes each client's own.
    pub picker: Picker,
}

/// One operation to carry out.
#[derive(Clone, Copy, Debug)]
pub enum Op {
    /// Set this key.
    Set(u64),
    /// Get this key.
    Get(u64),
}

impl Shared {
    /// For one phase over `keys` keys.
    pub fn new(spec: &PhaseSpec, values: &Arc<Values>, keys: u64) -> Shared {
        Shared {
            spec: spec.clone(),
            values: values.clone(),
            keys,
            claimed: AtomicU64::new(0),
            finished: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            picker: Picker::new(spec.distribution, keys, 0),
        }
    }

    /// The next operation of the client with `picker`; none when the phase is over.
    pub fn next(&self, picker: &mut Picker) -> Option<Op> {
        if self.stop.load(Ordering::Relaxed) {
            return None;
        }
        let turn = self.claimed.fetch_add(1, Ordering::Relaxed);
        if turn >= self.spec.ops {
            return None;
        }
        Some(match self.spec.work {
            Work::SequentialSet => Op::Set(turn % self.keys),
            Work::SequentialGet => Op::Get(turn % self.keys),
            Work::RandomSet => Op::Set(picker.pick()),
            Work::RandomGet => Op::Get(picker.pick()),
            Work::Mixed if picker.chance_of_ten(9) => Op::Get(picker.pick()),
            Work::Mixed => Op::Set(picker.pick()),
            _ => return None,
        })
    }
}

/// Runs one SET/GET phase with `spec.depth` threads; `sample` is called each second with the operations done so far.
pub fn drive_blocking(store: &dyn Blocking, shared: &Shared, mut sample: impl FnMut(u64)) -> Loop {
    let started = Instant::now();
    let limit = Duration::from_secs_f64(shared.spec.seconds_max);
    let mut total = Loop::default();
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..shared.spec.depth.max(1))
            .map(|client| scope.spawn(move || one_client(store, shared, u64::from(client))))
            .collect();
        let mut next = started + Duration::from_secs(1);
        while clients.iter().any(|c| !c.is_finished()) {
            std::thread::sleep(Duration::from_millis(2).min(next.saturating_duration_since(Instant::now())));
            if Instant::now() >= next {
                sample(shared.finished.load(Ordering::Relaxed));
                next += Duration::from_secs(1);
            }
            if started.elapsed() >= limit {
                shared.stop.store(true, Ordering::Relaxed);
            }
        }
        for client in clients {
            match client.join() {
                Ok(part) => total.merge(&part),
                Err(_) => total.error = Some("a client thread panicked".into()),
            }
        }
    });
    total
}

fn one_client(store: &dyn Blocking, shared: &Shared, client: u64) -> Loop {
    let mut picker = shared.picker.fork(client);
    let mut out = Loop::default();
    while let Some(op) = shared.next(&mut picker) {
        let began = Instant::now();
        let done = match op {
            Op::Set(index) => store.set(&keys::key(index), shared.values.value(index), shared.spec.durable),
            Op::Get(index) => {
                let mut right = false;
                let found = store.get(&keys::key(index), &mut |v| right = shared.values.matches(index, v));
                match found {
                    Ok(false) => out.misses += 1,
                    Ok(true) if !right => out.wrong += 1,
                    _ => {}
                }
                found.map(|_| ())
            }
        };
        if let Err(error) = done {
            out.error = Some(format!("{op:?}: {error}"));
            shared.stop.store(true, Ordering::Relaxed);
            break;
        }
        out.record(began.elapsed().as_nanos() as u64);
        shared.finished.fetch_add(1, Ordering::Relaxed);
    }
    out
}

/// Scans forward until `spec.ops` entries or the time limit; an entry's latency is the time since the one before.
pub fn scan_blocking(store: &dyn Blocking, shared: &Shared) -> Loop {
    let mut out = Loop::default();
    let started = Instant::now();
    let mut before = started;
    let done = store.scan(&mut |key, value| {
        let index = std::str::from_utf8(&key[1..]).ok().and_then(|k| k.parse().ok()).unwrap_or(u64::MAX);
        if index >= shared.keys || !shared.values.matches(index, value) {
            out.wrong += 1;
        }
        let now = Instant::now();
        out.record(now.duration_since(before).as_nanos() as u64);
        before = now;
        out.ops < shared.spec.ops && now.duration_since(started).as_secs_f64() < shared.spec.seconds_max
    });
    out.error = done.err().map(|e| e.to_string());
    out
}

/// The largest file under `dir`: what fio reads to find the limit of the very blocks the store reads.
pub fn largest_file(dir: &std::path::Path) -> Option<PathBuf> {
    let files = std::fs::read_dir(dir).ok()?.flatten().filter_map(|entry| {
        let path = entry.path();
        let path = if path.is_dir() { largest_file(&path)? } else { path };
        Some((std::fs::metadata(&path).ok()?.len(), path))
    });
    files.max_by_key(|(len, _)| *len).map(|(_, path)| path)
}
