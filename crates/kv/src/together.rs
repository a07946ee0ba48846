//! Batches on several stores that are written together: all of them, or none.
//!
//! 1. The locks of all slices are taken, store by store: whoever reads finds none of the batches or all.
//! 2. Each heap admits its batch and takes nothing else meanwhile. What can be refused is refused here, before anything is
//!    written anywhere.
//! 3. All are appended and made visible.
//!
//! Stores are named in one order by everybody, and nobody else holds a lock of one while it waits for another's.
//!
//! Durable each becomes by itself: a crash may leave some and not others.
//!
//! Rejected: asking each store first and then writing to one after the other. Others write in between, and what was written
//! cannot be taken back.

use std::sync::MutexGuard;

use pumice_segment::{Admitted, Place, Turn};
use smallvec::SmallVec;

use crate::batch::Batch;
use crate::errors::WriteError;
use crate::slice::Slice;
use crate::store::{Inner, Store, write_error};
use crate::types::{Seq, SliceId};

/// Writes batches that are not empty, each on a store of its own: visible at once, all of them. Answers their numbers as
/// [`Store::write`] does. Never waits.
///
/// # Errors
/// That of the first store that refuses, and its index; nothing was written then.
pub fn write_together(parts: &[(&Store, &Batch)]) -> Result<SmallVec<[Seq; 2]>, (usize, WriteError)> {
    for (at, (store, batch)) in parts.iter().enumerate() {
        store.inner.check(batch, batch.class()).map_err(|refused| (at, refused))?;
    }
    let ids: SmallVec<[_; 2]> = parts.iter().map(|(_, batch)| batch.slices()).collect();
    let mut guards: SmallVec<[SmallVec<[MutexGuard<'_, Slice>; 4]>; 2]> = SmallVec::new();
    for ((store, _), ids) in parts.iter().zip(&ids) {
        guards.push(ids.iter().map(|&id| store.inner.slice(SliceId(id))).collect());
    }
    for (at, (store, batch)) in parts.iter().enumerate() {
        let locked = |slice: SliceId| {
            let place = ids[at].binary_search(&slice.0).expect("the batch's slices are locked");
            &*guards[at][place]
        };
        if !store.inner.is_current(batch, locked) {
            return Err((at, WriteError::Busy));
        }
    }
    let payloads: SmallVec<[_; 2]> = parts.iter().map(|(_, batch)| batch.payloads()).collect();
    let records: SmallVec<[_; 2]> = parts
        .iter()
        .zip(&payloads)
        .map(|((store, batch), payloads)| batch.records(payloads, store.inner.inline_max))
        .collect();
    let mut admitted: SmallVec<[Admitted<'_>; 2]> = SmallVec::new();
    for (at, ((store, batch), records)) in parts.iter().zip(&records).enumerate() {
        let room =
            store.inner.append_as(batch, |class| store.inner.heap.admit(records, class).map_err(write_error));
        admitted.push(room.map_err(|refused| (at, refused))?);
    }
    let appended: SmallVec<[_; 2]> =
        admitted.into_iter().zip(&records).map(|(room, records)| room.append(records)).collect();
    let mut numbers = SmallVec::new();
    for (at, (store, batch)) in parts.iter().enumerate() {
        let place = |slice: SliceId| ids[at].binary_search(&slice.0).expect("the batch's slices are locked");
        numbers.push(store.inner.show(batch, &appended[at], place, &mut guards[at]));
    }
    drop(guards);
    parts.iter().for_each(|(store, _)| store.inner.written());
    Ok(numbers)
}

/// A place among those who wait for room on a store, for one batch; given up on drop.
pub struct InLine<'b> {
    store: Store,
    batch: &'b Batch,
    place: Option<Place>,
}

impl InLine<'_> {
    /// Waits until another try may be worth it. To be awaited again after one that was refused as [`WriteError::Busy`].
    pub async fn called(&mut self) {
        self.store.inner.called(self.batch, &mut self.place).await;
    }
}

impl Store {
    /// Whether a batch would have to wait though there may be room for it: for those who wait already, or for merges.
    pub fn is_behind_others(&self, batch: &Batch, turn: &Turn) -> bool {
        self.inner.wants_merges(batch) || (self.users_wait() && !turn.goes_on() && !batch.only_frees())
    }

    /// A batch that was refused as [`WriteError::Busy`] with what it puts again as the keys now have it, if cleaning moved some of it
    /// since it was read.
    ///
    /// # Errors
    /// [`WriteError::Gone`] and [`WriteError::Unreadable`]: it can never be written.
    pub async fn renewed(&self, batch: &Batch) -> Result<Option<Batch>, WriteError> {
        self.inner.renewed(batch).await
    }

    /// Lines up for room for a batch, which is the next of the caller's turn. What only makes space does not queue.
    pub fn line_up<'b>(&self, batch: &'b Batch, turn: &mut Turn) -> InLine<'b> {
        InLine { store: self.clone(), batch, place: self.inner.line_up(batch, turn) }
    }
}

impl Inner {
    /// A place among those who wait for room. What only makes space does not queue.
    pub fn line_up(&self, batch: &Batch, turn: &mut Turn) -> Option<Place> {
        (!batch.only_frees()).then(|| self.heap.queue(batch.bytes() as u64, turn))
    }

    /// Waits until another try may be worth it.
    pub async fn called(&self, batch: &Batch, line: &mut Option<Place>) {
        self.until_flushed().await;
        self.until_merged(batch).await;
        self.end_long_reads();
        if batch.rewrites && self.heap.refuses_users() {
            // It waits for what is not the users', who are refused.
            *line = None;
        }
        match line {
            Some(place) => place.called().await,
            None => self.heap.room().await,
        }
    }
}
