//! Lists: the ends, and elements by index. Element: sub 0, index → value. The head keeps the index of the first
//! element and the one after the last, so both ends and every place are one look-up away.
//!
//! What moves elements (LINSERT, LREM, LTRIM) is in `list_edit.rs` and `list_shift.rs`; what moves them between
//! lists in `list_move.rs`.

use std::ops::Bound;

use bytes::Bytes;
use pumice_kv::{Direction, VALUE_BYTES_MAX, Want};

use super::collection::{MEMBERS, clamp_range, damaged, note_sizes, reply_elements};
use super::list_shift;
use crate::args::Args;
use crate::collected::Taken;
use crate::command::{Fast, FastHandler, Row};
use crate::context::Ctx;
use crate::errors::{self, CommandResult, Failure};
use crate::keyspace::{Change, Collection, ElementScan, Type, encode_index};
use crate::{at_hand, handler};

/// The commands of this module.
pub static ROWS: &[Row] = &[
    ("lpush", handler!(lpush)),
    ("rpush", handler!(rpush)),
    ("lpushx", handler!(lpushx)),
    ("rpushx", handler!(rpushx)),
    ("lpop", handler!(lpop)),
    ("rpop", handler!(rpop)),
    ("llen", handler!(llen)),
    ("lindex", handler!(lindex)),
    ("lset", handler!(lset)),
    ("lrange", handler!(lrange)),
];

/// Those with a way without waiting.
pub static FAST: &[(&str, FastHandler)] = &[
    ("lpush", at_hand!(lpush_at_hand)),
    ("rpush", at_hand!(rpush_at_hand)),
    ("lpop", at_hand!(lpop_at_hand)),
    ("rpop", at_hand!(rpop_at_hand)),
    ("llen", at_hand!(llen_at_hand)),
    ("lindex", at_hand!(lindex_at_hand)),
];

/// One end of a list.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Left,
    Right,
}

impl End {
    /// Reads `LEFT` or `RIGHT`.
    pub(super) fn parse(word: &[u8]) -> Result<Self, Failure> {
        if word.eq_ignore_ascii_case(b"left") {
            Ok(Self::Left)
        } else if word.eq_ignore_ascii_case(b"right") {
            Ok(Self::Right)
        } else {
            Err(errors::SYNTAX.into())
        }
    }
}

/// The list at `key`, with any shift completed that a crash interrupted. Hold the latch.
pub(super) async fn open(ctx: &mut Ctx, key: &[u8]) -> Result<Option<Collection>, Failure> {
    match ctx.collection(key, Type::List).await? {
        Some(list) => whole(ctx, list).await.map(Some),
        None => Ok(None),
    }
}

/// [`open`] for what Redis looks up to read.
pub(super) async fn open_to_read(ctx: &mut Ctx, key: &[u8]) -> Result<Option<Collection>, Failure> {
    match ctx.collection_to_read(key, Type::List).await? {
        Some(list) => whole(ctx, list).await.map(Some),
        None => Ok(None),
    }
}

/// `list`, with any shift completed that a crash interrupted. Hold the latch.
pub(super) async fn whole(ctx: &mut Ctx, list: Collection) -> Result<Collection, Failure> {
    if list_shift::is_interrupted(&list) { list_shift::complete(ctx, list).await } else { Ok(list) }
}

/// Stores the element at the index `at`.
pub(super) fn put(change: &mut Change, list: &mut Collection, at: i64, value: &[u8]) {
    note_sizes(list, 0, value.len());
    change.put_element(list, MEMBERS, &encode_index(at), value);
}

/// Removes the element at the index `at`.
pub(super) fn remove(change: &mut Change, list: &Collection, at: i64) {
    change.delete_element(list, MEMBERS, &encode_index(at));
}

/// Adds an element at one end.
pub(super) fn push(change: &mut Change, list: &mut Collection, end: End, value: &[u8]) {
    let at = match end {
        End::Left => {
            list.first -= 1;
            list.first
        }
        End::Right => {
            list.end += 1;
            list.end - 1
        }
    };
    note_sizes(list, 0, value.len());
    change.add_element(list, MEMBERS, &encode_index(at), value);
    list.count += 1;
}

/// The elements at the indexes `from..to`, all of which will be asked for.
pub(super) fn read(
    ctx: &mut Ctx,
    list: &Collection,
    from: i64,
    to: i64,
    direction: Direction,
) -> ElementScan {
    let want = Want::values_of(to.abs_diff(from));
    let (lower, upper) = (encode_index(from), encode_index(to));
    let (lower, upper) = (Bound::Included(&lower[..]), Bound::Excluded(&upper[..]));
    ctx.scan_elements(list, MEMBERS, lower, upper, direction, want)
}

/// The element at the index `at`, which must be there.
pub(super) async fn element_at(ctx: &mut Ctx, list: &Collection, at: i64) -> Result<Bytes, Failure> {
    let value = ctx.element(list, MEMBERS, &encode_index(at)).await?;
    value.ok_or_else(|| missing(list, at))
}

fn missing(list: &Collection, at: i64) -> Failure {
    damaged(list, (at - list.first).unsigned_abs())
}

/// The index of the outermost element at one end.
fn outermost(list: &Collection, end: End) -> i64 {
    match end {
        End::Left => list.first,
        End::Right => list.end - 1,
    }
}

/// Takes the outermost element off one end. `change` stores what is left.
pub(super) async fn take_one(
    ctx: &mut Ctx,
    change: &mut Change,
    list: &mut Collection,
    end: End,
) -> Result<Bytes, Failure> {
    let at = outermost(list, end);
    let value = element_at(ctx, list, at).await?;
    if list.count == 1 && !list.has_none_outside() {
        ctx.erase_elements(change, list).await?;
    } else {
        remove(change, list, at);
    }
    shrink(change, list, end, 1);
    Ok(value)
}

/// Takes `count` elements, which is not more than there are, off one end, and answers them, the outermost first. `change` stores
/// what is left; `by`: the command.
pub(super) async fn pop(
    ctx: &mut Ctx,
    change: &mut Change,
    list: &mut Collection,
    end: End,
    count: u64,
    by: &'static str,
) -> CommandResult {
    if count <= 1 {
        if count == 1 {
            let value = take_one(ctx, change, list, end).await?;
            ctx.reply.bulk_bytes(value);
        }
        return Ok(());
    }
    let width = count as i64;
    let (from, step, mut scan) = match end {
        End::Left => (list.first, 1, read(ctx, list, list.first, list.first + width, Direction::Forward)),
        End::Right => (list.end - 1, -1, read(ctx, list, list.end - width, list.end, Direction::Backward)),
    };
    if count == list.count {
        ctx.erase_elements(change, list).await?;
    }
    let mut taken = Taken::new(ctx, by);
    while let Some((_, value)) = scan.next(ctx).await? {
        if count < list.count {
            remove(change, list, from + step * taken.count as i64);
        }
        ctx.reply.bulk_bytes(value);
        taken.note(ctx, change)?;
    }
    if taken.count != count {
        return Err(damaged(list, taken.count));
    }
    shrink(change, list, end, count);
    Ok(())
}

/// The `count` elements at one end are gone.
fn shrink(change: &mut Change, list: &mut Collection, end: End, count: u64) {
    match end {
        End::Left => list.first += count as i64,
        End::Right => list.end -= count as i64,
    }
    list.count -= count;
    change.put_collection(list, true);
}

fn push_at_hand(ctx: &mut Ctx, args: &Args<'_>, end: End) -> Result<(), Fast> {
    if args.bytes() > VALUE_BYTES_MAX {
        return Err(Fast::Slow);
    }
    let (mut list, _held) = ctx.open_or_new_at_hand(&args[1], Type::List)?;
    if list_shift::is_interrupted(&list) {
        return Err(Fast::Slow);
    }
    let mut change = ctx.change();
    for value in args.iter_from(2) {
        push(&mut change, &mut list, end, value);
    }
    change.put_collection(&mut list, true);
    ctx.commit_at_hand(change)?;
    ctx.reply.count(list.count);
    Ok(())
}

fn lpush_at_hand(ctx: &mut Ctx, args: &Args<'_>) -> Result<(), Fast> {
    push_at_hand(ctx, args, End::Left)
}

fn rpush_at_hand(ctx: &mut Ctx, args: &Args<'_>) -> Result<(), Fast> {
    push_at_hand(ctx, args, End::Right)
}

async fn push_all(ctx: &mut Ctx, args: Args<'_>, end: End, must_exist: bool) -> CommandResult {
    let _held = ctx.latch([&args[1]]).await;
    let known = open(ctx, &args[1]).await?;
    let mut change = ctx.change();
    let mut list = match known {
        Some(list) => list,
        None if must_exist => {
            ctx.reply.int(0);
            return Ok(());
        }
        None => ctx.collection_or_new(&mut change, &args[1], Type::List).await?,
    };
    for value in args.iter_from(2) {
        push(&mut change, &mut list, end, value);
    }
    let count = list.count;
    change.put_collection(&mut list, true);
    ctx.commit(change).await?;
    ctx.reply.count(count);
    Ok(())
}

async fn lpush(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    push_all(ctx, args, End::Left, false).await
}

async fn rpush(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    push_all(ctx, args, End::Right, false).await
}

async fn lpushx(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    push_all(ctx, args, End::Left, true).await
}

async fn rpushx(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    push_all(ctx, args, End::Right, true).await
}

fn pop_at_hand(ctx: &mut Ctx, args: &Args<'_>, end: End) -> Result<(), Fast> {
    if args.len() != 2 {
        return Err(Fast::Slow);
    }
    let Some((mut list, _held)) = ctx.open_at_hand(&args[1], Type::List)? else {
        ctx.reply.null();
        return Ok(());
    };
    // With the last element goes all that there may be.
    if list_shift::is_interrupted(&list) || (list.count == 1 && !list.has_none_outside()) {
        return Err(Fast::Slow);
    }
    let at = outermost(&list, end);
    let found = ctx.element_at_hand(&list, MEMBERS, &encode_index(at))?;
    // What is large is read in pieces.
    let value = found.filter(|found| found.large.is_none()).ok_or(Fast::Slow)?.value;
    let mut change = ctx.change();
    remove(&mut change, &list, at);
    shrink(&mut change, &mut list, end, 1);
    ctx.commit_at_hand(change)?;
    ctx.reply.bulk_bytes(value);
    Ok(())
}

fn lpop_at_hand(ctx: &mut Ctx, args: &Args<'_>) -> Result<(), Fast> {
    pop_at_hand(ctx, args, End::Left)
}

fn rpop_at_hand(ctx: &mut Ctx, args: &Args<'_>) -> Result<(), Fast> {
    pop_at_hand(ctx, args, End::Right)
}

async fn pop_one_key(ctx: &mut Ctx, args: Args<'_>, end: End) -> CommandResult {
    let (name, by) = if end == End::Left { ("lpop", "LPOP") } else { ("rpop", "RPOP") };
    if args.len() > 3 {
        return Err(errors::wrong_arity(name));
    }
    let count = match args.len() {
        3 => Some(args.int_or(2, errors::NOT_POSITIVE)?),
        _ => None,
    };
    if count.is_some_and(|count| count < 0) {
        return Err(errors::NOT_POSITIVE.into());
    }
    let _held = ctx.latch([&args[1]]).await;
    let Some(mut list) = open(ctx, &args[1]).await? else {
        match count {
            Some(_) => ctx.reply.null_array(),
            None => ctx.reply.null(),
        }
        return Ok(());
    };
    let wanted = list.count.min(count.unwrap_or(1) as u64);
    if count.is_some() {
        ctx.reply.array(wanted as usize);
    }
    let mut change = ctx.change();
    pop(ctx, &mut change, &mut list, end, wanted, by).await?;
    if wanted > 0 {
        ctx.commit(change).await?;
    }
    Ok(())
}

async fn lpop(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    pop_one_key(ctx, args, End::Left).await
}

async fn rpop(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    pop_one_key(ctx, args, End::Right).await
}

/// Answers as `answer` does of the list at `key`, or that there is none: a look-up to read where there is nothing to wait for.
fn read_at_hand(
    ctx: &mut Ctx,
    key: &[u8],
    answer: impl FnOnce(&mut Ctx, Option<&Collection>) -> Result<(), Fast>,
) -> Result<(), Fast> {
    let opened = ctx.open_at_hand(key, Type::List);
    let (list, _held) = match opened {
        Ok(found) => found.unzip(),
        Err(Fast::Fail(failure)) => {
            ctx.count_look_up(true);
            return Err(Fast::Fail(failure));
        }
        Err(other) => return Err(other),
    };
    if list.as_ref().is_some_and(list_shift::is_interrupted) {
        return Err(Fast::Slow);
    }
    let answered = answer(ctx, list.as_ref());
    if !matches!(answered, Err(Fast::Slow)) {
        ctx.count_look_up(list.is_some());
    }
    answered
}

fn llen_at_hand(ctx: &mut Ctx, args: &Args<'_>) -> Result<(), Fast> {
    read_at_hand(ctx, &args[1], |ctx, list| {
        ctx.reply.count(list.map_or(0, |list| list.count));
        Ok(())
    })
}

async fn llen(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    let mut list = ctx.collection_to_read(&args[1], Type::List).await?;
    if list.as_ref().is_some_and(list_shift::is_interrupted) {
        // An LREM counts down as it goes; one that is under way has the latch.
        let _held = ctx.latch([&args[1]]).await;
        list = open(ctx, &args[1]).await?;
    }
    ctx.reply.count(list.map_or(0, |list| list.count));
    Ok(())
}

/// The stored index of place `index` of the list, negative ones counting from the end.
fn stored_index(list: &Collection, index: i64) -> Option<i64> {
    let index = if index < 0 { index.checked_add(list.count as i64)? } else { index };
    (0..list.count as i64).contains(&index).then(|| list.first + index)
}

fn lindex_at_hand(ctx: &mut Ctx, args: &Args<'_>) -> Result<(), Fast> {
    read_at_hand(ctx, &args[1], |ctx, list| {
        // Redis looks at the number only where there is a list.
        let Some(list) = list else {
            ctx.reply.null();
            return Ok(());
        };
        let Some(at) = stored_index(list, args.int(2)?) else {
            ctx.reply.null();
            return Ok(());
        };
        let found = ctx.element_at_hand(list, MEMBERS, &encode_index(at))?;
        let entry = found.filter(|found| found.large.is_none()).ok_or(Fast::Slow)?;
        ctx.reply.bulk_bytes(entry.value);
        Ok(())
    })
}

async fn lindex(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    let held = ctx.latch([&args[1]]).await;
    let Some(list) = open_to_read(ctx, &args[1]).await? else {
        ctx.reply.null();
        return Ok(());
    };
    let Some(at) = stored_index(&list, args.int(2)?) else {
        ctx.reply.null();
        return Ok(());
    };
    let entry = ctx.element_entry(&list, MEMBERS, &encode_index(at)).await?;
    drop(held);
    ctx.reply_entry(list.elements, entry.ok_or_else(|| missing(&list, at))?).await
}

async fn lset(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    let _held = ctx.latch([&args[1]]).await;
    let mut list = open(ctx, &args[1]).await?.ok_or(errors::NO_SUCH_KEY)?;
    let at = stored_index(&list, args.int(2)?).ok_or(errors::INDEX_OUT_OF_RANGE)?;
    let mut change = ctx.change();
    put(&mut change, &mut list, at, &args[3]);
    change.put_collection(&mut list, false);
    ctx.commit(change).await?;
    ctx.reply.ok();
    Ok(())
}

async fn lrange(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    let (start, stop) = (args.int(2)?, args.int(3)?);
    let held = ctx.latch([&args[1]]).await;
    let list = open_to_read(ctx, &args[1]).await?;
    let range = list.and_then(|list| clamp_range(start, stop, list.count).map(|range| (list, range)));
    let Some((list, (start, stop))) = range else {
        ctx.reply.array(0);
        return Ok(());
    };
    let (from, to) = (list.first + start as i64, list.first + stop as i64);
    let scan = read(ctx, &list, from, to, Direction::Forward);
    drop(held);
    ctx.reply.array((stop - start) as usize);
    let found = reply_elements(ctx, scan, Some(list.elements), |_, _| {}).await?;
    if found == stop - start { Ok(()) } else { Err(damaged(&list, found)) }
}
