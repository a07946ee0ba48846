//! What a process has used so far: CPU, bytes at the block layer, memory; and what the device did for everybody.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::phase::DeviceSecond;

/// Counters since the start of the process (or the machine, for `device_*`). Subtract two to get a phase's.
#[derive(Clone, Copy, Debug, Default, serde::Serialize, serde::Deserialize)]
pub struct Usage {
    /// User and system CPU of all threads.
    pub cpu_seconds: f64,
    /// Bytes this process sent to the block layer (less those cancelled by truncation before they got there).
    pub written_bytes: u64,
    /// Bytes this process fetched from the block layer.
    pub read_bytes: u64,
    /// The whole device's, everybody's: equal to the above on a quiet machine.
    pub device_written_bytes: u64,
    /// As above.
    pub device_read_bytes: u64,
    /// Read requests completed by the device.
    pub device_reads: u64,
}

impl Usage {
    /// This process's counters, and those of the device that holds `path`.
    pub fn now(path: &Path) -> Usage {
        let io = fs::read_to_string("/proc/self/io").unwrap_or_default();
        let field = |name: &str| -> u64 {
            let line = io.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(": "));
            line.and_then(|v| v.trim().parse().ok()).unwrap_or(0)
        };
        let device = device_stat(path).unwrap_or_default();
        Usage {
            cpu_seconds: cpu_seconds(libc::RUSAGE_SELF),
            written_bytes: field("write_bytes").saturating_sub(field("cancelled_write_bytes")),
            read_bytes: field("read_bytes"),
            device_written_bytes: device.get(6).copied().unwrap_or(0) * 512,
            device_read_bytes: device.get(2).copied().unwrap_or(0) * 512,
            device_reads: device.first().copied().unwrap_or(0),
        }
    }

    /// What was used between `earlier` and this.
    pub fn since(&self, earlier: &Usage) -> Usage {
        Usage {
            cpu_seconds: self.cpu_seconds - earlier.cpu_seconds,
            written_bytes: self.written_bytes.saturating_sub(earlier.written_bytes),
            read_bytes: self.read_bytes.saturating_sub(earlier.read_bytes),
            device_written_bytes: self.device_written_bytes.saturating_sub(earlier.device_written_bytes),
            device_read_bytes: self.device_read_bytes.saturating_sub(earlier.device_read_bytes),
            device_reads: self.device_reads.saturating_sub(earlier.device_reads),
        }
    }
}

/// User and system CPU of `who` (`RUSAGE_SELF`, `RUSAGE_THREAD`).
pub fn cpu_seconds(who: libc::c_int) -> f64 {
    // SAFETY: rusage is plain data, and getrusage writes it whole.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(who, &mut usage);
        usage
    };
    let seconds = |t: libc::timeval| t.tv_sec as f64 + t.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}

/// The kernel's statistics line of the block device under `path`.
fn device_stat(path: &Path) -> Option<Vec<u64>> {
    let dev = fs::metadata(path).ok()?.dev();
    let (major, minor) = (libc::major(dev), libc::minor(dev));
    let text = fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/stat")).ok()?;
    Some(text.split_whitespace().filter_map(|n| n.parse().ok()).collect())
}

/// What a device has done since the machine's start, and what its host has kept from the machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct DeviceTime {
    /// Bytes read and written, for everybody.
    bytes: u64,
    /// How long all requests together have taken, from being queued to their end.
    request_ms: u64,
    /// Processor time that the machine was ready to use and its host gave to others.
    stolen_ticks: u64,
}

impl DeviceTime {
    /// That of the device that holds `path`.
    pub fn now(path: &Path) -> DeviceTime {
        let stat = device_stat(path).unwrap_or_default();
        let field = |i: usize| stat.get(i).copied().unwrap_or(0);
        let processors = fs::read_to_string("/proc/stat").unwrap_or_default();
        let stolen = processors.lines().next().and_then(|line| line.split_whitespace().nth(8)?.parse().ok());
        DeviceTime {
            bytes: (field(2) + field(6)) * 512,
            request_ms: field(3) + field(7),
            stolen_ticks: stolen.unwrap_or(0),
        }
    }

    /// What the time since `earlier` was like.
    pub fn since(&self, earlier: &DeviceTime) -> DeviceSecond {
        let stolen_ticks = self.stolen_ticks.saturating_sub(earlier.stolen_ticks);
        // SAFETY: sysconf only reads.
        let per_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) } as f64;
        DeviceSecond {
            bytes: self.bytes.saturating_sub(earlier.bytes),
            request_ms: self.request_ms.saturating_sub(earlier.request_ms),
            stolen_seconds: stolen_ticks as f64 / per_second,
        }
    }
}

/// CPU seconds of another process so far (all threads), by the kernel's clock ticks.
pub fn process_cpu_seconds(pid: u32) -> f64 {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The command name may hold spaces: fields are counted after its closing bracket.
    let after = text.rsplit_once(')').map(|(_, rest)| rest).unwrap_or("");
    let fields: Vec<&str> = after.split_whitespace().collect();
    let ticks = |i: usize| fields.get(i).and_then(|f| f.parse::<u64>().ok()).unwrap_or(0);
    // SAFETY: sysconf only reads.
    let per_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) } as f64;
    (ticks(11) + ticks(12)) as f64 / per_second
}

/// A `VmRSS`-like line of `/proc/PID/status`, in bytes.
pub fn status_bytes(pid: &str, name: &str) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = text.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(':'));
    line.and_then(|v| v.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) * 1024
}

/// Starts the measurement of a process's peak memory afresh.
pub fn reset_peak_memory(pid: &str) {
    // Best effort: without it the peak is that of the whole life, which errs on the strict side.
    let _ = fs::write(format!("/proc/{pid}/clear_refs"), "5");
}

/// Bytes that the files under `dir` occupy on the disk (holes do not count).
pub fn disk_bytes(dir: &Path) -> u64 {
    let Ok(meta) = fs::symlink_metadata(dir) else { return 0 };
    if !meta.is_dir() {
        return meta.blocks() * 512;
    }
    let Ok(entries) = fs::read_dir(dir) else { return 0 };
    entries.flatten().map(|e| disk_bytes(&e.path())).sum()
}

/// Writes dirty pages out and empties the page cache, where we may; says whether it did.
pub fn drop_caches() -> bool {
    // SAFETY: sync takes nothing and returns nothing.
    unsafe { libc::sync() };
    fs::write("/proc/sys/vm/drop_caches", "3").is_ok()
}
