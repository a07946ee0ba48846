//! Giving segments up: erased for good, or discarded.
//!
//! An *erase* returns when no restart can find the segment again: every block that bears its id, also those that a refresh
//! or an earlier discard left behind, is erased or known to be bad. A *discard* returns at once and is a hint: after a crash
//! the segment may be there again, whole. Both are scheduled behind reads and programs; SDF has the first (ASPLOS 2014,
//! section 2.2), an SSD's TRIM is the second.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use pumice_flash::{BlockAddr, FlashError};

use super::durable::UnderWay;
use super::tag::{BlockTag, TagEnd, TagKind};
use super::{Class, Client, Inner, RawError, RawFlash, Tag, joined};

impl RawFlash {
    /// Erases a segment: durable when this returns. Nobody reads it from the call on.
    ///
    /// # Errors
    /// [`RawError::NotFound`]; [`RawError::Flash`] when it may be there again after a restart.
    pub async fn erase(&self, client: &Client, id: u128) -> Result<Tag, RawError> {
        let ticket = client.tag().await;
        let under_way = UnderWay::new(&self.0)?;
        let block = self.kill(id)?;
        let this = self.clone();
        joined(pumice_reactor::spawn(async move {
            while this.0.map().is_moving(id) {
                this.0.until_changed().await;
            }
            this.0.erase_bearers(id, Class::Erase).await?;
            drop(under_way);
            this.erase_ahead(block.channel);
            Ok(ticket.tag)
        }))
        .await
    }

    /// Forgets a segment. Its block is erased in the background, or before it is written again; until then a crash may bring
    /// the segment back.
    ///
    /// # Errors
    /// [`RawError::NotFound`].
    pub fn discard(&self, id: u128) -> Result<(), RawError> {
        let _under_way = UnderWay::new(&self.0)?;
        let block = self.kill(id)?;
        self.erase_ahead(block.channel);
        Ok(())
    }

    fn kill(&self, id: u128) -> Result<BlockAddr, RawError> {
        let killed = self.0.map().kill(id);
        let block = self.geometry().block(killed.ok_or(RawError::NotFound { id })?);
        self.0.release(block);
        Ok(block)
    }

    /// Erases blocks of the channel in the background until enough are ready.
    pub(super) fn erase_ahead(&self, channel: u16) {
        let Ok(under_way) = UnderWay::new(&self.0) else { return };
        let block = {
            let mut blocks = self.0.blocks(channel);
            if !blocks.wants_erase(self.0.options.erased_ahead) {
                return;
            }
            blocks.take_dirty()
        };
        let Some(block) = block else { return };
        let this = self.clone();
        drop(pumice_reactor::spawn(async move {
            let erased = this.0.erase_block(BlockAddr { channel, block }, Class::Erase, false).await;
            let is_done = match erased {
                Ok(()) => false,
                Err(FlashError::EraseFailed { .. } | FlashError::ProgramFailed { .. }) => {
                    this.0.save_bad().await.is_err()
                }
                // The device's trouble: whoever writes next meets it again, and is told.
                Err(_) => true,
            };
            drop(under_way);
            if !is_done {
                this.erase_ahead(channel);
            }
        }));
    }
}

impl Inner {
    /// A block's segment is no longer wanted.
    pub(super) fn release(&self, block: BlockAddr) {
        self.blocks(block.channel).release(block.block);
        self.changed.notify_all();
    }

    /// Erases every block that bears `id` and does not hold the segment: no restart finds it there when this returns.
    pub(super) async fn erase_bearers(self: &Arc<Self>, id: u128, class: Class) -> Result<(), RawError> {
        let bearers = self.map().dead_bearers(id);
        if bearers.is_empty() {
            return Ok(());
        }
        let bad = self.bad_found.load(Ordering::Acquire);
        for bearer in bearers {
            self.erase_bearer(bearer, id, class).await?;
        }
        // A block that does not erase keeps its tags; that it is bad has to be known before the answer.
        if self.bad_found.load(Ordering::Acquire) > bad { self.save_bad().await } else { Ok(()) }
    }

    async fn erase_bearer(self: &Arc<Self>, number: u32, id: u128, class: Class) -> Result<(), RawError> {
        let block = self.media.geometry().block(number);
        while self.map().is_dead_bearer(number, id) {
            let is_ours = self.blocks(block.channel).take_dead(block.block);
            if !is_ours {
                self.until_changed().await;
                continue;
            }
            match self.erase_block(block, class, false).await {
                Ok(()) | Err(FlashError::EraseFailed { .. } | FlashError::ProgramFailed { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Erases a block that was taken for it; for a write that takes it at once if `taken`.
    pub(super) async fn erase_block(
        self: &Arc<Self>,
        block: BlockAddr,
        class: Class,
        taken: bool,
    ) -> Result<(), FlashError> {
        let grant = self.channel(block.channel).scheduler.turn(class).await;
        let tag = BlockTag {
            kind: TagKind::Erased,
            drive_id: self.drive_id,
            id: 0,
            sequence: self.next_sequence(),
            erases: self.blocks(block.channel).state(block.block).erases() + 1,
            end: TagEnd::SegmentBytes(0),
        };
        let result = self.media.erase(block, &tag).await;
        drop(grant);
        let number = self.number(block.channel, block.block);
        match &result {
            Ok(()) => {
                self.map().remove(number);
                self.blocks(block.channel).has_erased(block.block, taken);
                self.count_erase();
            }
            Err(FlashError::EraseFailed { .. } | FlashError::ProgramFailed { .. }) => {
                self.map().remove(number);
                self.retire(block);
            }
            Err(_) => {
                let bears = self.map().borne(number).is_some();
                self.blocks(block.channel).erase_failed(block.block, bears);
            }
        }
        // Somebody may wait for this very erase.
        self.channel(block.channel).erase_ended.notify_one();
        self.changed.notify_all();
        result
    }

    /// A block failed: it is not used again.
    pub(super) fn retire(&self, block: BlockAddr) {
        self.media.device().finish(block);
        self.blocks(block.channel).retire(block.block);
        self.bad_found.fetch_add(1, Ordering::AcqRel);
    }
}
