//! The arguments of one command, as they lie in the receive buffer.

use std::ops::{Index, Range};
use std::sync::Arc;

use pumice_kv::LargeRef;

use crate::errors::{self, Failure};
use crate::number;

/// Where one argument lies in its buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// First byte.
    pub start: u32,
    /// Length in bytes.
    pub len: u32,
}

impl Span {
    fn range(self) -> Range<usize> {
        self.start as usize..self.start as usize + self.len as usize
    }
}

/// A value that was written to flash in pieces while it arrived.
#[derive(Clone, Debug)]
pub struct LargeArgument {
    /// Which argument it is, the command's name being 0.
    pub index: usize,
    /// Where its pieces lie.
    pub value: Arc<LargeRef>,
    /// The encoded key that the pieces were written for: under another they must not be stored.
    pub key: crate::keyspace::RawKey,
}

/// One command: its name (argument 0) and what follows it. Cheap to copy.
#[derive(Clone, Copy)]
pub struct Args<'a> {
    buf: &'a [u8],
    spans: &'a [Span],
    large: &'a [LargeArgument],
}

impl<'a> Args<'a> {
    /// The arguments at `spans` of `buf`.
    pub fn new(buf: &'a [u8], spans: &'a [Span], large: &'a [LargeArgument]) -> Self {
        Self { buf, spans, large }
    }

    /// How many arguments, the name included: what arity counts.
    #[allow(clippy::len_without_is_empty)] // a command is never empty
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// Argument `i`, if there are that many.
    pub fn get(&self, i: usize) -> Option<&'a [u8]> {
        self.spans.get(i).map(|span| &self.buf[span.range()])
    }

    /// All arguments from `from` on.
    pub fn iter_from(&self, from: usize) -> impl ExactSizeIterator<Item = &'a [u8]> + Clone + use<'a> {
        let buf = self.buf;
        self.spans[from.min(self.spans.len())..].iter().map(move |span| &buf[span.range()])
    }

    /// The value at `i` if it was streamed to flash; its place among the arguments is then empty.
    pub fn large(&self, i: usize) -> Option<&'a LargeArgument> {
        self.large.iter().find(|large| large.index == i)
    }

    /// True when argument `i` is `word`, in any case.
    pub fn is(&self, i: usize, word: &str) -> bool {
        self.get(i).is_some_and(|argument| argument.eq_ignore_ascii_case(word.as_bytes()))
    }

    /// Argument `i` as an integer, else "value is not an integer or out of range".
    pub fn int(&self, i: usize) -> Result<i64, Failure> {
        self.int_or(i, errors::NOT_INTEGER)
    }

    /// Argument `i` as an integer, else `error`.
    pub fn int_or(&self, i: usize, error: &'static str) -> Result<i64, Failure> {
        self.get(i).and_then(number::parse_int).ok_or_else(|| error.into())
    }

    /// Argument `i` as an integer of 32 bits: the number of a database.
    pub fn int32(&self, i: usize) -> Result<i32, Failure> {
        i32::try_from(self.int(i)?).map_err(|_| errors::OUT_OF_INT32.into())
    }

    /// Argument `i` as a float, else "value is not a valid float".
    pub fn double(&self, i: usize) -> Result<f64, Failure> {
        self.get(i).and_then(number::parse_double).ok_or_else(|| errors::NOT_FLOAT.into())
    }

    /// The arguments from `from` on: `HELP` of a subcommand and such.
    pub fn skip(&self, from: usize) -> Args<'a> {
        Args { spans: &self.spans[from.min(self.spans.len())..], ..*self }
    }

    /// Bytes of all arguments together.
    pub fn bytes(&self) -> usize {
        self.spans.iter().map(|span| span.len as usize).sum()
    }

    /// The arguments as others may see them, in MONITOR and the slow log: passwords are left out.
    pub fn shown(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let this = *self;
        let is_auth = self.is(0, "auth");
        let is_hello = self.is(0, "hello");
        let is_set = self.is(0, "config") && self.is(1, "set");
        // Each, were it given twice.
        let is_secret = move |at: usize| {
            (is_auth && at > 0)
                || (is_hello && at > 2 && (this.is(at - 1, "auth") || (at > 3 && this.is(at - 2, "auth"))))
                || (is_set && at > 2 && at % 2 == 1 && this.is(at - 1, "requirepass"))
        };
        let arguments = self.iter_from(0).enumerate();
        arguments.map(move |(at, argument)| if is_secret(at) { b"(redacted)" } else { argument })
    }
}

impl Index<usize> for Args<'_> {
    type Output = [u8];

    /// # Panics
    /// When there is no such argument: arity is checked before a handler runs.
    fn index(&self, i: usize) -> &[u8] {
        &self.buf[self.spans[i].range()]
    }
}

/// A command that outlives its receive buffer: queued by MULTI, or cut into pieces by the network.
#[derive(Clone, Debug, Default)]
pub struct OwnedArgs {
    buf: Vec<u8>,
    spans: Vec<Span>,
    large: Vec<LargeArgument>,
}

impl OwnedArgs {
    /// A copy of `args`.
    pub fn from_args(args: &Args<'_>) -> Self {
        let mut owned = Self {
            buf: Vec::with_capacity(args.bytes()),
            spans: Vec::with_capacity(args.len()),
            large: args.large.to_vec(),
        };
        for argument in args.iter_from(0) {
            owned.spans.push(Span { start: owned.buf.len() as u32, len: argument.len() as u32 });
            owned.buf.extend_from_slice(argument);
        }
        owned
    }

    /// The arguments.
    pub fn args(&self) -> Args<'_> {
        Args { buf: &self.buf, spans: &self.spans, large: &self.large }
    }

    /// Bytes of memory that it refers to: two allocations, each with what the allocator notes of it.
    pub fn memory_bytes(&self) -> usize {
        self.buf.len() + self.spans.len() * size_of::<Span>() + 2 * 16
    }
}
