//! Removing expired keys that nobody asks for, drive by drive.
//!
//! Keys are removed one by one, each under its latch. One that cannot be is set aside for a minute, for others are not to wait for it;
//! a drive on which nothing could be removed, or too many are set aside, is left alone for a second. Keys in spaces that databases left
//! are not looked for: they are retired as a whole.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use pumice_base::hash::HashMap;
use pumice_node::Place;
use pumice_reactor::Nanos;

use crate::context::Ctx;
use crate::errors::Failure;
use crate::keyspace::{HEAD_PREFIX_BYTES, HeadKey, Type, is_expired, name_of, space_of, user_key};
use crate::server::Server;

/// Expired keys of each drive removed at a time; while there are that many, the next look follows at once.
const KEYS_MAX: usize = 200;
/// How long a drive is left alone on which nothing could be removed: others go on.
const DRIVE_RESTS: Duration = Duration::from_secs(1);
/// How long a key is left alone that could not be removed.
const KEY_RESTS_MS: u64 = 60_000;
/// Keys of a drive that are left alone at a time.
const ASIDE_MAX: usize = 1024;
/// How long a key is left alone whose space a transaction that is being carried out gives to a database.
const MOVE_TAKES_MS: u64 = 1000;

/// What is known of each drive between two looks.
#[derive(Default)]
pub(crate) struct Expiry {
    drives: Vec<OfDrive>,
}

#[derive(Clone, Default)]
struct OfDrive {
    rests_until: Nanos,
    /// Keys that could not be removed, and when to try again in Unix milliseconds.
    aside: HashMap<Bytes, u64>,
}

/// Why a key was not removed.
enum Failed {
    /// Something of it does not read.
    Read(Failure),
    /// The drive refused.
    Write(Failure),
}

impl Expiry {
    /// Looks at each drive once. Says whether there is more to be removed now.
    pub(crate) async fn look(&mut self, server: &Arc<Server>) -> bool {
        self.drives.resize(usize::from(server.node.drive_count()), OfDrive::default());
        let mut is_more = false;
        for (drive, state) in (0u16..).zip(&mut self.drives) {
            if pumice_reactor::now() < state.rests_until {
                continue;
            }
            match state.remove_some(server, drive).await {
                Ok(more) => is_more |= more,
                Err(why) => {
                    tracing::warn!(drive = %server.node.name(drive), why, "removing expired keys failed");
                    state.rests_until = pumice_reactor::now() + DRIVE_RESTS;
                }
            }
        }
        is_more
    }
}

impl OfDrive {
    /// Removes some expired keys. Says whether there is more to be removed, or why the drive is better left alone.
    async fn remove_some(&mut self, server: &Arc<Server>, drive: u16) -> Result<bool, String> {
        let now_ms = pumice_reactor::wall_ms();
        self.aside.retain(|_, until_ms| *until_ms > now_ms);
        let put_off = |raw: &[u8]| {
            let space = space_of(raw);
            if server.spaces.is_left(space) {
                return u64::MAX;
            }
            match server.spaces.database_of(space) {
                Some(_) => self.aside.get(raw).copied().unwrap_or(0),
                None => now_ms + MOVE_TAKES_MS,
            }
        };
        // Keys live through the millisecond of their expiry; the engine tells of those whose it is, too.
        let found = server.node.expired_but(drive, now_ms.saturating_sub(1), KEYS_MAX, put_off).await;
        let found = found.map_err(|error| error.to_string())?;
        let mut ctx = Ctx::for_service(server.clone());
        let (mut removed, mut unread, mut refused) = (0, Vec::new(), Vec::new());
        for (place, raw) in &found {
            match remove(&mut ctx, *place, raw).await {
                Ok(is_removed) => removed += usize::from(is_removed),
                Err(Failed::Read(why)) => unread.push((raw, why)),
                Err(Failed::Write(why)) => refused.push((raw, why)),
            }
        }
        let mut outcome = Ok(found.len() >= KEYS_MAX && removed > 0);
        if removed == 0
            && let Some((_, why)) = refused.first()
        {
            // It takes no writes: none of them is a key that stands out.
            outcome = Err(why.lossy().into_owned());
            refused.clear();
        }
        if let Some((raw, why)) = unread.first().or(refused.first()) {
            let keys = unread.len() + refused.len();
            let key = name_of(raw, Some(&server.spaces)).unwrap_or_else(|| raw.escape_ascii().to_string());
            let why = why.lossy();
            tracing::warn!(drive = %server.node.name(drive), keys, key, %why, "expired keys that cannot be removed are left alone for a while");
        }
        for (raw, why) in unread.into_iter().chain(refused) {
            if self.aside.len() >= ASIDE_MAX {
                return Err(why.lossy().into_owned());
            }
            self.aside.insert(raw.clone(), now_ms + KEY_RESTS_MS);
        }
        outcome
    }
}

/// Removes a key if its time is over.
async fn remove(ctx: &mut Ctx, place: Place, raw: &Bytes) -> Result<bool, Failed> {
    let Some(user) = user_key(raw) else { return Ok(false) };
    assert_eq!(user.len() + HEAD_PREFIX_BYTES, raw.len());
    let space = space_of(raw);
    let Some(database) = ctx.server.spaces.database_of(space) else { return Ok(false) };
    let key = HeadKey::new(database, space, user, &ctx.server.node);
    assert_eq!(key.place, place);
    let _held = ctx.latch_hashes(&[key.hash()]).await;
    // Emptied while this waited: nothing may be written into the space any more, nor counted of it.
    if ctx.server.spaces.of(database) != space {
        return Ok(false);
    }
    ctx.now_ms = pumice_reactor::wall_ms();
    // The value may be what does not read.
    let meta = ctx.meta(key.place, key.raw()).await.map_err(Failed::Read)?;
    let Some(meta) = meta.filter(|meta| is_expired(meta.expire_ms, ctx.now_ms)) else { return Ok(false) };
    let mut change = ctx.change();
    if !Type::is_string(meta.tag) {
        let entry = ctx.entry(key.place, key.raw()).await.map_err(Failed::Read)?;
        ctx.erase_stored(&mut change, &key, entry).await.map_err(Failed::Read)?;
    }
    // A key that was there at WATCH and is expired at EXEC is noticed there; one that was expired at WATCH already
    // does not change by being removed.
    change.go_unseen();
    change.delete_head(&key, meta.expire_ms);
    ctx.commit(change).await.map_err(Failed::Write)?;
    ctx.server.stats.expired_keys.fetch_add(1, Ordering::Relaxed);
    Ok(true)
}
