//! What all cores ask of a file, and how much of it they may ask at a time.
//!
//! Cores write in memory of their own for each operation ([`Share`]) and meet seldom: each takes places for more reads than it has, and
//! keeps them for the next ones while it sees nobody wait.

use pumice_base::sync::lock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// What a queue takes of which nobody knows.
const QUEUE_DEPTH: u32 = 128;
/// Reads at a time, whatever the queue takes.
const READS_MIN: u32 = 4;
/// Longer reads are several requests.
const REQUEST_BYTES: usize = 256 << 10;
/// Places that a core keeps beyond its reads, at most. All cores together keep a quarter of the queue from others, should they fall idle.
const SPARE_MAX: u32 = 16;

/// The places of a file. See the module's text.
#[derive(Debug)]
pub struct FileQueue {
    /// How much of it all cores may read at a time, in requests to its device.
    max: u32,
    taken: Apart<AtomicU32>,
    /// Cores on which reads wait.
    cores_waiting: AtomicU32,
    /// Places that a core keeps beyond its reads.
    spare: AtomicU32,
    is_closed: AtomicBool,
    /// Of each core that has used it.
    counts: Mutex<Vec<Arc<Apart<Counts>>>>,
}

/// On cache lines of its own: two, as processors fetch them in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Apart<T>(T);

/// What one core has asked; it alone writes.
#[derive(Debug, Default)]
struct Counts {
    reads: Count,
    changes: Count,
}

#[derive(Debug, Default)]
struct Count {
    begun: AtomicU64,
    answered: AtomicU64,
}

impl Count {
    fn of(counts: &Counts, kind: Asked) -> &Self {
        match kind {
            Asked::Read => &counts.reads,
            Asked::Change => &counts.changes,
        }
    }
}

/// What a file is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// What it holds.
    Read,
    /// Whatever else: a write, a sync, space.
    Change,
}

/// How far the world is with what it was asked of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Requests {
    /// Reads.
    pub reads: Answers,
    /// Writes, syncs and what else is not a read: these may stand still while reads are answered.
    pub changes: Answers,
}

/// How far the world is with requests of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answers {
    /// Operations that it has not answered.
    pub under_way: u64,
    /// Those that it has answered since the file was opened, whatever the answer, and whether or not anybody has fetched it.
    pub answered: u64,
}

impl FileQueue {
    /// That of a file above a queue of that depth.
    pub(crate) fn of(queue_depth: Option<u32>) -> Arc<Self> {
        let depth = queue_depth.unwrap_or(QUEUE_DEPTH);
        Self::limited((depth - depth / 8).max(READS_MIN))
    }

    /// One that takes whatever it is asked for.
    pub(crate) fn unlimited() -> Arc<Self> {
        Self::limited(u32::MAX / 2)
    }

    fn limited(max: u32) -> Arc<Self> {
        Arc::new(Self {
            max,
            taken: Apart::default(),
            cores_waiting: AtomicU32::new(0),
            spare: AtomicU32::new(0),
            is_closed: AtomicBool::new(false),
            counts: Mutex::default(),
        })
    }

    /// So far.
    pub(crate) fn requests(&self) -> Requests {
        Requests { reads: self.answers(Asked::Read), changes: self.answers(Asked::Change) }
    }

    fn answers(&self, kind: Asked) -> Answers {
        let counts = lock(&self.counts);
        let of_cores = || counts.iter().map(|core| Count::of(&core.0, kind));
        // In this order: what ends in between is counted as under way, and the next look finds it answered.
        let answered: u64 = of_cores().map(|count| count.answered.load(Ordering::Acquire)).sum();
        let begun: u64 = of_cores().map(|count| count.begun.load(Ordering::Relaxed)).sum();
        Answers { under_way: begun.saturating_sub(answered), answered }
    }

    /// The places that a read of so many bytes needs.
    pub(crate) fn requests_of(&self, bytes: usize) -> u32 {
        u32::try_from(bytes.div_ceil(REQUEST_BYTES)).unwrap_or(u32::MAX).clamp(1, self.max)
    }

    /// The file's last owner has let go.
    pub(crate) fn close(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
    }
}

/// One core's part of a file's queue.
pub(crate) struct Share {
    queue: Arc<FileQueue>,
    counts: Arc<Apart<Counts>>,
    /// Places that its reads have.
    own: u32,
    /// Places that it has: as many, and some for the next reads.
    leased: u32,
    /// It is one of the cores on which reads wait.
    waits: bool,
}

impl Share {
    pub(crate) fn of(queue: &Arc<FileQueue>) -> Self {
        let counts = Arc::default();
        let mut cores = lock(&queue.counts);
        cores.push(Arc::clone(&counts));
        queue.spare.store((queue.max / 4 / cores.len() as u32).min(SPARE_MAX), Ordering::Relaxed);
        Self { queue: Arc::clone(queue), counts, own: 0, leased: 0, waits: false }
    }

    pub(crate) fn is_of(&self, queue: &Arc<FileQueue>) -> bool {
        Arc::ptr_eq(&self.queue, queue)
    }

    /// Whether nobody can ask for anything any more.
    pub(crate) fn is_closed(&self) -> bool {
        self.queue.is_closed.load(Ordering::Relaxed)
    }

    /// An operation was asked for.
    pub(crate) fn note_begun(&self, kind: Asked) {
        let Count { begun, .. } = Count::of(&self.counts.0, kind);
        begun.store(begun.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// One has been answered.
    pub(crate) fn note_answered(&self, kind: Asked) {
        let Count { answered, .. } = Count::of(&self.counts.0, kind);
        answered.store(answered.load(Ordering::Relaxed) + 1, Ordering::Release);
    }

    /// Reads wait on this core, or do not any more.
    pub(crate) fn set_waits(&mut self, waits: bool) {
        if self.waits != waits {
            self.waits = waits;
            match waits {
                true => self.queue.cores_waiting.fetch_add(1, Ordering::Relaxed),
                false => self.queue.cores_waiting.fetch_sub(1, Ordering::Relaxed),
            };
        }
    }

    /// Places that it may keep beyond those of its reads, where so many other cores wait.
    fn spare(&self, others_waiting: u32) -> u32 {
        if others_waiting > 0 { 0 } else { self.queue.spare.load(Ordering::Relaxed) }
    }

    /// Other cores on which reads wait.
    fn others_waiting(&self) -> u32 {
        self.queue.cores_waiting.load(Ordering::Relaxed).saturating_sub(u32::from(self.waits))
    }

    /// Takes places for a read, if it may have them now.
    pub(crate) fn take(&mut self, requests: u32) -> bool {
        let others = self.others_waiting();
        let wanted = self.own + requests;
        if self.own > 0 && others > 0 && wanted > self.queue.max / (others + 1) {
            return false;
        }
        if wanted > self.leased {
            let need = wanted - self.leased;
            if !self.lease(need + self.spare(others), false) && !self.lease(need, self.own == 0) {
                return false;
            }
        }
        self.own = wanted;
        true
    }

    fn lease(&mut self, places: u32, whatever_there_is: bool) -> bool {
        let before = self.queue.taken.0.fetch_add(places, Ordering::Relaxed);
        let fits = whatever_there_is || before + places <= self.queue.max;
        if fits {
            self.leased += places;
        } else {
            self.queue.taken.0.fetch_sub(places, Ordering::Relaxed);
        }
        fits
    }

    /// A read has ended that had them.
    pub(crate) fn give_back(&mut self, requests: u32) {
        self.own -= requests;
        let kept = self.spare(self.others_waiting());
        if self.leased > self.own + kept {
            self.queue.taken.0.fetch_sub(self.leased - self.own - kept, Ordering::Relaxed);
            self.leased = self.own + kept;
        }
    }
}
