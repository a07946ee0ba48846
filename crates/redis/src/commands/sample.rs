//! Random elements of a collection: SRANDMEMBER, SPOP, HRANDFIELD, ZRANDMEMBER.
//!
//! Every element is equally likely, in a collection of any size, at a cost that does not grow with it:
//! 1. Elements lie by a hash of their name, spread evenly over a circle of 2³² places. A window of the circle
//!    wide enough to hold [`WINDOW`] elements on average is laid down at a random place and read: `c` elements.
//! 2. With probability `c` / [`WINDOW_MAX`] one of them is drawn; otherwise a new window is laid.
//!
//! An element lies in as many windows as any other, and is drawn from each with probability
//! `c / WINDOW_MAX × 1 / c`, the same for all. About two windows are read per draw. The one approximation: a
//! window with more than `WINDOW_MAX` elements (one in 10⁹) counts as having that many.
//!
//! Small collections are read whole. Draws that are many compared with the collection read it whole once.

use std::ops::Bound;

use bytes::Bytes;
use pumice_base::hash::HashSet;
use pumice_kv::{Direction, Want};

use super::collection::{HASH_BYTES, MEMBERS, damaged, member_of};
use crate::args::Args;
use crate::context::Ctx;
use crate::errors::{self, CommandResult, Failure};
use crate::keyspace::{Collection, Latched};
use crate::resp::reply::Reply;

/// Collections up to this size are read whole for each draw.
const WHOLE_MAX: u64 = 128;
/// Elements in a window, on average.
const WINDOW: u64 = 32;
/// Elements in a window at most (as far as chances are concerned).
const WINDOW_MAX: u64 = 72;
/// Windows laid before a draw settles for what it has: never reached unless the head's count is wrong.
const WINDOWS_TRIED_MAX: usize = 1000;
/// Draws with repetition that are answered from one reading of the collection.
const CHUNK: usize = 4096;

/// A field of sub [`MEMBERS`] and its value.
pub(super) type Element = (Bytes, Bytes);

/// The count (and whether `word` follows) of `key [count [word]]`.
pub(super) fn parse_count(args: &Args<'_>, word: &str) -> Result<(i64, bool), Failure> {
    let count = args.int(2)?;
    if count == i64::MIN {
        return Err(errors::OUT_OF_SYMMETRIC_RANGE.into());
    }
    if args.len() > 4 || (args.len() == 4 && !args.is(3, word)) {
        return Err(errors::SYNTAX.into());
    }
    let with_word = args.len() == 4;
    if with_word && !(-i64::MAX / 2..=i64::MAX / 2).contains(&count) {
        return Err(errors::OUT_OF_RANGE.into());
    }
    Ok((count, with_word))
}

/// One element, uniformly. Hold the latch.
pub(super) async fn one(ctx: &mut Ctx, collection: &Collection, want: Want) -> Result<Element, Failure> {
    if collection.count <= WHOLE_MAX {
        let mut all = window(ctx, collection, Bound::Unbounded, Bound::Unbounded, want).await?;
        if all.is_empty() {
            return Err(damaged(collection, 0));
        }
        let drawn = ctx.random_below(all.len() as u64) as usize;
        return Ok(all.swap_remove(drawn));
    }
    let width = ((1u128 << 32) * u128::from(WINDOW) / u128::from(collection.count)).max(1) as u64;
    let mut settled = None;
    for _ in 0..WINDOWS_TRIED_MAX {
        let start = ctx.random_below(1 << 32);
        let mut found = around(ctx, collection, start, width, want).await?;
        if found.is_empty() {
            continue;
        }
        let accepted = ctx.random_below(WINDOW_MAX) < found.len() as u64;
        let drawn = ctx.random_below(found.len() as u64) as usize;
        settled = Some(found.swap_remove(drawn));
        if accepted {
            break;
        }
    }
    settled.ok_or_else(|| damaged(collection, 0))
}

/// The elements of the circle from `start` on, `width` wide.
async fn around(
    ctx: &mut Ctx,
    collection: &Collection,
    start: u64,
    width: u64,
    want: Want,
) -> Result<Vec<Element>, Failure> {
    let place = |at: u64| (at as u32).to_be_bytes();
    let end = start + width;
    let (from, circle) = (place(start), 1u64 << 32);
    if end < circle {
        return window(ctx, collection, Bound::Included(from), Bound::Excluded(place(end)), want).await;
    }
    let mut found = window(ctx, collection, Bound::Included(from), Bound::Unbounded, want).await?;
    if end > circle {
        let rest = Bound::Excluded(place(end - circle));
        found.extend(window(ctx, collection, Bound::Unbounded, rest, want).await?);
    }
    Ok(found)
}

async fn window(
    ctx: &mut Ctx,
    collection: &Collection,
    lower: Bound<[u8; HASH_BYTES]>,
    upper: Bound<[u8; HASH_BYTES]>,
    want: Want,
) -> Result<Vec<Element>, Failure> {
    let (lower, upper) = (lower.as_ref().map(|b| &b[..]), upper.as_ref().map(|b| &b[..]));
    let mut scan = ctx.scan_elements(collection, MEMBERS, lower, upper, Direction::Forward, want);
    let mut found = Vec::new();
    while let Some(element) = scan.next(ctx).await? {
        found.push(element);
    }
    Ok(found)
}

/// Whether `draws` are better answered by reading all of `collection` once.
fn reads_whole(collection: &Collection, draws: u64) -> bool {
    collection.count <= WHOLE_MAX || draws.saturating_mul(2 * WINDOW_MAX) >= collection.count
}

/// `count` different elements, or all if there are not so many; every choice equally likely. Hold the latch.
pub(super) async fn distinct(
    ctx: &mut Ctx,
    collection: &Collection,
    count: u64,
    want: Want,
) -> Result<Vec<Element>, Failure> {
    let count = count.min(collection.count);
    let mut drawn = Vec::new();
    if reads_whole(collection, count) {
        let mut pass = Pass::new(ctx, collection, want);
        while let Some(element) = pass.next_chosen(ctx, count - drawn.len() as u64).await? {
            drawn.push(element);
        }
        return Ok(drawn);
    }
    let mut seen: HashSet<Bytes> = HashSet::default();
    while (drawn.len() as u64) < count {
        let element = one(ctx, collection, want).await?;
        if seen.insert(element.0.clone()) {
            drawn.push(element);
        }
    }
    Ok(drawn)
}

/// One reading of a collection that chooses elements on its way (Knuth's algorithm S).
struct Pass {
    scan: crate::keyspace::ElementScan,
    left: u64,
}

impl Pass {
    fn new(ctx: &mut Ctx, collection: &Collection, want: Want) -> Self {
        let scan = ctx.scan_elements(
            collection,
            MEMBERS,
            Bound::Unbounded,
            Bound::Unbounded,
            Direction::Forward,
            want,
        );
        Self { scan, left: collection.count }
    }

    /// The next chosen element, `wanted` being how many are still to be chosen.
    async fn next_chosen(&mut self, ctx: &mut Ctx, wanted: u64) -> Result<Option<Element>, Failure> {
        if wanted == 0 {
            return Ok(None);
        }
        while let Some(element) = self.scan.next(ctx).await? {
            let chosen = self.left <= wanted || ctx.random_below(self.left) < wanted;
            self.left = self.left.saturating_sub(1);
            if chosen {
                return Ok(Some(element));
            }
        }
        Ok(None)
    }
}

/// Answers a count: positive, that many different elements; negative, that many draws with repetition. `paired`:
/// each name is followed by what `put` makes of its value, in RESP3 as an array of two.
pub(super) async fn reply_many(
    ctx: &mut Ctx,
    collection: Collection,
    held: Latched,
    count: i64,
    want: Want,
    paired: bool,
    put: impl Fn(&mut Reply, &Bytes),
) -> CommandResult {
    let write = |reply: &mut Reply, (field, value): &Element| {
        if paired && reply.is_resp3() {
            reply.array(2);
        }
        reply.bulk_bytes(member_of(field));
        if paired {
            put(reply, value);
        }
    };
    let header = |reply: &mut Reply, n: u64| {
        reply.array(if paired && !reply.is_resp3() { 2 * n as usize } else { n as usize });
    };
    if count >= 0 {
        let count = (count as u64).min(collection.count);
        header(&mut ctx.reply, count);
        if count > 0 && reads_whole(&collection, count) {
            let mut pass = Pass::new(ctx, &collection, want);
            drop(held);
            for found in 0..count {
                match pass.next_chosen(ctx, count - found).await? {
                    Some(element) => write(&mut ctx.reply, &element),
                    None => return Err(damaged(&collection, found)),
                }
                ctx.drain().await?;
            }
            return Ok(());
        }
        for element in distinct(ctx, &collection, count, want).await? {
            write(&mut ctx.reply, &element);
        }
        return Ok(());
    }
    let draws = count.unsigned_abs();
    header(&mut ctx.reply, draws);
    if collection.count <= WHOLE_MAX {
        let all = window(ctx, &collection, Bound::Unbounded, Bound::Unbounded, want).await?;
        drop(held);
        if all.is_empty() {
            return Err(damaged(&collection, 0));
        }
        for _ in 0..draws {
            let drawn = ctx.random_below(all.len() as u64) as usize;
            write(&mut ctx.reply, &all[drawn]);
            ctx.drain().await?;
        }
        return Ok(());
    }
    let mut left = draws;
    while left > 0 {
        let chunk = left.min(CHUNK as u64) as usize;
        left -= chunk as u64;
        if reads_whole(&collection, chunk as u64) {
            for element in ranked(ctx, &collection, chunk, want).await? {
                write(&mut ctx.reply, &element);
            }
        } else {
            for _ in 0..chunk {
                let element = one(ctx, &collection, want).await?;
                write(&mut ctx.reply, &element);
            }
        }
        ctx.drain().await?;
    }
    drop(held);
    Ok(())
}

/// `draws` elements with repetition, by drawing ranks and reading the collection once.
async fn ranked(
    ctx: &mut Ctx,
    collection: &Collection,
    draws: usize,
    want: Want,
) -> Result<Vec<Element>, Failure> {
    let mut ranks: Vec<(u64, usize)> = Vec::with_capacity(draws);
    for i in 0..draws {
        ranks.push((ctx.random_below(collection.count), i));
    }
    ranks.sort_unstable();
    let mut drawn: Vec<Option<Element>> = vec![None; draws];
    let (mut ranks, mut rank) = (ranks.into_iter().peekable(), 0);
    let mut scan =
        ctx.scan_elements(collection, MEMBERS, Bound::Unbounded, Bound::Unbounded, Direction::Forward, want);
    while ranks.peek().is_some() {
        let Some(element) = scan.next(ctx).await? else { return Err(damaged(collection, rank)) };
        while let Some((_, i)) = ranks.next_if(|(wanted, _)| *wanted == rank) {
            drawn[i] = Some(element.clone());
        }
        rank += 1;
    }
    Ok(drawn.into_iter().flatten().collect())
}
