//! Flash reads that a command makes before it holds its latch.
//!
//! Who reads flash with a key's latch held has everybody wait that works on the same key: a hash of millions of fields was
//! changed by one client at a time, a flash read each, however many there were. So a handler that looks elements of a key up goes through
//! [`reads_first`]: its look-ups do not wait. The first that memory does not answer ends the handler, and its latch with it; what
//! it was for is read then, side by side with what others read, and the handler runs again. It takes what was read as long as that is
//! the newest. After [`TRIES`] it reads as it goes, latch held, and comes to its end however much others write.
//!
//! So does a handler end that needs ranks in a long order that nobody has counted: it runs again when that is done.

use std::sync::Arc;

use pumice_base::hash::HashMap;
use pumice_kv::{Entry, Meta, Moment};
use pumice_node::{Node, Place};
use pumice_reactor::join_all;
use pumice_reactor::sync::Event;

use super::access::PARALLEL_READS_MAX;
use super::head::Collection;
use super::key::RawKey;
use crate::args::Args;
use crate::context::Ctx;
use crate::errors::{CommandResult, Failure};

/// A handler is ended so often: for its key's head, and for the elements.
const TRIES: usize = 2;
/// And so often to have an order counted; then it walks.
const COUNTS_AWAITED: u32 = 2;
/// Who looks more up at once reads with the latch held.
const WANTED_MAX: usize = 1024;
/// Bytes of values kept until the handler runs again, which reads the others once more: as many as MGET and HMGET keep.
const VALUES_BYTES_MAX: usize = 4 << 20;

/// What a command under way has read without its latch, and wants to.
#[derive(Default)]
pub(crate) struct Unlatched {
    /// A handler is run by [`reads_first`].
    is_under_way: bool,
    /// Look-ups do not wait.
    asks: bool,
    /// Its look-up of the key is in the statistics.
    is_counted: bool,
    wanted: Vec<Wanted>,
    /// Set when the order that the handler ended for is counted.
    awaited: Option<Arc<Event>>,
    /// How often it may still end for that.
    counts_awaited: u32,
    read: HashMap<RawKey, Read>,
    value_bytes: usize,
}

struct Wanted {
    place: Place,
    key: RawKey,
    look: Look,
}

/// What is looked for.
#[derive(Clone, Copy)]
pub(super) enum Look {
    Value,
    /// All besides the value.
    Meta,
}

/// What was read of a key, after when.
struct Read {
    since: Moment,
    found: Found,
}

enum Found {
    Entry(Option<Entry>),
    Meta(Option<Meta>),
    /// It could not be read, or there was no room for it.
    Lost,
}

/// Runs a handler that may be ended and run again: it writes nothing to flash before its last look-up.
pub(crate) async fn reads_first(
    ctx: &mut Ctx,
    args: Args<'_>,
    handler: impl AsyncFn(&mut Ctx, Args<'_>) -> CommandResult,
) -> CommandResult {
    if ctx.in_exec() {
        // Its latches are held already.
        return handler(ctx, args).await;
    }
    let mark = ctx.reply.mark();
    ctx.unlatched.begin();
    let mut tries = TRIES;
    loop {
        let result = handler(ctx, args).await;
        let wanted = std::mem::take(&mut ctx.unlatched.wanted);
        if let Some(awaited) = ctx.unlatched.awaited.take() {
            ctx.reply.rollback(mark);
            awaited.wait().await;
            ctx.take_time_anew();
            continue;
        }
        if wanted.is_empty() {
            ctx.unlatched.end();
            return result;
        }
        ctx.reply.rollback(mark);
        if ctx.unlatched.is_news(&wanted) {
            Box::pin(ctx.read_unlatched(wanted)).await;
            tries -= 1;
        } else {
            tries = 0;
        }
        ctx.unlatched.asks = tries > 0;
    }
}

impl Unlatched {
    fn begin(&mut self) {
        (self.is_under_way, self.asks, self.is_counted) = (true, true, false);
        self.counts_awaited = COUNTS_AWAITED;
        self.awaited = None;
        self.wanted.clear();
    }

    fn end(&mut self) {
        (self.is_under_way, self.asks, self.is_counted) = (false, false, false);
        if !self.read.is_empty() {
            (self.read, self.value_bytes) = (HashMap::default(), 0);
        }
    }

    /// Whether the running command counts a look-up: when it runs again, it has done so.
    pub(crate) fn counts(&mut self) -> bool {
        !std::mem::replace(&mut self.is_counted, self.is_under_way)
    }

    /// Whether anything is wanted that was not read.
    fn is_news(&self, wanted: &[Wanted]) -> bool {
        wanted.iter().any(|wanted| !self.read.contains_key(&wanted.key))
    }

    /// What was read of `key`, if that is the newest still.
    pub(super) fn entry(&self, node: &Node, place: Place, key: &[u8]) -> Option<Option<Entry>> {
        let Read { since, found: Found::Entry(entry) } = self.read_of(key)? else { return None };
        let seq = entry.as_ref().map(|entry| entry.seq);
        node.is_newest(place, key, seq, *since).then(|| entry.clone())
    }

    /// [`Unlatched::entry`] without the value.
    pub(super) fn meta(&self, node: &Node, place: Place, key: &[u8]) -> Option<Option<Meta>> {
        let Read { since, found: Found::Meta(meta) } = self.read_of(key)? else { return None };
        node.is_newest(place, key, meta.map(|meta| meta.seq), *since).then_some(*meta)
    }

    fn read_of(&self, key: &[u8]) -> Option<&Read> {
        if self.read.is_empty() { None } else { self.read.get(key) }
    }

    fn keep(&mut self, key: RawKey, mut read: Read) {
        if let Found::Entry(Some(entry)) = &read.found {
            if self.value_bytes + entry.value.len() <= VALUES_BYTES_MAX {
                self.value_bytes += entry.value.len();
            } else {
                read.found = Found::Lost;
            }
        }
        self.read.insert(key, read);
    }
}

impl Ctx {
    /// Whether so many look-ups that memory does not answer end the handler ([`Ctx::want`]).
    pub(super) fn may_want(&self, look_ups: usize) -> bool {
        self.unlatched.asks && look_ups <= WANTED_MAX && !self.is_streaming
    }

    /// The handler must end, with this failure, which nobody sees, until flash was read.
    pub(super) fn want(&mut self, place: Place, key: &[u8], look: Look) -> Failure {
        self.unlatched.wanted.push(Wanted { place, key: RawKey::from_slice(key), look });
        Failure::new("ERR flash is to be read first")
    }

    /// Has the order of `collection` under `sub` counted, and ends the handler until it is, where that can be. Who goes on has to walk.
    pub(crate) fn want_counts(&mut self, collection: &Collection, sub: u8) -> Result<(), Failure> {
        let Some(counted) = self.count_order(collection, sub) else { return Ok(()) };
        if !self.unlatched.is_under_way || self.unlatched.counts_awaited == 0 || self.is_streaming {
            return Ok(());
        }
        self.unlatched.counts_awaited -= 1;
        self.unlatched.awaited = Some(counted);
        Err(Failure::new("ERR the order is to be counted first"))
    }

    /// Reads what the handler was ended for. What fails the handler reads again, and fails with it.
    async fn read_unlatched(&mut self, wanted: Vec<Wanted>) {
        let mut wanted = wanted.into_iter();
        while wanted.len() > 0 {
            let group: Vec<Wanted> = wanted.by_ref().take(PARALLEL_READS_MAX).collect();
            let reads = group.into_iter().map(|Wanted { place, key, look }| {
                let node = self.server.node.clone();
                async move {
                    let since = node.moment(place);
                    let found = match look {
                        // Looked up anew: what was known of it is from before.
                        Look::Value => node.get(place, &key).await.map(Found::Entry),
                        Look::Meta => node.get_meta(place, &key).await.map(Found::Meta),
                    };
                    (key, Read { since, found: found.unwrap_or(Found::Lost) })
                }
            });
            for (key, read) in join_all(reads).await {
                self.unlatched.keep(key, read);
            }
        }
        self.take_time_anew();
    }
}
