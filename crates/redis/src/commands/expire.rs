//! When keys expire: EXPIRE and its like, TTL and its like, PERSIST.

use crate::args::Args;
use crate::command::{Fast, FastHandler, Row};
use crate::context::Ctx;
use crate::errors::{self, CommandResult, Failure};
use crate::keyspace::{HeadKey, Type, is_expired};
use crate::{at_hand, handler};

/// The commands of this module.
pub static ROWS: &[Row] = &[
    ("expire", handler!(expire)),
    ("pexpire", handler!(pexpire)),
    ("expireat", handler!(expireat)),
    ("pexpireat", handler!(pexpireat)),
    ("ttl", handler!(ttl)),
    ("pttl", handler!(pttl)),
    ("expiretime", handler!(expiretime)),
    ("pexpiretime", handler!(pexpiretime)),
    ("persist", handler!(persist)),
];

/// Those with a way without waiting.
pub static FAST: &[(&str, FastHandler)] = &[
    ("expire", |ctx, args| Fast::from(expire_at_hand(ctx, args, true, true, "expire"))),
    ("pexpire", |ctx, args| Fast::from(expire_at_hand(ctx, args, false, true, "pexpire"))),
    ("expireat", |ctx, args| Fast::from(expire_at_hand(ctx, args, true, false, "expireat"))),
    ("pexpireat", |ctx, args| Fast::from(expire_at_hand(ctx, args, false, false, "pexpireat"))),
    ("persist", at_hand!(persist_at_hand)),
    ("ttl", |ctx, args| answer_at_hand(ctx, args, TTL)),
    ("pttl", |ctx, args| answer_at_hand(ctx, args, PTTL)),
    ("expiretime", |ctx, args| answer_at_hand(ctx, args, EXPIRETIME)),
    ("pexpiretime", |ctx, args| answer_at_hand(ctx, args, PEXPIRETIME)),
];

#[derive(Default)]
struct Conditions {
    only_without: bool,
    only_with: bool,
    only_later: bool,
    only_earlier: bool,
}

impl Conditions {
    fn parse(args: &Args<'_>) -> Result<Self, Failure> {
        let mut conditions = Self::default();
        for at in 3..args.len() {
            if args.is(at, "nx") {
                conditions.only_without = true;
            } else if args.is(at, "xx") {
                conditions.only_with = true;
            } else if args.is(at, "gt") {
                conditions.only_later = true;
            } else if args.is(at, "lt") {
                conditions.only_earlier = true;
            } else {
                return Err(Failure::quoting("ERR Unsupported option ", &args[at], ""));
            }
        }
        if conditions.only_without
            && (conditions.only_with || conditions.only_later || conditions.only_earlier)
        {
            return Err("ERR NX and XX, GT or LT options at the same time are not compatible".into());
        }
        if conditions.only_later && conditions.only_earlier {
            return Err("ERR GT and LT options at the same time are not compatible".into());
        }
        Ok(conditions)
    }

    /// Whether the expiry may change from `now` (0 = never) to `then`.
    fn allow(&self, now: u64, then: i64) -> bool {
        // A key that never expires counts as one that expires after all others.
        let is_later = now != 0 && then > now as i64;
        let is_earlier = now == 0 || then < now as i64;
        !((self.only_without && now != 0)
            || (self.only_with && now == 0)
            || (self.only_later && !is_later)
            || (self.only_earlier && !is_earlier))
    }
}

async fn expire(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    expire_at(ctx, args, true, true, "expire").await
}

async fn pexpire(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    expire_at(ctx, args, false, true, "pexpire").await
}

async fn expireat(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    expire_at(ctx, args, true, false, "expireat").await
}

async fn pexpireat(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    expire_at(ctx, args, false, false, "pexpireat").await
}

/// The Unix milliseconds that `value` says, those of the past too.
pub(super) fn unix_ms(
    ctx: &Ctx,
    value: i64,
    in_seconds: bool,
    from_now: bool,
    name: &str,
) -> Result<i64, Failure> {
    let invalid = || errors::invalid_expire(name);
    let ms = if in_seconds { value.checked_mul(1000).ok_or_else(invalid)? } else { value };
    let base = if from_now { ctx.now_ms as i64 } else { 0 };
    ms.checked_add(base).ok_or_else(invalid)
}

async fn expire_at(
    ctx: &mut Ctx,
    args: Args<'_>,
    in_seconds: bool,
    from_now: bool,
    name: &str,
) -> CommandResult {
    let conditions = Conditions::parse(&args)?;
    let value = args.int(2)?;
    let _held = ctx.latch([&args[1]]).await;
    let at = unix_ms(ctx, value, in_seconds, from_now, name)?;
    let key = ctx.key(&args[1]);
    let standing = ctx.standing(&key).await?;
    let Some(standing) = standing.filter(|standing| !is_expired(standing.expire_ms, ctx.now_ms)) else {
        ctx.reply.flag(false);
        return Ok(());
    };
    if !conditions.allow(standing.expire_ms, at) {
        ctx.reply.flag(false);
        return Ok(());
    }
    let mut change = ctx.change();
    if at <= ctx.now_ms as i64 {
        if !Type::is_string(standing.tag) {
            let entry = ctx.entry(key.place, key.raw()).await?;
            ctx.erase_stored(&mut change, &key, entry).await?;
        }
        change.delete_head(&key, standing.expire_ms);
    } else {
        change.put_again(&key, at as u64, &standing);
    }
    ctx.commit(change).await?;
    ctx.reply.flag(true);
    Ok(())
}

/// [`expire_at`] of what stays.
fn expire_at_hand(
    ctx: &mut Ctx,
    args: &Args<'_>,
    in_seconds: bool,
    from_now: bool,
    name: &str,
) -> Result<(), Fast> {
    let conditions = Conditions::parse(args)?;
    let at = unix_ms(ctx, args.int(2)?, in_seconds, from_now, name)?;
    put_again_at_hand(ctx, &args[1], |was, now_ms| {
        if !conditions.allow(was, at) {
            return Ok(None);
        }
        let at = u64::try_from(at).ok().filter(|&at| at > now_ms);
        at.map(Some).ok_or(Fast::Slow)
    })
}

fn persist_at_hand(ctx: &mut Ctx, args: &Args<'_>) -> Result<(), Fast> {
    put_again_at_hand(ctx, &args[1], |was, _| Ok((was != 0).then_some(0)))
}

/// Gives a key the expiry that `anew` makes of its own and of the time; answers whether it is there and got one.
fn put_again_at_hand(
    ctx: &mut Ctx,
    key: &[u8],
    anew: impl FnOnce(u64, u64) -> Result<Option<u64>, Fast>,
) -> Result<(), Fast> {
    let key = ctx.key(key);
    let _held = ctx.try_latch(&key).ok_or(Fast::Slow)?;
    let standing = ctx.standing_at_hand(&key)?;
    let standing = standing.filter(|standing| !is_expired(standing.expire_ms, ctx.now_ms));
    let at = match &standing {
        Some(standing) => anew(standing.expire_ms, ctx.now_ms)?,
        None => None,
    };
    if let (Some(standing), Some(at)) = (&standing, at) {
        let mut change = ctx.change();
        change.put_again(&key, at, standing);
        ctx.commit_at_hand(change)?;
    }
    ctx.reply.flag(at.is_some());
    Ok(())
}

async fn persist(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    let _held = ctx.latch([&args[1]]).await;
    let key = ctx.key(&args[1]);
    let standing = ctx.standing(&key).await?;
    let expiring = standing.filter(|found| found.expire_ms != 0 && !is_expired(found.expire_ms, ctx.now_ms));
    if let Some(standing) = &expiring {
        let mut change = ctx.change();
        change.put_again(&key, 0, standing);
        ctx.commit(change).await?;
    }
    ctx.reply.flag(expiring.is_some());
    Ok(())
}

/// When a live key expires: `None` no key, `Some(0)` never.
async fn expiry(ctx: &mut Ctx, key: &HeadKey) -> Result<Option<u64>, Failure> {
    let meta = ctx.meta(key.place, key.raw()).await?;
    let expiry = meta.map(|meta| meta.expire_ms).filter(|&at| !is_expired(at, ctx.now_ms));
    ctx.count_look_up(expiry.is_some());
    Ok(expiry)
}

/// What TTL and its like answer of a key that expires at `at`; `None`: there is no such key.
fn shown(at: Option<u64>, now_ms: u64, show: Show) -> i64 {
    match at {
        None => -2,
        Some(0) => -1,
        Some(at) => show(at, now_ms) as i64,
    }
}

async fn answer(ctx: &mut Ctx, args: Args<'_>, show: Show) -> CommandResult {
    let key = ctx.key(&args[1]);
    let at = expiry(ctx, &key).await?;
    ctx.reply.int(shown(at, ctx.now_ms, show));
    Ok(())
}

fn answer_at_hand(ctx: &mut Ctx, args: &Args<'_>, show: Show) -> Fast {
    let now_ms = ctx.now_ms;
    ctx.answer_meta(&args[1], |reply, found| {
        reply.int(shown(found.map(|meta| meta.expire_ms), now_ms, show));
        Ok(())
    })
}

/// Of when a key expires, and now, what is shown.
type Show = fn(u64, u64) -> u64;

const TTL: Show = |at, now| (at - now + 500) / 1000;
const PTTL: Show = |at, now| at - now;
const EXPIRETIME: Show = |at, _| (at + 500) / 1000;
const PEXPIRETIME: Show = |at, _| at;

async fn ttl(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    answer(ctx, args, TTL).await
}

async fn pttl(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    answer(ctx, args, PTTL).await
}

async fn expiretime(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    answer(ctx, args, EXPIRETIME).await
}

async fn pexpiretime(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    answer(ctx, args, PEXPIRETIME).await
}
