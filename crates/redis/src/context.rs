//! The command context: what a handler works with. One per connection.
//!
//! It knows the server, the connection's session (database, transaction, name…), the reply under way, the
//! time that the running command takes for now, and the gate: which writes must be durable before the reply
//! may leave. Its methods over the keyspace are in `keyspace/`.

use std::rc::Rc;
use std::sync::Arc;

use pumice_base::rng::Rng;
use pumice_node::Gate;

use crate::errors::CommandResult;
use crate::keyspace::{Change, Overlay, Space};
use crate::output::{Outgoing, Output};
use crate::resp::reply::Reply;
use crate::server::Server;
use crate::session::{ReplyMode, Session};

/// What a handler works with.
pub struct Ctx {
    /// The server: drives, settings, statistics, other clients.
    pub server: Arc<Server>,
    /// The connection's state.
    pub session: Session,
    /// Where replies go.
    pub reply: Reply,
    /// Unix milliseconds, fixed for the command, or for the whole of an EXEC: a key does not expire in its midst.
    pub now_ms: u64,
    /// What the replies under way depend on.
    pub gate: Gate,
    /// What the running EXEC has written so far.
    pub transaction: Option<Overlay>,
    pub(crate) spare_change: Option<Change>,
    rng: Rng,
    /// The connection's way out; none in tests of handlers alone.
    pub(crate) output: Option<Rc<Output>>,
    /// Part of the running command's reply has left already.
    pub(crate) is_streaming: bool,
}

impl Ctx {
    /// The context of a new connection.
    pub fn new(server: Arc<Server>, session: Session) -> Self {
        let now_ms = pumice_reactor::wall_ms();
        let rng = server.rng();
        Self {
            server,
            session,
            reply: Reply::new(),
            now_ms,
            gate: Gate::open(),
            transaction: None,
            spare_change: None,
            rng,
            output: None,
            is_streaming: false,
        }
    }

    /// A context for work of the server itself: no connection, replies go nowhere.
    pub fn for_service(server: Arc<Server>) -> Self {
        let client = server.clients.unlisted(pumice_reactor::wall_ms());
        Self::new(server, Session::new(client, true))
    }

    /// The space of the selected database.
    pub fn space(&self) -> Space {
        self.space_of(self.session.database)
    }

    /// The space of a database, as the running transaction sees it.
    pub fn space_of(&self, database: usize) -> Space {
        let moved = self.transaction.as_ref().and_then(|overlay| overlay.space_of(database));
        moved.unwrap_or_else(|| self.server.spaces.of(database))
    }

    /// This connection's random numbers.
    pub fn rng(&mut self) -> &mut Rng {
        &mut self.rng
    }

    /// True while EXEC runs.
    pub fn in_exec(&self) -> bool {
        self.transaction.is_some()
    }

    /// Hands the replies so far to the sending half.
    pub fn flush_replies(&mut self) {
        let Some(output) = &self.output else { return };
        let bytes = self.reply.len();
        if bytes > 0 {
            let parts = self.reply.take_into(output.spare_parts());
            output.push(Outgoing { parts, bytes, gate: std::mem::take(&mut self.gate) });
        }
    }

    /// For replies longer than memory should hold: call it between elements. It sends what there is, waits
    /// while the client is slow, and fails when the client is gone. Nothing written before can be taken back
    /// afterwards: an `Err` of the handler closes the connection from here on.
    pub async fn drain(&mut self) -> CommandResult {
        const STREAM_BYTES: usize = 256 << 10;
        if self.reply.len() < STREAM_BYTES || self.in_exec() || self.session.reply_mode != ReplyMode::On {
            return Ok(());
        }
        let Some(output) = self.output.clone() else { return Ok(()) };
        self.flush_replies();
        self.is_streaming = true;
        output.drain().await;
        if output.is_closed() { Err("ERR the client is gone".into()) } else { Ok(()) }
    }
}
