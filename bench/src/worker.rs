//! A worker: one process, one store, its phases in order. And the other side: starting one and reading its answer.

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

#[cfg(feature = "fjall")]
use crate::engine::fjall::Fjall;
#[cfg(feature = "rocksdb")]
use crate::engine::rocksdb::Rocksdb;
use crate::engine::{Blocking, Shared, drive_blocking, largest_file, scan_blocking};
use crate::keys::{KEY_BYTES, Values};
use crate::phase::{EngineKind, PhaseResult, PhaseSpec, Work, WorkerResult, WorkerSpec};
use crate::usage::{self, DeviceTime, Usage};
use crate::{Result, fio};

/// Longest wait for background work to come to rest.
pub const SETTLE_LONGEST: Duration = Duration::from_secs(240);

/// Runs `spec` in a process of its own.
pub fn start(spec: &WorkerSpec) -> Result<WorkerResult> {
    let exe = std::env::current_exe()?;
    let output = Command::new(exe)
        .arg("worker")
        .arg(serde_json::to_string(spec)?)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let answer = text.lines().last().unwrap_or("");
    serde_json::from_str(answer).map_err(|e| {
        format!("the {} worker ended with {} and no answer ({e})", spec.engine, output.status).into()
    })
}

/// Runs `spec` in a process of its own and kills it, as a crash would, after `life`.
pub fn start_and_kill(spec: &WorkerSpec, life: Duration) -> Result<()> {
    let mut child = Command::new(std::env::current_exe()?)
        .arg("worker")
        .arg(serde_json::to_string(spec)?)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()?;
    std::thread::sleep(life);
    if let Some(status) = child.try_wait()? {
        return Err(format!("the {} worker ended with {status} before it was killed", spec.engine).into());
    }
    child.kill()?;
    child.wait()?;
    Ok(())
}

/// The worker's own main: never fails, errors travel in the answer.
pub fn main(spec: &WorkerSpec) -> WorkerResult {
    let mut out = WorkerResult::default();
    if let Err(error) = run(spec, &mut out) {
        out.error = Some(error.to_string());
    }
    out
}

fn run(spec: &WorkerSpec, out: &mut WorkerResult) -> Result<()> {
    if spec.fresh && spec.engine != EngineKind::Pumice {
        let _ = std::fs::remove_dir_all(&spec.dir);
    }
    std::fs::create_dir_all(&spec.dir)?;
    match spec.engine {
        EngineKind::Pumice => crate::engine::pumice::run(spec, out),
        _ => run_blocking(spec, out),
    }
}

fn open(spec: &WorkerSpec) -> Result<Box<dyn Blocking>> {
    match spec.engine {
        #[cfg(feature = "rocksdb")]
        EngineKind::Rocksdb => Ok(Box::new(Rocksdb::open(spec, false)?)),
        #[cfg(feature = "rocksdb")]
        EngineKind::RocksdbBlob => Ok(Box::new(Rocksdb::open(spec, true)?)),
        #[cfg(feature = "fjall")]
        EngineKind::Fjall => Ok(Box::new(Fjall::open(spec)?)),
        other => Err(format!("this was built without {other}").into()),
    }
}

fn run_blocking(spec: &WorkerSpec, out: &mut WorkerResult) -> Result<()> {
    let values = Arc::new(Values::new(spec.value_bytes));
    let (began, before) = (Instant::now(), Usage::now(&spec.dir));
    let mut store = Some(open(spec)?);
    out.opened_seconds = began.elapsed().as_secs_f64();
    out.opened_read_bytes = Usage::now(&spec.dir).since(&before).read_bytes;
    for phase in &spec.phases {
        let mut meter = Meter::start(spec, phase);
        if let Work::Reopen { cold } = phase.work {
            drop(store.take());
            if cold {
                usage::drop_caches();
            }
            meter = Meter::start(spec, phase);
            store = Some(open(spec)?);
            out.phases.push(meter.finish());
            continue;
        }
        let store = store.as_deref().ok_or("the store is closed")?;
        let before = harness_cpu(store);
        let shared = Shared::new(phase, &values, spec.keys);
        match &phase.work {
            Work::Settle => store.settle(SETTLE_LONGEST)?,
            Work::Limit(limit) => {
                out.phases.push(run_limit(spec, phase, limit)?);
                continue;
            }
            Work::Scan => scan_blocking(store, &shared).fill(&mut meter.result),
            _ => drive_blocking(store, &shared, |done| meter.sample(done)).fill(&mut meter.result),
        }
        let mut result = meter.finish();
        result.cpu_seconds -= harness_cpu(store) - before;
        result.extra = store.counters();
        result.extra.remove("harness_cpu_seconds");
        let failed = result.error.clone();
        out.phases.push(result);
        if let Some(error) = failed {
            return Err(format!("{}: {error}", phase.name).into());
        }
    }
    Ok(())
}

/// CPU that the store's adapter spent on the benchmark's own behalf.
fn harness_cpu(store: &dyn Blocking) -> f64 {
    store.counters().get("harness_cpu_seconds").copied().unwrap_or(0.0)
}

/// fio on the store's largest file; only patterns that leave it as it is.
pub fn run_limit(spec: &WorkerSpec, phase: &PhaseSpec, limit: &fio::Limit) -> Result<PhaseResult> {
    if limit.pattern.destroys() {
        return Err(format!("{} would destroy the store's file", phase.name).into());
    }
    let file = largest_file(&spec.dir).ok_or("the store has no file")?;
    let mut result = fio::run(limit, &file)?;
    result.name.clone_from(&phase.name);
    Ok(result)
}

/// Takes the process's counters before and after a phase, and samples in between.
pub struct Meter<'a> {
    spec: &'a WorkerSpec,
    started: Instant,
    before: Usage,
    done_before: u64,
    device_before: DeviceTime,
    /// What is known so far; the loop's own figures are filled in by it.
    pub result: PhaseResult,
}

impl<'a> Meter<'a> {
    /// Starts measuring `phase`.
    pub fn start(spec: &'a WorkerSpec, phase: &PhaseSpec) -> Meter<'a> {
        usage::reset_peak_memory("self");
        let result = PhaseResult { name: phase.name.clone(), ..PhaseResult::default() };
        let (before, device_before) = (Usage::now(&spec.dir), DeviceTime::now(&spec.dir));
        Meter { spec, started: Instant::now(), before, done_before: 0, device_before, result }
    }

    /// Called each second with the operations done so far.
    pub fn sample(&mut self, done: u64) {
        self.result.per_second.push(done - self.done_before);
        self.done_before = done;
        let device = DeviceTime::now(&self.spec.dir);
        self.result.device_per_second.push(device.since(&self.device_before));
        self.device_before = device;
        self.result.disk_peak_bytes = self.result.disk_peak_bytes.max(usage::disk_bytes(&self.spec.dir));
    }

    /// Ends the measurement.
    pub fn finish(self) -> PhaseResult {
        let mut out = self.result;
        out.seconds = self.started.elapsed().as_secs_f64();
        let used = Usage::now(&self.spec.dir).since(&self.before);
        out.cpu_seconds = used.cpu_seconds;
        out.written_bytes = used.written_bytes;
        out.read_bytes = used.read_bytes;
        out.device_reads = used.device_reads;
        out.device_written_bytes = used.device_written_bytes;
        out.memory_peak_bytes = usage::status_bytes("self", "VmHWM");
        out.disk_peak_bytes = out.disk_peak_bytes.max(usage::disk_bytes(&self.spec.dir));
        out.user_bytes = out.ops * (KEY_BYTES + self.spec.value_bytes) as u64;
        out
    }
}
