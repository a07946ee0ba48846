//! Buffers of all sizes, taken and given back in any order and by any thread, never share memory.
//! Alone in a program of its own: it looks at the memory of the whole process.

#![allow(clippy::disallowed_methods)] // a thread of its own drops buffers

use pumice_base::rng::Rng;
use pumice_reactor::{IoBuf, block_on};

/// A buffer and the byte that it was filled with.
type Held = (IoBuf, u8);

fn check(held: &Held) {
    let (buf, byte) = held;
    assert!(
        buf.iter().all(|found| found == byte),
        "a buffer of {} B was written by another's owner",
        buf.len()
    );
}

/// From bytes to more than a region holds.
fn some_size(random: &mut Rng) -> usize {
    let limit = 1u64 << random.below(23);
    random.below(limit) as usize + 1
}

/// One test: the second half looks at the memory of the whole process, in which nothing else may happen.
#[test]
fn buffers_share_no_memory_and_give_it_back() {
    share_no_memory();
    give_it_back();
}

fn share_no_memory() {
    let seed = std::env::var("PUMICE_SEED").map_or(1, |seed| seed.parse().expect("a number"));
    println!("replay: PUMICE_SEED={seed} cargo test -p pumice-reactor --test buffers");
    block_on(async move {
        let mut random = Rng::from_seed(seed);
        let mut held: Vec<Held> = Vec::new();
        let mut bytes_held = 0;
        for turn in 0..4000u32 {
            // Now and then much more than the regions hold, then nearly nothing.
            let most = if turn / 500 % 2 == 0 { 96 << 20 } else { 1 << 20 };
            while bytes_held > most {
                let gone = held.swap_remove(random.below(held.len() as u64) as usize);
                bytes_held -= gone.0.len();
                check(&gone);
                if random.below(4) == 0 {
                    std::thread::spawn(move || drop(gone)).join().expect("it drops");
                }
            }
            let len = some_size(&mut random);
            let mut buf = IoBuf::for_read(len);
            assert!(buf.as_ptr().addr().is_multiple_of(4096) && buf.capacity() >= len);
            buf.fill(turn as u8);
            bytes_held += len;
            held.push((buf, turn as u8));
        }
        held.iter().for_each(check);
    });
}

fn give_it_back() {
    block_on(async {
        let before = resident_bytes();
        let held: Vec<IoBuf> = (0..24).map(|_| IoBuf::zeroed(1 << 20)).collect();
        let most = resident_bytes();
        assert!(most >= before + (20 << 20), "24 MiB were written to");
        drop(held);
        // The registered region and one more are kept.
        let after = resident_bytes();
        assert!(after <= before + (16 << 20), "{before} B before, {most} B at most, {after} B after");
    });
}

fn resident_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("procfs");
    let kib = status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.split_whitespace().next());
    kib.expect("what is resident").parse::<usize>().expect("a number") << 10
}
