//! The io_uring driver: one ring to a core.
//!
//! An operation's slot keeps what the kernel uses — memory and file descriptor — until the last completion, whatever
//! its owner does meanwhile. File operations go to the kernel at once: a device that waits for the end of a turn stands
//! still while the core works (random 8 KiB reads at depth 32: 48,000 a second, and 80,000 with this). Reads wait for each
//! other where the device has enough to do meanwhile ([`held`](crate::sys::held), `docs/decisions/0041`). All else is queued without a system call
//! until the `io_uring_enter` that ends a turn, which also waits (for one completion: waiting some microseconds
//! for several doubled the CPU of unpipelined requests, by its timers); sent one by one between the reads, replies wake their
//! receivers one by one. What the kernel does at once anyway (open, bind, stat, shutdown) is called directly.
//!
//! Missing features are done without: deferred task work, shared receive buffers, multishot and registered memory each
//! have a fallback, chosen when the kernel refuses. The oldest kernel is 5.19.

mod bufring;
mod receive;
mod slot;

pub(crate) use bufring::BufRing;

use crate::buf::Pool;
use crate::driver::{Completion, DriverCounts, Handle, Op, Outcome, Token, Wait, WriteSync};
use crate::run::Config;
use crate::sys::held::HeldReads;
use crate::sys::helper::{Helper, Request};
use crate::sys::message::Message;
use crate::sys::{self, EventFd};
use io_uring::{IoUring, opcode, squeue, types};
use receive::ReceiveBuffers;
use slot::{InFlight, Slots};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// The kick's poll. Tokens stay below: their generations would have to wrap first.
const KICK: u64 = u64::MAX;
/// Completions of cancellations, which say nothing new.
const CANCEL: u64 = u64::MAX - 1;
/// Most bytes of one read or write; the kernel takes less than 2 GiB.
const TRANSFER_BYTES_MAX: usize = 1 << 30;
/// Completions that fit before the kernel has to keep them elsewhere, for each entry of the submission queue.
const COMPLETIONS_PER_ENTRY: u32 = 16;
/// The longest wait; then the core looks again.
const WAIT_MAX: Duration = Duration::from_secs(3600);
/// The least that a queue is halved to.
const QUEUE_DEPTH_MIN: u32 = 32;

/// One core's ring.
pub struct Uring {
    // Dropped first: the kernel lets go of the memory below.
    ring: IoUring,
    slots: Slots,
    /// Entries for the end of the turn. Bounded by the operations in flight, each of which its task awaits, and their
    /// cancellations.
    backlog: VecDeque<squeue::Entry>,
    held: HeldReads,
    /// Completions of operations that needed no entry.
    immediate: Vec<Completion>,
    kick: Arc<EventFd>,
    receive: Option<ReceiveBuffers>,
    multishot_receive: bool,
    refused_multishot: bool,
    multishot_accept: bool,
    receive_bytes: usize,
    /// Messages of several pieces are sent to their end by the kernel: see [`build_ring`].
    sends_whole: bool,
    /// Its region, if it has one, is registered with the ring.
    pool: Arc<Pool>,
    /// Since the last look.
    counts: DriverCounts,
    helper: Helper,
}

impl Uring {
    /// A ring without registered memory, which [`register_memory`](Self::register_memory) adds.
    pub(crate) fn new(config: &Config, kick: Arc<EventFd>) -> io::Result<Self> {
        let (ring, sends_whole) = build_ring(config.queue_depth, config.without.deferred_work)?;
        let size = config.receive_buffer_bytes as usize;
        let receive = if config.without.shared_receive_buffers {
            None
        } else {
            ReceiveBuffers::new(&ring, config).ok()
        };
        let mut uring = Self {
            ring,
            slots: Slots::default(),
            backlog: VecDeque::new(),
            held: HeldReads::default(),
            immediate: Vec::new(),
            kick,
            multishot_receive: receive.is_some(),
            refused_multishot: config.without.multishot_receive,
            receive,
            multishot_accept: !config.without.multishot_accept,
            receive_bytes: size,
            sends_whole,
            pool: Arc::new(Pool::unregistered(false, config.kept_buffer_bytes)),
            counts: DriverCounts::default(),
            helper: Helper::default(),
        };
        uring.arm_kick();
        Ok(uring)
    }

    /// Whether an error of [`new`](Self::new) says that there is no io_uring here, or none that is new enough. Not that memory is
    /// short, which passes.
    pub(crate) fn is_missing(error: &io::Error) -> bool {
        use io::ErrorKind::{InvalidInput, PermissionDenied, Unsupported};
        matches!(error.kind(), PermissionDenied | Unsupported | InvalidInput)
    }

    /// Registers as much memory for file I/O as the locked-memory limit allows, halving from what is configured, or none.
    /// The limit is one for all of a user's rings, which count, too: cores register only once each of them has its ring. All
    /// together they leave half of it to others: to who is started beside or at once after them, as what a killed process
    /// had locked stays so for some milliseconds.
    pub(crate) fn register_memory(&mut self, config: &Config) {
        let share =
            sys::locked_memory_limit().map_or(u64::MAX, |bytes| bytes / 2 / config.cores.max(1) as u64);
        let bytes = usize::try_from(share).unwrap_or(usize::MAX).min(config.registered_buffer_bytes);
        self.pool = register_memory(&self.ring, bytes, config.kept_buffer_bytes);
    }

    /// The memory for buffers that this ring reads and writes best.
    pub(crate) fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    pub(crate) fn take_counts(&mut self) -> DriverCounts {
        std::mem::take(&mut self.counts)
    }

    fn arm_kick(&mut self) {
        let entry = opcode::PollAdd::new(types::Fd(self.kick.fd()), libc::POLLIN as u32).multi(true).build();
        self.push(entry.user_data(KICK));
    }

    /// Queues an entry for the end of the turn.
    fn push(&mut self, entry: squeue::Entry) {
        self.backlog.push_back(entry);
    }

    /// Puts an entry before the kernel; false where it takes none now (it wants its completions fetched first).
    fn put(&mut self, entry: &squeue::Entry) -> bool {
        // SAFETY: what the entry points to is kept by its slot, or by self, until its last completion.
        let push = |ring: &mut IoUring| unsafe { ring.submission().push(entry) }.is_ok();
        push(&mut self.ring) || (self.hand_over() && push(&mut self.ring))
    }

    fn put_backlog(&mut self) {
        while let Some(entry) = self.backlog.pop_front() {
            if !self.put(&entry) {
                return self.backlog.push_front(entry);
            }
        }
    }

    /// Hands over what lies before the kernel; false where it takes nothing now.
    fn hand_over(&mut self) -> bool {
        self.counts.enters += 1;
        self.held.handed_over();
        self.ring.submit().is_ok()
    }

    fn start(&mut self, token: Token, entry: squeue::Entry, in_flight: InFlight) {
        self.slots.insert(token, in_flight);
        self.push(entry.user_data(token.0));
    }

    /// Starts an operation on a file. What the kernel does not take now goes with the turn.
    fn start_now(&mut self, token: Token, entry: squeue::Entry, in_flight: InFlight) {
        let may_wait = matches!(in_flight, InFlight::Read { .. }) && !self.held.queued();
        self.slots.insert(token, in_flight);
        let entry = entry.user_data(token.0);
        if !self.put(&entry) {
            self.push(entry);
        } else if !may_wait {
            self.hand_over();
        }
    }

    fn finish(&mut self, token: Token, outcome: Outcome) {
        self.immediate.push(Completion { token, outcome, more: false });
    }

    pub(crate) fn submit(&mut self, token: Token, op: Op) {
        match op {
            Op::Read { file, mut buf, start, offset } => {
                let fd = types::Fd(file.fd());
                let target = &mut buf[start..];
                let bytes = target.len().min(TRANSFER_BYTES_MAX) as u32;
                let address = target.as_mut_ptr();
                let entry = if self.is_registered(address, bytes) {
                    opcode::ReadFixed::new(fd, address, bytes, 0).offset(offset).build()
                } else {
                    opcode::Read::new(fd, address, bytes).offset(offset).build()
                };
                self.start_now(token, entry, InFlight::Read { file, buf });
            }
            Op::Write { file, data, offset, sync } => {
                let fd = types::Fd(file.fd());
                let bytes = data.len().min(TRANSFER_BYTES_MAX) as u32;
                let flags = match sync {
                    WriteSync::Cached => 0,
                    WriteSync::Durable => libc::RWF_DSYNC,
                };
                let address = data.as_ptr();
                let entry = if self.is_registered(address, bytes) {
                    opcode::WriteFixed::new(fd, address, bytes, 0).offset(offset).rw_flags(flags).build()
                } else {
                    opcode::Write::new(fd, address, bytes).offset(offset).rw_flags(flags).build()
                };
                self.start_now(token, entry, InFlight::Write { file, data });
            }
            Op::Sync { file } => {
                let entry =
                    opcode::Fsync::new(types::Fd(file.fd())).flags(types::FsyncFlags::DATASYNC).build();
                self.start_now(token, entry, InFlight::Plain { file });
            }
            Op::Punch { file, offset, bytes } => {
                let entry = opcode::Fallocate::new(types::Fd(file.fd()), bytes);
                let entry = entry.offset(offset).mode(sys::PUNCH_MODE).build();
                self.start_now(token, entry, InFlight::Plain { file });
            }
            Op::Allocate { file, offset, bytes } => {
                let entry = opcode::Fallocate::new(types::Fd(file.fd()), bytes).offset(offset).build();
                self.start_now(token, entry, InFlight::Plain { file });
            }
            Op::Accept { listener } => self.start_accept(token, listener),
            Op::Receive { stream, into } => self.start_receive(token, stream, into),
            Op::Send { stream, data, skip } => {
                let mut message = self.slots.spare_message();
                let entry = message.entry(stream.fd(), &data, skip, self.sends_whole);
                self.start(token, entry, InFlight::Send { stream, data, message });
            }
            Op::Connect { addr } => match sys::connecting_socket(&addr) {
                Ok((stream, raw, peer)) => {
                    let fd = types::Fd(stream.fd());
                    let entry = opcode::Connect::new(fd, raw.as_ptr(), raw.len()).build();
                    self.start(token, entry, InFlight::Connect { stream, peer, _addr: raw });
                }
                Err(error) => self.finish(token, Outcome::Connected(Err(error))),
            },
            Op::Signal => match sys::signal_fd() {
                Ok(signals) => {
                    let mut info = sys::SignalInfo::new();
                    let fd = types::Fd(signals.fd());
                    let entry = opcode::Read::new(fd, info.as_mut_ptr(), sys::SignalInfo::BYTES).build();
                    self.start(token, entry, InFlight::Signal { _signals: signals, info });
                }
                Err(error) => self.finish(token, Outcome::Signal(Err(error))),
            },
            Op::Open { path, options } => self.finish(token, Outcome::Opened(sys::open(&path, &options))),
            Op::SetLen { file, bytes } => {
                self.finish(token, Outcome::Done(sys::set_len(&file, bytes).map(|()| 0)))
            }
            Op::ReportZones { file, from, zones_max } => {
                self.helper.submit(&self.kick, token, file, Request::Report { from, zones_max });
            }
            Op::ManageZones { file, action, start, bytes } => {
                self.helper.submit(&self.kick, token, file, Request::Manage { action, start, bytes });
            }
            Op::Len { file } => self.finish(token, Outcome::Done(sys::len(&file))),
            Op::Bind { addr, options } => self.finish(token, Outcome::Bound(sys::bind(&addr, &options))),
            Op::Shutdown { stream, how } => {
                self.finish(token, Outcome::Done(sys::shutdown(&stream, how).map(|()| 0)));
            }
        }
    }

    fn is_registered(&self, address: *const u8, bytes: u32) -> bool {
        self.pool.is_registered(address, bytes as usize)
    }

    fn start_accept(&mut self, token: Token, listener: Handle) {
        let fd = types::Fd(listener.fd());
        let entry = if self.multishot_accept {
            opcode::AcceptMulti::new(fd).flags(libc::SOCK_CLOEXEC).build()
        } else {
            let none = std::ptr::null_mut();
            opcode::Accept::new(fd, none, none.cast()).flags(libc::SOCK_CLOEXEC).build()
        };
        self.start(token, entry, InFlight::Accept { listener, many: self.multishot_accept });
    }

    pub(crate) fn cancel(&mut self, token: Token) {
        if self.stop_waiting(token) {
            self.finish(token, Outcome::Received(Err(io::Error::from_raw_os_error(libc::ECANCELED))));
        } else if self.slots.note_cancelled(token) {
            self.push(opcode::AsyncCancel::new(token.0).build().user_data(CANCEL));
        }
    }

    pub(crate) fn has_work(&self) -> bool {
        if !self.immediate.is_empty() || !self.backlog.is_empty() {
            return true;
        }
        // SAFETY: the ring is used by this thread alone and no other view of its queues is alive.
        let (submission, completion) =
            unsafe { (self.ring.submission_shared(), self.ring.completion_shared()) };
        !submission.is_empty() || !completion.is_empty() || submission.taskrun() || submission.cq_overflow()
    }

    pub(crate) fn turn(&mut self, wait: Wait, out: &mut Vec<Completion>) -> io::Result<()> {
        let wait = self.serve_waiting(wait);
        self.put_backlog();
        self.held.handed_over();
        out.append(&mut self.immediate);
        // What the kernel did not take just now must not wait for what it did.
        let ready = !out.is_empty() || !self.backlog.is_empty() || !self.ring.completion().is_empty();
        // The clock is looked at once, and only where it matters: a look costs as much as a completion.
        let (wait, rest) = match wait {
            _ if ready => (Wait::Poll, Duration::ZERO),
            Wait::Until(deadline) => match deadline - sys::monotonic() {
                rest if rest.is_zero() => (Wait::Poll, rest),
                // The kernel adds it to its clock, and centuries overflow that.
                rest => (wait, rest.min(WAIT_MAX)),
            },
            wait => (wait, Duration::ZERO),
        };
        let result = match wait {
            Wait::Poll => {
                let submission = self.ring.submission();
                if submission.is_empty() && !submission.taskrun() && !submission.cq_overflow() {
                    Ok(0)
                } else {
                    drop(submission);
                    self.counts.enters += 1;
                    self.enter_now()
                }
            }
            Wait::Forever => {
                self.counts.enters += 1;
                self.ring.submit_and_wait(1)
            }
            Wait::Until(_) => {
                self.counts.enters += 1;
                let timeout = types::Timespec::from(rest);
                self.ring.submitter().submit_with_args(1, &types::SubmitArgs::new().timespec(&timeout))
            }
        };
        match result {
            Ok(_) => {}
            // Time ran out; a signal; completions must be fetched first.
            Err(error)
                if matches!(
                    error.raw_os_error(),
                    Some(libc::ETIME | libc::EINTR | libc::EBUSY | libc::EAGAIN)
                ) => {}
            Err(error) => return Err(error),
        }
        self.reap(out);
        self.helper.reap(out);
        Ok(())
    }

    /// Hands over what is queued and runs deferred task work, without waiting.
    fn enter_now(&mut self) -> io::Result<usize> {
        const GETEVENTS: u32 = 1;
        let queued = self.ring.submission().len();
        // SAFETY: no argument is passed, and the entries are kept as in `put`.
        unsafe { self.ring.submitter().enter::<libc::sigset_t>(queued as u32, 0, GETEVENTS, None) }
    }

    fn reap(&mut self, out: &mut Vec<Completion>) {
        loop {
            let next = self.ring.completion().next();
            let Some(entry) = next else { return };
            let (result, flags) = (entry.result(), entry.flags());
            match entry.user_data() {
                KICK => {
                    if !io_uring::cqueue::more(flags) {
                        self.kick.clear();
                        self.arm_kick();
                    }
                }
                CANCEL => {}
                data => self.complete(Token(data), result, flags, out),
            }
        }
    }
}

/// The queue is made smaller, by halves, where the locked-memory limit has no room for it. Also answers whether the kernel may be asked to
/// send messages of several pieces to their end: kernels before 6.1, which know no deferred work, then go on with the wrong bytes
/// where a socket took a part (fixed by 3e4cb6ebbb2b, "io_uring/net: fix fast_iov assignment in io_setup_async_msg()").
fn build_ring(queue_depth: u32, without_deferred_work: bool) -> io::Result<(IoUring, bool)> {
    let mut depth = queue_depth;
    loop {
        match build_ring_of(depth, without_deferred_work) {
            Err(error) if is_out_of_memory(&error) && depth / 2 >= QUEUE_DEPTH_MIN => depth /= 2,
            built => return built.map_err(|error| explain(&error)),
        }
    }
}

fn build_ring_of(queue_depth: u32, without_deferred_work: bool) -> io::Result<(IoUring, bool)> {
    let mut builder = IoUring::builder();
    builder
        .dontfork()
        .setup_clamp()
        .setup_cqsize(queue_depth.saturating_mul(COMPLETIONS_PER_ENTRY))
        .setup_submit_all();
    // The best first. Lesser rings take as much memory.
    if !without_deferred_work {
        let mut builder = builder.clone();
        builder.setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag();
        match builder.build(queue_depth) {
            Err(error) if !is_out_of_memory(&error) => {}
            built => return built.map(|ring| (ring, true)),
        }
    }
    let mut better = builder.clone();
    better.setup_coop_taskrun().setup_taskrun_flag();
    let built = match better.build(queue_depth) {
        Err(error) if !is_out_of_memory(&error) => builder.build(queue_depth),
        built => built,
    };
    built.map(|ring| (ring, false))
}

fn is_out_of_memory(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::ENOMEM)
}

fn explain(error: &io::Error) -> io::Error {
    let hint = match error.raw_os_error() {
        Some(libc::EPERM) => {
            " (io_uring is forbidden here: see the sysctl kernel.io_uring_disabled and the container's seccomp profile)"
        }
        Some(libc::ENOSYS) => " (this kernel has no io_uring)",
        Some(libc::EINVAL) => " (this kernel is older than 5.19)",
        Some(libc::ENOMEM) => {
            " (the locked-memory limit, which counts all of a user's processes, has no room for a ring: raise it with \
             `ulimit -l`, or LimitMEMLOCK= in the unit)"
        }
        _ => "",
    };
    io::Error::new(error.kind(), format!("io_uring cannot be set up: {error}{hint}"))
}

fn register_memory(ring: &IoUring, bytes: usize, kept_bytes: usize) -> Arc<Pool> {
    let mut bytes = if bytes == 0 { 0 } else { 1 << bytes.ilog2() };
    while bytes >= Pool::REGION_BYTES_MIN {
        let Ok(pool) = Pool::with_region(bytes, kept_bytes) else { break };
        if let Some(region) = pool.region() {
            let region = libc::iovec { iov_base: region.address().cast(), iov_len: region.len() };
            // SAFETY: the driver keeps the pool as long as the ring, and every buffer of it keeps it too.
            if unsafe { ring.submitter().register_buffers(&[region]) }.is_ok() {
                return Arc::new(pool);
            }
        }
        bytes /= 2;
    }
    Arc::new(Pool::unregistered(false, kept_bytes))
}

impl Drop for Uring {
    /// Normally everything has ended: the executor drains first. After a panic it has not, and memory that the kernel
    /// may still write to must not be freed.
    fn drop(&mut self) {
        const ROUNDS_MAX: u32 = 50;
        let mut completions = Vec::new();
        for token in self.slots.live_tokens() {
            self.cancel(token);
        }
        for _ in 0..ROUNDS_MAX {
            if self.slots.is_empty() {
                return;
            }
            let deadline = sys::monotonic() + Duration::from_millis(100);
            if self.turn(Wait::Until(deadline), &mut completions).is_err() {
                break;
            }
            completions.clear();
        }
        std::mem::forget(std::mem::take(&mut self.slots));
        std::mem::forget(self.receive.take());
        std::mem::forget(Arc::clone(&self.pool));
    }
}

impl Message {
    /// The entry that sends `data` without its first `skip` bytes; of several pieces perhaps a part, unless `whole`.
    fn entry(&mut self, fd: i32, data: &crate::driver::SendData, skip: usize, whole: bool) -> squeue::Entry {
        const FLAGS: i32 = libc::MSG_NOSIGNAL | libc::MSG_WAITALL;
        match self.fill(data, skip) {
            [only] => {
                let bytes = only.iov_len.min(TRANSFER_BYTES_MAX) as u32;
                opcode::Send::new(types::Fd(fd), only.iov_base.cast(), bytes).flags(FLAGS).build()
            }
            _ => {
                let flags = if whole { FLAGS } else { libc::MSG_NOSIGNAL };
                opcode::SendMsg::new(types::Fd(fd), self.header()).flags(flags as u32).build()
            }
        }
    }
}
