//! The driver for kernels and sandboxes without io_uring: epoll for sockets, Linux AIO for files.
//!
//! It is there so that Pumice runs where io_uring is older than 5.19, switched off (`kernel.io_uring_disabled`) or
//! forbidden (Docker's default seccomp profile), and not to be fast: a receive, a send and a wait are a system call each. The oldest
//! kernel is 4.18. Nothing of it holds memory for connections that are silent, and nothing waits in the kernel but files: a
//! cancelled operation on a socket ends at once.
//!
//! What can be tried without waiting is tried first — sends, receives into given memory — and watched only if that fails; what is
//! expected to wait (receives into shared buffers, accepts, signals) is watched from the start and for as long as it is
//! wanted, so that most commands cost no call of `epoll_ctl`.

mod aio;
mod files;
mod sockets;
mod watch;

use crate::buf::Pool;
use crate::driver::{
    Completion, DriverCounts, Handle, Op, Outcome, ReceiveInto, SMALL_RECEIVE_BYTES, Token, Wait,
};
use crate::run::Config;
use crate::sys::helper::{Helper, Request};
use crate::sys::message::Message;
use crate::sys::{self, EventFd};
use files::Files;
use sockets::Waiting;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use watch::Watches;

/// The longest wait; then the core looks again.
const WAIT_MAX: Duration = Duration::from_secs(3600);
/// How long to wait before the kernel is asked again for what it had no room for, and does not tell when it has: a request of a file
/// where none of this core's is under way, a connection to a full backlog.
const ROOM_WAIT: Duration = Duration::from_millis(1);

/// One core's driver.
pub struct Epoll {
    files: Files,
    watches: Watches,
    /// Operations on sockets, and signals, by the index of their token.
    waiting: Vec<Option<(Token, Waiting)>>,
    waiting_count: usize,
    /// Those that are tried at the next turn.
    untried: Vec<Token>,
    /// Connects that are tried again at each.
    later: Vec<Token>,
    /// Completions that are known already.
    immediate: Vec<Completion>,
    /// Found ready by the wait; reused.
    ready: Vec<Token>,
    /// The last turn had completions to hand out, and did not look for others.
    has_skipped: bool,
    /// What is received before it is known how much; reused.
    received: Box<[u8]>,
    message: Box<Message>,
    kick: Arc<EventFd>,
    helper: Helper,
    pool: Arc<Pool>,
    counts: DriverCounts,
}

impl Epoll {
    pub(crate) fn new(config: &Config, kick: Arc<EventFd>) -> io::Result<Self> {
        let explain = |what: &str, error: io::Error| io::Error::new(error.kind(), format!("{what}: {error}"));
        let files = Files::new(config.queue_depth, &kick);
        let files = files.map_err(|error| explain("Linux AIO cannot be set up", error))?;
        let watches = Watches::new(kick.fd()).map_err(|error| explain("epoll cannot be set up", error))?;
        let received = vec![0; (config.receive_buffer_bytes as usize).max(SMALL_RECEIVE_BYTES)];
        Ok(Self {
            files,
            watches,
            waiting: Vec::new(),
            waiting_count: 0,
            untried: Vec::new(),
            later: Vec::new(),
            immediate: Vec::new(),
            ready: Vec::new(),
            has_skipped: false,
            received: received.into(),
            message: Message::new(),
            kick,
            helper: Helper::default(),
            pool: Arc::new(Pool::unregistered(false, config.kept_buffer_bytes)),
            counts: DriverCounts::default(),
        })
    }

    pub(crate) fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    pub(crate) fn take_counts(&mut self) -> DriverCounts {
        self.counts.enters += self.files.take_calls();
        std::mem::take(&mut self.counts)
    }

    fn finish(&mut self, token: Token, outcome: Outcome) {
        self.immediate.push(Completion { token, outcome, more: false });
    }

    pub(crate) fn submit(&mut self, token: Token, op: Op) {
        let mut help = |file: Handle, request| self.helper.submit(&self.kick, token, file, request);
        match op {
            Op::Read { file, buf, start, offset } => self.files.read(token, file, buf, start, offset),
            Op::Write { file, data, offset, sync } => self.files.write(token, file, data, offset, sync),
            Op::Sync { file } => self.files.sync(token, file),
            Op::Punch { file, offset, bytes } => help(file, Request::Punch { offset, bytes }),
            Op::Allocate { file, offset, bytes } => help(file, Request::Allocate { offset, bytes }),
            Op::ReportZones { file, from, zones_max } => help(file, Request::Report { from, zones_max }),
            Op::ManageZones { file, action, start, bytes } => {
                help(file, Request::Manage { action, start, bytes });
            }
            Op::Open { path, options } => self.finish(token, Outcome::Opened(sys::open(&path, &options))),
            Op::SetLen { file, bytes } => {
                self.finish(token, Outcome::Done(sys::set_len(&file, bytes).map(|()| 0)))
            }
            Op::Len { file } => self.finish(token, Outcome::Done(sys::len(&file))),
            Op::Bind { addr, options } => {
                let bound = sys::bind(&addr, &options).and_then(|(listener, addr)| {
                    // Cores may share it: whoever comes second to a connection must not wait for the next.
                    sys::set_nonblocking(&listener).map(|()| (listener, addr))
                });
                self.finish(token, Outcome::Bound(bound));
            }
            Op::Shutdown { stream, how } => {
                self.finish(token, Outcome::Done(sys::shutdown(&stream, how).map(|()| 0)));
            }
            Op::Accept { listener } => self.watch(token, Waiting::Accept { listener }),
            Op::Receive { stream, into: ReceiveInto::Given { buf, range } } => {
                assert!(!range.is_empty(), "a receive into nothing");
                self.try_next_turn(token, Waiting::ReceiveGiven { stream, buf, range });
            }
            Op::Receive { stream, into: ReceiveInto::Small } => {
                self.watch(token, Waiting::Receive { stream, bytes: SMALL_RECEIVE_BYTES });
            }
            Op::Receive { stream, into: ReceiveInto::Large } => {
                self.watch(token, Waiting::Receive { stream, bytes: self.received.len() });
            }
            Op::Send { stream, data, skip } => {
                self.try_next_turn(token, Waiting::Send { stream, data, skip });
            }
            Op::Connect { addr } => match sys::connecting_socket(&addr) {
                Ok((stream, addr, peer)) => self.connect(token, stream, peer, addr),
                Err(error) => self.finish(token, Outcome::Connected(Err(error))),
            },
            Op::Signal => match sys::signal_fd().and_then(|fd| sys::set_nonblocking(&fd).map(|()| fd)) {
                Ok(signals) => self.watch(token, Waiting::Signal { signals }),
                Err(error) => self.finish(token, Outcome::Signal(Err(error))),
            },
        }
    }

    /// What waits for a socket ends at once. What waits for a file ends by itself.
    pub(crate) fn cancel(&mut self, token: Token) {
        let Some(waiting) = self.take(token) else { return };
        self.watches.forget(waiting.fd(), waiting.side(), token);
        self.finish(token, waiting.failed(io::Error::from_raw_os_error(libc::ECANCELED)));
    }

    /// Only a call tells whether anything has completed.
    pub(crate) fn has_work(&self) -> bool {
        !self.immediate.is_empty() || self.waiting_count > 0 || !self.files.is_idle()
    }

    pub(crate) fn turn(&mut self, wait: Wait, out: &mut Vec<Completion>) -> io::Result<()> {
        self.untried.append(&mut self.later);
        let mut untried = std::mem::take(&mut self.untried);
        for token in untried.drain(..) {
            self.try_now(token, out);
        }
        self.untried = untried;
        self.files.hand_over();
        out.append(&mut self.immediate);
        self.files.take_failed(out);
        let is_ready = !out.is_empty();
        // Mostly the replies of the last turn: what they bring comes with the wait that follows.
        if is_ready && !std::mem::replace(&mut self.has_skipped, true) {
            return Ok(());
        }
        self.has_skipped = false;
        let most = match wait {
            _ if is_ready => Some(Duration::ZERO),
            Wait::Poll => Some(Duration::ZERO),
            Wait::Until(deadline) => Some((deadline - sys::monotonic()).min(WAIT_MAX)),
            Wait::Forever => None,
        };
        let most = if self.files.is_stuck() || !self.later.is_empty() {
            Some(most.map_or(ROOM_WAIT, |most| most.min(ROOM_WAIT)))
        } else {
            most
        };
        self.counts.enters += 1;
        let is_kicked = self.watches.wait(most, &mut self.ready)?;
        let mut ready = std::mem::take(&mut self.ready);
        for token in ready.drain(..) {
            self.try_now(token, out);
        }
        self.ready = ready;
        if is_kicked {
            self.files.reap(out)?;
            self.helper.reap(out);
        }
        Ok(())
    }
}
