//! Heads: what is stored under a user's key. A string's head is the string; a collection's head names its
//! elements and counts them. Byte for byte in `docs/format/redis-keys.md`.

use pumice_base::slot::SLOT_COUNT;
use pumice_kv::{Entry, Meta};

use pumice_node::Place;

use super::key::HeadKey;

/// The type of a key, as the tag of its head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Type {
    /// A string.
    String = 1,
    /// A list.
    List = 2,
    /// A set.
    Set = 3,
    /// A sorted set.
    Zset = 4,
    /// A hash.
    Hash = 5,
}

/// The tag of a string that APPEND or SETRANGE changed in place: Redis keeps it as it is.
pub const TAG_STRING_EDITED: u8 = 0x21;
/// The tag of a string that INCRBYFLOAT made: Redis never takes it for an integer.
pub const TAG_STRING_FLOAT: u8 = 0x11;

impl Type {
    /// The type of a stored tag. Strings have three, which only OBJECT ENCODING and DEBUG tell apart.
    pub fn from_tag(tag: u8) -> Option<Self> {
        Some(match tag {
            1 | TAG_STRING_FLOAT | TAG_STRING_EDITED => Self::String,
            2 => Self::List,
            3 => Self::Set,
            4 => Self::Zset,
            5 => Self::Hash,
            _ => return None,
        })
    }

    /// Whether a stored tag is that of a string.
    pub fn is_string(tag: u8) -> bool {
        Self::from_tag(tag) == Some(Self::String)
    }

    /// The tag it is stored under.
    pub fn tag(self) -> u8 {
        self as u8
    }

    /// What TYPE answers.
    pub fn name(self) -> &'static str {
        match self {
            Self::String => "string",
            Self::List => "list",
            Self::Set => "set",
            Self::Zset => "zset",
            Self::Hash => "hash",
        }
    }

    /// The type of that name.
    pub fn from_name(name: &[u8]) -> Option<Self> {
        [Self::String, Self::List, Self::Set, Self::Zset, Self::Hash]
            .into_iter()
            .find(|t| name.eq_ignore_ascii_case(t.name().as_bytes()))
    }
}

/// Some element was longer than what Redis keeps in its compact encodings (64 bytes unless CONFIG SET said otherwise).
/// Never cleared.
pub const HINT_LONG_ELEMENT: u8 = 1;
/// Some member of the set was no integer. Never cleared.
pub const HINT_NOT_INTEGERS: u8 = 2;
/// The collection once had more elements than Redis's compact encodings take. Never cleared.
pub const HINT_MANY: u8 = 4;

/// Between the first and the last element of the list there are indexes without one.
pub const HINT_GAP: u8 = 0x80;

/// No element of the list lies outside of `first..end`: with its last one nothing else can go. Lists are born with it, and lose it where
/// a crash may leave some.
pub const HINT_NONE_OUTSIDE: u8 = 0x40;

/// Elements that nobody could ever have put in, and how far from zero the indexes of a list may be.
const COUNT_MAX: u64 = 1 << 56;

const COLLECTION_BYTES: usize = 24;
const LIST_BYTES: usize = COLLECTION_BYTES + 16;

/// What a live key holds.
#[derive(Clone, Debug)]
pub enum Head {
    /// A string, with its value.
    String(StringHead),
    /// A collection.
    Collection(Collection),
}

/// A string and when it expires.
#[derive(Clone, Debug)]
pub struct StringHead {
    /// Unix milliseconds; 0 = never.
    pub expire_ms: u64,
    /// The entry as stored: value, or pieces of a large one.
    pub entry: Entry,
}

/// Up to where Redis keeps collections of one type in its compact encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compact {
    /// Elements.
    pub entries: u64,
    /// Bytes of a name or value.
    pub bytes: u64,
}

/// A collection: what its head says. Change `count` (and `first`/`end` of a list), then give it to
/// [`super::Change::put_collection`].
#[derive(Clone, Debug)]
pub struct Collection {
    /// The user's key.
    pub key: HeadKey,
    /// List, set, sorted set or hash.
    pub kind: Type,
    /// Unix milliseconds; 0 = never.
    pub expire_ms: u64,
    /// Its elements carry this id; never used again on their drive.
    pub id: u64,
    /// The slot that says where its elements live: that of the key it was made under.
    pub home: u16,
    /// Where its elements live.
    pub elements: Place,
    /// How many elements.
    pub count: u64,
    /// How many there were when it was read.
    pub(crate) stored_count: u64,
    /// `HINT_…` bits, for OBJECT ENCODING.
    pub hints: u8,
    /// The hints as stored, to tell whether they changed.
    pub(crate) stored_hints: u8,
    /// When to note hints.
    pub(crate) compact: Compact,
    /// Lists: index of the first element.
    pub first: i64,
    /// Lists: index after the last element.
    pub end: i64,
    /// True until its head is stored for the first time.
    pub is_new: bool,
    /// Version of the stored head; 0 when new.
    pub seq: u64,
}

impl Head {
    /// The type of the key.
    pub fn kind(&self) -> Type {
        match self {
            Self::String(_) => Type::String,
            Self::Collection(collection) => collection.kind,
        }
    }

    /// Unix milliseconds; 0 = never.
    pub fn expire_ms(&self) -> u64 {
        match self {
            Self::String(string) => string.expire_ms,
            Self::Collection(collection) => collection.expire_ms,
        }
    }
}

/// True when something that expires at `expire_ms` (0 = never) is gone at `now_ms`. As Redis has it, it lives through that very
/// millisecond (db.c, keyIsExpired), but is not let live until then by who says so then (EXPIREAT; expire.c, checkAlreadyExpired).
pub fn is_expired(expire_ms: u64, now_ms: u64) -> bool {
    expire_ms != 0 && now_ms > expire_ms
}

/// True when `meta` is gone at `now_ms`.
pub fn meta_is_expired(meta: &Meta, now_ms: u64) -> bool {
    is_expired(meta.expire_ms, now_ms)
}

impl Collection {
    /// The stored form of this head.
    pub fn encode(&self) -> ([u8; LIST_BYTES], usize) {
        let mut out = [0u8; LIST_BYTES];
        out[0..8].copy_from_slice(&self.id.to_le_bytes());
        out[8..16].copy_from_slice(&self.count.to_le_bytes());
        out[16..18].copy_from_slice(&self.home.to_le_bytes());
        out[18] = self.hints;
        // 19..24: reserved, zero.
        if self.kind != Type::List {
            return (out, COLLECTION_BYTES);
        }
        out[24..32].copy_from_slice(&self.first.to_le_bytes());
        out[32..40].copy_from_slice(&self.end.to_le_bytes());
        (out, LIST_BYTES)
    }

    /// Reads what [`Collection::encode`] wrote; `None` for anything else, counts and indexes that no collection has among them:
    /// commands reckon with them.
    pub fn decode(
        key: HeadKey,
        kind: Type,
        expire_ms: u64,
        seq: u64,
        value: &[u8],
        compact: Compact,
        place: impl Fn(u16) -> Place,
    ) -> Option<Self> {
        let Stored { id, home, count, hints, first, end } = Stored::parse(kind, value)?;
        Some(Self {
            key,
            kind,
            expire_ms,
            id,
            home,
            elements: place(home),
            count,
            stored_count: count,
            hints,
            stored_hints: hints,
            compact,
            first,
            end: if kind == Type::List { end } else { 0 },
            is_new: false,
            seq,
        })
    }

    /// Whether the elements in `first..end` of a list are all that there may be. Head and elements lie on one drive, so that a change of
    /// both in one batch is whole or absent after a crash.
    pub fn has_none_outside(&self) -> bool {
        self.hints & HINT_NONE_OUTSIDE != 0
    }

    /// Of a stored head its elements' id, and the slot that says where they live.
    pub(super) fn owner_of(kind: Type, value: &[u8]) -> Option<(u64, u16)> {
        Stored::parse(kind, value).map(|stored| (stored.id, stored.home))
    }

    /// How many elements a stored head counts.
    pub(super) fn count_of(kind: Type, value: &[u8]) -> Option<u64> {
        Stored::parse(kind, value).map(|stored| stored.count)
    }
}

/// What [`Collection::encode`] writes.
struct Stored {
    id: u64,
    home: u16,
    count: u64,
    hints: u8,
    first: i64,
    end: i64,
}

impl Stored {
    fn parse(kind: Type, value: &[u8]) -> Option<Self> {
        let expected = if kind == Type::List { LIST_BYTES } else { COLLECTION_BYTES };
        if kind == Type::String || value.len() != expected {
            return None;
        }
        let word = |at: usize| value.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes);
        let home = u16::from_le_bytes([value[16], value[17]]);
        let (id, count, hints) = (word(0)?, word(8)?, value[18]);
        let (first, end) =
            if kind == Type::List { (word(24)? as i64, word(32)? as i64) } else { (0, count as i64) };
        let is_plausible = (1..=COUNT_MAX).contains(&count)
            && home < SLOT_COUNT
            && [first, end].iter().all(|index| index.unsigned_abs() <= COUNT_MAX)
            && (count as i64 == end - first || (hints & HINT_GAP != 0 && (count as i64) < end - first));
        is_plausible.then_some(Self { id, home, count, hints, first, end })
    }
}
