//! LINSERT, LREM, LTRIM, LPOS: the middle of lists.

use std::ops::Bound;

use pumice_kv::{Direction, Snapshot, Want};

use super::build::Builder;
use super::collection::{MEMBERS, clamp_range, commit_piece, damaged, is_piece};
use super::list::{open, open_to_read, read, remove};
use super::list_shift::{self, Shift};
use crate::args::Args;
use crate::command::Row;
use crate::context::Ctx;
use crate::errors::{self, CommandResult, Failure};
use crate::handler;
use crate::keyspace::{Collection, ElementScan, Type, encode_index};

/// The commands of this module.
pub static ROWS: &[Row] = &[
    ("linsert", handler!(linsert)),
    ("lrem", handler!(lrem)),
    ("ltrim", handler!(ltrim)),
    ("lpos", handler!(lpos)),
];

/// Places that LPOS keeps in memory. More are counted, and searched for once more while they are answered.
const PLACES_MAX: usize = 64 << 10;
/// A trim that keeps fewer elements than this share of those it removes writes them anew instead.
const REWRITE_SHARE: u64 = 4;

async fn linsert(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    let after = if args.is(2, "after") {
        1
    } else if args.is(2, "before") {
        0
    } else {
        return Err(errors::SYNTAX.into());
    };
    let _held = ctx.latch([&args[1]]).await;
    let Some(list) = open(ctx, &args[1]).await? else {
        ctx.reply.int(0);
        return Ok(());
    };
    let all = Bound::Unbounded;
    let mut scan = ctx.scan_elements(&list, MEMBERS, all, all, Direction::Forward, Want::Values);
    let mut at = list.first;
    loop {
        match scan.next(ctx).await? {
            Some((_, value)) if value == args[3] => break,
            Some(_) => at += 1,
            None => {
                ctx.reply.int(-1);
                return Ok(());
            }
        }
    }
    let mut shift = Shift::new(ctx, list);
    shift.insert(ctx, at + after, &args[4]).await?;
    let list = shift.finish(ctx).await?;
    ctx.reply.count(list.count);
    Ok(())
}

async fn lrem(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    let count = args.int(2)?;
    let _held = ctx.latch([&args[1]]).await;
    let Some(list) = open(ctx, &args[1]).await? else {
        ctx.reply.int(0);
        return Ok(());
    };
    let limit = if count == 0 { u64::MAX } else { count.unsigned_abs() };
    let direction = if count < 0 { Direction::Backward } else { Direction::Forward };
    let Some(matches) = list_shift::find(ctx, &list, &args[3], limit, direction).await? else {
        ctx.reply.int(0);
        return Ok(());
    };
    if matches.count == list.count {
        let mut list = list;
        let mut change = ctx.change();
        ctx.erase_elements(&mut change, &list).await?;
        list.count = 0;
        change.put_collection(&mut list, true);
        ctx.commit(change).await?;
    } else {
        let mut shift = Shift::new(ctx, list);
        shift.remove_matches(ctx, &args[3], &matches).await?;
        shift.finish(ctx).await?;
    }
    ctx.reply.count(matches.count);
    Ok(())
}

async fn ltrim(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    let (start, stop) = (args.int(2)?, args.int(3)?);
    let _held = ctx.latch([&args[1]]).await;
    let Some(mut list) = open(ctx, &args[1]).await? else {
        ctx.reply.ok();
        return Ok(());
    };
    let mut change = ctx.change();
    let Some((start, stop)) = clamp_range(start, stop, list.count) else {
        ctx.erase_elements(&mut change, &list).await?;
        list.count = 0;
        change.put_collection(&mut list, true);
        ctx.commit(change).await?;
        ctx.reply.ok();
        return Ok(());
    };
    let kept = stop - start;
    let removed = list.count - kept;
    let (from, to) = (list.first + start as i64, list.first + stop as i64);
    if removed > 128 && kept < removed / REWRITE_SHARE {
        rewrite(ctx, &args[1], &list, from, to).await?;
    } else if removed > 0 {
        let outside = (list.first..from).chain(to..list.end);
        (list.first, list.end, list.count) = (from, to, kept);
        for at in outside {
            remove(&mut change, &list, at);
            // The head is in the first piece: from there on nobody looks at what is outside.
            if is_piece(ctx, &change)? {
                list_shift::may_leave_some_outside(&mut list);
                change.put_collection(&mut list, true);
                commit_piece(ctx, &mut change).await?;
            }
        }
        change.put_collection(&mut list, true);
        ctx.commit(change).await?;
    }
    ctx.reply.ok();
    Ok(())
}

/// Keeps the elements `from..to` under a new id and drops the old one whole.
async fn rewrite(ctx: &mut Ctx, key: &[u8], list: &Collection, from: i64, to: i64) -> Result<(), Failure> {
    let mut builder = Builder::new(ctx, key, Type::List);
    builder.set_expiry(list.expire_ms);
    let mut scan = read(ctx, list, from, to, Direction::Forward);
    while let Some((_, value)) = scan.next(ctx).await? {
        builder.push(ctx, &value).await?;
    }
    builder.finish(ctx).await?;
    Ok(())
}

struct Search {
    rank: i64,
    /// `None`: the first match alone.
    count: Option<u64>,
    compared_max: u64,
}

impl Search {
    fn parse(args: &Args<'_>) -> Result<Self, Failure> {
        let mut search = Self { rank: 1, count: None, compared_max: 0 };
        let natural = |at: usize, error: &'static str| match args.int_or(at, error)? {
            value @ 0.. => Ok(value as u64),
            _ => Err(Failure::from(error)),
        };
        for at in (3..args.len()).step_by(2) {
            if at + 1 >= args.len() {
                return Err(errors::SYNTAX.into());
            }
            if args.is(at, "rank") {
                search.rank = args.int(at + 1)?;
                // Redis 7.0 negates it, which overflows in C, and then answers as for -1; later ones refuse it, like this.
                if search.rank == i64::MIN {
                    return Err(errors::OUT_OF_SYMMETRIC_RANGE.into());
                }
                if search.rank == 0 {
                    return Err(
                        "ERR RANK can't be zero: use 1 to start from the first match, 2 from the second \
                                ... or use negative to start from the end of the list"
                            .into(),
                    );
                }
            } else if args.is(at, "count") {
                search.count = Some(natural(at + 1, "ERR COUNT can't be negative")?);
            } else if args.is(at, "maxlen") {
                search.compared_max = natural(at + 1, "ERR MAXLEN can't be negative")?;
            } else {
                return Err(errors::SYNTAX.into());
            }
        }
        Ok(search)
    }
}

/// The places of a value in a list, as they are found.
struct Places<'a> {
    scan: ElementScan,
    value: &'a [u8],
    /// Elements of the list, where it is searched from its end.
    from_end: Option<u64>,
    /// Places still to be passed over.
    skip: u64,
    compared: u64,
    compared_max: u64,
}

impl<'a> Places<'a> {
    fn new(ctx: &mut Ctx, at: &Snapshot, list: &Collection, search: &Search, value: &'a [u8]) -> Self {
        let is_backward = search.rank < 0;
        let direction = if is_backward { Direction::Backward } else { Direction::Forward };
        let (first, end) = (encode_index(list.first), encode_index(list.end));
        let (first, end) = (Bound::Included(&first[..]), Bound::Excluded(&end[..]));
        Self {
            scan: ctx.scan_elements_at(at, list, MEMBERS, first, end, direction, Want::Values),
            value,
            from_end: is_backward.then_some(list.count),
            skip: search.rank.unsigned_abs() - 1,
            compared: 0,
            compared_max: if search.compared_max == 0 { u64::MAX } else { search.compared_max },
        }
    }

    async fn next(&mut self, ctx: &mut Ctx) -> Result<Option<u64>, Failure> {
        while self.compared < self.compared_max {
            let at_hand = self.scan.view_at_hand().map(|(_, entry)| entry.value.bytes() == self.value);
            let is_it = match at_hand {
                Some(is_it) => is_it,
                None => match self.scan.next(ctx).await? {
                    Some((_, value)) => value == self.value,
                    None => break,
                },
            };
            let at = self.compared;
            self.compared += 1;
            if !is_it {
                continue;
            }
            if self.skip == 0 {
                return Ok(Some(self.from_end.map_or(at, |count| count - 1 - at)));
            }
            self.skip -= 1;
        }
        Ok(None)
    }
}

async fn lpos(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    let search = Search::parse(&args)?;
    let held = ctx.latch([&args[1]]).await;
    let Some(list) = open_to_read(ctx, &args[1]).await? else {
        match search.count {
            Some(_) => ctx.reply.array(0),
            None => ctx.reply.null(),
        }
        return Ok(());
    };
    let snapshot = ctx.snapshot_of(&list);
    drop(held);
    let mut places = Places::new(ctx, &snapshot, &list, &search, &args[2]);
    let wanted = match search.count {
        None => {
            match places.next(ctx).await? {
                Some(place) => ctx.reply.count(place),
                None => ctx.reply.null(),
            }
            return Ok(());
        }
        Some(0) => u64::MAX,
        Some(count) => count,
    };
    // How many there are is answered before them.
    let (mut known, mut found) = (Vec::new(), 0);
    while found < wanted
        && let Some(place) = places.next(ctx).await?
    {
        found += 1;
        if known.len() < PLACES_MAX {
            known.push(place);
        }
    }
    ctx.reply.array(found as usize);
    if found == known.len() as u64 {
        for place in known {
            ctx.reply.count(place);
            ctx.drain().await?;
        }
        return Ok(());
    }
    places = Places::new(ctx, &snapshot, &list, &search, &args[2]);
    for _ in 0..found {
        let place = places.next(ctx).await?;
        ctx.reply.count(place.ok_or_else(|| damaged(&list, places.compared))?);
        ctx.drain().await?;
    }
    Ok(())
}
