//! MULTI, EXEC, DISCARD, WATCH, UNWATCH.
//!
//! EXEC takes the latches of all keys that its commands name (of everything, if one of them is about a whole
//! database), runs the commands against an overlay, and writes the overlay as one batch: others see all of it
//! or nothing, and so does a crash, per drive.

use std::sync::atomic::Ordering;

use pumice_node::KeyHash;

use crate::args::Args;
use crate::collected::Collected;
use crate::command::{Row, Table, key_places};
use crate::context::Ctx;
use crate::errors::{self, CommandResult};
use crate::handler;
use crate::keyspace::{Overlay, is_expired, latch_hash};
use crate::session::{Multi, TransactionMemory, WatchedKey};

/// The commands of this module.
pub static ROWS: &[Row] = &[
    ("multi", handler!(multi)),
    ("exec", handler!(exec)),
    ("discard", handler!(discard)),
    ("watch", handler!(watch)),
    ("unwatch", handler!(unwatch)),
];

async fn multi(ctx: &mut Ctx, _args: Args<'_>) -> CommandResult {
    if ctx.session.multi.is_some() {
        return Err("ERR MULTI calls can not be nested".into());
    }
    ctx.session.multi = Some(Multi::new(ctx.transaction_memory()));
    ctx.session.client.queued.store(0, Ordering::Relaxed);
    ctx.reply.ok();
    Ok(())
}

async fn discard(ctx: &mut Ctx, _args: Args<'_>) -> CommandResult {
    if ctx.session.multi.is_none() {
        return Err("ERR DISCARD without MULTI".into());
    }
    ctx.discard();
    ctx.reply.ok();
    Ok(())
}

async fn watch(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    if ctx.session.multi.is_some() {
        return Err("ERR WATCH inside MULTI is not allowed".into());
    }
    let _held = ctx.latch(args.iter_from(1)).await;
    let outcome = watch_keys(ctx, &args).await;
    ctx.session.client.watched.store(ctx.session.watched.len() as u64, Ordering::Relaxed);
    outcome?;
    ctx.reply.ok();
    Ok(())
}

/// Watches keys until all are watched, or one cannot be. The registry tells those that are watched already.
async fn watch_keys(ctx: &mut Ctx, args: &Args<'_>) -> CommandResult {
    let database = ctx.session.database;
    for user_key in args.iter_from(1) {
        let watches = ctx.server.node.watches();
        let watching = watches.watch(database as u32, user_key, &ctx.session.watch);
        ctx.server.stats.watched_compared.fetch_add(watching.compared, Ordering::Relaxed);
        if !watching.is_new {
            continue;
        }
        let mut memory = ctx.session.watched_memory.take().unwrap_or_else(|| ctx.transaction_memory());
        let room = memory.grow(WatchedKey::memory_bytes(user_key));
        ctx.session.watched_memory = Some(memory);
        if let Err(failure) = room {
            watches.unwatch(database as u32, user_key, &ctx.session.watch);
            return Err(failure);
        }
        // Noted before anything can fail: what is watched must be known, to be forgotten.
        let at = ctx.session.watched.len();
        ctx.session.watched.push(WatchedKey { database, key: user_key.to_vec(), was_gone: false });
        let key = ctx.key(user_key);
        let meta = ctx.meta(key.place, key.raw()).await?;
        ctx.session.watched[at].was_gone = meta.is_none_or(|meta| is_expired(meta.expire_ms, ctx.now_ms));
    }
    Ok(())
}

async fn unwatch(ctx: &mut Ctx, _args: Args<'_>) -> CommandResult {
    // Within a transaction it is queued, and runs when the watches are gone already.
    ctx.forget_watches();
    ctx.reply.ok();
    Ok(())
}

impl Ctx {
    fn transaction_memory(&self) -> TransactionMemory {
        TransactionMemory::new(self.server.clone(), self.session.client.clone())
    }

    /// Forgets the transaction under way, if there is one, and stops watching.
    pub(crate) fn discard(&mut self) {
        self.session.multi = None;
        self.session.client.queued.store(-1, Ordering::Relaxed);
        self.forget_watches();
    }

    /// Stops watching.
    pub(crate) fn forget_watches(&mut self) {
        for WatchedKey { database, key, .. } in std::mem::take(&mut self.session.watched) {
            self.server.node.watches().unwatch(database as u32, &key, &self.session.watch);
        }
        self.session.watched_memory = None;
        self.session.watch.reset();
        self.session.client.watched.store(0, Ordering::Relaxed);
    }

    /// Whether a watched key changed, or its time ran out, since WATCH.
    async fn watched_changed(&mut self) -> Result<bool, errors::Failure> {
        if self.session.watch.is_touched() {
            return Ok(true);
        }
        for at in 0..self.session.watched.len() {
            let watched = &self.session.watched[at];
            if watched.was_gone {
                continue;
            }
            let key = self.key_in(watched.database, &watched.key);
            let meta = self.meta(key.place, key.raw()).await?;
            if meta.is_none_or(|meta| is_expired(meta.expire_ms, self.now_ms)) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

async fn exec(ctx: &mut Ctx, _args: Args<'_>) -> CommandResult {
    let Some(multi) = ctx.session.multi.take() else { return Err("ERR EXEC without MULTI".into()) };
    ctx.session.client.queued.store(-1, Ordering::Relaxed);
    if multi.is_broken() {
        ctx.forget_watches();
        return Err(errors::EXEC_ABORT.into());
    }
    let table = Table::get();
    // Which latches: keys of each command, in the database that it will run in.
    let mut database = ctx.session.database;
    let mut everything = false;
    let mut hashes: Vec<KeyHash> =
        ctx.session.watched.iter().map(|watched| latch_hash(watched.database, &watched.key)).collect();
    for (index, owned) in &multi.queue {
        let (facts, args) = (table.commands()[*index].facts, owned.args());
        match facts.name {
            "select" => {
                let selected = args.int(1).ok().and_then(|n| usize::try_from(n).ok());
                database = selected.filter(|&n| n < crate::keyspace::DATABASES).unwrap_or(database);
            }
            "flushdb" | "flushall" | "keys" | "scan" | "dbsize" | "randomkey" | "pumice.range" | "debug" => {
                everything = true;
            }
            // Its destination may be in any database.
            "copy" => everything = true,
            _ => {}
        }
        let sub = args.get(1).and_then(|name| crate::command::subcommand(facts, name));
        for at in key_places(sub.unwrap_or(facts), &args).unwrap_or_default() {
            hashes.push(latch_hash(database, &args[at]));
        }
    }
    // While loading there are no keys: what was queued does without, and there is nothing to watch.
    let is_loaded = ctx.server.is_loaded();
    let _held = match everything {
        _ if !is_loaded => None,
        true => Some(ctx.latch_all().await),
        false => Some(ctx.latch_hashes(&hashes).await),
    };
    ctx.now_ms = pumice_reactor::wall_ms();
    let changed = ctx.watched_changed().await;
    ctx.forget_watches();
    if changed? {
        ctx.reply.null_array();
        return Ok(());
    }
    ctx.transaction = Some(Overlay::default());
    ctx.only_rewrites = multi.queue.iter().all(|(index, _)| ctx.only_rewrites(&table.commands()[*index]));
    ctx.exec_collected = Some(Collected::new(ctx.server.clone(), "EXEC"));
    let selected = ctx.session.database;
    if !ctx.is_silent() {
        ctx.reply.array(multi.queue.len());
    }
    let mut outcome = Ok(());
    for (index, owned) in &multi.queue {
        let mark = ctx.reply.mark();
        crate::execute::run_queued(ctx, &table.commands()[*index], owned.args()).await;
        if ctx.is_silent() {
            ctx.reply.rollback(mark);
        }
        outcome = ctx.weigh(0);
        if outcome.is_err() {
            ctx.transaction = None;
            break;
        }
    }
    if outcome.is_ok() {
        outcome = ctx.commit_transaction().await;
    }
    ctx.exec_collected = None;
    if let Err(failure) = outcome {
        // Nothing was written: SELECT did not happen either.
        ctx.select(selected);
        return Err(failure);
    }
    Ok(())
}
