//! What can be chosen when a drive is formatted and when it is opened.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use bytes::Bytes;

/// Choices that a drive keeps for life.
#[derive(Clone, Debug)]
pub struct FormatOptions {
    /// Segment size on files and block devices, a power of two from 64 KiB to 64 MiB; emulated media have their
    /// own.
    pub segment_bytes: u32,
    /// Channels on files and block devices.
    pub channels: u16,
    /// The drive's identity; make it unique. Zeros are refused.
    pub drive_id: [u8; 16],
    /// What the client wants to find again in [`crate::Heap::config`]; at most 2 KiB.
    pub config: Bytes,
    /// Format over an existing drive.
    pub force: bool,
    /// Write every data segment once, and say how far it is: on files, what was written before commits about twice
    /// as fast.
    pub prewrite: Option<PrewriteProgress>,
}

/// Takes the number of segments written so far, and of all.
#[derive(Clone)]
pub struct PrewriteProgress(pub Arc<dyn Fn(u64, u64) + Send + Sync>);

impl fmt::Debug for PrewriteProgress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PrewriteProgress")
    }
}

impl Default for FormatOptions {
    fn default() -> Self {
        Self {
            segment_bytes: 8 << 20,
            channels: 1,
            drive_id: [0; 16],
            config: Bytes::new(),
            force: false,
            prewrite: None,
        }
    }
}

/// When an append counts as durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// When it is on flash.
    #[default]
    Always,
    /// At once; on flash within about a second.
    EverySecond,
    /// At once; on flash when the drive gets round to it.
    None,
}

impl FromStr for Durability {
    type Err = String;

    fn from_str(input: &str) -> Result<Self, String> {
        match input {
            "always" => Ok(Self::Always),
            "everysec" => Ok(Self::EverySecond),
            "none" => Ok(Self::None),
            _ => Err(format!("'{input}' is no durability: always, everysec or none")),
        }
    }
}

impl fmt::Display for Durability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Always => "always",
            Self::EverySecond => "everysec",
            Self::None => "none",
        })
    }
}

/// Choices for as long as a drive is open.
#[derive(Clone, Debug)]
pub struct HeapOptions {
    /// When an append counts as durable.
    pub durability: Durability,
    /// Segments kept back from user writes, beside what is for rewrites: 1/60 of the drive, from 1 to a quarter
    /// of these, or 2. `None`: 1/256 of the drive, from 6 to 128.
    pub reserve_segments: Option<u32>,
    /// Recent commits kept in memory to be read without flash, in bytes.
    pub tail_bytes: usize,
    /// Bytes appended but not yet on flash before appends answer Busy.
    pub undurable_max_bytes: usize,
    /// Largest commit write, in bytes.
    pub commit_max_bytes: u32,
    /// Segments that commits are written to at once, at most; `None`: one a channel, and at most 44 and a sixteenth of the
    /// drive's segments.
    pub commit_lanes: Option<u16>,
    /// Bytes of a segment that a recovery reads at a time.
    pub replay_window_bytes: u32,
}

impl Default for HeapOptions {
    fn default() -> Self {
        Self {
            durability: Durability::Always,
            reserve_segments: None,
            tail_bytes: 16 << 20,
            undurable_max_bytes: 8 << 20,
            commit_max_bytes: 1 << 20,
            commit_lanes: None,
            replay_window_bytes: 8 << 20,
        }
    }
}
