//! HSCAN, SSCAN and ZSCAN: the elements of a collection, some at a time.
//!
//! Elements lie by hash of their name, and the cursor is the hash to go on from. It needs no memory on the
//! server, means the same after a restart, and an element that is there throughout is answered exactly once.
//! Elements of one hash are answered together.

use std::ops::Bound;

use bytes::Bytes;
use pumice_kv::{Direction, Want};

use super::collection::{MEMBERS, hash_of_field, member_of};
use super::zset::decode_stored_score;
use crate::args::Args;
use crate::context::Ctx;
use crate::errors::{self, CommandResult};
use crate::glob;
use crate::keyspace::{Collection, HINT_LONG_ELEMENT, HINT_MANY, HINT_NOT_INTEGERS, Type};
use crate::number::{format_double, parse_cursor};

/// Most elements looked at by one call, whatever COUNT says. The reply is collected before it is sent: where that takes
/// [`Ctx::page_bytes`], a call stops at the next chance.
const VISITED_MAX: usize = 65_536;
/// What an element takes beside its bytes, while it is collected and in the reply.
const ELEMENT_BYTES: usize = size_of::<(Bytes, Bytes)>() + 16;

/// Redis's compact encoding keeps whole scores up to here as integers, and ZSCAN shows it.
const COMPACT_INTEGER_MAX: f64 = (i64::MAX / 2) as f64;

/// Answers `key cursor [MATCH pattern] [COUNT count]`.
pub(super) async fn scan(ctx: &mut Ctx, args: Args<'_>, kind: Type) -> CommandResult {
    let cursor = parse_cursor(&args[2]).ok_or(errors::INVALID_CURSOR)?;
    let held = ctx.latch([&args[1]]).await;
    let Some(collection) = ctx.collection_to_read(&args[1], kind).await? else {
        ctx.reply.array(2);
        ctx.reply.bulk(b"0");
        ctx.reply.array(0);
        return Ok(());
    };
    let (pattern, count) = options(&args)?;
    // Redis answers all of a compactly kept collection at once, so small collections never page.
    let everything = is_compact(&collection);
    let from = if everything { 0 } else { cursor };
    let mut found: Vec<(Bytes, Bytes)> = Vec::new();
    let mut next_cursor = 0;
    let bytes_max = ctx.page_bytes();
    if let Ok(from) = u32::try_from(from) {
        let from = from.to_be_bytes();
        let want = match kind {
            Type::Set => Want::Keys,
            _ if everything => Want::Values,
            _ => Want::Page { keys: count as u64, bytes: bytes_max as u64 },
        };
        let lower = Bound::Included(&from[..]);
        let mut elements =
            ctx.scan_elements(&collection, MEMBERS, lower, Bound::Unbounded, Direction::Forward, want);
        drop(held);
        let (mut visited, mut bytes, mut last_hash) = (0, 0, 0);
        while let Some((field, value)) = elements.next(ctx).await? {
            let hash = hash_of_field(&field);
            if !everything && (visited >= count || bytes >= bytes_max) && hash != last_hash {
                next_cursor = u64::from(hash);
                break;
            }
            visited += 1;
            last_hash = hash;
            let name = member_of(&field);
            if pattern.is_none_or(|pattern| glob::matches(pattern, &name)) {
                bytes += name.len() + value.len() + ELEMENT_BYTES;
                found.push((name, value));
            }
        }
    }
    ctx.reply.array(2);
    ctx.reply.bulk(next_cursor.to_string().as_bytes());
    ctx.reply.array(if kind == Type::Set { found.len() } else { 2 * found.len() });
    for (name, value) in found {
        ctx.reply.bulk_bytes(name);
        match kind {
            Type::Hash => ctx.reply.bulk_bytes(value),
            Type::Zset => {
                let score = decode_stored_score(&value)?;
                if everything && score == score.trunc() && score.abs() <= COMPACT_INTEGER_MAX {
                    ctx.reply.bulk_int(score as i64);
                } else {
                    ctx.reply.bulk(format_double(score).as_bytes());
                }
            }
            _ => {}
        }
    }
    Ok(())
}

fn options<'a>(args: &Args<'a>) -> Result<(Option<&'a [u8]>, usize), errors::Failure> {
    let (mut pattern, mut count) = (None, 10);
    let mut at = 3;
    while at < args.len() {
        let value = args.get(at + 1).ok_or(errors::SYNTAX)?;
        if args.is(at, "count") {
            count = args.int(at + 1)?;
            if count < 1 {
                return Err(errors::SYNTAX.into());
            }
        } else if args.is(at, "match") {
            pattern = (value != b"*").then_some(value);
        } else {
            return Err(errors::SYNTAX.into());
        }
        at += 2;
    }
    Ok((pattern, usize::try_from(count).unwrap_or(VISITED_MAX).min(VISITED_MAX)))
}

/// Whether Redis would keep the collection in one compact piece.
fn is_compact(collection: &Collection) -> bool {
    let large = if collection.kind == Type::Set { HINT_NOT_INTEGERS } else { HINT_LONG_ELEMENT };
    collection.hints & (large | HINT_MANY) == 0
}
