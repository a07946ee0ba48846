//! One channel's blocks: which are free, erased, in use or bad, and how often each was erased.
//!
//! A new segment takes the block with the fewest erases, of those that are erased already if there are any (dynamic
//! wear levelling, as SDF's and LightStore's controllers have it). Static wear levelling is left out, as in SDF
//! (ASPLOS 2014 section 2.1): the layers above rewrite everything in time.

use std::collections::BTreeSet;

/// What a block is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// Holds nothing, and has still to be erased.
    Dirty,
    /// Being erased.
    Erasing,
    /// Ready to be programmed.
    Erased,
    /// Holds a segment.
    Used,
    /// Failed, here or at the factory: never used again.
    Bad,
}

/// Blocks by use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockCounts {
    /// Holding segments.
    pub used: u32,
    /// Ready to be programmed.
    pub erased: u32,
    /// Free, and still to be erased.
    pub dirty: u32,
    /// Bad.
    pub bad: u32,
}

/// See the module's text.
pub(crate) struct Blocks {
    roles: Vec<Role>,
    erases: Vec<u32>,
    /// (erases, block), fewest first.
    dirty: BTreeSet<(u32, u32)>,
    erased: BTreeSet<(u32, u32)>,
    erasing: u32,
}

impl Blocks {
    /// All dirty but the bad ones: what an erased block looks like is not known.
    pub(crate) fn new(erases: Vec<u32>, is_bad: impl Fn(u32) -> bool) -> Self {
        let mut blocks = Self {
            roles: vec![Role::Dirty; erases.len()],
            erases,
            dirty: BTreeSet::new(),
            erased: BTreeSet::new(),
            erasing: 0,
        };
        for block in 0..blocks.roles.len() as u32 {
            if is_bad(block) {
                blocks.roles[block as usize] = Role::Bad;
            } else {
                blocks.dirty.insert((blocks.erases[block as usize], block));
            }
        }
        blocks
    }

    /// Takes the erased block with the fewest erases.
    pub(crate) fn take_erased(&mut self) -> Option<u32> {
        let (_, block) = self.erased.pop_first()?;
        self.roles[block as usize] = Role::Used;
        Some(block)
    }

    /// Takes the dirty block with the fewest erases, to be erased.
    pub(crate) fn take_dirty(&mut self) -> Option<u32> {
        let (_, block) = self.dirty.pop_first()?;
        self.roles[block as usize] = Role::Erasing;
        self.erasing += 1;
        Some(block)
    }

    /// A block that was taken dirty is erased; `used` at once by whoever waited for it.
    pub(crate) fn has_erased(&mut self, block: u32, used: bool) {
        assert_eq!(self.roles[block as usize], Role::Erasing, "block {block}");
        self.erases[block as usize] += 1;
        self.erasing -= 1;
        self.roles[block as usize] = if used { Role::Used } else { Role::Erased };
        if !used {
            self.erased.insert((self.erases[block as usize], block));
        }
    }

    /// A block's segment is no longer wanted.
    pub(crate) fn release(&mut self, block: u32) {
        assert_eq!(self.roles[block as usize], Role::Used, "block {block}");
        self.roles[block as usize] = Role::Dirty;
        self.dirty.insert((self.erases[block as usize], block));
    }

    /// A block failed while it was being erased or used.
    pub(crate) fn retire(&mut self, block: u32) {
        let role = &mut self.roles[block as usize];
        assert!(matches!(role, Role::Erasing | Role::Used), "block {block} is {role:?}");
        self.erasing -= u32::from(*role == Role::Erasing);
        *role = Role::Bad;
    }

    /// Whether an erase is under way.
    pub(crate) fn is_erasing(&self) -> bool {
        self.erasing > 0
    }

    /// Blocks that are erased or being erased.
    pub(crate) fn erased_soon(&self) -> u32 {
        self.erased.len() as u32 + self.erasing
    }

    pub(crate) fn counts(&self) -> BlockCounts {
        let mut counts = BlockCounts::default();
        for role in &self.roles {
            match role {
                Role::Used => counts.used += 1,
                Role::Erased => counts.erased += 1,
                Role::Dirty | Role::Erasing => counts.dirty += 1,
                Role::Bad => counts.bad += 1,
            }
        }
        counts
    }

    /// Fewest and most erases of the blocks that are not bad.
    pub(crate) fn erase_range(&self) -> Option<(u32, u32)> {
        let good = self.roles.iter().zip(&self.erases).filter(|(role, _)| **role != Role::Bad);
        let erases = good.map(|(_, erases)| *erases);
        Some((erases.clone().min()?, erases.max()?))
    }
}
