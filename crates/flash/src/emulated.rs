//! Emulated NAND: the contract enforced page by page, with the timing, the wear and the faults of real chips.
//!
//! 1. State (write pointers, erase counts, which pages are torn) is in memory; data is in memory, in a sparse
//!    file whose tail holds the state so that it can be opened again, or dropped (`data=drop`, for timing
//!    experiments on media that no memory holds).
//! 2. How long an operation takes is a calendar of dies, buses and the host's link (`timing.rs`); requests wait on the
//!    reactor's clock, so that the same model runs in real and in virtual time. CPU is not modelled.
//! 3. With `wear=on`, bits flip, programs and erases fail and blocks are bad from the start (`wear.rs`). Media that
//!    correct themselves (the default) count errors per codeword and report what exceeds their ECC; raw media
//!    (`ecc=off`) hand out what lies in the cells and leave correction to software.
//! 4. A power cut ([`Emulated::cut_power_at`]) interrupts the n-th program, erase or sync: a program leaves a
//!    prefix of its pages and one torn page, an erase leaves the block unreadable, programs that were not made
//!    durable may vanish from a block's end. Everything is answered [`FlashError::Gone`] until
//!    [`Emulated::power_on`]. A torn page is uncorrectable; raw media hand it out partly flipped.

mod io;
mod state;
mod storage;
mod timing;
pub mod wear;

use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use pumice_base::rng::Rng;
use pumice_base::sync::lock;
use pumice_reactor::Nanos;
use state::{Block, State};
pub use state::{Fault, OperationCounts};
use storage::Storage;
use timing::{Calendar, Kind, Ticket};

use crate::error::Operation;
use crate::{Access, BlockAddr, EmulatedSpec, FlashError, Geometry};

/// See the module's text.
pub struct Emulated {
    spec: EmulatedSpec,
    access: Access,
    state: Mutex<State>,
    /// Locked after `state`, never before.
    calendar: Mutex<Calendar>,
    storage: Storage,
}

/// A request on the calendar, given back when whoever waits for it goes away.
struct Booked<'a> {
    device: &'a Emulated,
    ticket: Ticket,
}

impl Drop for Booked<'_> {
    fn drop(&mut self) {
        self.device.calendar().release(self.ticket);
    }
}

impl Emulated {
    /// Makes the device, erased; with a `path` that exists, as it was left.
    ///
    /// # Errors
    /// [`FlashError::Geometry`], or the file's errors.
    pub async fn open(spec: EmulatedSpec, access: Access) -> Result<Self, FlashError> {
        spec.geometry.check()?;
        let (storage, blocks) = Storage::open(&spec, access).await?;
        let blocks = blocks.into_iter().enumerate().map(|(number, saved)| Block {
            next_page: saved.next_page,
            durable_pages: saved.next_page,
            erase_count: saved.erase_count,
            failed: saved.failed,
            factory_bad: spec.wears && spec.wear.is_factory_bad(spec.seed, number as u32),
            ..Block::default()
        });
        Ok(Self {
            state: Mutex::new(State {
                blocks: blocks.collect(),
                powered: true,
                power_cycles: 0,
                counts: OperationCounts::default(),
                mutations: 0,
                cut_at: None,
                faults: Vec::new(),
                chances: Vec::new(),
                aged_ms: 0,
                weak_news: false,
                rng: Rng::from_seed(spec.seed).split("emulated flash"),
            }),
            calendar: Mutex::new(Calendar::new(spec.geometry, &spec.timing)),
            spec,
            access,
            storage,
        })
    }

    /// The shape.
    pub fn geometry(&self) -> Geometry {
        self.spec.geometry
    }

    /// What it was made from.
    pub fn spec(&self) -> &EmulatedSpec {
        &self.spec
    }

    pub(crate) fn is_read_only(&self) -> bool {
        self.access == Access::ReadOnly
    }

    fn block<R: Default>(&self, block: BlockAddr, f: impl FnOnce(&mut Block) -> R) -> R {
        let number = self.spec.geometry.number(block) as usize;
        self.state().blocks.get_mut(number).map(f).unwrap_or_default()
    }

    /// The next page to be programmed in `block`.
    pub fn write_pointer(&self, block: BlockAddr) -> Option<u32> {
        self.block(block, |block| Some(block.next_page))
    }

    /// Erases that `block` has seen.
    pub fn erase_count(&self, block: BlockAddr) -> u32 {
        self.block(block, |block| block.erase_count)
    }

    /// Whether `block` was marked bad by the factory.
    pub fn is_factory_bad(&self, block: BlockAddr) -> bool {
        self.block(block, |block| block.factory_bad)
    }

    /// Most bits that had to be corrected in one codeword of `block` since its erase, of `ecc.correctable_bits`: what
    /// tells that its data should move before it is lost.
    pub fn corrected_bits_max(&self, block: BlockAddr) -> u32 {
        self.block(block, |block| block.corrected_bits_max)
    }

    /// Whether media that correct themselves had to correct nearly all that they can somewhere since this was last asked.
    pub(crate) fn take_weak_news(&self) -> bool {
        // Nothing flips on media that do not wear: nobody should wait for the lock then.
        self.spec.wears && std::mem::take(&mut self.state().weak_news)
    }

    /// What was done so far.
    pub fn counts(&self) -> OperationCounts {
        self.state().counts
    }

    /// Time that dies and buses have been busy so far, in ns, summed over all of them: with the time that passed, how
    /// well the device was used.
    pub fn busy_ns(&self) -> (u64, u64) {
        self.calendar().busy_ns()
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
        self.calendar().clear();
    }

    /// Turns the power on again; what was durable is there.
    pub fn power_on(&self) {
        let mut state = self.state();
        state.powered = true;
        state.cut_at = None;
        drop(state);
        self.calendar().clear();
    }

    /// False after a power cut.
    pub fn is_powered(&self) -> bool {
        self.state().powered
    }

    /// Plans `fault` for the `n`-th read, program or erase from now (1 is the next one).
    pub fn fail_at(&self, operation: Operation, n: u64, fault: Fault) {
        let mut state = self.state();
        let at = state.count(operation) + n;
        state.faults.push((operation, at, fault));
    }

    /// Makes each read, program or erase from now on fail with this chance; 0 ends it.
    pub fn fail_by_chance(&self, operation: Operation, chance: f64) {
        let mut state = self.state();
        state.chances.retain(|(kind, _)| *kind != operation);
        state.chances.push((operation, chance));
    }

    /// Makes the `n`-th program from now fail (1 is the next one).
    pub fn fail_program_at(&self, n: u64) {
        self.fail_at(Operation::Program, n, Fault::Failed);
    }

    /// Makes the `n`-th erase from now fail (1 is the next one).
    pub fn fail_erase_at(&self, n: u64) {
        self.fail_at(Operation::Erase, n, Fault::Failed);
    }

    /// Lets all data grow older at once.
    pub fn age(&self, by: Duration) {
        self.state().aged_ms += u64::try_from(by.as_millis()).unwrap_or(u64::MAX);
    }

    /// Sets a block's erase count, as if it had been used so often: what years of use would do, for tests.
    pub fn wear_out(&self, block: BlockAddr, erases: u32) {
        self.block(block, |block| block.erase_count = erases);
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
        self.block(block, |block| block.torn.push(page));
    }

    fn at(&self, block: BlockAddr, offset_bytes: u32) -> u64 {
        let geometry = self.spec.geometry;
        u64::from(geometry.number(block)) * u64::from(geometry.block_bytes()) + u64::from(offset_bytes)
    }

    /// Puts a request on the calendar; to be called in the order in which requests arrive.
    fn book(&self, block: BlockAddr, kind: Kind) -> Option<Booked<'_>> {
        if !self.spec.is_timed {
            return None;
        }
        let ticket = self.calendar().submit(block, kind, pumice_reactor::now().0);
        Some(Booked { device: self, ticket })
    }

    /// Waits until what was booked has ended.
    async fn wait(&self, booked: Option<Booked<'_>>) {
        let Some(booked) = booked else { return };
        loop {
            let until_ns = {
                let mut calendar = self.calendar();
                let now_ns = pumice_reactor::now().0;
                calendar.advance(now_ns);
                match calendar.end_ns(booked.ticket) {
                    Some(end_ns) if end_ns <= now_ns => return,
                    _ => calendar.no_sooner_than(booked.ticket),
                }
            };
            pumice_reactor::sleep_until(Nanos(until_ns)).await;
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    fn calendar(&self) -> MutexGuard<'_, Calendar> {
        lock(&self.calendar)
    }
}
