//! Whether a commit waits for company: who has just been told that a commit is on flash comes back with the next write at once,
//! so users who all wait for their commits can share one, rather than two that take turns on the drive.
//!
//! 1. As many appends as were under way at once lately are expected, if they are not more than [`FEW`] or space is short. Until
//!    they have come, a commit waits for half as long as one takes to write.
//! 2. Unless three quarters of them come, the next commits do not wait: first one, then two, four, up to [`SKIPS_MAX`]. Two
//!    halves that take turns write half of them in each write's time; three quarters in half as long again is as much. Users who
//!    come when they please hardly ever do so: they do not wait for one another, and whoever is alone never does.
//! 3. With large values nobody is waited for: when half have come, their commit sets out beside that of the other half.

use std::time::Duration;

use pumice_reactor::Nanos;

/// More users come back more slowly than it pays to wait for, unless space is short.
const FEW: u32 = 16;
/// However long the drive takes.
const WAIT_MAX: Duration = Duration::from_micros(500);
/// Commits that do not wait between two that do, at most.
const SKIPS_MAX: u32 = 64;

/// Counts appends and remembers what became of waiting for them.
#[derive(Default)]
pub(crate) struct Company {
    /// Appends that are not on flash.
    under_way: u32,
    /// The most that were so at once, lately.
    lately: u32,
    /// The forming frame waits.
    waits: bool,
    /// Frames that do not wait, from the next one on.
    skips: u32,
    /// As many will not when waiting fails next.
    next_skips: u32,
    /// What writing a frame takes.
    write_time: Duration,
    /// Nothing is being written since.
    quiet_since: Nanos,
}

impl Company {
    /// An append came.
    pub(crate) fn came(&mut self) {
        self.under_way += 1;
        self.lately = self.lately.max(self.under_way);
    }

    /// So many have come that hardly anybody else will.
    pub(crate) fn is_complete(&self, appends: u32) -> bool {
        appends + self.lately / 16 >= self.lately
    }

    /// Half of those have come who are expected.
    pub(crate) fn is_half(&self, appends: u32) -> bool {
        appends >= self.lately - self.lately / 2
    }

    /// The forming frame waits.
    pub(crate) fn is_awaited(&self) -> bool {
        self.waits
    }

    /// How long a frame with so many appends, the first of which came at `since`, should wait for more. `for_many`: also where many
    /// are expected.
    pub(crate) fn wait(&mut self, appends: u32, since: Nanos, at: Nanos, for_many: bool) -> Option<Duration> {
        if self.skips > 0 || self.is_complete(appends) || (self.lately > FEW && !for_many) {
            return None;
        }
        let waited = at.since(since.max(self.quiet_since));
        let rest = (self.write_time / 2).min(WAIT_MAX).saturating_sub(waited);
        if rest.is_zero() {
            return None;
        }
        self.waits = true;
        Some(rest)
    }

    /// A frame of so many appends was sealed.
    pub(crate) fn sealed(&mut self, appends: u32) {
        self.skips = self.skips.saturating_sub(1);
        if std::mem::take(&mut self.waits) {
            if appends >= self.lately - self.lately / 4 {
                self.next_skips = 0;
            } else {
                self.next_skips = (self.next_skips * 2).clamp(1, SKIPS_MAX);
                self.skips = self.next_skips;
            }
        }
        self.lately = (self.lately - self.lately.div_ceil(8)).max(self.under_way);
    }

    /// So many appends are on flash, whose frame took so long to write.
    pub(crate) fn left(&mut self, appends: u32, took: Duration) {
        self.under_way -= appends;
        self.write_time = (self.write_time * 7 + took) / 8;
    }

    /// Nothing is being written from now on.
    pub(crate) fn quiet(&mut self, at: Nanos) {
        self.quiet_since = at;
    }
}
