//! Buffers: aligned ones for files, received ones from sockets.

use bytes::Bytes;
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// Alignment of every [`IoBuf`]: a memory page, so that any device takes it for direct I/O.
pub const ALIGNMENT_BYTES: usize = 4096;

/// An owned, mutable buffer, aligned for direct I/O. Its memory is always initialised; what it holds after
/// [`for_read`](Self::for_read) is unspecified.
pub struct IoBuf {
    data: NonNull<u8>,
    len: usize,
    capacity: usize,
}

// SAFETY: an IoBuf owns its memory alone, like a Vec<u8>.
unsafe impl Send for IoBuf {}
// SAFETY: a shared IoBuf only gives out shared slices.
unsafe impl Sync for IoBuf {}

impl IoBuf {
    /// An empty buffer that can take at least `capacity` bytes.
    pub fn with_capacity(capacity: usize) -> Self {
        let capacity = capacity.max(1).next_multiple_of(ALIGNMENT_BYTES);
        let layout = Self::layout(capacity);
        // SAFETY: the layout's size is not zero.
        let data = unsafe { alloc_zeroed(layout) };
        let Some(data) = NonNull::new(data) else { handle_alloc_error(layout) };
        Self { data, len: 0, capacity }
    }

    fn layout(capacity: usize) -> Layout {
        match Layout::from_size_align(capacity, ALIGNMENT_BYTES) {
            Ok(layout) => layout,
            Err(error) => panic!("a buffer of {capacity} bytes: {error}"),
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
        self.capacity
    }

    /// Changes the length; bytes beyond the old length become zeros. Panics beyond the capacity.
    pub fn resize(&mut self, len: usize) {
        assert!(len <= self.capacity, "{len} bytes in a buffer of {}", self.capacity);
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

    /// Empties it.
    pub fn clear(&mut self) {
        self.len = 0;
    }

    /// Appends a copy of `bytes`. Panics beyond the capacity.
    pub fn extend_from_slice(&mut self, bytes: &[u8]) {
        let (old, new) = (self.len, self.len + bytes.len());
        assert!(new <= self.capacity, "{new} bytes in a buffer of {}", self.capacity);
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
        // SAFETY: allocated in `with_capacity` with the same layout.
        unsafe { dealloc(self.data.as_ptr(), Self::layout(self.capacity)) }
    }
}

impl Deref for IoBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: `data` owns `capacity >= len` initialised bytes.
        unsafe { std::slice::from_raw_parts(self.data.as_ptr(), self.len) }
    }
}

impl DerefMut for IoBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `self` is borrowed alone.
        unsafe { std::slice::from_raw_parts_mut(self.data.as_ptr(), self.len) }
    }
}

impl AsRef<[u8]> for IoBuf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for IoBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IoBuf({} of {} bytes)", self.len, self.capacity)
    }
}

/// Bytes received from a stream. Belongs to its core; give it back soon (drop it): the driver has only so many.
pub struct RecvBuf {
    data: Vec<u8>,
}

impl RecvBuf {
    /// Wraps received bytes.
    pub fn from_vec(data: Vec<u8>) -> Self {
        Self { data }
    }
}

impl Deref for RecvBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.data
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
