//! A zoned block device as flash: a block is a zone, an erase is a zone reset.
//!
//! 1. Opening reports all zones: their write pointers are the blocks', so that a crash leaves nothing to guess
//!    (`layout.rs`). Read-only and offline zones are bad blocks.
//! 2. A zone has one program on its way, in pieces that the drive takes whole, one after the other: before Linux 6.10
//!    writes to a zone keep their order under some schedulers only, and none is needed this way.
//! 3. The drive's limits of open and active zones are kept by closing and finishing (`limits.rs`). Only a block whose
//!    owner called [`Device::finish`](crate::Device::finish) is finished; where there is none, the program is refused
//!    with [`FlashError::TooManyActive`].
//! 4. After an error the zone is reported anew, and that decides what became of it. Only who has the zone's turn learns from it how
//!    far the zone is written: to others a program on its way would look as if it had not been, or been already.
//!
//! Rejected: zone append, which would let programs of one zone overlap but says only afterwards where the data went,
//! while records bear their address in their checksum.

mod layout;
mod limits;

use std::io;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use layout::{Block, Layout, Place};
use limits::{Limits, Step};
use pumice_base::sync::lock;
use pumice_reactor::sync::{Notify, Semaphore};
use pumice_reactor::zones::{Zone, ZoneAction, ZoneCondition, ZonedInfo};
use pumice_reactor::{File, IoBuf, Requests, WriteSync, timeout};

use crate::error::Operation;
use crate::file::{check_program, check_request};
use crate::{Access, BlockAddr, FlashError, Geometry};

/// Zones asked for at once when the drive is opened.
const REPORT_ZONES: u32 = 1024;
/// Programs and erases of blocks whose numbers agree modulo this take turns.
const TURNS: u32 = 64;
/// Largest piece of a program.
const PIECE_BYTES_MAX: u32 = 1 << 20;
/// Longest wait for a place before another look.
const PLACE_WAIT: Duration = Duration::from_millis(20);
/// Linux's answers to a write beyond the drive's limits (`blk_errors` in block/blk-core.c).
const EOVERFLOW: i32 = 75;
const ETOOMANYREFS: i32 = 109;

/// How a zoned drive is cut, and its limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZoneShape {
    /// From the start of one zone to the next.
    pub zone_bytes: u64,
    /// What can be written of a zone.
    pub capacity_bytes: u64,
    /// Zones that are blocks.
    pub blocks: u32,
    /// Of these, read-only or offline.
    pub bad: u32,
    /// Zones that are not used: conventional or odd ones.
    pub left_out: u32,
    /// Zones that may be open at once; 0: any number.
    pub open_max: u32,
    /// Zones that may be partly written at once; 0: any number.
    pub active_max: u32,
    /// Blocks that are open now.
    pub open: u32,
    /// Blocks that are partly written now, open or closed.
    pub active: u32,
}

/// See the module's text.
pub struct ZonedDevice {
    drive: Arc<Drive>,
    geometry: Geometry,
}

/// What all shapes of a drive share.
struct Drive {
    file: File,
    name: Arc<str>,
    info: ZonedInfo,
    access: Access,
    /// As the zones are cut.
    geometry: Geometry,
    raw_bytes: u64,
    zone_bytes: u64,
    capacity_bytes: u64,
    left_out: u32,
    piece_bytes: u32,
    blocks: Mutex<Vec<Block>>,
    /// A leaf lock, as `blocks` is; neither is held together with the other.
    limits: Mutex<Limits>,
    /// A place may have become free.
    left: Notify,
    turns: Vec<Semaphore>,
}

/// A zone that a program or a command holds; given up unharmed, or as failed when its owner goes away in between.
struct Held<'a> {
    drive: &'a Drive,
    zone: u32,
    /// Some of a program may have reached the drive.
    is_begun: bool,
    /// How it is left.
    left: Left,
}

/// What becomes of a zone's place.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Left {
    /// As it was.
    Kept,
    /// No longer open.
    Closed,
    /// Given up.
    Over,
}

impl<'a> Held<'a> {
    fn new(drive: &'a Drive, zone: u32) -> Self {
        Self { drive, zone, is_begun: false, left: Left::Kept }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if self.is_begun {
            self.drive.block(self.zone, |block| block.failed = true);
        }
        match self.left {
            Left::Closed => self.drive.limits().closed(self.zone),
            left => self.drive.limits().leave(self.zone, left == Left::Over),
        }
        self.drive.left.notify_all();
    }
}

impl ZonedDevice {
    pub(crate) async fn over(
        file: File,
        name: String,
        info: ZonedInfo,
        access: Access,
    ) -> Result<Self, FlashError> {
        let failed = |error| FlashError::from_io(Operation::Open, None, error);
        let end = file.len().await.map_err(failed)?;
        let mut zones: Vec<Zone> = Vec::new();
        while let Some(from) =
            zones.last().map_or(Some(0), |last| (last.bytes > 0).then_some(last.start + last.bytes))
            && from < end
        {
            let more = file.report_zones(from, REPORT_ZONES).await.map_err(failed)?;
            if more.first().is_none_or(|first| first.start != from) {
                return Err(FlashError::Geometry(format!("{name}: no zone begins at byte {from}")));
            }
            zones.extend(more);
        }
        let Layout { geometry, blocks, active, raw_bytes, zone_bytes, capacity_bytes, left_out } =
            layout::lay_out(&zones, info, file.alignment())?;
        let mut limits = Limits::new(info.open_max, info.active_max);
        for (zone, is_open) in active {
            limits.found(zone, is_open);
            let block = blocks[zone as usize];
            if block.failed || block.next >= geometry.pages_per_block {
                limits.done_with(zone);
            }
        }
        let page_bytes = geometry.page_bytes;
        let piece_bytes = info.write_bytes_max.min(PIECE_BYTES_MAX) / page_bytes * page_bytes;
        let drive = Drive {
            file,
            name: name.into(),
            info,
            access,
            geometry,
            raw_bytes,
            zone_bytes,
            capacity_bytes,
            left_out,
            piece_bytes: piece_bytes.max(page_bytes),
            blocks: Mutex::new(blocks),
            limits: Mutex::new(limits),
            left: Notify::new(),
            turns: (0..TURNS).map(|_| Semaphore::new(1)).collect(),
        };
        Ok(Self { drive: Arc::new(drive), geometry })
    }

    /// Zones are what they are; they may be counted over several channels, and the last ones left out.
    pub(crate) fn reshaped(&self, geometry: Geometry) -> Result<Self, FlashError> {
        let zones = self.drive.geometry;
        let same = geometry.pages_per_block == zones.pages_per_block
            && geometry.page_bytes == zones.page_bytes
            && geometry.read_bytes.is_multiple_of(zones.read_bytes)
            && geometry.oob_bytes == 0
            && geometry.block_count() <= zones.block_count();
        if !same {
            return Err(FlashError::Geometry(format!(
                "{} has zones of its own, {zones}, and cannot be used as {geometry}",
                self.drive.name
            )));
        }
        Ok(Self { drive: self.drive.clone(), geometry })
    }

    pub(crate) fn geometry(&self) -> Geometry {
        self.geometry
    }

    pub(crate) fn raw_bytes(&self) -> u64 {
        self.drive.raw_bytes
    }

    pub(crate) fn is_read_only(&self) -> bool {
        self.drive.access == Access::ReadOnly
    }

    /// How the drive is cut, and its limits.
    pub fn shape(&self) -> ZoneShape {
        let drive = &self.drive;
        let (open, active) = drive.limits().counts();
        let bad = drive.blocks().iter().filter(|block| block.bad).count() as u32;
        ZoneShape {
            zone_bytes: drive.zone_bytes,
            capacity_bytes: drive.capacity_bytes,
            blocks: drive.geometry.block_count(),
            bad,
            left_out: drive.left_out,
            open_max: drive.info.open_max,
            active_max: drive.info.active_max,
            open: open as u32,
            active: active as u32,
        }
    }

    pub(crate) fn requests(&self) -> Requests {
        self.drive.file.requests()
    }

    pub(crate) fn write_pointer(&self, block: BlockAddr) -> Option<u32> {
        self.drive.block(self.geometry.number(block), |block| block.next)
    }

    pub(crate) fn is_bad(&self, block: BlockAddr) -> bool {
        self.drive.block(self.geometry.number(block), |block| block.bad).unwrap_or(true)
    }

    pub(crate) fn finish(&self, block: BlockAddr) {
        self.drive.limits().done_with(self.geometry.number(block));
    }

    pub(crate) async fn read(
        &self,
        block: BlockAddr,
        offset_bytes: u32,
        buf: IoBuf,
    ) -> (Result<(), FlashError>, IoBuf) {
        let unit = self.geometry.read_bytes;
        let len = buf.len() as u64;
        if let Err(error) = check_request(self.geometry, Operation::Read, block, offset_bytes, len, unit) {
            return (Err(error), buf);
        }
        let zone = self.geometry.number(block);
        let (start, written) = self.drive.block(zone, |block| (block.start, block.written)).unwrap_or((0, 0));
        let written_bytes = written * self.geometry.page_bytes;
        if offset_bytes + buf.len() as u32 > written_bytes {
            return (Err(FlashError::ReadPastWritePointer { block, offset_bytes, written_bytes }), buf);
        }
        let wanted = buf.len();
        let (result, buf) = self.drive.file.read_at(buf, start + u64::from(offset_bytes)).await;
        let result = match result {
            Ok(read) if read >= wanted => Ok(()),
            Ok(_) => Err(FlashError::Truncated { block, offset_bytes }),
            Err(error) => match FlashError::from_read(block, offset_bytes, error) {
                // An offline zone answers as a broken cable does; the report tells them apart.
                error @ FlashError::Io { .. } => {
                    let found = self.drive.look(zone).await;
                    if self.is_bad(block) {
                        self.drive.give_place_up(zone);
                    }
                    match found {
                        Ok((ZoneCondition::Offline, _)) => {
                            Err(FlashError::Uncorrectable { block, offset_bytes })
                        }
                        _ => Err(error),
                    }
                }
                error => Err(error),
            },
        };
        (result, buf)
    }

    pub(crate) async fn program(
        &self,
        block: BlockAddr,
        first_page: u32,
        data: Bytes,
        sync: WriteSync,
    ) -> Result<(), FlashError> {
        self.writable(Operation::Program)?;
        let page_bytes = self.geometry.page_bytes;
        let offset_bytes = check_program(self.geometry, block, first_page, data.len() as u64)?;
        let pages = (data.len() / page_bytes as usize) as u32;
        let (drive, zone) = (&*self.drive, self.geometry.number(block));
        drive.ordered(zone, |found| {
            let next = found.next;
            if found.failed {
                return Err(FlashError::ProgramFailed { block, page: first_page });
            }
            match first_page.cmp(&next) {
                std::cmp::Ordering::Less => Err(FlashError::AlreadyProgrammed { block, page: first_page }),
                std::cmp::Ordering::Greater => {
                    Err(FlashError::OutOfOrder { block, page: first_page, expected: next })
                }
                std::cmp::Ordering::Equal => {
                    found.next += pages;
                    Ok(())
                }
            }
        })?;
        if pages == 0 {
            return Ok(());
        }
        let _turn = drive.turn(zone).acquire(1).await;
        drive.ordered(zone, |found| match found.written {
            // What was before it did not go through, or an erase came between.
            _ if found.failed => Err(FlashError::ProgramFailed { block, page: first_page }),
            written if written != first_page => {
                Err(FlashError::OutOfOrder { block, page: first_page, expected: written })
            }
            _ => Ok(()),
        })?;
        let mut held = match drive.enter(zone, block).await {
            Ok(held) => held,
            Err(error) => {
                drive.block(zone, |found| found.next = found.written);
                return Err(error);
            }
        };
        let start = drive.block(zone, |found| found.start).unwrap_or(0) + u64::from(offset_bytes);
        held.is_begun = true;
        let mut done = 0;
        while done < data.len() {
            let end = data.len().min(done + drive.piece_bytes as usize);
            let piece = drive.file.write_at(data.slice(done..end), start + done as u64, sync).await;
            if let Err(error) = piece {
                return Err(drive.program_failed(held, block, first_page, error).await);
            }
            done = end;
        }
        held.is_begun = false;
        let is_filled = drive
            .block(zone, |found| {
                found.written += pages;
                found.written >= self.geometry.pages_per_block
            })
            .unwrap_or(false);
        if is_filled {
            // Unless the zone goes on behind what a block can have: then it keeps its place until it is finished.
            if u64::from(self.geometry.block_bytes()) == drive.capacity_bytes {
                held.left = Left::Over;
            }
            drive.limits().done_with(zone);
        }
        Ok(())
    }

    pub(crate) async fn erase(&self, block: BlockAddr) -> Result<(), FlashError> {
        self.writable(Operation::Erase)?;
        check_request(self.geometry, Operation::Erase, block, 0, 0, self.geometry.page_bytes)?;
        let (drive, zone) = (&*self.drive, self.geometry.number(block));
        let _turn = drive.turn(zone).acquire(1).await;
        let Some(found) = drive.block(zone, |found| *found) else {
            return Err(FlashError::EraseFailed { block });
        };
        if found.bad {
            return Err(FlashError::EraseFailed { block });
        }
        if found.written == 0 && found.next == 0 && !found.failed {
            return Ok(()); // empty already: a reset would only cost
        }
        // A zone that makes way for another, its close or finish on the way, is waited for.
        let mut held = loop {
            if drive.limits().hold(zone) {
                break Held::new(drive, zone);
            }
            let _ = timeout(PLACE_WAIT, drive.left.notified()).await;
        };
        match drive.file.manage_zones(ZoneAction::Reset, found.start, drive.zone_bytes).await {
            Ok(()) => {
                drive.block(zone, |found| {
                    *found = Block { written: 0, next: 0, failed: false, ..*found };
                });
                held.left = Left::Over;
                Ok(())
            }
            Err(error) => {
                let error = FlashError::from_io(Operation::Erase, Some(block), error);
                if let Ok(Place::None) = drive.refresh(zone).await {
                    held.left = Left::Over;
                }
                match error {
                    FlashError::Io { .. } | FlashError::NoSpace { .. } => {
                        Err(FlashError::EraseFailed { block })
                    }
                    error => Err(error),
                }
            }
        }
    }

    pub(crate) async fn sync(&self) -> Result<(), FlashError> {
        self.writable(Operation::Sync)?;
        let result = self.drive.file.sync_data().await;
        result.map_err(|error| FlashError::from_io(Operation::Sync, None, error))
    }

    fn writable(&self, operation: Operation) -> Result<(), FlashError> {
        if self.is_read_only() { Err(FlashError::ReadOnly { operation }) } else { Ok(()) }
    }
}

impl Drive {
    fn blocks(&self) -> MutexGuard<'_, Vec<Block>> {
        lock(&self.blocks)
    }

    fn limits(&self) -> MutexGuard<'_, Limits> {
        lock(&self.limits)
    }

    fn block<R>(&self, zone: u32, f: impl FnOnce(&mut Block) -> R) -> Option<R> {
        self.blocks().get_mut(zone as usize).map(f)
    }

    /// [`Drive::block`] of a zone that a checked request named.
    fn ordered<R>(&self, zone: u32, f: impl FnOnce(&mut Block) -> R) -> R {
        f(&mut self.blocks()[zone as usize])
    }

    fn turn(&self, zone: u32) -> &Semaphore {
        &self.turns[(zone % TURNS) as usize]
    }

    /// Takes a place for a program in `zone`, closing or finishing others for it.
    async fn enter(&self, zone: u32, block: BlockAddr) -> Result<Held<'_>, FlashError> {
        loop {
            let step = self.limits().enter(zone);
            match step {
                Step::Go => return Ok(Held::new(self, zone)),
                Step::Refuse => {
                    return Err(FlashError::TooManyActive { block, active_max: self.info.active_max });
                }
                Step::Wait => {
                    let _ = timeout(PLACE_WAIT, self.left.notified()).await;
                }
                Step::Close(victim) => self.make_way(victim, ZoneAction::Close, block).await?,
                Step::Finish(victim) => self.make_way(victim, ZoneAction::Finish, block).await?,
            }
        }
    }

    /// Closes or finishes a zone for a program in `block`.
    async fn make_way(&self, victim: u32, action: ZoneAction, block: BlockAddr) -> Result<(), FlashError> {
        let mut held = Held::new(self, victim);
        let start = self.ordered(victim, |found| found.start);
        match self.file.manage_zones(action, start, self.zone_bytes).await {
            Ok(()) if action == ZoneAction::Close => held.left = Left::Closed,
            Ok(()) => {
                let pages = self.geometry.pages_per_block;
                self.ordered(victim, |found| (found.written, found.next) = (pages, pages));
                held.left = Left::Over;
            }
            // A zone that went bad, or that the drive has finished by itself, has given its place up.
            Err(error) => match self.look(victim).await {
                Ok((_, Place::None)) => held.left = Left::Over,
                _ => return Err(FlashError::from_io(Operation::Program, Some(block), error)),
            },
        }
        Ok(())
    }

    /// Takes the place of a bad zone back, unless a program or a command still has it.
    fn give_place_up(&self, zone: u32) {
        if self.limits().hold(zone) {
            let mut held = Held::new(self, zone);
            held.left = Left::Over;
        }
    }

    /// Asks the drive what became of a zone whose turn the caller has.
    async fn refresh(&self, zone: u32) -> Result<Place, FlashError> {
        let (_, block, place) = self.report(zone).await?;
        self.ordered(zone, |known| *known = block);
        Ok(place)
    }

    /// Asks the drive what became of a zone whose turn somebody else may have: nothing but that it went bad is kept.
    async fn look(&self, zone: u32) -> Result<(ZoneCondition, Place), FlashError> {
        let (condition, block, place) = self.report(zone).await?;
        if block.bad {
            self.ordered(zone, |known| *known = block);
        }
        Ok((condition, place))
    }

    async fn report(&self, zone: u32) -> Result<(ZoneCondition, Block, Place), FlashError> {
        let start = self.ordered(zone, |found| found.start);
        let failed = |error| FlashError::from_io(Operation::Open, None, error);
        let zones = self.file.report_zones(start, 1).await.map_err(failed)?;
        let gone = || failed(io::Error::other(format!("no zone is reported at byte {start}")));
        let found = zones.first().filter(|found| found.start == start).ok_or_else(gone)?;
        let (block, place) = layout::state(found, self.geometry.page_bytes, self.geometry.pages_per_block);
        Ok((found.condition, block, place))
    }

    /// What a failed program comes to.
    async fn program_failed(
        &self,
        mut held: Held<'_>,
        block: BlockAddr,
        page: u32,
        error: io::Error,
    ) -> FlashError {
        let limit = matches!(error.raw_os_error(), Some(EOVERFLOW | ETOOMANYREFS));
        let error = FlashError::from_program(block, page, error);
        let Ok(place) = self.refresh(held.zone).await else { return error };
        if place == Place::None {
            held.left = Left::Over;
        }
        // The report has replaced what was known: nothing behind the write pointer is on its way but what waits for this
        // one's turn, which will find another page than it expects.
        let (is_unchanged, is_bad) = self.ordered(held.zone, |found| (found.written == page, found.bad));
        let is_harmless = is_unchanged && !is_bad;
        match error {
            _ if limit && is_harmless => {
                held.is_begun = false;
                FlashError::TooManyActive { block, active_max: self.info.active_max }
            }
            error @ FlashError::Timeout { .. } if is_harmless => {
                held.is_begun = false;
                error
            }
            error @ FlashError::Gone { .. } => error,
            _ => FlashError::ProgramFailed { block, page },
        }
    }
}
