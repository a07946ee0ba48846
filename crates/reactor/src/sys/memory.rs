//! Anonymous memory from the kernel: page-aligned, zeroed, and not there until it is touched.

use std::io;
use std::ptr::NonNull;

/// What the kernel's huge pages hold (on x86-64, and on aarch64 with small pages of 4 KiB).
pub(crate) const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Bytes of the kernel's pages: 4, 16 or 64 KiB.
fn page_bytes() -> usize {
    // SAFETY: takes no memory.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(bytes).expect("pages have a size")
}

/// An anonymous mapping, unmapped on drop.
pub(crate) struct Mapping {
    address: NonNull<u8>,
    len: usize,
}

// SAFETY: a mapping is plain memory; whoever uses it sees to the rest.
unsafe impl Send for Mapping {}
// SAFETY: as above; only the address is given out.
unsafe impl Sync for Mapping {}

impl Mapping {
    pub(crate) fn new(len: usize) -> io::Result<Self> {
        // SAFETY: asks for new memory at an address of the kernel's choice.
        let address = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        match NonNull::new(address.cast()) {
            Some(address) => Ok(Self { address, len }),
            None => Err(io::ErrorKind::OutOfMemory.into()),
        }
    }

    /// A mapping of `len` bytes, or some more, that starts where a huge page can, with a hint that such pages are welcome.
    pub(crate) fn huge(len: usize) -> io::Result<Self> {
        if len < HUGE_PAGE_BYTES {
            return Self::new(len);
        }
        let len = len.next_multiple_of(page_bytes());
        let wide = Self::new(len + HUGE_PAGE_BYTES)?;
        let page = wide.address().addr();
        let before = page.next_multiple_of(HUGE_PAGE_BYTES) - page;
        let after = HUGE_PAGE_BYTES - before;
        let start = wide.into_memory().as_ptr();
        // SAFETY: the ends of the mapping just made, which nobody uses; what lies between stays mapped, `len` bytes
        // long. All three are whole pages, so that the kernel takes the ends. The hint changes nothing but the kernel's choice of pages, and it may refuse.
        unsafe {
            let middle = start.add(before);
            if before > 0 {
                libc::munmap(start.cast(), before);
            }
            if after > 0 {
                libc::munmap(middle.add(len).cast(), after);
            }
            libc::madvise(middle.cast(), len, libc::MADV_HUGEPAGE);
            Ok(Self { address: NonNull::new_unchecked(middle), len })
        }
    }

    pub(crate) fn address(&self) -> *mut u8 {
        self.address.as_ptr()
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Gives the memory away; [`Mapping::from_memory`] takes it back.
    pub(crate) fn into_memory(self) -> NonNull<u8> {
        std::mem::ManuallyDrop::new(self).address
    }

    /// # Safety
    /// `address` came from [`Mapping::into_memory`] of a mapping that was asked for with `len` bytes, and nobody uses it any more.
    pub(crate) unsafe fn from_memory(address: NonNull<u8>, len: usize) -> Self {
        Self { address, len }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` with this length, which the kernel counts in pages, and nobody uses it any more.
        unsafe { libc::munmap(self.address.as_ptr().cast(), self.len) };
    }
}
