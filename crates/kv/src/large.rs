//! Values above 256 KiB: pieces of their own on flash, listed by the entry.
//!
//! 1. [`crate::LargeWriter`] puts what is pushed together in pieces and writes each as an object of its own, durable when
//!    written.
//! 2. [`crate::LargeWriter::finish`] gives the list; [`crate::Batch::put_large`] makes it a key's value. Until then no
//!    entry names the pieces; the writer's registration keeps cleaning off segments that hold them. Where that is never
//!    written they are dead when the last who could write it lets go: nobody else would ever find them.
//! 3. A reader's [`LargeRef`] pins the heap, so that pieces that cleaning moves stay readable where they were. Where users wait
//!    for that space a pin does not hold for ever: a reader that takes longer looks the pieces up again, and only one of
//!    a value that was overwritten meanwhile has to give up.
//!
//! However many values are on their way, only so many of their pieces are in memory, by what the store was given
//! ([`PieceMemory`]): whoever wants one more waits its turn.

pub(crate) mod again;
pub(crate) mod pieces;
pub(crate) mod reader;
pub(crate) mod recount;
pub(crate) mod writer;

use std::collections::BTreeMap;
use std::fmt;
use std::mem::take;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use pumice_base::sync::lock;
use pumice_reactor::sync::Semaphore;
use pumice_segment::{Addr, Pin as HeapPin, RecordPtr};

use crate::cache::kept_pieces::KeptPieces;
use crate::large::again::Origin;
use crate::large::pieces::DeadLarge;
use crate::options::Budget;
use crate::store::Inner;
use crate::types::SliceId;

/// Bytes of a value in one piece, at most: with its headers, a segment's among them, it is written in one transfer of
/// 1 MiB, and read in one.
pub const PIECE_BYTES_MAX: usize = 1024 * 1024 - 8192;

const ENTRY_BYTES: usize = 16;
const HEAD_BYTES: usize = 16;
/// Pieces of a value written or read at a time: enough for a disk's bandwidth, 4 MiB of memory.
pub(crate) const PIECES_AT_ONCE: usize = 4;
/// Pieces being written, and as many being read, that even the least memory holds.
const PIECES_MIN: u64 = 3;

/// Pieces that may be in memory on their way to flash or from it, all values together.
pub(crate) struct PieceMemory {
    pub writes: Arc<Semaphore>,
    pub reads: Arc<Semaphore>,
}

impl PieceMemory {
    /// Half of so many bytes for each direction.
    pub fn of(bytes: u64) -> Self {
        let pieces = (bytes / 2 / PIECE_BYTES_MAX as u64).max(PIECES_MIN);
        let semaphore = || Arc::new(Semaphore::new(pieces));
        Self { writes: semaphore(), reads: semaphore() }
    }
}

/// What a store keeps of its large values.
pub(crate) struct LargeValues {
    /// Bytes of a value in one piece: it must fit in a segment.
    pub piece_bytes: usize,
    pub memory: PieceMemory,
    pub kept: KeptPieces,
    /// Leaf lock. Values being written, and their pieces on flash that are not yet named by an entry.
    pub writers: Mutex<BTreeMap<u64, Vec<RecordPtr>>>,
    /// Values that are gone, whose pieces the heap was not told of yet.
    pub dead: Mutex<Vec<DeadLarge>>,
    /// A crash may have forgotten what is dead; see `recount`.
    pub recount_is_due: AtomicBool,
}

impl LargeValues {
    /// Of a store that was closed cleanly, or was not.
    pub fn new(segment_bytes: usize, budget: &Budget, was_closed: bool) -> Self {
        Self {
            piece_bytes: PIECE_BYTES_MAX.min(segment_bytes / 4),
            memory: PieceMemory::of(budget.pieces),
            kept: KeptPieces::new(budget.rows / 2),
            writers: Mutex::default(),
            dead: Mutex::default(),
            recount_is_due: AtomicBool::new(!was_closed),
        }
    }
}

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
    /// Whose value it is, when it was looked up.
    pub(crate) owner: Option<(SliceId, Bytes)>,
    /// Keeps the pieces readable while a caller holds this.
    pub(crate) pin: Option<Arc<HeapPin>>,
    /// Who stores it under its key.
    pub(crate) origin: Option<Origin>,
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
    #[doc(hidden)] // for fuzz, as the next one
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.id.to_le_bytes());
        out.extend_from_slice(&self.len.to_le_bytes());
        for piece in &self.pieces {
            out.extend_from_slice(&piece.ptr.addr.0.to_le_bytes());
            out.extend_from_slice(&piece.ptr.len.to_le_bytes());
            out.extend_from_slice(&piece.len.to_le_bytes());
        }
    }

    /// Reads what [`LargeRef::encode`] wrote; `None` when the lengths do not add up.
    #[doc(hidden)]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
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
            owner: None,
            pin: None,
            origin: None,
        })
    }
}

/// The registration of a value whose pieces no entry names yet: held by its writer, by each piece on its way, by the list
/// and by the batches that hold it.
pub(crate) struct BeingWritten {
    pub store: Arc<Inner>,
    pub id: u64,
    is_named: AtomicBool,
}

impl fmt::Debug for BeingWritten {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BeingWritten {}", self.id)
    }
}

impl BeingWritten {
    /// Of value `id`, which was registered.
    pub fn new(store: Arc<Inner>, id: u64) -> Self {
        Self { store, id, is_named: AtomicBool::new(false) }
    }

    /// One of its pieces is on flash.
    pub fn wrote(&self, ptr: RecordPtr) {
        if let Some(written) = lock(&self.store.large.writers).get_mut(&self.id) {
            written.push(ptr);
        }
    }

    /// An entry names the pieces: from now on its end is theirs.
    pub fn named(&self) {
        self.is_named.store(true, Ordering::Release);
        drop(self.take_written());
    }

    fn take_written(&self) -> Vec<RecordPtr> {
        lock(&self.store.large.writers).get_mut(&self.id).map(take).unwrap_or_default()
    }
}

impl Drop for BeingWritten {
    fn drop(&mut self) {
        if !self.is_named.load(Ordering::Acquire) {
            // As long as it is registered nothing of it moves.
            self.take_written().into_iter().for_each(|ptr| self.store.heap.mark_dead(ptr));
        }
        lock(&self.store.large.writers).remove(&self.id);
    }
}
