//! How each drive does, as those who use it find out: writes refused for want of room, and records that do not verify. Noted
//! where an error passes anyway, so that what goes well costs nothing.

use std::sync::Mutex;

use pumice_base::hash::HashSet;
use pumice_base::sync::lock;
use pumice_kv::{Store, StoreError};
use pumice_segment::{ReadError, RecordPtr};

/// Most damaged records of a drive that are told apart; beyond that they are no longer counted.
const DAMAGED_MAX: usize = 10_000;

/// How a drive does. What stands further down hides what stands above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DriveState {
    /// It takes and gives what it is asked.
    Ok,
    /// Something on it does not read.
    Damaged,
    /// It refuses writes for want of room, or did and has not won any since.
    Full,
    /// It takes no writes until there is room below it.
    NoSpace,
    /// It takes no more writes.
    Failed,
}

impl DriveState {
    /// All, in their order.
    pub const ALL: [Self; 5] = [Self::Ok, Self::Damaged, Self::Full, Self::NoSpace, Self::Failed];

    /// One word, as users see it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Damaged => "damaged",
            Self::Full => "full",
            Self::NoSpace => "no-space",
            Self::Failed => "failed",
        }
    }
}

/// A drive and how it does.
#[derive(Clone, Debug)]
pub struct DriveCondition {
    /// The drive, as it was named.
    pub drive: String,
    /// The worst that is known.
    pub state: DriveState,
    /// Records that reads met, since it was opened, and that do not verify.
    pub damaged_records: u64,
    /// Why it takes no writes.
    pub why: Option<String>,
}

/// What users of one drive met.
#[derive(Default)]
pub(crate) struct Met {
    /// Bytes alive when it was full last, as a write was told or would have been. Not those that could be won: background work
    /// borrows from the reserve and gives back, which is nobody's room.
    live_when_full: Mutex<Option<u64>>,
    damaged: Mutex<HashSet<RecordPtr>>,
}

impl Met {
    pub(crate) fn read(&self, error: &StoreError) {
        let ptr = match error {
            StoreError::Damaged { ptr, .. }
            | StoreError::Read {
                source: ReadError::Corrupt { ptr, .. } | ReadError::Flash { ptr, .. },
                ..
            } => ptr,
            _ => return,
        };
        let mut damaged = lock(&self.damaged);
        if damaged.len() < DAMAGED_MAX {
            damaged.insert(*ptr);
        }
    }

    pub(crate) fn refused(&self, error: &pumice_kv::WriteError) {
        if let pumice_kv::WriteError::Full(space) = error {
            *lock(&self.live_when_full) = Some(space.live);
        }
    }

    /// Whether it is full, or was and less has died since than has cleaning try again: what background work wins after that is not
    /// enough for anybody to rely on.
    fn is_full(&self, store: &Store) -> bool {
        let (is_full, live) = (store.is_full(), store.heap().space().live);
        let mut live_when_full = lock(&self.live_when_full);
        if is_full {
            *live_when_full = Some(live);
        }
        *live_when_full =
            live_when_full.filter(|then| live + u64::from(store.heap().segment_bytes()) > *then);
        live_when_full.is_some()
    }

    pub(crate) fn condition(&self, store: &Store, drive: String) -> DriveCondition {
        let heap = store.heap();
        let damaged_records = lock(&self.damaged).len() as u64;
        let why = heap.read_only().map(|why| why.to_string());
        let is_damaged =
            || damaged_records > 0 || heap.patrol_stats().damaged > 0 || store.stats().tables_set_aside > 0;
        let state = if why.is_some() {
            if heap.durable().failure().is_some() { DriveState::Failed } else { DriveState::NoSpace }
        } else if self.is_full(store) {
            DriveState::Full
        } else if is_damaged() {
            DriveState::Damaged
        } else {
            DriveState::Ok
        };
        DriveCondition { drive, state, damaged_records, why }
    }
}
