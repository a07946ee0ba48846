//! What memory alone knows of a key.

use bytes::Bytes;
use pumice_base::sync::lock;

use crate::entry::{Body, KeyEntry};
use crate::memtable::{NewBody, NewVersion};
use crate::slice::key_hash;
use crate::store::{Inner, Store, entry_of, value_in};
use crate::types::{Entry, EntryView, Hint, Known, Meta, Peek, SliceId, ValueView};

/// Copying a longer value into the row cache costs more than its look-up elsewhere in memory.
const KEPT_BYTES_MAX: usize = 4 << 10;

/// What the memtables of a slice say of a key.
enum InMemtables<R> {
    /// All there is to say.
    Answered(Peek<R>),
    /// The newest version, whose value is in a record.
    Record(KeyEntry),
    /// Nothing.
    Silent,
}

impl Store {
    /// The key's newest version, if memory knows it, shown to `look` where it lies: nothing is copied. `look` runs
    /// under a lock, and must be short. Large values count as lying on flash.
    pub fn peek_with<R>(&self, slice: SliceId, key: &[u8], look: impl FnOnce(EntryView<'_>) -> R) -> Peek<R> {
        let inner = &*self.inner;
        let mut state = inner.slice(slice);
        let (hash, epoch) = (key_hash(key), state.epoch);
        if !state.rows.is_empty()
            && let Some(row) = state.rows.get(hash, key)
        {
            inner.counters.row_hits.add(1);
            return Peek::Found(look(row));
        }
        let mut look = Some(look);
        let mut answer = InMemtables::Silent;
        for memtable in std::iter::once(&state.active).chain(&state.sealed) {
            let memtable = lock(memtable);
            if let Some(found) = memtable.view(hash, key) {
                answer = seen(&found, &mut look);
                break;
            }
        }
        let keeps = !matches!(answer, InMemtables::Answered(_)) && state.keeps_found();
        // Under the lock: whatever is named now lies in a segment that was opened before.
        let lives = inner.heap.lives();
        let found = match answer {
            InMemtables::Answered(answer) => return answer,
            InMemtables::Record(found) => {
                drop(state);
                found
            }
            InMemtables::Silent => {
                let version = state.version.clone();
                drop(state);
                match inner.peek_tables(&version, key) {
                    Peek::Found(found) => found,
                    Peek::Absent => return Peek::Absent,
                    Peek::NeedsFlash(hint) => return Peek::NeedsFlash(hint),
                }
            }
        };
        let Some(look) = look else { return Peek::NeedsFlash(Hint::default()) };
        match inner.peek_value(key, &found, lives) {
            Peek::Found(mut entry) => {
                let answer = look(EntryView {
                    tag: entry.tag,
                    expire_ms: entry.expire_ms,
                    seq: entry.seq,
                    value: ValueView::Shared(&entry.value),
                });
                if keeps && entry.value.len() <= KEPT_BYTES_MAX {
                    inner.keep_row(slice, epoch, key, &found, &mut entry);
                }
                Peek::Found(answer)
            }
            Peek::Absent => Peek::Absent,
            Peek::NeedsFlash(_) => {
                Peek::NeedsFlash(Hint((!found.large).then_some(Known { epoch, lives, found })))
            }
        }
    }

    /// The key's newest version, if memory knows it.
    pub fn peek(&self, slice: SliceId, key: &[u8]) -> Peek<Entry> {
        self.peek_with(slice, key, |found| found.to_entry())
    }

    /// [`Store::peek`] without the value.
    pub fn peek_meta(&self, slice: SliceId, key: &[u8]) -> Peek<Meta> {
        let inner = &*self.inner;
        let mut state = inner.slice(slice);
        let hash = key_hash(key);
        if let Some(row) = state.rows.get(hash, key) {
            return Peek::Found(row.meta());
        }
        let found = state.in_memtables(hash, key);
        let version = state.version.clone();
        drop(state);
        let found = match found {
            Some(entry) => Peek::Found(entry),
            None => inner.peek_tables(&version, key),
        };
        match found {
            Peek::Found(entry) if entry.is_tombstone() => Peek::Absent,
            found => found.map(|entry| entry.meta()),
        }
    }
}

/// Shows a memtable's version, if its value is there.
fn seen<R>(found: &NewVersion<'_>, look: &mut Option<impl FnOnce(EntryView<'_>) -> R>) -> InMemtables<R> {
    match found.body {
        NewBody::Tombstone => InMemtables::Answered(Peek::Absent),
        _ if found.large => InMemtables::Answered(Peek::NeedsFlash(Hint::default())),
        NewBody::Inline(value) => match look.take() {
            Some(look) => {
                let NewVersion { seq, expire_ms, tag, .. } = *found;
                let view = EntryView { tag, expire_ms, seq, value: ValueView::Inline(value) };
                InMemtables::Answered(Peek::Found(look(view)))
            }
            None => InMemtables::Answered(Peek::NeedsFlash(Hint::default())),
        },
        NewBody::Record(_) => InMemtables::Record(found.to_entry()),
    }
}

impl Inner {
    /// What memory knows of the value of a version that was looked up at `lives`.
    fn peek_value(&self, key: &[u8], found: &KeyEntry, lives: u64) -> Peek<Entry> {
        match &found.body {
            Body::Tombstone => Peek::Absent,
            _ if found.large => Peek::NeedsFlash(Hint::default()),
            Body::Inline(value) => Peek::Found(entry_of(found, Bytes::copy_from_slice(value))),
            Body::Record(ptr) => match self.heap.peek(self.place_of(*ptr)) {
                Some(record) => match value_in(&record.payload, key) {
                    Some(value) if !self.heap.was_opened_since(*ptr, lives) => {
                        Peek::Found(entry_of(found, value))
                    }
                    _ => Peek::NeedsFlash(Hint::default()),
                },
                None => Peek::NeedsFlash(Hint::default()),
            },
        }
    }
}
