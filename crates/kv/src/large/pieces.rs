//! Moving what is alive of large values, for cleaning (`clean.rs`).
//!
//! 1. A piece is alive when its key's list names it where it lies. It is written again as it is, then the list is
//!    written anew with its new place, unless the key was written meanwhile: then the new list is looked at instead. What
//!    a window of the victim holds of one value shares one new list.
//! 2. Several values' pieces are moved at a time: each is a write that the drive has to end, and a victim holds many.
//! 3. Pieces of values that were overwritten or deleted are reported dead, so that the heap finds the best victims.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use pumice_base::sync::lock;
use pumice_segment::{AppendClass, AppendError, Group, Hold, Record, RecordHead, RecordPtr};

use crate::batch::Batch;
use crate::entry::{Body, KeyEntry};
use crate::errors::StoreError;
use crate::flush::ROOM_TRIES;
use crate::large::{LargeRef, PIECES_AT_ONCE};
use crate::record;
use crate::slice::key_hash;
use crate::store::Inner;
use crate::types::{Seq, SliceId};

/// Times that it is tried to find out what died of a large value.
const TRIES: u32 = 3;

/// A large value that is gone, and whose pieces the heap was not told of yet.
pub struct DeadLarge {
    slice: SliceId,
    key: Bytes,
    /// The version that is gone.
    entry: KeyEntry,
    /// How often it could not be told what it names and the newest version does not.
    tries: u32,
}

impl DeadLarge {
    pub fn new(slice: SliceId, key: &[u8], entry: KeyEntry) -> Self {
        Self { slice, key: Bytes::copy_from_slice(key), entry, tries: 0 }
    }
}

/// Pieces of one value to move.
pub struct OldPieces {
    slice: SliceId,
    key: Bytes,
    /// The value's number.
    id: u64,
    pieces: Vec<OldPiece>,
}

struct OldPiece {
    index: usize,
    ptr: RecordPtr,
    /// Where it was written again, held until a list names it.
    written: Option<(RecordPtr, Option<Hold>)>,
}

impl OldPieces {
    /// How long they are where they lie.
    pub fn bytes(&self) -> u64 {
        self.pieces.iter().map(|piece| u64::from(piece.ptr.len)).sum()
    }
}

impl Inner {
    /// Pieces that cleaning moves at a time: each is copied, which must fit into what the store may use.
    pub fn pieces_moved_at_once(&self) -> usize {
        ((self.options.memory_bytes >> 26) as usize).clamp(2, PIECES_AT_ONCE)
    }

    /// A window's pieces by value; `None` when some belong to values that no entry names yet. To be asked before the
    /// index is: a value is registered until its entry is there. And before any is moved: what is moved of a victim that
    /// is not released costs the reserve for nothing.
    pub fn pieces_by_value(&self, heads: Vec<RecordHead>) -> Option<Vec<OldPieces>> {
        let mut values: BTreeMap<(SliceId, Bytes, u64), Vec<OldPiece>> = BTreeMap::new();
        let writers = lock(&self.large.writers);
        for RecordHead { ptr, head, .. } in heads {
            let Some((owner, name, _)) = record::decode_piece(&head) else { continue };
            if writers.contains_key(&name.id) {
                return None;
            }
            if usize::from(owner.slice.0) < self.slices.len() {
                let key = head.slice(owner.key);
                let piece = OldPiece { index: name.index as usize, ptr, written: None };
                values.entry((owner.slice, key, name.id)).or_default().push(piece);
            }
        }
        let values = values.into_iter();
        Some(values.map(|((slice, key, id), pieces)| OldPieces { slice, key, id, pieces }).collect())
    }

    /// Moves those of a value's pieces that are alive. Answers how many bytes they are.
    pub async fn move_pieces(self: &Arc<Self>, mut value: OldPieces) -> Result<u64, StoreError> {
        let moved = self.move_named_pieces(&mut value).await;
        let written = value.pieces.iter().filter_map(|piece| Some(piece.written.as_ref()?.0));
        if let Ok(true) = moved {
            let bytes = written.map(|ptr| u64::from(ptr.len)).sum();
            self.counters.moved_bytes.add(bytes);
            return Ok(bytes);
        }
        // Nobody names them.
        written.for_each(|ptr| self.heap.mark_dead(ptr));
        moved.map(|_| 0)
    }

    /// Answers whether a list names what was written again.
    async fn move_named_pieces(&self, value: &mut OldPieces) -> Result<bool, StoreError> {
        let (slice, key) = (value.slice, value.key.clone());
        let mut last_stale = None;
        loop {
            // Before the index is asked: what is retired after that is seen under the slice's lock.
            if self.is_retired(slice, &key) {
                return Ok(false);
            }
            let Some(found) = self.find(slice, &key).await?.filter(|found| found.large) else {
                return Ok(false);
            };
            let list = match self.value_of(slice, &key, &found).await {
                Err(error) if error.may_be_stale() && last_stale != Some(found.seq) => {
                    last_stale = Some(found.seq);
                    continue;
                }
                entry => entry?.large,
            };
            let Some(list) = list.filter(|list| list.id == value.id) else { return Ok(false) };
            let mut list = LargeRef::clone(&list);
            let mut is_named = false;
            for piece in &mut value.pieces {
                let named = list.pieces.get_mut(piece.index);
                let Some(named) = named.filter(|named| named.ptr == piece.ptr) else { continue };
                is_named = true;
                named.ptr = match &piece.written {
                    Some((ptr, _)) => *ptr,
                    None => piece.written.insert(self.write_piece_again(piece.ptr).await?).0,
                };
            }
            if !is_named {
                return Ok(false);
            }
            if self.replace_list(slice, &key, &found, &list).await? {
                return Ok(true);
            }
        }
    }

    async fn write_piece_again(&self, old: RecordPtr) -> Result<(RecordPtr, Option<Hold>), StoreError> {
        let unread = |source| StoreError::Read { what: "a piece of a large value".into(), source };
        let Record { payload, .. } = self.heap.read_flash(old).await.map_err(unread)?;
        let mut object = self.heap.object(payload.len());
        let head_bytes = record::decode_piece(&payload).map_or(0, |(_, _, data)| data.start);
        object.extend_from_slice(&payload[..head_bytes]);
        object.end_head();
        object.extend_from_slice(&payload[head_bytes..]);
        drop(payload);
        let mut tries = 0;
        loop {
            tries += 1;
            match self.heap.move_object(record::PIECE, Group::Large, &mut object).await {
                Ok(written) => return Ok(written),
                Err(AppendError::Busy) if tries < ROOM_TRIES => self.segment_may_come().await,
                Err(error) => {
                    let what = "a piece of a large value".into();
                    return Err(StoreError::Write { what, reason: error.to_string() });
                }
            }
        }
    }

    /// Writes a large value's list of pieces anew, unless the key was written since `found`.
    async fn replace_list(
        &self,
        slice: SliceId,
        key: &[u8],
        found: &KeyEntry,
        list: &LargeRef,
    ) -> Result<bool, StoreError> {
        let mut batch = Batch::new();
        batch.put_large(slice, key, found.tag, found.expire_ms, list);
        let mut tries = 0;
        loop {
            tries += 1;
            // The seal waits, so a key that no memtable speaks of is still what the tables say.
            let turn = self.seal_turn.acquire(1).await;
            // Before the index is asked, as for values (`Inner::candidate`).
            let is_retired = self.is_retired(slice, key);
            let newest = self.find(slice, key).await?;
            if is_retired || newest.is_none_or(|newest| newest.seq != found.seq) {
                return Ok(false);
            }
            let written = self.write_unless(&batch, slice, key, found.seq);
            drop(turn);
            match written {
                None => return Ok(false),
                Some(Ok(_)) => return Ok(true),
                Some(Err(crate::WriteError::Busy)) if tries < ROOM_TRIES && !self.is_closing() => {
                    self.segment_may_come().await;
                }
                Some(Err(error)) => {
                    return Err(StoreError::Write { what: self.show_key(key), reason: error.to_string() });
                }
            }
        }
    }

    /// Tells the heap of the pieces of large values that are gone; those that the key's newest list still names
    /// are not.
    pub async fn bury_large_values(&self) {
        let dead = std::mem::take(&mut *lock(&self.large.dead));
        for mut value in dead {
            let Err(error) = self.bury_large_value(&value).await else { continue };
            value.tries += 1;
            if value.tries < TRIES {
                lock(&self.large.dead).push(value);
            } else {
                let key = self.show_key(&value.key);
                tracing::warn!(%error, key, "what died of a large value is not known, and counts as alive");
            }
        }
    }

    /// Whether [`Inner::bury_large_values`] has something to do.
    pub fn knows_of_dead_large_values(&self) -> bool {
        !lock(&self.large.dead).is_empty()
    }

    /// Fails, and has told nothing, when it cannot be known which pieces are still named.
    async fn bury_large_value(
        &self,
        DeadLarge { slice, key, entry, .. }: &DeadLarge,
    ) -> Result<(), StoreError> {
        // Whoever emptied the list's segment has seen to it (`left_behind`), and others write there.
        let is_gone = || entry.record().is_some_and(|ptr| self.was_released(self.place_of(ptr), entry.seq));
        if is_gone() {
            return Ok(());
        }
        let list = match self.list_of(entry).await {
            Err(_) if is_gone() => return Ok(()),
            list => list?,
        };
        let Some(list) = list else { return Ok(()) };
        let newest = match self.find(*slice, key).await? {
            Some(newest) if newest.large => self.list_of(&newest).await?,
            _ => None,
        };
        if let Body::Record(ptr) = entry.body {
            self.mark_dead(ptr, entry.seq);
        }
        let kept =
            |ptr: RecordPtr| newest.as_ref().is_some_and(|list| list.pieces.iter().any(|p| p.ptr == ptr));
        if newest.as_ref().is_none_or(|newest| newest.id != list.id) {
            self.large.kept.forget(&list);
        }
        for piece in list.pieces {
            // A merge may find the list long after cleaning released what it names.
            if !kept(piece.ptr) {
                self.mark_dead(piece.ptr, entry.seq);
            }
        }
        Ok(())
    }

    /// The list of a large value's pieces; `None` when there is none in the entry's place.
    pub async fn list_of(&self, entry: &KeyEntry) -> Result<Option<LargeRef>, StoreError> {
        Ok(match &entry.body {
            Body::Inline(list) => LargeRef::decode(list),
            Body::Record(ptr) => {
                let record = self.heap.read(self.place_of(*ptr)).await;
                let record = record.map_err(|source| {
                    let what = "the list of a large value's pieces".into();
                    StoreError::Read { what, source }
                })?;
                let owner = record::decode_key(&record.payload);
                owner.and_then(|owner| LargeRef::decode(&record.payload[owner.rest]))
            }
            Body::Tombstone => None,
        })
    }

    /// Writes a batch of one key unless its prefix was retired, or a memtable holds a version of it other than `seq`.
    fn write_unless(
        &self,
        batch: &Batch,
        slice: SliceId,
        key: &[u8],
        seq: Seq,
    ) -> Option<Result<Seq, crate::WriteError>> {
        let mut guards = [self.slice(slice)];
        let newest = guards[0].seq_in_memtables(key_hash(key), key);
        if newest.is_some_and(|newest| newest != seq) || self.is_retired(slice, key) {
            return None;
        }
        let written = self.write_locked(batch, AppendClass::System, |_| 0, &mut guards);
        drop(guards);
        // Memtables have grown, perhaps while nobody else writes.
        self.take_back_lent();
        Some(written)
    }
}
