//! OBJECT and MEMORY: what is known of how a key is stored, in Redis's words.

use pumice_kv::Want;

use crate::args::Args;
use crate::command::Row;
use crate::context::Ctx;
use crate::errors::{self, CommandResult, Failure};
use crate::keyspace::{
    HINT_LONG_ELEMENT, HINT_MANY, HINT_NOT_INTEGERS, Head, HeadKey, StringHead, TAG_STRING_EDITED,
    TAG_STRING_FLOAT, Type, is_expired,
};
use crate::{handler, number};

/// The commands of this module.
pub static ROWS: &[Row] = &[("object", handler!(object)), ("memory", handler!(memory))];

/// Longer strings are neither embedded nor integers.
const EMBEDDED_BYTES_MAX: u64 = 44;

/// The length of a string that is there, if what it is need not be read to tell how Redis would keep it.
async fn long_string(ctx: &mut Ctx, key: &HeadKey, than: u64) -> Result<Option<u64>, Failure> {
    let meta = ctx.meta(key.place, key.raw()).await?.filter(|meta| !is_expired(meta.expire_ms, ctx.now_ms));
    Ok(meta.filter(|meta| Type::is_string(meta.tag) && meta.value_len > than).map(|meta| meta.value_len))
}

/// The encoding that Redis would use, as far as the head tells; `None` when the key is absent.
pub(super) async fn encoding(ctx: &mut Ctx, key: &HeadKey) -> Result<Option<&'static str>, Failure> {
    if long_string(ctx, key, EMBEDDED_BYTES_MAX).await?.is_some() {
        return Ok(Some("raw"));
    }
    Ok(match ctx.head(key).await? {
        None => None,
        Some(Head::String(string)) => Some(match (string.entry.tag, string.entry.value_len()) {
            (TAG_STRING_EDITED, _) => "raw",
            _ if integer(&string).is_some() => "int",
            (_, 0..=EMBEDDED_BYTES_MAX) => "embstr",
            _ => "raw",
        }),
        Some(Head::Collection(collection)) => {
            let is_big = collection.hints & (HINT_LONG_ELEMENT | HINT_MANY) != 0;
            Some(match collection.kind {
                Type::List => "quicklist",
                Type::Set if collection.hints & (HINT_NOT_INTEGERS | HINT_MANY) == 0 => "intset",
                Type::Set => "hashtable",
                Type::Hash if is_big => "hashtable",
                Type::Zset if is_big => "skiplist",
                _ => "listpack",
            })
        }
    })
}

/// The integer that Redis would keep in place of a string.
fn integer(string: &StringHead) -> Option<i64> {
    let is_text = [TAG_STRING_EDITED, TAG_STRING_FLOAT].contains(&string.entry.tag);
    if is_text || string.entry.large.is_some() { None } else { number::parse_int(&string.entry.value) }
}

/// What OBJECT REFCOUNT tells of an object that Redis shares between keys.
const SHARED: i64 = i32::MAX as i64;
/// Redis shares the integers below.
const SHARED_INTEGERS: i64 = 10_000;

pub(super) async fn refcount(ctx: &mut Ctx, key: &HeadKey) -> Result<i64, Failure> {
    let policy = ctx.server.settings.policy();
    // These keep a time or a count in each object.
    let keeps_one_each = policy.ends_with("lru") || policy.ends_with("lfu");
    if long_string(ctx, key, EMBEDDED_BYTES_MAX).await?.is_some() {
        return Ok(1);
    }
    let is_shared = match ctx.head(key).await? {
        Some(Head::String(string)) => {
            !keeps_one_each && integer(&string).is_some_and(|value| (0..SHARED_INTEGERS).contains(&value))
        }
        _ => false,
    };
    Ok(if is_shared { SHARED } else { 1 })
}

async fn object(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    let sub = args[1].to_ascii_lowercase();
    if sub == b"help" {
        super::client::help(
            ctx,
            &[
                "OBJECT <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
                "ENCODING <key>",
                "    Return the kind of internal representation used in order to store the value",
                "    associated with a <key>.",
                "FREQ <key>",
                "    Return the access frequency index of the <key>. The returned integer is",
                "    proportional to the logarithm of the recent access frequency of the key.",
                "IDLETIME <key>",
                "    Return the idle time of the <key>, that is the approximated number of",
                "    seconds elapsed since the last access to the key.",
                "REFCOUNT <key>",
                "    Return the number of references of the value associated with the specified",
                "    <key>.",
                "HELP",
                "    Prints this help.",
            ],
        );
        return Ok(());
    }
    let key = ctx.key(&args[2]);
    let encoding = encoding(ctx, &key).await?;
    ctx.count_look_up(encoding.is_some());
    let Some(encoding) = encoding else {
        ctx.reply.null();
        return Ok(());
    };
    let counts_accesses = ctx.server.settings.policy().ends_with("lfu");
    match sub.as_slice() {
        b"encoding" => ctx.reply.bulk(encoding.as_bytes()),
        b"refcount" => {
            let count = refcount(ctx, &key).await?;
            ctx.reply.int(count);
        }
        // Accesses are not noted per key: that would be a write per read.
        b"idletime" if counts_accesses => {
            return Err(
                "ERR An LFU maxmemory policy is selected, idle time not tracked. Please note that when \
                 switching between policies at runtime LRU and LFU data will take some time to adjust."
                    .into(),
            );
        }
        b"freq" if !counts_accesses => {
            return Err("ERR An LFU maxmemory policy is not selected, access frequency not tracked. Please note \
                 that when switching between policies at runtime LRU and LFU data will take some time to adjust."
                .into());
        }
        _ => ctx.reply.int(0),
    }
    Ok(())
}

/// Bytes that an entry takes besides key and value: record header, entry of its key table.
const ENTRY_BYTES: u64 = 48;
/// Elements looked at for an estimate when SAMPLES is not given.
const SAMPLES_DEFAULT: i64 = 5;

async fn memory(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    match args[1].to_ascii_lowercase().as_slice() {
        b"usage" => usage(ctx, &args).await?,
        b"doctor" => {
            ctx.reply.verbatim("Memory is bounded by the --memory budget; see INFO memory and INFO pumice.")
        }
        b"stats" => {
            let (resident, peak) = super::info::resident_bytes();
            let keys = (0..crate::keyspace::DATABASES).map(|d| ctx.database_size(d)).sum();
            ctx.reply.map(3);
            ctx.reply.bulk(b"peak.allocated");
            ctx.reply.count(peak);
            ctx.reply.bulk(b"total.allocated");
            ctx.reply.count(resident);
            ctx.reply.bulk(b"keys.count");
            ctx.reply.count(keys);
        }
        b"purge" => ctx.reply.ok(),
        _ => super::client::help(
            ctx,
            &[
                "MEMORY <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
                "DOCTOR",
                "    Return memory problems reports.",
                "PURGE",
                "    Attempt to purge dirty pages for reclamation by the allocator.",
                "STATS",
                "    Return information about the memory usage of the server.",
                "USAGE <key> [SAMPLES <count>]",
                "    Return memory in bytes used by <key> and its value. Nested values are",
                "    sampled up to <count> times (default: 5, 0 means sample all).",
                "HELP",
                "    Prints this help.",
            ],
        ),
    }
    Ok(())
}

/// Bytes of flash that a key takes, its elements estimated from a few of them.
async fn usage(ctx: &mut Ctx, args: &Args<'_>) -> CommandResult {
    let mut samples = SAMPLES_DEFAULT;
    if args.len() > 3 {
        if args.len() != 5 || !args.is(3, "samples") {
            return Err(errors::SYNTAX.into());
        }
        samples = args.int(4)?;
        if samples < 0 {
            return Err(errors::SYNTAX.into());
        }
    }
    let key = ctx.key(&args[2]);
    let own = ENTRY_BYTES + key.raw().len() as u64;
    if let Some(bytes) = long_string(ctx, &key, 0).await? {
        ctx.reply.count(own + bytes);
        return Ok(());
    }
    let total = match ctx.head(&key).await? {
        None => {
            ctx.reply.null();
            return Ok(());
        }
        Some(Head::String(string)) => own + string.entry.value_len(),
        Some(Head::Collection(collection)) => {
            let prefix = crate::keyspace::collection_prefix(key.space(), collection.id);
            let want = if samples == 0 { Want::Values } else { Want::values_of(samples as u64) };
            let mut scan = ctx.scan_prefix_of(collection.elements, &prefix, want);
            let (mut looked_at, mut bytes) = (0, 0u64);
            while (samples == 0 || looked_at < samples)
                && let Some((raw, entry)) = scan.next_raw(ctx).await?
            {
                looked_at += 1;
                bytes += ENTRY_BYTES + raw.len() as u64 + entry.value_len();
            }
            let per_element = if collection.kind == Type::Zset { 2 } else { 1 };
            // Of very many looked at, the product is longer than 64 bits; and the count is what flash says.
            let entries = u128::from(collection.count) * per_element;
            let elements = u128::from(bytes) * entries / (looked_at as u128).max(1);
            (u128::from(own + 40) + elements).min(i64::MAX as u128) as u64
        }
    };
    ctx.reply.count(total);
    Ok(())
}
