//! The receive buffers that all connections of a core share: the kernel takes one when bytes have come, so idle
//! connections hold none.
//!
//! Rejected: letting the kernel fill one buffer bit by bit (IOU_PBUF_RING_INC). Its completions do not say where in the
//! buffer their bytes are; one completion out of order would hand a client's bytes to another.

use crate::sys::memory::Mapping;
use io_uring::IoUring;
use io_uring::types::BufRingEntry;
use std::cell::Cell;
use std::io;
use std::sync::atomic::{AtomicU16, Ordering};

/// Buffers of one size, in memory of their own, and the ring through which they are given to the kernel.
pub(crate) struct BufRing {
    entries: Mapping,
    memory: Mapping,
    count: u16,
    size: usize,
    tail: Cell<u16>,
    /// Where each buffer is.
    places: Box<[Cell<Place>]>,
    /// How many the kernel has filled and nobody has given back.
    taken: Cell<u16>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// With the kernel.
    Free,
    /// With who received into it.
    Taken,
    /// The same, since before the last [`BufRing::count_held`].
    Held,
}

impl BufRing {
    /// Registers `count` (rounded up to a power of two) buffers of `size` bytes as `group`.
    pub(super) fn new(ring: &IoUring, group: u16, count: u16, size: usize) -> io::Result<Self> {
        const COUNT_MAX: u16 = 1 << 14;
        let count = count.clamp(1, COUNT_MAX).next_power_of_two();
        let entries = Mapping::new(usize::from(count) * size_of::<BufRingEntry>())?;
        let memory = Mapping::new(usize::from(count) * size)?;
        let places = (0..count).map(|_| Cell::new(Place::Free)).collect();
        let buffers = Self { entries, memory, count, size, tail: Cell::new(0), places, taken: Cell::new(0) };
        for id in 0..count {
            buffers.add(id);
        }
        // SAFETY: the mapping is page-aligned, large enough, and outlives the ring or is unregistered: the driver keeps it,
        // and leaks it rather than drop it while the kernel may use it.
        unsafe {
            ring.submitter().register_buf_ring_with_flags(buffers.entries.address() as u64, count, group, 0)
        }?;
        Ok(buffers)
    }

    /// Takes the buffers back from the kernel, which has filled none of them.
    pub(super) fn unregister(self, ring: &IoUring, group: u16) {
        if ring.submitter().unregister_buf_ring(group).is_err() {
            // The kernel may still know of them.
            std::mem::forget(self);
        }
    }

    /// Gives a buffer to the kernel.
    fn add(&self, id: u16) {
        let tail = self.tail.get();
        let base = self.entries.address().cast::<BufRingEntry>();
        // SAFETY: the index is masked to the ring, whose entries only this thread writes, and the kernel reads this
        // one only once the tail has passed it.
        let entry = unsafe { &mut *base.add(usize::from(tail & (self.count - 1))) };
        entry.set_addr(self.address(id) as u64);
        entry.set_len(self.size as u32);
        entry.set_bid(id);
        self.tail.set(tail.wrapping_add(1));
        // SAFETY: the tail lies inside the first entry, aligned, and is shared with the kernel only.
        let shared = unsafe { AtomicU16::from_ptr(BufRingEntry::tail(base).cast_mut()) };
        shared.store(self.tail.get(), Ordering::Release);
    }

    fn address(&self, id: u16) -> *mut u8 {
        assert!(id < self.count, "receive buffer {id} of {}", self.count);
        // SAFETY: inside the mapping, as just checked.
        unsafe { self.memory.address().add(usize::from(id) * self.size) }
    }

    /// The first `len` bytes of a buffer that the kernel has filled and nobody has given back.
    pub(crate) fn bytes(&self, id: u16, len: usize) -> &[u8] {
        assert!(len <= self.size, "{len} bytes in a receive buffer of {}", self.size);
        // SAFETY: in bounds; the kernel does not touch the buffer until it is given back, which `RecvBuf` does only
        // when it is dropped.
        unsafe { std::slice::from_raw_parts(self.address(id), len) }
    }

    /// Notes that the kernel has filled a buffer.
    pub(super) fn take(&self, id: u16) {
        let before = self.place(id).replace(Place::Taken);
        assert!(before == Place::Free, "receive buffer {id} was filled before it was given back");
        self.taken.set(self.taken.get() + 1);
    }

    /// Gives a buffer back.
    pub(crate) fn give_back(&self, id: u16) {
        let before = self.place(id).replace(Place::Free);
        assert!(before != Place::Free, "receive buffer {id} was given back twice");
        self.taken.set(self.taken.get() - 1);
        self.add(id);
    }

    /// How many nobody holds, as far as is known here: the kernel may have filled some of them.
    pub(super) fn free(&self) -> u16 {
        self.count - self.taken.get()
    }

    /// How many have not been given back since the last call.
    pub(super) fn count_held(&self) -> usize {
        let taken = self.places.iter().filter(|place| place.get() != Place::Free);
        taken.filter(|place| place.replace(Place::Held) == Place::Held).count()
    }

    pub(super) fn count(&self) -> usize {
        self.places.len()
    }

    fn place(&self, id: u16) -> &Cell<Place> {
        assert!(id < self.count, "receive buffer {id} of {}", self.count);
        &self.places[usize::from(id)]
    }
}
