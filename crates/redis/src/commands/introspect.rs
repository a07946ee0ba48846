//! COMMAND: what commands there are, and where their keys stand.

use crate::args::Args;
use crate::command::{Facts, Find, Row, Table, key_places, subcommand};
use crate::command_docs::{self, Argument};
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
                ctx.drain().await?;
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
                ctx.drain().await?;
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
    match facts.subcommands.len() {
        // As Redis has it: nothing is a set, something an array.
        0 => ctx.reply.set(0),
        count => ctx.reply.array(count),
    }
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
    let docs = command_docs::of(facts.name);
    let flag = docs.map_or("", |docs| docs.flag);
    let texts = [
        ("summary", docs.map_or("", |docs| docs.summary)),
        ("since", facts.since),
        ("group", facts.group),
        ("complexity", docs.map_or("", |docs| docs.complexity)),
    ];
    let texts_of_old = [
        ("deprecated_since", docs.map_or("", |docs| docs.deprecated_since)),
        ("replaced_by", docs.map_or("", |docs| docs.replaced_by)),
    ];
    let arguments = docs.map_or(&[][..], |docs| &docs.arguments);
    let is_told = |(_, text): &&(&str, &str)| !text.is_empty();
    let fields = texts.iter().chain(&texts_of_old).filter(is_told).count()
        + usize::from(!flag.is_empty())
        + usize::from(!arguments.is_empty())
        + usize::from(!facts.subcommands.is_empty());
    ctx.reply.map(fields);
    for (name, text) in texts.iter().filter(is_told) {
        ctx.reply.bulk(name.as_bytes());
        ctx.reply.bulk(text.as_bytes());
    }
    if !flag.is_empty() {
        ctx.reply.bulk(b"doc_flags");
        strings(ctx, &[flag]);
    }
    for (name, text) in texts_of_old.iter().filter(is_told) {
        ctx.reply.bulk(name.as_bytes());
        ctx.reply.bulk(text.as_bytes());
    }
    if !arguments.is_empty() {
        ctx.reply.bulk(b"arguments");
        argument_docs(ctx, arguments);
    }
    if !facts.subcommands.is_empty() {
        ctx.reply.bulk(b"subcommands");
        ctx.reply.map(facts.subcommands.len());
        for sub in facts.subcommands {
            ctx.reply.bulk(sub.name.as_bytes());
            self::docs(ctx, sub);
        }
    }
}

fn argument_docs(ctx: &mut Ctx, arguments: &[Argument]) {
    ctx.reply.array(arguments.len());
    for argument in arguments {
        let texts = [
            ("token", argument.token),
            ("since", argument.since),
            ("deprecated_since", argument.deprecated_since),
        ];
        let texts = texts.iter().filter(|(_, text)| !text.is_empty());
        let more = usize::from(argument.key_spec.is_some())
            + usize::from(!argument.flags.is_empty())
            + usize::from(!argument.arguments.is_empty());
        ctx.reply.map(2 + texts.clone().count() + more);
        ctx.reply.bulk(b"name");
        ctx.reply.bulk(argument.name.as_bytes());
        ctx.reply.bulk(b"type");
        ctx.reply.bulk(argument.kind.as_bytes());
        if let Some(key_spec) = argument.key_spec {
            ctx.reply.bulk(b"key_spec_index");
            ctx.reply.int(key_spec);
        }
        for (name, text) in texts {
            ctx.reply.bulk(name.as_bytes());
            ctx.reply.bulk(text.as_bytes());
        }
        if !argument.flags.is_empty() {
            ctx.reply.bulk(b"flags");
            strings(ctx, &argument.flags);
        }
        if !argument.arguments.is_empty() {
            ctx.reply.bulk(b"arguments");
            argument_docs(ctx, &argument.arguments);
        }
    }
}

fn list(ctx: &mut Ctx, table: &'static Table, args: &Args<'_>) -> CommandResult {
    let all = table
        .commands()
        .iter()
        .flat_map(|command| std::iter::once(command.facts).chain(command.facts.subcommands.iter()));
    let found: Vec<&Facts> = if args.len() == 2 {
        all.collect()
    } else if args.len() == 5 && args.is(2, "filterby") {
        let value = &args[4].to_ascii_lowercase();
        if args.is(3, "pattern") {
            all.filter(|facts| glob::matches(value, facts.name.as_bytes())).collect()
        } else if args.is(3, "aclcat") {
            let wanted = [&b"@"[..], value].concat();
            all.filter(|facts| facts.categories.iter().any(|c| c.as_bytes() == wanted)).collect()
        } else if args.is(3, "module") {
            Vec::new()
        } else {
            return Err(errors::SYNTAX.into());
        }
    } else {
        return Err(errors::SYNTAX.into());
    };
    ctx.reply.array(found.len());
    found.iter().for_each(|facts| ctx.reply.bulk(facts.name.as_bytes()));
    Ok(())
}

fn getkeys(ctx: &mut Ctx, table: &'static Table, args: &Args<'_>) -> CommandResult {
    let inner = args.skip(2);
    let Some(command) = table.find(&inner[0]) else {
        return Err("ERR Invalid command specified".into());
    };
    if inner.len() > 1 && !command.has_subcommand_of(&inner) {
        return Err("ERR Invalid command specified".into());
    }
    let facts = command.facts_of(&inner);
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
