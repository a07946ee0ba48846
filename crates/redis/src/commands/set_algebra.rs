//! SINTER, SUNION, SDIFF, their STORE forms and SINTERCARD.
//!
//! The sets are merged as streams (`merge.rs`), at a cost of the sum of their sizes. An intersection or
//! difference whose leading set is small beside the others asks them for its members instead.

use bytes::Bytes;
use pumice_kv::{Direction, Want};

use super::build::Builder;
use super::collection::{MEMBERS, member_of};
use super::merge::{self, Joined, Merge, Moment};
use crate::args::Args;
use crate::command::Row;
use crate::context::Ctx;
use crate::errors::{self, CommandResult, Failure};
use crate::handler;
use crate::keyspace::{Collection, Type};

/// The commands of this module.
pub static ROWS: &[Row] = &[
    ("sinter", handler!(sinter)),
    ("sinterstore", handler!(sinterstore)),
    ("sintercard", handler!(sintercard)),
    ("sunion", handler!(sunion)),
    ("sunionstore", handler!(sunionstore)),
    ("sdiff", handler!(sdiff)),
    ("sdiffstore", handler!(sdiffstore)),
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Operation {
    Intersection,
    Union,
    Difference,
}

/// A leading set up to this size may be looked up member by member in the others.
const PROBED_MAX: u64 = 16_384;
/// What a look-up costs, in steps of a scan.
const PROBE_STEPS: u64 = 16;
/// A reply of unknown length is collected up to this size; a longer one is counted first, then streamed.
pub(super) const COLLECTED_BYTES_MAX: usize = 1 << 20;
/// Members looked up together, and their bytes.
const PROBES_TOGETHER: usize = 256;
const PROBE_BYTES_MAX: usize = 256 << 10;
/// Bytes of members that are held once they are found, 256 for each that may be; where they are more, sets are merged, which holds none.
const FOUND_BYTES_MAX: usize = PROBED_MAX as usize * 256;

/// The result: members found already, or collections to be merged.
enum Outcome {
    Found(Vec<Bytes>),
    Merge(Moment),
}

/// The members of a result, one after the other.
enum Members<'a> {
    Found(std::slice::Iter<'a, Bytes>),
    Merged { merge: Merge, operation: Operation, sets: usize },
}

impl Outcome {
    /// Computes, or starts to. Latches may be dropped then. `limit`: members that matter.
    async fn of(
        ctx: &mut Ctx,
        operation: Operation,
        sets: Vec<Option<Collection>>,
        limit: usize,
    ) -> Result<Self, Failure> {
        // The set whose members can be in the result at all.
        let leading = match operation {
            Operation::Union => return Ok(Self::Merge(Moment::new(ctx, sets))),
            Operation::Difference => sets[0].as_ref().map(|set| (0, set)),
            Operation::Intersection if sets.iter().any(Option::is_none) => None,
            Operation::Intersection => {
                let there = sets.iter().enumerate().filter_map(|(i, set)| set.as_ref().map(|set| (i, set)));
                there.min_by_key(|(_, set)| set.count)
            }
        };
        let Some((lead, leading)) = leading else { return Ok(Self::Found(Vec::new())) };
        let others = sets.iter().enumerate().filter(|(i, _)| *i != lead);
        let others: Vec<&Collection> = others.filter_map(|(_, set)| set.as_ref()).collect();
        let total: u64 = others.iter().map(|set| set.count).sum();
        let probes = leading.count.saturating_mul(others.len() as u64).saturating_mul(PROBE_STEPS);
        if leading.count > PROBED_MAX || probes >= total {
            return Ok(Self::Merge(Moment::new(ctx, sets)));
        }
        let wanted = operation == Operation::Intersection;
        Ok(match probe(ctx, leading, &others, wanted, limit).await? {
            Some(found) => Self::Found(found),
            None => Self::Merge(Moment::new(ctx, sets)),
        })
    }

    /// The members from the first on.
    fn members(&self, ctx: &mut Ctx, operation: Operation) -> Members<'_> {
        match self {
            Self::Found(found) => Members::Found(found.iter()),
            Self::Merge(moment) => {
                let merge = Merge::new(ctx, moment, Want::Keys);
                Members::Merged { merge, operation, sets: moment.len() }
            }
        }
    }
}

impl Members<'_> {
    async fn next(&mut self, ctx: &mut Ctx) -> Result<Option<Bytes>, Failure> {
        match self {
            Self::Found(found) => Ok(found.next().cloned()),
            Self::Merged { merge, operation, sets } => {
                while let Some(Joined { field, found }) = merge.next(ctx).await? {
                    let belongs = match operation {
                        Operation::Union => true,
                        Operation::Intersection => found.len() == *sets,
                        Operation::Difference => found.len() == 1 && found[0].0 == 0,
                    };
                    if belongs {
                        return Ok(Some(member_of(&field)));
                    }
                }
                Ok(None)
            }
        }
    }
}

/// The members of `leading` that all (`wanted`) or none of `others` have; at most `limit`. `None`: they are too long to be held.
async fn probe(
    ctx: &mut Ctx,
    leading: &Collection,
    others: &[&Collection],
    wanted: bool,
    limit: usize,
) -> Result<Option<Vec<Bytes>>, Failure> {
    use std::ops::Bound::Unbounded;
    let mut scan = ctx.scan_elements(leading, MEMBERS, Unbounded, Unbounded, Direction::Forward, Want::Keys);
    let (mut found, mut found_bytes) = (Vec::new(), 0);
    let mut ended = false;
    while !ended && found.len() < limit {
        let (mut fields, mut bytes) = (Vec::with_capacity(PROBES_TOGETHER), 0);
        while fields.len() < PROBES_TOGETHER && bytes < PROBE_BYTES_MAX && !ended {
            match scan.next(ctx).await? {
                Some((field, _)) => {
                    bytes += field.len();
                    fields.push(field);
                }
                None => ended = true,
            }
        }
        for other in others {
            let known = ctx.contains_elements(other, MEMBERS, fields.iter().map(|field| &field[..])).await?;
            let mut known = known.into_iter();
            fields.retain(|_| known.next() == Some(wanted));
        }
        found.extend(fields.iter().map(member_of));
        found_bytes += fields.iter().map(Bytes::len).sum::<usize>();
        if found_bytes > FOUND_BYTES_MAX {
            return Ok(None);
        }
    }
    found.truncate(limit);
    Ok(Some(found))
}

fn keys_from<'a>(args: &Args<'a>, from: usize) -> Vec<&'a [u8]> {
    args.iter_from(from).collect()
}

async fn answer(ctx: &mut Ctx, args: Args<'_>, operation: Operation) -> CommandResult {
    let keys = keys_from(&args, 1);
    let held = ctx.latch(keys.iter().copied()).await;
    let sets = merge::open(ctx, &keys, &[Type::Set]).await?;
    let outcome = Outcome::of(ctx, operation, sets, usize::MAX).await?;
    drop(held);
    // Short replies are collected behind a hole for their length.
    let (mark, before) = (ctx.reply.mark(), ctx.reply.len());
    let mut members = outcome.members(ctx, operation);
    let mut count = 0;
    while ctx.reply.len() - before < COLLECTED_BYTES_MAX || ctx.in_exec() {
        let Some(member) = members.next(ctx).await? else {
            ctx.reply.fill_set(mark, count);
            return Ok(());
        };
        ctx.reply.bulk_bytes(member);
        count += 1;
        ctx.weigh(0)?;
    }
    // A long one: what is left is only counted, then all is read again and streamed.
    while members.next(ctx).await?.is_some() {
        count += 1;
    }
    ctx.reply.rollback(mark);
    ctx.reply.set(count);
    members = outcome.members(ctx, operation);
    while let Some(member) = members.next(ctx).await? {
        ctx.reply.bulk_bytes(member);
        ctx.drain().await?;
    }
    Ok(())
}

async fn store(ctx: &mut Ctx, args: Args<'_>, operation: Operation) -> CommandResult {
    let keys = keys_from(&args, 2);
    let _held = ctx.latch(args.iter_from(1)).await;
    let sets = merge::open(ctx, &keys, &[Type::Set]).await?;
    let outcome = Outcome::of(ctx, operation, sets, usize::MAX).await?;
    let mut members = outcome.members(ctx, operation);
    let mut builder = Builder::new(ctx, &args[1], Type::Set);
    while let Some(member) = members.next(ctx).await? {
        builder.add_member(ctx, &member).await?;
    }
    let count = builder.finish(ctx).await?;
    ctx.reply.count(count);
    Ok(())
}

async fn sinter(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    answer(ctx, args, Operation::Intersection).await
}

async fn sinterstore(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    store(ctx, args, Operation::Intersection).await
}

async fn sunion(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    answer(ctx, args, Operation::Union).await
}

async fn sunionstore(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    store(ctx, args, Operation::Union).await
}

async fn sdiff(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    answer(ctx, args, Operation::Difference).await
}

async fn sdiffstore(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    store(ctx, args, Operation::Difference).await
}

/// `numkeys key…` from argument `at` on; where the options begin. For commands that say "should be greater
/// than 0".
pub(super) fn counted_keys<'a>(args: &Args<'a>, at: usize) -> Result<(Vec<&'a [u8]>, usize), Failure> {
    let count = args.int_or(at, errors::NUMKEYS)?;
    if count < 1 {
        return Err(errors::NUMKEYS.into());
    }
    if count > (args.len() - at - 1) as i64 {
        return Err("ERR Number of keys can't be greater than number of args".into());
    }
    let count = count as usize;
    Ok((args.iter_from(at + 1).take(count).collect(), at + 1 + count))
}

async fn sintercard(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    let (keys, mut at) = counted_keys(&args, 1)?;
    let mut limit = 0;
    while at < args.len() {
        if !args.is(at, "limit") || at + 1 >= args.len() {
            return Err(errors::SYNTAX.into());
        }
        limit = args.int_or(at + 1, "ERR LIMIT can't be negative")?;
        if limit < 0 {
            return Err("ERR LIMIT can't be negative".into());
        }
        at += 2;
    }
    let limit = if limit == 0 { usize::MAX } else { limit as usize };
    let held = ctx.latch(keys.iter().copied()).await;
    let sets = merge::open(ctx, &keys, &[Type::Set]).await?;
    let outcome = Outcome::of(ctx, Operation::Intersection, sets, limit).await?;
    drop(held);
    let mut members = outcome.members(ctx, Operation::Intersection);
    let mut count = 0;
    while count < limit && members.next(ctx).await?.is_some() {
        count += 1;
    }
    ctx.reply.count(count as u64);
    Ok(())
}
