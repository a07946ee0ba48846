//! ZUNION, ZINTER, ZDIFF, their STORE forms and ZINTERCARD, over sorted sets and sets (whose members score 1).
//!
//! Inputs are merged as streams (`merge.rs`). A stored result goes to flash as it is made and finds its order
//! there; an answered one must be sorted, so it is collected in memory first, a part of it at a time where it is large.

use bytes::Bytes;
use pumice_kv::Want;
use smallvec::SmallVec;

use super::build::Builder;
use super::collection::member_of;
use super::merge::{self, Joined, Merge, Moment};
use super::scored::ByScore;
use super::set_algebra::counted_keys;
use super::zset::decode_stored_score;
use crate::args::Args;
use crate::command::Row;
use crate::context::Ctx;
use crate::errors::{self, CommandResult, Failure};
use crate::handler;
use crate::keyspace::{Collection, Type};

/// The commands of this module.
pub static ROWS: &[Row] = &[
    ("zunion", handler!(zunion)),
    ("zinter", handler!(zinter)),
    ("zdiff", handler!(zdiff)),
    ("zunionstore", handler!(zunionstore)),
    ("zinterstore", handler!(zinterstore)),
    ("zdiffstore", handler!(zdiffstore)),
    ("zintercard", handler!(zintercard)),
];

const INPUTS: &[Type] = &[Type::Zset, Type::Set];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Operation {
    Union,
    Intersection,
    Difference,
}

#[derive(Clone, Copy)]
enum Aggregate {
    Sum,
    Min,
    Max,
}

struct Spec<'a> {
    operation: Operation,
    keys: Vec<&'a [u8]>,
    weights: Vec<f64>,
    /// The inputs in the order in which Redis adds them up, smallest first: sums of three and more doubles
    /// depend on it.
    order: Vec<usize>,
    aggregate: Aggregate,
    with_scores: bool,
}

/// Reads `numkeys key…`; where the options begin.
fn keys<'a>(args: &Args<'a>, at: usize, name: &str) -> Result<(Vec<&'a [u8]>, usize), Failure> {
    let count = args.int(at)?;
    if count < 1 {
        let name = name.to_ascii_lowercase();
        return Err(Failure::new(format!("ERR at least 1 input key is needed for '{name}' command")));
    }
    if count > (args.len() - at - 1) as i64 {
        return Err(errors::SYNTAX.into());
    }
    counted_keys(args, at)
}

impl<'a> Spec<'a> {
    /// Takes note of the inputs' sizes.
    fn note_sizes(&mut self, inputs: &[Option<Collection>]) {
        let mut by_size: Vec<usize> = (0..inputs.len()).collect();
        by_size.sort_by_key(|&i| inputs[i].as_ref().map_or(0, |input| input.count));
        for (place, i) in by_size.into_iter().enumerate() {
            self.order[i] = place;
        }
    }

    /// Reads the options, after the inputs were found to be of the right types.
    fn parse_options(&mut self, args: &Args<'a>, mut at: usize, store: bool) -> CommandResult {
        let combines = self.operation != Operation::Difference;
        while at < args.len() {
            let left = args.len() - at;
            if combines && left > self.keys.len() && args.is(at, "weights") {
                for (i, weight) in self.weights.iter_mut().enumerate() {
                    let text = &args[at + 1 + i];
                    *weight = crate::number::parse_double(text).ok_or("ERR weight value is not a float")?;
                }
                at += 1 + self.keys.len();
            } else if combines && left >= 2 && args.is(at, "aggregate") {
                self.aggregate = match &args[at + 1] {
                    word if word.eq_ignore_ascii_case(b"sum") => Aggregate::Sum,
                    word if word.eq_ignore_ascii_case(b"min") => Aggregate::Min,
                    word if word.eq_ignore_ascii_case(b"max") => Aggregate::Max,
                    _ => return Err(errors::SYNTAX.into()),
                };
                at += 2;
            } else if !store && args.is(at, "withscores") {
                self.with_scores = true;
                at += 1;
            } else {
                return Err(errors::SYNTAX.into());
            }
        }
        Ok(())
    }

    /// The member's score in the result; `None`: it is not in it.
    fn score(&self, joined: &Joined) -> Result<Option<f64>, Failure> {
        let belongs = match self.operation {
            Operation::Union => true,
            Operation::Intersection => joined.found.len() == self.keys.len(),
            Operation::Difference => joined.found.len() == 1 && joined.found[0].0 == 0,
        };
        if !belongs {
            return Ok(None);
        }
        let mut result: Option<f64> = None;
        let mut found: SmallVec<[&(usize, Bytes); 4]> = joined.found.iter().collect();
        if found.len() > 1 {
            found.sort_unstable_by_key(|(input, _)| self.order[*input]);
        }
        for (input, value) in found {
            let score = if value.is_empty() { 1.0 } else { decode_stored_score(value)? };
            let weighted = match (self.operation, result) {
                (Operation::Difference, _) => score,
                // What is no number counts as zero; in intersections only of the first input, as in Redis.
                (Operation::Intersection, Some(_)) => score * self.weights[*input],
                _ => number_or_zero(score * self.weights[*input]),
            };
            result = Some(match (result, self.aggregate) {
                (None, _) => weighted,
                // Opposite infinities add up to zero.
                (Some(known), Aggregate::Sum) => number_or_zero(known + weighted),
                (Some(known), Aggregate::Min) => {
                    if weighted < known {
                        weighted
                    } else {
                        known
                    }
                }
                (Some(known), Aggregate::Max) => {
                    if weighted > known {
                        weighted
                    } else {
                        known
                    }
                }
            });
        }
        Ok(result)
    }
}

fn number_or_zero(value: f64) -> f64 {
    if value.is_nan() { 0.0 } else { value }
}

fn spec<'a>(
    args: &Args<'a>,
    at: usize,
    operation: Operation,
    name: &str,
) -> Result<(Spec<'a>, usize), Failure> {
    let (keys, options) = keys(args, at, name)?;
    let (weights, order) = (vec![1.0; keys.len()], vec![0; keys.len()]);
    Ok((Spec { operation, keys, weights, order, aggregate: Aggregate::Sum, with_scores: false }, options))
}

async fn answer(ctx: &mut Ctx, args: Args<'_>, operation: Operation, name: &'static str) -> CommandResult {
    let (mut spec, options) = spec(&args, 1, operation, name)?;
    let held = ctx.latch(spec.keys.iter().copied()).await;
    let inputs = merge::open(ctx, &spec.keys, INPUTS).await?;
    spec.note_sizes(&inputs);
    spec.parse_options(&args, options, false)?;
    let moment = Moment::new(ctx, inputs);
    drop(held);
    let mut result = ByScore::new(ctx, name);
    loop {
        let mut merge = Merge::new(ctx, &moment, Want::Values);
        while let Some(joined) = merge.next(ctx).await? {
            if let Some(score) = spec.score(&joined)?
                && result.add(&member_of(&joined.field), score)
            {
                result.shrink().await;
            }
        }
        if result.reply(ctx, spec.with_scores).await? {
            return Ok(());
        }
    }
}

async fn store(ctx: &mut Ctx, args: Args<'_>, operation: Operation, name: &str) -> CommandResult {
    let (mut spec, options) = spec(&args, 2, operation, name)?;
    let _held = ctx.latch(spec.keys.iter().copied().chain([&args[1]])).await;
    let inputs = merge::open(ctx, &spec.keys, INPUTS).await?;
    spec.note_sizes(&inputs);
    spec.parse_options(&args, options, true)?;
    let moment = Moment::new(ctx, inputs);
    let mut merge = Merge::new(ctx, &moment, Want::Values);
    let mut builder = Builder::new(ctx, &args[1], Type::Zset).settled_at_the_end();
    while let Some(joined) = merge.next(ctx).await? {
        if let Some(score) = spec.score(&joined)? {
            builder.add_scored(ctx, &member_of(&joined.field), score).await?;
        }
    }
    let count = builder.finish(ctx).await?;
    ctx.reply.count(count);
    Ok(())
}

async fn zunion(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    answer(ctx, args, Operation::Union, "ZUNION").await
}

async fn zinter(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    answer(ctx, args, Operation::Intersection, "ZINTER").await
}

async fn zdiff(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    answer(ctx, args, Operation::Difference, "ZDIFF").await
}

async fn zunionstore(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    store(ctx, args, Operation::Union, "ZUNIONSTORE").await
}

async fn zinterstore(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    store(ctx, args, Operation::Intersection, "ZINTERSTORE").await
}

async fn zdiffstore(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    store(ctx, args, Operation::Difference, "ZDIFFSTORE").await
}

async fn zintercard(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    const LIMIT: &str = "ERR LIMIT can't be negative";
    let (keys, mut at) = keys(&args, 1, "ZINTERCARD")?;
    let held = ctx.latch(keys.iter().copied()).await;
    let inputs = merge::open(ctx, &keys, INPUTS).await?;
    let mut limit = 0;
    while at < args.len() {
        if !args.is(at, "limit") || at + 1 >= args.len() {
            return Err(errors::SYNTAX.into());
        }
        limit = args.int_or(at + 1, LIMIT)?;
        if limit < 0 {
            return Err(LIMIT.into());
        }
        at += 2;
    }
    let limit = if limit == 0 { u64::MAX } else { limit as u64 };
    let mut count = 0;
    if inputs.iter().all(Option::is_some) {
        let moment = Moment::new(ctx, inputs);
        drop(held);
        let mut merge = Merge::new(ctx, &moment, Want::Keys);
        while count < limit
            && let Some(joined) = merge.next(ctx).await?
        {
            count += u64::from(joined.found.len() == keys.len());
        }
    }
    ctx.reply.count(count);
    Ok(())
}
