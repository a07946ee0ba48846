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
//! 4. Superblocks and records of the metadata log are read back whole, always ([`check_vital`]).
//!
//! Rejected: reading back all that is written, at that price for life; and retiring blocks at a quarter, which gives up a third
//! of their life. `segment::ftl` asks the same of each segment that it has written.

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
    check_in_turns(device, block, pages, async || ()).await
}

/// [`check_written`] where each read waits for its `turn`, and keeps it until its end.
pub(crate) async fn check_in_turns<T>(
    device: &Device,
    block: BlockAddr,
    pages: Range<u32>,
    turn: impl AsyncFn() -> T,
) -> Result<(), FlashError> {
    let failed = Err(FlashError::ProgramFailed { block, page: pages.start });
    let most = || device.corrected_bits_max(block).map_or(0, |(most, _)| most);
    let Some((_, of)) = device.corrected_bits_max(block).filter(|_| device.wears()) else { return Ok(()) };
    let mut rest = pages;
    if rest.start == 0 {
        rest.start = 1;
        if read_back(device, block, 0..1, &turn).await?.is_none() || most() > of / 2 {
            return failed;
        }
    }
    if most() > of / 4 {
        let needed = read_back(device, block, rest, &turn).await?;
        if needed.is_none_or(|needed| needed > weak_limit(of)) {
            return failed;
        }
    }
    Ok(())
}

/// The same for metadata, of which a page that is lost is a drive that is lost: all of it is read back, always. There is
/// little of it. Answers whether it should go elsewhere the next time: what reads is kept, because near its end a drive has
/// nothing better.
pub(crate) async fn check_vital(
    device: &Device,
    block: BlockAddr,
    pages: Range<u32>,
) -> Result<bool, FlashError> {
    let failed = FlashError::ProgramFailed { block, page: pages.start };
    let Some((_, of)) = device.corrected_bits_max(block).filter(|_| device.wears()) else { return Ok(false) };
    let needed = read_back(device, block, pages, &async || ()).await?.ok_or(failed)?;
    Ok(needed > weak_limit(of))
}

/// Reads pages; answers the most bits that had to be corrected in a codeword of them, and nothing when one is lost. Media that
/// correct themselves tell of the whole block since its erase.
async fn read_back<T>(
    device: &Device,
    block: BlockAddr,
    pages: Range<u32>,
    turn: &impl AsyncFn() -> T,
) -> Result<Option<u32>, FlashError> {
    let page_bytes = device.geometry().page_bytes;
    let (mut at, end) = (pages.start * page_bytes, pages.end * page_bytes);
    let mut most = 0;
    while at < end {
        let len = STRETCH_BYTES.max(page_bytes).min(end - at);
        let turn = turn().await;
        let (result, _) = device.read_counting(block, at, IoBuf::for_read(len as usize)).await;
        drop(turn);
        match result {
            Ok(needed) => most = most.max(needed),
            Err(FlashError::Uncorrectable { .. }) => return Ok(None),
            Err(error) => return Err(error),
        }
        at += len;
    }
    if !matches!(device, Device::Corrected(_)) {
        most = device.corrected_bits_max(block).map_or(most, |(most, _)| most);
    }
    Ok(Some(most))
}
