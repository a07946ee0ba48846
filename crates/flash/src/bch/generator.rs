//! The generator polynomial, and division by it.

use super::field::Field;

/// Most bits of parity.
pub(super) const PARITY_BITS_MAX: usize = 1024;
/// Bytes that one step of the division takes.
const STEP: usize = 8;

/// Coefficients over GF(2), lowest first: the least polynomial that has α, α³ … α^(2t−1) as roots.
pub(super) fn polynomial(field: &Field, t: usize) -> Vec<bool> {
    let order = field.order();
    let mut product = vec![true];
    let mut seen = vec![false; order];
    for odd in (1..2 * t).step_by(2) {
        if seen[odd] {
            continue;
        }
        // The minimal polynomial of α^odd: its roots are the conjugates α^(odd·2^j).
        let mut minimal: Vec<u16> = vec![1];
        let mut power = odd;
        loop {
            seen[power] = true;
            let root = field.exp(power);
            let mut next = vec![0; minimal.len() + 1];
            for (at, &coefficient) in minimal.iter().enumerate() {
                next[at + 1] ^= coefficient;
                next[at] ^= field.mul(coefficient, root);
            }
            minimal = next;
            power = power * 2 % order;
            if power == odd {
                break;
            }
        }
        let mut next = vec![false; product.len() + minimal.len() - 1];
        for (at, _) in product.iter().enumerate().filter(|(_, is_set)| **is_set) {
            for (beyond, &coefficient) in minimal.iter().enumerate() {
                assert!(coefficient < 2, "a minimal polynomial has its coefficients in GF(2)");
                next[at + beyond] ^= coefficient == 1;
            }
        }
        product = next;
    }
    product
}

/// Division by a fixed polynomial g of degree r. The remainder is held in words with its highest coefficient in the
/// highest bit of the first; `tables[k][b]` is b(x)·x^(r+8k) mod g in the same form, for slicing by eight bytes.
pub(super) struct Divider {
    bits: usize,
    /// Words of a remainder, rounded up to 1, 2, 4, 8 or 16 so that the loops over them are unrolled.
    words: usize,
    tables: Vec<u64>,
}

impl Divider {
    pub(super) fn new(polynomial: &[bool]) -> Self {
        let bits = polynomial.len() - 1;
        let words = bits.div_ceil(64).next_power_of_two();
        // g without its highest term, in the form of a remainder.
        let mut low = vec![0u64; words];
        for power in (0..bits).filter(|&power| polynomial[power]) {
            let at = bits - 1 - power;
            low[at / 64] |= 1 << (63 - at % 64);
        }
        // x^(r+i) mod g for i in 0..64, by shifting.
        let mut powers = Vec::with_capacity(8 * STEP);
        let mut current = low.clone();
        for _ in 0..8 * STEP {
            powers.push(current.clone());
            let carry = current[0] >> 63 == 1;
            for word in 0..words {
                let below = current.get(word + 1).copied().unwrap_or(0);
                current[word] = current[word] << 1 | below >> 63;
            }
            if carry {
                current.iter_mut().zip(&low).for_each(|(word, low)| *word ^= low);
            }
        }
        let mut tables = vec![0; STEP * 256 * words];
        for (entry, out) in tables.chunks_exact_mut(words).enumerate() {
            let (k, byte) = (entry / 256, entry % 256);
            for bit in (0..8).filter(|bit| byte >> bit & 1 == 1) {
                out.iter_mut().zip(&powers[8 * k + bit]).for_each(|(word, power)| *word ^= power);
            }
        }
        Self { bits, words, tables }
    }

    /// r: bits of a remainder.
    pub(super) fn bits(&self) -> usize {
        self.bits
    }

    /// Writes data(x)·x^r mod g, highest coefficient first.
    pub(super) fn remainder(&self, data: &[u8], out: &mut [u8]) {
        match self.words {
            1 => self.divide::<1>(data, out),
            2 => self.divide::<2>(data, out),
            4 => self.divide::<4>(data, out),
            8 => self.divide::<8>(data, out),
            _ => self.divide::<16>(data, out),
        }
    }

    fn divide<const WORDS: usize>(&self, data: &[u8], out: &mut [u8]) {
        let (tables, _) = self.tables.as_chunks::<WORDS>();
        let mut rest = [0u64; WORDS];
        let (steps, tail) = data.as_chunks::<STEP>();
        for step in steps {
            let top = (rest[0] ^ u64::from_be_bytes(*step)).to_be_bytes();
            rest.copy_within(1.., 0);
            rest[WORDS - 1] = 0;
            for (at, byte) in top.into_iter().enumerate() {
                let entry = &tables[(STEP - 1 - at) * 256 + usize::from(byte)];
                for word in 0..WORDS {
                    rest[word] ^= entry[word];
                }
            }
        }
        for byte in tail {
            let top = (rest[0] >> 56) as u8 ^ byte;
            for word in 0..WORDS {
                let below = if word + 1 < WORDS { rest[word + 1] >> 56 } else { 0 };
                rest[word] = rest[word] << 8 | below;
            }
            let entry = &tables[usize::from(top)];
            for word in 0..WORDS {
                rest[word] ^= entry[word];
            }
        }
        for (at, byte) in out.iter_mut().enumerate() {
            *byte = (rest[at / 8] >> (56 - 8 * (at % 8))) as u8;
        }
    }
}
