//! On-flash layouts, little-endian, as `docs/format/` describes them.

pub mod frame;
pub mod header;
pub mod meta;
pub mod record;
pub mod summary;
pub mod superblock;

/// Newest version of the layouts in this crate that this build reads and the one it writes.
pub const VERSION: u16 = 1;

/// Sequence numbers, lives, numbers of frames and the like beyond this were never counted: no drive lives so long, and sums
/// with them would not fit.
pub const COUNT_MAX: u64 = 1 << 62;

pub(crate) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

pub(crate) fn put_u16(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_le_bytes());
}

pub(crate) fn put_u32(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

pub(crate) fn put_u64(bytes: &mut [u8], at: usize, value: u64) {
    bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
}
