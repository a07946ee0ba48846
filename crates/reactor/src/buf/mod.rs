//! Buffers: aligned ones for files, received ones from sockets.

mod pool;
mod recv;
mod runs;

pub(crate) use pool::Pool;
pub use recv::RecvBuf;

use bytes::Bytes;
use pool::{Piece, free_heap_piece, heap_piece};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// Alignment of every [`IoBuf`]: a memory page, so that any device takes it for direct I/O.
pub const ALIGNMENT_BYTES: usize = 4096;

/// An owned, mutable buffer, aligned for direct I/O. Its memory is always initialised; what it holds after
/// [`for_read`](Self::for_read) is unspecified.
pub struct IoBuf {
    piece: Piece,
    len: usize,
    /// Where the memory goes back to; the heap if it was made outside a core.
    home: Option<Arc<Pool>>,
}

// SAFETY: an IoBuf owns its memory alone, like a Vec<u8>.
unsafe impl Send for IoBuf {}
// SAFETY: a shared IoBuf only gives out shared slices.
unsafe impl Sync for IoBuf {}

impl IoBuf {
    /// An empty buffer that can take at least `capacity` bytes.
    pub fn with_capacity(capacity: usize) -> Self {
        let bytes = capacity.max(1);
        match crate::executor::pool() {
            Some(pool) => Self { piece: pool.take(bytes), len: 0, home: Some(pool) },
            None => Self { piece: heap_piece(bytes.next_multiple_of(ALIGNMENT_BYTES)), len: 0, home: None },
        }
    }

    /// A buffer of `len` zeros.
    pub fn zeroed(len: usize) -> Self {
        let mut buf = Self::with_capacity(len);
        buf.resize(len);
        buf
    }

    /// A buffer of `len` bytes whose contents are about to be overwritten.
    pub fn for_read(len: usize) -> Self {
        let mut buf = Self::with_capacity(len);
        buf.len = len;
        buf
    }

    /// A copy of `bytes`.
    pub fn copy_of(bytes: &[u8]) -> Self {
        let mut buf = Self::with_capacity(bytes.len());
        buf.extend_from_slice(bytes);
        buf
    }

    /// Bytes in use.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no bytes are in use.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes that fit.
    pub fn capacity(&self) -> usize {
        self.piece.bytes
    }

    /// Changes the length; bytes beyond the old length become zeros. Panics beyond the capacity.
    pub fn resize(&mut self, len: usize) {
        assert!(len <= self.piece.bytes, "{len} bytes in a buffer of {}", self.piece.bytes);
        let old = self.len;
        self.len = len;
        if len > old {
            self[old..].fill(0);
        }
    }

    /// Same as [`resize`](Self::resize).
    pub fn set_len(&mut self, len: usize) {
        self.resize(len);
    }

    /// Shortens to `len`; nothing if it is shorter already.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Gives back the memory that is not in use, where it can be given back in part.
    pub fn shrink_to_fit(&mut self) {
        if let Some(pool) = &self.home {
            pool.shorten(&mut self.piece, self.len);
        }
    }

    /// Empties it.
    pub fn clear(&mut self) {
        self.len = 0;
    }

    /// Appends a copy of `bytes`. Panics beyond the capacity.
    pub fn extend_from_slice(&mut self, bytes: &[u8]) {
        let (old, new) = (self.len, self.len + bytes.len());
        assert!(new <= self.piece.bytes, "{new} bytes in a buffer of {}", self.piece.bytes);
        self.len = new;
        self[old..].copy_from_slice(bytes);
    }

    /// Shares it, unchanging from now on. Keeps the alignment; the memory goes back to its pool with the last share.
    pub fn freeze(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

impl Drop for IoBuf {
    fn drop(&mut self) {
        match &self.home {
            Some(pool) => pool.give_back(self.piece),
            None => free_heap_piece(self.piece),
        }
    }
}

impl Deref for IoBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: the piece owns at least `len` initialised bytes.
        unsafe { std::slice::from_raw_parts(self.piece.data.as_ptr(), self.len) }
    }
}

impl DerefMut for IoBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `self` is borrowed alone.
        unsafe { std::slice::from_raw_parts_mut(self.piece.data.as_ptr(), self.len) }
    }
}

impl AsRef<[u8]> for IoBuf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for IoBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IoBuf({} of {} bytes)", self.len, self.piece.bytes)
    }
}
