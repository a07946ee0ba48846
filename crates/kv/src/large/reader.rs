//! Reading a large value: see `large.rs`.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use bytes::Bytes;
use pumice_reactor::LocalBoxFuture;
use pumice_reactor::sync::OwnedPermit;

use crate::errors::StoreError;
use crate::large::{LargeRef, PIECES_AT_ONCE, Piece};
use crate::record::{self, PieceName};
use crate::store::{Inner, Store};

/// Reads a large value in order, a few pieces ahead.
pub struct LargeReader {
    store: Arc<Inner>,
    value: LargeRef,
    range: Range<u64>,
    /// Where piece `index` starts in the value.
    at: u64,
    index: usize,
    ahead_max: usize,
    reading: VecDeque<Reading>,
}

struct Reading {
    /// The piece's number, and where it starts in the value.
    index: usize,
    at: u64,
    state: State,
}

/// With its turn among those of all values, which is over when they are handed over; what memory kept needs none.
type Read = (Result<Bytes, StoreError>, Option<OwnedPermit>);

enum State {
    Ready(Read),
    Pending(LocalBoxFuture<'static, Read>),
}

impl Store {
    /// Reads bytes `range` of a large value (clipped to its length), a few pieces ahead.
    pub fn read_large(&self, value: &LargeRef, range: Range<u64>) -> LargeReader {
        let range = range.start.min(value.len)..range.end.min(value.len);
        LargeReader {
            store: self.inner.clone(),
            value: value.clone(),
            range,
            at: 0,
            index: 0,
            ahead_max: PIECES_AT_ONCE,
            reading: VecDeque::new(),
        }
    }
}

impl LargeReader {
    /// Pieces that may be asked for before they are wanted; one is always.
    pub fn set_ahead(&mut self, pieces: usize) {
        self.ahead_max = pieces.clamp(1, PIECES_AT_ONCE);
    }

    /// Forgets what was read ahead, which others wait for: to be called before the caller waits for anything but
    /// [`LargeReader::next`] for long.
    pub fn let_go(&mut self) {
        if let Some(first) = self.reading.front() {
            (self.index, self.at) = (first.index, first.at);
            self.reading.clear();
        }
    }

    /// The next bytes; `None` at the end of the range.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] or [`StoreError::Read`] when a piece is not what was written; [`StoreError::TooOld`] when
    /// the reading took long, and the value was overwritten and its space needed meanwhile.
    pub async fn next(&mut self) -> Result<Option<Bytes>, StoreError> {
        loop {
            self.read_ahead();
            let Some((index, at)) = self.reading.front().map(|first| (first.index, first.at)) else {
                return Ok(None);
            };
            match self.first_read().await {
                Err(error) if error.may_be_stale() && self.is_revoked() => {
                    self.reading.clear();
                    (self.index, self.at) = (index, at);
                    if !self.follow(index).await? {
                        return Err(StoreError::TooOld);
                    }
                }
                read => return read.map(Some),
            }
        }
    }

    /// Whether the pieces may be reused although they are still to be read.
    fn is_revoked(&self) -> bool {
        self.value.pin.as_ref().is_some_and(|pin| pin.is_revoked())
    }

    /// Looks the pieces up again, of which one was reused. Answers whether the value is still there, that piece elsewhere.
    async fn follow(&mut self, index: usize) -> Result<bool, StoreError> {
        let Some((slice, key)) = self.value.owner.clone() else { return Ok(false) };
        // Before the look-up, so that none of what it finds is reused.
        let pin = self.store.heap.pin();
        let Some(found) = self.store.find(slice, &key).await?.filter(|found| found.large) else {
            return Ok(false);
        };
        let Some(now) = self.store.value_of(slice, &key, &found).await?.large else { return Ok(false) };
        let is_new = now.pieces.get(index).map(|piece| piece.ptr) != Some(self.value.pieces[index].ptr);
        if now.id != self.value.id || !is_new {
            return Ok(false);
        }
        self.value.pieces.clone_from(&now.pieces);
        self.value.pin = Some(Arc::new(pin));
        Ok(true)
    }

    fn read_ahead(&mut self) {
        while self.reading.len() < self.ahead_max
            && self.index < self.value.pieces.len()
            && self.at < self.range.end
        {
            let piece = self.value.pieces[self.index];
            let (start, end) = (self.at, self.at + u64::from(piece.len));
            let wanted = self.range.start.max(start)..self.range.end.min(end);
            if wanted.start < wanted.end {
                let part = (wanted.start - start) as usize..(wanted.end - start) as usize;
                let name = PieceName { id: self.value.id, index: self.index as u32 };
                let state = match self.store.large.kept.get(name) {
                    Some(kept) => State::Ready((Ok(kept.slice(part)), None)),
                    None => State::Pending(Box::pin(read_in_turn(self.store.clone(), piece, name, part))),
                };
                self.reading.push_back(Reading { index: self.index, at: self.at, state });
            }
            self.at = end;
            self.index += 1;
        }
    }

    /// What the first of those that are being read brings.
    async fn first_read(&mut self) -> Result<Bytes, StoreError> {
        let reading = &mut self.reading;
        poll_fn(|cx| {
            for slot in reading.iter_mut() {
                if let State::Pending(future) = &mut slot.state
                    && let Poll::Ready(read) = Pin::new(future).poll(cx)
                {
                    slot.state = State::Ready(read);
                }
            }
            match reading.front().map(|first| &first.state) {
                Some(State::Ready(_)) => Poll::Ready(()),
                _ => Poll::Pending,
            }
        })
        .await;
        match reading.pop_front().map(|first| first.state) {
            Some(State::Ready((result, _))) => result.map_err(|error| self.of_key(error)),
            _ => unreachable!("the poll above ends when the front is ready"),
        }
    }

    /// The error with the key that the value is of.
    fn of_key(&self, mut error: StoreError) -> StoreError {
        if let Some((_, key)) = &self.value.owner
            && let StoreError::Damaged { what, .. } | StoreError::Read { what, .. } = &mut error
        {
            what.push_str(&format!(" of {}", self.store.show_key(key)));
        }
        error
    }
}

async fn read_in_turn(store: Arc<Inner>, piece: Piece, name: PieceName, part: Range<usize>) -> Read {
    let turn = store.large.memory.reads.acquire_owned(1).await;
    let is_whole = part.len() == piece.len as usize;
    let read = read_piece(&store, piece, name, part).await;
    if let Ok(data) = &read
        && is_whole
        && store.large.kept.offer(name, data)
    {
        store.fit_row_caches();
    }
    (read, Some(turn))
}

async fn read_piece(
    store: &Inner,
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
            reason: format!("the record there belongs to {}", store.show_key(&record.payload[owner.key])),
        }),
        None => Err(StoreError::Damaged { what: what(), ptr: piece.ptr, reason: "it is no piece".into() }),
    }
}
