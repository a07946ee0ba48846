//! A closed-loop load generator for Redis-protocol servers: some connections, each with so many commands in flight.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::connection::{Connection, Next};
use crate::Result;
use crate::engine::Loop;
use crate::keys::{Distribution, KEY_BYTES, Picker, Values};
use crate::phase::PhaseResult;
use crate::usage::{self, Usage};

/// What to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
pub enum LoadOp {
    /// GETs of picked keys.
    Get,
    /// SETs of picked keys.
    Set,
    /// SETs of all keys, once, in order.
    Fill,
    /// Nine GETs for each SET.
    Mixed,
}

/// One run of the generator.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LoadSpec {
    /// Where the server listens.
    pub addr: SocketAddr,
    /// What to send.
    pub op: LoadOp,
    /// Connections.
    pub connections: usize,
    /// Commands in flight on each: sent together, then all replies awaited, as redis-benchmark -P does.
    pub depth: usize,
    /// Client threads.
    pub threads: usize,
    /// Keys.
    pub keys: u64,
    /// Bytes of each value.
    pub value_bytes: usize,
    /// Which keys.
    pub distribution: Distribution,
    /// Stop after so many seconds...
    pub seconds: f64,
    /// ...or so many operations.
    pub ops: u64,
}

impl LoadSpec {
    /// One client thread, uniform keys, ended by time. How many keys of how many bytes is still to be said.
    pub fn timed(addr: SocketAddr, op: LoadOp, connections: usize, depth: usize, seconds: f64) -> LoadSpec {
        LoadSpec {
            addr,
            op,
            connections,
            depth,
            threads: 1,
            keys: 0,
            value_bytes: 0,
            distribution: Distribution::Uniform,
            seconds,
            ops: u64::MAX,
        }
    }
}

/// What the client threads share.
pub(super) struct LoadShared<'a> {
    pub spec: &'a LoadSpec,
    pub values: &'a Values,
    claimed: AtomicU64,
    stop: AtomicBool,
}

impl LoadShared<'_> {
    /// The next command; none when the run is over.
    pub fn next(&self, picker: &mut Picker) -> Option<(LoadOp, u64)> {
        if self.stop.load(Ordering::Relaxed) {
            return None;
        }
        let turn = self.claimed.fetch_add(1, Ordering::Relaxed);
        if turn >= self.spec.ops {
            return None;
        }
        Some(match self.spec.op {
            LoadOp::Get => (LoadOp::Get, picker.pick()),
            LoadOp::Set => (LoadOp::Set, picker.pick()),
            LoadOp::Fill => (LoadOp::Set, turn % self.spec.keys),
            LoadOp::Mixed if picker.chance_of_ten(9) => (LoadOp::Get, picker.pick()),
            LoadOp::Mixed => (LoadOp::Set, picker.pick()),
        })
    }
}

/// Longest silence of a server before the run is given up.
const SILENCE: Duration = Duration::from_secs(30);

/// Runs the load. `cpu_seconds` of the answer is the *server's* (`pid`), the client's is in `extra`.
pub fn run(spec: &LoadSpec, pid: Option<u32>, device_of: &Path) -> Result<PhaseResult> {
    let mut spec = spec.clone();
    if spec.op == LoadOp::Fill {
        spec.ops = spec.ops.min(spec.keys);
    }
    let values = Values::new(spec.value_bytes);
    let shared =
        LoadShared { spec: &spec, values: &values, claimed: AtomicU64::new(0), stop: AtomicBool::new(false) };
    let picker = Picker::new(spec.distribution, spec.keys, 0);
    let connections = connect(&spec, &picker)?;
    let server_cpu = || pid.map_or(0.0, usage::process_cpu_seconds);
    let (server_before, client_before, device_before) =
        (server_cpu(), usage::cpu_seconds(libc::RUSAGE_SELF), Usage::now(device_of));
    let started = Instant::now();
    let mut total = Loop::default();
    std::thread::scope(|scope| {
        let shared = &shared;
        let clients: Vec<_> =
            connections.into_iter().map(|mine| scope.spawn(move || one_thread(mine, shared))).collect();
        while clients.iter().any(|c| !c.is_finished()) {
            std::thread::sleep(Duration::from_millis(2));
            if started.elapsed().as_secs_f64() >= spec.seconds {
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
    let mut out = PhaseResult::default();
    total.fill(&mut out);
    out.seconds = started.elapsed().as_secs_f64();
    out.user_bytes = out.ops * (KEY_BYTES + spec.value_bytes) as u64;
    out.cpu_seconds = server_cpu() - server_before;
    let device = Usage::now(device_of).since(&device_before);
    out.device_reads = device.device_reads;
    out.device_written_bytes = device.device_written_bytes;
    out.extra.insert("client_cpu_seconds".into(), usage::cpu_seconds(libc::RUSAGE_SELF) - client_before);
    if let Some(pid) = pid {
        out.memory_peak_bytes = usage::status_bytes(&pid.to_string(), "VmHWM");
    }
    Ok(out)
}

/// Connects everything beforehand and deals the connections out to the threads.
fn connect(spec: &LoadSpec, picker: &Picker) -> Result<Vec<Vec<Connection>>> {
    let threads = spec.threads.clamp(1, spec.connections.max(1));
    let mut dealt: Vec<Vec<Connection>> = (0..threads).map(|_| Vec::new()).collect();
    for client in 0..spec.connections {
        let stream = TcpStream::connect(spec.addr).map_err(|e| format!("connection {client}: {e}"))?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        dealt[client % threads].push(Connection::new(stream, picker.fork(client as u64)));
    }
    Ok(dealt)
}

fn one_thread(connections: Vec<Connection>, shared: &LoadShared<'_>) -> Loop {
    let mut out = Loop::default();
    if let Err(error) = serve(connections, shared, &mut out) {
        shared.stop.store(true, Ordering::Relaxed);
        out.error = Some(error.to_string());
    }
    out
}

fn serve(mut connections: Vec<Connection>, shared: &LoadShared<'_>, out: &mut Loop) -> io::Result<()> {
    let epoll = Epoll::new()?;
    let mut buffer = vec![0u8; 256 << 10];
    let mut open = connections.len();
    let mut wants_write = vec![false; open];
    for (i, connection) in connections.iter_mut().enumerate() {
        epoll.control(libc::EPOLL_CTL_ADD, connection.stream.as_raw_fd(), i, false)?;
        if step(connection, i, &mut wants_write, &epoll, shared, &mut buffer, out)? {
            open -= 1;
        }
    }
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; 256];
    while open > 0 {
        let ready = epoll.wait(&mut events, SILENCE)?;
        if ready == 0 {
            return Err(io::Error::new(
                io::ErrorKind::TimedOut,
                format!("{open} connections silent for {SILENCE:?}"),
            ));
        }
        for event in &events[..ready] {
            let i = event.u64 as usize;
            if step(&mut connections[i], i, &mut wants_write, &epoll, shared, &mut buffer, out)? {
                open -= 1;
            }
        }
    }
    Ok(())
}

/// True when the connection is through.
fn step(
    connection: &mut Connection,
    i: usize,
    wants_write: &mut [bool],
    epoll: &Epoll,
    shared: &LoadShared<'_>,
    buffer: &mut [u8],
    out: &mut Loop,
) -> io::Result<bool> {
    match connection.go_on(shared, buffer, out)? {
        Next::Done => {
            epoll.control(libc::EPOLL_CTL_DEL, connection.stream.as_raw_fd(), i, false)?;
            Ok(true)
        }
        Next::Wait { write } => {
            if wants_write[i] != write {
                wants_write[i] = write;
                epoll.control(libc::EPOLL_CTL_MOD, connection.stream.as_raw_fd(), i, write)?;
            }
            Ok(false)
        }
    }
}

struct Epoll(std::os::fd::OwnedFd);

impl Epoll {
    fn new() -> io::Result<Epoll> {
        use std::os::fd::FromRawFd;
        // SAFETY: a fresh descriptor, owned by nobody else.
        unsafe {
            let fd = libc::epoll_create1(libc::EPOLL_CLOEXEC);
            if fd < 0 { Err(io::Error::last_os_error()) } else { Ok(Epoll(FromRawFd::from_raw_fd(fd))) }
        }
    }

    fn control(&self, what: i32, fd: i32, token: usize, write: bool) -> io::Result<()> {
        let interest = libc::EPOLLIN | if write { libc::EPOLLOUT } else { 0 };
        let mut event = libc::epoll_event { events: interest as u32, u64: token as u64 };
        // SAFETY: the event outlives the call, both descriptors are open.
        let done = unsafe { libc::epoll_ctl(self.0.as_raw_fd(), what, fd, &mut event) };
        if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    fn wait(&self, events: &mut [libc::epoll_event], longest: Duration) -> io::Result<usize> {
        loop {
            // SAFETY: the kernel writes at most `events.len()` events.
            let n = unsafe {
                let room = events.len() as i32;
                libc::epoll_wait(self.0.as_raw_fd(), events.as_mut_ptr(), room, longest.as_millis() as i32)
            };
            if n >= 0 {
                return Ok(n as usize);
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
    }
}
