//! The seeded runner: run `n` of seed `s` is the same input for ever, so a failure replays by its numbers.

use std::alloc::{GlobalAlloc, Layout, System};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use pumice_base::rng::Rng;

use crate::mutate::{self, INPUT_BYTES_MAX};
use crate::{Target, targets};

/// The largest single allocation that a target may make: an input's worth many times over, and far below what a forged
/// count of 32 bits asks for.
pub const ALLOCATION_BYTES_MAX: usize = 256 * INPUT_BYTES_MAX;
/// The longest that one run may take of a processor.
pub const RUN_LONGEST: Duration = Duration::from_secs(10);

/// Remembers the largest allocation, so that a length taken from the input without a check is seen.
pub struct Watching;

static LARGEST: AtomicUsize = AtomicUsize::new(0);

// SAFETY: hands every call to the system's allocator unchanged.
#[expect(unsafe_code, reason = "what an allocator must be")]
unsafe impl GlobalAlloc for Watching {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LARGEST.fetch_max(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promises are the system allocator's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        LARGEST.fetch_max(layout.size(), Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        LARGEST.fetch_max(size, Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.realloc(ptr, layout, size) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(ptr, layout) }
    }
}

/// The input of run `number` of `seed`.
pub fn input_of(target: &Target, seeds: &[Vec<u8>], seed: u64, number: u64) -> Vec<u8> {
    // Targets get streams of their own, so that adding one does not change the others' inputs.
    let name = target.name.bytes().fold(seed, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0000_0100_0000_01b3));
    mutate::input(&mut Rng::from_seed(name ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15)), seeds)
}

/// Targets that open a drive in each run, which takes a millisecond and not a microsecond.
const SLOW: [&str; 3] = ["drive_image", "ftl_image", "flash_emulated"];

/// The runs of a target where the others have `runs`.
pub fn budget(target: &Target, runs: u64) -> u64 {
    if SLOW.contains(&target.name) { runs.div_ceil(200) } else { runs }
}

/// Runs numbers `first..first + runs`; says what failed and how to see it again.
pub fn run(target: &Target, seed: u64, first: u64, runs: u64) -> Result<(), String> {
    let seeds = (target.seeds)();
    for (i, bytes) in seeds.iter().enumerate() {
        attempt(target, bytes).map_err(|what| format!("{}: well-formed input {i}: {what}", target.name))?;
    }
    for number in first..first + runs {
        let bytes = input_of(target, &seeds, seed, number);
        attempt(target, &bytes).map_err(|what| {
            format!(
                "{name}: {what}\n  input ({len} bytes): {head:02x?}\n  replay: cargo run --release -p pumice-fuzz --example smoke -- --target {name} --seed {seed} --first {number} --runs 1",
                name = target.name,
                len = bytes.len(),
                head = &bytes[..bytes.len().min(64)],
            )
        })?;
    }
    Ok(())
}

fn attempt(target: &Target, bytes: &[u8]) -> Result<(), String> {
    LARGEST.store(0, Ordering::Relaxed);
    let began = Instant::now();
    let outcome = catch_unwind(AssertUnwindSafe(|| (target.run)(bytes)));
    let largest = LARGEST.load(Ordering::Relaxed);
    if let Err(panic) = outcome {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without text");
        return Err(format!("panicked: {text}"));
    }
    if began.elapsed() > RUN_LONGEST {
        // On a machine that does other things as well that says nothing yet.
        let before = processor_time();
        (target.run)(bytes);
        let took = processor_time() - before;
        if took > RUN_LONGEST {
            return Err(format!("took {took:?} of a processor"));
        }
    }
    if largest > ALLOCATION_BYTES_MAX {
        return Err(format!("asked for {largest} bytes at once: a length of the input was believed"));
    }
    Ok(())
}

/// How long this thread has run on a processor, as the kernel's scheduler counts it.
fn processor_time() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux tells it");
    let nanos = text.split_whitespace().next().and_then(|field| field.parse().ok());
    Duration::from_nanos(nanos.expect("nanoseconds on a processor"))
}

/// The target called `name`.
pub fn find(name: &str) -> Option<&'static Target> {
    targets::ALL.iter().find(|t| t.name == name)
}
