//! How media are cut: channels of dies, blocks of pages.
//!
//! A block is the unit of erasing. It lies on one die, or across `dies_per_block` dies of its channel (SDF's 8 MiB
//! unit lies across both chips of a channel, ASPLOS 2014 section 3), and on all planes of each. Consecutive pages go
//! plane by plane, then die by die: a *plane group* is what one die programs or senses at once. Files and block
//! devices say one die and one plane.

use std::fmt;

use crate::FlashError;

/// The shape of a device. Block `b` of channel `c` is the `b * channels + c`-th block of the device, so that
/// consecutive block numbers lie on consecutive channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Independent channels, each with a bus.
    pub channels: u16,
    /// Dies on each channel's bus.
    pub dies_per_channel: u16,
    /// Planes of a die, which program, sense and erase together.
    pub planes_per_die: u16,
    /// Dies that one block lies across; divides `dies_per_channel`.
    pub dies_per_block: u16,
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

    /// Bytes of the media with their out-of-band bytes.
    pub fn raw_bytes(&self) -> u64 {
        let page_bytes = u64::from(self.page_bytes) + u64::from(self.oob_bytes);
        u64::from(self.block_count()) * u64::from(self.pages_per_block) * page_bytes
    }

    /// The first of the `dies_per_block` dies that `block` lies on, counted on its channel.
    pub fn first_die(&self, block: BlockAddr) -> u16 {
        let groups = u32::from(self.dies_per_channel / self.dies_per_block);
        (block.block % groups) as u16 * self.dies_per_block
    }

    /// The die of a page, counted on its channel.
    pub fn die(&self, block: BlockAddr, page: u32) -> u16 {
        let group = page / u32::from(self.planes_per_die);
        self.first_die(block) + (group % u32::from(self.dies_per_block)) as u16
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
        if self.dies_per_channel == 0 || self.planes_per_die == 0 || self.dies_per_block == 0 {
            return fail("dies and planes must all be at least 1");
        }
        if !self.dies_per_channel.is_multiple_of(self.dies_per_block) {
            return fail("a block's dies must divide the channel's");
        }
        if !self
            .pages_per_block
            .is_multiple_of(u32::from(self.dies_per_block) * u32::from(self.planes_per_die))
        {
            return fail("a block must have as many pages on each plane as on any other");
        }
        if self.oob_bytes > self.page_bytes {
            return fail("a page's out-of-band bytes must not exceed its data");
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
        write!(f, "{} channels", self.channels)?;
        if (self.dies_per_channel, self.planes_per_die) != (1, 1) {
            write!(f, " × {} dies of {} planes", self.dies_per_channel, self.planes_per_die)?;
        }
        write!(
            f,
            " × {} blocks × {} pages of {}",
            self.blocks_per_channel, self.pages_per_block, self.page_bytes
        )?;
        if self.oob_bytes > 0 {
            write!(f, " + {}", self.oob_bytes)?;
        }
        f.write_str(" B")
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
