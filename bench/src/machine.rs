//! Which machine, which versions: a figure without them means nothing.

use std::fs;
use std::path::Path;
use std::process::Command;

/// Lines for the head of every table.
pub fn describe(data_dir: &Path) -> Vec<String> {
    let first = |path: &str, prefix: &str| -> String {
        let text = fs::read_to_string(path).unwrap_or_default();
        let line = text.lines().find(|l| l.starts_with(prefix)).unwrap_or("");
        line.split_once(':').map_or(line, |(_, v)| v).trim().to_string()
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let memory_kib: u64 = first("/proc/meminfo", "MemTotal")
        .split_whitespace()
        .next()
        .and_then(|n| n.parse().ok())
        .unwrap_or(0);
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    vec![
        format!("{}, {cores} cores, {} GiB", first("/proc/cpuinfo", "model name"), memory_kib >> 20),
        format!("Linux {}, {}", kernel.trim(), mount_of(data_dir)),
        format!("load before the run: {}", load_average()),
        versions().join(", "),
    ]
}

/// The 1-minute load: a busy machine explains a bad figure.
pub fn load_average() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().next().unwrap_or("?").to_string()
}

fn mount_of(dir: &Path) -> String {
    let dir = dir.canonicalize().unwrap_or_else(|_| dir.to_path_buf());
    let mounts = fs::read_to_string("/proc/mounts").unwrap_or_default();
    let best = mounts
        .lines()
        .filter_map(|l| {
            let mut parts = l.split_whitespace();
            Some((parts.next()?, parts.next()?, parts.next()?))
        })
        .filter(|(_, at, _)| dir.starts_with(at))
        .max_by_key(|(_, at, _)| at.len());
    best.map_or("unknown file system".into(), |(device, _, kind)| format!("{kind} on {device}"))
}

fn versions() -> Vec<String> {
    let commit = first_line("git", &["rev-parse", "--short", "HEAD"]).unwrap_or_else(|| "unknown".into());
    let mut out = vec![format!("pumice {commit}"), format!("fjall {FJALL_VERSION}")];
    let rocksdb = first_line("dpkg-query", &["-W", "-f=${Version}", "librocksdb-dev"]);
    out.push(format!("RocksDB {} (librocksdb-dev)", rocksdb.unwrap_or_else(|| "unknown".into())));
    out.extend(first_line("fio", &["--version"]));
    let redis = first_line("redis-server", &["--version"]).unwrap_or_default();
    out.extend(
        redis.split_whitespace().find_map(|w| w.strip_prefix("v=")).map(|v| format!("redis-server {v}")),
    );
    out
}

/// Kept beside `Cargo.lock` by a test.
pub const FJALL_VERSION: &str = "3.1.13";

fn first_line(program: &str, args: &[&str]) -> Option<String> {
    let output = Command::new(program).args(args).output().ok()?;
    Some(String::from_utf8_lossy(&output.stdout).lines().next()?.trim().to_string())
}

/// Today, as `date` prints it.
pub fn today() -> String {
    first_line("date", &["-u", "+%Y-%m-%d %H:%M UTC"]).unwrap_or_default()
}
