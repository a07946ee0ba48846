//! The allocator, and how soon it gives memory back to the system.
//!
//! The system's own gives memory back late and shares locks between cores. mimalloc is taken without huge pages, and of the
//! version that keeps less: `docs/decisions/0031-memory-is-the-process-s.md`.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicI32, Ordering};

use libmimalloc_sys::{mi_option_eager_commit_delay, mi_option_set, mi_option_t};
use rustix::mm::{Advice, madvise};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Its name, as INFO tells it.
pub const NAME: &str = "mimalloc";

/// `mi_option_purge_delay`, which the bindings leave out: the one behind this in mimalloc.h.
const PURGE_DELAY: mi_option_t = mi_option_eager_commit_delay + 1;

/// From now on freed pages go back to the system at once, instead of some milliseconds later. That costs system calls and page
/// faults, and where memory is short it is a tenth of the memory.
#[expect(unsafe_code)]
pub fn give_back_at_once() {
    // SAFETY: sets a number that the allocator reads whenever pages are freed; any thread may at any time.
    unsafe { mi_option_set(PURGE_DELAY, 0) };
}

#[expect(unsafe_code)]
unsafe extern "C" {
    /// Of version 2's mimalloc.h (arenas of version 3 have no numbers), which the bindings leave out: where an arena lies, of 1 and up;
    /// null if there is none with this number.
    fn mi_arena_area(arena: c_int, bytes: *mut usize) -> *mut c_void;
}

/// The first arena that has not been told; 0 while none is to be.
static NEXT_ARENA: AtomicI32 = AtomicI32::new(0);

/// From now on the kernel gives the allocator no huge pages that nobody asked for. Where it gives them to everybody
/// (`transparent_hugepage/enabled` says `always`, as Debian has it), a small object that is left over holds one whole.
pub fn refuse_huge_pages() {
    NEXT_ARENA.store(1, Ordering::Relaxed);
    tell_new_arenas();
}

/// Does so for what the allocator has taken since, which takes a GiB of addresses at a time: call it now and then.
#[expect(unsafe_code)]
pub fn tell_new_arenas() {
    loop {
        let (arena, mut bytes) = (NEXT_ARENA.load(Ordering::Relaxed), 0);
        // SAFETY: looks it up in a list that any thread may read, and writes one number. There is no arena 0.
        let start = unsafe { mi_arena_area(arena, &raw mut bytes) };
        if start.is_null() {
            return;
        }
        // SAFETY: what the memory holds stays as it is. A kernel that knows no huge pages refuses, and then there are none.
        let _ = unsafe { madvise(start, bytes, Advice::LinuxNoHugepage) };
        NEXT_ARENA.store(arena + 1, Ordering::Relaxed);
    }
}
