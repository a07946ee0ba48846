//! Carries out one command: finds it, checks that it may run, queues it for MULTI or runs it, and keeps the
//! statistics. The order of the checks is that of Redis's processCommand, because it decides which error a
//! client sees.

use std::sync::atomic::Ordering;

use bytes::Bytes;
use pumice_kv::Hint;

use crate::args::{Args, OwnedArgs};
use crate::command::{Command, Facts, Fast, Table};
use crate::context::{Ctx, Took};
use crate::errors::{self, CommandResult, Failure};
use crate::keyspace::{name_collection, names_a_collection};
use crate::options::DebugAccess;
use crate::resp::parser::KEY_BYTES_MAX;
use crate::resp::reply::Mark;
use crate::session::ReplyMode;

/// What became of a command tried without waiting.
#[derive(Debug)]
pub enum Tried {
    /// It is done; its reply, error or not, is in `ctx.reply`.
    Done,
    /// Nothing was done, it may run at once, but memory alone cannot answer it; it knows so much.
    NeedsFlash(Hint),
    /// Nothing was done.
    Not,
}

/// Carries out one command of a run ([`Ctx::begin_run`]) if that needs no waiting; if not, [`execute`] must be awaited for the same command.
pub fn try_execute(ctx: &mut Ctx, args: &Args<'_>) -> Tried {
    let Some(command) = admit_at_once(ctx, args) else { return Tried::Not };
    let Some(fast) = command.fast else { return Tried::Not };
    try_admitted(ctx, command, args, |ctx| fast(ctx, args))
}

/// The command, if it may run and can be tried without waiting. Commands that begin with the same name and have as many arguments,
/// none of them long, may run as well, until one of them waits.
pub(crate) fn admit_at_once(ctx: &mut Ctx, args: &Args<'_>) -> Option<&'static Command> {
    let session = &ctx.session;
    if session.multi.is_some() || session.reply_mode != ReplyMode::On || ctx.server.clients.has_monitors() {
        return None;
    }
    let command = ctx.command(&args[0])?;
    if command.fast.is_none() || (command.is_write && has_long_argument(args)) {
        return None;
    }
    let may_run = command.arity_fits(args.len()) && ctx.is_authenticated() && ctx.server.is_loaded();
    may_run.then_some(command)
}

/// Carries out a command that [`admit_at_once`] let in, by `fast`.
pub(crate) fn try_admitted(
    ctx: &mut Ctx,
    command: &'static Command,
    args: &Args<'_>,
    fast: impl FnOnce(&mut Ctx) -> Fast,
) -> Tried {
    ctx.begin_command(command, command.stats_at);
    ctx.only_rewrites = ctx.only_rewrites(command);
    match fast(ctx) {
        Fast::Slow => {
            ctx.was_tried = true;
            return Tried::Not;
        }
        Fast::NeedsFlash(hint) => return Tried::NeedsFlash(hint),
        Fast::Done => {}
        Fast::Fail(failure) => fail(ctx, command.stats_at, &failure),
    }
    // Who wants to see commands that took less than a millisecond has each of them timed.
    let each = (0..1000).contains(&ctx.server.settings.slowlog_slower_than_us.load(Ordering::Relaxed));
    if let Some(nanos) = ctx.end_of_command(each) {
        note_slow(ctx, command, args, nanos);
    }
    Tried::Done
}

/// Carries out one command; its reply, error or not, is in `ctx.reply` afterwards.
pub async fn execute(ctx: &mut Ctx, args: Args<'_>) {
    // Commands that tell of the statistics take this way.
    ctx.flush_counts();
    if is_http(&args[0]) {
        return turn_away(ctx);
    }
    let mark = ctx.reply.mark();
    let mode = ctx.session.reply_mode;
    ctx.now_ms = pumice_reactor::wall_ms();
    let command = Table::get().find(&args[0]);
    note_command(ctx, command, &args);
    match admit(ctx, command, &args) {
        Ok(Some(command)) => run(ctx, command, args).await,
        Ok(None) => ctx.reply.simple("QUEUED"),
        Err(failure) => reject(ctx, command, &args, failure),
    }
    // It is of a moment ago, and of no use to others.
    (ctx.was_tried, ctx.peeked) = (false, None);
    settle_reply_mode(ctx, mode, mark);
    ctx.flush_counts();
}

/// Answers a command that may not run.
fn reject(ctx: &mut Ctx, command: Option<&'static Command>, args: &Args<'_>, failure: Failure) {
    if let Some(multi) = &mut ctx.session.multi {
        multi.spoil();
    }
    let is_exec = command.is_some_and(|command| command.facts.name == "exec");
    let failure = if is_exec { abort_exec(ctx, args, &failure) } else { failure };
    ctx.server.stats.note_error(failure.text());
    // Redis does not count what it cannot find, subcommands among it.
    if let Some(command) = command
        && (args.len() == 1 || command.has_subcommand_of(args))
    {
        let stats = &ctx.server.stats.commands[command.stats_of(args)];
        stats.rejected.fetch_add(1, Ordering::Relaxed);
    }
    ctx.reply.error(failure.text());
}

/// EXEC may not run: its transaction, if there is one, is gone all the same, and monitors hear of it
/// (multi.c, execCommandAbort).
fn abort_exec(ctx: &mut Ctx, args: &Args<'_>, why: &Failure) -> Failure {
    ctx.discard();
    if ctx.server.clients.has_monitors() {
        crate::commands::monitor::tell(ctx, args);
    }
    let text = why.text();
    let reason = text.strip_prefix(b"ERR ").unwrap_or(text);
    Failure::quoting("EXECABORT Transaction discarded because of: ", reason, "")
}

/// Whether a browser may be speaking, which a page made send what looks like commands: no command is called so, and every
/// request that carries a body has such a line before it.
fn is_http(name: &[u8]) -> bool {
    name.eq_ignore_ascii_case(b"post") || name.eq_ignore_ascii_case(b"host:")
}

/// Closes the connection, without an answer to anything that still waits for one (server.c, securityWarningCommand).
fn turn_away(ctx: &mut Ctx) {
    const LOGGED_EVERY_MS: u64 = 60_000;
    let last = &ctx.server.attack_logged_ms;
    let now_ms = pumice_reactor::wall_ms();
    let logged_ms = last.load(Ordering::Relaxed);
    // Whoever sends many of these must not fill the log. The clock may have been set back.
    let is_due = now_ms < logged_ms || now_ms - logged_ms > LOGGED_EVERY_MS;
    if is_due && last.compare_exchange(logged_ms, now_ms, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
        tracing::warn!(
            client = %ctx.session.client.addr,
            "possible SECURITY ATTACK: somebody sends POST or Host: commands, likely to speak to this server through a \
             browser (cross-protocol scripting); closed"
        );
    }
    if let Some(output) = &ctx.output {
        output.close();
    }
    ctx.session.close_after_reply = true;
}

/// Answers a command of which not all was kept: it can only be refused.
pub fn refuse(ctx: &mut Ctx, failure: &Failure) {
    let (mark, mode) = (ctx.reply.mark(), ctx.session.reply_mode);
    if let Some(multi) = &mut ctx.session.multi {
        multi.spoil();
    }
    ctx.server.stats.note_error(failure.text());
    ctx.reply.error(failure.text());
    settle_reply_mode(ctx, mode, mark);
}

/// After a command: takes back its reply, which began at `mark`, if the client does not want it. `mode`: what it wanted
/// before.
fn settle_reply_mode(ctx: &mut Ctx, mode: ReplyMode, mark: Mark) {
    let was_switched_on = ctx.session.reply_mode == ReplyMode::On;
    // What is silenced is what was silent before or becomes so; switching on is heard.
    let session = &mut ctx.session;
    session.reply_mode = match (mode, session.reply_mode) {
        (_, ReplyMode::On) => ReplyMode::On,
        (_, ReplyMode::Off) => ReplyMode::Off,
        (_, ReplyMode::SkipThis) => ReplyMode::SkipNext,
        (_, ReplyMode::SkipNext) => ReplyMode::On,
    };
    let heard = match mode {
        ReplyMode::On => matches!(session.reply_mode, ReplyMode::On),
        ReplyMode::Off => matches!(session.reply_mode, ReplyMode::On),
        ReplyMode::SkipThis | ReplyMode::SkipNext => was_switched_on,
    };
    if !heard {
        ctx.reply.rollback(mark);
    }
}

/// Notes the command as its client's last, before it runs: CLIENT LIST tells of itself, too. Also one that is queued, or
/// refused; what cannot be found is none.
fn note_command(ctx: &Ctx, command: Option<&'static Command>, args: &Args<'_>) {
    let client = &ctx.session.client;
    let command = command.filter(|command| args.len() == 1 || command.has_subcommand_of(args));
    let sub = command.map_or(0, |command| command.stats_of(args) - command.stats_at);
    client.last_command.store(command.map_or(usize::MAX, |command| command.index), Ordering::Relaxed);
    client.last_subcommand.store(sub, Ordering::Relaxed);
    client.last_ms.store(ctx.now_ms, Ordering::Relaxed);
}

/// Checks that the command, if there is one of the name, may run now. `None`: it was queued.
fn admit(
    ctx: &mut Ctx,
    command: Option<&'static Command>,
    args: &Args<'_>,
) -> Result<Option<&'static Command>, Failure> {
    let Some(command) = command else {
        return Err(errors::unknown_command(&args[0], args.iter_from(1)));
    };
    let facts = command.facts;
    let mut while_loading = command.while_loading;
    if !facts.subcommands.is_empty() && args.len() > 1 {
        let Some(sub) = crate::command::subcommand(facts, &args[1]) else {
            return Err(errors::unknown_subcommand(facts.name, &args[1]));
        };
        if !crate::command::arity_fits(sub.arity, args.len()) {
            return Err(errors::wrong_arity(sub.name));
        }
        while_loading = sub.flags.contains(&"loading");
    }
    if !command.arity_fits(args.len()) {
        return Err(errors::wrong_arity(facts.name));
    }
    if facts.name == "debug" && !may_debug(ctx) {
        return Err(errors::NO_DEBUG.into());
    }
    if !ctx.is_authenticated() && !command.no_auth {
        return Err(errors::NO_AUTH.into());
    }
    if ctx.session.multi.is_some() && facts.flags.contains(&"no_multi") {
        return Err("ERR Command not allowed inside a transaction".into());
    }
    if !ctx.server.is_loaded() && !while_loading {
        return Err(errors::LOADING.into());
    }
    // What a monitor may not do either, as Redis has it: it is a replica there.
    if ctx.session.is_monitor && is_about_keys(command.facts_of(args)) {
        return Err(errors::MONITOR.into());
    }
    if command.is_write && has_long_argument(args) {
        refuse_long_keys(command, args)?;
    }
    if let Some(multi) = &mut ctx.session.multi {
        let runs_at_once = matches!(facts.name, "exec" | "discard" | "multi" | "watch" | "quit" | "reset");
        if !runs_at_once {
            multi.push(command.index, OwnedArgs::from_args(args))?;
            ctx.session.client.queued.store(multi.queue.len() as i64, Ordering::Relaxed);
            return Ok(None);
        }
    }
    Ok(Some(command))
}

/// Whether Redis counts the command among those that read or write keys.
fn is_about_keys(facts: &Facts) -> bool {
    facts.flags.iter().any(|flag| matches!(*flag, "readonly" | "write" | "may_replicate"))
}

fn may_debug(ctx: &Ctx) -> bool {
    match ctx.server.options.debug {
        DebugAccess::No => false,
        DebugAccess::Local => ctx.session.is_local,
        DebugAccess::Yes => true,
    }
}

fn has_long_argument(args: &Args<'_>) -> bool {
    args.iter_from(1).any(|argument| argument.len() > KEY_BYTES_MAX)
}

/// Refuses keys that the engine does not take. They can be asked for: they are not there.
fn refuse_long_keys(command: &Command, args: &Args<'_>) -> Result<(), Failure> {
    // A command of which no keys can be told says itself what is wrong with it.
    let places = crate::command::key_places(command.facts_of(args), args).unwrap_or_default();
    match places.into_iter().filter_map(|at| args.get(at)).find(|key| key.len() > KEY_BYTES_MAX) {
        None => Ok(()),
        Some(key) => Err(Failure::new(format!(
            "ERR a key of {} bytes is too long: {KEY_BYTES_MAX} is the most",
            key.len()
        ))),
    }
}

/// Runs a command of EXEC's queue. Boxed: EXEC is itself run by [`run`].
pub(crate) fn run_queued<'a>(
    ctx: &'a mut Ctx,
    command: &'static Command,
    args: Args<'a>,
) -> pumice_reactor::LocalBoxFuture<'a, ()> {
    Box::pin(run(ctx, command, args))
}

/// Runs a command that may run, and keeps the statistics.
pub(crate) async fn run(ctx: &mut Ctx, command: &'static Command, args: Args<'_>) {
    let is_told = ctx.server.clients.has_monitors() && !command.facts_of(&args).flags.contains(&"admin");
    // As Redis has it: of EXEC when it ends, after the commands that it ran; of what changes the database with the new one.
    let is_told_after = is_told && matches!(command.facts.name, "exec" | "select" | "reset");
    if is_told && !is_told_after {
        crate::commands::monitor::tell(ctx, &args);
    }
    let started = pumice_reactor::now();
    let mark = ctx.reply.mark();
    ctx.reply_from = mark;
    let was_tried = std::mem::take(&mut ctx.was_tried);
    let fast = command.fast.filter(|_| !was_tried && !ctx.in_exec());
    if !ctx.in_exec() {
        ctx.only_rewrites = ctx.only_rewrites(command);
    }
    if let Some(drive) = crowded_drive(ctx, command, &args) {
        // Not with its keys' latches: whoever writes the same keys would wait for its turn before having one.
        ctx.server.clone().node.wait_for_turn(drive, &mut ctx.turn).await;
        ctx.now_ms = pumice_reactor::wall_ms();
    }
    let result: CommandResult = match fast.map(|fast| fast(ctx, &args)) {
        Some(Fast::Done) => Ok(()),
        Some(Fast::Fail(failure)) => Err(failure),
        Some(Fast::Slow | Fast::NeedsFlash(_)) | None => (command.run)(ctx, args).await,
    };
    let result = match result {
        Err(failure) if names_a_collection(&failure) => {
            let places = crate::command::key_places(command.facts_of(&args), &args).unwrap_or_default();
            let keys = places.into_iter().filter_map(|at| args.get(at)).map(Bytes::copy_from_slice).collect();
            Err(Box::pin(name_collection(ctx, keys, failure)).await)
        }
        result => result,
    };
    let took = Took::since(started);
    account(ctx, command, command.stats_of(&args), result, mark, took);
    note_slow(ctx, command, &args, took.nanos);
    if is_told_after {
        crate::commands::monitor::tell(ctx, &args);
    }
}

/// The drive on which the command would have to wait for room: it was refused there, or others wait.
fn crowded_drive(ctx: &mut Ctx, command: &Command, args: &Args<'_>) -> Option<u16> {
    let was_refused = std::mem::take(&mut ctx.was_refused);
    let is_exec = command.facts.name == "exec";
    if !(command.needs_room || is_exec) || ctx.in_exec() || !ctx.server.is_loaded() {
        return None;
    }
    let node = &ctx.server.node;
    let is_crowded = |drive| was_refused || (node.users_wait(drive) && !ctx.turn.goes_on());
    // Keys are looked for only if some drive is.
    if !(0..node.drive_count()).any(is_crowded) {
        return None;
    }
    let drive_of = |command: &Command, args: &Args<'_>| {
        let key = args.get(command.facts.key_specs.first()?.index)?;
        Some(ctx.key(key).place.drive).filter(|&drive| is_crowded(drive))
    };
    if !is_exec {
        return drive_of(command, args);
    }
    let mut queue = ctx.session.multi.iter().flat_map(|multi| &multi.queue);
    queue.find_map(|(index, owned)| {
        let queued = &Table::get().commands()[*index];
        queued.needs_room.then(|| drive_of(queued, &owned.args())).flatten()
    })
}

/// Turns a handler's result into the reply and counts the run. `mark`: where its reply began.
pub(crate) fn account(
    ctx: &mut Ctx,
    command: &'static Command,
    stats_at: usize,
    result: CommandResult,
    mark: Mark,
    took: Took,
) {
    if let Err(failure) = result {
        if ctx.is_streaming {
            // Half a reply has left: no error can follow it.
            tracing::error!(
                command = command.facts.name,
                why = %failure.lossy(),
                "closed in the midst of a reply"
            );
            ctx.session.close_after_reply = true;
        } else {
            ctx.reply.rollback(mark);
            fail(ctx, stats_at, &failure);
        }
    }
    ctx.is_streaming = false;
    ctx.count_command(command, stats_at, took);
}

fn fail(ctx: &mut Ctx, stats_at: usize, failure: &Failure) {
    ctx.reply.error(failure.text());
    ctx.server.stats.note_error(failure.text());
    ctx.server.stats.commands[stats_at].failed.fetch_add(1, Ordering::Relaxed);
}

fn note_slow(ctx: &mut Ctx, command: &Command, args: &Args<'_>, nanos: u64) {
    let slower_than_us = ctx.server.settings.slowlog_slower_than_us.load(Ordering::Relaxed);
    if slower_than_us >= 0
        && nanos / 1000 >= slower_than_us as u64
        && !command.facts.flags.contains(&"skip_slowlog")
    {
        let client = &ctx.session.client;
        let max = ctx.server.settings.slowlog_entries_max.load(Ordering::Relaxed) as usize;
        let (time, took_us) = (ctx.now_ms / 1000, nanos / 1000);
        ctx.server.stats.slowlog().push(max, args, time, took_us, &client.addr, &client.name());
    }
}
