//! Reads, writes and syncs of files.

use super::aio::{Command, Context, Control, Event};
use crate::buf::IoBuf;
use crate::driver::{Completion, Handle, Outcome, Token, WriteSync};
use crate::sys::EventFd;
use crate::sys::held::HeldReads;
use bytes::Bytes;
use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;

/// Most bytes of one read or write; the kernel takes less than 2 GiB.
const TRANSFER_BYTES_MAX: usize = 1 << 30;
/// Completions fetched with one call.
const FETCHED_MAX: usize = 256;

/// An operation that the kernel works on, or will, with all that it uses.
enum InFlight {
    Read { file: Handle, buf: IoBuf },
    Write { file: Handle, data: Bytes },
    Sync { file: Handle },
}

/// One core's operations on files.
pub(super) struct Files {
    // Dropped first: the kernel lets go of the memory below.
    context: Context,
    /// By the index of their token.
    in_flight: Vec<Option<(Token, InFlight)>>,
    /// Not the kernel's yet. Bounded by the operations in flight, each of which its task awaits.
    queued: Vec<Control>,
    held: HeldReads,
    /// The kernel's.
    under_way: usize,
    /// The kernel had no room for the first that is queued.
    is_full: bool,
    failed: Vec<Completion>,
    /// Where completions are fetched to; reused.
    events: Box<[Event]>,
    kick: Arc<EventFd>,
    calls: u64,
}

impl Files {
    pub(super) fn new(depth: u32, kick: &Arc<EventFd>) -> io::Result<Self> {
        Ok(Self {
            context: Context::new(depth, kick.fd())?,
            in_flight: Vec::new(),
            queued: Vec::new(),
            held: HeldReads::default(),
            under_way: 0,
            is_full: false,
            failed: Vec::new(),
            events: vec![Event::default(); FETCHED_MAX].into(),
            kick: Arc::clone(kick),
            calls: 0,
        })
    }

    pub(super) fn read(&mut self, token: Token, file: Handle, mut buf: IoBuf, start: usize, offset: u64) {
        let target = &mut buf[start..];
        let bytes = target.len().min(TRANSFER_BYTES_MAX);
        let address = target.as_mut_ptr();
        let control = self.control(token, Command::Read, file.fd()).transfer(address, bytes, offset, 0);
        self.queue(control, InFlight::Read { file, buf });
        if self.held.queued() {
            self.hand_over();
        }
    }

    pub(super) fn write(&mut self, token: Token, file: Handle, data: Bytes, offset: u64, sync: WriteSync) {
        let flags = match sync {
            WriteSync::Cached => 0,
            WriteSync::Durable => libc::RWF_DSYNC,
        };
        let bytes = data.len().min(TRANSFER_BYTES_MAX);
        let control = self.control(token, Command::Write, file.fd());
        let control = control.transfer(data.as_ptr(), bytes, offset, flags);
        self.queue(control, InFlight::Write { file, data });
        self.hand_over();
    }

    pub(super) fn sync(&mut self, token: Token, file: Handle) {
        let control = self.control(token, Command::SyncData, file.fd());
        self.queue(control, InFlight::Sync { file });
        self.hand_over();
    }

    fn control(&self, token: Token, command: Command, file: RawFd) -> Control {
        Control::new(token, command, file, self.kick.fd())
    }

    fn queue(&mut self, control: Control, in_flight: InFlight) {
        let token = control.token();
        if self.in_flight.len() <= token.index() {
            self.in_flight.resize_with(token.index() + 1, || None);
        }
        let slot = &mut self.in_flight[token.index()];
        assert!(slot.is_none(), "{token:?} is in flight already");
        *slot = Some((token, in_flight));
        self.queued.push(control);
    }

    /// Gives the kernel what is queued, or as much of it as it has room for.
    pub(super) fn hand_over(&mut self) {
        self.held.handed_over();
        let mut taken = 0;
        while taken < self.queued.len() && !self.is_full {
            self.calls += 1;
            // What the requests point to is kept in `in_flight` until they have completed.
            match self.context.submit(&self.queued[taken..]) {
                Ok(count) => {
                    taken += count;
                    self.under_way += count;
                    self.is_full = count == 0;
                }
                Err(error) => match error.raw_os_error() {
                    Some(libc::EAGAIN) => self.is_full = true,
                    Some(libc::EINTR) => {}
                    _ => {
                        let token = self.queued[taken].token();
                        taken += 1;
                        let completion = self.complete(token, Err(error));
                        self.failed.push(completion);
                    }
                },
            }
        }
        self.queued.drain(..taken);
    }

    /// Whether nothing is queued or under way.
    pub(super) fn is_idle(&self) -> bool {
        self.queued.is_empty() && self.under_way == 0 && self.failed.is_empty()
    }

    /// Whether something is queued that no completion will make room for.
    pub(super) fn is_stuck(&mut self) -> bool {
        let is_stuck = self.is_full && self.under_way == 0;
        // So that it is tried again.
        self.is_full &= !is_stuck;
        is_stuck
    }

    /// Appends what the kernel refused.
    pub(super) fn take_failed(&mut self, out: &mut Vec<Completion>) {
        out.append(&mut self.failed);
    }

    /// Appends what has completed.
    pub(super) fn reap(&mut self, out: &mut Vec<Completion>) -> io::Result<()> {
        let mut events = std::mem::take(&mut self.events);
        let result = self.reap_into(&mut events, out);
        self.events = events;
        result
    }

    fn reap_into(&mut self, events: &mut [Event], out: &mut Vec<Completion>) -> io::Result<()> {
        while self.under_way > 0 {
            self.calls += 1;
            let count = match self.context.fetch(events) {
                Ok(0) => break,
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            self.under_way -= count;
            self.is_full = false;
            out.extend(events[..count].iter().map(|event| self.complete(event.token(), event.result())));
        }
        Ok(())
    }

    fn complete(&mut self, token: Token, result: io::Result<usize>) -> Completion {
        let slot = self.in_flight.get_mut(token.index()).and_then(Option::take);
        let in_flight = match slot {
            Some((of, in_flight)) if of == token => in_flight,
            _ => panic!("{token:?} completed but is not in flight"),
        };
        let outcome = match in_flight {
            InFlight::Read { file, buf } => {
                self.held.completed();
                drop(file);
                Outcome::Read(result, buf)
            }
            InFlight::Write { file, data } => {
                drop(file);
                Outcome::Written(result, data)
            }
            InFlight::Sync { file } => {
                drop(file);
                Outcome::Done(result.map(|_| 0))
            }
        };
        Completion { token, outcome, more: false }
    }

    /// System calls since the last look.
    pub(super) fn take_calls(&mut self) -> u64 {
        std::mem::take(&mut self.calls)
    }
}
