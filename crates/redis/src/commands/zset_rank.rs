//! Places in the order of a sorted set: by rank, and how many lie between bounds.
//!
//! The order is a plain sorted run of elements, without counts in it, so a rank is found by counting: always
//! from the nearer end, whole stretches of a block at a time, no element looked at by itself. The cost is the
//! distance to that end (docs/commands.md).
//!
//! Rejected: counts kept beside the order. They cost every ZADD a second read and write, for ranks that few ask for.

use std::ops::Bound;

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
use crate::keyspace::{Collection, ElementScan, Type};

/// The commands of this module.
pub static ROWS: &[Row] = &[("zrank", handler!(zrank)), ("zrevrank", handler!(zrevrank))];

/// Steps that one of two competing walks takes before the other gets its turn: at first, and at most.
const TURN_MIN: u64 = 64;
const TURN_MAX: u64 = 4096;

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

/// How many elements lie within `range`: counts inside and outside in turns, until either count is complete.
/// Hold the latch.
pub(super) async fn count_between(
    ctx: &mut Ctx,
    zset: &Collection,
    range: &OrderRange,
) -> Result<u64, Failure> {
    let below = match &range.lower {
        Bound::Unbounded => None,
        Bound::Included(field) => Some(Bound::Excluded(field.clone())),
        Bound::Excluded(field) => Some(Bound::Included(field.clone())),
    };
    let above = match &range.upper {
        Bound::Unbounded => None,
        Bound::Included(field) => Some(Bound::Excluded(field.clone())),
        Bound::Excluded(field) => Some(Bound::Included(field.clone())),
    };
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
    loop {
        let Some(counter) = outside.iter_mut().find(|counter| !counter.ended) else {
            let outside: u64 = outside.iter().map(|counter| counter.steps).sum();
            return Ok(zset.count.saturating_sub(outside));
        };
        counter.turn(ctx).await?;
        inside.turn(ctx).await?;
        if inside.ended {
            return Ok(inside.steps);
        }
    }
}

/// The rank of `field`, which is in the order: walks to both ends in turns. Hold the latch.
async fn rank_of(ctx: &mut Ctx, zset: &Collection, field: &[u8]) -> Result<u64, Failure> {
    let own = Field::from_slice(field);
    let before = OrderRange { lower: Bound::Unbounded, upper: Bound::Excluded(own.clone()) };
    let after = OrderRange { lower: Bound::Excluded(own), upper: Bound::Unbounded };
    let mut before = Counter::new(ctx, zset, &before, Direction::Backward);
    let mut after = Counter::new(ctx, zset, &after, Direction::Forward);
    loop {
        before.turn(ctx).await?;
        if before.ended {
            return Ok(before.steps);
        }
        after.turn(ctx).await?;
        if after.ended {
            return Ok(zset.count.saturating_sub(after.steps + 1));
        }
    }
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

/// The field at `rank`.
async fn field_at(ctx: &mut Ctx, zset: &Collection, rank: u64) -> Result<Option<Bytes>, Failure> {
    let from_end = zset.count.saturating_sub(rank + 1);
    let (direction, skip) =
        if from_end < rank { (Direction::Backward, from_end) } else { (Direction::Forward, rank) };
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
