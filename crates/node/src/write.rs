//! Writing a batch: to one drive as its engine does, to several at once or to none.
//!
//! Over several drives the engines' [`write_together`] writes all parts or none, so there is nothing to be undone when a drive is
//! full, nor when the caller is given up while it waits. Who waits for room lines up on the drive that refused, and keeps its
//! place while it waits on a drive of a higher index: what it was called for is not given to others, and whoever waits for one
//! ahead of it waits on a drive behind.
//!
//! Rejected: part by part, waiting in between. An element that RPOPLPUSH took from one drive was gone when the other was full.

use std::borrow::Cow;

use pumice_kv::{Batch, InLine, Turn, write_together};
use smallvec::SmallVec;

use crate::batch::NodeBatch;
use crate::error::WriteError;
use crate::gate::Gate;
use crate::node::Node;

type Parts<'b> = SmallVec<[(u16, &'b Batch); 2]>;

impl Node {
    /// Writes `batch`, all of it or nothing: visible on return, durable when the gate opens. Never waits. `turn`: the caller's, on
    /// whichever drive it was called last.
    pub fn write_in(&self, batch: &NodeBatch, turn: &mut Turn) -> Result<Gate, WriteError> {
        let mut parts = batch.parts();
        let Some((drive, part)) = parts.next() else { return Ok(Gate::open()) };
        if parts.next().is_some() {
            return self
                .write_over(&batch.parts().collect(), turn, |_| false)
                .map_err(|(_, refused)| refused);
        }
        let written = self.store(drive).write_in(part, turn);
        self.gate_of(drive, written)
    }

    /// [`Node::write_ready_in`] of who has nothing to write behind it.
    pub async fn write_ready(&self, batch: &NodeBatch) -> Result<Gate, WriteError> {
        self.write_ready_in(batch, &mut Turn::default()).await
    }

    /// [`Node::write_in`] that waits while a drive is behind, or others wait for room there.
    pub async fn write_ready_in(&self, batch: &NodeBatch, turn: &mut Turn) -> Result<Gate, WriteError> {
        let mut parts = batch.parts();
        let Some((drive, part)) = parts.next() else { return Ok(Gate::open()) };
        if parts.next().is_some() {
            return Box::pin(self.write_over_when_there_is_room(batch.parts().collect(), turn)).await;
        }
        let written = self.store(drive).write_ready_in(part, turn).await;
        self.gate_of(drive, written)
    }

    fn gate_of(
        &self,
        drive: u16,
        written: Result<pumice_kv::Seq, pumice_kv::WriteError>,
    ) -> Result<Gate, WriteError> {
        match written {
            Ok(seq) => {
                let mut gate = Gate::open();
                gate.add(drive, seq);
                Ok(gate)
            }
            Err(source) => Err(self.refused(drive, source)),
        }
    }

    fn refused(&self, drive: u16, source: pumice_kv::WriteError) -> WriteError {
        self.note_refused(drive, &source);
        WriteError { drive, name: self.name(drive), source }
    }

    /// Writes parts on several drives, by rising drive. `was_called`: for which of them the caller has waited in line. Of a
    /// refusal it is told for which.
    fn write_over(
        &self,
        parts: &Parts<'_>,
        turn: &mut Turn,
        was_called: impl Fn(usize) -> bool,
    ) -> Result<Gate, (usize, WriteError)> {
        let is_behind = |&(at, (drive, part)): &(usize, &(u16, &Batch))| {
            !was_called(at) && self.store(*drive).is_behind_others(part, turn)
        };
        if let Some((at, (drive, _))) = parts.iter().enumerate().find(is_behind) {
            return Err((at, self.refused(*drive, pumice_kv::WriteError::Busy)));
        }
        let on: SmallVec<[_; 2]> = parts.iter().map(|(drive, part)| (self.store(*drive), *part)).collect();
        match write_together(&on) {
            Ok(numbers) => {
                let mut gate = Gate::open();
                for ((drive, part), seq) in parts.iter().zip(numbers) {
                    gate.add(*drive, seq);
                    turn.spend(part.bytes() as u64);
                }
                Ok(gate)
            }
            Err((at, source)) => Err((at, self.refused(parts[at].0, source))),
        }
    }

    async fn write_over_when_there_is_room(
        &self,
        parts: Parts<'_>,
        turn: &mut Turn,
    ) -> Result<Gate, WriteError> {
        let mut lines: SmallVec<[(usize, InLine<'_>); 2]> = SmallVec::new();
        let mut now: SmallVec<[Cow<'_, Batch>; 2]> =
            parts.iter().map(|(_, part)| Cow::Borrowed(*part)).collect();
        loop {
            let tried = {
                let current: Parts<'_> =
                    parts.iter().zip(&now).map(|((drive, _), part)| (*drive, part.as_ref())).collect();
                self.write_over(&current, turn, |at| lines.iter().any(|(known, _)| *known == at))
            };
            let at = match tried {
                Err((at, WriteError { source: pumice_kv::WriteError::Busy, .. })) => at,
                done => return done.map_err(|(_, refused)| refused),
            };
            lines.retain(|(known, _)| *known <= at);
            if lines.last().is_none_or(|(known, _)| *known != at) {
                let (drive, part) = parts[at];
                lines.push((at, self.store(drive).line_up(part, turn)));
            }
            let Some((_, line)) = lines.last_mut() else { unreachable!("one was pushed") };
            line.called().await;
            for ((drive, _), part) in parts.iter().zip(&mut now) {
                let renewed = self.store(*drive).renewed(part).await;
                if let Some(renewed) = renewed.map_err(|source| self.refused(*drive, source))? {
                    *part = Cow::Owned(renewed);
                }
            }
        }
    }
}
