//! What is known of each segment, and sums of it, which follow every change: a drive has hundreds of thousands of segments, and how full
//! it is gets asked all the time.

use std::ops::{AddAssign, Deref, DerefMut, SubAssign};

use super::Entry;
use crate::layout::meta::{FLAG_ALLOCATED, FLAG_WRITTEN, SegmentState};

/// Read like a slice; changed through [`Entries::edit`] alone.
pub(super) struct Entries {
    list: Vec<Entry>,
    /// Those before hold superblocks and metadata, and are not counted.
    first_data: u32,
    segment_bytes: u32,
    sums: Sums,
}

/// Sums over data segments, in bytes but for the last three.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sums {
    pub live: u64,
    pub dead: u64,
    /// Not written yet, of open ones.
    pub open: u64,
    /// Released.
    pub pending: u64,
    pub bad: u64,
    /// Of superblocks and metadata that have moved here.
    pub system: u64,
    pub free: u64,
    /// What cannot be won by cleaning: `live`, and all of what is bad or the system's.
    pub kept: u64,
    /// Free ones that were written before.
    pub free_written: u64,
    pub free_fresh: u64,
    /// Those whose space was taken in advance.
    pub allocated: u64,
}

impl Sums {
    fn of(entry: &Entry, segment_bytes: u32) -> Self {
        let all = u64::from(segment_bytes);
        let live = (entry.live.max(0) as u64).min(all);
        let end = u64::from(entry.end).max(live);
        let sums =
            Self { kept: live, allocated: u64::from(entry.flags & FLAG_ALLOCATED != 0), ..Self::default() };
        match entry.state {
            SegmentState::Free => {
                let is_written = entry.flags & FLAG_WRITTEN != 0;
                let (free_written, free_fresh) = (u64::from(is_written), u64::from(!is_written));
                Self { free: all, free_written, free_fresh, ..sums }
            }
            SegmentState::Open => Self { live, dead: end - live, open: all.saturating_sub(end), ..sums },
            SegmentState::Sealed if entry.releasing => Self { pending: all, ..sums },
            SegmentState::Sealed if entry.unreadable_above.is_some() => {
                Self { live, bad: all - live, ..sums }
            }
            SegmentState::Sealed => Self { live, dead: all - live, ..sums },
            SegmentState::Bad => Self { bad: all, kept: all, ..sums },
            SegmentState::System => Self { system: all, kept: all, ..sums },
        }
    }

    fn each(&mut self, other: Self, change: impl Fn(&mut u64, u64)) {
        let Self { live, dead, open, pending, bad, system, free, kept, free_written, free_fresh, allocated } =
            self;
        change(live, other.live);
        change(dead, other.dead);
        change(open, other.open);
        change(pending, other.pending);
        change(bad, other.bad);
        change(system, other.system);
        change(free, other.free);
        change(kept, other.kept);
        change(free_written, other.free_written);
        change(free_fresh, other.free_fresh);
        change(allocated, other.allocated);
    }
}

impl AddAssign for Sums {
    fn add_assign(&mut self, other: Self) {
        self.each(other, |sum, part| *sum += part);
    }
}

impl SubAssign for Sums {
    fn sub_assign(&mut self, other: Self) {
        self.each(other, |sum, part| *sum -= part);
    }
}

impl Entries {
    pub(super) fn new(count: usize, first_data: u32, segment_bytes: u32) -> Self {
        let mut entries =
            Self { list: vec![Entry::default(); count], first_data, segment_bytes, sums: Sums::default() };
        entries.sums = entries.summed_up();
        entries
    }

    pub(super) fn sums(&self) -> &Sums {
        &self.sums
    }

    /// The sums, counted anew.
    pub(super) fn summed_up(&self) -> Sums {
        self.sums_of(0..self.list.len())
    }

    /// Sums over these segments.
    pub(super) fn sums_of(&self, ids: impl Iterator<Item = usize>) -> Sums {
        let mut sums = Sums::default();
        for id in ids.filter(|&id| id >= self.first_data as usize) {
            sums += Sums::of(&self.list[id], self.segment_bytes);
        }
        sums
    }

    /// Panics where there is no such segment.
    pub(super) fn edit(&mut self, id: u32) -> Edit<'_> {
        self.try_edit(id).expect("a segment of this drive")
    }

    pub(super) fn try_edit(&mut self, id: u32) -> Option<Edit<'_>> {
        let Self { list, first_data, segment_bytes, sums } = self;
        let entry = list.get_mut(id as usize)?;
        let counted = (id >= *first_data).then(|| (sums, Sums::of(entry, *segment_bytes)));
        Some(Edit { entry, counted, segment_bytes: *segment_bytes })
    }
}

impl Deref for Entries {
    type Target = [Entry];

    fn deref(&self) -> &[Entry] {
        &self.list
    }
}

/// An entry that is being changed; the sums follow when this is dropped.
pub(super) struct Edit<'a> {
    entry: &'a mut Entry,
    /// The sums, and what of them was this entry's.
    counted: Option<(&'a mut Sums, Sums)>,
    segment_bytes: u32,
}

impl Deref for Edit<'_> {
    type Target = Entry;

    fn deref(&self) -> &Entry {
        self.entry
    }
}

impl DerefMut for Edit<'_> {
    fn deref_mut(&mut self) -> &mut Entry {
        self.entry
    }
}

impl Drop for Edit<'_> {
    fn drop(&mut self) {
        if let Some((sums, before)) = &mut self.counted {
            let after = Sums::of(self.entry, self.segment_bytes);
            if after != *before {
                **sums += after;
                **sums -= *before;
            }
        }
    }
}
