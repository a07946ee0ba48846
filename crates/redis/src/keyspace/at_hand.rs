//! One element of a collection, if memory alone can tell: what clients with a pipeline ask for most, without a future.

use pumice_kv::{EntryView, Peek};
use pumice_node::Place;

use super::head::{Collection, Type, is_expired};
use super::key::{HeadKey, element_key};
use crate::command::Fast;
use crate::context::Ctx;
use crate::errors::{self, CommandResult};
use crate::resp::reply::Reply;

/// What the head of a key says.
enum Owner {
    /// The collection with this id, whose elements live there.
    Is(u64, Place),
    /// The key is absent, or expired.
    Absent,
    WrongType,
    /// It is left to [`Ctx::read_element`].
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
            Owner::Is(id, place) => (id, place),
            Owner::Unknown => return Fast::Slow,
            Owner::Absent | Owner::WrongType => {
                self.depend_on(key.place, key.raw(), head_seq);
                self.count_look_up(matches!(owner, Owner::WrongType));
                let is_wrong = matches!(owner, Owner::WrongType);
                let answer =
                    if is_wrong { Err(errors::WRONG_TYPE.into()) } else { write(&mut self.reply, None) };
                return answer.map_or_else(Fast::Fail, |()| Fast::Done);
            }
        };
        let element = element_key(key.space(), id, sub, field);
        let reply = &mut self.reply;
        let found =
            self.server.node.peek_with(place, &element, |found| (found.seq, write(reply, Some(found))));
        let (seq, answer) = match found {
            Peek::Found((seq, answer)) => (Some(seq), answer),
            Peek::NeedsFlash(hint) => {
                self.peeked = Some((element, hint));
                return Fast::Slow;
            }
            Peek::Absent => {
                // Others may have put another collection there: it may have had the element all the time.
                if !matches!(self.owner(&key, kind).0, Owner::Is(now, _) if now == id) {
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

    /// Whose elements those under `key` are, and the version of its head.
    fn owner(&self, key: &HeadKey, kind: Type) -> (Owner, Option<u64>) {
        let (node, now_ms) = (&self.server.node, self.now_ms);
        let found = node.peek_with(key.place, key.raw(), |found| {
            let owner = match Type::from_tag(found.tag) {
                _ if is_expired(found.expire_ms, now_ms) => Owner::Absent,
                Some(other) if other != kind => Owner::WrongType,
                Some(_) => Collection::owner_of(kind, found.value.bytes())
                    .map_or(Owner::Unknown, |(id, home)| Owner::Is(id, node.place_of_slot(home))),
                None => Owner::Unknown,
            };
            (owner, Some(found.seq))
        });
        match found {
            Peek::Found(found) => found,
            Peek::Absent => (Owner::Absent, None),
            Peek::NeedsFlash(_) => (Owner::Unknown, None),
        }
    }
}
