//! Pieces of large values that are asked for again and again, in memory.
//!
//! A piece never changes, and its value's number is never used again: what is kept needs no other name and is never out of date,
//! whatever becomes of the key. It is a copy, because what a drive reads into is scarce (`docs/decisions/0014`). What is kept counts
//! as rows do and takes half of their memory at most; like rows, pieces are kept while there is room, and then when they come again.

use std::sync::Mutex;

use bytes::Bytes;
use pumice_base::hash::HashState;
use pumice_base::sync::lock;
use quick_cache::Weighter;
use quick_cache::unsync::Cache;
use std::hash::BuildHasher;

use crate::cache::refused::Refused;
use crate::large::{LargeRef, PIECE_BYTES_MAX};
use crate::record::PieceName;

/// Memory of a kept piece besides its bytes.
const OVERHEAD_BYTES: u64 = 128;
/// With room for fewer whole pieces none are kept: each would push out the one before.
const PIECES_MIN: u64 = 4;

fn most_of(bytes: u64) -> u64 {
    if bytes < PIECES_MIN * PIECE_BYTES_MAX as u64 { 0 } else { bytes }
}

/// A piece has to come again this much sooner than a row to be kept: its copy costs as much as reading it.
const PATIENCE: usize = 4;

#[derive(Clone)]
struct PieceWeight;

impl Weighter<(u64, u32), Bytes> for PieceWeight {
    fn weight(&self, _: &(u64, u32), piece: &Bytes) -> u64 {
        weight_of(piece)
    }
}

fn weight_of(piece: &[u8]) -> u64 {
    piece.len() as u64 + OVERHEAD_BYTES
}

/// See the head of this file.
pub struct KeptPieces {
    /// By the value's number and the piece's.
    state: Mutex<State>,
}

struct State {
    pieces: Cache<(u64, u32), Bytes, PieceWeight, HashState>,
    refused: Refused,
}

impl KeptPieces {
    /// In so many bytes, at most.
    pub fn new(bytes: u64) -> Self {
        let items = (bytes / (256 << 10)).max(1) as usize;
        let pieces = Cache::with(items, most_of(bytes), PieceWeight, HashState, Default::default());
        Self { state: Mutex::new(State { pieces, refused: Refused::default() }) }
    }

    /// From now on in so many bytes, about.
    pub fn set_most(&self, bytes: u64) {
        let (most, pieces) = (most_of(bytes), &mut lock(&self.state).pieces);
        if pieces.capacity().abs_diff(most) > most / 16 {
            pieces.set_capacity(most);
        }
    }

    /// Memory of what is kept, in bytes.
    pub fn bytes(&self) -> u64 {
        lock(&self.state).pieces.weight()
    }

    /// A piece's bytes of the value, if they are kept.
    pub fn get(&self, name: PieceName) -> Option<Bytes> {
        lock(&self.state).pieces.get(&(name.id, name.index)).cloned()
    }

    /// Keeps a copy of a piece that was read, if it is worth it. Answers whether it did.
    pub fn offer(&self, name: PieceName, piece: &[u8]) -> bool {
        let at = (name.id, name.index);
        let is_wanted = {
            let State { pieces, refused } = &mut *lock(&self.state);
            let capacity = pieces.capacity();
            // For a whole one: else what a short one has pushed out would let in the next one that comes.
            let has_room = pieces.weight() + PIECE_BYTES_MAX as u64 <= capacity;
            let hash = HashState.hash_one(at);
            capacity > 0 && (has_room || refused.take_or_put(hash, pieces.len() / PATIENCE))
        };
        if is_wanted {
            // The copy is made while nobody waits for the lock.
            let copy = Bytes::copy_from_slice(piece);
            lock(&self.state).pieces.insert(at, copy);
        }
        is_wanted
    }

    /// Lets go of a value that is gone.
    pub fn forget(&self, value: &LargeRef) {
        let pieces = &mut lock(&self.state).pieces;
        if !pieces.is_empty() {
            (0..value.piece_count()).for_each(|index| drop(pieces.remove(&(value.id, index as u32))));
        }
    }
}
