//! The server itself: TIME, SAVE and its like, WAIT, FLUSHDB, FLUSHALL, SHUTDOWN, SLOWLOG.

use std::pin::pin;
use std::sync::atomic::Ordering;

use crate::args::Args;
use crate::command::Row;
use crate::context::Ctx;
use crate::errors::{self, CommandResult, Failure};
use crate::handler;
use crate::keyspace::DATABASES;

/// The commands of this module.
pub static ROWS: &[Row] = &[
    ("time", handler!(time)),
    ("save", handler!(save)),
    ("bgsave", handler!(bgsave)),
    ("bgrewriteaof", handler!(bgrewriteaof)),
    ("lastsave", handler!(lastsave)),
    ("wait", handler!(wait)),
    ("flushdb", handler!(flushdb)),
    ("flushall", handler!(flushall)),
    ("shutdown", handler!(shutdown)),
    ("slowlog", handler!(slowlog)),
];

async fn time(ctx: &mut Ctx, _args: Args<'_>) -> CommandResult {
    let micros = pumice_reactor::wall_us();
    ctx.reply.array(2);
    ctx.reply.bulk((micros / 1_000_000).to_string().as_bytes());
    ctx.reply.bulk((micros % 1_000_000).to_string().as_bytes());
    Ok(())
}

/// Everything acknowledged is durable already, or was acknowledged early by choice: it is on flash after this.
pub(super) async fn settle(ctx: &mut Ctx) -> CommandResult {
    let node = ctx.server.node.clone();
    let mut syncing = pin!(node.sync());
    loop {
        match pumice_reactor::timeout(crate::stall::WAIT_MAX, &mut syncing).await {
            Ok(synced) => break synced.map_err(|error| Failure::new(format!("ERR {error}")))?,
            Err(_) => {
                if let Some(why) = node.stall() {
                    return Err(Failure::new(format!("MISCONF {why}")));
                }
            }
        }
    }
    ctx.server.last_save.store(ctx.now_ms / 1000, Ordering::Relaxed);
    Ok(())
}

async fn save(ctx: &mut Ctx, _args: Args<'_>) -> CommandResult {
    settle(ctx).await?;
    ctx.reply.ok();
    Ok(())
}

async fn bgsave(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    if args.len() > 2 || (args.len() == 2 && !args.is(1, "schedule")) {
        return Err(errors::SYNTAX.into());
    }
    settle(ctx).await?;
    ctx.reply.simple("Background saving started");
    Ok(())
}

async fn bgrewriteaof(ctx: &mut Ctx, _args: Args<'_>) -> CommandResult {
    settle(ctx).await?;
    ctx.reply.simple("Background append only file rewriting started");
    Ok(())
}

async fn lastsave(ctx: &mut Ctx, _args: Args<'_>) -> CommandResult {
    let at = ctx.server.last_save.load(Ordering::Relaxed);
    ctx.reply.count(at);
    Ok(())
}

/// No replicas yet: the answer is how many there are, at once.
async fn wait(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    args.int(1)?;
    if args.int_or(2, "ERR timeout is not an integer or out of range")? < 0 {
        return Err("ERR timeout is negative".into());
    }
    ctx.reply.int(0);
    Ok(())
}

fn flush_mode(args: &Args<'_>) -> CommandResult {
    let is_plain = args.len() == 1;
    let has_mode = args.len() == 2 && (args.is(1, "sync") || args.is(1, "async"));
    if is_plain || has_mode { Ok(()) } else { Err(errors::SYNTAX.into()) }
}

async fn flushdb(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    flush_mode(&args)?;
    ctx.flush(&[ctx.session.database]).await?;
    ctx.reply.ok();
    Ok(())
}

async fn flushall(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    flush_mode(&args)?;
    let all: [usize; DATABASES] = std::array::from_fn(|database| database);
    ctx.flush(&all).await?;
    ctx.reply.ok();
    Ok(())
}

/// Everything acknowledged is durable: SAVE and NOSAVE come to the same, NOW and FORCE too.
async fn shutdown(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    for at in 1..args.len() {
        if !["save", "nosave", "now", "force", "abort"].iter().any(|word| args.is(at, word)) {
            return Err(errors::SYNTAX.into());
        }
    }
    let has = |word: &str| (1..args.len()).any(|at| args.is(at, word));
    let abort = has("abort");
    let goes_on = has("save") || has("nosave") || has("now") || has("force");
    if (has("save") && has("nosave")) || (abort && goes_on) {
        return Err(errors::SYNTAX.into());
    }
    if abort {
        return Err("ERR No shutdown in progress.".into());
    }
    ctx.server.shutdown_asked.set();
    ctx.session.close_after_reply = true;
    Ok(())
}

async fn slowlog(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    match args[1].to_ascii_lowercase().as_slice() {
        b"len" => {
            let len = ctx.server.stats.slowlog().entries.len();
            ctx.reply.count(len as u64);
        }
        b"reset" => {
            ctx.server.stats.slowlog().entries.clear();
            ctx.reply.ok();
        }
        b"get" => {
            const TOO_FEW: &str = "ERR count should be greater than or equal to -1";
            if args.len() > 3 {
                return Err(errors::wrong_subcommand("slowlog", &args[1]));
            }
            let count = if args.len() == 3 { args.int_or(2, TOO_FEW)? } else { 10 };
            if count < -1 {
                return Err(TOO_FEW.into());
            }
            let entries: Vec<_> = {
                let log = ctx.server.stats.slowlog();
                let count = usize::try_from(count).unwrap_or(usize::MAX);
                log.entries.iter().take(count).cloned().collect()
            };
            ctx.reply.array(entries.len());
            for entry in entries {
                ctx.reply.array(6);
                ctx.reply.count(entry.id);
                ctx.reply.count(entry.time);
                ctx.reply.count(entry.took_us);
                ctx.reply.array(entry.arguments.len());
                entry.arguments.iter().for_each(|argument| ctx.reply.bulk(argument));
                ctx.reply.bulk(entry.addr.as_bytes());
                ctx.reply.bulk(entry.name.as_bytes());
            }
        }
        _ => super::client::help(
            ctx,
            &[
                "SLOWLOG <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
                "GET [<count>]",
                "    Return top <count> entries from the slowlog (default: 10, -1 mean all).",
                "    Entries are made of:",
                "    id, timestamp, time in microseconds, arguments array, client IP and port,",
                "    client name",
                "LEN",
                "    Return the length of the slowlog.",
                "RESET",
                "    Reset the slowlog.",
                "HELP",
                "    Prints this help.",
            ],
        ),
    }
    Ok(())
}
