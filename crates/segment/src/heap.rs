//! The heap's interface.

use std::sync::Arc;

use bytes::Bytes;
use pumice_flash::{Device, FlashError};
use pumice_reactor::sync::Gate;
use smallvec::SmallVec;

use crate::{
    AppendError, CommitFailed, Damage, FormatOptions, HeapError, HeapOptions, HeapStats, ReadError,
    RecordPtr, SegmentId, SpaceReport, Stream,
};

/// A record to append: its payload is the concatenation of `parts`.
#[derive(Clone, Copy, Debug)]
pub struct RecordIn<'a> {
    /// The client's own distinction; comes back with the record.
    pub kind: u8,
    /// The payload in pieces.
    pub parts: &'a [&'a [u8]],
}

/// Who appends, and so how deep into the reserve it may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AppendClass {
    /// User data: refused when only the reserve is left.
    User,
    /// Deletes: may use half of the reserve, so that a full drive can be emptied.
    Delete,
    /// The client's own upkeep: may use all of it.
    System,
}

/// What an append was given.
#[derive(Clone, Debug)]
pub struct Appended {
    /// Sequence number of the first record; the others follow.
    pub first_seq: u64,
    /// Where the records are.
    pub ptrs: SmallVec<[RecordPtr; 4]>,
}

/// A record as it was read.
#[derive(Clone, Debug)]
pub struct Record {
    /// The client's kind.
    pub kind: u8,
    /// The payload; a slice of a larger buffer, copy it if it is kept for long.
    pub payload: Bytes,
}

/// A record that cleaning moves.
#[derive(Clone, Debug)]
pub struct MovedRecord {
    /// Its own sequence number, kept in the record.
    pub seq: u64,
    /// The client's kind.
    pub kind: u8,
    /// The payload.
    pub payload: Bytes,
}

/// A record found by scanning.
#[derive(Clone, Debug)]
pub struct Replayed {
    /// Its sequence number.
    pub seq: u64,
    /// Where it is.
    pub ptr: RecordPtr,
    /// The client's kind.
    pub kind: u8,
    /// The payload; a slice of a whole segment's buffer, copy it if it is kept.
    pub payload: Bytes,
}

/// One frame, or the frames of one batch: all or nothing.
#[derive(Clone, Debug)]
pub struct ReplayedBatch {
    /// The stream it was written to.
    pub stream: Stream,
    /// Its records in order. Empty when only damage is reported.
    pub records: Vec<Replayed>,
    /// What was once durable and does not verify any more, found before this batch: acknowledged data is lost.
    pub damage: Vec<Damage>,
}

/// Moved records, durable. Drop the ticket after the new pointers are in the client's own in-memory state:
/// until a later [`Heap::commit_meta`] has a `replay_from` from after that, the frame is replayed after a crash.
#[must_use]
pub struct Moved {
    /// New pointers, in the order of the records.
    pub ptrs: Vec<RecordPtr>,
    /// Keeps the frame in the replay.
    pub ticket: MoveTicket,
}

/// See [`Moved`].
pub struct MoveTicket {
    _heap: Heap,
}

/// While held, no segment that is released from now on is reused: take it before looking pointers up.
pub struct Pin {
    _heap: Heap,
}

/// A metadata record's client part.
#[derive(Clone, Debug)]
pub enum MetaEdit {
    /// Added to the state since the last snapshot.
    Edit(Bytes),
    /// Replaces the state.
    Snapshot(Bytes),
}

/// Told when a program failure moved records: `(old, new)`. Called under the heap's commit lock.
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
}

/// The frames that follow the client's durable state.
pub struct Replay {
    _heap: Heap,
}

impl Replay {
    /// The next batch; `None` at the end, after which the heap takes appends. Commit frames come in order, frames
    /// of other streams anywhere between. A torn end of the log is dropped in silence, damage before it is not.
    ///
    /// # Errors
    /// [`HeapError`] when the media fail or the recovered state cannot be written.
    pub async fn next(&mut self) -> Result<Option<ReplayedBatch>, HeapError> {
        Err(HeapError::NotFormatted)
    }
}

/// What a segment holds.
#[derive(Clone, Debug)]
pub struct Contents {
    /// Its stream.
    pub stream: Stream,
    /// Every record that verifies.
    pub records: Vec<Replayed>,
    /// What does not.
    pub damage: Vec<Damage>,
}

/// How [`Heap::victim`] chooses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VictimPolicy {
    /// Declining cost (Lomet and Luo 2020): clean what will not get cheaper by waiting.
    #[default]
    DecliningCost,
    /// The most dead bytes.
    Greedy,
}

/// The record heap of one drive. Clones are handles on the same heap; any core may use it.
#[derive(Clone)]
pub struct Heap {
    inner: Arc<Inner>,
}

struct Inner {
    device: Device,
    durable: Gate,
}

impl Heap {
    /// Makes `device` an empty drive.
    ///
    /// # Errors
    /// [`HeapError::AlreadyFormatted`] without `force`; [`HeapError::Geometry`] when it is too small.
    pub async fn format(_device: &Device, _options: &FormatOptions) -> Result<(), HeapError> {
        Err(HeapError::NotFormatted)
    }

    /// Opens a drive.
    ///
    /// # Errors
    /// See [`HeapError`].
    pub async fn open(
        device: Device,
        _options: HeapOptions,
        _progress: Progress<'_>,
    ) -> Result<Opened, HeapError> {
        let heap = Self { inner: Arc::new(Inner { device, durable: Gate::new(0) }) };
        Ok(Opened {
            heap: heap.clone(),
            client_state: Vec::new(),
            replay: Replay { _heap: heap },
            clean: true,
        })
    }

    /// The drive's identity.
    pub fn drive_id(&self) -> [u8; 16] {
        [0; 16]
    }

    /// What the client stored when the drive was formatted.
    pub fn config(&self) -> Bytes {
        Bytes::new()
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.inner.device
    }

    /// Bytes of a segment.
    pub fn segment_bytes(&self) -> u32 {
        0
    }

    /// The largest payload of [`Heap::append`].
    pub fn append_max_bytes(&self) -> u32 {
        0
    }

    /// Says whom to tell when a program failure moved records.
    pub fn on_relocated(&self, _callback: OnRelocated) {}

    /// Copies the records into the forming frame, gives them sequence numbers and addresses, and starts the commit
    /// on the current core if none is under way. All of them become durable together. No I/O, no allocation in the
    /// steady state.
    ///
    /// # Errors
    /// See [`AppendError`]; nothing was appended then.
    pub fn append(&self, _records: &[RecordIn<'_>], _class: AppendClass) -> Result<Appended, AppendError> {
        Err(AppendError::Busy)
    }

    /// Waits until an append that was answered [`AppendError::Busy`] is worth another try.
    pub async fn room(&self) {}

    /// The newest sequence number given out; 0 before the first.
    pub fn last_seq(&self) -> u64 {
        0
    }

    /// Takes `n` sequence numbers for records that are not appended (moves); returns the first.
    pub fn next_seq(&self, _n: u64) -> u64 {
        0
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

    /// Puts everything appended so far on flash, whatever the durability mode.
    ///
    /// # Errors
    /// [`CommitFailed`] when that failed.
    pub async fn flush(&self) -> Result<(), CommitFailed> {
        Ok(())
    }

    /// Reads a record and verifies it; from memory when it was committed recently.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub async fn read(&self, ptr: RecordPtr) -> Result<Record, ReadError> {
        Err(ReadError::OutOfRange { ptr })
    }

    /// The record if it is in memory.
    pub fn peek(&self, _ptr: RecordPtr) -> Option<Record> {
        None
    }

    /// Bytes `offset..offset + len` of a record's payload as they lie on flash, *not* verified: for objects with
    /// checksums of their own.
    ///
    /// # Errors
    /// See [`ReadError`]; [`ReadError::OutOfRange`] beyond the record.
    pub async fn read_range(&self, ptr: RecordPtr, _offset: u32, _len: u32) -> Result<Bytes, ReadError> {
        Err(ReadError::OutOfRange { ptr })
    }

    /// Writes one record, durable on return, to a stream of its own. `seq` is kept in the record when given. Not
    /// replayed after a crash: the client's state must name it.
    ///
    /// # Errors
    /// See [`AppendError`].
    pub async fn write_object(
        &self,
        _kind: u8,
        _stream: Stream,
        _parts: Vec<Bytes>,
        _seq: Option<u64>,
    ) -> Result<RecordPtr, AppendError> {
        Err(AppendError::Busy)
    }

    /// The largest payload that still fits in the open segment of `stream`, so that pieces can be cut to fit; a
    /// whole segment's worth when a new one is due.
    pub fn object_room(&self, _stream: Stream) -> u32 {
        0
    }

    /// Writes moved records, durable on return. They are replayed after a crash.
    ///
    /// # Errors
    /// See [`AppendError`].
    pub async fn write_moved(&self, _records: Vec<MovedRecord>) -> Result<Moved, AppendError> {
        Err(AppendError::Busy)
    }

    /// Says that the record is dead. A hint for choosing victims and for the space report.
    pub fn mark_dead(&self, _ptr: RecordPtr) {}

    /// Corrects the hint after a segment's records were looked at.
    pub fn set_live(&self, _segment: SegmentId, _live_bytes: u32) {}

    /// The sealed segment that is best cleaned now; `None` when cleaning would win nothing. It is not offered
    /// again until it was released or [`Heap::unclaim`]ed.
    pub fn victim(&self, _policy: VictimPolicy) -> Option<SegmentId> {
        None
    }

    /// Gives a victim back without having cleaned it.
    pub fn unclaim(&self, _segment: SegmentId) {}

    /// Every record of a segment.
    ///
    /// # Errors
    /// [`FlashError`] when the media do not answer; pages that do not read are reported as damage.
    pub async fn contents(&self, _segment: SegmentId) -> Result<Contents, FlashError> {
        Ok(Contents { stream: Stream::Commit, records: Vec::new(), damage: Vec::new() })
    }

    /// Every segment that holds data, for checks.
    pub fn segments_in_use(&self) -> Vec<SegmentId> {
        Vec::new()
    }

    /// Frees a segment of which the client needs nothing any more: reused after the next metadata record, and not
    /// while a [`Pin`] from before is held.
    pub fn release(&self, _segment: SegmentId) {}

    /// See [`Pin`].
    pub fn pin(&self) -> Pin {
        Pin { _heap: self.clone() }
    }

    /// Writes a metadata record, durable on return: the client's edit and the segment table's changes, together.
    /// Everything appended before is made durable first. Records with sequence numbers up to `replay_from` are not
    /// replayed any more.
    ///
    /// # Errors
    /// [`HeapError`]; the heap is read-only then.
    pub async fn commit_meta(&self, _edit: MetaEdit, _replay_from: u64) -> Result<(), HeapError> {
        Err(HeapError::NotFormatted)
    }

    /// True when the next [`Heap::commit_meta`] should be a snapshot: the log of edits has grown long.
    pub fn wants_snapshot(&self) -> bool {
        false
    }

    /// Where the drive's bytes are.
    pub fn space(&self) -> SpaceReport {
        SpaceReport::default()
    }

    /// Free segments that user data may still open: the cleaner's measure of urgency.
    pub fn free_segments(&self) -> u32 {
        0
    }

    /// Counters since opening.
    pub fn stats(&self) -> HeapStats {
        HeapStats::default()
    }

    /// Why the heap takes no more writes, if so.
    pub fn read_only(&self) -> Option<Arc<str>> {
        None
    }

    /// Makes everything durable and writes a clean mark, so that the next open replays nothing. The client's state
    /// must be durable up to `replay_from = last_seq()`.
    ///
    /// # Errors
    /// [`HeapError`].
    pub async fn close(&self) -> Result<(), HeapError> {
        Ok(())
    }
}
