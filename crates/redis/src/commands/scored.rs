//! Members that are answered by score, and came in another order: ZUNION, ZINTER, ZDIFF.
//!
//! They are held in memory and sorted in runs as they come, so that nobody waits while many are sorted; the runs are merged when
//! the reply is written. Where they are more than memory takes, the first of them are held and answered, the others counted; who
//! brings them does so again for the next ones.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;

use bytes::Bytes;
use pumice_reactor::yield_now;

use super::zset_range::{array_len, write_member};
use crate::collected::Collected;
use crate::context::Ctx;
use crate::errors::Failure;

/// Members of a run: what one core sorts in half a millisecond.
const RUN: usize = 4096;
/// What a member takes in memory beside its bytes.
const MEMBER_BYTES: usize = size_of::<Scored>() + 32;
/// Runs that are cut off between two looks at what else there is to do.
const RUNS_AT_ONCE: usize = 4;
/// The inputs are read so often at most: what takes more is better stored.
const PASSES_MAX: u64 = 16;

#[derive(Clone)]
struct Scored {
    score: f64,
    member: Bytes,
}

impl Scored {
    /// Where a member with this score stands beside this one.
    fn order_of(&self, score: f64, member: &[u8]) -> Ordering {
        // Scores are numbers, and zeros are alike.
        let by_score = score.partial_cmp(&self.score).unwrap_or(Ordering::Equal);
        by_score.then_with(|| member.cmp(&self.member))
    }
}

impl Ord for Scored {
    fn cmp(&self, other: &Self) -> Ordering {
        other.order_of(self.score, &self.member)
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

/// A result that is being collected, and answered, in one pass over the inputs or several.
pub(super) struct ByScore {
    run: Vec<Scored>,
    sorted: Vec<Vec<Scored>>,
    /// What these take.
    bytes: u64,
    /// They may take so much.
    bytes_max: u64,
    /// This pass holds nothing behind it.
    last: Option<Scored>,
    /// Members up to this one are answered.
    answered_to: Option<Scored>,
    answered: u64,
    /// Members of the whole result, once the first pass has ended.
    count: u64,
    collected: Collected,
    by: &'static str,
}

impl ByScore {
    /// Nothing yet; `by`: the command.
    pub(super) fn new(ctx: &Ctx, by: &'static str) -> Self {
        Self {
            run: Vec::new(),
            sorted: Vec::new(),
            bytes: 0,
            // The other half is for other clients.
            bytes_max: ctx.server.options.output_bytes_max / 2,
            last: None,
            answered_to: None,
            answered: 0,
            count: 0,
            collected: Collected::new(ctx.server.clone(), by),
            by,
        }
    }

    /// One more member of this pass. True when this was too much: call [`ByScore::shrink`].
    #[must_use]
    pub(super) fn add(&mut self, member: &[u8], score: f64) -> bool {
        if self.answered_to.is_none() {
            self.count += 1;
        }
        if self.last.as_ref().is_some_and(|last| last.order_of(score, member).is_gt())
            || self.answered_to.as_ref().is_some_and(|answered| answered.order_of(score, member).is_le())
        {
            return false;
        }
        // A copy: what a scan answers is a part of what it has read.
        self.run.push(Scored { score, member: Bytes::copy_from_slice(member) });
        self.bytes += (member.len() + MEMBER_BYTES) as u64;
        if self.run.len() == RUN {
            self.end_run();
        }
        self.bytes > self.bytes_max || !self.collected.can_hold(self.bytes)
    }

    fn end_run(&mut self) {
        let mut run = std::mem::take(&mut self.run);
        if !run.is_empty() {
            run.sort_unstable();
            self.sorted.push(run);
        }
    }

    /// Keeps the first half or so, one at least: each run's middle stands for the run.
    pub(super) async fn shrink(&mut self) {
        self.end_run();
        self.bytes_max = self.bytes_max.min(self.bytes);
        let mut middles: Vec<_> =
            self.sorted.iter().map(|run| (&run[(run.len() - 1) / 2], run.len())).collect();
        middles.sort_unstable();
        let half = middles.iter().map(|(_, len)| len).sum::<usize>() / 2;
        let mut passed = 0;
        let pivot = middles.iter().find(|(_, len)| {
            passed += len;
            passed >= half
        });
        let (pivot, _) = pivot.expect("all of them are half of them");
        let pivot = Scored::clone(pivot);
        for (at, run) in self.sorted.iter_mut().enumerate() {
            let kept = run.partition_point(|member| *member <= pivot);
            self.bytes -=
                run.drain(kept..).map(|gone| (gone.member.len() + MEMBER_BYTES) as u64).sum::<u64>();
            run.shrink_to_fit();
            if at % RUNS_AT_ONCE == 0 {
                yield_now().await;
            }
        }
        self.sorted.retain(|run| !run.is_empty());
        self.last = Some(pivot);
    }

    /// A pass has ended: answers what it holds. True when that was the last one.
    pub(super) async fn reply(&mut self, ctx: &mut Ctx, with_scores: bool) -> Result<bool, Failure> {
        self.end_run();
        assert!(
            !self.sorted.is_empty() || self.answered == self.count,
            "each pass over one moment finds what the first one counted"
        );
        if self.answered_to.is_none() {
            let held: usize = self.sorted.iter().map(Vec::len).sum();
            if self.count > held as u64 * PASSES_MAX {
                return Err(Failure::new(format!(
                    "OOM {} members are more than {PASSES_MAX} times what memory (--memory) has room to sort now, {held} of them: \
                     store them, by {}STORE",
                    self.count, self.by
                )));
            }
            let len = array_len(&ctx.reply, self.count, with_scores);
            ctx.reply.array(len);
        }
        let last = self.sorted.iter().filter_map(|run| run.last()).max().cloned();
        let mut runs: Vec<_> = std::mem::take(&mut self.sorted).into_iter().map(Vec::into_iter).collect();
        let mut next: BinaryHeap<Reverse<(Scored, usize)>> = runs
            .iter_mut()
            .enumerate()
            .filter_map(|(run, rest)| Some(Reverse((rest.next()?, run))))
            .collect();
        while let Some(mut first) = next.peek_mut() {
            let Reverse((Scored { score, member }, run)) = &mut *first;
            write_member(&mut ctx.reply, member, with_scores.then_some(*score));
            self.answered += 1;
            match runs[*run].next() {
                Some(following) => first.0.0 = following,
                None => drop(PeekMut::pop(first)),
            }
            ctx.drain().await?;
        }
        (self.bytes, self.last, self.answered_to) = (0, None, last);
        Ok(self.answered == self.count)
    }
}
