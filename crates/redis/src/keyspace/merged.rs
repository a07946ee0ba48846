//! The ordered map and what a running transaction wrote, as one.
//!
//! 1. Uncommitted states are fetched from the overlay a few at a time, as the scan comes to them: a scan that ends
//!    early costs nothing for those behind.
//! 2. Where only removed keys were found between two that are there, the overlay is told of the gap
//!    ([`pumice_kv::gaps`]); a scan that comes into one leaps to its other end.
//!
//! Outside of EXEC none of this happens: the scan below is all there is. A transaction's scan sees the moment it
//! was made as long as its command writes nothing that lies ahead of it.

use std::collections::VecDeque;
use std::ops::Bound;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use pumice_kv::gaps::successor;
use pumice_kv::{Direction, Entry, EntryView, SliceSet, Snapshot, Want};
use pumice_node::{Node, NodeScan, NodeSnapshot, Place};

use super::access::{large_failure, store_failure};
use super::key::RawKey;
use super::untold::Untold;
use crate::context::Ctx;
use crate::errors::Failure;

/// Uncommitted states fetched at once: at first, and at most.
const FETCHED_MIN: usize = 4;
const FETCHED_MAX: usize = 256;
/// So many removed keys in a row are worth remembering, and so many are walked over before a leap: it opens the
/// scan below anew, which costs as much.
const HIDDEN_MIN: usize = 16;

/// What a scan goes over.
#[derive(Clone)]
pub(super) enum Over {
    /// Keys of one slice.
    Slice(Place, Snapshot),
    /// Keys of all drives.
    All(NodeSnapshot),
}

impl Over {
    fn open(
        &self,
        node: &Node,
        lower: Bound<Bytes>,
        upper: Bound<Bytes>,
        direction: Direction,
        want: Want,
    ) -> Source {
        match self {
            Self::Slice(place, snapshot) => {
                let slice = SliceSet::One(place.slice);
                let store = node.store(place.drive);
                let scan = Box::new(store.scan(snapshot, slice, lower, upper, direction, want));
                Source::One { scan, node: node.clone(), place: *place }
            }
            Self::All(snapshot) => Source::Node(Box::new(node.scan(snapshot, lower, upper, direction, want))),
        }
    }

    fn open_at(
        &self,
        node: &Node,
        low: &RawKey,
        high: Option<&RawKey>,
        direction: Direction,
        want: Want,
    ) -> Source {
        let owned = |key: &RawKey| Bytes::copy_from_slice(key);
        let upper = high.map_or(Bound::Unbounded, |high| Bound::Excluded(owned(high)));
        self.open(node, Bound::Included(owned(low)), upper, direction, want)
    }
}

/// What is stored.
pub(super) enum Source {
    One { scan: Box<pumice_kv::Scan>, node: Node, place: Place },
    Node(Box<NodeScan>),
}

impl Source {
    async fn next(&mut self) -> Result<Option<(Bytes, Entry)>, Failure> {
        match self {
            Self::One { scan, node, place } => scan.next().await.map_err(|e| large_failure(node, *place, &e)),
            Self::Node(scan) => scan.next().await.map_err(|e| store_failure(&e)),
        }
    }

    fn want_keys(&mut self) {
        match self {
            Self::One { scan, .. } => scan.want_keys(),
            Self::Node(scan) => scan.want_keys(),
        }
    }

    async fn skip(&mut self, limit: u64) -> Result<u64, Failure> {
        if let Self::One { scan, node, place } = self {
            return scan.skip(limit).await.map_err(|e| large_failure(node, *place, &e));
        }
        let mut skipped = 0;
        while skipped < limit && self.next().await?.is_some() {
            skipped += 1;
        }
        Ok(skipped)
    }
}

/// A scan under way.
pub(super) struct Merged {
    keys: Keys,
    /// Where there is no room below a drive: what the reply does not depend on yet.
    untold: Option<Untold>,
}

enum Keys {
    /// Outside of EXEC.
    Stored(Source),
    /// Within.
    Both(Box<Both>),
}

/// A scan over what is stored and what is uncommitted.
pub(super) struct Both {
    source: Source,
    /// What the source gave and was not taken.
    ahead: Option<(Bytes, Entry)>,
    ended: bool,
    over: Over,
    direction: Direction,
    want: Want,
    /// What the overlay was not asked for yet, `low..high`; without `high`, everything from `low` on.
    low: RawKey,
    high: Option<RawKey>,
    fetched: VecDeque<(RawKey, Option<Entry>)>,
    fetch_next: usize,
    all_fetched: bool,
    /// Where the scan left the last key that is there, if that is known: the near end of a gap.
    edge: Option<RawKey>,
    /// Removed keys met since then.
    hidden: usize,
    /// The overlay's when the scan was made: what was put since may lie in what seems a gap.
    version: u64,
}

impl Merged {
    pub(super) fn new(
        ctx: &mut Ctx,
        over: Over,
        lower: Bound<&[u8]>,
        upper: Bound<&[u8]>,
        direction: Direction,
        want: Want,
    ) -> Self {
        let untold = Untold::of(ctx, &over, lower, upper, direction);
        Self { keys: Keys::new(ctx, over, lower, upper, direction, want), untold }
    }

    /// The next key that is there, and its entry.
    pub(super) async fn next(&mut self, ctx: &mut Ctx) -> Result<Option<(Bytes, Entry)>, Failure> {
        if let Some(found) = self.next_at_hand() {
            return Ok(Some(found));
        }
        // Boxed: this is called for each element, a future is moved to where it is awaited, and most need no more than that.
        Box::pin(self.wait_for_next(ctx)).await
    }

    async fn wait_for_next(&mut self, ctx: &mut Ctx) -> Result<Option<(Bytes, Entry)>, Failure> {
        let found = match &mut self.keys {
            Keys::Stored(source) => source.next().await,
            Keys::Both(both) => both.next(ctx).await,
        }?;
        match (&found, &mut self.untold) {
            (_, None) => {}
            (Some((key, _)), Some(untold)) => untold.tell_to(ctx, key),
            (None, Some(_)) => self.tell_all(ctx),
        }
        Ok(found)
    }

    /// From here on keys alone are wanted.
    pub(super) fn want_keys(&mut self) {
        match &mut self.keys {
            Keys::Stored(source) => source.want_keys(),
            Keys::Both(both) => {
                both.want = Want::Keys;
                both.source.want_keys();
            }
        }
    }

    /// What there is nothing to wait for, and nothing to merge with.
    pub(super) fn next_at_hand(&mut self) -> Option<(Bytes, Entry)> {
        match &mut self.keys {
            _ if self.untold.is_some() => None,
            Keys::Stored(Source::One { scan, .. }) => scan.next_at_hand(),
            Keys::Stored(Source::Node(scan)) => scan.next_at_hand(),
            Keys::Both(_) => None,
        }
    }

    /// [`Merged::next`] where there is nothing to wait for, where it lies.
    pub(super) fn view_at_hand(&mut self) -> Option<(&[u8], EntryView<'_>)> {
        match &mut self.keys {
            _ if self.untold.is_some() => None,
            Keys::Stored(Source::One { scan, .. }) => scan.view_at_hand(),
            Keys::Stored(Source::Node(scan)) => scan.view_at_hand(),
            Keys::Both(_) => None,
        }
    }

    /// Whether nothing is left, as far as is known without waiting.
    pub(super) fn is_at_end(&self) -> bool {
        self.untold.is_none()
            && matches!(&self.keys, Keys::Stored(Source::One { scan, .. }) if scan.is_at_end())
    }

    /// Goes over up to `limit` keys unseen; says how many there were.
    pub(super) async fn skip(&mut self, ctx: &mut Ctx, limit: u64) -> Result<u64, Failure> {
        // Where it comes to nobody sees.
        self.tell_all(ctx);
        match &mut self.keys {
            Keys::Stored(source) => source.skip(limit).await,
            Keys::Both(both) => both.skip(ctx, limit).await,
        }
    }

    fn tell_all(&mut self, ctx: &mut Ctx) {
        if let Some(untold) = self.untold.take() {
            untold.tell(ctx);
        }
    }
}

impl Keys {
    fn new(
        ctx: &Ctx,
        over: Over,
        lower: Bound<&[u8]>,
        upper: Bound<&[u8]>,
        direction: Direction,
        want: Want,
    ) -> Self {
        let Some(overlay) = &ctx.transaction else {
            // Each source of a scan has these bounds, too: what is copied plainly would be allocated anew at its first clone.
            let owned = |bound: Bound<&[u8]>| bound.map(|key| Bytes::from_owner(RawKey::from_slice(key)));
            let source = over.open(&ctx.server.node, owned(lower), owned(upper), direction, want);
            return Self::Stored(source);
        };
        let mut low = match lower {
            Bound::Included(key) => RawKey::from_slice(key),
            Bound::Excluded(key) => successor(key),
            Bound::Unbounded => RawKey::new(),
        };
        let mut high = match upper {
            Bound::Included(key) => Some(successor(key)),
            Bound::Excluded(key) => Some(RawKey::from_slice(key)),
            Bound::Unbounded => None,
        };
        let edge = if direction == Direction::Forward { Some(low.clone()) } else { high.clone() };
        // A gap at an end of the scan need not be looked at.
        if let Some((_, end)) = overlay.gaps.0.around(&low, 0) {
            low = end.clone();
        }
        if let Some((start, _)) = high.as_ref().and_then(|high| overlay.gaps.0.before(high, 0)) {
            high = Some(start.clone());
        }
        let is_empty = high.as_ref().is_some_and(|high| *high <= low);
        if is_empty {
            high = Some(low.clone());
        }
        Self::Both(Box::new(Both {
            source: over.open_at(&ctx.server.node, &low, high.as_ref(), direction, want),
            ahead: None,
            ended: is_empty,
            over,
            direction,
            want,
            low,
            high,
            fetched: VecDeque::new(),
            fetch_next: FETCHED_MIN,
            all_fetched: is_empty,
            edge,
            hidden: 0,
            version: overlay.version(),
        }))
    }
}

impl Both {
    async fn next(&mut self, ctx: &mut Ctx) -> Result<Option<(Bytes, Entry)>, Failure> {
        loop {
            self.look_ahead().await?;
            self.fetch(ctx);
            let uncommitted = self.fetched.front().map(|(key, _)| key);
            let pending_first = match (uncommitted, &self.ahead) {
                (None, _) => false,
                (Some(_), None) => true,
                (Some(key), Some((stored, _))) if self.direction == Direction::Forward => {
                    key[..] <= stored[..]
                }
                (Some(key), Some((stored, _))) => key[..] >= stored[..],
            };
            if !pending_first {
                let found = self.ahead.take();
                self.end_run(ctx, found.as_ref().map(|(key, _)| &key[..]));
                return Ok(found);
            }
            let Some((key, state)) = self.fetched.pop_front() else { continue };
            // The uncommitted state hides the stored one.
            if self.ahead.as_ref().is_some_and(|(stored, _)| stored[..] == key[..]) {
                self.ahead = None;
            }
            if let Some(entry) = state {
                self.end_run(ctx, Some(&key));
                return Ok(Some((Bytes::copy_from_slice(&key), entry)));
            }
            self.hidden += 1;
            if self.hidden >= HIDDEN_MIN {
                self.leap(ctx, &key).await?;
            }
        }
    }

    async fn skip(&mut self, ctx: &mut Ctx, limit: u64) -> Result<u64, Failure> {
        let mut skipped = 0;
        while skipped < limit {
            self.fetch(ctx);
            if self.fetched.is_empty() {
                // Nothing uncommitted lies ahead. Where the keys gone over are nobody sees.
                (self.edge, self.hidden) = (None, 0);
                skipped += u64::from(self.ahead.take().is_some());
                if self.ended {
                    return Ok(skipped);
                }
                return Ok(skipped + self.source.skip(limit - skipped).await?);
            }
            if self.next(ctx).await?.is_none() {
                break;
            }
            skipped += 1;
        }
        Ok(skipped)
    }

    async fn look_ahead(&mut self) -> Result<(), Failure> {
        if self.ahead.is_none() && !self.ended {
            self.ahead = self.source.next().await?;
            self.ended = self.ahead.is_none();
        }
        Ok(())
    }

    /// Asks the overlay for more if nothing is left of what it gave.
    fn fetch(&mut self, ctx: &Ctx) {
        if self.fetched.is_empty()
            && !self.all_fetched
            && let Some(overlay) = &ctx.transaction
        {
            let range = overlay.range(&self.low, self.high.as_ref());
            let owned = |(key, state): (&RawKey, &Option<Entry>)| (key.clone(), state.clone());
            match self.direction {
                Direction::Forward => self.fetched.extend(range.take(self.fetch_next).map(owned)),
                Direction::Backward => self.fetched.extend(range.rev().take(self.fetch_next).map(owned)),
            }
            self.all_fetched = self.fetched.len() < self.fetch_next;
            match (self.fetched.back(), self.direction) {
                (Some((last, _)), Direction::Forward) => self.low = successor(last),
                (Some((last, _)), Direction::Backward) => self.high = Some(last.clone()),
                (None, _) => {}
            }
            self.fetch_next = (self.fetch_next * 2).min(FETCHED_MAX);
            let walked = &ctx.server.stats.uncommitted_walked;
            walked.fetch_add(self.fetched.len() as u64, Ordering::Relaxed);
        }
    }

    /// A key that is there was met; or, without one, the scan's end.
    fn end_run(&mut self, ctx: &mut Ctx, key: Option<&[u8]>) {
        let far = match (key, self.direction) {
            (Some(key), Direction::Forward) => Some(RawKey::from_slice(key)),
            (Some(key), Direction::Backward) => Some(successor(key)),
            (None, Direction::Forward) => self.high.clone(),
            (None, Direction::Backward) => Some(self.low.clone()),
        };
        if self.hidden >= HIDDEN_MIN
            && let (Some(edge), Some(far), Some(overlay)) = (self.edge.take(), far, &mut ctx.transaction)
            && overlay.version() == self.version
        {
            match self.direction {
                Direction::Forward => overlay.gaps.0.note(edge, far, 0),
                Direction::Backward => overlay.gaps.0.note(far, edge, 0),
            }
        }
        self.hidden = 0;
        self.edge = key.map(|key| match self.direction {
            Direction::Forward => successor(key),
            Direction::Backward => RawKey::from_slice(key),
        });
    }

    /// Goes on behind the gap that the removed `key` lies in, if it lies in one.
    async fn leap(&mut self, ctx: &Ctx, key: &[u8]) -> Result<(), Failure> {
        let gap = ctx.transaction.as_ref().and_then(|overlay| overlay.gaps.0.around(key, 0));
        let Some((start, end)) = gap.map(|(start, end)| (start.clone(), end.clone())) else { return Ok(()) };
        let forward = self.direction == Direction::Forward;
        let is_within = |key: &[u8]| if forward { *key < end[..] } else { *key >= start[..] };
        while self.fetched.pop_front_if(|(key, _)| is_within(key)).is_some() {}
        self.look_ahead().await?;
        let stored_within = self.ahead.as_ref().is_some_and(|(stored, _)| is_within(stored));
        // Fetched states behind the gap are there still: then the overlay was asked for all within it already.
        let (mut low, mut high) = (self.low.clone(), self.high.clone());
        if forward {
            low = end;
        } else {
            high = Some(start);
        }
        let is_past_end = high.as_ref().is_some_and(|high| *high <= low);
        if stored_within {
            self.ahead = None;
            self.ended = is_past_end;
            self.source = self.over.open_at(&ctx.server.node, &low, high.as_ref(), self.direction, self.want);
        }
        if self.fetched.is_empty() {
            self.all_fetched |= is_past_end;
            if forward {
                self.low = low.max(std::mem::take(&mut self.low));
            } else {
                self.high = high.min(self.high.take());
            }
        }
        Ok(())
    }
}
