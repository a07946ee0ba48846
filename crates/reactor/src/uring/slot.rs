//! What an operation in flight keeps alive, and what becomes of it when it completes.

use super::Uring;
use super::receive::Turn;
use crate::addr::PeerAddr;
use crate::buf::{IoBuf, RecvBuf};
use crate::driver::{Completion, Handle, Outcome, SendData, Token};
use crate::sys::message::Message;
use crate::sys::{self, RawAddr, SignalInfo};
use bytes::Bytes;
use io_uring::cqueue;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

/// Messages kept for reuse.
const SPARE_MESSAGES_MAX: usize = 256;

/// An operation that the kernel works on, with all that it uses.
pub(super) enum InFlight {
    Read {
        file: Handle,
        buf: IoBuf,
    },
    Write {
        file: Handle,
        data: Bytes,
    },
    /// Sync, punch, allocate.
    Plain {
        file: Handle,
    },
    Accept {
        listener: Handle,
        many: bool,
    },
    /// Into shared buffers, one after the other.
    ReceiveMany {
        stream: Handle,
        group: u16,
    },
    /// Into one shared buffer.
    ReceiveShared {
        stream: Handle,
        group: u16,
        or_own: bool,
    },
    /// Not the kernel's: it waits until a shared buffer is free.
    ReceiveWaiting {
        stream: Handle,
        group: u16,
    },
    ReceiveOne {
        _stream: Handle,
        buf: Vec<u8>,
    },
    ReceiveGiven {
        _stream: Handle,
        buf: IoBuf,
        start: usize,
    },
    Send {
        stream: Handle,
        data: SendData,
        message: Box<Message>,
    },
    Connect {
        stream: Handle,
        peer: PeerAddr,
        _addr: Box<RawAddr>,
    },
    Signal {
        _signals: Handle,
        info: Box<SignalInfo>,
    },
}

/// An operation, by the token of its owner.
struct Slot {
    token: Token,
    in_flight: InFlight,
    /// Its owner waits for its end only.
    is_cancelled: bool,
}

/// Operations in flight, by the index of their token.
#[derive(Default)]
pub(super) struct Slots {
    slots: Vec<Option<Slot>>,
    live: usize,
    #[expect(clippy::vec_box, reason = "the kernel holds their addresses")]
    spare: Vec<Box<Message>>,
}

impl Slots {
    pub(super) fn insert(&mut self, token: Token, in_flight: InFlight) {
        if self.slots.len() <= token.index() {
            self.slots.resize_with(token.index() + 1, || None);
        }
        let slot = &mut self.slots[token.index()];
        assert!(slot.is_none(), "{token:?} is in flight already");
        *slot = Some(Slot { token, in_flight, is_cancelled: false });
        self.live += 1;
    }

    fn live(&mut self, token: Token) -> Option<&mut Slot> {
        self.slots.get_mut(token.index())?.as_mut().filter(|slot| slot.token == token)
    }

    /// Notes that an operation is to end. False: it is not in flight.
    pub(super) fn note_cancelled(&mut self, token: Token) -> bool {
        self.live(token).map(|slot| slot.is_cancelled = true).is_some()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.live == 0
    }

    pub(super) fn live_tokens(&self) -> Vec<Token> {
        self.slots.iter().flatten().map(|slot| slot.token).collect()
    }

    /// The receive that waits for a shared buffer, and its group; no longer in flight.
    pub(super) fn take_waiting(&mut self, token: Token) -> Option<(Handle, u16)> {
        if !matches!(self.live(token)?.in_flight, InFlight::ReceiveWaiting { .. }) {
            return None;
        }
        match self.remove(token).in_flight {
            InFlight::ReceiveWaiting { stream, group } => Some((stream, group)),
            _ => unreachable!("as just seen"),
        }
    }

    fn get(&mut self, token: Token) -> &mut InFlight {
        match self.live(token) {
            Some(slot) => &mut slot.in_flight,
            None => panic!("{token:?} completed but is not in flight"),
        }
    }

    fn remove(&mut self, token: Token) -> Slot {
        match self.slots.get_mut(token.index()).and_then(Option::take) {
            Some(slot) if slot.token == token => {
                self.live -= 1;
                slot
            }
            _ => panic!("{token:?} completed but is not in flight"),
        }
    }

    pub(super) fn spare_message(&mut self) -> Box<Message> {
        self.spare.pop().unwrap_or_else(Message::new)
    }

    fn put_spare(&mut self, message: Box<Message>) {
        if self.spare.len() < SPARE_MESSAGES_MAX {
            self.spare.push(message);
        }
    }
}

pub(super) fn size(result: i32) -> io::Result<usize> {
    if result < 0 { Err(io::Error::from_raw_os_error(-result)) } else { Ok(result as usize) }
}

impl Uring {
    /// Turns one completion of the kernel into one of ours.
    pub(super) fn complete(&mut self, token: Token, result: i32, flags: u32, out: &mut Vec<Completion>) {
        let more = cqueue::more(flags);
        if more {
            let outcome = match self.slots.get(token) {
                InFlight::Accept { .. } => accepted(result),
                InFlight::ReceiveMany { group, .. } => {
                    let group = *group;
                    self.received(group, result, flags)
                }
                _ => panic!("{token:?} completed more than once"),
            };
            out.push(Completion { token, outcome, more });
            return;
        }
        let Slot { in_flight, is_cancelled, .. } = self.slots.remove(token);
        // What a kernel without multishot refuses is begun again without, and so is what was handed over together with the first;
        // what found no shared buffer waits for one. Not after a cancellation, which may have found nothing any more: nobody would end
        // what is begun now, and nothing has failed.
        let (is_refused, is_short) = (result == -libc::EINVAL, result == -libc::ENOBUFS);
        let ended = if is_cancelled && (is_refused || is_short) { -libc::ECANCELED } else { result };
        let outcome = match in_flight {
            InFlight::Read { file, buf } => {
                self.held.completed();
                drop(file);
                Outcome::Read(size(result), buf)
            }
            InFlight::Write { file, data } => {
                drop(file);
                Outcome::Written(size(result), data)
            }
            InFlight::Plain { file } => {
                drop(file);
                Outcome::Done(size(result).map(|_| 0))
            }
            InFlight::Accept { listener, many } => {
                if is_refused && many {
                    self.multishot_accept = false;
                    if !is_cancelled {
                        return self.start_accept(token, listener);
                    }
                }
                accepted(ended)
            }
            InFlight::ReceiveMany { stream, group } => {
                if is_refused {
                    self.multishot_receive = false;
                    if !is_cancelled {
                        return self.start_own(token, stream);
                    }
                }
                if is_short && !is_cancelled {
                    return self.wait_for_buffer(token, stream, group, Turn::Last);
                }
                drop(stream);
                self.received(group, ended, flags)
            }
            InFlight::ReceiveShared { stream, group, or_own } => {
                if is_short && !is_cancelled {
                    return match or_own {
                        true => self.start_own(token, stream),
                        // It had its turn.
                        false => self.wait_for_buffer(token, stream, group, Turn::First),
                    };
                }
                drop(stream);
                self.received(group, ended, flags)
            }
            InFlight::ReceiveWaiting { .. } => panic!("{token:?} completed but is not the kernel's"),
            InFlight::ReceiveOne { mut buf, .. } => Outcome::Received(size(result).map(|bytes| {
                // SAFETY: the kernel wrote so many bytes, at most the capacity.
                unsafe { buf.set_len(bytes) };
                RecvBuf::from_vec(buf)
            })),
            InFlight::ReceiveGiven { buf, start, .. } => {
                Outcome::Filled(size(result).map(|bytes| start..start + bytes), buf)
            }
            InFlight::Send { stream, data, message } => {
                drop(stream);
                self.slots.put_spare(message);
                Outcome::Sent(size(result), data)
            }
            InFlight::Connect { stream, peer, .. } => {
                Outcome::Connected(size(result).map(|_| (stream, peer)))
            }
            InFlight::Signal { info, .. } => {
                Outcome::Signal(size(result).and_then(|bytes| info.signal(bytes)))
            }
        };
        out.push(Completion { token, outcome, more });
    }
}

fn accepted(result: i32) -> Outcome {
    Outcome::Accepted(size(result).map(|fd| {
        // SAFETY: the kernel has just made this descriptor for us.
        let fd = unsafe { OwnedFd::from_raw_fd(fd as i32) };
        let peer = sys::peer(&fd);
        (Handle::os(fd), peer)
    }))
}
