//! CONFIG: the parameters that clients and tools look at or set.
//!
//! A parameter is live (it changes something here), fixed (told, and not to be changed while serving), or kept
//! (tools set it and read it back; it stands for something that this server does not have).

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use pumice_base::sync::lock;

use crate::args::Args;
use crate::command::Row;
use crate::context::Ctx;
use crate::errors::{CommandResult, Failure};
use crate::options::Settings;
use crate::server::Server;
use crate::{glob, handler};

use super::config_values::{KEPT, Value, memory, output_limits, refuse, whole};

/// The commands of this module.
pub static ROWS: &[Row] = &[("config", handler!(config))];

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

/// The parameter called `name` among the limits of Redis's compact encodings, under its name and its former one.
fn compact_limit<'a>(settings: &'a Settings, name: &str) -> Option<&'a AtomicU64> {
    let (entries, bytes) = (&settings.compact_entries, &settings.compact_bytes);
    Some(match name {
        "hash-max-listpack-entries" | "hash-max-ziplist-entries" => &entries.hash,
        "hash-max-listpack-value" | "hash-max-ziplist-value" => &bytes.hash,
        "set-max-intset-entries" => &entries.set,
        "zset-max-listpack-entries" | "zset-max-ziplist-entries" => &entries.zset,
        "zset-max-listpack-value" | "zset-max-ziplist-value" => &bytes.zset,
        _ => return None,
    })
}

/// The names of [`compact_limit`].
const COMPACT_LIMITS: &[&str] = &[
    "hash-max-listpack-entries",
    "hash-max-listpack-value",
    "hash-max-ziplist-entries",
    "hash-max-ziplist-value",
    "set-max-intset-entries",
    "zset-max-listpack-entries",
    "zset-max-listpack-value",
    "zset-max-ziplist-entries",
    "zset-max-ziplist-value",
];

/// Names and values of the parameters that are not kept, in the order of Redis's documentation.
fn live(server: &Server) -> Vec<(&'static str, String)> {
    let settings = &server.settings;
    let number = |value: &AtomicU64| value.load(Ordering::Relaxed).to_string();
    let limits = format!(
        "normal {} {} {} slave 268435456 67108864 60 pubsub 33554432 8388608 60",
        number(&settings.output_hard_bytes),
        number(&settings.output_soft_bytes),
        number(&settings.output_soft_seconds)
    );
    let yes_no = |value: bool| if value { "yes" } else { "no" }.to_string();
    let mut all = vec![
        ("appendonly", yes_no(true)),
        ("bind", String::new()),
        ("client-output-buffer-limit", limits),
        ("client-query-buffer-limit", number(&settings.query_buffer_bytes_max)),
        ("daemonize", yes_no(false)),
        ("databases", crate::keyspace::DATABASES.to_string()),
        ("dbfilename", String::new()),
        ("dir", server.options.directory.display().to_string()),
        ("enable-debug-command", server.options.debug.name().to_string()),
        ("maxclients", number(&settings.clients_max)),
        ("maxmemory", server.options.memory_bytes.to_string()),
        ("maxmemory-policy", settings.policy().to_string()),
        ("port", server.options.port.to_string()),
        ("proto-max-bulk-len", crate::resp::parser::BULK_BYTES_MAX.to_string()),
        ("protected-mode", yes_no(settings.protected_mode.load(Ordering::Relaxed))),
        ("replicaof", String::new()),
        ("requirepass", settings.password()),
        ("slaveof", String::new()),
        ("slowlog-log-slower-than", settings.slowlog_slower_than_us.load(Ordering::Relaxed).to_string()),
        ("slowlog-max-len", number(&settings.slowlog_entries_max)),
        ("timeout", number(&settings.timeout_seconds)),
    ];
    let limits = COMPACT_LIMITS.iter();
    all.extend(limits.filter_map(|name| Some((*name, number(compact_limit(settings, name)?)))));
    all
}

fn all(server: &Server) -> Vec<(String, String)> {
    let kept = lock(&server.settings.kept);
    let mut all: Vec<(String, String)> =
        live(server).into_iter().map(|(name, value)| (name.to_string(), value)).collect();
    for (name, value, _) in KEPT {
        let set = kept.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone());
        all.push((name.to_string(), set.unwrap_or_else(|| value.to_string())));
    }
    all
}

async fn config(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    match args[1].to_ascii_lowercase().as_slice() {
        b"get" => {
            let all = all(&ctx.server);
            let wanted: Vec<Vec<u8>> = args.iter_from(2).map(<[u8]>::to_ascii_lowercase).collect();
            let found: Vec<_> = all
                .into_iter()
                .filter(|(name, _)| wanted.iter().any(|pattern| glob::matches(pattern, name.as_bytes())))
                .collect();
            ctx.reply.map(found.len());
            for (name, value) in found {
                ctx.reply.bulk(name.as_bytes());
                ctx.reply.bulk(value.as_bytes());
            }
        }
        b"set" => {
            set(&ctx.server, &args)?;
            ctx.reply.ok();
        }
        b"resetstat" => {
            ctx.server.stats.reset();
            ctx.reply.ok();
        }
        b"rewrite" => return Err("ERR The server is running without a config file".into()),
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

/// Sets all parameters, or none when one cannot be.
fn set(server: &Server, args: &Args<'_>) -> CommandResult {
    if !args.len().is_multiple_of(2) {
        return Err(crate::errors::wrong_arity("config|set"));
    }
    let mut pairs: Vec<(String, String)> = Vec::new();
    for at in (2..args.len()).step_by(2) {
        let name = String::from_utf8_lossy(&args[at]).to_ascii_lowercase();
        let value = String::from_utf8_lossy(&args[at + 1]).into_owned();
        if pairs.iter().any(|(known, _)| *known == name) {
            return Err(refuse(&name, "duplicate parameter"));
        }
        pairs.push((name, value));
    }
    // Names first, as Redis does: what is wrong with a value is told only of parameters that could be set.
    for (name, value) in &mut pairs {
        *value = check(server, name, value)?;
    }
    for (name, value) in pairs {
        apply(server, &name, &value);
    }
    Ok(())
}

/// The value as it is kept.
fn check(server: &Server, name: &str, value: &str) -> Result<String, Failure> {
    let kept = KEPT.iter().find(|(known, ..)| *known == name).map(|(.., kind)| kind);
    match name {
        "requirepass" => Ok(value.to_string()),
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
        _ if COMPACT_LIMITS.contains(&name) && name.ends_with("-value") => {
            Value::Memory(0).check(name, value)
        }
        _ if COMPACT_LIMITS.contains(&name) => Value::Whole(0, i64::MAX).check(name, value),
        "appendonly" => {
            let word = Value::YesNo.check(name, value)?;
            let why = "every write is kept without such a file; how soon it is safe is chosen at start (--durability)";
            if word == "yes" { Ok(word) } else { Err(refuse(name, why)) }
        }
        "maxmemory" => {
            let bytes = Value::Memory(0).check(name, value)?;
            let budget = server.options.memory_bytes;
            if bytes == budget.to_string() {
                return Ok(bytes);
            }
            let why = format!(
                "memory is chosen at start (--memory, {budget} bytes now); data may exceed it, and nothing is evicted"
            );
            Err(refuse(name, &why))
        }
        _ => match kept {
            Some(kind) => kind.check(name, value),
            None if live(server).iter().any(|(known, _)| *known == name) => {
                Err(refuse(name, "can't set immutable config"))
            }
            None => Err(Failure::new(format!(
                "ERR Unknown option or number of arguments for CONFIG SET - '{name}'"
            ))),
        },
    }
}

fn policy(value: &str) -> Option<&'static str> {
    POLICIES.iter().find(|known| known.eq_ignore_ascii_case(value)).copied()
}

fn apply(server: &Server, name: &str, value: &str) {
    let settings = &server.settings;
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
        "requirepass" => settings.set_password(value),
        "protected-mode" => {
            settings.protected_mode.store(value.eq_ignore_ascii_case("yes"), Ordering::Relaxed)
        }
        "maxclients" => store(&settings.clients_max),
        "timeout" => store(&settings.timeout_seconds),
        "slowlog-max-len" => store(&settings.slowlog_entries_max),
        "slowlog-log-slower-than" => store_signed(&settings.slowlog_slower_than_us),
        "client-query-buffer-limit" => store(&settings.query_buffer_bytes_max),
        "client-output-buffer-limit" => {
            if let Ok(Some([hard, soft, seconds])) = output_limits(value) {
                settings.output_hard_bytes.store(hard, Ordering::Relaxed);
                settings.output_soft_bytes.store(soft, Ordering::Relaxed);
                settings.output_soft_seconds.store(seconds, Ordering::Relaxed);
            }
        }
        "appendonly" | "maxmemory" => {}
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
