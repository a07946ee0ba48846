//! Which moved frames a recovery must replay.
//!
//! A moved record's new pointer lives in the client's memory until the client's next checkpoint. The frame must be
//! replayed until then, although its sequence numbers may be old. Each frame is noted with the newest sequence
//! number at the time the client had applied it (its ticket was dropped); a checkpoint that covers a later one
//! covers the frame.

use std::collections::BTreeMap;

#[derive(Default)]
pub(crate) struct Moves {
    /// By frame number: when it was applied, once it was.
    frames: BTreeMap<u64, Option<u64>>,
}

impl Moves {
    pub(crate) fn begin(&mut self, frame: u64) {
        self.frames.insert(frame, None);
    }

    pub(crate) fn forget(&mut self, frame: u64) {
        self.frames.remove(&frame);
    }

    pub(crate) fn applied(&mut self, frame: u64, last_seq: u64) {
        if let Some(applied) = self.frames.get_mut(&frame) {
            *applied = Some(last_seq);
        }
    }

    /// First frame that must be replayed under a checkpoint up to `replay_from`, if any.
    pub(crate) fn floor(&mut self, replay_from: u64) -> Option<u64> {
        // Equality keeps the frame: the checkpoint may have been taken just before it was applied.
        self.frames.retain(|_, applied| applied.is_none_or(|applied| applied >= replay_from));
        self.frames.first_key_value().map(|(&frame, _)| frame)
    }
}
