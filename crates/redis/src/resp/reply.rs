//! Replies of one connection, in RESP2 or RESP3.
//!
//! Replies are written one after the other into one buffer that is used again and again. A large value is not
//! copied: the buffer is cut, the value is put behind the cut, and both go to the socket in one vectored send.
//! [`Reply::mark`] remembers a place, so that a command that fails halfway, or an EXEC whose write was
//! refused, can take back what it wrote; [`Reply::hole`] leaves a place for a header whose count is not known.

use bytes::{Bytes, BytesMut};
use pumice_kv::ValueView;

use crate::number::{format_double, push_int};

/// Values from this size on are sent from where they lie instead of being copied into the reply buffer:
/// a copy of 4 KiB costs about what one more vector entry costs.
pub const COPY_BYTES_MAX: usize = 4096;
/// A larger buffer is given back once what it held is on its way: nothing counts what connections keep.
const BUFFER_KEPT_BYTES: usize = 128 << 10;
/// So is one that is larger than its share of what resting connections may keep; one of this size they always keep.
const BUFFER_RESTING_BYTES: usize = 4 << 10;

/// Which protocol the connection speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// RESP2, the default.
    Resp2,
    /// RESP3, after `HELLO 3`.
    Resp3,
}

/// A place in the output, to return to.
#[derive(Clone, Copy, Debug)]
pub struct Mark {
    parts: usize,
    offset: usize,
}

/// The replies not yet handed to the socket.
pub struct Reply {
    buf: BytesMut,
    parts: Vec<Bytes>,
    parts_bytes: usize,
    protocol: Protocol,
    /// The longest piece that left since [`Reply::rest`], and the most memory that was behind one.
    longest: usize,
    behind: usize,
}

impl Default for Reply {
    fn default() -> Self {
        Self::new()
    }
}

impl Reply {
    /// An empty RESP2 reply.
    pub fn new() -> Self {
        Self {
            buf: BytesMut::new(),
            parts: Vec::new(),
            parts_bytes: 0,
            protocol: Protocol::Resp2,
            longest: 0,
            behind: 0,
        }
    }

    /// Replies follow: has memory at hand for as many as before the last [`Reply::rest`], if that let go of it.
    pub fn begin(&mut self) {
        if self.buf.capacity() == 0 && self.longest > 0 {
            self.buf.reserve(self.longest.min(BUFFER_KEPT_BYTES));
            self.longest = 0;
        }
    }

    /// Nothing follows for now: lets go of memory that is more than `share`. Thousands of connections may rest, and nothing counts
    /// what they keep.
    pub fn rest(&mut self, share: impl FnOnce() -> usize) {
        let kept = self.behind.max(self.buf.capacity());
        if self.buf.is_empty() && kept > BUFFER_RESTING_BYTES && kept > share() {
            self.buf = BytesMut::new();
        } else {
            self.longest = 0;
        }
        self.behind = 0;
    }

    /// The protocol in force.
    pub fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// Switches the protocol for what follows.
    pub fn set_protocol(&mut self, protocol: Protocol) {
        self.protocol = protocol;
    }

    /// True in RESP3.
    pub fn is_resp3(&self) -> bool {
        self.protocol == Protocol::Resp3
    }

    /// Bytes waiting.
    pub fn len(&self) -> usize {
        self.parts_bytes + self.buf.len()
    }

    /// True when nothing waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// `+OK`.
    pub fn ok(&mut self) {
        self.buf.extend_from_slice(b"+OK\r\n");
    }

    /// A simple string, without line ends in it.
    pub fn simple(&mut self, text: &str) {
        self.line(b'+', text.as_bytes());
    }

    /// An error; `text` starts with its code. Line ends become spaces.
    pub fn error(&mut self, text: impl AsRef<[u8]>) {
        self.buf.extend_from_slice(b"-");
        self.buf
            .extend(text.as_ref().iter().copied().map(|b| if b == b'\r' || b == b'\n' { b' ' } else { b }));
        self.buf.extend_from_slice(b"\r\n");
    }

    /// An integer.
    pub fn int(&mut self, value: i64) {
        self.header(b':', value);
    }

    /// A count, as an integer.
    pub fn count(&mut self, value: u64) {
        self.header(b':', value as i64);
    }

    /// 1 or 0.
    pub fn flag(&mut self, value: bool) {
        self.buf.extend_from_slice(if value { b":1\r\n" } else { b":0\r\n" });
    }

    /// A boolean: `#t` in RESP3, 1 or 0 in RESP2.
    pub fn boolean(&mut self, value: bool) {
        match self.protocol {
            Protocol::Resp2 => self.flag(value),
            Protocol::Resp3 => self.buf.extend_from_slice(if value { b"#t\r\n" } else { b"#f\r\n" }),
        }
    }

    /// A bulk string, copied.
    pub fn bulk(&mut self, value: &[u8]) {
        self.buf.reserve(value.len() + 32);
        self.header(b'$', value.len() as i64);
        self.buf.extend_from_slice(value);
        self.buf.extend_from_slice(b"\r\n");
    }

    /// A bulk string; not copied when it is large.
    pub fn bulk_bytes(&mut self, value: Bytes) {
        if value.len() < COPY_BYTES_MAX {
            return self.bulk(&value);
        }
        self.header(b'$', value.len() as i64);
        self.raw_bytes(value);
        self.buf.extend_from_slice(b"\r\n");
    }

    /// A value in memory as a bulk string; not copied when that can be spared.
    pub fn bulk_view(&mut self, value: ValueView<'_>) {
        match value {
            ValueView::Shared(value) if value.len() >= COPY_BYTES_MAX => self.bulk_bytes(value.clone()),
            ValueView::Shared(value) => self.bulk(value),
            ValueView::Inline(value) => self.bulk(value),
        }
    }

    /// An integer as a bulk string.
    pub fn bulk_int(&mut self, value: i64) {
        let mut digits = [0u8; 20];
        let text = push_int(&mut digits, value);
        let (header, body) = (text.len() as i64, text);
        self.header(b'$', header);
        self.buf.extend_from_slice(body);
        self.buf.extend_from_slice(b"\r\n");
    }

    /// Only the header of a bulk string of `len` bytes; the bytes follow by [`Reply::raw_bytes`] and the end
    /// by [`Reply::bulk_end`]. For values that arrive in pieces.
    pub fn bulk_header(&mut self, len: u64) {
        self.header(b'$', len as i64);
    }

    /// The line end after the bytes of a bulk string begun with [`Reply::bulk_header`].
    pub fn bulk_end(&mut self) {
        self.buf.extend_from_slice(b"\r\n");
    }

    /// Bytes as they are, not copied.
    pub fn raw_bytes(&mut self, value: Bytes) {
        self.cut();
        self.parts_bytes += value.len();
        self.parts.push(value);
    }

    /// Bytes as they are, copied.
    pub fn raw(&mut self, value: &[u8]) {
        self.buf.extend_from_slice(value);
    }

    /// Null: `_` in RESP3, a null bulk string in RESP2.
    pub fn null(&mut self) {
        self.buf.extend_from_slice(match self.protocol {
            Protocol::Resp2 => b"$-1\r\n" as &[u8],
            Protocol::Resp3 => b"_\r\n",
        });
    }

    /// Null where an array was expected: `_` in RESP3, a null array in RESP2.
    pub fn null_array(&mut self) {
        self.buf.extend_from_slice(match self.protocol {
            Protocol::Resp2 => b"*-1\r\n" as &[u8],
            Protocol::Resp3 => b"_\r\n",
        });
    }

    /// The header of an array of `n` elements.
    pub fn array(&mut self, n: usize) {
        self.header(b'*', n as i64);
    }

    /// The header of a map of `n` pairs: a flat array of 2n in RESP2.
    pub fn map(&mut self, n: usize) {
        match self.protocol {
            Protocol::Resp2 => self.header(b'*', 2 * n as i64),
            Protocol::Resp3 => self.header(b'%', n as i64),
        }
    }

    /// The header of a set of `n` members: an array in RESP2.
    pub fn set(&mut self, n: usize) {
        self.header(if self.is_resp3() { b'~' } else { b'*' }, n as i64);
    }

    /// A double: `,` in RESP3, a bulk string in RESP2.
    pub fn double(&mut self, value: f64) {
        let text = format_double(value);
        match self.protocol {
            Protocol::Resp2 => self.bulk(text.as_bytes()),
            Protocol::Resp3 => self.line(b',', text.as_bytes()),
        }
    }

    /// A text for people (`txt` format) in RESP3, a bulk string in RESP2.
    pub fn verbatim(&mut self, text: &str) {
        match self.protocol {
            Protocol::Resp2 => self.bulk(text.as_bytes()),
            Protocol::Resp3 => {
                self.header(b'=', text.len() as i64 + 4);
                self.buf.extend_from_slice(b"txt:");
                self.buf.extend_from_slice(text.as_bytes());
                self.buf.extend_from_slice(b"\r\n");
            }
        }
    }

    /// A place for a header to be written later.
    pub fn hole(&self) -> Mark {
        self.mark()
    }

    /// Writes an array header of `n` elements at `hole`.
    pub fn fill_array(&mut self, hole: Mark, n: usize) {
        self.fill(hole, b'*', n);
    }

    /// Writes a set header of `n` members at `hole`.
    pub fn fill_set(&mut self, hole: Mark, n: usize) {
        self.fill(hole, if self.is_resp3() { b'~' } else { b'*' }, n);
    }

    /// The place reached.
    pub fn mark(&self) -> Mark {
        Mark { parts: self.parts.len(), offset: self.buf.len() }
    }

    /// Takes back everything written since `mark`.
    pub fn rollback(&mut self, mark: Mark) {
        if self.parts.len() == mark.parts {
            self.buf.truncate(mark.offset);
            if self.buf.capacity() > BUFFER_KEPT_BYTES.max(2 * mark.offset) {
                self.buf = BytesMut::from(&self.buf[..]);
            }
            return;
        }
        let kept = self.parts[mark.parts].slice(..mark.offset);
        self.parts.truncate(mark.parts);
        self.buf.clear();
        self.buf.extend_from_slice(&kept);
        self.parts_bytes = self.parts.iter().map(Bytes::len).sum();
    }

    /// Hands over what waits, as the parts of one vectored send, in `parts` (empty, given for its memory), and
    /// starts anew.
    pub fn take_into(&mut self, mut parts: Vec<Bytes>) -> Vec<Bytes> {
        assert!(parts.is_empty());
        if !self.buf.is_empty() {
            self.cut();
        }
        self.parts_bytes = 0;
        std::mem::swap(&mut parts, &mut self.parts);
        parts
    }

    /// [`Reply::take_into`] a new vector.
    pub fn take(&mut self) -> Vec<Bytes> {
        self.take_into(Vec::new())
    }

    fn cut(&mut self) {
        // Also when empty: a mark finds its place by counting parts.
        let is_large = self.buf.capacity() > BUFFER_KEPT_BYTES;
        let piece = self.buf.split().freeze();
        self.longest = self.longest.max(piece.len());
        self.behind = self.behind.max(piece.len() + self.buf.capacity());
        if is_large {
            self.buf = BytesMut::new();
        }
        self.parts_bytes += piece.len();
        self.parts.push(piece);
    }

    fn fill(&mut self, hole: Mark, kind: u8, n: usize) {
        let mut digits = [0u8; 20];
        let text = push_int(&mut digits, n as i64);
        let mut header = [0u8; 24];
        header[0] = kind;
        header[1..1 + text.len()].copy_from_slice(text);
        header[1 + text.len()..3 + text.len()].copy_from_slice(b"\r\n");
        let header = &header[..3 + text.len()];
        if self.parts.len() == hole.parts {
            let old = self.buf.len();
            self.buf.extend_from_slice(header);
            self.buf.copy_within(hole.offset..old, hole.offset + header.len());
            self.buf[hole.offset..hole.offset + header.len()].copy_from_slice(header);
        } else {
            let part = &self.parts[hole.parts];
            let mut whole = BytesMut::with_capacity(part.len() + header.len());
            whole.extend_from_slice(&part[..hole.offset]);
            whole.extend_from_slice(header);
            whole.extend_from_slice(&part[hole.offset..]);
            self.parts[hole.parts] = whole.freeze();
            self.parts_bytes += header.len();
        }
    }

    fn header(&mut self, kind: u8, value: i64) {
        // Most lines are short, and copies of a known length need no call.
        let digit = |n: i64| b'0' + (n % 10) as u8;
        match value {
            0..10 => self.buf.extend_from_slice(&[kind, digit(value), b'\r', b'\n']),
            10..100 => {
                self.buf.extend_from_slice(&[kind, digit(value / 10), digit(value), b'\r', b'\n']);
            }
            _ => self.long_header(kind, value),
        }
    }

    fn long_header(&mut self, kind: u8, value: i64) {
        let mut line = [0u8; 24];
        line[0] = kind;
        let mut digits = [0u8; 20];
        let text = push_int(&mut digits, value);
        line[1..1 + text.len()].copy_from_slice(text);
        line[1 + text.len()] = b'\r';
        line[2 + text.len()] = b'\n';
        self.buf.extend_from_slice(&line[..3 + text.len()]);
    }

    fn line(&mut self, kind: u8, text: &[u8]) {
        self.buf.reserve(text.len() + 3);
        self.buf.extend_from_slice(&[kind]);
        self.buf.extend_from_slice(text);
        self.buf.extend_from_slice(b"\r\n");
    }
}
