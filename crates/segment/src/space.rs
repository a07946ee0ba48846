//! Where a drive's bytes are.

use std::fmt;

use pumice_base::size::format_size;

/// A drive's space by kind, in bytes. [`SpaceReport::accounted`] is `raw`: nothing is unexplained.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpaceReport {
    /// The whole device.
    pub raw: u64,
    /// Superblocks and metadata log, and what is kept free for superblocks to move to.
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
    /// Retired segments, and what nobody needs of such as do not read whole.
    pub bad: u64,
}

impl SpaceReport {
    /// The kinds, by the names that metrics and INFO give them.
    pub fn kinds(&self) -> [(&'static str, u64); 9] {
        [
            ("live", self.live),
            ("dead", self.dead),
            ("free", self.free),
            ("open", self.open),
            ("pending", self.pending),
            ("reserved", self.reserved),
            ("meta", self.meta),
            ("leftover", self.leftover),
            ("bad", self.bad),
        ]
    }

    /// The sum of all kinds.
    pub fn accounted(&self) -> u64 {
        self.kinds().iter().map(|(_, bytes)| bytes).sum()
    }

    /// What user data may take at most: all but metadata, the reserve and what is bad.
    pub fn usable(&self) -> u64 {
        self.raw - self.meta - self.leftover - self.bad - self.reserved
    }

    /// Which of the kinds a write that is refused for want of space has run into.
    pub fn shortage(&self) -> &'static str {
        // Cleaning for the last thirty-second costs more than it wins, and segments lose some to headers and padding.
        let takes = self.usable() / 16 * 15;
        if self.live < takes {
            return "what is dead lies between live records, and cleaning wins nothing more";
        }
        // It would fit, had no segment failed.
        if self.bad > 0 && self.live < (self.usable() + self.bad) / 16 * 15 {
            return "live data fills what segments that went bad have left";
        }
        "live data fills what is usable"
    }

    /// What a full cleaning would leave for user data.
    pub fn available(&self) -> u64 {
        self.free + self.open + self.pending + self.dead
    }
}

/// Erases of the segments that hold data or may.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Wear {
    /// Segments counted.
    pub segments: u32,
    /// The fewest.
    pub least: u32,
    /// The mean.
    pub mean: f64,
    /// The most.
    pub most: u32,
}

impl Wear {
    /// Of so many segments.
    pub(crate) fn of(erases: impl Iterator<Item = u32>) -> Self {
        let (mut wear, mut sum) = (Self { least: u32::MAX, ..Self::default() }, 0u64);
        for count in erases {
            wear.segments += 1;
            sum += u64::from(count);
            (wear.least, wear.most) = (wear.least.min(count), wear.most.max(count));
        }
        if wear.segments == 0 {
            return Self::default();
        }
        Self { mean: sum as f64 / f64::from(wear.segments), ..wear }
    }
}

/// One channel's space and wear.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ChannelReport {
    /// Its part of the drive's space: the channels' kinds add up to the drive's, but for what is left over at the end. The
    /// reserve is the drive's, and is shared out by what is free.
    pub space: SpaceReport,
    /// Of what is free or reserved, what has to be erased before it is written again: all that was ever written since its
    /// last erase, because segments are erased when they are opened.
    pub unerased: u64,
    /// Segments that are bad.
    pub bad_segments: u32,
    /// Erases of the others that hold data or may.
    pub wear: Wear,
}

impl fmt::Display for SpaceReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "of {} are live {}, dead {}, free {}, open {}, pending {}, reserved {}, \
             metadata {}, bad {}; delete data",
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
