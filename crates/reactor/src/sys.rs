//! What the two drivers of the real world share: system calls that are made directly whatever the driver (opening, binding, asking,
//! clocks, signals), memory, and a thread for what would hold a core up.

pub(crate) mod held;
pub(crate) mod helper;
pub(crate) mod memory;
pub(crate) mod message;
mod queue;
mod zones;

use crate::addr::{Addr, PeerAddr};
use crate::driver::{
    FileInfo, Handle, KEEPALIVE_SECONDS, Kick, ListenOptions, OpenOptions, SendData, ShutdownHow, Signal,
};
use crate::time::Nanos;
use message::Message;
use std::ffi::CString;
use std::fs::Permissions;
use std::io;
use std::mem::{MaybeUninit, size_of, zeroed};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::Path;

pub(crate) fn check(result: i32) -> io::Result<i32> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn owned(result: i32) -> io::Result<OwnedFd> {
    // SAFETY: a descriptor that the kernel has just given us.
    check(result).map(|fd| unsafe { OwnedFd::from_raw_fd(fd) })
}

fn clock(id: libc::clockid_t) -> libc::timespec {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes one timespec.
    let result = unsafe { libc::clock_gettime(id, &mut time) };
    assert_eq!(result, 0, "clock {id} cannot be read");
    time
}

pub(crate) fn monotonic() -> Nanos {
    let time = clock(libc::CLOCK_MONOTONIC);
    Nanos(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

pub(crate) fn wall_ms() -> u64 {
    wall_us() / 1000
}

pub(crate) fn wall_us() -> u64 {
    let time = clock(libc::CLOCK_REALTIME);
    time.tv_sec as u64 * 1_000_000 + time.tv_nsec as u64 / 1000
}

/// Ends a core's wait from any thread. Never read while its poll is armed: each write makes one completion.
pub(crate) struct EventFd(OwnedFd);

impl EventFd {
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: no memory is passed.
        owned(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) }).map(Self)
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Makes it unreadable again.
    pub(crate) fn clear(&self) {
        let mut count = 0u64;
        // SAFETY: reads eight bytes into eight bytes.
        unsafe { libc::read(self.fd(), (&raw mut count).cast(), size_of::<u64>()) };
    }
}

impl Kick for EventFd {
    fn kick(&self) {
        let one = 1u64;
        // Fails only if 2^64 kicks were never cleared: then it is readable anyway.
        // SAFETY: writes eight bytes from eight bytes.
        unsafe { libc::write(self.fd(), (&raw const one).cast(), size_of::<u64>()) };
    }
}

fn path_string(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes())
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "a path with a zero byte"))
}

pub(crate) fn open(path: &Path, options: &OpenOptions) -> io::Result<(Handle, FileInfo)> {
    let name = path_string(path)?;
    let mut flags = libc::O_CLOEXEC | libc::O_NOCTTY;
    flags |= if options.read_only { libc::O_RDONLY } else { libc::O_RDWR };
    let is_block_device = std::fs::metadata(path).is_ok_and(|found| found.file_type().is_block_device());
    if is_block_device && options.exclusive_lock && !options.read_only {
        // The device's own claim: the lock below is of a name for it, and it may have several. Mounting it claims it, too.
        flags |= libc::O_EXCL;
    } else if options.create || options.create_new {
        flags |= libc::O_CREAT;
    }
    if options.create_new {
        flags |= libc::O_EXCL;
    }
    // SAFETY: the name ends with a zero byte.
    let open = |flags| owned(unsafe { libc::open(name.as_ptr(), flags, 0o644) });
    let mut direct = options.direct;
    let opened = if direct {
        open(flags | libc::O_DIRECT).or_else(|error| {
            if error.raw_os_error() != Some(libc::EINVAL) {
                return Err(error);
            }
            direct = false;
            // The refused open may have made the file already.
            open(if is_block_device { flags } else { flags & !libc::O_EXCL })
        })
    } else {
        open(flags)
    };
    let in_use = |error: io::Error, taken: io::ErrorKind| match error.kind() == taken {
        true => io::Error::new(
            io::ErrorKind::WouldBlock,
            format!("{} is in use by another process", path.display()),
        ),
        false => error,
    };
    let fd = opened.map_err(|error| in_use(error, io::ErrorKind::ResourceBusy))?;
    if options.exclusive_lock {
        // SAFETY: no memory is passed.
        check(unsafe { libc::flock(fd.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) })
            .map_err(|error| in_use(error, io::ErrorKind::WouldBlock))?;
    }
    let (info, queue_depth) = file_info(&fd, direct)?;
    Ok((Handle::file(fd, options.exclusive_lock, queue_depth), info))
}

/// Lets go of the lock of a file that is about to be closed, whoever else holds the file.
pub(crate) fn unlock(fd: &OwnedFd) {
    // SAFETY: no memory is passed. An error would mean that there was no lock.
    unsafe { libc::flock(fd.as_raw_fd(), libc::LOCK_UN) };
}

/// What is known of a file, and how much the queue of the device below takes, if anybody says.
fn file_info(fd: &OwnedFd, direct: bool) -> io::Result<(FileInfo, Option<u32>)> {
    const DEFAULT: u32 = 4096;
    let mut stat = MaybeUninit::<libc::statx>::zeroed();
    let mask = libc::STATX_TYPE | libc::STATX_DIOALIGN;
    // SAFETY: an empty path names the descriptor itself; the kernel writes one statx.
    check(unsafe {
        libc::statx(fd.as_raw_fd(), c"".as_ptr(), libc::AT_EMPTY_PATH, mask, stat.as_mut_ptr())
    })?;
    // SAFETY: zeroed at first, and filled by the kernel.
    let stat = unsafe { stat.assume_init() };
    let block_device = u32::from(stat.stx_mode) & libc::S_IFMT == libc::S_IFBLK;
    if u32::from(stat.stx_mode) & libc::S_IFMT == libc::S_IFDIR {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    let zoned = if block_device { zones::zoned_info(stat.stx_rdev_major, stat.stx_rdev_minor) } else { None };
    let (major, minor) = match block_device {
        true => (stat.stx_rdev_major, stat.stx_rdev_minor),
        false => (stat.stx_dev_major, stat.stx_dev_minor),
    };
    let queue_depth = queue::depth(major, minor);
    if !direct {
        return Ok((
            FileInfo { direct, alignment: 1, memory_alignment: 1, block_device, zoned },
            queue_depth,
        ));
    }
    let is_told = stat.stx_mask & libc::STATX_DIOALIGN != 0;
    if is_told && stat.stx_dio_offset_align == 0 {
        // Opened all the same, and served from the page cache: ext4 does so with encrypted files and with journalled data.
        let (alignment, memory_alignment) = (1, 1);
        return Ok((
            FileInfo { direct: false, alignment, memory_alignment, block_device, zoned },
            queue_depth,
        ));
    }
    let (alignment, memory_alignment) =
        if is_told { (stat.stx_dio_offset_align, stat.stx_dio_mem_align.max(1)) } else { (DEFAULT, DEFAULT) };
    Ok((FileInfo { direct, alignment, memory_alignment, block_device, zoned }, queue_depth))
}

pub(crate) fn set_len(file: &Handle, bytes: u64) -> io::Result<()> {
    let bytes = i64::try_from(bytes).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: no memory is passed.
    check(unsafe { libc::ftruncate(file.fd(), bytes) }).map(drop)
}

/// How [`allocate`] gives a range back.
pub(crate) const PUNCH_MODE: i32 = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;

/// Reserves space for a range or gives it back. May take as long as the device likes.
fn allocate(file: &Handle, mode: i32, offset: u64, bytes: u64) -> io::Result<()> {
    let position =
        |bytes: u64| i64::try_from(bytes).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput));
    let (offset, bytes) = (position(offset)?, position(bytes)?);
    // SAFETY: no memory is passed.
    check(unsafe { libc::fallocate(file.fd(), mode, offset, bytes) }).map(drop)
}

pub(crate) fn len(file: &Handle) -> io::Result<u64> {
    // Seeking tells the size of regular files and block devices alike; nothing uses the position.
    // SAFETY: no memory is passed.
    let end = unsafe { libc::lseek(file.fd(), 0, libc::SEEK_END) };
    u64::try_from(end).map_err(|_| io::Error::last_os_error())
}

pub(crate) fn shutdown(stream: &Handle, how: ShutdownHow) -> io::Result<()> {
    let how = match how {
        ShutdownHow::Send => libc::SHUT_WR,
        ShutdownHow::Both => libc::SHUT_RDWR,
    };
    // SAFETY: no memory is passed.
    check(unsafe { libc::shutdown(stream.fd(), how) }).map(drop)
}

/// A socket address as the kernel wants it.
pub(crate) struct RawAddr {
    storage: libc::sockaddr_storage,
    len: libc::socklen_t,
}

impl RawAddr {
    fn empty() -> Self {
        // SAFETY: all zeros is a valid, unspecified address.
        Self { storage: unsafe { zeroed() }, len: size_of::<libc::sockaddr_storage>() as libc::socklen_t }
    }

    fn set<T>(&mut self, addr: T) {
        const { assert!(size_of::<T>() <= size_of::<libc::sockaddr_storage>()) };
        // SAFETY: every socket address fits the storage, which is aligned for all of them.
        unsafe { (&raw mut self.storage).cast::<T>().write(addr) };
        self.len = size_of::<T>() as libc::socklen_t;
    }

    fn new(addr: &Addr) -> io::Result<Box<Self>> {
        let mut raw = Box::new(Self::empty());
        match addr {
            Addr::Tcp(SocketAddr::V4(addr)) => raw.set(libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: addr.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(addr.ip().octets()) },
                sin_zero: [0; 8],
            }),
            Addr::Tcp(SocketAddr::V6(addr)) => raw.set(libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: addr.port().to_be(),
                sin6_flowinfo: addr.flowinfo(),
                sin6_addr: libc::in6_addr { s6_addr: addr.ip().octets() },
                sin6_scope_id: addr.scope_id(),
            }),
            Addr::Unix(path) => {
                let bytes = path.as_os_str().as_bytes();
                // SAFETY: all zeros is a valid, unnamed address.
                let mut unix: libc::sockaddr_un = unsafe { zeroed() };
                if bytes.len() >= unix.sun_path.len() || bytes.contains(&0) {
                    let text = format!(
                        "{} is too long for a Unix socket (at most {} bytes)",
                        path.display(),
                        unix.sun_path.len() - 1
                    );
                    return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
                }
                unix.sun_family = libc::AF_UNIX as libc::sa_family_t;
                for (to, from) in unix.sun_path.iter_mut().zip(bytes) {
                    *to = *from as libc::c_char;
                }
                raw.set(unix);
            }
        }
        Ok(raw)
    }

    pub(crate) fn as_ptr(&self) -> *const libc::sockaddr {
        (&raw const self.storage).cast()
    }

    pub(crate) fn len(&self) -> libc::socklen_t {
        self.len
    }

    fn socket_addr(&self) -> Option<SocketAddr> {
        match i32::from(self.storage.ss_family) {
            libc::AF_INET => {
                // SAFETY: the family says that it is one.
                let addr = unsafe { &*self.as_ptr().cast::<libc::sockaddr_in>() };
                let ip = Ipv4Addr::from(addr.sin_addr.s_addr.to_ne_bytes());
                Some(SocketAddr::V4(SocketAddrV4::new(ip, u16::from_be(addr.sin_port))))
            }
            libc::AF_INET6 => {
                // SAFETY: the family says that it is one.
                let addr = unsafe { &*self.as_ptr().cast::<libc::sockaddr_in6>() };
                let ip = Ipv6Addr::from(addr.sin6_addr.s6_addr);
                let port = u16::from_be(addr.sin6_port);
                Some(SocketAddr::V6(SocketAddrV6::new(ip, port, addr.sin6_flowinfo, addr.sin6_scope_id)))
            }
            _ => None,
        }
    }
}

/// The peer of an accepted connection; a connection that is gone already counts as unnamed.
pub(crate) fn peer(fd: &OwnedFd) -> PeerAddr {
    let mut raw = RawAddr::empty();
    // SAFETY: the kernel writes at most the length it is told.
    let result = unsafe { libc::getpeername(fd.as_raw_fd(), (&raw mut raw.storage).cast(), &mut raw.len) };
    match check(result).ok().and_then(|_| raw.socket_addr()) {
        Some(addr) => PeerAddr::Tcp(addr),
        None if result == 0 => PeerAddr::Unix,
        None => PeerAddr::Tcp(SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0))),
    }
}

/// This end of a connection; `None` where it has no IP address.
pub(crate) fn local(fd: RawFd) -> Option<SocketAddr> {
    let mut raw = RawAddr::empty();
    // SAFETY: the kernel writes at most the length it is told.
    let result = unsafe { libc::getsockname(fd, (&raw mut raw.storage).cast(), &mut raw.len) };
    check(result).ok().and_then(|_| raw.socket_addr())
}

fn socket(addr: &Addr, flags: i32) -> io::Result<OwnedFd> {
    let family = match addr {
        Addr::Tcp(SocketAddr::V4(_)) => libc::AF_INET,
        Addr::Tcp(SocketAddr::V6(_)) => libc::AF_INET6,
        Addr::Unix(_) => libc::AF_UNIX,
    };
    // SAFETY: no memory is passed.
    owned(unsafe { libc::socket(family, libc::SOCK_STREAM | libc::SOCK_CLOEXEC | flags, 0) })
}

fn set_option(fd: &OwnedFd, level: i32, name: i32, value: i32) -> io::Result<()> {
    let len = size_of::<i32>() as libc::socklen_t;
    // SAFETY: the kernel reads four bytes.
    check(unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, (&raw const value).cast(), len) }).map(drop)
}

pub(crate) fn connecting_socket(addr: &Addr) -> io::Result<(Handle, Box<RawAddr>, PeerAddr)> {
    let raw = RawAddr::new(addr)?;
    let fd = socket(addr, 0)?;
    let peer = match addr {
        Addr::Tcp(addr) => {
            set_option(&fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1)?;
            PeerAddr::Tcp(*addr)
        }
        Addr::Unix(_) => PeerAddr::Unix,
    };
    Ok((Handle::os(fd), raw, peer))
}

pub(crate) fn bind(addr: &Addr, options: &ListenOptions) -> io::Result<(Handle, Addr)> {
    let raw = RawAddr::new(addr)?;
    let fd = socket(addr, 0)?;
    if let Addr::Tcp(_) = addr {
        set_option(&fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1)?;
        if options.reuse_port {
            set_option(&fd, libc::SOL_SOCKET, libc::SO_REUSEPORT, 1)?;
        }
        // Accepted connections inherit these.
        set_option(&fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1)?;
        let silent = i32::from(KEEPALIVE_SECONDS);
        set_option(&fd, libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1)?;
        set_option(&fd, libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, silent)?;
        // As Redis asks (anet.c): three times within as long again.
        set_option(&fd, libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, silent / 3)?;
        set_option(&fd, libc::IPPROTO_TCP, libc::TCP_KEEPCNT, 3)?;
    }
    // SAFETY: the address is as long as it says.
    let bind = || check(unsafe { libc::bind(fd.as_raw_fd(), raw.as_ptr(), raw.len()) });
    match (bind(), addr) {
        (Err(error), Addr::Unix(path))
            if error.kind() == io::ErrorKind::AddrInUse && matches!(somebody_listens(path), Ok(false)) =>
        {
            // Left behind by a process that was killed.
            std::fs::remove_file(path)?;
            bind()?;
        }
        (result, _) => {
            result?;
        }
    }
    if let (Addr::Unix(path), Some(mode)) = (addr, options.unix_mode) {
        // Before anybody can connect.
        std::fs::set_permissions(path, Permissions::from_mode(mode))?;
    }
    let backlog = i32::try_from(options.backlog).unwrap_or(i32::MAX);
    // SAFETY: no memory is passed.
    check(unsafe { libc::listen(fd.as_raw_fd(), backlog) })?;
    let addr = match addr {
        Addr::Tcp(_) => {
            let mut raw = RawAddr::empty();
            // SAFETY: the kernel writes at most the length it is told.
            check(unsafe { libc::getsockname(fd.as_raw_fd(), (&raw mut raw.storage).cast(), &mut raw.len) })?;
            raw.socket_addr().map_or_else(|| addr.clone(), Addr::Tcp)
        }
        Addr::Unix(_) => addr.clone(),
    };
    Ok((Handle::os(fd), addr))
}

/// Begins to connect; whether it is done already. Otherwise the socket can be written to once [`connected`] knows more.
pub(crate) fn begin_connect(stream: &Handle, addr: &RawAddr) -> io::Result<bool> {
    set_nonblocking(stream)?;
    // SAFETY: the address is as long as it says.
    match check(unsafe { libc::connect(stream.fd(), addr.as_ptr(), addr.len()) }) {
        Ok(_) => Ok(true),
        Err(error) if matches!(error.raw_os_error(), Some(libc::EINPROGRESS | libc::EINTR)) => Ok(false),
        Err(error) => Err(error),
    }
}

/// What came of connecting.
pub(crate) fn connected(stream: &Handle) -> io::Result<()> {
    let (mut error, mut len) = (0i32, size_of::<i32>() as libc::socklen_t);
    let name = libc::SO_ERROR;
    // SAFETY: the kernel writes four bytes.
    check(unsafe {
        libc::getsockopt(stream.fd(), libc::SOL_SOCKET, name, (&raw mut error).cast(), &raw mut len)
    })?;
    if error == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(error)) }
}

/// Has calls on it return rather than wait.
pub(crate) fn set_nonblocking(handle: &Handle) -> io::Result<()> {
    // SAFETY: no memory is passed.
    let flags = check(unsafe { libc::fcntl(handle.fd(), libc::F_GETFL) })?;
    // SAFETY: no memory is passed.
    check(unsafe { libc::fcntl(handle.fd(), libc::F_SETFL, flags | libc::O_NONBLOCK) }).map(drop)
}

/// The next connection of a listener that does not wait.
pub(crate) fn accept(listener: &Handle) -> io::Result<(Handle, PeerAddr)> {
    let none = std::ptr::null_mut();
    // SAFETY: no memory is passed.
    let fd = owned(unsafe { libc::accept4(listener.fd(), none, none.cast(), libc::SOCK_CLOEXEC) })?;
    let peer = peer(&fd);
    Ok((Handle::os(fd), peer))
}

/// What has come, without waiting.
pub(crate) fn receive(stream: &Handle, into: &mut [u8]) -> io::Result<usize> {
    // SAFETY: the kernel writes at most so many bytes.
    let came = unsafe { libc::recv(stream.fd(), into.as_mut_ptr().cast(), into.len(), libc::MSG_DONTWAIT) };
    usize::try_from(came).map_err(|_| io::Error::last_os_error())
}

/// Sends what there is room for, without waiting.
pub(crate) fn send(
    stream: &Handle,
    message: &mut Message,
    data: &SendData,
    skip: usize,
) -> io::Result<usize> {
    message.fill(data, skip);
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the message names pieces of `data`.
    let sent = unsafe { libc::sendmsg(stream.fd(), message.header(), flags) };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// Whether somebody listens at a Unix socket. Never waits for who does: one that takes no connections, so that its backlog is
/// full, listens all the same.
pub fn somebody_listens(path: &Path) -> io::Result<bool> {
    let addr = Addr::Unix(path.to_owned());
    let raw = RawAddr::new(&addr)?;
    let fd = socket(&addr, libc::SOCK_NONBLOCK)?;
    // SAFETY: the address is as long as it says.
    match check(unsafe { libc::connect(fd.as_raw_fd(), raw.as_ptr(), raw.len()) }) {
        Ok(_) => Ok(true),
        Err(error) => match error.kind() {
            io::ErrorKind::WouldBlock => Ok(true),
            io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound => Ok(false),
            _ => Err(error),
        },
    }
}

/// Raises the process's limit of open files, connections included, as far as it is allowed; returns the limit.
pub fn raise_open_files_limit() -> io::Result<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel writes one rlimit.
    check(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) })?;
    limit.rlim_cur = limit.rlim_max;
    // SAFETY: the kernel reads one rlimit.
    check(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) })?;
    Ok(limit.rlim_cur)
}

/// How many bytes this process may lock; `None` for one that no limit binds.
pub(crate) fn locked_memory_limit() -> Option<u64> {
    const CAP_IPC_LOCK: u32 = 14;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let capabilities = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let capabilities = capabilities.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).unwrap_or(0);
    if capabilities >> CAP_IPC_LOCK & 1 == 1 {
        return None;
    }
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel writes one rlimit.
    check(unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &mut limit) }).ok()?;
    (limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}

fn signal_set() -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: sigemptyset initialises the set; the others change it.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
            libc::sigaddset(set.as_mut_ptr(), signal);
        }
        set.assume_init()
    }
}

/// Keeps the signals that `signal()` answers from ending the process, on this thread and those it starts.
pub(crate) fn hold_signals() -> io::Result<()> {
    // SAFETY: the set is initialised; the old mask is not asked for.
    match unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &signal_set(), std::ptr::null_mut()) } {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

/// From now on a write beyond the process's limit on the size of files (`ulimit -f`) is an error, EFBIG, instead of the
/// process's end.
pub fn ignore_file_size_signal() {
    // SAFETY: ignoring a signal runs no code of ours.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// Makes a signal that was taken pending again; it is held, so that it waits for the next read.
pub(crate) fn raise(signal: Signal) {
    let number = match signal {
        Signal::Terminate => libc::SIGTERM,
        Signal::Interrupt => libc::SIGINT,
        Signal::Hangup => libc::SIGHUP,
    };
    // SAFETY: no memory is passed.
    unsafe { libc::kill(libc::getpid(), number) };
}

pub(crate) fn signal_fd() -> io::Result<Handle> {
    hold_signals()?;
    // SAFETY: the set is initialised.
    owned(unsafe { libc::signalfd(-1, &signal_set(), libc::SFD_CLOEXEC) }).map(Handle::os)
}

/// The next signal of a descriptor that does not wait.
pub(crate) fn read_signal(signals: &Handle) -> io::Result<Signal> {
    let mut info = SignalInfo::new();
    // SAFETY: the kernel writes at most so many bytes.
    let bytes = unsafe { libc::read(signals.fd(), info.as_mut_ptr().cast(), SignalInfo::BYTES as usize) };
    let bytes = usize::try_from(bytes).map_err(|_| io::Error::last_os_error())?;
    info.signal(bytes)
}

/// Where the kernel writes which signal came.
pub(crate) struct SignalInfo(libc::signalfd_siginfo);

impl SignalInfo {
    pub(crate) const BYTES: u32 = size_of::<libc::signalfd_siginfo>() as u32;

    pub(crate) fn new() -> Box<Self> {
        // SAFETY: plain numbers.
        Box::new(Self(unsafe { zeroed() }))
    }

    pub(crate) fn as_mut_ptr(&mut self) -> *mut u8 {
        (&raw mut self.0).cast()
    }

    pub(crate) fn signal(&self, bytes: usize) -> io::Result<Signal> {
        match i32::try_from(self.0.ssi_signo) {
            Ok(libc::SIGTERM) if bytes == Self::BYTES as usize => Ok(Signal::Terminate),
            Ok(libc::SIGINT) => Ok(Signal::Interrupt),
            Ok(libc::SIGHUP) => Ok(Signal::Hangup),
            _ => Err(io::Error::other(format!("signal {} was not asked for", self.0.ssi_signo))),
        }
    }
}
