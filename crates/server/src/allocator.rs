//! The allocator, and how soon it gives memory back to the system.
//!
//! The system's own gives memory back late and shares locks between cores. mimalloc is taken without huge pages, and of the
//! version that keeps less: `docs/decisions/0031-memory-is-the-process-s.md`.

use libmimalloc_sys::{mi_option_eager_commit_delay, mi_option_set, mi_option_t};

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
