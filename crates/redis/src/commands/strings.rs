//! Strings: reading and setting whole values. Counters and parts of values are in `string_parts.rs`.

use std::ops::Range;

use bytes::Bytes;
use pumice_kv::{Coming, Entry, LargeRef, Meta, PIECE_BYTES_MAX, Peek, VALUE_BYTES_MAX};
use pumice_node::Place;
use smallvec::SmallVec;

use crate::args::Args;
use crate::command::{Fast, FastHandler, Row};
use crate::context::{Ctx, Took};
use crate::errors::{self, CommandResult, Failure};
use crate::handler;
use crate::keyspace::{
    FEW_KEYS, HeadKey, ONE_MOMENT_BYTES_MAX, PARALLEL_READS_MAX, RawKey, StringHead, StringValue, Type,
    is_expired, large_failure,
};
use crate::output::SHARE_BYTES;
use crate::resp::reply::Reply;
use crate::value::{Source, Value};

/// The commands of this module.
pub static ROWS: &[Row] = &[
    ("get", handler!(get)),
    ("set", handler!(set)),
    ("setnx", handler!(setnx)),
    ("setex", handler!(setex)),
    ("psetex", handler!(psetex)),
    ("getset", handler!(getset)),
    ("getdel", handler!(getdel)),
    ("getex", handler!(getex)),
    ("mget", handler!(mget)),
    ("mset", handler!(mset)),
    ("msetnx", handler!(msetnx)),
    ("strlen", handler!(strlen)),
];

/// Those with a way without waiting.
pub static FAST: &[(&str, FastHandler)] =
    &[("get", get_fast), ("mget", mget_fast), ("set", set_fast), ("strlen", strlen_fast)];

impl Ctx {
    /// The string at `key`; `None` when absent or expired; WRONGTYPE when it is a collection.
    pub(crate) async fn string(&mut self, key: &HeadKey) -> Result<Option<StringHead>, Failure> {
        let entry = self.entry(key.place, key.raw()).await?;
        self.string_of(entry)
    }

    /// What the stored `entry` means to a command on strings.
    pub(crate) fn string_of(&self, entry: Option<Entry>) -> Result<Option<StringHead>, Failure> {
        match entry.filter(|entry| !is_expired(entry.expire_ms, self.now_ms)) {
            None => Ok(None),
            Some(entry) if Type::is_string(entry.tag) => {
                Ok(Some(StringHead { expire_ms: entry.expire_ms, entry }))
            }
            Some(_) => Err(errors::WRONG_TYPE.into()),
        }
    }

    /// Writes a value as a bulk string; a large one piece by piece.
    pub(crate) async fn reply_entry(&mut self, place: Place, entry: Entry) -> CommandResult {
        match entry.large {
            // Boxed, as most are not: what is awaited with each element is to be small.
            Some(large) => Box::pin(self.reply_large(place, &large, 0..large.len())).await,
            None => {
                self.reply.bulk_bytes(entry.value);
                Ok(())
            }
        }
    }

    /// Writes a range of a large value as a bulk string, piece by piece.
    pub(crate) async fn reply_large(
        &mut self,
        place: Place,
        large: &LargeRef,
        range: Range<u64>,
    ) -> CommandResult {
        self.reply.bulk_header(range.end - range.start);
        let mut left = range;
        while !left.is_empty() {
            if left.end - left.start > SHARE_BYTES {
                left.start = self.reply_pieces(place, large, left.clone()).await?;
            }
            if !left.is_empty() {
                left.start = self.reply_share(place, large, left.clone()).await?;
            }
        }
        self.reply.bulk_end();
        Ok(())
    }

    /// Sends a range of a large value, as long as there is memory for whole pieces; answers where that ended.
    async fn reply_pieces(
        &mut self,
        place: Place,
        large: &LargeRef,
        range: Range<u64>,
    ) -> Result<u64, Failure> {
        let mut at = range.start;
        let mut pieces = self.server.node.read_large(place, large, range.clone());
        loop {
            match self.output.as_ref().map(|output| output.room_bytes()) {
                Some(None) => return Ok(at),
                Some(Some(room)) => pieces.set_ahead(room / PIECE_BYTES_MAX),
                None => {}
            }
            let piece = pieces.next().await.map_err(|e| large_failure(&self.server.node, place, &e))?;
            let Some(piece) = piece else { return Ok(at) };
            if self.output.as_ref().is_some_and(|output| output.room_bytes().is_none()) {
                // Others took the room while this was read.
                let share = piece.len().min(SHARE_BYTES as usize);
                self.reply.raw_bytes(Bytes::copy_from_slice(&piece[..share]));
                drop(pieces);
                self.drain().await?;
                return Ok(at + share as u64);
            }
            let end = at + piece.len() as u64;
            // A part of a piece would hold all of it in memory.
            let is_part = (at == range.start && at > 0) || (end == range.end && end < large.len());
            self.reply.raw_bytes(if is_part { Bytes::copy_from_slice(&piece) } else { piece });
            at = end;
            if self.output.as_ref().is_some_and(|output| output.is_full()) {
                pieces.let_go();
            }
            self.drain().await?;
        }
    }

    /// Sends as much of a large value's range as every client may have waiting, copied out of its piece, which is not kept.
    async fn reply_share(
        &mut self,
        place: Place,
        large: &LargeRef,
        range: Range<u64>,
    ) -> Result<u64, Failure> {
        let end = range.end.min(range.start + SHARE_BYTES);
        let mut pieces = self.server.node.read_large(place, large, range.start..end);
        pieces.set_ahead(1);
        while let Some(piece) =
            pieces.next().await.map_err(|e| large_failure(&self.server.node, place, &e))?
        {
            self.reply.raw_bytes(Bytes::copy_from_slice(&piece));
        }
        self.drain().await?;
        Ok(end)
    }

    /// The string at `key` as [`Ctx::string`] gives it, for what Redis looks up to read: the statistics count it, whatever the key
    /// holds.
    pub(crate) async fn string_to_read(&mut self, key: &HeadKey) -> Result<Option<StringHead>, Failure> {
        let entry = self.entry(key.place, key.raw()).await?;
        self.string_of_read(entry)
    }

    /// [`Ctx::string_of`], counted.
    fn string_of_read(&mut self, entry: Option<Entry>) -> Result<Option<StringHead>, Failure> {
        let found = self.string_of(entry);
        self.count_look_up(!matches!(found, Ok(None)));
        found
    }

    /// Counts a look-up of a key for reading, as Redis's lookupKeyRead does.
    pub(crate) fn count_look_up(&mut self, found: bool) {
        if self.unlatched.counts() {
            self.count_look_ups(u64::from(found), u64::from(!found));
        }
    }

    fn count_look_ups(&mut self, hits: u64, misses: u64) {
        self.run.hits += hits;
        self.run.misses += misses;
    }
}

fn get_fast(ctx: &mut Ctx, args: &Args<'_>) -> Fast {
    let key = ctx.key(&args[1]);
    get_at_once(ctx, &key)
}

/// GET of `key`, if that needs no waiting.
pub(crate) fn get_at_once(ctx: &mut Ctx, key: &HeadKey) -> Fast {
    let (now_ms, reply) = (ctx.now_ms, &mut ctx.reply);
    let found = ctx.server.node.peek_with(key.place, key.raw(), |found| {
        if is_expired(found.expire_ms, now_ms) {
            return (found.seq, Ok(false));
        }
        if !Type::is_string(found.tag) {
            return (found.seq, Err(errors::WRONG_TYPE));
        }
        reply.bulk_view(found.value);
        (found.seq, Ok(true))
    });
    let (seq, answer) = match found {
        Peek::NeedsFlash(hint) => return Fast::NeedsFlash(hint),
        Peek::Found((seq, answer)) => (Some(seq), answer),
        Peek::Absent => (None, Ok(false)),
    };
    ctx.depend_on(key.place, key.raw(), seq);
    ctx.count_look_up(answer != Ok(false));
    match answer {
        Err(error) => return Fast::Fail(error.into()),
        Ok(true) => {}
        Ok(false) => ctx.reply.null(),
    }
    Fast::Done
}

async fn get(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    let key = ctx.key(&args[1]);
    let found = ctx.string_to_read(&key).await?;
    reply_string(ctx, key.place, found).await
}

/// Answers with the string that was found. Not with its latch: a client may take a large one slowly, and whatever becomes of the
/// key, what was found can be read.
async fn reply_string(ctx: &mut Ctx, place: Place, found: Option<StringHead>) -> CommandResult {
    match found {
        Some(string) => ctx.reply_entry(place, string.entry).await,
        None => {
            ctx.reply.null();
            Ok(())
        }
    }
}

/// Answers GETs whose entries were read side by side; none behind one that ends in the midst of its value.
pub(crate) async fn answer_cold_gets(
    ctx: &mut Ctx,
    results: Vec<(Place, Result<Option<Entry>, Failure>)>,
    nanos: u64,
) {
    let table = crate::command::Table::get();
    let Some(command) = table.find(b"get") else { return };
    let took = Took { nanos, share: nanos / results.len().max(1) as u64 };
    for (place, result) in results {
        let mark = ctx.reply.mark();
        let answered = match result.and_then(|entry| ctx.string_of_read(entry)) {
            Ok(found) => reply_string(ctx, place, found).await,
            Err(failure) => Err(failure),
        };
        crate::execute::account(ctx, command, command.stats_at, answered, mark, took);
        if ctx.session.close_after_reply {
            return;
        }
    }
}

/// When a SET's key expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expiry {
    Never,
    Keep,
    At(u64),
}

struct SetOptions {
    expiry: Expiry,
    only_absent: bool,
    only_present: bool,
    get: bool,
}

/// Milliseconds or seconds, from now or absolute, as `name`'s argument says; Unix milliseconds.
pub(super) fn expire_time(
    ctx: &Ctx,
    text: &[u8],
    in_seconds: bool,
    is_absolute: bool,
    name: &str,
) -> Result<u64, Failure> {
    let value = crate::number::parse_int(text).ok_or(errors::NOT_INTEGER)?;
    let invalid = || errors::invalid_expire(name);
    if value <= 0 {
        return Err(invalid());
    }
    let ms = if in_seconds { value.checked_mul(1000).ok_or_else(invalid)? } else { value };
    let at = if is_absolute { Some(ms) } else { ms.checked_add(ctx.now_ms as i64) };
    at.map(|at| at as u64).ok_or_else(invalid)
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
    let mut options =
        SetOptions { expiry: Expiry::Never, only_absent: false, only_present: false, get: false };
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

fn set_fast(ctx: &mut Ctx, args: &Args<'_>) -> Fast {
    let options = if args.len() == 3 {
        SetOptions { expiry: Expiry::Never, only_absent: false, only_present: false, get: false }
    } else {
        match set_options(ctx, args) {
            Ok(options) if options.get => return Fast::Slow,
            Ok(options) => options,
            Err(failure) => return Fast::Fail(failure),
        }
    };
    if args.large(2).is_some() || args[2].len() > VALUE_BYTES_MAX {
        return Fast::Slow;
    }
    let key = ctx.key(&args[1]);
    let Some(_held) = ctx.try_latch(&key) else { return Fast::Slow };
    let stored = match ctx.server.node.peek_meta(key.place, key.raw()) {
        Peek::NeedsFlash(_) => return Fast::Slow,
        Peek::Absent => None,
        // The elements of a collection in the way must be removed.
        Peek::Found(meta) if !Type::is_string(meta.tag) => return Fast::Slow,
        Peek::Found(meta) => Some(meta),
    };
    let live = stored.filter(|meta| !is_expired(meta.expire_ms, ctx.now_ms));
    if (options.only_absent && live.is_some()) || (options.only_present && live.is_none()) {
        ctx.depend_on(key.place, key.raw(), stored.map(|meta| meta.seq));
        ctx.reply.null();
        return Fast::Done;
    }
    let expire_ms = match options.expiry {
        Expiry::Never => 0,
        Expiry::Keep => live.map_or(0, |meta| meta.expire_ms),
        Expiry::At(at) => at,
    };
    let mut change = ctx.change();
    change.put_string(&key, expire_ms, &StringValue::Bytes(&args[2]), stored.map(|meta| meta.expire_ms));
    match ctx.try_commit(change) {
        Some(Ok(())) => {
            ctx.reply.ok();
            Fast::Done
        }
        Some(Err(failure)) => Fast::Fail(failure),
        None => Fast::Slow,
    }
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
    let expire_ms = match options.expiry {
        Expiry::Never => 0,
        Expiry::Keep => live.map_or(0, |meta| meta.expire_ms),
        Expiry::At(at) => at,
    };
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
    change: &mut crate::keyspace::Change,
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

const PLAIN: SetOptions =
    SetOptions { expiry: Expiry::Never, only_absent: false, only_present: false, get: false };

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

async fn getex(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    let (mut given, mut persist, mut at): (Option<ExpiryOption<'_>>, _, _) = (None, false, 2);
    while at < args.len() {
        if args.is(at, "persist") && given.is_none() {
            persist = true;
        } else if let Some(option) = expiry_option(&args, at)
            && !persist
            && given.is_none_or(|known| known.is_same_kind(&option))
        {
            given = Some(option);
            at += 1;
        } else {
            return Err(errors::SYNTAX.into());
        }
        at += 1;
    }
    let held = ctx.latch([&args[1]]).await;
    let key = ctx.key(&args[1]);
    let found = ctx.string_to_read(&key).await?;
    let expiry = match given {
        Some(given) if found.is_some() => Some(given.time(ctx, "getex")?),
        _ => persist.then_some(0),
    };
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

/// Keys that MGET reads at once, and fields that HMGET does.
pub(super) const MGET_KEYS: usize = PARALLEL_READS_MAX;

/// MGET of keys that memory knows, none of whose values is large.
fn mget_fast(ctx: &mut Ctx, args: &Args<'_>) -> Fast {
    if args.len() - 1 > MGET_KEYS {
        return Fast::Slow;
    }
    let keys: SmallVec<[(HeadKey, Coming); FEW_KEYS]> = args
        .iter_from(1)
        .map(|key| {
            let key = ctx.key(key);
            let coming = ctx.server.node.prefetch_index(key.place, key.raw());
            (key, coming)
        })
        .collect();
    // Several keys as of one moment.
    let Some(_held) = ctx.try_latch_several(keys.iter().map(|(key, _)| key)) else { return Fast::Slow };
    let (mark, before, now_ms) = (ctx.reply.mark(), ctx.reply.len(), ctx.now_ms);
    let (mut hits, mut value_bytes) = (0, 0);
    ctx.reply.array(keys.len());
    for (at, (key, _)) in keys.iter().enumerate() {
        // The next one's row comes from memory while this one is looked up.
        if let Some((next, coming)) = keys.get(at + 1) {
            ctx.server.node.prefetch(next.place, *coming, value_bytes);
        }
        let replied = ctx.reply.len();
        let reply = &mut ctx.reply;
        let found = ctx.server.node.peek_with(key.place, key.raw(), |found| {
            let is_there = !is_expired(found.expire_ms, now_ms);
            if is_there && Type::is_string(found.tag) {
                reply.bulk_view(found.value);
            } else {
                reply.null();
            }
            (found.seq, is_there)
        });
        let seq = match found {
            Peek::Found((seq, is_there)) => {
                hits += u64::from(is_there);
                Some(seq)
            }
            Peek::Absent => {
                ctx.reply.null();
                None
            }
            Peek::NeedsFlash(_) => {
                ctx.reply.rollback(mark);
                return Fast::Slow;
            }
        };
        ctx.depend_on(key.place, key.raw(), seq);
        value_bytes = ctx.reply.len() - replied;
        if ctx.reply.len() - before > ONE_MOMENT_BYTES_MAX {
            ctx.reply.rollback(mark);
            return Fast::Slow;
        }
    }
    ctx.count_look_ups(hits, keys.len() as u64 - hits);
    Fast::Done
}

async fn mget(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    // Several keys as of one moment: no other command in between. Beyond ONE_MOMENT_BYTES_MAX that is given up.
    let mut held = if args.len() > 2 { Some(ctx.latch(args.iter_from(1)).await) } else { None };
    let before = ctx.reply.len();
    ctx.reply.array(args.len() - 1);
    let mut places: Vec<(Place, RawKey)> = Vec::with_capacity(MGET_KEYS.min(args.len()));
    for from in (1..args.len()).step_by(MGET_KEYS) {
        places.clear();
        places.extend(args.iter_from(from).take(MGET_KEYS).map(|key| {
            let key = ctx.key(key);
            (key.place, RawKey::from_slice(key.raw()))
        }));
        for ((place, _), entry) in places.iter().zip(ctx.entries(&places).await?) {
            let found = ctx.string_of_read(entry).ok().flatten();
            if held.is_some() && found.as_ref().is_some_and(|found| found.entry.large.is_some()) {
                held = None;
            }
            reply_string(ctx, *place, found).await?;
            if held.is_some() && ctx.reply.len() - before <= ONE_MOMENT_BYTES_MAX {
                continue;
            }
            held = None;
            ctx.drain().await?;
        }
    }
    drop(held);
    Ok(())
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

async fn strlen(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    let key = ctx.key(&args[1]);
    let meta = ctx.meta(key.place, key.raw()).await?.filter(|meta| !is_expired(meta.expire_ms, ctx.now_ms));
    ctx.count_look_up(meta.is_some());
    reply_len(&mut ctx.reply, meta)
}

fn strlen_fast(ctx: &mut Ctx, args: &Args<'_>) -> Fast {
    ctx.answer_meta(&args[1], reply_len)
}

/// Answers how long a string is.
fn reply_len(reply: &mut Reply, found: Option<Meta>) -> CommandResult {
    if found.is_some_and(|meta| !Type::is_string(meta.tag)) {
        return Err(errors::WRONG_TYPE.into());
    }
    reply.count(found.map_or(0, |meta| meta.value_len));
    Ok(())
}
