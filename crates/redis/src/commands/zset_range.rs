//! Ranges of sorted sets by rank, score and name: ZRANGE and its older forms, ZRANGESTORE, ZCOUNT, ZLEXCOUNT and
//! the removal of ranges.

use bytes::Bytes;
use pumice_kv::{Direction, Snapshot, Want};

use super::build::Builder;
use super::collection::{ORDER, clamp_range, commit_piece, damaged, is_piece};
use super::set_algebra::COLLECTED_BYTES_MAX;
use super::zset::{decode_order, remove, view_order};
use super::zset_rank::{Order, count_between, leap, range_of_ranks, walk};
use super::zset_spec::{LexRange, OrderRange, ScoreRange};
use crate::args::Args;
use crate::command::Row;
use crate::context::{Ctx, STREAM_BYTES};
use crate::errors::{self, CommandResult, Failure};
use crate::keyspace::{Collection, ElementScan, Type};
use crate::resp::reply::Reply;
use crate::{handler, reads_first};

/// The commands of this module.
pub static ROWS: &[Row] = &[
    ("zrange", reads_first!(zrange)),
    ("zrangestore", handler!(zrangestore)),
    ("zrevrange", reads_first!(zrevrange)),
    ("zrangebyscore", reads_first!(zrangebyscore)),
    ("zrevrangebyscore", reads_first!(zrevrangebyscore)),
    ("zrangebylex", reads_first!(zrangebylex)),
    ("zrevrangebylex", reads_first!(zrevrangebylex)),
    ("zcount", reads_first!(zcount)),
    ("zlexcount", reads_first!(zlexcount)),
    ("zremrangebyrank", handler!(zremrangebyrank)),
    ("zremrangebyscore", handler!(zremrangebyscore)),
    ("zremrangebylex", handler!(zremrangebylex)),
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Rank,
    Score,
    Lex,
}

enum By<'a> {
    Rank(i64, i64),
    Score(ScoreRange),
    Lex(LexRange<'a>),
}

/// What a range command asks for.
struct Spec<'a> {
    by: By<'a>,
    direction: Direction,
    offset: i64,
    /// Negative: all.
    limit: i64,
    with_scores: bool,
}

impl<'a> Spec<'a> {
    /// Reads `min max [options]` from argument `at` on. `kind` and `direction` are fixed by the older commands.
    fn parse(
        args: &Args<'a>,
        at: usize,
        kind: Option<Kind>,
        direction: Option<Direction>,
        store: bool,
    ) -> Result<Self, Failure> {
        let (mut given_kind, mut reverse) = (None, direction == Some(Direction::Backward));
        let (mut offset, mut limit, mut limited, mut with_scores) = (0, -1, false, false);
        let mut option = at + 2;
        while option < args.len() {
            if !store && args.is(option, "withscores") {
                with_scores = true;
            } else if args.is(option, "limit") && option + 2 < args.len() {
                offset = args.int(option + 1)?;
                limit = args.int(option + 2)?;
                limited = true;
                option += 2;
            } else if direction.is_none() && !reverse && args.is(option, "rev") {
                reverse = true;
            } else if kind.is_none() && given_kind.is_none() && args.is(option, "bylex") {
                given_kind = Some(Kind::Lex);
            } else if kind.is_none() && given_kind.is_none() && args.is(option, "byscore") {
                given_kind = Some(Kind::Score);
            } else {
                return Err(errors::SYNTAX.into());
            }
            option += 1;
        }
        let kind = kind.or(given_kind).unwrap_or(Kind::Rank);
        // As in Redis, a limit that asks for everything goes unnoticed.
        if limited && limit != -1 && kind == Kind::Rank {
            return Err(
                "ERR syntax error, LIMIT is only supported in combination with either BYSCORE or BYLEX"
                    .into(),
            );
        }
        if with_scores && kind == Kind::Lex {
            return Err("ERR syntax error, WITHSCORES not supported in combination with BYLEX".into());
        }
        let (first, second) = (args.get(at).ok_or(errors::SYNTAX)?, args.get(at + 1).ok_or(errors::SYNTAX)?);
        let (min, max) = if reverse && kind != Kind::Rank { (second, first) } else { (first, second) };
        let by = match kind {
            Kind::Rank => By::Rank(args.int(at)?, args.int(at + 1)?),
            Kind::Score => By::Score(ScoreRange::parse(min, max)?),
            Kind::Lex => By::Lex(LexRange::parse(min, max)?),
        };
        let direction = if reverse { Direction::Backward } else { Direction::Forward };
        Ok(Self { by, direction, offset, limit, with_scores })
    }

    /// The part of the order that the range covers, and how many of it to skip and take. `None`: nothing.
    async fn locate(
        &self,
        ctx: &mut Ctx,
        zset: &Collection,
        order: &mut Order<'_>,
    ) -> Result<Option<Located<'a>>, Failure> {
        let located = |range| Located { range, filter: None, skip: 0, take: u64::MAX, count: None };
        let mut located = match &self.by {
            By::Rank(start, stop) => {
                let Some((start, stop)) = clamp_range(*start, *stop, zset.count) else { return Ok(None) };
                let (first, end) = match self.direction {
                    Direction::Forward => (start, stop),
                    Direction::Backward => (zset.count - stop, zset.count - start),
                };
                let Some(range) = range_of_ranks(ctx, order, first, end, self.direction).await? else {
                    return Err(damaged(zset, first));
                };
                let count = Some(stop - start);
                return Ok(Some(Located { take: stop - start, count, ..located(range) }));
            }
            By::Score(range) => match range.fields() {
                Some(range) => located(range),
                None => return Ok(None),
            },
            By::Lex(range) => match locate_names(ctx, zset, *range).await? {
                Some((range, filter)) => Located { filter, ..located(range) },
                None => return Ok(None),
            },
        };
        if self.offset < 0 || self.limit == 0 {
            return Ok(None);
        }
        located.skip = self.offset as u64;
        located.take = u64::try_from(self.limit).unwrap_or(u64::MAX);
        if located.filter.is_none() {
            let left = leap(ctx, order, located.range, located.skip, self.direction).await?;
            let Some(left) = left else { return Ok(None) };
            (located.range, located.skip) = left;
        }
        Ok(Some(located))
    }
}

/// Where a range lies in the order.
struct Located<'a> {
    range: OrderRange,
    /// Members to be kept, where the order's bounds do not say.
    filter: Option<LexRange<'a>>,
    skip: u64,
    take: u64,
    /// How many it has, where that is known.
    count: Option<u64>,
}

/// The order's part for a range by name. Redis defines it for members of one score only; over several scores,
/// members are taken whose names are in the range, in the order they have. `None`: nothing.
#[allow(clippy::type_complexity)] // a pair, once
async fn locate_names<'a>(
    ctx: &mut Ctx,
    zset: &Collection,
    names: LexRange<'a>,
) -> Result<Option<(OrderRange, Option<LexRange<'a>>)>, Failure> {
    if names.is_empty() {
        return Ok(None);
    }
    let mut ends = Vec::with_capacity(2);
    for direction in [Direction::Forward, Direction::Backward] {
        let end = walk(ctx, zset, &OrderRange::ALL, direction, Want::Keys).next(ctx).await?;
        ends.push(end.and_then(|(field, _)| field.first_chunk::<8>().copied()));
    }
    match (ends[0], ends[1]) {
        (Some(first), Some(last)) if first == last => Ok(Some((names.fields(first), None))),
        (Some(_), Some(_)) => Ok(Some((OrderRange::ALL, Some(names)))),
        _ => Err(damaged(zset, 0)),
    }
}

/// The members of a range, in its direction.
struct Selection<'a> {
    scan: ElementScan,
    filter: Option<LexRange<'a>>,
    skip: u64,
    take: u64,
}

impl<'a> Selection<'a> {
    fn new(
        ctx: &mut Ctx,
        snapshot: &Snapshot,
        zset: &Collection,
        located: &Located<'a>,
        direction: Direction,
        want: Want,
    ) -> Self {
        let (lower, upper) = (located.range.lower(), located.range.upper());
        let scan = ctx.scan_elements_at(snapshot, zset, ORDER, lower, upper, direction, want);
        Self { scan, filter: located.filter, skip: located.skip, take: located.take }
    }

    /// How many there are, from here on.
    async fn count(&mut self, ctx: &mut Ctx) -> Result<u64, Failure> {
        if self.filter.is_none() {
            self.scan.skip(ctx, std::mem::take(&mut self.skip)).await?;
            return self.scan.skip(ctx, self.take).await;
        }
        let mut found = 0;
        while self.next(ctx).await?.is_some() {
            found += 1;
        }
        Ok(found)
    }

    /// Writes those that need not be waited for, until the reply is so long; says how many.
    fn write_at_hand(
        &mut self,
        reply: &mut Reply,
        with_scores: bool,
        bytes_max: usize,
    ) -> Result<u64, Failure> {
        let mut written = 0;
        // What is passed over unseen `next` does.
        let is_begun = self.filter.is_some() || self.skip == 0;
        while is_begun
            && self.take > 0
            && reply.len() < bytes_max
            && let Some((field, entry)) = self.scan.view_at_hand()
        {
            let (member, score) = view_order(field, entry.value.bytes())?;
            if self.filter.is_some_and(|names| !names.contains(member)) {
                continue;
            }
            if self.skip > 0 {
                self.skip -= 1;
                continue;
            }
            self.take -= 1;
            write_member(reply, member, with_scores.then_some(score));
            written += 1;
        }
        Ok(written)
    }

    async fn next(&mut self, ctx: &mut Ctx) -> Result<Option<(Bytes, f64)>, Failure> {
        if self.filter.is_none() && self.skip > 0 && self.take > 0 {
            self.scan.skip(ctx, std::mem::take(&mut self.skip)).await?;
        }
        while self.take > 0
            && let Some((field, value)) = self.scan.next(ctx).await?
        {
            let (member, score) = decode_order(&field, &value)?;
            if self.filter.is_some_and(|names| !names.contains(&member)) {
                continue;
            }
            if self.skip > 0 {
                self.skip -= 1;
                continue;
            }
            self.take -= 1;
            return Ok(Some((member, score)));
        }
        Ok(None)
    }
}

/// Writes a member, and its score if asked: a pair of their own in RESP3.
pub(super) fn write_member(reply: &mut Reply, member: &[u8], score: Option<f64>) {
    match score {
        Some(score) => {
            if reply.is_resp3() {
                reply.array(2);
            }
            reply.bulk(member);
            reply.double(score);
        }
        None => reply.bulk(member),
    }
}

/// The length of an array of `count` members.
pub(super) fn array_len(reply: &Reply, count: u64, with_scores: bool) -> usize {
    if with_scores && !reply.is_resp3() { 2 * count as usize } else { count as usize }
}

async fn answer(ctx: &mut Ctx, key: &[u8], spec: Spec<'_>) -> CommandResult {
    let held = ctx.latch([key]).await;
    let Some(zset) = ctx.collection_to_read(key, Type::Zset).await? else {
        ctx.reply.array(0);
        return Ok(());
    };
    let mut order = Order::new(ctx, &zset, Some(held));
    let Some(located) = spec.locate(ctx, &zset, &mut order).await? else {
        ctx.reply.array(0);
        return Ok(());
    };
    let snapshot = order.into_snapshot();
    let with_scores = spec.with_scores;
    let mut members = Selection::new(ctx, &snapshot, &zset, &located, spec.direction, Want::Values);
    let mut count = located.count;
    let (mark, before) = (ctx.reply.mark(), ctx.reply.len());
    if count.is_none() {
        // Short replies are collected behind a hole for their length.
        let mut found = 0;
        loop {
            found += members.write_at_hand(&mut ctx.reply, with_scores, before + COLLECTED_BYTES_MAX)?;
            let Some((member, score)) = members.next(ctx).await? else {
                let len = array_len(&ctx.reply, found, with_scores);
                ctx.reply.fill_array(mark, len);
                return Ok(());
            };
            write_member(&mut ctx.reply, &member, with_scores.then_some(score));
            found += 1;
            if ctx.reply.len() - before > COLLECTED_BYTES_MAX {
                if !ctx.in_exec() {
                    break;
                }
                ctx.weigh(0)?;
            }
        }
        ctx.reply.rollback(mark);
        members = Selection::new(ctx, &snapshot, &zset, &located, spec.direction, Want::Keys);
        count = Some(members.count(ctx).await?);
        members = Selection::new(ctx, &snapshot, &zset, &located, spec.direction, Want::Values);
    }
    drop(snapshot);
    let count = count.unwrap_or(0);
    let len = array_len(&ctx.reply, count, with_scores);
    ctx.reply.array(len);
    let mut found = 0;
    loop {
        found += members.write_at_hand(&mut ctx.reply, with_scores, STREAM_BYTES)?;
        if found >= count {
            return Ok(());
        }
        let Some((member, score)) = members.next(ctx).await? else { return Err(damaged(&zset, found)) };
        write_member(&mut ctx.reply, &member, with_scores.then_some(score));
        found += 1;
        ctx.drain().await?;
    }
}

async fn zrange(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    let spec = Spec::parse(&args, 2, None, None, false)?;
    answer(ctx, &args[1], spec).await
}

async fn zrevrange(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    let spec = Spec::parse(&args, 2, Some(Kind::Rank), Some(Direction::Backward), false)?;
    answer(ctx, &args[1], spec).await
}

async fn zrangebyscore(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    let spec = Spec::parse(&args, 2, Some(Kind::Score), Some(Direction::Forward), false)?;
    answer(ctx, &args[1], spec).await
}

async fn zrevrangebyscore(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    let spec = Spec::parse(&args, 2, Some(Kind::Score), Some(Direction::Backward), false)?;
    answer(ctx, &args[1], spec).await
}

async fn zrangebylex(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    let spec = Spec::parse(&args, 2, Some(Kind::Lex), Some(Direction::Forward), false)?;
    answer(ctx, &args[1], spec).await
}

async fn zrevrangebylex(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    let spec = Spec::parse(&args, 2, Some(Kind::Lex), Some(Direction::Backward), false)?;
    answer(ctx, &args[1], spec).await
}

async fn zrangestore(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    let spec = Spec::parse(&args, 3, None, None, true)?;
    let _held = ctx.latch([&args[1], &args[2]]).await;
    let mut builder = Builder::new(ctx, &args[1], Type::Zset);
    if let Some(zset) = ctx.collection_to_read(&args[2], Type::Zset).await? {
        let mut order = Order::new(ctx, &zset, None);
        if let Some(located) = spec.locate(ctx, &zset, &mut order).await? {
            builder = builder.made_for(located.count);
            let snapshot = order.into_snapshot();
            let mut members = Selection::new(ctx, &snapshot, &zset, &located, spec.direction, Want::Values);
            while let Some((member, score)) = members.next(ctx).await? {
                builder.add_scored(ctx, &member, score).await?;
            }
        }
    }
    let count = builder.finish(ctx).await?;
    ctx.reply.count(count);
    Ok(())
}

async fn zcount(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    let range = ScoreRange::parse(&args[2], &args[3])?;
    let held = ctx.latch([&args[1]]).await;
    let mut count = 0;
    if let Some(zset) = ctx.collection_to_read(&args[1], Type::Zset).await?
        && let Some(range) = range.fields()
    {
        let order = Order::new(ctx, &zset, Some(held));
        count = count_between(ctx, order, &range).await?;
    }
    ctx.reply.count(count);
    Ok(())
}

async fn zlexcount(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    let names = LexRange::parse(&args[2], &args[3])?;
    let held = ctx.latch([&args[1]]).await;
    let mut count = 0;
    if let Some(zset) = ctx.collection_to_read(&args[1], Type::Zset).await? {
        match locate_names(ctx, &zset, names).await? {
            Some((range, None)) => {
                let order = Order::new(ctx, &zset, Some(held));
                count = count_between(ctx, order, &range).await?;
            }
            Some((range, Some(names))) => {
                let mut scan = walk(ctx, &zset, &range, Direction::Forward, Want::Keys);
                drop(held);
                while let Some((field, value)) = scan.next(ctx).await? {
                    count += u64::from(names.contains(&decode_order(&field, &value)?.0));
                }
            }
            None => {}
        }
    }
    ctx.reply.count(count);
    Ok(())
}

/// Removes a range; in pieces when it is long, each of which leaves the set consistent.
async fn remove_range(ctx: &mut Ctx, key: &[u8], spec: Spec<'_>) -> CommandResult {
    let _held = ctx.latch([key]).await;
    let Some(mut zset) = ctx.collection(key, Type::Zset).await? else {
        ctx.reply.int(0);
        return Ok(());
    };
    let mut order = Order::new(ctx, &zset, None);
    let Some(located) = spec.locate(ctx, &zset, &mut order).await? else {
        ctx.reply.int(0);
        return Ok(());
    };
    let snapshot = order.into_snapshot();
    let before = zset.count;
    let mut change = ctx.change();
    if located.count == Some(zset.count) {
        ctx.erase_elements(&mut change, &zset).await?;
        zset.count = 0;
    } else {
        let mut members = Selection::new(ctx, &snapshot, &zset, &located, spec.direction, Want::Values);
        while let Some((member, score)) = members.next(ctx).await? {
            remove(&mut change, &mut zset, &member, score);
            if is_piece(ctx, &change)? && zset.count > 0 {
                change.put_collection(&mut zset, true);
                commit_piece(ctx, &mut change).await?;
            }
        }
    }
    let removed = before - zset.count;
    if !change.is_empty() {
        change.put_collection(&mut zset, true);
        ctx.commit(change).await?;
    }
    ctx.reply.count(removed);
    Ok(())
}

async fn zremrangebyrank(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    let by = By::Rank(args.int(2)?, args.int(3)?);
    remove_range(ctx, &args[1], whole(by)).await
}

async fn zremrangebyscore(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    let by = By::Score(ScoreRange::parse(&args[2], &args[3])?);
    remove_range(ctx, &args[1], whole(by)).await
}

async fn zremrangebylex(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    let by = By::Lex(LexRange::parse(&args[2], &args[3])?);
    remove_range(ctx, &args[1], whole(by)).await
}

fn whole(by: By<'_>) -> Spec<'_> {
    Spec { by, direction: Direction::Forward, offset: 0, limit: -1, with_scores: false }
}
