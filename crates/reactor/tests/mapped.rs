//! Memory from the kernel, compiled into this test: what is mapped goes back whole.
//! Alone in a program of its own: it counts what the process has mapped.
#![allow(unsafe_code, dead_code)] // each part has more than is asked of it here

#[path = "../src/sys/memory.rs"]
mod memory;

use memory::{HUGE_PAGE_BYTES, Mapping};

/// Bytes of address space.
fn mapped_bytes() -> usize {
    let pages = std::fs::read_to_string("/proc/self/statm").expect("/proc is mounted");
    let pages: usize = pages.split(' ').next().and_then(|all| all.parse().ok()).expect("a number");
    // SAFETY: takes no memory.
    pages * usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).expect("pages have a size")
}

/// Kernels have pages of up to 64 KiB, so that a buffer's length is no multiple of theirs everywhere.
#[test]
fn a_mapping_of_any_length_keeps_nothing_around_it_and_goes_back_whole() {
    const COUNT: usize = 64;
    for len in [1, 4096, HUGE_PAGE_BYTES - 1, HUGE_PAGE_BYTES, HUGE_PAGE_BYTES + 100, 3 * HUGE_PAGE_BYTES - 1]
    {
        let before = mapped_bytes();
        let mappings: Vec<Mapping> = (0..COUNT).map(|_| Mapping::huge(len).expect("memory")).collect();
        for mapping in &mappings {
            assert!(mapping.len() >= len);
            // SAFETY: inside the mapping, which nobody else uses.
            unsafe { mapping.address().add(len - 1).write(1) };
        }
        let held = mapped_bytes() - before;
        assert!(held <= COUNT * (len + (64 << 10)) + (1 << 20), "{held} B for {COUNT} of {len} B");
        for mapping in mappings {
            // As buffers do it, which know the length that they asked for.
            let memory = mapping.into_memory();
            // SAFETY: nobody uses it any more.
            drop(unsafe { Mapping::from_memory(memory, len) });
        }
        let left = mapped_bytes().saturating_sub(before);
        assert!(left <= 1 << 20, "{left} B are left of {COUNT} of {len} B");
    }
}
