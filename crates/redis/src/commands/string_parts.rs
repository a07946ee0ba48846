//! Parts of strings: APPEND, GETRANGE, SUBSTR, SETRANGE.

use bytes::Bytes;

use crate::args::Args;
use crate::command::Row;
use crate::context::Ctx;
use crate::errors::{self, CommandResult, Failure};
use crate::handler;
use crate::keyspace::{HeadKey, TAG_STRING_EDITED, Type};
use crate::resp::parser::BULK_BYTES_MAX;
use crate::value::{Source, Value};

use super::string_writes::argument_value;

/// The commands of this module.
pub static ROWS: &[Row] = &[
    ("append", handler!(append)),
    ("getrange", handler!(getrange)),
    ("substr", handler!(getrange)),
    ("setrange", handler!(setrange)),
];

fn argument_source(key: &HeadKey, value: Value<'_>) -> Source {
    match value {
        Value::Borrowed(bytes) => Source::Bytes(Bytes::copy_from_slice(bytes)),
        Value::Owned(bytes) => Source::Bytes(bytes),
        Value::Large(large) => {
            let len = large.len();
            Source::Large(key.place, large, 0..len)
        }
    }
}

/// Stores `sources` as the value of `key`, whose expiry stays.
async fn put(ctx: &mut Ctx, key: &HeadKey, tag: u8, expire_ms: u64, sources: &[Source]) -> CommandResult {
    let value = ctx.compose(key, sources).await?;
    // An expired head in the way may be a collection's.
    let stored = ctx.meta(key.place, key.raw()).await?;
    let mut change = ctx.change();
    super::string_writes::clear_for_string(ctx, &mut change, key, stored.map(|meta| meta.tag)).await?;
    change.put_head(key, tag, expire_ms, &value.as_ref(), stored.map(|meta| meta.expire_ms));
    ctx.commit(change).await
}

async fn append(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    let _held = ctx.latch([&args[1]]).await;
    let key = ctx.key(&args[1]);
    let old = ctx.string(&key).await?;
    let value = argument_value(ctx, &args, 2, &key).await?;
    let added = value.as_ref().len();
    let old_len = old.as_ref().map_or(0, |old| old.entry.value_len());
    if old_len + added > BULK_BYTES_MAX {
        return Err(errors::STRING_TOO_LONG.into());
    }
    let expire_ms = old.as_ref().map_or(0, |old| old.expire_ms);
    let tag = if old.is_some() { TAG_STRING_EDITED } else { Type::String.tag() };
    let mut sources = Vec::with_capacity(2);
    sources.extend(old.map(|old| Source::of(key.place, &old.entry)));
    sources.push(argument_source(&key, value));
    put(ctx, &key, tag, expire_ms, &sources).await?;
    ctx.reply.count(old_len + added);
    Ok(())
}

/// The bytes that `start` and `end` (inclusive, negative from the end) mean in a string of `len` bytes.
fn range_of(start: i64, end: i64, len: u64) -> Option<(u64, u64)> {
    if start < 0 && end < 0 && start > end {
        return None;
    }
    let len = len as i64;
    let start = if start < 0 { (len.saturating_add(start)).max(0) } else { start };
    let end = if end < 0 { (len.saturating_add(end)).max(0) } else { end }.min(len - 1);
    (start <= end && len > 0).then(|| (start as u64, end as u64 + 1))
}

async fn getrange(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    let (start, end) = (args.int(2)?, args.int(3)?);
    let key = ctx.key(&args[1]);
    let found = ctx.string_to_read(&key).await?;
    let range = found.as_ref().and_then(|found| range_of(start, end, found.entry.value_len()));
    match (found, range) {
        (Some(found), Some((from, to))) => match &found.entry.large {
            Some(large) => ctx.reply_large(key.place, large, from..to).await?,
            None => ctx.reply.bulk_bytes(found.entry.value.slice(from as usize..to as usize)),
        },
        _ => ctx.reply.bulk(b""),
    }
    Ok(())
}

async fn setrange(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    let offset = args.int(2)?;
    let offset = u64::try_from(offset).map_err(|_| Failure::from(errors::OFFSET_OUT_OF_RANGE))?;
    let _held = ctx.latch([&args[1]]).await;
    let key = ctx.key(&args[1]);
    let old = ctx.string(&key).await?;
    let value = argument_value(ctx, &args, 3, &key).await?;
    let len = value.as_ref().len();
    let old_len = old.as_ref().map_or(0, |old| old.entry.value_len());
    if len == 0 {
        ctx.reply.count(old_len);
        return Ok(());
    }
    if offset.saturating_add(len) > BULK_BYTES_MAX {
        return Err(errors::STRING_TOO_LONG.into());
    }
    let expire_ms = old.as_ref().map_or(0, |old| old.expire_ms);
    let mut sources = Vec::with_capacity(4);
    if let Some(old) = &old {
        sources.push(Source::part(key.place, &old.entry, 0..offset.min(old_len)));
    }
    if offset > old_len {
        sources.push(Source::Zeros(offset - old_len));
    }
    sources.push(argument_source(&key, value));
    if let Some(old) = &old
        && offset + len < old_len
    {
        sources.push(Source::part(key.place, &old.entry, offset + len..old_len));
    }
    put(ctx, &key, TAG_STRING_EDITED, expire_ms, &sources).await?;
    ctx.reply.count(old_len.max(offset + len));
    Ok(())
}
