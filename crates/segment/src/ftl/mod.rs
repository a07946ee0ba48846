//! Raw flash for whoever wants it: channels in sight, segments written and erased whole, read by the page.
//!
//! SDF's interface (ASPLOS 2014 section 2) in software: a segment is one erase unit on one channel; a caller names it by
//! a 128-bit id, and consecutive ids land on consecutive channels, or it names the channel. Per channel there is a
//! scheduler ([`Scheduler`]) and a table of blocks with dynamic wear levelling (`blocks.rs`); clients share the device by
//! tags ([`Client`]). There is no garbage collection and no over-provisioning: who writes erases.
//!
//! 1. A write takes the channel's erased block with the fewest erases, or erases one, and programs it chunk by chunk, two
//!    chunks under way; the last page goes alone and last (`write.rs`). First and last page bear the segment's tag
//!    (`media.rs`, `tag.rs`), so that the mapping (`map.rs`) can be had from the media after a crash (`recover.rs`).
//! 2. An erase is durable when it returns; a discard is a hint (`erase.rs`). Released blocks are erased in the background
//!    until the floor of erased blocks is met.
//! 3. A block that fails to program or erase is retired at once and the write goes to another; a checkpoint (`durable.rs`,
//!    `area.rs`, `recruit.rs`) keeps it retired. The checkpoint on [`RawFlash::close`] lets the next open read nothing else.
//! 4. Raw media get BCH parity in their out-of-band bytes ([`pumice_flash::Corrected`]): what can be mended is mended and
//!    counted, what cannot names its page. A segment with a page near the limit is named weak until it is [refreshed](RawFlash::refresh); a
//!    patrol finds and refreshes those that nobody reads (`scrub.rs`).
//!
//! Layouts are in `docs/format/raw-flash.md`. The record heap lies beside this layer, on the same
//! corrected device.
//!
//! Locks, leaves all: a channel's blocks, the map, the checkpoint's place. None is held while another is taken, or across an
//! await.

mod area;
mod blocks;
mod checkpoint;
mod client;
mod durable;
mod erase;
mod error;
mod image;
mod map;
mod media;
mod open;
mod probe;
mod recover;
mod recruit;
mod schedule;
mod scrub;
mod space;
mod sums;
mod tag;
mod verify;
mod write;

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

pub use blocks::BlockCounts;
use blocks::Blocks;
use bytes::Bytes;
pub use checkpoint::{CHECKPOINT_VERSION, MARK_BYTES, PART_HEADER_BYTES, PartHeader, encode_mark, is_mark};
pub use client::{Client, TAGS_PER_CLIENT, Tag, Ticket};
pub use durable::RawStats;
use durable::UnderWay;
pub use error::{RawDamage, RawError};
use map::{Claimed, Map};
use media::Media;
pub use open::{RawFormat, RawOpened};
use pumice_base::sync::lock;
pub use pumice_flash::EccCounts;
use pumice_flash::{BlockAddr, Device, Geometry};
use pumice_reactor::sync::{Notify, Semaphore};
use pumice_reactor::{IoBuf, JoinHandle, spawn};
pub use schedule::{Class, Grant, Scheduler};
pub use scrub::{ScrubOptions, ScrubStats};
pub use space::{ChannelSpace, RawSpace};
use sums::Life;
pub use tag::{BlockTag, TAG_BYTES, TAG_VERSION, TagDecoded, TagEnd, TagKind};
use verify::ReadFailed;

/// Whoever waits for a block to change looks again after this, should the word of it have passed before it waited.
const RECHECK: Duration = Duration::from_millis(5);
/// Places that one read looks for its segment at, should it be moved each time.
const MOVES_MAX: u32 = 8;

/// How a device is used raw.
#[derive(Clone, Copy, Debug)]
pub struct RawOptions {
    /// Erased blocks that each channel keeps ready. 0 erases just before each write, as SDF did.
    pub erased_ahead: u32,
    /// Memory for the tables of checksums of blocks that were read or written last, where these do not lie beside the pages:
    /// 4 bytes for each page of their segments, and 160 a table. A read of a block whose table is not there reads this, too.
    pub sums_memory_bytes: usize,
}

impl Default for RawOptions {
    fn default() -> Self {
        // The tables of 16 GiB of segments in pages of 4 KiB.
        Self { erased_ahead: 4, sums_memory_bytes: 16 << 20 }
    }
}

/// Where a new segment goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// On the channel that the id falls to: consecutive ids on consecutive channels.
    ById,
    /// On this channel.
    Channel(u16),
}

struct Channel {
    scheduler: Arc<Scheduler>,
    /// A leaf lock.
    blocks: Mutex<Blocks>,
    /// An erase has ended: a writer may find an erased block.
    erase_ended: Notify,
}

struct Inner {
    media: Arc<Media>,
    options: RawOptions,
    drive_id: [u8; 16],
    channels: Vec<Channel>,
    /// Which block holds which segment. A leaf lock.
    map: Mutex<Map>,
    numbers: Arc<AtomicU64>,
    /// The next write's.
    sequence: AtomicU64,
    /// No more writes: the drive is being closed, or was.
    closing: AtomicBool,
    /// The newest checkpoint is a clean one without a mark behind it: nothing may be changed.
    is_unmarked: AtomicBool,
    /// A segment is being moved out of the window for checkpoints.
    is_clearing: AtomicBool,
    /// Requests that change something.
    under_way: AtomicU32,
    /// A block or a segment changed its role, for those who wait for a certain one.
    changed: Notify,
    /// Segments that may be written at once, where the media limit how many blocks are partly written.
    places: Option<Semaphore>,
    /// One checkpoint at a time.
    writing_checkpoint: Arc<Semaphore>,
    /// The newest checkpoint. A leaf lock.
    checkpoint: Mutex<durable::Newest>,
    /// Bad blocks found so far, and those of them that a checkpoint knows.
    bad_found: AtomicU32,
    bad_saved: AtomicU32,
    erases_since_checkpoint: AtomicU32,
    counters: durable::Counters,
    scrub: Mutex<ScrubStats>,
}

/// See the module's text. Clones are handles on the same device.
#[derive(Clone)]
pub struct RawFlash(Arc<Inner>);

impl RawFlash {
    /// What correction has done so far; zeros for media that correct themselves.
    pub fn ecc_counts(&self) -> EccCounts {
        self.0.media.ecc_counts()
    }

    /// Segments that were found to have a page near what its code corrects: to be refreshed before it is lost.
    pub fn weak(&self) -> Vec<u128> {
        let mut weak = Vec::new();
        for channel in 0..self.geometry().channels {
            let blocks: Vec<u32> = {
                let blocks = self.0.blocks(channel);
                let found = (0..).zip(blocks.states()).filter(|(_, state)| state.is_weak());
                found.map(|(block, _)| block).collect()
            };
            let map = self.0.map();
            let borne = blocks.into_iter().map(|block| map.borne(self.0.number(channel, block)));
            weak.extend(borne.flatten().filter(|(_, is_live)| *is_live).map(|(id, _)| id));
        }
        weak.sort_unstable();
        weak
    }

    /// A client with tags of its own.
    pub fn client(&self) -> Client {
        Client::new(Arc::clone(&self.0.numbers))
    }

    /// The drive's identity.
    pub fn drive_id(&self) -> [u8; 16] {
        self.0.drive_id
    }

    /// The device's shape; a block holds a segment.
    pub fn geometry(&self) -> Geometry {
        self.0.media.geometry()
    }

    /// The device.
    pub fn device(&self) -> &Device {
        self.0.media.device()
    }

    /// Bytes of a segment: a block's, but for the pages that its tags and checksums take where pages have no room beside them.
    pub fn segment_bytes(&self) -> u32 {
        self.0.media.segment_bytes()
    }

    /// Segments there are.
    pub fn segment_count(&self) -> u32 {
        self.0.map().live()
    }

    /// The ids of all segments, in order.
    pub fn ids(&self) -> Vec<u128> {
        let map = self.0.map();
        let borne = (0..self.geometry().block_count()).filter_map(|block| map.borne(block));
        let mut ids: Vec<u128> = borne.filter(|(_, is_live)| *is_live).map(|(id, _)| id).collect();
        ids.sort_unstable();
        ids
    }

    /// The channel that an id falls to.
    pub fn channel_of(&self, id: u128) -> u16 {
        (id % u128::from(self.geometry().channels)) as u16
    }

    /// Where a segment lies.
    pub fn place_of(&self, id: u128) -> Option<BlockAddr> {
        let block = self.0.map().get(id)?;
        Some(self.geometry().block(block))
    }

    /// Blocks of a channel by use.
    pub fn counts(&self, channel: u16) -> BlockCounts {
        self.0.blocks(channel).counts()
    }

    /// Fewest and most erases of the good blocks of a channel that are for segments.
    pub fn erase_range(&self, channel: u16) -> Option<(u32, u32)> {
        self.0.blocks(channel).erase_range()
    }

    /// Where the drive's bytes are, by channel.
    pub fn space(&self) -> RawSpace {
        let (geometry, layout) = (self.geometry(), self.0.media.layout());
        let of = |channel| ChannelSpace::of(self.0.blocks(channel).states(), &layout);
        let raw = self.device().raw_bytes();
        let channels = (0..geometry.channels).map(of).collect();
        RawSpace { raw, leftover: raw - geometry.capacity_bytes(), channels }
    }

    /// Whether pages are verified by checksums when they are read: not on drives that were formatted before there were any,
    /// nor on emulated media that drop what is written. Formatting gives a drive checksums.
    pub fn has_sums(&self) -> bool {
        self.0.media.layout().has_sums
    }

    /// Bytes of memory that tables of checksums take now, at most [`RawOptions::sums_memory_bytes`] or one table.
    pub fn sums_memory_bytes(&self) -> usize {
        self.0.media.tables.memory_bytes()
    }

    /// Bytes of memory that the mapping and the wear tables take.
    pub fn memory_bytes(&self) -> usize {
        let tables = (0..self.geometry().channels).map(|channel| self.0.blocks(channel).memory_bytes());
        self.0.map().memory_bytes() + tables.sum::<usize>()
    }

    /// Writes a segment; durable when this returns, with the tag that the request bore. Whoever drops the future may find
    /// the segment written or not.
    ///
    /// # Errors
    /// [`RawError::Exists`], [`RawError::Length`], [`RawError::Full`]; [`RawError::Flash`] when the device fails in a way
    /// that another block does not mend. The id names nothing then.
    pub async fn write(&self, client: &Client, id: u128, place: Place, data: Bytes) -> Result<Tag, RawError> {
        let (segment_bytes, channels) = (self.segment_bytes(), self.geometry().channels);
        if data.len() != segment_bytes as usize {
            return Err(RawError::Length { id, len_bytes: data.len(), segment_bytes });
        }
        let channel = match place {
            Place::ById => self.channel_of(id),
            Place::Channel(channel) => channel,
        };
        if channel >= channels {
            return Err(RawError::NoChannel { channel, channels });
        }
        let ticket = client.tag().await;
        let under_way = UnderWay::new(&self.0)?;
        let claim = Claim::new(&self.0, id).await?;
        let this = self.clone();
        let written = spawn(async move {
            let written = this.0.write(channel, id, data).await.map(|block| claim.settle(block));
            drop(under_way);
            this.erase_ahead(channel);
            written.map(|()| ticket.tag)
        });
        joined(written).await
    }

    /// Fills `buf` from `offset_bytes` of a segment on, whole read granules. What is read is what was written, or an error
    /// says that it is not; `buf` holds nothing to be used then.
    ///
    /// # Errors
    /// [`RawError::NotFound`]; [`RawError::Unverified`], or [`RawError::Flash`] with
    /// [`pumice_flash::FlashError::Uncorrectable`], when a copy has to heal the page.
    pub async fn read(
        &self,
        client: &Client,
        id: u128,
        offset_bytes: u32,
        buf: IoBuf,
    ) -> (Result<Tag, RawError>, IoBuf) {
        let ticket = client.tag().await;
        let mut buf = buf;
        // A segment that is moved meanwhile is read where it lies then.
        for _ in 0..MOVES_MAX {
            let Some(life) = self.0.life_of(id) else { break };
            let channel = life.block.channel;
            let grant = self.0.channel(channel).scheduler.turn(Class::Read).await;
            let result;
            (result, buf) = self.0.media.read_segment(&life, offset_bytes, buf).await;
            drop(grant);
            if self.0.life_of(id) != Some(life) {
                continue;
            }
            if let Ok(true) = result {
                self.0.blocks(channel).set_weak(life.block.block);
            }
            return (result.map(|_| ticket.tag).map_err(|failed| self.0.failed(failed, &life)), buf);
        }
        (Err(RawError::NotFound { id }), buf)
    }

    /// Whether both ends of a segment's block say that it is there, and agree on its checksums. A segment of which only one
    /// does is read all the same; [`RawFlash::refresh`] writes both anew, as the patrol does.
    ///
    /// # Errors
    /// [`RawError::NotFound`]; the device's errors, but for pages that do not read.
    pub async fn ends_agree(&self, client: &Client, id: u128) -> Result<bool, RawError> {
        let _ticket = client.tag().await;
        let life = self.0.life_of(id).ok_or(RawError::NotFound { id })?;
        let grant = self.0.channel(life.block.channel).scheduler.turn(Class::Read).await;
        let agree = self.0.media.ends_agree(&life).await;
        drop(grant);
        // Erased or moved meanwhile: nothing is known to be wrong with where it lies now.
        if self.0.life_of(id) == Some(life) { agree } else { Ok(true) }
    }
}

impl Inner {
    fn channel(&self, channel: u16) -> &Channel {
        &self.channels[usize::from(channel)]
    }

    fn number(&self, channel: u16, block: u32) -> u32 {
        self.media.geometry().number(BlockAddr { channel, block })
    }

    fn blocks(&self, channel: u16) -> MutexGuard<'_, Blocks> {
        lock(&self.channel(channel).blocks)
    }

    fn map(&self) -> MutexGuard<'_, Map> {
        lock(&self.map)
    }

    /// Where a segment lies, and what its pages are verified against.
    fn life_of(&self, id: u128) -> Option<Life> {
        let number = self.map().get(id)?;
        let block = self.media.geometry().block(number);
        let erases = self.blocks(block.channel).state(block.block).erases();
        Some(Life { block, number, erases, drive_id: self.drive_id, id })
    }

    /// Counts a page that is not what was written.
    fn failed(&self, failed: ReadFailed, life: &Life) -> RawError {
        if let ReadFailed::Unverified { .. } = failed {
            self.counters.count(|counts| counts.unverified += 1);
        }
        failed.of(life)
    }

    fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    /// Waits for a block or a segment to change its role, or a little.
    async fn until_changed(&self) {
        // Woken or not, whoever waits looks for itself.
        let _ = pumice_reactor::timeout(RECHECK, self.changed.notified()).await;
    }
}

async fn joined<T>(handle: JoinHandle<T>) -> T {
    match handle.await {
        Ok(result) => result,
        Err(_) => unreachable!("nobody aborts it"),
    }
}

/// An id that is being written; free again unless it is settled.
struct Claim {
    inner: Arc<Inner>,
    id: u128,
}

impl Claim {
    async fn new(inner: &Arc<Inner>, id: u128) -> Result<Self, RawError> {
        loop {
            let claimed = inner.map().claim(id);
            match claimed {
                Claimed::Yes => return Ok(Self { inner: Arc::clone(inner), id }),
                Claimed::Taken => return Err(RawError::Exists { id }),
                Claimed::Moving => inner.until_changed().await,
            }
        }
    }

    fn settle(self, block: BlockAddr) {
        let number = self.inner.media.geometry().number(block);
        self.inner.map().insert(number, self.id, true);
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.inner.map().unclaim(self.id);
    }
}
