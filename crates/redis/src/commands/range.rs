//! PUMICE.RANGE: keys in order, with their values, forward or backward, page by page.
//!
//! `PUMICE.RANGE min max [PREFIX prefix] [REV] [COUNT n] [WITHVALUES]`. Bounds as in ZRANGEBYLEX: `-`, `+`,
//! `[key`, `(key`. The answer is the next bound (null at the end) and a flat array. To go on, give the next
//! bound as `min`, or as `max` with REV: there is no state on the server.

use std::ops::Bound;

use pumice_kv::{Direction, Entry, Want};

use crate::args::Args;
use crate::command::Row;
use crate::context::Ctx;
use crate::errors::{self, CommandResult, Failure};
use crate::handler;
use crate::keyspace::{Type, after_prefix};

/// The commands of this module.
pub static ROWS: &[Row] = &[("pumice.range", handler!(range))];

/// Keys of a page when COUNT is not given.
const COUNT_DEFAULT: u64 = 100;
/// A page ends early when its answer is longer than this, in bytes.
const PAGE_BYTES_MAX: u64 = 1 << 20;
/// A value above this length is answered as null: GET it.
const VALUE_BYTES_MAX: u64 = 1 << 20;

fn bound(text: &[u8]) -> Result<Bound<&[u8]>, Failure> {
    match text {
        b"-" | b"+" => Ok(Bound::Unbounded),
        [b'[', key @ ..] => Ok(Bound::Included(key)),
        [b'(', key @ ..] => Ok(Bound::Excluded(key)),
        _ => Err(errors::MIN_MAX_NOT_STRING.into()),
    }
}

/// The narrower of two lower bounds.
fn narrower<'a>(a: Bound<&'a [u8]>, prefix: &'a [u8]) -> Bound<&'a [u8]> {
    match a {
        Bound::Included(key) if key >= prefix => a,
        Bound::Excluded(key) if key >= prefix => a,
        _ => Bound::Included(prefix),
    }
}

/// Whether the value itself is answered, not null.
fn is_answered(entry: &Entry) -> bool {
    Type::is_string(entry.tag) && entry.value_len() <= VALUE_BYTES_MAX
}

async fn range(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    if args.len() < 3 {
        return Err(errors::wrong_arity("pumice.range"));
    }
    let (min, max) = (bound(&args[1])?, bound(&args[2])?);
    let (mut prefix, mut direction, mut count, mut with_values) =
        (&[][..], Direction::Forward, COUNT_DEFAULT, false);
    let mut at = 3;
    while at < args.len() {
        let value = args.get(at + 1);
        match value {
            Some(value) if args.is(at, "prefix") => {
                prefix = value;
                at += 1;
            }
            Some(_) if args.is(at, "count") => {
                count = u64::try_from(args.int(at + 1)?).ok().filter(|&n| n > 0).ok_or(errors::SYNTAX)?;
                at += 1;
            }
            _ if args.is(at, "rev") => direction = Direction::Backward,
            _ if args.is(at, "withvalues") => with_values = true,
            _ => return Err(errors::SYNTAX.into()),
        }
        at += 1;
    }
    let nothing = &args[1] == b"+" || &args[2] == b"-";
    let end = after_prefix(prefix);
    let min = narrower(min, prefix);
    let max = match (max, &end) {
        (Bound::Unbounded, Some(end)) => Bound::Excluded(&end[..]),
        (Bound::Included(key) | Bound::Excluded(key), Some(end)) if key >= &end[..] => {
            Bound::Excluded(&end[..])
        }
        (max, _) => max,
    };
    let space = ctx.space();
    let mut page = Vec::new();
    let mut next = None;
    if !nothing {
        let want = if with_values { Want::Page { keys: count, bytes: PAGE_BYTES_MAX } } else { Want::Keys };
        let mut walk = ctx.scan_keys(space, min, max, direction, want);
        let mut bytes = 0;
        while let Some((key, entry)) = walk.next(ctx).await? {
            if page.len() as u64 >= count || bytes > PAGE_BYTES_MAX {
                next = Some([b"[", &key[..]].concat());
                break;
            }
            bytes += key.len() as u64 + 32;
            if with_values && is_answered(&entry) {
                bytes += entry.value_len();
            }
            page.push((key, entry));
            if page.len() as u64 >= count || bytes > PAGE_BYTES_MAX {
                walk.want_keys();
            }
        }
    }
    ctx.reply.array(2);
    match next {
        Some(next) => ctx.reply.bulk(&next),
        None => ctx.reply.null(),
    }
    ctx.reply.array(if with_values { 2 * page.len() } else { page.len() });
    for (key, entry) in page {
        ctx.reply.bulk(&key);
        if !with_values {
            continue;
        }
        if !is_answered(&entry) {
            ctx.reply.null();
        } else if entry.large.is_some() {
            let place = ctx.key(&key).place;
            let value = ctx.whole_value(place, &entry).await?;
            ctx.reply.bulk_bytes(value);
        } else {
            ctx.reply.bulk_bytes(entry.value);
        }
    }
    Ok(())
}
