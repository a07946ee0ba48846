//! The heap's interface.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use pumice_flash::{Device, FlashError};
use pumice_reactor::now;
use pumice_reactor::sync::Gate;
use smallvec::SmallVec;

use crate::inner::Inner;
use crate::metalog::{self, Write};
use crate::pins::Revoked;
use crate::replay::Replay;
pub use crate::table::{Growth, Recounted, Released};
pub use crate::writer::Hold;
use crate::writer::MovedFrames;
use crate::{Admitted, Contents, Record, RecordIn, commit, read, writer};
use crate::{
    AppendError, ChannelReport, CommitFailed, Damage, FormatOptions, Group, HeapError, HeapOptions,
    HeapStats, MovedRecord, Object, Patrol, PatrolStats, Place, ReadError, RecordPtr, SegmentId, SpaceReport,
    Stream, Sweep, Turn,
};

/// Who appends, and so how deep into the reserve it may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AppendClass {
    /// User data: refused when only the reserve is left.
    User,
    /// What takes the place of about as much that is there: has a part of the reserve, so that a full drive can be worked on.
    Rewrite,
    /// Deletes: may use half of the rest, so that a full drive can be emptied.
    Delete,
    /// The client's own upkeep: may use the reserve but for the last segment.
    Upkeep,
    /// Cleaning, without which nothing could ever be won back: may use all of it but what is kept for rescues.
    System,
    /// Commits whose program failed, which what is released may wait for: where programs fail, the last segment is theirs.
    Rescue,
}

/// What an append was given.
#[derive(Clone, Debug)]
pub struct Appended {
    /// Sequence number of the first record; the others follow.
    pub first_seq: u64,
    /// Where the records are.
    pub ptrs: SmallVec<[RecordPtr; 4]>,
}

/// Moved records, durable. Drop the ticket after the new pointers are in the client's own in-memory state:
/// until a later [`Heap::commit_meta`] has a `replay_from` from after that, the frame is replayed after a crash.
#[must_use]
pub struct Moved {
    /// New pointers, in the order of the records.
    pub ptrs: Vec<RecordPtr>,
    /// Keeps the frame in the replay, and its segment from being a victim: to be dropped when the client names the new places.
    pub ticket: MoveTicket,
}

/// See [`Moved`].
pub struct MoveTicket {
    inner: Arc<Inner>,
    frames: Vec<u64>,
    _holds: Vec<Hold>,
}

impl Drop for MoveTicket {
    fn drop(&mut self) {
        let last_seq = self.inner.commit().next_seq - 1;
        let mut moves = self.inner.moves();
        for frame in &self.frames {
            moves.applied(*frame, last_seq);
        }
    }
}

/// While held, segments are kept free for a victim: [`Heap::keep_for_cleaning`].
pub struct CleaningRoom {
    inner: Arc<Inner>,
    bytes: u64,
}

impl Drop for CleaningRoom {
    fn drop(&mut self) {
        let mut table = self.inner.table();
        table.keep_less_for_cleaning(self.bytes);
        self.inner.note_reserve(&table);
        drop(table);
        self.inner.room_came();
    }
}

/// While held, no segment that is released from now on is reused, unless [`Heap::revoke_pins`] takes it away: take it
/// before looking pointers up.
pub struct Pin {
    inner: Arc<Inner>,
    epoch: u64,
    revoked: Revoked,
}

impl Pin {
    /// Whether it holds no more. What was read before this was false is what was there when it was taken.
    pub fn is_revoked(&self) -> bool {
        self.revoked.load(Ordering::Acquire)
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        self.inner.table().unpin(self.epoch, &self.revoked);
    }
}

/// A metadata record's client part.
#[derive(Clone, Debug)]
pub enum MetaEdit {
    /// Added to the state since the last snapshot.
    Edit(Bytes),
    /// Replaces the state.
    Snapshot(Bytes),
}

/// Told when a program failure moved records: `(old, new)`. Called on the committing core without any heap lock,
/// before the records count as durable; old pointers can be read until the heap is closed. Store a pointer durably
/// only once its record is durable: then it does not change any more.
pub type OnRelocated = Arc<dyn Fn(&[(RecordPtr, RecordPtr)]) + Send + Sync>;

/// Bytes done and bytes to do.
pub type Progress<'a> = &'a dyn Fn(u64, u64);

/// An opened drive.
pub struct Opened {
    /// The heap; it takes appends once the replay has ended.
    pub heap: Heap,
    /// The client's state: the newest snapshot, then the edits since.
    pub client_state: Vec<Bytes>,
    /// What was written after that; read it to its end.
    pub replay: Replay,
    /// True when the drive was closed cleanly: the replay is empty.
    pub clean: bool,
    /// Segments whose superblock did not verify and was written again.
    pub renewed: Vec<SegmentId>,
}

/// The record heap of one drive. Clones are handles on the same heap; any core may use it.
#[derive(Clone)]
pub struct Heap {
    inner: Arc<Inner>,
}

impl Heap {
    /// Makes `device` an empty drive.
    ///
    /// # Errors
    /// [`HeapError::AlreadyFormatted`] without `force`; [`HeapError::Geometry`] when it is too small.
    pub async fn format(device: &Device, options: &FormatOptions) -> Result<(), HeapError> {
        crate::open::format(device, options).await
    }

    /// Opens a drive.
    ///
    /// # Errors
    /// See [`HeapError`].
    pub async fn open(
        device: Device,
        options: HeapOptions,
        progress: Progress<'_>,
    ) -> Result<Opened, HeapError> {
        crate::open::open(device, options, progress).await
    }

    pub(crate) fn from_inner(inner: Arc<Inner>) -> Self {
        Self { inner }
    }

    /// The drive's identity.
    pub fn drive_id(&self) -> [u8; 16] {
        self.inner.superblock.drive_id
    }

    /// What the client stored when the drive was formatted.
    pub fn config(&self) -> Bytes {
        self.inner.superblock.config.clone()
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.inner.device
    }

    /// Segments that the log is written to at once, while as many are free beyond the reserve.
    pub fn lanes(&self) -> usize {
        self.inner.lanes
    }

    /// Victims that can be emptied at a time, each into a segment of its own on a drive of several channels.
    pub fn victims_at_once(&self) -> usize {
        writer::moved_lanes(&self.inner).len()
    }

    /// Keeps segments free for a victim that is emptied beside others and of which so many bytes may be alive: for one there is a
    /// reserve. `None` when there are not enough.
    pub fn keep_for_cleaning(&self, live_bytes: u32) -> Option<CleaningRoom> {
        let bytes = u64::from(live_bytes);
        let mut table = self.inner.table();
        let kept = table.keep_for_cleaning(bytes);
        self.inner.note_reserve(&table);
        kept.then(|| CleaningRoom { inner: self.inner.clone(), bytes })
    }

    /// Segments that are kept free in this way.
    pub fn kept_for_cleaning(&self) -> u32 {
        self.inner.table().kept_for_cleaning()
    }

    /// Bytes of a segment that may be alive.
    pub fn live_bytes(&self, segment: SegmentId) -> u32 {
        let live = self.inner.table().entry(segment).map_or(0, |entry| entry.live);
        live.clamp(0, i64::from(self.segment_bytes())) as u32
    }

    /// Whether next to nothing of a segment seems to be alive: of large values, or of the log, [`Heap::sweep`] reads little more than
    /// that then.
    pub fn is_nearly_dead(&self, segment: SegmentId) -> bool {
        self.inner.is_nearly_dead(segment)
    }

    /// Whether a segment's records are being moved elsewhere: it was offered as a victim or is endangered, and was not given back.
    pub fn is_being_emptied(&self, segment: SegmentId) -> bool {
        self.inner.table().is_claimed(segment)
    }

    /// The stream that a segment belongs to.
    pub fn stream_of(&self, segment: SegmentId) -> Option<Stream> {
        self.inner.table().entry(segment).and_then(|entry| Stream::from_u8(entry.stream))
    }

    /// Bytes of a segment.
    pub fn segment_bytes(&self) -> u32 {
        self.inner.segment_bytes
    }

    /// Bytes of all segments that users leave to upkeep and deletes.
    pub fn reserve_bytes(&self) -> u64 {
        u64::from(self.inner.table().reserve_segments()) * u64::from(self.inner.segment_bytes)
    }

    /// The largest payload of [`Heap::append`].
    pub fn append_max_bytes(&self) -> u32 {
        self.inner.append_max_bytes()
    }

    /// Says whom to tell when a program failure moved records.
    pub fn on_relocated(&self, callback: OnRelocated) {
        // The first caller stays; there is one client.
        let _ = self.inner.on_relocated.set(callback);
    }

    /// Copies the records into the forming frame, gives them sequence numbers and addresses, and starts the commit
    /// on the current core if none is under way. All of them become durable together. No I/O, no allocation in the
    /// steady state.
    ///
    /// # Errors
    /// See [`AppendError`]; nothing was appended then.
    pub fn append(&self, records: &[RecordIn<'_>], class: AppendClass) -> Result<Appended, AppendError> {
        Ok(self.admit(records, class)?.append(records))
    }

    /// The first half of [`Heap::append`], which alone may be refused: for records on several heaps, all of them or none. Nobody
    /// else appends until what this answers is dropped; whoever holds some has them in one order of heaps, the same for everybody.
    ///
    /// # Errors
    /// As [`Heap::append`].
    #[inline]
    pub fn admit(&self, records: &[RecordIn<'_>], class: AppendClass) -> Result<Admitted<'_>, AppendError> {
        let result = commit::admit(&self.inner, records, class);
        if matches!(result, Err(AppendError::Busy)) {
            self.inner.kick_meta();
        }
        result
    }

    /// Waits until an append that was answered [`AppendError::Busy`] is worth another try, for those who do not queue: who has other
    /// bounds than users.
    pub async fn room(&self) {
        self.inner.wait_for_room().await;
    }

    /// Whether users wait for room. Who comes now is to [queue](Heap::queue) up behind them, though an append might be taken.
    pub fn users_wait(&self) -> bool {
        self.inner.room.users_wait()
    }

    /// A place behind all users who wait for room, for an append of about `bytes` that was answered [`AppendError::Busy`], with which a
    /// turn begins. If all of them were called and there is room for more, it is called as soon as they have had their chance.
    pub fn queue(&self, bytes: u64, turn: &mut Turn) -> Place {
        Place::last(&self.inner, bytes, turn)
    }

    /// The newest sequence number given out; 0 before the first.
    pub fn last_seq(&self) -> u64 {
        self.inner.commit().next_seq - 1
    }

    /// Takes `n` sequence numbers for records that are not appended (moves); returns the first.
    pub fn next_seq(&self, n: u64) -> u64 {
        commit::take_seqs(&self.inner, n)
    }

    /// Open to the newest sequence number that counts as durable under the chosen [`crate::Durability`].
    pub fn durable(&self) -> &Gate {
        &self.inner.durable
    }

    /// Waits until `seq` counts as durable.
    ///
    /// # Errors
    /// [`CommitFailed`] when it never will.
    pub async fn wait_durable(&self, seq: u64) -> Result<(), CommitFailed> {
        self.inner.durable.wait_for(seq).await.map_err(|error| CommitFailed(error.reason))
    }

    /// Writes everything appended so far, without a sync. From then on it stays where it is: only records whose program fails
    /// go elsewhere ([`Heap::on_relocated`]).
    ///
    /// # Errors
    /// [`CommitFailed`] when that failed.
    pub async fn write_out(&self) -> Result<(), CommitFailed> {
        crate::pump::write_out(&self.inner).await.map(drop)
    }

    /// Puts everything appended so far on flash, whatever the durability mode.
    ///
    /// # Errors
    /// [`CommitFailed`] when that failed.
    pub async fn flush(&self) -> Result<(), CommitFailed> {
        crate::pump::flush(&self.inner).await
    }

    /// Reads a record and verifies it; from memory when it was committed recently.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub async fn read(&self, ptr: RecordPtr) -> Result<Record, ReadError> {
        read::read(&self.inner, ptr).await
    }

    /// [`Heap::read`] of a record that was not in memory a moment ago.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub async fn read_flash(&self, ptr: RecordPtr) -> Result<Record, ReadError> {
        read::read_flash(&self.inner, ptr).await
    }

    /// Reads records that lie near each other in one segment with a single read, and verifies each; `None` for one that
    /// must be read alone, which then says why.
    pub async fn read_neighbours(&self, ptrs: &[RecordPtr]) -> Vec<Option<Record>> {
        read::read_neighbours(&self.inner, ptrs).await
    }

    /// The record if it is in memory.
    pub fn peek(&self, ptr: RecordPtr) -> Option<Record> {
        read::peek(&self.inner, ptr)
    }

    /// Rises whenever a segment is opened: to be asked while a pointer is looked up that is not read at once, for
    /// [`Heap::was_opened_since`].
    pub fn lives(&self) -> u64 {
        self.inner.lives.load(Ordering::Acquire)
    }

    /// Whether the segment that `ptr` points into was opened anew since [`Heap::lives`] answered this: what was read there may be
    /// another record than was meant, whole as it is. One that a program failure moved since may look like that, too.
    pub fn was_opened_since(&self, ptr: RecordPtr, lives: u64) -> bool {
        lives < self.lives() && read::was_opened_since(&self.inner, ptr, lives)
    }

    /// Whether `segment` holds what it held when [`Heap::lives`] answered this: it was neither released nor opened since.
    pub fn holds_since(&self, segment: SegmentId, lives: u64) -> bool {
        self.inner.table().life_in_use(segment).is_some_and(|life| life < lives)
    }

    /// Bytes `offset..offset + len` of a record's payload as they lie on flash, *not* verified: for objects with
    /// checksums of their own.
    ///
    /// # Errors
    /// See [`ReadError`]; [`ReadError::OutOfRange`] beyond the record.
    pub async fn read_range(&self, ptr: RecordPtr, offset: u32, len: u32) -> Result<Bytes, ReadError> {
        read::read_range(&self.inner, ptr, offset, len).await
    }

    /// An empty object with room for a payload of so many bytes, in memory that it is written from.
    pub fn object(&self, payload_bytes: usize) -> Object {
        Object::new(self.inner.page_bytes(), payload_bytes)
    }

    /// An object whose payload is the concatenation of `parts`.
    pub fn object_of(&self, parts: &[&[u8]]) -> Object {
        let mut object = self.object(parts.iter().map(|part| part.len()).sum());
        parts.iter().for_each(|part| object.extend_from_slice(part));
        object
    }

    /// Writes an object as one record of `kind`, durable on return, to a stream of its own. Not replayed after a crash: the
    /// client's state must name it. Key tables may use the reserve, large values not. What was refused can be tried again.
    ///
    /// # Errors
    /// See [`AppendError`].
    pub async fn write_object(
        &self,
        kind: u8,
        group: Group,
        object: &mut Object,
    ) -> Result<RecordPtr, AppendError> {
        let class = if group == Group::Large { AppendClass::User } else { AppendClass::Upkeep };
        Ok(writer::write_object(&self.inner, kind, group, class, object).await?.0)
    }

    /// [`Heap::write_object`] for cleaning, which may use the reserve whatever it moves. Until the hold is dropped the segment is no
    /// victim: not before the client names the object there.
    ///
    /// # Errors
    /// See [`AppendError`].
    pub async fn move_object(
        &self,
        kind: u8,
        group: Group,
        object: &mut Object,
    ) -> Result<(RecordPtr, Option<Hold>), AppendError> {
        writer::write_object(&self.inner, kind, group, AppendClass::System, object).await
    }

    /// Bytes of metadata, the client's and the heap's, that the metadata log takes.
    pub fn metadata_bytes_max(&self) -> u64 {
        metalog::half_bytes(&self.inner.superblock)
    }

    /// The largest payload that still fits in the open segment of `group`, so that objects can be cut to fit; a
    /// whole segment's worth when a new one is due.
    pub fn object_room(&self, group: Group) -> u32 {
        writer::object_room(&self.inner, group)
    }

    /// Seals the open segments of tables, and those of each other stream that are not being written but for one, so that cleaning can
    /// win what is dead in them.
    pub fn seal_tables(&self) {
        writer::seal_tables(&self.inner);
    }

    /// Writes moved records, durable on return. They are replayed after a crash.
    ///
    /// # Errors
    /// See [`AppendError`].
    pub async fn write_moved(&self, records: Vec<MovedRecord>) -> Result<Moved, AppendError> {
        let MovedFrames { ptrs, numbers, holds } = writer::write_moved(&self.inner, &records).await?;
        let ticket = MoveTicket { inner: self.inner.clone(), frames: numbers, _holds: holds };
        Ok(Moved { ptrs, ticket })
    }

    /// Says that the record is dead. A hint for choosing victims and for the space report.
    pub fn mark_dead(&self, ptr: RecordPtr) {
        self.inner.table().mark_dead(ptr.addr.segment(), ptr.len);
    }

    /// Corrects the hint after a segment's records were looked at.
    pub fn set_live(&self, segment: SegmentId, live_bytes: u32) {
        self.inner.table().set_live(segment, live_bytes);
    }

    /// Begins to count anew what is alive in the sealed segments of a stream. The client then looks at what it names there: later than
    /// this, because what dies from now on is told meanwhile.
    pub fn begin_recount(&self, stream: Stream) -> Vec<Recounted> {
        self.inner.table().begin_recount(stream)
    }

    /// Ends it: so many bytes are named in each. What was released meanwhile stays as it is.
    pub fn end_recount(&self, named: impl IntoIterator<Item = (Recounted, u64)>) {
        let mut table = self.inner.table();
        named.into_iter().for_each(|(counted, bytes)| table.end_recount(&counted, bytes));
        drop(table);
        self.inner.room_came();
    }

    /// The sealed segment with the most dead bytes; `None` when cleaning would win nothing, or less than
    /// `least_bytes` of a segment of its stream. It is not offered again until it was released or [`Heap::unclaim`]ed. Commit segments that a
    /// recovery would still replay are not offered: checkpoint first.
    pub fn victim(&self, least_bytes: impl Fn(Stream) -> u32) -> Option<SegmentId> {
        let replay_from = self.inner.meta.state().replay_from;
        let mut table = self.inner.table();
        let victim = table.victim(replay_from, &least_bytes);
        self.inner.note_reserve(&table);
        victim
    }

    /// A segment whose records should move whatever it has to win: while they still read, because a program failed in it or a
    /// page of it needed nearly all that its code corrects; or because it lies where superblocks need room. Claimed as a victim
    /// is. Costs next to nothing while there is none.
    pub fn endangered(&self) -> Option<SegmentId> {
        let is_news = self.inner.device.take_weak_news();
        let replay_from = self.inner.meta.state().replay_from;
        let mut table = self.inner.table();
        if is_news {
            table.note_weak();
        }
        table.endangered(replay_from)
    }

    /// Segments with a page near what its code corrects, whose records have not moved yet.
    pub fn weak_segments(&self) -> u32 {
        self.inner.table().weak_count()
    }

    /// Gives a victim back without having cleaned it.
    pub fn unclaim(&self, segment: SegmentId) {
        self.inner.table().unclaim(segment);
    }

    /// Keeps a victim that does not read whole and of which `live_bytes` are still needed. It is a victim again when
    /// half of these are dead, and at the next opening.
    pub fn keep_unreadable(&self, segment: SegmentId, live_bytes: u32) {
        self.inner.table().keep_unreadable(segment, live_bytes);
    }

    /// Makes the segment a victim again that [`Heap::keep_unreadable`] has kept longest.
    pub fn offer_unreadable(&self) {
        self.inner.table().offer_unreadable();
    }

    /// Every record of a segment.
    ///
    /// # Errors
    /// [`FlashError`] when the media do not answer; pages that do not read are reported as damage.
    pub async fn contents(&self, segment: SegmentId) -> Result<Contents, FlashError> {
        read::contents(&self.inner, segment).await
    }

    /// Reads a segment's records window by window: for those who need not hold all of them at once. Of records that have a head
    /// only that is read and verified. The segment must not be released meanwhile.
    pub fn sweep(&self, segment: SegmentId) -> Sweep {
        Sweep::new(&self.inner, segment)
    }

    /// Superblocks that do not verify, of drives that keep two alike: on files, block devices and zoned drives.
    ///
    /// # Errors
    /// The device's, when it is gone.
    pub async fn superblock_damage(&self) -> Result<Vec<Damage>, HeapError> {
        let mut found = Vec::new();
        if self.inner.superblock.placed.is_none() {
            for segment in 0..2 {
                found.extend(crate::open::superblock_damage(&self.inner, segment).await?);
            }
        }
        Ok(found)
    }

    /// Records of the metadata log of which one of the two does not verify.
    ///
    /// # Errors
    /// The device's.
    pub async fn metadata_damage(&self) -> Result<Vec<Damage>, HeapError> {
        metalog::damage(&self.inner).await
    }

    /// Every segment that holds data, for checks.
    pub fn segments_in_use(&self) -> Vec<SegmentId> {
        self.inner.table().in_use()
    }

    /// Frees a segment of which the client's *durable* state (metadata, and moved records that are durable) needs
    /// nothing any more: reused after the next metadata record, which may be the heap's own, and not while a
    /// [`Pin`] from before is held.
    pub fn release(&self, segment: SegmentId) {
        let last_seq = self.last_seq();
        self.inner.table().release(segment, last_seq);
        self.inner.kick_meta();
    }

    /// See [`Pin`].
    pub fn pin(&self) -> Pin {
        let (epoch, revoked) = self.inner.table().pin(now());
        Pin { inner: self.inner.clone(), epoch, revoked }
    }

    /// Revokes the pins that have been held for so long, if users lack segments that were released and are pinned; answers
    /// how many.
    pub fn revoke_pins(&self, held_for: Duration) -> u32 {
        let revoked = self.inner.table().revoke_pins(now() - held_for);
        if revoked > 0 {
            self.inner.kick_meta();
        }
        revoked
    }

    /// [`Heap::revoke_pins`] where nobody waits for what they hold back: their owners hold something else that is needed.
    pub fn end_reads(&self, held_for: Duration) -> u32 {
        let revoked = self.inner.table().end_reads(now() - held_for);
        if revoked > 0 {
            self.inner.kick_meta();
        }
        revoked
    }

    /// Writes a metadata record, durable on return: the client's edit and the segment table's changes, together.
    /// Everything appended before is made durable first. Records with sequence numbers up to `replay_from` are not
    /// replayed any more.
    ///
    /// # Errors
    /// [`HeapError`]; the heap is read-only then.
    pub async fn commit_meta(&self, edit: MetaEdit, replay_from: u64) -> Result<(), HeapError> {
        self.flush().await.map_err(|CommitFailed(reason)| HeapError::ReadOnly(reason))?;
        let write = Write { edit: Some(edit), replay_from: Some(replay_from), ..Write::internal() };
        metalog::write_meta(&self.inner, write).await
    }

    /// True when the next [`Heap::commit_meta`] should be a snapshot: the log of edits has grown long.
    pub fn wants_snapshot(&self) -> bool {
        self.inner.meta.wants_snapshot(&self.inner.superblock)
    }

    /// Where the drive's bytes are.
    pub fn space(&self) -> SpaceReport {
        self.inner.table().space()
    }

    /// The same by channel, with what has still to be erased, and the wear.
    pub fn channels(&self) -> Vec<ChannelReport> {
        self.inner.table().channels()
    }

    /// Free segments that user data may still open: the cleaner's measure of urgency.
    pub fn free_segments(&self) -> u32 {
        let table = self.inner.table();
        table.free_count().saturating_sub(table.user_floor())
    }

    /// Free segments that the user data wants at once that waits for room now, as far as its last try tells; 0 if none waits.
    pub fn segments_wanted(&self) -> u32 {
        if self.inner.room.users_wait() { self.inner.table().users_want() } else { 0 }
    }

    /// Released segments that are not free yet.
    pub fn released(&self) -> Released {
        self.inner.table().released_segments()
    }

    /// Whether user data of a page would be refused now: the drive is full. False as long as cleaning has not found out that it is.
    pub fn refuses_users(&self) -> bool {
        let is_open = self.inner.commit().takes_a_page(&self.inner);
        self.inner.table().refuses_users(is_open)
    }

    /// The same of user data that needs a segment.
    pub fn refuses_segments(&self) -> bool {
        self.inner.table().refuses_users(false)
    }

    /// What a drive in a file holds of its file system's space among what is free; `None` on other media, and where all of it was
    /// taken when the drive was formatted.
    pub fn growth(&self) -> Option<Growth> {
        self.inner.table().growth()
    }

    /// Gives the space of a free segment back to the file system. Answers whether there was one.
    ///
    /// # Errors
    /// When the file system cannot take it.
    pub async fn give_back(&self) -> Result<bool, FlashError> {
        let inner = &self.inner;
        let begun = {
            let mut table = inner.table();
            let begun = table.begin_give_back();
            inner.note_reserve(&table);
            begun
        };
        let Some(segment) = begun else { return Ok(false) };
        let given = inner.device.give_back(inner.block(segment)).await;
        {
            let mut table = inner.table();
            table.end_give_back(segment, given.is_ok());
            inner.note_reserve(&table);
        }
        inner.room_came();
        given.map(|()| true)
    }

    /// While on, what a commit pads is soon cleaned: commits of many users at once are made larger than the drive's speed asks
    /// for.
    pub fn spare(&self, on: bool) {
        self.inner.is_sparing.store(on, Ordering::Relaxed);
    }

    /// Starts or stops holding user appends to what cleaning wins: see [`Heap::earn`].
    pub fn pace(&self, on: bool) {
        self.inner.pace.set(on, self.inner.segment_bytes);
        if !on {
            self.inner.room_came();
        }
    }

    /// Cleaning has won so many bytes: user appends may take as many. Less than none: other background work took them.
    pub fn earn(&self, bytes: i64) {
        self.inner.pace.earn(bytes, self.inner.segment_bytes);
        self.inner.room_came();
    }

    /// The client cleaned many victims and no segment came free: what is called dead is what packing loses. Writes
    /// are refused as [`AppendError::Full`] until about a segment's worth has died.
    pub fn cleaning_won_nothing(&self) {
        self.inner.table().cleaning_won_nothing();
        self.inner.room_came();
    }

    /// A delete was refused because of [`Heap::cleaning_won_nothing`]: has cleaning tried again, once until a delete
    /// gets through.
    pub fn reconsider(&self) {
        self.inner.table().reconsider();
    }

    /// Cleaning may win something since [`Heap::cleaning_won_nothing`].
    pub fn cleaning_may_win(&self) {
        self.inner.table().cleaning_may_win();
    }

    /// Whether [`Heap::cleaning_won_nothing`] holds.
    pub fn is_futile(&self) -> bool {
        self.inner.table().is_futile()
    }

    /// A walk that reads the whole drive, from where the last one was: see [`crate::Patrol`].
    pub fn patrol(&self) -> Patrol {
        Patrol::new(self.inner.clone())
    }

    /// How the patrol is getting on.
    pub fn patrol_stats(&self) -> PatrolStats {
        let segments = self.inner.superblock.segment_count;
        PatrolStats { segments, ..*self.inner.patrol_stats() }
    }

    /// Places that the patrol found damaged and that hold what they held then.
    pub fn damage_found(&self) -> u64 {
        self.inner.found_damage().still_there(&self.inner)
    }

    /// Counters since opening.
    pub fn stats(&self) -> HeapStats {
        self.inner.stats()
    }

    /// Why the heap takes no more writes, if so.
    pub fn read_only(&self) -> Option<Arc<str>> {
        self.inner.blocked()
    }

    /// Makes everything durable and writes a clean mark, so that the next open replays nothing. There is none when something was
    /// appended that the client's state does not cover, by those who wrote until the heap took nothing more: that is replayed.
    ///
    /// # Errors
    /// [`HeapError`].
    pub async fn close(&self) -> Result<(), HeapError> {
        crate::pump::close(&self.inner, false).await
    }

    /// The same for a client whose state does not cover all that was replayed: the next open replays the rest.
    ///
    /// # Errors
    /// [`HeapError`].
    pub async fn close_with_log(&self) -> Result<(), HeapError> {
        crate::pump::close(&self.inner, true).await
    }
}
