//! What a connection remembers between commands.

use std::sync::Arc;

use pumice_node::WatchFlag;

use crate::args::OwnedArgs;
use crate::clients::Client;

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

/// A queued transaction.
#[derive(Debug, Default)]
pub struct Multi {
    /// The commands, each with its place in the command table.
    pub queue: Vec<(usize, OwnedArgs)>,
    /// Bytes of the queue.
    pub bytes: usize,
    /// A command did not queue: EXEC will refuse.
    pub is_broken: bool,
}

/// What a connection remembers between commands.
pub struct Session {
    /// What other connections see of this one (CLIENT LIST, CLIENT KILL).
    pub client: Arc<Client>,
    /// The selected database.
    pub database: usize,
    /// May run commands that need a password.
    pub is_authenticated: bool,
    /// CLIENT REPLY.
    pub reply_mode: ReplyMode,
    /// The transaction being queued.
    pub multi: Option<Multi>,
    /// Raised when a watched key changed.
    pub watch: Arc<WatchFlag>,
    /// Watched keys: database, key, and whether it was expired already when WATCH saw it.
    pub watched: Vec<(usize, Vec<u8>, bool)>,
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
            client,
            database: 0,
            is_authenticated,
            reply_mode: ReplyMode::On,
            multi: None,
            watch: Arc::new(WatchFlag::default()),
            watched: Vec::new(),
            close_after_reply: false,
            is_monitor: false,
            no_evict: false,
        }
    }
}
