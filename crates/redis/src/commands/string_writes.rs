//! Strings that are written whole: SET and its like, GETSET, GETDEL, GETEX, MSET.

use pumice_kv::{Meta, Peek, VALUE_BYTES_MAX};
use smallvec::SmallVec;

use super::expire::unix_ms;
use super::strings::reply_string;
use crate::args::Args;
use crate::command::{Fast, FastHandler, Row};
use crate::context::Ctx;
use crate::errors::{self, CommandResult, Failure};
use crate::keyspace::{Change, FEW_KEYS, HeadKey, StringValue, Type, is_expired};
use crate::value::{Source, Value};
use crate::{at_hand, handler};

/// The commands of this module.
pub static ROWS: &[Row] = &[
    ("set", handler!(set)),
    ("setnx", handler!(setnx)),
    ("setex", handler!(setex)),
    ("psetex", handler!(psetex)),
    ("getset", handler!(getset)),
    ("getdel", handler!(getdel)),
    ("getex", handler!(getex)),
    ("mset", handler!(mset)),
    ("msetnx", handler!(msetnx)),
];

/// Those with a way without waiting.
pub static FAST: &[(&str, FastHandler)] = &[
    ("set", at_hand!(set_at_hand)),
    ("setnx", at_hand!(setnx_at_hand)),
    ("setex", |ctx, args| Fast::from(set_for_at_hand(ctx, args, true, "setex"))),
    ("psetex", |ctx, args| Fast::from(set_for_at_hand(ctx, args, false, "psetex"))),
    ("getset", at_hand!(getset_at_hand)),
    ("getdel", at_hand!(getdel_at_hand)),
    ("getex", at_hand!(getex_at_hand)),
    ("mset", at_hand!(mset_at_hand)),
];

/// When a SET's key expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expiry {
    Never,
    Keep,
    At(u64),
}

impl Expiry {
    /// When the key expires, of which `live` is what it had; 0 = never.
    fn of(self, live: Option<Meta>) -> u64 {
        match self {
            Self::Never => 0,
            Self::Keep => live.map_or(0, |meta| meta.expire_ms),
            Self::At(at) => at,
        }
    }
}

struct SetOptions {
    expiry: Expiry,
    only_absent: bool,
    only_present: bool,
    get: bool,
}

const PLAIN: SetOptions =
    SetOptions { expiry: Expiry::Never, only_absent: false, only_present: false, get: false };

/// Milliseconds or seconds, from now or absolute, as `name`'s argument says; Unix milliseconds.
fn expire_time(
    ctx: &Ctx,
    text: &[u8],
    in_seconds: bool,
    is_absolute: bool,
    name: &str,
) -> Result<u64, Failure> {
    let value = crate::number::parse_int(text).ok_or(errors::NOT_INTEGER)?;
    if value <= 0 {
        return Err(errors::invalid_expire(name));
    }
    unix_ms(ctx, value, in_seconds, !is_absolute, name).map(|at| at as u64)
}

/// `EX seconds` and its like. The same one may be given again, the last counts; different ones may not.
#[derive(Clone, Copy)]
struct ExpiryOption<'a> {
    text: &'a [u8],
    in_seconds: bool,
    is_absolute: bool,
}

impl ExpiryOption<'_> {
    fn is_same_kind(&self, other: &Self) -> bool {
        (self.in_seconds, self.is_absolute) == (other.in_seconds, other.is_absolute)
    }

    fn time(&self, ctx: &Ctx, name: &str) -> Result<u64, Failure> {
        expire_time(ctx, self.text, self.in_seconds, self.is_absolute, name)
    }
}

fn expiry_option<'a>(args: &Args<'a>, at: usize) -> Option<ExpiryOption<'a>> {
    let (_, in_seconds, is_absolute) =
        [("ex", true, false), ("px", false, false), ("exat", true, true), ("pxat", false, true)]
            .into_iter()
            .find(|(word, ..)| args.is(at, word))?;
    Some(ExpiryOption { text: args.get(at + 1)?, in_seconds, is_absolute })
}

fn set_options(ctx: &Ctx, args: &Args<'_>) -> Result<SetOptions, Failure> {
    let mut options = PLAIN;
    let mut at = 3;
    // The expiry is looked at only when all options parse: Redis answers a syntax error first.
    let mut expiry: Option<ExpiryOption<'_>> = None;
    let mut keep = false;
    while at < args.len() {
        let is = |word| args.is(at, word);
        if is("nx") && !options.only_present {
            options.only_absent = true;
        } else if is("xx") && !options.only_absent {
            options.only_present = true;
        } else if is("get") {
            options.get = true;
        } else if is("keepttl") && expiry.is_none() {
            keep = true;
        } else if let Some(given) = expiry_option(args, at)
            && !keep
            && expiry.is_none_or(|known| known.is_same_kind(&given))
        {
            expiry = Some(given);
            at += 1;
        } else {
            return Err(errors::SYNTAX.into());
        }
        at += 1;
    }
    if keep {
        options.expiry = Expiry::Keep;
    }
    if let Some(given) = expiry {
        options.expiry = Expiry::At(given.time(ctx, "set")?);
    }
    Ok(options)
}

/// The value that argument `at` gives, if one record takes it.
fn short_value<'a>(args: &Args<'a>, at: usize) -> Result<&'a [u8], Fast> {
    let value = args.get(at).filter(|value| value.len() <= VALUE_BYTES_MAX && args.large(at).is_none());
    value.ok_or(Fast::Slow)
}

/// [`store`] of a short value where there is nothing to wait for. Hold the latch.
fn store_at_hand(
    ctx: &mut Ctx,
    key: &HeadKey,
    stored: Option<Meta>,
    value: &[u8],
    options: &SetOptions,
) -> Result<bool, Fast> {
    // The elements of a collection in the way must be removed.
    if stored.is_some_and(|meta| !Type::is_string(meta.tag)) {
        return Err(Fast::Slow);
    }
    let live = stored.filter(|meta| !is_expired(meta.expire_ms, ctx.now_ms));
    if (options.only_absent && live.is_some()) || (options.only_present && live.is_none()) {
        ctx.depend_on(key.place, key.raw(), stored.map(|meta| meta.seq));
        return Ok(false);
    }
    let mut change = ctx.change();
    let (expire_ms, was) = (options.expiry.of(live), stored.map(|meta| meta.expire_ms));
    change.put_string(key, expire_ms, &StringValue::Bytes(value), was);
    ctx.commit_at_hand(change)?;
    Ok(true)
}

/// Answers with the string under `key`, null if there is none, and tells what is stored, live or expired. Hold the latch. The answer is the
/// caller's to take back if it cannot do the rest at once.
fn answer_old(ctx: &mut Ctx, key: &HeadKey) -> Result<Option<Meta>, Fast> {
    let (now_ms, reply) = (ctx.now_ms, &mut ctx.reply);
    let found = ctx.server.node.peek_with(key.place, key.raw(), |found| {
        if is_expired(found.expire_ms, now_ms) {
            reply.null();
        } else if Type::is_string(found.tag) {
            reply.bulk_view(found.value);
        } else {
            return (found.meta(), Err(errors::WRONG_TYPE));
        }
        (found.meta(), Ok(()))
    });
    let stored = match found {
        Peek::Found((meta, answered)) => {
            ctx.depend_on(key.place, key.raw(), Some(meta.seq));
            if let Err(error) = answered {
                ctx.count_look_up(true);
                return Err(Fast::Fail(error.into()));
            }
            Some(meta)
        }
        Peek::Absent => {
            ctx.depend_on(key.place, key.raw(), None);
            ctx.reply.null();
            None
        }
        Peek::NeedsFlash(_) => return Err(Fast::Slow),
    };
    Ok(stored)
}

/// Answers with the string under `key`, as [`answer_old`] does, and does `then` to it: both or neither.
fn answer_old_and(
    ctx: &mut Ctx,
    key: &HeadKey,
    then: impl FnOnce(&mut Ctx, Option<Meta>) -> Result<(), Fast>,
) -> Result<(), Fast> {
    let _held = ctx.try_latch(key).ok_or(Fast::Slow)?;
    let mark = ctx.reply.mark();
    let stored = answer_old(ctx, key)?;
    let is_live = stored.is_some_and(|meta| !is_expired(meta.expire_ms, ctx.now_ms));
    let done = then(ctx, stored);
    if done.is_err() {
        ctx.reply.rollback(mark);
    }
    if !matches!(done, Err(Fast::Slow)) {
        ctx.count_look_up(is_live);
    }
    done
}

fn set_at_hand(ctx: &mut Ctx, args: &Args<'_>) -> Result<(), Fast> {
    let options = if args.len() == 3 { PLAIN } else { set_options(ctx, args)? };
    let value = short_value(args, 2)?;
    let key = ctx.key(&args[1]);
    if options.get {
        return answer_old_and(ctx, &key, |ctx, stored| {
            store_at_hand(ctx, &key, stored, value, &options).map(drop)
        });
    }
    let _held = ctx.try_latch(&key).ok_or(Fast::Slow)?;
    let stored = ctx.stored_at_hand(&key)?;
    if store_at_hand(ctx, &key, stored, value, &options)? {
        ctx.reply.ok();
    } else {
        ctx.reply.null();
    }
    Ok(())
}

fn setnx_at_hand(ctx: &mut Ctx, args: &Args<'_>) -> Result<(), Fast> {
    let value = short_value(args, 2)?;
    let key = ctx.key(&args[1]);
    let _held = ctx.try_latch(&key).ok_or(Fast::Slow)?;
    let stored = ctx.stored_at_hand(&key)?;
    let done = store_at_hand(ctx, &key, stored, value, &SetOptions { only_absent: true, ..PLAIN })?;
    ctx.reply.flag(done);
    Ok(())
}

fn set_for_at_hand(ctx: &mut Ctx, args: &Args<'_>, in_seconds: bool, name: &str) -> Result<(), Fast> {
    let expiry = Expiry::At(expire_time(ctx, &args[2], in_seconds, false, name)?);
    let value = short_value(args, 3)?;
    let key = ctx.key(&args[1]);
    let _held = ctx.try_latch(&key).ok_or(Fast::Slow)?;
    let stored = ctx.stored_at_hand(&key)?;
    store_at_hand(ctx, &key, stored, value, &SetOptions { expiry, ..PLAIN })?;
    ctx.reply.ok();
    Ok(())
}

fn getset_at_hand(ctx: &mut Ctx, args: &Args<'_>) -> Result<(), Fast> {
    let value = short_value(args, 2)?;
    let key = ctx.key(&args[1]);
    answer_old_and(ctx, &key, |ctx, stored| store_at_hand(ctx, &key, stored, value, &PLAIN).map(drop))
}

fn getdel_at_hand(ctx: &mut Ctx, args: &Args<'_>) -> Result<(), Fast> {
    let key = ctx.key(&args[1]);
    answer_old_and(ctx, &key, |ctx, stored| {
        let Some(meta) = stored else { return Ok(()) };
        if is_expired(meta.expire_ms, ctx.now_ms) {
            return Err(Fast::Slow);
        }
        let mut change = ctx.change();
        change.delete_head(&key, meta.expire_ms);
        ctx.commit_at_hand(change)
    })
}

fn getex_at_hand(ctx: &mut Ctx, args: &Args<'_>) -> Result<(), Fast> {
    let options = getex_options(args)?;
    let key = ctx.key(&args[1]);
    answer_old_and(ctx, &key, |ctx, stored| {
        let Some(meta) = stored.filter(|meta| !is_expired(meta.expire_ms, ctx.now_ms)) else { return Ok(()) };
        let Some(at) = options.time(ctx)?.filter(|&at| at != meta.expire_ms) else { return Ok(()) };
        let mut change = ctx.change();
        if at != 0 && at <= ctx.now_ms {
            change.delete_head(&key, meta.expire_ms);
        } else {
            let standing = ctx.standing_at_hand(&key)?.ok_or(Fast::Slow)?;
            change.put_again(&key, at, &standing);
        }
        ctx.commit_at_hand(change)
    })
}

/// MSET of a few keys.
fn mset_at_hand(ctx: &mut Ctx, args: &Args<'_>) -> Result<(), Fast> {
    let count = args.len() / 2;
    if args.len().is_multiple_of(2) || count > FEW_KEYS {
        return Err(Fast::Slow);
    }
    let keys: SmallVec<[HeadKey; FEW_KEYS]> = args.iter_from(1).step_by(2).map(|key| ctx.key(key)).collect();
    let _held = ctx.try_latch_several(keys.iter()).ok_or(Fast::Slow)?;
    let mut change = ctx.change();
    for (at, key) in keys.iter().enumerate() {
        // Of a key that is given twice the last value counts.
        if keys[at + 1..].iter().any(|later| later.raw() == key.raw()) {
            continue;
        }
        let value = short_value(args, 2 * at + 2)?;
        let stored = ctx.stored_at_hand(key)?;
        if stored.is_some_and(|meta| !Type::is_string(meta.tag)) {
            return Err(Fast::Slow);
        }
        change.put_string(key, 0, &StringValue::Bytes(value), stored.map(|meta| meta.expire_ms));
    }
    ctx.commit_at_hand(change)?;
    ctx.reply.ok();
    Ok(())
}

async fn set(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    let held = ctx.latch([&args[1]]).await;
    // Times count from when it is its turn.
    let options = set_options(ctx, &args)?;
    let key = ctx.key(&args[1]);
    let stored = if options.get { ctx.entry(key.place, key.raw()).await? } else { None };
    let old = if options.get { ctx.string_of_read(stored)? } else { None };
    let done = store(ctx, &args, &key, 2, &options).await?;
    drop(held);
    if options.get {
        return reply_string(ctx, key.place, old).await;
    }
    if done {
        ctx.reply.ok()
    } else {
        ctx.reply.null()
    }
    Ok(())
}

/// Sets `key` to argument `value_at` if the options allow; says whether it did. The latch is held.
async fn store(
    ctx: &mut Ctx,
    args: &Args<'_>,
    key: &HeadKey,
    value_at: usize,
    options: &SetOptions,
) -> Result<bool, Failure> {
    let stored = ctx.meta(key.place, key.raw()).await?;
    let live = stored.filter(|meta| !is_expired(meta.expire_ms, ctx.now_ms));
    if (options.only_absent && live.is_some()) || (options.only_present && live.is_none()) {
        return Ok(false);
    }
    let expire_ms = options.expiry.of(live);
    let value = argument_value(ctx, args, value_at, key).await?;
    let mut change = ctx.change();
    clear_for_string(ctx, &mut change, key, stored.map(|meta| meta.tag)).await?;
    change.put_string(key, expire_ms, &value.as_ref(), stored.map(|meta| meta.expire_ms));
    ctx.commit(change).await?;
    Ok(true)
}

/// Removes the elements of a collection that a string is about to replace. `tag`: that of the stored head.
pub(super) async fn clear_for_string(
    ctx: &mut Ctx,
    change: &mut Change,
    key: &HeadKey,
    tag: Option<u8>,
) -> CommandResult {
    if tag.is_some_and(|tag| !Type::is_string(tag)) {
        let entry = ctx.entry(key.place, key.raw()).await?;
        ctx.erase_stored(change, key, entry).await?;
    }
    Ok(())
}

/// The value that argument `at` gives `key`: its bytes, or the pieces that were streamed for this very key.
pub(super) async fn argument_value<'a>(
    ctx: &mut Ctx,
    args: &Args<'a>,
    at: usize,
    key: &HeadKey,
) -> Result<Value<'a>, Failure> {
    match args.large(at) {
        None => Ok(Value::Borrowed(args.get(at).unwrap_or_default())),
        Some(large) if large.key[..] == *key.raw() => Ok(Value::Large(large.value.clone())),
        // The database was emptied, or another selected, while the value arrived.
        Some(large) => {
            ctx.compose(key, &[Source::Large(key.place, large.value.clone(), 0..large.value.len())]).await
        }
    }
}

async fn setnx(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    let _held = ctx.latch([&args[1]]).await;
    let key = ctx.key(&args[1]);
    let done = store(ctx, &args, &key, 2, &SetOptions { only_absent: true, ..PLAIN }).await?;
    ctx.reply.flag(done);
    Ok(())
}

async fn setex(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    set_for(ctx, args, true, "setex").await
}

async fn psetex(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    set_for(ctx, args, false, "psetex").await
}

async fn set_for(ctx: &mut Ctx, args: Args<'_>, in_seconds: bool, name: &str) -> CommandResult {
    let _held = ctx.latch([&args[1]]).await;
    let expiry = Expiry::At(expire_time(ctx, &args[2], in_seconds, false, name)?);
    let key = ctx.key(&args[1]);
    store(ctx, &args, &key, 3, &SetOptions { expiry, ..PLAIN }).await?;
    ctx.reply.ok();
    Ok(())
}

async fn getset(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    let held = ctx.latch([&args[1]]).await;
    let key = ctx.key(&args[1]);
    let old = ctx.string_to_read(&key).await?;
    store(ctx, &args, &key, 2, &PLAIN).await?;
    drop(held);
    reply_string(ctx, key.place, old).await
}

async fn getdel(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    let held = ctx.latch([&args[1]]).await;
    let key = ctx.key(&args[1]);
    let entry = ctx.entry(key.place, key.raw()).await?;
    let has_expired = entry.as_ref().is_some_and(|entry| is_expired(entry.expire_ms, ctx.now_ms));
    let found = ctx.string_of_read(entry)?;
    if let Some(string) = &found {
        let mut change = ctx.change();
        change.delete_head(&key, string.expire_ms);
        ctx.commit(change).await?;
    } else if has_expired {
        // As with DEL: it was to go, and is not seen again if the clock is set back.
        let mut change = ctx.change();
        ctx.erase(&mut change, &key).await?;
        ctx.commit(change).await?;
    }
    drop(held);
    reply_string(ctx, key.place, found).await
}

/// What GETEX does to a key's expiry.
struct GetexOptions<'a> {
    given: Option<ExpiryOption<'a>>,
    persist: bool,
}

impl GetexOptions<'_> {
    /// When the key is to expire, 0 = never; `None`: as it does. Ask of keys that are there: of others Redis looks at no number.
    fn time(&self, ctx: &Ctx) -> Result<Option<u64>, Failure> {
        match self.given {
            Some(given) => given.time(ctx, "getex").map(Some),
            None => Ok(self.persist.then_some(0)),
        }
    }
}

fn getex_options<'a>(args: &Args<'a>) -> Result<GetexOptions<'a>, Failure> {
    let mut options = GetexOptions { given: None, persist: false };
    let mut at = 2;
    while at < args.len() {
        if args.is(at, "persist") && options.given.is_none() {
            options.persist = true;
        } else if let Some(option) = expiry_option(args, at)
            && !options.persist
            && options.given.is_none_or(|known| known.is_same_kind(&option))
        {
            options.given = Some(option);
            at += 1;
        } else {
            return Err(errors::SYNTAX.into());
        }
        at += 1;
    }
    Ok(options)
}

async fn getex(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    let options = getex_options(&args)?;
    let held = ctx.latch([&args[1]]).await;
    let key = ctx.key(&args[1]);
    let found = ctx.string_to_read(&key).await?;
    let expiry = if found.is_some() { options.time(ctx)? } else { None };
    if let (Some(string), Some(at)) = (&found, expiry) {
        let mut change = ctx.change();
        if at != 0 && at <= ctx.now_ms {
            change.delete_head(&key, string.expire_ms);
        } else if at != string.expire_ms {
            let standing = ctx.standing_of(&key, &string.entry).await?;
            change.put_again(&key, at, &standing);
        }
        if !change.is_empty() {
            ctx.commit(change).await?;
        }
    }
    drop(held);
    reply_string(ctx, key.place, found).await
}

async fn set_many(ctx: &mut Ctx, args: &Args<'_>, only_absent: bool) -> Result<bool, Failure> {
    if args.len().is_multiple_of(2) {
        return Err(errors::wrong_arity(if only_absent { "msetnx" } else { "mset" }));
    }
    let keys = || args.iter_from(1).step_by(2);
    let _held = ctx.latch(keys()).await;
    if only_absent {
        for key in keys() {
            let key = ctx.key(key);
            if ctx.exists(&key).await? {
                return Ok(false);
            }
        }
    }
    // Of a key that is given twice the last value counts. Per pair no more is kept than what is to be written: there may
    // be hundreds of thousands.
    let mut known = pumice_base::hash::HashSet::<&[u8]>::default();
    let mut change = ctx.change();
    for key_at in (1..args.len()).step_by(2).rev() {
        let Some(user_key) = args.get(key_at) else { continue };
        if args.len() > 3 && !known.insert(user_key) {
            continue;
        }
        let key = ctx.key(user_key);
        let meta = ctx.meta(key.place, key.raw()).await?;
        clear_for_string(ctx, &mut change, &key, meta.map(|meta| meta.tag)).await?;
        let value = argument_value(ctx, args, key_at + 1, &key).await?;
        change.put_string(&key, 0, &value.as_ref(), meta.map(|meta| meta.expire_ms));
    }
    drop(known);
    ctx.commit(change).await?;
    Ok(true)
}

async fn mset(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    set_many(ctx, &args, false).await?;
    ctx.reply.ok();
    Ok(())
}

async fn msetnx(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    let done = set_many(ctx, &args, true).await?;
    ctx.reply.flag(done);
    Ok(())
}
