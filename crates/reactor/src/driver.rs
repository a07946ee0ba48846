//! The seam between the executor and a world: the kernel, through io_uring or through epoll and Linux AIO, or the simulation.
//!
//! The contract, which all drivers keep and `tests/it/contract` checks:
//!
//! 1. [`Driver::submit`] takes an operation with everything it needs, owned, and a [`Token`]. It never fails and
//!    never completes inside the call: failures come back as completions too.
//! 2. Each token gets exactly one *final* completion (`more == false`), also after [`Driver::cancel`]. Only
//!    [`Op::Accept`] and [`Op::Receive`] into shared buffers may complete several times before (`more == true`).
//! 3. The driver keeps the operation's buffer *and* handle until the final completion and then gives the buffer back
//!    inside the [`Outcome`]. Each [`Op`] names the outcome that answers it; a refused or cancelled operation
//!    answers with the same variant holding an error (`ECANCELED` when cancelled).
//! 4. A cancelled operation may have happened, in whole or in part, or not. Cancelling an unknown or finished token
//!    does nothing.
//! 5. Completions are delivered in batches by [`Driver::turn`], which also hands submitted operations on. It waits
//!    at most until the deadline it is given, and returns early on any completion or kick.
//! 6. The driver owns the clock: [`Driver::now`] is monotonic, [`Driver::wall_ms`] is the wall clock.
//! 7. `Read`, `Write` and `Send` may transfer fewer bytes than asked; the callers in `file.rs` and `net.rs` carry on
//!    from there. A read of 0 bytes is the end of the file.
//!
//! A simulated core is driven from outside: the world completes operations into the driver's inbox, then calls
//! `Core::step` (see `executor.rs`), which calls `turn` with [`Wait::Poll`] only.

use crate::addr::{Addr, PeerAddr};
use crate::buf::{IoBuf, RecvBuf};
use crate::epoll::Epoll;
use crate::file_queue::FileQueue;
use crate::run::Config;
use crate::sim::SimDriver;
use crate::sys;
use crate::time::Nanos;
use crate::uring::Uring;
use crate::zones::{Zone, ZoneAction, ZonedInfo};
use bytes::Bytes;
use std::any::Any;
use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::sync::Arc;

/// Names one operation in flight on one core: slot in the low half, its generation in the high half.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u64);

impl Token {
    pub(crate) fn new(index: u32, generation: u32) -> Self {
        Self(u64::from(generation) << 32 | u64::from(index))
    }

    /// The slot, dense from 0, free for reuse only after the final completion: drivers may index by it.
    pub fn index(self) -> usize {
        (self.0 & u64::from(u32::MAX)) as usize
    }

    /// How often the slot has been used before.
    pub fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

/// An open file, listener or stream, shared by its owners and by the operations in flight on it; closed when the
/// last of them lets go.
#[derive(Clone, Debug)]
pub struct Handle(Arc<HandleKind>);

#[derive(Debug)]
enum HandleKind {
    Os { fd: OwnedFd, is_locked: bool, queue: Option<Arc<FileQueue>> },
    Sim(SimHandle),
}

impl HandleKind {
    fn queue(&self) -> Option<&Arc<FileQueue>> {
        match self {
            Self::Os { queue, .. } => queue.as_ref(),
            Self::Sim(handle) => handle.queue.as_ref(),
        }
    }
}

impl Drop for HandleKind {
    fn drop(&mut self) {
        // Closing alone would not do: a process that was forked meanwhile holds the file, and with it the lock, until it
        // runs its own program.
        if let Self::Os { fd, is_locked: true, .. } = self {
            sys::unlock(fd);
        }
        if let Some(queue) = self.queue() {
            queue.close();
        }
    }
}

/// A simulated file, listener or stream.
#[derive(Debug)]
pub struct SimHandle {
    /// What the simulated world calls it.
    pub id: u64,
    /// Dropped with the last owner: its `Drop` is how the world learns of the close.
    pub guard: Box<dyn Any + Send + Sync>,
    /// Of files: what all cores ask of it.
    pub queue: Option<Arc<FileQueue>>,
}

impl Handle {
    pub(crate) fn os(fd: OwnedFd) -> Self {
        Self(Arc::new(HandleKind::Os { fd, is_locked: false, queue: None }))
    }

    /// A file above a queue of that depth. One that is locked is unlocked with the last owner.
    pub(crate) fn file(fd: OwnedFd, is_locked: bool, queue_depth: Option<u32>) -> Self {
        Self(Arc::new(HandleKind::Os { fd, is_locked, queue: Some(FileQueue::of(queue_depth)) }))
    }

    /// What all cores ask of it, if it is a file.
    pub(crate) fn queue(&self) -> Option<&Arc<FileQueue>> {
        self.0.queue()
    }

    /// A handle of the simulated world.
    pub fn sim(handle: SimHandle) -> Self {
        Self(Arc::new(HandleKind::Sim(handle)))
    }

    /// The simulated world's id. Panics on a handle of the real world.
    pub fn sim_id(&self) -> u64 {
        match &*self.0 {
            HandleKind::Sim(handle) => handle.id,
            HandleKind::Os { fd, .. } => panic!("file descriptor {} used in a simulation", fd.as_raw_fd()),
        }
    }

    /// This end of a stream, as the kernel tells it.
    pub(crate) fn local_addr(&self) -> Option<SocketAddr> {
        match &*self.0 {
            HandleKind::Os { fd, .. } => sys::local(fd.as_raw_fd()),
            HandleKind::Sim(_) => None,
        }
    }

    pub(crate) fn fd(&self) -> RawFd {
        match &*self.0 {
            HandleKind::Os { fd, .. } => fd.as_raw_fd(),
            HandleKind::Sim(handle) => panic!("simulated handle {} used on a real core", handle.id),
        }
    }
}

/// How to open a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpenOptions {
    /// Make the file if it is missing.
    pub create: bool,
    /// Make the file; `AlreadyExists` if it is there.
    pub create_new: bool,
    /// Refuse writes.
    pub read_only: bool,
    /// Past the host's page cache (O_DIRECT). Falls back to the cache where the file system knows no such thing;
    /// [`FileInfo::direct`] tells.
    pub direct: bool,
    /// Take the whole file: a second opener gets `WouldBlock`.
    pub exclusive_lock: bool,
}

/// What is known of a file once it is open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileInfo {
    /// Whether reads and writes go past the page cache.
    pub direct: bool,
    /// Offsets and lengths must be multiples of this many bytes when `direct`; 1 otherwise.
    pub alignment: u32,
    /// Memory must be aligned to this many bytes when `direct`; 1 otherwise.
    pub memory_alignment: u32,
    /// A block device rather than a regular file.
    pub block_device: bool,
    /// A block device whose zones take writes at their write pointers only.
    pub zoned: Option<ZonedInfo>,
}

/// When a write is on the media.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteSync {
    /// After a later `sync_data`.
    Cached,
    /// When the write completes (RWF_DSYNC).
    Durable,
}

/// How long an accepted TCP connection may be silent before its peer is asked for a sign of life (SO_KEEPALIVE).
pub const KEEPALIVE_SECONDS: u16 = 300;

/// How to listen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenOptions {
    /// Connections that may wait to be accepted.
    pub backlog: u32,
    /// Several listeners on one TCP address share its connections (SO_REUSEPORT): one per core.
    pub reuse_port: bool,
    /// Permissions of a Unix socket's path, as chmod(2) takes them; otherwise as the umask leaves them.
    pub unix_mode: Option<u32>,
}

impl Default for ListenOptions {
    fn default() -> Self {
        Self { backlog: 1024, reuse_port: true, unix_mode: None }
    }
}

/// A signal that a server answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// SIGTERM.
    Terminate,
    /// SIGINT.
    Interrupt,
    /// SIGHUP.
    Hangup,
}

/// What a send carries.
#[derive(Debug)]
pub enum SendData {
    /// Sent one after the other, without copying them together.
    Parts(Vec<Bytes>),
    /// One buffer that the caller gets back.
    One(Vec<u8>),
}

impl SendData {
    /// All bytes.
    pub fn len(&self) -> usize {
        match self {
            Self::Parts(parts) => parts.iter().map(Bytes::len).sum(),
            Self::One(data) => data.len(),
        }
    }

    /// Whether there is nothing to send.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Which directions of a stream to close.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShutdownHow {
    /// Sends only: the peer reads the end.
    Send,
    /// Both.
    Both,
}

/// One operation, with everything it needs.
#[derive(Debug)]
pub enum Op {
    /// Open a file. → [`Outcome::Opened`]
    Open {
        /// Where.
        path: PathBuf,
        /// How.
        options: OpenOptions,
    },
    /// Read at `offset` into `buf[start..]`. → [`Outcome::Read`]
    Read {
        /// From which file.
        file: Handle,
        /// Where to; its length says how much.
        buf: IoBuf,
        /// Bytes of `buf` that are filled already.
        start: usize,
        /// Position in the file of `buf[start]`.
        offset: u64,
    },
    /// Write `data` at `offset`. → [`Outcome::Written`]
    Write {
        /// To which file.
        file: Handle,
        /// What.
        data: Bytes,
        /// Position in the file of its first byte.
        offset: u64,
        /// When it is on the media.
        sync: WriteSync,
    },
    /// Everything written before, by completed writes, is on the media. → [`Outcome::Done`]
    Sync {
        /// Of which file.
        file: Handle,
    },
    /// Give the range back: it reads as zeros. → [`Outcome::Done`]
    Punch {
        /// In which file.
        file: Handle,
        /// First byte.
        offset: u64,
        /// How many.
        bytes: u64,
    },
    /// Reserve space for the range, growing the file if need be. → [`Outcome::Done`]
    Allocate {
        /// In which file.
        file: Handle,
        /// First byte.
        offset: u64,
        /// How many.
        bytes: u64,
    },
    /// Cut or grow the file. → [`Outcome::Done`]
    SetLen {
        /// Which file.
        file: Handle,
        /// Its new length.
        bytes: u64,
    },
    /// The length of a file or block device. → [`Outcome::Done`] with it.
    Len {
        /// Which file.
        file: Handle,
    },
    /// The zones of a zoned device from the one that holds byte `from` on, some of them at once.
    /// → [`Outcome::Zones`]
    ReportZones {
        /// Of which device.
        file: Handle,
        /// Where to begin.
        from: u64,
        /// How many at most; fewer may come.
        zones_max: u32,
    },
    /// Do `action` to the zones in a range, which is whole zones. → [`Outcome::Done`]
    ManageZones {
        /// Of which device.
        file: Handle,
        /// What.
        action: ZoneAction,
        /// First byte.
        start: u64,
        /// How many.
        bytes: u64,
    },
    /// Listen. → [`Outcome::Bound`]
    Bind {
        /// Where.
        addr: Addr,
        /// How.
        options: ListenOptions,
    },
    /// Accept connections until cancelled. → many [`Outcome::Accepted`]
    Accept {
        /// From which listener.
        listener: Handle,
    },
    /// Connect. → [`Outcome::Connected`]
    Connect {
        /// To where.
        addr: Addr,
    },
    /// Receive what comes. → [`Outcome::Received`], one or several: until the end, an error, cancellation, or the driver lets another
    /// stream have its turn. The end of the stream is an empty buffer and final. Where shared buffers are all in use it waits for one;
    /// not for long for those whose holders keep them. Into [`ReceiveInto::Given`]: → [`Outcome::Filled`].
    Receive {
        /// From which stream.
        stream: Handle,
        /// Into what.
        into: ReceiveInto,
    },
    /// Send `data`, without its first `skip` bytes. → [`Outcome::Sent`]
    Send {
        /// To which stream.
        stream: Handle,
        /// What.
        data: SendData,
        /// Bytes already sent.
        skip: usize,
    },
    /// Close one or both directions. → [`Outcome::Done`]
    Shutdown {
        /// Of which stream.
        stream: Handle,
        /// Which.
        how: ShutdownHow,
    },
    /// Wait for a signal. → [`Outcome::Signal`]
    Signal,
}

/// Bytes of each of the small buffers that receives share: several short commands, and one with a value of 1 KiB. There
/// can be many of them, so that many clients at once find one (several hundred durable SETs are answered, and their
/// next ones sent, at one moment).
pub const SMALL_RECEIVE_BYTES: usize = 4 << 10;

/// Where a receive puts what came.
#[derive(Debug)]
pub enum ReceiveInto {
    /// This, once.
    Given {
        /// The caller's memory.
        buf: IoBuf,
        /// Which bytes of it; not none.
        range: Range<usize>,
    },
    /// Shared buffers of [`SMALL_RECEIVE_BYTES`].
    Small,
    /// The fewer large ones.
    Large,
}

/// What came of an operation, with its buffer.
#[derive(Debug)]
pub enum Outcome {
    /// A file was opened.
    Opened(io::Result<(Handle, FileInfo)>),
    /// Bytes read now (not counting `start`), and the buffer.
    Read(io::Result<usize>, IoBuf),
    /// Bytes written, and the data.
    Written(io::Result<usize>, Bytes),
    /// Sync, Punch, Allocate, SetLen, ManageZones, Shutdown: 0. Len: bytes.
    Done(io::Result<u64>),
    /// Zones in order.
    Zones(io::Result<Vec<Zone>>),
    /// A listener, and its address with the port filled in.
    Bound(io::Result<(Handle, Addr)>),
    /// A connection came.
    Accepted(io::Result<(Handle, PeerAddr)>),
    /// A connection was made.
    Connected(io::Result<(Handle, PeerAddr)>),
    /// Bytes came; none at all: the end.
    Received(io::Result<RecvBuf>),
    /// Which bytes of the given memory came, and the memory; none at all: the end.
    Filled(io::Result<Range<usize>>, IoBuf),
    /// Bytes sent now (not counting `skip`), and the data.
    Sent(io::Result<usize>, SendData),
    /// A signal came.
    Signal(io::Result<Signal>),
}

impl Outcome {
    /// Nobody waits for it any more. A signal is still to be heard by who asks next.
    pub(crate) fn forget(self) {
        if let Self::Signal(Ok(signal)) = self {
            sys::raise(signal);
        }
    }

    /// For a match arm that a driver which keeps the contract never reaches.
    pub(crate) fn unexpected(self) -> ! {
        panic!("the driver answered with the wrong kind of outcome: {self:?}")
    }
}

/// One completion.
#[derive(Debug)]
pub struct Completion {
    /// Which operation.
    pub token: Token,
    /// What came of it.
    pub outcome: Outcome,
    /// Whether more completions of the same operation follow.
    pub more: bool,
}

/// How long [`Driver::turn`] may wait for something to happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Not at all.
    Poll,
    /// Until this time on the driver's clock.
    Until(Nanos),
    /// For as long as it takes.
    Forever,
}

impl Wait {
    /// Not longer than until `deadline`.
    pub(crate) fn at_most_until(self, deadline: Nanos) -> Self {
        match self {
            Self::Poll => Self::Poll,
            Self::Until(earlier) => Self::Until(earlier.min(deadline)),
            Self::Forever => Self::Until(deadline),
        }
    }
}

/// What a driver counts.
#[derive(Debug, Default)]
pub(crate) struct DriverCounts {
    /// System calls.
    pub(crate) enters: u64,
    /// Receives that waited for a shared buffer.
    pub(crate) receive_waits: u64,
}

/// Ends another core's wait. Called from any thread; never blocks.
pub trait Kick: Send + Sync {
    /// Makes the core's current or next [`Driver::turn`] return soon (in the simulation: makes the world call
    /// `Core::step`).
    fn kick(&self);
}

/// A world that carries out one core's operations.
pub enum Driver {
    /// The kernel, through io_uring.
    Uring(Box<Uring>),
    /// The kernel, through epoll and Linux AIO.
    Epoll(Box<Epoll>),
    /// The simulated world.
    Sim(Box<SimDriver>),
}

macro_rules! either {
    ($self:expr, $driver:ident => $call:expr) => {
        match $self {
            Driver::Uring($driver) => $call,
            Driver::Epoll($driver) => $call,
            Driver::Sim($driver) => $call,
        }
    };
}

impl Driver {
    /// Monotonic time.
    pub fn now(&self) -> Nanos {
        match self {
            Self::Uring(_) | Self::Epoll(_) => sys::monotonic(),
            Self::Sim(sim) => sim.now(),
        }
    }

    /// Unix time in milliseconds; may be as old as the current turn.
    pub fn wall_ms(&self) -> u64 {
        match self {
            Self::Uring(_) | Self::Epoll(_) => sys::wall_ms(),
            Self::Sim(sim) => sim.wall_ms(),
        }
    }

    /// The same clock in microseconds.
    pub fn wall_us(&self) -> u64 {
        match self {
            Self::Uring(_) | Self::Epoll(_) => sys::wall_us(),
            Self::Sim(sim) => sim.wall_us(),
        }
    }

    /// Takes an operation; it starts at the latest in the next `turn`.
    pub fn submit(&mut self, token: Token, op: Op) {
        either!(self, driver => driver.submit(token, op));
    }

    /// Asks for an early end of an operation; its final completion still comes.
    pub fn cancel(&mut self, token: Token) {
        either!(self, driver => driver.cancel(token));
    }

    /// Starts what was submitted, waits if told to and nothing has completed yet, and appends completions to `out`.
    pub fn turn(&mut self, wait: Wait, out: &mut Vec<Completion>) -> io::Result<()> {
        either!(self, driver => driver.turn(wait, out))
    }

    /// Whether a `turn` with [`Wait::Poll`] could do anything: operations to start or completions to fetch.
    pub fn has_work(&self) -> bool {
        either!(self, driver => driver.has_work())
    }

    /// Has the kernel know the memory of its buffers, where that helps.
    pub(crate) fn register_memory(&mut self, config: &Config) {
        match self {
            Self::Uring(uring) => uring.register_memory(config),
            Self::Epoll(_) | Self::Sim(_) => {}
        }
    }

    /// What it is called.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Uring(_) => "io_uring",
            Self::Epoll(_) => "epoll",
            Self::Sim(_) => "simulation",
        }
    }

    /// What happened since the last look.
    pub(crate) fn take_counts(&mut self) -> DriverCounts {
        match self {
            Self::Uring(uring) => uring.take_counts(),
            Self::Epoll(epoll) => epoll.take_counts(),
            Self::Sim(_) => DriverCounts::default(),
        }
    }
}

impl Outcome {
    /// Whether it says that the operation was cancelled.
    pub fn is_cancelled(&self) -> bool {
        let error = match self {
            Self::Opened(Err(error))
            | Self::Read(Err(error), _)
            | Self::Written(Err(error), _)
            | Self::Done(Err(error))
            | Self::Zones(Err(error))
            | Self::Bound(Err(error))
            | Self::Accepted(Err(error))
            | Self::Connected(Err(error))
            | Self::Received(Err(error))
            | Self::Filled(Err(error), _)
            | Self::Sent(Err(error), _)
            | Self::Signal(Err(error)) => error,
            _ => return false,
        };
        error.raw_os_error() == Some(libc::ECANCELED)
    }
}
