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
use crate::collected::Taken;
use crate::command::{Fast, FastHandler, Row};
use crate::context::Ctx;
use crate::errors::{self, CommandResult, Failure};
use crate::handler;
use crate::keyspace::{Collection, Type};
use crate::resp::reply::Reply;

/// The commands of this module.
pub static ROWS: &[Row] =
    &[("zpopmin", handler!(zpopmin)), ("zpopmax", handler!(zpopmax)), ("zmpop", handler!(zmpop))];

/// Those with a way without waiting.
pub static FAST: &[(&str, FastHandler)] = &[
    ("zpopmin", |ctx, args| Fast::from(pop_at_hand(ctx, args, Direction::Forward))),
    ("zpopmax", |ctx, args| Fast::from(pop_at_hand(ctx, args, Direction::Backward))),
];

/// ZPOPMIN or ZPOPMAX of one member that is not the last.
fn pop_at_hand(ctx: &mut Ctx, args: &Args<'_>, end: Direction) -> Result<(), Fast> {
    if args.len() != 2 {
        return Err(Fast::Slow);
    }
    let Some((mut zset, _held)) = ctx.open_at_hand(&args[1], Type::Zset)? else {
        ctx.reply.array(0);
        return Ok(());
    };
    if zset.count == 1 {
        return Err(Fast::Slow);
    }
    let mut scan = walk(ctx, &zset, &OrderRange::ALL, end, Want::Values);
    let (field, value) = scan.next_at_hand().ok_or(Fast::Slow)?;
    let (member, score) = decode_order(&field, &value)?;
    // While it sees the head as it was, memory would keep that.
    drop(scan);
    let mut change = ctx.change();
    remove(&mut change, &mut zset, &member, score);
    change.put_collection(&mut zset, true);
    ctx.commit_at_hand(change)?;
    ctx.reply.array(2);
    ctx.reply.bulk_bytes(member);
    ctx.reply.double(score);
    Ok(())
}

/// Removes `count` members, which is not more than there are, from one end, and answers each as `write` does; `by`: the command.
/// Hold the latch.
async fn pop(
    ctx: &mut Ctx,
    mut zset: Collection,
    count: u64,
    end: Direction,
    by: &'static str,
    write: impl Fn(&mut Reply, Bytes, f64),
) -> CommandResult {
    if count == 0 {
        return Ok(());
    }
    let mut change = ctx.change();
    let mut scan = walk(ctx, &zset, &OrderRange::ALL, end, Want::Values);
    let takes_all = count == zset.count;
    if takes_all {
        ctx.erase_elements(&mut change, &zset).await?;
    }
    let mut taken = Taken::new(ctx, by);
    while taken.count < count {
        let Some((field, value)) = scan.next(ctx).await? else { return Err(damaged(&zset, taken.count)) };
        let (member, score) = decode_order(&field, &value)?;
        if !takes_all {
            remove(&mut change, &mut zset, &member, score);
        }
        write(&mut ctx.reply, member, score);
        taken.note(ctx, &change)?;
    }
    if takes_all {
        zset.count = 0;
    }
    drop(scan);
    change.put_collection(&mut zset, true);
    ctx.commit(change).await
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
    let _held = ctx.latch([&args[1]]).await;
    let Some(zset) = ctx.collection(&args[1], Type::Zset).await? else {
        ctx.reply.array(0);
        return Ok(());
    };
    let wanted = zset.count.min(count.unwrap_or(1) as u64);
    let nested = count.is_some() && ctx.reply.is_resp3();
    ctx.reply.array(if nested { wanted as usize } else { 2 * wanted as usize });
    let by = if end == Direction::Forward { "ZPOPMIN" } else { "ZPOPMAX" };
    let write = |reply: &mut Reply, member, score| {
        if nested {
            reply.array(2);
        }
        reply.bulk_bytes(member);
        reply.double(score);
    };
    pop(ctx, zset, wanted, end, by, write).await
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
        let wanted = zset.count.min(count);
        ctx.reply.array(2);
        ctx.reply.bulk(key);
        ctx.reply.array(wanted as usize);
        let write = |reply: &mut Reply, member: Bytes, score| {
            if !reply.is_resp3() {
                reply.array(2);
            }
            write_member(reply, &member, Some(score));
        };
        return pop(ctx, zset, wanted, end, "ZMPOP", write).await;
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
