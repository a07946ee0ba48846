//! Where a core's buffers come from: a region registered with its ring, cut by halves (a buddy allocator), and
//! recycled heap memory when that is used up. Any thread may give a buffer back.

use super::ALIGNMENT_BYTES;
use crate::uring::Mapping;
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::io;
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Largest buffer taken from the region or recycled, in bytes.
const RECYCLED_BYTES_MAX: usize = 1 << 20;
/// Of larger buffers one is kept, up to this size: who reads whole segments does so again and again, and fresh memory
/// costs more (zeroing, page faults) than the read. What is not kept goes back to the system.
const KEPT_LARGE_BYTES_MAX: usize = 8 << 20;
/// Heap memory that a pool keeps for reuse, in bytes.
const KEPT_BYTES_MAX: usize = 8 << 20;
/// Sizes of recycled heap buffers: 4, 8, 12, 16, 24, 32, 48 KiB … 1 MiB.
const CLASSES: usize = 16;

/// A piece of memory that a pool gave out.
#[derive(Clone, Copy)]
pub(super) struct Piece {
    pub(super) data: NonNull<u8>,
    pub(super) bytes: usize,
}

/// One core's buffer memory.
pub(crate) struct Pool {
    region: Option<Mapping>,
    state: Mutex<State>,
    /// Zero what is handed out, so that a simulated run never sees what an earlier one left.
    zero: bool,
}

struct State {
    buddies: Buddies,
    kept: [Vec<NonNull<u8>>; CLASSES],
    kept_bytes: usize,
    /// At most one, larger than what is recycled by class.
    large: Option<Piece>,
}

// SAFETY: the pointers name memory that the pool owns alone while they are in its lists.
unsafe impl Send for State {}

impl Pool {
    pub(crate) const REGION_BYTES_MIN: usize = 64 << 10;

    /// A pool over a region of `bytes` (a power of two), for the caller to register.
    pub(crate) fn with_region(bytes: usize) -> io::Result<Self> {
        assert!(bytes.is_power_of_two() && bytes >= Self::REGION_BYTES_MIN, "a region of {bytes} bytes");
        Ok(Self { region: Some(Mapping::new(bytes)?), state: State::new(bytes), zero: false })
    }

    /// A pool of heap memory alone.
    pub(crate) fn heap(zero: bool) -> Self {
        Self { region: None, state: State::new(0), zero }
    }

    pub(crate) fn region(&self) -> Option<&Mapping> {
        self.region.as_ref()
    }

    /// Whether all of these bytes lie in the region.
    pub(crate) fn contains(&self, address: *const u8, bytes: usize) -> bool {
        self.region.as_ref().is_some_and(|region| {
            let start = region.address().addr();
            let address = address.addr();
            address >= start && address + bytes <= start + region.len()
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn take(&self, bytes: usize) -> Piece {
        let piece = self.take_as_is(bytes);
        if self.zero {
            // SAFETY: the piece is ours alone and so long.
            unsafe { piece.data.as_ptr().write_bytes(0, piece.bytes) };
        }
        piece
    }

    fn take_as_is(&self, bytes: usize) -> Piece {
        let Some(class) = class_of(bytes) else { return self.take_large(bytes) };
        let mut state = self.state();
        if let Some(region) = &self.region {
            let order = order_of(bytes);
            if let Some(block) = state.buddies.take(order) {
                let size = ALIGNMENT_BYTES << order;
                // SAFETY: the block lies inside the region.
                let data = unsafe { NonNull::new_unchecked(region.address().add(block * size)) };
                return Piece { data, bytes: size };
            }
        }
        let bytes = class_bytes(class);
        if let Some(data) = state.kept[class].pop() {
            state.kept_bytes -= bytes;
            return Piece { data, bytes };
        }
        drop(state);
        heap_piece(bytes)
    }

    fn take_large(&self, bytes: usize) -> Piece {
        if let Some(piece) = self.state().large.take_if(|piece| piece.bytes >= bytes) {
            return piece;
        }
        heap_piece(bytes.next_multiple_of(ALIGNMENT_BYTES))
    }

    pub(super) fn give_back(&self, piece: Piece) {
        if let Some(region) = &self.region
            && self.contains(piece.data.as_ptr(), piece.bytes)
        {
            let offset = piece.data.as_ptr().addr() - region.address().addr();
            return self.state().buddies.give_back(order_of(piece.bytes), offset / piece.bytes);
        }
        if let Some(class) = class_of(piece.bytes) {
            let mut state = self.state();
            if state.kept_bytes + piece.bytes <= KEPT_BYTES_MAX {
                state.kept_bytes += piece.bytes;
                return state.kept[class].push(piece.data);
            }
        } else if piece.bytes <= KEPT_LARGE_BYTES_MAX {
            let mut state = self.state();
            if state.large.is_none_or(|kept| kept.bytes < piece.bytes) {
                let smaller = state.large.replace(piece);
                drop(state);
                return smaller.map_or((), free_heap_piece);
            }
        }
        free_heap_piece(piece);
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let mut state = self.state();
        if let Some(piece) = state.large.take() {
            free_heap_piece(piece);
        }
        for class in 0..CLASSES {
            for data in std::mem::take(&mut state.kept[class]) {
                free_heap_piece(Piece { data, bytes: class_bytes(class) });
            }
        }
    }
}

impl State {
    fn new(region_bytes: usize) -> Mutex<Self> {
        let kept = [const { Vec::new() }; CLASSES];
        Mutex::new(Self { buddies: Buddies::new(region_bytes), kept, kept_bytes: 0, large: None })
    }
}

/// The smallest class that holds so much; `None` above the largest.
fn class_of(bytes: usize) -> Option<usize> {
    if bytes > RECYCLED_BYTES_MAX {
        return None;
    }
    // Small enough to search.
    (0..CLASSES).find(|&class| class_bytes(class) >= bytes)
}

fn class_bytes(class: usize) -> usize {
    match class {
        0 => ALIGNMENT_BYTES,
        class if class % 2 == 1 => ALIGNMENT_BYTES << class.div_ceil(2),
        class => (ALIGNMENT_BYTES * 3) << (class / 2 - 1),
    }
}

fn order_of(bytes: usize) -> usize {
    bytes.div_ceil(ALIGNMENT_BYTES).next_power_of_two().trailing_zeros() as usize
}

fn layout(bytes: usize) -> Layout {
    match Layout::from_size_align(bytes, ALIGNMENT_BYTES) {
        Ok(layout) => layout,
        Err(error) => panic!("a buffer of {bytes} bytes: {error}"),
    }
}

/// New memory of exactly so many bytes, a multiple of the alignment and not 0. Large pieces come from the system
/// directly: it has zeroed them already, and takes them back whole, where an allocator's heap would keep holes.
pub(super) fn heap_piece(bytes: usize) -> Piece {
    let layout = layout(bytes);
    if bytes > RECYCLED_BYTES_MAX {
        return match Mapping::new(bytes) {
            Ok(mapping) => Piece { data: mapping.into_memory(), bytes },
            Err(_) => handle_alloc_error(layout),
        };
    }
    // SAFETY: the size is not zero.
    let data = unsafe { alloc_zeroed(layout) };
    match NonNull::new(data) {
        Some(data) => Piece { data, bytes },
        None => handle_alloc_error(layout),
    }
}

/// Frees what `heap_piece` made.
pub(super) fn free_heap_piece(piece: Piece) {
    if piece.bytes > RECYCLED_BYTES_MAX {
        // SAFETY: mapped in `heap_piece` with this size, and nobody uses it any more.
        return drop(unsafe { Mapping::from_memory(piece.data, piece.bytes) });
    }
    // SAFETY: allocated in `heap_piece` with the same layout, and nobody uses it any more.
    unsafe { dealloc(piece.data.as_ptr(), layout(piece.bytes)) };
}

/// Free blocks of each power of two of pages, as bits.
struct Buddies {
    free: Vec<Vec<u64>>,
}

impl Buddies {
    fn new(bytes: usize) -> Self {
        let largest = bytes.min(RECYCLED_BYTES_MAX);
        if largest == 0 {
            return Self { free: Vec::new() };
        }
        let mut free: Vec<Vec<u64>> = (0..=order_of(largest))
            .map(|order| vec![0; (bytes / (ALIGNMENT_BYTES << order)).div_ceil(64)])
            .collect();
        let top = order_of(largest);
        for block in 0..bytes / largest {
            free[top][block / 64] |= 1 << (block % 64);
        }
        Self { free }
    }

    fn take(&mut self, order: usize) -> Option<usize> {
        let (found, mut block) = (order..self.free.len()).find_map(|order| {
            let words = &mut self.free[order];
            let word = words.iter().position(|&word| word != 0)?;
            let bit = words[word].trailing_zeros() as usize;
            words[word] &= !(1 << bit);
            Some((order, word * 64 + bit))
        })?;
        for order in (order..found).rev() {
            block *= 2;
            self.free[order][(block + 1) / 64] |= 1 << ((block + 1) % 64);
        }
        Some(block)
    }

    fn give_back(&mut self, mut order: usize, mut block: usize) {
        while order + 1 < self.free.len() {
            let buddy = block ^ 1;
            let word = &mut self.free[order][buddy / 64];
            if *word & (1 << (buddy % 64)) == 0 {
                break;
            }
            *word &= !(1 << (buddy % 64));
            block /= 2;
            order += 1;
        }
        let word = &mut self.free[order][block / 64];
        assert!(*word & (1 << (block % 64)) == 0, "a buffer was given back twice");
        *word |= 1 << (block % 64);
    }
}
