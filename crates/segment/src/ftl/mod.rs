//! Raw flash for whoever wants it: channels in sight, segments written and erased whole, read by the page.
//!
//! SDF's interface (ASPLOS 2014 section 2) in software: a segment is one erase unit on one channel; a caller names it by
//! a 128-bit id, and consecutive ids land on consecutive channels, or it names the channel. Per channel there is a
//! scheduler ([`Scheduler`]), block mapping with dynamic wear levelling and a bad-block list (`blocks.rs`); clients share the
//! device by tags ([`Client`]). There is no garbage collection and no over-provisioning: who writes erases.
//!
//! A write: take a tag; take the channel's erased block with the fewest erases, or erase one; program it chunk by chunk,
//! two chunks under way; only then does the id name it. A block that fails to program or erase is retired at once and the
//! write goes to another. Released segments are erased in the background until the floor of erased blocks is met.
//!
//! Raw media get BCH parity in their out-of-band bytes (`ecc.rs`): what can be mended is mended and counted, what cannot
//! names its page, and a segment with a page near the limit is named weak until it is [refreshed](RawFlash::refresh).
//!
//! What is *not* here yet: the mapping lives in memory only and is forgotten with the [`RawFlash`]; patrol scrub. The
//! record heap (`heap.rs`) does not lie on this layer yet.

mod blocks;
mod client;
mod ecc;
mod schedule;

use std::collections::BTreeSet;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard};

pub use blocks::BlockCounts;
use blocks::Blocks;
use bytes::Bytes;
pub use client::{Client, TAGS_PER_CLIENT, Tag, Ticket};
pub use ecc::EccCounts;
use ecc::PageEcc;
use pumice_base::hash::HashMap;
use pumice_flash::{BlockAddr, Device, FlashError, Geometry};
use pumice_reactor::sync::Notify;
use pumice_reactor::{IoBuf, JoinHandle, WriteSync};
pub use schedule::{Class, Grant, Scheduler};

/// Plane groups per die in one chunk of a program: what a read may have to wait for, twice.
const CHUNK_GROUPS: u32 = 4;
/// Blocks that one write tries before it gives up.
const BLOCKS_TRIED: u32 = 8;

/// How a device is used raw.
#[derive(Clone, Copy, Debug)]
pub struct RawOptions {
    /// Erased blocks that each channel keeps ready. 0 erases just before each write, as SDF did.
    pub erased_ahead: u32,
}

impl Default for RawOptions {
    fn default() -> Self {
        Self { erased_ahead: 4 }
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

/// Why a raw request was not carried out.
#[derive(Clone, Debug, thiserror::Error)]
pub enum RawError {
    /// No segment has this id.
    #[error("there is no segment {id:032x}")]
    NotFound {
        /// The id asked for.
        id: u128,
    },
    /// The id is taken: erase it first.
    #[error("segment {id:032x} is written already: erase it first")]
    Exists {
        /// The id asked for.
        id: u128,
    },
    /// A segment is written whole.
    #[error("segment {id:032x}: {len_bytes} B were handed in, a segment has {segment_bytes}")]
    Length {
        /// The id asked for.
        id: u128,
        /// Bytes handed in.
        len_bytes: usize,
        /// Bytes of a segment.
        segment_bytes: u32,
    },
    /// There is no such channel.
    #[error("there is no channel {channel}: the device has {channels}")]
    NoChannel {
        /// The channel asked for.
        channel: u16,
        /// Channels there are.
        channels: u16,
    },
    /// No block of the channel is free.
    #[error(
        "channel {channel} is full: {} blocks in use, {} bad, {} free; erase segments on it", counts.used, counts.bad,
        counts.erased + counts.dirty
    )]
    Full {
        /// The channel.
        channel: u16,
        /// Its blocks.
        counts: BlockCounts,
    },
    /// The device's reason.
    #[error(transparent)]
    Flash(#[from] FlashError),
}

struct Channel {
    scheduler: Arc<Scheduler>,
    /// A leaf lock.
    blocks: Mutex<Blocks>,
    /// An erase in the background has ended.
    erase_ended: Notify,
}

struct Inner {
    device: Device,
    geometry: Geometry,
    options: RawOptions,
    channels: Vec<Channel>,
    /// Where each segment is; `None` while it is being written. A leaf lock.
    map: Mutex<HashMap<u128, Option<BlockAddr>>>,
    numbers: Arc<AtomicU64>,
    /// For media that do not correct themselves.
    ecc: Option<PageEcc>,
    /// Segments with a page near what its code corrects. A leaf lock.
    weak: Mutex<BTreeSet<u128>>,
}

/// See the module's text. Clones are handles on the same device.
#[derive(Clone)]
pub struct RawFlash(Arc<Inner>);

impl RawFlash {
    /// Takes the whole device. Whatever it holds counts as free.
    ///
    /// # Errors
    /// [`FlashError::Geometry`] when raw media have no room for their parity.
    pub fn new(device: Device, options: RawOptions) -> Result<Self, RawError> {
        let geometry = device.geometry();
        let ecc = device.ecc().map(|ecc| PageEcc::new(geometry, ecc)).transpose()?;
        let channels = (0..geometry.channels).map(|channel| {
            let at = |block| BlockAddr { channel, block };
            let erases = (0..geometry.blocks_per_channel).map(|b| device.erase_count(at(b)).unwrap_or(0));
            let blocks = Blocks::new(erases.collect(), |block| device.is_factory_bad(at(block)));
            Channel { scheduler: Arc::default(), blocks: Mutex::new(blocks), erase_ended: Notify::new() }
        });
        let channels = channels.collect();
        let numbers = Arc::new(AtomicU64::new(1));
        let (map, weak) = (Mutex::default(), Mutex::default());
        Ok(Self(Arc::new(Inner { device, geometry, options, channels, map, numbers, ecc, weak })))
    }

    /// What correction has done so far; zeros for media that correct themselves.
    pub fn ecc_counts(&self) -> EccCounts {
        self.0.ecc.as_ref().map(PageEcc::counts).unwrap_or_default()
    }

    /// Segments that were found to have a page near what its code corrects: to be refreshed before it is lost.
    pub fn weak(&self) -> Vec<u128> {
        self.0.weak().iter().copied().collect()
    }

    /// A client with tags of its own.
    pub fn client(&self) -> Client {
        Client::new(Arc::clone(&self.0.numbers))
    }

    /// The device's shape; a block is a segment.
    pub fn geometry(&self) -> Geometry {
        self.0.geometry
    }

    /// Bytes of a segment.
    pub fn segment_bytes(&self) -> u32 {
        self.0.geometry.block_bytes()
    }

    /// The channel that an id falls to.
    pub fn channel_of(&self, id: u128) -> u16 {
        (id % u128::from(self.0.geometry.channels)) as u16
    }

    /// Where a segment lies.
    pub fn place_of(&self, id: u128) -> Option<BlockAddr> {
        self.0.map().get(&id).copied().flatten()
    }

    /// Blocks of a channel by use.
    pub fn counts(&self, channel: u16) -> BlockCounts {
        self.0.blocks(channel).counts()
    }

    /// Fewest and most erases of the good blocks of a channel.
    pub fn erase_range(&self, channel: u16) -> Option<(u32, u32)> {
        self.0.blocks(channel).erase_range()
    }

    /// Writes a segment; durable when this returns, with the tag that the request bore.
    ///
    /// # Errors
    /// [`RawError::Exists`], [`RawError::Length`], [`RawError::Full`]; [`RawError::Flash`] when the device fails in a way
    /// that another block does not mend. The id names nothing then.
    pub async fn write(&self, client: &Client, id: u128, place: Place, data: Bytes) -> Result<Tag, RawError> {
        let inner = &self.0;
        let segment_bytes = self.segment_bytes();
        if data.len() != segment_bytes as usize {
            return Err(RawError::Length { id, len_bytes: data.len(), segment_bytes });
        }
        let channel = match place {
            Place::ById => self.channel_of(id),
            Place::Channel(channel) => channel,
        };
        if channel >= inner.geometry.channels {
            return Err(RawError::NoChannel { channel, channels: inner.geometry.channels });
        }
        let ticket = client.tag().await;
        let claim = Claim::new(inner, id)?;
        let block = inner.write(channel, data).await?;
        claim.settle(block);
        self.erase_ahead(channel);
        Ok(ticket.tag)
    }

    /// Fills `buf` from `offset_bytes` of a segment on, whole read granules.
    ///
    /// # Errors
    /// [`RawError::NotFound`]; [`RawError::Flash`] with [`FlashError::Uncorrectable`] when a copy has to heal the page.
    pub async fn read(
        &self,
        client: &Client,
        id: u128,
        offset_bytes: u32,
        buf: IoBuf,
    ) -> (Result<Tag, RawError>, IoBuf) {
        let ticket = client.tag().await;
        let Some(block) = self.place_of(id) else { return (Err(RawError::NotFound { id }), buf) };
        let grant = self.0.channel(block.channel).scheduler.turn(Class::Read).await;
        let (result, buf) = self.0.read(block, offset_bytes, buf).await;
        drop(grant);
        if self.place_of(id) != Some(block) {
            // Erased meanwhile: whatever was read is not the segment's.
            return (Err(RawError::NotFound { id }), buf);
        }
        if let Ok(true) = result {
            self.0.weak().insert(id);
        }
        (result.map(|_| ticket.tag).map_err(RawError::from), buf)
    }

    /// Moves a segment to another block of its channel, bit errors mended.
    ///
    /// # Errors
    /// [`RawError::NotFound`]; [`RawError::Full`] when no block is free; [`RawError::Flash`] when a page is lost already. The
    /// segment stays where it is then.
    pub async fn refresh(&self, client: &Client, id: u128) -> Result<Tag, RawError> {
        let ticket = client.tag().await;
        let Some(old) = self.place_of(id) else { return Err(RawError::NotFound { id }) };
        let grant = self.0.channel(old.channel).scheduler.turn(Class::Read).await;
        let (result, buf) = self.0.read(old, 0, IoBuf::for_read(self.segment_bytes() as usize)).await;
        drop(grant);
        result?;
        let new = self.0.write(old.channel, buf.freeze()).await?;
        // Erased, or refreshed by somebody else, meanwhile: the copy is not wanted.
        let is_current = {
            let mut map = self.0.map();
            let is_current = map.get(&id) == Some(&Some(old));
            if is_current {
                map.insert(id, Some(new));
            }
            is_current
        };
        self.0.blocks(old.channel).release(if is_current { old.block } else { new.block });
        self.erase_ahead(old.channel);
        if !is_current {
            return Err(RawError::NotFound { id });
        }
        self.0.weak().remove(&id);
        Ok(ticket.tag)
    }

    /// Forgets a segment. Its block is erased in the background, or before it is written again.
    ///
    /// # Errors
    /// [`RawError::NotFound`].
    pub fn erase(&self, id: u128) -> Result<(), RawError> {
        let block = {
            let mut map = self.0.map();
            let Some(&Some(block)) = map.get(&id) else { return Err(RawError::NotFound { id }) };
            map.remove(&id);
            block
        };
        self.0.weak().remove(&id);
        self.0.blocks(block.channel).release(block.block);
        self.erase_ahead(block.channel);
        Ok(())
    }

    /// Erases blocks of the channel in the background until enough are ready.
    fn erase_ahead(&self, channel: u16) {
        let block = {
            let mut blocks = self.0.blocks(channel);
            if blocks.erased_soon() >= self.0.options.erased_ahead {
                return;
            }
            blocks.take_dirty()
        };
        let Some(block) = block else { return };
        let this = self.clone();
        drop(pumice_reactor::spawn(async move {
            let grant = this.0.channel(channel).scheduler.turn(Class::Erase).await;
            let result = this.0.device.erase(BlockAddr { channel, block }).await;
            drop(grant);
            match result {
                Ok(()) => this.0.blocks(channel).has_erased(block, false),
                Err(_) => this.0.blocks(channel).retire(block),
            }
            this.0.channel(channel).erase_ended.notify_one();
            this.erase_ahead(channel);
        }));
    }
}

impl Inner {
    fn channel(&self, channel: u16) -> &Channel {
        &self.channels[usize::from(channel)]
    }

    fn blocks(&self, channel: u16) -> MutexGuard<'_, Blocks> {
        self.channel(channel).blocks.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn map(&self) -> MutexGuard<'_, HashMap<u128, Option<BlockAddr>>> {
        self.map.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn weak(&self) -> MutexGuard<'_, BTreeSet<u128>> {
        self.weak.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Reads, and mends what raw media flipped; answers whether a page is weak.
    async fn read(
        &self,
        block: BlockAddr,
        offset_bytes: u32,
        buf: IoBuf,
    ) -> (Result<bool, FlashError>, IoBuf) {
        match &self.ecc {
            Some(ecc) => ecc.read(&self.device, block, offset_bytes, buf).await,
            None => {
                let (result, buf) = self.device.read(block, offset_bytes, buf).await;
                (result.map(|()| false), buf)
            }
        }
    }

    /// An erased block of the channel, now in use.
    async fn take(&self, channel: u16) -> Result<u32, RawError> {
        let mut has_waited = false;
        let taken = loop {
            let dirty = {
                let mut blocks = self.blocks(channel);
                if let Some(block) = blocks.take_erased() {
                    break Ok(block);
                }
                match blocks.take_dirty() {
                    Some(block) => Some(block),
                    None if blocks.is_erasing() => None,
                    None => break Err(RawError::Full { channel, counts: blocks.counts() }),
                }
            };
            match dirty {
                Some(dirty) => match self.erase_now(channel, dirty).await {
                    Err(FlashError::EraseFailed { .. }) => {}
                    done => break done.map(|()| dirty).map_err(RawError::from),
                },
                None => {
                    self.channel(channel).erase_ended.notified().await;
                    has_waited = true;
                }
            }
        };
        if has_waited {
            // One end of an erase wakes one writer; whoever else waits looks for itself.
            self.channel(channel).erase_ended.notify_one();
        }
        taken
    }

    /// Erases a block that was taken dirty, for use at once.
    async fn erase_now(&self, channel: u16, block: u32) -> Result<(), FlashError> {
        let grant = self.channel(channel).scheduler.turn(Class::UrgentErase).await;
        let result = self.device.erase(BlockAddr { channel, block }).await;
        drop(grant);
        let mut blocks = self.blocks(channel);
        match result {
            Ok(()) => blocks.has_erased(block, true),
            Err(_) => blocks.retire(block),
        }
        drop(blocks);
        // Somebody may wait for this very erase.
        self.channel(channel).erase_ended.notify_one();
        result
    }

    async fn write(self: &Arc<Self>, channel: u16, data: Bytes) -> Result<BlockAddr, RawError> {
        let mut tried = 0;
        loop {
            let block = BlockAddr { channel, block: self.take(channel).await? };
            tried += 1;
            match self.program(block, &data).await {
                Ok(()) => return Ok(block),
                Err(error) => {
                    self.blocks(channel).retire(block.block);
                    if tried == BLOCKS_TRIED || !matches!(error, FlashError::ProgramFailed { .. }) {
                        return Err(error.into());
                    }
                }
            }
        }
    }

    /// Programs a whole block, two chunks at a time.
    async fn program(self: &Arc<Self>, block: BlockAddr, data: &Bytes) -> Result<(), FlashError> {
        let geometry = self.geometry;
        let row = u32::from(geometry.planes_per_die) * u32::from(geometry.dies_per_block);
        let chunk_pages = (CHUNK_GROUPS * row).min(geometry.pages_per_block);
        let mut before: Option<JoinHandle<Result<(), FlashError>>> = None;
        let mut page = 0;
        let mut result = Ok(());
        while page < geometry.pages_per_block && result.is_ok() {
            let end = (page + chunk_pages).min(geometry.pages_per_block);
            let at = |page: u32| page as usize * geometry.page_bytes as usize;
            let chunk = data.slice(at(page)..at(end));
            let grant = self.channel(block.channel).scheduler.turn(Class::Program).await;
            let (this, first) = (Arc::clone(self), page);
            let next = pumice_reactor::spawn(async move {
                let result = match &this.ecc {
                    Some(ecc) => ecc.program(&this.device, block, first, chunk).await,
                    None => this.device.program(block, first, chunk, WriteSync::Durable).await,
                };
                drop(grant);
                result
            });
            if let Some(before) = before.replace(next) {
                result = joined(before).await;
            }
            page = end;
        }
        if let Some(last) = before {
            result = result.and(joined(last).await);
        }
        result
    }
}

async fn joined(handle: JoinHandle<Result<(), FlashError>>) -> Result<(), FlashError> {
    match handle.await {
        Ok(result) => result,
        Err(_) => unreachable!("nobody aborts it"),
    }
}

/// An id that is being written; free again unless it is settled.
struct Claim<'a> {
    inner: &'a Inner,
    id: u128,
    settled: bool,
}

impl<'a> Claim<'a> {
    fn new(inner: &'a Inner, id: u128) -> Result<Self, RawError> {
        let mut map = inner.map();
        if map.contains_key(&id) {
            return Err(RawError::Exists { id });
        }
        map.insert(id, None);
        Ok(Self { inner, id, settled: false })
    }

    fn settle(mut self, block: BlockAddr) {
        self.settled = true;
        self.inner.map().insert(self.id, Some(block));
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        if !self.settled {
            self.inner.map().remove(&self.id);
        }
    }
}
