//! GETs one behind the other, as clients with a pipeline send them.
//!
//! A GET that memory answers costs less than what the parser and the checks before a command cost. Here such GETs are known by their
//! bytes, and what was checked for the first holds for those behind it. Whatever is not written as client libraries write it
//! is left to the parser.

use pumice_kv::Coming;

use super::processing::RUN_COMMANDS_MAX;
use super::{Connection, cold};
use crate::args::{Args, Span};
use crate::commands::get_at_once;
use crate::execute::{Tried, admit_at_once, try_admitted};
use crate::keyspace::HeadKey;

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

    /// Its name and key, in the `buf` where it was found.
    fn args<'a>(&'a self, buf: &'a [u8]) -> Args<'a> {
        Args::new(buf, &self.spans, &[])
    }
}

/// A GET that is to be carried out soon.
struct Upcoming {
    get: PlainGet,
    key: HeadKey,
    coming: Coming,
    /// Where the command behind it begins.
    end: usize,
}

impl Connection {
    /// Carries out the GETs that `buf` begins with, none of whose bytes was looked at, up to the first that needs flash, and as long
    /// as the replies should not leave. Answers how many bytes they took.
    pub(super) fn take_gets(&mut self, buf: &[u8]) -> usize {
        let mut taken = 0;
        if !self.cold.is_empty() || self.refused.is_some() || self.ctx.was_tried {
            return taken;
        }
        let Some(first) = PlainGet::at(buf, 0) else { return taken };
        let Some(command) = admit_at_once(&mut self.ctx, &first.args(buf)) else { return taken };
        // The one that is carried out, the next and the one behind that, by turns.
        let first = self.upcoming(buf, 0, first);
        let second = self.get_at(buf, first.end);
        let mut gets = [Some(first), second, None];
        for turn in 0.. {
            let [now, next, behind] = [turn, turn + 1, turn + 2].map(|at| at % gets.len());
            // Of the next one the row comes from memory while this one is answered, of the one behind it what tells where that is.
            if let Some(next) = &gets[next] {
                self.ctx.server.node.prefetch(next.key.place, next.coming, self.get_bytes);
                gets[behind] = self.get_at(buf, next.end);
            }
            let Some(Upcoming { get, key, end, .. }) = &gets[now] else { return taken };
            let args = get.args(buf);
            let replied = self.ctx.reply.len();
            match try_admitted(&mut self.ctx, command, &args, |ctx| get_at_once(ctx, key)) {
                Tried::Done => self.get_bytes = self.ctx.reply.len() - replied,
                Tried::NeedsFlash(hint) => self.cold.push(cold(&self.ctx, &args[1], Some(hint))),
                Tried::Not => return taken,
            }
            self.ctx.commands += 1;
            self.run_commands += 1;
            taken = *end;
            let is_enough =
                self.ctx.reply.len() >= super::FLUSH_BYTES || self.run_commands >= RUN_COMMANDS_MAX;
            if is_enough || !self.cold.is_empty() {
                break;
            }
        }
        taken
    }

    /// The GET at `start` of `buf`.
    #[inline]
    fn get_at(&self, buf: &[u8], start: usize) -> Option<Upcoming> {
        PlainGet::at(buf, start).map(|get| self.upcoming(buf, start, get))
    }

    /// A GET that may run: what tells where its row is begins to come from memory.
    #[inline]
    fn upcoming(&self, buf: &[u8], start: usize, get: PlainGet) -> Upcoming {
        let key = self.ctx.key(&get.args(buf)[1]);
        let coming = self.ctx.server.node.prefetch_index(key.place, key.raw());
        Upcoming { end: start + get.len, get, key, coming }
    }
}
