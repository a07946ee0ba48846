//! What one key of a Redis server does, for the linearizability checker: strings, counters, hashes, lists, sorted sets, and when
//! they expire.
//!
//! When a command took effect is known by the millisecond at best, and the server's clock may have jumped: [`Walls`] has what it
//! may have shown. A key is gone for certain once no instant of a command is before its deadline; it may be gone as soon as the clock
//! has shown its deadline at any time since it was set, for whoever looks may remove it, and so may the server by itself.

use super::resp::Reply;
use crate::linear::Model;
use std::collections::{BTreeMap, BTreeSet};

/// A command on one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// GET
    Get,
    /// SET
    Set(Vec<u8>),
    /// SET NX
    SetNx(Vec<u8>),
    /// SET XX GET
    SetXxGet(Vec<u8>),
    /// GETDEL
    GetDel,
    /// DEL
    Del,
    /// EXISTS
    Exists,
    /// INCRBY
    IncrBy(i64),
    /// APPEND
    Append(Vec<u8>),
    /// STRLEN
    StrLen,
    /// HSET of one field
    HSet(Vec<u8>, Vec<u8>),
    /// HDEL of one field
    HDel(Vec<u8>),
    /// HGET
    HGet(Vec<u8>),
    /// HLEN
    HLen,
    /// HGETALL
    HGetAll,
    /// RPUSH of one element
    RPush(Vec<u8>),
    /// LPUSH of one element
    LPush(Vec<u8>),
    /// LPOP
    LPop,
    /// RPOP
    RPop,
    /// LTRIM
    LTrim(i64, i64),
    /// LRANGE 0 -1
    LRange,
    /// LLEN
    LLen,
    /// ZADD of one member
    ZAdd(i64, Vec<u8>),
    /// ZINCRBY
    ZIncrBy(i64, Vec<u8>),
    /// ZREM of one member
    ZRem(Vec<u8>),
    /// ZPOPMIN
    ZPopMin,
    /// ZSCORE
    ZScore(Vec<u8>),
    /// ZCARD
    ZCard,
    /// ZRANK
    ZRank(Vec<u8>),
    /// ZRANGE 0 -1 WITHSCORES
    ZRange,
    /// SADD of one member
    SAdd(Vec<u8>),
    /// SREM of one member
    SRem(Vec<u8>),
    /// SISMEMBER
    SIsMember(Vec<u8>),
    /// SCARD
    SCard,
    /// SMEMBERS
    SMembers,
    /// SET PXAT
    SetPxAt(Vec<u8>, u64),
    /// PEXPIREAT
    PExpireAt(u64),
    /// PERSIST
    Persist,
    /// PEXPIRETIME
    PExpireTime,
}

impl Op {
    /// The command, with its key.
    pub fn command<'a>(&'a self, key: &'a [u8]) -> Vec<std::borrow::Cow<'a, [u8]>> {
        use std::borrow::Cow::{Borrowed, Owned};
        let word = |text: &'static str| Borrowed(text.as_bytes());
        match self {
            Self::Get => vec![word("GET"), Borrowed(key)],
            Self::Set(value) => vec![word("SET"), Borrowed(key), Borrowed(value)],
            Self::SetNx(value) => vec![word("SET"), Borrowed(key), Borrowed(value), word("NX")],
            Self::SetXxGet(value) => {
                vec![word("SET"), Borrowed(key), Borrowed(value), word("XX"), word("GET")]
            }
            Self::GetDel => vec![word("GETDEL"), Borrowed(key)],
            Self::Del => vec![word("DEL"), Borrowed(key)],
            Self::Exists => vec![word("EXISTS"), Borrowed(key)],
            Self::IncrBy(by) => vec![word("INCRBY"), Borrowed(key), Owned(by.to_string().into_bytes())],
            Self::Append(value) => vec![word("APPEND"), Borrowed(key), Borrowed(value)],
            Self::StrLen => vec![word("STRLEN"), Borrowed(key)],
            Self::HSet(field, value) => vec![word("HSET"), Borrowed(key), Borrowed(field), Borrowed(value)],
            Self::HDel(field) => vec![word("HDEL"), Borrowed(key), Borrowed(field)],
            Self::HGet(field) => vec![word("HGET"), Borrowed(key), Borrowed(field)],
            Self::HLen => vec![word("HLEN"), Borrowed(key)],
            Self::HGetAll => vec![word("HGETALL"), Borrowed(key)],
            Self::RPush(value) => vec![word("RPUSH"), Borrowed(key), Borrowed(value)],
            Self::LPush(value) => vec![word("LPUSH"), Borrowed(key), Borrowed(value)],
            Self::LPop => vec![word("LPOP"), Borrowed(key)],
            Self::RPop => vec![word("RPOP"), Borrowed(key)],
            Self::LTrim(first, last) => {
                let number = |number: &i64| Owned(number.to_string().into_bytes());
                vec![word("LTRIM"), Borrowed(key), number(first), number(last)]
            }
            Self::LRange => vec![word("LRANGE"), Borrowed(key), word("0"), word("-1")],
            Self::LLen => vec![word("LLEN"), Borrowed(key)],
            Self::ZAdd(score, member) => {
                let score = Owned(score.to_string().into_bytes());
                vec![word("ZADD"), Borrowed(key), score, Borrowed(member)]
            }
            Self::ZIncrBy(by, member) => {
                vec![word("ZINCRBY"), Borrowed(key), Owned(by.to_string().into_bytes()), Borrowed(member)]
            }
            Self::ZRem(member) => vec![word("ZREM"), Borrowed(key), Borrowed(member)],
            Self::ZPopMin => vec![word("ZPOPMIN"), Borrowed(key)],
            Self::ZScore(member) => vec![word("ZSCORE"), Borrowed(key), Borrowed(member)],
            Self::ZCard => vec![word("ZCARD"), Borrowed(key)],
            Self::ZRank(member) => vec![word("ZRANK"), Borrowed(key), Borrowed(member)],
            Self::ZRange => {
                vec![word("ZRANGE"), Borrowed(key), word("0"), word("-1"), word("WITHSCORES")]
            }
            Self::SAdd(member) => vec![word("SADD"), Borrowed(key), Borrowed(member)],
            Self::SRem(member) => vec![word("SREM"), Borrowed(key), Borrowed(member)],
            Self::SIsMember(member) => vec![word("SISMEMBER"), Borrowed(key), Borrowed(member)],
            Self::SCard => vec![word("SCARD"), Borrowed(key)],
            Self::SMembers => vec![word("SMEMBERS"), Borrowed(key)],
            Self::SetPxAt(value, at) => {
                let at = Owned(at.to_string().into_bytes());
                vec![word("SET"), Borrowed(key), Borrowed(value), word("PXAT"), at]
            }
            Self::PExpireAt(at) => {
                vec![word("PEXPIREAT"), Borrowed(key), Owned(at.to_string().into_bytes())]
            }
            Self::Persist => vec![word("PERSIST"), Borrowed(key)],
            Self::PExpireTime => vec![word("PEXPIRETIME"), Borrowed(key)],
        }
    }

    /// What reads all that lies under a key whose name begins with its kind.
    pub fn read_of(key: &[u8]) -> Self {
        match key.split(|byte| *byte == b':').next() {
            Some(b"hash") => Self::HGetAll,
            Some(b"list") => Self::LRange,
            Some(b"zset") => Self::ZRange,
            Some(b"set") => Self::SMembers,
            _ => Self::Get,
        }
    }

    /// The bytes of its own that it writes into a string, which no other command writes.
    pub fn written(&self) -> Option<&[u8]> {
        match self {
            Self::Set(value)
            | Self::SetNx(value)
            | Self::SetXxGet(value)
            | Self::Append(value)
            | Self::SetPxAt(value, _) => Some(value),
            _ => None,
        }
    }

    /// The deadline that it gives a key.
    pub fn deadline(&self) -> Option<u64> {
        match self {
            Self::SetPxAt(_, at) | Self::PExpireAt(at) => Some(*at),
            _ => None,
        }
    }

    /// Whether a client that never heard may leave the operation out of the history.
    pub fn only_reads(&self) -> bool {
        matches!(
            self,
            Self::Get
                | Self::Exists
                | Self::StrLen
                | Self::HGet(_)
                | Self::HLen
                | Self::HGetAll
                | Self::LRange
                | Self::LLen
                | Self::ZScore(_)
                | Self::ZCard
                | Self::ZRank(_)
                | Self::ZRange
                | Self::SIsMember(_)
                | Self::SCard
                | Self::SMembers
                | Self::PExpireTime
        )
    }

    /// Whether nothing is left of the key, whatever it was.
    pub(super) fn removes(&self) -> bool {
        matches!(self, Self::Del | Self::GetDel)
    }
}

/// What a key holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum State {
    /// Nothing.
    #[default]
    None,
    /// A string.
    String(Vec<u8>),
    /// A hash.
    Hash(BTreeMap<Vec<u8>, Vec<u8>>),
    /// A list.
    List(Vec<Vec<u8>>),
    /// A sorted set: the score of each member.
    ZSet(BTreeMap<Vec<u8>, i64>),
    /// A set.
    Set(BTreeSet<Vec<u8>>),
}

/// A key: what it holds, and until when.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Key {
    /// What it holds.
    pub state: State,
    /// Its deadline in Unix milliseconds of the server's clock, 0 for none.
    pub expire_ms: u64,
}

impl Key {
    fn of(state: State, expire_ms: u64) -> Self {
        let is_there = state != State::None;
        Self { state, expire_ms: if is_there { expire_ms } else { 0 } }
    }
}

pub(super) const WRONG_TYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";
const NOT_INTEGER: &str = "ERR value is not an integer or out of range";

fn ok() -> Reply {
    Reply::Simple("OK".into())
}

fn bulk(value: &[u8]) -> Reply {
    Reply::Bulk(Some(value.to_vec()))
}

/// The reply to `op` on a key that has not expired, and the key after it.
pub fn step(key: &Key, op: &Op) -> (Reply, Key) {
    let is_there = key.state != State::None;
    match op {
        Op::SetPxAt(value, at) => (ok(), Key::of(State::String(value.clone()), *at)),
        Op::PExpireAt(at) => (Reply::Integer(i64::from(is_there)), Key::of(key.state.clone(), *at)),
        Op::Persist => (Reply::Integer(i64::from(key.expire_ms != 0)), Key::of(key.state.clone(), 0)),
        Op::PExpireTime => {
            let at = match key.expire_ms {
                _ if !is_there => -2,
                0 => -1,
                at => at as i64,
            };
            (Reply::Integer(at), key.clone())
        }
        _ => {
            let (reply, state) = step_state(&key.state, op);
            let is_new = match op {
                Op::Set(_) => true,
                Op::SetXxGet(_) => matches!(reply, Reply::Bulk(Some(_))),
                _ => false,
            };
            (reply, Key::of(state, if is_new { 0 } else { key.expire_ms }))
        }
    }
}

fn step_state(state: &State, op: &Op) -> (Reply, State) {
    let same = |reply| (reply, state.clone());
    let wrong = || (Reply::Error(WRONG_TYPE.into()), state.clone());
    match op {
        Op::Get => match state {
            State::None => same(Reply::Bulk(None)),
            State::String(value) => same(bulk(value)),
            _ => wrong(),
        },
        Op::Set(value) => (ok(), State::String(value.clone())),
        Op::SetNx(value) => match state {
            State::None => (ok(), State::String(value.clone())),
            _ => same(Reply::Bulk(None)),
        },
        Op::SetXxGet(value) => match state {
            State::None => same(Reply::Bulk(None)),
            State::String(old) => (bulk(old), State::String(value.clone())),
            _ => wrong(),
        },
        Op::GetDel => match state {
            State::None => same(Reply::Bulk(None)),
            State::String(value) => (bulk(value), State::None),
            _ => wrong(),
        },
        Op::Del => (Reply::Integer(i64::from(*state != State::None)), State::None),
        Op::Exists => same(Reply::Integer(i64::from(*state != State::None))),
        Op::IncrBy(by) => {
            let old = match state {
                State::None => Some(0),
                State::String(value) => {
                    std::str::from_utf8(value).ok().and_then(|text| text.parse::<i64>().ok())
                }
                _ => return wrong(),
            };
            match old.and_then(|old| old.checked_add(*by)) {
                Some(sum) => (Reply::Integer(sum), State::String(sum.to_string().into_bytes())),
                None => same(Reply::Error(NOT_INTEGER.into())),
            }
        }
        Op::Append(value) => {
            let old: &[u8] = match state {
                State::None => &[],
                State::String(old) => old,
                _ => return wrong(),
            };
            let new = [old, value].concat();
            (Reply::Integer(new.len() as i64), State::String(new))
        }
        Op::StrLen => match state {
            State::None => same(Reply::Integer(0)),
            State::String(value) => same(Reply::Integer(value.len() as i64)),
            _ => wrong(),
        },
        Op::HSet(..) | Op::HDel(_) | Op::HGet(_) | Op::HLen | Op::HGetAll => step_hash(state, op),
        Op::RPush(_) | Op::LPush(_) | Op::LPop | Op::RPop | Op::LTrim(..) | Op::LRange | Op::LLen => {
            step_list(state, op)
        }
        Op::SAdd(_) | Op::SRem(_) | Op::SIsMember(_) | Op::SCard | Op::SMembers => step_set(state, op),
        _ => step_zset(state, op),
    }
}

fn step_hash(state: &State, op: &Op) -> (Reply, State) {
    let mut hash = match state {
        State::None => BTreeMap::new(),
        State::Hash(hash) => hash.clone(),
        _ => return (Reply::Error(WRONG_TYPE.into()), state.clone()),
    };
    let reply = match op {
        Op::HSet(field, value) => {
            Reply::Integer(i64::from(hash.insert(field.clone(), value.clone()).is_none()))
        }
        Op::HDel(field) => Reply::Integer(i64::from(hash.remove(field).is_some())),
        Op::HGet(field) => Reply::Bulk(hash.get(field).cloned()),
        Op::HLen => Reply::Integer(hash.len() as i64),
        _ => Reply::Array(Some(hash.iter().flat_map(|(field, value)| [bulk(field), bulk(value)]).collect())),
    };
    (reply, if hash.is_empty() { State::None } else { State::Hash(hash) })
}

fn step_list(state: &State, op: &Op) -> (Reply, State) {
    let mut list = match state {
        State::None => Vec::new(),
        State::List(list) => list.clone(),
        _ => return (Reply::Error(WRONG_TYPE.into()), state.clone()),
    };
    let reply = match op {
        Op::RPush(value) => {
            list.push(value.clone());
            Reply::Integer(list.len() as i64)
        }
        Op::LPush(value) => {
            list.insert(0, value.clone());
            Reply::Integer(list.len() as i64)
        }
        Op::LPop | Op::RPop if list.is_empty() => Reply::Bulk(None),
        Op::LPop => bulk(&list.remove(0)),
        Op::RPop => Reply::Bulk(list.pop()),
        Op::LTrim(first, last) => {
            let len = list.len() as i64;
            let place = |at: &i64| if *at < 0 { at + len } else { *at };
            let kept = place(first).clamp(0, len)..(place(last) + 1).clamp(0, len);
            list = list.get(kept.start as usize..kept.end as usize).map(<[_]>::to_vec).unwrap_or_default();
            ok()
        }
        Op::LLen => Reply::Integer(list.len() as i64),
        _ => Reply::Array(Some(list.iter().map(|value| bulk(value)).collect())),
    };
    (reply, if list.is_empty() { State::None } else { State::List(list) })
}

fn step_zset(state: &State, op: &Op) -> (Reply, State) {
    let mut zset = match state {
        State::None => BTreeMap::new(),
        State::ZSet(zset) => zset.clone(),
        _ => return (Reply::Error(WRONG_TYPE.into()), state.clone()),
    };
    let score = |score: &i64| score.to_string().into_bytes();
    let reply = match op {
        Op::ZAdd(score, member) => Reply::Integer(i64::from(zset.insert(member.clone(), *score).is_none())),
        Op::ZIncrBy(by, member) => {
            let sum = zset.entry(member.clone()).or_default();
            *sum += by;
            bulk(&score(sum))
        }
        Op::ZRem(member) => Reply::Integer(i64::from(zset.remove(member).is_some())),
        Op::ZPopMin => {
            let first = zset.iter().map(|(member, by)| (*by, member.clone())).min();
            let popped = first.map(|(by, member)| {
                zset.remove(&member);
                vec![bulk(&member), bulk(&score(&by))]
            });
            Reply::Array(Some(popped.unwrap_or_default()))
        }
        Op::ZScore(member) => Reply::Bulk(zset.get(member).map(score)),
        Op::ZCard => Reply::Integer(zset.len() as i64),
        Op::ZRank(member) => zset.get(member).map_or(Reply::Bulk(None), |own| {
            let own = (own, member);
            Reply::Integer(zset.iter().filter(|(member, score)| (*score, *member) < own).count() as i64)
        }),
        _ => {
            let mut sorted: Vec<_> = zset.iter().map(|(member, score)| (*score, member)).collect();
            sorted.sort();
            let pairs = sorted.iter().flat_map(|(by, member)| [bulk(member), bulk(&score(by))]);
            Reply::Array(Some(pairs.collect()))
        }
    };
    (reply, if zset.is_empty() { State::None } else { State::ZSet(zset) })
}

fn step_set(state: &State, op: &Op) -> (Reply, State) {
    let mut set = match state {
        State::None => BTreeSet::new(),
        State::Set(set) => set.clone(),
        _ => return (Reply::Error(WRONG_TYPE.into()), state.clone()),
    };
    let reply = match op {
        Op::SAdd(member) => Reply::Integer(i64::from(set.insert(member.clone()))),
        Op::SRem(member) => Reply::Integer(i64::from(set.remove(member))),
        Op::SIsMember(member) => Reply::Integer(i64::from(set.contains(member))),
        Op::SCard => Reply::Integer(set.len() as i64),
        _ => Reply::Array(Some(set.iter().map(|member| bulk(member)).collect())),
    };
    (reply, if set.is_empty() { State::None } else { State::Set(set) })
}

/// Replies that mean the same: HGETALL and SMEMBERS may list what they find in any order.
pub(super) fn same(op: &Op, expected: &Reply, found: &Reply) -> bool {
    let together = match op {
        Op::HGetAll => 2,
        Op::SMembers => 1,
        _ => return expected == found,
    };
    let (Reply::Array(Some(expected)), Reply::Array(Some(found))) = (expected, found) else {
        return expected == found;
    };
    let sorted = |flat: &[Reply]| {
        let mut parts: Vec<String> = flat.chunks(together).map(|part| format!("{part:?}")).collect();
        parts.sort();
        parts
    };
    expected.len() == found.len() && sorted(expected) == sorted(found)
}

/// An operation, and when it was called and answered, in milliseconds of a clock that never jumps.
#[derive(Clone, Debug)]
pub struct Call {
    /// What was asked.
    pub op: Op,
    /// Before it was sent.
    pub called_ms: u64,
    /// When its reply was there; `None` where there was none.
    pub answered_ms: Option<u64>,
}

/// What the server's wall clock showed.
#[derive(Clone, Debug, Default)]
pub struct Walls {
    /// How far ahead it is of the clock that never jumps, and from when on; before the first of them not at all.
    jumps: Vec<(u64, i64)>,
}

impl Walls {
    /// From `at_ms` on it is ahead by `by_ms` more.
    pub fn jump(&mut self, at_ms: u64, by_ms: i64) {
        self.jumps.push((at_ms, self.ahead() + by_ms));
    }

    /// How far it is ahead now, in milliseconds.
    pub fn ahead(&self) -> i64 {
        self.jumps.last().map_or(0, |(_, ahead)| *ahead)
    }

    /// What it showed between two instants, pieces of first and last, each without a jump.
    fn shown(&self, from_ms: u64, to_ms: u64) -> impl Iterator<Item = (u64, u64)> {
        let starts = std::iter::once((0, 0)).chain(self.jumps.iter().copied());
        let ends = self.jumps.iter().map(|(at, _)| *at).chain([u64::MAX]);
        starts.zip(ends).filter(move |((start, _), end)| *start <= to_ms && *end >= from_ms).map(
            move |((start, ahead), end)| {
                let shown = |at: u64| at.saturating_add_signed(ahead);
                (shown(start.max(from_ms)), shown(end.min(to_ms)))
            },
        )
    }

    fn earliest(&self, from_ms: u64, to_ms: u64) -> u64 {
        self.shown(from_ms, to_ms).map(|(first, _)| first).min().unwrap_or(0)
    }

    fn latest(&self, from_ms: u64, to_ms: u64) -> u64 {
        self.shown(from_ms, to_ms).map(|(_, last)| last).max().unwrap_or(u64::MAX)
    }
}

/// One key.
pub struct KeyModel {
    /// The server's clock.
    pub walls: Walls,
    /// When the history ended: what nobody heard of has happened by then, or never.
    pub end_ms: u64,
}

/// A key, and since when it may have had its deadline.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Held {
    pub(super) key: Key,
    since_ms: u64,
}

impl Held {
    /// Whether a command of that time may find the key, and whether it may find that it has expired.
    pub(super) fn may_be(&self, walls: &Walls, called_ms: u64, end_ms: u64) -> (bool, bool) {
        let expire_ms = self.key.expire_ms;
        if expire_ms == 0 {
            return (true, false);
        }
        let is_there = walls.earliest(called_ms, end_ms) <= expire_ms;
        (is_there, walls.latest(self.since_ms, end_ms) >= expire_ms)
    }

    /// What a command that was called then makes of it.
    pub(super) fn with(&self, after: Key, called_ms: u64) -> Self {
        let is_new = after.expire_ms != self.key.expire_ms;
        let since_ms = if is_new { called_ms } else { self.since_ms };
        Self { since_ms: if after.expire_ms == 0 { 0 } else { since_ms }, key: after }
    }
}

impl Model for KeyModel {
    type Op = Call;
    type Reply = Reply;
    type State = Held;

    fn apply(&self, held: &Held, call: &Call, reply: Option<&Reply>) -> impl Iterator<Item = Held> {
        let (key, op) = (&held.key, &call.op);
        let end = call.answered_ms.unwrap_or(self.end_ms);
        let (may_be_there, may_be_gone) = held.may_be(&self.walls, call.called_ms, end);
        let there = may_be_there.then(|| step(key, op));
        let gone = may_be_gone.then(|| {
            let (reply, after) = step(&Key::default(), op);
            // Who only looked need not have removed it: it is seen again if the clock goes back.
            let is_left = after == Key::default() && !op.removes();
            (reply, if is_left { key.clone() } else { after })
        });
        let fits = move |expected: &Reply| reply.is_none_or(|found| same(op, expected, found));
        let ways = [there, gone].into_iter().flatten().filter(move |(expected, _)| fits(expected));
        ways.map(|(_, after)| held.with(after, call.called_ms))
    }
}
