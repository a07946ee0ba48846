//! The linearizability checker: accepts and rejects known histories, and agrees with a search that simply
//! tries every order.

use std::collections::BTreeSet;

use pumice_base::rng::Rng;
use pumice_sim::linear::{Model, Operation, Verdict, check};

#[derive(Clone, Debug, PartialEq)]
enum Op {
    Read,
    Write(u8),
    /// Replaces `.0` by `.1`; the reply says whether it did.
    Swap(u8, u8),
    /// Writes, or does not; the reply does not say.
    Maybe(u8),
}

struct Register;

impl Model for Register {
    type Op = Op;
    type Reply = u8;
    type State = u8;
    fn apply(&self, state: &u8, op: &Op, reply: Option<&u8>) -> impl Iterator<Item = u8> {
        let (answer, after, or) = match op {
            Op::Read => (*state, *state, None),
            Op::Write(value) => (0, *value, None),
            Op::Swap(from, to) if state == from => (1, *to, None),
            Op::Swap(..) => (0, *state, None),
            Op::Maybe(value) => (0, *state, Some(*value)),
        };
        let fits = reply.is_none_or(|reply| *reply == answer);
        [Some(after), or].into_iter().flatten().filter(move |_| fits)
    }
}

fn done(client: u64, called: u64, op: Op, at: u64, reply: u8) -> Operation<Op, u8> {
    Operation { client, called, op, returned: Some((at, reply)) }
}

fn lost(client: u64, called: u64, op: Op) -> Operation<Op, u8> {
    Operation { client, called, op, returned: None }
}

fn fits(history: &[Operation<Op, u8>]) -> bool {
    match check(&Register, 0, history, 1_000_000) {
        Verdict::Linearizable(order) => {
            assert!(order_is_right(history, &order), "the order it names does not explain {history:?}");
            true
        }
        Verdict::Violation { .. } => false,
        Verdict::Unknown(steps) => panic!("gave up after {steps} steps on {history:?}"),
    }
}

/// Whether `order` places every returned operation, keeps real time, and gives every reply.
fn order_is_right(history: &[Operation<Op, u8>], order: &[usize]) -> bool {
    let mut states = BTreeSet::from([0]);
    for (position, &index) in order.iter().enumerate() {
        let operation = &history[index];
        let reply = operation.returned.as_ref().map(|(_, reply)| reply);
        states = states.iter().flat_map(|state| Register.apply(state, &operation.op, reply)).collect();
        if states.is_empty() {
            return false;
        }
        let overtaken = order[position + 1..]
            .iter()
            .any(|&later| history[later].returned.is_some_and(|(at, _)| at < operation.called));
        if overtaken {
            return false;
        }
    }
    history
        .iter()
        .enumerate()
        .all(|(index, operation)| operation.returned.is_none() || order.contains(&index))
}

#[test]
fn a_sequential_history_with_right_replies_fits() {
    assert!(fits(&[
        done(1, 0, Op::Write(1), 1, 0),
        done(1, 2, Op::Read, 3, 1),
        done(1, 4, Op::Swap(1, 2), 5, 1),
        done(1, 6, Op::Read, 7, 2),
    ]));
}

#[test]
fn an_empty_history_fits() {
    assert!(fits(&[]));
}

#[test]
fn a_stale_read_is_rejected_and_named() {
    let history = [done(1, 0, Op::Write(1), 1, 0), done(2, 2, Op::Read, 3, 0)];
    match check(&Register, 0, &history, 1_000) {
        Verdict::Violation { longest, stuck } => assert_eq!((longest, stuck), (vec![0], 1)),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_read_that_overlaps_a_write_may_see_either_side() {
    for seen in [0, 1] {
        assert!(fits(&[done(1, 0, Op::Write(1), 10, 0), done(2, 5, Op::Read, 6, seen)]));
    }
    assert!(!fits(&[done(1, 0, Op::Write(1), 10, 0), done(2, 5, Op::Read, 6, 2)]));
}

#[test]
fn two_reads_inside_one_write_must_not_go_back() {
    assert!(!fits(&[
        done(1, 0, Op::Write(1), 10, 0),
        done(2, 1, Op::Read, 2, 1),
        done(2, 3, Op::Read, 4, 0),
    ]));
}

#[test]
fn each_way_that_an_operation_may_have_gone_is_tried() {
    let maybe = done(1, 0, Op::Maybe(1), 1, 0);
    for seen in [0, 1] {
        assert!(fits(&[maybe.clone(), done(2, 2, Op::Read, 3, seen), done(2, 4, Op::Read, 5, seen)]));
        assert!(!fits(&[maybe.clone(), done(2, 2, Op::Read, 3, seen), done(2, 4, Op::Read, 5, 1 - seen)]));
    }
    // The first way is found wrong only after others have gone theirs.
    let swaps =
        [done(2, 2, Op::Swap(7, 8), 3, 0), done(2, 4, Op::Maybe(2), 5, 0), done(3, 6, Op::Swap(1, 3), 7, 1)];
    assert!(fits(&[&[maybe][..], &swaps, &[done(3, 8, Op::Read, 9, 3)]].concat()));
}

#[test]
fn a_lost_write_may_appear_later_or_never() {
    assert!(fits(&[lost(1, 0, Op::Write(7)), done(2, 1, Op::Read, 2, 0)]));
    assert!(fits(&[lost(1, 0, Op::Write(7)), done(2, 1, Op::Read, 2, 0), done(2, 3, Op::Read, 4, 7),]));
    assert!(!fits(&[lost(1, 0, Op::Write(7)), done(2, 1, Op::Read, 2, 7), done(2, 3, Op::Read, 4, 0),]));
    assert!(!fits(&[done(2, 0, Op::Read, 1, 7), lost(1, 2, Op::Write(7))]));
}

#[test]
fn two_swaps_from_one_value_cannot_both_win() {
    assert!(!fits(&[done(1, 0, Op::Swap(0, 1), 9, 1), done(2, 0, Op::Swap(0, 2), 9, 1)]));
    assert!(fits(&[done(1, 0, Op::Swap(0, 1), 9, 1), done(2, 0, Op::Swap(0, 2), 9, 0)]));
}

#[test]
fn an_acknowledged_write_that_a_crash_took_back_is_rejected() {
    assert!(!fits(&[
        done(1, 0, Op::Write(1), 1, 0),
        done(1, 2, Op::Write(2), 3, 0),
        done(2, 10, Op::Read, 11, 1),
    ]));
}

#[test]
fn a_long_history_of_many_clients_is_decided_quickly() {
    // 8 clients, rounds of concurrent writes followed by one read: exponential without the memo.
    let mut history = Vec::new();
    for round in 0..40u64 {
        let base = round * 100;
        for client in 0..8u64 {
            history.push(done(client, base, Op::Write(client as u8 + 1), base + 50, 0));
        }
        history.push(done(99, base + 60, Op::Read, base + 61, (round % 8) as u8 + 1));
    }
    assert!(fits(&history));
    history.push(done(99, 5_000, Op::Read, 5_001, 200));
    match check(&Register, 0, &history, 5_000_000) {
        Verdict::Violation { stuck, .. } => assert_eq!(stuck, history.len() - 1),
        other => panic!("{other:?}"),
    }
}

/// Tries every order.
fn brute(history: &[Operation<Op, u8>], placed: &mut Vec<usize>) -> bool {
    let complete = history
        .iter()
        .enumerate()
        .all(|(index, operation)| operation.returned.is_none() || placed.contains(&index));
    if complete && order_is_right(history, placed) {
        return true;
    }
    for index in 0..history.len() {
        if !placed.contains(&index) {
            placed.push(index);
            if brute(history, placed) {
                return true;
            }
            placed.pop();
        }
    }
    false
}

#[test]
fn it_agrees_with_trying_every_order_on_random_histories() {
    let mut rng = Rng::from_seed(0x11AE);
    let (mut accepted, mut rejected) = (0, 0);
    for case in 0..3_000 {
        let mut history = Vec::new();
        for client in 0..2 + rng.below(4) {
            let called = rng.below(12);
            let op = match rng.below(8) {
                0..=2 => Op::Read,
                3 | 4 => Op::Write(rng.below(3) as u8),
                5 => Op::Maybe(rng.below(3) as u8),
                _ => Op::Swap(rng.below(3) as u8, rng.below(3) as u8),
            };
            let reply = match op {
                Op::Read => rng.below(3) as u8,
                Op::Write(_) | Op::Maybe(_) => 0,
                Op::Swap(..) => rng.below(2) as u8,
            };
            let at = called + 1 + rng.below(6);
            history.push(if rng.chance(0.2) {
                lost(client, called, op)
            } else {
                done(client, called, op, at, reply)
            });
        }
        let expected = brute(&history, &mut Vec::new());
        assert_eq!(fits(&history), expected, "case {case}: {history:?}");
        if expected { accepted += 1 } else { rejected += 1 }
    }
    assert!(accepted > 300 && rejected > 300, "the cases are one-sided: {accepted} fit, {rejected} do not");
}
