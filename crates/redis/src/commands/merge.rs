//! Several collections read as one, member by member: what unions, intersections and differences are made of.
//!
//! Sets and sorted sets keep their members in the same order (by hash, then name), so a merge of their scans
//! meets each member once, together with everything that the collections say of it, in memory that does not
//! depend on their sizes.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Bound;

use bytes::Bytes;
use pumice_kv::{Direction, Snapshot, Want};
use smallvec::SmallVec;

use super::collection::MEMBERS;
use crate::context::Ctx;
use crate::errors::{self, Failure};
use crate::keyspace::{Collection, ElementScan, Head, Type};

/// A member, and what each collection that has it keeps with it (score bytes, or nothing), by the collections'
/// numbers, ascending.
pub(super) struct Joined {
    /// Field of sub [`MEMBERS`].
    pub field: Bytes,
    /// Number of the collection, stored value.
    pub found: SmallVec<[(usize, Bytes); 4]>,
}

/// Collections as of one moment, to be read as often as needed.
pub(super) struct Moment {
    collections: Vec<Option<Collection>>,
    /// Of each drive that holds some of their elements.
    snapshots: SmallVec<[(u16, Snapshot); 1]>,
}

impl Moment {
    /// `collections` as they are now. Hold their latches until here.
    pub(super) fn new(ctx: &mut Ctx, collections: Vec<Option<Collection>>) -> Self {
        let mut snapshots: SmallVec<[(u16, Snapshot); 1]> = SmallVec::new();
        for collection in collections.iter().flatten() {
            let drive = collection.elements.drive;
            if snapshots.iter().all(|(known, _)| *known != drive) {
                snapshots.push((drive, ctx.drive_snapshot_of(collection)));
            }
        }
        Self { collections, snapshots }
    }

    /// How many collections, absent ones included.
    pub(super) fn len(&self) -> usize {
        self.collections.len()
    }
}

/// A merge of collections; those that are absent count as empty.
pub(super) struct Merge {
    scans: Vec<Option<ElementScan>>,
    next: BinaryHeap<Reverse<(Bytes, usize, Bytes)>>,
    /// Those whose next member is not among these.
    hungry: SmallVec<[usize; 8]>,
}

/// The collections at `keys` (`None`: absent), each of one of `kinds`. WRONGTYPE for others. Hold the latches.
pub(super) async fn open(
    ctx: &mut Ctx,
    keys: &[&[u8]],
    kinds: &[Type],
) -> Result<Vec<Option<Collection>>, Failure> {
    let mut opened = Vec::with_capacity(keys.len());
    for key in keys {
        let key = ctx.key(key);
        let head = ctx.head(&key).await?;
        // Also for what stores the result: the inputs are read.
        ctx.count_look_up(head.is_some());
        opened.push(match head {
            None => None,
            Some(Head::Collection(collection)) if kinds.contains(&collection.kind) => Some(collection),
            Some(_) => return Err(errors::WRONG_TYPE.into()),
        });
    }
    Ok(opened)
}

impl Merge {
    /// Starts to read; values only of sorted sets, and only if asked.
    pub(super) fn new(ctx: &mut Ctx, moment: &Moment, want: Want) -> Self {
        let mut scans = Vec::with_capacity(moment.len());
        for collection in &moment.collections {
            let Some(collection) = collection else {
                scans.push(None);
                continue;
            };
            let drive = collection.elements.drive;
            let (_, snapshot) = moment
                .snapshots
                .iter()
                .find(|(known, _)| *known == drive)
                .expect("a moment has a snapshot of each drive it touches");
            let want = if collection.kind == Type::Set { Want::Keys } else { want };
            let (all, order) = (Bound::Unbounded, Direction::Forward);
            scans.push(Some(ctx.scan_elements_at(snapshot, collection, MEMBERS, all, all, order, want)));
        }
        let hungry = (0..scans.len()).collect();
        Self { scans, next: BinaryHeap::new(), hungry }
    }

    /// The next member of any.
    pub(super) async fn next(&mut self, ctx: &mut Ctx) -> Result<Option<Joined>, Failure> {
        if let Some(joined) = self.next_at_hand() {
            return Ok(Some(joined));
        }
        // Boxed: this is called for each member, and few have to be waited for.
        Box::pin(self.wait_for_next(ctx)).await
    }

    async fn wait_for_next(&mut self, ctx: &mut Ctx) -> Result<Option<Joined>, Failure> {
        while let Some(&i) = self.hungry.last() {
            let next = match &mut self.scans[i] {
                Some(scan) => scan.next(ctx).await?,
                None => None,
            };
            self.hungry.pop();
            self.next.extend(next.map(|(field, value)| Reverse((field, i, value))));
        }
        Ok(self.take())
    }

    /// [`Merge::next`] where there is nothing to wait for.
    fn next_at_hand(&mut self) -> Option<Joined> {
        while let Some(&i) = self.hungry.last() {
            let (field, value) = self.scans[i].as_mut()?.next_at_hand()?;
            self.hungry.pop();
            self.next.push(Reverse((field, i, value)));
        }
        self.take()
    }

    /// The first member of those that came.
    fn take(&mut self) -> Option<Joined> {
        let Reverse((field, first, value)) = self.next.pop()?;
        let mut found = SmallVec::new();
        found.push((first, value));
        self.hungry.push(first);
        while self.next.peek().is_some_and(|Reverse((other, ..))| *other == field) {
            let Some(Reverse((_, i, value))) = self.next.pop() else { break };
            found.push((i, value));
            self.hungry.push(i);
        }
        Some(Joined { field, found })
    }
}
