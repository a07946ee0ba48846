//! Where the record of the databases lies: in two slices of one drive, so that no one place that does not read takes all keys out of
//! reach. Both are written by one batch and say the same.

use pumice_kv::{SliceId, Store};
use pumice_node::Place;

use super::key::{RawKey, SYSTEM_SPACE, head_prefix};
use super::spaces::Spaces;

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
    /// It does not read somewhere, or is missing there, as on drives that older builds made.
    pub is_lacking: bool,
}

impl StoredSpaces {
    /// Reads it from whichever place it reads in, of the store of [`RECORD_DRIVE`].
    ///
    /// # Errors
    /// When it may be there and reads nowhere.
    pub async fn read(store: &Store) -> Result<Self, String> {
        let (mut spaces, mut lacking, mut failed) = (None, 0, None);
        for (place, key) in record_places(store.slice_count()) {
            let found = match store.get(place.slice, &key).await {
                Ok(Some(entry)) => Spaces::decode(&entry.value)
                    .map(Some)
                    .ok_or_else(|| "it is damaged or of a newer version of pumice".to_owned()),
                Ok(None) => Ok(None),
                Err(error) => Err(error.to_string()),
            };
            match found {
                Ok(Some(_)) if spaces.is_some() => {}
                Ok(Some(found)) => spaces = Some(found),
                Ok(None) => lacking += 1,
                Err(error) => {
                    tracing::warn!(%error, "the record of the databases does not read in slice {}", place.slice.0);
                    lacking += 1;
                    failed = Some(error);
                }
            }
        }
        match (spaces, failed) {
            (Some(spaces), _) => Ok(Self { spaces, is_lacking: lacking > 0 }),
            // No database was ever emptied.
            (None, None) => Ok(Self { spaces: Spaces::default(), is_lacking: false }),
            (None, Some(error)) => Err(error),
        }
    }
}
