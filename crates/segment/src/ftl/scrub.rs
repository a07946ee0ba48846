//! The patrol scrub: reads every segment in turn, so that what nobody reads does not decay unseen.
//!
//! 1. Block by block in the order of their numbers, each in chunks that a read waits for at most once. A chunk waits for its
//!    time (the pace) and for its turn on the channel, which comes after reads, programs and erases ([`Class::Patrol`]).
//! 2. A segment with a page near what its code corrects, or whose block does not say at both its ends what it holds (a
//!    restart could not read its tag, a read would not find its checksums), is moved to another block. A page that is lost,
//!    or not what was written, is counted, and stays: a copy elsewhere has to heal it.
//! 3. Checkpoints keep how far it came: on close exactly, after a crash to a sixteenth of the drive or 256 blocks.

use std::time::Duration;

use pumice_flash::{BlockAddr, FlashError};
use pumice_reactor::{IoBuf, now, sleep_until};

use super::sums::Life;
use super::verify::ReadFailed;
use super::{Class, RawError, RawFlash};

/// Checkpoints that a pass writes, and blocks between two at least: their own blocks wear, too.
const SAVES: u32 = 16;
const SAVE_BLOCKS_MIN: u32 = 256;

/// How the patrol goes.
#[derive(Clone, Copy, Debug)]
pub struct ScrubOptions {
    /// Bytes it reads in a second at most.
    pub bytes_per_second: u64,
    /// Moves weak segments; false only names them ([`RawFlash::weak`]).
    pub refresh: bool,
}

impl Default for ScrubOptions {
    /// 16 MiB a second: a TiB in 18 hours.
    fn default() -> Self {
        Self { bytes_per_second: 16 << 20, refresh: true }
    }
}

/// How far the patrol came, and what it found since the drive was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScrubStats {
    /// The block, by number, that it reads next.
    pub next_block: u32,
    /// Times that it went through the whole drive, also before it was opened.
    pub passes: u32,
    /// Segments read.
    pub segments: u64,
    /// Bytes read.
    pub bytes: u64,
    /// Segments found weak.
    pub weak: u64,
    /// Segments moved.
    pub refreshed: u64,
    /// Segments with pages that are lost, or not what was written.
    pub lost: u64,
}

impl RawFlash {
    /// How the patrol is getting on.
    pub fn scrub_stats(&self) -> ScrubStats {
        *self.0.scrub_stats()
    }

    /// Goes on from where the patrol was to the end of the drive. Dropped or closed meanwhile, it goes on there next time.
    ///
    /// # Errors
    /// [`RawError::Closed`]; [`RawError::Flash`] when the device fails in a way that is no page's.
    pub async fn scrub_pass(&self, options: ScrubOptions) -> Result<(), RawError> {
        let blocks = self.geometry().block_count();
        let mut pace = Pace::new(options.bytes_per_second);
        loop {
            if self.0.is_closing() {
                return Err(RawError::Closed);
            }
            let number = self.scrub_stats().next_block;
            if number >= blocks {
                let mut stats = self.0.scrub_stats();
                (stats.next_block, stats.passes) = (0, stats.passes.saturating_add(1));
                return Ok(());
            }
            self.scrub_block(number, options.refresh, &mut pace).await?;
            self.0.scrub_stats().next_block = number + 1;
            if (number + 1).is_multiple_of(blocks.div_ceil(SAVES).max(SAVE_BLOCKS_MIN)) {
                self.0.checkpoint_in_background();
            }
        }
    }

    /// The segment that a block holds.
    fn live_id(&self, number: u32) -> Option<u128> {
        self.0.map().borne(number).filter(|(_, is_live)| *is_live).map(|(id, _)| id)
    }

    /// What a block's pages are verified against, if it holds a segment.
    fn live(&self, number: u32) -> Option<Life> {
        let life = self.0.life_of(self.live_id(number)?)?;
        (life.number == number).then_some(life)
    }

    async fn scrub_block(&self, number: u32, refresh: bool, pace: &mut Pace) -> Result<(), RawError> {
        let Some(life) = self.live(number) else { return Ok(()) };
        let Life { id, block, .. } = life;
        let chunk_bytes = self.chunk_bytes();
        let (mut is_weak, mut is_lost, mut at) = (false, false, 0);
        while at < self.segment_bytes() {
            let len = chunk_bytes.min(self.segment_bytes() - at);
            pace.wait(len).await;
            if self.0.is_closing() {
                return Err(RawError::Closed);
            }
            let grant = self.0.channel(block.channel).scheduler.turn(Class::Patrol).await;
            let (result, _) = self.0.media.read_segment(&life, at, IoBuf::for_read(len as usize)).await;
            drop(grant);
            if self.live(number) != Some(life) {
                return Ok(());
            }
            match result {
                Ok(weak) => is_weak |= weak,
                Err(
                    failed @ (ReadFailed::Flash(FlashError::Uncorrectable { .. })
                    | ReadFailed::Unverified { .. }),
                ) => {
                    drop(self.0.failed(failed, &life));
                    is_lost = true;
                }
                Err(ReadFailed::Flash(error)) => return Err(error.into()),
            }
            self.0.scrub_stats().bytes += u64::from(len);
            at += len;
        }
        let grant = self.0.channel(block.channel).scheduler.turn(Class::Patrol).await;
        let agree = self.0.media.ends_agree(&life).await?;
        drop(grant);
        if self.live(number) != Some(life) {
            return Ok(());
        }
        if self.0.is_closing() {
            // The checkpoint that says how far the patrol came may be written: this block is read again.
            return Err(RawError::Closed);
        }
        is_weak |= !agree;
        is_weak |= self.is_near_limit(block);
        {
            let mut stats = self.0.scrub_stats();
            stats.segments += 1;
            stats.lost += u64::from(is_lost);
            stats.weak += u64::from(is_weak);
        }
        if is_weak {
            self.0.blocks(block.channel).set_weak(block.block);
        }
        if is_weak && !is_lost && refresh {
            match self.move_segment(id, Class::Patrol).await {
                Ok(()) => self.0.scrub_stats().refreshed += 1,
                // It stays weak where it is, and is met again on the next pass.
                Err(
                    RawError::Full { .. }
                    | RawError::NotFound { .. }
                    | RawError::CheckpointsWorn { .. }
                    | RawError::Unverified { .. }
                    | RawError::Flash(FlashError::Uncorrectable { .. }),
                ) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Whether media that correct themselves say that a page of the block needs nearly all they can.
    fn is_near_limit(&self, block: BlockAddr) -> bool {
        let limit = pumice_flash::weak_limit;
        self.device().corrected_bits_max(block).is_some_and(|(most, of)| most > limit(of))
    }
}

/// When the next bytes may be read.
struct Pace {
    bytes_per_second: u64,
    next: pumice_reactor::Nanos,
}

impl Pace {
    fn new(bytes_per_second: u64) -> Self {
        Self { bytes_per_second: bytes_per_second.max(1), next: now() }
    }

    async fn wait(&mut self, bytes: u32) {
        sleep_until(self.next).await;
        // From the later of both: what was missed while others had the channel is not made up for at their cost.
        let took = Duration::from_nanos(u64::from(bytes) * 1_000_000_000 / self.bytes_per_second);
        self.next = self.next.max(now()) + took;
    }
}
