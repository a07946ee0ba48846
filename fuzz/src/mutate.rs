//! Changes to well-formed inputs that have broken parsers before: flipped bits, lengths at the edges of their types,
//! cuts, repeats, splices of two inputs.

use pumice_base::rng::Rng;

/// Inputs do not grow beyond this.
pub const INPUT_BYTES_MAX: usize = 64 << 10;

/// Numbers that parsers get wrong.
const EDGES: [u64; 14] = [
    0,
    1,
    0x7f,
    0x80,
    0xff,
    0x7fff,
    0x8000,
    0xffff,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    0x7fff_ffff_ffff_ffff,
    0x8000_0000_0000_0000,
    u64::MAX,
];

/// Text that has meaning in our text formats.
const WORDS: [&[u8]; 14] = [
    b"\r\n",
    b"*",
    b"$",
    b"-1",
    b"$-1\r\n",
    b"*1\r\n",
    b"9223372036854775807",
    b"-9223372036854775808",
    b"0",
    b" ",
    b"\0",
    b"1048577",
    b"536870913",
    b":",
];

/// An input made of `seeds` (never empty) by one to eight changes.
pub fn input(rng: &mut Rng, seeds: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = seeds[below(rng, seeds.len())].clone();
    if rng.next_u64().is_multiple_of(16) {
        // Now and then nothing but noise.
        bytes = (0..below(rng, 256)).map(|_| rng.next_u64() as u8).collect();
    }
    for _ in 0..1 + below(rng, 8) {
        change(rng, &mut bytes, seeds);
    }
    bytes.truncate(INPUT_BYTES_MAX);
    bytes
}

fn below(rng: &mut Rng, bound: usize) -> usize {
    if bound == 0 { 0 } else { (rng.next_u64() % bound as u64) as usize }
}

fn change(rng: &mut Rng, bytes: &mut Vec<u8>, seeds: &[Vec<u8>]) {
    let at = below(rng, bytes.len() + 1);
    match rng.next_u64() % 10 {
        0 | 1 if at < bytes.len() => bytes[at] ^= 1 << (rng.next_u64() % 8),
        2 if at < bytes.len() => bytes[at] = rng.next_u64() as u8,
        3 => bytes.truncate(at),
        4 | 5 => {
            let value = EDGES[below(rng, EDGES.len())].wrapping_add(rng.next_u64() % 3).wrapping_sub(1);
            let width = [1, 2, 4, 8][below(rng, 4)];
            for (i, byte) in value.to_le_bytes()[..width].iter().enumerate() {
                match bytes.get_mut(at + i) {
                    Some(place) => *place = *byte,
                    None => bytes.push(*byte),
                }
            }
        }
        6 => {
            let word = WORDS[below(rng, WORDS.len())];
            bytes.splice(at..at, word.iter().copied());
        }
        7 => {
            let end = (at + below(rng, 64)).min(bytes.len());
            let part = bytes[at..end].to_vec();
            bytes.splice(at..at, part);
        }
        8 => {
            let end = (at + below(rng, 16)).min(bytes.len());
            bytes.drain(at..end);
        }
        _ => {
            let other = &seeds[below(rng, seeds.len())];
            let from = below(rng, other.len() + 1);
            bytes.truncate(at);
            bytes.extend_from_slice(&other[from..]);
        }
    }
}
