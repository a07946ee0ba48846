//! CLIENT: what connections there are, and what they are called.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::args::Args;
use crate::clients::Client;
use crate::command::Row;
use crate::context::Ctx;
use crate::errors::{self, CommandResult, Failure};
use crate::handler;
use crate::session::ReplyMode;

/// The commands of this module.
pub static ROWS: &[Row] = &[("client", handler!(client))];

const HELP: &[&str] = &[
    "CLIENT <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
    "GETNAME",
    "    Return the name of the current connection.",
    "ID",
    "    Return the ID of the current connection.",
    "INFO",
    "    Return information about the current client connection.",
    "KILL <ip:port>",
    "    Kill connection made from <ip:port>.",
    "KILL <option> <value> [<option> <value> [...]]",
    "    Kill connections. Options are: ADDR, LADDR, TYPE (NORMAL|MASTER|REPLICA|PUBSUB), USER, SKIPME, ID.",
    "LIST [TYPE (NORMAL|MASTER|REPLICA|PUBSUB)] [ID <id> ...]",
    "    Return information about client connections.",
    "NO-EVICT (ON|OFF)",
    "    Protect current client connection from eviction.",
    "REPLY (ON|OFF|SKIP)",
    "    Control the replies sent to the current connection.",
    "SETNAME <name>",
    "    Assign the name <name> to the current connection.",
    "HELP",
    "    Prints this help.",
];

/// Answers `HELP` of a container command.
pub(super) fn help(ctx: &mut Ctx, lines: &[&str]) {
    ctx.reply.array(lines.len());
    for line in lines {
        ctx.reply.simple(line);
    }
}

async fn client(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    match args[1].to_ascii_lowercase().as_slice() {
        b"id" => {
            let id = ctx.session.client.id;
            ctx.reply.count(id);
        }
        b"getname" => match ctx.session.client.name() {
            name if name.is_empty() => ctx.reply.null(),
            name => ctx.reply.bulk(name.as_bytes()),
        },
        b"setname" => {
            let name = super::connection::client_name(&args[2])?;
            ctx.session.client.set_name(&name);
            ctx.reply.ok();
        }
        b"info" => {
            let line = ctx.session.client.describe(ctx.now_ms) + "\n";
            ctx.reply.verbatim(&line);
        }
        b"list" => list(ctx, &args)?,
        b"kill" => kill(ctx, &args)?,
        b"reply" => {
            if args.is(2, "on") {
                ctx.session.reply_mode = ReplyMode::On;
                ctx.reply.ok();
            } else if args.is(2, "off") {
                ctx.session.reply_mode = ReplyMode::Off;
            } else if args.is(2, "skip") {
                if ctx.session.reply_mode != ReplyMode::Off {
                    ctx.session.reply_mode = ReplyMode::SkipThis;
                }
            } else {
                return Err(errors::SYNTAX.into());
            }
        }
        b"no-evict" => {
            let on = args.is(2, "on");
            if !on && !args.is(2, "off") {
                return Err(errors::SYNTAX.into());
            }
            ctx.session.client.no_evict.store(on, Ordering::Relaxed);
            ctx.reply.ok();
        }
        _ => help(ctx, HELP),
    }
    Ok(())
}

/// Whether `name` is one of Redis's kinds of client; `Some(true)` for normal ones, the only ones here.
fn client_kind(name: &[u8]) -> Option<bool> {
    let is = |word: &str| name.eq_ignore_ascii_case(word.as_bytes());
    match () {
        () if is("normal") => Some(true),
        () if is("master") || is("replica") || is("slave") || is("pubsub") => Some(false),
        () => None,
    }
}

fn unknown_kind(name: &[u8]) -> Failure {
    Failure::quoting("ERR Unknown client type '", name, "'")
}

fn list(ctx: &mut Ctx, args: &Args<'_>) -> CommandResult {
    let mut clients = ctx.server.clients.all();
    if args.len() == 4 && args.is(2, "type") {
        if !client_kind(&args[3]).ok_or_else(|| unknown_kind(&args[3]))? {
            clients.clear();
        }
    } else if args.len() > 3 && args.is(2, "id") {
        let mut ids = Vec::new();
        for at in 3..args.len() {
            ids.push(args.int_or(at, "ERR Invalid client ID")? as u64);
        }
        clients = ctx.server.clients.of(&ids);
    } else if args.len() != 2 {
        return Err(errors::SYNTAX.into());
    }
    let mut text = String::new();
    for client in clients {
        text.push_str(&client.describe(ctx.now_ms));
        text.push('\n');
    }
    ctx.reply.verbatim(&text);
    Ok(())
}

/// Whether CLIENT KILL means a client.
type Test<'a> = Box<dyn Fn(&Client) -> bool + 'a>;

fn kill(ctx: &mut Ctx, args: &Args<'_>) -> CommandResult {
    let mut tests: Vec<Test<'_>> = Vec::new();
    let is_old_form = args.len() == 3;
    let mut skip_me = !is_old_form;
    if is_old_form {
        let addr = &args[2];
        tests.push(Box::new(move |client| client.addr.as_bytes() == addr));
    } else {
        let mut at = 2;
        while at < args.len() {
            let Some(value) = args.get(at + 1) else { return Err(errors::SYNTAX.into()) };
            if args.is(at, "id") {
                let id = args.int(at + 1).ok().filter(|&id| id > 0);
                let id = id.ok_or("ERR client-id should be greater than 0")? as u64;
                tests.push(Box::new(move |client| client.id == id));
            } else if args.is(at, "addr") {
                tests.push(Box::new(move |client| client.addr.as_bytes() == value));
            } else if args.is(at, "laddr") {
                tests.push(Box::new(move |client| client.local_addr.as_bytes() == value));
            } else if args.is(at, "type") {
                let normal = client_kind(value).ok_or_else(|| unknown_kind(value))?;
                tests.push(Box::new(move |_| normal));
            } else if args.is(at, "user") {
                if value != b"default" {
                    return Err(Failure::quoting("ERR No such user '", value, "'"));
                }
            } else if args.is(at, "skipme") {
                skip_me = match value.to_ascii_lowercase().as_slice() {
                    b"yes" => true,
                    b"no" => false,
                    _ => return Err(errors::SYNTAX.into()),
                };
            } else {
                return Err(errors::SYNTAX.into());
            }
            at += 2;
        }
    }
    let own = ctx.session.client.id;
    let mut killed = 0;
    for client in ctx.server.clients.all() {
        if (skip_me && client.id == own) || !tests.iter().all(|test| test(&client)) {
            continue;
        }
        killed += 1;
        if client.id == own {
            ctx.session.close_after_reply = true;
        } else {
            Arc::as_ref(&client).kill();
        }
    }
    match (is_old_form, killed) {
        (true, 0) => return Err("ERR No such client".into()),
        (true, _) => ctx.reply.ok(),
        (false, killed) => ctx.reply.int(killed),
    }
    Ok(())
}
