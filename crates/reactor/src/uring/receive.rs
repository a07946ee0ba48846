//! Receives, and the buffers that they share. Where those are all in use, receives wait their turn here
//! (`docs/decisions/0048`): into memory of their own they would bring far more than the core works on next, and more than its caches hold.

use super::Uring;
use super::bufring::BufRing;
use super::slot::{InFlight, size};
use crate::buf::RecvBuf;
use crate::driver::{Handle, Outcome, ReceiveInto, SMALL_RECEIVE_BYTES, Token, Wait};
use crate::run::Config;
use crate::sys;
use crate::time::Nanos;
use io_uring::{IoUring, cqueue, opcode, squeue, types};
use std::collections::VecDeque;
use std::io;
use std::rc::Rc;
use std::time::Duration;

const SMALL_GROUP: u16 = 0;
const LARGE_GROUP: u16 = 1;
/// For how long a buffer is expected back. Who holds one for longer (until a client reads its replies, say) has others go on without:
/// each such buffer lets one receive go into memory of its own, and another each time this has passed again; where all are held so,
/// nobody waits for them.
const HELD_MAX: Duration = Duration::from_millis(20);

/// Where a receive queues.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    First,
    Last,
}

/// How a receive takes shared buffers.
#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    /// One after the other.
    Many,
    /// One.
    Once,
    /// One, or memory of its own where there is none when bytes come: not before, so that who sends nothing holds nothing.
    OnceOrOwn,
}

/// The receive buffers that connections share.
pub(super) struct ReceiveBuffers {
    small: Group,
    large: Group,
}

/// Buffers of one size.
struct Group {
    buffers: Rc<BufRing>,
    /// Whose turn comes when one is free. Bounded by the connections.
    waiting: VecDeque<Token>,
    /// When those were last counted that are not given back.
    counted: Nanos,
    /// How many may go on without one until they are counted again.
    without: usize,
}

impl Group {
    fn new(ring: &IoUring, number: u16, count: u16, bytes: usize) -> io::Result<Self> {
        let buffers = Rc::new(BufRing::new(ring, number, count, bytes)?);
        Ok(Self { buffers, waiting: VecDeque::new(), counted: Nanos(0), without: 0 })
    }

    fn is_short(&self) -> bool {
        !self.waiting.is_empty() || self.buffers.free() == 0
    }

    /// How many of `wanted` may go on without a buffer.
    fn go_without(&mut self, wanted: usize) -> usize {
        let now = sys::monotonic();
        if now - self.counted >= HELD_MAX {
            self.counted = now;
            let held = self.buffers.count_held();
            self.without = if held == self.buffers.count() { usize::MAX } else { held };
        }
        let going = wanted.min(self.without);
        self.without -= going;
        going
    }
}

impl ReceiveBuffers {
    pub(super) fn new(ring: &IoUring, config: &Config) -> io::Result<Self> {
        let small = Group::new(ring, SMALL_GROUP, config.small_receive_buffers, SMALL_RECEIVE_BYTES)?;
        let bytes = config.receive_buffer_bytes as usize;
        match Group::new(ring, LARGE_GROUP, config.receive_buffers, bytes) {
            Ok(large) => Ok(Self { small, large }),
            Err(error) => {
                if let Ok(buffers) = Rc::try_unwrap(small.buffers) {
                    buffers.unregister(ring, SMALL_GROUP);
                }
                Err(error)
            }
        }
    }

    fn group(&mut self, number: u16) -> &mut Group {
        if number == SMALL_GROUP { &mut self.small } else { &mut self.large }
    }
}

impl Uring {
    pub(super) fn start_receive(&mut self, token: Token, stream: Handle, into: ReceiveInto) {
        let fd = types::Fd(stream.fd());
        let group = match into {
            ReceiveInto::Small => SMALL_GROUP,
            ReceiveInto::Large => LARGE_GROUP,
            ReceiveInto::Given { mut buf, range } => {
                assert!(!range.is_empty(), "a receive into nothing");
                let target = &mut buf[range.clone()];
                let entry = opcode::Recv::new(fd, target.as_mut_ptr(), target.len() as u32).build();
                let in_flight = InFlight::ReceiveGiven { _stream: stream, buf, start: range.start };
                return self.start(token, entry, in_flight);
            }
        };
        match &mut self.receive {
            Some(receive) if self.multishot_receive => {
                let shared = receive.group(group);
                if !shared.is_short() {
                    self.start_shared(token, stream, group, How::Many);
                } else if shared.go_without(1) > 0 {
                    self.start_shared(token, stream, group, How::OnceOrOwn);
                } else {
                    self.wait_for_buffer(token, stream, group, Turn::Last);
                }
            }
            _ => self.start_own(token, stream),
        }
    }

    /// Begins a receive into memory of its own.
    pub(super) fn start_own(&mut self, token: Token, stream: Handle) {
        let mut buf: Vec<u8> = Vec::with_capacity(self.receive_bytes);
        let fd = types::Fd(stream.fd());
        let entry = opcode::Recv::new(fd, buf.as_mut_ptr(), buf.capacity() as u32).build();
        self.start(token, entry, InFlight::ReceiveOne { _stream: stream, buf });
    }

    /// Has a receive wait until a shared buffer is free.
    pub(super) fn wait_for_buffer(&mut self, token: Token, stream: Handle, group: u16, turn: Turn) {
        let receive = self.receive.as_mut().expect("a group of receive buffers");
        let waiting = &mut receive.group(group).waiting;
        match turn {
            Turn::First => waiting.push_front(token),
            Turn::Last => waiting.push_back(token),
        }
        self.counts.receive_waits += 1;
        self.slots.insert(token, InFlight::ReceiveWaiting { stream, group });
    }

    /// Ends a receive that waits for a buffer. False: this one does not.
    pub(super) fn stop_waiting(&mut self, token: Token) -> bool {
        let (Some((_, group)), Some(receive)) = (self.slots.take_waiting(token), &mut self.receive) else {
            return false;
        };
        receive.group(group).waiting.retain(|waiting| *waiting != token);
        true
    }

    /// Begins receives that waited, as many as there are buffers again. Returns until when the turn may wait.
    pub(super) fn serve_waiting(&mut self, mut wait: Wait) -> Wait {
        let Some(receive) = &mut self.receive else { return wait };
        let mut begun = Vec::new();
        for group in [&mut receive.small, &mut receive.large] {
            if group.waiting.is_empty() {
                continue;
            }
            let free = usize::from(group.buffers.free());
            // A multishot receive would take all that come back, and leave none for who waits.
            let how = if free < group.waiting.len() { How::Once } else { How::Many };
            let free = free.min(group.waiting.len());
            begun.extend(group.waiting.drain(..free).map(|token| (token, how)));
            if !group.waiting.is_empty() {
                let without = group.go_without(group.waiting.len());
                begun.extend(group.waiting.drain(..without).map(|token| (token, How::OnceOrOwn)));
            }
            if !group.waiting.is_empty() {
                wait = wait.at_most_until(group.counted + HELD_MAX);
            }
        }
        for (token, how) in begun {
            let (stream, group) = self.slots.take_waiting(token).expect("who waits is in flight");
            self.start_shared(token, stream, group, how);
        }
        wait
    }

    fn start_shared(&mut self, token: Token, stream: Handle, group: u16, how: How) {
        let fd = types::Fd(stream.fd());
        if how == How::Many {
            // What a kernel that knows multishot refuses of it, too, stands in for one that does not.
            let flags = if self.refused_multishot { libc::MSG_WAITALL } else { 0 };
            let entry = opcode::RecvMulti::new(fd, group).flags(flags).build();
            self.start(token, entry, InFlight::ReceiveMany { stream, group });
        } else {
            let entry = opcode::Recv::new(fd, std::ptr::null_mut(), 0).buf_group(group);
            let entry = entry.build().flags(squeue::Flags::BUFFER_SELECT);
            let or_own = how == How::OnceOrOwn;
            self.start(token, entry, InFlight::ReceiveShared { stream, group, or_own });
        }
    }

    pub(super) fn received(&mut self, group: u16, result: i32, flags: u32) -> Outcome {
        let Some(receive) = &mut self.receive else {
            panic!("a shared receive buffer, but group {group} has none")
        };
        Outcome::Received(size(result).map(|bytes| match cqueue::buffer_select(flags) {
            Some(id) => {
                let buffers = &receive.group(group).buffers;
                buffers.take(id);
                RecvBuf::shared(Rc::clone(buffers), id, bytes)
            }
            None => RecvBuf::from_vec(Vec::new()),
        }))
    }
}
