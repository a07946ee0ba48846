//! CRC-32C (Castagnoli), the one checksum of Pumice's on-flash and on-wire formats.

use crc_fast::{CrcAlgorithm, Digest};

/// CRC-32C of `bytes`.
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// CRC-32C of `seed` (8 bytes, little-endian) followed by every part in order.
///
/// The seed carries what the bytes themselves do not: where they lie and which life of the segment they
/// belong to, so that stale or misplaced bytes never verify.
pub fn crc32c_seeded(seed: u64, parts: &[&[u8]]) -> u32 {
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    digest.update(&seed.to_le_bytes());
    for part in parts {
        digest.update(part);
    }
    digest.finalize() as u32
}

/// Compares the checksum code with a published vector; a wrong answer means that nothing read or written by
/// this build can be trusted, so callers refuse to start.
pub fn self_test() -> bool {
    // RFC 3720, appendix B.4: 32 bytes of zeros.
    crc32c(&[0u8; 32]) == 0x8A91_36AA && crc32c_seeded(0, &[&[0u8; 16], &[0u8; 8]]) == 0x8A91_36AA
}
