//! Walking over a database: SCAN, KEYS, RANDOMKEY, DBSIZE.

use std::ops::Bound;

use bytes::Bytes;
use pumice_kv::{Direction, Want};

use crate::args::Args;
use crate::collected::Collected;
use crate::command::Row;
use crate::context::Ctx;
use crate::errors::{self, CommandResult};
use crate::keyspace::{HEAD_PREFIX_BYTES, RawKey, Space, Type, after_prefix, head_prefix, is_expired};
use crate::{glob, handler, number};

/// The commands of this module.
pub static ROWS: &[Row] = &[
    ("scan", handler!(scan)),
    ("keys", handler!(keys)),
    ("randomkey", handler!(randomkey)),
    ("dbsize", handler!(dbsize)),
];

/// What KEYS may answer, in bytes: its reply is one piece.
const KEYS_BYTES_MAX: usize = 64 << 20;
/// SCAN looks at no more keys than this in one call, whatever COUNT says.
const SCAN_COUNT_MAX: u64 = 100_000;
/// What a key takes beside its bytes, while it is collected and in the reply: where all take [`Ctx::page_bytes`], SCAN stops at the next
/// one, whatever COUNT says.
const SCAN_KEY_BYTES: usize = size_of::<Bytes>() + 16;
/// Random draws before RANDOMKEY takes the first live key instead.
const RANDOM_DRAWS_MAX: usize = 50;

async fn scan(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    let cursor = number::parse_cursor(&args[1]).ok_or(errors::INVALID_CURSOR)?;
    let (mut pattern, mut count, mut kind, mut any_kind) = (None, 10u64, None, true);
    let mut at = 2;
    while at < args.len() {
        let has_value = at + 1 < args.len();
        if args.is(at, "count") && has_value {
            let given = args.int(at + 1)?;
            count = u64::try_from(given).ok().filter(|&n| n > 0).ok_or(errors::SYNTAX)?;
        } else if args.is(at, "match") && has_value {
            pattern = args.get(at + 1).filter(|pattern| *pattern != b"*");
        } else if args.is(at, "type") && has_value {
            // A type that there is not matches nothing.
            (kind, any_kind) = (Type::from_name(&args[at + 1]), false);
        } else {
            return Err(errors::SYNTAX.into());
        }
        at += 2;
    }
    let space = ctx.space();
    let prefix = pattern.map(glob::literal_prefix).unwrap_or_default();
    let heads = head_prefix(space);
    let resumed = ctx.server.cursors.load(cursor, &heads).map(|raw| raw.slice(HEAD_PREFIX_BYTES..));
    let from = match &resumed {
        Some(key) if cursor != 0 && key[..] > prefix[..] => &key[..],
        _ => &prefix[..],
    };
    let end = after_prefix(&prefix);
    let upper = end.as_ref().map_or(Bound::Unbounded, |end| Bound::Excluded(&end[..]));
    let mut walk = ctx.scan_keys(space, Bound::Included(from), upper, Direction::Forward, Want::Keys);
    let mut found = Vec::new();
    let mut next = None;
    let (mut looked_at, mut bytes, bytes_max) = (0, 0, ctx.page_bytes());
    while let Some((key, entry)) = walk.next(ctx).await? {
        if looked_at >= count.min(SCAN_COUNT_MAX) || bytes >= bytes_max {
            next = Some(key);
            break;
        }
        looked_at += 1;
        let is_named = pattern.is_none_or(|pattern| glob::matches(pattern, &key));
        if is_named && !any_kind {
            // Redis looks up the key to learn its type.
            ctx.count_look_up(true);
        }
        let fits = any_kind || (kind.is_some() && kind == Type::from_tag(entry.tag));
        if fits && is_named {
            bytes += key.len() + SCAN_KEY_BYTES;
            found.push(key);
        }
    }
    let cursor = next.map_or(0, |key| ctx.server.cursors.save(&[&heads[..], &key].concat()));
    ctx.reply.array(2);
    ctx.reply.bulk(cursor.to_string().as_bytes());
    ctx.reply.array(found.len());
    for key in found {
        ctx.reply.bulk(&key);
    }
    Ok(())
}

async fn keys(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    let pattern = &args[1];
    let prefix = glob::literal_prefix(pattern);
    let end = after_prefix(&prefix);
    let upper = end.as_ref().map_or(Bound::Unbounded, |end| Bound::Excluded(&end[..]));
    let space = ctx.space();
    let mut walk = ctx.scan_keys(space, Bound::Included(&prefix), upper, Direction::Forward, Want::Keys);
    let hole = ctx.reply.hole();
    let before = ctx.reply.len();
    let mut count = 0;
    let mut collected = Collected::new(ctx.server.clone(), "KEYS");
    while let Some((key, _)) = walk.next(ctx).await? {
        if glob::matches(pattern, &key) {
            ctx.reply.bulk(&key);
            count += 1;
            let bytes = ctx.reply.len() - before;
            // EXEC counts all that it holds.
            let is_too_much = !ctx.in_exec() && collected.hold(bytes as u64).is_err();
            if bytes > KEYS_BYTES_MAX || is_too_much {
                return Err("ERR more keys match than fit into one answer: walk them with SCAN".into());
            }
        }
    }
    ctx.reply.fill_array(hole, count);
    Ok(())
}

async fn randomkey(ctx: &mut Ctx, _args: Args<'_>) -> CommandResult {
    let space = ctx.space();
    let prefix = head_prefix(space);
    for _ in 0..RANDOM_DRAWS_MAX {
        let node = ctx.server.node.clone();
        let drawn =
            node.random_key(&prefix, ctx.rng()).await.map_err(|e| crate::keyspace::store_failure(&e))?;
        let Some((place, raw)) = drawn else { break };
        let meta = ctx.meta(place, &RawKey::from_slice(&raw)).await?;
        if meta.is_some_and(|meta| !is_expired(meta.expire_ms, ctx.now_ms)) {
            ctx.reply.bulk(&raw[HEAD_PREFIX_BYTES..]);
            return Ok(());
        }
    }
    let (low, high) = (Bound::Unbounded, Bound::Unbounded);
    let mut walk = ctx.scan_keys(space, low, high, Direction::Forward, Want::Keys);
    let first = walk.next(ctx).await?;
    match first {
        Some((key, _)) => ctx.reply.bulk(&key),
        None => ctx.reply.null(),
    }
    Ok(())
}

async fn dbsize(ctx: &mut Ctx, _args: Args<'_>) -> CommandResult {
    // A count tells of no key: nobody waits for it where it is not known when that ends.
    let node = ctx.server.node.clone();
    node.depend_on_all_but_stalled(&mut ctx.gate);
    let size = ctx.database_size(ctx.session.database);
    ctx.reply.count(size);
    Ok(())
}

impl Ctx {
    /// Keys of a database, expired ones that are still stored included, and those that are not durable yet.
    pub(crate) fn database_size(&self, database: usize) -> u64 {
        self.count_of(self.space_of(database))
    }

    /// Those of them that expire.
    pub(crate) fn expiring_keys(&self, database: usize) -> u64 {
        self.count_of(self.space_of(database).expiring())
    }

    fn count_of(&self, space: Space) -> u64 {
        let pending = self.transaction.as_ref().map_or(0, |overlay| overlay.tally(space));
        u64::try_from(self.server.node.tally(space.0) + pending).unwrap_or(0)
    }
}
