//! Records that moved because their program failed.
//!
//! The heap tells of it under its commit lock, where no slice lock may be taken; so the new places are kept in a
//! map of their own, asked by whoever is about to use a pointer that memtables may hold. Programs rarely fail:
//! while none has, asking costs one relaxed load.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use pumice_base::sync::lock;
use pumice_segment::RecordPtr;

use crate::store::Inner;

impl Inner {
    /// Asks the heap to tell of relocations.
    pub fn follow_relocations(self: &Arc<Self>) {
        let inner = Arc::downgrade(self);
        self.heap.on_relocated(Arc::new(move |moves: &[(RecordPtr, RecordPtr)]| {
            if let Some(inner) = inner.upgrade() {
                lock(&inner.relocated).extend(moves.iter().map(|(old, new)| (old.addr, *new)));
                inner.any_relocated.store(true, Ordering::Release);
            }
        }));
    }

    /// Where a record is now that was appended at `ptr`.
    pub fn place_of(&self, ptr: RecordPtr) -> RecordPtr {
        if !self.any_relocated.load(Ordering::Acquire) {
            return ptr;
        }
        let relocated = lock(&self.relocated);
        let mut ptr = ptr;
        while let Some(next) = relocated.get(&ptr.addr) {
            ptr = *next;
        }
        ptr
    }
}
