//! One element of a collection, if memory alone can tell: what clients with a pipeline ask for and change most, without a future.
//!
//! A fast handler that changes an element goes the steps of any other that changes a key ([`super`]): [`Ctx::open_at_hand`], look-ups,
//! a change, [`Ctx::commit_at_hand`]. Each of them may leave the command to the usual handler, as nothing was done before the last.

use pumice_kv::{Coming, Entry, EntryView, Meta, Peek};
use pumice_node::{Node, Place};
use smallvec::SmallVec;

use super::access::{FEW_KEYS, Latched, ONE_MOMENT_BYTES_MAX, PARALLEL_READS_MAX};
use super::change::Change;
use super::head::{Collection, Type, is_expired};
use super::key::{HeadKey, RawKey, Space, element_key};
use crate::command::Fast;
use crate::context::Ctx;
use crate::errors::{self, CommandResult};
use crate::resp::reply::Reply;

/// What the head of a key says, if it is one of a collection of the type asked for.
enum Says<T> {
    Is(T),
    Absent,
    /// It is there, and its time is over.
    Expired,
    WrongType,
    /// It is left to the usual handler.
    Unknown,
}

impl Ctx {
    /// [`Ctx::read_element`] where there is nothing to wait for; `write` answers with the element, or without it.
    pub(crate) fn answer_element(
        &mut self,
        key: &[u8],
        kind: Type,
        sub: u8,
        field: &[u8],
        write: impl Fn(&mut Reply, Option<EntryView<'_>>) -> CommandResult,
    ) -> Fast {
        let key = self.key(key);
        let (owner, head_seq) = self.owner(&key, kind);
        let (id, place) = match owner {
            Says::Is(owner) => owner,
            Says::Unknown => return Fast::Slow,
            Says::Absent | Says::Expired | Says::WrongType => {
                self.depend_on(key.place, key.raw(), head_seq);
                let is_wrong = matches!(owner, Says::WrongType);
                self.count_look_up(is_wrong);
                let answer =
                    if is_wrong { Err(errors::WRONG_TYPE.into()) } else { write(&mut self.reply, None) };
                return answer.map_or_else(Fast::Fail, |()| Fast::Done);
            }
        };
        let element = element_key(key.space(), id, sub, field);
        let mark = self.reply.mark();
        let reply = &mut self.reply;
        let found =
            self.server.node.peek_with(place, &element, |found| (found.seq, write(reply, Some(found))));
        let (seq, answer) = match found {
            Peek::Found((seq, answer)) => {
                // What is newer than the head may have been put there under the collection's new key.
                let is_newer = place.drive != key.place.drive || head_seq.is_none_or(|head| seq > head);
                if is_newer && !matches!(self.owner(&key, kind).0, Says::Is((now, _)) if now == id) {
                    self.reply.rollback(mark);
                    return Fast::Slow;
                }
                (Some(seq), answer)
            }
            Peek::NeedsFlash(hint) => {
                self.peeked = Some((element, hint));
                return Fast::Slow;
            }
            Peek::Absent => {
                // Others may have put another collection there: it may have had the element all the time.
                if !matches!(self.owner(&key, kind).0, Says::Is((now, _)) if now == id) {
                    return Fast::Slow;
                }
                (None, write(&mut self.reply, None))
            }
        };
        self.depend_on(key.place, key.raw(), head_seq);
        self.depend_on(place, &element, seq);
        self.count_look_up(true);
        answer.map_or_else(Fast::Fail, |()| Fast::Done)
    }

    /// [`Ctx::answer_element`] of several, as of one moment: the array of what `write` answers for each of `fields`.
    pub(crate) fn answer_elements(
        &mut self,
        key: &[u8],
        kind: Type,
        sub: u8,
        fields: impl ExactSizeIterator<Item = impl AsRef<[u8]>>,
        write: impl Fn(&mut Reply, Option<EntryView<'_>>) -> CommandResult,
    ) -> Fast {
        if fields.len() > PARALLEL_READS_MAX {
            return Fast::Slow;
        }
        let key = self.key(key);
        let Some(_held) = self.try_latch(&key) else { return Fast::Slow };
        let (owner, head_seq) = self.owner(&key, kind);
        let owner = match owner {
            Says::Is(owner) => Some(owner),
            Says::Absent | Says::Expired => None,
            Says::WrongType => {
                self.depend_on(key.place, key.raw(), head_seq);
                self.count_look_up(true);
                return Fast::Fail(errors::WRONG_TYPE.into());
            }
            Says::Unknown => return Fast::Slow,
        };
        self.depend_on(key.place, key.raw(), head_seq);
        let mark = self.reply.mark();
        self.reply.array(fields.len());
        let answer = match owner {
            Some((id, place)) => self.write_elements(key.space(), id, place, sub, fields, write),
            None => {
                let mut fields = fields;
                fields.try_for_each(|_| write(&mut self.reply, None)).map_err(Fast::Fail)
            }
        };
        if let Err(other) = answer {
            self.reply.rollback(mark);
            return other;
        }
        self.count_look_up(owner.is_some());
        Fast::Done
    }

    /// The elements of [`Ctx::answer_elements`].
    fn write_elements(
        &mut self,
        space: Space,
        id: u64,
        place: Place,
        sub: u8,
        fields: impl Iterator<Item = impl AsRef<[u8]>>,
        write: impl Fn(&mut Reply, Option<EntryView<'_>>) -> CommandResult,
    ) -> Result<(), Fast> {
        let elements: SmallVec<[(RawKey, Coming); FEW_KEYS]> = fields
            .map(|field| {
                let element = element_key(space, id, sub, field.as_ref());
                let coming = self.server.node.prefetch_index(place, &element);
                (element, coming)
            })
            .collect();
        let (before, mut value_bytes) = (self.reply.len(), 0);
        for (at, (element, _)) in elements.iter().enumerate() {
            // The next one's row comes from memory while this one is looked up.
            if let Some((_, coming)) = elements.get(at + 1) {
                self.server.node.prefetch(place, *coming, value_bytes);
            }
            let replied = self.reply.len();
            let reply = &mut self.reply;
            let found =
                self.server.node.peek_with(place, element, |found| (found.seq, write(reply, Some(found))));
            let (seq, answer) = match found {
                Peek::Found((seq, answer)) => (Some(seq), answer),
                Peek::Absent => (None, write(&mut self.reply, None)),
                Peek::NeedsFlash(_) => return Err(Fast::Slow),
            };
            answer?;
            self.depend_on(place, element, seq);
            value_bytes = self.reply.len() - replied;
            if self.reply.len() - before > ONE_MOMENT_BYTES_MAX {
                return Err(Fast::Slow);
            }
        }
        Ok(())
    }

    /// What is stored under `key`, live or expired, if memory alone can tell. Hold the latch.
    pub(crate) fn stored_at_hand(&self, key: &HeadKey) -> Result<Option<Meta>, Fast> {
        match self.server.node.peek_meta(key.place, key.raw()) {
            Peek::Found(meta) => Ok(Some(meta)),
            Peek::Absent => Ok(None),
            Peek::NeedsFlash(_) => Err(Fast::Slow),
        }
    }

    /// `write` answers with what is known of the key without its value; without, where there is no live one.
    pub(crate) fn answer_meta(
        &mut self,
        key: &[u8],
        write: impl FnOnce(&mut Reply, Option<Meta>) -> CommandResult,
    ) -> Fast {
        let key = self.key(key);
        let found = match self.server.node.peek_meta(key.place, key.raw()) {
            Peek::Found(meta) => Some(meta),
            Peek::Absent => None,
            Peek::NeedsFlash(_) => return Fast::Slow,
        };
        self.depend_on(key.place, key.raw(), found.map(|meta| meta.seq));
        let live = found.filter(|meta| !is_expired(meta.expire_ms, self.now_ms));
        self.count_look_up(live.is_some());
        write(&mut self.reply, live).map_or_else(Fast::Fail, |()| Fast::Done)
    }

    /// How many elements the collection has.
    pub(crate) fn answer_count(&mut self, key: &[u8], kind: Type) -> Fast {
        let key = self.key(key);
        let (says, seq) =
            self.head_at_hand(&key, kind, |found| Collection::count_of(kind, found.value.bytes()));
        let count = match says {
            Says::Is(count) => Ok(count),
            Says::Absent | Says::Expired => Ok(0),
            Says::WrongType => Err(errors::WRONG_TYPE.into()),
            Says::Unknown => return Fast::Slow,
        };
        self.depend_on(key.place, key.raw(), seq);
        self.count_look_up(!matches!(says, Says::Absent | Says::Expired));
        count.map_or_else(Fast::Fail, |count| {
            self.reply.count(count);
            Fast::Done
        })
    }

    /// [`Ctx::latch`] and [`Ctx::collection`] where there is nothing to wait for.
    pub(crate) fn open_at_hand(
        &mut self,
        key: &[u8],
        kind: Type,
    ) -> Result<Option<(Collection, Latched)>, Fast> {
        let key = self.key(key);
        let held = self.try_latch(&key).ok_or(Fast::Slow)?;
        Ok(self.collection_at_hand(&key, kind)?.map(|collection| (collection, held)))
    }

    /// [`Ctx::latch`] and [`Ctx::collection_or_new`] where there is nothing to wait for, nor anything to be removed first.
    pub(crate) fn open_or_new_at_hand(
        &mut self,
        key: &[u8],
        kind: Type,
    ) -> Result<(Collection, Latched), Fast> {
        let key = self.key(key);
        let held = self.try_latch(&key).ok_or(Fast::Slow)?;
        let stored = self.collection_at_hand(&key, kind)?;
        Ok((stored.unwrap_or_else(|| self.new_collection(key, kind)), held))
    }

    /// What is stored under `key`, if memory alone can tell. Hold the latch.
    fn collection_at_hand(&mut self, key: &HeadKey, kind: Type) -> Result<Option<Collection>, Fast> {
        let node = &self.server.node;
        let compact = self.server.settings.compact(kind);
        let (says, seq) = self.head_at_hand(key, kind, |found| {
            let (value, place) = (found.value.bytes(), |slot| node.place_of_slot(slot));
            Collection::decode(key.clone(), kind, found.expire_ms, found.seq, value, compact, place)
        });
        let stored = match says {
            Says::Is(collection) => Ok(Some(collection)),
            Says::Absent => Ok(None),
            Says::WrongType => Err(Fast::Fail(errors::WRONG_TYPE.into())),
            // What it held may have to be removed.
            Says::Expired | Says::Unknown => return Err(Fast::Slow),
        };
        self.depend_on(key.place, key.raw(), seq);
        stored
    }

    /// One element where there is nothing to wait for. Hold the latch.
    pub(crate) fn element_at_hand(
        &mut self,
        collection: &Collection,
        sub: u8,
        field: &[u8],
    ) -> Result<Option<Entry>, Fast> {
        let key = element_key(collection.key.space(), collection.id, sub, field);
        let found = match self.peek_element(collection, |node, place| node.peek(place, &key)) {
            Peek::Found(entry) => Some(entry),
            Peek::Absent => None,
            // What memory knows of it is of no use: others may change it before the usual handler has the latch.
            Peek::NeedsFlash(_) => return Err(Fast::Slow),
        };
        self.depend_on_element(collection, &key, found.as_ref().map(|entry| entry.seq));
        Ok(found)
    }

    /// Whether there is such an element, where there is nothing to wait for. Hold the latch.
    pub(crate) fn has_element_at_hand(
        &mut self,
        collection: &Collection,
        sub: u8,
        field: &[u8],
    ) -> Result<bool, Fast> {
        let key = element_key(collection.key.space(), collection.id, sub, field);
        let seq = match self.peek_element(collection, |node, place| node.peek_meta(place, &key)) {
            Peek::Found(meta) => Some(meta.seq),
            Peek::Absent => None,
            Peek::NeedsFlash(_) => return Err(Fast::Slow),
        };
        self.depend_on_element(collection, &key, seq);
        Ok(seq.is_some())
    }

    /// A collection that is not stored has no elements.
    fn peek_element<T>(&self, collection: &Collection, peek: impl Fn(&Node, Place) -> Peek<T>) -> Peek<T> {
        if collection.is_new { Peek::Absent } else { peek(&self.server.node, collection.elements) }
    }

    fn depend_on_element(&mut self, collection: &Collection, key: &[u8], seq: Option<u64>) {
        if !collection.is_new {
            self.depend_on(collection.elements, key, seq);
        }
    }

    /// [`Ctx::commit`] where there is nothing to wait for.
    pub(crate) fn commit_at_hand(&mut self, change: Change) -> Result<(), Fast> {
        Ok(self.try_commit(change).ok_or(Fast::Slow)??)
    }

    /// Whose elements those under `key` are and where they live, and the version of its head.
    fn owner(&self, key: &HeadKey, kind: Type) -> (Says<(u64, Place)>, Option<u64>) {
        let node = &self.server.node;
        self.head_at_hand(key, kind, |found| {
            let (id, home) = Collection::owner_of(kind, found.value.bytes())?;
            Some((id, node.place_of_slot(home)))
        })
    }

    /// What the head of `key` says, as `read` makes it out, and its version.
    fn head_at_hand<T>(
        &self,
        key: &HeadKey,
        kind: Type,
        read: impl FnOnce(EntryView<'_>) -> Option<T>,
    ) -> (Says<T>, Option<u64>) {
        let found = self.server.node.peek_with(key.place, key.raw(), |found| {
            let seq = found.seq;
            let says = match Type::from_tag(found.tag) {
                _ if is_expired(found.expire_ms, self.now_ms) => Says::Expired,
                Some(other) if other != kind => Says::WrongType,
                Some(_) => read(found).map_or(Says::Unknown, Says::Is),
                None => Says::Unknown,
            };
            (says, Some(seq))
        });
        match found {
            Peek::Found(found) => found,
            Peek::Absent => (Says::Absent, None),
            Peek::NeedsFlash(_) => (Says::Unknown, None),
        }
    }
}
