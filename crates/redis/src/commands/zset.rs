//! Sorted sets: single members. Elements: sub 0, hash of the member + member → score (8 bytes); sub 1, score in
//! its sorting form + member → nothing, or one byte for a negative zero, which sorts as zero and prints as `-0`.
//!
//! Ranges are in `zset_range.rs`, ranks in `zset_rank.rs`, removal from the ends in `zset_pop.rs`, unions and
//! intersections in `zset_algebra.rs`.

use bytes::Bytes;
use pumice_base::hash::HashMap;
use pumice_kv::EntryView;

use super::collection::{
    Field, LOOKED_UP_MAX, MEMBER_BYTES_MAX, MEMBERS, ORDER, check_member, member_field, member_of,
    note_sizes, only_name, unique,
};
use super::element_scan;
use super::sample::{self, With};
use crate::args::Args;
use crate::command::{Fast, FastHandler, Row};
use crate::context::Ctx;
use crate::errors::{self, CommandResult, Failure};
use crate::keyspace::{
    Change, Collection, Compact, HINT_LONG_ELEMENT, HINT_MANY, Type, decode_score, encode_score,
};
use crate::resp::reply::Reply;
use crate::{at_hand, handler, reads_first};

/// The commands of this module.
pub static ROWS: &[Row] = &[
    ("zadd", reads_first!(zadd)),
    ("zincrby", reads_first!(zincrby)),
    ("zrem", reads_first!(zrem)),
    ("zscore", handler!(zscore)),
    ("zmscore", reads_first!(zmscore)),
    ("zcard", handler!(zcard)),
    ("zrandmember", handler!(zrandmember)),
    ("zscan", handler!(zscan)),
];

/// Those with a way without waiting.
pub static FAST: &[(&str, FastHandler)] = &[
    ("zadd", at_hand!(zadd_at_hand)),
    ("zincrby", at_hand!(zincrby_at_hand)),
    ("zrem", at_hand!(zrem_at_hand)),
    ("zscore", zscore_fast),
    ("zmscore", zmscore_fast),
    ("zcard", |ctx, args| ctx.answer_count(&args[1], Type::Zset)),
];

const NEGATIVE_ZERO: &[u8] = &[1];
const SCORE_BYTES: usize = 8;

/// The field of sub [`ORDER`] for a member and its score.
pub(super) fn order_field(score: f64, member: &[u8]) -> Field {
    let mut field = Field::with_capacity(SCORE_BYTES + member.len());
    field.extend_from_slice(&encode_score(score));
    field.extend_from_slice(member);
    field
}

/// The member and score of an element of sub [`ORDER`], to be kept.
pub fn decode_order(field: &Bytes, value: &[u8]) -> Result<(Bytes, f64), Failure> {
    let (member, score) = view_order(field, value)?;
    Ok((field.slice_ref(member), score))
}

/// The member and score of an element of sub [`ORDER`], where they lie.
pub(super) fn view_order<'a>(field: &'a [u8], value: &[u8]) -> Result<(&'a [u8], f64), Failure> {
    let Some((score, member)) = field.split_first_chunk::<SCORE_BYTES>() else {
        return Err(unreadable_score());
    };
    let score = if value == NEGATIVE_ZERO { -0.0 } else { decode_score(*score) };
    Ok((member, score))
}

/// The score kept under sub [`MEMBERS`].
pub(super) fn decode_stored_score(value: &[u8]) -> Result<f64, Failure> {
    value.try_into().map(f64::from_le_bytes).map_err(|_| unreadable_score())
}

fn unreadable_score() -> Failure {
    Failure::new("ERR a sorted set's score cannot be read: the element is damaged")
}

/// The encoding that Redis would give a sorted set while members come to it: its compact one forgets the sign of a zero.
pub(super) struct Form {
    is_large: bool,
    count: u64,
    compact: Compact,
}

impl Form {
    pub(super) fn of(zset: &Collection) -> Self {
        let is_large = zset.hints & (HINT_LONG_ELEMENT | HINT_MANY) != 0;
        Self { is_large, count: zset.count, compact: zset.compact }
    }

    /// It is about to take so many members, and made for them.
    pub(super) fn made_for(&mut self, members: u64) {
        self.is_large |= members > self.compact.entries;
    }

    /// A member comes. What is kept of its score.
    pub(super) fn add(&mut self, member: &[u8], score: f64) -> f64 {
        self.is_large |= self.count >= self.compact.entries || member.len() as u64 > self.compact.bytes;
        self.count += 1;
        self.kept(score)
    }

    /// What is kept of a score that a member gets.
    fn kept(&self, score: f64) -> f64 {
        if score == 0.0 && !self.is_large { 0.0 } else { score }
    }

    pub(super) fn is_large(&self) -> bool {
        self.is_large
    }
}

/// Whether a score is a zero with the sign that the compact encoding forgets.
pub(super) fn is_negative_zero(score: f64) -> bool {
    score == 0.0 && score.is_sign_negative()
}

/// Gives `member` a score as it is kept; `old` is the one it has.
pub(super) fn put(change: &mut Change, zset: &mut Collection, member: &[u8], old: Option<f64>, new: f64) {
    note_sizes(zset, member.len(), 0);
    let sign = if is_negative_zero(new) { NEGATIVE_ZERO } else { b"" };
    let (order, member_field, score) = (order_field(new, member), member_field(member), new.to_le_bytes());
    match old {
        // One place in the order holds both zeros.
        Some(old) if encode_score(old) == encode_score(new) => {
            change.put_element(zset, ORDER, &order, sign);
        }
        Some(old) => {
            let old = order_field(old, member);
            change.delete_element(zset, ORDER, &old);
            change.note_move(zset, ORDER, &old, -1);
            change.add_element(zset, ORDER, &order, sign);
            change.note_move(zset, ORDER, &order, 1);
        }
        None => {
            zset.count += 1;
            change.add_element(zset, ORDER, &order, sign);
            change.note_move(zset, ORDER, &order, 1);
            change.add_element(zset, MEMBERS, &member_field, &score);
            return;
        }
    }
    change.put_element(zset, MEMBERS, &member_field, &score);
}

/// Removes a member.
pub(super) fn remove(change: &mut Change, zset: &mut Collection, member: &[u8], score: f64) {
    let order = order_field(score, member);
    change.delete_element(zset, ORDER, &order);
    change.note_move(zset, ORDER, &order, -1);
    change.delete_element(zset, MEMBERS, &member_field(member));
    zset.count -= 1;
}

/// The scores of `members`.
pub(super) async fn scores<'a>(
    ctx: &mut Ctx,
    zset: &Collection,
    members: impl ExactSizeIterator<Item = &'a [u8]>,
) -> Result<Vec<Option<f64>>, Failure> {
    let mut found = Vec::with_capacity(members.len());
    let mut fields = members.map(member_field);
    while fields.len() > 0 {
        let some: Vec<Field> = fields.by_ref().take(LOOKED_UP_MAX).collect();
        for entry in ctx.elements(zset, MEMBERS, some.iter().map(|field| &field[..])).await? {
            found.push(entry.map(|entry| decode_stored_score(&entry.value)).transpose()?);
        }
    }
    Ok(found)
}

#[derive(Clone, Copy, Default)]
struct AddFlags {
    only_new: bool,
    only_known: bool,
    only_greater: bool,
    only_less: bool,
    count_changed: bool,
    increment: bool,
}

impl AddFlags {
    /// The one called `word`.
    fn named(&mut self, word: &[u8]) -> Option<&mut bool> {
        match word {
            _ if word.eq_ignore_ascii_case(b"nx") => Some(&mut self.only_new),
            _ if word.eq_ignore_ascii_case(b"xx") => Some(&mut self.only_known),
            _ if word.eq_ignore_ascii_case(b"gt") => Some(&mut self.only_greater),
            _ if word.eq_ignore_ascii_case(b"lt") => Some(&mut self.only_less),
            _ if word.eq_ignore_ascii_case(b"ch") => Some(&mut self.count_changed),
            _ if word.eq_ignore_ascii_case(b"incr") => Some(&mut self.increment),
            _ => None,
        }
    }

    /// The flags, and where the scores begin.
    fn parse(args: &Args<'_>) -> Result<(Self, usize), Failure> {
        let mut flags = Self::default();
        let mut at = 2;
        while let Some(flag) = args.get(at).and_then(|word| flags.named(word)) {
            *flag = true;
            at += 1;
        }
        let left = args.len() - at;
        if left == 0 || !left.is_multiple_of(2) {
            return Err(errors::SYNTAX.into());
        }
        if flags.only_new && flags.only_known {
            return Err("ERR XX and NX options at the same time are not compatible".into());
        }
        let (gt, lt) = (flags.only_greater, flags.only_less);
        if (flags.only_new && (gt || lt)) || (gt && lt) {
            return Err("ERR GT, LT, and/or NX options at the same time are not compatible".into());
        }
        if flags.increment && left > 2 {
            return Err("ERR INCR option supports a single increment-element pair".into());
        }
        Ok((flags, at))
    }

    /// The score that a member with score `old` gets; `None`: it stays as it is.
    fn apply(&self, old: Option<f64>, given: f64) -> Result<Option<f64>, Failure> {
        let Some(old) = old else { return Ok((!self.only_known).then_some(given)) };
        if self.only_new {
            return Ok(None);
        }
        let new = if self.increment { old + given } else { given };
        if new.is_nan() {
            return Err(errors::SCORE_NAN.into());
        }
        if (self.only_less && new >= old) || (self.only_greater && new <= old) {
            return Ok(None);
        }
        Ok(Some(new))
    }
}

#[derive(Default)]
struct Added {
    added: u64,
    updated: u64,
    /// What the (last) member's score became; `None`: the flags forbade it.
    score: Option<f64>,
}

impl Added {
    /// Gives a member, whose score is `score`, what `flags` make of it.
    fn give(
        &mut self,
        flags: AddFlags,
        form: &mut Form,
        member: &[u8],
        score: &mut Option<f64>,
        given: f64,
    ) -> CommandResult {
        self.score = flags.apply(*score, given)?;
        let Some(new) = self.score else { return Ok(()) };
        *score = Some(match *score {
            None => {
                self.added += 1;
                form.add(member, new)
            }
            Some(old) if old != new => {
                self.updated += 1;
                form.kept(new)
            }
            Some(_) => return Ok(()),
        });
        Ok(())
    }

    fn changed(&self) -> bool {
        self.added + self.updated > 0
    }

    fn reply_to_zadd(&self, ctx: &mut Ctx, flags: AddFlags) {
        match (flags.increment, self.score) {
            (true, Some(score)) => ctx.reply.double(score),
            (true, None) => ctx.reply.null(),
            (false, _) => {
                ctx.reply.count(self.added + if flags.count_changed { self.updated } else { 0 });
            }
        }
    }
}

/// Stores the score that a member got, if it is another.
fn put_given(change: &mut Change, zset: &mut Collection, member: &[u8], old: Option<f64>, new: Option<f64>) {
    if let Some(new) = new
        && old.is_none_or(|old| old.to_bits() != new.to_bits())
    {
        put(change, zset, member, old, new);
    }
}

/// [`add`] of one pair.
fn add_at_hand(ctx: &mut Ctx, key: &[u8], flags: AddFlags, given: f64, member: &[u8]) -> Result<Added, Fast> {
    if member.len() > MEMBER_BYTES_MAX {
        return Err(Fast::Slow);
    }
    let (mut zset, _held) = ctx.open_or_new_at_hand(key, Type::Zset)?;
    let old = score_at_hand(ctx, &zset, member)?;
    let (mut now, mut result) = (old, Added::default());
    result.give(flags, &mut Form::of(&zset), member, &mut now, given)?;
    if result.changed() {
        let mut change = ctx.change();
        put_given(&mut change, &mut zset, member, old, now);
        change.put_collection(&mut zset, result.added > 0);
        ctx.commit_at_hand(change)?;
    }
    Ok(result)
}

fn score_at_hand(ctx: &mut Ctx, zset: &Collection, member: &[u8]) -> Result<Option<f64>, Fast> {
    let found = ctx.element_at_hand(zset, MEMBERS, &member_field(member))?;
    found.map(|found| decode_stored_score(&found.value)).transpose().map_err(|_damaged| Fast::Slow)
}

async fn add(ctx: &mut Ctx, key: &[u8], flags: AddFlags, pairs: &[(f64, &[u8])]) -> Result<Added, Failure> {
    check_member(pairs.iter().map(|(_, member)| *member))?;
    let _held = ctx.latch([key]).await;
    let mut change = ctx.change();
    let mut zset = ctx.collection_or_new(&mut change, key, Type::Zset).await?;
    let mut result = Added::default();
    if zset.is_new && flags.only_known {
        return Ok(result);
    }
    let members: Vec<&[u8]> = pairs.iter().map(|(_, member)| *member).collect();
    let members = unique(members.iter().copied());
    let before = scores(ctx, &zset, members.iter().copied()).await?;
    let places: HashMap<&[u8], usize> = members.iter().enumerate().map(|(i, member)| (*member, i)).collect();
    // A member given twice is added, then changed.
    let mut now = before.clone();
    let mut form = Form::of(&zset);
    for (given, member) in pairs {
        result.give(flags, &mut form, member, &mut now[places[member]], *given)?;
    }
    for ((member, old), new) in members.iter().zip(before).zip(now) {
        put_given(&mut change, &mut zset, member, old, new);
    }
    if result.changed() {
        change.put_collection(&mut zset, result.added > 0);
        ctx.commit(change).await?;
    }
    Ok(result)
}

async fn zadd(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    let (flags, at) = AddFlags::parse(&args)?;
    let mut pairs = Vec::with_capacity((args.len() - at) / 2);
    for at in (at..args.len()).step_by(2) {
        pairs.push((args.double(at)?, &args[at + 1]));
    }
    add(ctx, &args[1], flags, &pairs).await?.reply_to_zadd(ctx, flags);
    Ok(())
}

fn zadd_at_hand(ctx: &mut Ctx, args: &Args<'_>) -> Result<(), Fast> {
    let (flags, at) = AddFlags::parse(args)?;
    if args.len() - at > 2 {
        return Err(Fast::Slow);
    }
    let given = args.double(at)?;
    add_at_hand(ctx, &args[1], flags, given, &args[at + 1])?.reply_to_zadd(ctx, flags);
    Ok(())
}

/// What ZINCRBY adds.
fn increment(args: &Args<'_>) -> Result<(AddFlags, f64), Failure> {
    // To Redis it is a ZADD, and what is left behind a flag no pair.
    if AddFlags::default().named(&args[2]).is_some() {
        return Err(errors::SYNTAX.into());
    }
    Ok((AddFlags { increment: true, ..AddFlags::default() }, args.double(2)?))
}

fn zincrby_at_hand(ctx: &mut Ctx, args: &Args<'_>) -> Result<(), Fast> {
    let (flags, increment) = increment(args)?;
    let result = add_at_hand(ctx, &args[1], flags, increment, &args[3])?;
    ctx.reply.double(result.score.unwrap_or(increment));
    Ok(())
}

async fn zincrby(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    let (flags, increment) = increment(&args)?;
    let result = add(ctx, &args[1], flags, &[(increment, &args[3])]).await?;
    ctx.reply.double(result.score.unwrap_or(increment));
    Ok(())
}

fn zrem_at_hand(ctx: &mut Ctx, args: &Args<'_>) -> Result<(), Fast> {
    let member = only_name(args, 3)?;
    let Some((mut zset, _held)) = ctx.open_at_hand(&args[1], Type::Zset)? else {
        ctx.reply.int(0);
        return Ok(());
    };
    let score = score_at_hand(ctx, &zset, member)?;
    if let Some(score) = score {
        let mut change = ctx.change();
        remove(&mut change, &mut zset, member, score);
        change.put_collection(&mut zset, true);
        ctx.commit_at_hand(change)?;
    }
    ctx.reply.flag(score.is_some());
    Ok(())
}

async fn zrem(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    check_member(args.iter_from(2))?;
    let _held = ctx.latch([&args[1]]).await;
    let Some(mut zset) = ctx.collection(&args[1], Type::Zset).await? else {
        ctx.reply.int(0);
        return Ok(());
    };
    let members = unique(args.iter_from(2));
    let known = scores(ctx, &zset, members.iter().copied()).await?;
    let mut change = ctx.change();
    let before = zset.count;
    for (member, score) in members.iter().zip(known) {
        if let Some(score) = score {
            remove(&mut change, &mut zset, member, score);
        }
    }
    let removed = before - zset.count;
    if removed > 0 {
        change.put_collection(&mut zset, true);
        ctx.commit(change).await?;
    }
    ctx.reply.count(removed);
    Ok(())
}

/// Answers with the score of a member, or that there is none.
fn reply_score(reply: &mut Reply, found: Option<EntryView<'_>>) -> CommandResult {
    match found {
        Some(entry) => reply.double(decode_stored_score(entry.value.bytes())?),
        None => reply.null(),
    }
    Ok(())
}

fn zscore_fast(ctx: &mut Ctx, args: &Args<'_>) -> Fast {
    ctx.answer_element(&args[1], Type::Zset, MEMBERS, &member_field(&args[2]), reply_score)
}

async fn zscore(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    match ctx.read_element(&args[1], Type::Zset, MEMBERS, &member_field(&args[2])).await? {
        Some((_, entry)) => ctx.reply.double(decode_stored_score(&entry.value)?),
        None => ctx.reply.null(),
    }
    Ok(())
}

fn zmscore_fast(ctx: &mut Ctx, args: &Args<'_>) -> Fast {
    ctx.answer_elements(&args[1], Type::Zset, MEMBERS, args.iter_from(2).map(member_field), reply_score)
}

async fn zmscore(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    let found = {
        let _held = ctx.latch([&args[1]]).await;
        match ctx.collection_to_read(&args[1], Type::Zset).await? {
            Some(zset) => scores(ctx, &zset, args.iter_from(2)).await?,
            None => vec![None; args.len() - 2],
        }
    };
    ctx.reply.array(found.len());
    for score in found {
        match score {
            Some(score) => ctx.reply.double(score),
            None => ctx.reply.null(),
        }
    }
    Ok(())
}

async fn zcard(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    let count = ctx.collection_to_read(&args[1], Type::Zset).await?.map_or(0, |zset| zset.count);
    ctx.reply.count(count);
    Ok(())
}

async fn zrandmember(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    if args.len() == 2 {
        let _held = ctx.latch([&args[1]]).await;
        match ctx.collection_to_read(&args[1], Type::Zset).await? {
            Some(zset) => {
                let field = sample::one(ctx, &zset).await?;
                ctx.reply.bulk_bytes(member_of(&field));
            }
            None => ctx.reply.null(),
        }
        return Ok(());
    }
    let (count, with_scores) = sample::parse_count(&args, "withscores")?;
    let held = ctx.latch([&args[1]]).await;
    let Some(zset) = ctx.collection_to_read(&args[1], Type::Zset).await? else {
        ctx.reply.array(0);
        return Ok(());
    };
    let with = if with_scores { With::Score } else { With::Nothing };
    sample::reply_many(ctx, zset, held, count, with).await
}

async fn zscan(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    element_scan::scan(ctx, args, Type::Zset).await
}
