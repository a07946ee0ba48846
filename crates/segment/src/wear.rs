//! Blocks that are too worn to keep what is written to them, found before anybody relies on it.
//!
//! 1. The first page of a block is read back when it was programmed. One that needs more than half of what corrects it, with
//!    all the years to come, says that the block is worn.
//! 2. One page is a sample, and a block's worst codeword lies far above it: where the mean is 14 of 30 bits one block in five
//!    passes, and of those with 256 codewords one in a hundred has one that is beyond repair as soon as it is written. So what
//!    is programmed in a block that has shown more than a quarter is read back whole, and counts as failed when it is weak: it
//!    would have to move at once, and weeks without power may come first.
//! 3. Below a quarter nothing but first pages is read. At error rates that let a first page pass there (independent flips, 30
//!    bits of 1 KiB), under one block in ten million has a codeword beyond repair as it is written, and two in a million after
//!    a month without power. With the model of wear that emulated media have, MLC passes a quarter at about its rated erases and
//!    is retired at one and a half times these. Between them a page read back costs the bus a second transfer: up to half of the
//!    write rate where the bus is the limit, as it is on SDF.
//!
//! Rejected: reading back all that is written, at that price for life; and retiring blocks at a quarter, which gives up a third
//! of their life. `segment::ftl` asks of a block's last page (`ftl/media.rs`).

use std::ops::Range;

use pumice_flash::{BlockAddr, Device, FlashError, weak_limit};
use pumice_reactor::IoBuf;

/// Bytes read at a time.
const STRETCH_BYTES: u32 = 256 << 10;

/// To be asked when a program of these pages has ended: says that it failed when its block is too worn to keep it. Nothing is
/// read of media that do not wear.
pub(crate) async fn check_written(
    device: &Device,
    block: BlockAddr,
    pages: Range<u32>,
) -> Result<(), FlashError> {
    let failed = Err(FlashError::ProgramFailed { block, page: pages.start });
    let most = || device.corrected_bits_max(block).map_or(0, |(most, _)| most);
    let Some((_, of)) = device.corrected_bits_max(block).filter(|_| device.wears()) else { return Ok(()) };
    let mut rest = pages;
    if rest.start == 0 {
        rest.start = 1;
        if read_back(device, block, 0..1).await?.is_none() || most() > of / 2 {
            return failed;
        }
    }
    if most() > of / 4 {
        let needed = read_back(device, block, rest).await?;
        if needed.is_none_or(|needed| needed > weak_limit(of)) {
            return failed;
        }
    }
    Ok(())
}

/// Reads pages; answers the most bits that software had to correct in a codeword of them, and nothing when one is lost.
async fn read_back(device: &Device, block: BlockAddr, pages: Range<u32>) -> Result<Option<u32>, FlashError> {
    let page_bytes = device.geometry().page_bytes;
    let (mut at, end) = (pages.start * page_bytes, pages.end * page_bytes);
    let mut most = 0;
    while at < end {
        let len = STRETCH_BYTES.max(page_bytes).min(end - at);
        match device.read_counting(block, at, IoBuf::for_read(len as usize)).await.0 {
            Ok(needed) => most = most.max(needed),
            Err(FlashError::Uncorrectable { .. }) => return Ok(None),
            Err(error) => return Err(error),
        }
        at += len;
    }
    Ok(Some(most))
}
