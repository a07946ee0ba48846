//! Operations on sockets, each tried without waiting when it may succeed.

use super::Epoll;
use super::watch::Side;
use crate::addr::PeerAddr;
use crate::buf::{IoBuf, RecvBuf};
use crate::driver::{Completion, Handle, Outcome, SendData, Token};
use crate::sys::{self, RawAddr};
use std::io;
use std::ops::Range;
use std::os::fd::RawFd;

/// Connections accepted in one turn: others have theirs.
const ACCEPTS_PER_TURN: usize = 64;

/// An operation, with all that it uses.
pub(super) enum Waiting {
    Accept {
        listener: Handle,
    },
    Receive {
        stream: Handle,
        bytes: usize,
    },
    ReceiveGiven {
        stream: Handle,
        buf: IoBuf,
        range: Range<usize>,
    },
    Send {
        stream: Handle,
        data: SendData,
        skip: usize,
    },
    Connect {
        stream: Handle,
        peer: PeerAddr,
    },
    /// To a Unix socket whose backlog is full, which no event tells the end of.
    ConnectLater {
        stream: Handle,
        peer: PeerAddr,
        addr: Box<RawAddr>,
    },
    Signal {
        signals: Handle,
    },
}

impl Waiting {
    pub(super) fn fd(&self) -> RawFd {
        match self {
            Self::Accept { listener: handle }
            | Self::Receive { stream: handle, .. }
            | Self::ReceiveGiven { stream: handle, .. }
            | Self::Send { stream: handle, .. }
            | Self::Connect { stream: handle, .. }
            | Self::ConnectLater { stream: handle, .. }
            | Self::Signal { signals: handle } => handle.fd(),
        }
    }

    pub(super) fn side(&self) -> Side {
        match self {
            Self::Accept { .. } | Self::Receive { .. } | Self::ReceiveGiven { .. } | Self::Signal { .. } => {
                Side::In
            }
            Self::Send { .. } | Self::Connect { .. } | Self::ConnectLater { .. } => Side::Out,
        }
    }

    /// What an operation that comes to nothing answers.
    pub(super) fn failed(self, error: io::Error) -> Outcome {
        match self {
            Self::Accept { .. } => Outcome::Accepted(Err(error)),
            Self::Receive { .. } => Outcome::Received(Err(error)),
            Self::ReceiveGiven { buf, .. } => Outcome::Filled(Err(error), buf),
            Self::Send { data, .. } => Outcome::Sent(Err(error), data),
            Self::Connect { .. } | Self::ConnectLater { .. } => Outcome::Connected(Err(error)),
            Self::Signal { .. } => Outcome::Signal(Err(error)),
        }
    }
}

/// Whether to try again once the kernel says so.
fn must_wait(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

impl Epoll {
    fn put(&mut self, token: Token, waiting: Waiting) {
        if self.waiting.len() <= token.index() {
            self.waiting.resize_with(token.index() + 1, || None);
        }
        let slot = &mut self.waiting[token.index()];
        assert!(slot.is_none(), "{token:?} is in flight already");
        *slot = Some((token, waiting));
        self.waiting_count += 1;
    }

    pub(super) fn take(&mut self, token: Token) -> Option<Waiting> {
        let (_, waiting) = self.waiting.get_mut(token.index())?.take_if(|(of, _)| *of == token)?;
        self.waiting_count -= 1;
        Some(waiting)
    }

    /// Begins what is expected to wait.
    pub(super) fn watch(&mut self, token: Token, waiting: Waiting) {
        match self.watches.add(waiting.fd(), waiting.side(), token) {
            Ok(()) => self.put(token, waiting),
            Err(error) => self.finish(token, waiting.failed(error)),
        }
    }

    /// Begins what is expected to succeed.
    pub(super) fn try_next_turn(&mut self, token: Token, waiting: Waiting) {
        self.put(token, waiting);
        self.untried.push(token);
    }

    /// Tries an operation, unless it was cancelled.
    pub(super) fn try_now(&mut self, token: Token, out: &mut Vec<Completion>) {
        let Some(waiting) = self.take(token) else { return };
        let (fd, side) = (waiting.fd(), waiting.side());
        // The handle stays until nobody watches it any more.
        let (outcome, _handle) = match waiting {
            Waiting::Accept { listener } => return self.accept(token, listener, out),
            Waiting::Receive { stream, bytes } => {
                let result = match sys::receive(&stream, &mut self.received[..bytes]) {
                    Ok(bytes) => Ok(RecvBuf::from_vec(self.received[..bytes].to_vec())),
                    Err(error) if must_wait(&error) => {
                        return self.put(token, Waiting::Receive { stream, bytes });
                    }
                    Err(error) => Err(error),
                };
                if matches!(&result, Ok(came) if !came.is_empty()) {
                    out.push(Completion { token, outcome: Outcome::Received(result), more: true });
                    return self.put(token, Waiting::Receive { stream, bytes });
                }
                (Outcome::Received(result), Some(stream))
            }
            Waiting::ReceiveGiven { stream, mut buf, range } => {
                match sys::receive(&stream, &mut buf[range.clone()]) {
                    Err(error) if must_wait(&error) => {
                        return self.wait(token, Waiting::ReceiveGiven { stream, buf, range }, out);
                    }
                    came => {
                        let filled = came.map(|bytes| range.start..range.start + bytes);
                        (Outcome::Filled(filled, buf), Some(stream))
                    }
                }
            }
            Waiting::Send { stream, data, skip } => {
                match sys::send(&stream, &mut self.message, &data, skip) {
                    Err(error) if must_wait(&error) => {
                        return self.wait(token, Waiting::Send { stream, data, skip }, out);
                    }
                    sent => (Outcome::Sent(sent, data), Some(stream)),
                }
            }
            Waiting::Connect { stream, peer } => {
                let result = sys::connected(&stream).map(|()| (stream.clone(), peer));
                (Outcome::Connected(result), Some(stream))
            }
            Waiting::ConnectLater { stream, peer, addr } => return self.connect(token, stream, peer, addr),
            Waiting::Signal { signals } => match sys::read_signal(&signals) {
                Err(error) if must_wait(&error) => return self.put(token, Waiting::Signal { signals }),
                signal => (Outcome::Signal(signal), Some(signals)),
            },
        };
        self.watches.forget(fd, side, token);
        out.push(Completion { token, outcome, more: false });
    }

    /// It could not be done now: watches for when it can, if that is not being done already.
    fn wait(&mut self, token: Token, waiting: Waiting, out: &mut Vec<Completion>) {
        let (fd, side) = (waiting.fd(), waiting.side());
        match self.watches.is_watched(fd, side, token) {
            true => self.put(token, waiting),
            false => match self.watches.add(fd, side, token) {
                Ok(()) => self.put(token, waiting),
                Err(error) => out.push(Completion { token, outcome: waiting.failed(error), more: false }),
            },
        }
    }

    pub(super) fn connect(&mut self, token: Token, stream: Handle, peer: PeerAddr, addr: Box<RawAddr>) {
        match sys::begin_connect(&stream, &addr) {
            Ok(true) => self.finish(token, Outcome::Connected(Ok((stream, peer)))),
            Ok(false) => self.watch(token, Waiting::Connect { stream, peer }),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.put(token, Waiting::ConnectLater { stream, peer, addr });
                self.later.push(token);
            }
            Err(error) => self.finish(token, Outcome::Connected(Err(error))),
        }
    }

    fn accept(&mut self, token: Token, listener: Handle, out: &mut Vec<Completion>) {
        for _ in 0..ACCEPTS_PER_TURN {
            match sys::accept(&listener) {
                Ok(accepted) => {
                    out.push(Completion { token, outcome: Outcome::Accepted(Ok(accepted)), more: true });
                }
                // Who left while he waited.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) if must_wait(&error) => break,
                Err(error) => {
                    self.watches.forget(listener.fd(), Side::In, token);
                    return out.push(Completion {
                        token,
                        outcome: Outcome::Accepted(Err(error)),
                        more: false,
                    });
                }
            }
        }
        self.put(token, Waiting::Accept { listener });
    }
}
