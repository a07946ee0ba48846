//! One client connection of the load generator: writes a batch of commands, reads as many replies, again.
//!
//! Values are sent from the shared pool (vectored writes), replies are counted and dropped: the client's CPU is the
//! server's rival on a small machine.

use std::collections::VecDeque;
use std::io::{self, IoSlice, Read, Write};
use std::net::TcpStream;
use std::time::Instant;

use super::load::{LoadOp, LoadShared};
use super::reply::{Reply, ReplyCounter};
use crate::engine::Loop;
use crate::keys::{self, Picker};

/// At most so many slices go into one write call.
const SLICES_MAX: usize = 64;

/// A piece of the batch being written.
enum Piece {
    /// A range of `Connection::head`.
    Head(usize, usize),
    /// The value of a key.
    Value(u64),
}

/// See the module.
pub(super) struct Connection {
    pub stream: TcpStream,
    picker: Picker,
    head: Vec<u8>,
    pieces: Vec<Piece>,
    /// Where the next write begins: piece, and byte within it.
    at: (usize, usize),
    /// Keys whose replies are due, in order.
    due: VecDeque<u64>,
    counter: ReplyCounter,
    batch_began: Instant,
}

/// What the event loop should do with a connection.
pub(super) enum Next {
    /// Wait until it can be read (and, if true, written).
    Wait { write: bool },
    /// Its share of the load is done.
    Done,
}

impl Connection {
    pub fn new(stream: TcpStream, picker: Picker) -> Connection {
        Connection {
            stream,
            picker,
            head: Vec::new(),
            pieces: Vec::new(),
            at: (0, 0),
            due: VecDeque::new(),
            counter: ReplyCounter::default(),
            batch_began: Instant::now(),
        }
    }

    /// Goes on as far as it can without waiting.
    pub fn go_on(&mut self, shared: &LoadShared<'_>, buffer: &mut [u8], out: &mut Loop) -> io::Result<Next> {
        loop {
            if self.due.is_empty() && self.at.0 == self.pieces.len() && !self.form_batch(shared) {
                return Ok(Next::Done);
            }
            let written_out = self.write(shared)?;
            let got_all = self.read(shared, buffer, out)?;
            if !(written_out && got_all) {
                return Ok(Next::Wait { write: !written_out });
            }
        }
    }

    fn form_batch(&mut self, shared: &LoadShared<'_>) -> bool {
        self.head.clear();
        self.pieces.clear();
        self.at = (0, 0);
        let mut start = 0;
        for _ in 0..shared.spec.depth {
            let Some((op, index)) = shared.next(&mut self.picker) else { break };
            let key = keys::key(index);
            match op {
                LoadOp::Get => {
                    self.head.extend_from_slice(b"*2\r\n$3\r\nGET\r\n$16\r\n");
                    self.head.extend_from_slice(&key);
                    self.head.extend_from_slice(b"\r\n");
                }
                _ => {
                    self.head.extend_from_slice(b"*3\r\n$3\r\nSET\r\n$16\r\n");
                    self.head.extend_from_slice(&key);
                    let _ = write!(self.head, "\r\n${}\r\n", shared.spec.value_bytes);
                    self.pieces.push(Piece::Head(start, self.head.len()));
                    self.pieces.push(Piece::Value(index));
                    start = self.head.len();
                    self.head.extend_from_slice(b"\r\n");
                }
            }
            self.due.push_back(index);
        }
        if start < self.head.len() {
            self.pieces.push(Piece::Head(start, self.head.len()));
        }
        self.batch_began = Instant::now();
        !self.due.is_empty()
    }

    /// True when the whole batch is out.
    fn write(&mut self, shared: &LoadShared<'_>) -> io::Result<bool> {
        while self.at.0 < self.pieces.len() {
            let (first, skip) = self.at;
            let slices: Vec<IoSlice<'_>> = self.pieces[first..]
                .iter()
                .take(SLICES_MAX)
                .enumerate()
                .map(|(i, piece)| {
                    let bytes = match *piece {
                        Piece::Head(from, to) => &self.head[from..to],
                        Piece::Value(index) => shared.values.value(index),
                    };
                    IoSlice::new(if i == 0 { &bytes[skip..] } else { bytes })
                })
                .collect();
            let mut sent = match (&self.stream).write_vectored(&slices) {
                Ok(n) => n,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(e),
            };
            for slice in &slices {
                if sent < slice.len() {
                    self.at.1 += sent;
                    break;
                }
                sent -= slice.len();
                self.at = (self.at.0 + 1, 0);
            }
        }
        Ok(true)
    }

    /// True when all replies of the batch are in.
    fn read(&mut self, shared: &LoadShared<'_>, buffer: &mut [u8], out: &mut Loop) -> io::Result<bool> {
        while !self.due.is_empty() {
            let got = match (&self.stream).read(buffer) {
                Ok(0) => {
                    return Err(io::Error::new(
                        io::ErrorKind::UnexpectedEof,
                        "the server closed the connection",
                    ));
                }
                Ok(n) => n,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(e),
            };
            let latency_ns = self.batch_began.elapsed().as_nanos() as u64;
            let due = std::cell::RefCell::new(&mut self.due);
            let expect = |_len| due.borrow().front().map(|&index| &shared.values.value(index)[..8]);
            let result = self.counter.feed(&buffer[..got], expect, |reply| {
                due.borrow_mut().pop_front();
                out.record(latency_ns);
                match reply {
                    Reply::Nil => out.misses += 1,
                    Reply::Error => out.wrong += 1,
                    Reply::Bulk { bytes, right } if !right || bytes != shared.spec.value_bytes => {
                        out.wrong += 1
                    }
                    _ => {}
                }
            });
            result.map_err(|text| io::Error::new(io::ErrorKind::InvalidData, text))?;
            if let Some(error) = self.counter.first_error.take() {
                out.error.get_or_insert(error);
            }
        }
        Ok(true)
    }
}
