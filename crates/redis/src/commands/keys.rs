//! Keys of any type: DEL, EXISTS, TYPE, TOUCH. Expiry is in `expire.rs`, moving in `rename.rs`, walking in `scan.rs`.

use pumice_kv::Meta;
use smallvec::SmallVec;

use crate::args::Args;
use crate::command::{Fast, FastHandler, Row};
use crate::context::Ctx;
use crate::errors::CommandResult;
use crate::keyspace::{FEW_KEYS, HeadKey, Type, is_expired};
use crate::resp::reply::Reply;
use crate::{at_hand, handler};

/// The commands of this module.
pub static ROWS: &[Row] = &[
    ("del", handler!(del)),
    ("unlink", handler!(del)),
    ("exists", handler!(exists)),
    ("touch", handler!(exists)),
    ("type", handler!(kind)),
];

/// Those with a way without waiting.
pub static FAST: &[(&str, FastHandler)] = &[
    ("del", at_hand!(del_at_hand)),
    ("unlink", at_hand!(del_at_hand)),
    ("exists", exists_fast),
    ("touch", exists_fast),
    ("type", kind_fast),
];

impl Ctx {
    /// Whether a live key is there, of any type; reads no value.
    pub(crate) async fn exists(&mut self, key: &HeadKey) -> Result<bool, crate::errors::Failure> {
        let meta = self.meta(key.place, key.raw()).await?;
        Ok(meta.is_some_and(|meta| !is_expired(meta.expire_ms, self.now_ms)))
    }
}

/// Bytes of changes at which DEL writes what it has: one batch for hundreds of thousands of keys would take more memory
/// than the keys did.
const DEL_BYTES: usize = 64 << 10;

async fn del(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    let _held = ctx.latch(args.iter_from(1)).await;
    let mut change = ctx.change();
    let mut removed = 0;
    let mut seen = pumice_base::hash::HashSet::<&[u8]>::default();
    for user_key in args.iter_from(1) {
        if args.len() > 2 && !seen.insert(user_key) {
            continue;
        }
        let key = ctx.key(user_key);
        let Some(meta) = ctx.meta(key.place, key.raw()).await? else { continue };
        let is_live = !is_expired(meta.expire_ms, ctx.now_ms);
        removed += u64::from(is_live);
        if !Type::is_string(meta.tag) {
            let entry = ctx.entry(key.place, key.raw()).await?;
            ctx.erase_stored(&mut change, &key, entry).await?;
        }
        if is_live {
            change.delete_head(&key, meta.expire_ms);
        } else {
            change.delete_expired_head(&key, meta.expire_ms);
        }
        if change.bytes() >= DEL_BYTES {
            ctx.commit(change).await?;
            change = ctx.change();
            // Those that were removed are not there any more.
            seen.clear();
        }
    }
    ctx.commit(change).await?;
    ctx.reply.count(removed);
    Ok(())
}

/// DEL of a few strings.
fn del_at_hand(ctx: &mut Ctx, args: &Args<'_>) -> Result<(), Fast> {
    if args.len() - 1 > FEW_KEYS {
        return Err(Fast::Slow);
    }
    let keys: SmallVec<[HeadKey; FEW_KEYS]> = args.iter_from(1).map(|key| ctx.key(key)).collect();
    let _held = ctx.try_latch_several(keys.iter()).ok_or(Fast::Slow)?;
    let mut change = ctx.change();
    let mut removed = 0;
    for (at, key) in keys.iter().enumerate() {
        if keys[..at].iter().any(|earlier| earlier.raw() == key.raw()) {
            continue;
        }
        let Some(meta) = ctx.stored_at_hand(key)? else {
            ctx.depend_on(key.place, key.raw(), None);
            continue;
        };
        // What else is there has elements, or is nothing to who watches it.
        if !Type::is_string(meta.tag) || is_expired(meta.expire_ms, ctx.now_ms) {
            return Err(Fast::Slow);
        }
        change.delete_head(key, meta.expire_ms);
        removed += 1;
    }
    ctx.commit_at_hand(change)?;
    ctx.reply.count(removed);
    Ok(())
}

/// Whether one key is there.
fn exists_fast(ctx: &mut Ctx, args: &Args<'_>) -> Fast {
    if args.len() > 2 {
        return Fast::Slow;
    }
    ctx.answer_meta(&args[1], |reply, found| {
        reply.flag(found.is_some());
        Ok(())
    })
}

async fn exists(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    let held = if args.len() > 2 { Some(ctx.latch(args.iter_from(1)).await) } else { None };
    let mut count = 0;
    for key in args.iter_from(1) {
        let key = ctx.key(key);
        let found = ctx.exists(&key).await?;
        ctx.count_look_up(found);
        count += u64::from(found);
    }
    drop(held);
    ctx.reply.count(count);
    Ok(())
}

fn reply_kind(reply: &mut Reply, found: Option<Meta>) {
    reply.simple(found.and_then(|meta| Type::from_tag(meta.tag)).map_or("none", Type::name));
}

fn kind_fast(ctx: &mut Ctx, args: &Args<'_>) -> Fast {
    ctx.answer_meta(&args[1], |reply, found| {
        reply_kind(reply, found);
        Ok(())
    })
}

async fn kind(ctx: &mut Ctx, args: Args<'_>) -> CommandResult {
    let key = ctx.key(&args[1]);
    let meta = ctx.meta(key.place, key.raw()).await?.filter(|meta| !is_expired(meta.expire_ms, ctx.now_ms));
    ctx.count_look_up(meta.is_some());
    reply_kind(&mut ctx.reply, meta);
    Ok(())
}
