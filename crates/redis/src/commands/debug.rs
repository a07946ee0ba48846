//! DEBUG: what test tools use of it.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::args::Args;
use crate::command::Row;
use crate::context::Ctx;
use crate::errors::{self, CommandResult, Failure};
use crate::keyspace::{StringValue, is_expired};
use crate::resp::parser::KEY_BYTES_MAX;
use crate::{glob, handler, number};

/// The commands of this module.
pub static ROWS: &[Row] = &[("debug", handler!(debug))];

const HELP: &[&str] = &[
    "DEBUG <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
    "DIGEST",
    "    Output a hex signature representing the current DB content.",
    "DIGEST-VALUE <key> [<key> ...]",
    "    Output a hex signature of the values of all the specified keys.",
    "ERROR <string>",
    "    Return a Redis protocol error with <string> as message.",
    "LOG <message>",
    "    Write <message> to the server log.",
    "OBJECT <key>",
    "    Show low level info about `key`.",
    "POPULATE <count> [<prefix>] [<size>]",
    "    Create <count> string keys named key:<num>. If <prefix> is specified then",
    "    it is used instead of the 'key' prefix.",
    "PROTOCOL <type>",
    "    Reply with a test value of the specified type. <type> can be: string,",
    "    integer, double, bignum, null, array, set, map, attrib, push, verbatim,",
    "    true, false.",
    "RELOAD",
    "    Put everything on flash. There is nothing to load again.",
    "SET-ACTIVE-EXPIRE (0|1)",
    "    Setting it to 0 disables expiring keys in background.",
    "SLEEP <seconds>",
    "    Make this connection wait for <seconds>. Other clients are served meanwhile.",
    "STRINGMATCH-LEN <length> <pattern>",
    "    Match a string of <length> times 'A' with <pattern>.",
    "HELP",
    "    Prints this help.",
];

/// Longest text that STRINGMATCH-LEN makes: it takes memory that no budget counts.
const STRINGMATCH_BYTES_MAX: u64 = 16 << 20;

async fn debug(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    let subcommand = args[1].to_ascii_lowercase();
    let needs_data = [&b"object"[..], b"digest", b"digest-value", b"populate", b"reload", b"loadaof"];
    if !ctx.server.is_loaded() && needs_data.contains(&&subcommand[..]) {
        return Err(errors::LOADING.into());
    }
    match (subcommand.as_slice(), args.len()) {
        (b"sleep", 3) => {
            let seconds = number::parse_double(&args[2]).filter(|s| (0.0..=1e6).contains(s)).unwrap_or(0.0);
            pumice_reactor::sleep(Duration::from_secs_f64(seconds)).await;
            ctx.reply.ok();
        }
        (b"set-active-expire", 3) => {
            ctx.server.settings.active_expiry.store(args.is(2, "1"), Ordering::Relaxed);
            ctx.reply.ok();
        }
        (b"object", 3 | 4) => object(ctx, &args[2]).await?,
        (b"digest", 2) => {
            let _held = ctx.latch_all().await;
            let digest = ctx.digest().await?;
            ctx.reply.simple(&digest.hex());
        }
        (b"digest-value", 2..) => {
            let _held = ctx.latch(args.iter_from(2)).await;
            let mut digests = Vec::new();
            for key in args.iter_from(2) {
                let mut digest = super::digest::Digest::default();
                let key = ctx.key(key);
                ctx.digest_value(&key, &mut digest).await?;
                digests.push(digest.hex());
            }
            ctx.reply.array(digests.len());
            digests.iter().for_each(|digest| ctx.reply.simple(digest));
        }
        (b"populate", 3..=5) => populate(ctx, &args).await?,
        (b"protocol", 3) => protocol(ctx, &args[2])?,
        (b"error", 3) => {
            return Err(Failure::quoting("", &args[2], ""));
        }
        (b"log", 3) => {
            tracing::warn!(text = %String::from_utf8_lossy(&args[2]), "DEBUG LOG");
            ctx.reply.ok();
        }
        (b"stringmatch-len", 4) => {
            let len = u64::try_from(args.int(2)?).ok().filter(|&len| len <= STRINGMATCH_BYTES_MAX);
            let text = vec![b'A'; len.ok_or(errors::NOT_POSITIVE)? as usize];
            let matches = glob::matches(&args[3], &text);
            ctx.reply.flag(matches);
        }
        (b"reload" | b"loadaof", _) => {
            super::admin::settle(ctx).await?;
            ctx.reply.ok();
        }
        // These change how Redis keeps things in memory, or how it goes about its background work.
        (b"change-repl-id" | b"quicklist-packed-threshold" | b"pause-cron", _) => ctx.reply.ok(),
        (b"help", _) => super::client::help(ctx, HELP),
        _ => {
            return Err(errors::wrong_subcommand("debug", &args[1]));
        }
    }
    Ok(())
}

async fn object(ctx: &mut Ctx, key: &[u8]) -> CommandResult {
    let key = ctx.key(key);
    let Some(encoding) = super::object::encoding(ctx, &key).await? else {
        return Err(errors::NO_SUCH_KEY.into());
    };
    let refcount = super::object::refcount(ctx, &key).await?;
    let length = ctx.meta(key.place, key.raw()).await?.map_or(0, |meta| meta.value_len);
    ctx.reply.simple(&format!(
        "Value at:0x0 refcount:{refcount} encoding:{encoding} serializedlength:{length} lru:0 lru_seconds_idle:0"
    ));
    Ok(())
}

/// Keys that are written in one batch.
const POPULATE_BATCH: u64 = 256;

/// `PREFIX:0`, `PREFIX:1`… with values `value:0`…, cut or filled with zeros to the size that is asked for. Keys that
/// are there stay.
async fn populate(ctx: &mut Ctx, args: &Args<'_>) -> CommandResult {
    let natural = |at: usize, max: u64| {
        let value = u64::try_from(args.int(at)?).map_err(|_| Failure::from(errors::NOT_POSITIVE))?;
        if value <= max { Ok(value) } else { Err(Failure::from(errors::NOT_POSITIVE)) }
    };
    let count = natural(2, u64::MAX)?;
    let prefix = args.get(3).unwrap_or(b"key");
    // A batch of keys is in memory at a time.
    let size = if args.len() == 5 { natural(4, 1 << 20)? } else { 0 };
    if prefix.len() + 21 > KEY_BYTES_MAX {
        return Err("ERR the prefix is too long".into());
    }
    let _held = ctx.latch_all().await;
    let mut change = ctx.change();
    for number in 0..count {
        let key = ctx.key(&[prefix, b":", number.to_string().as_bytes()].concat());
        let stored = ctx.meta(key.place, key.raw()).await?;
        if stored.is_some_and(|meta| !is_expired(meta.expire_ms, ctx.now_ms)) {
            continue;
        }
        super::string_writes::clear_for_string(ctx, &mut change, &key, stored.map(|meta| meta.tag)).await?;
        let mut value = format!("value:{number}").into_bytes();
        if size > 0 {
            value.resize(size as usize, 0);
        }
        change.put_string(&key, 0, &StringValue::Bytes(&value), stored.map(|meta| meta.expire_ms));
        if number % POPULATE_BATCH == POPULATE_BATCH - 1 || super::collection::is_piece(ctx, &change)? {
            super::collection::commit_piece(ctx, &mut change).await?;
        }
    }
    ctx.commit(change).await?;
    ctx.reply.ok();
    Ok(())
}

/// One reply of each type that the protocol has.
#[allow(clippy::approx_constant)] // the double is Redis's
fn protocol(ctx: &mut Ctx, kind: &[u8]) -> CommandResult {
    let reply = &mut ctx.reply;
    match kind.to_ascii_lowercase().as_slice() {
        b"string" => reply.bulk(b"Hello World"),
        b"integer" => reply.int(12345),
        b"double" => reply.double(3.141),
        b"bignum" => {
            let digits = "1234567999999999999999999999999999999";
            match reply.is_resp3() {
                true => reply.raw(format!("({digits}\r\n").as_bytes()),
                false => reply.bulk(digits.as_bytes()),
            }
        }
        b"null" => reply.null(),
        b"array" => {
            reply.array(3);
            (0..3).for_each(|n| reply.int(n));
        }
        b"set" => {
            reply.set(3);
            (0..3).for_each(|n| reply.int(n));
        }
        b"map" => {
            reply.map(3);
            for n in 0..3 {
                reply.int(n);
                reply.boolean(n == 1);
            }
        }
        b"attrib" => {
            if reply.is_resp3() {
                reply.raw(b"|1\r\n");
                reply.bulk(b"key-popularity");
                reply.array(2);
                reply.bulk(b"key:123");
                reply.int(90);
            }
            // An attribute is no reply: one follows.
            reply.bulk(b"Some real reply following the attribute");
        }
        b"push" => {
            if !reply.is_resp3() {
                return Err("ERR RESP2 is not supported by this command".into());
            }
            reply.raw(b">2\r\n");
            reply.bulk(b"server-cpu-usage");
            reply.int(42);
            reply.bulk(b"Some real reply following the push reply");
        }
        b"true" => reply.boolean(true),
        b"false" => reply.boolean(false),
        b"verbatim" => reply.verbatim("This is a verbatim\nstring"),
        _ => {
            return Err("ERR Wrong protocol type name. Please use one of the following: \
                 string|integer|double|bignum|null|array|set|map|attrib|push|verbatim|true|false"
                .into());
        }
    }
    Ok(())
}
