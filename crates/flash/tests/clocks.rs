//! The emulation in real time against the same model in virtual time.

#[path = "../examples/clocks.rs"]
#[allow(dead_code, unreachable_pub)] // an example: its `main` is not used here
mod clocks;

use clocks::{on_real_clock, on_virtual_clock};

/// SDF's card, some of it, ten times slower: this machine's timers are late by some 50 µs, which must not show.
const SLOW: &str = "emu:sdf,channels=4,blocks=2,pages=128,data=drop,read_us=750,program_us=10000,erase_us=92000,bus=4,\
                    link_read=161,link_write=140,request_us=30";
/// What real time may take longer, by the ratio.
const SLOWER_MAX: f64 = 1.02;
/// Whoever shares the machine makes tries longer, and never shorter: the best of so many counts.
const TRIES: usize = 25;

#[test]
fn real_time_takes_what_virtual_time_says() {
    let expected = on_virtual_clock(SLOW);
    let mut best = vec![f64::MAX; expected.len()];
    for _ in 0..TRIES {
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
    }
    panic!("real time to virtual time, the best of {TRIES} tries: {best:?} of {expected:?}");
}
