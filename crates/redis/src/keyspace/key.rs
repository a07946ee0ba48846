//! How Redis keys lie in the ordered map (`docs/format/redis-keys.md`).
//!
//! A database is a *space*, the first four bytes of each of its keys; emptying a database gives it a new space.
//! Within a space, heads (`00` + user key: strings, and what is known of a collection as a whole) and elements
//! (`01` + collection id + sub + field) are kept apart, so that a scan over the user's keys meets no elements.

use pumice_base::slot::slot_of;
use pumice_node::{KeyHash, Node, Place};
use smallvec::SmallVec;

/// The space of a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Space(pub u32);

impl Space {
    /// The name under which the keys of the space that expire are counted, beside the count of all (a tally's name
    /// only, no prefix of keys: spaces given out stay far below this bit).
    pub const fn expiring(self) -> Self {
        Self(self.0 | 1 << 31)
    }

    /// The space that a tally of this name counts keys of.
    pub fn of_keys(self) -> Self {
        Self(self.0 & !(1 << 31))
    }
}

/// The space of Pumice's own records; user databases never get it.
pub const SYSTEM_SPACE: Space = Space(0);

/// Bytes of a key that lie on the stack.
const RAW_KEY_INLINE: usize = 72;

/// A key of the ordered map; on the stack while the user's key is short.
pub type RawKey = SmallVec<[u8; RAW_KEY_INLINE]>;

const HEAD: u8 = 0;
const ELEMENT: u8 = 1;

/// Bytes of an element's key before its field.
pub const ELEMENT_PREFIX_BYTES: usize = 4 + 1 + 8 + 1;
/// Bytes of a head's key before the user's key.
pub const HEAD_PREFIX_BYTES: usize = 4 + 1;

/// A user's key on its way through a command: its place and its encoded form, computed once.
#[derive(Clone, Debug)]
pub struct HeadKey {
    raw: RawKey,
    /// The Redis Cluster slot.
    pub slot: u16,
    /// Where the head lives.
    pub place: Place,
    /// The database.
    pub database: usize,
}

impl HeadKey {
    /// The head key of the user's `key` in `database`, which is in `space`.
    pub fn new(database: usize, space: Space, key: &[u8], node: &Node) -> Self {
        Self::placed(database, space, key, |slot| node.place_of_slot(slot))
    }

    /// [`HeadKey::new`] where `place` says what lives where.
    pub fn placed(database: usize, space: Space, key: &[u8], place: impl Fn(u16) -> Place) -> Self {
        let slot = slot_of(key);
        let prefix = head_prefix(space);
        let raw = joined(prefix, key);
        Self { raw, slot, place: place(slot), database }
    }

    /// What latches know the key by. By database, not by space: a flush changes the space under way.
    pub fn hash(&self) -> KeyHash {
        latch_hash(self.database, self.user())
    }

    /// The key as the ordered map knows it.
    pub fn raw(&self) -> &[u8] {
        &self.raw
    }

    /// The user's key.
    pub fn user(&self) -> &[u8] {
        &self.raw[HEAD_PREFIX_BYTES..]
    }

    /// The space it is in.
    pub fn space(&self) -> Space {
        space_of(&self.raw)
    }
}

/// What latches know the user's `key` of `database` by.
pub fn latch_hash(database: usize, key: &[u8]) -> KeyHash {
    KeyHash::of(database as u32, key)
}

/// The space that an encoded key belongs to; `SYSTEM_SPACE` for one too short to have any.
pub fn space_of(raw: &[u8]) -> Space {
    raw.first_chunk::<4>().map_or(SYSTEM_SPACE, |b| Space(u32::from_be_bytes(*b)))
}

/// The prefix of all keys of a space.
pub fn space_prefix(space: Space) -> [u8; 4] {
    space.0.to_be_bytes()
}

/// The prefix of all heads of a space.
pub fn head_prefix(space: Space) -> [u8; HEAD_PREFIX_BYTES] {
    let [a, b, c, d] = space.0.to_be_bytes();
    [a, b, c, d, HEAD]
}

/// The prefix of all elements of a collection.
pub fn collection_prefix(space: Space, id: u64) -> [u8; ELEMENT_PREFIX_BYTES - 1] {
    let mut prefix = [ELEMENT; ELEMENT_PREFIX_BYTES - 1];
    prefix[..4].copy_from_slice(&space.0.to_be_bytes());
    prefix[5..].copy_from_slice(&id.to_be_bytes());
    prefix
}

/// The key of one element.
pub fn element_key(space: Space, id: u64, sub: u8, field: &[u8]) -> RawKey {
    let mut prefix = [sub; ELEMENT_PREFIX_BYTES];
    prefix[..ELEMENT_PREFIX_BYTES - 1].copy_from_slice(&collection_prefix(space, id));
    joined(prefix, field)
}

/// `prefix`, and `rest` behind it.
#[inline]
pub fn joined<const N: usize, const INLINE: usize>(prefix: [u8; N], rest: &[u8]) -> SmallVec<[u8; INLINE]>
where
    [u8; INLINE]: smallvec::Array<Item = u8>,
{
    let len = N + rest.len();
    if len <= INLINE {
        let mut buf = [0; INLINE];
        buf[..N].copy_from_slice(&prefix);
        buf[N..len].copy_from_slice(rest);
        return SmallVec::from_buf_and_len(buf, len);
    }
    let mut joined = SmallVec::with_capacity(len);
    joined.extend_from_slice(&prefix);
    joined.extend_from_slice(rest);
    joined
}

/// The user's key of an encoded head key; `None` for elements.
pub fn user_key(raw: &[u8]) -> Option<&[u8]> {
    (raw.get(4) == Some(&HEAD)).then(|| &raw[HEAD_PREFIX_BYTES..])
}

/// The first key after all keys that start with `prefix`; `None` when there is none.
pub fn after_prefix(prefix: &[u8]) -> Option<RawKey> {
    let mut next = RawKey::from_slice(prefix);
    while let Some(last) = next.pop() {
        if last < u8::MAX {
            next.push(last + 1);
            return Some(next);
        }
    }
    None
}

/// A double as eight bytes that sort as the numbers do; the two zeros are one.
pub fn encode_score(score: f64) -> [u8; 8] {
    let bits = if score == 0.0 { 0u64 } else { score.to_bits() };
    // Negative numbers sort backwards by their bits: flip all; others go above them: flip the sign.
    let ordered = if bits >> 63 == 1 { !bits } else { bits | (1 << 63) };
    ordered.to_be_bytes()
}

/// The double that [`encode_score`] encoded.
pub fn decode_score(bytes: [u8; 8]) -> f64 {
    let ordered = u64::from_be_bytes(bytes);
    f64::from_bits(if ordered >> 63 == 1 { ordered & !(1 << 63) } else { !ordered })
}

/// A list index as eight bytes that sort as the numbers do.
pub fn encode_index(index: i64) -> [u8; 8] {
    ((index as u64) ^ (1 << 63)).to_be_bytes()
}

/// The index that [`encode_index`] encoded.
pub fn decode_index(bytes: [u8; 8]) -> i64 {
    (u64::from_be_bytes(bytes) ^ (1 << 63)) as i64
}
