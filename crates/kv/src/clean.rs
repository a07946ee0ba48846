//! Cleaning: segments with much dead data are emptied and freed.
//!
//! 1. The heap names a victim, by its hints of what is dead. Its records are read, a window at a time, and the index
//!    is asked for each whether it is what its key points at: only that decides.
//! 2. Live values are written again to the stream of moved records, each with a new number that was taken under
//!    its slice's lock while the key still pointed at the old place. So whatever the user writes meanwhile has a
//!    higher number, in memory and in a replay.
//! 3. Under the slice's lock again, each key that still points at the old place is pointed at the new one.
//! 4. Tables and pieces of large values are written again as they are; the manifest, or the entry's list of
//!    pieces, follows.
//! 5. The segment is released; one that does not read whole only if nothing names what is lost (`clean/unreadable.rs`). The
//!    heap reuses it after the next metadata record, before which everything appended is made durable: so also what made
//!    these records dead.
//!
//! From 2 to 3, and while tables and pieces are named anew, what was written is held: its segment may be full by then, and must
//! not be emptied as a victim of nothing but dead data.
//!
//! From 2 to 3 no memtable is sealed (`seal_turn`, of which a seal takes all), or a moved record could be older than the
//! checkpoint that should hold it.
//!
//! Records of the commit stream above the checkpoint are needed for a replay, so their segments wait for a flush.
//!
//! While segments are short, users may write as much as cleaning and merging win, window by window (`Heap::pace`), less
//! what flushes and merges take: a little more
//! while a few segments are left, a little less when the last ones go. So nobody waits for a whole segment, and whoever
//! waits has the whole of cleaning's speed.

pub(crate) mod alive;
pub(crate) mod left_behind;
pub(crate) mod mover;
pub mod padding;
pub mod progress;
pub(crate) mod relocate;
pub(crate) mod rescue;
pub(crate) mod shrink;
pub(crate) mod unreadable;
pub(crate) mod victims;
pub(crate) mod winning;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use pumice_base::hash::HashMap;
use pumice_base::sync::lock;
use pumice_flash::FlashError;
use pumice_reactor::{now, sleep, timeout};
use pumice_segment::{
    AppendError, Contents, MovedRecord, RecordHead, RecordPtr, Replayed, SegmentId, SpaceReport, Stream,
    Sweep,
};

use crate::clean::mover::{Candidate, Mover};
use crate::clean::padding::Padding;
use crate::clean::progress::{Progress, Verdict};
use crate::clean::shrink::Shrink;
use crate::clean::unreadable::SecondLooks;
use crate::clean::victims::Victims;
use crate::errors::StoreError;
use crate::flush::ROOM_TRIES;
use crate::manifest::Change;
use crate::memtable::{NewBody, NewVersion, Replaced};
use crate::options::to_replay;
use crate::record;
use crate::slice::key_hash;
use crate::store::Inner;
use crate::table;
use crate::types::{Seq, SliceId};

pub const TICK: Duration = Duration::from_millis(50);
pub const AFTER_FAILURE: Duration = Duration::from_millis(200);
/// Once users have been held to what cleaning wins, it goes on at its full speed for so long; commits pad little for so long after
/// it was last needed.
const HASTE: Duration = Duration::from_secs(1);
/// Of `seal_turn`: who moves something takes one.
pub const SEAL_TURNS: u64 = 256;
/// Bytes of records moved in one write, at most.
const MOVE_BYTES: usize = 512 * 1024;
/// Free segments, the reserve included, with which a flush has some that cleaning does not need.
const FLUSH_SEGMENTS: u64 = 2;
/// Of a victim so much must be dead, as a part, while nobody waits for what it wins.
const WORTH_MORE: u32 = 4;
/// Released segments that wait for a metadata record before one is written for their sake.
const RELEASED_MAX: u32 = 2;
/// The first of the times after which cleaning looks whether readers have let go; each is twice as long, up to a tick. Most reads
/// are over in no time, and users wait.
const LET_GO: Duration = Duration::from_millis(1);
/// Rounds of telling what died of large values before a segment is released: others die meanwhile.
const BURIALS_MAX: u32 = 4;
/// Times that a victim is read before what does not read is given up: some errors pass.
const SWEEPS_MAX: u32 = 2;

/// Who knows of a key table at its place.
enum Knows {
    /// Nobody: it is dead, or lies elsewhere.
    Nobody,
    /// A flush or merge that is writing it right now.
    ItsWriter,
    /// A flush or merge that has not committed it yet.
    ItsMaker,
    /// Everybody.
    Manifest,
}

/// What cleaning did.
pub enum Cleaned {
    /// It released a segment.
    Released,
    /// It looked at one that cannot be released yet.
    Kept,
    /// What is not cleaned yet is not worth it while so much is free.
    Enough,
    /// A merge wins more: cleaning waits for it.
    MergeFirst,
    /// Nothing is to be won.
    Nothing,
}

/// What came of looking at a victim.
pub enum Outcome {
    /// It was emptied and released.
    Released,
    /// It is needed until the next checkpoint.
    NeedsCheckpoint,
    /// Pieces of a value or a key table being written lie in it.
    InUse,
    /// Part of what is needed of it does not read.
    Unreadable,
}

pub async fn clean_task(store: Arc<Inner>) {
    let mut released = 0;
    let mut progress = Progress::default();
    let mut shrink = Shrink::default();
    let mut victims = Victims::default();
    let (mut held_at, mut cleaned_at) = (None, None);
    let mut second_looks = SecondLooks::new();
    let mut readers_wait = None;
    let mut padding = Padding::default();
    while !store.is_closing() {
        store.bury_large_values().await;
        second_looks.look(&store);
        let readers_hold = store.readers_hold_enough();
        // What they held is free before anything more is won.
        let is_let_go = readers_wait.is_some() && !readers_hold;
        if (store.heap.is_futile() || readers_hold || is_let_go) && !victims.are_under_way() {
            store.heap.pace(false);
            victims.offer_again(&store.heap);
            if released > 0 || store.is_some_ready() {
                store.free_released(&mut released).await;
            }
            readers_wait = readers_hold.then(|| readers_wait.map_or(LET_GO, |wait| TICK.min(2 * wait)));
            let is_rescuing = readers_hold && store.rescue(&mut released, &mut victims).await;
            if !is_let_go && !is_rescuing {
                let _ = timeout(readers_wait.unwrap_or(TICK), store.background.clean_wanted.notified()).await;
            }
            continue;
        }
        store.reckon_merge_room();
        let free = store.free_or_held();
        let target = store.free_target();
        if free >= target && !victims.are_under_way() {
            let is_cleaning = cleaned_at.is_some_and(|cleaned| now().since(cleaned) < HASTE);
            store.heap.spare(is_cleaning && store.moves_much(&mut padding));
            store.rest(&mut shrink, &mut released, &mut victims).await;
            continue;
        }
        let started = now();
        cleaned_at = Some(started);
        store.heap.spare(store.moves_much(&mut padding));
        if store.is_pacing_due() {
            held_at = Some(started);
        }
        match store.clean_one(&mut victims).await {
            Ok(Cleaned::Released) => released += 1,
            Ok(Cleaned::Kept) => {}
            Ok(Cleaned::Enough) => {
                store.rest(&mut shrink, &mut released, &mut victims).await;
                continue;
            }
            Ok(Cleaned::MergeFirst) => {
                if released > 0 {
                    store.free_released(&mut released).await;
                }
                let _ = timeout(TICK, store.background.clean_wanted.notified()).await;
                continue;
            }
            Ok(Cleaned::Nothing) => {
                store.heap.pace(false);
                if released > 0 {
                    store.free_released(&mut released).await;
                } else {
                    let _ = timeout(TICK, store.background.clean_wanted.notified()).await;
                }
                continue;
            }
            Err(error) => {
                store.heap.pace(false);
                tracing::warn!(%error, "cleaning failed");
                sleep(AFTER_FAILURE).await;
            }
        }
        match progress.judge(store.progress_state(), u64::from(store.heap.segment_bytes())) {
            Verdict::GoOn => {}
            Verdict::AskForMerges => {
                store.free_released(&mut released).await;
                store.let_users_have_what_is_free();
                // A flush without room would wait for cleaning, which would wait for it.
                if store.free_of_all_kinds() < FLUSH_SEGMENTS {
                    store.heap.seal_tables();
                } else if let Err(error) = store.uncover_dead().await {
                    tracing::warn!(%error, "a flush for cleaning's sake failed");
                }
            }
            Verdict::Pause => {
                store.free_released(&mut released).await;
                sleep(progress::PAUSE).await;
            }
            Verdict::Full => {
                tracing::info!("cleaning wins nothing more: the drive is full");
                store.heap.cleaning_won_nothing();
            }
        }
        if released >= RELEASED_MAX || store.heap.free_segments() <= target / 4 {
            store.free_released(&mut released).await;
        }
        // Half of the time while there is room, all of it when there is none, or was none just now: who rests then holds users
        // again the sooner.
        let in_haste = held_at.is_some_and(|held| now().since(held) < HASTE);
        if !in_haste && !store.is_pacing_due() && !victims.are_under_way() {
            sleep(started.elapsed().min(TICK * 4)).await;
        }
    }
    victims.settle(&store).await;
    store.heap.pace(false);
}

impl Inner {
    /// Whether cleaning has moved much lately.
    fn moves_much(&self, padding: &mut Padding) -> bool {
        let (cleaned, moved) = (self.counters.cleaned_segments.get(), self.counters.moved_bytes.get());
        padding.is_to_spare(cleaned, moved, u64::from(self.heap.segment_bytes()))
    }

    /// Nothing is to be cleaned: looks after what decays, or waits a little.
    async fn rest(self: &Arc<Self>, shrink: &mut Shrink, released: &mut u32, victims: &mut Victims) {
        self.heap.pace(false);
        if self.rescue(released, victims).await || self.shrink(shrink, released, victims).await {
            return;
        }
        victims.offer_aside_again(&self.heap);
        self.merges.eagerly.store(false, Ordering::Relaxed);
        if timeout(TICK, self.background.clean_wanted.notified()).await.is_err() {
            // What was read ahead is not wanted soon: whoever looks after what decays may have it.
            victims.offer_again(&self.heap);
        }
    }

    /// Free segments below which cleaning takes what there is: enough for what is written while one is cleaned, or while a merge
    /// wins as much, no more, because every segment kept free is dead data cleaned too early.
    fn needed_target(&self) -> u32 {
        (self.segments / 192).clamp(4, 24) + self.merges.room.load(Ordering::Relaxed)
    }

    /// Free segments below which cleaning starts: on a drive of several channels with victims that are worth it, up to what the
    /// log opens at once, and what is won at once; on small drives that would be much.
    pub fn free_target(&self) -> u32 {
        let beside = (self.heap.lanes() - 1 + self.victims_at_once() - 1) as u32;
        // A batch gets all that it needs at once, or waits, and all who came after it wait with it.
        (self.needed_target() + beside.min(self.segments / 16)).max(self.heap.segments_wanted())
    }

    /// Free segments from which on users are held to what cleaning wins. Above, cleaning itself goes at half its speed.
    pub fn paced_below(&self) -> u32 {
        self.free_target() / 2
    }

    /// Free segments, those counted that will be free when readers let go of them: cleaning has won them already, and what it wins
    /// meanwhile is held, too.
    fn free_or_held(&self) -> u32 {
        self.heap.free_segments() + self.heap.released().held
    }

    /// Whether more cleaning would move what is alive for nothing, as long as readers hold what was released: there is enough
    /// of that, or nowhere to move anything to.
    fn readers_hold_enough(&self) -> bool {
        let (free, held, target) = (self.heap.free_segments(), self.heap.released().held, self.free_target());
        held > 0 && free < target && (free + held >= target || self.free_of_all_kinds() == 0)
    }

    /// Whether a metadata record would free something that nobody holds any more.
    fn is_some_ready(&self) -> bool {
        self.heap.released().ready > 0 && self.heap.read_only().is_none()
    }

    fn is_pacing_due(&self) -> bool {
        self.heap.free_segments() <= self.paced_below()
    }

    /// Free segments, the reserve included.
    pub fn free_of_all_kinds(&self) -> u64 {
        self.free_of(&self.heap.space())
    }

    fn free_of(&self, space: &SpaceReport) -> u64 {
        (space.free + space.reserved) / u64::from(self.heap.segment_bytes())
    }

    fn progress_state(&self) -> progress::State {
        let space = self.heap.space();
        progress::State {
            free: self.free_of(&space) + u64::from(self.heap.released().held),
            live: space.live,
            accepted: self.accepted.get(),
            upkeep: self.counters.merges.get() + self.counters.flushes.get(),
            is_enough: self.free_or_held() >= self.needed_target(),
        }
    }

    /// Cleans the best victim, or puts it aside.
    async fn clean_one(self: &Arc<Self>, victims: &mut Victims) -> Result<Cleaned, StoreError> {
        let at_once = self.victims_at_once();
        if at_once > 1 {
            let short_of = self.free_target().saturating_sub(self.free_or_held());
            // Those that are under way end, whatever became of the need for them.
            let wanted = if self.heap.is_futile() { 0 } else { at_once.min(short_of as usize) };
            self.heap.pace(self.is_pacing_due());
            let is_needed = self.free_or_held() < self.needed_target();
            let least = if is_needed { 0 } else { self.heap.segment_bytes() / WORTH_MORE };
            if let Some((victim, outcome)) = victims.empty(self, wanted, least).await {
                return self.cleaned(victim, outcome, victims).await;
            }
            if !is_needed {
                return Ok(Cleaned::Enough);
            }
        }
        let least = self.least_dead();
        let Some(victim) = victims.choose(&self.heap, &least) else {
            if self.put_merge_first() {
                self.heap.pace(self.is_pacing_due());
                return Ok(Cleaned::MergeFirst);
            }
            self.heap.pace(false);
            victims.offer_again(&self.heap);
            self.uncover_dead().await?;
            return Ok(Cleaned::Nothing);
        };
        self.heap.pace(self.is_pacing_due());
        self.clean_victim(victim, victims).await
    }

    /// Cleans a victim, or puts it aside.
    pub async fn clean_victim(
        self: &Arc<Self>,
        victim: SegmentId,
        victims: &mut Victims,
    ) -> Result<Cleaned, StoreError> {
        let outcome = self.clean_segment(victim, victims).await;
        self.cleaned(victim, outcome, victims).await
    }

    /// What follows from what came of a victim.
    async fn cleaned(
        self: &Arc<Self>,
        victim: SegmentId,
        outcome: Result<Outcome, StoreError>,
        victims: &mut Victims,
    ) -> Result<Cleaned, StoreError> {
        match outcome {
            Ok(Outcome::Released) => {
                self.counters.cleaned_segments.add(1);
                self.cleaned_for_merges();
                Ok(Cleaned::Released)
            }
            Ok(Outcome::NeedsCheckpoint) => {
                self.heap.unclaim(victim);
                self.flush().await?;
                Ok(Cleaned::Kept)
            }
            Ok(Outcome::InUse) => {
                victims.put_aside(victim);
                Ok(Cleaned::Kept)
            }
            Ok(Outcome::Unreadable) => Ok(Cleaned::Kept),
            Err(error) => {
                victims.put_aside(victim);
                Err(error)
            }
        }
    }

    /// Perhaps more is dead than is known: what is shadowed comes out when rows reach the tables and these are merged.
    async fn uncover_dead(self: &Arc<Self>) -> Result<(), StoreError> {
        self.merges.eagerly.store(true, Ordering::Relaxed);
        // What a flush that found no room has put aside waits for the next one.
        let is_empty = self.memtables_hold() == 0;
        let flushed = if is_empty { Ok(()) } else { self.flush().await };
        // What is open of tables may be most of what there is to be won. The flush fills it first.
        self.heap.seal_tables();
        self.background.merge_wanted.notify_one();
        flushed
    }

    /// Writes an empty metadata record, after which released segments are free.
    pub async fn free_released(&self, released: &mut u32) {
        *released = 0;
        let _turn = self.commit_turn.acquire(1).await;
        if let Err(error) = self.commit(&[], &HashMap::default()).await {
            tracing::warn!(%error, "freeing cleaned segments failed");
        }
    }

    async fn clean_segment(
        self: &Arc<Self>,
        victim: SegmentId,
        victims: &mut Victims,
    ) -> Result<Outcome, StoreError> {
        let sweep = victims.sweep(&self.heap, victim);
        self.empty_segment(sweep, Some(victims)).await
    }

    /// Empties a victim beside others.
    pub async fn empty_victim(self: &Arc<Self>, sweep: Sweep) -> Result<Outcome, StoreError> {
        self.empty_segment(sweep, None).await
    }

    /// Moves what is alive in a victim and releases it. With `victims` the next one is read ahead.
    async fn empty_segment(
        self: &Arc<Self>,
        sweep: Sweep,
        mut victims: Option<&mut Victims>,
    ) -> Result<Outcome, StoreError> {
        let victim = sweep.segment();
        let checkpoint = lock(&self.manifest).checkpoint;
        let (mut sweep, mut unread, mut left_behind) = (Some(sweep), 0, Vec::new());
        for _ in 0..SWEEPS_MAX {
            let mut mover = Mover::new(self.clone());
            let sweep = sweep.take().unwrap_or_else(|| self.heap.sweep(victim));
            let swept = self.sweep(sweep, victims.as_deref_mut(), checkpoint, &mut mover).await;
            // Nothing may still move when the victim is given back or released.
            let moved = if matches!(swept, Ok(None)) { mover.finish().await } else { mover.settle().await };
            if let Some(outcome) = swept? {
                return Ok(outcome);
            }
            moved?;
            (unread, left_behind) = (mover.unread, std::mem::take(&mut mover.left_behind));
            if unread == 0 {
                break;
            }
        }
        if unread > 0 && self.keeps_unreadable(victim).await {
            return Ok(Outcome::Unreadable);
        }
        // A table that nobody names any more may be one that a change drops which is not durable yet: any metadata record could free the
        // segment before that one, and a crash in between would leave the table named and gone. (Others do not wait: a change may
        // wait for a commit whose program failed, and that for a segment.)
        if self.heap.stream_of(victim) == Some(Stream::Table) {
            drop(self.commit_turn.acquire(1).await);
        }
        // A list that died here while the segment was swept tells of its value's pieces only as long as it can be read.
        for _ in 0..BURIALS_MAX {
            if !self.knows_of_dead_large_values() {
                break;
            }
            self.bury_large_values().await;
        }
        lock(&self.released_at).insert(victim.0, self.heap.last_seq());
        self.heap.release(victim);
        lock(&self.large.dead).extend(left_behind);
        Ok(Outcome::Released)
    }

    /// Moves what is alive in a victim, or hands it to `mover`. Answers why it cannot be emptied, if so.
    async fn sweep(
        self: &Arc<Self>,
        mut sweep: Sweep,
        mut victims: Option<&mut Victims>,
        checkpoint: Seq,
        mover: &mut Mover,
    ) -> Result<Option<Outcome>, StoreError> {
        let victim = sweep.segment();
        let unread = |error: FlashError| StoreError::Write {
            what: format!("cleaning {victim}"),
            reason: error.to_string(),
        };
        while let Some(contents) = sweep.next().await.map_err(unread)? {
            let Contents { stream, records, heads, damage, newest_seq, record_bytes: bytes } = contents;
            for damage in damage {
                tracing::error!(%damage, "cleaning found damage");
                mover.unread += 1;
            }
            if stream == Stream::Commit && newest_seq > checkpoint {
                return Ok(Some(Outcome::NeedsCheckpoint));
            }
            if let Some(victims) = &mut victims
                && sweep.is_asked_for()
                && self.is_pacing_due()
            {
                victims.read_ahead(self, 0);
            }
            self.counters.victim_bytes.add(bytes);
            let mut live = 0;
            let (mut values, mut tables) = (Vec::new(), Vec::new());
            let (mut pieces, mut heads): (Vec<_>, Vec<_>) =
                heads.into_iter().partition(|head| head.kind == record::PIECE);
            // Lists of pieces are looked into, alive or not.
            for head in heads.extract_if(.., |head| head.kind == record::PUT_LARGE) {
                match self.whole_of(&head).await {
                    Ok(list) => values.push(list),
                    Err(error) if error.is_of_the_media() => {
                        tracing::error!(%error, "cleaning cannot read a list of pieces");
                        mover.unread += 1;
                    }
                    Err(error) => return Err(error),
                }
            }
            for record in records {
                match record.kind {
                    record::PUT | record::PUT_LARGE => values.push(record),
                    // By its head like others: who moves it reads it again.
                    record::PIECE => {
                        pieces.push(RecordHead { kind: record.kind, ptr: record.ptr, head: record.payload });
                    }
                    record::TABLE => tables.push(record),
                    _ => {}
                }
            }
            for table in tables {
                if self.move_table(&table).await?.is_none() {
                    return Ok(Some(Outcome::InUse));
                }
                // What the merge that killed a table won was earned there.
                live += u64::from(table.ptr.len);
            }
            let Some(values_in_pieces) = self.pieces_by_value(pieces) else {
                return Ok(Some(Outcome::InUse));
            };
            for value in values_in_pieces {
                live += value.bytes();
                mover.push_pieces(value).await?;
            }
            let lists = self.lists_in_records(&values);
            for mut alive in [self.alive(values), self.alive_by_heads(heads)] {
                while let Some(candidate) = alive.next().await {
                    match candidate {
                        Ok(candidate) => {
                            live += u64::from(candidate.record.ptr.len);
                            mover.push(candidate).await?;
                        }
                        // Others can be moved all the same.
                        Err(error) if error.is_of_the_media() => {
                            tracing::error!(%error, "cleaning cannot tell whether a record is needed");
                            mover.unread += 1;
                        }
                        Err(error) => return Err(error),
                    }
                }
            }
            for list in lists {
                mover.left_behind.extend(self.left_behind(&list).await);
            }
            mover.end_window().await?;
            self.let_users_write(bytes.saturating_sub(live));
        }
        Ok(None)
    }

    /// Cleaning has won `bytes`: where users are held to that they may write half as much when the last segment goes,
    /// half as much again where being held begins.
    pub fn let_users_write(&self, bytes: u64) {
        let (free, most) = (self.heap.free_segments(), self.paced_below());
        self.heap.pace(free <= most);
        let bytes = bytes / 2 + bytes * u64::from(free.min(most)) / u64::from(most);
        self.heap.earn(bytes.try_into().unwrap_or(i64::MAX));
    }

    /// Cleaning gets nowhere: held to what it wins, users would be refused with segments free beyond the reserve, and what they write may
    /// be what merges need to win.
    fn let_users_have_what_is_free(&self) {
        if self.heap.free_segments() > 0 {
            self.heap.earn(2 * i64::from(self.heap.segment_bytes()));
        }
    }

    /// Bytes moved in one write: a quarter of a segment where segments are small, because every write ends in half a page of
    /// padding; the heap fills what is left of a segment with a part of it.
    pub fn move_bytes(&self) -> usize {
        MOVE_BYTES.min(self.heap.segment_bytes() as usize / 4)
    }

    pub(crate) fn is_retired(&self, slice: SliceId, key: &[u8]) -> bool {
        let manifest = lock(&self.manifest);
        !manifest.retired.is_empty() && manifest.retired.covers(slice, key)
    }

    pub async fn move_batch(self: &Arc<Self>, batch: &mut Vec<Candidate>) -> Result<(), StoreError> {
        if batch.is_empty() {
            return Ok(());
        }
        // A flush needs segments, too: when there are hardly any left it may be waiting for what cleaning wins.
        while self.memtables_full() && self.free_of_all_kinds() > 2 + u64::from(self.heap.kept_for_cleaning())
        {
            self.background.flush_wanted.notify_one();
            let _ = timeout(TICK, self.background.flushed.notified()).await;
            if self.is_closing() {
                return Err(StoreError::Closing);
            }
        }
        let turn = self.seal_turn.acquire(1).await;
        let mut moved = Vec::with_capacity(batch.len());
        let mut kept = Vec::with_capacity(batch.len());
        for mut candidate in batch.drain(..) {
            let seq = {
                let state = self.slice(candidate.slice);
                let newest = state.in_memtables(key_hash(&candidate.key), &candidate.key);
                let points_here = match newest {
                    Some(newest) => {
                        candidate.found = newest;
                        candidate.found.record().map(|ptr| self.place_of(ptr)) == Some(candidate.record.ptr)
                    }
                    None => state.epoch == candidate.epoch,
                };
                // Retiring takes the slice's lock, too. With a number above the prefix's the record could outlive the list of
                // prefixes, and nobody would ever delete it.
                let is_needed = points_here && !self.is_retired(candidate.slice, &candidate.key);
                is_needed.then(|| self.heap.next_seq(1))
            };
            let Some(seq) = seq else {
                // A seal came between; the index is asked again, which may read key blocks. Rare.
                kept.push((candidate, None));
                continue;
            };
            let payload = payload_to_move(&candidate);
            moved.push(MovedRecord { seq, kind: candidate.record.kind, payload });
            kept.push((candidate, Some(seq)));
        }
        if !moved.is_empty() {
            let bytes: u64 = moved.iter().map(|record| record.payload.len() as u64).sum();
            let mut tries = 0;
            let done = loop {
                tries += 1;
                match self.heap.write_moved(moved.clone()).await {
                    Ok(done) => break done,
                    Err(AppendError::Busy) if tries < ROOM_TRIES => self.segment_may_come().await,
                    Err(error) => {
                        return Err(StoreError::Write {
                            what: "moved records".into(),
                            reason: error.to_string(),
                        });
                    }
                }
            };
            self.counters.moved_records.add(moved.len() as u64);
            self.counters.moved_bytes.add(bytes);
            let with_seq = kept.iter().filter_map(|(candidate, seq)| Some((candidate, (*seq)?)));
            for ((candidate, seq), ptr) in with_seq.zip(&done.ptrs) {
                self.redirect(candidate, seq, *ptr);
            }
            // Memtables have grown, perhaps while nobody writes.
            self.take_back_lent();
            if self.memtables.moved_bytes.load(Ordering::Relaxed) >= self.options.log_max_bytes {
                self.background.flush_wanted.notify_one();
            }
            drop(done.ticket);
        }
        drop(turn);
        for (candidate, seq) in kept {
            if seq.is_none() {
                batch.push(candidate);
            }
        }
        // The index is asked again about those that a seal came between.
        let again: Vec<_> = batch.drain(..).map(|candidate| candidate.record).collect();
        let mut alive = self.alive(again);
        while let Some(candidate) = alive.next().await {
            batch.push(candidate?);
        }
        if batch.is_empty() { Ok(()) } else { Box::pin(self.move_batch(batch)).await }
    }

    /// Points a key at its record's new place, unless it was written meanwhile.
    fn redirect(&self, candidate: &Candidate, seq: Seq, ptr: RecordPtr) {
        let found = &candidate.found;
        let new = NewVersion {
            seq,
            expire_ms: found.expire_ms,
            tag: found.tag,
            large: found.large,
            value_len: found.value_len,
            // The old place goes with its segment.
            counted: true,
            // It was written durably.
            on_flash: true,
            new_key: false,
            body: NewBody::Record(ptr),
        };
        let mut state = self.slice(candidate.slice);
        let hash = key_hash(&candidate.key);
        // A newer number than `seq` is the user's; insert would refuse it, too, but bury the wrong pieces.
        if state.seq_in_memtables(hash, &candidate.key).is_some_and(|newest| newest > seq) {
            self.heap.mark_dead(ptr);
            return;
        }
        let (replaced, grown) = state.insert_with_same_value(&candidate.key, &new, self.snapshots.newest());
        assert!(replaced != Replaced::Newer);
        self.lies_in_later_life(ptr, seq);
        self.note_key(candidate.key.len());
        self.memtables.active_bytes.fetch_add(grown as u64, Ordering::Relaxed);
        self.memtables.moved_bytes.fetch_add(to_replay(ptr), Ordering::Relaxed);
    }

    /// Who knows of the key table in this record.
    fn knows_table(&self, footer: &table::Footer, ptr: RecordPtr) -> Knows {
        // Before the manifest is asked: a table is registered until it is named there.
        match lock(&self.making).get(&footer.id) {
            Some(None) => return Knows::ItsWriter,
            Some(Some(made)) if *made == ptr => return Knows::ItsMaker,
            _ => {}
        }
        let manifest = lock(&self.manifest);
        let version = manifest.versions.get(usize::from(footer.slice.0));
        let is_named = version.is_some_and(|version| {
            version.tables().any(|table| table.meta.id == footer.id && table.meta.ptr == ptr)
        });
        if is_named { Knows::Manifest } else { Knows::Nobody }
    }

    /// Moves a key table that is alive. Answers how many bytes were moved; `None` when it is being written.
    async fn move_table(self: &Arc<Self>, record: &Replayed) -> Result<Option<u64>, StoreError> {
        let Some(footer) = table::decode_footer(&record.payload) else { return Ok(Some(0)) };
        match self.knows_table(&footer, record.ptr) {
            Knows::ItsWriter => return Ok(None),
            Knows::Nobody => return Ok(Some(0)),
            Knows::ItsMaker | Knows::Manifest => {}
        }
        let (order, bytes) = self.run_of(&footer);
        let group = self.group_of(footer.slice, order, bytes);
        let (ptr, _hold) = self.write_table(&record.payload, group, true).await?;
        // Makers place their tables and name them in one turn.
        let _turn = self.commit_turn.acquire(1).await;
        match self.knows_table(&footer, record.ptr) {
            Knows::ItsMaker => {
                lock(&self.making).insert(footer.id, Some(ptr));
            }
            Knows::Manifest => {
                self.commit(&[Change::Move(footer.slice, footer.id, ptr)], &HashMap::default()).await?;
                self.show_tables(footer.slice, &[]);
            }
            Knows::ItsWriter | Knows::Nobody => {
                self.heap.mark_dead(ptr);
                return Ok(Some(0));
            }
        }
        self.counters.moved_bytes.add(u64::from(ptr.len));
        Ok(Some(u64::from(ptr.len)))
    }
}

/// What is written of a record that moves: the version that its key has now, which may be another than the record's if that was put again.
fn payload_to_move(candidate: &Candidate) -> Bytes {
    let Candidate { slice, key, record: Replayed { payload, .. }, found, .. } = candidate;
    let owner = record::decode_key(payload).expect("the key was taken from it");
    if owner.expire_ms == found.expire_ms {
        return payload.clone();
    }
    let mut moved = Vec::with_capacity(payload.len() + size_of::<u64>());
    record::encode_key(&mut moved, *slice, found.tag, found.expire_ms, key);
    moved.extend_from_slice(&payload[owner.rest]);
    Bytes::from(moved)
}
