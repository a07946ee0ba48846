//! Blocks for checkpoints that failed are made up for by others of the window.
//!
//! 1. Before a checkpoint is written, free blocks of the window are kept for it until there are as many as on a new drive:
//!    first those that hold nothing, then those whose segments were given up, which are erased for it.
//! 2. Where all hold segments one of these is moved away in the background, and its block kept when it is free.
//! 3. While the drive's newest checkpoint is a clean one without a mark (its opening could not write it), nothing that the
//!    checkpoint calls erased may be touched: a crash would believe it. Nothing is written then but another checkpoint.
//!
//! A drive that has neither a free block in the window nor room to move anything there says so, and goes on when something
//! is erased. When the whole window is bad it still opens and reads.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use pumice_flash::{BlockAddr, FlashError};

use super::blocks::{BlockState, Role};
use super::durable::UnderWay;
use super::{Class, Inner, RawError, RawFlash, area};

impl Inner {
    /// Whether fewer blocks are kept for checkpoints than on a new drive.
    fn wants_recruits(&self) -> bool {
        (self.kept_blocks().len() as u32) < area::kept_count(self.media.geometry())
    }

    /// The block of the window to keep next.
    fn candidate(&self) -> Option<(u32, BlockState)> {
        let rank = |state: BlockState| match state.role() {
            Role::Dirty => Some(0),
            Role::Erased if !self.is_unmarked.load(Ordering::Acquire) => Some(1),
            Role::Dead => Some(2),
            _ => None,
        };
        let blocks = self.window_blocks().into_iter();
        let ranked = blocks.filter_map(|(number, state)| Some((rank(state)?, state.erases(), number, state)));
        let best = ranked.min_by_key(|&(rank, erases, number, _)| (rank, erases, number));
        best.map(|(_, _, number, state)| (number, state))
    }

    /// Keeps free blocks for checkpoints until there are enough; answers whether there are. By whoever has the turn to write
    /// a checkpoint.
    ///
    /// # Errors
    /// The device's, but for what says that a block is bad.
    pub(super) async fn recruit(self: &Arc<Self>) -> Result<bool, RawError> {
        // Others take free blocks, too: whoever finds none has looked often enough.
        for _ in 0..2 * area::window(self.media.geometry()) {
            if !self.wants_recruits() {
                return Ok(true);
            }
            let Some((number, state)) = self.candidate() else { return Ok(false) };
            let at = self.media.geometry().block(number);
            if state.role() == Role::Dead {
                self.free_dead(at).await?;
            } else {
                // False: somebody was faster.
                self.blocks(at.channel).keep(at.block);
            }
        }
        Ok(!self.wants_recruits())
    }

    /// Erases a block whose segment was given up, and keeps it.
    async fn free_dead(self: &Arc<Self>, at: BlockAddr) -> Result<(), RawError> {
        if !self.blocks(at.channel).take_dead(at.block) {
            return Ok(());
        }
        match self.erase_block(at, Class::UrgentErase, false).await {
            Ok(()) => {
                self.blocks(at.channel).keep(at.block);
                Ok(())
            }
            Err(FlashError::EraseFailed { .. } | FlashError::ProgramFailed { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

impl RawFlash {
    /// Moves a segment out of the window, so that its block can be kept for checkpoints, if there is need and no other way.
    pub(super) async fn clear_window(&self) {
        let inner = &self.0;
        if !inner.wants_recruits() || inner.candidate().is_some() {
            return;
        }
        let mut held: Vec<(u32, BlockState)> = inner.window_blocks();
        held.retain(|(_, state)| state.role() == Role::Used);
        held.sort_by_key(|(number, state)| (state.erases(), *number));
        for (number, _) in held {
            let borne = inner.map().borne(number).filter(|(_, is_live)| *is_live);
            let Some((id, _)) = borne else { continue };
            match self.move_segment(id, Class::Read).await {
                // The next checkpoint finds its block.
                Ok(()) => return,
                // Of another channel, or one that reads, there may be more to move.
                Err(
                    RawError::Full { .. }
                    | RawError::NotFound { .. }
                    | RawError::Unverified { .. }
                    | RawError::Flash(FlashError::Uncorrectable { .. } | FlashError::ProgramFailed { .. }),
                ) => {}
                // The device's trouble, or the drive is being closed.
                Err(_) => return,
            }
        }
    }

    /// [`RawFlash::clear_window`] in the background; once at a time.
    pub(super) fn clear_window_in_background(&self) {
        let Ok(under_way) = UnderWay::new(&self.0) else { return };
        if self.0.is_clearing.swap(true, Ordering::AcqRel) {
            return;
        }
        let this = self.clone();
        drop(pumice_reactor::spawn(async move {
            this.clear_window().await;
            this.0.is_clearing.store(false, Ordering::Release);
            let turn = this.0.writing_checkpoint.acquire(1).await;
            // Whoever writes the next checkpoint meets the device's trouble, and is told.
            drop(this.0.recruit().await);
            drop((turn, under_way));
        }));
    }
}
