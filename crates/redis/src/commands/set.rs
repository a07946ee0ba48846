//! Sets, one at a time. Element: sub 0, hash of the member + member → nothing. What takes several sets is in
//! `set_algebra.rs`.

use std::ops::Bound;

use bytes::Bytes;
use pumice_kv::{Direction, Want};

use super::collection::{
    MEMBERS, check_member, contains, damaged, member_field, member_of, name_in, only_name, reply_elements,
    reply_whether, unique,
};
use super::element_scan;
use super::sample::{self, With};
use crate::args::Args;
use crate::collected::Taken;
use crate::command::{Fast, FastHandler, Row};
use crate::context::Ctx;
use crate::errors::{self, CommandResult};
use crate::keyspace::{Change, Collection, HINT_NOT_INTEGERS, Type};
use crate::number::parse_int;
use crate::{at_hand, handler, reads_first};

/// The commands of this module.
pub static ROWS: &[Row] = &[
    ("sadd", reads_first!(sadd)),
    ("srem", reads_first!(srem)),
    ("sismember", handler!(sismember)),
    ("smismember", reads_first!(smismember)),
    ("smembers", handler!(smembers)),
    ("scard", handler!(scard)),
    ("spop", handler!(spop)),
    ("srandmember", handler!(srandmember)),
    ("smove", reads_first!(smove)),
    ("sscan", handler!(sscan)),
];

/// Those with a way without waiting.
pub static FAST: &[(&str, FastHandler)] = &[
    ("sadd", at_hand!(sadd_at_hand)),
    ("srem", at_hand!(srem_at_hand)),
    ("sismember", sismember_fast),
    ("smismember", smismember_fast),
    ("scard", |ctx, args| ctx.answer_count(&args[1], Type::Set)),
];

/// Adds a member that is not there.
pub(super) fn put(change: &mut Change, set: &mut Collection, member: &[u8]) {
    if parse_int(member).is_none() {
        set.hints |= HINT_NOT_INTEGERS;
    }
    change.add_element(set, MEMBERS, &member_field(member), b"");
    set.count += 1;
}

fn remove(change: &mut Change, set: &mut Collection, member: &[u8]) {
    change.delete_element(set, MEMBERS, &member_field(member));
    set.count -= 1;
}

fn sadd_at_hand(ctx: &mut Ctx, args: &Args<'_>) -> Result<(), Fast> {
    let member = only_name(args, 3)?;
    let (mut set, _held) = ctx.open_or_new_at_hand(&args[1], Type::Set)?;
    let is_new = !ctx.has_element_at_hand(&set, MEMBERS, &member_field(member))?;
    if is_new {
        let mut change = ctx.change();
        put(&mut change, &mut set, member);
        change.put_collection(&mut set, true);
        ctx.commit_at_hand(change)?;
    }
    ctx.reply.flag(is_new);
    Ok(())
}

fn srem_at_hand(ctx: &mut Ctx, args: &Args<'_>) -> Result<(), Fast> {
    let member = only_name(args, 3)?;
    let Some((mut set, _held)) = ctx.open_at_hand(&args[1], Type::Set)? else {
        ctx.reply.int(0);
        return Ok(());
    };
    let is_there = ctx.has_element_at_hand(&set, MEMBERS, &member_field(member))?;
    if is_there {
        let mut change = ctx.change();
        remove(&mut change, &mut set, member);
        change.put_collection(&mut set, true);
        ctx.commit_at_hand(change)?;
    }
    ctx.reply.flag(is_there);
    Ok(())
}

async fn sadd(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    check_member(args.iter_from(2))?;
    let _held = ctx.latch([&args[1]]).await;
    let mut change = ctx.change();
    let mut set = ctx.collection_or_new(&mut change, &args[1], Type::Set).await?;
    let members = unique(args.iter_from(2));
    let known = contains(ctx, &set, &members).await?;
    let before = set.count;
    for (member, _) in members.iter().zip(known).filter(|(_, known)| !known) {
        put(&mut change, &mut set, member);
    }
    let added = set.count - before;
    if added > 0 {
        change.put_collection(&mut set, true);
        ctx.commit(change).await?;
    }
    ctx.reply.count(added);
    Ok(())
}

async fn srem(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    check_member(args.iter_from(2))?;
    let _held = ctx.latch([&args[1]]).await;
    let Some(mut set) = ctx.collection(&args[1], Type::Set).await? else {
        ctx.reply.int(0);
        return Ok(());
    };
    let members = unique(args.iter_from(2));
    let known = contains(ctx, &set, &members).await?;
    let mut change = ctx.change();
    let before = set.count;
    for (member, _) in members.iter().zip(known).filter(|(_, known)| *known) {
        remove(&mut change, &mut set, member);
    }
    let removed = before - set.count;
    if removed > 0 {
        change.put_collection(&mut set, true);
        ctx.commit(change).await?;
    }
    ctx.reply.count(removed);
    Ok(())
}

fn sismember_fast(ctx: &mut Ctx, args: &Args<'_>) -> Fast {
    ctx.answer_element(&args[1], Type::Set, MEMBERS, &member_field(&args[2]), reply_whether)
}

async fn sismember(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    let found = ctx.read_element(&args[1], Type::Set, MEMBERS, &member_field(&args[2])).await?;
    ctx.reply.flag(found.is_some());
    Ok(())
}

fn smismember_fast(ctx: &mut Ctx, args: &Args<'_>) -> Fast {
    ctx.answer_elements(&args[1], Type::Set, MEMBERS, args.iter_from(2).map(member_field), reply_whether)
}

async fn smismember(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    let members: Vec<&[u8]> = args.iter_from(2).collect();
    let found = {
        let _held = ctx.latch([&args[1]]).await;
        match ctx.collection_to_read(&args[1], Type::Set).await? {
            Some(set) => contains(ctx, &set, &members).await?,
            None => vec![false; members.len()],
        }
    };
    ctx.reply.array(found.len());
    for found in found {
        ctx.reply.flag(found);
    }
    Ok(())
}

/// Answers with every member.
pub(super) async fn reply_all(ctx: &mut Ctx, key: &[u8]) -> CommandResult {
    let held = ctx.latch([key]).await;
    let Some(set) = ctx.collection_to_read(key, Type::Set).await? else {
        ctx.reply.set(0);
        return Ok(());
    };
    let scan =
        ctx.scan_elements(&set, MEMBERS, Bound::Unbounded, Bound::Unbounded, Direction::Forward, Want::Keys);
    drop(held);
    ctx.reply.set(set.count as usize);
    let found = reply_elements(ctx, scan, None, |reply, field| reply.bulk(name_in(field))).await?;
    if found == set.count { Ok(()) } else { Err(damaged(&set, found)) }
}

async fn smembers(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    reply_all(ctx, &args[1]).await
}

async fn scard(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    let count = ctx.collection_to_read(&args[1], Type::Set).await?.map_or(0, |set| set.count);
    ctx.reply.count(count);
    Ok(())
}

async fn spop(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    let count = match args.len() {
        2 => None,
        3 => Some(args.int_or(2, errors::NOT_POSITIVE)?),
        _ => return Err(errors::SYNTAX.into()),
    };
    if count.is_some_and(|count| count < 0) {
        return Err(errors::NOT_POSITIVE.into());
    }
    let _held = ctx.latch([&args[1]]).await;
    let Some(mut set) = ctx.collection(&args[1], Type::Set).await? else {
        match count {
            Some(_) => ctx.reply.set(0),
            None => ctx.reply.null(),
        }
        return Ok(());
    };
    let wanted = count.map_or(1, |count| count as u64).min(set.count);
    if count.is_some_and(|count| count as u64 >= set.count) {
        // Redis answers all that there is as a union of one set, whose look-up it counts.
        ctx.count_look_up(true);
    }
    let mut change = ctx.change();
    let takes_all = wanted == set.count;
    if takes_all {
        ctx.erase_elements(&mut change, &set).await?;
    }
    let mut taken = Taken::new(ctx, "SPOP");
    let mut take = |ctx: &mut Ctx, field: Bytes| {
        if !takes_all {
            change.delete_element(&set, MEMBERS, &field);
        }
        ctx.reply.bulk_bytes(member_of(&field));
        taken.note(ctx, &change)
    };
    if count.is_some() {
        ctx.reply.set(wanted as usize);
        sample::distinct(ctx, &set, wanted, take).await?;
    } else {
        let field = sample::one(ctx, &set).await?;
        take(ctx, field)?;
    }
    if taken.count != wanted {
        return Err(damaged(&set, taken.count));
    }
    if wanted > 0 {
        set.count -= wanted;
        change.put_collection(&mut set, true);
        ctx.commit(change).await?;
    }
    Ok(())
}

async fn srandmember(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    if args.len() == 2 {
        let _held = ctx.latch([&args[1]]).await;
        match ctx.collection_to_read(&args[1], Type::Set).await? {
            Some(set) => {
                let field = sample::one(ctx, &set).await?;
                ctx.reply.bulk_bytes(member_of(&field));
            }
            None => ctx.reply.null(),
        }
        return Ok(());
    }
    if args.len() > 3 {
        return Err(errors::SYNTAX.into());
    }
    let (count, _) = sample::parse_count(&args, "")?;
    let held = ctx.latch([&args[1]]).await;
    let Some(set) = ctx.collection_to_read(&args[1], Type::Set).await? else {
        ctx.reply.array(0);
        return Ok(());
    };
    sample::reply_many(ctx, set, held, count, With::Nothing).await
}

async fn smove(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    check_member([&args[3]])?;
    let member = &args[3];
    let _held = ctx.latch([&args[1], &args[2]]).await;
    let Some(mut from) = ctx.collection(&args[1], Type::Set).await? else {
        ctx.reply.int(0);
        return Ok(());
    };
    let mut change = ctx.change();
    let mut to = ctx.collection_or_new(&mut change, &args[2], Type::Set).await?;
    let is_there = contains(ctx, &from, &[member]).await?[0];
    if !is_there || args[1] == args[2] {
        ctx.reply.flag(is_there);
        return Ok(());
    }
    remove(&mut change, &mut from, member);
    change.put_collection(&mut from, true);
    if !contains(ctx, &to, &[member]).await?[0] {
        put(&mut change, &mut to, member);
        change.put_collection(&mut to, true);
    }
    ctx.commit(change).await?;
    ctx.reply.int(1);
    Ok(())
}

async fn sscan(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    element_scan::scan(ctx, args, Type::Set).await
}
