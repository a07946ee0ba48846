//! Emulated NAND: the contract enforced page by page, with simple timing and faults on demand.
//!
//! 1. State (write pointers, erase counts, which pages are torn) is in memory; data is in memory, or in a sparse
//!    file whose tail holds the state so that it can be opened again.
//! 2. Each channel serves one operation after the other: it is busy for the bus transfer and for the die's time;
//!    requests wait on the reactor's clock, so that the same model runs in real and in virtual time.
//! 3. A power cut ([`Emulated::cut_power_at`]) interrupts the n-th program, erase or sync: a program leaves a
//!    prefix of its pages and one torn page, an erase leaves the block unreadable, programs that were not made
//!    durable may vanish from a block's end. Everything is answered [`FlashError::Gone`] until
//!    [`Emulated::power_on`].

mod storage;

use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use pumice_base::rng::Rng;
use pumice_reactor::{IoBuf, WriteSync};
use storage::Storage;

use crate::error::Operation;
use crate::file::check_request;
use crate::{Access, BlockAddr, EmulatedSpec, FlashError, Geometry};

/// What one block has seen.
#[derive(Clone, Debug, Default)]
struct Block {
    next_page: u32,
    /// Pages below this survive a power cut.
    durable_pages: u32,
    erase_count: u32,
    /// A program or erase failed: no more programs before an erase.
    failed: bool,
    /// An erase was interrupted, or failed: nothing reads.
    unreadable: bool,
    /// Pages that read as uncorrectable.
    torn: Vec<u32>,
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
}

struct State {
    blocks: Vec<Block>,
    /// When each channel is free again, in ns of the reactor's clock.
    channel_free_ns: Vec<u64>,
    powered: bool,
    /// Counts power cuts, so that what was under way during one learns of it.
    power_cycles: u64,
    counts: OperationCounts,
    /// Programs, erases and syncs so far, and the one that a power cut interrupts.
    mutations: u64,
    cut_at: Option<u64>,
    fail_program_at: Vec<u64>,
    fail_erase_at: Vec<u64>,
    rng: Rng,
}

/// See the module's text.
pub struct Emulated {
    spec: EmulatedSpec,
    access: Access,
    state: Mutex<State>,
    storage: Storage,
}

impl Emulated {
    /// Makes the device, erased; with a `path` that exists, as it was left.
    ///
    /// # Errors
    /// [`FlashError::Geometry`], or the file's errors.
    pub async fn open(spec: EmulatedSpec, access: Access) -> Result<Self, FlashError> {
        spec.geometry.check()?;
        let (storage, blocks) = Storage::open(&spec, access).await?;
        let blocks = blocks.into_iter().map(|saved| Block {
            next_page: saved.next_page,
            durable_pages: saved.next_page,
            erase_count: saved.erase_count,
            failed: saved.failed,
            ..Block::default()
        });
        Ok(Self {
            state: Mutex::new(State {
                blocks: blocks.collect(),
                channel_free_ns: vec![0; usize::from(spec.geometry.channels)],
                powered: true,
                power_cycles: 0,
                counts: OperationCounts::default(),
                mutations: 0,
                cut_at: None,
                fail_program_at: Vec::new(),
                fail_erase_at: Vec::new(),
                rng: Rng::from_seed(spec.seed).split("emulated flash"),
            }),
            spec,
            access,
            storage,
        })
    }

    /// The shape.
    pub fn geometry(&self) -> Geometry {
        self.spec.geometry
    }

    pub(crate) fn is_read_only(&self) -> bool {
        self.access == Access::ReadOnly
    }

    /// The next page to be programmed in `block`.
    pub fn write_pointer(&self, block: BlockAddr) -> Option<u32> {
        self.state().blocks.get(self.spec.geometry.number(block) as usize).map(|block| block.next_page)
    }

    /// Erases that `block` has seen.
    pub fn erase_count(&self, block: BlockAddr) -> u32 {
        let number = self.spec.geometry.number(block) as usize;
        self.state().blocks.get(number).map_or(0, |block| block.erase_count)
    }

    /// What was done so far.
    pub fn counts(&self) -> OperationCounts {
        self.state().counts
    }

    /// Programs, erases and syncs so far: the points at which [`Emulated::cut_power_at`] can cut.
    pub fn mutations(&self) -> u64 {
        self.state().mutations
    }

    /// Cuts the power in the middle of the `n`-th program, erase or sync from now (1 is the next one).
    pub fn cut_power_at(&self, n: u64) {
        let mut state = self.state();
        state.cut_at = Some(state.mutations + n);
    }

    /// Cuts the power now.
    pub fn cut_power(&self) {
        self.state().lose_power();
    }

    /// Turns the power on again; what was durable is there.
    pub fn power_on(&self) {
        let mut state = self.state();
        state.powered = true;
        state.cut_at = None;
        state.channel_free_ns.fill(0);
    }

    /// False after a power cut.
    pub fn is_powered(&self) -> bool {
        self.state().powered
    }

    /// Makes the `n`-th program from now fail (1 is the next one).
    pub fn fail_program_at(&self, n: u64) {
        let mut state = self.state();
        let at = state.counts.programs + n;
        state.fail_program_at.push(at);
    }

    /// Makes the `n`-th erase from now fail (1 is the next one).
    pub fn fail_erase_at(&self, n: u64) {
        let mut state = self.state();
        let at = state.counts.erases + n;
        state.fail_erase_at.push(at);
    }

    /// Flips one stored bit; the media do not notice.
    pub async fn flip_bit(&self, block: BlockAddr, offset_bytes: u32, bit: u8) -> Result<(), FlashError> {
        let at = self.at(block, offset_bytes);
        let mut byte = [0];
        self.storage.read(at, &mut byte).await?;
        self.storage.write(at, &[byte[0] ^ (1 << (bit % 8))]).await
    }

    /// Makes a page uncorrectable.
    pub fn tear_page(&self, block: BlockAddr, page: u32) {
        let number = self.spec.geometry.number(block) as usize;
        self.state().blocks[number].torn.push(page);
    }

    pub(crate) async fn read(
        &self,
        block: BlockAddr,
        offset_bytes: u32,
        mut buf: IoBuf,
    ) -> (Result<(), FlashError>, IoBuf) {
        let result = self.read_into(block, offset_bytes, &mut buf).await;
        (result, buf)
    }

    async fn read_into(
        &self,
        block: BlockAddr,
        offset_bytes: u32,
        buf: &mut IoBuf,
    ) -> Result<(), FlashError> {
        let geometry = self.spec.geometry;
        let len = buf.len() as u32;
        check_request(geometry, Operation::Read, block, offset_bytes, buf.len() as u64, geometry.read_bytes)?;
        let first_page = offset_bytes / geometry.page_bytes;
        let end_page = (offset_bytes + len).div_ceil(geometry.page_bytes);
        let (wait_until_ns, cycle) = {
            let mut state = self.state();
            state.power(Operation::Read)?;
            state.counts.reads += 1;
            let found = &state.blocks[geometry.number(block) as usize];
            if found.unreadable || found.torn.iter().any(|page| (first_page..end_page).contains(page)) {
                return Err(FlashError::Uncorrectable { block, offset_bytes });
            }
            if end_page > found.next_page {
                let written_bytes = found.next_page * geometry.page_bytes;
                return Err(FlashError::ReadPastWritePointer { block, offset_bytes, written_bytes });
            }
            let pages = end_page - first_page;
            let busy_us = self.spec.read_us * f64::from(pages.div_ceil(self.spec.parallel_pages))
                + f64::from(len) / self.spec.bus_bytes_per_us;
            (state.occupy(&self.spec, block, busy_us), state.power_cycles)
        };
        self.wait(wait_until_ns).await;
        self.storage.read(self.at(block, offset_bytes), buf).await?;
        let mut state = self.state();
        state.still_powered(cycle, Operation::Read)?;
        if self.spec.bit_flip > 0.0 && len > 0 {
            for _ in first_page..end_page {
                if state.rng.chance(self.spec.bit_flip) {
                    let bit = state.rng.below(u64::from(len) * 8);
                    buf[(bit / 8) as usize] ^= 1 << (bit % 8);
                }
            }
        }
        Ok(())
    }

    pub(crate) async fn program(
        &self,
        block: BlockAddr,
        first_page: u32,
        data: Bytes,
        sync: WriteSync,
    ) -> Result<(), FlashError> {
        let geometry = self.spec.geometry;
        let operation = Operation::Program;
        if self.access == Access::ReadOnly {
            return Err(FlashError::ReadOnly { operation });
        }
        let offset_bytes = first_page.saturating_mul(geometry.page_bytes);
        check_request(geometry, operation, block, offset_bytes, data.len() as u64, geometry.page_bytes)?;
        let pages = (data.len() / geometry.page_bytes as usize) as u32;
        let number = geometry.number(block) as usize;
        let (wait_until_ns, cycle, kept, outcome) = {
            let mut state = self.state();
            state.power(operation)?;
            let found = &mut state.blocks[number];
            if first_page < found.next_page {
                return Err(FlashError::AlreadyProgrammed { block, page: first_page });
            }
            if first_page > found.next_page {
                let expected = found.next_page;
                return Err(FlashError::OutOfOrder { block, page: first_page, expected });
            }
            if found.failed || found.unreadable {
                return Err(FlashError::ProgramFailed { block, page: first_page });
            }
            found.next_page += pages;
            state.counts.programs += 1;
            state.mutations += 1;
            let busy_us = self.spec.program_us * f64::from(pages.div_ceil(self.spec.parallel_pages))
                + data.len() as f64 / self.spec.bus_bytes_per_us;
            let wait = state.occupy(&self.spec, block, busy_us);
            let (mut kept, mut outcome) = (pages, Ok(()));
            let count = state.counts.programs;
            if state.fail_program_at.contains(&count)
                || (self.spec.program_failure > 0.0 && state.rng.chance(self.spec.program_failure))
            {
                kept = state.rng.below(u64::from(pages)) as u32;
                state.blocks[number].failed = true;
                outcome = Err(FlashError::ProgramFailed { block, page: first_page });
            }
            if state.cut_at == Some(state.mutations) {
                // The pages before the cut are there, one is torn, the rest were never touched.
                kept = state.rng.below(u64::from(pages) + 1) as u32;
                outcome = Err(FlashError::Gone { operation });
            }
            if kept < pages {
                state.blocks[number].torn.extend(first_page + kept..first_page + pages);
            }
            (wait, state.power_cycles, kept, outcome)
        };
        let kept_bytes = (kept * geometry.page_bytes) as usize;
        self.storage.write(self.at(block, offset_bytes), &data[..kept_bytes]).await?;
        if matches!(outcome, Err(FlashError::Gone { .. })) {
            let mut state = self.state();
            if kept < pages {
                let found = &mut state.blocks[number];
                found.next_page = first_page + kept + 1;
                found.torn.retain(|&page| page <= first_page + kept);
            }
            state.blocks[number].durable_pages = state.blocks[number].next_page;
            state.lose_power();
            return outcome;
        }
        self.wait(wait_until_ns).await;
        let saved = {
            let mut state = self.state();
            state.still_powered(cycle, operation)?;
            let found = &mut state.blocks[number];
            if sync == WriteSync::Durable {
                found.durable_pages = found.durable_pages.max(first_page + pages);
            }
            found.saved()
        };
        self.storage.save(number, saved).await?;
        outcome
    }

    pub(crate) async fn erase(&self, block: BlockAddr) -> Result<(), FlashError> {
        let geometry = self.spec.geometry;
        let operation = Operation::Erase;
        if self.access == Access::ReadOnly {
            return Err(FlashError::ReadOnly { operation });
        }
        check_request(geometry, operation, block, 0, 0, geometry.page_bytes)?;
        let number = geometry.number(block) as usize;
        let (wait_until_ns, cycle, outcome) = {
            let mut state = self.state();
            state.power(operation)?;
            state.counts.erases += 1;
            state.mutations += 1;
            let (count, cut) = (state.counts.erases, state.cut_at == Some(state.mutations));
            let failed = state.fail_erase_at.contains(&count);
            let erase_count = state.blocks[number].erase_count + 1;
            state.blocks[number] =
                Block { erase_count, failed, unreadable: cut || failed, ..Block::default() };
            if cut {
                state.lose_power();
                return Err(FlashError::Gone { operation });
            }
            let wait = state.occupy(&self.spec, block, self.spec.erase_us);
            let outcome = if failed { Err(FlashError::EraseFailed { block }) } else { Ok(()) };
            (wait, state.power_cycles, outcome)
        };
        self.storage.discard(self.at(block, 0), geometry.block_bytes());
        self.wait(wait_until_ns).await;
        let saved = {
            let state = self.state();
            state.still_powered(cycle, operation)?;
            state.blocks[number].saved()
        };
        self.storage.save(number, saved).await?;
        outcome
    }

    pub(crate) async fn sync(&self) -> Result<(), FlashError> {
        let mut state = self.state();
        state.power(Operation::Sync)?;
        state.counts.syncs += 1;
        state.mutations += 1;
        if state.cut_at == Some(state.mutations) {
            state.lose_power();
            return Err(FlashError::Gone { operation: Operation::Sync });
        }
        for block in &mut state.blocks {
            block.durable_pages = block.next_page;
        }
        Ok(())
    }

    fn at(&self, block: BlockAddr, offset_bytes: u32) -> u64 {
        let geometry = self.spec.geometry;
        u64::from(geometry.number(block)) * u64::from(geometry.block_bytes()) + u64::from(offset_bytes)
    }

    async fn wait(&self, until_ns: u64) {
        if until_ns > 0 {
            let now_ns = pumice_reactor::now().0;
            if until_ns > now_ns {
                pumice_reactor::sleep(Duration::from_nanos(until_ns - now_ns)).await;
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Block {
    fn saved(&self) -> storage::SavedBlock {
        storage::SavedBlock {
            next_page: self.next_page,
            erase_count: self.erase_count,
            failed: self.failed || self.unreadable,
        }
    }
}

impl State {
    fn power(&self, operation: Operation) -> Result<(), FlashError> {
        if self.powered { Ok(()) } else { Err(FlashError::Gone { operation }) }
    }

    fn still_powered(&self, cycle: u64, operation: Operation) -> Result<(), FlashError> {
        if self.powered && self.power_cycles == cycle { Ok(()) } else { Err(FlashError::Gone { operation }) }
    }

    /// Books the channel for `busy_us` and answers when that ends (0: at once).
    fn occupy(&mut self, spec: &EmulatedSpec, block: BlockAddr, busy_us: f64) -> u64 {
        if !spec.timing {
            return 0;
        }
        let free_ns = &mut self.channel_free_ns[usize::from(block.channel)];
        *free_ns = (*free_ns).max(pumice_reactor::now().0) + (busy_us * 1000.0) as u64;
        *free_ns
    }

    /// Each block keeps its durable pages and a random part of what followed, the page after which is torn.
    fn lose_power(&mut self) {
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
