//! Scans over all drives: the drives' own scans, merged in key order. A key lives on one drive only.

use std::ops::Bound;

use bytes::Bytes;
use pumice_kv::{Direction, Entry, EntryView, Scan, SliceSet, Snapshot, StoreError, Want};

use crate::node::Node;

/// A snapshot of every drive of a server.
#[derive(Clone)]
pub struct NodeSnapshot {
    pub(crate) drives: Vec<Snapshot>,
}

impl NodeSnapshot {
    /// The snapshot of one drive.
    pub fn drive(&self, drive: u16) -> &Snapshot {
        &self.drives[usize::from(drive)]
    }
}

struct Lane {
    scan: Scan,
    head: Option<(Bytes, Entry)>,
}

/// Keys of all drives in order; made by [`crate::Node::scan`].
pub struct NodeScan {
    node: Node,
    lanes: Vec<Lane>,
    direction: Direction,
    primed: bool,
}

impl NodeScan {
    pub(crate) fn new(
        node: Node,
        snapshot: &NodeSnapshot,
        lower: Bound<Bytes>,
        upper: Bound<Bytes>,
        direction: Direction,
        want: Want,
    ) -> Self {
        let lanes = (0..)
            .zip(&snapshot.drives)
            .map(|(drive, snapshot)| Lane {
                scan: node.store(drive).scan(
                    snapshot,
                    SliceSet::All,
                    lower.clone(),
                    upper.clone(),
                    direction,
                    want,
                ),
                head: None,
            })
            .collect();
        Self { node, lanes, direction, primed: false }
    }

    async fn step(&mut self, at: usize) -> Result<Option<(Bytes, Entry)>, StoreError> {
        let found = self.lanes[at].scan.next().await;
        found.inspect_err(|error| self.node.note_read(at as u16, error))
    }

    /// [`NodeScan::next`] where there is nothing to wait for, and no other drive's key to compare with; else `None`.
    pub fn next_at_hand(&mut self) -> Option<(Bytes, Entry)> {
        match &mut self.lanes[..] {
            [only] => only.scan.next_at_hand(),
            _ => None,
        }
    }

    /// [`NodeScan::next_at_hand`], where it lies.
    pub fn view_at_hand(&mut self) -> Option<(&[u8], EntryView<'_>)> {
        match &mut self.lanes[..] {
            [only] => only.scan.view_at_hand(),
            _ => None,
        }
    }

    /// The next encoded key and its entry; `None` at the end.
    pub async fn next(&mut self) -> Result<Option<(Bytes, Entry)>, StoreError> {
        if self.lanes.len() == 1 {
            return self.step(0).await;
        }
        if !self.primed {
            for at in 0..self.lanes.len() {
                self.lanes[at].head = self.step(at).await?;
            }
            self.primed = true;
        }
        let heads = self.lanes.iter().enumerate().filter_map(|(i, lane)| Some((&lane.head.as_ref()?.0, i)));
        let first = match self.direction {
            Direction::Forward => heads.min(),
            Direction::Backward => heads.max(),
        };
        let Some((_, at)) = first else { return Ok(None) };
        let following = self.step(at).await?;
        Ok(std::mem::replace(&mut self.lanes[at].head, following))
    }
}
