//! RENAME, RENAMENX and COPY, for every type.
//!
//! A collection moves by its head alone while old and new key live on one drive: the head keeps naming its
//! elements, wherever they are. Across drives its elements are copied, first all elements, then the head, so
//! that a crash in between leaves nothing half visible. Long strings are copied too: their pieces carry the
//! key they belong to.

use std::ops::Bound;

use pumice_kv::{Direction, Entry, Want};

use crate::args::Args;
use crate::command::Row;
use crate::context::Ctx;
use crate::errors::{self, CommandResult, Failure};
use crate::handler;
use crate::keyspace::{Building, Change, Collection, Head, HeadKey, StringValue, element_key, is_expired};
use crate::value::Source;

use super::collection::commit_piece;

/// The commands of this module.
pub static ROWS: &[Row] =
    &[("rename", handler!(rename)), ("renamenx", handler!(renamenx)), ("copy", handler!(copy))];

/// Elements of a copy are written in batches of about this size.
const COPY_BATCH_ELEMENTS: usize = 256;

async fn rename(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    move_key(ctx, args, false).await?;
    ctx.reply.ok();
    Ok(())
}

async fn renamenx(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    let done = move_key(ctx, args, true).await?;
    ctx.reply.flag(done);
    Ok(())
}

async fn move_key(ctx: &mut Ctx, args: Args<'_>, only_absent: bool) -> Result<bool, Failure> {
    let _held = ctx.latch(args.iter_from(1)).await;
    let (from, to) = (ctx.key(&args[1]), ctx.key(&args[2]));
    let stored = ctx.entry(from.place, from.raw()).await?;
    let Some(stored) = stored.filter(|entry| !is_expired(entry.expire_ms, ctx.now_ms)) else {
        return Err(errors::NO_SUCH_KEY.into());
    };
    if from.raw() == to.raw() {
        return Ok(!only_absent);
    }
    let in_the_way = ctx.entry(to.place, to.raw()).await?;
    if only_absent && in_the_way.as_ref().is_some_and(|entry| !is_expired(entry.expire_ms, ctx.now_ms)) {
        return Ok(false);
    }
    let mut change = ctx.change();
    let was = stored.expire_ms;
    let building = put_again(ctx, &mut change, &from, stored, &to, in_the_way, true).await?;
    change.delete_head(&from, was);
    ctx.commit(change).await?;
    building.done();
    Ok(true)
}

async fn copy(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    let mut database = ctx.session.database;
    let mut replace = false;
    let mut at = 3;
    while at < args.len() {
        if args.is(at, "replace") {
            replace = true;
            at += 1;
        } else if args.is(at, "db") && at + 1 < args.len() {
            let given = args.int32(at + 1)?;
            let given = usize::try_from(given).ok().filter(|&n| n < crate::keyspace::DATABASES);
            database = given.ok_or("ERR DB index is out of range")?;
            at += 2;
        } else {
            return Err(errors::SYNTAX.into());
        }
    }
    let (from, to) = (ctx.key(&args[1]), ctx.key_in(database, &args[2]));
    if from.raw() == to.raw() {
        return Err("ERR source and destination objects are the same".into());
    }
    let _held = ctx.latch_hashes(&[from.hash(), to.hash()]).await;
    let (from, to) = (ctx.key(&args[1]), ctx.key_in(database, &args[2]));
    let stored = ctx.entry(from.place, from.raw()).await?;
    let in_the_way = ctx.entry(to.place, to.raw()).await?;
    let is_taken = in_the_way.as_ref().is_some_and(|entry| !is_expired(entry.expire_ms, ctx.now_ms));
    let stored = stored.filter(|entry| !is_expired(entry.expire_ms, ctx.now_ms));
    ctx.count_look_up(stored.is_some());
    let (Some(stored), true) = (stored, replace || !is_taken) else {
        ctx.reply.flag(false);
        return Ok(());
    };
    let mut change = ctx.change();
    let building = put_again(ctx, &mut change, &from, stored, &to, in_the_way, false).await?;
    ctx.commit(change).await?;
    building.done();
    ctx.reply.flag(true);
    Ok(())
}

/// Stores what `from` holds (`stored`, live) under `to`, in place of `in_the_way`. With `moving`, `from` is
/// about to go. What is answered is to be told when `change` is written.
async fn put_again(
    ctx: &mut Ctx,
    change: &mut Change,
    from: &HeadKey,
    stored: Entry,
    to: &HeadKey,
    in_the_way: Option<Entry>,
    moving: bool,
) -> Result<Building, Failure> {
    let mut building = Building::new(&ctx.server);
    let was = in_the_way.as_ref().map(|entry| entry.expire_ms);
    let expire_ms = stored.expire_ms;
    let head = ctx.head_of(from, Some(stored.clone()))?;
    let mut copied = None;
    if let Some(Head::Collection(collection)) = &head
        && !(moving && collection.elements.drive == to.place.drive && from.space() == to.space())
    {
        copied = Some(copy_elements(ctx, change, &mut building, collection, to).await?);
    }
    ctx.erase_stored(change, to, in_the_way).await?;
    match head {
        None => {}
        Some(Head::String(_)) if stored.large.is_some() => {
            let value = ctx.compose(to, &[Source::of(from.place, &stored)]).await?;
            change.put_head(to, stored.tag, expire_ms, &value.as_ref(), was);
        }
        Some(Head::String(_)) => {
            change.put_head(to, stored.tag, expire_ms, &StringValue::Bytes(&stored.value), was);
        }
        Some(Head::Collection(collection)) => match copied {
            None => {
                change.put_head(to, stored.tag, expire_ms, &StringValue::Bytes(&stored.value), was);
            }
            Some(copied) => {
                if moving {
                    ctx.erase_elements(change, &collection).await?;
                }
                let (value, len) = copied.encode();
                change.put_head(to, stored.tag, expire_ms, &StringValue::Bytes(&value[..len]), was);
                building.finish(change);
            }
        },
    }
    Ok(building)
}

/// Copies all elements of `collection` into a new one whose head the caller stores under `to`; the last of them wait
/// in `change`.
async fn copy_elements(
    ctx: &mut Ctx,
    change: &mut Change,
    building: &mut Building,
    collection: &Collection,
    to: &HeadKey,
) -> Result<Collection, Failure> {
    let mut copied = ctx.new_collection(to.clone(), collection.kind);
    copied.count = collection.count;
    (copied.first, copied.end) = (collection.first, collection.end);
    (copied.hints, copied.expire_ms) = (collection.hints, collection.expire_ms);
    assert!(change.is_empty(), "what else the command changes waits for the last batch");
    let mut waiting = 0;
    // Sub by sub: a collection uses a few low ones.
    for sub in 0..=2 {
        let (low, high) = (Bound::Unbounded, Bound::Unbounded);
        let mut scan = ctx.scan_elements(collection, sub, low, high, Direction::Forward, Want::Values);
        while let Some((field, value)) = scan.next(ctx).await? {
            let key = element_key(copied.key.space(), copied.id, sub, &field);
            change.put(copied.elements, &key, copied.kind.tag(), 0, &StringValue::Bytes(&value));
            waiting += 1 + value.len() / 1024;
            if waiting >= COPY_BATCH_ELEMENTS {
                building.note(change, &copied);
                commit_piece(ctx, change).await?;
                waiting = 0;
            }
        }
    }
    Ok(copied)
}
