//! Free segments that some may not take, so that others find some.

use pumice_flash::Geometry;

use super::Table;
use crate::AppendClass;

/// Segments of a drive for each that is kept for rewrites, on a small one.
const SEGMENTS_PER_REWRITE: u32 = 60;

/// Segments that are kept for rewrites beside `reserve`. With one alone there would be none whenever what key tables write to has a
/// segment more open than it had.
pub(super) fn for_rewrites(geometry: Geometry, first_data: u32, reserve: u32) -> u32 {
    let data_segments = geometry.block_count().saturating_sub(first_data);
    (data_segments / SEGMENTS_PER_REWRITE).clamp(1, (reserve / 4).max(2))
}

impl Table {
    /// Segments of the reserve, whoever may have them.
    pub(crate) fn reserve_segments(&self) -> u32 {
        self.reserve
    }

    /// Free segments that users leave: the reserve, or half of it, without what is for rewrites, while at most three quarters of the
    /// drive are alive. Every segment kept free is dead data cleaned too early, and what is lent comes back for certain: a quarter of the drive is
    /// dead or free when it is called back.
    pub(crate) fn user_floor(&self) -> u32 {
        self.floor(AppendClass::Rewrite) + if self.lent { 0 } else { self.kept_for_rewrites }
    }

    /// What nobody but deletes and the client's own work may have of the reserve.
    fn kept_from_rewrites(&self) -> u32 {
        let kept = self.reserve - self.kept_for_rewrites;
        if self.lent { kept - kept / 2 } else { kept }
    }

    /// Lends or calls back, seeing how much is alive. What is not known to be dead counts, and what cannot be won: cleaning moves
    /// records in frames of a quarter of a segment or less, and each victim's last frame is smaller: eight may lose a page at their
    /// ends. Much may be written before the next look: what is lent is called back as well when so many segments were opened that three quarters may be alive.
    pub(super) fn lend(&mut self, live_bytes: u64) {
        let segment_bytes = u64::from(self.geometry.block_bytes());
        let live_bytes = live_bytes + live_bytes * 8 * u64::from(self.geometry.page_bytes) / segment_bytes;
        let segments = self.entries.len() as u64 - u64::from(self.first_data);
        self.lent_for = (segments * segment_bytes / 4 * 3).saturating_sub(live_bytes) / segment_bytes;
        self.lent = self.lent_for > 0;
    }

    /// A segment was opened, which may come to be full of what is alive.
    pub(super) fn note_opened(&mut self) {
        self.lent_for = self.lent_for.saturating_sub(1);
        self.lent &= self.lent_for > 0;
    }

    /// Whether user data need not wait for the reserve. Cleaning dips into it all the time: a little of that is no reason to. That
    /// rewrites opened some of it is: users would fill that.
    pub(crate) fn leaves_reserve(&self) -> bool {
        let floor = self.user_floor();
        self.free_count() >= if self.rewritten { floor } else { floor - floor / 4 }
    }

    pub(crate) fn floor(&self, class: AppendClass) -> u32 {
        match class {
            AppendClass::User => self.user_floor(),
            AppendClass::Rewrite => self.kept_from_rewrites() + self.kept_for_cleaning(),
            // Deletes are small and bring space back: they may go further than anything else of the user's, and leave
            // enough for the key tables that they need.
            AppendClass::Delete => (self.kept_from_rewrites() / 2).max(1) + self.kept_for_cleaning(),
            AppendClass::Upkeep => 1 + self.kept_for_rescue + self.kept_for_cleaning(),
            AppendClass::System => self.kept_for_rescue,
            AppendClass::Rescue => 0,
        }
    }

    /// Whether user data is refused because the drive is full; `is_open`: an open segment would take it.
    pub(crate) fn refuses_users(&self, is_open: bool) -> bool {
        let lacks_segment = !is_open && self.free_count() <= self.user_floor();
        (lacks_segment || !self.leaves_reserve()) && self.is_full(AppendClass::User, 1)
    }

    /// How many segments user data was refused last; 0 once it got some.
    pub(crate) fn users_want(&self) -> u32 {
        self.users_want
    }

    /// Whether user data that was refused segments would get them now.
    pub(crate) fn has_room(&self) -> bool {
        let wanted = self.refused.max(1);
        self.free_count() >= self.user_floor() + wanted && self.openable() >= wanted as usize
    }

    /// Keeps so much free for cleaning beside the reserve, which is enough for one victim. Answers false, and changes nothing,
    /// when users could not have as much, and a segment more that is left to them.
    pub(crate) fn keep_for_cleaning(&mut self, bytes: u64) -> bool {
        self.kept_for_cleaning_bytes += bytes;
        let can_be = self.free_count() > self.user_floor();
        if !can_be {
            self.kept_for_cleaning_bytes -= bytes;
        }
        can_be
    }

    pub(crate) fn keep_less_for_cleaning(&mut self, bytes: u64) {
        self.kept_for_cleaning_bytes -= bytes;
    }

    pub(crate) fn kept_for_cleaning(&self) -> u32 {
        self.kept_for_cleaning_bytes.div_ceil(u64::from(self.geometry.block_bytes())) as u32
    }
}
