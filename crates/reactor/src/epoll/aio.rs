//! Linux AIO: reads, writes and syncs of files that the kernel carries out while the core goes on (those of direct files; others
//! it carries out at once). What completes is told by the core's kick.
//!
//! The interface is that of `include/uapi/linux/aio_abi.h`, whose calls the C library does not wrap.

use crate::driver::Token;
use std::io;
use std::os::fd::RawFd;

/// `IOCB_FLAG_RESFD`: a completion is told through a descriptor.
const TELL: u32 = 1;
/// A flag of writes that no kernel knows.
const UNKNOWN_FLAG: i32 = 1 << 30;

/// What the kernel is to do.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub(super) enum Command {
    Read = 0,
    Write = 1,
    SyncData = 3,
}

/// `struct iocb`. The kernel has copied it when the call that submits it returns.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Control {
    data: u64,
    #[cfg(target_endian = "big")]
    rw_flags: i32,
    key: u32,
    #[cfg(target_endian = "little")]
    rw_flags: i32,
    command: u16,
    priority: i16,
    file: u32,
    address: u64,
    bytes: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    told: u32,
}

/// `struct io_event`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(super) struct Event {
    data: u64,
    control: u64,
    result: i64,
    result2: i64,
}

const _: () = assert!(size_of::<Control>() == 64 && size_of::<Event>() == 32);

impl Control {
    /// One for `file`, told of through `told`.
    pub(super) fn new(token: Token, command: Command, file: RawFd, told: RawFd) -> Self {
        Self {
            data: token.0,
            rw_flags: 0,
            key: 0,
            command: command as u16,
            priority: 0,
            file: file as u32,
            address: 0,
            bytes: 0,
            offset: 0,
            reserved: 0,
            flags: TELL,
            told: told as u32,
        }
    }

    /// Of these bytes of memory and this place in the file.
    pub(super) fn transfer(self, address: *const u8, bytes: usize, offset: u64, rw_flags: i32) -> Self {
        Self { address: address.addr() as u64, bytes: bytes as u64, offset: offset as i64, rw_flags, ..self }
    }

    pub(super) fn token(&self) -> Token {
        Token(self.data)
    }
}

impl Event {
    pub(super) fn token(&self) -> Token {
        Token(self.data)
    }

    /// What came of it: bytes, or an error.
    pub(super) fn result(&self) -> io::Result<usize> {
        usize::try_from(self.result).map_err(|_| io::Error::from_raw_os_error(-self.result as i32))
    }
}

/// A context: what the kernel works on for one core. Dropping it waits for all of that.
pub(super) struct Context {
    id: libc::c_ulong,
}

impl Context {
    /// A context for `depth` requests at once; refused where the kernel does not heed flags of writes, without which none would
    /// be durable when it says so. `any_file` is a descriptor that can be written to, and is not.
    pub(super) fn new(depth: u32, any_file: RawFd) -> io::Result<Self> {
        let mut id: libc::c_ulong = 0;
        // SAFETY: the kernel writes one context id.
        if unsafe { libc::syscall(libc::SYS_io_setup, depth, &raw mut id) } < 0 {
            let error = io::Error::last_os_error();
            return Err(match error.raw_os_error() {
                Some(libc::EAGAIN) => io::Error::new(
                    error.kind(),
                    format!("{error} (all that the system allows are in use: see the sysctl fs.aio-max-nr)"),
                ),
                _ => error,
            });
        }
        let context = Self { id };
        let probe = Control::new(Token(0), Command::Write, any_file, any_file);
        match context.submit(&[probe.transfer(std::ptr::null(), 0, 0, UNKNOWN_FLAG)]) {
            Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(context),
            _ => Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "this kernel's AIO does not heed the flags of writes (RWF_DSYNC, Linux 4.13)",
            )),
        }
    }

    /// Hands requests over, as many as the kernel takes: their memory must stay until they have completed. An error is of the
    /// first; `EAGAIN`: it takes none now.
    pub(super) fn submit(&self, requests: &[Control]) -> io::Result<usize> {
        const AT_ONCE_MAX: usize = 64;
        let mut pointers = [std::ptr::null::<Control>(); AT_ONCE_MAX];
        let count = requests.len().min(AT_ONCE_MAX);
        for (pointer, request) in pointers.iter_mut().zip(requests) {
            *pointer = request;
        }
        // SAFETY: `count` pointers to requests, which the kernel copies; it is for the caller to keep their memory.
        let taken = unsafe { libc::syscall(libc::SYS_io_submit, self.id, count, pointers.as_ptr()) };
        usize::try_from(taken).map_err(|_| io::Error::last_os_error())
    }

    /// Fetches what has completed, as much of it as there is room for in `events`; how many.
    pub(super) fn fetch(&self, events: &mut [Event]) -> io::Result<usize> {
        let (least, most) = (0, events.len());
        let no_wait = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the kernel writes at most so many events, for which there is room.
        let fetched = unsafe {
            let events = events.as_mut_ptr();
            libc::syscall(libc::SYS_io_getevents, self.id, least, most, events, &raw const no_wait)
        };
        usize::try_from(fetched).map_err(|_| io::Error::last_os_error())
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: no memory is passed. It returns once nothing is under way any more.
        unsafe { libc::syscall(libc::SYS_io_destroy, self.id) };
    }
}
