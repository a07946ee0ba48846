//! Range scans over a snapshot: memtables and runs of one or all slices merged in key order, values read ahead.
//!
//! 1. Each source hands over entries in pieces: 16 to 256 rows of a memtable, or a block of a run, which are read
//!    ahead (`scan/blocks.rs`); of both only what lies within the bounds.
//! 2. A heap orders the sources by their next key, and of equal keys by age; only the newest version counts.
//! 3. Values that are not beside their keys are read ahead, more at a time the longer the scan goes on, and
//!    handed out in order. Those that lie near each other, as what was written in key order does, are read together.

mod ahead;
pub(crate) mod blocks;
pub(crate) mod edge;
pub mod gaps;
pub mod piece;
pub(crate) mod room;
mod source;

use std::collections::VecDeque;
use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;
use pumice_base::sync::lock;
use pumice_reactor::yield_now;

use crate::cache::damaged;
use crate::entry::{KeyEntry, PlacedEntry};
use crate::errors::StoreError;
use crate::memtable::Rest;
use crate::merge::queue::SourceQueue;
use crate::scan::ahead::{Ahead, Expected, SpanRead, State};
use crate::scan::blocks::{BlocksAhead, Way, number_in};
use crate::scan::edge::Edge;
use crate::scan::piece::Piece;
use crate::scan::room::Held;
use crate::scan::source::{From, Source, as_slice, within_table};
use crate::snapshot::{Snapshot, SnapshotInner};
use crate::store::Store;
use crate::table::block::Around;
use crate::types::{Direction, Entry, EntryView, SliceId, ValueView};

/// Which slices a scan goes over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SliceSet {
    /// One.
    One(SliceId),
    /// All, merged in key order.
    All,
}

impl SliceSet {
    pub(crate) fn has(self, slice: SliceId) -> bool {
        match self {
            Self::One(one) => one == slice,
            Self::All => true,
        }
    }
}

/// What a scan reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// Keys, tags and expiry; values are empty, and large values have no list of pieces.
    Keys,
    /// Values too.
    Values,
    /// Values too, for a page: so many keys, or values of so many bytes, whichever comes first. No more is read ahead, and that from the
    /// start; what comes behind is read when it is asked for.
    Page {
        /// Keys at most.
        keys: u64,
        /// Bytes of values, about.
        bytes: u64,
    },
}

impl Want {
    /// Values, of so many keys: there are no more between the bounds, or no more are asked for.
    pub fn values_of(keys: u64) -> Self {
        Self::Page { keys, bytes: u64::MAX }
    }
}

/// Keys gone over before others of the core get their turn: about as many microseconds.
const KEYS_PER_TURN: u32 = 512;
/// Rows counted while a memtable's lock is held.
const SKIPPED_AT_ONCE: u64 = 2048;
/// Bytes of key blocks that a scan over many runs reads ahead, and of each run at a time.
const BLOCK_BYTES_AHEAD_MAX: u32 = 2 << 20;
const PIECE_BYTES_MIN: u32 = 16 << 10;
const PIECE_BYTES_MAX: u32 = 128 << 10;

/// A scan under way.
pub struct Scan {
    snapshot: Arc<SnapshotInner>,
    backward: bool,
    want: Want,
    /// Where it ends.
    end: Bound<Bytes>,
    sources: Vec<Source>,
    queue: SourceQueue,
    /// Sources whose next piece must be fetched before the merge can go on.
    hungry: Vec<usize>,
    has_begun: bool,
    /// Bytes that a run's blocks are read ahead at a time, at most.
    piece_max: u32,
    ahead: VecDeque<Ahead>,
    /// The number of the first of them.
    ahead_from: usize,
    spans: Vec<SpanRead>,
    bytes_ahead: u64,
    /// What these use of the memory that scans have: as of when reads were begun.
    held: Held,
    reads_ahead: usize,
    /// What is still to be asked for.
    expected: Expected,
    ended: bool,
    /// Why it ended, told when what lies ahead of it was handed out.
    failed: Option<StoreError>,
    /// Of one slice, as long as what is gone over is looked at.
    edge: Option<Edge>,
    /// Keys since others had their turn.
    keys_in_turn: u32,
    /// What was shown last, if it lies in no piece.
    shown: Option<(Bytes, Entry)>,
}

/// A row that a source gave: the newest version of its key, which is there. It can be looked at until the source is fed.
#[derive(Clone, Copy)]
struct Taken {
    source: usize,
    row: usize,
}

/// What is at hand.
enum AtHand {
    Row(Taken),
    /// [`Scan::shown`].
    Shown,
}

impl Store {
    /// Goes over the keys between the bounds, as the snapshot has them, expired entries alike.
    pub fn scan(
        &self,
        snapshot: &Snapshot,
        slices: SliceSet,
        lower: Bound<Bytes>,
        upper: Bound<Bytes>,
        direction: Direction,
        want: Want,
    ) -> Scan {
        let snapshot = snapshot.inner.clone();
        let backward = direction == Direction::Backward;
        let (mut start, end) = if backward { (upper, lower) } else { (lower, upper) };
        let mut edge = None;
        if let SliceSet::One(id) = slices
            && let Some(view) = snapshot.slices.iter().find(|view| view.slice == id)
        {
            let begun = Edge::of(view, &start, backward);
            if view.has_gaps {
                start = begun.behind_gap(&snapshot).unwrap_or(start);
            }
            edge = Some(begun);
        }
        let mut sources = Vec::new();
        for view in &snapshot.slices {
            let slice = view.slice;
            if !slices.has(slice) {
                continue;
            }
            let memtables = view.memtables.iter().map(|memtable| From::memtable(memtable, &start));
            let runs = view.version.runs.iter().filter_map(|run| From::run(run, &start, backward));
            sources.extend(memtables.chain(runs).map(|from| Source {
                slice,
                piece: Piece::default(),
                from,
                blocks: BlocksAhead::default(),
            }));
        }
        let hungry = (0..sources.len()).collect();
        let runs = sources.iter().filter(|source| matches!(source.from, From::Run { .. })).count();
        let share = BLOCK_BYTES_AHEAD_MAX / 2 / runs.max(1) as u32;
        let (reads_ahead, expected) = ahead::at_first(want);
        Scan {
            held: Held::take(&self.inner.scan_rooms.values, 0),
            snapshot,
            backward,
            want,
            end,
            sources,
            queue: SourceQueue::new(direction),
            hungry,
            has_begun: false,
            piece_max: share.clamp(PIECE_BYTES_MIN, PIECE_BYTES_MAX),
            ahead: VecDeque::new(),
            ahead_from: 0,
            spans: Vec::new(),
            bytes_ahead: 0,
            reads_ahead,
            expected,
            ended: false,
            failed: None,
            edge,
            keys_in_turn: 0,
            shown: None,
        }
    }
}

impl Scan {
    /// The next key with its newest version; `None` at the end.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] when what lies on flash is not what was written; the scan may go on after it when
    /// a value is damaged, and not when keys are.
    pub async fn next(&mut self) -> Result<Option<(Bytes, Entry)>, StoreError> {
        match self.next_key_and_value().await? {
            Some((key, entry)) => Ok(Some((key, entry?))),
            None => Ok(None),
        }
    }

    /// [`Scan::next`], with a value's failure beside its key.
    pub(crate) async fn next_key_and_value(
        &mut self,
    ) -> Result<Option<(Bytes, Result<Entry, StoreError>)>, StoreError> {
        let next = self.next_of_snapshot().await;
        self.snapshot.still_holds()?;
        next
    }

    async fn next_of_snapshot(&mut self) -> Result<Option<(Bytes, Result<Entry, StoreError>)>, StoreError> {
        // What need not be read, with nothing before it that must be, is handed out at once.
        while self.ahead.is_empty() && !self.ended {
            match self.next_key().await {
                Ok(Some((slice, key, entry))) => match self.plan(slice, &key, entry) {
                    (bytes, State::Ready(entry)) => {
                        self.expected.hand_out(bytes);
                        return Ok(Some((key, entry)));
                    }
                    (bytes, state) => self.line_up(key, bytes, state),
                },
                Ok(None) => self.ended = true,
                Err(error) => (self.ended, self.failed) = (true, Some(error)),
            }
        }
        let (limit, most) = self.ahead_max();
        let mut must_poll = false;
        if self.is_to_read_ahead() {
            while self.ahead.len() < limit && self.bytes_ahead < most && !self.ended {
                match self.next_key().await {
                    Ok(Some((slice, key, entry))) => {
                        let (bytes, state) = self.plan(slice, &key, entry);
                        self.line_up(key, bytes, state);
                    }
                    Ok(None) => self.ended = true,
                    Err(error) => (self.ended, self.failed) = (true, Some(error)),
                }
            }
            // A read begins when it is polled.
            must_poll = true;
        }
        if self.ahead.is_empty() {
            return self.failed.take().map_or(Ok(None), Err);
        }
        if must_poll || !self.ahead.front().is_some_and(Ahead::is_ready) {
            // Here, and not where it was planned: a caller that gave up meanwhile has left more than half of what may be ahead, and
            // nobody else would read it.
            self.held.set(self.bytes_ahead);
            self.start_reads();
            self.poll_reads().await;
        }
        Ok(Some(self.hand_out()))
    }

    /// From here on keys alone are wanted: to see where one would go on, say.
    pub fn want_keys(&mut self) {
        self.want = Want::Keys;
    }

    /// [`Scan::next`] where there is nothing to wait for, which is most of the time; else `None`. Short elements cost less to go over than
    /// to be handed through as many futures as there are callers.
    pub fn next_at_hand(&mut self) -> Option<(Bytes, Entry)> {
        match self.find_at_hand()? {
            AtHand::Row(taken) => {
                let piece = &self.sources[taken.source].piece;
                let PlacedEntry { tag, expire_ms, seq, .. } = *piece.placed(taken.row);
                let value = match self.want {
                    Want::Keys => Bytes::new(),
                    Want::Values | Want::Page { .. } => piece.value_bytes(taken.row),
                };
                Some((piece.key_bytes(taken.row), Entry { tag, expire_ms, seq, value, large: None }))
            }
            AtHand::Shown => self.shown.take(),
        }
    }

    /// [`Scan::next_at_hand`], where it lies.
    #[inline]
    pub fn view_at_hand(&mut self) -> Option<(&[u8], EntryView<'_>)> {
        match self.find_at_hand()? {
            AtHand::Row(taken) => {
                let piece = &self.sources[taken.source].piece;
                let PlacedEntry { tag, expire_ms, seq, .. } = *piece.placed(taken.row);
                let value = match self.want {
                    Want::Keys => &[],
                    Want::Values | Want::Page { .. } => piece.inline(taken.row),
                };
                let value = ValueView::Inline(value);
                Some((piece.key(taken.row), EntryView { tag, expire_ms, seq, value }))
            }
            AtHand::Shown => self.shown.as_ref().map(|(key, entry)| (&key[..], entry.view())),
        }
    }

    /// Whether all was handed out, as far as is known without waiting.
    pub fn is_at_end(&self) -> bool {
        self.ended && self.ahead.is_empty() && self.failed.is_none() && self.snapshot.still_holds().is_ok()
    }

    fn find_at_hand(&mut self) -> Option<AtHand> {
        // `next` says why not.
        self.snapshot.still_holds().ok()?;
        if let Some(front) = self.ahead.front() {
            // Large values have to be read by whoever wants them.
            let is_at_hand = matches!(&front.state, State::Ready(Ok(entry)) if entry.large.is_none());
            if !is_at_hand || self.is_to_read_ahead() {
                return None;
            }
            let (key, entry) = self.hand_out();
            self.shown = Some((key, entry.ok()?));
            return Some(AtHand::Shown);
        }
        while !self.ended && self.keys_in_turn + 1 < KEYS_PER_TURN {
            if !self.hungry.is_empty() && !self.feed_from_memory() {
                return None;
            }
            let Some(first) = self.queue.first() else {
                self.note_gap_to_end();
                self.ended = true;
                return None;
            };
            self.keys_in_turn += 1;
            let Some(taken) = self.take_key(first) else { continue };
            let placed = self.sources[taken.source].piece.placed(taken.row);
            if self.want == Want::Keys || placed.is_whole() {
                self.expected.hand_out(placed.value_len);
                return Some(AtHand::Row(taken));
            }
            let (slice, key, entry) = self.own(taken);
            match self.plan(slice, &key, entry) {
                (bytes, State::Ready(Ok(entry))) => {
                    self.expected.hand_out(bytes);
                    self.shown = Some((key, entry));
                    return Some(AtHand::Shown);
                }
                (bytes, state) => {
                    self.line_up(key, bytes, state);
                    return None;
                }
            }
        }
        None
    }

    /// The next key that is there, with its entry alone.
    pub(crate) async fn next_key(&mut self) -> Result<Option<(SliceId, Bytes, KeyEntry)>, StoreError> {
        loop {
            self.keys_in_turn += 1;
            if self.keys_in_turn >= KEYS_PER_TURN {
                self.keys_in_turn = 0;
                yield_now().await;
            }
            self.feed_all().await?;
            let Some(first) = self.queue.first() else {
                self.note_gap_to_end();
                return Ok(None);
            };
            if let Some(taken) = self.take_key(first) {
                return Ok(Some(self.own(taken)));
            }
        }
    }

    /// What was taken, to be kept.
    fn own(&self, taken: Taken) -> (SliceId, Bytes, KeyEntry) {
        let Source { slice, piece, .. } = &self.sources[taken.source];
        (*slice, piece.key_bytes(taken.row), piece.entry(taken.row))
    }

    /// Takes the first source's key, and the older versions of it that others have. `None`: the key is gone.
    fn take_key(&mut self, first: usize) -> Option<Taken> {
        let is_alone = self.queue.is_alone();
        let row = self.take_first(first);
        if !is_alone {
            self.take_older(first, row);
        }
        let piece = &self.sources[first].piece;
        if !piece.placed(row).is_tombstone() {
            if let Some(edge) = &mut self.edge {
                edge.meet(&self.snapshot, piece.key(row));
            }
            return Some(Taken { source: first, row });
        }
        let behind = self.edge.as_mut().and_then(|edge| edge.pass(&self.snapshot, piece.key(row)));
        if let Some(start) = behind {
            self.leap(&start);
        }
        None
    }

    /// Takes what other sources have of the key of a row.
    fn take_older(&mut self, source: usize, row: usize) {
        while let Some(same) = self
            .queue
            .first_at(self.sources[source].piece.key(row), |other| self.sources[other].piece.next_key())
        {
            self.take_first(same);
        }
    }

    fn note_gap_to_end(&mut self) {
        if let (Some(mut edge), Bound::Included(end) | Bound::Excluded(end)) = (self.edge.take(), &self.end) {
            edge.meet(&self.snapshot, end);
        }
    }

    /// Goes over up to `limit` keys that are there without looking at them or their values; says how many. Fewer
    /// than `limit`: the scan is at its end.
    ///
    /// Stretches that lie in one source alone are counted as a whole, which is most of a large range.
    ///
    /// # Errors
    /// As [`Scan::next`].
    pub async fn skip(&mut self, limit: u64) -> Result<u64, StoreError> {
        // What it goes over it does not look at.
        self.edge = None;
        let mut skipped = 0;
        while skipped < limit
            && let Some(ahead) = self.ahead.pop_front()
        {
            self.ahead_from += 1;
            self.bytes_ahead -= ahead.bytes;
            skipped += 1;
        }
        if skipped < limit
            && let Some(error) = self.failed.take()
        {
            return Err(error);
        }
        while skipped < limit && !self.ended {
            self.feed_all().await?;
            let Some(first) = self.queue.first() else {
                self.ended = true;
                break;
            };
            let second = self.queue.second(|source| self.sources[source].piece.next_key());
            let next = second.and_then(|second| self.sources[second].piece.next_key());
            let backward = self.backward;
            let piece = &self.sources[first].piece;
            let alone = next.map_or(piece.left(), |next| {
                piece.before(|key| if backward { key > next } else { key < next })
            });
            if alone == 0 {
                // Others have the same key: the newest counts.
                skipped += u64::from(self.next_key().await?.is_some());
                continue;
            }
            let mut passed = 0;
            for is_tombstone in piece.tombstones().take(alone) {
                if skipped == limit {
                    break;
                }
                passed += 1;
                skipped += u64::from(!is_tombstone);
            }
            self.sources[first].piece.pass(passed);
            self.go_on(first);
            if skipped < limit && self.sources[first].piece.is_empty() {
                // It is queued no more, so that the first is another.
                let next = self.queue.first().and_then(|next| self.sources[next].piece.next_key());
                let until = match next {
                    Some(next) => Bound::Excluded(Bytes::copy_from_slice(next)),
                    None => self.end.clone(),
                };
                let more = self.skip_in(first, &until, limit - skipped).await;
                self.snapshot.still_holds()?;
                skipped += more?;
            }
        }
        Ok(skipped)
    }

    /// Takes the next row of the first source.
    fn take_first(&mut self, first: usize) -> usize {
        let taken = self.sources[first].piece.take();
        self.go_on(first);
        taken
    }

    /// Gives the first source, of which something was taken, its new place.
    fn go_on(&mut self, first: usize) {
        self.queue.update(|source| self.sources[source].piece.next_key());
        if self.sources[first].piece.is_empty() {
            self.hungry.push(first);
        }
    }

    /// Fetches the next piece of each source that has none.
    async fn feed_all(&mut self) -> Result<(), StoreError> {
        if !std::mem::replace(&mut self.has_begun, true) {
            self.ask_first();
        }
        // A feeding that is given up half-way is begun again.
        while let Some(&source) = self.hungry.last() {
            let fed = self.feed(source).await;
            if let Err(error) = self.snapshot.still_holds().and(fed) {
                self.ended = true;
                return Err(error);
            }
            self.hungry.pop();
        }
        Ok(())
    }

    /// Fetches what [`Scan::feed_all`] would, if memory has all of it.
    fn feed_from_memory(&mut self) -> bool {
        while let Some(&at) = self.hungry.last() {
            let source = &mut self.sources[at];
            while source.piece.is_empty() {
                if self.keys_in_turn >= KEYS_PER_TURN {
                    return false;
                }
                match &source.from {
                    From::Exhausted => break,
                    From::Memtable { .. } => {
                        self.keys_in_turn +=
                            source.feed_from_memtable(&self.end, self.backward, self.snapshot.sight());
                    }
                    From::Run { .. } => {
                        if !source.feed_from_cache(&self.snapshot.store, &self.end, self.backward) {
                            return false;
                        }
                    }
                }
            }
            // Whose snapshot has gone, for them memtables may be empty: what came of one before this is true.
            if self.snapshot.still_holds().is_err() {
                return false;
            }
            self.hungry.pop();
            self.queue.push(at, |source| self.sources[source].piece.next_key());
        }
        self.has_begun = true;
        true
    }

    /// Starts to read the first block of each run that nothing is there of.
    fn ask_first(&mut self) {
        let way = Way { backward: self.backward, end: &self.end, piece_max: self.piece_max };
        for &at in &self.hungry {
            let source = &mut self.sources[at];
            let From::Run { run, table, block, start } = &source.from else { continue };
            let current = &run.tables()[*table];
            // What is not in memory is read when its turn comes.
            let Some(head) = current.head() else { continue };
            if let Some((number, _)) = number_in(current, &head, *block, start, self.backward) {
                source.blocks.ask_first(&self.snapshot.store, &way.course(run, *table, &head), number);
            }
        }
    }

    /// Fetches a source's next piece.
    async fn feed(&mut self, at: usize) -> Result<(), StoreError> {
        let backward = self.backward;
        let way = Way { backward, end: &self.end, piece_max: self.piece_max };
        let source = &mut self.sources[at];
        while source.piece.is_empty() {
            match &mut source.from {
                From::Exhausted => return Ok(()),
                From::Memtable { .. } => {
                    self.keys_in_turn +=
                        source.feed_from_memtable(&self.end, backward, self.snapshot.sight());
                    if self.keys_in_turn >= KEYS_PER_TURN {
                        self.keys_in_turn = 0;
                        yield_now().await;
                    }
                }
                From::Run { run, table, block, start } => {
                    let current = &run.tables()[*table];
                    let store = &self.snapshot.store;
                    let head = store.head(current).await?;
                    let (number, last) = number_in(current, &head, *block, start, backward)
                        .ok_or_else(|| damaged(current, "it has no blocks"))?;
                    let course = way.course(run, *table, &head);
                    let found = source.blocks.block(store, &course, number).await?;
                    source.take_block(&found, (number, last), &self.end, backward)?;
                }
            }
        }
        self.queue.push(at, |source| self.sources[source].piece.next_key());
        Ok(())
    }

    /// Goes over up to `wanted` keys of a source whose buffer is empty, up to `until`, without fetching them; says how
    /// many. It may stop early: what is left is fetched as usual.
    async fn skip_in(&mut self, at: usize, until: &Bound<Bytes>, wanted: u64) -> Result<u64, StoreError> {
        let backward = self.backward;
        let way = Way { backward, end: until, piece_max: self.piece_max };
        let source = &mut self.sources[at];
        let mut skipped = 0;
        while skipped < wanted {
            match &mut source.from {
                From::Exhausted => break,
                From::Memtable { memtable, start, rest, .. } => {
                    if let Some(Rest { after, .. }) = rest.take() {
                        *start = Bound::Excluded(after);
                    }
                    let range = (as_slice(start), as_slice(until));
                    let turn = (wanted - skipped).min(SKIPPED_AT_ONCE);
                    let (count, stopped_at) =
                        lock(memtable).skip(range, backward, self.snapshot.sight(), turn);
                    skipped += count;
                    match (stopped_at, rest_after(until)) {
                        (Some(key), _) => *start = Bound::Excluded(key),
                        (None, end) => {
                            match end {
                                Some(end) => *start = end,
                                None => source.from = From::Exhausted,
                            }
                            break;
                        }
                    }
                    yield_now().await;
                }
                From::Run { run, table, block, start } => {
                    let current = &run.tables()[*table];
                    let store = &self.snapshot.store;
                    let head = store.head(current).await?;
                    let (number, last) = number_in(current, &head, *block, start, backward)
                        .ok_or_else(|| damaged(current, "it has no blocks"))?;
                    let course = way.course(run, *table, &head);
                    let found = source.blocks.block(store, &course, number).await?;
                    let (first, end) = (as_slice(start), as_slice(until));
                    let (lower, upper) = if backward { (end, first) } else { (first, end) };
                    let (lower, is_cut) = within_table(lower, current);
                    let (count, around) = found
                        .count_between(lower, upper)
                        .map_err(|_| damaged(current, "a block's entries do not parse"))?;
                    if count > wanted - skipped {
                        break;
                    }
                    skipped += count;
                    match (backward, around) {
                        (true, Around { below: true, .. }) if is_cut => {
                            source.from.advance(0, last, backward);
                        }
                        (false, Around { above: true, .. }) | (true, Around { below: true, .. }) => {
                            *block = Some(number);
                            if let Some(rest) = rest_after(until) {
                                *start = rest;
                            }
                            break;
                        }
                        _ => source.from.advance(number, last, backward),
                    }
                }
            }
        }
        Ok(skipped)
    }
}

/// Where a walk goes on that was to end at `until`; `None` when there was no end.
fn rest_after(until: &Bound<Bytes>) -> Option<Bound<Bytes>> {
    match until {
        Bound::Unbounded => None,
        Bound::Included(key) => Some(Bound::Excluded(key.clone())),
        Bound::Excluded(key) => Some(Bound::Included(key.clone())),
    }
}
