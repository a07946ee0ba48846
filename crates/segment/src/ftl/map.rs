//! Which block bears which id: 16 bytes of id a block, and an index of 4-byte slots, a quarter more of them than blocks.
//!
//! A block *bears* an id from the end of its write to the end of its erase; of the blocks that bear an id at most one is
//! *live*. The dead ones are kept in the index so that an erase finds every copy that a restart could still see.
//!
//! Linear probing with backward shifts, no tombstones. A general hash map from id to block would take twice the memory
//! (16-byte alignment, power-of-two growth), and `docs/decisions/0015` has a budget of 32 bytes a segment.

use pumice_base::hash::HashSet;

const EMPTY: u32 = u32::MAX;
const LIVE: u32 = 1 << 31;
/// Blocks that slots can name.
pub(crate) const BLOCKS_MAX: u32 = LIVE - 1;

/// See the module's text.
pub(crate) struct Map {
    /// By block number; meaningless for blocks that bear none.
    ids: Vec<u128>,
    slots: Vec<u32>,
    /// Ids that are being written: as many as there are requests.
    claimed: HashSet<u128>,
    /// Ids whose segments are being copied to another block.
    moving: HashSet<u128>,
    live: u32,
}

/// Whether an id can be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claimed {
    Yes,
    /// It is written, or being written.
    Taken,
    /// Its last copy is being moved, and has to end first.
    Moving,
}

fn hash(id: u128) -> u64 {
    // Two folded multiplications, so that runs of ids, and ids that differ in their high half only, spread.
    let fold = |a: u64, b: u64| {
        let wide = u128::from(a) * u128::from(b);
        wide as u64 ^ (wide >> 64) as u64
    };
    let low = fold(id as u64 ^ 0x9E37_79B9_7F4A_7C15, 0xD6E8_FEB8_6659_FD93);
    fold(low ^ (id >> 64) as u64 ^ 0xA076_1D64_78BD_642F, 0xE703_7ED1_A0B4_28DB)
}

impl Map {
    pub(crate) fn new(blocks: u32) -> Self {
        let slots = blocks as usize + blocks as usize / 4 + 1;
        Self {
            ids: vec![0; blocks as usize],
            slots: vec![EMPTY; slots],
            claimed: HashSet::default(),
            moving: HashSet::default(),
            live: 0,
        }
    }

    /// Bytes that the tables take.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.ids.capacity() * size_of::<u128>() + self.slots.capacity() * size_of::<u32>()
    }

    fn home(&self, id: u128) -> usize {
        ((u128::from(hash(id)) * self.slots.len() as u128) >> 64) as usize
    }

    fn after(&self, slot: usize) -> usize {
        if slot + 1 == self.slots.len() { 0 } else { slot + 1 }
    }

    /// Slots of the blocks that bear `id`.
    fn slots_of(&self, id: u128) -> impl Iterator<Item = usize> + '_ {
        let mut at = self.home(id);
        std::iter::from_fn(move || {
            while self.slots[at] != EMPTY {
                let found = at;
                at = self.after(at);
                if self.ids[(self.slots[found] & !LIVE) as usize] == id {
                    return Some(found);
                }
            }
            None
        })
    }

    /// The block that holds segment `id`.
    pub(crate) fn get(&self, id: u128) -> Option<u32> {
        let live = self.slots_of(id).find(|&at| self.slots[at] & LIVE != 0)?;
        Some(self.slots[live] & !LIVE)
    }

    /// The blocks that bear `id` and do not hold the segment.
    pub(crate) fn dead_bearers(&self, id: u128) -> Vec<u32> {
        self.slots_of(id).map(|at| self.slots[at]).filter(|slot| slot & LIVE == 0).collect()
    }

    /// Whether `block` bears `id`, but does not hold the segment.
    pub(crate) fn is_dead_bearer(&self, block: u32, id: u128) -> bool {
        self.slots_of(id).any(|at| self.slots[at] == block)
    }

    /// The id that `block` bears, and whether it holds the segment.
    pub(crate) fn borne(&self, block: u32) -> Option<(u128, bool)> {
        let id = self.ids[block as usize];
        let slot = self.slots_of(id).find(|&at| self.slots[at] & !LIVE == block)?;
        Some((id, self.slots[slot] & LIVE != 0))
    }

    /// Segments.
    pub(crate) fn live(&self) -> u32 {
        self.live
    }

    /// Keeps `id` for a write.
    pub(crate) fn claim(&mut self, id: u128) -> Claimed {
        if self.moving.contains(&id) {
            Claimed::Moving
        } else if self.get(id).is_none() && self.claimed.insert(id) {
            Claimed::Yes
        } else {
            Claimed::Taken
        }
    }

    pub(crate) fn unclaim(&mut self, id: u128) {
        self.claimed.remove(&id);
    }

    /// Whether segment `id` is being moved.
    pub(crate) fn is_moving(&self, id: u128) -> bool {
        self.moving.contains(&id)
    }

    /// Begins to move segment `id`, which is there; false when somebody does.
    pub(crate) fn begin_move(&mut self, id: u128) -> bool {
        self.moving.insert(id)
    }

    /// Ends it: with a copy, which holds the segment if `old` still did. Answers the block that is not wanted any more.
    pub(crate) fn end_move(&mut self, id: u128, old: u32, copy: Option<u32>) -> Option<u32> {
        self.moving.remove(&id);
        let copy = copy?;
        if self.get(id) == Some(old) {
            self.kill(id);
            self.insert(copy, id, true);
            Some(old)
        } else {
            self.insert(copy, id, false);
            Some(copy)
        }
    }

    /// `block` bears `id` from now on.
    pub(crate) fn insert(&mut self, block: u32, id: u128, is_live: bool) {
        assert!(!is_live || self.get(id).is_none(), "segment {id:032x} has a live block already");
        self.ids[block as usize] = id;
        let mut at = self.home(id);
        let mut probed = 0;
        while self.slots[at] != EMPTY {
            assert!(self.slots[at] & !LIVE != block, "block {block} bears an id already");
            at = self.after(at);
            probed += 1;
            assert!(probed < self.slots.len(), "there are more slots than blocks");
        }
        self.slots[at] = block | if is_live { LIVE } else { 0 };
        self.live += u32::from(is_live);
    }

    /// Segment `id` is no longer wanted; answers its block, which bears it still.
    pub(crate) fn kill(&mut self, id: u128) -> Option<u32> {
        let at = self.slots_of(id).find(|&at| self.slots[at] & LIVE != 0)?;
        self.slots[at] &= !LIVE;
        self.live -= 1;
        Some(self.slots[at])
    }

    /// `block` bears nothing any more.
    pub(crate) fn remove(&mut self, block: u32) {
        let id = self.ids[block as usize];
        let found = self.slots_of(id).find(|&at| self.slots[at] & !LIVE == block);
        let Some(mut hole) = found else { return };
        assert!(self.slots[hole] & LIVE == 0, "block {block} holds segment {id:032x}");
        let mut at = hole;
        loop {
            at = self.after(at);
            let slot = self.slots[at];
            if slot == EMPTY {
                break;
            }
            // Move back what may lie in the hole: whose home is not between the hole and where it lies.
            let home = self.home(self.ids[(slot & !LIVE) as usize]);
            let distance = |from: usize, to: usize| (to + self.slots.len() - from) % self.slots.len();
            if distance(home, at) >= distance(hole, at) {
                self.slots[hole] = slot;
                hole = at;
            }
        }
        self.slots[hole] = EMPTY;
    }
}
