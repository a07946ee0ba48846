//! Where a drive's bytes are.

use std::fmt;

use pumice_base::size::format_size;

/// A drive's space by kind, in bytes. [`SpaceReport::accounted`] is `raw`: nothing is unexplained.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpaceReport {
    /// The whole device.
    pub raw: u64,
    /// Superblocks and metadata log.
    pub meta: u64,
    /// What is left over at the end because it makes no whole segment.
    pub leftover: u64,
    /// Records that are alive, as far as the hints know.
    pub live: u64,
    /// Dead records, padding and headers: what cleaning can win back.
    pub dead: u64,
    /// The unwritten rest of open segments.
    pub open: u64,
    /// Released segments that wait for a metadata record or for readers.
    pub pending: u64,
    /// Free segments kept back for deletes, cleaning and metadata.
    pub reserved: u64,
    /// Free segments for user data.
    pub free: u64,
    /// Retired segments.
    pub bad: u64,
}

impl SpaceReport {
    /// The sum of all kinds.
    pub fn accounted(&self) -> u64 {
        self.meta
            + self.leftover
            + self.live
            + self.dead
            + self.open
            + self.pending
            + self.reserved
            + self.free
            + self.bad
    }

    /// What a full cleaning would leave for user data.
    pub fn available(&self) -> u64 {
        self.free + self.open + self.pending + self.dead
    }
}

impl fmt::Display for SpaceReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "of {} are live {}, dead {} (cleaning wins it back), free {}, open {}, pending {}, reserved {}, \
             metadata {}, bad {}; delete data or add a drive",
            format_size(self.raw),
            format_size(self.live),
            format_size(self.dead),
            format_size(self.free),
            format_size(self.open),
            format_size(self.pending),
            format_size(self.reserved),
            format_size(self.meta + self.leftover),
            format_size(self.bad),
        )
    }
}
