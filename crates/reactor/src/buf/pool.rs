//! Where a core's buffers come from: regions of which each takes the pages it needs (`runs.rs`), the first of them registered with its ring.
//! Any thread may give a buffer back.
//!
//! A region is one huge page where the kernel has one to give, so that a buffer's pages lie side by side in physical
//! memory and a transfer is one piece to the device instead of one for each 4 KiB: on a virtual disk, 1 MiB reads went
//! from 2.0 to 3.1 GB/s by that, and durable 512 KiB writes from 1.6 to 3.0. Nothing depends on it.

use super::ALIGNMENT_BYTES;
use super::runs::{Runs, pages_of};
use crate::sys::memory::{HUGE_PAGE_BYTES, Mapping};
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::io;
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard};

use pumice_base::sync::lock;

/// Largest buffer cut from a region, in bytes.
const CUT_BYTES_MAX: usize = 1 << 20;
/// Regions besides the registered one: the largest tail of the log that a store keeps, and as much again. What does not fit into
/// them comes from the heap, zeroed and in small pages.
const REGIONS_MAX: usize = 64;

/// A piece of memory that a pool gave out.
#[derive(Clone, Copy)]
pub(super) struct Piece {
    pub(super) data: NonNull<u8>,
    pub(super) bytes: usize,
}

/// One core's buffer memory.
pub(crate) struct Pool {
    /// For the driver to register: the first region.
    registered: Option<Region>,
    state: Mutex<State>,
    /// Of buffers larger than what is cut one is kept, up to this size: who reads whole segments does so again and again, and fresh
    /// memory costs more (zeroing, page faults) than the read. What is not kept goes back to the system.
    kept_large_bytes_max: usize,
    /// Zero what is handed out, so that a simulated run never sees what an earlier one left.
    zero: bool,
}

#[derive(Default)]
struct State {
    /// Of the registered region.
    runs: Option<Runs>,
    /// The others, each of one huge page's size.
    regions: Vec<(Region, Runs)>,
    /// At most one, larger than what is cut from regions.
    large: Option<Piece>,
}

/// Memory that buffers are cut from.
pub(crate) struct Region(Mapping);

impl Region {
    pub(crate) fn address(&self) -> *mut u8 {
        self.0.address()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    fn contains(&self, address: *const u8) -> bool {
        (self.address().addr()..self.address().addr() + self.len()).contains(&address.addr())
    }

    fn piece(&self, first: usize, pages: usize) -> Piece {
        let (offset, bytes) = (first * ALIGNMENT_BYTES, pages * ALIGNMENT_BYTES);
        assert!(offset + bytes <= self.len(), "{pages} pages at {first} in {} bytes", self.len());
        // SAFETY: inside the mapping, as just checked.
        Piece { data: unsafe { NonNull::new_unchecked(self.address().add(offset)) }, bytes }
    }

    fn give_back(&self, runs: &mut Runs, piece: Piece) {
        let offset = piece.data.as_ptr().addr() - self.address().addr();
        runs.give_back(offset / ALIGNMENT_BYTES, pages_of(piece.bytes));
    }
}

// SAFETY: the kept piece is memory that the pool owns alone while it is in its list.
unsafe impl Send for State {}

impl Pool {
    pub(crate) const REGION_BYTES_MIN: usize = 64 << 10;
    /// Of a larger buffer that is kept, where memory is not short.
    pub(crate) const KEPT_LARGE_BYTES: usize = 8 << 20;

    /// A pool over a region of `bytes` (a power of two), for the caller to register, that keeps a larger buffer of so many bytes at
    /// most.
    pub(crate) fn with_region(bytes: usize, kept_large_bytes_max: usize) -> io::Result<Self> {
        assert!(bytes.is_power_of_two() && bytes >= Self::REGION_BYTES_MIN, "a region of {bytes} bytes");
        let state = State { runs: Some(Runs::new(bytes)), ..State::default() };
        let region = Region(Mapping::huge(bytes)?);
        Ok(Self { registered: Some(region), state: Mutex::new(state), kept_large_bytes_max, zero: false })
    }

    /// A pool without a registered region.
    pub(crate) fn unregistered(zero: bool, kept_large_bytes_max: usize) -> Self {
        Self { registered: None, state: Mutex::default(), kept_large_bytes_max, zero }
    }

    pub(crate) fn region(&self) -> Option<&Region> {
        self.registered.as_ref()
    }

    /// Whether these bytes lie in the registered region.
    pub(crate) fn is_registered(&self, address: *const u8, bytes: usize) -> bool {
        self.registered.as_ref().is_some_and(|region| {
            region.contains(address) && address.addr() + bytes <= region.address().addr() + region.len()
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    pub(super) fn take(&self, bytes: usize) -> Piece {
        let piece = if bytes > CUT_BYTES_MAX { self.take_large(bytes) } else { self.cut(bytes) };
        if self.zero {
            // SAFETY: the piece is ours alone and so long.
            unsafe { piece.data.as_ptr().write_bytes(0, piece.bytes) };
        }
        piece
    }

    fn cut(&self, bytes: usize) -> Piece {
        let pages = pages_of(bytes);
        let mut state = self.state();
        let state = &mut *state;
        if let (Some(region), Some(runs)) = (&self.registered, &mut state.runs)
            && let Some(first) = runs.take(pages)
        {
            return region.piece(first, pages);
        }
        // Older regions first, so that younger ones run empty.
        for (region, runs) in &mut state.regions {
            if let Some(first) = runs.take(pages) {
                return region.piece(first, pages);
            }
        }
        if state.regions.len() < REGIONS_MAX
            && let Ok(mapping) = self.new_mapping()
        {
            let (region, mut runs) = (Region(mapping), Runs::new(HUGE_PAGE_BYTES));
            if let Some(first) = runs.take(pages) {
                let piece = region.piece(first, pages);
                state.regions.push((region, runs));
                return piece;
            }
        }
        heap_piece(pages * ALIGNMENT_BYTES)
    }

    /// A simulation's buffers meet no device: small pages do, and only what is used of them costs.
    fn new_mapping(&self) -> io::Result<Mapping> {
        if self.zero { Mapping::new(HUGE_PAGE_BYTES) } else { Mapping::huge(HUGE_PAGE_BYTES) }
    }

    fn take_large(&self, bytes: usize) -> Piece {
        if let Some(piece) = self.state().large.take_if(|piece| piece.bytes >= bytes) {
            return piece;
        }
        heap_piece(bytes.next_multiple_of(ALIGNMENT_BYTES))
    }

    /// Takes back what a piece has above `bytes`, if it was cut from a region.
    pub(super) fn shorten(&self, piece: &mut Piece, bytes: usize) {
        let kept = pages_of(bytes).max(1) * ALIGNMENT_BYTES;
        if kept >= piece.bytes || piece.bytes > CUT_BYTES_MAX {
            return;
        }
        let mut state = self.state();
        let state = &mut *state;
        let registered = self.registered.as_ref().zip(state.runs.as_mut());
        let others = state.regions.iter_mut().map(|(region, runs)| (&*region, runs));
        let cut_from =
            registered.into_iter().chain(others).find(|(region, _)| region.contains(piece.data.as_ptr()));
        if let Some((region, runs)) = cut_from {
            let first = (piece.data.as_ptr().addr() - region.address().addr() + kept) / ALIGNMENT_BYTES;
            region.give_back(runs, region.piece(first, pages_of(piece.bytes - kept)));
            piece.bytes = kept;
        }
    }

    pub(super) fn give_back(&self, piece: Piece) {
        if piece.bytes > CUT_BYTES_MAX {
            return self.give_back_large(piece);
        }
        let mut state = self.state();
        if let (Some(region), Some(runs)) = (&self.registered, &mut state.runs)
            && region.contains(piece.data.as_ptr())
        {
            return region.give_back(runs, piece);
        }
        let Some(at) = state.regions.iter().position(|(region, _)| region.contains(piece.data.as_ptr()))
        else {
            drop(state);
            return free_heap_piece(piece);
        };
        let (region, runs) = &mut state.regions[at];
        region.give_back(runs, piece);
        // One that is free is kept for the next need, a second goes back to the system.
        if runs.is_free() && state.regions.iter().filter(|(_, runs)| runs.is_free()).count() > 1 {
            let unused = state.regions.remove(at);
            drop(state);
            drop(unused);
        }
    }

    fn give_back_large(&self, piece: Piece) {
        if piece.bytes > self.kept_large_bytes_max {
            return free_heap_piece(piece);
        }
        let mut state = self.state();
        let surplus = match state.large {
            Some(kept) if kept.bytes >= piece.bytes => Some(piece),
            _ => state.large.replace(piece),
        };
        drop(state);
        if let Some(piece) = surplus {
            free_heap_piece(piece);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        if let Some(piece) = self.state().large.take() {
            free_heap_piece(piece);
        }
    }
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
    if bytes > CUT_BYTES_MAX {
        return match Mapping::huge(bytes) {
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
    if piece.bytes > CUT_BYTES_MAX {
        // SAFETY: mapped in `heap_piece` with this size, and nobody uses it any more.
        return drop(unsafe { Mapping::from_memory(piece.data, piece.bytes) });
    }
    // SAFETY: allocated in `heap_piece` with the same layout, and nobody uses it any more.
    unsafe { dealloc(piece.data.as_ptr(), layout(piece.bytes)) };
}
