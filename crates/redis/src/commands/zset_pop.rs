//! ZPOPMIN, ZPOPMAX, ZMPOP: the ends of sorted sets.

use bytes::Bytes;
use pumice_kv::{Direction, Want};

use super::collection::damaged;
use super::set_algebra::counted_keys;
use super::zset::{decode_order, remove};
use super::zset_range::write_member;
use super::zset_rank::walk;
use super::zset_spec::OrderRange;
use crate::args::Args;
use crate::command::Row;
use crate::context::Ctx;
use crate::errors::{self, CommandResult, Failure};
use crate::handler;
use crate::keyspace::{Collection, Type};

/// The commands of this module.
pub static ROWS: &[Row] =
    &[("zpopmin", handler!(zpopmin)), ("zpopmax", handler!(zpopmax)), ("zmpop", handler!(zmpop))];

/// Removes up to `count` members from one end. Hold the latch.
async fn pop(
    ctx: &mut Ctx,
    mut zset: Collection,
    count: u64,
    end: Direction,
) -> Result<Vec<(Bytes, f64)>, Failure> {
    let wanted = count.min(zset.count);
    let mut popped = Vec::new();
    let mut scan = walk(ctx, &zset, &OrderRange::ALL, end, Want::Values);
    while (popped.len() as u64) < wanted {
        let Some((field, value)) = scan.next(ctx).await? else {
            return Err(damaged(&zset, popped.len() as u64));
        };
        popped.push(decode_order(&field, &value)?);
    }
    if popped.is_empty() {
        return Ok(popped);
    }
    let mut change = ctx.change();
    for (member, score) in &popped {
        remove(&mut change, &mut zset, member, *score);
    }
    change.put_collection(&mut zset, true);
    ctx.commit(change).await?;
    Ok(popped)
}

async fn pop_one_key(ctx: &mut Ctx, args: Args<'_>, end: Direction) -> CommandResult {
    let count = match args.len() {
        2 => None,
        3 => Some(args.int_or(2, errors::NOT_POSITIVE)?),
        _ => return Err(errors::SYNTAX.into()),
    };
    if count.is_some_and(|count| count < 0) {
        return Err(errors::NOT_POSITIVE.into());
    }
    let popped = {
        let _held = ctx.latch([&args[1]]).await;
        match ctx.collection(&args[1], Type::Zset).await? {
            Some(zset) => pop(ctx, zset, count.unwrap_or(1) as u64, end).await?,
            None => Vec::new(),
        }
    };
    let nested = count.is_some() && ctx.reply.is_resp3();
    ctx.reply.array(if nested { popped.len() } else { 2 * popped.len() });
    for (member, score) in popped {
        if nested {
            ctx.reply.array(2);
        }
        ctx.reply.bulk_bytes(member);
        ctx.reply.double(score);
    }
    Ok(())
}

async fn zpopmin(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    pop_one_key(ctx, args, Direction::Forward).await
}

async fn zpopmax(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    pop_one_key(ctx, args, Direction::Backward).await
}

async fn zmpop(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    let (keys, at) = pop_keys(&args)?;
    let end = match args.get(at) {
        Some(word) if word.eq_ignore_ascii_case(b"min") => Direction::Forward,
        Some(word) if word.eq_ignore_ascii_case(b"max") => Direction::Backward,
        _ => return Err(errors::SYNTAX.into()),
    };
    let count = pop_count(&args, at + 1)?;
    let _held = ctx.latch(keys.iter().copied()).await;
    for key in keys {
        let Some(zset) = ctx.collection(key, Type::Zset).await? else { continue };
        let popped = pop(ctx, zset, count, end).await?;
        ctx.reply.array(2);
        ctx.reply.bulk(key);
        ctx.reply.array(popped.len());
        for (member, score) in popped {
            if !ctx.reply.is_resp3() {
                ctx.reply.array(2);
            }
            write_member(&mut ctx.reply, member, Some(score));
        }
        return Ok(());
    }
    ctx.reply.null_array();
    Ok(())
}

/// `numkeys key…` of ZMPOP and LMPOP; where the end to pop from stands.
pub(super) fn pop_keys<'a>(args: &Args<'a>) -> Result<(Vec<&'a [u8]>, usize), Failure> {
    let count = args.int_or(1, errors::NUMKEYS)?;
    if count < 1 {
        return Err(errors::NUMKEYS.into());
    }
    if count >= args.len() as i64 - 2 {
        return Err(errors::SYNTAX.into());
    }
    counted_keys(args, 1)
}

/// `[COUNT count]` of ZMPOP and LMPOP, at the end.
pub(super) fn pop_count(args: &Args<'_>, at: usize) -> Result<u64, Failure> {
    const COUNT: &str = "ERR count should be greater than 0";
    if at == args.len() {
        return Ok(1);
    }
    if !args.is(at, "count") || at + 1 >= args.len() {
        return Err(errors::SYNTAX.into());
    }
    let count = args.int_or(at + 1, COUNT)?;
    if count < 1 {
        return Err(COUNT.into());
    }
    if at + 2 != args.len() {
        return Err(errors::SYNTAX.into());
    }
    Ok(count as u64)
}
