//! What this process uses, as the kernel counts it, its limit on open files, and what others have that may have been killed:
//! how long that is waited for.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Ticks per second in /proc: 100 on every Linux that Pumice runs on (`USER_HZ`).
const TICKS_PER_SECOND: f64 = 100.0;

/// How long what a killed process held is waited for. The kernel gives its locks and sockets back only once its rings are
/// torn down, some milliseconds after its end; a server that is started anew at once meets them.
pub const DEATH_WAIT: Duration = Duration::from_secs(2);
/// Pause between looks at what is held.
pub const DEATH_RETRY: Duration = Duration::from_millis(20);

/// Starts cores. Memory that a server which has just died had locked is waited for, with longer pauses than for all else:
/// each try that fails leaves rings to be torn down, too.
pub fn once_memory_is_free<T>(mut start: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    const PAUSE: Duration = Duration::from_millis(100);
    for _ in 0..DEATH_WAIT.as_millis() / PAUSE.as_millis() {
        match start() {
            Err(error) if error.kind() == ErrorKind::OutOfMemory => std::thread::park_timeout(PAUSE),
            started => return started,
        }
    }
    start()
}

/// Makes way for a Unix socket: removes one that nobody listens at any more. True: somebody does.
pub fn clear_socket(path: &Path) -> io::Result<bool> {
    if pumice_reactor::somebody_listens(path)? {
        return Ok(true);
    }
    match fs::symlink_metadata(path) {
        Ok(found) if found.file_type().is_socket() => {
            fs::remove_file(path)
                .map_err(|e| io::Error::new(e.kind(), format!("removing a stale socket: {e}")))?;
        }
        Ok(_) => return Err(io::Error::new(ErrorKind::AlreadyExists, "a file is in the way")),
        Err(_) => {}
    }
    Ok(false)
}

/// CPU and memory of this process.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    /// User and system time, in seconds, to 10 ms.
    pub cpu_seconds: f64,
    /// Resident memory, in bytes.
    pub resident_bytes: u64,
    /// When the process was started, in seconds of unix time, to 10 ms.
    pub started_seconds: Option<f64>,
}

/// What this process uses now; zeros where /proc does not say.
pub fn usage() -> Usage {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The second field is the program's name in parentheses and may hold anything.
    let fields: Vec<&str> =
        stat.rsplit_once(')').map_or(Vec::new(), |(_, rest)| rest.split_whitespace().collect());
    let ticks = |at: usize| fields.get(at).and_then(|t| t.parse::<f64>().ok()).unwrap_or(0.0);
    let pages: u64 = fields.get(21).and_then(|t| t.parse().ok()).unwrap_or(0);
    let booted_seconds = fs::read_to_string("/proc/stat").ok().and_then(|stat| {
        stat.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse::<f64>().ok()
    });
    Usage {
        started_seconds: booted_seconds.map(|booted| booted + ticks(19) / TICKS_PER_SECOND),
        cpu_seconds: (ticks(11) + ticks(12)) / TICKS_PER_SECOND,
        resident_bytes: pages * rustix::param::page_size() as u64,
    }
}

/// Resident memory of this process, in bytes; 0 where /proc does not say.
pub fn resident_bytes() -> u64 {
    let statm = fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: Option<u64> = statm.split_whitespace().nth(1).and_then(|pages| pages.parse().ok());
    pages.unwrap_or(0) * rustix::param::page_size() as u64
}

/// Raises the limit on open files to what is allowed, and beyond that to `wanted` if it may be; answers the limit.
pub fn raise_open_files(wanted: u64) -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let ceiling = limit.maximum.unwrap_or(u64::MAX);
    let now = limit.current.unwrap_or(u64::MAX);
    // A ceiling without end is above what the kernel takes.
    for target in [wanted.max(ceiling), wanted] {
        if now >= target {
            return now;
        }
        let raised = Rlimit { current: Some(target), maximum: Some(ceiling.max(target)) };
        if ceiling < target && setrlimit(Resource::Nofile, raised).is_ok() {
            return target; // root may raise the ceiling, too
        }
        let raised = target.min(ceiling);
        if setrlimit(Resource::Nofile, Rlimit { current: Some(raised), maximum: limit.maximum }).is_ok() {
            return raised;
        }
    }
    now
}
