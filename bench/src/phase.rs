//! What a worker is asked to do and what it answers: plain data that crosses a process border as JSON.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::fio::Limit;
use crate::keys::Distribution;

/// The stores under comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
pub enum EngineKind {
    /// Pumice's `Store` over one file.
    Pumice,
    /// RocksDB, values in the tree.
    Rocksdb,
    /// RocksDB with BlobDB.
    RocksdbBlob,
    /// fjall; values of 1 KiB and more separated, as its authors advise.
    Fjall,
}

impl std::fmt::Display for EngineKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            EngineKind::Pumice => "Pumice",
            EngineKind::Rocksdb => "RocksDB",
            EngineKind::RocksdbBlob => "RocksDB+blob",
            EngineKind::Fjall => "fjall",
        })
    }
}

/// One worker's whole task.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WorkerSpec {
    /// The store to run.
    pub engine: EngineKind,
    /// Its folder (made if missing; the caller removes it). Pumice's drive is `DIR/drive0`.
    pub dir: PathBuf,
    /// Size of each value.
    pub value_bytes: usize,
    /// Keys of the data set; random workloads pick below this.
    pub keys: u64,
    /// Budget for caches, indexes and write buffers together.
    pub memory_bytes: u64,
    /// Threads or cores the store may use.
    pub cores: usize,
    /// Size of the drive (Pumice), or the space the others should stay within.
    pub space_bytes: u64,
    /// True: start from an empty store. False: what is in `dir`.
    pub fresh: bool,
    /// Pumice's drive is written once when it is formatted, as a block device or `pumice format --prewrite` has it.
    #[serde(default)]
    pub prewritten: bool,
    /// Run in this order.
    pub phases: Vec<PhaseSpec>,
}

/// One step of a worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PhaseSpec {
    /// How the tables call it.
    pub name: String,
    /// What to do.
    pub work: Work,
    /// Stop after this many operations...
    pub ops: u64,
    /// ...or this many seconds, whichever comes first.
    pub seconds_max: f64,
    /// Operations in flight: client threads, or tasks where the engine is asynchronous.
    pub depth: u32,
    /// SETs return only when the data would survive a power cut.
    pub durable: bool,
    /// Which keys.
    pub distribution: Distribution,
}

/// The kinds of steps.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Work {
    /// SETs of all keys in key order.
    SequentialSet,
    /// GETs of all keys in key order.
    SequentialGet,
    /// One forward scan over keys and values.
    Scan,
    /// SETs of picked keys.
    RandomSet,
    /// GETs of picked keys.
    RandomGet,
    /// Picked keys, nine GETs for each SET.
    Mixed,
    /// Wait until background work (flush, compaction, cleaning) has come to rest.
    Settle,
    /// Close and open again; `cold` also empties the page cache.
    Reopen {
        /// Whether to empty the page cache.
        cold: bool,
    },
    /// The device's own limit: fio on this engine's largest file (on Pumice: the drive).
    Limit(Limit),
}

/// What a step came to.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct PhaseResult {
    /// The step's name.
    pub name: String,
    /// Operations done.
    pub ops: u64,
    /// Key and value bytes of those operations.
    pub user_bytes: u64,
    /// Wall time.
    pub seconds: f64,
    /// CPU time of the whole process.
    pub cpu_seconds: f64,
    /// Bytes sent to the block layer by the process.
    pub written_bytes: u64,
    /// Bytes fetched from the block layer by the process.
    pub read_bytes: u64,
    /// Read requests the device completed.
    pub device_reads: u64,
    /// Bytes the device wrote, for whomever.
    pub device_written_bytes: u64,
    /// Median latency of an operation.
    pub p50_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// 99.9th percentile.
    pub p999_us: f64,
    /// Longest.
    pub max_us: f64,
    /// GETs that found nothing.
    pub misses: u64,
    /// GETs that found something other than what was SET.
    pub wrong: u64,
    /// Peak resident memory during the step, the harness's own pool of values included.
    pub memory_peak_bytes: u64,
    /// Peak of the disk space held, sampled each second.
    pub disk_peak_bytes: u64,
    /// Operations done in each whole second.
    pub per_second: Vec<u64>,
    /// What the device was like in each of them.
    #[serde(default)]
    pub device_per_second: Vec<DeviceSecond>,
    /// Figures only this engine or step has.
    pub extra: BTreeMap<String, f64>,
    /// What went wrong, if anything did; the figures then cover what was done before.
    pub error: Option<String>,
}

/// A second of the device under a store.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct DeviceSecond {
    /// Bytes read and written, for everybody.
    pub bytes: u64,
    /// How long the requests that ended took, all together, from being queued to their end.
    pub request_ms: u64,
    /// Processor time that the machine's host gave to others.
    pub stolen_seconds: f64,
}

impl DeviceSecond {
    /// How long the device's requests took for each MiB. With as much in flight, its throughput is in inverse proportion.
    pub fn ms_per_mib(&self) -> f64 {
        ratio(self.request_ms as f64, self.bytes as f64 / f64::from(1 << 20))
    }
}

impl PhaseResult {
    /// Operations a second.
    pub fn ops_per_second(&self) -> f64 {
        ratio(self.ops as f64, self.seconds)
    }

    /// User bytes a second.
    pub fn bytes_per_second(&self) -> f64 {
        ratio(self.user_bytes as f64, self.seconds)
    }

    /// CPU seconds for a million operations.
    pub fn cpu_per_million(&self) -> f64 {
        ratio(self.cpu_seconds * 1e6, self.ops as f64)
    }

    /// Bytes written for each user byte.
    pub fn write_amplification(&self) -> f64 {
        ratio(self.written_bytes as f64, self.user_bytes as f64)
    }

    /// Device reads for each operation.
    pub fn reads_per_op(&self) -> f64 {
        ratio(self.device_reads as f64, self.ops as f64)
    }
}

/// `a / b`, 0 when there is nothing to divide by.
pub fn ratio(a: f64, b: f64) -> f64 {
    if b > 0.0 { a / b } else { 0.0 }
}

/// A worker's whole answer.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct WorkerResult {
    /// One per phase, in order; fewer if the worker failed.
    pub phases: Vec<PhaseResult>,
    /// How long the first opening took.
    pub opened_seconds: f64,
    /// What it read from the block layer.
    pub opened_read_bytes: u64,
    /// Why it stopped early, if it did.
    pub error: Option<String>,
}

impl WorkerResult {
    /// The result of the phase called `name`.
    pub fn phase(&self, name: &str) -> Option<&PhaseResult> {
        self.phases.iter().find(|p| p.name == name)
    }
}
