//! Memory that is about to be read.

/// Bytes of a line of the processor's caches.
const LINE_BYTES: usize = 64;

/// Begins to bring `items` into the processor's caches: whoever reads them a little later waits less. Reads nothing, and does nothing
/// on processors that are not known here.
#[inline]
pub fn prefetch<T>(items: &[T]) {
    let (first, bytes) = (items.as_ptr().cast::<u8>(), size_of_val(items));
    // Where the items begin in the midst of a line, their last one begins less than a line before their end.
    let last = bytes.checked_sub(1).into_iter();
    for at in (0..bytes).step_by(LINE_BYTES).chain(last) {
        prefetch_line(first.wrapping_add(at));
    }
}

/// Begins to bring the line at an address, if there is memory: for who knows where something lay a moment ago, and may not look.
#[inline]
pub fn prefetch_at(address: usize) {
    prefetch_line(std::ptr::without_provenance(address));
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn prefetch_line(byte: *const u8) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    // SAFETY: a hint. It reads and writes nothing that a program can see, and does not fault, whatever the address.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(byte.cast()) };
}

#[cfg(target_arch = "aarch64")]
#[inline]
fn prefetch_line(byte: *const u8) {
    // SAFETY: as on x86-64.
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{byte}]", byte = in(reg) byte, options(readonly, nostack, preserves_flags));
    }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
#[inline]
fn prefetch_line(_byte: *const u8) {}
