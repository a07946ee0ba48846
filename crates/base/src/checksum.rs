//! CRC-32C (Castagnoli), the one checksum of Pumice's on-flash and on-wire formats.
//!
//! Two libraries compute it, as their code suits different processors (`docs/decisions/0029`): crc-fast where vectors of
//! 64 bytes multiply without carry, and on ARM; crc32c, three streams of the CRC instruction, on other x86.

use crc_fast::{CrcAlgorithm, Digest};

/// CRC-32C of `bytes`.
pub fn crc32c(bytes: &[u8]) -> u32 {
    if folds_vectors() {
        crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32
    } else {
        crc32c::crc32c(bytes)
    }
}

/// CRC-32C of `seed` (8 bytes, little-endian) followed by every part in order.
///
/// The seed carries what the bytes themselves do not: where they lie and which life of the segment they
/// belong to, so that stale or misplaced bytes never verify.
pub fn crc32c_seeded(seed: u64, parts: &[&[u8]]) -> u32 {
    let mut crc = Crc32c::seeded(seed);
    parts.iter().for_each(|part| crc.update(part));
    crc.value()
}

/// A [`crc32c_seeded`] of bytes that come one after the other.
#[derive(Clone, Copy, Debug)]
pub struct Crc32c(u32);

impl Crc32c {
    /// Of the seed alone.
    pub fn seeded(seed: u64) -> Self {
        let mut crc = Self(0);
        crc.update(&seed.to_le_bytes());
        crc
    }

    /// Goes on with `bytes`.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0 = match folds_vectors() {
            // Its state is the register, of which the checksum is the complement.
            true => {
                let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(!self.0));
                digest.update(bytes);
                digest.finalize() as u32
            }
            false => crc32c::crc32c_append(self.0, bytes),
        };
    }

    /// Of all bytes so far.
    pub fn value(self) -> u32 {
        self.0
    }
}

/// Whether crc-fast has code for this processor that beats the CRC instruction.
#[cfg(target_arch = "x86_64")]
fn folds_vectors() -> bool {
    std::is_x86_feature_detected!("avx512vl") && std::is_x86_feature_detected!("vpclmulqdq")
}

#[cfg(not(target_arch = "x86_64"))]
fn folds_vectors() -> bool {
    true
}

/// Compares the checksum code with a published vector; a wrong answer means that nothing read or written by
/// this build can be trusted, so callers refuse to start.
pub fn self_test() -> bool {
    // RFC 3720, appendix B.4: 32 bytes of zeros.
    crc32c(&[0u8; 32]) == 0x8A91_36AA && crc32c_seeded(0, &[&[0u8; 16], &[0u8; 8]]) == 0x8A91_36AA
}
