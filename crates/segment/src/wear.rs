//! Blocks that are too worn to keep what is written to them, found before anybody relies on it.

use pumice_flash::{BlockAddr, Device, FlashError};
use pumice_reactor::IoBuf;

/// To be asked when the first program of a block has ended: says that it failed when its first page needs more than half of
/// what corrects it, with all the years to come. Nothing is read of media that do not wear.
///
/// One page stands for the block, whose worst codeword lies well above a page's: hence half, not the three quarters that
/// make a page weak. `segment::ftl` asks the same of a block's last page (`ftl/media.rs`).
pub(crate) async fn check_written(device: &Device, block: BlockAddr) -> Result<(), FlashError> {
    if !device.wears() || device.corrected_bits_max(block).is_none() {
        return Ok(());
    }
    let failed = Err(FlashError::ProgramFailed { block, page: 0 });
    let page_bytes = device.geometry().page_bytes as usize;
    match device.read(block, 0, IoBuf::for_read(page_bytes)).await.0 {
        Ok(()) => match device.corrected_bits_max(block) {
            Some((most, of)) if most > of / 2 => failed,
            _ => Ok(()),
        },
        Err(FlashError::Uncorrectable { .. }) => failed,
        Err(error) => Err(error),
    }
}
