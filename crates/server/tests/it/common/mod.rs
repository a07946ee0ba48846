//! A real `pumice` process for tests: started on a temporary directory, found by the port it prints, always ended.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// The longest that a test waits for what must happen: a machine that does much else is waited for, a hang is not.
pub const PATIENCE: Duration = Duration::from_secs(180);

/// The binary under test: the one that was built with the tests, or what `PUMICE_BIN` names (in a virtual machine it lies
/// elsewhere).
pub fn pumice() -> Command {
    let built = || env!("CARGO_BIN_EXE_pumice").into();
    let mut command = Command::new(std::env::var_os("PUMICE_BIN").unwrap_or_else(built));
    command.env_remove("PUMICE_PASSWORD").env_remove("PUMICE_LOG").env_remove("NOTIFY_SOCKET");
    command
}

/// [`pumice`] as a user without privileges who may lock `locked_kib` KiB of memory and owns `home`; `None`, with a message,
/// where that cannot be had.
pub fn pumice_of_a_user(home: &Path, locked_kib: u32) -> Option<Command> {
    let limited = format!("ulimit -l {locked_kib} && exec \"$0\" \"$@\"");
    let mut command = if rustix::process::geteuid().is_root() {
        // The limit counts all of a user's processes: one of our own, whatever other tests run meanwhile.
        static USERS: AtomicU32 = AtomicU32::new(0);
        let user = 1_000_000 + std::process::id() % 1_000_000 * 100 + USERS.fetch_add(1, Ordering::Relaxed);
        std::os::unix::fs::chown(home, Some(user), None).unwrap();
        let mut command = Command::new("setpriv");
        command.args(["--clear-groups", &format!("--reuid={user}"), "bash", "-c"]);
        command
    } else {
        let mut command = Command::new("bash");
        command.arg("-c");
        command
    };
    // The user need not see where tests are built.
    let copy = home.join("pumice");
    let _ = std::fs::copy(pumice().get_program(), &copy).unwrap();
    command.arg(&limited).arg(&copy).env_remove("PUMICE_PASSWORD").env_remove("PUMICE_LOG");
    let mut probe = Command::new(command.get_program());
    let args: Vec<_> = command.get_args().map(ToOwned::to_owned).collect();
    if !probe.args(args).arg("--version").output().is_ok_and(|output| output.status.success()) {
        skipped("a user with a limit on locked memory cannot be had here");
        return None;
    }
    Some(command)
}

/// [`pumice`] in a process that may not use io_uring; `None`, with a message, where that cannot be had.
pub fn pumice_without_uring() -> Option<Command> {
    let wrapper = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/without_uring");
    let make = || {
        let mut command = Command::new(&wrapper);
        command.arg(pumice().get_program()).env_remove("PUMICE_PASSWORD").env_remove("PUMICE_LOG");
        command
    };
    if !make().arg("--version").output().is_ok_and(|output| output.status.success()) {
        skipped("a process without io_uring cannot be had here (python3, seccomp)");
        return None;
    }
    Some(make())
}

/// Says that a test, or a part of one, did not run. Past what the test harness keeps of a test that passes: `./test` counts
/// these lines. A failure where `PUMICE_NO_SKIPS=1` says that there is all that tests need.
#[track_caller]
pub fn skipped(why: &str) {
    assert!(std::env::var_os("PUMICE_NO_SKIPS").is_none_or(|set| set != "1"), "skipped: {why}");
    // In one piece: the harness writes lines of its own meanwhile.
    let _ = std::io::stderr().write_all(format!("skipped: {why}\n").as_bytes());
}

/// Runs a command to its end.
pub fn run(args: &[&str]) -> Output {
    pumice().args(args).output().expect("the binary runs")
}

/// What a command printed on stdout.
pub fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// What a command printed on stderr.
pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Checks a command's exit code and that its stderr says `says`.
#[track_caller]
pub fn check_exit(output: &Output, code: i32, says: &str) {
    let err = stderr(output);
    assert_eq!(output.status.code(), Some(code), "stderr: {err}\nstdout: {}", stdout(output));
    assert!(err.contains(says), "stderr does not say {says:?}: {err}");
}

/// A running server.
pub struct Server {
    child: Child,
    /// What it printed before `ready`.
    pub faces: Vec<String>,
    /// Its Redis port.
    pub port: u16,
    log: PathBuf,
    _watched: Arc<()>,
}

/// Kills a server that has run for longer than any test takes: whoever waits for its answer learns that there is none.
#[expect(clippy::disallowed_methods, reason = "a real process is watched, in real time")]
fn watch(child: &Child) -> Arc<()> {
    let (watched, pid) = (Arc::new(()), Pid::from_child(child));
    let is_there = Arc::downgrade(&watched);
    std::thread::spawn(move || {
        let started = Instant::now();
        while let Some(_there) = is_there.upgrade() {
            if started.elapsed() > 5 * PATIENCE {
                let _ = kill_process(pid, Signal::KILL);
                return;
            }
            pause_ms(500);
        }
    });
    watched
}

impl Server {
    /// Starts a server on `data` with a free port and waits until it is ready.
    pub fn start(data: &Path, more: &[&str]) -> Self {
        Self::try_start(data, more).unwrap_or_else(|error| panic!("the server did not start: {error}"))
    }

    /// [`Server::start`] that answers what stderr said when the server ended instead.
    pub fn try_start(data: &Path, more: &[&str]) -> Result<Self, String> {
        Self::try_start_of(pumice(), data, &[&["--cores", "2"], more].concat())
    }

    /// [`Server::try_start`] of a command that runs the binary, with a number of cores among `more`.
    pub fn try_start_of(mut binary: Command, data: &Path, more: &[&str]) -> Result<Self, String> {
        std::fs::create_dir_all(data).unwrap();
        let log = data.join("test.log");
        let stderr = std::fs::File::options().create(true).append(true).open(&log).unwrap();
        let before = stderr.metadata().unwrap().len();
        let mut child = binary
            .args(["serve", "--redis", "127.0.0.1:0", "--data"])
            .arg(data)
            .args(if more.contains(&"--memory") { &[][..] } else { &["--memory", "128MiB"] })
            .args(more)
            .stdout(Stdio::piped())
            .stderr(stderr)
            .spawn()
            .expect("the binary runs");
        let mut faces = Vec::new();
        let mut is_ready = false;
        for line in BufReader::new(child.stdout.take().unwrap()).lines() {
            match line.unwrap() {
                line if line == "ready" => {
                    is_ready = true;
                    break;
                }
                line => faces.push(line),
            }
        }
        if !is_ready {
            let status = child.wait().unwrap();
            let said = std::fs::read_to_string(&log).unwrap().split_off(before as usize);
            return Err(format!("{status}: {said}"));
        }
        let redis = faces.iter().find_map(|face| face.strip_prefix("redis on 127.0.0.1:"));
        let port = redis.and_then(|text| text.split(' ').next()?.parse().ok()).unwrap_or(0);
        Ok(Self { _watched: watch(&child), child, faces, port, log })
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id() as i32).expect("children have ids");
        kill_process(pid, signal).expect("the child is there");
    }

    /// kill -9, and waits for the end.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// SIGTERM; the server must end with 0.
    pub fn stop(mut self) {
        self.signal(Signal::TERM);
        let status = self.wait();
        assert!(status.success(), "{status}: {}", self.said());
    }

    /// Waits for the end of a server that was told, or made, to end.
    pub fn wait(&mut self) -> ExitStatus {
        for _ in 0..PATIENCE.as_millis() / 5 {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            pause_ms(5);
        }
        panic!("the server should end and still runs after {PATIENCE:?}: {}", self.said());
    }

    /// Whether it runs.
    pub fn is_alive(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// What it has logged.
    pub fn said(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// A connected client. Without a time-out of its own: a read with one ends with EINTR where others are just restarted (a machine
    /// that is frozen for a moment is enough), and this client does not try again.
    pub fn client(&self) -> redis::Connection {
        let client = redis::Client::open(format!("redis://127.0.0.1:{}/", self.port)).unwrap();
        client.get_connection().expect("the server takes connections")
    }

    /// One HTTP GET of `path` from `--http`; status code and body.
    pub fn http(&self, path: &str) -> (u16, String) {
        let face =
            self.faces.iter().find_map(|face| face.strip_prefix("http on ")).expect("--http was given");
        http_get(face, path)
    }
}

/// One HTTP GET of `path` at `addr` (`host:port` or `unix:PATH`); status code and body.
pub fn http_get(addr: &str, path: &str) -> (u16, String) {
    let request = format!("GET {path} HTTP/1.0\r\nHost: x\r\n\r\n");
    let mut answer = String::new();
    if let Some(socket) = addr.strip_prefix("unix:") {
        let mut stream = std::os::unix::net::UnixStream::connect(socket).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        stream.read_to_string(&mut answer).unwrap();
    } else {
        let mut stream = std::net::TcpStream::connect(addr).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        stream.read_to_string(&mut answer).unwrap();
    }
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_string())
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.is_alive() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Sleeps: tests of a real process live in real time.
#[allow(clippy::disallowed_methods)]
pub fn pause_ms(ms: u64) {
    std::thread::sleep(Duration::from_millis(ms));
}

/// Waits until `test` holds: for what another process does in its own time.
#[track_caller]
pub fn eventually(what: &str, mut test: impl FnMut() -> bool) {
    for _ in 0..PATIENCE.as_millis() / 10 {
        if test() {
            return;
        }
        pause_ms(10);
    }
    panic!("not within {PATIENCE:?}: {what}");
}

/// A served drive's space, on the whole and by channel: the kinds add up to the raw size.
#[track_caller]
pub fn space_adds_up(info: &serde_json::Value) {
    let kinds = [
        "live",
        "dead",
        "open",
        "pending",
        "reserved",
        "free_erased",
        "free_unerased",
        "meta",
        "leftover",
        "bad",
    ];
    let of = |space: &serde_json::Value, kind: &str| {
        space[kind].as_u64().unwrap_or_else(|| panic!("{kind} of {space}"))
    };
    let space = &info["space"];
    let channels = info["channel_space_bytes"].as_array().expect("channels");
    assert_eq!(channels.len() as u64, info["geometry"]["channels"].as_u64().expect("shape"), "{info}");
    for space in channels.iter().chain([space]) {
        assert_eq!(kinds.iter().map(|kind| of(space, kind)).sum::<u64>(), of(space, "raw"), "{space}");
        assert_eq!(of(space, "free"), of(space, "free_erased") + of(space, "free_unerased"), "{space}");
    }
    for kind in kinds.iter().chain(&["raw"]).filter(|kind| **kind != "leftover") {
        // What is left over at the end lies on no channel.
        let beside = if *kind == "raw" { of(space, "leftover") } else { 0 };
        let sum: u64 = channels.iter().map(|channel| of(channel, kind)).sum();
        // The two sorts of free are told apart by what the reserve leaves, on the whole and on each channel.
        if !kind.starts_with("free") {
            assert_eq!(sum + beside, of(space, kind), "{kind} of {info}");
        }
    }
    let wear = info["wear"].as_array().expect("wear");
    assert_eq!(wear.len(), channels.len() + 1, "{info}");
    for row in wear {
        let of = |name: &str| row[name].as_f64().unwrap_or_else(|| panic!("{name} of {row}"));
        assert!(of("erases_least") <= of("erases_mean") && of("erases_mean") <= of("erases_most"), "{row}");
    }
}
