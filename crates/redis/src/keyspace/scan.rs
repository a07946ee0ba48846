//! Scans: elements of one collection, keys of one database; each as of the moment it was made, with what a
//! running transaction wrote merged in.

use std::ops::Bound;

use bytes::{Buf, Bytes};
use pumice_kv::{Direction, Entry, EntryView, Snapshot, Want};
use pumice_node::Place;

use super::head::{Collection, is_expired};
use super::key::{ELEMENT_PREFIX_BYTES, HEAD_PREFIX_BYTES, Space, after_prefix, element_key, head_prefix};
use super::merged::{Merged, Over};
use crate::context::Ctx;
use crate::errors::Failure;

/// A scan over elements of one collection, made by [`Ctx::scan_elements`].
pub struct ElementScan {
    merged: Merged,
    place: Place,
}

impl ElementScan {
    /// The next element's field (what follows its sub) and value.
    pub async fn next(&mut self, ctx: &mut Ctx) -> Result<Option<(Bytes, Bytes)>, Failure> {
        let Some((field, entry)) = self.next_entry(ctx).await? else { return Ok(None) };
        if entry.large.is_none() {
            return Ok(Some((field, entry.value)));
        }
        let value = Box::pin(ctx.whole_value(self.place, &entry)).await?;
        Ok(Some((field, value)))
    }

    /// [`ElementScan::next`] where there is nothing to wait for.
    pub(crate) fn next_at_hand(&mut self) -> Option<(Bytes, Bytes)> {
        let (mut field, entry) = self.merged.next_at_hand()?;
        field.advance(ELEMENT_PREFIX_BYTES);
        Some((field, entry.value))
    }

    /// The next element's field and its entry, which names a large value's pieces.
    pub(crate) async fn next_entry(&mut self, ctx: &mut Ctx) -> Result<Option<(Bytes, Entry)>, Failure> {
        let Some((mut field, entry)) = self.merged.next(ctx).await? else { return Ok(None) };
        field.advance(ELEMENT_PREFIX_BYTES);
        Ok(Some((field, entry)))
    }

    /// [`ElementScan::next_entry`] where there is nothing to wait for, which is most of the time; the field and the entry where they lie.
    pub(crate) fn view_at_hand(&mut self) -> Option<(&[u8], EntryView<'_>)> {
        let (key, entry) = self.merged.view_at_hand()?;
        Some((&key[ELEMENT_PREFIX_BYTES..], entry))
    }

    /// Whether nothing is left, as far as is known without waiting.
    pub(crate) fn is_at_end(&self) -> bool {
        self.merged.is_at_end()
    }

    /// Goes over up to `limit` elements unseen; says how many there were: fewer at the end.
    pub async fn skip(&mut self, ctx: &mut Ctx, limit: u64) -> Result<u64, Failure> {
        self.merged.skip(ctx, limit).await
    }

    /// The next element's whole key and its entry.
    pub(crate) async fn next_raw(&mut self, ctx: &mut Ctx) -> Result<Option<(Bytes, Entry)>, Failure> {
        self.merged.next(ctx).await
    }
}

/// A scan over live keys of one database, made by [`Ctx::scan_keys`].
pub struct KeyScan {
    merged: Merged,
    now_ms: u64,
}

impl KeyScan {
    /// The next live key and its entry (without its value unless asked for).
    pub async fn next(&mut self, ctx: &mut Ctx) -> Result<Option<(Bytes, Entry)>, Failure> {
        while let Some((raw, entry)) = self.merged.next(ctx).await? {
            if !is_expired(entry.expire_ms, self.now_ms) {
                return Ok(Some((raw.slice(HEAD_PREFIX_BYTES..), entry)));
            }
        }
        Ok(None)
    }

    /// From here on keys alone are wanted.
    pub fn want_keys(&mut self) {
        self.merged.want_keys();
    }
}

impl Ctx {
    /// The elements of `collection` under `sub` whose fields lie within bounds, in byte order or against it.
    /// The scan sees the moment it was made; hold the latch from opening the collection until here.
    pub fn scan_elements(
        &mut self,
        collection: &Collection,
        sub: u8,
        lower: Bound<&[u8]>,
        upper: Bound<&[u8]>,
        direction: Direction,
        want: Want,
    ) -> ElementScan {
        let snapshot = self.snapshot_of(collection);
        self.scan_elements_at(&snapshot, collection, sub, lower, upper, direction, want)
    }

    /// The elements of `collection` as they are now, for several scans of one moment. Hold the latch from opening
    /// the collection until here.
    pub fn snapshot_of(&mut self, collection: &Collection) -> Snapshot {
        self.slice_snapshot(collection.elements)
    }

    /// [`Ctx::snapshot_of`] for all collections whose elements are on the same drive.
    pub fn drive_snapshot_of(&mut self, collection: &Collection) -> Snapshot {
        self.server.node.store(collection.elements.drive).snapshot()
    }

    fn slice_snapshot(&mut self, place: Place) -> Snapshot {
        self.server.node.store(place.drive).snapshot_of(place.slice)
    }

    /// [`Ctx::scan_elements`] as of `snapshot`.
    #[allow(clippy::too_many_arguments)] // the snapshot, and what a scan is
    pub fn scan_elements_at(
        &mut self,
        snapshot: &Snapshot,
        collection: &Collection,
        sub: u8,
        lower: Bound<&[u8]>,
        upper: Bound<&[u8]>,
        direction: Direction,
        want: Want,
    ) -> ElementScan {
        let whole = |field: &[u8]| element_key(collection.key.space(), collection.id, sub, field);
        let (from, to) = (lower.map(whole), upper.map(whole));
        let prefix = whole(&[]);
        let end = after_prefix(&prefix);
        let lower = match &from {
            Bound::Unbounded => Bound::Included(&prefix[..]),
            bound => bound.as_ref().map(|key| &key[..]),
        };
        let upper = match (&to, &end) {
            (Bound::Unbounded, Some(end)) => Bound::Excluded(&end[..]),
            (bound, _) => bound.as_ref().map(|key| &key[..]),
        };
        let place = collection.elements;
        let over = Over::Slice(place, snapshot.clone());
        ElementScan { merged: Merged::new(self, over, lower, upper, direction, want), place }
    }

    /// All keys under `prefix` at `place`, without values.
    pub(crate) fn scan_prefix(&mut self, place: Place, prefix: &[u8]) -> ElementScan {
        self.scan_prefix_of(place, prefix, Want::Keys)
    }

    /// All keys under `prefix` at `place`.
    pub(crate) fn scan_prefix_of(&mut self, place: Place, prefix: &[u8], want: Want) -> ElementScan {
        let end = after_prefix(prefix);
        let upper = end.as_ref().map_or(Bound::Unbounded, |end| Bound::Excluded(&end[..]));
        let snapshot = self.slice_snapshot(place);
        let lower = Bound::Included(prefix);
        let over = Over::Slice(place, snapshot);
        let merged = Merged::new(self, over, lower, upper, Direction::Forward, want);
        ElementScan { merged, place }
    }

    /// The live keys of `space` whose user keys lie within bounds.
    pub fn scan_keys(
        &mut self,
        space: Space,
        lower: Bound<&[u8]>,
        upper: Bound<&[u8]>,
        direction: Direction,
        want: Want,
    ) -> KeyScan {
        let prefix = head_prefix(space);
        let whole = |key: &[u8]| [&prefix[..], key].concat();
        let end = after_prefix(&prefix);
        let lower = match lower {
            Bound::Unbounded => Bound::Included(prefix.to_vec()),
            bound => bound.map(whole),
        };
        let upper = match (upper, &end) {
            (Bound::Unbounded, Some(end)) => Bound::Excluded(end.to_vec()),
            (bound, _) => bound.map(whole),
        };
        let (lower, upper) = (lower.as_ref().map(|k| &k[..]), upper.as_ref().map(|k| &k[..]));
        let snapshot = self.server.node.snapshot();
        let merged = Merged::new(self, Over::All(snapshot), lower, upper, direction, want);
        KeyScan { merged, now_ms: self.now_ms }
    }
}
