//! The command context: what a handler works with. One per connection.
//!
//! It knows the server, the connection's session (database, transaction, name…), the reply under way, the
//! time that the running command takes for now, and the gate: which writes must be durable before the reply
//! may leave. Its methods over the keyspace are in `keyspace/`.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use pumice_base::latency::Bucket;
use pumice_base::rng::Rng;
use pumice_kv::{Hint, Turn};
use pumice_node::Gate;
use pumice_reactor::Nanos;

use crate::collected::Collected;
use crate::command::{Command, Table};
use crate::errors::CommandResult;
use crate::keyspace::{Overlay, RawKey, Space, Unlatched};
use crate::output::{Holds, Outgoing, Output};
use crate::resp::reply::{Mark, Reply};
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
    /// Unix milliseconds, fixed for the command from when it has its latches, or for the whole of an EXEC: a key does not expire
    /// in its midst.
    pub now_ms: u64,
    /// What the replies under way depend on.
    pub gate: Gate,
    /// What the running EXEC has written so far.
    pub transaction: Option<Overlay>,
    /// What it holds in memory.
    pub(crate) exec_collected: Option<Collected>,
    /// What it may write while others wait for room.
    pub(crate) turn: Turn,
    /// The command that is next was tried without waiting, in vain.
    pub(crate) was_tried: bool,
    /// What memory knew then of an element that lies on flash.
    pub(crate) peeked: Option<(RawKey, Hint)>,
    /// There was no room just now for what the running command writes.
    pub(crate) was_refused: bool,
    /// The running command, or all that EXEC runs, makes nothing larger.
    pub(crate) only_rewrites: bool,
    /// A look-up was not answered from memory: others may have written meanwhile.
    pub(crate) has_waited: bool,
    /// Of a command that reads flash before it has its latch.
    pub(crate) unlatched: Unlatched,
    rng: Rng,
    /// The connection's way out; none in tests of handlers alone.
    pub(crate) output: Option<Rc<Output>>,
    /// Part of the running command's reply has left already.
    pub(crate) is_streaming: bool,
    /// Where the running command's reply begins.
    pub(crate) reply_from: Mark,
    /// Commands whose replies are among those under way.
    pub(crate) commands: u32,
    pub(crate) run: Run,
    named: Named,
}

/// The command that was named last, as it was written: most clients say the same again.
#[derive(Default)]
struct Named {
    name: [u8; 16],
    len: usize,
    command: Option<&'static Command>,
}

/// How long a command took, in ns.
#[derive(Clone, Copy)]
pub(crate) struct Took {
    pub nanos: u64,
    /// What of it is its own, where several waited side by side.
    pub share: u64,
}

impl Took {
    /// Since then, and alone.
    pub fn since(started: Nanos) -> Self {
        let nanos = pumice_reactor::now().0.saturating_sub(started.0);
        Self { nanos, share: nanos }
    }
}

/// A run of commands carried out without waiting: what is the same for all of them, or is counted once for all.
#[derive(Default)]
pub(crate) struct Run {
    /// The last look at the clock: when a command ended, or the run began.
    clock: Nanos,
    /// When `now_ms` was taken.
    wall_at: Nanos,
    /// A command by its place in the table and that of its statistics, and runs and nanoseconds of it that these do not
    /// have yet.
    command: usize,
    stats_at: usize,
    calls: u64,
    nanos: u64,
    /// How long each of the last `alike` of them took.
    latency: Bucket,
    alike: u64,
    /// Commands since the last look at the clock.
    unclocked: u32,
    /// Reads that found their key, or not, not yet in the statistics.
    pub(crate) hits: u64,
    pub(crate) misses: u64,
}

/// Commands of a run, none of which waits, between two looks at the clock.
const COMMANDS_PER_LOOK: u32 = 8;
/// A reply that is so long is sent before it goes on, see [`Ctx::drain`].
pub(crate) const STREAM_BYTES: usize = 256 << 10;
/// The time that commands take for now is at most so old.
const WALL_AGE_MAX: Duration = Duration::from_millis(1);

impl Ctx {
    /// The context of a new connection.
    pub fn new(server: Arc<Server>, session: Session) -> Self {
        let now_ms = pumice_reactor::wall_ms();
        let rng = server.rng();
        let reply = Reply::new();
        Self {
            server,
            session,
            reply_from: reply.mark(),
            reply,
            now_ms,
            gate: Gate::open(),
            transaction: None,
            exec_collected: None,
            turn: Turn::default(),
            was_tried: false,
            peeked: None,
            was_refused: false,
            only_rewrites: false,
            has_waited: false,
            unlatched: Unlatched::default(),
            rng,
            output: None,
            is_streaming: false,
            commands: 0,
            run: Run::default(),
            named: Named::default(),
        }
    }

    /// The command called `name`, in any case.
    pub(crate) fn command(&mut self, name: &[u8]) -> Option<&'static Command> {
        let named = &mut self.named;
        if named.command.is_some() && named.name[..named.len] == *name {
            return named.command;
        }
        let command = Table::get().find(name)?;
        if let Some(same) = named.name.get_mut(..name.len()) {
            same.copy_from_slice(name);
            (named.len, named.command) = (name.len(), Some(command));
        }
        Some(command)
    }

    /// Looks at the clocks before commands that do not wait.
    pub(crate) fn begin_run(&mut self) {
        self.run.clock = pumice_reactor::now();
        self.run.wall_at = self.run.clock;
        self.now_ms = pumice_reactor::wall_ms();
        self.reply.begin();
    }

    /// The command is next, whose statistics are at `stats_at`: the time since the last look at the clock belongs to the
    /// one before.
    pub(crate) fn begin_command(&mut self, command: &Command, stats_at: usize) {
        if stats_at != self.run.stats_at {
            self.flush_counts();
            (self.run.command, self.run.stats_at) = (command.index, stats_at);
        }
    }

    /// Whether the command makes nothing larger, no drive either.
    pub(crate) fn only_rewrites(&self, command: &Command) -> bool {
        command.only_rewrites && !(command.moves && self.server.node.drive_count() > 1)
    }

    /// A command of the run has ended. Answers how long it and those before it took, if the clock was looked at: after
    /// each with `each`, else after every [`COMMANDS_PER_LOOK`], because reading it takes as long as half a look-up.
    pub(crate) fn end_of_command(&mut self, each: bool) -> Option<u64> {
        self.run.calls += 1;
        self.run.unclocked += 1;
        (each || self.run.unclocked >= COMMANDS_PER_LOOK).then(|| self.look_at_clock())
    }

    /// Nanoseconds since the last look, which go to the run's command.
    fn look_at_clock(&mut self) -> u64 {
        let commands = std::mem::take(&mut self.run.unclocked);
        let now = pumice_reactor::now();
        let nanos = now.0.saturating_sub(self.run.clock.0);
        self.run.clock = now;
        if now.since(self.run.wall_at) > WALL_AGE_MAX {
            self.run.wall_at = now;
            self.now_ms = pumice_reactor::wall_ms();
        }
        self.run.nanos += nanos;
        self.count_latency(nanos / u64::from(commands.max(1)), u64::from(commands));
        nanos
    }

    /// Counts how long each of some commands took.
    fn count_latency(&mut self, nanos: u64, commands: u64) {
        let latency = Bucket::of(nanos);
        if latency != self.run.latency {
            self.flush_latency();
            self.run.latency = latency;
        }
        self.run.alike += commands;
    }

    fn flush_latency(&mut self) {
        let run = &mut self.run;
        if run.alike > 0 {
            let stats = &self.server.stats.commands[run.stats_at];
            stats.latency.add(run.latency, std::mem::take(&mut run.alike));
        }
    }

    /// Counts one run of the command, which took so long.
    pub(crate) fn count_command(&mut self, command: &Command, stats_at: usize, took: Took) {
        self.begin_command(command, stats_at);
        self.run.calls += 1;
        self.run.nanos += took.share;
        self.count_latency(took.nanos, 1);
    }

    /// Puts what was counted into the statistics that all cores share.
    pub(crate) fn flush_counts(&mut self) {
        if self.run.unclocked > 0 {
            self.look_at_clock();
        }
        self.flush_latency();
        let run = &mut self.run;
        let stats = &self.server.stats;
        if run.calls > 0 {
            let command = &stats.commands[run.stats_at];
            command.calls.fetch_add(std::mem::take(&mut run.calls), Ordering::Relaxed);
            command.nanos.fetch_add(std::mem::take(&mut run.nanos), Ordering::Relaxed);
            let client = &self.session.client;
            // What EXEC runs is EXEC to others.
            if self.transaction.is_none()
                && client.last_command.swap(run.command, Ordering::Relaxed) != run.command
            {
                client.last_subcommand.store(0, Ordering::Relaxed);
            }
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

    /// Whether the client may run commands that need a password: it gave it, or there is none now.
    pub fn is_authenticated(&self) -> bool {
        self.session.is_authenticated || !self.server.settings.has_password()
    }

    /// This connection's random numbers.
    pub fn rng(&mut self) -> &mut Rng {
        &mut self.rng
    }

    /// True while EXEC runs.
    pub fn in_exec(&self) -> bool {
        self.transaction.is_some()
    }

    /// Whether the client wants no reply to what runs now.
    pub(crate) fn is_silent(&self) -> bool {
        self.session.reply_mode != ReplyMode::On
    }

    /// Hands the replies so far to the sending half.
    pub fn flush_replies(&mut self) {
        self.hand_over(false);
    }

    /// `is_part`: the last reply is not whole yet.
    fn hand_over(&mut self, is_part: bool) {
        self.flush_counts();
        let Some(output) = &self.output else { return };
        let bytes = self.reply.len();
        if bytes > 0 {
            let parts = self.reply.take_into(output.spare_parts());
            let holds = match (output.is_cut(), self.commands) {
                (true, _) => Holds::Rest,
                (false, 1) if !is_part => Holds::OneReply,
                _ => Holds::Replies,
            };
            output.push(Outgoing { parts, bytes, gate: std::mem::take(&mut self.gate), holds });
        }
        output.set_cut(is_part);
        self.commands = 0;
    }

    /// For replies longer than memory should hold: call it between elements. It sends what there is, waits
    /// while the client is slow, and fails when the client is gone. Nothing written before can be taken back
    /// afterwards: an `Err` of the handler closes the connection from here on. What the client does not want is
    /// dropped instead; an EXEC's replies are kept until it is done, if memory allows.
    pub async fn drain(&mut self) -> CommandResult {
        if self.reply.len() < STREAM_BYTES {
            return Ok(());
        }
        if self.in_exec() && !self.is_silent() {
            return self.weigh(0);
        }
        // Boxed: it is asked for with each element, and a future is moved, whole, to where it is awaited.
        Box::pin(self.drain_long()).await
    }

    async fn drain_long(&mut self) -> CommandResult {
        let output = self.output.clone();
        if self.is_silent() {
            self.reply.rollback(self.reply_from);
            // Nothing holds it up: others of its core get their turn, and whoever closes it does.
            pumice_reactor::yield_now().await;
        } else if let Some(output) = &output {
            self.hand_over(true);
            self.is_streaming = true;
            output.drain().await;
        }
        if output.is_some_and(|output| output.is_closed()) {
            return Err("ERR the client is gone".into());
        }
        Ok(())
    }
}
