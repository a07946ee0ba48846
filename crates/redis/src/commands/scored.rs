//! Members that are answered by score, and came in another order: ZUNION, ZINTER, ZDIFF.
//!
//! They are held in memory, as much as replies may take, and sorted in runs as they come, so that nobody waits while many are sorted;
//! the runs are merged when the reply is written.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::vec::IntoIter;

use bytes::Bytes;

use super::zset_range::{array_len, write_member};
use crate::collected::Collected;
use crate::context::Ctx;
use crate::errors::CommandResult;

/// Members of a run: what one core sorts in half a millisecond.
const RUN: usize = 4096;
/// What a member takes in memory beside its bytes.
const MEMBER_BYTES: usize = size_of::<Scored>() + 32;

struct Scored {
    score: f64,
    member: Bytes,
}

impl Ord for Scored {
    fn cmp(&self, other: &Self) -> Ordering {
        // Scores are numbers, and zeros are alike.
        let by_score = self.score.partial_cmp(&other.score).unwrap_or(Ordering::Equal);
        by_score.then_with(|| self.member.cmp(&other.member))
    }
}

impl PartialOrd for Scored {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Scored {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Scored {}

/// A result that is being collected.
pub(super) struct ByScore {
    run: Vec<Scored>,
    sorted: Vec<IntoIter<Scored>>,
    count: u64,
    bytes: u64,
    collected: Collected,
}

impl ByScore {
    /// Nothing yet; `by`: the command.
    pub(super) fn new(ctx: &Ctx, by: &'static str) -> Self {
        let collected = Collected::new(ctx.server.clone(), by);
        Self { run: Vec::new(), sorted: Vec::new(), count: 0, bytes: 0, collected }
    }

    /// One more member; an error where they become too many.
    pub(super) fn add(&mut self, member: &[u8], score: f64) -> CommandResult {
        // A copy: what a scan answers is a part of what it has read.
        self.run.push(Scored { score, member: Bytes::copy_from_slice(member) });
        self.count += 1;
        self.bytes += (member.len() + MEMBER_BYTES) as u64;
        if self.run.len() == RUN {
            self.end_run();
        }
        self.collected.hold(self.bytes)
    }

    fn end_run(&mut self) {
        let mut run = std::mem::take(&mut self.run);
        run.sort_unstable();
        self.sorted.push(run.into_iter());
    }

    /// Answers them.
    pub(super) async fn reply(mut self, ctx: &mut Ctx, with_scores: bool) -> CommandResult {
        self.end_run();
        let len = array_len(&ctx.reply, self.count, with_scores);
        ctx.reply.array(len);
        let firsts = self.sorted.iter_mut().enumerate();
        let mut next: BinaryHeap<Reverse<(Scored, usize)>> =
            firsts.filter_map(|(run, rest)| Some(Reverse((rest.next()?, run)))).collect();
        while let Some(mut first) = next.peek_mut() {
            let Reverse((Scored { score, member }, run)) = &mut *first;
            write_member(&mut ctx.reply, member, with_scores.then_some(*score));
            match self.sorted[*run].next() {
                Some(following) => first.0.0 = following,
                None => drop(std::collections::binary_heap::PeekMut::pop(first)),
            }
            ctx.drain().await?;
        }
        Ok(())
    }
}
