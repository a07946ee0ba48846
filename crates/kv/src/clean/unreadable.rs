//! Victims that do not read whole.
//!
//! 1. Cleaning moves what reads, and reads the victim once more for what did not.
//! 2. What is lost then can only be told from the other end: every key, key table and list of pieces is asked whether it
//!    names something in the victim. If none does, only dead bytes were damaged, and the victim is released like any other.
//! 3. Else it is kept: whoever reads such a key gets the error of its place, not of what was written over it, and what is
//!    lost for a moment only is not lost for ever. A key table is worth most: blocks of it that read go on to be read.
//! 4. The heap offers it again when half of what was named is dead (keys were overwritten or deleted), at the next
//!    opening, and one segment at a time after a while, less and less often while that wins nothing. So walks are few, the
//!    space comes back when nobody misses it any more, and what did not read for a moment costs nothing in the end.
//!
//! Rejected: releasing it with the loss counted (`docs/decisions/0019-what-does-not-read-is-kept.md`).

use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use pumice_base::sync::lock;
use pumice_reactor::{Nanos, now, yield_now};
use pumice_segment::{RecordPtr, SegmentId};

use crate::entry::KeyEntry;
use crate::errors::StoreError;
use crate::scan::{SliceSet, Want};
use crate::store::{Inner, Store};
use crate::types::{Direction, SliceId};

/// Keys looked at before others may work.
const KEYS_AT_ONCE: u32 = 256;

/// The first pause before kept victims are looked at again, and the longest.
const PAUSE_MIN: Duration = Duration::from_secs(10);
const PAUSE_MAX: Duration = Duration::from_secs(6 * 3600);

/// When the next kept victim is looked at again.
pub struct SecondLooks {
    since: Nanos,
    pause: Duration,
    /// Victims that were kept until then.
    kept: u64,
}

impl SecondLooks {
    pub fn new() -> Self {
        Self { since: now(), pause: PAUSE_MIN, kept: 0 }
    }

    /// Offers one again, if it is time to.
    pub fn look(&mut self, store: &Inner) {
        if self.since.elapsed() < self.pause {
            return;
        }
        let kept = store.counters.kept_victims.get();
        self.pause = if kept > self.kept { (self.pause * 2).min(PAUSE_MAX) } else { PAUSE_MIN };
        (self.kept, self.since) = (kept, now());
        store.heap.offer_unreadable();
    }
}

/// What the index names in a segment.
#[derive(Default)]
struct Named {
    bytes: u64,
    things: u64,
    /// One of them, for the log.
    first: Option<String>,
}

impl Named {
    fn add(&mut self, bytes: u32, what: impl FnOnce() -> String) {
        self.bytes += u64::from(bytes);
        self.things += 1;
        self.first.get_or_insert_with(what);
    }
}

impl Inner {
    /// Keeps a victim, of which everything that reads was moved, if something that does not is still needed. Answers
    /// whether it is kept.
    pub(crate) async fn keeps_unreadable(self: &Arc<Self>, victim: SegmentId) -> bool {
        let named = match self.named_in(victim).await {
            Ok(named) => named,
            Err(error) => {
                // Nothing says that the victim is not needed.
                let mut named = Named::default();
                named.add(1, || format!("perhaps what the index does not tell: {error}"));
                named
            }
        };
        let Named { bytes, things, first: Some(first) } = named else { return false };
        tracing::error!(%victim, things, bytes, %first, "kept, because it does not read whole and is still needed");
        self.counters.kept_victims.add(1);
        self.heap.keep_unreadable(victim, bytes.min(u64::from(self.heap.segment_bytes())) as u32);
        true
    }

    /// What is named in `segment`. Nothing can come to be named there later: it is sealed, and what is written goes
    /// elsewhere.
    async fn named_in(self: &Arc<Self>, segment: SegmentId) -> Result<Named, StoreError> {
        let mut named = Named::default();
        // Tables and values under way are named by those who write them.
        for made in lock(&self.making).values() {
            if made.is_none_or(|ptr| ptr.addr.segment() == segment) {
                named.add(1, || "a key table being made".into());
            }
        }
        for id in lock(&self.large.writers).keys() {
            named.add(1, || format!("large value {id}, which is being written"));
        }
        let store = Store { inner: self.clone() };
        let snapshot = store.snapshot();
        for slice in 0..self.slices.len() as u16 {
            let version = snapshot.inner.slices[usize::from(slice)].version.clone();
            for table in version.tables().filter(|table| table.meta.ptr.addr.segment() == segment) {
                named.add(table.meta.ptr.len, || format!("key table {}", table.meta.id));
            }
            let one = SliceSet::One(SliceId(slice));
            let (from, to) = (Bound::Unbounded, Bound::Unbounded);
            let mut scan = store.scan(&snapshot, one, from, to, Direction::Forward, Want::Keys);
            let mut looked_at = 0u32;
            while let Some((slice, key, found)) = scan.next_key().await? {
                looked_at += 1;
                if looked_at.is_multiple_of(KEYS_AT_ONCE) {
                    yield_now().await;
                }
                if !self.is_retired(slice, &key) {
                    self.add_named_by(slice, &key, &found, segment, &mut named).await;
                }
            }
        }
        Ok(named)
    }

    async fn add_named_by(
        &self,
        slice: SliceId,
        key: &[u8],
        found: &KeyEntry,
        segment: SegmentId,
        named: &mut Named,
    ) {
        let is_here = |ptr: RecordPtr| self.place_of(ptr).addr.segment() == segment;
        if let Some(ptr) = found.record().filter(|ptr| is_here(*ptr)) {
            named.add(ptr.len, || self.show_key(key));
        }
        if !found.large {
            return;
        }
        match self.value_of(slice, key, found).await {
            Ok(entry) => {
                let pieces = entry.large.iter().flat_map(|list| &list.pieces);
                for piece in pieces.filter(|piece| is_here(piece.ptr)) {
                    named.add(piece.ptr.len, || self.show_key(key));
                }
            }
            // Its pieces may lie anywhere.
            Err(_) => named.add(1, || self.show_key(key)),
        }
    }
}
