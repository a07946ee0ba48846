//! Places in the order of a sorted set: by rank, and how many lie between bounds.
//!
//! The order is a plain sorted run of elements, without counts in it. Near its ends a rank is found by counting from there, whole stretches
//! of a block at a time, no element looked at by itself. Who has to go far has the order counted in the background
//! ([`crate::keyspace::Ranks`]), and waits for that rather than walk; from then on a rank is a look at these counts and a walk over some
//! hundred elements. Who only asks goes far without the latch: all is of one moment, that of an [`Order`].

use std::ops::{Bound, RangeBounds};

use bytes::Bytes;
use pumice_kv::{Direction, Snapshot, Want};

use super::collection::{Field, ORDER};
use super::zset::{order_field, scores};
use super::zset_spec::OrderRange;
use crate::args::Args;
use crate::command::Row;
use crate::context::Ctx;
use crate::errors::{CommandResult, Failure};
use crate::keyspace::{Asked, Collection, ElementScan, Latched, Stretch, Type};
use crate::reads_first;

/// The commands of this module.
pub static ROWS: &[Row] = &[("zrank", reads_first!(zrank)), ("zrevrank", reads_first!(zrevrank))];

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

/// The order of a sorted set as of one moment.
pub(super) struct Order<'z> {
    zset: &'z Collection,
    snapshot: Snapshot,
    /// Dropped where nothing more is asked that others change; none where the caller holds the latch to its end.
    held: Option<Latched>,
    /// Nobody writes to the set.
    is_latched: bool,
}

/// A count of what lies before a place in an order, of which memory knows the most.
struct Below {
    /// Elements in stretches before.
    before: u64,
    /// What is to be counted of the stretch that it lies in.
    rest: Option<(ElementScan, Stretch)>,
}

impl<'z> Order<'z> {
    /// The order of `zset` as it is now. Hold the latch from opening it until here, and give it away unless it must be held to the end.
    pub fn new(ctx: &mut Ctx, zset: &'z Collection, held: Option<Latched>) -> Self {
        Self { zset, snapshot: ctx.snapshot_of(zset), held, is_latched: true }
    }

    /// The moment.
    pub fn into_snapshot(self) -> Snapshot {
        self.snapshot
    }

    fn walk(&self, ctx: &mut Ctx, range: &OrderRange, direction: Direction) -> ElementScan {
        let (lower, upper) = (range.lower(), range.upper());
        ctx.scan_elements_at(&self.snapshot, self.zset, ORDER, lower, upper, direction, Want::Keys)
    }

    /// From here on others may write.
    fn release(&mut self) {
        if self.held.take().is_some() {
            self.is_latched = false;
        }
    }

    /// Begins to count what lies before `upper`, which is a bound above it, or the order's beginning; `None` where nobody counted the
    /// order. Not after [`Order::release`].
    fn below(&self, ctx: &mut Ctx, upper: Option<Bound<Field>>) -> Option<Below> {
        let Some(upper) = upper else { return Some(Below { before: 0, rest: None }) };
        let (Bound::Included(field) | Bound::Excluded(field)) = &upper else {
            return Some(Below { before: self.zset.count, rest: None });
        };
        let stretch = ctx.stretch(self.zset, ORDER, Asked::Field(field))?;
        let range = OrderRange { lower: Bound::Included(Field::from_slice(&stretch.lower)), upper };
        let scan = self.walk(ctx, &range, Direction::Forward);
        Some(Below { before: stretch.before, rest: Some((scan, stretch)) })
    }

    /// Lets others write, unless a stretch is to be cut.
    fn release_unless_long<'b>(&mut self, stretches: impl IntoIterator<Item = &'b Stretch>) {
        if !stretches.into_iter().any(Stretch::is_long) {
            self.release();
        }
    }

    /// Counts to the end.
    async fn count(&self, ctx: &mut Ctx, below: Below) -> Result<u64, Failure> {
        let Some((mut scan, stretch)) = below.rest else { return Ok(below.before) };
        let rest = scan.skip(ctx, stretch.len).await?;
        self.cut(ctx, &stretch).await;
        Ok(below.before + rest)
    }

    async fn cut(&self, ctx: &mut Ctx, stretch: &Stretch) {
        if self.is_latched {
            ctx.cut_stretch(self.zset, ORDER, stretch).await;
        }
    }
}

impl Below {
    fn stretch(&self) -> Option<&Stretch> {
        self.rest.as_ref().map(|(_, stretch)| stretch)
    }
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
    fn new(ctx: &mut Ctx, order: &Order<'_>, range: &OrderRange, direction: Direction) -> Self {
        Self { scan: order.walk(ctx, range, direction), steps: 0, turn: TURN_MIN, ended: false }
    }

    async fn turn(&mut self, ctx: &mut Ctx) -> Result<(), Failure> {
        let stepped = self.scan.skip(ctx, self.turn).await?;
        self.steps += stepped;
        self.ended = stepped < self.turn;
        self.turn = (self.turn * 2).min(TURN_MAX);
        Ok(())
    }
}

/// Counters that have gone far for one question.
#[derive(Default)]
struct Far {
    is_told: bool,
}

impl Far {
    /// Has the order counted once `steps` are many; ends the handler until then, where it can be ended.
    fn look(&mut self, ctx: &mut Ctx, order: &Order<'_>, steps: u64) -> Result<(), Failure> {
        if steps <= ctx.server.options.rank_walk_max || std::mem::replace(&mut self.is_told, true) {
            return Ok(());
        }
        ctx.want_counts(order.zset, ORDER)
    }
}

/// How many elements lie within `range`: where nobody counted them, counts inside and outside in turns, until either count is complete.
pub(super) async fn count_between(
    ctx: &mut Ctx,
    mut order: Order<'_>,
    range: &OrderRange,
) -> Result<u64, Failure> {
    let (below, above) = (beyond(&range.lower), beyond(&range.upper));
    if let Some(lower) = order.below(ctx, below.clone())
        && let Some(upper) = order.below(ctx, Some(range.upper.clone()))
    {
        order.release_unless_long([&lower, &upper].into_iter().filter_map(|below| below.stretch()));
        let (lower, upper) = (order.count(ctx, lower).await?, order.count(ctx, upper).await?);
        return Ok(upper.saturating_sub(lower));
    }
    let mut inside = Counter::new(ctx, &order, range, Direction::Forward);
    // What lies outside is counted one side after the other.
    let mut outside: Vec<Counter> = Vec::new();
    if let Some(upper) = below {
        let range = OrderRange { lower: Bound::Unbounded, upper };
        outside.push(Counter::new(ctx, &order, &range, Direction::Forward));
    }
    if let Some(lower) = above {
        let range = OrderRange { lower, upper: Bound::Unbounded };
        outside.push(Counter::new(ctx, &order, &range, Direction::Backward));
    }
    order.release();
    let steps = |outside: &[Counter]| outside.iter().map(|counter| counter.steps).sum::<u64>();
    let mut far = Far::default();
    while let Some(counter) = outside.iter_mut().find(|counter| !counter.ended) {
        counter.turn(ctx).await?;
        inside.turn(ctx).await?;
        if inside.ended {
            break;
        }
        far.look(ctx, &order, steps(&outside) + inside.steps)?;
    }
    Ok(if inside.ended { inside.steps } else { order.zset.count.saturating_sub(steps(&outside)) })
}

/// The rank of `field`, which is in the order: where nobody counted it, walks to both ends in turns.
async fn rank_of(ctx: &mut Ctx, mut order: Order<'_>, field: &[u8]) -> Result<u64, Failure> {
    let own = Field::from_slice(field);
    if let Some(below) = order.below(ctx, Some(Bound::Excluded(own.clone()))) {
        order.release_unless_long(below.stretch());
        return order.count(ctx, below).await;
    }
    let before = OrderRange { lower: Bound::Unbounded, upper: Bound::Excluded(own.clone()) };
    let after = OrderRange { lower: Bound::Excluded(own), upper: Bound::Unbounded };
    let mut before = Counter::new(ctx, &order, &before, Direction::Backward);
    order.release();
    before.turn(ctx).await?;
    if before.ended {
        return Ok(before.steps);
    }
    let mut after = Counter::new(ctx, &order, &after, Direction::Forward);
    let mut far = Far::default();
    loop {
        after.turn(ctx).await?;
        if after.ended {
            return Ok(order.zset.count.saturating_sub(after.steps + 1));
        }
        far.look(ctx, &order, before.steps + after.steps)?;
        before.turn(ctx).await?;
        if before.ended {
            return Ok(before.steps);
        }
    }
}

/// Where a walk over ranks `start..stop` (`start < stop <= count`) begins: the first of them going forward, the
/// last going backward; found from the nearer end. The walk's other end is its caller's to count. `None` when
/// the order holds less than the head says.
pub(super) async fn range_of_ranks(
    ctx: &mut Ctx,
    order: &mut Order<'_>,
    start: u64,
    stop: u64,
    direction: Direction,
) -> Result<Option<OrderRange>, Failure> {
    let mut range = OrderRange::ALL;
    if direction == Direction::Forward && start > 0 {
        let Some(first) = field_at(ctx, order, start).await? else { return Ok(None) };
        range.lower = Bound::Included(Field::from_slice(&first));
    }
    if direction == Direction::Backward && stop < order.zset.count {
        let Some(last) = field_at(ctx, order, stop - 1).await? else { return Ok(None) };
        range.upper = Bound::Included(Field::from_slice(&last));
    }
    Ok(Some(range))
}

/// Takes the first `skip` elements off a range that is walked in `direction`, where the order is counted: answers what is left, and how
/// many are still to be skipped. `None`: nothing is left.
pub(super) async fn leap(
    ctx: &mut Ctx,
    order: &mut Order<'_>,
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
    let Some(below) = order.below(ctx, edge) else {
        Far::default().look(ctx, order, skip.min(order.zset.count))?;
        return Ok(Some((range, skip)));
    };
    let before = order.count(ctx, below).await?;
    let rank = if forward { before.checked_add(skip) } else { before.checked_sub(skip + 1) };
    let Some(rank) = rank.filter(|&rank| rank < order.zset.count) else { return Ok(None) };
    let Some(field) = field_at(ctx, order, rank).await? else { return Ok(Some((range, skip))) };
    let field = Field::from_slice(&field);
    let is_within = (range.lower.as_ref(), range.upper.as_ref()).contains(&field);
    if forward {
        range.lower = Bound::Included(field);
    } else {
        range.upper = Bound::Included(field);
    }
    Ok(is_within.then_some((range, 0)))
}

/// The field at `rank`. The last to be asked of the order.
async fn field_at(ctx: &mut Ctx, order: &mut Order<'_>, rank: u64) -> Result<Option<Bytes>, Failure> {
    let from_end = order.zset.count.saturating_sub(rank + 1);
    let (direction, skip) =
        if from_end < rank { (Direction::Backward, from_end) } else { (Direction::Forward, rank) };
    if skip > ctx.server.options.rank_walk_max / NEAR_PART
        && let Some(stretch) = ctx.stretch(order.zset, ORDER, Asked::Rank(rank))
    {
        order.release_unless_long([&stretch]);
        let lower = Bound::Included(Field::from_slice(&stretch.lower));
        let range = OrderRange { lower, upper: Bound::Unbounded };
        let mut scan = order.walk(ctx, &range, Direction::Forward);
        scan.skip(ctx, rank - stretch.before).await?;
        let found = scan.next(ctx).await?;
        order.cut(ctx, &stretch).await;
        return Ok(found.map(|(field, _)| field));
    }
    order.release();
    Far::default().look(ctx, order, skip)?;
    let mut scan = order.walk(ctx, &OrderRange::ALL, direction);
    if scan.skip(ctx, skip).await? < skip {
        return Ok(None);
    }
    Ok(scan.next(ctx).await?.map(|(field, _)| field))
}

async fn reply_rank(ctx: &mut Ctx, args: Args<'_>, reverse: bool) -> CommandResult {
    let held = ctx.latch([&args[1]]).await;
    let Some(zset) = ctx.collection_to_read(&args[1], Type::Zset).await? else {
        ctx.reply.null();
        return Ok(());
    };
    let Some(score) = scores(ctx, &zset, std::iter::once(&args[2])).await?[0] else {
        ctx.reply.null();
        return Ok(());
    };
    let order = Order::new(ctx, &zset, Some(held));
    let rank = rank_of(ctx, order, &order_field(score, &args[2])).await?;
    ctx.reply.count(if reverse { zset.count.saturating_sub(rank + 1) } else { rank });
    Ok(())
}

async fn zrank(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    reply_rank(ctx, args, false).await
}

async fn zrevrank(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    reply_rank(ctx, args, true).await
}
