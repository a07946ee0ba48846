//! LMOVE, RPOPLPUSH, LMPOP: elements that leave one list, perhaps for another.

use super::list::{End, element_at, open, pop, push, remove, take_one};
use super::zset_pop::{pop_count, pop_keys};
use crate::args::Args;
use crate::command::Row;
use crate::context::Ctx;
use crate::errors::{self, CommandResult};
use crate::handler;
use crate::keyspace::Type;

/// The commands of this module.
pub static ROWS: &[Row] =
    &[("lmove", handler!(lmove)), ("rpoplpush", handler!(rpoplpush)), ("lmpop", handler!(lmpop))];

async fn move_element(ctx: &mut Ctx, args: Args<'_>, from: End, to: End) -> CommandResult {
    let (source_key, target_key) = (&args[1], &args[2]);
    let _held = ctx.latch([source_key, target_key]).await;
    let Some(mut source) = open(ctx, source_key).await? else {
        ctx.reply.null();
        return Ok(());
    };
    let mut change = ctx.change();
    let value = if source_key == target_key {
        let at = if from == End::Left { source.first } else { source.end - 1 };
        let value = element_at(ctx, &source, at).await?;
        if from != to {
            remove(&mut change, &source, at);
            match from {
                End::Left => source.first += 1,
                End::Right => source.end -= 1,
            }
            source.count -= 1;
            push(&mut change, &mut source, to, &value);
        }
        change.put_collection(&mut source, from != to);
        value
    } else {
        let target = open(ctx, target_key).await?;
        let mut target = match target {
            Some(target) => target,
            None => ctx.collection_or_new(&mut change, target_key, Type::List).await?,
        };
        let value = take_one(ctx, &mut change, &mut source, from).await?;
        push(&mut change, &mut target, to, &value);
        change.put_collection(&mut target, true);
        value
    };
    ctx.commit(change).await?;
    ctx.reply.bulk_bytes(value);
    Ok(())
}

async fn lmove(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    let (from, to) = (End::parse(&args[3])?, End::parse(&args[4])?);
    move_element(ctx, args, from, to).await
}

async fn rpoplpush(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    move_element(ctx, args, End::Right, End::Left).await
}

async fn lmpop(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    let (keys, at) = pop_keys(&args)?;
    let end = args.get(at).map(End::parse).ok_or(errors::SYNTAX)??;
    let count = pop_count(&args, at + 1)?;
    let _held = ctx.latch(keys.iter().copied()).await;
    for key in keys {
        let Some(mut list) = open(ctx, key).await? else { continue };
        let wanted = list.count.min(count);
        ctx.reply.array(2);
        ctx.reply.bulk(key);
        ctx.reply.array(wanted as usize);
        let mut change = ctx.change();
        pop(ctx, &mut change, &mut list, end, wanted, "LMPOP").await?;
        return ctx.commit(change).await;
    }
    ctx.reply.null_array();
    Ok(())
}
