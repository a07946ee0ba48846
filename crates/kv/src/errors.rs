//! What can go wrong, said so that a user knows what to do next.

use pumice_segment::{HeapError, ReadError, RecordPtr, SpaceReport};

use crate::types::{Seq, SliceId};

/// Why a read, a scan or background work failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    /// What lies on flash is not what was written. Other keys are unharmed.
    #[error("damaged: {what} at {ptr:?} ({reason}); other data is unharmed, `pumice check` lists all damage")]
    Damaged {
        /// What was being read.
        what: String,
        /// Where it should be.
        ptr: RecordPtr,
        /// How it differs.
        reason: String,
    },
    /// The heap could not read.
    #[error("reading {what}: {source}")]
    Read {
        /// What was being read.
        what: String,
        /// Why it failed.
        source: ReadError,
    },
    /// The heap could not write.
    #[error("writing {what}: {reason}")]
    Write {
        /// What was being written.
        what: String,
        /// Why it failed.
        reason: String,
    },
    /// The read went on for longer than the drive could keep what was overwritten meanwhile.
    #[error(
        "the read took too long: what it was still to read was overwritten, and the drive needed the space; try again"
    )]
    TooOld,
    /// The store is being closed.
    #[error("the store is closing")]
    Closing,
}

/// Why a write was refused. Nothing of it is visible.
#[derive(Clone, Debug, thiserror::Error)]
pub enum WriteError {
    /// The drive has no room.
    #[error("the drive is full: {}; {}", .0.shortage(), .0)]
    Full(Box<SpaceReport>),
    /// There is no room now, or others wait for it: [`crate::Store::write_ready`] waits, too.
    #[error("busy: there is no room for it now")]
    Busy,
    /// A record is longer than the heap's segments take.
    #[error("too large: {0}")]
    TooLarge(String),
    /// The drive takes no writes.
    #[error("the drive takes no writes: {0}")]
    ReadOnly(String),
    /// A value was to be put again that its key no longer has.
    #[error("{0} no longer has the value that was to be put again")]
    Gone(String),
    /// A value was to be put again, and what that takes does not read.
    #[error("a value cannot be put again: {0}")]
    Unreadable(Box<StoreError>),
}

/// Why a store could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The heap could not be opened.
    #[error(transparent)]
    Heap(#[from] HeapError),
    /// The manifest is not what this version writes.
    #[error("the manifest cannot be read: {0}")]
    Manifest(String),
    /// The log since the last checkpoint cannot be replayed.
    #[error("replaying the log at seq {seq}, slice {slice:?}: {reason}")]
    Replay {
        /// The record's number.
        seq: Seq,
        /// Its slice, when known.
        slice: Option<SliceId>,
        /// What is wrong.
        reason: String,
    },
}
