//! Strings: reading whole values. Who writes them is in `string_writes.rs`, parts of them in `string_parts.rs`, counters in `counters.rs`.

use std::ops::Range;

use bytes::Bytes;
use pumice_kv::{Coming, Entry, LargeRef, Meta, PIECE_BYTES_MAX, Peek};
use pumice_node::Place;
use smallvec::SmallVec;

use crate::args::Args;
use crate::command::{Fast, FastHandler, Row};
use crate::context::{Ctx, Took};
use crate::errors::{self, CommandResult, Failure};
use crate::handler;
use crate::keyspace::{
    FEW_KEYS, HeadKey, ONE_MOMENT_BYTES_MAX, PARALLEL_READS_MAX, RawKey, StringHead, Type, is_expired,
    large_failure,
};
use crate::output::SHARE_BYTES;
use crate::resp::reply::Reply;

/// The commands of this module.
pub static ROWS: &[Row] = &[("get", handler!(get)), ("mget", handler!(mget)), ("strlen", handler!(strlen))];

/// Those with a way without waiting.
pub static FAST: &[(&str, FastHandler)] = &[("get", get_fast), ("mget", mget_fast), ("strlen", strlen_fast)];

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
    pub(super) fn string_of_read(&mut self, entry: Option<Entry>) -> Result<Option<StringHead>, Failure> {
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
pub(super) async fn reply_string(ctx: &mut Ctx, place: Place, found: Option<StringHead>) -> CommandResult {
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
