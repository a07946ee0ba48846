//! What a scan has ahead of it: keys that the merge gave, and their values, read side by side and together.
//!
//! The first values of a scan are looked for in the row cache, and kept there as those of look-ups are: a short collection that is read
//! again and again is read from flash once. Of a long scan, what comes behind would cost more than it is worth.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use bytes::Bytes;
use pumice_reactor::LocalBoxFuture;
use pumice_segment::RecordPtr;

use crate::entry::{Body, KeyEntry};
use crate::errors::StoreError;
use crate::large::LargeRef;
use crate::scan::{Scan, Want};
use crate::snapshot::SnapshotInner;
use crate::store::entry_of;
use crate::types::{Entry, SliceId};

/// Values that are read ahead soon, and in a scan that went over as many and more: enough that bytes are the bound.
const READS_AHEAD_SOON: usize = 256;
const READS_AHEAD_MAX: usize = 2048;
/// Values are read together when not more than this, or than themselves, lies between them...
const GAP_BYTES_MAX: u32 = 4 << 10;
/// ...up to this many bytes in one read.
const SPAN_BYTES_MAX: u32 = 512 << 10;
/// Values shorter than this are copied out of what was read together.
const SHORT_BYTES: usize = 4 << 10;
const BYTES_AHEAD_MAX: u64 = 4 << 20;
/// Values that are read ahead at first where nobody said how many will be asked for.
const READS_AHEAD_FIRST: usize = 2;
/// Values that are looked for in the row cache before one is not found there, and not in memory...
const FROM_ROWS_MAX: usize = 256;
/// ...and the longest that is kept there.
const ROW_BYTES_MAX: u64 = 64 << 10;

/// A key handed over by the merge, and its value when it is there.
pub(super) struct Ahead {
    pub(super) key: Bytes,
    /// What it counts against the limit.
    pub(super) bytes: u64,
    pub(super) state: State,
}

pub(super) enum State {
    Ready(Result<Entry, StoreError>),
    /// To be read, alone or with its neighbours.
    Planned(Wanted),
    Reading(LocalBoxFuture<'static, Result<Entry, StoreError>>),
    /// One of the spans brings it.
    InSpan,
}

/// Values that are read together, by the numbers of those who wait for them.
pub(super) struct SpanRead {
    waiting: Vec<usize>,
    read: LocalBoxFuture<'static, Vec<Result<Entry, StoreError>>>,
}

/// A value to be read.
pub(super) struct Wanted {
    slice: SliceId,
    found: KeyEntry,
    ptr: RecordPtr,
    /// It is to be cached, as it was when the slice was in this epoch.
    epoch: Option<u64>,
}

/// A value to be read: who waits for it, and what for.
struct Planned {
    number: usize,
    key: Bytes,
    wanted: Wanted,
}

impl Ahead {
    pub(super) fn is_ready(&self) -> bool {
        matches!(self.state, State::Ready(_))
    }
}

/// What a scan is still to be asked for, as far as that is known.
pub(super) struct Expected {
    keys: u64,
    bytes: u64,
}

impl Expected {
    /// A key with a value of so many bytes was handed out.
    pub(super) fn hand_out(&mut self, bytes: u64) {
        self.keys = self.keys.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(bytes);
    }
}

/// How many values are read ahead at first, and what will be asked for.
pub(super) fn at_first(want: Want) -> (usize, Expected) {
    match want {
        Want::Keys | Want::Values => (READS_AHEAD_FIRST, Expected { keys: u64::MAX, bytes: u64::MAX }),
        Want::Page { keys, bytes } => {
            (keys.clamp(1, READS_AHEAD_SOON as u64) as usize, Expected { keys, bytes })
        }
    }
}

/// Reads values that lie near each other; what cannot be had that way is read alone, which says why.
async fn read_span(snapshot: Arc<SnapshotInner>, span: Vec<Planned>) -> Vec<Result<Entry, StoreError>> {
    let store = &snapshot.store;
    let ptrs: Vec<RecordPtr> = span.iter().map(|planned| planned.wanted.ptr).collect();
    let records = store.heap.read_neighbours(&ptrs).await;
    // What was read without a pin may be of a later time: nobody gets it.
    let is_of_its_time = snapshot.still_holds().is_ok();
    let mut entries = Vec::with_capacity(span.len());
    for (Planned { key, wanted, .. }, record) in span.iter().zip(records) {
        let Wanted { slice, found, ptr, epoch } = wanted;
        let value = record.map(|record| store.value_in_record(*slice, key, *ptr, &record));
        entries.push(match (value, epoch.filter(|_| is_of_its_time)) {
            (Some(Ok(value)), Some(epoch)) => {
                let mut entry = entry_of(found, value);
                store.keep_read(*slice, epoch, key, found, &mut entry);
                Ok(entry)
            }
            // A short value must not keep the whole span in memory.
            (Some(Ok(value)), None) if value.len() < SHORT_BYTES => {
                Ok(entry_of(found, Bytes::copy_from_slice(&value)))
            }
            (Some(Ok(value)), None) => Ok(entry_of(found, value)),
            _ => store.value_of(*slice, key, found).await,
        });
    }
    entries
}

impl Scan {
    /// How many keys may be ahead, and how many bytes.
    pub(super) fn ahead_max(&self) -> (usize, u64) {
        let Expected { keys, bytes } = self.expected;
        let keys = usize::try_from(keys).unwrap_or(usize::MAX).max(1);
        let keys = if self.want == Want::Keys { 1 } else { self.reads_ahead.min(keys) };
        (keys, self.held.share().min(BYTES_AHEAD_MAX).min(bytes))
    }

    /// Half of what may be ahead at a time, so that there are neighbours to be read together.
    pub(super) fn is_to_read_ahead(&self) -> bool {
        let (keys, bytes) = self.ahead_max();
        self.ahead.len() <= keys / 2 && self.bytes_ahead <= bytes / 2
    }

    /// Takes what lies ahead and is ready.
    pub(super) fn hand_out(&mut self) -> (Bytes, Result<Entry, StoreError>) {
        let soon = (self.reads_ahead * 2).min(READS_AHEAD_SOON);
        self.reads_ahead = soon.max(self.ahead_from.min(READS_AHEAD_MAX));
        let Some(Ahead { key, bytes, state: State::Ready(entry) }) = self.ahead.pop_front() else {
            unreachable!("polled until the front is ready")
        };
        self.ahead_from += 1;
        self.expected.hand_out(bytes);
        self.bytes_ahead -= bytes;
        (key, entry)
    }

    /// Goes on with all reads under way, until the first key's value is there.
    pub(super) async fn poll_reads(&mut self) {
        let (ahead, spans, from) = (&mut self.ahead, &mut self.spans, self.ahead_from);
        poll_fn(|cx| {
            spans.retain_mut(|span| {
                let Poll::Ready(results) = Pin::new(&mut span.read).poll(cx) else { return true };
                for (number, result) in span.waiting.iter().zip(results) {
                    // Those that were skipped meanwhile wait no more.
                    if let Some(slot) = number.checked_sub(from).and_then(|at| ahead.get_mut(at)) {
                        slot.state = State::Ready(result);
                    }
                }
                false
            });
            for slot in ahead.iter_mut() {
                if let State::Reading(future) = &mut slot.state
                    && let Poll::Ready(result) = Pin::new(future).poll(cx)
                {
                    slot.state = State::Ready(result);
                }
            }
            if ahead.front().is_some_and(Ahead::is_ready) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    /// How the value of a key comes, and what it counts against the limit.
    pub(super) fn plan(&self, slice: SliceId, key: &Bytes, found: KeyEntry) -> (u64, State) {
        let KeyEntry { tag, expire_ms, seq, value_len, .. } = found;
        let plain = |value: Bytes| Entry { tag, expire_ms, seq, value, large: None };
        match found.body {
            _ if self.want == Want::Keys => (0, State::Ready(Ok(plain(Bytes::new())))),
            Body::Inline(value) if !found.large => (value.len() as u64, State::Ready(Ok(plain(value)))),
            Body::Record(ptr) if !found.large => {
                let store = &self.snapshot.store;
                let ptr = store.place_of(ptr);
                if let Some(record) = store.heap.peek(ptr) {
                    let value = store.value_in_record(slice, key, ptr, &record);
                    return (value_len, State::Ready(value.map(plain)));
                }
                let is_among_first = self.ahead_from + self.ahead.len() < FROM_ROWS_MAX;
                let epoch =
                    (is_among_first && value_len <= ROW_BYTES_MAX).then(|| self.snapshot.epoch(slice));
                if epoch.is_some()
                    && let Some(row) = store.row_of(slice, key, seq)
                {
                    return (value_len, State::Ready(Ok(row)));
                }
                (value_len, State::Planned(Wanted { slice, found, ptr, epoch: epoch.flatten() }))
            }
            _ => {
                let (snapshot, own) = (self.snapshot.clone(), key.clone());
                let bytes = if found.large { 0 } else { found.value_len };
                let future = async move {
                    let mut entry = snapshot.store.value_of(slice, &own, &found).await?;
                    if let Some(large) = entry.large.take() {
                        let mut pinned = LargeRef::clone(&large);
                        pinned.pin = Some(snapshot.pin.clone());
                        entry.large = Some(Arc::new(pinned));
                    }
                    Ok(entry)
                };
                (bytes, State::Reading(Box::pin(future)))
            }
        }
    }

    pub(super) fn line_up(&mut self, key: Bytes, bytes: u64, state: State) {
        self.bytes_ahead += bytes;
        self.ahead.push_back(Ahead { key, bytes, state });
    }

    /// Starts reading what is planned.
    pub(super) fn start_reads(&mut self) {
        let mut planned = Vec::new();
        for (at, slot) in self.ahead.iter_mut().enumerate() {
            if !matches!(slot.state, State::Planned(..)) {
                continue;
            }
            if let State::Planned(wanted) = std::mem::replace(&mut slot.state, State::InSpan) {
                let (number, key) = (self.ahead_from + at, slot.key.clone());
                planned.push(Planned { number, key, wanted });
            }
        }
        planned.sort_unstable_by_key(|planned| planned.wanted.ptr.addr);
        let mut planned = planned.into_iter().peekable();
        while let Some(first) = planned.next() {
            let RecordPtr { addr: start, len } = first.wanted.ptr;
            let mut end = start.offset() + len;
            let mut span = vec![first];
            while let Some(next) = planned.next_if(|next| {
                let RecordPtr { addr, len } = next.wanted.ptr;
                addr.segment() == start.segment()
                    && addr.offset() <= end.saturating_add(len.max(GAP_BYTES_MAX))
                    && addr.offset() + len - start.offset() <= SPAN_BYTES_MAX
            }) {
                let RecordPtr { addr, len } = next.wanted.ptr;
                end = end.max(addr.offset() + len);
                span.push(next);
            }
            self.snapshot.store.counters.value_reads.add(1);
            let waiting = span.iter().map(|planned| planned.number).collect();
            let read = Box::pin(read_span(self.snapshot.clone(), span));
            self.spans.push(SpanRead { waiting, read });
        }
    }
}
