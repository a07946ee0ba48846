//! Making drives and opening them.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use pumice_flash::{Device, FlashError};
use pumice_reactor::sync::{Notify, Semaphore};

use super::area::{self, Loaded, Place};
use super::blocks::{BlockState, Blocks, Role};
use super::durable::{Counters, Newest};
use super::map::Map;
use super::media::Media;
use super::recover::{self, Recovered};
use super::{Channel, Class, Inner, RawDamage, RawError, RawFlash, RawOptions, ScrubStats};

/// Blocks that may be partly written for checkpoints: the newest, which waits for its mark, and the one that is being written.
const CHECKPOINT_PLACES: u32 = 2;

/// How a drive is made.
#[derive(Clone, Copy, Debug)]
pub struct RawFormat {
    /// Its identity, unlike that of any other drive, the one that is formatted over included: its tags are still there.
    pub drive_id: [u8; 16],
    /// Formats over a drive that is there.
    pub force: bool,
}

/// An open drive, and what its opening found.
pub struct RawOpened {
    /// The drive.
    pub raw: RawFlash,
    /// It was closed, and nothing but its checkpoint was read.
    pub clean: bool,
    /// What may have been more.
    pub damage: Vec<RawDamage>,
}

impl RawFlash {
    /// Makes the whole device an empty drive. Erase counts and bad blocks of a drive that was there are kept.
    ///
    /// # Errors
    /// [`RawError::AlreadyFormatted`] without `force`, or when it has this very identity; [`RawError::Shape`] without `force`; [`FlashError::Geometry`] for shapes that raw
    /// flash cannot use, or media without room for their parity.
    pub async fn format(device: Device, format: RawFormat, options: RawOptions) -> Result<Self, RawError> {
        let media = Arc::new(Media::new(device)?);
        let before = match area::load(&media).await {
            Ok(Some(found)) if !format.force || found.header.drive_id == format.drive_id => {
                return Err(RawError::AlreadyFormatted { drive_id: found.header.drive_id });
            }
            Ok(found) => found,
            Err(RawError::Shape { .. } | RawError::Version { .. }) if format.force => None,
            Err(error) => return Err(error),
        };
        let media = Arc::new(media.of_drive(media.keeps_data(), options.sums_memory_bytes));
        let area = area::fresh(&media, before.as_ref())?;
        let generation = area::newest_generation(&media).await?;
        let states = recover::known_states(&media, &area, before.as_ref());
        let map = Map::new(states.len() as u32);
        let sequence = before.as_ref().map_or(1, |found| found.header.sequence);
        let found = Recovered { states, map, sequence, damage: Vec::new(), superseded: Vec::new() };
        let newest = Newest { generation, ..Newest::default() };
        let raw = Self::assemble(media, found, newest, format.drive_id, options, ScrubStats::default());
        // A file's length has to outlive a crash, too.
        raw.0.media.device().sync().await?;
        raw.0.write_checkpoint(false, || true).await?;
        Ok(raw)
    }

    /// Opens a drive. With media that are opened read-only nothing is written, and writes are refused by them; a drive
    /// without a block left for checkpoints refuses them with [`RawError::CheckpointsWorn`], and is read. `progress` gets blocks looked at and blocks in all; a drive that was closed answers without.
    ///
    /// # Errors
    /// [`RawError::NotFormatted`], [`RawError::Shape`], [`RawError::Version`], [`FlashError::Geometry`]; the device's errors.
    pub async fn open(
        device: Device,
        options: RawOptions,
        progress: &dyn Fn(u64, u64),
    ) -> Result<RawOpened, RawError> {
        let media = Arc::new(Media::new(device)?);
        let Some(loaded) = area::load(&media).await? else { return Err(RawError::NotFormatted) };
        let media = Arc::new(media.of_drive(loaded.header.has_sums, options.sums_memory_bytes));
        // As it was formatted: where a block turned bad in the media's own eyes since, those behind it hold segments.
        let kept = (0..).zip(&loaded.states).filter(|(_, state)| state.role() == Role::System);
        let area: Vec<u32> = kept.map(|(block, _)| block).collect();
        let clean = loaded.is_current;
        let mut found = match clean {
            true => recover::from_checkpoint(&loaded),
            false => recover::scan(&media, &loaded, &area, progress).await?,
        };
        let (damage, superseded) = (std::mem::take(&mut found.damage), std::mem::take(&mut found.superseded));
        let Loaded { header, place, .. } = loaded;
        let newest = Newest { place: place.clone(), generation: header.generation };
        let scrub = ScrubStats {
            next_block: header.scrub_block,
            passes: header.scrub_passes,
            ..ScrubStats::default()
        };
        let is_read_only = media.device().is_read_only();
        // What a crash left partly written takes nothing more, but for the mark behind a clean checkpoint.
        let marked = place.blocks.last().filter(|_| clean);
        for number in (0..media.geometry().block_count()).filter(|number| Some(number) != marked) {
            media.device().finish(media.geometry().block(number));
        }
        let raw = Self::assemble(media, found, newest, header.drive_id, options, scrub);
        if clean && !is_read_only {
            raw.begin_use(&place, header.generation).await?;
        }
        if !is_read_only {
            for id in superseded {
                match raw.0.erase_bearers(id, Class::Erase).await {
                    // The next opening tries again.
                    Ok(()) | Err(RawError::CheckpointsWorn { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(RawOpened { raw, clean, damage })
    }

    /// Says on the media that the drive is in use: what a clean checkpoint says holds no longer.
    async fn begin_use(&self, place: &Place, generation: u64) -> Result<(), RawError> {
        match self.0.write_mark(place, generation).await {
            Ok(()) => return Ok(()),
            Err(FlashError::ProgramFailed { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        self.0.is_unmarked.store(true, Ordering::Release);
        self.0.retire_kept(place.blocks[place.blocks.len() - 1]);
        match self.0.write_checkpoint(false, || true).await {
            // It is read, and takes no writes.
            Ok(()) | Err(RawError::CheckpointsWorn { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn assemble(
        media: Arc<Media>,
        found: Recovered,
        newest: Newest,
        drive_id: [u8; 16],
        options: RawOptions,
        scrub: ScrubStats,
    ) -> Self {
        let geometry = media.geometry();
        let channels = (0..geometry.channels).map(|channel| {
            let own = found.states.iter().skip(usize::from(channel));
            let states: Vec<BlockState> = own.step_by(usize::from(geometry.channels)).copied().collect();
            Channel {
                scheduler: Arc::default(),
                blocks: Mutex::new(Blocks::new(states)),
                erase_ended: Notify::new(),
            }
        });
        let channels = channels.collect();
        let places = |max: u32| Semaphore::new(u64::from(max.saturating_sub(CHECKPOINT_PLACES).max(1)));
        let places = media.device().active_max().map(places);
        Self(Arc::new(Inner {
            media,
            options,
            drive_id,
            channels,
            map: Mutex::new(found.map),
            numbers: Arc::new(AtomicU64::new(1)),
            sequence: AtomicU64::new(found.sequence.max(1)),
            closing: AtomicBool::new(false),
            is_unmarked: AtomicBool::new(false),
            is_clearing: AtomicBool::new(false),
            under_way: AtomicU32::new(0),
            changed: Notify::new(),
            places,
            writing_checkpoint: Arc::new(Semaphore::new(1)),
            checkpoint: Mutex::new(newest),
            bad_found: AtomicU32::new(0),
            bad_saved: AtomicU32::new(0),
            erases_since_checkpoint: AtomicU32::new(0),
            counters: Counters::default(),
            scrub: Mutex::new(scrub),
        }))
    }
}
