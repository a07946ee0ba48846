//! Counting anew what is alive of a stream: the client goes over all that it names, while others write and tell what dies.
//!
//! Only sealed segments are counted, so that nothing comes to lie in them meanwhile. What is told dead from the beginning of the
//! count on is taken off what the client counts, which must look at what it names after that: then what dies in between is at
//! worst taken off twice, and nothing that is dead counts as alive for ever.

use super::{Entry, Table};
use crate::layout::meta::SegmentState;
use crate::{SegmentId, Stream};

/// What a segment was thought to hold when the count began.
#[derive(Clone, Copy, Debug)]
pub struct Recounted {
    /// Which one.
    pub segment: SegmentId,
    life: u64,
    live: i64,
}

fn is_counted(entry: &Entry) -> bool {
    entry.state == SegmentState::Sealed && !entry.releasing && entry.unreadable_above.is_none()
}

impl Table {
    pub(crate) fn begin_recount(&self, stream: Stream) -> Vec<Recounted> {
        let counted = self.entries().filter(|(_, entry)| entry.stream == stream as u8 && is_counted(entry));
        counted.map(|(segment, entry)| Recounted { segment, life: entry.life, live: entry.live }).collect()
    }

    /// The client names `named` bytes of the segment.
    pub(crate) fn end_recount(&mut self, counted: &Recounted, named: u64) {
        let id = counted.segment.0;
        let mut entry = self.entries.edit(id);
        if entry.life != counted.life || !is_counted(&entry) {
            return;
        }
        let told_dead = counted.live - entry.live;
        let live = named as i64 - told_dead;
        let won = entry.live - live;
        entry.live = live;
        if won != 0 {
            self.dirty.insert(id);
        }
        // As if it had died now: cleaning may be worth while again.
        self.futile_for_bytes = self.futile_for_bytes.saturating_sub(won.max(0) as u64);
    }
}
