//! Reading ahead for readers that go through records in the order in which they were written, as who reads back what it
//! stored does: a run of such reads becomes few long ones. Reads of others cost a look at the few runs there are.
//!
//! A run that has used up a window gets two more ahead of it: one long read at a time does not keep a drive busy (on one disk
//! 128 KiB at depth 1, 2, 4: 550, 630, 870 MB/s; 8 KiB at depth 32: 410).
//!
//! Sealed segments only: what lies there does not change until the segment is released, which its life tells. What is not
//! found in a window, or does not verify there, is read by itself.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use pumice_base::sync::lock;
use pumice_reactor::spawn;
use pumice_reactor::sync::Event;

use crate::inner::Inner;
use crate::layout::record;
use crate::read::{extent, read_span};
use crate::{Record, RecordPtr, SegmentId};

/// Longest record that is read ahead; longer ones are long reads by themselves.
const RECORD_BYTES_MAX: u32 = 32 << 10;
/// Bytes of a window.
const WINDOW_BYTES: u32 = 128 << 10;
/// How far from a run's farthest read the next may lie, in records of its length and at least: several readers do not keep
/// step. What lies farther behind is another run: so are the two cores of who wrote the records.
const NEAR_RECORDS: u32 = 32;
const NEAR_BYTES_MIN: u32 = 64 << 10;
/// Reads in a run before it is read ahead for.
const RUN_READS_MIN: u32 = 8;
/// Runs that are watched.
const RUNS_MAX: usize = 8;
/// Windows that a run has ahead of the one it is in.
const WINDOWS_AHEAD: usize = 2;
/// Windows of one run, and of all: 1 MiB of memory.
const RUN_WINDOWS_MAX: usize = 4;
const WINDOWS_MAX: usize = 8;
/// A window that served fewer was not worth its read: its run must show itself anew.
const WORTHWHILE_HITS: u32 = 4;

/// The runs of one heap.
#[derive(Default)]
pub(crate) struct Ahead {
    runs: Vec<Run>,
    /// Reads looked at, to tell which run was used last.
    clock: u64,
}

/// Reads near one another.
struct Run {
    id: u64,
    segment: SegmentId,
    life: u64,
    /// End of the farthest.
    end: u32,
    reads: u32,
    used: u64,
    /// A window was used up: more of it will be.
    proven: bool,
    windows: VecDeque<Arc<Window>>,
}

/// A stretch of a segment that is being read, or was.
struct Window {
    start: u32,
    end: u32,
    hits: AtomicU32,
    /// `None` inside: the read failed.
    bytes: OnceLock<Option<Bytes>>,
    done: Event,
}

impl Window {
    fn covers(&self, start: u32, end: u32) -> bool {
        self.start <= start && end <= self.end
    }
}

/// What to do for a read.
enum Advice {
    /// Read it by itself.
    Alone,
    /// It lies in this window; and another should be read in the background.
    Wait(Arc<Window>, Option<Begin>),
    /// Read a window.
    Begin(Begin),
}

/// A window to be read.
struct Begin {
    run: u64,
    from: u32,
    /// Somebody waits for it.
    is_awaited: bool,
}

impl Ahead {
    /// Notes a read of `start..end`.
    fn note(&mut self, segment: SegmentId, life: u64, start: u32, end: u32) -> Advice {
        self.clock += 1;
        let clock = self.clock;
        let len = end - start;
        let is_here = |run: &Run| run.segment == segment && run.life == life;
        let covers = |run: &Run| is_here(run) && run.windows.iter().any(|window| window.covers(start, end));
        let distance_max = NEAR_BYTES_MIN.max(NEAR_RECORDS * len);
        let is_near = |run: &Run| is_here(run) && run.end.abs_diff(start) <= distance_max;
        let at = self.runs.iter().position(covers).or_else(|| self.runs.iter().position(is_near));
        let Some(at) = at else {
            self.begin_run(Run {
                id: clock,
                segment,
                life,
                end,
                reads: 1,
                used: clock,
                proven: false,
                windows: VecDeque::new(),
            });
            return Advice::Alone;
        };
        let run = &mut self.runs[at];
        run.used = clock;
        run.end = run.end.max(end);
        // The record that lies across the last window's end belongs to the next.
        let next = run.windows.back().map(|last| last.end.saturating_sub(len));
        if let Some(at) = run.windows.iter().position(|window| window.covers(start, end)) {
            let window = &run.windows[at];
            window.hits.fetch_add(1, Ordering::Relaxed);
            let further = next.filter(|_| run.proven && run.windows.len() <= at + WINDOWS_AHEAD);
            let further = further.map(|from| Begin { run: run.id, from, is_awaited: false });
            return Advice::Wait(Arc::clone(window), further);
        }
        run.reads = run.reads.saturating_add(1);
        let from = match next {
            // Who lags behind reads alone.
            Some(next) if start < next => None,
            Some(next) if start - next < WINDOW_BYTES / 4 => Some(next),
            _ => Some(start),
        };
        match from.filter(|_| run.reads >= RUN_READS_MIN) {
            Some(from) => Advice::Begin(Begin { run: run.id, from, is_awaited: true }),
            None => Advice::Alone,
        }
    }

    fn begin_run(&mut self, run: Run) {
        if self.runs.len() >= RUNS_MAX
            && let Some(oldest) = (0..self.runs.len()).min_by_key(|&at| self.runs[at].used)
        {
            self.runs.swap_remove(oldest);
        }
        self.runs.push(run);
    }

    /// Adds a window to its run. `None`: the run is gone, or there is no room for what nobody waits for.
    fn begin_window(&mut self, begin: &Begin, end: u32) -> Option<Arc<Window>> {
        if self.runs.iter().map(|run| run.windows.len()).sum::<usize>() >= WINDOWS_MAX {
            if !begin.is_awaited {
                return None;
            }
            let with_windows = self.runs.iter_mut().filter(|run| !run.windows.is_empty());
            with_windows.min_by_key(|run| run.used)?.windows.pop_front();
        }
        let run = self.runs.iter_mut().find(|run| run.id == begin.run)?;
        if run.windows.len() >= RUN_WINDOWS_MAX
            && let Some(past) = run.windows.pop_front()
            && past.hits.load(Ordering::Relaxed) < WORTHWHILE_HITS
        {
            (run.reads, run.proven, run.windows) = (0, false, VecDeque::new());
            return None;
        }
        let hits = |window: &Arc<Window>| window.hits.load(Ordering::Relaxed);
        run.proven |= run.windows.back().is_some_and(|last| hits(last) >= WORTHWHILE_HITS);
        let window = Arc::new(Window {
            start: begin.from,
            end,
            hits: AtomicU32::new(0),
            bytes: OnceLock::new(),
            done: Event::new(),
        });
        run.windows.push_back(Arc::clone(&window));
        Some(window)
    }
}

/// The record, if it lies in a stretch that is worth reading ahead, and reads well there.
pub(crate) async fn read(inner: &Arc<Inner>, ptr: RecordPtr, life: u64) -> Option<Record> {
    if ptr.len > RECORD_BYTES_MAX {
        return None;
    }
    let (segment, start) = (ptr.addr.segment(), ptr.addr.offset());
    let advice = lock(&inner.ahead).note(segment, life, start, start + ptr.len);
    let window = match advice {
        Advice::Alone => return None,
        Advice::Wait(window, further) => {
            if let Some(further) = further.and_then(|further| begin(inner, ptr, life, &further)) {
                let inner = Arc::clone(inner);
                drop(spawn(async move { fetch(&inner, ptr, &further).await }));
            }
            window.done.wait().await;
            window
        }
        Advice::Begin(window) => {
            let window = begin(inner, ptr, life, &window)?;
            Box::pin(fetch(inner, ptr, &window)).await;
            if !window.covers(start, start + ptr.len) {
                return None;
            }
            window
        }
    };
    let bytes = window.bytes.get()?.as_ref()?;
    if inner.table().life(segment) != Some(life) {
        return None;
    }
    let at = (start - window.start) as usize;
    let bytes = bytes.slice(at..at + ptr.len as usize);
    let parsed = record::parse(&bytes, life, ptr.addr).ok().filter(|parsed| parsed.total == bytes.len())?;
    inner.counters.ahead_hits.fetch_add(1, Ordering::Relaxed);
    Some(Record { kind: parsed.kind, payload: bytes.slice(parsed.payload_at..) })
}

/// Makes a window, if there is anything to read that will stay as it is.
fn begin(inner: &Inner, ptr: RecordPtr, life: u64, begin: &Begin) -> Option<Arc<Window>> {
    let segment = ptr.addr.segment();
    let extent = extent(inner, segment).filter(|now| now.life == life && !now.is_open)?;
    let end = begin.from.saturating_add(WINDOW_BYTES).min(extent.end);
    if end <= begin.from.saturating_add(ptr.len) {
        return None;
    }
    lock(&inner.ahead).begin_window(begin, end)
}

/// Reads a window. Whoever waits for it is told, also when this is given up half-way.
async fn fetch(inner: &Inner, ptr: RecordPtr, window: &Window) {
    struct Done<'a>(&'a Window);
    impl Drop for Done<'_> {
        fn drop(&mut self) {
            self.0.done.set();
        }
    }
    let _done = Done(window);
    inner.counters.ahead_reads.fetch_add(1, Ordering::Relaxed);
    let read = read_span(inner, ptr, window.start, window.end).await;
    let len = (window.end - window.start) as usize;
    let _ = window.bytes.set(read.ok().map(|(bytes, at)| bytes.slice(at..at + len)));
}
