//! COMMAND: what commands there are, and where their keys stand.

use crate::args::Args;
use crate::command::{Command, Facts, Find, Row, Table, key_places, subcommand};
use crate::context::Ctx;
use crate::errors::{self, CommandResult, Failure};
use crate::{glob, handler};

/// The commands of this module.
pub static ROWS: &[Row] = &[("command", handler!(command))];

async fn command(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    let table = Table::get();
    if args.len() == 1 {
        ctx.reply.array(table.commands().len());
        table.commands().iter().for_each(|command| info(ctx, command.facts));
        return Ok(());
    }
    match args[1].to_ascii_lowercase().as_slice() {
        b"count" => ctx.reply.count(table.commands().len() as u64),
        b"info" => {
            let named = args.len() > 2;
            ctx.reply.array(if named { args.len() - 2 } else { table.commands().len() });
            if !named {
                table.commands().iter().for_each(|command| info(ctx, command.facts));
            }
            for name in args.iter_from(2) {
                match find(table, name) {
                    Some(facts) => info(ctx, facts),
                    None => ctx.reply.null(),
                }
            }
        }
        b"docs" => {
            let found: Vec<&Facts> = match args.len() {
                2 => table.commands().iter().map(|command| command.facts).collect(),
                _ => args.iter_from(2).filter_map(|name| find(table, name)).collect(),
            };
            ctx.reply.map(found.len());
            for facts in found {
                ctx.reply.bulk(facts.name.as_bytes());
                docs(ctx, facts);
            }
        }
        b"list" => list(ctx, table, &args)?,
        b"getkeys" => getkeys(ctx, table, &args)?,
        _ => super::client::help(
            ctx,
            &[
                "COMMAND <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
                "(no subcommand)",
                "    Return details about all Redis commands.",
                "COUNT",
                "    Return the total number of commands in this Redis server.",
                "LIST",
                "    Return a list of all commands in this Redis server.",
                "INFO [<command-name> ...]",
                "    Return details about multiple Redis commands.",
                "    If no command names are given, documentation details for all",
                "    commands are returned.",
                "DOCS [<command-name> ...]",
                "    Return documentation details about multiple Redis commands.",
                "    If no command names are given, documentation details for all",
                "    commands are returned.",
                "GETKEYS <full-command>",
                "    Return the keys from a full Redis command.",
                "HELP",
                "    Prints this help.",
            ],
        ),
    }
    Ok(())
}

/// A command, or a subcommand as `container|sub`.
fn find(table: &'static Table, name: &[u8]) -> Option<&'static Facts> {
    match name.iter().position(|&b| b == b'|') {
        None => table.find(name).map(|command| command.facts),
        Some(at) => subcommand(table.find(&name[..at])?.facts, &name[at + 1..]),
    }
}

fn strings(ctx: &mut Ctx, words: &[&str]) {
    ctx.reply.set(words.len());
    words.iter().for_each(|word| ctx.reply.simple(word));
}

fn info(ctx: &mut Ctx, facts: &Facts) {
    ctx.reply.array(10);
    ctx.reply.bulk(facts.name.as_bytes());
    ctx.reply.int(facts.arity.into());
    strings(ctx, facts.flags);
    ctx.reply.int(facts.first_key.into());
    ctx.reply.int(facts.last_key.into());
    ctx.reply.int(facts.key_step.into());
    strings(ctx, facts.categories);
    ctx.reply.set(facts.tips.len());
    facts.tips.iter().for_each(|tip| ctx.reply.bulk(tip.as_bytes()));
    ctx.reply.set(facts.key_specs.len());
    for spec in facts.key_specs {
        ctx.reply.map(3);
        ctx.reply.bulk(b"flags");
        strings(ctx, spec.flags);
        ctx.reply.bulk(b"begin_search");
        pairs(ctx, "index", &[("index", spec.index as i64)]);
        ctx.reply.bulk(b"find_keys");
        match spec.find {
            Find::Range { last, step, limit } => {
                let numbers = [("lastkey", last.into()), ("keystep", step.into()), ("limit", limit.into())];
                pairs(ctx, "range", &numbers);
            }
            Find::KeyNum { at, first, step } => {
                let numbers =
                    [("keynumidx", at as i64), ("firstkey", first as i64), ("keystep", step as i64)];
                pairs(ctx, "keynum", &numbers);
            }
        }
    }
    ctx.reply.array(facts.subcommands.len());
    facts.subcommands.iter().for_each(|sub| info(ctx, sub));
}

/// `{type: kind, spec: {…}}`.
fn pairs(ctx: &mut Ctx, kind: &str, numbers: &[(&str, i64)]) {
    ctx.reply.map(2);
    ctx.reply.bulk(b"type");
    ctx.reply.bulk(kind.as_bytes());
    ctx.reply.bulk(b"spec");
    ctx.reply.map(numbers.len());
    for (name, number) in numbers {
        ctx.reply.bulk(name.as_bytes());
        ctx.reply.int(*number);
    }
}

fn docs(ctx: &mut Ctx, facts: &Facts) {
    ctx.reply.map(if facts.subcommands.is_empty() { 2 } else { 3 });
    ctx.reply.bulk(b"since");
    ctx.reply.bulk(facts.since.as_bytes());
    ctx.reply.bulk(b"group");
    ctx.reply.bulk(facts.group.as_bytes());
    if !facts.subcommands.is_empty() {
        ctx.reply.bulk(b"subcommands");
        ctx.reply.map(facts.subcommands.len());
        for sub in facts.subcommands {
            ctx.reply.bulk(sub.name.as_bytes());
            docs(ctx, sub);
        }
    }
}

fn list(ctx: &mut Ctx, table: &'static Table, args: &Args<'_>) -> CommandResult {
    let all = table.commands().iter();
    let found: Vec<&Command> = if args.len() == 2 {
        all.collect()
    } else if args.len() == 5 && args.is(2, "filterby") {
        let value = &args[4];
        if args.is(3, "pattern") {
            all.filter(|command| glob::matches(value, command.facts.name.as_bytes())).collect()
        } else if args.is(3, "aclcat") {
            let wanted = [b"@", value].concat();
            all.filter(|command| command.facts.categories.iter().any(|c| c.as_bytes() == wanted)).collect()
        } else if args.is(3, "module") {
            Vec::new()
        } else {
            return Err(errors::SYNTAX.into());
        }
    } else {
        return Err(errors::SYNTAX.into());
    };
    ctx.reply.set(found.len());
    found.iter().for_each(|command| ctx.reply.bulk(command.facts.name.as_bytes()));
    Ok(())
}

fn getkeys(ctx: &mut Ctx, table: &'static Table, args: &Args<'_>) -> CommandResult {
    let inner = args.skip(2);
    let Some(command) = table.find(&inner[0]) else {
        return Err("ERR Invalid command specified".into());
    };
    let sub = inner.get(1).and_then(|name| subcommand(command.facts, name));
    let facts = sub.unwrap_or(command.facts);
    if facts.key_specs.is_empty() {
        return Err("ERR The command has no key arguments".into());
    }
    if !crate::command::arity_fits(facts.arity, inner.len()) {
        return Err("ERR Invalid number of arguments specified for command".into());
    }
    let places = key_places(facts, &inner)?;
    if places.is_empty() {
        return Err(Failure::from("ERR The command has no key arguments"));
    }
    ctx.reply.array(places.len());
    places.iter().for_each(|&at| ctx.reply.bulk(&inner[at]));
    Ok(())
}
