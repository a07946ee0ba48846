//! Servers under test, as child processes on a free loopback port, ended when dropped.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::Result;

/// Which server, how durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum ServerKind {
    /// `pumice serve` at its default: acknowledged is durable.
    Pumice,
    /// redis-server without persistence.
    RedisMemory,
    /// redis-server, append-only file, fsync each second.
    RedisEverysec,
    /// redis-server, append-only file, fsync before each acknowledgement.
    RedisAlways,
}

impl std::fmt::Display for ServerKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            ServerKind::Pumice => "Pumice",
            ServerKind::RedisMemory => "redis, in memory",
            ServerKind::RedisEverysec => "redis, AOF everysec",
            ServerKind::RedisAlways => "redis, AOF always",
        })
    }
}

/// How to start `pumice serve`.
#[derive(Clone, Debug)]
pub struct PumiceOptions {
    /// The binary.
    pub binary: PathBuf,
    /// `--memory`.
    pub memory_bytes: u64,
    /// `--cores`.
    pub cores: usize,
    /// Size of its drive; by default it grows to most of the disk, which others need in a comparison.
    pub drive_bytes: Option<u64>,
    /// Further arguments.
    pub more: Vec<String>,
}

/// A running server.
pub struct Server {
    child: Child,
    /// Where it listens.
    pub addr: SocketAddr,
    /// From the start of the process to its first answer.
    pub ready_seconds: f64,
}

/// Longest wait for a server to come up.
const READY_LONGEST: Duration = Duration::from_secs(60);

impl Server {
    /// Starts a server with its data in `dir`.
    pub fn start(kind: ServerKind, dir: &Path, pumice: &PumiceOptions) -> Result<Server> {
        std::fs::create_dir_all(dir)?;
        // The port is free now; nobody else on a benchmark machine should take it in the next milliseconds.
        let addr = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        if kind == ServerKind::Pumice {
            make_drive(dir, pumice)?;
        }
        let mut command = match kind {
            ServerKind::Pumice => pumice_command(dir, addr, pumice),
            _ => redis_command(kind, dir, addr),
        };
        let started = Instant::now();
        let child = command.stdin(Stdio::null()).spawn().map_err(|e| format!("{kind}: {e}"))?;
        let mut server = Server { child, addr, ready_seconds: 0.0 };
        if kind == ServerKind::Pumice {
            server.await_ready_line()?;
        }
        server.await_ready(started, |server| {
            server.ask("PING").is_ok_and(|answer| answer.starts_with("+PONG"))
        })?;
        server.ready_seconds = started.elapsed().as_secs_f64();
        Ok(server)
    }

    /// Starts the least that a server can be, the reactor's `floor` benchmark: it answers every command with the same
    /// `reply_bytes`, and keeps nothing.
    pub fn start_floor(binary: &Path, reply_bytes: usize) -> Result<Server> {
        let addr = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let mut command = Command::new(binary);
        command.args(["--port", &addr.port().to_string(), "--reply", &reply_bytes.to_string()]);
        let started = Instant::now();
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn()?;
        let mut server = Server { child, addr, ready_seconds: 0.0 };
        server.await_ready(started, |server| TcpStream::connect(server.addr).is_ok())?;
        server.ready_seconds = started.elapsed().as_secs_f64();
        Ok(server)
    }

    /// The server's process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Asks it to end (SIGTERM) and waits; returns the seconds it took.
    pub fn stop(mut self) -> Result<f64> {
        let began = Instant::now();
        self.signal(libc::SIGTERM);
        while self.child.try_wait()?.is_none() {
            if began.elapsed() > Duration::from_secs(60) {
                return Err("the server did not end within a minute of SIGTERM".into());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(began.elapsed().as_secs_f64())
    }

    /// Ends it as a crash would.
    pub fn kill(mut self) {
        self.signal(libc::SIGKILL);
        let _ = self.child.wait();
    }

    /// Stops it where it is: it takes no part until [`Server::resume`].
    pub fn pause(&self) {
        self.signal(libc::SIGSTOP);
    }

    /// Lets it go on.
    pub fn resume(&self) {
        self.signal(libc::SIGCONT);
    }

    fn signal(&self, number: i32) {
        // SAFETY: the child has not been waited for, so its id is still its own.
        unsafe { libc::kill(self.child.id() as i32, number) };
    }

    /// Sends one inline command and returns what came back at first.
    pub fn ask(&self, command: &str) -> Result<String> {
        let mut stream = TcpStream::connect(self.addr)?;
        stream.set_read_timeout(Some(Duration::from_secs(20)))?;
        stream.write_all(format!("{command}\r\n").as_bytes())?;
        let mut buffer = vec![0; 64 << 10];
        let got = stream.read(&mut buffer)?;
        Ok(String::from_utf8_lossy(&buffer[..got]).into_owned())
    }

    fn await_ready_line(&mut self) -> Result<()> {
        let stdout = self.child.stdout.take().ok_or("stdout is not a pipe")?;
        let (sender, ready) = std::sync::mpsc::channel();
        // The thread goes on reading until the server ends, so that a full pipe never stops it.
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(std::io::Result::ok) {
                if line == "ready" {
                    let _ = sender.send(());
                }
            }
        });
        ready.recv_timeout(READY_LONGEST).map_err(|_| "pumice serve printed no `ready`".into())
    }

    fn await_ready(&mut self, started: Instant, is_ready: impl Fn(&Server) -> bool) -> Result<()> {
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Err(format!("the server ended with {status} before it was ready").into());
            }
            if is_ready(self) {
                return Ok(());
            }
            if started.elapsed() > READY_LONGEST {
                return Err("the server did not answer within a minute".into());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            self.signal(libc::SIGKILL);
            let _ = self.child.wait();
        }
    }
}

/// Makes the drive in `dir` if it is to be of a certain size and is not there yet.
fn make_drive(dir: &Path, options: &PumiceOptions) -> Result<()> {
    let drive = dir.join("drive0");
    let Some(bytes) = options.drive_bytes.filter(|_| !drive.exists()) else { return Ok(()) };
    let output = Command::new(&options.binary)
        .arg("format")
        .arg(&drive)
        .args(["--size", &format!("{}MiB", bytes >> 20)])
        .output()
        .map_err(|e| format!("pumice format: {e}"))?;
    if output.status.success() {
        Ok(())
    } else {
        Err(format!("pumice format: {}", String::from_utf8_lossy(&output.stderr).trim()).into())
    }
}

fn pumice_command(dir: &Path, addr: SocketAddr, options: &PumiceOptions) -> Command {
    let mut command = Command::new(&options.binary);
    command.arg("serve").arg("--data").arg(dir).args(["--redis", &addr.to_string()]);
    command.args(["--memory", &format!("{}MiB", options.memory_bytes >> 20)]);
    command.args(["--cores", &options.cores.to_string()]);
    command.args(&options.more).stdout(Stdio::piped()).stderr(Stdio::inherit());
    command
}

fn redis_command(kind: ServerKind, dir: &Path, addr: SocketAddr) -> Command {
    let (append, sync) = match kind {
        ServerKind::RedisEverysec => ("yes", "everysec"),
        ServerKind::RedisAlways => ("yes", "always"),
        _ => ("no", "no"),
    };
    let mut command = Command::new("redis-server");
    command.args(["--bind", "127.0.0.1", "--port", &addr.port().to_string(), "--dir"]).arg(dir);
    command.args(["--save", "", "--appendonly", append, "--appendfsync", sync, "--loglevel", "warning"]);
    // Rewriting the append-only file would compete with the load: left out, in redis's favour.
    command.args(["--auto-aof-rewrite-percentage", "0"]);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    command
}
