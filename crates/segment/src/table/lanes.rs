//! What streams in several segments at once ask of the table.

use super::Table;
use crate::SegmentId;

/// Segments that are written at once for each that is kept for a failed program, beside the first.
const LANES_A_RESCUE: u32 = 8;

impl Table {
    /// The commit stream writes to so many segments at once: where programs fail, several may at a time.
    pub(crate) fn widen(&mut self, lanes: usize) {
        if self.kept_for_rescue > 0 {
            let more = (lanes as u32).saturating_sub(1) / LANES_A_RESCUE;
            self.kept_for_rescue += more;
            self.reserve += more;
        }
    }

    /// Whether `n` segments can be opened that nobody needs: `reserve` more than these stay free for users.
    pub(crate) fn can_spare(&self, n: usize, reserve: usize) -> bool {
        self.free_count() as usize >= self.user_floor() as usize + n + reserve && self.openable() >= 2 * n
    }

    /// Whether not even users get segments, so that nobody should open any for convenience.
    pub(crate) fn is_short(&self) -> bool {
        !self.leaves_reserve()
    }

    /// A record was moved to this segment that nothing names yet: it is no victim until [`Table::let_go`]. Whoever emptied it
    /// would take the record for dead.
    pub(crate) fn hold(&mut self, id: SegmentId) {
        *self.held.entry(id.0).or_default() += 1;
    }

    pub(crate) fn let_go(&mut self, id: SegmentId) {
        if let Some(times) = self.held.get_mut(&id.0) {
            *times -= 1;
            if *times == 0 {
                self.held.remove(&id.0);
            }
        }
    }

    pub(super) fn is_held(&self, id: u32) -> bool {
        self.held.contains_key(&id)
    }
}
