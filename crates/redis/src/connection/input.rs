//! What a connection holds of commands that are not whole yet: counted, bounded, and let go of where it is too much.

use std::sync::atomic::Ordering;

use super::{Connection, Flow};
use crate::args::Args;
use crate::command::{Command, Table};
use crate::errors::{self, Failure};
use crate::execute::refuse;
use crate::resp::skim::Skimmed;

/// What an argument takes beside its bytes while its command runs, when that writes: its place, what is to be written under it, and
/// the row that comes of it (measured with SADD, RPUSH and SREM of 300,000 members: 230 to 320).
const WRITTEN_ARGUMENT_BYTES: usize = 256;
/// The same of a command that reads, or removes keys: its place, and where it is looked up.
const READ_ARGUMENT_BYTES: usize = 32;
/// What these write leaves in pieces.
const IN_PIECES: [&str; 2] = ["del", "unlink"];
/// Commands of so many arguments are counted even where they came in one piece.
const MANY_ARGUMENTS: usize = 1024;

/// Whether what waits may wait.
pub(super) enum Room {
    Enough,
    /// Not in what all clients share: the command is refused, and its client goes on.
    Less(Failure),
    /// Not in what this client may send ahead: it is closed, as Redis does.
    None,
}

impl Connection {
    /// Notes how much input waits; answers by how much that grew, and what all clients' comes to, transactions among it.
    pub(super) fn note_input(&mut self, bytes: usize) -> (usize, u64) {
        let stats = &self.ctx.server.stats;
        let (grown, shrunk) =
            (bytes.saturating_sub(self.counted_bytes), self.counted_bytes.saturating_sub(bytes));
        if grown > 0 || shrunk > 0 {
            self.counted_bytes = bytes;
            self.ctx.session.client.input_bytes.store(bytes as u64, Ordering::Relaxed);
            stats.input_waiting_bytes.fetch_sub(shrunk as u64, Ordering::Relaxed);
        }
        let total = stats.input_waiting_bytes.fetch_add(grown as u64, Ordering::Relaxed) + grown as u64;
        (grown, total + stats.transaction_bytes.load(Ordering::Relaxed))
    }

    /// Notes how much input waits, and whether it may.
    pub(super) fn count_input(&mut self, bytes: usize) -> Room {
        let arguments = if bytes == 0 { 0 } else { self.arguments_bytes(&self.pending) };
        self.count(bytes, arguments)
    }

    /// Notes what the command in `buf` takes while it runs, whose arguments the parser has found: it is refused where that is too much.
    pub(super) fn count_command(&mut self, buf: &[u8]) {
        if self.parser.spans().len() < MANY_ARGUMENTS {
            return;
        }
        if let Room::Less(failure) = self.count(buf.len(), self.arguments_bytes(buf)) {
            self.refused.get_or_insert(failure);
        }
    }

    fn count(&mut self, bytes: usize, arguments: usize) -> Room {
        let held = if bytes == 0 { 0 } else { bytes + self.parser.memory_bytes() + arguments };
        let own_max = self.ctx.server.settings.query_buffer_bytes_max.load(Ordering::Relaxed);
        let max = self.ctx.server.options.input_bytes_max;
        let (grown, total) = self.note_input(held);
        if grown > 0 && bytes as u64 > own_max {
            return Room::None;
        }
        if grown == 0 || total <= max {
            return Room::Enough;
        }
        Room::Less(self.too_long(held).unwrap_or_else(|| {
            Failure::new(format!(
                "OOM commands of {total} bytes wait in memory, all clients together, where {max} is the most (--memory)"
            ))
        }))
    }

    /// What the arguments of `buf` so far take while the command runs, beside their bytes.
    fn arguments_bytes(&self, buf: &[u8]) -> usize {
        let args = Args::new(self.parser.buffer(buf), self.parser.spans(), &[]);
        let Some(name) = args.get(0) else { return 0 };
        let is_one_batch = |command: &Command| command.is_write && !IN_PIECES.contains(&command.facts.name);
        let are_written = Table::get().find(name).is_some_and(is_one_batch);
        args.len() * if are_written { WRITTEN_ARGUMENT_BYTES } else { READ_ARGUMENT_BYTES }
    }

    /// Why a command of `bytes` can never be taken, if it cannot.
    pub(super) fn too_long(&self, bytes: usize) -> Option<Failure> {
        // Arguments are noted by where they begin, in 32 bits.
        let max = self.ctx.server.options.input_bytes_max.min(u32::MAX.into());
        (bytes as u64 > max).then(|| {
            let counted = match self.parser.spans().len() {
                few if few < MANY_ARGUMENTS => String::new(),
                many => format!(", with what its {many} arguments take,"),
            };
            Failure::new(format!(
                "ERR a command of {bytes} bytes{counted} or more exceeds maximum allowed size: {max} bytes (--memory)"
            ))
        })
    }

    /// Lets go of the command under way, and goes over the rest of it; then `failure` is its answer. `given`: where its
    /// beginning is, if it is not kept yet. `false`: it cannot be told where the command ends.
    pub(super) fn skim_from(&mut self, given: Option<&[u8]>, failure: Failure) -> bool {
        let Some((mut skim, at)) = self.parser.skim() else { return false };
        let seen = skim.take(&given.unwrap_or(&self.pending)[at..]);
        if seen == Skimmed::Broken {
            return false;
        }
        self.skim = Some(skim);
        self.refused = Some(failure);
        self.parser.reset();
        self.large.clear();
        (self.pending, self.need) = (Vec::new(), 0);
        self.count_input(0);
        true
    }

    /// Counts what is kept of the command under way. If it is too much, the command is let go, or the client is.
    pub(super) async fn check_input(&mut self) -> Option<Flow> {
        match self.count_input(self.pending.len()) {
            Room::Enough => return None,
            Room::Less(failure) => {
                if self.skim_from(None, failure) {
                    return None;
                }
            }
            Room::None => {}
        }
        let stats = &self.ctx.server.stats;
        stats.input_limit_closes.fetch_add(1, Ordering::Relaxed);
        let (client, bytes) = (self.ctx.session.client.id, self.counted_bytes);
        tracing::warn!(client, bytes, "closed: too much input");
        if matches!(self.settle().await, Flow::Go) {
            self.ctx
                .reply
                .error("ERR Protocol error: what this client, or all clients, sent ahead exceeds the limit");
        }
        Some(Flow::Stop)
    }

    /// Answers a command that was not kept, or whose value could not be.
    pub(super) async fn answer_refused(&mut self) -> Flow {
        if matches!(self.settle().await, Flow::Stop) {
            return Flow::Stop;
        }
        self.ctx.commands += 1;
        let failure = self.refused.take().unwrap_or_else(|| errors::SYNTAX.into());
        refuse(&mut self.ctx, &failure);
        Flow::Go
    }
}
