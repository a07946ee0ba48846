//! What is collected in memory before any of it leaves:
//!
//! 1. A running EXEC's replies, and its writes, which are one batch.
//! 2. The reply of a command that answers with what it removes (LPOP, SPOP, ZPOPMIN and relatives), and its removals, one batch,
//!    too: were some removed and answered before others, a client that is gone, or a crash, would leave the command done in part.
//! 3. The reply of KEYS, which is one however long it is.
//! 4. What ZUNION and its relatives sort, which do with less where they have to (`commands/scored.rs`).
//!
//! Where all clients together would hold more than replies may take, the EXEC is refused as a whole (were it the one command alone,
//! those behind it would run without it); of the other commands the one that would exceed it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::context::Ctx;
use crate::errors::{CommandResult, Failure};
use crate::keyspace::Change;
use crate::server::Server;

/// Bytes between two looks at what all hold.
const STEP_BYTES: u64 = 64 << 10;
/// The most that one may hold, however much memory there is: a batch has less than 4 GiB.
const EXEC_BYTES_MAX: u64 = 2 << 30;

/// Let go of when dropped.
pub(crate) struct Collected {
    server: Arc<Server>,
    /// Who collects.
    by: &'static str,
    bytes: u64,
    refused: Option<Failure>,
}

impl Collected {
    /// None yet.
    pub fn new(server: Arc<Server>, by: &'static str) -> Self {
        Self { server, by, bytes: 0, refused: None }
    }

    /// Holds `bytes` by now. Once that was too much it is for good.
    pub fn hold(&mut self, bytes: u64) -> CommandResult {
        if let Some(failure) = &self.refused {
            return Err(failure.clone());
        }
        let (all, max) = self.grow(bytes);
        if all <= max {
            return Ok(());
        }
        let failure = Failure::new(format!(
            "OOM {} has collected {bytes} bytes of replies and writes, {all} with those of other clients, where {max} (--memory) \
             is the most; nothing of it was done",
            self.by
        ));
        self.refused = Some(failure.clone());
        Err(failure)
    }

    /// Holds `bytes` by now, where that is not too much; otherwise as many as before.
    pub fn can_hold(&mut self, bytes: u64) -> bool {
        let before = self.bytes;
        let (all, max) = self.grow(bytes);
        if all > max {
            self.server.stats.exec_bytes.fetch_sub(self.bytes - before, Ordering::Relaxed);
            self.bytes = before;
        }
        all <= max
    }

    /// What all hold now, and the most that they may; nothing of all where `bytes` is hardly more than before.
    fn grow(&mut self, bytes: u64) -> (u64, u64) {
        let max = self.server.options.output_bytes_max.min(EXEC_BYTES_MAX);
        if bytes <= self.bytes + STEP_BYTES {
            return (0, max);
        }
        let grown = bytes - self.bytes;
        let all = self.server.stats.exec_bytes.fetch_add(grown, Ordering::Relaxed) + grown;
        self.bytes = bytes;
        (all, max)
    }
}

impl Drop for Collected {
    fn drop(&mut self) {
        self.server.stats.exec_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Of what all replies may take, the part that one command collects where it can do with less: a page, values that may be drawn again.
const PAGE_PART: u64 = 32;
const PAGE_BYTES_MIN: u64 = 256 << 10;
const PAGE_BYTES_MAX: u64 = 4 << 20;

impl Ctx {
    /// Bytes that the running command may collect where it can do with less, whatever its client asks for.
    pub(crate) fn page_bytes(&self) -> usize {
        (self.server.options.output_bytes_max / PAGE_PART).clamp(PAGE_BYTES_MIN, PAGE_BYTES_MAX) as usize
    }

    /// In EXEC: notes what it holds, and `more` that the running command is about to write; an error where that is too much.
    pub(crate) fn weigh(&mut self, more: usize) -> CommandResult {
        let (Some(overlay), Some(memory)) = (&self.transaction, &mut self.exec_collected) else {
            return Ok(());
        };
        memory.hold((self.reply.len() + overlay.bytes() + more) as u64)
    }
}

/// What a command answers and removes, element by element.
pub(crate) struct Taken {
    /// Elements so far.
    pub count: u64,
    collected: Collected,
    /// Where its reply begins.
    reply_from: usize,
}

impl Taken {
    /// Nothing yet; `by`: the command.
    pub fn new(ctx: &Ctx, by: &'static str) -> Self {
        let collected = Collected::new(ctx.server.clone(), by);
        Self { count: 0, collected, reply_from: ctx.reply.len() }
    }

    /// One more element is in the reply, and its removal in `change`. An error where that is too much; one alone never is, as long
    /// as it may be.
    pub fn note(&mut self, ctx: &mut Ctx, change: &Change) -> CommandResult {
        self.count += 1;
        if ctx.in_exec() {
            return ctx.weigh(change.kept_bytes());
        }
        if self.count == 1 {
            return Ok(());
        }
        self.collected.hold((ctx.reply.len() - self.reply_from + change.bytes()) as u64)
    }
}
