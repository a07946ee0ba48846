//! What can go wrong on the way to, or in, a server's drives.

use std::sync::Arc;

use pumice_kv::StoreError;
use thiserror::Error;

/// Why a server's drives could not be opened.
#[derive(Debug, Error)]
pub enum OpenError {
    /// No drive was named.
    #[error("no drive to open: name one with --device, or a directory with --data")]
    NoDrives,
    /// One drive could not be opened.
    #[error("drive {drive}: {source}")]
    Drive {
        /// The drive as given.
        drive: String,
        /// What the engine says.
        source: pumice_kv::OpenError,
    },
    /// A drive's place in its set could not be read or stored.
    #[error("drive {drive}: its place in the set of drives: {why}")]
    Membership {
        /// The drive as given.
        drive: String,
        /// What went wrong.
        why: String,
    },
    /// The drives given are not one set.
    #[error("these drives cannot be served together: {why}")]
    WrongSet {
        /// Which drive, and what to do.
        why: String,
    },
}

/// Why a batch was refused. Nothing of it was written, on any drive.
#[derive(Debug, Error)]
#[error("drive {name}: {source}")]
pub struct WriteError {
    /// The index of the drive that refused.
    pub drive: u16,
    /// The drive, as it was named.
    pub name: Arc<str>,
    /// Its reason.
    pub source: pumice_kv::WriteError,
}

/// Why what a reply depends on can no longer become durable.
#[derive(Debug, Error)]
#[error("drive {name}: {source}")]
pub struct WaitError {
    /// The drive whose commit failed, as it was named.
    pub name: Arc<str>,
    /// What the engine says.
    pub source: StoreError,
}

/// A drive that could not be closed cleanly. What was acknowledged is safe; the next opening replays the log.
#[derive(Debug, Error)]
#[error("closing drive {drive}: {source}; the next start replays its log")]
pub struct CloseError {
    /// The drive, as it was named.
    pub drive: String,
    /// What the engine says.
    pub source: StoreError,
}
