//! How media are cut: channels of blocks of pages.

use std::fmt;

use crate::FlashError;

/// The shape of a device. Block `b` of channel `c` is the `b * channels + c`-th block of the device, so that
/// consecutive block numbers lie on consecutive channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Independent channels.
    pub channels: u16,
    /// Blocks (erase units) on each channel.
    pub blocks_per_channel: u32,
    /// Pages in a block.
    pub pages_per_block: u32,
    /// Bytes of a page, the unit of programming.
    pub page_bytes: u32,
    /// The unit and alignment of reads, in bytes.
    pub read_bytes: u32,
    /// Out-of-band bytes beside each page; 0 where the media correct themselves.
    pub oob_bytes: u32,
}

impl Geometry {
    /// Bytes of a block.
    pub fn block_bytes(&self) -> u32 {
        self.pages_per_block * self.page_bytes
    }

    /// Blocks of the device.
    pub fn block_count(&self) -> u32 {
        u32::from(self.channels) * self.blocks_per_channel
    }

    /// Bytes of all blocks.
    pub fn capacity_bytes(&self) -> u64 {
        u64::from(self.block_count()) * u64::from(self.block_bytes())
    }

    /// The block with this number.
    pub fn block(&self, number: u32) -> BlockAddr {
        BlockAddr {
            channel: (number % u32::from(self.channels)) as u16,
            block: number / u32::from(self.channels),
        }
    }

    /// The number of this block.
    pub fn number(&self, block: BlockAddr) -> u32 {
        block.block * u32::from(self.channels) + u32::from(block.channel)
    }

    /// Refuses shapes that nothing here can use.
    ///
    /// # Errors
    /// [`FlashError::Geometry`] with the reason.
    pub fn check(&self) -> Result<(), FlashError> {
        let fail = |why: &str| Err(FlashError::Geometry(format!("{self}: {why}")));
        if self.channels == 0 || self.blocks_per_channel == 0 || self.pages_per_block == 0 {
            return fail("channels, blocks and pages must all be at least 1");
        }
        if !self.page_bytes.is_power_of_two() || !(512..=65_536).contains(&self.page_bytes) {
            return fail("a page must be a power of two from 512 B to 64 KiB");
        }
        if !self.read_bytes.is_power_of_two() || self.read_bytes > self.page_bytes || self.read_bytes < 512 {
            return fail("the read granule must be a power of two from 512 B to a page");
        }
        if u64::from(self.pages_per_block) * u64::from(self.page_bytes) > 1 << 30 {
            return fail("a block must not exceed 1 GiB");
        }
        if u64::from(self.channels) * u64::from(self.blocks_per_channel) > u64::from(u32::MAX) {
            return fail("too many blocks");
        }
        Ok(())
    }
}

impl fmt::Display for Geometry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} channels × {} blocks × {} pages of {} B",
            self.channels, self.blocks_per_channel, self.pages_per_block, self.page_bytes
        )
    }
}

/// A block on its channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockAddr {
    /// The channel.
    pub channel: u16,
    /// The block on that channel.
    pub block: u32,
}

impl fmt::Display for BlockAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "channel {} block {}", self.channel, self.block)
    }
}
