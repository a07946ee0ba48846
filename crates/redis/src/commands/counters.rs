//! Counters: INCR and its like. An integer is stored as its text, as any string.

use pumice_kv::Peek;

use crate::args::Args;
use crate::command::{Fast, FastHandler, Row};
use crate::context::Ctx;
use crate::errors::{self, CommandResult, Failure};
use crate::keyspace::{HeadKey, StringHead, StringValue, TAG_STRING_FLOAT, Type};
use crate::{handler, number};

/// The commands of this module.
pub static ROWS: &[Row] = &[
    ("incr", handler!(incr)),
    ("decr", handler!(incr)),
    ("incrby", handler!(incr)),
    ("decrby", handler!(incr)),
    ("incrbyfloat", handler!(incrbyfloat)),
];

/// Those with a way without waiting.
pub static FAST: &[(&str, FastHandler)] =
    &[("incr", incr_fast), ("decr", incr_fast), ("incrby", incr_fast), ("decrby", incr_fast)];

/// What the command adds.
fn step(args: &Args<'_>) -> Result<i64, Failure> {
    let by = if args.len() == 3 { args.int(2)? } else { 1 };
    if !args[0][..1].eq_ignore_ascii_case(b"d") {
        return Ok(by);
    }
    by.checked_neg().ok_or_else(|| "ERR decrement would overflow".into())
}

/// The new value.
fn add(old: Option<&StringHead>, by: i64) -> Result<i64, Failure> {
    let value = match old {
        None => 0,
        // A large value is no number.
        Some(old) => number::parse_int(&old.entry.value).ok_or(errors::NOT_INTEGER)?,
    };
    value.checked_add(by).ok_or_else(|| errors::OVERFLOW.into())
}

fn incr_fast(ctx: &mut Ctx, args: &Args<'_>) -> Fast {
    let by = match step(args) {
        Ok(by) => by,
        Err(failure) => return Fast::Fail(failure),
    };
    let key = ctx.key(&args[1]);
    let Some(_held) = ctx.try_latch(&key) else { return Fast::Slow };
    let stored = match ctx.server.node.peek(key.place, key.raw()) {
        Peek::NeedsFlash(_) => return Fast::Slow,
        Peek::Found(entry) => Some(entry),
        Peek::Absent => None,
    };
    ctx.depend_on(key.place, key.raw(), stored.as_ref().map(|entry| entry.seq));
    let was = stored.as_ref().map(|entry| entry.expire_ms);
    let value = match ctx.string_of(stored).and_then(|old| Ok((add(old.as_ref(), by)?, old))) {
        // An expired head in the way may be a collection's.
        Ok((_, None)) if was.is_some() => return Fast::Slow,
        Ok(value) => value,
        Err(failure) => return Fast::Fail(failure),
    };
    let (value, old) = value;
    let mut digits = [0u8; 20];
    let text = number::push_int(&mut digits, value);
    let mut change = ctx.change();
    let expire_ms = old.map_or(0, |old| old.expire_ms);
    change.put_string(&key, expire_ms, &StringValue::Bytes(text), was);
    match ctx.try_commit(change) {
        None => Fast::Slow,
        Some(Err(failure)) => Fast::Fail(failure),
        Some(Ok(())) => {
            ctx.reply.int(value);
            Fast::Done
        }
    }
}

async fn incr(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    let by = step(&args)?;
    let _held = ctx.latch([&args[1]]).await;
    let key = ctx.key(&args[1]);
    let old = ctx.string(&key).await?;
    let value = add(old.as_ref(), by)?;
    put(ctx, &key, old, Type::String.tag(), &number::int_text(value)).await?;
    ctx.reply.int(value);
    Ok(())
}

async fn put(ctx: &mut Ctx, key: &HeadKey, old: Option<StringHead>, tag: u8, text: &[u8]) -> CommandResult {
    let stored = ctx.meta(key.place, key.raw()).await?;
    let mut change = ctx.change();
    super::string_writes::clear_for_string(ctx, &mut change, key, stored.map(|meta| meta.tag)).await?;
    let expire_ms = old.map_or(0, |old| old.expire_ms);
    change.put_head(key, tag, expire_ms, &StringValue::Bytes(text), stored.map(|meta| meta.expire_ms));
    ctx.commit(change).await
}

async fn incrbyfloat(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    let _held = ctx.latch([&args[1]]).await;
    let key = ctx.key(&args[1]);
    let old = ctx.string(&key).await?;
    let value = match &old {
        Some(old) if old.entry.large.is_some() => return Err(errors::NOT_FLOAT.into()),
        Some(old) => &old.entry.value[..],
        None => b"0",
    };
    let text = crate::long_double::add_text(value, &args[2]).map_err(|error| match error {
        crate::long_double::AddError::NotFloat => Failure::from(errors::NOT_FLOAT),
        crate::long_double::AddError::NanOrInfinity => Failure::from(errors::NAN_OR_INFINITY),
    })?;
    put(ctx, &key, old.clone(), TAG_STRING_FLOAT, &text).await?;
    ctx.reply.bulk(&text);
    Ok(())
}
