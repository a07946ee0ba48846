//! What a reply that scans depends on.
//!
//! A scan tells of each key between its bounds, of those that are there and of those that are not. So its reply waits for
//! everything that was written before it: one commit. Where there is no room below a drive that may take for ever, and the reply
//! would be UNCERTAIN for the sake of one write somewhere. There the scan looks, from each key to the next, which writes it really
//! tells of. (That goes over the same keys of the memtables twice, which is why it is not always done.)

use std::ops::Bound;

use bytes::Bytes;
use pumice_kv::{Direction, SliceSet};

use super::merged::Over;
use crate::context::Ctx;

/// What a scan goes over, as far as the reply does not depend on it yet.
pub(super) struct Untold {
    over: Over,
    lower: Bound<Bytes>,
    upper: Bound<Bytes>,
    direction: Direction,
}

impl Untold {
    /// Makes the reply depend on all that a scan may tell of; or answers what it will have to depend on.
    pub(super) fn of(
        ctx: &mut Ctx,
        over: &Over,
        lower: Bound<&[u8]>,
        upper: Bound<&[u8]>,
        direction: Direction,
    ) -> Option<Self> {
        ctx.depend_on_spaces();
        let node = &ctx.server.node;
        let is_stalled = match over {
            Over::Slice(place, _) => node.is_drive_stalled(place.drive),
            Over::All(_) => node.is_stalled(),
        };
        if is_stalled {
            let owned = |bound: Bound<&[u8]>| bound.map(Bytes::copy_from_slice);
            return Some(Self { over: over.clone(), lower: owned(lower), upper: owned(upper), direction });
        }
        match over {
            Over::Slice(place, snapshot) => node.depend(&mut ctx.gate, place.drive, snapshot.seq()),
            Over::All(snapshot) => {
                for drive in 0..node.drive_count() {
                    node.depend(&mut ctx.gate, drive, snapshot.drive(drive).seq());
                }
            }
        }
        None
    }

    /// The scan has come to `key`.
    pub(super) fn tell_to(&mut self, ctx: &mut Ctx, key: &Bytes) {
        let (here, behind) = (Bound::Included(key.clone()), Bound::Excluded(key.clone()));
        match self.direction {
            Direction::Forward => {
                let upper = std::mem::replace(&mut self.upper, here);
                self.tell(ctx);
                (self.lower, self.upper) = (behind, upper);
            }
            Direction::Backward => {
                let lower = std::mem::replace(&mut self.lower, here);
                self.tell(ctx);
                (self.lower, self.upper) = (lower, behind);
            }
        }
    }

    /// The scan tells of all that is left.
    pub(super) fn tell(&self, ctx: &mut Ctx) {
        let node = &ctx.server.node;
        let (lower, upper) =
            (self.lower.as_ref().map(|key| &key[..]), self.upper.as_ref().map(|key| &key[..]));
        match &self.over {
            Over::Slice(place, snapshot) => {
                let seq = snapshot.newest_between(SliceSet::One(place.slice), lower, upper);
                node.depend(&mut ctx.gate, place.drive, seq);
            }
            Over::All(snapshot) => {
                for drive in 0..node.drive_count() {
                    let seq = snapshot.drive(drive).newest_between(SliceSet::All, lower, upper);
                    node.depend(&mut ctx.gate, drive, seq);
                }
            }
        }
    }
}
