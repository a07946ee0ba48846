//! Why raw flash did not do as asked, and what a restart found missing.

use std::fmt;

use pumice_flash::{BlockAddr, FlashError};

use super::space::ChannelSpace;

/// Why a raw request was not carried out.
#[derive(Clone, Debug, thiserror::Error)]
pub enum RawError {
    /// No segment has this id.
    #[error("there is no segment {id:032x}")]
    NotFound {
        /// The id asked for.
        id: u128,
    },
    /// The id is taken: erase it first.
    #[error("segment {id:032x} is written already: erase it first")]
    Exists {
        /// The id asked for.
        id: u128,
    },
    /// A segment is written whole.
    #[error("segment {id:032x}: {len_bytes} B were handed in, a segment has {segment_bytes}")]
    Length {
        /// The id asked for.
        id: u128,
        /// Bytes handed in.
        len_bytes: usize,
        /// Bytes of a segment.
        segment_bytes: u32,
    },
    /// There is no such channel.
    #[error("there is no channel {channel}: the device has {channels}")]
    NoChannel {
        /// The channel asked for.
        channel: u16,
        /// Channels there are.
        channels: u16,
    },
    /// A page of the segment is not what was written: it changed on the media, or its checksum did. The others are served.
    #[error(
        "segment {id:032x} page {page}, on {block}, is not what was written: its checksum does not fit; heal it from a copy"
    )]
    Unverified {
        /// The segment.
        id: u128,
        /// The page, counted in the segment.
        page: u32,
        /// Where the segment lies.
        block: BlockAddr,
    },
    /// No block of the channel is free: every one holds a segment, is bad or is reserved.
    #[error("channel {channel} is full: {space}")]
    Full {
        /// The channel.
        channel: u16,
        /// Where its bytes are.
        space: ChannelSpace,
    },
    /// The drive was closed.
    #[error("the drive was closed: open it again")]
    Closed,
    /// The media hold no raw-flash drive.
    #[error("the media hold no raw-flash drive, or its checkpoints are lost: format it")]
    NotFormatted,
    /// The media hold a raw-flash drive already.
    #[error(
        "the media hold the raw-flash drive {} already; formatting destroys it, has to be forced, and takes another \
         identity",
        Hex(drive_id)
    )]
    AlreadyFormatted {
        /// Its identity.
        drive_id: [u8; 16],
    },
    /// The drive was formatted with another shape.
    #[error(
        "the drive was formatted as {formatted}, the media say {found}: name the shape it was formatted with"
    )]
    Shape {
        /// As it was formatted.
        formatted: String,
        /// As the media are used now.
        found: String,
    },
    /// What lies there was written by a newer build.
    #[error("{block}: format version {version} is newer than this build reads: use a newer build")]
    Version {
        /// Where.
        block: BlockAddr,
        /// The version found.
        version: u16,
    },
    /// No block is left for checkpoints: the others that may hold them are bad, or hold segments that cannot be moved.
    #[error(
        "of {blocks} blocks that may hold checkpoints {bad} are bad, and none is free: erase segments, or move what the \
         drive holds to another"
    )]
    CheckpointsWorn {
        /// Blocks that may hold checkpoints.
        blocks: usize,
        /// Those of them that are bad.
        bad: usize,
    },
    /// The device's reason.
    #[error(transparent)]
    Flash(#[from] FlashError),
}

struct Hex<'a>(&'a [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// What a restart found that may have been more.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RawDamage {
    /// A segment that was whole has lost a page that bears its tag. It is served; reading the page says that it is lost.
    #[error("{block}: segment {id:032x} has lost its last page: heal it from a copy")]
    LostPage {
        /// Where.
        block: BlockAddr,
        /// The segment.
        id: u128,
    },
    /// The write of a segment did not end, or its last page is lost; which of both is not known. It is not served.
    #[error(
        "{block}: segment {id:032x} ends in a page that does not read: its write was cut short, or it is lost"
    )]
    Unfinished {
        /// Where.
        block: BlockAddr,
        /// The segment.
        id: u128,
    },
}
