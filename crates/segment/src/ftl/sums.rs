//! Checksums of a segment's pages: what they cover, and the tables of them that are kept in memory.
//!
//! Every page has a CRC-32C over its bytes and over what it is: page so-and-so of this segment, of this drive, on this block,
//! written after so many erases of it. So neither a flipped bit nor what lay there in the block's last life verifies, nor a page
//! of elsewhere.
//!
//! Where pages have out-of-band bytes the checksum comes with the page. Elsewhere it lies in a table of the block
//! (`image.rs`), which would be a second read for each page: the tables of the blocks that were read or written last stay in
//! memory, as many as fit the budget ([`super::RawOptions::sums_memory_bytes`]). A table that is not there is read beside the
//! data. Rejected: sums between the data, which would leave no page where its offset says.

use std::sync::{Arc, Mutex};

use pumice_base::checksum::crc32c_seeded;
use pumice_base::hash::HashMap;
use pumice_base::sync::lock;
use pumice_flash::BlockAddr;

/// Bytes of a table in memory beside its sums: its slot and its entry in the index, which grow by doubling, and what the
/// allocator adds.
const OVERHEAD_BYTES: usize = 160;

/// A segment on a block, from its write to the block's next erase: what its pages are verified against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Life {
    pub block: BlockAddr,
    /// The block's number.
    pub number: u32,
    /// Erases of the block before the segment was written.
    pub erases: u32,
    pub drive_id: [u8; 16],
    pub id: u128,
}

impl Life {
    /// The checksum of page number `page` of the segment. The format's: `docs/format/raw-flash.md`.
    pub(crate) fn sum(&self, page: u32, bytes: &[u8]) -> u32 {
        let mut whose = [0; 36];
        whose[..16].copy_from_slice(&self.drive_id);
        whose[16..32].copy_from_slice(&self.id.to_le_bytes());
        whose[32..].copy_from_slice(&self.number.to_le_bytes());
        crc32c_seeded(u64::from(page) | u64::from(self.erases) << 32, &[&whose, bytes])
    }

    /// The checksums of whole pages, of which the first is number `first`.
    pub(crate) fn sums<'a>(
        &'a self,
        first: u32,
        page_bytes: u32,
        bytes: &'a [u8],
    ) -> impl Iterator<Item = u32> + 'a {
        let pages = bytes.chunks_exact(page_bytes as usize);
        (first..).zip(pages).map(|(page, bytes)| self.sum(page, bytes))
    }
}

struct Slot {
    number: u32,
    erases: u32,
    is_used: bool,
    sums: Arc<[u32]>,
}

#[derive(Default)]
struct State {
    slots: Vec<Slot>,
    by_block: HashMap<u32, usize>,
    /// Where the search for a slot to give up goes on (CLOCK: who was not asked for since the hand came by).
    hand: usize,
}

/// Tables of blocks, bounded. Lock: a leaf.
pub(crate) struct SumCache {
    tables_max: usize,
    table_bytes: usize,
    state: Mutex<State>,
}

impl SumCache {
    /// For tables of `pages` sums: as many as fit `memory_bytes`, but one at least.
    pub(crate) fn new(pages: u32, memory_bytes: usize) -> Self {
        let table_bytes = pages as usize * size_of::<u32>() + OVERHEAD_BYTES;
        Self { tables_max: (memory_bytes / table_bytes).max(1), table_bytes, state: Mutex::default() }
    }

    /// The table of the block in this life, if it is kept.
    pub(crate) fn get(&self, life: &Life) -> Option<Arc<[u32]>> {
        let mut state = lock(&self.state);
        let at = *state.by_block.get(&life.number)?;
        let slot = &mut state.slots[at];
        (slot.erases == life.erases).then(|| {
            slot.is_used = true;
            Arc::clone(&slot.sums)
        })
    }

    /// Keeps a table, in the place of one that nobody asked for of late when there is no room.
    pub(crate) fn insert(&self, life: &Life, sums: Arc<[u32]>) {
        let mut guard = lock(&self.state);
        let state = &mut *guard;
        let slot = Slot { number: life.number, erases: life.erases, is_used: false, sums };
        let at = match state.by_block.get(&life.number) {
            Some(&at) => at,
            None if state.slots.len() < self.tables_max => {
                state.by_block.insert(life.number, state.slots.len());
                return state.slots.push(slot);
            }
            None => {
                // Once around clears every mark: the second time there is one.
                while std::mem::take(&mut state.slots[state.hand].is_used) {
                    state.hand = (state.hand + 1) % state.slots.len();
                }
                let at = state.hand;
                state.hand = (at + 1) % state.slots.len();
                state.by_block.remove(&state.slots[at].number);
                state.by_block.insert(life.number, at);
                at
            }
        };
        state.slots[at] = slot;
    }

    /// Bytes that the tables take now.
    pub(crate) fn memory_bytes(&self) -> usize {
        let state = lock(&self.state);
        state.slots.len() * self.table_bytes
    }
}
