//! How each drive does, as those who use it find out: writes refused for want of room, and records that do not verify. Noted
//! where an error passes anyway, so that what goes well costs nothing. A drive that does not answer is found by who looks again.
//!
//! A [`DriveCondition`] is all there is to say of it: health, INFO, metrics, the page and the log are made of it.

use std::sync::Mutex;
use std::time::Duration;

use pumice_base::hash::HashMap;
use pumice_base::sync::lock;
use pumice_kv::{Store, StoreError};
use pumice_reactor::Answers;
use pumice_segment::{ReadError, RecordPtr};

/// Most damaged records of a drive that are told apart; beyond that they are no longer counted.
const DAMAGED_MAX: usize = 10_000;
/// How often somebody looks whether a drive answers.
pub(crate) const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// After so long without any answer a drive is not busy any more.
const UNRESPONSIVE_AFTER: Duration = Duration::from_secs(5);

/// How a drive does. What stands further down hides what stands above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DriveState {
    /// It takes and gives what it is asked.
    Ok,
    /// Something on it does not read.
    Damaged,
    /// It refuses writes for want of room, or did and has not won any since.
    Full,
    /// It does not answer what it is asked.
    Unresponsive,
    /// It takes no writes until there is room below it.
    NoSpace,
    /// It takes no more writes.
    Failed,
}

impl DriveState {
    /// All, in their order.
    pub const ALL: [Self; 6] =
        [Self::Ok, Self::Damaged, Self::Full, Self::Unresponsive, Self::NoSpace, Self::Failed];

    /// One word, as users see it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Damaged => "damaged",
            Self::Full => "full",
            Self::Unresponsive => "unresponsive",
            Self::NoSpace => "no-space",
            Self::Failed => "failed",
        }
    }

    /// Whether it takes no writes, whatever they are.
    pub fn is_read_only(self) -> bool {
        matches!(self, Self::NoSpace | Self::Failed)
    }

    /// Whether it refuses writes.
    pub fn refuses_writes(self) -> bool {
        self == Self::Full || self.is_read_only()
    }
}

/// A drive and how it does.
#[derive(Clone, Debug)]
pub struct DriveCondition {
    /// The drive, as it was named.
    pub drive: String,
    /// The worst that is known.
    pub state: DriveState,
    /// Records that reads met since it was opened, that do not verify, and whose segments were not released since.
    pub damaged_records: u64,
    /// Why it is in this state, and what to do; `None` when all is well.
    pub why: Option<String>,
}

impl DriveCondition {
    /// What is wrong, naming the drive; `None` when all is well.
    pub fn trouble(&self) -> Option<String> {
        Some(format!("drive {} {}: {}", self.drive, self.state.word(), self.why.as_ref()?))
    }
}

/// Damage that reads met since somebody asked last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NewDamage {
    /// The first place.
    pub first: Option<RecordPtr>,
    /// Places beside it.
    pub more: u64,
}

/// Requests of one kind that a drive was asked and has not answered.
#[derive(Clone, Copy)]
struct Unanswered {
    /// How many it had answered before.
    answered: u64,
    under_way: u64,
    /// So often somebody looked since, and found no other answered.
    looks: u32,
}

impl Unanswered {
    fn looked(before: Option<Self>, now: Answers) -> Option<Self> {
        let Answers { under_way, answered } = now;
        match before {
            _ if under_way == 0 => None,
            Some(before) if before.answered == answered => {
                Some(Self { looks: before.looks + 1, under_way, ..before })
            }
            _ => Some(Self { answered, under_way, looks: 0 }),
        }
    }

    fn is_long(&self) -> bool {
        LOOK_INTERVAL * self.looks >= UNRESPONSIVE_AFTER
    }
}

/// Apart, because one kind may stand still while the other is answered: a frozen file system reads.
#[derive(Clone, Copy, Default)]
struct Silence {
    reads: Option<Unanswered>,
    changes: Option<Unanswered>,
}

/// What users of one drive met.
#[derive(Default)]
pub(crate) struct Met {
    /// Bytes alive when it was full last, as a write was told or would have been. Not those that could be won: background work
    /// borrows from the reserve and gives back, which is nobody's room.
    live_when_full: Mutex<Option<u64>>,
    silence: Mutex<Silence>,
    damaged: Mutex<Damaged>,
}

#[derive(Default)]
struct Damaged {
    /// Each place, and what [`pumice_segment::Heap::lives`] was when it was met.
    places: HashMap<RecordPtr, u64>,
    new: NewDamage,
}

impl Met {
    pub(crate) fn read(&self, store: &Store, error: &StoreError) {
        let ptr = match error {
            StoreError::Damaged { ptr, .. }
            | StoreError::Read {
                source: ReadError::Corrupt { ptr, .. } | ReadError::Flash { ptr, .. },
                ..
            } => *ptr,
            _ => return,
        };
        let mut damaged = lock(&self.damaged);
        if damaged.places.len() < DAMAGED_MAX && damaged.places.insert(ptr, store.heap().lives()).is_none() {
            match damaged.new.first {
                Some(_) => damaged.new.more += 1,
                None => damaged.new.first = Some(ptr),
            }
        }
    }

    pub(crate) fn take_new_damage(&self) -> NewDamage {
        std::mem::take(&mut lock(&self.damaged).new)
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

    /// Notes whether the drive answers what it is asked: to be called every [`LOOK_INTERVAL`].
    pub(crate) fn look(&self, store: &Store) {
        let Some(requests) = store.heap().device().requests() else { return };
        let silence = &mut *lock(&self.silence);
        silence.reads = Unanswered::looked(silence.reads, requests.reads);
        silence.changes = Unanswered::looked(silence.changes, requests.changes);
    }

    /// What it has not answered, when that has been so for long.
    fn unresponsive(&self) -> Option<String> {
        let Silence { reads, changes } = *lock(&self.silence);
        let (reads, changes) = (reads.filter(Unanswered::is_long), changes.filter(Unanswered::is_long));
        let looks = reads.into_iter().chain(changes).map(|silent| silent.looks).max()?;
        let wait: u64 = reads.into_iter().chain(changes).map(|silent| silent.under_way).sum();
        let seconds = (LOOK_INTERVAL * looks).as_secs();
        let (what, served) = match (reads, changes) {
            (None, _) => ("no write", "reads are served, and no write is acknowledged"),
            (_, None) => ("no read", "only what memory holds is served"),
            _ => ("nothing", "only what memory holds is served"),
        };
        Some(format!("it has answered {what} for {seconds} s, and {wait} requests wait: {served}"))
    }

    /// Forgets places whose segment was released since; answers how many are left.
    fn damaged_records(&self, store: &Store) -> u64 {
        let mut damaged = lock(&self.damaged);
        damaged.places.retain(|ptr, lives| store.heap().holds_since(ptr.addr.segment(), *lives));
        damaged.places.len() as u64
    }

    pub(crate) fn condition(&self, store: &Store, drive: String) -> DriveCondition {
        let heap = store.heap();
        let damaged_records = self.damaged_records(store);
        let (state, why) = if let Some(why) = heap.read_only() {
            let has_failed = heap.durable().failure().is_some();
            (if has_failed { DriveState::Failed } else { DriveState::NoSpace }, Some(why.to_string()))
        } else if let Some(why) = self.unresponsive() {
            (DriveState::Unresponsive, Some(why))
        } else if self.is_full(store) {
            let space = heap.space();
            (DriveState::Full, Some(format!("writes are refused: {}; {space}", space.shortage())))
        } else if let Some(why) = damage(store, damaged_records) {
            (DriveState::Damaged, Some(why))
        } else {
            (DriveState::Ok, None)
        };
        DriveCondition { drive, state, damaged_records, why }
    }
}

/// What is known not to read.
fn damage(store: &Store, damaged_records: u64) -> Option<String> {
    let parts: Vec<String> = [
        (damaged_records, "records that reads met do not verify"),
        (store.heap().damage_found(), "places that the patrol read do not verify"),
        (store.stats().tables_set_aside, "key tables do not read whole"),
    ]
    .into_iter()
    .filter(|(count, _)| *count > 0)
    .map(|(count, what)| format!("{count} {what}"))
    .collect();
    let is_damaged = !parts.is_empty();
    is_damaged
        .then(|| format!("{}; other data is unharmed, `pumice check` lists all damage", parts.join(", ")))
}
