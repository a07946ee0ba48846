//! What media can answer instead of doing as asked.

use std::sync::Arc;
use std::{fmt, io};

use crate::BlockAddr;

/// What was being done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Opening the device.
    Open,
    /// Reading pages.
    Read,
    /// Programming pages.
    Program,
    /// Erasing a block.
    Erase,
    /// Making programs durable.
    Sync,
    /// Giving space back.
    GiveBack,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Open => "open",
            Self::Read => "read",
            Self::Program => "program",
            Self::Erase => "erase",
            Self::Sync => "sync",
            Self::GiveBack => "give back",
        })
    }
}

/// Why a device did not do as asked. `offset_bytes` counts from the start of the block.
#[derive(Clone, Debug, thiserror::Error)]
pub enum FlashError {
    /// The media could not program; the block takes no more data before an erase, and should be retired.
    #[error("program failed at {block} page {page}: move the block's data and retire it")]
    ProgramFailed {
        /// Where.
        block: BlockAddr,
        /// First page of the program.
        page: u32,
    },
    /// The media could not erase; the block should be retired.
    #[error("erase failed at {block}: retire it")]
    EraseFailed {
        /// Where.
        block: BlockAddr,
    },
    /// The media lost the page: more bit errors than they can correct.
    #[error("uncorrectable read at {block} offset {offset_bytes}: heal it from a copy")]
    Uncorrectable {
        /// Where.
        block: BlockAddr,
        /// Offset in the block.
        offset_bytes: u32,
    },
    /// Pages are programmed in order.
    #[error("program out of order at {block}: page {page} was asked for, page {expected} is next")]
    OutOfOrder {
        /// Where.
        block: BlockAddr,
        /// The page asked for.
        page: u32,
        /// The next page that can be programmed.
        expected: u32,
    },
    /// Pages are programmed once per erase.
    #[error("{block} page {page} is programmed already: erase the block first")]
    AlreadyProgrammed {
        /// Where.
        block: BlockAddr,
        /// The page asked for.
        page: u32,
    },
    /// The drive keeps so many zones partly written at once, and no other is done with.
    #[error(
        "program at {block}: the drive takes {active_max} partly written zones at once; erase or finish one first"
    )]
    TooManyActive {
        /// Where.
        block: BlockAddr,
        /// Zones that may be partly written at once.
        active_max: u32,
    },
    /// Nothing was programmed there since the last erase.
    #[error("read past the write pointer at {block}: offset {offset_bytes}, {written_bytes} B are written")]
    ReadPastWritePointer {
        /// Where.
        block: BlockAddr,
        /// Offset in the block.
        offset_bytes: u32,
        /// Bytes programmed since the last erase.
        written_bytes: u32,
    },
    /// Offset or length is not a multiple of the unit.
    #[error(
        "unaligned {operation} at {block}: offset {offset_bytes} and length {len_bytes} must be multiples of {unit_bytes}"
    )]
    Unaligned {
        /// What.
        operation: Operation,
        /// Where.
        block: BlockAddr,
        /// Offset in the block.
        offset_bytes: u32,
        /// Length.
        len_bytes: u64,
        /// The unit.
        unit_bytes: u32,
    },
    /// The request leaves the block or the device.
    #[error("{operation} beyond the end at {block}: offset {offset_bytes}, length {len_bytes}")]
    Oversize {
        /// What.
        operation: Operation,
        /// Where.
        block: BlockAddr,
        /// Offset in the block.
        offset_bytes: u32,
        /// Length.
        len_bytes: u64,
    },
    /// The media have no such out-of-band bytes.
    #[error(
        "{operation} at {block} with {len_bytes} out-of-band bytes: the pages have {expected_bytes} of them"
    )]
    OutOfBand {
        /// What.
        operation: Operation,
        /// Where.
        block: BlockAddr,
        /// Out-of-band bytes handed in.
        len_bytes: u64,
        /// Out-of-band bytes of the pages named.
        expected_bytes: u64,
    },
    /// The file or device ends before its geometry does.
    #[error(
        "the drive is truncated: {block} offset {offset_bytes} lies beyond its end; restore the file to its full length"
    )]
    Truncated {
        /// Where.
        block: BlockAddr,
        /// Offset in the block.
        offset_bytes: u32,
    },
    /// The media did not answer in time.
    #[error("{operation} timed out at {block}")]
    Timeout {
        /// What.
        operation: Operation,
        /// Where.
        block: BlockAddr,
    },
    /// The device is not there any more.
    #[error("the device is gone ({operation})")]
    Gone {
        /// What.
        operation: Operation,
    },
    /// The device was opened read-only.
    #[error("the device is read-only ({operation})")]
    ReadOnly {
        /// What.
        operation: Operation,
    },
    /// The file system under the device is full, or the file may not grow.
    #[error(
        "no space left under the device ({operation} at {block}): free space on the file system that holds it, or raise the \
         limit on the size of files where it is that (ulimit -f)"
    )]
    NoSpace {
        /// What.
        operation: Operation,
        /// Where.
        block: BlockAddr,
    },
    /// Somebody else has the device open.
    #[error("{device} is in use by another process, or mounted: stop that server first")]
    Locked {
        /// The device's name.
        device: String,
    },
    /// The shape asked for does not fit the media.
    #[error("geometry: {0}")]
    Geometry(String),
    /// The system's own reason.
    #[error("{operation}{}: {source}", at.map(|block| format!(" at {block}")).unwrap_or_default())]
    Io {
        /// What.
        operation: Operation,
        /// Where, when it was about a block.
        at: Option<BlockAddr>,
        /// The system's reason.
        source: Arc<io::Error>,
    },
}

impl FlashError {
    /// Sorts a system error into ours.
    pub(crate) fn from_io(operation: Operation, block: Option<BlockAddr>, error: io::Error) -> Self {
        // Raw numbers where std has no stable kind: ENXIO 6, ENODEV 19, ESTALE 116.
        match (error.kind(), error.raw_os_error(), block) {
            (
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge,
                _,
                Some(block),
            ) => Self::NoSpace { operation, block },
            (io::ErrorKind::ReadOnlyFilesystem, ..) => Self::ReadOnly { operation },
            (io::ErrorKind::TimedOut, _, Some(block)) => Self::Timeout { operation, block },
            (_, Some(6 | 19 | 116), _) => Self::Gone { operation },
            _ => Self::Io { operation, at: block, source: Arc::new(error) },
        }
    }

    /// [`FlashError::from_io`] for a read: what the kernel calls a medium or protection error (ENODATA 61, EBADMSG 74,
    /// EILSEQ 84; `blk_status_to_errno` in Linux's block/blk-core.c) is a page that the drive lost.
    pub(crate) fn from_read(block: BlockAddr, offset_bytes: u32, error: io::Error) -> Self {
        match error.raw_os_error() {
            Some(61 | 74 | 84) => Self::Uncorrectable { block, offset_bytes },
            _ => Self::from_io(Operation::Read, Some(block), error),
        }
    }

    /// [`FlashError::from_io`] for a program.
    pub(crate) fn from_program(block: BlockAddr, page: u32, error: io::Error) -> Self {
        match error.raw_os_error() {
            Some(61 | 74 | 84) => Self::ProgramFailed { block, page },
            _ => Self::from_io(Operation::Program, Some(block), error),
        }
    }
}
