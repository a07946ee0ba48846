//! Room on a full drive for what makes nothing larger: a key's new expiry, a list's elements that move over.
//!
//! While there is room such a batch goes the way of all. Where users are refused it has a part of the reserve of its own. It
//! gives back what it takes: what its records replaced is dead, and they are themselves once their keys are in the key tables. So when its
//! part is used up, cleaning is tried again, which has memory flushed and tables merged as well; once until something is taken.

use std::sync::atomic::{AtomicU64, Ordering};

use pumice_segment::AppendClass;

use crate::batch::Batch;
use crate::errors::WriteError;
use crate::store::Inner;

/// See the head of this file.
#[derive(Debug)]
pub struct Rewrites {
    /// Batches that the reserve took.
    taken: AtomicU64,
    /// How many that were when cleaning was last tried again for them.
    cleaned_at: AtomicU64,
}

impl Default for Rewrites {
    fn default() -> Self {
        Self { taken: AtomicU64::new(0), cleaned_at: AtomicU64::new(u64::MAX) }
    }
}

impl Inner {
    /// Has a user's batch appended, by `append`, as what it is.
    pub fn append_as<T>(
        &self,
        batch: &Batch,
        append: impl Fn(AppendClass) -> Result<T, WriteError>,
    ) -> Result<T, WriteError> {
        let class = batch.class();
        let done = append(class);
        let is_refused = class == AppendClass::User && matches!(done, Err(WriteError::Full(_)));
        if !(is_refused && batch.rewrites) {
            return done;
        }
        let done = append(AppendClass::Rewrite);
        match done {
            Ok(_) => _ = self.rewrites.taken.fetch_add(1, Ordering::Relaxed),
            Err(WriteError::Full(_)) if self.cleans_for_rewrites() => return Err(WriteError::Busy),
            Err(_) => {}
        }
        done
    }

    /// Has cleaning tried again, if it was not since the last batch was taken.
    fn cleans_for_rewrites(&self) -> bool {
        let Rewrites { taken, cleaned_at } = &self.rewrites;
        let taken = taken.load(Ordering::Relaxed);
        let tries = self.heap.is_futile() && cleaned_at.swap(taken, Ordering::Relaxed) != taken;
        if tries {
            self.heap.cleaning_may_win();
            self.background.clean_wanted.notify_one();
        }
        tries
    }
}
