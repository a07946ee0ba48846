//! Commit segments that a checkpoint covers. A recovery does not read them, unless it has to know which frames lie there: where
//! another segment of several that were written at once ends early, and the numbers of those that it may lack are nowhere else.

use std::collections::VecDeque;
use std::sync::Arc;

use pumice_flash::FlashError;

use crate::inner::Inner;
use crate::layout::meta::SegmentState;
use crate::{SegmentId, Stream, fetch};

/// Segments that are read at most, for each that was written at once. What is asked for was written shortly before the crash: beside a
/// segment that was still open then, or had just been filled.
const SEARCHED_MAX: usize = 4;

/// The segments, newest first.
pub(crate) struct Covered {
    waiting: VecDeque<Candidate>,
}

struct Candidate {
    id: SegmentId,
    life: u64,
    end: u32,
}

impl Covered {
    /// All but those that were read.
    pub(crate) fn new(inner: &Inner, is_read: impl Fn(SegmentId) -> bool) -> Self {
        let mut newest: Vec<(u64, Candidate)> = inner
            .table()
            .entries()
            .filter(|(id, entry)| {
                entry.state == SegmentState::Sealed && entry.stream == Stream::Commit as u8 && !is_read(*id)
            })
            .map(|(id, entry)| (entry.last_seq, Candidate { id, life: entry.life, end: entry.end }))
            .collect();
        newest.sort_by_key(|(last_seq, _)| std::cmp::Reverse(*last_seq));
        newest.truncate(SEARCHED_MAX * inner.lanes);
        Self { waiting: newest.into_iter().map(|(_, candidate)| candidate).collect() }
    }

    /// The numbers of the next one's frames, whole or not; `None` after the last. What the drive does not answer for stays in doubt.
    pub(crate) async fn next(&mut self, inner: &Arc<Inner>) -> Result<Option<Vec<u64>>, FlashError> {
        let Some(Candidate { id, life, end }) = self.waiting.pop_front() else { return Ok(None) };
        Ok(Some(fetch::numbers(inner, id, life, end).await?))
    }
}
