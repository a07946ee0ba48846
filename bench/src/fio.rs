//! The device's own limit: fio with the same pattern, block size and depth, on the same file, in the same run.

use std::path::Path;
use std::process::Command;

use serde::{Deserialize, Serialize};

use crate::Result;
use crate::phase::PhaseResult;

/// One fio job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Limit {
    /// Order and direction.
    pub pattern: Pattern,
    /// Bytes of a request.
    pub block_bytes: u64,
    /// Requests in flight.
    pub depth: u32,
    /// Each write durable before it counts (RWF_DSYNC).
    pub durable: bool,
    /// How long.
    pub seconds: f64,
    /// Only the first so many bytes of the file (0: all of it).
    pub span_bytes: u64,
    /// Each block read is verified by its CRC-32C, and each written gets one; [`prewrite_checked`] wrote the file, in blocks
    /// of the same size.
    #[serde(default)]
    pub is_checked: bool,
}

/// Order and direction of fio's requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Pattern {
    /// Sequential reads.
    Read,
    /// Sequential writes (destroys the file's contents).
    Write,
    /// Random reads.
    RandomRead,
    /// Random writes (destroys the file's contents).
    RandomWrite,
    /// Random, nine reads for each write (destroys the file's contents).
    RandomMixed,
    /// Random, a read for each write (destroys the file's contents).
    RandomHalf,
}

impl Pattern {
    /// True if running it spoils what the file holds.
    pub fn destroys(self) -> bool {
        matches!(self, Pattern::Write | Pattern::RandomWrite | Pattern::RandomMixed | Pattern::RandomHalf)
    }

    fn argument(self) -> &'static str {
        match self {
            Pattern::Read => "read",
            Pattern::Write => "write",
            Pattern::RandomRead => "randread",
            Pattern::RandomWrite => "randwrite",
            Pattern::RandomMixed | Pattern::RandomHalf => "randrw",
        }
    }
}

const CHECKED: [&str; 3] = ["--verify=crc32c", "--verify_fatal=1", "--verify_state_save=0"];

impl Limit {
    /// The command line, for the report.
    pub fn arguments(&self, file: &Path) -> Vec<String> {
        let mut args = vec![
            "--name=limit".to_string(),
            format!("--filename={}", file.display()),
            format!("--rw={}", self.pattern.argument()),
            format!("--bs={}", self.block_bytes),
            format!("--iodepth={}", self.depth),
            "--ioengine=io_uring".into(),
            "--direct=1".into(),
            "--time_based=1".into(),
            format!("--runtime={}", self.seconds),
            "--randrepeat=0".into(),
            "--norandommap=1".into(),
            "--refill_buffers=0".into(),
            "--output-format=json".into(),
        ];
        if self.is_checked {
            args.extend(CHECKED.map(String::from));
            if self.pattern.destroys() {
                // Only the checksum is of interest: what is written is made once, and not read back.
                args.extend(["--do_verify=0", "--verify_pattern=0x5aa5c33c"].map(String::from));
            }
        }
        if self.durable {
            args.push("--sync=dsync".into());
        }
        match self.pattern {
            Pattern::RandomMixed => args.push("--rwmixread=90".into()),
            Pattern::RandomHalf => args.push("--rwmixread=50".into()),
            _ => {}
        }
        if self.span_bytes > 0 {
            args.push(format!("--size={}", self.span_bytes));
        }
        args
    }
}

/// Runs the job on `file`, which must exist; the answer's operations are requests, its bytes the blocks.
pub fn run(limit: &Limit, file: &Path) -> Result<PhaseResult> {
    let len = std::fs::metadata(file).map_err(|e| format!("fio wants {}: {e}", file.display()))?.len();
    if len < limit.block_bytes {
        return Err(
            format!("{} is smaller than one block of {} bytes", file.display(), limit.block_bytes).into()
        );
    }
    let output = Command::new("fio").args(limit.arguments(file)).output().map_err(|e| format!("fio: {e}"))?;
    if !output.status.success() {
        return Err(format!("fio: {}", String::from_utf8_lossy(&output.stderr).trim()).into());
    }
    parse(&output.stdout)
}

/// Reads fio's JSON.
pub fn parse(json: &[u8]) -> Result<PhaseResult> {
    // fio may print notes before the JSON starts.
    let start = json.iter().position(|&b| b == b'{').ok_or("fio printed no JSON")?;
    let top: serde_json::Value = serde_json::from_slice(&json[start..])?;
    let job = &top["jobs"][0];
    let number = |v: &serde_json::Value| v.as_f64().unwrap_or(0.0);
    let mut out = PhaseResult { name: "fio".into(), ..PhaseResult::default() };
    let seconds = number(&job["job_runtime"]) / 1000.0;
    let mut busiest = 0.0;
    for side in ["read", "write"] {
        let part = &job[side];
        let ops = number(&part["total_ios"]);
        out.ops += ops as u64;
        out.user_bytes += number(&part["io_bytes"]) as u64;
        out.seconds = out.seconds.max(number(&part["runtime"]) / 1000.0);
        if ops > busiest {
            busiest = ops;
            let percentile = |p: &str| number(&part["clat_ns"]["percentile"][p]) / 1000.0;
            out.p50_us = percentile("50.000000");
            out.p99_us = percentile("99.000000");
            out.p999_us = percentile("99.900000");
            out.max_us = number(&part["clat_ns"]["max"]) / 1000.0;
        }
    }
    out.cpu_seconds = (number(&job["usr_cpu"]) + number(&job["sys_cpu"])) / 100.0 * seconds;
    Ok(out)
}

/// Makes `file` a file of `bytes` random bytes, all of them written: fresh blocks commit at half the speed of old ones.
pub fn prewrite(file: &Path, bytes: u64) -> Result<()> {
    write_whole(file, bytes, &["--bs=4m", "--refill_buffers=1"])
}

/// The same with fio's header and a CRC-32C in each block of `block_bytes`.
pub fn prewrite_checked(file: &Path, bytes: u64, block_bytes: u64) -> Result<()> {
    write_whole(file, bytes, &[&format!("--bs={block_bytes}"), "--do_verify=0", CHECKED[0], CHECKED[2]])
}

fn write_whole(file: &Path, bytes: u64, more: &[&str]) -> Result<()> {
    let status = Command::new("fio")
        .args(["--name=prewrite", "--rw=write", "--ioengine=io_uring", "--iodepth=4", "--direct=1"])
        .args(["--end_fsync=1", "--output-format=json", "--output=/dev/null"])
        .args(more)
        .arg(format!("--filename={}", file.display()))
        .arg(format!("--size={bytes}"))
        .status()?;
    if status.success() { Ok(()) } else { Err(format!("fio could not write {}", file.display()).into()) }
}
