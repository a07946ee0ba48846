//! The patrol: reads what the drive holds, slowly, so that what nobody reads does not decay unseen.
//!
//! 1. Segment by segment in the order of their numbers, each in stretches of [`STRETCH_BYTES`]; who walks waits in between
//!    ([`Patrol::step`]). Records are verified; what has a page near the end of its code is [endangered](crate::Heap::endangered)
//!    then, and its records move as in any cleaning. What is damaged is named; only a copy can heal it.
//! 2. Superblock and metadata log are read too. What decays there is written again elsewhere: the heap holds all of it.
//! 3. Every metadata record says how far the patrol came, and it has one written for each sixteenth of the drive: after a
//!    restart it goes on there.
//!
//! `segment::ftl` has a patrol of its own (`ftl/scrub.rs`): there a block is a whole segment with a tag, and moving it is one
//! copy; here records have owners who must be asked.

use std::collections::BTreeMap;
use std::sync::Arc;

use pumice_flash::{FlashError, weak_limit};

use crate::inner::Inner;
use crate::layout::meta::SegmentState;
use crate::metalog::{self, Write};
use crate::scan::read_tolerant;
use crate::{Damage, SegmentId, Sweep};

/// Bytes read at a time.
pub(crate) const STRETCH_BYTES: u32 = 256 << 10;
/// Metadata records that a pass has written for its own sake.
const SAVES: u32 = 16;
/// Segments between two of them at least: their own segments wear, too.
const SAVE_SEGMENTS_MIN: u32 = 64;

/// How far the patrol came, and what it found since the drive was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PatrolStats {
    /// The segment that it reads next.
    pub next_segment: u32,
    /// Segments of the drive.
    pub segments: u32,
    /// Times that it went through the whole drive, also before it was opened.
    pub passes: u32,
    /// Bytes read.
    pub read_bytes: u64,
    /// Places that do not verify.
    pub damaged: u64,
    /// Times that superblock or metadata log were written elsewhere because they decayed.
    pub renewed: u64,
}

/// Most damaged places that are remembered; those beyond are only counted.
const FOUND_MAX: usize = 10_000;

/// What the patrol found damaged: segment and offset, and the segment's life then (`None`: superblock or metadata log).
#[derive(Debug, Default)]
pub(crate) struct FoundDamage {
    places: BTreeMap<(SegmentId, u32), Option<u64>>,
}

impl FoundDamage {
    fn add(&mut self, damage: &Damage, life: Option<u64>) {
        if self.places.len() < FOUND_MAX {
            self.places.insert((damage.segment, damage.offset), life);
        }
    }

    /// Superblock and metadata log were written elsewhere.
    fn forget_metadata(&mut self) {
        self.places.retain(|_, life| life.is_some());
    }

    /// Forgets what was released or reused since; answers how many are left.
    pub(crate) fn still_there(&mut self, inner: &Inner) -> u64 {
        self.places
            .retain(|(segment, _), life| life.is_none() || inner.table().life_in_use(*segment) == *life);
        self.places.len() as u64
    }
}

/// What a step has read.
#[derive(Clone, Debug, Default)]
pub struct PatrolStep {
    /// Bytes.
    pub read_bytes: u64,
    /// What does not verify.
    pub damage: Vec<Damage>,
}

/// A walk over the drive, from where the last one was. One at a time.
pub struct Patrol {
    inner: Arc<Inner>,
    walk: Option<Walk>,
}

/// The segment that is being read.
enum Walk {
    /// Records, by what the table says of it.
    Records { life: u64, sweep: Sweep },
    /// Pages, whatever they hold.
    Pages { at: u32, end: u32, life: Option<u64> },
}

impl Patrol {
    pub(crate) fn new(inner: Arc<Inner>) -> Self {
        Self { inner, walk: None }
    }

    /// Reads the next stretch; nothing at the end of a pass, or of many segments that hold nothing.
    ///
    /// # Errors
    /// [`FlashError`] when the device fails in a way that is no page's.
    pub async fn step(&mut self) -> Result<PatrolStep, FlashError> {
        let number = self.inner.patrol_stats().next_segment;
        if number >= self.inner.superblock.segment_count {
            {
                let mut stats = self.inner.patrol_stats();
                (stats.next_segment, stats.passes) = (0, stats.passes + 1);
            }
            self.save().await;
            return Ok(PatrolStep::default());
        }
        let walk = match self.walk.take() {
            Some(walk) => walk,
            None => match begin(&self.inner, number) {
                Some(walk) => walk,
                None => {
                    self.pass_over(number).await;
                    return Ok(PatrolStep::default());
                }
            },
        };
        let life = match &walk {
            Walk::Records { life, .. } => Some(*life),
            Walk::Pages { life, .. } => *life,
        };
        let mut step = PatrolStep::default();
        let went_on = go_on(&self.inner, SegmentId(number), walk, &mut step).await?;
        if went_on.is_none() && step.damage.is_empty() {
            step.damage = self.damage_of_log(number).await;
        }
        for damage in &step.damage {
            self.inner.found_damage().add(damage, life);
        }
        if let Some(walk) = went_on {
            self.walk = Some(walk);
        } else {
            self.renew_if_needed(number, !step.damage.is_empty()).await;
            self.pass_over(number).await;
        }
        let mut stats = self.inner.patrol_stats();
        stats.read_bytes += step.read_bytes;
        stats.damaged += step.damage.len() as u64;
        drop(stats);
        Ok(step)
    }

    /// The segment is through.
    async fn pass_over(&mut self, number: u32) {
        self.inner.patrol_stats().next_segment = number + 1;
        let every = self.inner.superblock.segment_count.div_ceil(SAVES).max(SAVE_SEGMENTS_MIN);
        if (number + 1).is_multiple_of(every) {
            self.save().await;
        }
    }

    async fn save(&self) {
        if self.inner.blocked().is_none() {
            // A failure has made the heap read-only, which is how others learn of it.
            let _ = metalog::write_meta(&self.inner, Write::internal()).await;
        }
    }

    /// Records of the metadata log that begins in this segment of which one of the two does not verify: pages that read do not tell.
    async fn damage_of_log(&self, number: u32) -> Vec<Damage> {
        let half = self.inner.meta.state().half;
        match self.inner.home.superblock().meta_segment(half, 0) == number {
            // What the device does not answer is met again by who needs it.
            true => metalog::damage(&self.inner).await.unwrap_or_default(),
            false => Vec::new(),
        }
    }

    /// Writes superblock or metadata log elsewhere when this segment holds them and decays.
    async fn renew_if_needed(&self, number: u32, is_damaged: bool) {
        let inner = &self.inner;
        let bits = inner.device.corrected_bits_max(inner.block(SegmentId(number)));
        let is_weak = bits.is_some_and(|(most, of)| most > weak_limit(of));
        if !(is_weak || is_damaged) || inner.blocked().is_some() {
            return;
        }
        let superblock = inner.home.is_at(number);
        if superblock && inner.superblock.placed.is_none() {
            // It stays where it was formatted.
            return;
        }
        if superblock || system_end(inner, number).is_some() {
            let write = Write { snapshot: true, renew_superblock: superblock, ..Write::internal() };
            if metalog::write_meta(inner, write).await.is_ok() {
                inner.patrol_stats().renewed += 1;
                inner.found_damage().forget_metadata();
            }
        }
    }
}

/// Where what counts of a segment of superblocks or the metadata log ends; `None` for others.
fn system_end(inner: &Inner, number: u32) -> Option<u32> {
    let page_bytes = inner.superblock.page_bytes;
    if inner.home.is_at(number) {
        let pages = inner.device.write_pointer(inner.block(SegmentId(number))).unwrap_or(1);
        return Some(pages * page_bytes);
    }
    let (half, offset) = {
        let state = inner.meta.state();
        (state.half, state.offset)
    };
    let superblock = inner.home.superblock();
    let index = (0..superblock.meta_half_segments).find(|&at| superblock.meta_segment(half, at) == number)?;
    let before = u64::from(index) * u64::from(superblock.segment_bytes);
    Some(offset.saturating_sub(before).min(u64::from(superblock.segment_bytes)) as u32)
}

fn begin(inner: &Arc<Inner>, number: u32) -> Option<Walk> {
    let segment = SegmentId(number);
    if let Some(end) = system_end(inner, number) {
        return (end > 0).then_some(Walk::Pages { at: 0, end, life: None });
    }
    let (life, state, end) = {
        let table = inner.table();
        let life = table.life(segment)?;
        let entry = table.entry(segment)?;
        (life, entry.state, entry.end)
    };
    match state {
        SegmentState::Sealed => Some(Walk::Records { life, sweep: Sweep::slow(inner, segment) }),
        // Its newest frames may be on their way; the others are read as pages are.
        _ => {
            let written = inner.device.write_pointer(inner.block(segment));
            let end = written.map_or(0, |pages| (pages * inner.superblock.page_bytes).min(end));
            (end > 0).then_some(Walk::Pages { at: 0, end, life: Some(life) })
        }
    }
}

/// Reads on; `None` when the segment is through, or is not what it was.
async fn go_on(
    inner: &Arc<Inner>,
    segment: SegmentId,
    walk: Walk,
    step: &mut PatrolStep,
) -> Result<Option<Walk>, FlashError> {
    match walk {
        Walk::Records { life, mut sweep } => {
            let before = sweep.read_at();
            let Some(contents) = sweep.next().await? else { return Ok(None) };
            step.read_bytes = u64::from(sweep.read_at() - before);
            if inner.table().life(segment) != Some(life) {
                // Released and taken for something else meanwhile: what was read is of no life in particular.
                return Ok(None);
            }
            step.damage = contents.damage;
            Ok(Some(Walk::Records { life, sweep }))
        }
        Walk::Pages { at, end, life } => {
            let len = STRETCH_BYTES.min(end - at);
            let stretch = read_tolerant(&inner.device, segment, at, len as usize).await?;
            step.read_bytes = u64::from(len);
            if life.is_some() && inner.table().life(segment) != life {
                return Ok(None);
            }
            if life.is_none() && system_end(inner, segment.0).is_none() {
                return Ok(None);
            }
            let lost = |offset| Damage { segment, offset, what: "the page does not read".into() };
            step.damage = stretch.lost.into_iter().map(lost).collect();
            let at = at + len;
            let is_healed = life.is_none() && !step.damage.is_empty();
            Ok((at < end && !is_healed).then_some(Walk::Pages { at, end, life }))
        }
    }
}
