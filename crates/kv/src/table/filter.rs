//! Blocked Bloom filters: all bits of a key lie in one cache line, so that asking costs one memory access.
//!
//! A filter is a whole number of 64-byte blocks. A key's hash picks the block with its upper half, and the bits
//! in it with its lower half. At 14 bits and 6 probes a key about 0.4% of absent keys pass, at 10 bits 1.4%.

use pumice_base::hash::stable_hash64;

/// Bytes of one block.
pub const BLOCK_BYTES: usize = 64;
const PROBES: u32 = 6;
const SEED: u64 = 0x6b76_2d66_696c_7465;

/// The hash that filters take of a key.
pub fn filter_hash(key: &[u8]) -> u64 {
    stable_hash64(SEED, key)
}

/// Builds the filter of so many keys with these hashes.
pub fn build(keys: usize, hashes: impl Iterator<Item = u64>, bits_per_key: usize) -> Vec<u8> {
    let blocks = (keys * bits_per_key).div_ceil(BLOCK_BYTES * 8).max(1);
    let mut filter = vec![0u8; blocks * BLOCK_BYTES];
    for hash in hashes {
        let block = block_of(hash, blocks);
        for bit in bits_of(hash) {
            filter[block * BLOCK_BYTES + bit / 8] |= 1 << (bit % 8);
        }
    }
    filter
}

/// Whether a key with this hash may be among those that `filter` was built of. A filter of no whole block
/// lets everything pass.
pub fn may_contain(filter: &[u8], hash: u64) -> bool {
    let blocks = filter.len() / BLOCK_BYTES;
    if blocks == 0 {
        return true;
    }
    let block = &filter[block_of(hash, blocks) * BLOCK_BYTES..][..BLOCK_BYTES];
    // All of them, though one that is not set would do: a branch that is guessed wrong costs more.
    bits_of(hash).fold(1, |set, bit| set & (block[bit / 8] >> (bit % 8))) & 1 == 1
}

fn block_of(hash: u64, blocks: usize) -> usize {
    (((hash >> 32) * blocks as u64) >> 32) as usize
}

fn bits_of(hash: u64) -> impl Iterator<Item = usize> {
    let mut x = hash as u32;
    (0..PROBES).map(move |_| {
        x = x.wrapping_mul(0x9E37_79B1).rotate_left(15) ^ 0x85EB_CA6B;
        (x >> 23) as usize
    })
}
