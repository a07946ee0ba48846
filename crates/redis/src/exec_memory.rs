//! What a running EXEC holds in memory: its replies, which leave when it is done, and its writes, which are one batch. Where all
//! of them would hold more than replies may take, that EXEC is refused as a whole: were it the one command alone, those behind it
//! would run without it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::context::Ctx;
use crate::errors::{CommandResult, Failure};
use crate::server::Server;

/// Bytes between two looks at what all EXECs hold.
const STEP_BYTES: u64 = 64 << 10;
/// The most that one may hold, however much memory there is: a batch has less than 4 GiB.
const EXEC_BYTES_MAX: u64 = 2 << 30;

/// Let go of when dropped.
pub(crate) struct ExecMemory {
    server: Arc<Server>,
    bytes: u64,
    refused: Option<Failure>,
}

impl ExecMemory {
    /// None yet.
    pub fn new(server: Arc<Server>) -> Self {
        Self { server, bytes: 0, refused: None }
    }

    /// Holds `bytes` by now. Once that was too much it is for good.
    fn hold(&mut self, bytes: u64) -> CommandResult {
        if let Some(failure) = &self.refused {
            return Err(failure.clone());
        }
        if bytes <= self.bytes + STEP_BYTES {
            return Ok(());
        }
        let grown = bytes - self.bytes;
        let all = self.server.stats.exec_bytes.fetch_add(grown, Ordering::Relaxed) + grown;
        self.bytes = bytes;
        let max = self.server.options.output_bytes_max.min(EXEC_BYTES_MAX);
        if all <= max {
            return Ok(());
        }
        let failure = Failure::new(format!(
            "OOM EXEC has collected {bytes} bytes of replies and writes, {all} with those of other clients, where {max} (--memory) \
             is the most; nothing of it was done"
        ));
        self.refused = Some(failure.clone());
        Err(failure)
    }
}

impl Drop for ExecMemory {
    fn drop(&mut self) {
        self.server.stats.exec_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Ctx {
    /// In EXEC: notes what it holds, and `more` that the running command is about to write; an error where that is too much.
    pub(crate) fn weigh(&mut self, more: usize) -> CommandResult {
        let (Some(overlay), Some(memory)) = (&self.transaction, &mut self.exec_memory) else { return Ok(()) };
        memory.hold((self.reply.len() + overlay.bytes() + more) as u64)
    }
}
