//! Random elements of a collection: SRANDMEMBER, SPOP, HRANDFIELD, ZRANDMEMBER.
//!
//! Every element is equally likely, in a collection of any size, at a cost that does not grow with it:
//! 1. Elements lie by a hash of their name, spread evenly over a circle of 2³² places. A window of the circle
//!    wide enough to hold [`WINDOW`] elements on average is laid down at a random place and read: `c` elements.
//! 2. One of [`WINDOW_MAX`] numbers is drawn, and the element with that number in the window is the one; where there are not so
//!    many, a new window is laid. It is read no further than that.
//!
//! An element lies in as many windows as any other, and is drawn from each with probability `1 / WINDOW_MAX`, the same for
//! all. About two windows are read per draw. The one approximation: of a window with more than `WINDOW_MAX` elements (one in
//! 10⁹) those behind are left out.
//!
//! Small collections are one window. Draws that are many compared with the collection read it whole once. Values of hashes are
//! read when their fields have been drawn.
//!
//! All is drawn from one moment, without the latch: the client may take its reply slowly.

use std::ops::Bound;
use std::ops::ControlFlow::{self, Break, Continue};

use bytes::Bytes;
use pumice_base::hash::{HashMap, HashSet, stable_hash64};
use pumice_kv::{Direction, Entry, Snapshot, Want};

use super::collection::{HASH_BYTES, MEMBERS, damaged, member_of};
use super::zset::decode_stored_score;
use crate::args::Args;
use crate::context::Ctx;
use crate::errors::{self, CommandResult, Failure};
use crate::keyspace::{Collection, ElementScan, Latched};

/// Collections up to this size are one window for each draw.
const WHOLE_MAX: u64 = 128;
/// Elements in a window, on average.
const WINDOW: u64 = 32;
/// Elements in a window at most (as far as chances are concerned).
const WINDOW_MAX: u64 = 72;
/// Places of the circle.
const CIRCLE: u64 = 1 << 32;
/// Windows laid before a draw settles for what it has: never reached unless the head's count is wrong.
const WINDOWS_TRIED_MAX: usize = 1000;
/// Draws with repetition that are answered from one reading of the collection.
const CHUNK: u64 = 4096;
/// Draws with repetition before these.
const FIRST_DRAWS: u64 = 8;
/// Where at least this share of the elements is chosen, values are read with their names, ahead of need.
const CHOSEN_SHARE: u64 = 4;
/// What a value takes besides its bytes, that is kept for the case that its field is drawn again: as many as [`Ctx::page_bytes`] hold.
const VALUE_OVERHEAD_BYTES: usize = 128;

/// A field of sub [`MEMBERS`] and what is stored of it.
pub(super) type Element = (Bytes, Entry);

/// An element that is kept: what a scan answers are parts of what it has read.
fn owned((field, mut entry): Element) -> Element {
    entry.value = Bytes::copy_from_slice(&entry.value);
    (Bytes::copy_from_slice(&field), entry)
}

/// What is answered of an element besides its name.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum With {
    Nothing,
    /// Of a sorted set: as short as names are.
    Score,
    /// Of a hash, of any length.
    Value,
}

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

/// What is drawn from: a collection as of one moment.
struct Urn<'a> {
    collection: &'a Collection,
    snapshot: Snapshot,
    /// What is read of elements before they are drawn.
    want: Want,
}

/// One element's field, uniformly. Hold the latch.
pub(super) async fn one(ctx: &mut Ctx, collection: &Collection) -> Result<Bytes, Failure> {
    Ok(Urn::new(ctx, collection, Want::Keys).one(ctx).await?.0)
}

/// Gives `take` the fields of `count` different elements, or of all if there are not so many; every choice equally likely. Hold the
/// latch.
pub(super) async fn distinct(
    ctx: &mut Ctx,
    collection: &Collection,
    count: u64,
    mut take: impl FnMut(&mut Ctx, Bytes) -> CommandResult,
) -> CommandResult {
    let urn = Urn::new(ctx, collection, Want::Keys);
    let mut drawn = Distinct::new(ctx, &urn, count);
    while let Some((field, _)) = drawn.next(ctx, &urn).await? {
        take(ctx, field)?;
    }
    Ok(())
}

impl<'a> Urn<'a> {
    /// `collection` as it is now. Hold its latch until here.
    fn new(ctx: &mut Ctx, collection: &'a Collection, want: Want) -> Self {
        Self { collection, snapshot: ctx.snapshot_of(collection), want }
    }

    fn scan(&self, ctx: &mut Ctx, lower: Bound<&[u8]>, upper: Bound<&[u8]>, want: Want) -> ElementScan {
        let order = Direction::Forward;
        ctx.scan_elements_at(&self.snapshot, self.collection, MEMBERS, lower, upper, order, want)
    }

    fn all(&self, ctx: &mut Ctx, want: Want) -> ElementScan {
        self.scan(ctx, Bound::Unbounded, Bound::Unbounded, want)
    }

    async fn one(&self, ctx: &mut Ctx) -> Result<Element, Failure> {
        let count = self.collection.count;
        let width = u128::from(CIRCLE) * u128::from(WINDOW) / u128::from(count.max(1));
        let mut known = ((0, CIRCLE), count);
        if count > WHOLE_MAX {
            known.1 = 0;
            for _ in 0..WINDOWS_TRIED_MAX {
                let window = (ctx.random_below(CIRCLE), (width as u64).max(1));
                match self.nth(ctx, window, ctx.random_below(WINDOW_MAX)).await? {
                    Break(element) => return Ok(element),
                    Continue(0) => {}
                    Continue(found) => known = (window, found),
                }
            }
        }
        // A small one; or its count is wrong, and any element will do.
        for _ in 0..2 {
            let (window, found) = known;
            match self.nth(ctx, window, ctx.random_below(found.max(1))).await? {
                Break(element) => return Ok(element),
                Continue(found) => known.1 = found,
            }
        }
        Err(damaged(self.collection, known.1))
    }

    /// The element with this number, from 0 on, of those from a place of the circle on, so wide; or how many these are.
    async fn nth(
        &self,
        ctx: &mut Ctx,
        (start, width): (u64, u64),
        number: u64,
    ) -> Result<ControlFlow<Element, u64>, Failure> {
        let place = |at: u64| (at as u32).to_be_bytes();
        let (from, end) = (Bound::Included(place(start)), start + width);
        if end < CIRCLE {
            return self.nth_between(ctx, from, Bound::Excluded(place(end)), number).await;
        }
        let found = self.nth_between(ctx, from, Bound::Unbounded, number).await?;
        let Continue(first) = found else { return Ok(found) };
        if end == CIRCLE {
            return Ok(found);
        }
        let rest = Bound::Excluded(place(end - CIRCLE));
        let found = self.nth_between(ctx, Bound::Unbounded, rest, number - first).await?;
        Ok(found.map_continue(|second| first + second))
    }

    async fn nth_between(
        &self,
        ctx: &mut Ctx,
        lower: Bound<[u8; HASH_BYTES]>,
        upper: Bound<[u8; HASH_BYTES]>,
        number: u64,
    ) -> Result<ControlFlow<Element, u64>, Failure> {
        let (lower, upper) = (lower.as_ref().map(|b| &b[..]), upper.as_ref().map(|b| &b[..]));
        let mut scan = self.scan(ctx, lower, upper, self.want);
        let mut passed = 0;
        loop {
            while passed < number && scan.view_at_hand().is_some() {
                passed += 1;
            }
            match scan.next_entry(ctx).await? {
                None => return Ok(Continue(passed)),
                Some(element) if passed == number => return Ok(Break(element)),
                Some(_) => passed += 1,
            }
        }
    }

    /// All elements of a small collection, if they are not much.
    async fn everything(&self, ctx: &mut Ctx) -> Result<Option<Vec<Element>>, Failure> {
        let mut scan = self.all(ctx, self.want);
        let (mut found, mut bytes) = (Vec::new(), 0);
        while let Some(element) = scan.next_entry(ctx).await? {
            bytes += element.0.len();
            if bytes > ctx.page_bytes() {
                return Ok(None);
            }
            found.push(owned(element));
        }
        Ok(Some(found))
    }

    /// Whether `draws` are better answered by reading all of the collection once.
    fn reads_whole(&self, draws: u64) -> bool {
        let count = self.collection.count;
        count <= WHOLE_MAX || draws.saturating_mul(2 * WINDOW_MAX) >= count
    }

    /// The elements with these numbers, by one reading of the collection: those of the first numbers where all would be much, of one
    /// at least.
    async fn ranked(&self, ctx: &mut Ctx, ranks: &[u64]) -> Result<Vec<Element>, Failure> {
        let mut order: Vec<usize> = (0..ranks.len()).collect();
        order.sort_unstable_by_key(|&draw| ranks[draw]);
        let mut drawn: Vec<Option<Element>> = vec![None; ranks.len()];
        let (mut next, mut rank, mut bytes) = (0, 0, 0);
        let mut scan = self.all(ctx, self.want);
        while next < order.len() {
            let Some(element) = scan.next_entry(ctx).await? else {
                return Err(damaged(self.collection, rank));
            };
            if ranks[order[next]] == rank {
                let element = owned(element);
                bytes += element.0.len();
                while order.get(next).is_some_and(|&draw| ranks[draw] == rank) {
                    drawn[order[next]] = Some(element.clone());
                    next += 1;
                }
                while bytes > ctx.page_bytes() && drawn.len() > 1 {
                    drawn.truncate(drawn.len() / 2);
                    next = order[..next].iter().filter(|&&draw| draw < drawn.len()).count();
                    order.retain(|&draw| draw < drawn.len());
                    let differs = |at: &usize| *at == 0 || ranks[order[*at]] != ranks[order[at - 1]];
                    let found = (0..next).filter(differs).filter_map(|at| drawn[order[at]].as_ref());
                    bytes = found.map(|(field, _)| field.len()).sum();
                }
            }
            rank += 1;
        }
        Ok(drawn.into_iter().flatten().collect())
    }

    /// What is stored of a drawn field, value and all.
    async fn entry(&self, ctx: &mut Ctx, field: &[u8]) -> Result<Entry, Failure> {
        let (lower, upper) = (Bound::Included(field), Bound::Included(field));
        let found = self.scan(ctx, lower, upper, Want::Values).next_entry(ctx).await?;
        found.map(|(_, entry)| entry).ok_or_else(|| damaged(self.collection, 0))
    }
}

/// Different elements, drawn one after the other.
enum Distinct {
    /// By one reading of the collection that chooses elements on its way (Knuth's algorithm S). `left`: elements ahead.
    Pass { scan: ElementScan, left: u64, wanted: u64 },
    /// Drawn again where one was drawn already, or one with the same hash: they are told by hashes, however long they are, of which
    /// those of a collection have so few in common.
    Draws { seen: HashSet<u64>, wanted: u64 },
}

impl Distinct {
    /// `wanted` of them, or all.
    fn new(ctx: &mut Ctx, urn: &Urn<'_>, wanted: u64) -> Self {
        let count = urn.collection.count;
        let wanted = wanted.min(count);
        if urn.reads_whole(wanted) {
            return Self::Pass { scan: urn.all(ctx, urn.want), left: count, wanted };
        }
        Self::Draws { seen: HashSet::default(), wanted }
    }

    async fn next(&mut self, ctx: &mut Ctx, urn: &Urn<'_>) -> Result<Option<Element>, Failure> {
        match self {
            Self::Pass { scan, left, wanted } => {
                while *wanted > 0
                    && let Some(element) = scan.next_entry(ctx).await?
                {
                    let is_chosen = left <= wanted || ctx.random_below(*left) < *wanted;
                    *left = left.saturating_sub(1);
                    if is_chosen {
                        *wanted -= 1;
                        return Ok(Some(element));
                    }
                }
                Ok(None)
            }
            Self::Draws { seen, wanted } => {
                while (seen.len() as u64) < *wanted {
                    let element = urn.one(ctx).await?;
                    if seen.insert(stable_hash64(0, &element.0)) {
                        return Ok(Some(element));
                    }
                }
                Ok(None)
            }
        }
    }
}

/// Writes drawn elements.
struct Answer<'a> {
    urn: &'a Urn<'a>,
    with: With,
    /// Values that may be asked for again: drawn with repetition.
    values: HashMap<Bytes, Entry>,
    values_bytes: usize,
    repeats: bool,
}

impl Answer<'_> {
    async fn write(&mut self, ctx: &mut Ctx, (field, entry): Element) -> CommandResult {
        if self.with != With::Nothing && ctx.reply.is_resp3() {
            ctx.reply.array(2);
        }
        ctx.reply.bulk_bytes(member_of(&field));
        match self.with {
            With::Nothing => {}
            With::Score => ctx.reply.double(decode_stored_score(&entry.value)?),
            With::Value => {
                let entry =
                    if self.urn.want == Want::Values { entry } else { self.value(ctx, &field).await? };
                ctx.reply_entry(self.urn.collection.elements, entry).await?;
            }
        }
        ctx.drain().await
    }

    async fn value(&mut self, ctx: &mut Ctx, field: &Bytes) -> Result<Entry, Failure> {
        if let Some(known) = self.values.get(field) {
            return Ok(known.clone());
        }
        let entry = self.urn.entry(ctx, field).await?;
        let bytes = VALUE_OVERHEAD_BYTES + field.len() + entry.value.len();
        if self.repeats && self.values_bytes + bytes <= ctx.page_bytes() {
            self.values_bytes += bytes;
            let (field, entry) = owned((field.clone(), entry.clone()));
            self.values.insert(field, entry);
        }
        Ok(entry)
    }
}

/// Answers a count: positive, that many different elements; negative, that many draws with repetition. With what belongs to
/// them each is a pair, in RESP3 as an array of two. For who wants no reply nothing is drawn: it says how many, and has nothing to
/// take that would hold it up.
pub(super) async fn reply_many(
    ctx: &mut Ctx,
    collection: Collection,
    held: Latched,
    count: i64,
    with: With,
) -> CommandResult {
    if ctx.is_silent() {
        return Ok(());
    }
    let repeats = count < 0;
    let draws = if repeats { count.unsigned_abs() } else { (count as u64).min(collection.count) };
    let want = match with {
        With::Nothing => Want::Keys,
        With::Score => Want::Values,
        With::Value if repeats || draws.saturating_mul(CHOSEN_SHARE) < collection.count => Want::Keys,
        With::Value => Want::Values,
    };
    let urn = Urn::new(ctx, &collection, want);
    drop(held);
    let is_flat_pair = with != With::Nothing && !ctx.reply.is_resp3();
    ctx.reply.array(if is_flat_pair { 2 * draws as usize } else { draws as usize });
    let mut answer = Answer { urn: &urn, with, values: HashMap::default(), values_bytes: 0, repeats };
    if !repeats {
        let mut drawn = Distinct::new(ctx, &urn, draws);
        for found in 0..draws {
            let element = drawn.next(ctx, &urn).await?;
            answer.write(ctx, element.ok_or_else(|| damaged(&collection, found))?).await?;
        }
        return Ok(());
    }
    if collection.count <= WHOLE_MAX
        && let Some(all) = urn.everything(ctx).await?
    {
        if all.is_empty() {
            return Err(damaged(&collection, 0));
        }
        for _ in 0..draws {
            let drawn = ctx.random_below(all.len() as u64) as usize;
            answer.write(ctx, all[drawn].clone()).await?;
        }
        return Ok(());
    }
    // The first draws tell how long elements are: as many are answered from one reading as may be held.
    let (mut left, mut bytes) = (draws.saturating_sub(FIRST_DRAWS), 0);
    for _ in left..draws {
        let element = urn.one(ctx).await?;
        bytes += element.0.len() as u64;
        answer.write(ctx, element).await?;
    }
    let chunk_max = (ctx.page_bytes() as u64 * FIRST_DRAWS / bytes.max(1)).clamp(1, CHUNK);
    while left > 0 {
        let chunk = left.min(chunk_max);
        left -= chunk;
        if urn.reads_whole(chunk) {
            let ranks: Vec<u64> = (0..chunk).map(|_| ctx.random_below(collection.count)).collect();
            let mut answered = 0;
            while answered < ranks.len() {
                for element in urn.ranked(ctx, &ranks[answered..]).await? {
                    answer.write(ctx, element).await?;
                    answered += 1;
                }
            }
        } else {
            for _ in 0..chunk {
                let element = urn.one(ctx).await?;
                answer.write(ctx, element).await?;
            }
        }
    }
    Ok(())
}
