//! Bytes as they came from a stream.

use crate::uring::BufRing;
use std::fmt;
use std::ops::Deref;
use std::rc::Rc;

/// Bytes received from a stream. Belongs to its core. Drop it soon: it may hold one of the buffers that all
/// connections of the core share.
pub struct RecvBuf {
    memory: Memory,
    start: usize,
}

enum Memory {
    Owned(Vec<u8>),
    Shared { ring: Rc<BufRing>, id: u16, len: usize },
}

impl RecvBuf {
    /// Wraps received bytes.
    pub fn from_vec(data: Vec<u8>) -> Self {
        Self { memory: Memory::Owned(data), start: 0 }
    }

    /// The first `len` bytes of a shared buffer that the kernel has filled; given back on drop.
    pub(crate) fn shared(ring: Rc<BufRing>, id: u16, len: usize) -> Self {
        Self { memory: Memory::Shared { ring, id, len }, start: 0 }
    }

    /// Forgets the first `count` bytes that are left. Panics if there are fewer.
    pub fn advance(&mut self, count: usize) {
        assert!(count <= self.len(), "{count} of {} received bytes", self.len());
        self.start += count;
    }
}

impl Drop for RecvBuf {
    fn drop(&mut self) {
        if let Memory::Shared { ring, id, .. } = &self.memory {
            ring.give_back(*id);
        }
    }
}

impl Deref for RecvBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match &self.memory {
            Memory::Owned(data) => &data[self.start..],
            Memory::Shared { ring, id, len } => &ring.bytes(*id, *len)[self.start..],
        }
    }
}

impl AsRef<[u8]> for RecvBuf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for RecvBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RecvBuf({} bytes)", self.len())
    }
}
