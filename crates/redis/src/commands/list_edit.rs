//! LINSERT, LREM, LTRIM, LPOS: the middle of lists.

use pumice_kv::Direction;

use super::build::Builder;
use super::collection::{clamp_range, commit_piece, is_piece};
use super::list::{open, open_to_read, read, remove};
use super::list_shift::{self, Shift};
use crate::args::Args;
use crate::command::Row;
use crate::context::Ctx;
use crate::errors::{self, CommandResult, Failure};
use crate::handler;
use crate::keyspace::{Collection, Type};

/// The commands of this module.
pub static ROWS: &[Row] = &[
    ("linsert", handler!(linsert)),
    ("lrem", handler!(lrem)),
    ("ltrim", handler!(ltrim)),
    ("lpos", handler!(lpos)),
];

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
    let mut scan = read(ctx, &list, list.first, list.end, Direction::Forward);
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

async fn lpos(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    let search = Search::parse(&args)?;
    let held = ctx.latch([&args[1]]).await;
    let list = open_to_read(ctx, &args[1]).await?;
    let mut places = Vec::new();
    if let Some(list) = list {
        let direction = if search.rank < 0 { Direction::Backward } else { Direction::Forward };
        let mut scan = read(ctx, &list, list.first, list.end, direction);
        drop(held);
        let wanted = match search.count {
            Some(0) => usize::MAX,
            Some(count) => usize::try_from(count).unwrap_or(usize::MAX),
            None => 1,
        };
        let compared_max = if search.compared_max == 0 { u64::MAX } else { search.compared_max };
        let (mut skip, mut compared) = (search.rank.unsigned_abs() - 1, 0);
        while places.len() < wanted
            && compared < compared_max
            && let Some((_, value)) = scan.next(ctx).await?
        {
            if value == args[2] {
                if skip > 0 {
                    skip -= 1;
                } else {
                    places.push(if search.rank < 0 { list.count - 1 - compared } else { compared });
                }
            }
            compared += 1;
        }
    }
    match (search.count, places.first()) {
        (Some(_), _) => {
            ctx.reply.array(places.len());
            for place in places {
                ctx.reply.count(place);
            }
        }
        (None, Some(place)) => ctx.reply.count(*place),
        (None, None) => ctx.reply.null(),
    }
    Ok(())
}
