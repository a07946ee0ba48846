//! The server itself: TIME, SAVE and its like, WAIT, FLUSHDB, FLUSHALL, DEBUG, SHUTDOWN, SLOWLOG.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::args::Args;
use crate::command::Row;
use crate::context::Ctx;
use crate::errors::{self, CommandResult, Failure};
use crate::keyspace::DATABASES;
use crate::{handler, number};

/// The commands of this module.
pub static ROWS: &[Row] = &[
    ("time", handler!(time)),
    ("save", handler!(save)),
    ("bgsave", handler!(bgsave)),
    ("lastsave", handler!(lastsave)),
    ("wait", handler!(wait)),
    ("flushdb", handler!(flushdb)),
    ("flushall", handler!(flushall)),
    ("debug", handler!(debug)),
    ("shutdown", handler!(shutdown)),
    ("slowlog", handler!(slowlog)),
];

async fn time(ctx: &mut Ctx, _args: Args<'_>) -> CommandResult {
    let micros = pumice_reactor::wall_ms() * 1000;
    ctx.reply.array(2);
    ctx.reply.bulk((micros / 1_000_000).to_string().as_bytes());
    ctx.reply.bulk((micros % 1_000_000).to_string().as_bytes());
    Ok(())
}

/// Everything acknowledged is durable already, or was acknowledged early by choice: it is on flash after this.
async fn settle(ctx: &mut Ctx) -> CommandResult {
    let node = ctx.server.node.clone();
    node.sync().await.map_err(|error| Failure::new(format!("ERR {error}")))?;
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

async fn debug(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    match (args[1].to_ascii_lowercase().as_slice(), args.len()) {
        (b"sleep", 3) => {
            let seconds = number::parse_double(&args[2]).filter(|s| (0.0..=1e6).contains(s)).unwrap_or(0.0);
            pumice_reactor::sleep(Duration::from_secs_f64(seconds)).await;
            ctx.reply.ok();
        }
        (b"set-active-expire", 3) => {
            ctx.server.settings.active_expiry.store(args.is(2, "1"), Ordering::Relaxed);
            ctx.reply.ok();
        }
        (b"object", 3 | 4) => {
            let key = ctx.key(&args[2]);
            let Some(encoding) = super::object::encoding(ctx, &key).await? else {
                return Err(errors::NO_SUCH_KEY.into());
            };
            let length = ctx.meta(key.place, key.raw()).await?.map_or(0, |meta| meta.value_len);
            ctx.reply.simple(&format!(
                "Value at:0x0 refcount:1 encoding:{encoding} serializedlength:{length} lru:0 lru_seconds_idle:0"
            ));
        }
        (b"error", 3) => {
            return Err(Failure::new(String::from_utf8_lossy(&args[2]).replace(['\r', '\n'], " ")));
        }
        (b"log", 3) => {
            tracing::warn!(text = %String::from_utf8_lossy(&args[2]), "DEBUG LOG");
            ctx.reply.ok();
        }
        (b"change-repl-id" | b"reload" | b"loadaof" | b"quicklist-packed-threshold", _) => ctx.reply.ok(),
        (b"help", _) => super::client::help(
            ctx,
            &[
                "DEBUG <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
                "ERROR <string>",
                "    Return a Redis protocol error with <string> as message.",
                "LOG <message>",
                "    Write <message> to the server log.",
                "OBJECT <key>",
                "    Show low level info about `key`.",
                "SET-ACTIVE-EXPIRE (0|1)",
                "    Setting it to 0 disables expiring keys in background.",
                "SLEEP <seconds>",
                "    Make this connection wait for <seconds>. Other clients are served meanwhile.",
                "HELP",
                "    Prints this help.",
            ],
        ),
        _ => {
            let sub = String::from_utf8_lossy(&args[1]);
            return Err(Failure::new(format!(
                "ERR unknown subcommand or wrong number of arguments for '{sub}'. Try DEBUG HELP."
            )));
        }
    }
    Ok(())
}

/// Everything acknowledged is durable: SAVE and NOSAVE come to the same, NOW and FORCE too.
async fn shutdown(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    let mut abort = false;
    for at in 1..args.len() {
        abort |= args.is(at, "abort");
        if !["save", "nosave", "now", "force", "abort"].iter().any(|word| args.is(at, word)) {
            return Err(errors::SYNTAX.into());
        }
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
