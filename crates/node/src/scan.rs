//! Scans over all drives: the drives' own scans, merged in key order. A key lives on one drive only.

use std::ops::Bound;

use bytes::Bytes;
use pumice_kv::{Direction, Entry, Scan, SliceSet, Snapshot, Store, StoreError, Want};

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
    lanes: Vec<Lane>,
    direction: Direction,
    primed: bool,
}

impl NodeScan {
    pub(crate) fn new(
        stores: &[Store],
        snapshot: &NodeSnapshot,
        lower: Bound<Bytes>,
        upper: Bound<Bytes>,
        direction: Direction,
        want: Want,
    ) -> Self {
        let lanes = stores
            .iter()
            .zip(&snapshot.drives)
            .map(|(store, snapshot)| Lane {
                scan: store.scan(snapshot, SliceSet::All, lower.clone(), upper.clone(), direction, want),
                head: None,
            })
            .collect();
        Self { lanes, direction, primed: false }
    }

    /// The next encoded key and its entry; `None` at the end.
    pub async fn next(&mut self) -> Result<Option<(Bytes, Entry)>, StoreError> {
        if let [lane] = self.lanes.as_mut_slice() {
            return lane.scan.next().await;
        }
        if !self.primed {
            for lane in &mut self.lanes {
                lane.head = lane.scan.next().await?;
            }
            self.primed = true;
        }
        let heads = self.lanes.iter().enumerate().filter_map(|(i, lane)| Some((&lane.head.as_ref()?.0, i)));
        let first = match self.direction {
            Direction::Forward => heads.min(),
            Direction::Backward => heads.max(),
        };
        let Some((_, at)) = first else { return Ok(None) };
        let lane = &mut self.lanes[at];
        let following = lane.scan.next().await?;
        Ok(std::mem::replace(&mut lane.head, following))
    }
}
