//! Which descriptors the kernel is asked to watch, and for whom.

use crate::driver::Token;
use crate::sys::check;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

/// Events of one wait.
const EVENTS_MAX: usize = 256;

/// What is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// Bytes, a connection or a signal has come.
    In,
    /// There is room to send, or a connection is made.
    Out,
}

/// Who waits for a descriptor.
#[derive(Clone, Copy, Default)]
struct Watched {
    waits_in: Option<Token>,
    waits_out: Option<Token>,
}

impl Watched {
    fn side(&mut self, side: Side) -> &mut Option<Token> {
        match side {
            Side::In => &mut self.waits_in,
            Side::Out => &mut self.waits_out,
        }
    }

    fn who(self, side: Side) -> Option<Token> {
        match side {
            Side::In => self.waits_in,
            Side::Out => self.waits_out,
        }
    }

    fn events(self) -> u32 {
        let bit = |waits: Option<Token>, bit: i32| if waits.is_some() { bit as u32 } else { 0 };
        bit(self.waits_in, libc::EPOLLIN) | bit(self.waits_out, libc::EPOLLOUT)
    }
}

/// One core's epoll instance. A descriptor is known to it only while somebody waits, whose operation keeps it open: what is closed,
/// and its number used again, is never here.
pub(super) struct Watches {
    epoll: OwnedFd,
    /// By descriptor.
    watched: Vec<Watched>,
    events: Box<[libc::epoll_event]>,
    kick: RawFd,
    /// The kernel waits to the nanosecond (`epoll_pwait2`, Linux 5.11).
    waits_exactly: bool,
}

impl Watches {
    /// One that ends each wait when `kick` is written to, which nobody needs to read.
    pub(super) fn new(kick: RawFd) -> io::Result<Self> {
        // SAFETY: no memory is passed.
        let epoll = check(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        // SAFETY: a descriptor that the kernel has just given us.
        let epoll = unsafe { OwnedFd::from_raw_fd(epoll) };
        let none = libc::epoll_event { events: 0, u64: 0 };
        let events = vec![none; EVENTS_MAX].into();
        let watches = Self { epoll, watched: Vec::new(), events, kick, waits_exactly: true };
        watches.control(libc::EPOLL_CTL_ADD, kick, (libc::EPOLLIN | libc::EPOLLET) as u32)?;
        Ok(watches)
    }

    fn control(&self, what: i32, fd: RawFd, events: u32) -> io::Result<()> {
        let mut event = libc::epoll_event { events, u64: fd as u64 };
        // SAFETY: the kernel reads one event.
        check(unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), what, fd, &raw mut event) }).map(drop)
    }

    /// Has `token` told of when `fd` is ready, again and again until it is [forgotten](Self::forget).
    pub(super) fn add(&mut self, fd: RawFd, side: Side, token: Token) -> io::Result<()> {
        let index = fd as usize;
        if self.watched.len() <= index {
            self.watched.resize(index + 1, Watched::default());
        }
        let before = self.watched[index].events();
        let waits = self.watched[index].side(side);
        assert!(waits.is_none(), "{waits:?} and {token:?} both wait for descriptor {fd}");
        *waits = Some(token);
        let what = if before == 0 { libc::EPOLL_CTL_ADD } else { libc::EPOLL_CTL_MOD };
        let result = self.control(what, fd, self.watched[index].events());
        if result.is_err() {
            *self.watched[index].side(side) = None;
        }
        result
    }

    pub(super) fn is_watched(&self, fd: RawFd, side: Side, token: Token) -> bool {
        self.watched.get(fd as usize).is_some_and(|watched| watched.who(side) == Some(token))
    }

    /// Ends that. Does nothing if `token` does not wait.
    pub(super) fn forget(&mut self, fd: RawFd, side: Side, token: Token) {
        let Some(watched) = self.watched.get_mut(fd as usize) else { return };
        if watched.side(side).take_if(|waits| *waits == token).is_none() {
            return;
        }
        let events = watched.events();
        let what = if events == 0 { libc::EPOLL_CTL_DEL } else { libc::EPOLL_CTL_MOD };
        let result = self.control(what, fd, events);
        assert!(result.is_ok(), "descriptor {fd} was watched, and cannot be forgotten: {result:?}");
    }

    /// Waits until something is ready, for so long at most, and appends who waits for it to `ready`. Whether there was a kick.
    pub(super) fn wait(&mut self, most: Option<Duration>, ready: &mut Vec<Token>) -> io::Result<bool> {
        let count = match self.wait_for_events(most) {
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
            Err(error) => return Err(error),
        };
        let mut is_kicked = false;
        for event in &self.events[..count] {
            let (events, fd) = (event.events as i32, event.u64);
            is_kicked |= fd == self.kick as u64;
            let Some(watched) = self.watched.get(fd as usize) else { continue };
            // Whoever waits learns of errors and of the end by trying.
            let ended = libc::EPOLLERR | libc::EPOLLHUP;
            let of = |waits: Option<Token>, bit: i32| waits.filter(|_| events & (bit | ended) != 0);
            ready.extend(of(watched.waits_in, libc::EPOLLIN));
            ready.extend(of(watched.waits_out, libc::EPOLLOUT));
        }
        Ok(is_kicked)
    }

    fn wait_for_events(&mut self, most: Option<Duration>) -> io::Result<usize> {
        let (fd, room) = (self.epoll.as_raw_fd(), self.events.len() as i32);
        let events = self.events.as_mut_ptr();
        let Some(most) = most.filter(|most| !most.is_zero()) else {
            let forever = if most.is_none() { -1 } else { 0 };
            // SAFETY: the kernel writes at most `room` events.
            return check(unsafe { libc::epoll_wait(fd, events, room, forever) }).map(|count| count as usize);
        };
        let exact = libc::timespec {
            tv_sec: most.as_secs() as libc::time_t,
            tv_nsec: libc::c_long::from(most.subsec_nanos() as i32),
        };
        if self.waits_exactly {
            let no_mask = std::ptr::null::<libc::sigset_t>();
            // SAFETY: the kernel writes at most `room` events and reads one time.
            let count = unsafe {
                libc::syscall(libc::SYS_epoll_pwait2, fd, events, room, &raw const exact, no_mask, 0)
            };
            let error = match usize::try_from(count) {
                Ok(count) => return Ok(count),
                Err(_) => io::Error::last_os_error(),
            };
            // Older sandboxes refuse what they have not heard of.
            if !matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)) {
                return Err(error);
            }
            self.waits_exactly = false;
        }
        let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: one descriptor, one time, no mask.
        check(unsafe { libc::ppoll(&raw mut poll, 1, &raw const exact, std::ptr::null()) })?;
        // SAFETY: the kernel writes at most `room` events.
        check(unsafe { libc::epoll_wait(fd, events, room, 0) }).map(|count| count as usize)
    }
}
