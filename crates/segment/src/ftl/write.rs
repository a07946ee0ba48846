//! Writing segments: take a block, program it, and only then say so.
//!
//! The last page bears the tag that makes the segment count after a restart. It is programmed alone, when all before it is
//! durable: on files the pages of one write reach the media in any order, and two chunks are under way at a time.

use std::sync::Arc;

use bytes::Bytes;
use pumice_flash::{BlockAddr, FlashError};
use pumice_reactor::{IoBuf, JoinHandle};

use super::durable::UnderWay;
use super::image::Image;
use super::sums::Life;
use super::tag::{BlockTag, TagEnd, TagKind};
use super::{ChannelSpace, Class, Client, Inner, RawError, RawFlash, Tag, joined};

/// Plane groups per die in one chunk of a program: what a read may have to wait for, twice.
const CHUNK_GROUPS: u32 = 4;
/// The same on files and block devices, which have no dies to keep busy, and make each write durable by itself.
const FILE_CHUNK_BYTES: u32 = 2 << 20;
/// Blocks that one write tries before it gives up.
const BLOCKS_TRIED: u32 = 8;

impl RawFlash {
    /// Moves a segment to another block of its channel, bit errors mended.
    ///
    /// # Errors
    /// [`RawError::NotFound`]; [`RawError::Full`] when no block is free; [`RawError::Flash`] when a page is lost already. The
    /// segment stays where it is then.
    pub async fn refresh(&self, client: &Client, id: u128) -> Result<Tag, RawError> {
        let ticket = client.tag().await;
        let this = self.clone();
        joined(pumice_reactor::spawn(async move {
            let result = this.move_segment(id, Class::Read).await;
            result.map(|()| ticket.tag)
        }))
        .await
    }

    /// [`RawFlash::refresh`], reading in the turn of this class.
    pub(crate) async fn move_segment(&self, id: u128, class: Class) -> Result<(), RawError> {
        let inner = &self.0;
        let under_way = UnderWay::new(inner)?;
        let number = loop {
            let begun = {
                let mut map = inner.map();
                let Some(block) = map.get(id) else { return Err(RawError::NotFound { id }) };
                map.begin_move(id).then_some(block)
            };
            match begun {
                Some(block) => break block,
                None => inner.until_changed().await,
            }
        };
        let old = self.geometry().block(number);
        let copied = self.copy(id, class).await;
        let copy = copied.as_ref().ok().map(|&copy| self.geometry().number(copy));
        let unwanted = inner.map().end_move(id, number, copy);
        inner.changed.notify_all();
        if let Some(unwanted) = unwanted {
            // An erase may have released the old block; the copy is nobody else's.
            inner.release(self.geometry().block(unwanted));
        }
        drop(under_way);
        self.erase_ahead(old.channel);
        copied?;
        if unwanted == Some(number) { Ok(()) } else { Err(RawError::NotFound { id }) }
    }

    /// Bytes that are read or programmed in one turn.
    pub(super) fn chunk_bytes(&self) -> u32 {
        self.0.chunk_pages() * self.geometry().page_bytes
    }

    async fn copy(&self, id: u128, class: Class) -> Result<BlockAddr, RawError> {
        let inner = &self.0;
        let Some(from) = inner.life_of(id) else { return Err(RawError::NotFound { id }) };
        let channel = from.block.channel;
        let mut whole = IoBuf::zeroed(self.segment_bytes() as usize);
        let chunk_bytes = self.chunk_bytes() as usize;
        for (at, out) in (0..).step_by(chunk_bytes).zip(whole.chunks_mut(chunk_bytes)) {
            let grant = inner.channel(channel).scheduler.turn(class).await;
            let (result, buf) = inner.media.read_segment(&from, at, IoBuf::for_read(out.len())).await;
            drop(grant);
            if let Err(failed) = result {
                // An erase does not wait for its end: what was read may be what came after it.
                let is_there = inner.life_of(id) == Some(from);
                return Err(if is_there { inner.failed(failed, &from) } else { failed.of(&from) });
            }
            out.copy_from_slice(&buf);
        }
        inner.write(channel, id, whole.freeze()).await
    }
}

impl Inner {
    /// Writes a segment to a block of the channel, which is in use when this returns and bears `id` in name only: the
    /// caller enters it in the map.
    pub(super) async fn write(
        self: &Arc<Self>,
        channel: u16,
        id: u128,
        data: Bytes,
    ) -> Result<BlockAddr, RawError> {
        let place = match &self.places {
            Some(places) => Some(places.acquire(1).await),
            None => None,
        };
        let mut tried = 0;
        let written = loop {
            let block = match self.take(channel).await {
                Ok(block) => BlockAddr { channel, block },
                Err(error) => break Err(error),
            };
            tried += 1;
            let tag = BlockTag {
                kind: TagKind::Segment,
                drive_id: self.drive_id,
                id,
                sequence: self.next_sequence(),
                erases: self.blocks(channel).state(block.block).erases(),
                end: TagEnd::SegmentBytes(data.len() as u32),
            };
            match self.program(block, tag, &data).await {
                Ok(()) => {
                    self.blocks(channel).has_written(block.block);
                    break Ok(block);
                }
                Err(error @ FlashError::ProgramFailed { .. }) => {
                    self.retire(block);
                    if tried == BLOCKS_TRIED {
                        break Err(error.into());
                    }
                }
                Err(error) => {
                    // Not the block's fault. All of it may be there, to be found by a restart: it bears the id until it is erased.
                    self.media.device().finish(block);
                    self.blocks(channel).give_up(block.block);
                    self.map().insert(self.number(channel, block.block), id, false);
                    break Err(error.into());
                }
            }
        };
        drop(place);
        // Nothing is answered before the blocks that failed are known to be bad after a restart, too, and before what a
        // discard of the id left behind is gone: were this segment erased one day, the older one would be there again.
        let settled = match self.save_bad().await {
            // Checkpoints that are worn do not take the drive with them: blocks may be met bad twice.
            Ok(()) | Err(RawError::CheckpointsWorn { .. }) => {
                self.erase_bearers(id, Class::UrgentErase).await
            }
            Err(error) => Err(error),
        };
        if let (Ok(block), Err(error)) = (&written, settled) {
            self.blocks(channel).release(block.block);
            self.map().insert(self.number(channel, block.block), id, false);
            return Err(error);
        }
        self.counters.count(|counts| counts.writes += u64::from(written.is_ok()));
        written
    }

    /// An erased block of the channel, to be written.
    async fn take(self: &Arc<Self>, channel: u16) -> Result<u32, RawError> {
        let mut has_waited = false;
        let taken = loop {
            let dirty = {
                let mut blocks = self.blocks(channel);
                // Without erases ahead of need this write is the only occasion to use what is less worn.
                let fresher = self.options.erased_ahead == 0 && blocks.is_dirty_fresher();
                if !fresher && let Some(block) = blocks.take_erased() {
                    break Ok(block);
                }
                match blocks.take_dirty() {
                    Some(block) => Some(block),
                    None if blocks.is_erasing() => None,
                    None => {
                        let space = ChannelSpace::of(blocks.states(), &self.media.layout());
                        break Err(RawError::Full { channel, space });
                    }
                }
            };
            match dirty {
                Some(block) => {
                    let at = BlockAddr { channel, block };
                    let erased = self.erase_block(at, Class::UrgentErase, true).await;
                    match erased {
                        Ok(()) => break Ok(block),
                        Err(FlashError::EraseFailed { .. } | FlashError::ProgramFailed { .. }) => {}
                        Err(error) => break Err(error.into()),
                    }
                }
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

    fn chunk_pages(&self) -> u32 {
        let geometry = self.media.geometry();
        let row = u32::from(geometry.planes_per_die) * u32::from(geometry.dies_per_block);
        let pages = match self.media.device().has_own_blocks() {
            true => CHUNK_GROUPS * row,
            false => FILE_CHUNK_BYTES / geometry.page_bytes,
        };
        pages.min(geometry.pages_per_block)
    }

    /// Programs a whole block, two chunks at a time, the last page last. A block that is too worn to keep what was written
    /// counts as failed.
    async fn program(
        self: &Arc<Self>,
        block: BlockAddr,
        tag: BlockTag,
        data: &Bytes,
    ) -> Result<(), FlashError> {
        let chunk_pages = self.chunk_pages();
        let number = self.media.geometry().number(block);
        let life = Life { block, number, erases: tag.erases, drive_id: self.drive_id, id: tag.id };
        let image = Arc::new(self.media.image(life, tag, data.clone()));
        let last = image.last();
        let mut before: Option<JoinHandle<Result<(), FlashError>>> = None;
        let (mut page, mut result) = (0, Ok(()));
        while page < last && result.is_ok() {
            let (first, end) = (page, image.end(page, chunk_pages));
            let grant = self.channel(block.channel).scheduler.turn(Class::Program).await;
            let (this, image) = (Arc::clone(self), Arc::clone(&image));
            let next = pumice_reactor::spawn(async move {
                let result = this.media.program_piece(&image, first, end).await;
                drop(grant);
                result
            });
            if let Some(before) = before.replace(next) {
                result = joined(before).await;
            }
            page = end;
        }
        if let Some(before) = before {
            result = result.and(joined(before).await);
        }
        result?;
        let grant = self.channel(block.channel).scheduler.turn(Class::Program).await;
        let result = self.media.program_piece(&image, last, image.end(last, chunk_pages)).await;
        drop(grant);
        result?;
        self.keep_sums(&image);
        let turn = async || self.channel(block.channel).scheduler.turn(Class::Read).await;
        let pages = 0..self.media.geometry().pages_per_block;
        crate::wear::check_in_turns(self.media.device(), block, pages, turn).await
    }

    /// What was just written is what is read next, or at least as likely as anything.
    fn keep_sums(&self, image: &Image) {
        if let Some(sums) = &image.sums {
            self.media.tables.insert(image.life(), Arc::clone(sums));
        }
    }
}
