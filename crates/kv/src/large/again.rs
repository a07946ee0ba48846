//! A large value that is stored again under its key as it is, with another expiry: its list of pieces was read, and is put.
//!
//! 1. Between the two cleaning may have moved pieces, and written the list anew; caches and latches above know nothing of
//!    that. The old list would win, by its newer number, and name places that are reused. So such a batch is taken only if,
//!    under the slices' locks, the lists that it holds are still those of their keys.
//! 2. Where one is not, whoever writes waiting reads it again, puts it into the batch, and tries again.
//! 3. A value that its key no longer has cannot be stored again: others write where its pieces were.
//!
//! (Rejected: to keep cleaning off such values. They are stored again by who waits for what cleaning wins.)

use std::sync::Arc;

use crate::batch::Batch;
use crate::errors::WriteError;
use crate::large::{BeingWritten, LargeRef};
use crate::slice::Slice;
use crate::store::Inner;
use crate::types::{Seq, SliceId};

/// Where a list of pieces comes from.
#[derive(Clone, Debug)]
pub(crate) enum Origin {
    /// A writer: until it is put nobody names the pieces.
    Written(Arc<BeingWritten>),
    /// The version `seq` of its key, read when the slice was in this epoch; `None`: some time ago.
    Read { seq: Seq, epoch: Option<u64> },
}

/// The list of a large value in a batch.
#[derive(Clone, Debug)]
pub(crate) struct List {
    /// Its record's number in the batch.
    pub op: usize,
    /// The value's number.
    pub id: u64,
    pub origin: Origin,
}

impl List {
    /// Whether it is what its key has, if it was read.
    fn is_current(&self, key: &[u8], slice: &Slice) -> bool {
        let Origin::Read { seq, epoch } = self.origin else { return true };
        slice.is_newest(epoch, key, Some(seq))
    }
}

impl Batch {
    /// Whether the lists that were read are still those of their keys. `slice` finds one that is locked.
    pub(crate) fn lists_are_current<'a>(&self, slice: &impl Fn(SliceId) -> &'a Slice) -> bool {
        self.lists.iter().all(|list| {
            let op = &self.ops[list.op];
            list.is_current(op.key(&self.buf), slice(op.slice))
        })
    }

    /// Called when it is visible: entries name the pieces.
    pub(crate) fn lists_are_named(&self) {
        for list in &self.lists {
            if let Origin::Written(being_written) = &list.origin {
                being_written.named();
            }
        }
    }
}

impl Inner {
    /// Brings a batch's lists up to date, if some are not what they were when they were read.
    pub async fn renew_lists(&self, batch: &Batch, renewed: &mut Option<Batch>) -> Result<(), WriteError> {
        for (at, list) in batch.lists.iter().enumerate() {
            let op = &batch.ops[list.op];
            let key = op.key(&batch.buf);
            if list.is_current(key, &self.slice(op.slice)) {
                continue;
            }
            let now = self.list_now(op.slice, key).await?.filter(|now| now.id == list.id);
            let mut bytes = Vec::new();
            now.iter().for_each(|now| now.encode(&mut bytes));
            let Some(origin) = now.and_then(|now| now.origin) else {
                return Err(WriteError::Gone(self.show_key(key)));
            };
            let renewed = renewed.get_or_insert_with(|| batch.clone());
            // Moving pieces changes where they lie, not how many there are.
            renewed.buf[op.key_end as usize..op.end as usize].copy_from_slice(&bytes);
            renewed.lists[at].origin = origin;
        }
        Ok(())
    }

    /// The list of the pieces of the large value that the key has now.
    async fn list_now(&self, slice: SliceId, key: &[u8]) -> Result<Option<LargeRef>, WriteError> {
        let mut last_stale = None;
        loop {
            // Before the look-up: what is sealed after that may hold a newer one.
            let epoch = self.slice(slice).epoch;
            let read = match self.find(slice, key).await {
                Ok(Some(found)) if found.large => {
                    let read = self.value_of(slice, key, &found).await;
                    if read.as_ref().is_err_and(|error| error.may_be_stale()) && last_stale != Some(found.seq)
                    {
                        last_stale = Some(found.seq);
                        continue;
                    }
                    read
                }
                Ok(_) => return Ok(None),
                Err(error) => Err(error),
            };
            let entry = read.map_err(|error| WriteError::Unreadable(Box::new(error)))?;
            return Ok(entry.large.map(|list| {
                let origin = Some(Origin::Read { seq: entry.seq, epoch: Some(epoch) });
                LargeRef { origin, ..LargeRef::clone(&list) }
            }));
        }
    }
}
