//! BCH codes for media that leave correction to software: each codeword is some data bytes of a page and its parity in
//! the page's out-of-band bytes; up to t flipped bits of data and parity together are found and mended.
//!
//! The code is binary, narrow-sense and shortened, over the smallest GF(2^m), m = 13 … 15, that holds the codeword (GF(2^14)
//! for 1 KiB). Bits count from the most significant one of the first data byte; parity follows the data.
//!
//! 1. *Encoding* divides by the generator polynomial, eight bytes a step through eight tables (slicing, as CRCs are).
//! 2. *Decoding* divides too: the remainder is zero for a whole codeword, which costs no more than encoding. If it is
//!    not, syndromes are taken from the remainder (a few hundred bits, not eight thousand), Berlekamp–Massey gives the
//!    locator, and its roots (Chien's search, with the found roots divided out, and closed forms for the last two) are
//!    the flipped bits.
//!
//! More than t flipped bits are reported, all but about 1 in t! times, when the word has come nearer to another
//! codeword: a checksum on top stays necessary. Rejected: LDPC, which corrects more at the same parity but wants soft
//! reads and gives no guaranteed t.
//!
//! Measured with `examples/bch.rs` (2026-11, one core of a shared 2-core cloud machine), MB/s of data for 1 KiB and t = 30:
//! encode 470–550; decode 450–530 without flipped bits, 290 with one or two, 70 with four, 21 with 15, 11 with 30. Chien's
//! search takes nearly all of the time beyond two.

mod field;
mod generator;
mod locate;

use field::Field;
use generator::Divider;
use locate::SyndromeTable;

/// A code: its field, its tables. Build it once and share it; some 400 KiB for 1 KiB and t = 30.
pub struct Bch {
    field: Field,
    divider: Divider,
    syndromes: SyndromeTable,
    data_bytes: usize,
    correctable_bits: usize,
}

/// Why there is no such code.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a BCH code of {data_bytes} data bytes that corrects {correctable_bits} bits: {reason}; take 64 to 2,048 bytes and up to 68 \
     bits"
)]
pub struct NoSuchCode {
    data_bytes: usize,
    correctable_bits: usize,
    reason: &'static str,
}

/// A codeword has more flipped bits than the code corrects; nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("more than {correctable_bits} flipped bits in a codeword")]
pub struct TooManyErrors {
    /// The code's t.
    pub correctable_bits: usize,
}

impl Bch {
    /// The code that corrects `correctable_bits` (t) in each codeword of `data_bytes` and its parity.
    ///
    /// # Errors
    /// When no field up to GF(2^15) holds it, or the parity exceeds 1,024 bits.
    pub fn new(data_bytes: usize, correctable_bits: usize) -> Result<Self, NoSuchCode> {
        let fail = |reason| NoSuchCode { data_bytes, correctable_bits, reason };
        if !(1..=68).contains(&correctable_bits) {
            return Err(fail("t is out of range"));
        }
        let m = (13..=15).find(|m| data_bytes * 8 + m * correctable_bits < 1 << m);
        let m = m.ok_or_else(|| fail("the codeword is too long for GF(2^15)"))?;
        if data_bytes < 64 {
            return Err(fail("the codeword is too short"));
        }
        let field = Field::new(m as u32);
        let divider = Divider::new(&generator::polynomial(&field, correctable_bits));
        if divider.bits() > generator::PARITY_BITS_MAX {
            return Err(fail("the parity is too long"));
        }
        let syndromes = SyndromeTable::new(&field, divider.bits(), correctable_bits);
        Ok(Self { field, divider, syndromes, data_bytes, correctable_bits })
    }

    /// t: flipped bits that are corrected in a codeword.
    pub fn correctable_bits(&self) -> usize {
        self.correctable_bits
    }

    /// Data bytes of a codeword.
    pub fn data_bytes(&self) -> usize {
        self.data_bytes
    }

    /// Parity bytes of a codeword; the unused low bits of the last are zero, and ignored.
    pub fn parity_bytes(&self) -> usize {
        self.divider.bits().div_ceil(8)
    }

    /// Writes the parity of `data`.
    ///
    /// # Panics
    /// When `data` is not [`Bch::data_bytes`] long or `parity` not [`Bch::parity_bytes`].
    pub fn encode(&self, data: &[u8], parity: &mut [u8]) {
        self.check(data, parity);
        self.divider.remainder(data, parity);
    }

    /// Mends `data` and `parity` in place and answers how many bits were flipped.
    ///
    /// # Errors
    /// [`TooManyErrors`]; nothing was changed then.
    ///
    /// # Panics
    /// As [`Bch::encode`].
    pub fn decode(&self, data: &mut [u8], parity: &mut [u8]) -> Result<usize, TooManyErrors> {
        self.check(data, parity);
        let mut remainder = [0; generator::PARITY_BITS_MAX / 8];
        let remainder = &mut remainder[..parity.len()];
        self.divider.remainder(data, remainder);
        remainder.iter_mut().zip(&*parity).for_each(|(byte, read)| *byte ^= read);
        let unused = parity.len() * 8 - self.divider.bits();
        if let Some(last) = remainder.last_mut() {
            *last &= 0xFFu8 << unused;
        }
        if remainder.iter().all(|&byte| byte == 0) {
            return Ok(0);
        }
        let fail = TooManyErrors { correctable_bits: self.correctable_bits };
        let bits = self.data_bytes * 8 + self.divider.bits();
        let syndromes = self.syndromes.syndromes(&self.field, remainder);
        let locator = locate::locator(&self.field, &syndromes).ok_or(fail)?;
        let powers = locate::roots(&self.field, locator, bits).ok_or(fail)?;
        for &power in &powers {
            let bit = bits - 1 - power;
            let (bytes, at) = match bit.checked_sub(self.data_bytes * 8) {
                None => (&mut *data, bit),
                Some(beyond) => (&mut *parity, beyond),
            };
            bytes[at / 8] ^= 0x80 >> (at % 8);
        }
        Ok(powers.len())
    }

    fn check(&self, data: &[u8], parity: &[u8]) {
        assert_eq!(data.len(), self.data_bytes, "data of a codeword");
        assert_eq!(parity.len(), self.parity_bytes(), "parity of a codeword");
    }
}
