//! Connections: PING, HELLO, AUTH, SELECT and their like. CLIENT is in `client.rs`.

use std::sync::atomic::Ordering;

use crate::args::Args;
use crate::command::Row;
use crate::context::Ctx;
use crate::errors::{self, CommandResult, Failure};
use crate::handler;
use crate::keyspace::DATABASES;
use crate::resp::reply::Protocol;
use crate::session::ReplyMode;

/// The commands of this module.
pub static ROWS: &[Row] = &[
    ("ping", handler!(ping)),
    ("echo", handler!(echo)),
    ("hello", handler!(hello)),
    ("auth", handler!(auth)),
    ("select", handler!(select)),
    ("quit", handler!(quit)),
    ("reset", handler!(reset)),
];

/// The Redis version whose behaviour this is, for clients that switch features by it.
pub const REDIS_VERSION: &str = "7.0.15";

async fn ping(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    match args.len() {
        1 => ctx.reply.simple("PONG"),
        2 => ctx.reply.bulk(&args[1]),
        _ => return Err(errors::wrong_arity("ping")),
    }
    Ok(())
}

async fn echo(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    ctx.reply.bulk(&args[1]);
    Ok(())
}

/// Checks a password; the only user is `default`.
fn authenticate(ctx: &mut Ctx, user: &[u8], password: &[u8]) -> CommandResult {
    let settings = &ctx.server.settings;
    if user != b"default" || (settings.has_password() && !settings.password_is(password)) {
        return Err(errors::WRONG_PASS.into());
    }
    ctx.session.is_authenticated = true;
    Ok(())
}

async fn auth(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    match args.len() {
        2 if !ctx.server.settings.has_password() => {
            return Err(Failure::from(
                "ERR AUTH <password> called without any password configured for the default user. Are you sure \
                 your configuration is correct?",
            ));
        }
        2 => authenticate(ctx, b"default", &args[1])?,
        3 => authenticate(ctx, &args[1], &args[2])?,
        _ => return Err(errors::SYNTAX.into()),
    }
    ctx.reply.ok();
    Ok(())
}

async fn hello(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    let mut protocol = None;
    if args.len() > 1 {
        let version = args.int_or(1, "ERR Protocol version is not an integer or out of range")?;
        protocol = Some(match version {
            2 => Protocol::Resp2,
            3 => Protocol::Resp3,
            _ => return Err("NOPROTO unsupported protocol version".into()),
        });
    }
    let mut name = None;
    let mut credentials = None;
    let mut at = 2;
    while at < args.len() {
        let more = args.len() - 1 - at;
        if args.is(at, "auth") && more >= 2 {
            credentials = Some((&args[at + 1], &args[at + 2]));
            at += 3;
        } else if args.is(at, "setname") && more >= 1 {
            name = Some(client_name(&args[at + 1])?);
            at += 2;
        } else {
            return Err(Failure::quoting("ERR Syntax error in HELLO option '", &args[at], "'"));
        }
    }
    if let Some((user, password)) = credentials {
        authenticate(ctx, user, password)?;
    }
    if !ctx.is_authenticated() {
        return Err(
            "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO AUTH <user> \
              <pass> option can be used to authenticate the client and select the RESP protocol version at \
             the same time"
                .into(),
        );
    }
    if let Some(name) = name {
        ctx.session.client.set_name(&name);
    }
    if let Some(protocol) = protocol {
        set_protocol(ctx, protocol);
    }
    let reply = &mut ctx.reply;
    reply.map(7);
    reply.bulk(b"server");
    reply.bulk(b"redis");
    reply.bulk(b"version");
    reply.bulk(REDIS_VERSION.as_bytes());
    reply.bulk(b"proto");
    reply.int(if reply.is_resp3() { 3 } else { 2 });
    reply.bulk(b"id");
    reply.count(ctx.session.client.id);
    reply.bulk(b"mode");
    reply.bulk(b"standalone");
    reply.bulk(b"role");
    reply.bulk(b"master");
    reply.bulk(b"modules");
    reply.array(0);
    Ok(())
}

fn set_protocol(ctx: &mut Ctx, protocol: Protocol) {
    ctx.reply.set_protocol(protocol);
    let number = if protocol == Protocol::Resp3 { 3 } else { 2 };
    ctx.session.client.protocol.store(number, Ordering::Relaxed);
}

/// Longest name of a connection: it is in no account of memory.
const NAME_BYTES_MAX: usize = 1024;

/// A connection's name, which must fit into one word of CLIENT LIST.
pub(super) fn client_name(name: &[u8]) -> Result<String, Failure> {
    if name.len() > NAME_BYTES_MAX {
        return Err(Failure::new(format!("ERR Client names cannot have more than {NAME_BYTES_MAX} bytes.")));
    }
    if name.iter().any(|b| !(b'!'..=b'~').contains(b)) {
        return Err("ERR Client names cannot contain spaces, newlines or special characters.".into());
    }
    Ok(String::from_utf8_lossy(name).into_owned())
}

async fn select(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    let database = args.int32(1)?;
    let database = usize::try_from(database).ok().filter(|&database| database < DATABASES);
    let Some(database) = database else { return Err("ERR DB index is out of range".into()) };
    ctx.select(database);
    ctx.reply.ok();
    Ok(())
}

async fn quit(ctx: &mut Ctx, _args: Args<'_>) -> CommandResult {
    ctx.reply.ok();
    ctx.session.close_after_reply = true;
    Ok(())
}

async fn reset(ctx: &mut Ctx, _args: Args<'_>) -> CommandResult {
    ctx.session.multi = None;
    ctx.session.client.queued.store(-1, Ordering::Relaxed);
    ctx.forget_watches();
    ctx.server.clients.set_monitor(&ctx.session.client, false);
    ctx.session.is_monitor = false;
    // Behind CLIENT REPLY SKIP its own answer is the one that is skipped.
    if ctx.session.reply_mode == ReplyMode::Off {
        ctx.session.reply_mode = ReplyMode::On;
    }
    ctx.session.is_authenticated = !ctx.server.settings.has_password();
    ctx.session.client.set_name("");
    ctx.select(0);
    set_protocol(ctx, Protocol::Resp2);
    ctx.reply.simple("RESET");
    Ok(())
}

impl Ctx {
    /// Selects a database.
    pub(crate) fn select(&mut self, database: usize) {
        self.session.database = database;
        self.session.client.database.store(database as u64, Ordering::Relaxed);
    }
}
