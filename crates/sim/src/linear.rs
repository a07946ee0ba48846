//! Linearizability of a history: is there one order of all operations, each taking effect between its call and
//! its return, in which every reply is right?
//!
//! The search is Wing and Gong's (1993) with Lowe's memo (2017): walk the calls in time order, apply any whose
//! reply fits the state, lift it out of the history and start over; at a return whose call was not applied, go
//! back. A pair (set of applied operations, state) that was seen before is never entered again, which makes the
//! search fast on the histories that stores produce. Histories of different keys are independent, so callers
//! check each key by itself; that keeps them short. Of the pairs that were seen a hash of 128 bits is kept: states may be long.
//!
//! An operation without a return (the client never heard) may have taken effect at any time after its call, or
//! never. Its `apply` is called without a reply, and only where nothing else fits: most of them explain nothing, and dozens may lie
//! about after a crash. One that may have taken effect in several ways (whether a key had expired by
//! then is not known to the millisecond) names all of them: each is tried in its turn.

use pumice_base::hash::{HashSet, HashState};
use std::hash::{BuildHasher, Hash};

/// What the operations mean: a state machine that accepts or rejects a reply.
pub trait Model {
    /// A request.
    type Op;
    /// Its answer.
    type Reply;
    /// What the requests act on. Small: every step of the search clones it.
    type State: Clone + Eq + Hash;
    /// The states after `op` that its reply fits, in the same order each time. Without a reply (the client never heard) any reply
    /// fits.
    fn apply(
        &self,
        state: &Self::State,
        op: &Self::Op,
        reply: Option<&Self::Reply>,
    ) -> impl Iterator<Item = Self::State>;
}

/// One operation of a history. Times are any increasing numbers; at equal times calls come before returns.
#[derive(Clone, Debug)]
pub struct Operation<O, R> {
    /// Who called, for messages.
    pub client: u64,
    /// When it was called.
    pub called: u64,
    /// The request.
    pub op: O,
    /// When it returned and with which reply; `None` when the client never heard.
    pub returned: Option<(u64, R)>,
}

/// What the search found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Some order explains every reply: indices into the history, in that order.
    Linearizable(Vec<usize>),
    /// No order does. `longest` is the longest order that fits, `stuck` the operation that could not be
    /// placed next before it returned.
    Violation {
        /// Indices into the history, in order.
        longest: Vec<usize>,
        /// Index of the operation that no longer fitted.
        stuck: usize,
    },
    /// The search was given up after this many steps.
    Unknown(u64),
}

const END: usize = usize::MAX;

/// The history as a doubly linked list of call and return entries in time order. Entry 0 is the head.
struct Entries {
    next: Vec<usize>,
    prev: Vec<usize>,
    /// The operation, and whether this entry is its return.
    what: Vec<(usize, bool)>,
    call_of: Vec<usize>,
    return_of: Vec<Option<usize>>,
}

impl Entries {
    fn new<O, R>(history: &[Operation<O, R>]) -> Self {
        let mut order: Vec<(u64, bool, usize)> = Vec::with_capacity(history.len() * 2);
        for (index, operation) in history.iter().enumerate() {
            order.push((operation.called, false, index));
            if let Some((at, _)) = &operation.returned {
                assert!(*at >= operation.called, "operation {index} returned before it was called");
                order.push((*at, true, index));
            }
        }
        order.sort_unstable();
        let count = order.len();
        let mut entries = Self {
            next: (1..=count).chain([END]).collect(),
            prev: [END].into_iter().chain(0..count).collect(),
            what: [(END, false)].into_iter().chain(order.iter().map(|&(_, ret, op)| (op, ret))).collect(),
            call_of: vec![END; history.len()],
            return_of: vec![None; history.len()],
        };
        entries.next[count] = END;
        for entry in 1..=count {
            let (op, is_return) = entries.what[entry];
            if is_return {
                entries.return_of[op] = Some(entry);
            } else {
                entries.call_of[op] = entry;
            }
        }
        entries
    }

    fn unlink(&mut self, entry: usize) {
        let (prev, next) = (self.prev[entry], self.next[entry]);
        self.next[prev] = next;
        if next != END {
            self.prev[next] = prev;
        }
    }

    fn relink(&mut self, entry: usize) {
        let (prev, next) = (self.prev[entry], self.next[entry]);
        self.next[prev] = entry;
        if next != END {
            self.prev[next] = entry;
        }
    }

    /// Takes an operation's entries out of the history.
    fn lift(&mut self, op: usize) {
        self.unlink(self.call_of[op]);
        if let Some(entry) = self.return_of[op] {
            self.unlink(entry);
        }
    }

    /// Puts them back; calls must come in the reverse order of [`Entries::lift`].
    fn unlift(&mut self, op: usize) {
        if let Some(entry) = self.return_of[op] {
            self.relink(entry);
        }
        self.relink(self.call_of[op]);
    }
}

/// Searches for an order that explains `history` from the state `initial`, in at most `max_steps` steps.
pub fn check<M: Model>(
    model: &M,
    initial: M::State,
    history: &[Operation<M::Op, M::Reply>],
    max_steps: u64,
) -> Verdict {
    let mut entries = Entries::new(history);
    let mut unplaced = history.iter().filter(|operation| operation.returned.is_some()).count();
    let mut applied = vec![0u64; history.len().div_ceil(64)];
    let mut seen: HashSet<[u64; 2]> = HashSet::default();
    // The operation, which of its ways comes next, and the state before it.
    let mut stack: Vec<(usize, usize, M::State)> = Vec::new();
    let mut state = initial;
    let mut longest: Vec<usize> = Vec::new();
    let mut stuck = END;
    let mut cursor = entries.next[0];
    // Ways of the operation at the cursor that were tried.
    let mut tried = 0;
    // Whether it is the turn of those without a return.
    let mut unheard = false;
    let mut steps = 0u64;
    while unplaced > 0 {
        steps += 1;
        if steps > max_steps {
            return Verdict::Unknown(steps);
        }
        assert!(cursor != END, "an operation with a return is unplaced, so its return is still listed");
        let (op, is_return) = entries.what[cursor];
        if !is_return {
            let operation = &history[op];
            if operation.returned.is_none() != unheard {
                cursor = entries.next[cursor];
                continue;
            }
            let reply = operation.returned.as_ref().map(|(_, reply)| reply);
            applied[op / 64] |= 1 << (op % 64);
            let mut ways = model.apply(&state, &operation.op, reply).enumerate().skip(tried);
            let way = ways.find(|(_, after)| {
                seen.insert([0u64, 1].map(|half| HashState.hash_one((half, &applied, after))))
            });
            drop(ways);
            tried = 0;
            if let Some((at, after)) = way {
                entries.lift(op);
                unplaced -= usize::from(reply.is_some());
                stack.push((op, at + 1, std::mem::replace(&mut state, after)));
                (cursor, unheard) = (entries.next[0], false);
            } else {
                applied[op / 64] &= !(1 << (op % 64));
                cursor = entries.next[cursor];
            }
            continue;
        }
        if !unheard {
            (cursor, unheard) = (entries.next[0], true);
            continue;
        }
        if stuck == END || stack.len() > longest.len() {
            stuck = op;
            longest = stack.iter().map(|&(op, ..)| op).collect();
        }
        let Some((op, next_way, before)) = stack.pop() else {
            return Verdict::Violation { longest, stuck };
        };
        state = before;
        applied[op / 64] &= !(1 << (op % 64));
        unplaced += usize::from(history[op].returned.is_some());
        entries.unlift(op);
        (cursor, tried, unheard) = (entries.call_of[op], next_way, history[op].returned.is_none());
    }
    Verdict::Linearizable(stack.into_iter().map(|(op, ..)| op).collect())
}
