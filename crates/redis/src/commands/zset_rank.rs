//! Places in the order of a sorted set: by rank, and how many lie between bounds.
//!
//! The order is a plain sorted run of elements, without counts in it. Near its ends a rank is found by counting from there, whole stretches
//! of a block at a time, no element looked at by itself. Who has to go far has the order counted in the background
//! ([`crate::keyspace::Ranks`]); from then on a rank is a look at these counts and a walk over some hundred elements.

use std::ops::{Bound, RangeBounds};

use bytes::Bytes;
use pumice_kv::{Direction, Want};

use super::collection::{Field, ORDER};
use super::zset::{order_field, scores};
use super::zset_spec::OrderRange;
use crate::args::Args;
use crate::command::Row;
use crate::context::Ctx;
use crate::errors::{CommandResult, Failure};
use crate::handler;
use crate::keyspace::{Asked, Collection, ElementScan, Type};

/// The commands of this module.
pub static ROWS: &[Row] = &[("zrank", handler!(zrank)), ("zrevrank", handler!(zrevrank))];

/// Steps that one of two competing walks takes before the other gets its turn: at first, and at most.
const TURN_MIN: u64 = 64;
const TURN_MAX: u64 = 4096;
/// A walk from an end costs no more than one from a count where it is so many times shorter than what is far.
const NEAR_PART: u64 = 8;

/// Starts to read the order of `zset` within `range`.
pub(super) fn walk(
    ctx: &mut Ctx,
    zset: &Collection,
    range: &OrderRange,
    direction: Direction,
    want: Want,
) -> ElementScan {
    ctx.scan_elements(zset, ORDER, range.lower(), range.upper(), direction, want)
}

/// How many elements lie before `upper`, which is a bound above them, or the order's beginning; `None` where nobody counted the order.
async fn count_below(
    ctx: &mut Ctx,
    zset: &Collection,
    upper: Option<Bound<Field>>,
) -> Result<Option<u64>, Failure> {
    let Some(upper) = upper else { return Ok(Some(0)) };
    let (Bound::Included(field) | Bound::Excluded(field)) = &upper else { return Ok(Some(zset.count)) };
    let Some(stretch) = ctx.stretch(zset, ORDER, Asked::Field(field)) else { return Ok(None) };
    let range = OrderRange { lower: Bound::Included(Field::from_slice(&stretch.lower)), upper };
    let below = walk(ctx, zset, &range, Direction::Forward, Want::Keys).skip(ctx, stretch.len).await?;
    ctx.cut_stretch(zset, ORDER, &stretch).await;
    Ok(Some(stretch.before + below))
}

/// The bound of what lies on the other side of one.
fn beyond(bound: &Bound<Field>) -> Option<Bound<Field>> {
    match bound {
        Bound::Unbounded => None,
        Bound::Included(field) => Some(Bound::Excluded(field.clone())),
        Bound::Excluded(field) => Some(Bound::Included(field.clone())),
    }
}

/// A walk that only counts.
struct Counter {
    scan: ElementScan,
    steps: u64,
    turn: u64,
    ended: bool,
}

impl Counter {
    fn new(ctx: &mut Ctx, zset: &Collection, range: &OrderRange, direction: Direction) -> Self {
        Self { scan: walk(ctx, zset, range, direction, Want::Keys), steps: 0, turn: TURN_MIN, ended: false }
    }

    async fn turn(&mut self, ctx: &mut Ctx) -> Result<(), Failure> {
        let stepped = self.scan.skip(ctx, self.turn).await?;
        self.steps += stepped;
        self.ended = stepped < self.turn;
        self.turn = (self.turn * 2).min(TURN_MAX);
        Ok(())
    }
}

/// How many elements lie within `range`: where nobody counted them, counts inside and outside in turns, until either count is complete.
/// Hold the latch.
pub(super) async fn count_between(
    ctx: &mut Ctx,
    zset: &Collection,
    range: &OrderRange,
) -> Result<u64, Failure> {
    let (below, above) = (beyond(&range.lower), beyond(&range.upper));
    if let Some(lower) = count_below(ctx, zset, below.clone()).await?
        && let Some(upper) = count_below(ctx, zset, Some(range.upper.clone())).await?
    {
        return Ok(upper.saturating_sub(lower));
    }
    let mut inside = Counter::new(ctx, zset, range, Direction::Forward);
    // What lies outside is counted one side after the other.
    let mut outside: Vec<Counter> = Vec::new();
    if let Some(upper) = below {
        let range = OrderRange { lower: Bound::Unbounded, upper };
        outside.push(Counter::new(ctx, zset, &range, Direction::Forward));
    }
    if let Some(lower) = above {
        let range = OrderRange { lower, upper: Bound::Unbounded };
        outside.push(Counter::new(ctx, zset, &range, Direction::Backward));
    }
    while let Some(counter) = outside.iter_mut().find(|counter| !counter.ended) {
        counter.turn(ctx).await?;
        inside.turn(ctx).await?;
        if inside.ended {
            break;
        }
    }
    let steps: u64 = outside.iter().map(|counter| counter.steps).sum();
    if steps + inside.steps > ctx.server.options.rank_walk_max {
        ctx.count_order(zset, ORDER);
    }
    Ok(if inside.ended { inside.steps } else { zset.count.saturating_sub(steps) })
}

/// The rank of `field`, which is in the order: where nobody counted it, walks to both ends in turns. Hold the latch.
async fn rank_of(ctx: &mut Ctx, zset: &Collection, field: &[u8]) -> Result<u64, Failure> {
    let own = Field::from_slice(field);
    if let Some(rank) = count_below(ctx, zset, Some(Bound::Excluded(own.clone()))).await? {
        return Ok(rank);
    }
    let before = OrderRange { lower: Bound::Unbounded, upper: Bound::Excluded(own.clone()) };
    let after = OrderRange { lower: Bound::Excluded(own), upper: Bound::Unbounded };
    let mut before = Counter::new(ctx, zset, &before, Direction::Backward);
    let mut after = Counter::new(ctx, zset, &after, Direction::Forward);
    while !before.ended && !after.ended {
        before.turn(ctx).await?;
        if !before.ended {
            after.turn(ctx).await?;
        }
    }
    if before.steps + after.steps > ctx.server.options.rank_walk_max {
        ctx.count_order(zset, ORDER);
    }
    Ok(if before.ended { before.steps } else { zset.count.saturating_sub(after.steps + 1) })
}

/// Where a walk over ranks `start..stop` (`start < stop <= count`) begins: the first of them going forward, the
/// last going backward; found from the nearer end. The walk's other end is its caller's to count. `None` when
/// the order holds less than the head says. Hold the latch.
pub(super) async fn range_of_ranks(
    ctx: &mut Ctx,
    zset: &Collection,
    start: u64,
    stop: u64,
    direction: Direction,
) -> Result<Option<OrderRange>, Failure> {
    let mut range = OrderRange::ALL;
    if direction == Direction::Forward && start > 0 {
        let Some(first) = field_at(ctx, zset, start).await? else { return Ok(None) };
        range.lower = Bound::Included(Field::from_slice(&first));
    }
    if direction == Direction::Backward && stop < zset.count {
        let Some(last) = field_at(ctx, zset, stop - 1).await? else { return Ok(None) };
        range.upper = Bound::Included(Field::from_slice(&last));
    }
    Ok(Some(range))
}

/// Takes the first `skip` elements off a range that is walked in `direction`, where the order is counted: answers what is left, and how
/// many are still to be skipped. `None`: nothing is left. Hold the latch.
pub(super) async fn leap(
    ctx: &mut Ctx,
    zset: &Collection,
    mut range: OrderRange,
    skip: u64,
    direction: Direction,
) -> Result<Option<(OrderRange, u64)>, Failure> {
    let far = ctx.server.options.rank_walk_max;
    if skip <= far / NEAR_PART {
        return Ok(Some((range, skip)));
    }
    let forward = direction == Direction::Forward;
    let edge = if forward { beyond(&range.lower) } else { Some(range.upper.clone()) };
    let before = count_below(ctx, zset, edge).await?;
    let Some(before) = before else {
        if skip.min(zset.count) > far {
            ctx.count_order(zset, ORDER);
        }
        return Ok(Some((range, skip)));
    };
    let rank = if forward { before.checked_add(skip) } else { before.checked_sub(skip + 1) };
    let Some(rank) = rank.filter(|&rank| rank < zset.count) else { return Ok(None) };
    let Some(field) = field_at(ctx, zset, rank).await? else { return Ok(Some((range, skip))) };
    let field = Field::from_slice(&field);
    let is_within = (range.lower.as_ref(), range.upper.as_ref()).contains(&field);
    if forward {
        range.lower = Bound::Included(field);
    } else {
        range.upper = Bound::Included(field);
    }
    Ok(is_within.then_some((range, 0)))
}

/// The field at `rank`.
async fn field_at(ctx: &mut Ctx, zset: &Collection, rank: u64) -> Result<Option<Bytes>, Failure> {
    let from_end = zset.count.saturating_sub(rank + 1);
    let (direction, skip) =
        if from_end < rank { (Direction::Backward, from_end) } else { (Direction::Forward, rank) };
    if skip > ctx.server.options.rank_walk_max / NEAR_PART
        && let Some(stretch) = ctx.stretch(zset, ORDER, Asked::Rank(rank))
    {
        let lower = Bound::Included(Field::from_slice(&stretch.lower));
        let range = OrderRange { lower, upper: Bound::Unbounded };
        let mut scan = walk(ctx, zset, &range, Direction::Forward, Want::Keys);
        scan.skip(ctx, rank - stretch.before).await?;
        let found = scan.next(ctx).await?;
        ctx.cut_stretch(zset, ORDER, &stretch).await;
        return Ok(found.map(|(field, _)| field));
    }
    if skip > ctx.server.options.rank_walk_max {
        ctx.count_order(zset, ORDER);
    }
    let mut scan = walk(ctx, zset, &OrderRange::ALL, direction, Want::Keys);
    if scan.skip(ctx, skip).await? < skip {
        return Ok(None);
    }
    Ok(scan.next(ctx).await?.map(|(field, _)| field))
}

async fn reply_rank(ctx: &mut Ctx, args: Args<'_>, reverse: bool) -> CommandResult {
    let _held = ctx.latch([&args[1]]).await;
    let Some(zset) = ctx.collection_to_read(&args[1], Type::Zset).await? else {
        ctx.reply.null();
        return Ok(());
    };
    let Some(score) = scores(ctx, &zset, std::iter::once(&args[2])).await?[0] else {
        ctx.reply.null();
        return Ok(());
    };
    let rank = rank_of(ctx, &zset, &order_field(score, &args[2])).await?;
    ctx.reply.count(if reverse { zset.count.saturating_sub(rank + 1) } else { rank });
    Ok(())
}

async fn zrank(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    reply_rank(ctx, args, false).await
}

async fn zrevrank(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    reply_rank(ctx, args, true).await
}
