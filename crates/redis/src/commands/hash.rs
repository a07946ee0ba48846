//! Hashes. Element: sub 0, hash of the field's name + name → value.

use std::ops::Bound;

use bytes::Bytes;
use pumice_base::hash::HashMap;
use pumice_kv::{Direction, Entry, EntryView, VALUE_BYTES_MAX, Want};

use super::collection::{
    Field, MEMBERS, check_member, contains, damaged, member_field, member_of, name_in, note_sizes, only_name,
    reply_elements, reply_whether, unique,
};
use super::element_scan;
use super::sample::{self, With};
use super::strings::MGET_KEYS;
use crate::args::Args;
use crate::command::{Fast, FastHandler, Row};
use crate::context::Ctx;
use crate::errors::{self, CommandResult, Failure};
use crate::keyspace::{Change, Collection, Head, ONE_MOMENT_BYTES_MAX, Type};
use crate::long_double::{self, AddError};
use crate::number::{int_text, parse_int};
use crate::resp::reply::Reply;
use crate::{at_hand, handler, reads_first};

/// The commands of this module.
pub static ROWS: &[Row] = &[
    ("hset", reads_first!(hset)),
    ("hmset", reads_first!(hmset)),
    ("hsetnx", reads_first!(hsetnx)),
    ("hget", handler!(hget)),
    ("hmget", reads_first!(hmget)),
    ("hgetall", handler!(hgetall)),
    ("hkeys", handler!(hkeys)),
    ("hvals", handler!(hvals)),
    ("hdel", reads_first!(hdel)),
    ("hexists", reads_first!(hexists)),
    ("hlen", handler!(hlen)),
    ("hstrlen", reads_first!(hstrlen)),
    ("hincrby", reads_first!(hincrby)),
    ("hincrbyfloat", reads_first!(hincrbyfloat)),
    ("hrandfield", handler!(hrandfield)),
    ("hscan", handler!(hscan)),
];

/// Those with a way without waiting.
pub static FAST: &[(&str, FastHandler)] = &[
    ("hset", at_hand!(hset_at_hand)),
    ("hget", hget_fast),
    ("hmget", hmget_fast),
    ("hexists", hexists_fast),
    ("hstrlen", hstrlen_fast),
    ("hlen", |ctx, args| ctx.answer_count(&args[1], Type::Hash)),
    ("hdel", at_hand!(hdel_at_hand)),
    ("hincrby", at_hand!(hincrby_at_hand)),
];

/// Sets a field, which is there or not.
fn put(change: &mut Change, hash: &mut Collection, name: &[u8], value: &[u8], is_new: bool) {
    note_sizes(hash, name.len(), value.len());
    let field = member_field(name);
    if is_new {
        change.add_element(hash, MEMBERS, &field, value);
        hash.count += 1;
    } else {
        change.put_element(hash, MEMBERS, &field, value);
    }
}

/// Sets the given pairs; tells how many fields are new.
async fn set_pairs(ctx: &mut Ctx, args: Args<'_>, name: &str) -> Result<u64, Failure> {
    if !args.len().is_multiple_of(2) {
        return Err(errors::wrong_arity(name));
    }
    check_member(args.iter_from(2).step_by(2))?;
    let _held = ctx.latch([&args[1]]).await;
    let mut change = ctx.change();
    let mut hash = ctx.collection_or_new(&mut change, &args[1], Type::Hash).await?;
    // A field given twice: the last value counts, and it is one field.
    let mut values: HashMap<&[u8], &[u8]> = HashMap::default();
    let names = unique(args.iter_from(2).step_by(2));
    for at in (2..args.len()).step_by(2) {
        values.insert(&args[at], &args[at + 1]);
    }
    let known = contains(ctx, &hash, &names).await?;
    let added = known.iter().filter(|known| !**known).count() as u64;
    let hints = hash.hints;
    // Those that are written over in the same command count, too.
    args.iter_from(2).for_each(|argument| note_sizes(&mut hash, argument.len(), 0));
    for (name, known) in names.into_iter().zip(known) {
        put(&mut change, &mut hash, name, values[name], !known);
    }
    let head_changed = added > 0 || hints != hash.hints;
    change.put_collection(&mut hash, head_changed);
    ctx.commit(change).await?;
    Ok(added)
}

/// Sets a field, and tells watchers of the hash.
fn put_one(change: &mut Change, hash: &mut Collection, name: &[u8], value: &[u8], is_new: bool) {
    let hints = hash.hints;
    put(change, hash, name, value, is_new);
    let head_changed = is_new || hints != hash.hints;
    change.put_collection(hash, head_changed);
}

fn hset_at_hand(ctx: &mut Ctx, args: &Args<'_>) -> Result<(), Fast> {
    let name = only_name(args, 4)?;
    if args[3].len() > VALUE_BYTES_MAX {
        return Err(Fast::Slow);
    }
    let (mut hash, _held) = ctx.open_or_new_at_hand(&args[1], Type::Hash)?;
    let is_new = !ctx.has_element_at_hand(&hash, MEMBERS, &member_field(name))?;
    let mut change = ctx.change();
    put_one(&mut change, &mut hash, name, &args[3], is_new);
    ctx.commit_at_hand(change)?;
    ctx.reply.flag(is_new);
    Ok(())
}

async fn hset(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    let added = set_pairs(ctx, args, "hset").await?;
    ctx.reply.count(added);
    Ok(())
}

async fn hmset(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    set_pairs(ctx, args, "hmset").await?;
    ctx.reply.ok();
    Ok(())
}

async fn hsetnx(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    check_member([&args[2]])?;
    let _held = ctx.latch([&args[1]]).await;
    let mut change = ctx.change();
    let mut hash = ctx.collection_or_new(&mut change, &args[1], Type::Hash).await?;
    let known = contains(ctx, &hash, &[&args[2]]).await?[0];
    if !known {
        put(&mut change, &mut hash, &args[2], &args[3], true);
        change.put_collection(&mut hash, true);
        ctx.commit(change).await?;
    }
    ctx.reply.flag(!known);
    Ok(())
}

/// Answers with the value of a field, or that there is none.
fn reply_value(reply: &mut Reply, found: Option<EntryView<'_>>) -> CommandResult {
    match found {
        Some(entry) => reply.bulk_view(entry.value),
        None => reply.null(),
    }
    Ok(())
}

fn hget_fast(ctx: &mut Ctx, args: &Args<'_>) -> Fast {
    ctx.answer_element(&args[1], Type::Hash, MEMBERS, &member_field(&args[2]), reply_value)
}

async fn hget(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    match ctx.read_element(&args[1], Type::Hash, MEMBERS, &member_field(&args[2])).await? {
        Some((place, entry)) => ctx.reply_entry(place, entry).await,
        None => {
            ctx.reply.null();
            Ok(())
        }
    }
}

fn hmget_fast(ctx: &mut Ctx, args: &Args<'_>) -> Fast {
    ctx.answer_elements(&args[1], Type::Hash, MEMBERS, args.iter_from(2).map(member_field), reply_value)
}

async fn hmget(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    // Several fields as of one moment, as MGET does it.
    let mut held = Some(ctx.latch([&args[1]]).await);
    let mut hash = ctx.collection_to_read(&args[1], Type::Hash).await?;
    let before = ctx.reply.len();
    ctx.reply.array(args.len() - 2);
    for from in (2..args.len()).step_by(MGET_KEYS) {
        if held.is_none() {
            held = Some(ctx.latch([&args[1]]).await);
            let key = ctx.key(&args[1]);
            hash = match ctx.head(&key).await? {
                Some(Head::Collection(now)) if now.kind == Type::Hash => Some(now),
                _ => None,
            };
        }
        let fields: Vec<Field> = args.iter_from(from).take(MGET_KEYS).map(member_field).collect();
        let Some(hash) = &hash else {
            fields.iter().for_each(|_| ctx.reply.null());
            continue;
        };
        let entries = ctx.elements(hash, MEMBERS, fields.iter().map(|field| &field[..])).await?;
        let is_large = |entry: &Option<Entry>| entry.as_ref().is_some_and(|entry| entry.large.is_some());
        let bytes = entries.iter().flatten().map(|entry| entry.value.len()).sum::<usize>();
        if ctx.is_streaming
            || ctx.reply.len() - before + bytes > ONE_MOMENT_BYTES_MAX
            || entries.iter().any(is_large)
        {
            held = None;
        }
        for entry in entries {
            match entry {
                Some(entry) => ctx.reply_entry(hash.elements, entry).await?,
                None => ctx.reply.null(),
            }
            if held.is_none() {
                ctx.drain().await?;
            }
        }
    }
    drop(held);
    Ok(())
}

/// Answers with all names, all values, or both.
async fn list_all(ctx: &mut Ctx, key: &[u8], names: bool, values: bool) -> CommandResult {
    let held = ctx.latch([key]).await;
    let Some(hash) = ctx.collection_to_read(key, Type::Hash).await? else {
        if names && values {
            ctx.reply.map(0);
        } else {
            ctx.reply.array(0);
        }
        return Ok(());
    };
    let want = if values { Want::values_of(hash.count) } else { Want::Keys };
    let scan =
        ctx.scan_elements(&hash, MEMBERS, Bound::Unbounded, Bound::Unbounded, Direction::Forward, want);
    drop(held);
    if names && values {
        ctx.reply.map(hash.count as usize);
    } else {
        ctx.reply.array(hash.count as usize);
    }
    let found = reply_elements(ctx, scan, values.then_some(hash.elements), |reply, field| {
        if names {
            reply.bulk(name_in(field));
        }
    })
    .await?;
    if found == hash.count { Ok(()) } else { Err(damaged(&hash, found)) }
}

async fn hgetall(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    list_all(ctx, &args[1], true, true).await
}

async fn hkeys(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    list_all(ctx, &args[1], true, false).await
}

async fn hvals(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    list_all(ctx, &args[1], false, true).await
}

fn hdel_at_hand(ctx: &mut Ctx, args: &Args<'_>) -> Result<(), Fast> {
    let name = only_name(args, 3)?;
    let Some((mut hash, _held)) = ctx.open_at_hand(&args[1], Type::Hash)? else {
        ctx.reply.int(0);
        return Ok(());
    };
    let field = member_field(name);
    let is_there = ctx.has_element_at_hand(&hash, MEMBERS, &field)?;
    if is_there {
        let mut change = ctx.change();
        change.delete_element(&hash, MEMBERS, &field);
        hash.count -= 1;
        change.put_collection(&mut hash, true);
        ctx.commit_at_hand(change)?;
    }
    ctx.reply.flag(is_there);
    Ok(())
}

async fn hdel(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    check_member(args.iter_from(2))?;
    let _held = ctx.latch([&args[1]]).await;
    let Some(mut hash) = ctx.collection(&args[1], Type::Hash).await? else {
        ctx.reply.int(0);
        return Ok(());
    };
    let names = unique(args.iter_from(2));
    let known = contains(ctx, &hash, &names).await?;
    let mut change = ctx.change();
    let mut removed = 0;
    for (name, _) in names.iter().zip(known).filter(|(_, known)| *known) {
        change.delete_element(&hash, MEMBERS, &member_field(name));
        removed += 1;
    }
    if removed > 0 {
        hash.count -= removed;
        change.put_collection(&mut hash, true);
        ctx.commit(change).await?;
    }
    ctx.reply.count(removed);
    Ok(())
}

fn hexists_fast(ctx: &mut Ctx, args: &Args<'_>) -> Fast {
    ctx.answer_element(&args[1], Type::Hash, MEMBERS, &member_field(&args[2]), reply_whether)
}

async fn hexists(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    let _held = ctx.latch([&args[1]]).await;
    let found = match ctx.collection_to_read(&args[1], Type::Hash).await? {
        Some(hash) => contains(ctx, &hash, &[&args[2]]).await?[0],
        None => false,
    };
    ctx.reply.flag(found);
    Ok(())
}

async fn hlen(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    let count = ctx.collection_to_read(&args[1], Type::Hash).await?.map_or(0, |hash| hash.count);
    ctx.reply.count(count);
    Ok(())
}

fn hstrlen_fast(ctx: &mut Ctx, args: &Args<'_>) -> Fast {
    ctx.answer_element(&args[1], Type::Hash, MEMBERS, &member_field(&args[2]), |reply, found| {
        reply.count(found.map_or(0, |entry| entry.value.bytes().len() as u64));
        Ok(())
    })
}

async fn hstrlen(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    let _held = ctx.latch([&args[1]]).await;
    let len = match ctx.collection_to_read(&args[1], Type::Hash).await? {
        Some(hash) => ctx.element_len(&hash, MEMBERS, &member_field(&args[2])).await?.unwrap_or(0),
        None => 0,
    };
    ctx.reply.count(len);
    Ok(())
}

/// Stores what `compute` makes of the old value of a field.
async fn update(
    ctx: &mut Ctx,
    args: Args<'_>,
    compute: impl FnOnce(Option<Bytes>) -> Result<Vec<u8>, Failure>,
) -> Result<Vec<u8>, Failure> {
    check_member([&args[2]])?;
    let _held = ctx.latch([&args[1]]).await;
    let mut change = ctx.change();
    let mut hash = ctx.collection_or_new(&mut change, &args[1], Type::Hash).await?;
    let old = ctx.element(&hash, MEMBERS, &member_field(&args[2])).await?;
    let is_new = old.is_none();
    let value = compute(old)?;
    put_one(&mut change, &mut hash, &args[2], &value, is_new);
    ctx.commit(change).await?;
    Ok(value)
}

/// The integer that a field becomes.
fn sum(old: Option<&[u8]>, increment: i64) -> Result<i64, Failure> {
    let old = match old {
        Some(old) => parse_int(old).ok_or(errors::HASH_NOT_INTEGER)?,
        None => 0,
    };
    old.checked_add(increment).ok_or_else(|| errors::OVERFLOW.into())
}

fn hincrby_at_hand(ctx: &mut Ctx, args: &Args<'_>) -> Result<(), Fast> {
    let increment = args.int(3)?;
    let name = only_name(args, 4)?;
    let (mut hash, _held) = ctx.open_or_new_at_hand(&args[1], Type::Hash)?;
    let old = ctx.element_at_hand(&hash, MEMBERS, &member_field(name))?;
    if old.as_ref().is_some_and(|old| old.large.is_some()) {
        return Err(Fast::Slow);
    }
    let sum = sum(old.as_ref().map(|old| &old.value[..]), increment)?;
    let mut change = ctx.change();
    put_one(&mut change, &mut hash, name, &int_text(sum), old.is_none());
    ctx.commit_at_hand(change)?;
    ctx.reply.int(sum);
    Ok(())
}

async fn hincrby(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    let increment = args.int(3)?;
    let mut sum = 0;
    update(ctx, args, |old| {
        sum = self::sum(old.as_deref(), increment)?;
        Ok(int_text(sum))
    })
    .await?;
    ctx.reply.int(sum);
    Ok(())
}

async fn hincrbyfloat(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    let increment = &args[3];
    long_double::check(increment).ok_or(errors::NOT_FLOAT)?;
    if !long_double::is_finite(increment) {
        return Err("ERR value is NaN or Infinity".into());
    }
    let sum = update(ctx, args, |old| {
        let old = old.unwrap_or(Bytes::from_static(b"0"));
        long_double::add_text(&old, increment).map_err(|error| match error {
            AddError::NotFloat => errors::HASH_NOT_FLOAT.into(),
            AddError::NanOrInfinity => errors::NAN_OR_INFINITY.into(),
        })
    })
    .await?;
    ctx.reply.bulk(&sum);
    Ok(())
}

async fn hrandfield(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    if args.len() == 2 {
        let _held = ctx.latch([&args[1]]).await;
        match ctx.collection_to_read(&args[1], Type::Hash).await? {
            Some(hash) => {
                let field = sample::one(ctx, &hash).await?;
                ctx.reply.bulk_bytes(member_of(&field));
            }
            None => ctx.reply.null(),
        }
        return Ok(());
    }
    let (count, with_values) = sample::parse_count(&args, "withvalues")?;
    let held = ctx.latch([&args[1]]).await;
    let Some(hash) = ctx.collection_to_read(&args[1], Type::Hash).await? else {
        ctx.reply.array(0);
        return Ok(());
    };
    let with = if with_values { With::Value } else { With::Nothing };
    sample::reply_many(ctx, hash, held, count, with).await
}

async fn hscan(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    element_scan::scan(ctx, args, Type::Hash).await
}
