//! Reads requests: RESP arrays of bulk strings, and inline commands (words on a line).
//!
//! 1. The caller gives the bytes from the start of a command on, as they lie in the receive buffer. Arguments
//!    are noted as spans of those bytes: nothing is copied.
//! 2. When bytes are missing, [`Parser::parse`] says how many at least, and remembers how far it came, so that
//!    a command that arrives in many pieces is looked at once. The caller keeps the bytes so far and appends.
//! 3. A long argument that the caller can stream is announced instead of being waited for
//!    ([`Parsed::Large`]); the caller takes its bytes and reports [`Parser::large_taken`].
//!
//! Limits and messages are Redis's (networking.c, processMultibulkBuffer and processInlineBuffer).

use super::skim::Skim;
use crate::args::Span;

/// The longest line: an inline command, or the header of an array or a bulk string.
pub const LINE_BYTES_MAX: usize = 64 * 1024;
/// The longest key.
pub const KEY_BYTES_MAX: usize = 64 * 1024;
/// The longest argument (proto-max-bulk-len).
pub const BULK_BYTES_MAX: u64 = 512 << 20;
/// Limits before AUTH, so that strangers cannot make the server keep much.
pub const UNAUTHENTICATED_ARGUMENTS_MAX: i64 = 10;
/// The longest argument before AUTH.
pub const UNAUTHENTICATED_BULK_BYTES_MAX: u64 = 16 * 1024;

/// Memory for so many arguments, and bytes of unquoted words, is kept from one command to the next.
const SPANS_KEPT: usize = 256;
const UNQUOTED_KEPT: usize = 1 << 10;

/// What parsing came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Parsed {
    /// A command; it took this many bytes. Its arguments are [`Parser::spans`].
    Command(usize),
    /// Nothing to do (an empty line, an empty array); it took this many bytes.
    Nothing(usize),
    /// At least this many further bytes are needed.
    Incomplete(usize),
    /// The argument number [`Parser::spans`]`.len()` has `len` bytes, from offset `at` on: take it, and the
    /// line end after it, then call [`Parser::large_taken`] and go on with the bytes up to `at`.
    Large {
        /// Where its bytes begin.
        at: usize,
        /// Its length.
        len: u64,
    },
    /// The client breaks the protocol: send this error and close.
    Broken(Vec<u8>),
}

/// What the parser may ask of its caller.
pub trait Streams {
    /// Whether the argument after `arguments`, of `len` bytes, can be streamed.
    fn can_stream(&self, buf: &[u8], arguments: &[Span], len: u64) -> bool;
    /// Whether the stricter limits hold.
    fn is_unauthenticated(&self) -> bool;
}

/// The state of one request being read.
#[derive(Debug, Default)]
pub struct Parser {
    spans: Vec<Span>,
    at: usize,
    /// Arguments still to come; `None`: the command's first line is still to be read.
    arguments_left: Option<i64>,
    /// The length of the argument whose header was read.
    bulk: Option<u64>,
    /// How far a line was searched for its end.
    searched: usize,
    /// Words of an inline command, unquoted, when they had quotes.
    unquoted: Vec<u8>,
    is_unquoted: bool,
}

enum Line {
    Found { text: (usize, usize), next: usize },
    Missing,
}

impl Parser {
    /// A parser at the beginning of a command.
    pub fn new() -> Self {
        Self::default()
    }

    /// The arguments found. Relative to [`Parser::buffer`].
    pub fn spans(&self) -> &[Span] {
        &self.spans
    }

    /// The bytes that [`Parser::spans`] index: those given to `parse`, or the parser's own when an inline
    /// command had quotes.
    pub fn buffer<'a>(&'a self, given: &'a [u8]) -> &'a [u8] {
        if self.is_unquoted { &self.unquoted } else { given }
    }

    /// Forgets the command, ready for the next.
    pub fn reset(&mut self) {
        self.spans.clear();
        if self.spans.capacity() > SPANS_KEPT {
            self.spans = Vec::new();
        }
        if self.unquoted.capacity() > UNQUOTED_KEPT {
            self.unquoted = Vec::new();
        }
        (self.at, self.arguments_left, self.bulk, self.searched) = (0, None, None, 0);
        self.is_unquoted = false;
    }

    /// Memory held besides the bytes themselves.
    pub fn memory_bytes(&self) -> usize {
        self.spans.capacity() * size_of::<Span>() + self.unquoted.capacity()
    }

    /// Reads on. `buf` starts at the command's first byte, each time.
    pub fn parse(&mut self, buf: &[u8], streams: &impl Streams) -> Parsed {
        loop {
            let Some(left) = self.arguments_left else {
                match buf.first() {
                    None => return Parsed::Incomplete(1),
                    Some(b'*') => {}
                    Some(_) => return self.inline(buf),
                }
                let (text, next) = match self.line(buf, "too big mbulk count string") {
                    Ok(Line::Found { text, next }) => (text, next),
                    Ok(Line::Missing) => return Parsed::Incomplete(1),
                    Err(broken) => return broken,
                };
                let count = crate::number::parse_int(&buf[text.0 + 1..text.1]);
                let Some(count) = count.filter(|&count| count <= i64::from(i32::MAX)) else {
                    return broken("invalid multibulk length");
                };
                if count > UNAUTHENTICATED_ARGUMENTS_MAX && streams.is_unauthenticated() {
                    return broken("unauthenticated multibulk length");
                }
                self.at = next;
                if count <= 0 {
                    return Parsed::Nothing(next);
                }
                self.arguments_left = Some(count);
                continue;
            };
            if left == 0 {
                return Parsed::Command(self.at);
            }
            let len = match self.bulk {
                Some(len) => len,
                None => match self.bulk_header(buf, streams) {
                    Ok(len) => len,
                    Err(parsed) => return parsed,
                },
            };
            let end = self.at + len as usize + 2;
            if buf.len() < end {
                return Parsed::Incomplete(end - buf.len());
            }
            self.push(self.at, len as usize);
            self.at = end;
        }
    }

    /// The argument announced by [`Parsed::Large`] was taken, with its line end. Its place is left empty.
    pub fn large_taken(&mut self) {
        self.push(self.at, 0);
    }

    /// For a command that is not to be kept: what goes over the rest of it, and the offset from which on. `None` while
    /// it is not known to be an array. Call [`Parser::reset`] next.
    pub fn skim(&self) -> Option<(Skim, usize)> {
        self.arguments_left.map(|left| (Skim::new(left, self.bulk), self.at))
    }

    fn push(&mut self, start: usize, len: usize) {
        self.spans.push(Span { start: start as u32, len: len as u32 });
        self.bulk = None;
        self.searched = 0;
        self.arguments_left = self.arguments_left.map(|left| left - 1);
    }

    fn bulk_header(&mut self, buf: &[u8], streams: &impl Streams) -> Result<u64, Parsed> {
        // The usual header by hand: `$`, up to 3 digits, line end.
        let (text, next) = match self.line(buf, "too big bulk count string") {
            Ok(Line::Found { text, next }) => (text, next),
            Ok(Line::Missing) => return Err(Parsed::Incomplete(1)),
            Err(broken) => return Err(broken),
        };
        if buf[text.0] != b'$' {
            return Err(broken([&b"expected '$', got '"[..], &[buf[text.0]], b"'"].concat()));
        }
        let len = crate::number::parse_int(&buf[text.0 + 1..text.1]).and_then(|len| u64::try_from(len).ok());
        let Some(len) = len.filter(|&len| len <= BULK_BYTES_MAX) else {
            return Err(broken("invalid bulk length"));
        };
        if len > UNAUTHENTICATED_BULK_BYTES_MAX && streams.is_unauthenticated() {
            return Err(broken("unauthenticated bulk length"));
        }
        self.at = next;
        self.bulk = Some(len);
        self.searched = 0;
        if len > pumice_kv::VALUE_BYTES_MAX as u64 && streams.can_stream(buf, &self.spans, len) {
            return Err(Parsed::Large { at: next, len });
        }
        Ok(len)
    }

    /// The line from `self.at` on, its end not counted.
    fn line(&mut self, buf: &[u8], too_long: &str) -> Result<Line, Parsed> {
        let rest = &buf[self.at..];
        let from = self.searched.min(rest.len());
        match rest[from..].iter().position(|&b| b == b'\r').map(|at| at + from) {
            // Redis takes any byte after the carriage return for the line feed.
            Some(end) if end + 1 < rest.len() => {
                self.searched = 0;
                if end == 0 {
                    return Err(broken("expected '$', got '\r'"));
                }
                Ok(Line::Found { text: (self.at, self.at + end), next: self.at + end + 2 })
            }
            Some(end) => {
                self.searched = end;
                Ok(Line::Missing)
            }
            None if rest.len() > LINE_BYTES_MAX => Err(broken(too_long)),
            None => {
                self.searched = rest.len();
                Ok(Line::Missing)
            }
        }
    }

    fn inline(&mut self, buf: &[u8]) -> Parsed {
        let from = self.searched.min(buf.len());
        let Some(end) = buf[from..].iter().position(|&b| b == b'\n').map(|at| at + from) else {
            self.searched = buf.len();
            if buf.len() > LINE_BYTES_MAX {
                return broken("too big inline request");
            }
            return Parsed::Incomplete(1);
        };
        let line = &buf[..end];
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        self.spans.clear();
        if line.iter().any(|b| matches!(b, b'"' | b'\'')) {
            self.unquoted.clear();
            self.is_unquoted = true;
            if !split_quoted(line, &mut self.unquoted, &mut self.spans) {
                return broken("unbalanced quotes in request");
            }
        } else {
            let mut at = 0;
            for word in line.split(|b| is_space(*b)) {
                if !word.is_empty() {
                    self.spans.push(Span { start: at as u32, len: word.len() as u32 });
                }
                at += word.len() + 1;
            }
        }
        if self.spans.is_empty() { Parsed::Nothing(end + 1) } else { Parsed::Command(end + 1) }
    }
}

fn broken(what: impl AsRef<[u8]>) -> Parsed {
    Parsed::Broken([b"ERR Protocol error: ", what.as_ref()].concat())
}

fn is_space(b: u8) -> bool {
    matches!(b, b' ' | b'\t' | b'\n' | b'\r' | 0x0b | 0x0c | 0)
}

/// Splits a line into words with quotes as sds.c's sdssplitargs does; false when they are unbalanced.
fn split_quoted(line: &[u8], out: &mut Vec<u8>, spans: &mut Vec<Span>) -> bool {
    let mut at = 0;
    loop {
        while line.get(at).is_some_and(|b| is_space(*b)) {
            at += 1;
        }
        if at >= line.len() {
            return true;
        }
        let start = out.len();
        let mut quote: Option<u8> = None;
        loop {
            let byte = line.get(at).copied();
            match (quote, byte) {
                (Some(_), None) => return false,
                (None, None) => break,
                (Some(b'"'), Some(b'\\')) if line.len() > at + 3 && line[at + 1] == b'x' => {
                    let hex = |b: u8| char::from(b).to_digit(16);
                    match (hex(line[at + 2]), hex(line[at + 3])) {
                        (Some(high), Some(low)) => {
                            out.push((high * 16 + low) as u8);
                            at += 4;
                            continue;
                        }
                        _ => {
                            out.push(b'x');
                            at += 1;
                        }
                    }
                }
                (Some(b'"'), Some(b'\\')) if at + 1 < line.len() => {
                    at += 1;
                    out.push(match line[at] {
                        b'n' => b'\n',
                        b'r' => b'\r',
                        b't' => b'\t',
                        b'b' => 0x08,
                        b'a' => 0x07,
                        other => other,
                    });
                }
                (Some(b'\''), Some(b'\\')) if line.get(at + 1) == Some(&b'\'') => {
                    at += 1;
                    out.push(b'\'');
                }
                (Some(open), Some(b)) if b == open => {
                    // A closing quote must end the word.
                    if line.get(at + 1).is_some_and(|next| !is_space(*next)) {
                        return false;
                    }
                    at += 1;
                    break;
                }
                (None, Some(b @ (b'"' | b'\''))) => quote = Some(b),
                (None, Some(b)) if is_space(b) => break,
                (_, Some(b)) => out.push(b),
            }
            at += 1;
        }
        spans.push(Span { start: start as u32, len: (out.len() - start) as u32 });
    }
}
