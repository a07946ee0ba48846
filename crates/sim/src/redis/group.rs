//! A few keys in a database of their own, and commands that act on several of them: RENAME, COPY, LMOVE, SMOVE, SUNIONSTORE, MSET,
//! FLUSHDB, transactions of all of these. Whatever keys it names, each of them takes effect at one instant; the keys share a slot, so that a crash leaves
//! all of it or nothing.

use super::model::{Held, Key, Op, State, WRONG_TYPE, Walls, same};
use super::resp::Reply;
use crate::linear::Model;
use std::collections::{BTreeMap, BTreeSet};

/// The database, which nobody else uses.
pub const DATABASE: &str = "1";
/// Keys of each kind.
pub(super) const OF_EACH: usize = 2;
/// What most commands expect of a key, by its number; RENAME and COPY bring what others do not expect.
pub(super) const KINDS: [&str; 5] = ["string", "list", "hash", "zset", "set"];
/// How many keys there are.
pub const KEYS: usize = KINDS.len() * OF_EACH;

/// What the keys hold, by their numbers.
pub type Keys = [Key; KEYS];

/// The name of a key.
pub fn name(number: usize) -> Vec<u8> {
    format!("{{group}}:{number}").into_bytes()
}

/// A command. Keys are named by their numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Act {
    /// A command on one key.
    One(usize, Op),
    /// RENAME, or RENAMENX.
    Rename {
        /// Where it is taken from.
        from: usize,
        /// Where it goes.
        to: usize,
        /// Only where nothing is there.
        nx: bool,
    },
    /// COPY.
    Copy {
        /// Where it is taken from.
        from: usize,
        /// Where it goes.
        to: usize,
        /// Also where something is there.
        replace: bool,
    },
    /// LMOVE.
    Move {
        /// Where it is taken from.
        from: usize,
        /// Where it goes.
        to: usize,
        /// Whether the first element goes, or the last.
        from_left: bool,
        /// Whether it becomes the first, or the last.
        to_left: bool,
    },
    /// SMOVE.
    MoveMember {
        /// Where it is taken from.
        from: usize,
        /// Where it goes.
        to: usize,
        /// What goes.
        member: Vec<u8>,
    },
    /// SUNIONSTORE, or one of its kind.
    Store {
        /// What is made of them.
        of: Combination,
        /// The two that are read.
        from: [usize; 2],
        /// Where the result goes.
        to: usize,
    },
    /// MSET, or MSETNX.
    MSet {
        /// Keys and their values.
        pairs: Vec<(usize, Vec<u8>)>,
        /// Only where nothing is there.
        nx: bool,
    },
    /// MGET.
    MGet(Vec<usize>),
    /// DEL.
    Del(Vec<usize>),
    /// FLUSHDB.
    Flush,
    /// PUMICE.RANGE of all keys with their values.
    Range,
    /// DBSIZE.
    Size,
    /// MULTI, the commands, EXEC.
    Exec(Vec<Act>),
}

/// What a command makes of two keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Combination {
    /// SUNIONSTORE
    Union,
    /// SINTERSTORE
    Inter,
    /// SDIFFSTORE
    Diff,
    /// ZUNIONSTORE
    ZUnion,
}

impl Act {
    /// Reads all keys at once, each as what is expected of it.
    pub fn read_by_kind() -> Self {
        let read = |number| Self::One(number, Op::read_of(KINDS[number / OF_EACH].as_bytes()));
        Self::Exec((0..KEYS).map(read).collect())
    }

    /// Reads all keys at once, whatever they hold, and how many there are.
    pub fn read_everything() -> Self {
        let reads = KINDS.iter().map(|kind| Op::read_of(kind.as_bytes()));
        let all = (0..KEYS).flat_map(|number| reads.clone().map(move |read| Self::One(number, read)));
        Self::Exec(all.chain([Self::Size, Self::Range]).collect())
    }

    /// The commands to send.
    pub fn commands(&self) -> Vec<Vec<Vec<u8>>> {
        let word = |text: &str| text.as_bytes().to_vec();
        let end = |left: bool| word(if left { "LEFT" } else { "RIGHT" });
        let command = match self {
            Self::Exec(acts) => {
                let inner = acts.iter().flat_map(Self::commands);
                return [vec![word("MULTI")]].into_iter().chain(inner).chain([vec![word("EXEC")]]).collect();
            }
            Self::One(number, op) => {
                op.command(&name(*number)).into_iter().map(|part| part.into_owned()).collect()
            }
            Self::Rename { from, to, nx } => {
                vec![word(if *nx { "RENAMENX" } else { "RENAME" }), name(*from), name(*to)]
            }
            Self::Copy { from, to, replace } => {
                let replace = replace.then(|| word("REPLACE"));
                [word("COPY"), name(*from), name(*to)].into_iter().chain(replace).collect()
            }
            Self::Move { from, to, from_left, to_left } => {
                vec![word("LMOVE"), name(*from), name(*to), end(*from_left), end(*to_left)]
            }
            Self::MoveMember { from, to, member } => {
                vec![word("SMOVE"), name(*from), name(*to), member.clone()]
            }
            Self::Store { of, from, to } => {
                let (command, count) = match of {
                    Combination::Union => ("SUNIONSTORE", None),
                    Combination::Inter => ("SINTERSTORE", None),
                    Combination::Diff => ("SDIFFSTORE", None),
                    Combination::ZUnion => ("ZUNIONSTORE", Some(word("2"))),
                };
                [word(command), name(*to)].into_iter().chain(count).chain(from.map(name)).collect()
            }
            Self::MSet { pairs, nx } => {
                let pairs = pairs.iter().flat_map(|(number, value)| [name(*number), value.clone()]);
                [word(if *nx { "MSETNX" } else { "MSET" })].into_iter().chain(pairs).collect()
            }
            Self::MGet(keys) => [word("MGET")].into_iter().chain(keys.iter().map(|one| name(*one))).collect(),
            Self::Del(keys) => [word("DEL")].into_iter().chain(keys.iter().map(|one| name(*one))).collect(),
            Self::Flush => vec![word("FLUSHDB")],
            Self::Range => ["PUMICE.RANGE", "-", "+", "WITHVALUES"].map(word).into(),
            Self::Size => vec![word("DBSIZE")],
        };
        vec![command]
    }

    /// The keys that it looks at.
    fn keys(&self) -> Vec<usize> {
        match self {
            Self::One(number, _) => vec![*number],
            Self::Rename { from, to, .. }
            | Self::Copy { from, to, .. }
            | Self::Move { from, to, .. }
            | Self::MoveMember { from, to, .. } => each([*from, *to]),
            Self::Store { from, to, .. } => each([from[0], from[1], *to]),
            Self::MSet { pairs, .. } => pairs.iter().map(|(number, _)| *number).collect(),
            Self::MGet(keys) | Self::Del(keys) => keys.clone(),
            Self::Flush | Self::Range | Self::Size | Self::Exec(_) => (0..KEYS).collect(),
        }
    }

    /// Whether nothing is left of a key, be it expired or not.
    fn removes(&self, number: usize) -> bool {
        match self {
            Self::One(one, op) => *one == number && op.removes(),
            Self::Del(keys) => keys.contains(&number),
            Self::Flush => true,
            _ => false,
        }
    }

    /// Whether it changes nothing.
    pub fn only_reads(&self) -> bool {
        match self {
            Self::One(_, op) => op.only_reads(),
            Self::MGet(_) | Self::Range | Self::Size => true,
            Self::Exec(acts) => acts.iter().all(Self::only_reads),
            _ => false,
        }
    }

    /// The bytes of its own that it writes; none where it does something else, too.
    fn written(&self) -> Vec<&[u8]> {
        match self {
            Self::One(_, Op::RPush(bytes) | Op::LPush(bytes) | Op::HSet(_, bytes)) => vec![bytes],
            Self::One(_, op) if op.deadline().is_none() => op.written().into_iter().collect(),
            Self::MSet { pairs, .. } => pairs.iter().map(|(_, bytes)| &bytes[..]).collect(),
            _ => Vec::new(),
        }
    }

    /// Whether one of `replies` tells that it took effect, or could without having any bytes of its own in it.
    pub fn may_be_seen<'a>(&self, mut replies: impl Iterator<Item = &'a Reply>) -> bool {
        let written = self.written();
        written.is_empty() || replies.any(|reply| written.iter().any(|bytes| holds(reply, bytes)))
    }
}

fn holds(reply: &Reply, bytes: &[u8]) -> bool {
    match reply {
        Reply::Bulk(Some(value)) => value == bytes,
        Reply::Array(Some(parts)) => parts.iter().any(|part| holds(part, bytes)),
        _ => false,
    }
}

/// Each of them once.
fn each<const N: usize>(numbers: [usize; N]) -> Vec<usize> {
    BTreeSet::from(numbers).into_iter().collect()
}

fn ok() -> Reply {
    Reply::Simple("OK".into())
}

fn is_there(key: &Key) -> bool {
    key.state != State::None
}

/// The reply to `act` on keys of which none has expired, and what it makes of them.
pub fn step(keys: &mut Keys, act: &Act) -> Reply {
    match act {
        Act::One(number, op) => {
            let (reply, after) = super::model::step(&keys[*number], op);
            keys[*number] = after;
            reply
        }
        Act::Rename { from, .. } if !is_there(&keys[*from]) => Reply::Error("ERR no such key".into()),
        Act::Rename { from, to, nx } => {
            let is_done = !*nx || !is_there(&keys[*to]);
            if is_done {
                keys[*to] = std::mem::take(&mut keys[*from]);
            }
            if *nx { Reply::Integer(i64::from(is_done)) } else { ok() }
        }
        Act::Copy { from, to, replace } => {
            let is_done = is_there(&keys[*from]) && (*replace || !is_there(&keys[*to]));
            if is_done {
                keys[*to] = keys[*from].clone();
            }
            Reply::Integer(i64::from(is_done))
        }
        Act::Move { from, to, from_left, to_left } => {
            let may_be_list = |key: &Key| matches!(key.state, State::List(_) | State::None);
            if is_there(&keys[*from]) && !(may_be_list(&keys[*from]) && may_be_list(&keys[*to])) {
                return Reply::Error(WRONG_TYPE.into());
            }
            let pop = if *from_left { Op::LPop } else { Op::RPop };
            let expire_ms = keys[*to].expire_ms;
            let popped = step(keys, &Act::One(*from, pop));
            if let Reply::Bulk(Some(element)) = &popped {
                let push = if *to_left { Op::LPush(element.clone()) } else { Op::RPush(element.clone()) };
                step(keys, &Act::One(*to, push));
                // Also of a list whose only element was taken and put back.
                keys[*to].expire_ms = expire_ms;
            }
            popped
        }
        Act::MoveMember { from, to, member } => {
            let may_be_set = |key: &Key| matches!(key.state, State::Set(_) | State::None);
            if is_there(&keys[*from]) && !(may_be_set(&keys[*from]) && may_be_set(&keys[*to])) {
                return Reply::Error(WRONG_TYPE.into());
            }
            if from == to {
                return step(keys, &Act::One(*from, Op::SIsMember(member.clone())));
            }
            let removed = step(keys, &Act::One(*from, Op::SRem(member.clone())));
            if removed == Reply::Integer(1) {
                step(keys, &Act::One(*to, Op::SAdd(member.clone())));
            }
            removed
        }
        Act::Store { of, from, to } => match combine(*of, from.map(|number| &keys[number].state)) {
            Some((state, count)) => {
                keys[*to] = Key { state, expire_ms: 0 };
                Reply::Integer(count as i64)
            }
            None => Reply::Error(WRONG_TYPE.into()),
        },
        Act::MSet { pairs, nx } => {
            let is_done = !*nx || pairs.iter().all(|(number, _)| !is_there(&keys[*number]));
            for (number, value) in pairs.iter().filter(|_| is_done) {
                step(keys, &Act::One(*number, Op::Set(value.clone())));
            }
            if *nx { Reply::Integer(i64::from(is_done)) } else { ok() }
        }
        Act::MGet(numbers) => {
            Reply::Array(Some(numbers.iter().map(|number| string(&keys[*number])).collect()))
        }
        Act::Del(numbers) => {
            let there = numbers.iter().filter(|number| is_there(&std::mem::take(&mut keys[**number])));
            Reply::Integer(there.count() as i64)
        }
        Act::Flush => {
            *keys = Keys::default();
            ok()
        }
        Act::Range => {
            let there = keys.iter().enumerate().filter(|(_, key)| is_there(key));
            let flat = there.flat_map(|(number, key)| [Reply::Bulk(Some(name(number))), string(key)]);
            Reply::Array(Some(vec![Reply::Bulk(None), Reply::Array(Some(flat.collect()))]))
        }
        Act::Size => Reply::Integer(keys.iter().filter(|key| is_there(key)).count() as i64),
        Act::Exec(acts) => Reply::Array(Some(acts.iter().map(|act| step(keys, act)).collect())),
    }
}

/// What they come to, and how many members it has; `None` where one has the wrong type.
fn combine(of: Combination, states: [&State; 2]) -> Option<(State, usize)> {
    if of == Combination::ZUnion {
        let mut sums = BTreeMap::new();
        for state in states {
            let scored: Vec<_> = match state {
                State::None => Vec::new(),
                State::Set(set) => set.iter().map(|member| (member.clone(), 1)).collect(),
                State::ZSet(zset) => zset.iter().map(|(member, score)| (member.clone(), *score)).collect(),
                _ => return None,
            };
            scored.into_iter().for_each(|(member, score)| *sums.entry(member).or_default() += score);
        }
        let count = sums.len();
        return Some((if count == 0 { State::None } else { State::ZSet(sums) }, count));
    }
    let members = |state: &State| match state {
        State::None => Some(BTreeSet::new()),
        State::Set(set) => Some(set.clone()),
        _ => None,
    };
    let (a, b) = (members(states[0])?, members(states[1])?);
    let set = match of {
        Combination::Inter => &a & &b,
        Combination::Diff => &a - &b,
        _ => &a | &b,
    };
    let count = set.len();
    Some((if count == 0 { State::None } else { State::Set(set) }, count))
}

fn string(key: &Key) -> Reply {
    match &key.state {
        State::String(value) => Reply::Bulk(Some(value.clone())),
        _ => Reply::Bulk(None),
    }
}

/// A command, and when it was called and answered, in milliseconds of a clock that never jumps.
#[derive(Clone, Debug)]
pub struct GroupCall {
    /// What was asked.
    pub act: Act,
    /// Before it was sent.
    pub called_ms: u64,
    /// When its reply was there; `None` where there was none.
    pub answered_ms: Option<u64>,
}

/// All keys. Which of them have expired when a command comes is judged as [`super::model::KeyModel`] does.
pub struct GroupModel {
    /// The server's clock.
    pub walls: Walls,
    /// When the history ended.
    pub end_ms: u64,
}

impl GroupModel {
    /// What `act` may make of the keys, so that it answers `reply`.
    fn ways(
        &self,
        held: &[Held; KEYS],
        act: &Act,
        span: (u64, u64),
        reply: Option<&Reply>,
    ) -> Vec<[Held; KEYS]> {
        let Act::Exec(acts) = act else { return self.ways_of_one(held, act, span, reply) };
        let parts = match reply {
            None => None,
            Some(Reply::Array(Some(parts))) if parts.len() == acts.len() => Some(parts),
            Some(_) => return Vec::new(),
        };
        let mut ways = vec![held.clone()];
        for (index, act) in acts.iter().enumerate() {
            let reply = parts.map(|parts| &parts[index]);
            ways = ways.iter().flat_map(|held| self.ways(held, act, span, reply)).collect();
        }
        ways
    }

    fn ways_of_one(
        &self,
        held: &[Held; KEYS],
        act: &Act,
        span: (u64, u64),
        reply: Option<&Reply>,
    ) -> Vec<[Held; KEYS]> {
        let (called_ms, end_ms) = span;
        // Each key that may have expired doubles the ways, where the command looks at it at all.
        let mut expired: Vec<[bool; KEYS]> = vec![[false; KEYS]];
        for number in act.keys() {
            let (may_be_there, may_be_gone) = held[number].may_be(&self.walls, called_ms, end_ms);
            // Keys are counted until somebody removes them.
            let may_be_there = may_be_there || (may_be_gone && *act == Act::Size);
            let choices = [(may_be_there, false), (may_be_gone, true)];
            let with = |mut before: [bool; KEYS]| {
                choices.into_iter().filter(|(may_be, _)| *may_be).map(move |(_, is_gone)| {
                    before[number] = is_gone;
                    before
                })
            };
            expired = expired.into_iter().flat_map(with).collect();
        }
        let way = |expired: [bool; KEYS]| {
            let live =
                |number: usize| if expired[number] { Key::default() } else { held[number].key.clone() };
            let mut keys: Keys = std::array::from_fn(live);
            let expected = step(&mut keys, act);
            let is_right = reply.is_none_or(|found| means_the_same(act, &expected, found));
            is_right.then(|| {
                std::array::from_fn(|number| {
                    let after = std::mem::take(&mut keys[number]);
                    // Who only looked need not have removed it.
                    let is_left = expired[number] && after == Key::default() && !act.removes(number);
                    if is_left { held[number].clone() } else { held[number].with(after, called_ms) }
                })
            })
        };
        expired.into_iter().filter_map(way).collect()
    }
}

impl Model for GroupModel {
    type Op = GroupCall;
    type Reply = Reply;
    type State = [Held; KEYS];

    fn apply(
        &self,
        held: &Self::State,
        call: &GroupCall,
        reply: Option<&Reply>,
    ) -> impl Iterator<Item = Self::State> {
        let span = (call.called_ms, call.answered_ms.unwrap_or(self.end_ms));
        self.ways(held, &call.act, span, reply).into_iter()
    }
}

fn means_the_same(act: &Act, expected: &Reply, found: &Reply) -> bool {
    match act {
        Act::One(_, op) => same(op, expected, found),
        _ => expected == found,
    }
}
