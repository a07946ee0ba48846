//! MULTI, EXEC, DISCARD, WATCH, UNWATCH.
//!
//! EXEC takes the latches of all keys that its commands name (of everything, if one of them is about a whole
//! database), runs the commands against an overlay, and writes the overlay as one batch: others see all of it
//! or nothing, and so does a crash, per drive.

use std::sync::atomic::Ordering;

use pumice_node::KeyHash;

use crate::args::Args;
use crate::command::{Row, Table, key_places};
use crate::context::Ctx;
use crate::errors::{self, CommandResult};
use crate::handler;
use crate::keyspace::{Overlay, is_expired, latch_hash};
use crate::session::Multi;

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
    ctx.session.multi = Some(Multi::default());
    ctx.session.client.queued.store(0, Ordering::Relaxed);
    ctx.reply.ok();
    Ok(())
}

async fn discard(ctx: &mut Ctx, _args: Args<'_>) -> CommandResult {
    if ctx.session.multi.take().is_none() {
        return Err("ERR DISCARD without MULTI".into());
    }
    ctx.session.client.queued.store(-1, Ordering::Relaxed);
    ctx.forget_watches();
    ctx.reply.ok();
    Ok(())
}

async fn watch(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    if ctx.session.multi.is_some() {
        return Err("ERR WATCH inside MULTI is not allowed".into());
    }
    let _held = ctx.latch(args.iter_from(1)).await;
    let database = ctx.session.database;
    for user_key in args.iter_from(1) {
        if ctx.session.watched.iter().any(|(d, k, _)| *d == database && k == user_key) {
            continue;
        }
        ctx.server.node.watches().watch(database as u32, user_key, &ctx.session.watch);
        let key = ctx.key(user_key);
        let meta = ctx.meta(key.place, key.raw()).await?;
        let was_gone = meta.is_none_or(|meta| is_expired(meta.expire_ms, ctx.now_ms));
        ctx.session.watched.push((database, user_key.to_vec(), was_gone));
    }
    ctx.session.client.watched.store(ctx.session.watched.len() as u64, Ordering::Relaxed);
    ctx.reply.ok();
    Ok(())
}

async fn unwatch(ctx: &mut Ctx, _args: Args<'_>) -> CommandResult {
    // Within a transaction it is queued, and runs when the watches are gone already.
    ctx.forget_watches();
    ctx.reply.ok();
    Ok(())
}

impl Ctx {
    /// Stops watching.
    pub(crate) fn forget_watches(&mut self) {
        for (database, key, _) in self.session.watched.drain(..) {
            self.server.node.watches().unwatch(database as u32, &key, &self.session.watch);
        }
        self.session.watch.reset();
        self.session.client.watched.store(0, Ordering::Relaxed);
    }

    /// Whether a watched key changed, or its time ran out, since WATCH.
    async fn watched_changed(&mut self) -> Result<bool, errors::Failure> {
        if self.session.watch.is_touched() {
            return Ok(true);
        }
        for (database, key, was_gone) in self.session.watched.clone() {
            if was_gone {
                continue;
            }
            let key = self.key_in(database, &key);
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
    if multi.is_broken {
        ctx.forget_watches();
        return Err(errors::EXEC_ABORT.into());
    }
    let table = Table::get();
    // Which latches: keys of each command, in the database that it will run in.
    let mut database = ctx.session.database;
    let mut everything = false;
    let mut hashes: Vec<KeyHash> =
        ctx.session.watched.iter().map(|(database, key, _)| latch_hash(*database, key)).collect();
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
    let _held = if everything { ctx.latch_all().await } else { ctx.latch_hashes(&hashes).await };
    ctx.now_ms = pumice_reactor::wall_ms();
    let changed = ctx.watched_changed().await?;
    ctx.forget_watches();
    if changed {
        ctx.reply.null_array();
        return Ok(());
    }
    ctx.transaction = Some(Overlay::default());
    let selected = ctx.session.database;
    ctx.reply.array(multi.queue.len());
    for (index, owned) in &multi.queue {
        crate::execute::run_queued(ctx, &table.commands()[*index], owned.args()).await;
    }
    if let Err(failure) = ctx.commit_transaction().await {
        // Nothing was written: SELECT did not happen either.
        ctx.select(selected);
        return Err(failure);
    }
    Ok(())
}
