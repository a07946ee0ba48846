//! Records that moved because their program failed.
//!
//! The heap tells of it under its commit lock, where no slice lock may be taken; so the new places are kept in a
//! map of their own, asked by whoever is about to use a pointer that memtables may hold. Programs rarely fail:
//! while none has, asking costs one relaxed load.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use pumice_base::hash::HashMap;
use pumice_base::sync::lock;
use pumice_segment::{Addr, RecordPtr};

use crate::store::Inner;

/// Where such records are now.
#[derive(Default)]
pub(crate) struct Relocated {
    /// Leaf lock; by their old addresses.
    pub places: Mutex<HashMap<Addr, RecordPtr>>,
    pub is_any: AtomicBool,
}

impl Inner {
    /// Asks the heap to tell of relocations.
    pub fn follow_relocations(self: &Arc<Self>) {
        let inner = Arc::downgrade(self);
        self.heap.on_relocated(Arc::new(move |moves: &[(RecordPtr, RecordPtr)]| {
            if let Some(inner) = inner.upgrade() {
                lock(&inner.relocated.places).extend(moves.iter().map(|(old, new)| (old.addr, *new)));
                inner.relocated.is_any.store(true, Ordering::Release);
            }
        }));
    }

    /// Where a record is now that was appended at `ptr`.
    pub fn place_of(&self, ptr: RecordPtr) -> RecordPtr {
        if !self.relocated.is_any.load(Ordering::Acquire) {
            return ptr;
        }
        let relocated = lock(&self.relocated.places);
        let mut ptr = ptr;
        while let Some(next) = relocated.get(&ptr.addr) {
            ptr = *next;
        }
        ptr
    }
}
