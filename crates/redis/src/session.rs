//! What a connection remembers between commands.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use pumice_node::WatchFlag;

use crate::args::OwnedArgs;
use crate::clients::Client;
use crate::errors::Failure;
use crate::server::Server;

/// Which replies the client wants (CLIENT REPLY).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyMode {
    /// All.
    On,
    /// None until further notice.
    Off,
    /// Not the one of this command (CLIENT REPLY SKIP itself), nor of the next.
    SkipThis,
    /// Not the one of this command.
    SkipNext,
}

/// Memory that a client holds for a transaction: queued commands, watched keys. It is part of what commands may take
/// (`input_bytes_max`), of which all transactions together get half, so that the other half is left to commands on their
/// way. Let go of when dropped.
pub struct TransactionMemory {
    server: Arc<Server>,
    client: Arc<Client>,
    bytes: u64,
}

impl TransactionMemory {
    /// None yet.
    pub fn new(server: Arc<Server>, client: Arc<Client>) -> Self {
        Self { server, client, bytes: 0 }
    }

    /// Takes `bytes` more; an error when all clients' transactions together would hold too much.
    pub fn grow(&mut self, bytes: u64) -> Result<(), Failure> {
        let all = &self.server.stats.transaction_bytes;
        let (before, max) =
            (all.fetch_add(bytes, Ordering::Relaxed), self.server.options.input_bytes_max / 2);
        if before + bytes > max {
            all.fetch_sub(bytes, Ordering::Relaxed);
            return Err(Failure::new(format!(
                "OOM transactions of all clients hold {before} bytes of commands and watched keys, {bytes} more would exceed \
                 {max} (--memory)"
            )));
        }
        self.bytes += bytes;
        self.client.transaction_bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }

    /// Lets go of all.
    pub fn clear(&mut self) {
        let bytes = std::mem::take(&mut self.bytes);
        self.server.stats.transaction_bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.client.transaction_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Drop for TransactionMemory {
    fn drop(&mut self) {
        self.clear();
    }
}

/// A queued transaction.
pub struct Multi {
    /// The commands, each with its place in the command table. Empty once the transaction is broken.
    pub queue: Vec<(usize, OwnedArgs)>,
    /// What the queue holds.
    memory: TransactionMemory,
    is_broken: bool,
}

impl Multi {
    /// Nothing queued yet.
    pub fn new(memory: TransactionMemory) -> Self {
        Self { queue: Vec::new(), memory, is_broken: false }
    }

    /// Queues the command at `index` of the table, if there is room for it; not for a transaction that will be refused.
    pub fn push(&mut self, index: usize, command: OwnedArgs) -> Result<(), Failure> {
        if self.is_broken {
            return Ok(());
        }
        self.memory.grow((command.memory_bytes() + size_of::<(usize, OwnedArgs)>()) as u64)?;
        self.queue.push((index, command));
        Ok(())
    }

    /// A command did not queue: EXEC will refuse, and the others are forgotten.
    pub fn spoil(&mut self) {
        self.is_broken = true;
        self.queue = Vec::new();
        self.memory.clear();
    }

    /// Whether a command did not queue.
    pub fn is_broken(&self) -> bool {
        self.is_broken
    }
}

/// A key that WATCH named.
#[derive(Clone)]
pub struct WatchedKey {
    /// The database that was selected.
    pub database: usize,
    /// As the client named it.
    pub key: Vec<u8>,
    /// Whether it was not there, or expired already, when WATCH saw it.
    pub was_gone: bool,
}

/// What a watched key takes beside its bytes, here and in the server's registry: measured, rounded up.
const WATCHED_KEY_BYTES: usize = 256;

impl WatchedKey {
    /// What watching `key` takes, in bytes.
    pub fn memory_bytes(key: &[u8]) -> u64 {
        (2 * key.len() + WATCHED_KEY_BYTES) as u64
    }
}

/// What a connection remembers between commands.
pub struct Session {
    /// What other connections see of this one (CLIENT LIST, CLIENT KILL).
    pub client: Arc<Client>,
    /// The selected database.
    pub database: usize,
    /// Whether the client runs on this machine.
    pub is_local: bool,
    /// May run commands that need a password: see [`crate::context::Ctx::is_authenticated`].
    pub is_authenticated: bool,
    /// CLIENT REPLY.
    pub reply_mode: ReplyMode,
    /// The transaction being queued.
    pub multi: Option<Multi>,
    /// Raised when a watched key changed; the client's.
    pub watch: Arc<WatchFlag>,
    /// Watched keys, each once.
    pub watched: Vec<WatchedKey>,
    /// What they hold; `None` while there are none.
    pub watched_memory: Option<TransactionMemory>,
    /// Close the connection once the replies so far are sent.
    pub close_after_reply: bool,
    /// Gets every command that the server runs (MONITOR).
    pub is_monitor: bool,
    /// The name given by CLIENT SETNAME or HELLO, and the rest that CLIENT LIST tells, are in `client`.
    pub no_evict: bool,
}

impl Session {
    /// The state of a connection that just opened.
    pub fn new(client: Arc<Client>, is_authenticated: bool) -> Self {
        Self {
            watch: client.watch.clone(),
            client,
            database: 0,
            is_local: false,
            is_authenticated,
            reply_mode: ReplyMode::On,
            multi: None,
            watched: Vec::new(),
            watched_memory: None,
            close_after_reply: false,
            is_monitor: false,
            no_evict: false,
        }
    }
}
