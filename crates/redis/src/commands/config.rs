//! CONFIG: the parameters that clients and tools look at or set.
//!
//! A parameter is live (it changes something here), fixed (told, and not to be changed while serving), or kept
//! (tools set it and read it back; it stands for something that this server does not have).

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use pumice_base::sync::lock;
use pumice_kv::Durability;

use crate::args::Args;
use crate::command::Row;
use crate::context::Ctx;
use crate::errors::{self, CommandResult, Failure};
use crate::options::Settings;
use crate::server::Server;
use crate::{glob, handler};

use super::config_values::{
    FORMER_NAMES, KEPT, Value, memory, name_of_today, output_limits, refuse, refuse_given, whole,
};

/// The commands of this module.
pub static ROWS: &[Row] = &[("config", handler!(config))];

/// Those of [`live`] that may be set, if perhaps only to the value that they have.
const SETTABLE: &[&str] = &[
    "appendfsync",
    "appendonly",
    "client-output-buffer-limit",
    "client-query-buffer-limit",
    "maxclients",
    "maxmemory",
    "maxmemory-policy",
    "protected-mode",
    "requirepass",
    "slowlog-log-slower-than",
    "slowlog-max-len",
    "tcp-keepalive",
    "timeout",
];

/// The eviction policies that Redis knows, in the order in which it lists them.
const POLICIES: &[&str] = &[
    "volatile-lru",
    "volatile-lfu",
    "volatile-random",
    "volatile-ttl",
    "allkeys-lru",
    "allkeys-lfu",
    "allkeys-random",
    "noeviction",
];

/// The parameter called `name` among the limits of Redis's compact encodings.
fn compact_limit<'a>(settings: &'a Settings, name: &str) -> Option<&'a AtomicU64> {
    let (entries, bytes) = (&settings.compact_entries, &settings.compact_bytes);
    Some(match name {
        "hash-max-listpack-entries" => &entries.hash,
        "hash-max-listpack-value" => &bytes.hash,
        "set-max-intset-entries" => &entries.set,
        "zset-max-listpack-entries" => &entries.zset,
        "zset-max-listpack-value" => &bytes.zset,
        _ => return None,
    })
}

/// The names of [`compact_limit`].
const COMPACT_LIMITS: &[&str] = &[
    "hash-max-listpack-entries",
    "hash-max-listpack-value",
    "set-max-intset-entries",
    "zset-max-listpack-entries",
    "zset-max-listpack-value",
];

/// The durability in Redis's words.
fn appendfsync(server: &Server) -> &'static str {
    match server.options.durability {
        Durability::Always => "always",
        Durability::EverySecond => "everysec",
        Durability::None => "no",
    }
}

/// Names and values of the parameters that are not kept, in the order of Redis's documentation.
fn live(server: &Server) -> Vec<(&'static str, Vec<u8>)> {
    let settings = &server.settings;
    let number = |value: &AtomicU64| value.load(Ordering::Relaxed).to_string();
    let [slave, pubsub] = *lock(&settings.output_limits_kept);
    let limits = format!(
        "normal {} {} {} slave {} {} {} pubsub {} {} {}",
        number(&settings.output_hard_bytes),
        number(&settings.output_soft_bytes),
        number(&settings.output_soft_seconds),
        slave[0],
        slave[1],
        slave[2],
        pubsub[0],
        pubsub[1],
        pubsub[2],
    );
    let yes_no = |value: bool| if value { "yes" } else { "no" }.to_string();
    let mut all = vec![
        ("appendfsync", appendfsync(server).to_string()),
        ("appendonly", yes_no(true)),
        ("bind", server.options.bind.clone()),
        ("client-output-buffer-limit", limits),
        ("client-query-buffer-limit", number(&settings.query_buffer_bytes_max)),
        ("cluster-enabled", yes_no(false)),
        ("daemonize", yes_no(false)),
        ("databases", crate::keyspace::DATABASES.to_string()),
        ("dbfilename", String::new()),
        ("dir", server.options.directory.display().to_string()),
        ("enable-debug-command", server.options.debug.name().to_string()),
        ("logfile", String::new()),
        ("maxclients", number(&settings.clients_max)),
        ("maxmemory", server.options.memory_bytes.to_string()),
        ("maxmemory-policy", settings.policy().to_string()),
        ("port", server.options.port.to_string()),
        ("proto-max-bulk-len", crate::resp::parser::BULK_BYTES_MAX.to_string()),
        ("protected-mode", yes_no(settings.protected_mode.load(Ordering::Relaxed))),
        ("replicaof", String::new()),
        ("slowlog-log-slower-than", settings.slowlog_slower_than_us.load(Ordering::Relaxed).to_string()),
        ("slowlog-max-len", number(&settings.slowlog_entries_max)),
        ("tcp-keepalive", pumice_reactor::KEEPALIVE_SECONDS.to_string()),
        ("timeout", number(&settings.timeout_seconds)),
    ];
    let limits = COMPACT_LIMITS.iter();
    all.extend(limits.filter_map(|name| Some((*name, number(compact_limit(settings, name)?)))));
    let mut all: Vec<_> = all.into_iter().map(|(name, value)| (name, value.into_bytes())).collect();
    all.push(("requirepass", settings.password()));
    all
}

/// The value of a parameter that is only kept.
pub(super) fn kept(server: &Server, name: &str) -> String {
    let set = lock(&server.settings.kept);
    if let Some((_, value)) = set.iter().find(|(known, _)| known == name) {
        return value.clone();
    }
    KEPT.iter().find(|(known, ..)| *known == name).map_or("", |(_, value, _)| value).to_string()
}

/// All parameters, under their names and their former ones.
fn all(server: &Server) -> Vec<(&'static str, Vec<u8>)> {
    let mut all = live(server);
    all.extend(KEPT.iter().map(|(name, ..)| (*name, kept(server, name).into_bytes())));
    for (former, name) in FORMER_NAMES {
        if let Some((_, value)) = all.iter().find(|(known, _)| known == name) {
            all.push((former, value.clone()));
        }
    }
    all
}

/// Answers parameters in the order in which they were asked for, each once: one that is named is called as the client
/// called it, in any case; the names that a pattern finds are ours.
fn get(ctx: &mut Ctx, args: &Args<'_>) {
    let all = all(&ctx.server);
    let mut found: Vec<(&[u8], &[u8])> = Vec::new();
    for wanted in args.iter_from(2) {
        let is_new = |found: &[(&[u8], &[u8])], name: &[u8]| {
            !found.iter().any(|(known, _)| known.eq_ignore_ascii_case(name))
        };
        if wanted.iter().any(|b| b"[*?".contains(b)) {
            let pattern = wanted.to_ascii_lowercase();
            for (name, value) in &all {
                if is_new(&found, name.as_bytes()) && glob::matches(&pattern, name.as_bytes()) {
                    found.push((name.as_bytes(), value));
                }
            }
        } else if let Some((_, value)) =
            all.iter().find(|(name, _)| wanted.eq_ignore_ascii_case(name.as_bytes()))
            && is_new(&found, wanted)
        {
            found.push((wanted, value));
        }
    }
    ctx.reply.map(found.len());
    for (name, value) in found {
        ctx.reply.bulk(name);
        ctx.reply.bulk(value);
    }
}

async fn config(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    match args[1].to_ascii_lowercase().as_slice() {
        b"get" => get(ctx, &args),
        b"set" => {
            set(&ctx.server, &args)?;
            ctx.reply.ok();
        }
        b"resetstat" => {
            ctx.server.stats.reset();
            ctx.reply.ok();
        }
        b"rewrite" => {
            let file = ctx.server.options.config_file.display().to_string();
            return Err(match file.as_str() {
                "" => "ERR The server is running without a config file".into(),
                file => Failure::quoting(
                    "ERR Rewriting config file: it is not rewritten here, edit '",
                    file.as_bytes(),
                    "'",
                ),
            });
        }
        _ => super::client::help(
            ctx,
            &[
                "CONFIG <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
                "GET <pattern>",
                "    Return parameters matching the glob-like <pattern> and their values.",
                "SET <directive> <value>",
                "    Set the configuration <directive> to <value>.",
                "RESETSTAT",
                "    Reset statistics reported by the INFO command.",
                "REWRITE",
                "    Rewrite the configuration file.",
                "HELP",
                "    Prints this help.",
            ],
        ),
    }
    Ok(())
}

/// Sets all parameters, or none when one cannot be (config.c, configSetCommand).
fn set(server: &Server, args: &Args<'_>) -> CommandResult {
    if !args.len().is_multiple_of(2) {
        return Err(errors::SYNTAX.into());
    }
    let all = all(server);
    let mut pairs: Vec<(&'static str, &[u8])> = Vec::new();
    // Names first, as Redis does: what is wrong with a value is told only of parameters that could be set.
    for at in (2..args.len()).step_by(2) {
        let given = &args[at];
        let known =
            all.iter().map(|(name, _)| *name).find(|name| given.eq_ignore_ascii_case(name.as_bytes()));
        let Some(name) = known else {
            let why = "ERR Unknown option or number of arguments for CONFIG SET - '";
            return Err(Failure::quoting(why, given, "'"));
        };
        let today = name_of_today(name);
        let is_settable = SETTABLE.contains(&today) || COMPACT_LIMITS.contains(&today);
        if !is_settable && !KEPT.iter().any(|(kept, ..)| *kept == today) {
            return Err(refuse_given(given, "can't set immutable config"));
        }
        if pairs.iter().any(|(before, _)| *before == name) {
            return Err(refuse_given(given, "duplicate parameter"));
        }
        pairs.push((name, &args[at + 1]));
    }
    let mut checked = Vec::with_capacity(pairs.len());
    for (name, value) in pairs {
        checked.push((name_of_today(name), check(server, name, value)?));
    }
    for (name, value) in checked {
        apply(server, name, &value);
    }
    Ok(())
}

/// The value as it is kept, of a parameter that may be set.
fn check(server: &Server, name: &str, value: &[u8]) -> Result<Vec<u8>, Failure> {
    let today = name_of_today(name);
    if today == "requirepass" {
        return Ok(value.to_vec());
    }
    // Nothing else takes what is no text.
    let value = &*String::from_utf8_lossy(value);
    let checked = match today {
        "protected-mode" => Value::YesNo.check(name, value),
        "maxclients" => {
            let wanted = Value::Whole(1, i64::from(u32::MAX)).check(name, value)?;
            let most = server.options.clients_possible;
            if wanted.parse().is_ok_and(|wanted: u64| wanted > most) {
                let why = "The operating system is not able to handle the specified number of clients";
                return Err(refuse(name, &format!("{why}, try with {most}")));
            }
            Ok(wanted)
        }
        "timeout" => Value::INT.check(name, value),
        "slowlog-max-len" => Value::Whole(0, i64::MAX).check(name, value),
        "client-query-buffer-limit" => Value::Memory(1 << 20).check(name, value),
        "slowlog-log-slower-than" => Value::Whole(-1, i64::MAX).check(name, value),
        "client-output-buffer-limit" => output_limits(value).map(|_| value.to_string()),
        "maxmemory-policy" => Value::OneOf(POLICIES).check(name, value),
        _ if COMPACT_LIMITS.contains(&today) && today.ends_with("-value") => {
            Value::Memory(0).check(name, value)
        }
        _ if COMPACT_LIMITS.contains(&today) => Value::Whole(0, i64::MAX).check(name, value),
        "appendfsync" => {
            let word = Value::OneOf(&["everysec", "always", "no"]).check(name, value)?;
            let why = "how soon a write is safe is chosen at start (--durability)";
            if word == appendfsync(server) { Ok(word) } else { Err(refuse(name, why)) }
        }
        "appendonly" => {
            let word = Value::YesNo.check(name, value)?;
            let why = "every write is kept without such a file; how soon it is safe is chosen at start (--durability)";
            if word == "yes" { Ok(word) } else { Err(refuse(name, why)) }
        }
        "tcp-keepalive" => {
            let seconds = Value::INT.check(name, value)?;
            let all = pumice_reactor::KEEPALIVE_SECONDS.to_string();
            let why = format!("it is {all} seconds for every connection");
            if seconds == all { Ok(seconds) } else { Err(refuse(name, &why)) }
        }
        "maxmemory" => {
            let bytes = Value::Memory(0).check(name, value)?;
            let budget = server.options.memory_bytes;
            let why = format!(
                "memory is chosen at start (--memory, {budget} bytes now); data may exceed it, and nothing is evicted"
            );
            if bytes == budget.to_string() { Ok(bytes) } else { Err(refuse(name, &why)) }
        }
        _ => match KEPT.iter().find(|(known, ..)| *known == today) {
            Some((.., kind)) => kind.check(name, value),
            None => Err(refuse(name, "can't set immutable config")),
        },
    };
    checked.map(String::into_bytes)
}

fn policy(value: &str) -> Option<&'static str> {
    POLICIES.iter().find(|known| known.eq_ignore_ascii_case(value)).copied()
}

fn apply(server: &Server, name: &str, value: &[u8]) {
    let settings = &server.settings;
    if name == "requirepass" {
        settings.set_password(value);
        return;
    }
    let value = &*String::from_utf8_lossy(value);
    let store = |into: &AtomicU64| {
        if let Some(parsed) = memory(value) {
            into.store(parsed, Ordering::Relaxed);
        }
    };
    let store_signed = |into: &AtomicI64| {
        if let Some(parsed) = whole(value) {
            into.store(parsed, Ordering::Relaxed);
        }
    };
    match name {
        "protected-mode" => {
            settings.protected_mode.store(value.eq_ignore_ascii_case("yes"), Ordering::Relaxed)
        }
        "maxclients" => store(&settings.clients_max),
        "timeout" => store(&settings.timeout_seconds),
        "slowlog-max-len" => {
            store(&settings.slowlog_entries_max);
            let entries_max = settings.slowlog_entries_max.load(Ordering::Relaxed) as usize;
            server.stats.slowlog().entries.truncate(entries_max);
        }
        "slowlog-log-slower-than" => store_signed(&settings.slowlog_slower_than_us),
        "client-query-buffer-limit" => store(&settings.query_buffer_bytes_max),
        "client-output-buffer-limit" => {
            let Ok([normal, slave, pubsub]) = output_limits(value) else { return };
            if let Some([hard, soft, seconds]) = normal {
                settings.output_hard_bytes.store(hard, Ordering::Relaxed);
                settings.output_soft_bytes.store(soft, Ordering::Relaxed);
                settings.output_soft_seconds.store(seconds, Ordering::Relaxed);
            }
            for (kept, set) in lock(&settings.output_limits_kept).iter_mut().zip([slave, pubsub]) {
                *kept = set.unwrap_or(*kept);
            }
        }
        "appendfsync" | "appendonly" | "maxmemory" | "tcp-keepalive" => {}
        "maxmemory-policy" => {
            if let Some(policy) = policy(value) {
                *lock(&settings.policy) = policy;
            }
        }
        _ if COMPACT_LIMITS.contains(&name) => {
            if let Some(limit) = compact_limit(settings, name) {
                store(limit);
            }
        }
        _ => {
            let mut kept = lock(&settings.kept);
            kept.retain(|(known, _)| known != name);
            kept.push((name.to_string(), value.to_string()));
        }
    }
}
