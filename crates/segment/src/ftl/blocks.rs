//! One channel's blocks: which are free, erased, in use or bad, and how often each was erased. Four bytes a block.
//!
//! A new segment takes the block with the fewest erases, of those that are erased already if there are any (dynamic
//! wear levelling, as SDF's and LightStore's controllers have it). Static wear levelling is left out, as in SDF
//! (ASPLOS 2014 section 2.1): the layers above rewrite everything in time.
//!
//! Choosing goes through the channel's words, a quarter of a nanosecond a block and once a segment; ordered sets would take
//! three times the memory.

/// What a block is used for. The numbers are stored (`docs/format/raw-flash.md`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Holds nothing, and has still to be erased.
    Dirty,
    /// Ready to be programmed.
    Erased,
    /// Holds a segment.
    Used,
    /// Bears the tag of a segment that was discarded, moved or is being erased.
    Dead,
    /// Failed, here or at the factory: never used again.
    Bad,
    /// Kept for checkpoints.
    System,
    /// Being erased.
    Erasing,
    /// Being programmed.
    Writing,
}

const ROLES: [Role; 8] = [
    Role::Dirty,
    Role::Erased,
    Role::Used,
    Role::Dead,
    Role::Bad,
    Role::System,
    Role::Erasing,
    Role::Writing,
];
const ROLE_SHIFT: u32 = 29;
/// A page of the block's segment was near what its code corrects.
const WEAK: u32 = 1 << 28;
/// Erases that are counted; a block does not live to see them.
pub(crate) const ERASES_MAX: u32 = WEAK - 1;

/// A block's state in one word: 28 bits of erases, the weak bit, three bits of role.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockState(pub u32);

impl BlockState {
    pub(crate) fn new(role: Role, erases: u32) -> Self {
        Self((role as u32) << ROLE_SHIFT | erases.min(ERASES_MAX))
    }

    pub(crate) fn role(self) -> Role {
        ROLES[(self.0 >> ROLE_SHIFT) as usize]
    }

    pub(crate) fn erases(self) -> u32 {
        self.0 & ERASES_MAX
    }

    pub(crate) fn is_weak(self) -> bool {
        self.0 & WEAK != 0
    }

    fn with(self, role: Role) -> Self {
        Self::new(role, self.erases())
    }
}

/// Blocks by use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockCounts {
    /// Holding segments, or being written.
    pub used: u32,
    /// Ready to be programmed.
    pub erased: u32,
    /// Free, and still to be erased.
    pub dirty: u32,
    /// Bad.
    pub bad: u32,
    /// Kept for checkpoints.
    pub reserved: u32,
}

/// See the module's text.
pub(crate) struct Blocks {
    states: Vec<BlockState>,
    erasing: u32,
}

impl Blocks {
    pub(crate) fn new(states: Vec<BlockState>) -> Self {
        let passing = |state: &BlockState| matches!(state.role(), Role::Erasing | Role::Writing);
        assert!(!states.iter().any(passing), "nothing is under way when a drive is opened");
        Self { states, erasing: 0 }
    }

    pub(crate) fn state(&self, block: u32) -> BlockState {
        self.states[block as usize]
    }

    pub(crate) fn states(&self) -> &[BlockState] {
        &self.states
    }

    /// Bytes that the table takes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.states.capacity() * size_of::<BlockState>()
    }

    fn set(&mut self, block: u32, from: &[Role], to: Role) {
        let state = &mut self.states[block as usize];
        assert!(from.contains(&state.role()), "block {block} is {:?}, not one of {from:?}", state.role());
        *state = state.with(to);
    }

    /// The block of the roles wanted with the fewest erases, the lowest of equals.
    fn fewest(&self, is_wanted: impl Fn(Role) -> bool) -> Option<u32> {
        let wanted = self.states.iter().zip(0..).filter(|(state, _)| is_wanted(state.role()));
        wanted.min_by_key(|(state, block)| (state.erases(), *block)).map(|(_, block)| block)
    }

    /// Takes the erased block with the fewest erases, to be written.
    pub(crate) fn take_erased(&mut self) -> Option<u32> {
        let block = self.fewest(|role| role == Role::Erased)?;
        self.set(block, &[Role::Erased], Role::Writing);
        Some(block)
    }

    /// Takes the free block with the fewest erases, to be erased.
    pub(crate) fn take_dirty(&mut self) -> Option<u32> {
        let block = self.fewest(|role| matches!(role, Role::Dirty | Role::Dead))?;
        self.begin_erase(block);
        Some(block)
    }

    /// Takes this block to be erased, unless it is none that may be.
    pub(crate) fn take_dead(&mut self, block: u32) -> bool {
        let is_dead = self.state(block).role() == Role::Dead;
        if is_dead {
            self.begin_erase(block);
        }
        is_dead
    }

    fn begin_erase(&mut self, block: u32) {
        self.set(block, &[Role::Dirty, Role::Dead], Role::Erasing);
        self.erasing += 1;
    }

    /// An erase is over: the block is erased, or `taken` to be written at once by whoever waited for it.
    pub(crate) fn has_erased(&mut self, block: u32, taken: bool) {
        let to = if taken { Role::Writing } else { Role::Erased };
        self.set(block, &[Role::Erasing], to);
        self.erasing -= 1;
        let state = self.state(block);
        self.states[block as usize] = BlockState::new(to, state.erases() + 1);
    }

    /// An erase did not happen, for a reason that is not the block's; it `bears` what it bore.
    pub(crate) fn erase_failed(&mut self, block: u32, bears: bool) {
        self.set(block, &[Role::Erasing], if bears { Role::Dead } else { Role::Dirty });
        self.erasing -= 1;
    }

    /// A block was written.
    pub(crate) fn has_written(&mut self, block: u32) {
        self.set(block, &[Role::Writing], Role::Used);
    }

    /// A write was given up, for a reason that is not the block's. Its tags may be there.
    pub(crate) fn give_up(&mut self, block: u32) {
        self.set(block, &[Role::Writing], Role::Dead);
    }

    /// A block's segment is no longer wanted.
    pub(crate) fn release(&mut self, block: u32) {
        self.set(block, &[Role::Used], Role::Dead);
    }

    /// A block failed while it was being erased or written.
    pub(crate) fn retire(&mut self, block: u32) {
        self.erasing -= u32::from(self.state(block).role() == Role::Erasing);
        self.set(block, &[Role::Erasing, Role::Writing], Role::Bad);
    }

    /// Keeps a block that bears nothing for checkpoints, unless it is in use by now.
    pub(crate) fn keep(&mut self, block: u32) -> bool {
        let is_free = matches!(self.state(block).role(), Role::Dirty | Role::Erased);
        if is_free {
            self.set(block, &[Role::Dirty, Role::Erased], Role::System);
        }
        is_free
    }

    /// A block for checkpoints failed, or was erased.
    pub(crate) fn set_system(&mut self, block: u32, is_bad: bool) {
        let erases = self.state(block).erases() + u32::from(!is_bad);
        self.set(block, &[Role::System], if is_bad { Role::Bad } else { Role::System });
        self.states[block as usize] = BlockState::new(self.state(block).role(), erases);
    }

    /// Names a block's segment weak; answers whether that is news.
    pub(crate) fn set_weak(&mut self, block: u32) -> bool {
        let state = &mut self.states[block as usize];
        let is_news = state.role() == Role::Used && !state.is_weak();
        if is_news {
            state.0 |= WEAK;
        }
        is_news
    }

    /// Whether an erase is under way.
    pub(crate) fn is_erasing(&self) -> bool {
        self.erasing > 0
    }

    /// Whether a block should be erased ahead of need: fewer than `floor` are erased or being erased, or one that holds
    /// nothing was erased less often than all of them and would never be used while erases that are asked for keep the
    /// floor.
    pub(crate) fn wants_erase(&self, floor: u32) -> bool {
        floor > 0 && (self.counts().erased + self.erasing < floor || self.is_dirty_fresher())
    }

    /// Whether erasing the best block that holds nothing gives a better one than the best erased one.
    pub(crate) fn is_dirty_fresher(&self) -> bool {
        let erases = |block: Option<u32>| block.map(|block| self.state(block).erases());
        let dirty = erases(self.fewest(|role| role == Role::Dirty));
        let erased = erases(self.fewest(|role| role == Role::Erased));
        matches!((dirty, erased), (Some(dirty), Some(erased)) if dirty + 1 < erased)
    }

    pub(crate) fn counts(&self) -> BlockCounts {
        let mut counts = BlockCounts::default();
        for state in &self.states {
            match state.role() {
                Role::Used | Role::Writing => counts.used += 1,
                Role::Erased => counts.erased += 1,
                Role::Dirty | Role::Dead | Role::Erasing => counts.dirty += 1,
                Role::Bad => counts.bad += 1,
                Role::System => counts.reserved += 1,
            }
        }
        counts
    }

    /// Fewest and most erases of the blocks that hold segments or may.
    pub(crate) fn erase_range(&self) -> Option<(u32, u32)> {
        let good = self.states.iter().filter(|state| !matches!(state.role(), Role::Bad | Role::System));
        let erases = good.map(|state| state.erases());
        Some((erases.clone().min()?, erases.max()?))
    }
}
