//! A long value on its way to flash while it arrives.
//!
//! 1. The parser announces it; a [`LargeWriter`] writes its pieces, and the command gets it as a [`LargeArgument`].
//! 2. Where much of it is still to come, it is received into the memory from which it is written.
//! 3. A value that is refused is received to its end and dropped, so that the client hears why.

use std::ops::Range;
use std::sync::Arc;

use pumice_kv::LargeWriter;
use pumice_node::Place;
use pumice_reactor::IoBuf;

use super::Connection;
use crate::args::{Args, LargeArgument};
use crate::keyspace::{RawKey, large_refused};

/// Bytes of a value still to come that are received into the memory from which they are written: of less, copying costs less than
/// turning from shared buffers to that memory and back.
const LENT_FROM_BYTES: u64 = 256 << 10;

/// A value on its way to flash while it arrives.
pub(super) struct Streaming {
    writer: Option<LargeWriter>,
    /// Bytes of the value still to come.
    left: u64,
    /// Bytes of the line end still to come.
    line_end: usize,
    index: usize,
    key: RawKey,
    key_place: Place,
}

/// The key under which the argument after `arguments` will be stored, if it is a value that can be streamed.
pub(super) fn streamed_key<'a>(arguments: &Args<'a>) -> Option<&'a [u8]> {
    let (name, next) = (arguments.get(0)?, arguments.len());
    let is = |word: &str| name.eq_ignore_ascii_case(word.as_bytes());
    let after_key = next == 2 && (is("set") || is("setnx") || is("getset") || is("append"));
    let after_option = next == 3 && (is("setex") || is("psetex") || is("setrange"));
    let at = if after_key || after_option {
        1
    } else if next >= 2 && next.is_multiple_of(2) && (is("mset") || is("msetnx")) {
        next - 1
    } else {
        return None;
    };
    arguments.get(at).filter(|key| key.len() <= crate::resp::parser::KEY_BYTES_MAX)
}

impl Connection {
    /// Memory for what comes, if that is much of a value, and all clients' input has not taken its share of memory.
    pub(super) fn lend(&mut self) -> Option<(IoBuf, Range<usize>)> {
        // First what costs nothing: nearly all that comes is short.
        if self.streaming.is_none() || !self.receiver.fills_memory() {
            return None;
        }
        let (_, total) = self.note_input(self.counted_bytes);
        let is_short = total > self.ctx.server.options.input_bytes_max;
        match self.streaming.as_deref_mut() {
            Some(Streaming { writer: Some(writer), left, .. })
                if *left >= LENT_FROM_BYTES && !is_short && !writer.is_frugal() =>
            {
                Some(writer.lend(usize::try_from(*left).unwrap_or(usize::MAX)))
            }
            _ => None,
        }
    }

    /// The value of `len` bytes that the parser announced comes next.
    pub(super) fn begin_streaming(&mut self, len: u64) {
        let arguments = Args::new(&self.pending, self.parser.spans(), &[]);
        let index = arguments.len();
        let key = streamed_key(&arguments).map(|key| self.ctx.key(key));
        let key = key.expect("the parser asked whether it can be streamed");
        let writer = self.ctx.server.node.large_writer(key.place, key.raw());
        self.streaming = Some(Box::new(Streaming {
            writer: Some(writer),
            left: len,
            line_end: 2,
            index,
            key: RawKey::from_slice(key.raw()),
            key_place: key.place,
        }));
    }

    /// Writes bytes of the value being streamed.
    async fn push_streamed(&mut self, bytes: &[u8]) -> Result<(), pumice_kv::WriteError> {
        let Some(Streaming { writer: Some(writer), .. }) = self.streaming.as_deref_mut() else {
            return Ok(());
        };
        writer.push(bytes).await?;
        self.save_memory().await
    }

    /// The value being streamed has so many bytes more in the memory that its writer had lent.
    pub(super) async fn take_back_streamed(&mut self, buf: IoBuf, filled: usize) {
        let Some(Streaming { writer: Some(writer), left, .. }) = self.streaming.as_deref_mut() else {
            return;
        };
        *left -= filled as u64;
        let taken = match writer.take_back(buf, filled).await {
            Ok(()) => self.save_memory().await,
            refused => refused,
        };
        self.drop_refused(taken);
    }

    /// The rest of a value that is refused is received and dropped, so that the client hears why.
    fn drop_refused(&mut self, pushed: Result<(), pumice_kv::WriteError>) {
        if let Err(error) = pushed
            && let Some(streaming) = &mut self.streaming
        {
            self.refused = Some(large_refused(&self.ctx.server.node, streaming.key_place, &error));
            streaming.writer = None;
        }
    }

    /// Where all clients' input takes more memory than it should, values are written in short pieces; where it takes twice as
    /// much, nothing of them waits for more to come.
    async fn save_memory(&mut self) -> Result<(), pumice_kv::WriteError> {
        let Some(Streaming { writer: Some(writer), .. }) = self.streaming.as_deref_mut() else {
            return Ok(());
        };
        let held = self.pending.len() + writer.memory_bytes();
        let (_, total) = self.note_input(held);
        let max = self.ctx.server.options.input_bytes_max;
        let Some(Streaming { writer: Some(writer), .. }) = self.streaming.as_deref_mut() else {
            return Ok(());
        };
        writer.be_frugal(total > max);
        if total > 2 * max {
            writer.let_go().await?;
            self.note_input(self.pending.len());
        }
        Ok(())
    }

    /// Takes bytes of the value being streamed; gives what follows it.
    pub(super) async fn stream<'a>(&mut self, rest: &'a [u8]) -> &'a [u8] {
        let Some(streaming) = &mut self.streaming else { return rest };
        let take = usize::try_from(streaming.left).unwrap_or(usize::MAX).min(rest.len());
        if take > 0 {
            streaming.left -= take as u64;
            let pushed = self.push_streamed(&rest[..take]).await;
            self.drop_refused(pushed);
            return &rest[take..];
        }
        let skip = streaming.line_end.min(rest.len());
        streaming.line_end -= skip;
        if streaming.line_end > 0 {
            return &rest[skip..];
        }
        if let Some(done) = self.streaming.take() {
            self.note_input(self.pending.len());
            if let Some(writer) = done.writer {
                match writer.finish().await {
                    Ok(value) => {
                        let (value, key) = (Arc::new(value), done.key);
                        self.large.push(LargeArgument { index: done.index, value, key });
                    }
                    Err(error) => {
                        self.refused = Some(large_refused(&self.ctx.server.node, done.key_place, &error));
                    }
                }
            }
            self.parser.large_taken();
            self.need = 0;
        }
        &rest[skip..]
    }
}
