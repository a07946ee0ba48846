//! Which of a victim's values are alive: those that their keys point at.
//!
//! Records are asked about in the order of their keys, so that neighbours share key blocks. What memory knows is answered at once;
//! of those that need key blocks from flash some are asked about side by side, because one after the other each costs cleaning a
//! read's whole time: with 1 KiB values and key tables that memory does not hold 7 MB/s would be all that it could look at.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use pumice_reactor::{JoinHandle, spawn};
use pumice_segment::{Record, RecordHead, Replayed};

use crate::clean::mover::Candidate;
use crate::codes::{code, shared_len};
use crate::entry::KeyEntry;
use crate::errors::StoreError;
use crate::record;
use crate::slice::key_hash;
use crate::store::Inner;
use crate::types::{Peek, SliceId};

/// Records that are asked about at the same time.
const ASKED_AT_ONCE: usize = 64;
/// The same where those that are alive are read: each may be of 256 KiB.
const READ_AT_ONCE: usize = 8;

type Asked = Result<Option<Candidate>, StoreError>;

/// The live ones of some records; see [`Inner::alive`].
pub struct Alive {
    store: Arc<Inner>,
    records: std::vec::IntoIter<Replayed>,
    /// Of the records only heads are there.
    are_heads: bool,
    asked: VecDeque<JoinHandle<Asked>>,
}

impl Alive {
    /// One of them, or why the index could not tell of one; `None` after the last.
    pub async fn next(&mut self) -> Option<Result<Candidate, StoreError>> {
        loop {
            let asked = match self.records.next() {
                Some(record) => {
                    let (store, are_heads) = (self.store.clone(), self.are_heads);
                    let asked = match self.store.ask(record) {
                        Ask::Known(Some(candidate)) if are_heads => {
                            spawn(async move { store.whole(candidate).await.map(Some) })
                        }
                        Ask::Known(candidate) => match candidate {
                            Some(candidate) => return Some(Ok(candidate)),
                            None => continue,
                        },
                        Ask::Flash(record) => spawn(async move {
                            match store.candidate(record).await? {
                                Some(candidate) if are_heads => store.whole(candidate).await.map(Some),
                                asked => Ok(asked),
                            }
                        }),
                    };
                    self.asked.push_back(asked);
                    if self.asked.len() < if are_heads { READ_AT_ONCE } else { ASKED_AT_ONCE } {
                        continue;
                    }
                    self.settle().await
                }
                None if self.asked.is_empty() => return None,
                None => self.settle().await,
            };
            if let Some(found) = asked.transpose() {
                return Some(found);
            }
        }
    }

    /// Waits for the one that was asked about first.
    async fn settle(&mut self) -> Asked {
        let Some(asked) = self.asked.pop_front() else { return Ok(None) };
        asked.await.unwrap_or(Err(StoreError::Closing))
    }
}

/// What memory says of a record.
enum Ask {
    Known(Option<Candidate>),
    /// Only flash knows.
    Flash(Replayed),
}

/// A record's owner as of its key's slice in `epoch`.
struct Owner {
    slice: SliceId,
    key: Bytes,
    epoch: u64,
}

impl Inner {
    /// Those of `records` that are values whose keys point at them, and whose prefixes nobody retired.
    pub fn alive(self: &Arc<Self>, mut records: Vec<Replayed>) -> Alive {
        // What lies beside its key is nowhere pointed at, and the checkpoint covers it: of small values there are tens of
        // thousands in a segment.
        records.retain(|record| {
            record::decode_key(&record.payload).is_some_and(|owner| owner.rest.len() > self.inline_max)
        });
        self.asked_about(records, false)
    }

    /// [`Inner::alive`] of those of which only the heads were read; the live ones are read whole.
    pub fn alive_by_heads(self: &Arc<Self>, heads: Vec<RecordHead>) -> Alive {
        let record =
            |head: RecordHead| Replayed { seq: 0, ptr: head.ptr, kind: head.kind, payload: head.head };
        self.asked_about(heads.into_iter().map(record).collect(), true)
    }

    fn asked_about(self: &Arc<Self>, mut records: Vec<Replayed>, are_heads: bool) -> Alive {
        let owner = |record: &Replayed| record::decode_key(&record.payload);
        // Eight bytes behind what all keys share are order enough for neighbours.
        let key = |record: &Replayed| owner(record).map_or(0..0, |owner| owner.key);
        let first = records.first().map_or(&[][..], |record| &record.payload[key(record)]);
        let shared = records
            .iter()
            .fold(first.len(), |shared, record| shared.min(shared_len(first, &record.payload[key(record)])));
        records.sort_by_cached_key(|record| {
            owner(record).map(|owner| (owner.slice, code(&record.payload[owner.key], shared)))
        });
        Alive { store: self.clone(), records: records.into_iter(), are_heads, asked: VecDeque::new() }
    }

    /// A record of which only the head was read, with the rest of it.
    pub async fn whole_of(&self, head: &RecordHead) -> Result<Replayed, StoreError> {
        let unread = |source| StoreError::Read { what: "a record to move".into(), source };
        let Record { kind, payload } = self.heap.read_flash(head.ptr).await.map_err(unread)?;
        Ok(Replayed { seq: 0, ptr: head.ptr, kind, payload })
    }

    async fn whole(&self, candidate: Candidate) -> Result<Candidate, StoreError> {
        let Replayed { ptr, kind, payload, .. } = candidate.record;
        let record = self.whole_of(&RecordHead { kind, ptr, head: payload }).await?;
        Ok(Candidate { record, ..candidate })
    }

    /// Whose a record is. `None`: nobody's who needs it.
    fn owner_of(&self, record: &Replayed) -> Option<Owner> {
        let owner = record::decode_key(&record.payload)?;
        if usize::from(owner.slice.0) >= self.slices.len() {
            return None;
        }
        let key = record.payload.slice(owner.key);
        // Retired is asked before the index, and again when the record gets its number: a prefix that is not in the list now
        // and was retired before lies in no table any more, and one that is retired from now on stays in the list until a
        // flush later than this epoch. Asked after the index alone, the list might have forgotten it meanwhile.
        let epoch = self.slice(owner.slice).epoch;
        (!self.is_retired(owner.slice, &key)).then_some(Owner { slice: owner.slice, key, epoch })
    }

    fn ask(&self, record: Replayed) -> Ask {
        let Some(owner) = self.owner_of(&record) else { return Ask::Known(None) };
        let (found, version) = {
            let state = self.slice(owner.slice);
            (state.in_memtables(key_hash(&owner.key), &owner.key), state.version.clone())
        };
        let found = match found {
            Some(found) => Peek::Found(found),
            None => self.peek_tables(&version, &owner.key),
        };
        match found {
            Peek::Found(found) => Ask::Known(self.if_pointed_at(owner, record, found)),
            Peek::Absent => Ask::Known(None),
            Peek::NeedsFlash(_) => Ask::Flash(record),
        }
    }

    /// A record to move, if its key points at it and nobody retired its prefix.
    async fn candidate(&self, record: Replayed) -> Asked {
        let Some(owner) = self.owner_of(&record) else { return Ok(None) };
        let Some(found) = self.find(owner.slice, &owner.key).await? else { return Ok(None) };
        Ok(self.if_pointed_at(owner, record, found))
    }

    fn if_pointed_at(&self, owner: Owner, record: Replayed, found: KeyEntry) -> Option<Candidate> {
        let Owner { slice, key, epoch } = owner;
        let points_here = found.record().map(|ptr| self.place_of(ptr)) == Some(record.ptr);
        points_here.then_some(Candidate { slice, key, record, found, epoch })
    }
}
