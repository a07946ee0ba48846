//! What an emulated device remembers of its blocks, and the faults that tests plan.

use pumice_base::rng::Rng;

use super::storage::SavedBlock;
use super::wear::Use;
use crate::error::Operation;
use crate::{BlockAddr, FlashError};

/// What one block has seen.
#[derive(Clone, Debug, Default)]
pub(super) struct Block {
    pub next_page: u32,
    /// Pages below this survive a power cut.
    pub durable_pages: u32,
    pub erase_count: u32,
    /// A program or erase failed: no more programs before an erase.
    pub failed: bool,
    /// An erase was interrupted, or failed: nothing reads.
    pub unreadable: bool,
    /// Bad from the start: nothing works.
    pub factory_bad: bool,
    /// Reads since the erase.
    pub reads: u64,
    /// When its first page was programmed, in Unix ms.
    pub programmed_ms: u64,
    /// Most bits that had to be corrected in one codeword since the erase.
    pub corrected_bits_max: u32,
    /// Pages that read as uncorrectable.
    pub torn: Vec<u32>,
}

impl Block {
    pub(super) fn saved(&self) -> SavedBlock {
        SavedBlock {
            next_page: self.next_page,
            erase_count: self.erase_count,
            failed: self.failed || self.unreadable,
        }
    }

    pub(super) fn used(&self, now_ms: u64) -> Use {
        let age_ms = if self.programmed_ms == 0 { 0 } else { now_ms.saturating_sub(self.programmed_ms) };
        Use { erases: self.erase_count, days: age_ms as f64 / 86_400_000.0, reads: self.reads }
    }
}

/// Counts of what was done, for tests and `info`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OperationCounts {
    /// Read requests.
    pub reads: u64,
    /// Program requests.
    pub programs: u64,
    /// Erases.
    pub erases: u64,
    /// Syncs.
    pub syncs: u64,
    /// Raw bit errors that the media corrected.
    pub corrected_bits: u64,
    /// Codewords with more bit errors than the media correct.
    pub uncorrectable_codewords: u64,
}

/// A fault that a test plans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The media report failure: [`FlashError::ProgramFailed`], [`FlashError::EraseFailed`] or
    /// [`FlashError::Uncorrectable`].
    Failed,
    /// No answer in time: [`FlashError::Timeout`]. Nothing is changed.
    TimedOut,
}

pub(super) struct State {
    pub blocks: Vec<Block>,
    pub powered: bool,
    /// Counts power cuts, so that what was under way during one learns of it.
    pub power_cycles: u64,
    pub counts: OperationCounts,
    /// Programs, erases and syncs so far, and the one that a power cut interrupts.
    pub mutations: u64,
    pub cut_at: Option<u64>,
    /// Faults to come, with the count of their operation at which they strike.
    pub faults: Vec<(Operation, u64, Fault)>,
    /// The chance that an operation fails, beside those.
    pub chances: Vec<(Operation, f64)>,
    /// Added to the wall clock when data's age is asked for, in ms.
    pub aged_ms: u64,
    /// A codeword came near what is corrected since somebody asked.
    pub weak_news: bool,
    pub rng: Rng,
}

impl State {
    pub(super) fn power(&self, operation: Operation) -> Result<(), FlashError> {
        if self.powered { Ok(()) } else { Err(FlashError::Gone { operation }) }
    }

    pub(super) fn still_powered(&self, cycle: u64, operation: Operation) -> Result<(), FlashError> {
        if self.powered && self.power_cycles == cycle { Ok(()) } else { Err(FlashError::Gone { operation }) }
    }

    /// Counts of one kind of operation.
    pub(super) fn count(&self, operation: Operation) -> u64 {
        match operation {
            Operation::Read => self.counts.reads,
            Operation::Program => self.counts.programs,
            Operation::Erase => self.counts.erases,
            _ => self.counts.syncs,
        }
    }

    /// The fault that strikes this operation, the one counted last. One that says nothing was done is answered here.
    pub(super) fn fault(&mut self, operation: Operation, block: BlockAddr) -> Result<bool, FlashError> {
        let count = self.count(operation);
        let found = self.faults.iter().position(|&(kind, at, _)| kind == operation && at == count);
        match found.map(|at| self.faults.swap_remove(at).2) {
            None => {
                let chance =
                    self.chances.iter().find(|(kind, _)| *kind == operation).map_or(0.0, |one| one.1);
                Ok(chance > 0.0 && self.rng.chance(chance))
            }
            Some(Fault::Failed) => Ok(true),
            Some(Fault::TimedOut) => Err(FlashError::Timeout { operation, block }),
        }
    }

    /// Each block keeps its durable pages and a random part of what followed, the page after which is torn.
    pub(super) fn lose_power(&mut self) {
        self.powered = false;
        self.power_cycles += 1;
        for block in &mut self.blocks {
            if block.next_page > block.durable_pages {
                let loose = u64::from(block.next_page - block.durable_pages);
                let end = block.durable_pages + self.rng.below(loose + 1) as u32;
                if end < block.next_page {
                    block.torn.retain(|&page| page < end);
                    block.torn.push(end);
                    block.next_page = end + 1;
                }
                block.durable_pages = block.next_page;
            }
        }
    }
}
