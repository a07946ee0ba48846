//! GETs one behind the other, as clients with a pipeline send them.
//!
//! A GET that memory answers costs less than what the parser and the checks before a command cost. Here such GETs are known by their
//! bytes, and what was checked for the first holds for those behind it. Whatever is not written as client libraries write it
//! is left to the parser.

use super::processing::RUN_COMMANDS_MAX;
use super::{Connection, cold};
use crate::args::{Args, Span};
use crate::execute::{Tried, admit_at_once, try_admitted};

/// A GET as client libraries write it: its name, its key, and bytes of the whole.
struct PlainGet {
    spans: [Span; 2],
    len: usize,
}

const HEAD: &[u8; 8] = b"*2\r\n$3\r\n";
/// Where the key's length begins.
const KEY_LEN_AT: usize = HEAD.len() + b"get\r\n$".len();
const KEY_DIGITS_MAX: usize = 4;

impl PlainGet {
    /// The one at `start` of `buf`.
    fn at(buf: &[u8], start: usize) -> Option<Self> {
        let buf = &buf[start..];
        let head: &[u8; KEY_LEN_AT] = buf.first_chunk()?;
        let [name @ .., b'\r', b'\n', b'$'] = &head[HEAD.len()..] else { return None };
        if !head.starts_with(HEAD) || !name.eq_ignore_ascii_case(b"get") {
            return None;
        }
        let rest = &buf[KEY_LEN_AT..];
        // An empty key, or a zero that the parser does not take.
        if rest.first() == Some(&b'0') {
            return None;
        }
        let digits = rest.iter().take(KEY_DIGITS_MAX).take_while(|byte| byte.is_ascii_digit()).count();
        if digits == 0 {
            return None;
        }
        let key_len = rest[..digits].iter().fold(0, |len, digit| len * 10 + usize::from(digit - b'0'));
        let behind = rest[digits..].strip_prefix(b"\r\n")?;
        if behind.get(key_len..key_len + 2)? != b"\r\n" {
            return None;
        }
        let key_at = KEY_LEN_AT + digits + 2;
        let span = |at: usize, len: usize| Span { start: (start + at) as u32, len: len as u32 };
        Some(Self { spans: [span(HEAD.len(), name.len()), span(key_at, key_len)], len: key_at + key_len + 2 })
    }
}

impl Connection {
    /// Carries out the GETs that `buf` begins with, none of whose bytes was looked at, up to the first that needs flash, and as long
    /// as the replies should not leave. Answers how many bytes they took.
    pub(super) fn take_gets(&mut self, buf: &[u8]) -> usize {
        let mut taken = 0;
        if !self.cold.is_empty() || self.refused.is_some() {
            return taken;
        }
        let Some(mut get) = PlainGet::at(buf, taken) else { return taken };
        let Some(command) = admit_at_once(&mut self.ctx, &Args::new(buf, &get.spans, &[])) else {
            return taken;
        };
        loop {
            let next = PlainGet::at(buf, taken + get.len);
            // Its row comes from memory while this one is answered.
            if let Some(next) = &next {
                let key = self.ctx.key(&Args::new(buf, &next.spans, &[])[1]);
                self.ctx.server.node.prefetch(key.place, key.raw(), self.get_bytes);
            }
            let args = Args::new(buf, &get.spans, &[]);
            let replied = self.ctx.reply.len();
            match try_admitted(&mut self.ctx, command, &args) {
                Tried::Done => self.get_bytes = self.ctx.reply.len() - replied,
                Tried::NeedsFlash(hint) => self.cold.push(cold(&self.ctx, &args[1], Some(hint))),
                Tried::Not => return taken,
            }
            self.ctx.commands += 1;
            self.run_commands += 1;
            taken += get.len;
            let is_enough =
                self.ctx.reply.len() >= super::FLUSH_BYTES || self.run_commands >= RUN_COMMANDS_MAX;
            if is_enough || !self.cold.is_empty() {
                return taken;
            }
            match next {
                Some(next) => get = next,
                None => return taken,
            }
        }
    }
}
