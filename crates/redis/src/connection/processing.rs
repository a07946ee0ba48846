//! The processing half: takes what came apart into commands, and carries them out.

use std::io;
use std::sync::atomic::Ordering;

use pumice_kv::Hint;

use super::streaming::streamed_key;
use super::{Cold, Connection, FLUSH_BYTES, Flow};
use crate::args::{Args, Span};
use crate::context::Ctx;
use crate::execute::{Tried, execute, refuse, try_execute};
use crate::keyspace::{PARALLEL_READS_MAX, RawKey};
use crate::output::Output;
use crate::resp::parser::{Parsed, Streams};
use crate::resp::skim::Skimmed;
use crate::session::ReplyMode;
use crate::transport::CameTo;

/// Pieces received in a row before other connections of the core get their turn.
const RUN_PIECES_MAX: u32 = 8;
/// And commands: some of them are a few bytes long.
pub(super) const RUN_COMMANDS_MAX: u32 = 512;

/// Of what all replies may take, the part that connections keep buffers of while they wait for commands: taking these anew costs
/// page faults where memory is little.
const RESTING_PART: u64 = 8;
/// Room for so many GETs that need flash is kept.
const COLD_KEPT: usize = 16;
/// A buffer for commands that come in parts is kept up to this size.
const KEPT_BYTES: usize = 1 << 10;

struct StreamRules<'a>(&'a Ctx);

impl Streams for StreamRules<'_> {
    fn can_stream(&self, buf: &[u8], arguments: &[Span], _len: u64) -> bool {
        let session = &self.0.session;
        // A transaction may select another database before it stores the value under its key: such values
        // wait in memory.
        if session.multi.is_some() || !self.0.is_authenticated() || !self.0.server.is_loaded() {
            return false;
        }
        let arguments = Args::new(buf, arguments, &[]);
        streamed_key(&arguments).is_some()
    }

    fn is_unauthenticated(&self) -> bool {
        !self.0.is_authenticated()
    }
}

impl Connection {
    /// Carries out what comes, until the client leaves, or is to be closed.
    pub(super) async fn run(&mut self) {
        let mut run_pieces = 0;
        loop {
            if self.output().is_full() {
                self.output().drain().await;
            }
            let flow = match self.receive().await {
                Ok(CameTo::Piece(piece)) if !piece.is_empty() => {
                    self.ctx.server.stats.input_bytes.fetch_add(piece.len() as u64, Ordering::Relaxed);
                    self.ctx.session.client.set_processing(true);
                    self.feed(&piece).await
                }
                Ok(CameTo::Memory(bytes)) if bytes > 0 => {
                    self.ctx.now_ms = pumice_reactor::wall_ms();
                    Flow::Go
                }
                Ok(_) => return,
                Err(error) => {
                    tracing::debug!(client = self.ctx.session.client.id, %error, "receiving failed");
                    return;
                }
            };
            let flow = if matches!(flow, Flow::Go) { self.settle().await } else { flow };
            self.ctx.flush_replies();
            self.rest();
            let client = &self.ctx.session.client;
            client.set_processing(false);
            client.has_moved(self.ctx.now_ms);
            if matches!(flow, Flow::Stop) || self.output().is_closed() {
                return;
            }
            run_pieces += 1;
            if run_pieces >= RUN_PIECES_MAX {
                run_pieces = 0;
                self.run_commands = 0;
                pumice_reactor::yield_now().await;
            }
        }
    }

    /// Lets go of memory that the commands so far took, and the next may not.
    fn rest(&mut self) {
        let server = &self.ctx.server;
        self.ctx.reply.rest(|| {
            let all = server.options.output_bytes_max / RESTING_PART;
            usize::try_from(all).unwrap_or(usize::MAX) / server.clients.len().max(1)
        });
        if self.cold.capacity() > COLD_KEPT {
            self.cold = Vec::new();
        }
    }

    /// What came: of a value that is being streamed, in the memory that it is written from.
    async fn receive(&mut self) -> io::Result<CameTo> {
        let Some((buf, range)) = self.lend() else {
            return self.receiver.recv().await.map(CameTo::Piece);
        };
        // It is held while nothing comes.
        self.note_input(self.pending.len() + buf.capacity());
        let (came, buf) = self.receiver.recv_into(buf, range).await;
        let filled = match &came {
            Ok(CameTo::Memory(bytes)) => *bytes,
            _ => 0,
        };
        self.ctx.server.stats.input_bytes.fetch_add(filled as u64, Ordering::Relaxed);
        self.ctx.session.client.set_processing(true);
        self.take_back_streamed(buf, filled).await;
        came
    }

    fn output(&self) -> &Output {
        self.ctx.output.as_ref().expect("a connection has an output")
    }

    /// Carries out what `piece` completes; keeps what it begins.
    async fn feed(&mut self, piece: &[u8]) -> Flow {
        let mut rest = piece;
        self.ctx.begin_run();
        loop {
            if let Some(skim) = &mut self.skim {
                match skim.take(rest) {
                    Skimmed::More => return Flow::Go,
                    Skimmed::Done(taken) => rest = &rest[taken..],
                    Skimmed::Broken => {
                        self.answer_refused().await;
                        return Flow::Stop;
                    }
                }
                self.skim = None;
                if matches!(self.answer_refused().await, Flow::Stop) {
                    return Flow::Stop;
                }
                self.ctx.begin_run();
                continue;
            }
            if self.streaming.is_some() {
                if rest.is_empty() {
                    return Flow::Go;
                }
                // Boxed: most connections never get here, and each would have room for it.
                rest = Box::pin(self.stream(rest)).await;
                self.ctx.begin_run();
                continue;
            }
            let from_pending = !self.pending.is_empty();
            if from_pending && self.need > 0 {
                if rest.is_empty() {
                    return Flow::Go;
                }
                let take = self.wanted(rest);
                self.pending.extend_from_slice(&rest[..take]);
                self.need -= take.min(self.need);
                rest = &rest[take..];
                if let Some(flow) = self.check_input().await {
                    return flow;
                }
                if self.need > 0 || self.skim.is_some() {
                    continue;
                }
            } else if !from_pending && rest.is_empty() {
                return Flow::Go;
            }
            if !from_pending {
                let mut taken = self.take_gets(rest);
                if taken == 0 {
                    taken = self.take_pipelined(rest, piece.len());
                }
                if taken > 0 {
                    rest = &rest[taken..];
                    if matches!(self.after_command().await, Flow::Stop) {
                        return Flow::Stop;
                    }
                    continue;
                }
            }
            let buf = if from_pending { &self.pending[..] } else { rest };
            match self.parser.parse(buf, &StreamRules(&self.ctx)) {
                Parsed::Incomplete(need) => {
                    self.need = need;
                    let given = (!from_pending).then_some(rest);
                    // What will never fit is not begun with. Of lines only the next byte is known to lack.
                    let too_long = self.too_long(buf.len() + need).filter(|_| need > 1);
                    if let Some(failure) = too_long
                        && self.skim_from(given, failure)
                    {
                        rest = if from_pending { rest } else { &[] };
                        continue;
                    }
                    if !from_pending {
                        self.pending.reserve(rest.len() + need.min(1 << 20));
                        self.pending.extend_from_slice(rest);
                        rest = &[];
                        if let Some(flow) = self.check_input().await {
                            return flow;
                        }
                    }
                }
                Parsed::Command(taken) => {
                    let at_hand = if from_pending { taken + rest.len() } else { rest.len() };
                    // Who sent so much at once is likely to have sent as much again.
                    self.ctx.turn.wants((at_hand + piece.len()) as u64);
                    let flow = if from_pending {
                        let pending = std::mem::take(&mut self.pending);
                        self.count_command(&pending[..taken]);
                        let flow = self.dispatch(&pending[..taken]).await;
                        self.keep_buffer(pending, taken);
                        flow
                    } else {
                        self.count_command(&rest[..taken]);
                        let flow = self.dispatch(&rest[..taken]).await;
                        rest = &rest[taken..];
                        if self.counted_bytes > 0 {
                            self.count_input(0);
                        }
                        flow
                    };
                    if matches!(flow, Flow::Stop) {
                        return Flow::Stop;
                    }
                }
                Parsed::Nothing(taken) => {
                    self.parser.reset();
                    // What is empty is the next command, too, for CLIENT REPLY SKIP (networking.c, resetClient).
                    if self.ctx.session.reply_mode == ReplyMode::SkipNext {
                        self.ctx.session.reply_mode = ReplyMode::On;
                    }
                    if from_pending {
                        let pending = std::mem::take(&mut self.pending);
                        self.keep_buffer(pending, taken);
                    } else {
                        rest = &rest[taken..];
                    }
                }
                Parsed::Large { at, len } => {
                    // Bytes beyond the header are never taken ahead: `wanted` ends with it.
                    if !from_pending {
                        self.pending.extend_from_slice(&rest[..at]);
                        rest = &rest[at..];
                    }
                    self.begin_streaming(len);
                }
                Parsed::Broken(error) => {
                    if matches!(self.settle().await, Flow::Go) {
                        self.ctx.server.stats.note_error(&error);
                        self.ctx.reply.error(&error);
                    }
                    return Flow::Stop;
                }
            }
        }
    }

    /// How much of `rest` to add to the command under way: what it is known to lack; of a line, all of it. Never more: what
    /// follows may be a value's beginning, which is not kept here.
    fn wanted(&self, rest: &[u8]) -> usize {
        if self.need > 1 {
            return self.need.min(rest.len());
        }
        // Whatever byte follows a carriage return ends the line with it.
        if self.pending.last() == Some(&b'\r') {
            return 1.min(rest.len());
        }
        rest.iter().position(|b| matches!(b, b'\r' | b'\n')).map_or(rest.len(), |at| at + 1)
    }

    /// Empties the buffer of a carried out command, for the next; one that is not small is given back. What idle connections keep
    /// nobody counts, and there are thousands.
    fn keep_buffer(&mut self, mut buf: Vec<u8>, taken: usize) {
        buf.drain(..taken);
        if buf.capacity() > KEPT_BYTES {
            buf = buf[..].to_vec();
        }
        self.need = 0;
        self.pending = buf;
        self.count_input(self.pending.len());
    }

    /// Carries out the command at the beginning of `buf`, which the parser has just found.
    async fn dispatch(&mut self, buf: &[u8]) -> Flow {
        self.ctx.commands += 1;
        self.run_commands += 1;
        let args = Args::new(self.parser.buffer(buf), self.parser.spans(), &self.large);
        let get = (args.len() == 2 && args.is(0, "get")).then(|| &args[1]);
        if let Some(key) = get
            && !self.cold.is_empty()
        {
            self.cold.push(cold(&self.ctx, key, None));
        } else {
            if !self.cold.is_empty() && matches!(settle(&mut self.ctx, &mut self.cold).await, Flow::Stop) {
                return Flow::Stop;
            }
            if let Some(failure) = self.refused.take() {
                refuse(&mut self.ctx, &failure);
            } else {
                let tried = if self.ctx.was_tried { Tried::Not } else { try_execute(&mut self.ctx, &args) };
                match tried {
                    Tried::Done => {}
                    Tried::NeedsFlash(hint) if get.is_some() => {
                        self.cold.push(cold(&self.ctx, &args[1], Some(hint)));
                    }
                    Tried::NeedsFlash(_) | Tried::Not => {
                        // It may have selected another database: who is told that its outcome is not known cannot know that.
                        self.ctx.commands += u32::from(args.is(0, "exec"));
                        execute(&mut self.ctx, args).await;
                        self.ctx.begin_run();
                    }
                }
            }
        }
        self.parser.reset();
        self.large.clear();
        self.after_command().await
    }

    /// Lets go of what gathers, and of the core, where that is enough.
    async fn after_command(&mut self) -> Flow {
        if self.cold.len() >= PARALLEL_READS_MAX && matches!(self.settle().await, Flow::Stop) {
            return Flow::Stop;
        }
        if self.ctx.session.close_after_reply {
            return Flow::Stop;
        }
        let has_run = self.run_commands >= RUN_COMMANDS_MAX;
        if (has_run || self.ctx.reply.len() >= FLUSH_BYTES) && self.cold.is_empty() {
            self.ctx.flush_replies();
            let is_full = self.output().is_full();
            if is_full {
                self.output().drain().await;
            }
            if has_run {
                self.run_commands = 0;
                pumice_reactor::yield_now().await;
            }
            if has_run || is_full {
                self.ctx.begin_run();
            }
            if self.output().is_closed() {
                return Flow::Stop;
            }
        }
        Flow::Go
    }

    /// Answers the GETs that wait, if any do.
    pub(super) async fn settle(&mut self) -> Flow {
        settle(&mut self.ctx, &mut self.cold).await
    }
}

pub(super) fn cold(ctx: &Ctx, key: &[u8], hint: Option<Hint>) -> Cold {
    let key = ctx.key(key);
    Cold { place: key.place, key: RawKey::from_slice(key.raw()), hint }
}

/// Reads the values of a run of GETs, if there are any, side by side and answers them in order. Where one ends in the midst of its
/// value, nothing that came behind it may be carried out or answered: the client would take that for the rest of the value.
async fn settle(ctx: &mut Ctx, cold: &mut Vec<Cold>) -> Flow {
    if cold.is_empty() {
        return Flow::Go;
    }
    let started = pumice_reactor::now();
    ctx.now_ms = pumice_reactor::wall_ms();
    let keys = cold.iter_mut().map(|get| (get.place, &get.key[..], get.hint.take()));
    let results = ctx.entries_each(keys).await;
    let nanos = pumice_reactor::now().0.saturating_sub(started.0);
    let results = cold.drain(..).zip(results).map(|(get, result)| (get.place, result)).collect();
    crate::commands::answer_cold_gets(ctx, results, nanos).await;
    ctx.begin_run();
    if ctx.session.close_after_reply { Flow::Stop } else { Flow::Go }
}
