//! Memory that all scans of a store together may use to read ahead.
//!
//! A scan alone reads up to 2 MiB of blocks ahead and 4 MiB of values, which a hundred at once may not where memory is short. Of blocks
//! whoever reads ahead first has the room; of values each takes half of what the others leave, so that those who read far ahead come to
//! the same. Who finds none left reads what it needs next, a block of a run or a value at a time. That it takes, too, so that what is used
//! is the room and a unit for each scan at most. (Rejected: the same share for each of the scans there are. Most are short and read
//! nothing ahead.)

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

/// What blocks have of it and what values have: neither leaves the other without.
#[derive(Debug)]
pub struct ScanRooms {
    pub blocks: Arc<ScanRoom>,
    pub values: Arc<ScanRoom>,
}

impl ScanRooms {
    /// Of so many bytes each.
    pub fn new(bytes: u64) -> Self {
        let room = || Arc::new(ScanRoom { left: AtomicI64::new(bytes as i64) });
        Self { blocks: room(), values: room() }
    }
}

/// See the head of this file.
#[derive(Debug)]
pub struct ScanRoom {
    /// Bytes; below zero where scans need more than there is.
    left: AtomicI64,
}

impl ScanRoom {
    /// Bytes that nobody uses.
    pub fn left(&self) -> u64 {
        self.left.load(Ordering::Relaxed).max(0) as u64
    }
}

/// What a scan uses of the room, until it is dropped.
pub struct Held {
    room: Arc<ScanRoom>,
    bytes: u64,
}

impl Held {
    /// So many bytes, whether there is room for them or not.
    pub fn take(room: &Arc<ScanRoom>, bytes: u64) -> Self {
        let mut held = Self { room: room.clone(), bytes: 0 };
        held.set(bytes);
        held
    }

    /// Bytes that may be used: half of what others leave. So many scans at once have as many parts of the room, and one is left for
    /// whoever comes next.
    pub fn share(&self) -> u64 {
        (self.bytes + self.room.left()) / 2
    }

    /// So many are used from now on.
    pub fn set(&mut self, bytes: u64) {
        if bytes != self.bytes {
            self.room.left.fetch_add(self.bytes as i64 - bytes as i64, Ordering::Relaxed);
            self.bytes = bytes;
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.set(0);
    }
}
