//! The segment table: what each segment is used for, which are opened next, how much is alive.
//!
//! Life of a segment: *free* → *pool* (named by a durable metadata record as one of the next to be opened) →
//! *open* → *sealed* → *releasing* (the client needs nothing of it) → free, with the next metadata record. Only
//! segments of the durable pool are opened, in its order, so that recovery finds every opened segment by reading
//! the pool's headers. Rejected: recovery that scans all headers (seconds on a large drive).
//!
//! The free segment with the fewest erases goes first, channels in turn; on files, where wear is not ours, those
//! that were written before go first because they commit faster.

mod durable;
mod endangered;
mod entries;
mod free;
mod growth;
mod lanes;
mod readers;
mod recount;
mod report;
mod reserve;
mod system;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use pumice_flash::{Device, Geometry};

use crate::layout::meta::{
    FLAG_ALLOCATED, FLAG_DURABLE, FLAG_FAILED, FLAG_WEAK, FLAG_WRITTEN, FLAGS_OF_A_LIFE, SegmentEntry,
    SegmentState,
};
use crate::pins::Pins;
use crate::{AppendClass, SegmentId, Stream};
use entries::Entries;

pub use growth::Growth;
pub use recount::Recounted;

/// Segments that a metadata record names as next: bounds the headers that recovery reads, and how many segments
/// can be opened between two metadata records.
pub(crate) const POOL_SEGMENTS: usize = 64;

/// A segment's hint is written to the log again once it changed by this share of a segment.
const LIVE_STEP: i64 = 16;

#[derive(Clone, Debug, Default)]
pub(crate) struct Entry {
    pub life: u64,
    pub last_seq: u64,
    /// Newest sequence number in its first frame; 0: none was counted since it was opened here.
    first_frame_seq: u64,
    /// May be negative for a moment, while deaths are counted before the birth.
    pub live: i64,
    live_logged: i64,
    pub end: u32,
    pub erase_count: u32,
    pub state: SegmentState,
    pub stream: u8,
    pub flags: u8,
    /// Offered as a victim, or being released.
    claimed: bool,
    /// Released, and not free yet.
    releasing: bool,
    /// Written ahead of need and not opened since.
    prewritten: bool,
    /// Live bytes at which a segment that does not read whole is a victim again.
    unreadable_above: Option<i64>,
}

/// A segment being written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpenSegment {
    pub id: SegmentId,
    pub life: u64,
    /// Where the next program goes; 0: the header is not written yet.
    pub offset: u32,
}

/// Why no segment was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoSegment {
    /// A metadata record or cleaning will bring some.
    Later,
    /// Live data fills the drive.
    Full,
}

/// Released segments that are not free yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Released {
    /// Pins hold them back.
    pub held: u32,
    /// They are free with the next metadata record.
    pub ready: u32,
}

#[derive(Clone, Copy)]
struct Releasing {
    id: u32,
    /// Pins from up to here hold it.
    epoch: u64,
    /// What was overwritten by records up to here is only dead once they are durable.
    seq: u64,
}

/// What a metadata record says about segments.
pub(crate) struct Composed {
    pub segments: Vec<SegmentEntry>,
    pub pool: Vec<u32>,
    pub next_life: u64,
    dirty: Vec<u32>,
    freed: Vec<u32>,
}

pub(crate) struct Table {
    /// Told which segments are complete; nothing is awaited of it here.
    device: Device,
    geometry: Geometry,
    first_data: u32,
    raw_bytes: u64,
    /// Free segments that users leave.
    reserve: u32,
    /// Of these, what only rewrites have where the drive is full.
    kept_for_rewrites: u32,
    /// Rewrites opened a segment where users got none, and users got none since.
    rewritten: bool,
    /// Of the reserve, for commits whose program failed.
    kept_for_rescue: u32,
    /// Whether users may have half of the reserve, and all that is for rewrites: cleaning wins it back at once.
    lent: bool,
    /// Beside the reserve, for victims that are emptied at once.
    kept_for_cleaning_bytes: u64,
    /// Segments that may be opened before so much may be alive that what is lent must be called back.
    lent_for: u64,
    /// What a packed segment loses: its header, and half a page a frame.
    overhead_bytes: u32,
    /// Bytes that must die before cleaning is tried again; 0 = it may win something.
    futile_for_bytes: u64,
    /// Cleaning was tried again for the sake of deletes, and they got no segment since.
    tried_for_deletes: bool,
    prefer_written: bool,
    entries: Entries,
    /// Free and not in the pool, by channel: (order, segment).
    free: Vec<BTreeSet<(u32, u32)>>,
    next_channel: usize,
    /// Segments that are being written, by channel.
    open_on: Vec<u32>,
    pool: VecDeque<u32>,
    /// Named by a metadata record that is being written.
    pool_coming: usize,
    spares: system::Spares,
    /// Of the pool: zeros are being written to it.
    prewriting: Option<u32>,
    /// How many segments the last refusal was about; 0 after a success.
    refused: u32,
    /// The same of user data.
    users_want: u32,
    next_life: u64,
    /// Released, and what must be over before they are free.
    releasing: Vec<Releasing>,
    /// Freed by a metadata record that is being written.
    freeing: BTreeSet<u32>,
    epoch: u64,
    pins: Pins,
    dirty: BTreeSet<u32>,
    /// Some segment may be endangered: one failed or became weak since the last look found none.
    may_be_endangered: bool,
    /// Segments in which moved records lie that nothing names yet, and how many times.
    held: BTreeMap<u32, u32>,
    /// Segments that were kept because they do not read whole, the oldest first; some may have been offered again since.
    unreadable: VecDeque<u32>,
    pub opened: u64,
    pub released: u64,
}

impl Table {
    pub(crate) fn new(device: &Device, first_data: u32, reserve: u32, frame_bytes: u32) -> Self {
        let geometry = device.geometry();
        // Elsewhere hardly any program fails.
        let kept_for_rescue = u32::from(device.wears());
        let kept_for_rewrites = reserve::for_rewrites(geometry, first_data, reserve);
        // Frames of moved records are a quarter of a segment at most.
        let frames =
            geometry.block_bytes() / frame_bytes.clamp(geometry.page_bytes, geometry.block_bytes() / 4);
        Self {
            device: device.clone(),
            geometry,
            first_data,
            raw_bytes: device.raw_bytes(),
            reserve: reserve + kept_for_rescue + kept_for_rewrites,
            kept_for_rewrites,
            rewritten: false,
            kept_for_rescue,
            lent: false,
            kept_for_cleaning_bytes: 0,
            lent_for: 0,
            futile_for_bytes: 0,
            tried_for_deletes: false,
            overhead_bytes: geometry.page_bytes * (1 + frames.div_ceil(2)),
            prefer_written: device.wants_prewrite(),
            entries: Entries::new(geometry.block_count() as usize, first_data, geometry.block_bytes()),
            free: vec![BTreeSet::new(); usize::from(geometry.channels)],
            next_channel: 0,
            open_on: vec![0; usize::from(geometry.channels)],
            pool: VecDeque::new(),
            pool_coming: 0,
            spares: system::Spares::default(),
            prewriting: None,
            refused: 0,
            users_want: 0,
            next_life: 1,
            releasing: Vec::new(),
            freeing: BTreeSet::new(),
            epoch: 0,
            pins: Pins::default(),
            dirty: BTreeSet::new(),
            // What the log says of failed and weak ones is looked at once.
            may_be_endangered: true,
            held: BTreeMap::new(),
            unreadable: VecDeque::new(),
            opened: 0,
            released: 0,
        }
    }

    /// Takes over what the log says of a segment.
    pub(crate) fn load(&mut self, saved: &SegmentEntry) {
        let Some(mut entry) = self.entries.try_edit(saved.segment) else { return };
        // A hint, from which counting goes on.
        let live = i64::from(saved.live.min(self.geometry.block_bytes()));
        *entry = Entry {
            life: saved.life,
            last_seq: saved.last_seq,
            live,
            live_logged: live,
            end: saved.end,
            erase_count: saved.erase_count,
            state: saved.state,
            stream: saved.stream,
            flags: saved.flags,
            ..Entry::default()
        };
    }

    /// Takes over the pool and the next life.
    pub(crate) fn load_pool(&mut self, pool: &[u32], next_life: u64) {
        self.pool = pool.iter().copied().collect();
        self.next_life = next_life;
    }

    /// Every data segment was written once before its first use.
    pub(crate) fn all_written(&mut self) {
        for id in self.first_data..self.entries.len() as u32 {
            self.entries.edit(id).flags |= FLAG_WRITTEN | FLAG_ALLOCATED;
        }
    }

    /// Blocks that are bad before their first use, or of which this is `known`, are never used.
    pub(crate) fn retire_bad(&mut self, known: &BTreeSet<u32>) {
        for id in self.first_data..self.entries.len() as u32 {
            if self.device.is_factory_bad(self.geometry.block(id)) || known.contains(&id) {
                self.entries.edit(id).state = SegmentState::Bad;
            }
        }
    }

    pub(crate) fn is_free(&self, id: u32) -> bool {
        self.entries.get(id as usize).is_some_and(|entry| entry.state == SegmentState::Free)
    }

    pub(crate) fn entry(&self, id: SegmentId) -> Option<&Entry> {
        self.entries.get(id.0 as usize).filter(|_| id.0 >= self.first_data)
    }

    pub(crate) fn entries(&self) -> impl Iterator<Item = (SegmentId, &Entry)> {
        let first = self.first_data as usize;
        self.entries[first..].iter().enumerate().map(move |(i, entry)| (SegmentId((first + i) as u32), entry))
    }

    /// The life of a segment that holds data.
    pub(crate) fn life(&self, id: SegmentId) -> Option<u64> {
        self.entry(id)
            .filter(|entry| matches!(entry.state, SegmentState::Open | SegmentState::Sealed))
            .map(|entry| entry.life)
    }

    /// [`Table::life`] of a segment that was not released: somebody needs what it holds.
    pub(crate) fn life_in_use(&self, id: SegmentId) -> Option<u64> {
        self.life(id).filter(|_| !self.entries[id.0 as usize].releasing)
    }

    pub(crate) fn next_life(&self) -> u64 {
        self.next_life
    }

    pub(crate) fn free_count(&self) -> u32 {
        (self.pool.len() + self.free.iter().map(BTreeSet::len).sum::<usize>()) as u32
    }

    /// Segments that hold data.
    pub(crate) fn in_use(&self) -> Vec<SegmentId> {
        let holds = |entry: &Entry| matches!(entry.state, SegmentState::Open | SegmentState::Sealed);
        self.entries().filter(|(_, entry)| holds(entry)).map(|(id, _)| id).collect()
    }

    /// The segments that are opened next.
    pub(crate) fn pool(&self) -> impl Iterator<Item = u32> + '_ {
        self.pool.iter().copied()
    }

    /// True when a metadata record would bring segments that are needed soon.
    pub(crate) fn wants_meta(&self) -> bool {
        let low = self.pool.len() - self.pool_coming < POOL_SEGMENTS / 2
            || (self.users_want as usize > self.openable() && self.pool.len() < POOL_SEGMENTS);
        let unpooled = self.free.iter().any(|set| !set.is_empty());
        low && (unpooled || self.releasing.iter().any(|releasing| !self.pinned(releasing.epoch)))
    }

    /// True when a metadata record would bring segments at all.
    pub(crate) fn record_brings_segments(&self) -> bool {
        self.pool_coming > 0
            || self.free.iter().any(|set| !set.is_empty())
            || self.releasing.iter().any(|releasing| !self.pinned(releasing.epoch))
    }

    /// Refuses `class` the `n` segments that it wants.
    pub(crate) fn refuse(&mut self, class: AppendClass, n: u32) -> NoSegment {
        self.refused = n;
        if class == AppendClass::User {
            self.users_want = n;
        }
        if class == AppendClass::Delete {
            self.reconsider();
        }
        if self.is_full(class, n) { NoSegment::Full } else { NoSegment::Later }
    }

    /// Opens `n` segments for `stream`, or none.
    pub(crate) fn open(
        &mut self,
        stream: Stream,
        n: usize,
        class: AppendClass,
        out: &mut VecDeque<OpenSegment>,
    ) -> Result<(), NoSegment> {
        if self.free_count() < self.floor(class) + n as u32 {
            return Err(self.refuse(class, n as u32));
        }
        if self.openable() < n {
            self.refused = n as u32;
            return Err(NoSegment::Later);
        }
        self.refused = 0;
        match class {
            AppendClass::User => (self.users_want, self.rewritten) = (0, false),
            AppendClass::Rewrite => self.rewritten = true,
            _ => {}
        }
        if class == AppendClass::Delete {
            // Much was deleted since cleaning was last tried, though key tables do not show it yet.
            (self.futile_for_bytes, self.tried_for_deletes) = (0, false);
        }
        for _ in 0..n {
            let Some(id) = self.pick(stream) else { return Err(NoSegment::Later) };
            let life = self.next_life;
            self.next_life += 1;
            self.opened += 1;
            self.note_opened();
            let mut entry = self.entries.edit(id);
            assert!(
                entry.state == SegmentState::Free,
                "segment {id} is {:?} and cannot be opened",
                entry.state
            );
            *entry = Entry {
                life,
                erase_count: entry.erase_count + 1,
                state: SegmentState::Open,
                stream: stream as u8,
                flags: entry.flags & !FLAGS_OF_A_LIFE | FLAG_WRITTEN,
                ..Entry::default()
            };
            self.dirty.insert(id);
            self.open_on[usize::from(self.geometry.block(id).channel)] += 1;
            out.push_back(OpenSegment { id: SegmentId(id), life, offset: 0 });
        }
        Ok(())
    }

    /// Segments that may be opened before another metadata record.
    fn openable(&self) -> usize {
        (self.pool.len() - self.pool_coming).saturating_sub(usize::from(self.prewriting.is_some()))
    }

    /// Takes a segment out of the durable pool. Any will do, recovery looks at all of them: the commit stream takes
    /// one that was written before, the streams of large writes leave it those that were written ahead. One of the channel
    /// that has the fewest open ones goes first.
    fn pick(&mut self, stream: Stream) -> Option<u32> {
        let rank = |entry: &Entry| match (stream, entry.flags & FLAG_WRITTEN != 0, entry.prewritten) {
            _ if !self.prefer_written => 0,
            (Stream::Commit, written, _) => u8::from(!written),
            (_, true, false) => 0,
            (_, false, _) => 1,
            (_, true, true) => 2,
        };
        let openable = self.pool.iter().take(self.pool.len() - self.pool_coming);
        let free = openable.enumerate().filter(|&(_, &id)| self.prewriting != Some(id));
        let open_on = |id: u32| self.open_on[usize::from(self.geometry.block(id).channel)];
        let (index, _) = free.min_by_key(|&(_, &id)| (rank(&self.entries[id as usize]), open_on(id)))?;
        self.pool.remove(index)
    }

    /// The pool's next segment to be written ahead of need, unless enough of them are ready.
    pub(crate) fn begin_prewrite(&mut self) -> Option<SegmentId> {
        const AHEAD: usize = 2;
        if !self.prefer_written || self.prewriting.is_some() {
            return None;
        }
        let openable = self.pool.iter().take(self.pool.len() - self.pool_coming);
        let fresh = |id: &&u32| self.entries[**id as usize].flags & FLAG_WRITTEN == 0;
        let ready = openable.clone().filter(|id| !fresh(id)).count();
        if ready >= AHEAD {
            return None;
        }
        self.prewriting = openable.clone().find(fresh).copied();
        self.prewriting.map(SegmentId)
    }

    pub(crate) fn is_prewriting(&self) -> bool {
        self.prewriting.is_some()
    }

    pub(crate) fn end_prewrite(&mut self, written: bool) {
        if let Some(id) = self.prewriting.take()
            && written
        {
            let mut entry = self.entries.edit(id);
            entry.flags |= FLAG_WRITTEN;
            entry.prewritten = true;
            self.dirty.insert(id);
        }
    }

    /// Takes over an opened segment that recovery found in the pool.
    pub(crate) fn adopt(&mut self, id: SegmentId, life: u64, stream: Stream) {
        self.pool.retain(|&pooled| pooled != id.0);
        let mut entry = self.entries.edit(id.0);
        *entry = Entry {
            life,
            erase_count: entry.erase_count + 1,
            state: SegmentState::Open,
            stream: stream as u8,
            flags: entry.flags & !FLAGS_OF_A_LIFE | FLAG_WRITTEN,
            ..Entry::default()
        };
        self.dirty.insert(id.0);
        self.next_life = self.next_life.max(life + 1);
    }

    /// Lives that were given out and never reached flash must not come again.
    pub(crate) fn skip_lives(&mut self) {
        self.next_life += 2 * POOL_SEGMENTS as u64;
    }

    /// Counts a frame: `live` bytes of records up to byte `end`.
    pub(crate) fn wrote(&mut self, id: SegmentId, end: u32, live: u32, last_seq: u64) {
        let mut entry = self.entries.edit(id.0);
        entry.end = entry.end.max(end);
        entry.live += i64::from(live);
        entry.last_seq = entry.last_seq.max(last_seq);
        if entry.first_frame_seq == 0 {
            entry.first_frame_seq = last_seq;
        }
        // The closing record must know where open segments end.
        self.dirty.insert(id.0);
    }

    pub(crate) fn seal(&mut self, id: SegmentId) {
        let mut entry = self.entries.edit(id.0);
        if entry.state == SegmentState::Open {
            entry.state = SegmentState::Sealed;
            self.open_on[usize::from(self.geometry.block(id.0).channel)] -= 1;
            self.may_be_endangered |= entry.flags & FLAG_WEAK != 0;
            self.dirty.insert(id.0);
            self.device.finish(self.geometry.block(id.0));
        }
    }

    /// Takes back what was counted for frames of a failed segment that went elsewhere.
    pub(crate) fn move_live(&mut self, source: SegmentId, live: u32, end: u32) {
        self.seal_failed(source, end);
        self.entries.edit(source.0).live -= i64::from(live);
    }

    /// Seals a segment in which a program failed; it is retired when it is released.
    pub(crate) fn seal_failed(&mut self, id: SegmentId, end: u32) {
        self.seal(id);
        let mut entry = self.entries.edit(id.0);
        entry.flags |= FLAG_FAILED;
        entry.end = end;
        self.may_be_endangered = true;
    }

    /// Sets what recovery found out about a segment, with flags that it has from now on.
    pub(crate) fn recovered(&mut self, id: SegmentId, end: u32, live: u32, last_seq: u64, flags: u8) {
        let mut entry = self.entries.edit(id.0);
        if entry.state == SegmentState::Open {
            self.open_on[usize::from(self.geometry.block(id.0).channel)] -= 1;
        }
        entry.state = SegmentState::Sealed;
        entry.end = end;
        entry.live = i64::from(live);
        entry.last_seq = last_seq;
        entry.flags |= flags | FLAG_DURABLE;
        self.dirty.insert(id.0);
        self.device.finish(self.geometry.block(id.0));
    }

    pub(crate) fn mark_dead(&mut self, id: SegmentId, bytes: u32) {
        let step = i64::from(self.geometry.block_bytes()) / LIVE_STEP;
        let Some(mut entry) = self.entries.try_edit(id.0) else { return };
        entry.live -= i64::from(bytes);
        if entry.unreadable_above.is_some_and(|above| entry.live <= above) {
            entry.unreadable_above = None;
        }
        // What died since may make cleaning worth while again; what cleaning has moved out of a victim did not die, or it
        // would go on for ever on a drive that is full.
        if entry.state != SegmentState::Free && !entry.claimed {
            self.futile_for_bytes = self.futile_for_bytes.saturating_sub(u64::from(bytes));
        }
        if (entry.live - entry.live_logged).abs() > step && entry.state == SegmentState::Sealed {
            self.dirty.insert(id.0);
        }
    }

    pub(crate) fn set_live(&mut self, id: SegmentId, bytes: u32) {
        if let Some(mut entry) = self.entries.try_edit(id.0) {
            entry.live = i64::from(bytes);
            self.dirty.insert(id.0);
        }
    }

    /// Cleaning moved much and won nothing: the drive is full until as much as a segment has died.
    pub(crate) fn cleaning_won_nothing(&mut self) {
        self.futile_for_bytes = u64::from(self.geometry.block_bytes());
    }

    /// The opposite.
    pub(crate) fn cleaning_may_win(&mut self) {
        self.futile_for_bytes = 0;
    }

    /// A delete finds no room: cleaning is tried again, once until a delete gets a segment.
    pub(crate) fn reconsider(&mut self) {
        if !self.tried_for_deletes && self.is_futile() {
            (self.futile_for_bytes, self.tried_for_deletes) = (0, true);
        }
    }

    /// Whether cleaning is known to win nothing.
    pub(crate) fn is_futile(&self) -> bool {
        self.futile_for_bytes > 0
    }

    /// The sealed segment to clean next: the one with most to win, of failed ones the first. Greedy is best for
    /// uniform traffic. Rejected for now: declining cost (Lomet and Luo 2020), which without a floor on the rate at which
    /// segments die took those first in which nothing dies at all, whatever they would win.
    pub(crate) fn victim(
        &mut self,
        replay_from: u64,
        least_bytes: &dyn Fn(Stream) -> u32,
    ) -> Option<SegmentId> {
        let segment_bytes = i64::from(self.geometry.block_bytes());
        let worth_bytes = self.worth_bytes();
        let mut best: Option<(i64, u32)> = None;
        for (id, entry) in self.entries.iter().enumerate().skip(self.first_data as usize) {
            if entry.state != SegmentState::Sealed
                || entry.claimed
                || entry.unreadable_above.is_some()
                || self.is_held(id as u32)
            {
                continue;
            }
            if entry.stream == Stream::Commit as u8 && entry.last_seq > replay_from {
                continue;
            }
            let live = entry.live.clamp(0, segment_bytes);
            let winnable = segment_bytes - live;
            let is_endangered = entry.flags & (FLAG_FAILED | FLAG_WEAK) != 0;
            let least = Stream::from_u8(entry.stream).map_or(0, least_bytes);
            if winnable < worth_bytes.max(i64::from(least)) && !is_endangered {
                continue;
            }
            let worth = if is_endangered { segment_bytes } else { winnable };
            if best.is_none_or(|(most, _)| worth > most) {
                best = Some((worth, id as u32));
            }
        }
        // Bad blocks hold nothing that could be won.
        self.lend(self.entries.sums().kept);
        let id = self.in_the_way(replay_from).or(best.map(|(_, id)| id))?;
        self.entries.edit(id).claimed = true;
        Some(SegmentId(id))
    }

    /// Whether it was offered as a victim, or released, and not given back since.
    pub(crate) fn is_claimed(&self, id: SegmentId) -> bool {
        self.entry(id).is_some_and(|entry| entry.claimed)
    }

    pub(crate) fn unclaim(&mut self, id: SegmentId) {
        if let Some(mut entry) = self.entries.try_edit(id.0)
            && entry.state == SegmentState::Sealed
            && !self.releasing.iter().any(|releasing| releasing.id == id.0)
        {
            entry.claimed = false;
            self.may_be_endangered |= entry.flags & (FLAG_FAILED | FLAG_WEAK) != 0;
        }
    }

    /// Keeps a victim that does not read whole, of which `live` bytes are still needed, until half of these are dead.
    pub(crate) fn keep_unreadable(&mut self, id: SegmentId, live: u32) {
        let Some(mut entry) = self.entries.try_edit(id.0) else { return };
        assert!(entry.state == SegmentState::Sealed, "{id} is {:?} and no victim", entry.state);
        entry.live = i64::from(live);
        entry.claimed = false;
        entry.unreadable_above = Some(entry.live / 2);
        self.dirty.insert(id.0);
        self.unreadable.retain(|&other| other != id.0);
        self.unreadable.push_back(id.0);
    }

    /// Makes the segment a victim again that was kept longest because it does not read whole.
    pub(crate) fn offer_unreadable(&mut self) {
        while let Some(id) = self.unreadable.pop_front() {
            if self.entries.edit(id).unreadable_above.take().is_some() {
                return;
            }
        }
    }

    pub(crate) fn release(&mut self, id: SegmentId, seq: u64) {
        let Some(mut entry) = self.entries.try_edit(id.0) else { return };
        assert!(entry.state == SegmentState::Sealed, "{id} is {:?} and cannot be released", entry.state);
        assert!(!self.releasing.iter().any(|releasing| releasing.id == id.0), "{id} is released already");
        (entry.claimed, entry.releasing) = (true, true);
        entry.live = 0;
        self.releasing.push(Releasing { id: id.0, epoch: self.epoch, seq });
        self.epoch += 1;
        self.released += 1;
    }

    /// What the next metadata record says: frees what was released and is not pinned, given that everything up to
    /// `durable_seq` is durable, and names the next pool. Follow up with [`Table::composed`].
    pub(crate) fn compose(&mut self, snapshot: bool, durable_seq: u64) -> Composed {
        let mut freed = Vec::new();
        let releasing = std::mem::take(&mut self.releasing);
        let held = |releasing: &Releasing| self.pinned(releasing.epoch) || releasing.seq > durable_seq;
        let (kept, ready): (Vec<_>, Vec<_>) = releasing.into_iter().partition(held);
        self.releasing = kept;
        for Releasing { id, .. } in ready {
            let mut entry = self.entries.edit(id);
            let bad = entry.flags & FLAG_FAILED != 0;
            entry.state = if bad { SegmentState::Bad } else { SegmentState::Free };
            (entry.live, entry.end, entry.claimed, entry.releasing) = (0, 0, false, false);
            entry.unreadable_above = None;
            drop(entry);
            self.dirty.insert(id);
            if !bad {
                self.add_free(id);
                freed.push(id);
            }
        }
        self.keep_spares();
        while self.pool.len() < POOL_SEGMENTS {
            let Some(id) = self.take_free() else { break };
            self.pool.push_back(id);
            self.pool_coming += 1;
        }
        self.freeing.extend(&freed);
        let coming = self.note_durable(durable_seq);
        let dirty: Vec<u32> = std::mem::replace(&mut self.dirty, coming).into_iter().collect();
        let named: Vec<u32> = if snapshot {
            assert_eq!(self.entries.summed_up(), *self.entries.sums(), "sums over all segments");
            let used = |entry: &Entry| match entry.state {
                SegmentState::Free => entry.erase_count > 0 || entry.flags != 0,
                state => state != SegmentState::System,
            };
            self.entries().filter(|(_, entry)| used(entry)).map(|(id, _)| id.0).collect()
        } else {
            dirty.clone()
        };
        let segments = named.into_iter().map(|id| saved(id, &mut self.entries.edit(id))).collect();
        let pool = self.pool.iter().copied().collect();
        Composed { segments, pool, next_life: self.next_life, dirty, freed }
    }

    /// Has the next record carry every live hint that changed.
    pub(crate) fn log_all_hints(&mut self) {
        let first = self.first_data as usize;
        let drifted = |(id, entry): (usize, &Entry)| (entry.live != entry.live_logged).then_some(id as u32);
        self.dirty.extend(self.entries.iter().enumerate().skip(first).filter_map(drifted));
    }

    /// The record is durable, or failed.
    pub(crate) fn composed(&mut self, composed: &Composed, durable: bool) {
        self.freeing.retain(|id| !composed.freed.contains(id));
        if durable {
            // The record named the whole pool, also what a failed one before it had added.
            self.pool_coming = 0;
        } else {
            // Nothing that this record named may be opened before another record names it.
            self.dirty.extend(composed.dirty.iter().copied());
        }
    }

    /// Dead bytes that make a segment worth cleaning: more than any packed segment loses.
    fn worth_bytes(&self) -> i64 {
        i64::from(self.geometry.block_bytes() / 64 + self.overhead_bytes)
    }

    /// True when cleaning would not leave room for `n` segments of `class`: the drive is packed, or nothing is worth cleaning.
    fn is_full(&self, class: AppendClass, n: u32) -> bool {
        if self.kept_for_cleaning() > 0 {
            // It is kept for what is about to be won.
            return false;
        }
        if self.is_futile() {
            return true;
        }
        let segment_bytes = u64::from(self.geometry.block_bytes());
        // What is live in the middle of a merge is partly dead at its end: deletes wait for it.
        if class == AppendClass::User && self.is_packed(segment_bytes, n) {
            return true;
        }
        let worth = self.worth_bytes();
        let hopeful = |entry: &Entry| {
            entry.state == SegmentState::Sealed
                && entry.unreadable_above.is_none()
                && (entry.claimed || segment_bytes as i64 - entry.live.max(0) >= worth)
        };
        self.freeing.is_empty() && !self.entries.iter().any(hopeful)
    }

    /// Whether what is alive leaves no room, or not for so many segments at once.
    fn is_packed(&self, segment_bytes: u64, n: u32) -> bool {
        let report = self.space();
        let reserve = u64::from(self.reserve) * segment_bytes;
        let usable = (report.raw - report.meta - report.leftover - report.bad).saturating_sub(reserve);
        // Each segment loses its header and some padding, and cleaning for the last thirty-second costs more than
        // it wins.
        let overhead = usable / segment_bytes * u64::from(self.overhead_bytes);
        report.live + u64::from(n.saturating_sub(1)) * segment_bytes > (usable - overhead) / 32 * 31
    }
}

fn saved(id: u32, entry: &mut Entry) -> SegmentEntry {
    entry.live_logged = entry.live;
    SegmentEntry {
        segment: id,
        state: entry.state,
        stream: entry.stream,
        flags: entry.flags,
        erase_count: entry.erase_count,
        end: entry.end,
        live: entry.live.clamp(0, i64::from(u32::MAX)) as u32,
        life: entry.life,
        last_seq: entry.last_seq,
    }
}
