//! What the parts of a heap share, and the order of its locks: commit, then one of the leaves (table, tail,
//! metadata state, moves). None is held across an await.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use pumice_base::hash::HashMap;
use pumice_base::latency::LatencyHistogram;
use pumice_base::sync::lock;
use pumice_flash::{BlockAddr, Device};
use pumice_reactor::spawn;
use pumice_reactor::sync::{Gate, Notify};

use crate::ahead::Ahead;
use crate::commit::{Commit, no_segment};
use crate::home::Home;
use crate::layout::superblock::Superblock;
use crate::layout::{frame, record};
use crate::metalog::MetaLog;
use crate::moves::Moves;
use crate::pace::Pace;
use crate::patrol::FoundDamage;
use crate::room::{Lacks, Room};
use crate::table::{NoSegment, OpenSegment, Table};
use crate::tail::Tail;
use crate::writer::{self, Writer};
use crate::{
    Addr, AppendClass, AppendError, Durability, HeapOptions, HeapStats, OnRelocated, PatrolStats, RecordPtr,
};
use crate::{SegmentId, Stream};

/// A commit stream that takes longer than this for a segment has its next ones written ahead.
const PREWRITE_IF_SLOWER_NS: u64 = 100_000_000;

/// Counters that grow outside locks.
#[derive(Default)]
pub(crate) struct Counters {
    pub busy: AtomicU64,
    pub commits: AtomicU64,
    pub commit_bytes: AtomicU64,
    pub commit_padding_bytes: AtomicU64,
    pub moved_bytes: AtomicU64,
    pub table_bytes: AtomicU64,
    pub large_bytes: AtomicU64,
    pub meta_bytes: AtomicU64,
    pub meta_records: AtomicU64,
    pub prewritten_bytes: AtomicU64,
    pub reads: AtomicU64,
    pub read_bytes: AtomicU64,
    pub tail_hits: AtomicU64,
    pub ahead_reads: AtomicU64,
    pub ahead_hits: AtomicU64,
    pub relocations: AtomicU64,
}

pub(crate) struct Inner {
    pub device: Device,
    /// As it was when the drive was opened; what may change since is in `home`.
    pub superblock: Superblock,
    pub home: Home,
    pub options: HeapOptions,
    /// Segments that the commit stream writes to at once: `lanes`.
    pub lanes: usize,
    pub segment_bytes: u32,
    /// Free segments that user data leaves: [`Table::user_floor`].
    user_floor: AtomicU32,
    /// Everything that counts as durable under the chosen durability.
    pub durable: Gate,
    /// Everything that was written, perhaps not synced.
    pub written: Gate,
    /// Address of the forming frame's buffer, `u64::MAX` when none forms: spares most readers the commit lock.
    pub forming_at: AtomicU64,
    pub pump_wake: Notify,
    pub room: Room,
    pub pace: Pace,
    /// Commits are to pad as little as possible.
    pub is_sparing: AtomicBool,
    pub meta: MetaLog,
    /// By lane (`writer::lanes`).
    pub writers: [Writer; writer::LANES],
    /// Spreads who waits over the lanes of a stream.
    pub next_lane: AtomicUsize,
    pub counters: Counters,
    pub latency: Mutex<LatencyHistogram>,
    moves: Mutex<Moves>,
    pub on_relocated: OnceLock<OnRelocated>,
    /// Old places of relocated records, for readers that hold old pointers.
    pub aliases: Mutex<HashMap<Addr, RecordPtr>>,
    pub has_aliases: AtomicBool,
    pub meta_kicked: AtomicBool,
    /// A leaf lock.
    pub ahead: Mutex<Ahead>,
    /// A leaf lock.
    patrol: Mutex<PatrolStats>,
    found_damage: Mutex<FoundDamage>,
    /// When the commit stream last opened a segment.
    commit_opened_ns: AtomicU64,
    /// What the commit stream took for its last segment; `u64::MAX` before that is known.
    commit_segment_ns: AtomicU64,
    /// Free segments, as of the last change.
    free: AtomicU32,
    /// Above every segment's life, and at most the next one's: spares readers the table's lock.
    pub lives: AtomicU64,
    commit: Mutex<Commit>,
    table: Mutex<Table>,
    tail: Mutex<Tail>,
    blocked: AtomicBool,
    blocked_why: Mutex<Blocked>,
}

/// Why appends are refused.
#[derive(Default)]
struct Blocked {
    /// For good.
    failed: Option<Arc<str>>,
    /// While the replay runs, and once the heap is closed.
    paused: Option<Arc<str>>,
    /// While the host has no space. Whoever finds space again must not lift a pause.
    host_full: Option<Arc<str>>,
}

impl Blocked {
    fn is_blocked(&self) -> bool {
        self.failed.is_some() || self.paused.is_some() || self.host_full.is_some()
    }
}

impl Inner {
    pub(crate) fn new(
        device: Device,
        (superblock, superblock_at): (Superblock, u32),
        (options, lanes): (HeapOptions, usize),
        table: Table,
        meta: MetaLog,
    ) -> Self {
        let tail_bytes = options.tail_bytes;
        Self {
            segment_bytes: device.geometry().block_bytes(),
            user_floor: AtomicU32::new(table.user_floor()),
            lives: AtomicU64::new(table.next_life()),
            device,
            home: Home::new(superblock.clone(), superblock_at),
            superblock,
            options,
            lanes,
            durable: Gate::new(0),
            written: Gate::new(0),
            forming_at: AtomicU64::new(u64::MAX),
            pump_wake: Notify::new(),
            room: Room::default(),
            pace: Pace::default(),
            is_sparing: AtomicBool::new(false),
            meta,
            writers: std::array::from_fn(|_| Writer::default()),
            next_lane: AtomicUsize::new(0),
            counters: Counters::default(),
            latency: Mutex::default(),
            moves: Mutex::default(),
            on_relocated: OnceLock::new(),
            aliases: Mutex::default(),
            has_aliases: AtomicBool::new(false),
            meta_kicked: AtomicBool::new(false),
            patrol: Mutex::default(),
            found_damage: Mutex::default(),
            commit_opened_ns: AtomicU64::new(0),
            commit_segment_ns: AtomicU64::new(u64::MAX),
            free: AtomicU32::new(u32::MAX),
            commit: Mutex::new(Commit::new(1, 0, 1)),
            table: Mutex::new(table),
            tail: Mutex::new(Tail::new(tail_bytes)),
            ahead: Mutex::default(),
            blocked: AtomicBool::new(false),
            blocked_why: Mutex::default(),
        }
    }

    pub(crate) fn commit(&self) -> MutexGuard<'_, Commit> {
        lock(&self.commit)
    }

    pub(crate) fn table(&self) -> MutexGuard<'_, Table> {
        lock(&self.table)
    }

    pub(crate) fn tail(&self) -> MutexGuard<'_, Tail> {
        lock(&self.tail)
    }

    pub(crate) fn moves(&self) -> MutexGuard<'_, Moves> {
        lock(&self.moves)
    }

    /// What the patrol found damaged. Before the table's lock.
    pub(crate) fn found_damage(&self) -> MutexGuard<'_, FoundDamage> {
        lock(&self.found_damage)
    }

    pub(crate) fn patrol_stats(&self) -> MutexGuard<'_, PatrolStats> {
        lock(&self.patrol)
    }

    pub(crate) fn page_bytes(&self) -> usize {
        self.superblock.page_bytes as usize
    }

    pub(crate) fn block(&self, segment: SegmentId) -> BlockAddr {
        self.device.geometry().block(segment.0)
    }

    /// Whether the commit stream may have two writes on their way in a segment. On media that tell of a failed program, what
    /// follows it must not be under way yet; in the relaxed modes nobody waits for a write.
    pub(crate) fn is_pipelined(&self) -> bool {
        matches!(self.device, Device::File(_))
            && self.options.durability == Durability::Always
            && self.lanes == 1
    }

    /// Largest commit frame without a segment header, a multiple of the page.
    pub(crate) fn frame_max_bytes(&self) -> usize {
        let page = self.page_bytes();
        let max = (self.options.commit_max_bytes as usize).min(self.segment_bytes as usize - page);
        (max / page).max(1) * page
    }

    /// Largest record payload of an append: a quarter of a segment, so that little is lost at a segment's end.
    pub(crate) fn append_max_bytes(&self) -> u32 {
        (self.segment_bytes / 4).min(4 << 20).max(self.superblock.page_bytes * 2)
            - (record::HEADER_BYTES + frame::HEADER_BYTES) as u32
    }

    /// Refuses when the heap takes no writes now.
    pub(crate) fn check_writable(&self) -> Result<(), AppendError> {
        match self.blocked() {
            None => Ok(()),
            Some(reason) => Err(AppendError::ReadOnly(reason)),
        }
    }

    pub(crate) fn blocked(&self) -> Option<Arc<str>> {
        if !self.blocked.load(Ordering::Acquire) {
            return None;
        }
        let why = lock(&self.blocked_why);
        why.failed.clone().or_else(|| why.paused.clone()).or_else(|| why.host_full.clone())
    }

    pub(crate) fn failed(&self) -> Option<Arc<str>> {
        if !self.blocked.load(Ordering::Acquire) {
            return None;
        }
        lock(&self.blocked_why).failed.clone()
    }

    /// Takes no more writes from here on; what waits for durability learns that it fails.
    pub(crate) fn fail(&self, reason: &str) {
        let reason: Arc<str> = {
            let mut why = lock(&self.blocked_why);
            let reason = why.failed.get_or_insert_with(|| reason.into()).clone();
            self.blocked.store(true, Ordering::Release);
            reason
        };
        self.written.fail(&reason);
        self.durable.fail(&reason);
        self.room_came();
    }

    /// Takes no appends for now.
    pub(crate) fn pause(&self, reason: Option<&str>) {
        let mut why = lock(&self.blocked_why);
        why.paused = reason.map(Into::into);
        self.blocked.store(why.is_blocked(), Ordering::Release);
        drop(why);
        self.room_came();
    }

    /// Why nothing is written now, if that is for want of space under the device.
    pub(crate) fn why_host_full(&self) -> Option<Arc<str>> {
        lock(&self.blocked_why).host_full.clone()
    }

    /// Whether it is being opened or closed, or was closed.
    pub(crate) fn is_paused(&self) -> bool {
        lock(&self.blocked_why).paused.is_some()
    }

    /// Takes no appends while the host's file system has no space; with `None` it has some again.
    pub(crate) fn host_full(&self, reason: Option<&str>) {
        let mut why = lock(&self.blocked_why);
        why.host_full = reason.map(Into::into);
        self.blocked.store(why.is_blocked(), Ordering::Release);
        drop(why);
        self.room_came();
    }

    /// Opens segments for `stream` and asks for a metadata record in time for the next ones.
    pub(crate) fn open_segments(
        &self,
        stream: Stream,
        n: usize,
        class: AppendClass,
        out: &mut VecDeque<OpenSegment>,
    ) -> Result<(), AppendError> {
        let before = out.len();
        let result = {
            let mut table = self.table();
            let result = table.open(stream, n, class, out);
            // Before anything is written there, and so before anybody can be told of it.
            self.lives.store(table.next_life(), Ordering::Release);
            self.note_reserve(&table);
            result
        };
        if result.is_ok() {
            let mut tail = self.tail();
            for open in out.iter().skip(before) {
                tail.forget(open.id);
            }
        }
        result.map_err(|why| no_segment(self, why))
    }

    /// Whether `n` segments could be opened that nobody needs.
    pub(crate) fn can_spare(&self, n: usize) -> bool {
        self.table().can_spare(n, self.lanes / 2)
    }

    /// To be called when free segments were taken or have come, or some were lent.
    pub(crate) fn note_reserve(&self, table: &Table) {
        self.user_floor.store(table.user_floor(), Ordering::Relaxed);
        self.free.store(table.free_count(), Ordering::Relaxed);
    }

    /// Refuses user data while much of the reserve is in use, also where an open segment would take it: deletes or
    /// cleaning have opened that.
    pub(crate) fn check_reserve(&self, class: AppendClass) -> Result<(), AppendError> {
        let least = match class {
            AppendClass::User => self.user_floor.load(Ordering::Relaxed),
            AppendClass::Rewrite => self.table().floor(class),
            // The last segment of all was opened by cleaning, which needs what is left of it to empty its victim.
            AppendClass::Upkeep => 1,
            AppendClass::Delete | AppendClass::System | AppendClass::Rescue => return Ok(()),
        };
        let free = self.free.load(Ordering::Relaxed);
        if free >= least {
            return Ok(());
        }
        let mut table = self.table();
        if class == AppendClass::User && table.leaves_reserve() {
            return Ok(());
        }
        let why = table.refuse(class, 1);
        drop(table);
        if class == AppendClass::User && why == NoSegment::Later {
            self.room.tried(Lacks::Reserve);
        }
        Err(no_segment(self, why))
    }

    pub(crate) fn stats(&self) -> HeapStats {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counters = &self.counters;
        let (commits_beside, undurable_bytes, appended) = {
            let commit = self.commit();
            (commit.beside, commit.undurable_bytes as u64, commit.appended)
        };
        let (segments_opened, segments_released) = {
            let table = self.table();
            (table.opened, table.released)
        };
        HeapStats {
            records: appended.records,
            appends: appended.appends,
            payload_bytes: appended.payload_bytes,
            commits: count(&counters.commits),
            commit_bytes: count(&counters.commit_bytes),
            commit_padding_bytes: count(&counters.commit_padding_bytes),
            moved_bytes: count(&counters.moved_bytes),
            table_bytes: count(&counters.table_bytes),
            large_bytes: count(&counters.large_bytes),
            meta_bytes: count(&counters.meta_bytes),
            meta_records: count(&counters.meta_records),
            prewritten_bytes: count(&counters.prewritten_bytes),
            reads: count(&counters.reads),
            read_bytes: count(&counters.read_bytes),
            tail_hits: count(&counters.tail_hits),
            ahead_reads: count(&counters.ahead_reads),
            ahead_hits: count(&counters.ahead_hits),
            segments_opened,
            segments_released,
            relocations: count(&counters.relocations),
            busy: count(&counters.busy),
            commit_latency: lock(&self.latency).clone(),
            commits_beside,
            undurable_bytes,
        }
    }

    /// Writes the next segments ahead of need where fresh ones commit slower: while the commit stream is slow enough
    /// to profit. Streams that fill a segment faster write large frames, which fresh space hardly slows.
    pub(crate) fn kick_prewrite(self: &Arc<Self>) {
        if !self.device.wants_prewrite() {
            return;
        }
        let now_ns = pumice_reactor::now().0;
        let before_ns = self.commit_opened_ns.swap(now_ns, Ordering::Relaxed);
        if before_ns > 0 {
            // Another core may have come with a later time.
            self.commit_segment_ns.store(now_ns.saturating_sub(before_ns), Ordering::Relaxed);
        }
        let is_slow = |inner: &Self| inner.commit_segment_ns.load(Ordering::Relaxed) >= PREWRITE_IF_SLOWER_NS;
        if !is_slow(self) {
            return;
        }
        let Some(first) = self.table().begin_prewrite() else { return };
        let inner = self.clone();
        drop(spawn(async move {
            let mut next = Some(first);
            while let Some(segment) = next {
                let written = inner.device.prewrite(inner.block(segment)).await.is_ok();
                let bytes = u64::from(inner.segment_bytes);
                inner.counters.prewritten_bytes.fetch_add(bytes, Ordering::Relaxed);
                let mut table = inner.table();
                table.end_prewrite(written);
                // A stream that has become fast takes them as soon as they are written, and this would never end.
                let go_on = written && is_slow(&inner) && inner.blocked().is_none();
                next = if go_on { table.begin_prewrite() } else { None };
            }
        }));
    }

    /// Writes a metadata record in the background when one would bring segments.
    pub(crate) fn kick_meta(self: &Arc<Self>) {
        if !self.table().wants_meta() || self.meta_kicked.swap(true, Ordering::AcqRel) {
            return;
        }
        let inner = self.clone();
        drop(spawn(async move {
            // A failure has made the heap read-only, which is how others learn of it. The flush lets released
            // segments go whose records were overwritten only just now.
            let _ = crate::pump::flush(&inner).await;
            let _ = crate::metalog::write_meta(&inner, crate::metalog::Write::internal()).await;
            inner.meta_kicked.store(false, Ordering::Release);
            inner.room_came();
        }));
    }
}
