//! Where the record of the databases lies: in two slices of one drive, so that no one place that does not read takes all keys out of
//! reach. Both are written by one batch and say the same; the second is written again by itself.

use std::sync::Arc;

use pumice_kv::{SliceId, Store};
use pumice_node::{Node, NodeBatch, Place};

use super::key::{RawKey, SYSTEM_SPACE, head_prefix};
use super::spaces::Spaces;
use crate::server::Server;

/// The drive that holds the record.
pub const RECORD_DRIVE: u16 = 0;
/// What that drive counts of the databases' keys is counted here.
pub(super) const RECORD_PLACE: Place = Place { drive: RECORD_DRIVE, slice: SliceId(0) };

/// The keys of the record and of its copy. They differ: a transaction keeps what it changes by key.
pub fn record_keys() -> [RawKey; 2] {
    [&b"databases"[..], b"databases, again"].map(|name| {
        let mut key = RawKey::from_slice(&head_prefix(SYSTEM_SPACE));
        key.extend_from_slice(name);
        key
    })
}

/// Where the record is stored, and under which key, on drives of so many slices: in the first and in the last.
pub(super) fn record_places(slice_count: u16) -> impl Iterator<Item = (Place, RawKey)> {
    let slices = [SliceId(0), SliceId(slice_count - 1)];
    slices.map(|slice| Place { drive: RECORD_DRIVE, slice }).into_iter().zip(record_keys())
}

/// The record as it is stored.
pub struct StoredSpaces {
    /// What it says; that of a new drive where there is none.
    pub spaces: Spaces,
    /// It is not in both places as it would be written now: it does not read in one, is missing there, or older.
    pub is_lacking: bool,
}

impl StoredSpaces {
    /// Reads it from both places, of the store of [`RECORD_DRIVE`]. The newer counts: numbers of spaces only grow.
    ///
    /// # Errors
    /// When it may be there and reads nowhere.
    pub async fn read(store: &Store) -> Result<Self, String> {
        let (mut records, mut failed) = (Vec::new(), None);
        for (place, key) in record_places(store.slice_count()) {
            let found = match store.get(place.slice, &key).await {
                Ok(Some(entry)) => Spaces::decode(&entry.value)
                    .map(|spaces| Some((spaces, entry.value)))
                    .ok_or_else(|| "it is damaged or of a newer version of pumice".to_owned()),
                Ok(None) => Ok(None),
                Err(error) => Err(error.to_string()),
            };
            match found {
                Ok(found) => records.extend(found),
                Err(error) => {
                    tracing::warn!(%error, "the record of the databases does not read in slice {}", place.slice.0);
                    failed = Some(error);
                }
            }
        }
        let Some((newest, _)) = records.iter().max_by_key(|(spaces, _)| spaces.next()) else {
            return match failed {
                // No database was ever emptied.
                None => Ok(Self { spaces: Spaces::default(), is_lacking: false }),
                Some(error) => Err(error),
            };
        };
        let now = newest.record(newest.next().0, &[]);
        let is_lacking = records.iter().filter(|(_, stored)| *stored == now).count() < record_keys().len();
        let spaces = Spaces::decode(&now).ok_or("it does not read as it would be written")?;
        Ok(Self { spaces, is_lacking })
    }
}

/// Stores the record as it is, durable on return: one place after the other, so that they lie in frames of their own.
pub(crate) async fn store_record(node: &Node, spaces: &Spaces) -> Result<(), String> {
    for which in 0..record_keys().len() {
        store_in(node, spaces, which).await?;
        node.sync_drive(RECORD_DRIVE).await.map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// Stores the record's copy once more when what was written with it is durable: a batch lies in one frame, which is read from flash as
/// long as its records are in no key table, and without the record all that was written since a database was emptied is out of reach.
pub(super) fn store_again_later(server: &Arc<Server>) {
    let server = server.clone();
    pumice_reactor::spawn(async move {
        let mut stored = server.node.sync_drive(RECORD_DRIVE).await.map_err(|error| error.to_string());
        if stored.is_ok() && !server.stopping.is_set() {
            // Another move meanwhile is no harm: the newer counts, and its copy follows.
            stored = store_in(&server.node, &server.spaces, 1).await;
        }
        if let Err(error) = stored {
            tracing::debug!(error, "the record of the databases is in one frame");
        }
    });
}

async fn store_in(node: &Node, spaces: &Spaces, which: usize) -> Result<(), String> {
    let mut record = NodeBatch::new();
    for (place, key) in record_places(node.slice_count()).skip(which).take(1) {
        record.put(place, &key, 0, 0, &spaces.record(spaces.next().0, &[]));
    }
    node.write_ready(&record).await.map(drop).map_err(|error| error.to_string())
}
