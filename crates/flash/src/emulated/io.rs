//! The operations of an emulated device: check, change the state, move the bytes, wait for the model's end.

use std::ops::Range;

use bytes::Bytes;
use pumice_reactor::{IoBuf, WriteSync};

use super::Emulated;
use super::state::Block;
use super::timing::Kind;
use super::wear::flipped_bits;
use crate::ecc::weak_limit;
use crate::error::Operation;
use crate::file::check_request;
use crate::{Access, BlockAddr, FlashError};

/// Share of a torn page's bits that were not programmed when the power went: 1 of this many.
const TORN_BITS_ONE_IN: u64 = 64;

/// What the bits of a read will look like.
struct Flips {
    /// Positions in the request, out-of-band bytes of a page after its data, pages one after the other.
    bits: Vec<u64>,
}

impl Emulated {
    pub(crate) async fn read(
        &self,
        block: BlockAddr,
        offset_bytes: u32,
        mut buf: IoBuf,
    ) -> (Result<(), FlashError>, IoBuf) {
        let unit = self.spec.geometry.read_bytes;
        let result = self.read_into(block, offset_bytes, unit, &mut buf, None).await;
        (result, buf)
    }

    pub(crate) async fn read_with_oob(
        &self,
        block: BlockAddr,
        first_page: u32,
        mut buf: IoBuf,
        mut oob: IoBuf,
    ) -> (Result<(), FlashError>, IoBuf, IoBuf) {
        let page_bytes = self.spec.geometry.page_bytes;
        let offset_bytes = first_page.saturating_mul(page_bytes);
        let result = match self.check_oob(Operation::Read, block, buf.len(), oob.len()) {
            Ok(()) => self.read_into(block, offset_bytes, page_bytes, &mut buf, Some(&mut oob)).await,
            Err(error) => Err(error),
        };
        (result, buf, oob)
    }

    async fn read_into(
        &self,
        block: BlockAddr,
        offset_bytes: u32,
        unit_bytes: u32,
        buf: &mut IoBuf,
        oob: Option<&mut IoBuf>,
    ) -> Result<(), FlashError> {
        let geometry = self.spec.geometry;
        let number = geometry.number(block);
        let len = buf.len() as u32;
        check_request(geometry, Operation::Read, block, offset_bytes, buf.len() as u64, unit_bytes)?;
        let pages = offset_bytes / geometry.page_bytes..(offset_bytes + len).div_ceil(geometry.page_bytes);
        let now_ms = pumice_reactor::wall_ms();
        let (booked, cycle, flips, outcome) = {
            let mut state = self.state();
            state.power(Operation::Read)?;
            let found = &state.blocks[number as usize];
            if pages.end > found.next_page && !found.unreadable && !found.factory_bad {
                let written_bytes = found.next_page * geometry.page_bytes;
                return Err(FlashError::ReadPastWritePointer { block, offset_bytes, written_bytes });
            }
            let torn = found.torn.iter().any(|page| pages.contains(page));
            let lost = found.unreadable || found.factory_bad || (torn && !self.spec.is_raw);
            state.counts.reads += 1;
            let failed = state.fault(Operation::Read, block)?;
            let booked =
                self.book(block, Kind::Read { from_bytes: offset_bytes, to_bytes: offset_bytes + len });
            let aged_ms = now_ms + state.aged_ms;
            let found = &mut state.blocks[number as usize];
            found.reads += 1;
            let flips = self.flips(found, number, pages.clone(), aged_ms);
            let uncorrectable =
                if self.spec.is_raw { false } else { !self.correct(&mut state, number, &flips) };
            let outcome = if lost || failed || uncorrectable {
                Err(FlashError::Uncorrectable { block, offset_bytes })
            } else {
                Ok(())
            };
            (booked, state.power_cycles, flips, outcome)
        };
        self.wait(booked).await;
        self.storage.read(self.at(block, offset_bytes), buf).await?;
        let mut oob = oob;
        if let Some(oob) = oob.as_deref_mut() {
            let of_page = u64::from(geometry.oob_bytes);
            let at = u64::from(pages.start) * of_page;
            let all = u64::from(geometry.pages_per_block) * of_page;
            self.storage.read_oob(number, all, at, oob).await?;
        }
        let mut state = self.state();
        state.still_powered(cycle, Operation::Read)?;
        outcome?;
        if self.spec.is_raw {
            let start = u64::from(offset_bytes % geometry.page_bytes) * 8;
            self.flip(&flips, start, buf, oob);
        }
        if self.spec.bit_flip > 0.0 && len > 0 {
            for _ in pages {
                if state.rng.chance(self.spec.bit_flip) {
                    let bit = state.rng.below(u64::from(len) * 8);
                    buf[(bit / 8) as usize] ^= 1 << (bit % 8);
                }
            }
        }
        Ok(())
    }

    /// The raw bit errors of some pages of a block.
    fn flips(&self, block: &Block, number: u32, pages: Range<u32>, now_ms: u64) -> Flips {
        let geometry = self.spec.geometry;
        let page_bits = u64::from(geometry.page_bytes + geometry.oob_bytes) * 8;
        let mut bits = Vec::new();
        let rate = if self.spec.wears { self.spec.wear.bit_error_rate(block.used(now_ms)) } else { 0.0 };
        for page in pages.clone() {
            let base = u64::from(page - pages.start) * page_bits;
            let torn = self.spec.is_raw && block.torn.contains(&page);
            let rate = if torn { rate.max(1.0 / TORN_BITS_ONE_IN as f64) } else { rate };
            if rate > 0.0 {
                let seed = self.spec.seed;
                let flipped = flipped_bits(seed, number, block.erase_count, page, page_bits, rate);
                bits.extend(flipped.into_iter().map(|bit| base + bit));
            }
        }
        Flips { bits }
    }

    /// Counts the errors per codeword; false when one has more than the media correct. The parity's bits count to the
    /// codeword whose share of the out-of-band bytes they are in.
    fn correct(&self, state: &mut super::state::State, number: u32, flips: &Flips) -> bool {
        if flips.bits.is_empty() {
            return true;
        }
        let geometry = self.spec.geometry;
        let ecc = self.spec.ecc;
        let page_bits = u64::from(geometry.page_bytes + geometry.oob_bytes) * 8;
        let words = u64::from(geometry.page_bytes.div_ceil(ecc.codeword_bytes));
        let oob_bits = (u64::from(geometry.oob_bytes) * 8).div_ceil(words).max(1);
        let mut codewords: Vec<u64> = flips
            .bits
            .iter()
            .map(|bit| {
                let (page, bit) = (bit / page_bits, bit % page_bits);
                let data_bits = u64::from(geometry.page_bytes) * 8;
                let word = match bit.checked_sub(data_bits) {
                    None => bit / (u64::from(ecc.codeword_bytes) * 8),
                    Some(beyond) => beyond / oob_bits,
                };
                page * words + word
            })
            .collect();
        codewords.sort_unstable();
        let (mut most, mut uncorrectable, mut corrected) = (0, 0, 0);
        for word in codewords.chunk_by(|a, b| a == b) {
            let errors = word.len() as u32;
            if errors > ecc.correctable_bits {
                uncorrectable += 1;
            } else {
                corrected += u64::from(errors);
                most = errors.max(most);
            }
        }
        state.counts.corrected_bits += corrected;
        state.counts.uncorrectable_codewords += uncorrectable;
        let block = &mut state.blocks[number as usize];
        let (limit, before) = (weak_limit(ecc.correctable_bits), block.corrected_bits_max);
        block.corrected_bits_max = before.max(most);
        state.weak_news |= before <= limit && most > limit;
        uncorrectable == 0
    }

    /// Flips bits in what was read from bit `start` of its first page on.
    fn flip(&self, flips: &Flips, start: u64, buf: &mut IoBuf, mut oob: Option<&mut IoBuf>) {
        let geometry = self.spec.geometry;
        let (data_bits, oob_bits) = (u64::from(geometry.page_bytes) * 8, u64::from(geometry.oob_bytes) * 8);
        for bit in &flips.bits {
            let (page, bit) = (bit / (data_bits + oob_bits), bit % (data_bits + oob_bits));
            let (bytes, at) = match bit.checked_sub(data_bits) {
                None => (Some(&mut *buf), (page * data_bits + bit).checked_sub(start)),
                Some(beyond) => (oob.as_deref_mut(), Some(page * oob_bits + beyond)),
            };
            // A read of part of a page does not see the flips beside it.
            if let (Some(bytes), Some(at)) = (bytes, at)
                && let Some(byte) = bytes.get_mut((at / 8) as usize)
            {
                *byte ^= 1 << (at % 8);
            }
        }
    }

    fn check_oob(
        &self,
        operation: Operation,
        block: BlockAddr,
        data_len: usize,
        oob_len: usize,
    ) -> Result<(), FlashError> {
        let geometry = self.spec.geometry;
        let pages = (data_len / geometry.page_bytes as usize) as u64;
        let (len_bytes, expected_bytes) = (oob_len as u64, pages * u64::from(geometry.oob_bytes));
        if len_bytes == expected_bytes && geometry.oob_bytes > 0 {
            Ok(())
        } else {
            Err(FlashError::OutOfBand { operation, block, len_bytes, expected_bytes })
        }
    }

    /// Programs pages, with their out-of-band bytes if there are any.
    pub(crate) async fn program(
        &self,
        block: BlockAddr,
        first_page: u32,
        data: Bytes,
        oob: Bytes,
        sync: WriteSync,
    ) -> Result<(), FlashError> {
        let geometry = self.spec.geometry;
        let operation = Operation::Program;
        if self.access == Access::ReadOnly {
            return Err(FlashError::ReadOnly { operation });
        }
        let offset_bytes = first_page.saturating_mul(geometry.page_bytes);
        check_request(geometry, operation, block, offset_bytes, data.len() as u64, geometry.page_bytes)?;
        if !oob.is_empty() {
            self.check_oob(operation, block, data.len(), oob.len())?;
        }
        let pages = (data.len() / geometry.page_bytes as usize) as u32;
        let number = geometry.number(block) as usize;
        let now_ms = pumice_reactor::wall_ms();
        let (booked, cycle, kept, outcome) = {
            let mut state = self.state();
            state.power(operation)?;
            let found = &state.blocks[number];
            if first_page < found.next_page {
                return Err(FlashError::AlreadyProgrammed { block, page: first_page });
            }
            if first_page > found.next_page {
                let expected = found.next_page;
                return Err(FlashError::OutOfOrder { block, page: first_page, expected });
            }
            if found.failed || found.unreadable || found.factory_bad {
                return Err(FlashError::ProgramFailed { block, page: first_page });
            }
            let erases = found.erase_count;
            state.counts.programs += 1;
            state.mutations += 1;
            let mut failed = state.fault(operation, block)?;
            let aged_ms = now_ms + state.aged_ms;
            let found = &mut state.blocks[number];
            found.next_page += pages;
            if first_page == 0 {
                found.programmed_ms = aged_ms;
            }
            let booked = self.book(block, Kind::Program { first_page, end_page: first_page + pages });
            let (mut kept, mut outcome) = (pages, Ok(()));
            let worn = if self.spec.wears { self.spec.wear.program_failure(erases) } else { 0.0 };
            for chance in [self.spec.program_failure, worn] {
                failed |= chance > 0.0 && state.rng.chance(chance);
            }
            if failed {
                kept = state.rng.below(u64::from(pages).max(1)) as u32;
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
            (booked, state.power_cycles, kept, outcome)
        };
        // A torn page holds part of its data; what tears it is drawn when it is read.
        let stored = if outcome.is_ok() { pages } else { (kept + 1).min(pages) };
        let stored_bytes = (stored * geometry.page_bytes) as usize;
        self.storage.write(self.at(block, offset_bytes), &data[..stored_bytes]).await?;
        if !oob.is_empty() {
            let of_page = u64::from(geometry.oob_bytes);
            let (all, at) = (u64::from(geometry.pages_per_block) * of_page, u64::from(first_page) * of_page);
            let stored_oob = (u64::from(stored) * of_page) as usize;
            self.storage.write_oob(number as u32, all, at, &oob[..stored_oob]).await?;
        }
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
        self.wait(booked).await;
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
        let (booked, cycle, outcome) = {
            let mut state = self.state();
            state.power(operation)?;
            if state.blocks[number].factory_bad {
                return Err(FlashError::EraseFailed { block });
            }
            state.counts.erases += 1;
            state.mutations += 1;
            let mut failed = state.fault(operation, block)?;
            let cut = state.cut_at == Some(state.mutations);
            let erase_count = state.blocks[number].erase_count + 1;
            if self.spec.wears {
                failed |= state.rng.chance(self.spec.wear.erase_failure(erase_count));
            }
            state.blocks[number] =
                Block { erase_count, failed, unreadable: cut || failed, ..Block::default() };
            if cut {
                state.lose_power();
                return Err(FlashError::Gone { operation });
            }
            let booked = self.book(block, Kind::Erase);
            let outcome = if failed { Err(FlashError::EraseFailed { block }) } else { Ok(()) };
            (booked, state.power_cycles, outcome)
        };
        self.storage.discard(number as u32);
        self.wait(booked).await;
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
}
