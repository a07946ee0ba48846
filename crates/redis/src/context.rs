//! The command context: what a handler works with. One per connection.
//!
//! It knows the server, the connection's session (database, transaction, name…), the reply under way, the
//! time that the running command takes for now, and the gate: which writes must be durable before the reply
//! may leave. Its methods over the keyspace are in `keyspace/`.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use pumice_base::rng::Rng;
use pumice_node::Gate;
use pumice_reactor::Nanos;

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
    pub(crate) run: Run,
}

/// A run of commands carried out without waiting: what is the same for all of them, or is counted once for all.
#[derive(Default)]
pub(crate) struct Run {
    /// When the last command ended, or the run began.
    pub(crate) clock: Nanos,
    /// When `now_ms` was taken.
    wall_at: Nanos,
    /// Runs and nanoseconds of one command, not yet in the statistics.
    command: usize,
    calls: u64,
    nanos: u64,
    /// Reads that found their key, or not, not yet in the statistics.
    pub(crate) hits: u64,
    pub(crate) misses: u64,
}

/// The time that commands take for now is at most so old.
const WALL_AGE_MAX: Duration = Duration::from_millis(1);

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
            run: Run::default(),
        }
    }

    /// Looks at the clocks before commands that do not wait.
    pub(crate) fn begin_run(&mut self) {
        self.run.clock = pumice_reactor::now();
        self.run.wall_at = self.run.clock;
        self.now_ms = pumice_reactor::wall_ms();
    }

    /// A command of the run has ended: answers how long it took.
    pub(crate) fn end_of_command(&mut self) -> u64 {
        let now = pumice_reactor::now();
        let nanos = now.0.saturating_sub(self.run.clock.0);
        self.run.clock = now;
        if now.since(self.run.wall_at) > WALL_AGE_MAX {
            self.run.wall_at = now;
            self.now_ms = pumice_reactor::wall_ms();
        }
        nanos
    }

    /// Counts one run of the command at `index` of the table.
    pub(crate) fn count_command(&mut self, index: usize, nanos: u64) {
        if index != self.run.command {
            self.flush_counts();
            self.run.command = index;
        }
        self.run.calls += 1;
        self.run.nanos += nanos;
    }

    /// Puts what was counted into the statistics that all cores share.
    pub(crate) fn flush_counts(&mut self) {
        let run = &mut self.run;
        let stats = &self.server.stats;
        if run.calls > 0 {
            let command = &stats.commands[run.command];
            command.calls.fetch_add(std::mem::take(&mut run.calls), Ordering::Relaxed);
            command.nanos.fetch_add(std::mem::take(&mut run.nanos), Ordering::Relaxed);
            let client = &self.session.client;
            client.last_command.store(run.command, Ordering::Relaxed);
            client.last_ms.store(self.now_ms, Ordering::Relaxed);
        }
        if run.hits > 0 {
            stats.hits.fetch_add(std::mem::take(&mut run.hits), Ordering::Relaxed);
        }
        if run.misses > 0 {
            stats.misses.fetch_add(std::mem::take(&mut run.misses), Ordering::Relaxed);
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
        self.flush_counts();
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
