//! The emulation in real time against the same model in virtual time.
//! Alone in a program of its own: tests beside it would make its timers late.

#[path = "../examples/clocks.rs"]
#[allow(dead_code, unreachable_pub)] // an example: its `main` is not used here
mod clocks;

use std::io::Write;

use clocks::{Steps, on_real_clock, on_virtual_clock};
use pumice_reactor::{block_on, now, sleep};

/// SDF's card, some of it, ten times slower: this machine's timers are late by some 50 µs, which must not show.
const SLOW: &str = "emu:sdf,channels=4,blocks=2,pages=128,data=drop,read_us=750,program_us=10000,erase_us=92000,bus=4,\
                    link_read=161,link_write=140,request_us=30";
/// What real time may take longer, by the ratio.
const SLOWER_MAX: f64 = 1.02;
/// Whoever shares the machine makes tries longer, and never shorter: the best of them counts, and so many of them must
/// have had a machine whose plain timers were in time.
const QUIET_TRIES: usize = 25;
/// A machine that is never quiet tells nothing, and is not waited for longer than this.
const TRIES_MAX: usize = 100;

#[test]
fn real_time_takes_what_virtual_time_says() {
    let expected = on_virtual_clock(SLOW);
    let mut best = vec![f64::MAX; expected.len()];
    let mut quiet = 0;
    for _ in 0..TRIES_MAX {
        let real = on_real_clock(SLOW);
        for ((best, (what, real)), (_, expected)) in best.iter_mut().zip(&real).zip(&expected) {
            let ratio = real.as_secs_f64() / expected.as_secs_f64();
            // However busy the machine is: nothing ends before its time.
            assert!(ratio > 0.999, "{what}: {real:?} in real time, {expected:?} in virtual time");
            *best = best.min(ratio);
        }
        if best.iter().all(|ratio| *ratio <= SLOWER_MAX) {
            return;
        }
        quiet += usize::from(timers_are_in_time(&expected));
        assert!(
            quiet < QUIET_TRIES,
            "real time to virtual time, the best where {QUIET_TRIES} tries had a quiet machine: {best:?} of {expected:?}"
        );
    }
    // Past what the test harness keeps of a test that passes: `./test` counts these lines.
    let late = TRIES_MAX - quiet;
    let said = format!("skipped: this machine's own timers were late in {late} of {TRIES_MAX} tries\n");
    let _ = std::io::stderr().write_all(said.as_bytes());
}

/// Whether plain waits for the same times in as many pieces, with nothing emulated, take no longer than the emulation may.
fn timers_are_in_time(expected: &Steps) -> bool {
    block_on(async {
        for (what, time) in expected {
            let pieces = if what.starts_with("100") { 100 } else { 1 };
            let start = now();
            for _ in 0..pieces {
                sleep(*time / pieces).await;
            }
            if start.elapsed().as_secs_f64() > time.as_secs_f64() * SLOWER_MAX {
                return false;
            }
        }
        true
    })
}
