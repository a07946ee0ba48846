//! Writing a large value: see `large.rs`.
//!
//! 1. What is pushed is copied once, into the buffer that its piece is written from; whoever can receives into that buffer
//!    itself ([`LargeWriter::lend`]).
//! 2. The first buffer is small, and grows when it is full: memory follows what has arrived. A frugal writer's stay small
//!    and are written as short pieces ([`LargeWriter::be_frugal`]): its owner says when memory is short, and may have it
//!    write at once what it holds ([`LargeWriter::let_go`]).
//! 3. A piece that is complete waits for its turn among those of all values.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use pumice_base::sync::lock;
use pumice_reactor::{IoBuf, JoinHandle, spawn};
use pumice_segment::{AppendError, Group, Object};

use crate::errors::WriteError;
use crate::large::again::Origin;
use crate::large::{BeingWritten, LargeRef, PIECES_AT_ONCE, Piece};
use crate::record::{self, PieceName};
use crate::store::{Inner, Store, write_error};
use crate::types::SliceId;

/// A rest of a segment shorter than this is left over rather than filled with a piece.
const PIECE_BYTES_MIN: usize = 64 * 1024;
/// Bytes of a value in its first buffer, and in each of a frugal writer.
const FIRST_BYTES: usize = 64 * 1024;

/// Writes a large value piece by piece.
pub struct LargeWriter {
    store: Arc<Inner>,
    slice: SliceId,
    key: Bytes,
    id: u64,
    len: u64,
    pieces: Vec<Piece>,
    /// The piece that is being put together.
    building: Option<Object>,
    /// Its number.
    index: u32,
    is_frugal: bool,
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
            let mut writers = lock(&store.large.writers);
            let id = store.heap.next_seq(1);
            writers.insert(id, Vec::new());
            id
        };
        let being_written = Arc::new(BeingWritten::new(store.clone(), id));
        LargeWriter {
            store,
            slice,
            key: Bytes::copy_from_slice(key),
            id,
            len: 0,
            pieces: Vec::new(),
            building: None,
            index: 0,
            is_frugal: false,
            writing: VecDeque::new(),
            being_written,
        }
    }
}

impl LargeWriter {
    /// Appends `data`. Returns when memory for more is there.
    ///
    /// # Errors
    /// [`WriteError::Full`], [`WriteError::ReadOnly`]; the pieces written so far become dead space.
    pub async fn push(&mut self, mut data: &[u8]) -> Result<(), WriteError> {
        self.len += data.len() as u64;
        self.store.counters.user_bytes.add(data.len() as u64);
        while !data.is_empty() {
            let whole = self.store.large.piece_bytes;
            let building = self.begun();
            let filled = self.data_bytes(&building);
            let take = building.room().min(whole - filled).min(data.len());
            self.building.insert(building).extend_from_slice(&data[..take]);
            data = &data[take..];
            self.go_on().await?;
        }
        Ok(())
    }

    /// Memory for the value's next bytes, `most` at most, so that they need not be copied here: to be filled in the range, and
    /// [taken back](Self::take_back) before anything else is done.
    pub fn lend(&mut self, most: usize) -> (IoBuf, Range<usize>) {
        let mut building = self.begun();
        let left = self.store.large.piece_bytes - self.data_bytes(&building);
        let lent = building.lend(left.min(most));
        self.building = Some(building);
        lent
    }

    /// What was lent, with so many bytes of the value more.
    ///
    /// # Errors
    /// As [`LargeWriter::push`].
    pub async fn take_back(&mut self, buf: IoBuf, filled: usize) -> Result<(), WriteError> {
        self.len += filled as u64;
        self.store.counters.user_bytes.add(filled as u64);
        let building =
            self.building.as_mut().expect("what was lent is taken back before anything else is done");
        building.take_back(buf, filled);
        self.go_on().await
    }

    /// The piece that is being put together, which has room.
    fn begun(&mut self) -> Object {
        let whole = self.store.large.piece_bytes;
        // Who has filled one piece will fill another.
        let first = if self.index == 0 || self.is_frugal { FIRST_BYTES.min(whole) } else { whole };
        self.building.take().unwrap_or_else(|| self.begin(first))
    }

    /// Writes the piece that is being put together when it is complete, and makes room in it when it is not.
    async fn go_on(&mut self) -> Result<(), WriteError> {
        let whole = self.store.large.piece_bytes;
        let Some(building) = &self.building else { return Ok(()) };
        let is_full = building.room() == 0;
        if self.data_bytes(building) >= whole || (is_full && self.is_frugal) {
            self.write_piece().await?;
        } else if is_full {
            self.grow(whole);
        }
        Ok(())
    }

    /// Writes what is left and gives the list of pieces, all durable.
    ///
    /// # Errors
    /// As [`LargeWriter::push`].
    pub async fn finish(mut self) -> Result<LargeRef, WriteError> {
        self.let_go().await?;
        while !self.writing.is_empty() {
            self.wait_for_one().await?;
        }
        Ok(LargeRef {
            id: self.id,
            len: self.len,
            pieces: self.pieces,
            owner: None,
            pin: None,
            origin: Some(Origin::Written(self.being_written)),
        })
    }

    /// Bytes of memory in which the next piece is put together.
    pub fn memory_bytes(&self) -> usize {
        self.building.as_ref().map_or(0, Object::memory_bytes)
    }

    /// Whether it makes do with little memory.
    pub fn is_frugal(&self) -> bool {
        self.is_frugal
    }

    /// Whether to make do with little memory, at the price of short pieces.
    pub fn be_frugal(&mut self, frugal: bool) {
        self.is_frugal = frugal;
    }

    /// Starts to write what was pushed, however little it is, and so frees the memory soon.
    ///
    /// # Errors
    /// As [`LargeWriter::push`].
    pub async fn let_go(&mut self) -> Result<(), WriteError> {
        while self.building.is_some() {
            self.write_piece().await?;
        }
        Ok(())
    }

    fn data_bytes(&self, object: &Object) -> usize {
        object.payload().len() - record::piece_head_bytes(&self.key)
    }

    /// An empty piece with room for so many bytes of the value.
    fn begin(&self, data_bytes: usize) -> Object {
        let mut head = Vec::with_capacity(record::piece_head_bytes(&self.key));
        let name = PieceName { id: self.id, index: self.index };
        record::encode_piece_head(&mut head, self.slice, &self.key, name);
        let mut object = self.store.heap.object(head.len() + data_bytes);
        object.extend_from_slice(&head);
        object.end_head();
        object
    }

    fn grow(&mut self, data_bytes: usize) {
        if let Some(small) = self.building.take() {
            let head_bytes = small.payload().len() - self.data_bytes(&small);
            let mut object = self.begin(data_bytes);
            object.extend_from_slice(&small.payload()[head_bytes..]);
            self.building = Some(object);
        }
    }

    async fn write_piece(&mut self) -> Result<(), WriteError> {
        if self.writing.len() >= PIECES_AT_ONCE {
            self.wait_for_one().await?;
        }
        let turn = self.store.large.memory.writes.acquire_owned(1).await;
        let Some(mut object) = self.building.take() else { return Ok(()) };
        self.index += 1;
        let head_bytes = record::piece_head_bytes(&self.key);
        let room = (self.store.heap.object_room(Group::Large) as usize).saturating_sub(head_bytes);
        let whole = self.store.large.piece_bytes;
        let most = if room < PIECE_BYTES_MIN { whole } else { room };
        let mut len = self.data_bytes(&object);
        if len > most {
            // What no longer fits into the segment begins the next piece.
            let mut rest = self.begin(whole);
            rest.extend_from_slice(&object.payload()[head_bytes + most..]);
            self.building = Some(rest);
            object.truncate(head_bytes + most);
            len = most;
        }
        let (store, len) = (self.store.clone(), len as u32);
        // It is written to its end also when nobody waits for it any more.
        let being_written = self.being_written.clone();
        self.writing.push_back(spawn(async move {
            let _turn = turn;
            loop {
                match store.heap.write_object(record::PIECE, Group::Large, &mut object).await {
                    Ok(ptr) => {
                        being_written.wrote(ptr);
                        return Ok(Piece { ptr, len });
                    }
                    Err(AppendError::Busy) => store.room_for_pieces().await,
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
