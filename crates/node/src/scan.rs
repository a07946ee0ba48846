//! Scans over all drives: the drives' own scans, merged in key order. A key lives on one drive only.

use std::ops::Bound;

use bytes::Bytes;
use pumice_kv::{Direction, Entry, EntryView, Scan, SliceSet, Snapshot, StoreError, Want};
use pumice_reactor::join_all;

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
    /// The drive's next key, if it was fetched and not handed out yet.
    head: Option<(Bytes, Entry)>,
    ended: bool,
}

impl Lane {
    /// Has a head, unless it is at its end or has to wait for one.
    fn is_filled(&mut self) -> bool {
        if self.head.is_none() && !self.ended {
            self.head = self.scan.next_at_hand();
        }
        self.head.is_some() || self.ended
    }

    async fn fill(&mut self) -> Result<(), StoreError> {
        self.head = self.scan.next().await?;
        self.ended = self.head.is_none();
        Ok(())
    }
}

/// Keys of all drives in order; made by [`crate::Node::scan`].
pub struct NodeScan {
    node: Node,
    lanes: Vec<Lane>,
    direction: Direction,
}

/// What each of several drives' scans is to look for. Of a page no drive has much more than its share; what it has more is read one by
/// one.
fn want_of_each(want: Want, drives: usize) -> Want {
    match want {
        Want::Page { keys, bytes } if drives > 1 => {
            let drives = drives as u64;
            Want::Page { keys: keys.div_ceil(drives) + 1, bytes: bytes.div_ceil(drives) }
        }
        want => want,
    }
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
        let want = want_of_each(want, snapshot.drives.len());
        let lanes = (0..)
            .zip(&snapshot.drives)
            .map(|(drive, snapshot)| {
                let store = node.store(drive);
                let (lower, upper) = (lower.clone(), upper.clone());
                let scan = store.scan(snapshot, SliceSet::All, lower, upper, direction, want);
                Lane { scan, head: None, ended: false }
            })
            .collect();
        Self { node, lanes, direction }
    }

    /// From here on keys alone are wanted.
    pub fn want_keys(&mut self) {
        self.lanes.iter_mut().for_each(|lane| lane.scan.want_keys());
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
        if let [only] = &mut self.lanes[..] {
            return only.scan.next().await.inspect_err(|error| self.node.note_read(0, error));
        }
        self.fill().await?;
        let heads = self.lanes.iter().enumerate().filter_map(|(i, lane)| Some((&lane.head.as_ref()?.0, i)));
        let first = match self.direction {
            Direction::Forward => heads.min(),
            Direction::Backward => heads.max(),
        };
        Ok(first.map(|(_, at)| at).and_then(|at| self.lanes[at].head.take()))
    }

    /// Fetches the next key of each drive of which none is there: of all at first, then of the one whose key was handed out.
    async fn fill(&mut self) -> Result<(), StoreError> {
        let mut unfilled: Vec<(u16, &mut Lane)> = (0..)
            .zip(&mut self.lanes)
            .filter_map(|(drive, lane)| (!lane.is_filled()).then_some((drive, lane)))
            .collect();
        if unfilled.is_empty() {
            return Ok(());
        }
        let fills = unfilled.iter_mut().map(|(drive, lane)| async { (*drive, lane.fill().await) });
        let mut failed = None;
        for (drive, filled) in join_all(fills).await {
            if let Err(error) = filled {
                self.node.note_read(drive, &error);
                failed = failed.or(Some(error));
            }
        }
        failed.map_or(Ok(()), Err)
    }
}
