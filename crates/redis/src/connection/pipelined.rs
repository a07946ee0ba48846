//! Commands one behind the other, as clients with a pipeline send them.
//!
//! What a command meets first is the row of its key, which is one place in memory, found through an index, which is another: where there
//! are many keys, it waits for both. While one command is carried out, the row of the next and the place in the index of the
//! one behind that come from memory. For GETs alone `gets.rs` does the same for less.
//!
//! Only what memory answers is carried out here; whatever else comes, or is not written as client libraries write it, is left to the
//! parser.

use pumice_kv::Coming;
use pumice_node::Place;

use super::processing::RUN_COMMANDS_MAX;
use super::{Connection, cold};
use crate::args::{Args, Span};
use crate::execute::{Tried, admit_at_once, try_execute};

/// Commands of more arguments are left to the parser.
const ARGUMENTS_MAX: usize = 9;
/// And so are longer ones: none of these is written to flash in pieces.
const LEN_DIGITS_MAX: usize = 5;

/// A command as client libraries write it, with a key perhaps.
struct PlainCommand {
    spans: [Span; ARGUMENTS_MAX],
    arguments: usize,
    /// Where the command behind it begins.
    end: usize,
}

impl PlainCommand {
    /// The one at `start` of `buf`, if it is there as a whole.
    fn at(buf: &[u8], start: usize) -> Option<Self> {
        let [b'*', digit @ b'2'..=b'9', b'\r', b'\n', ..] = buf.get(start..)? else { return None };
        let arguments = usize::from(digit - b'0');
        let mut spans = [Span { start: 0, len: 0 }; ARGUMENTS_MAX];
        let mut at = start + 4;
        for span in &mut spans[..arguments] {
            let (len, header) = bulk_header(&buf[at..])?;
            at += header;
            *span = Span { start: u32::try_from(at).ok()?, len: len as u32 };
            at += len;
            if buf.get(at..at + 2)? != b"\r\n" {
                return None;
            }
            at += 2;
        }
        Some(Self { spans, arguments, end: at })
    }

    /// Its arguments, in the `buf` where it was found.
    fn args<'a>(&'a self, buf: &'a [u8]) -> Args<'a> {
        Args::new(buf, &self.spans[..self.arguments], &[])
    }
}

/// The length that a bulk string's first line tells, and that line's own with its end.
#[inline]
fn bulk_header(buf: &[u8]) -> Option<(usize, usize)> {
    let digits = buf.strip_prefix(b"$")?;
    let mut len = 0;
    for (at, byte) in digits.iter().enumerate().take(LEN_DIGITS_MAX + 1) {
        match byte {
            b'0'..=b'9' => len = len * 10 + usize::from(byte - b'0'),
            // Nor is a zero before other digits taken by the parser.
            b'\r' if at > 0 && (at == 1 || digits[0] != b'0') && digits.get(at + 1) == Some(&b'\n') => {
                return (at <= LEN_DIGITS_MAX).then_some((len, at + 3));
            }
            _ => return None,
        }
    }
    None
}

/// A command that is to be carried out soon.
struct Upcoming {
    command: PlainCommand,
    place: Place,
    coming: Coming,
}

impl Connection {
    /// Carries out the commands that `buf` begins with, none of whose bytes was looked at, up to the first that memory alone cannot answer,
    /// and as long as the replies should not leave. Answers how many bytes they took. `piece`: bytes that were received at once.
    pub(super) fn take_pipelined(&mut self, buf: &[u8], piece: usize) -> usize {
        let mut taken = 0;
        if !self.cold.is_empty() || self.refused.is_some() || self.counted_bytes > 0 || self.ctx.was_tried {
            return taken;
        }
        let Some(first) = PlainCommand::at(buf, 0) else { return taken };
        let args = first.args(buf);
        // GETs were tried before.
        if args.is(0, "get") || admit_at_once(&mut self.ctx, &args).is_none() {
            return taken;
        }
        // The one that is carried out, the next and the one behind that, by turns.
        let second = self.command_at(buf, first.end);
        let mut commands = [Some(self.upcoming_command(buf, first)), second, None];
        for turn in 0.. {
            let [now, next, behind] = [turn, turn + 1, turn + 2].map(|at| at % commands.len());
            if let Some(next) = &commands[next] {
                self.ctx.server.node.prefetch(next.place, next.coming, 0);
                commands[behind] = self.command_at(buf, next.command.end);
            }
            let Some(Upcoming { command, .. }) = commands[now].take() else { break };
            let args = command.args(buf);
            self.ctx.turn.wants((buf.len() - taken + piece) as u64);
            match try_execute(&mut self.ctx, &args) {
                Tried::Done => {}
                Tried::NeedsFlash(hint) if args.is(0, "get") => {
                    self.cold.push(cold(&self.ctx, &args[1], Some(hint)));
                }
                Tried::NeedsFlash(_) | Tried::Not => break,
            }
            self.ctx.commands += 1;
            self.run_commands += 1;
            taken = command.end;
            let is_enough = self.ctx.reply.len() >= super::FLUSH_BYTES
                || self.run_commands >= RUN_COMMANDS_MAX
                || self.ctx.session.close_after_reply;
            if is_enough || !self.cold.is_empty() {
                break;
            }
        }
        taken
    }

    /// The command at `start` of `buf`.
    #[inline]
    fn command_at(&self, buf: &[u8], start: usize) -> Option<Upcoming> {
        PlainCommand::at(buf, start).map(|command| self.upcoming_command(buf, command))
    }

    /// A command that may run: what tells where its key's row is begins to come from memory. Of one without a key what comes is of no use.
    #[inline]
    fn upcoming_command(&self, buf: &[u8], command: PlainCommand) -> Upcoming {
        let key = self.ctx.key(&command.args(buf)[1]);
        let coming = self.ctx.server.node.prefetch_index(key.place, key.raw());
        Upcoming { command, place: key.place, coming }
    }
}
