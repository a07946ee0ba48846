//! What a simulated host is made of: its disk's timing, its faults, and the plan for its next power cut.

use super::disk::CrashFate;
use pumice_base::rng::Rng;
use std::io;
use std::ops::Range;
use std::path::PathBuf;

/// How long a disk takes. Operations run in `lanes` side by side; their bytes share one bus.
#[derive(Clone, Copy, Debug)]
pub struct DiskModel {
    /// Time of a read before its bytes, in ns.
    pub read_ns: u64,
    /// Time of a cached write before its bytes, in ns.
    pub write_ns: u64,
    /// Added to a write that must be on the media, in ns.
    pub durable_ns: u64,
    /// Time of a sync, in ns.
    pub sync_ns: u64,
    /// Bytes per second over the bus.
    pub bytes_per_second: u64,
    /// Operations at a time.
    pub lanes: usize,
    /// Each operation takes up to this share longer, uniformly.
    pub jitter: f64,
}

impl Default for DiskModel {
    /// A data-centre SSD.
    fn default() -> Self {
        Self {
            read_ns: 80_000,
            write_ns: 15_000,
            durable_ns: 20_000,
            sync_ns: 200_000,
            bytes_per_second: 2_000_000_000,
            lanes: 32,
            jitter: 0.5,
        }
    }
}

/// When each lane and the bus of a disk are free again.
#[derive(Clone, Debug)]
pub(crate) struct DiskClock {
    lanes: Vec<u64>,
    bus_ns: u64,
}

impl DiskClock {
    pub(crate) fn new(model: &DiskModel) -> Self {
        Self { lanes: vec![0; model.lanes.max(1)], bus_ns: 0 }
    }

    /// Nothing that is submitted from now on begins before that.
    pub(crate) fn busy_until(&mut self, ns: u64) {
        self.lanes.iter_mut().for_each(|lane| *lane = ns.max(*lane));
    }

    /// When an operation submitted now completes.
    pub(crate) fn finish_ns(
        &mut self,
        now: u64,
        latency: u64,
        bytes: u64,
        model: &DiskModel,
        rng: &mut Rng,
    ) -> u64 {
        let latency = latency + (latency as f64 * model.jitter * rng.unit()) as u64;
        let mut lane = 0;
        for index in 1..self.lanes.len() {
            if self.lanes[index] < self.lanes[lane] {
                lane = index;
            }
        }
        let ready = now.max(self.lanes[lane]) + latency;
        let carried = (u128::from(bytes) * 1_000_000_000 / u128::from(model.bytes_per_second.max(1))) as u64;
        if bytes > 0 {
            self.bus_ns = ready.max(self.bus_ns) + carried;
        }
        self.lanes[lane] = if bytes > 0 { self.bus_ns } else { ready };
        self.lanes[lane]
    }
}

/// The kinds of file operation a fault can strike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultOp {
    /// Opening.
    Open,
    /// Reads.
    Read,
    /// Writes, cached or durable. What a drive was asked to write may be there in part or whole although it says that it failed.
    Write,
    /// Syncs.
    Sync,
    /// Punching, allocating, changing the length; resetting, closing and finishing zones.
    Space,
    /// Writing back from the page cache what a durable write or a sync of a file without direct I/O waits for. It is lost, and
    /// whoever is through first with waiting for that file is told, once.
    WriteBack,
}

/// An error that a host's file operations will meet.
#[derive(Clone, Debug)]
pub struct FileFault {
    /// Only on this file; `None` strikes all.
    pub path: Option<PathBuf>,
    /// Which operations.
    pub op: FaultOp,
    /// Only operations that touch these bytes; `None` strikes everywhere.
    pub range: Option<Range<u64>>,
    /// So many matching operations succeed first.
    pub skip: u64,
    /// So many fail after that.
    pub times: u64,
    /// The error's number, such as `libc::EIO`.
    pub errno: i32,
}

impl FileFault {
    /// Whether this fault strikes an operation, and with what.
    pub(crate) fn strike(
        &mut self,
        path: &std::path::Path,
        op: FaultOp,
        from: u64,
        to: u64,
    ) -> Option<io::Error> {
        let here = self.op == op
            && self.path.as_ref().is_none_or(|only| only == path)
            && self.range.as_ref().is_none_or(|range| from < range.end && range.start < to);
        if !here || self.times == 0 {
            return None;
        }
        if self.skip > 0 {
            self.skip -= 1;
            return None;
        }
        self.times -= 1;
        Some(io::Error::from_raw_os_error(self.errno))
    }
}

/// Trouble that a host's file operations meet by chance, drawn from the seed.
#[derive(Clone, Debug)]
pub struct RandomFault {
    /// On this file.
    pub path: PathBuf,
    /// Which operations.
    pub op: FaultOp,
    /// The chance of each, 0 to 1.
    pub chance: f64,
    /// What becomes of those that it strikes.
    pub effect: RandomEffect,
}

/// See [`RandomFault`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RandomEffect {
    /// They fail with this error number, and nothing is done.
    Errno(i32),
    /// One bit of what is read is another than what is stored; of no meaning for what does not read.
    Flip,
}

/// What the power cut does to the operation it strikes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CutMode {
    /// It never reached the media.
    Before,
    /// Some of its sectors did.
    Torn,
    /// All of it did, but nobody was told.
    After,
}

/// A power cut at one mutating operation.
#[derive(Clone, Copy, Debug)]
pub struct PowerCut {
    /// Which one: counted by completion from 0 since the host was added (writes, punches, allocations, length
    /// changes and syncs; see [`super::HostCounters::mutations`]).
    pub at: u64,
    /// What happens to that one.
    pub mode: CutMode,
    /// What happens to everything else that no sync covers; drawn from the seed when `None`.
    pub fate: Option<CrashFate>,
}

/// Counted over a host's life, restarts included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostCounters {
    /// Reads completed.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Reads that a fault has failed, or changed a bit of.
    pub spoilt_reads: u64,
    /// Writes completed.
    pub writes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Syncs completed.
    pub syncs: u64,
    /// Operations completed that change the media: what [`PowerCut::at`] counts.
    pub mutations: u64,
    /// Power cuts and kills.
    pub crashes: u64,
}

/// A new host.
#[derive(Clone, Debug)]
pub struct HostOptions {
    /// For messages.
    pub name: String,
    /// Cores of its server.
    pub cores: usize,
    /// Its disk's timing.
    pub disk: DiskModel,
    /// Bytes that its files may occupy together; `None` is without end.
    pub capacity_bytes: Option<u64>,
    /// Now and then a read, write or receive transfers less than it could, or runs out of shared buffers, as
    /// real kernels do.
    pub quirks: bool,
}

impl Default for HostOptions {
    fn default() -> Self {
        Self {
            name: String::from("host"),
            cores: 2,
            disk: DiskModel::default(),
            capacity_bytes: None,
            quirks: true,
        }
    }
}
