//! What the heap answers instead of doing as asked.

use std::sync::Arc;

use pumice_flash::FlashError;

use crate::{RecordPtr, SegmentId, SpaceReport};

/// Why a drive could not be formatted or opened, or its metadata not written.
#[derive(Clone, Debug, thiserror::Error)]
pub enum HeapError {
    /// The media.
    #[error(transparent)]
    Flash(#[from] FlashError),
    /// The drive does not answer for part of a segment of the pool that may have been opened since the metadata log was written.
    #[error(
        "{source}; {segment} is a free segment by the metadata log, but begins with what does not verify, and the newest commits \
         may lie there: open the drive again when it answers, or a copy of it"
    )]
    FreeSegment {
        /// Which.
        segment: SegmentId,
        /// The media.
        source: FlashError,
    },
    /// Formatting would destroy a drive.
    #[error("{device} is a Pumice drive already; --force destroys what it holds")]
    AlreadyFormatted {
        /// Its name or id.
        device: String,
    },
    /// There is no superblock.
    #[error("not a Pumice drive: no superblock found; format it first")]
    NotFormatted,
    /// A newer Pumice wrote this.
    #[error("{what} has version {found}, this build reads up to {known}: use a newer Pumice")]
    UnknownVersion {
        /// Which layout.
        what: &'static str,
        /// Version found.
        found: u32,
        /// Newest version known.
        known: u32,
    },
    /// The shape asked for makes no drive.
    #[error("geometry: {0}")]
    Geometry(String),
    /// Something that must be whole is damaged.
    #[error("damaged: {0}")]
    Damaged(String),
    /// The heap takes no more writes.
    #[error("the drive is read-only: {0}")]
    ReadOnly(Arc<str>),
    /// Not even metadata finds room.
    #[error("the drive is full: {}; {}", .0.shortage(), .0)]
    Full(SpaceReport),
}

impl HeapError {
    /// Of what could not be written: whether the flash is too worn to take it, or nothing is left that would.
    pub(crate) fn is_of_wear(&self) -> bool {
        match self {
            Self::Flash(error) => {
                matches!(error, FlashError::ProgramFailed { .. } | FlashError::EraseFailed { .. })
            }
            Self::Damaged(_) => true,
            _ => false,
        }
    }
}

/// Why a record was not appended. Nothing was changed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum AppendError {
    /// The live data fills the drive.
    #[error("the drive is full: {}; {}", .0.shortage(), .0)]
    Full(SpaceReport),
    /// Too much is on its way to flash, or cleaning is behind: wait for [`crate::Heap::room`] and try again.
    #[error("busy: wait for room and try again")]
    Busy,
    /// The heap takes no more writes.
    #[error("the drive is read-only: {0}")]
    ReadOnly(Arc<str>),
    /// The record does not fit in a segment, or the batch in as many as are opened at once.
    #[error("{len_bytes} B in one piece do not fit: at most {max_bytes} B")]
    Oversize {
        /// Its bytes.
        len_bytes: u64,
        /// The most that fit.
        max_bytes: u64,
    },
}

/// Appended data did not become durable, and will not: the heap is read-only from here on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("commit failed: {0}")]
pub struct CommitFailed(pub Arc<str>);

/// Why a record could not be read.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ReadError {
    /// The segment was released or reused since the pointer was looked up: look it up again.
    #[error("{ptr} is stale: the segment was reused")]
    Stale {
        /// What was asked for.
        ptr: RecordPtr,
    },
    /// What lies there does not verify. When looking the pointer up again gives the same pointer, the record is
    /// damaged for good.
    #[error("record at {ptr} is damaged: {reason}")]
    Corrupt {
        /// What was asked for.
        ptr: RecordPtr,
        /// What did not hold.
        reason: String,
    },
    /// The pointer leaves its segment or the drive.
    #[error("{ptr} is no place on this drive")]
    OutOfRange {
        /// What was asked for.
        ptr: RecordPtr,
    },
    /// The media.
    #[error("record at {ptr}: {source}")]
    Flash {
        /// What was asked for.
        ptr: RecordPtr,
        /// The media's answer.
        source: FlashError,
    },
}

/// A stretch of a segment that does not verify although it was once durable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{segment} offset {offset}: {what}")]
pub struct Damage {
    /// Where.
    pub segment: SegmentId,
    /// Byte offset in the segment.
    pub offset: u32,
    /// What is wrong.
    pub what: String,
}
