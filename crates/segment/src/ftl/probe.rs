//! Whether media hold a raw-flash drive, and how it was cut: files do not know their shape.

use std::collections::BTreeSet;

use pumice_flash::{BlockAddr, Device, FlashError};
use pumice_reactor::IoBuf;

use super::checkpoint::{PART_HEADER_BYTES, PartHeader};
use super::{RawError, RawFlash};

/// The smallest and the largest block that is looked for, as powers of two.
const BLOCK_BITS: std::ops::RangeInclusive<u32> = 14..=30;
/// Blocks of each size that are looked at: the whole window of most files that are small enough to lose it.
const BLOCKS: u64 = 16;

impl RawFlash {
    /// The device cut as the raw-flash drive that it holds; `None` when it holds none.
    ///
    /// On files the first blocks are looked for where they lie for block sizes that are powers of two, block 0 and block 1
    /// before the others: any of the first 16 that was ever kept for checkpoints tells the shape.
    ///
    /// # Errors
    /// The device's, and [`RawError::Version`].
    pub async fn probe(device: &Device) -> Result<Option<Device>, RawError> {
        if !device.erase_keeps_bytes() {
            return match super::media::Media::new(device.clone()) {
                Ok(media) => match super::area::load(&std::sync::Arc::new(media)).await {
                    Ok(found) => Ok(found.map(|_| device.clone())),
                    Err(RawError::Flash(FlashError::Geometry(_))) => Ok(None),
                    Err(error) => Err(error),
                },
                Err(_) => Ok(None),
            };
        }
        let first = std::iter::once(0).chain(BLOCK_BITS.map(|bits| 1 << bits));
        let others: BTreeSet<u64> = BLOCK_BITS.flat_map(|bits| (2..BLOCKS).map(move |n| n << bits)).collect();
        for at_bytes in first.chain(others) {
            let Some(header) = header_at(device, at_bytes).await? else { continue };
            let shape = header.geometry(device.geometry().read_bytes.min(header.page_bytes));
            if let Ok(cut) = device.with_geometry(shape) {
                return Ok(Some(cut));
            }
        }
        Ok(None)
    }
}

/// What may be the header of a checkpoint's part at a byte of a file. Opening verifies it, and the rest.
async fn header_at(device: &Device, at_bytes: u64) -> Result<Option<PartHeader>, RawError> {
    let geometry = device.geometry();
    let block_bytes = u64::from(geometry.block_bytes());
    let block = BlockAddr { channel: 0, block: (at_bytes / block_bytes) as u32 };
    let offset = (at_bytes % block_bytes) as u32;
    if at_bytes + u64::from(geometry.page_bytes) > geometry.capacity_bytes() {
        return Ok(None);
    }
    let (result, buf) = device.read(block, offset, IoBuf::for_read(geometry.page_bytes as usize)).await;
    match result {
        Ok(()) => {}
        Err(FlashError::Uncorrectable { .. }) => return Ok(None),
        Err(error) => return Err(error.into()),
    }
    Ok(PartHeader::peek(&buf[..PART_HEADER_BYTES]))
}
