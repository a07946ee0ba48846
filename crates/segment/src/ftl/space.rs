//! Where raw flash's bytes are, by channel.

use std::fmt;

use pumice_base::size::format_size;

use super::blocks::{BlockState, Role};
use super::image::Layout;

/// A channel's space by kind, in bytes of pages without what lies beside them. [`ChannelSpace::accounted`] is `raw`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChannelSpace {
    /// All of the channel's blocks.
    pub raw: u64,
    /// Segments.
    pub live: u64,
    /// Pages of blocks with segments that bear tags and no data: none where tags lie beside the pages. Checksums are on them,
    /// too, as many as there is room for.
    pub tags: u64,
    /// Pages of blocks with segments that hold the other checksums.
    pub sums: u64,
    /// Blocks that are being written.
    pub writing: u64,
    /// Segments that were discarded, erased or moved, in blocks that have still to be erased.
    pub dead: u64,
    /// Blocks that hold nothing that is known, and have still to be erased.
    pub unerased: u64,
    /// Erased blocks.
    pub erased: u64,
    /// Blocks for checkpoints.
    pub reserved: u64,
    /// Blocks that failed, here or at the factory.
    pub bad: u64,
    /// What segments may take of all that is neither bad nor reserved; not one of the kinds that add up.
    pub usable: u64,
}

impl ChannelSpace {
    pub(crate) fn of(states: &[BlockState], layout: &Layout) -> Self {
        let (block, segment) = (u64::from(layout.geometry.block_bytes()), u64::from(layout.segment_bytes()));
        let of_pages = |pages: u32| u64::from(pages) * u64::from(layout.geometry.page_bytes);
        let mut space = Self { raw: states.len() as u64 * block, ..Self::default() };
        for state in states {
            let kind = match state.role() {
                Role::Used => {
                    space.tags += of_pages(layout.tag_pages());
                    space.sums += of_pages(layout.sum_pages());
                    space.live += segment;
                    space.usable += segment;
                    continue;
                }
                Role::Bad => &mut space.bad,
                Role::System => &mut space.reserved,
                Role::Writing => &mut space.writing,
                Role::Dead => &mut space.dead,
                Role::Dirty | Role::Erasing => &mut space.unerased,
                Role::Erased => &mut space.erased,
            };
            *kind += block;
            space.usable += if matches!(state.role(), Role::Bad | Role::System) { 0 } else { segment };
        }
        space
    }

    /// The sum of all kinds.
    pub fn accounted(&self) -> u64 {
        self.live
            + self.tags
            + self.sums
            + self.writing
            + self.dead
            + self.unerased
            + self.erased
            + self.reserved
            + self.bad
    }

    /// Adds another channel's.
    pub fn add(&mut self, other: &Self) {
        self.raw += other.raw;
        self.live += other.live;
        self.tags += other.tags;
        self.sums += other.sums;
        self.writing += other.writing;
        self.dead += other.dead;
        self.unerased += other.unerased;
        self.erased += other.erased;
        self.reserved += other.reserved;
        self.bad += other.bad;
        self.usable += other.usable;
    }
}

impl fmt::Display for ChannelSpace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = format_size;
        write!(
            f,
            "of {} are live {}, being written {}",
            size(self.raw),
            size(self.live),
            size(self.writing)
        )?;
        write!(f, ", dead {}, free {}", size(self.dead), size(self.unerased + self.erased))?;
        write!(f, ", tags {}, checksums {}", size(self.tags), size(self.sums))?;
        write!(f, ", reserved {}, bad {}", size(self.reserved), size(self.bad))?;
        write!(f, "; erase segments on it, or place by another channel")
    }
}

/// A drive's space: its channels', and what is left over because it makes no whole block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RawSpace {
    /// Bytes of the media. The channels' `raw` and `leftover` add up to it.
    pub raw: u64,
    /// Beyond the last whole row of blocks.
    pub leftover: u64,
    /// By channel.
    pub channels: Vec<ChannelSpace>,
}

impl RawSpace {
    /// All channels together.
    pub fn total(&self) -> ChannelSpace {
        let mut total = ChannelSpace::default();
        self.channels.iter().for_each(|channel| total.add(channel));
        total
    }

    /// The sum of all kinds: `raw`.
    pub fn accounted(&self) -> u64 {
        self.leftover + self.total().accounted()
    }
}
