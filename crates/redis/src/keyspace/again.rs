//! What is stored under a key, to be put again as it is with another expiry: for EXPIRE and its like.
//!
//! The value of a long string stays where it lies on flash, unread and unwritten (`pumice_kv::Batch::put_again`). In a transaction it is
//! read all the same: the commands that follow see it in the overlay.

use pumice_kv::{Entry, Peek, Stored};

use super::access::store_failure;
use super::change::{Change, Op, StringValue, Value};
use super::key::{HeadKey, RawKey};
use crate::command::Fast;
use crate::context::Ctx;
use crate::errors::Failure;

/// See the head of this file.
pub(crate) struct Standing {
    /// The type and its details.
    pub tag: u8,
    /// When it expires; 0 = never.
    pub expire_ms: u64,
    /// With its value, where that had to be read.
    entry: Option<Entry>,
    /// As the store puts it again.
    stored: Option<Stored>,
}

impl Ctx {
    /// What is stored under `key`, live or expired, of any type.
    pub(crate) async fn standing(&mut self, key: &HeadKey) -> Result<Option<Standing>, Failure> {
        if self.transaction.is_some() {
            let Some(entry) = self.entry(key.place, key.raw()).await? else { return Ok(None) };
            return self.standing_of(key, &entry).await.map(Some);
        }
        let stored = self.stored(key).await?;
        Ok(self.standing_as(key, stored))
    }

    /// The same of what was read already.
    pub(crate) async fn standing_of(&mut self, key: &HeadKey, entry: &Entry) -> Result<Standing, Failure> {
        let is_beside = |bytes| self.server.node.is_beside_key(key.place, bytes);
        let pending = self.transaction.as_ref().and_then(|overlay| overlay.again(key.raw()));
        let stored = match pending {
            Some(again) => again.cloned(),
            // Nothing is won where it lies with its key, or a list of its pieces does.
            None if entry.large.is_some() || is_beside(entry.value.len()) => None,
            None => self.stored(key).await?,
        };
        let stored = stored.filter(Stored::is_in_place);
        Ok(Standing { tag: entry.tag, expire_ms: entry.expire_ms, entry: Some(entry.clone()), stored })
    }

    /// [`Ctx::standing`] outside of a transaction, where there is nothing to wait for.
    pub(crate) fn standing_at_hand(&mut self, key: &HeadKey) -> Result<Option<Standing>, Fast> {
        let stored = match self.server.node.peek_stored(key.place, key.raw()) {
            Peek::Found(stored) => Some(stored),
            Peek::Absent => None,
            Peek::NeedsFlash(_) => return Err(Fast::Slow),
        };
        Ok(self.standing_as(key, stored))
    }

    fn standing_as(&mut self, key: &HeadKey, stored: Option<Stored>) -> Option<Standing> {
        let meta = stored.as_ref().map(Stored::meta);
        self.depend_on(key.place, key.raw(), meta.map(|meta| meta.seq));
        meta.map(|meta| Standing { tag: meta.tag, expire_ms: meta.expire_ms, entry: None, stored })
    }

    async fn stored(&self, key: &HeadKey) -> Result<Option<Stored>, Failure> {
        let node = &self.server.node;
        match node.peek_stored(key.place, key.raw()) {
            Peek::Found(stored) => Ok(Some(stored)),
            Peek::Absent => Ok(None),
            Peek::NeedsFlash(_) => {
                node.get_stored(key.place, key.raw()).await.map_err(|error| store_failure(&error))
            }
        }
    }
}

impl Change {
    /// Stores what stands under `key` again, to expire at `expire_ms` (0 = never).
    pub(crate) fn put_again(&mut self, key: &HeadKey, expire_ms: u64, standing: &Standing) {
        let Standing { tag, expire_ms: was, ref entry, ref stored } = *standing;
        match (entry, stored) {
            (Some(Entry { value, large: None, .. }), Some(_)) if self.in_transaction => {
                self.touch(key);
                self.keep(Op::Put {
                    place: key.place,
                    key: RawKey::from_slice(key.raw()),
                    tag,
                    expire_ms,
                    value: Value::Bytes(value.clone()),
                    is_new: false,
                    again: stored.clone().map(Box::new),
                });
                self.count_head(key, Some(was), Some(expire_ms));
            }
            (_, Some(stored)) if !self.in_transaction => {
                self.touch(key);
                self.batch.put_again(key.place, key.raw(), expire_ms, stored);
                self.count_head(key, Some(was), Some(expire_ms));
            }
            (Some(entry), _) => self.put_head(key, tag, expire_ms, &StringValue::of(entry), Some(was)),
            (None, _) => unreachable!("what stands was read in a transaction"),
        }
    }
}
