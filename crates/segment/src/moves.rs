//! Which moved frames a recovery must replay.
//!
//! A moved record's new pointer lives in the client's memory until the client's next checkpoint. The frame must be
//! replayed until then, although its sequence numbers may be old. Each frame is noted with the newest sequence
//! number at the time the client had applied it (its ticket was dropped); a checkpoint that covers a later one
//! covers the frame.
//!
//! Numbers are taken here, so that a metadata record never says "no frame below this number is wanted" of one that was
//! taken and is not noted yet. One that was not written after all is not used again.

use std::collections::BTreeMap;

#[derive(Default)]
pub(crate) struct Moves {
    /// By frame number: when it was applied, once it was.
    frames: BTreeMap<u64, Option<u64>>,
    next: u64,
}

impl Moves {
    /// The next frame's number.
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    pub(crate) fn set_next(&mut self, frame: u64) {
        self.next = frame;
    }

    /// A frame is about to be written: answers its number.
    pub(crate) fn begin(&mut self) -> u64 {
        let frame = self.next;
        self.next += 1;
        self.frames.insert(frame, None);
        frame
    }

    /// A frame that recovery found, applied by now.
    pub(crate) fn found(&mut self, frame: u64, last_seq: u64) {
        self.frames.insert(frame, Some(last_seq));
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
