//! Values above 256 KiB: pieces of their own on flash, listed by the entry.
//!
//! 1. [`LargeWriter`] cuts what is pushed into pieces and writes each as an object of its own, durable when
//!    written. Memory holds one piece at a time.
//! 2. [`LargeWriter::finish`] gives the list; [`crate::Batch::put_large`] makes it a key's value. Until then no
//!    entry names the pieces; the writer's registration keeps cleaning off segments that hold them.
//! 3. A reader's [`LargeRef`] pins the heap, so that pieces that cleaning moves stay readable where they were.

use std::collections::VecDeque;
use std::fmt;
use std::future::{Future, poll_fn};
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use bytes::Bytes;
use pumice_reactor::{JoinHandle, LocalBoxFuture, spawn};
use pumice_segment::{Addr, AppendError, Group, Pin as HeapPin, RecordPtr};

use crate::errors::{StoreError, WriteError};
use crate::record::{self, PieceName};
use crate::slice::lock;
use crate::store::{Inner, Store, show_key, write_error};
use crate::types::SliceId;

/// Bytes of a value in one piece, at most: with its headers, a segment's among them, it is written in one transfer of
/// 1 MiB, and read in one.
pub const PIECE_BYTES_MAX: usize = 1024 * 1024 - 8192;

const ENTRY_BYTES: usize = 16;
const HEAD_BYTES: usize = 16;
/// A rest of a segment shorter than this is left over rather than filled with a piece.
const PIECE_BYTES_MIN: usize = 64 * 1024;
/// Pieces written or read at a time: enough for a disk's bandwidth, 4 MiB of memory.
const PIECES_AT_ONCE: usize = 4;

/// One piece of a large value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The record that holds it.
    pub ptr: RecordPtr,
    /// Bytes of the value in it.
    pub len: u32,
}

/// Where the pieces of a large value lie, in order.
#[derive(Clone)]
pub struct LargeRef {
    pub(crate) id: u64,
    pub(crate) len: u64,
    pub(crate) pieces: Vec<Piece>,
    /// Keeps the pieces readable while a caller holds this.
    pub(crate) pin: Option<Arc<HeapPin>>,
    /// Keeps cleaning off the pieces until an entry names them.
    pub(crate) _being_written: Option<Arc<BeingWritten>>,
}

impl fmt::Debug for LargeRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LargeRef {} of {} bytes in {} pieces", self.id, self.len, self.pieces.len())
    }
}

impl LargeRef {
    /// The value's length, in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether the value has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How many pieces it lies in.
    pub fn piece_count(&self) -> usize {
        self.pieces.len()
    }

    /// Appends the list: id, length, then address, record length and value bytes of each piece.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.id.to_le_bytes());
        out.extend_from_slice(&self.len.to_le_bytes());
        for piece in &self.pieces {
            out.extend_from_slice(&piece.ptr.addr.0.to_le_bytes());
            out.extend_from_slice(&piece.ptr.len.to_le_bytes());
            out.extend_from_slice(&piece.len.to_le_bytes());
        }
    }

    /// Reads what [`LargeRef::encode`] wrote; `None` when the lengths do not add up.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let (head, list) = bytes.split_at_checked(HEAD_BYTES)?;
        let u64_at =
            |bytes: &[u8], at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        let u32_at =
            |bytes: &[u8], at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        let (id, len) = (u64_at(head, 0)?, u64_at(head, 8)?);
        if !list.len().is_multiple_of(ENTRY_BYTES) {
            return None;
        }
        let mut pieces = Vec::with_capacity(list.len() / ENTRY_BYTES);
        for entry in list.chunks_exact(ENTRY_BYTES) {
            let ptr = RecordPtr { addr: Addr(u64_at(entry, 0)?), len: u32_at(entry, 8)? };
            pieces.push(Piece { ptr, len: u32_at(entry, 12)? });
        }
        (pieces.iter().map(|piece| u64::from(piece.len)).sum::<u64>() == len).then_some(Self {
            id,
            len,
            pieces,
            pin: None,
            _being_written: None,
        })
    }
}

/// The registration of a value whose pieces no entry names yet.
pub(crate) struct BeingWritten {
    store: Arc<Inner>,
    id: u64,
}

impl Drop for BeingWritten {
    fn drop(&mut self) {
        lock(&self.store.large_writers).remove(&self.id);
    }
}

/// Writes a large value piece by piece.
pub struct LargeWriter {
    store: Arc<Inner>,
    slice: SliceId,
    key: Bytes,
    id: u64,
    len: u64,
    pieces: Vec<Piece>,
    pending: VecDeque<Bytes>,
    pending_bytes: usize,
    writing: VecDeque<JoinHandle<Result<Piece, WriteError>>>,
    being_written: Arc<BeingWritten>,
}

impl Store {
    /// Starts a value above [`crate::VALUE_BYTES_MAX`] for `key`. Nothing is visible before
    /// [`crate::Batch::put_large`]; keep the [`LargeRef`] until that was written.
    pub fn large_writer(&self, slice: SliceId, key: &[u8]) -> LargeWriter {
        let store = self.inner.clone();
        let id = {
            // Under the lock, so that cleaning never sees a piece of an id that is not registered.
            let mut writers = lock(&store.large_writers);
            let id = store.heap.next_seq(1);
            writers.insert(id);
            id
        };
        let being_written = Arc::new(BeingWritten { store: store.clone(), id });
        LargeWriter {
            store,
            slice,
            key: Bytes::copy_from_slice(key),
            id,
            len: 0,
            pieces: Vec::new(),
            pending: VecDeque::new(),
            pending_bytes: 0,
            writing: VecDeque::new(),
            being_written,
        }
    }

    /// Reads bytes `range` of a large value (clipped to its length), a few pieces ahead.
    pub fn read_large(&self, value: &LargeRef, range: Range<u64>) -> LargeReader {
        let range = range.start.min(value.len)..range.end.min(value.len);
        LargeReader {
            store: self.inner.clone(),
            value: value.clone(),
            range,
            at: 0,
            index: 0,
            reading: VecDeque::new(),
        }
    }
}

impl LargeWriter {
    /// Appends `data`. Returns when memory for more is there.
    ///
    /// # Errors
    /// [`WriteError::Full`], [`WriteError::ReadOnly`]; the pieces written so far become dead space.
    pub async fn push(&mut self, data: Bytes) -> Result<(), WriteError> {
        self.len += data.len() as u64;
        self.pending_bytes += data.len();
        self.pending.push_back(data);
        while self.pending_bytes >= self.store.piece_bytes {
            self.write_piece().await?;
        }
        Ok(())
    }

    /// Writes what is left and gives the list of pieces, all durable.
    ///
    /// # Errors
    /// As [`LargeWriter::push`].
    pub async fn finish(mut self) -> Result<LargeRef, WriteError> {
        while self.pending_bytes > 0 {
            self.write_piece().await?;
        }
        while !self.writing.is_empty() {
            self.wait_for_one().await?;
        }
        Ok(LargeRef {
            id: self.id,
            len: self.len,
            pieces: std::mem::take(&mut self.pieces),
            pin: None,
            _being_written: Some(self.being_written.clone()),
        })
    }

    async fn write_piece(&mut self) -> Result<(), WriteError> {
        if self.writing.len() >= PIECES_AT_ONCE {
            self.wait_for_one().await?;
        }
        let head_bytes = record::piece_head_bytes(&self.key);
        let room = (self.store.heap.object_room(Group::Large) as usize).saturating_sub(head_bytes);
        let whole = self.store.piece_bytes;
        let most = if room < PIECE_BYTES_MIN { whole } else { room.min(whole) };
        let mut left = most.min(self.pending_bytes);
        let len = left as u32;
        self.pending_bytes -= left;
        let index = (self.pieces.len() + self.writing.len()) as u32;
        let mut head = Vec::with_capacity(head_bytes);
        record::encode_piece_head(&mut head, self.slice, &self.key, PieceName { id: self.id, index });
        let mut parts = vec![Bytes::from(head)];
        while left > 0 {
            let mut front = self.pending.pop_front().expect("pending bytes are counted");
            if front.len() > left {
                let rest = front.split_off(left);
                self.pending.push_front(rest);
            }
            left -= front.len();
            parts.push(front);
        }
        let store = self.store.clone();
        self.writing.push_back(spawn(async move {
            loop {
                match store.heap.write_object(record::PIECE, Group::Large, parts.clone(), None).await {
                    Ok(ptr) => return Ok(Piece { ptr, len }),
                    Err(AppendError::Busy) => store.heap.room().await,
                    Err(error) => return Err(write_error(error)),
                }
            }
        }));
        Ok(())
    }

    async fn wait_for_one(&mut self) -> Result<(), WriteError> {
        let Some(writing) = self.writing.pop_front() else { return Ok(()) };
        let piece =
            writing.await.map_err(|_| WriteError::ReadOnly("the write of a piece was dropped".into()))??;
        self.pieces.push(piece);
        Ok(())
    }
}

impl Drop for LargeWriter {
    fn drop(&mut self) {
        // Pieces of an abandoned value; those still on their way are found dead by cleaning.
        for piece in self.pieces.drain(..) {
            self.store.heap.mark_dead(piece.ptr);
        }
    }
}

/// Reads a large value in order.
pub struct LargeReader {
    store: Arc<Inner>,
    value: LargeRef,
    range: Range<u64>,
    /// Where piece `index` starts in the value.
    at: u64,
    index: usize,
    reading: VecDeque<Reading>,
}

enum Reading {
    Ready(Result<Bytes, StoreError>),
    Pending(LocalBoxFuture<'static, Result<Bytes, StoreError>>),
}

impl LargeReader {
    /// The next bytes; `None` at the end of the range.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] or [`StoreError::Read`] when a piece is not what was written.
    pub async fn next(&mut self) -> Result<Option<Bytes>, StoreError> {
        while self.reading.len() < PIECES_AT_ONCE
            && self.index < self.value.pieces.len()
            && self.at < self.range.end
        {
            let piece = self.value.pieces[self.index];
            let (start, end) = (self.at, self.at + u64::from(piece.len));
            let wanted = self.range.start.max(start)..self.range.end.min(end);
            if wanted.start < wanted.end {
                let part = (wanted.start - start) as usize..(wanted.end - start) as usize;
                let name = PieceName { id: self.value.id, index: self.index as u32 };
                self.reading.push_back(Reading::Pending(Box::pin(read_piece(
                    self.store.clone(),
                    piece,
                    name,
                    part,
                ))));
            }
            self.at = end;
            self.index += 1;
        }
        let reading = &mut self.reading;
        if reading.is_empty() {
            return Ok(None);
        }
        poll_fn(|cx| {
            for slot in reading.iter_mut() {
                if let Reading::Pending(future) = slot
                    && let Poll::Ready(result) = Pin::new(future).poll(cx)
                {
                    *slot = Reading::Ready(result);
                }
            }
            if matches!(reading.front(), Some(Reading::Ready(_))) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        match reading.pop_front() {
            Some(Reading::Ready(result)) => result.map(Some),
            _ => unreachable!("the poll above ends when the front is ready"),
        }
    }
}

async fn read_piece(
    store: Arc<Inner>,
    piece: Piece,
    name: PieceName,
    part: Range<usize>,
) -> Result<Bytes, StoreError> {
    let what = || format!("piece {} of large value {}", name.index, name.id);
    let read = store.heap.read(piece.ptr).await;
    let record = read.map_err(|source| StoreError::Read { what: what(), source })?;
    match record::decode_piece(&record.payload) {
        Some((_, found, data))
            if record.kind == record::PIECE && found == name && data.len() == piece.len as usize =>
        {
            Ok(record.payload.slice(data.start + part.start..data.start + part.end))
        }
        Some((owner, ..)) => Err(StoreError::Damaged {
            what: what(),
            ptr: piece.ptr,
            reason: format!("the record there belongs to {}", show_key(&record.payload[owner.key])),
        }),
        None => Err(StoreError::Damaged { what: what(), ptr: piece.ptr, reason: "it is no piece".into() }),
    }
}
