//! From a remainder to the flipped bits: syndromes, Berlekamp–Massey, Chien's search.

use super::field::Field;

/// Odd syndromes of every four bits of a remainder, ready to be added up: for t = 30 some 108 KiB.
pub(super) struct SyndromeTable {
    t: usize,
    /// `t` rounded up, so that rows are whole cache lines.
    stride: usize,
    /// For each half byte from the highest coefficients on and each of its 16 values, S₁ S₃ … S₂ₜ₋₁.
    rows: Vec<u16>,
}

impl SyndromeTable {
    /// For remainders of `bits` bits.
    pub(super) fn new(field: &Field, bits: usize, t: usize) -> Self {
        let (order, stride) = (field.order(), t.next_multiple_of(32));
        let mut rows = vec![0; bits.div_ceil(8) * 2 * 16 * stride];
        for (at, row) in rows.chunks_exact_mut(stride).enumerate() {
            let (half, value) = (at / 16, at % 16);
            for bit in (0..4).filter(|bit| value >> (3 - bit) & 1 == 1) {
                // The unused low bits of the last byte are never set.
                let Some(power) = (bits - 1).checked_sub(4 * half + bit) else { continue };
                for (index, syndrome) in row[..t].iter_mut().enumerate() {
                    *syndrome ^= field.exp(power * (2 * index + 1) % order);
                }
            }
        }
        Self { t, stride, rows }
    }

    /// S₁ … S₂ₜ (at index 0 … 2t−1) of the remainder s(x), highest coefficient first: Sⱼ = s(α^j).
    pub(super) fn syndromes(&self, field: &Field, remainder: &[u8]) -> Vec<u16> {
        let mut odd = vec![0u16; self.stride];
        for (at, &byte) in remainder.iter().enumerate() {
            for (half, value) in [(2 * at, byte >> 4), (2 * at + 1, byte & 15)] {
                let row = (half * 16 + usize::from(value)) * self.stride;
                let row = &self.rows[row..row + self.stride];
                odd.iter_mut().zip(row).for_each(|(sum, part)| *sum ^= part);
            }
        }
        let mut found = vec![0; 2 * self.t];
        found.iter_mut().step_by(2).zip(odd).for_each(|(syndrome, sum)| *syndrome = sum);
        // A binary word: S₂ⱼ = Sⱼ².
        for j in 1..=self.t {
            found[2 * j - 1] = field.mul(found[j - 1], found[j - 1]);
        }
        found
    }
}

/// The error locator, lowest coefficient first, or `None` when the syndromes come from more than t errors.
/// Berlekamp–Massey for binary codes: every second discrepancy is zero (Lin and Costello, section 6.4).
pub(super) fn locator(field: &Field, syndromes: &[u16]) -> Option<Vec<u16>> {
    let t = syndromes.len() / 2;
    let (mut current, mut before) = (vec![0u16; 2 * t + 2], vec![0u16; 2 * t + 2]);
    (current[0], before[0]) = (1, 1);
    let (mut errors, mut shift, mut last) = (0, 1, 1);
    for n in (0..2 * t).step_by(2) {
        let mut discrepancy = syndromes[n];
        for i in 1..=errors.min(n) {
            discrepancy ^= field.mul(current[i], syndromes[n - i]);
        }
        if discrepancy == 0 {
            shift += 2;
            continue;
        }
        let factor = field.div(discrepancy, last);
        let kept = current.clone();
        for i in shift..current.len() {
            current[i] ^= field.mul(factor, before[i - shift]);
        }
        if 2 * errors <= n {
            (errors, last, shift) = (n + 1 - errors, discrepancy, 2);
            before = kept;
        } else {
            shift += 2;
        }
    }
    let degree = current.iter().rposition(|&c| c != 0).unwrap_or(0);
    (errors <= t && degree == errors).then(|| {
        current.truncate(degree + 1);
        current
    })
}

/// The powers p below `bits` with locator(α^−p) = 0, if there are as many as its degree.
pub(super) fn roots(field: &Field, mut locator: Vec<u16>, bits: usize) -> Option<Vec<usize>> {
    let order = field.order();
    let mut found = Vec::with_capacity(locator.len() - 1);
    // Terms as logarithms of their value at the current power, with what the next power adds.
    let mut terms: Vec<(usize, usize)> = Vec::with_capacity(locator.len());
    let mut power = 0;
    while locator.len() > 3 {
        terms.clear();
        for (i, &coefficient) in locator.iter().enumerate().skip(1).filter(|(_, c)| **c != 0) {
            let at = (field.log(coefficient) + (order - power % order) * i) % order;
            terms.push((at, order - i));
        }
        loop {
            if power == bits {
                return None;
            }
            let mut sum = locator[0];
            for (at, step) in &mut terms {
                sum ^= field.exp(*at);
                *at += *step;
                if *at >= order {
                    *at -= order;
                }
            }
            if sum == 0 {
                break;
            }
            power += 1;
        }
        found.push(power);
        divide(field, &mut locator, field.exp((order - power) % order));
        power += 1;
    }
    // A root found twice is no locator either.
    let is_whole = closed_form(field, &locator, bits, &mut found);
    let is_once = found.iter().enumerate().all(|(at, power)| !found[..at].contains(power));
    (is_whole && is_once).then_some(found)
}

/// Divides by (x − root), which goes without remainder.
fn divide(field: &Field, locator: &mut Vec<u16>, root: u16) {
    let degree = locator.len() - 1;
    let mut carry = locator[degree];
    for i in (0..degree).rev() {
        let next = locator[i] ^ field.mul(carry, root);
        locator[i] = carry;
        carry = next;
    }
    locator.truncate(degree);
}

/// The roots of a locator of degree 1 or 2; false when it has not as many different ones within the word.
fn closed_form(field: &Field, locator: &[u16], bits: usize, found: &mut Vec<usize>) -> bool {
    let order = field.order();
    let mut add = |root: u16| {
        // root = α^−p
        let power = if root == 0 { bits } else { (order - field.log(root)) % order };
        found.push(power);
        power < bits
    };
    match *locator {
        [_] => true,
        [c, b] => add(field.div(c, b)),
        // a x² + b x + c with x = (b/a) y is y² + y = ac/b².
        [c, b, a] if b != 0 => {
            let k = field.div(field.mul(a, c), field.mul(b, b));
            let scale = field.div(b, a);
            match field.half(k) {
                Some(y) => add(field.mul(scale, y)) && add(field.mul(scale, y ^ 1)),
                None => false,
            }
        }
        // A double root is no locator.
        _ => false,
    }
}
