//! Hashes. Element: sub 0, field → value. (`collections` writes this module; HGET and HSET stand here as the
//! pattern.)

use crate::args::Args;
use crate::command::Row;
use crate::context::Ctx;
use crate::errors::{self, CommandResult};
use crate::handler;
use crate::keyspace::Type;

/// The commands of this module.
pub static ROWS: &[Row] = &[("hget", handler!(hget)), ("hset", handler!(hset))];

const FIELD: u8 = 0;

async fn hget(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    let value = ctx.read_element(&args[1], Type::Hash, FIELD, &args[2]).await?;
    ctx.reply.bulk_or_null(value);
    Ok(())
}

async fn hset(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    if !args.len().is_multiple_of(2) {
        return Err(errors::wrong_arity("hset"));
    }
    let _held = ctx.latch([&args[1]]).await;
    let mut change = ctx.change();
    let mut hash = ctx.collection_or_new(&mut change, &args[1], Type::Hash).await?;
    // A field given twice: the last value counts, and it is one field.
    let mut fields: Vec<(&[u8], &[u8])> = Vec::with_capacity(args.len() / 2);
    for at in (2..args.len()).step_by(2) {
        let (field, value) = (&args[at], &args[at + 1]);
        match fields.iter_mut().find(|(known, _)| *known == field) {
            Some(slot) => slot.1 = value,
            None => fields.push((field, value)),
        }
    }
    let before = ctx.elements(&hash, FIELD, fields.iter().map(|(field, _)| *field)).await?;
    let added = before.iter().filter(|value| value.is_none()).count();
    for (field, value) in fields {
        change.put_element(&mut hash, FIELD, field, value);
    }
    hash.count += added as u64;
    change.put_collection(&mut hash, added > 0);
    ctx.commit(change).await?;
    ctx.reply.count(added as u64);
    Ok(())
}
