//! What cleaning moves: values gathered into batches, pieces of large values several at a time.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use pumice_reactor::{JoinHandle, spawn, yield_now};
use pumice_segment::Replayed;

use crate::entry::KeyEntry;
use crate::errors::StoreError;
use crate::large::pieces::{DeadLarge, OldPieces};
use crate::store::Inner;
use crate::types::SliceId;

/// Windows of a victim that wait in memory for their few live values to make a batch.
const WINDOWS_MAX: u32 = 4;

/// Moves pieces, and gathers values and moves them, one batch while the next one is looked up.
pub struct Mover {
    store: Arc<Inner>,
    batch: Vec<Candidate>,
    bytes: usize,
    /// Windows that the batch keeps in memory.
    windows: u32,
    /// Places of the victim that do not read or verify, and records of which the index cannot tell whether it names them.
    pub unread: u64,
    /// Large values that nobody else can tell dead any more, see `left_behind`.
    pub left_behind: Vec<DeadLarge>,
    moving: Option<JoinHandle<Result<(), StoreError>>>,
    pieces: VecDeque<JoinHandle<Result<(), StoreError>>>,
}

impl Mover {
    pub fn new(store: Arc<Inner>) -> Self {
        Self {
            store,
            batch: Vec::new(),
            bytes: 0,
            windows: 0,
            unread: 0,
            left_behind: Vec::new(),
            moving: None,
            pieces: VecDeque::new(),
        }
    }

    pub async fn push(&mut self, candidate: Candidate) -> Result<(), StoreError> {
        self.bytes += candidate.record.ptr.len as usize;
        self.batch.push(candidate);
        if self.bytes >= self.store.move_bytes() { self.send().await } else { Ok(()) }
    }

    /// Moves those of a value's pieces that are alive, beside those of others.
    pub async fn push_pieces(&mut self, value: OldPieces) -> Result<(), StoreError> {
        if self.pieces.len() >= self.store.pieces_moved_at_once() {
            self.settle_piece().await?;
        }
        let store = self.store.clone();
        self.pieces.push_back(spawn(async move {
            let bytes = value.bytes();
            let moved = store.move_pieces(value).await?;
            store.let_users_write(bytes.saturating_sub(moved));
            Ok(())
        }));
        Ok(())
    }

    /// Waits for the piece that has been moving for longest.
    async fn settle_piece(&mut self) -> Result<(), StoreError> {
        let Some(moving) = self.pieces.pop_front() else { return Ok(()) };
        match moving.await.unwrap_or(Err(StoreError::Closing)) {
            // Others can be moved all the same.
            Err(error) if error.is_of_the_media() => {
                tracing::error!(%error, "cleaning cannot tell whether a piece is needed");
                self.unread += 1;
                Ok(())
            }
            done => done,
        }
    }

    pub async fn end_window(&mut self) -> Result<(), StoreError> {
        self.windows += 1;
        if self.windows >= WINDOWS_MAX { self.send().await } else { Ok(()) }
    }

    async fn send(&mut self) -> Result<(), StoreError> {
        self.settle_batch().await?;
        (self.bytes, self.windows) = (0, 0);
        let mut batch = std::mem::take(&mut self.batch);
        if !batch.is_empty() {
            let store = self.store.clone();
            self.moving = Some(spawn(async move { store.move_batch(&mut batch).await }));
            // It must be under way before the next batch is looked up, which hardly ever waits itself.
            yield_now().await;
        }
        Ok(())
    }

    async fn settle_batch(&mut self) -> Result<(), StoreError> {
        match self.moving.take() {
            Some(moving) => moving.await.unwrap_or(Err(StoreError::Closing)),
            None => Ok(()),
        }
    }

    /// Waits for all that is being moved, also when some of it failed.
    pub async fn settle(&mut self) -> Result<(), StoreError> {
        let mut settled = self.settle_batch().await;
        while !self.pieces.is_empty() {
            settled = settled.and(self.settle_piece().await);
        }
        settled
    }

    /// Moves what was gathered and waits for it.
    pub async fn finish(&mut self) -> Result<(), StoreError> {
        let sent = self.send().await;
        sent.and(self.settle().await)
    }
}

/// A value to move.
pub struct Candidate {
    pub slice: SliceId,
    pub key: Bytes,
    pub record: Replayed,
    pub found: KeyEntry,
    /// The slice's when the index was asked.
    pub epoch: u64,
}
