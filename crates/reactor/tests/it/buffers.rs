//! A core's buffer memory: what is handed out is nobody else's, and takes no more pages than it needs.

use pumice_base::rng::Rng;
use pumice_reactor::{IoBuf, block_on};

/// Each buffer is filled with its own byte, which must still be there when it goes.
fn keep_apart(seed: u64) {
    let mut rng = Rng::from_seed(seed);
    let mut held: Vec<(IoBuf, u8)> = Vec::new();
    for step in 0..2000u32 {
        let mark = step as u8;
        match rng.below(8) {
            0..=3 => {
                // Short ones, commits, pieces; what lies above a region's cut comes from elsewhere.
                let most = [4096, 64 << 10, 300 << 10, 3 << 20][rng.below(4) as usize];
                let mut buf = IoBuf::for_read(1 + rng.below(most) as usize);
                buf.fill(mark);
                held.push((buf, mark));
            }
            4 if !held.is_empty() => {
                let at = rng.below(held.len() as u64) as usize;
                let (buf, _) = &mut held[at];
                buf.truncate(rng.below(buf.len() as u64 + 1) as usize);
                buf.shrink_to_fit();
                assert!(buf.capacity() >= buf.len());
            }
            _ if !held.is_empty() => {
                let (buf, mark) = held.swap_remove(rng.below(held.len() as u64) as usize);
                assert!(buf.iter().all(|&byte| byte == mark), "seed {seed}, step {step}: overwritten");
            }
            _ => {}
        }
        if held.iter().map(|(buf, _)| buf.capacity()).sum::<usize>() > 64 << 20 {
            held.drain(..held.len() / 2);
        }
    }
    for (buf, mark) in held {
        assert!(buf.iter().all(|&byte| byte == mark), "seed {seed}: overwritten");
    }
}

#[test]
fn buffers_never_share_memory() {
    for seed in 0..4 {
        block_on(async move { keep_apart(seed) });
    }
}

/// From the first byte of the lowest to the last of the highest.
fn span(bufs: &[IoBuf]) -> usize {
    let first = bufs.iter().map(|buf| buf.as_ptr().addr()).min().unwrap_or(0);
    let last = bufs.iter().map(|buf| buf.as_ptr().addr() + buf.len()).max().unwrap_or(0);
    last - first
}

#[test]
fn a_buffer_takes_the_pages_it_needs_and_no_more() {
    block_on(async {
        // The sizes of commits of sixteen values of 8 KiB, and of one such value's read.
        for (bytes, count) in [(132 << 10, 15), (12 << 10, 170)] {
            let bufs: Vec<IoBuf> = (0..count).map(|_| IoBuf::for_read(bytes)).collect();
            assert!(span(&bufs) <= 2 << 20, "{count} buffers of {bytes} bytes lie in {} bytes", span(&bufs));
        }
        // What is given back of one serves others.
        let mut large: Vec<IoBuf> = (0..4).map(|_| IoBuf::for_read(512 << 10)).collect();
        for buf in &mut large {
            buf.truncate(100 << 10);
            buf.shrink_to_fit();
            assert_eq!(buf.capacity(), 100 << 10);
        }
        let mut bufs: Vec<IoBuf> = (0..4).map(|_| IoBuf::for_read(400 << 10)).collect();
        bufs.append(&mut large);
        assert!(span(&bufs) <= 2 << 20, "{} bytes", span(&bufs));
    });
}
