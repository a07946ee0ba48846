//! The model of a Redis key and the RESP client beside it.

use pumice_sim::linear::{Operation, Verdict, check};
use pumice_sim::redis::model::{Call, Held, Key, KeyModel, Op, State, Walls, step};
use pumice_sim::redis::resp::{Reply, decode, encode};

#[test]
fn replies_decode_at_any_cut() {
    let wire = b"*4\r\n$3\r\nfoo\r\n$-1\r\n:-12\r\n*2\r\n+OK\r\n-ERR no\r\n";
    let expected = Reply::Array(Some(vec![
        Reply::Bulk(Some(b"foo".to_vec())),
        Reply::Bulk(None),
        Reply::Integer(-12),
        Reply::Array(Some(vec![Reply::Simple("OK".into()), Reply::Error("ERR no".into())])),
    ]));
    for cut in 1..wire.len() {
        assert_eq!(decode(&wire[..cut]), Ok(None), "at {cut}");
    }
    assert_eq!(decode(wire), Ok(Some((expected, wire.len()))));
    assert!(decode(b"?what\r\n").is_err());
    let mut out = Vec::new();
    encode(&[b"SET", b"k", b""], &mut out);
    assert_eq!(out, b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$0\r\n\r\n");
}

#[test]
fn a_key_behaves_as_redis_documents() {
    let run = |ops: &[Op]| {
        let mut key = Key::default();
        let mut last = Reply::Bulk(None);
        for op in ops {
            (last, key) = step(&key, op);
        }
        last
    };
    let text = |text: &str| text.as_bytes().to_vec();
    assert_eq!(run(&[Op::IncrBy(5), Op::IncrBy(-7)]), Reply::Integer(-2));
    assert_eq!(run(&[Op::Append(text("ab")), Op::Append(text("c")), Op::StrLen]), Reply::Integer(3));
    let x = Key { state: State::String(text("x")), expire_ms: 0 };
    assert_eq!(run(&[Op::Set(text("x")), Op::IncrBy(1)]), step(&x, &Op::IncrBy(1)).0);
    assert_eq!(run(&[Op::HSet(text("f"), text("1")), Op::HSet(text("f"), text("2"))]), Reply::Integer(0));
    assert_eq!(run(&[Op::HSet(text("f"), text("1")), Op::HDel(text("f")), Op::Exists]), Reply::Integer(0));
    assert_eq!(run(&[Op::RPush(text("a")), Op::RPush(text("b")), Op::LPop]), Reply::Bulk(Some(text("a"))));
    let list = |trim: (i64, i64)| {
        let Reply::Array(Some(left)) = run(&[
            Op::RPush(text("b")),
            Op::RPush(text("c")),
            Op::LPush(text("a")),
            Op::LTrim(trim.0, trim.1),
            Op::LRange,
        ]) else {
            panic!("an array")
        };
        left.len()
    };
    let trims = [(0, -1), (1, -1), (0, -2), (-2, 7), (-9, 0), (2, 2), (2, 1), (3, 5), (-1, -2)];
    assert_eq!(trims.map(list), [3, 2, 2, 2, 1, 1, 0, 0, 0]);
    assert_eq!(run(&[Op::RPush(text("a")), Op::RPush(text("b")), Op::RPop]), Reply::Bulk(Some(text("b"))));
    assert_eq!(run(&[Op::RPush(text("a")), Op::RPop, Op::RPop]), Reply::Bulk(None));
    assert_eq!(run(&[Op::RPush(text("a")), Op::LTrim(1, 0), Op::Exists]), Reply::Integer(0));
    assert!(matches!(run(&[Op::RPush(text("a")), Op::Get]), Reply::Error(_)));
    assert_eq!(run(&[Op::ZAdd(3, text("a")), Op::ZIncrBy(-5, text("a"))]), Reply::Bulk(Some(text("-2"))));
    let popped = Reply::Array(Some(vec![Reply::Bulk(Some(text("b"))), Reply::Bulk(Some(text("-1")))]));
    assert_eq!(run(&[Op::ZAdd(3, text("a")), Op::ZIncrBy(-1, text("b")), Op::ZPopMin]), popped);
    assert_eq!(run(&[Op::ZPopMin]), Reply::Array(Some(Vec::new())));
    let zset = [Op::ZAdd(3, text("a")), Op::ZAdd(-1, text("c")), Op::ZAdd(3, text("b")), Op::ZRange];
    let sorted = ["c", "-1", "a", "3", "b", "3"].map(|part| Reply::Bulk(Some(text(part)))).to_vec();
    assert_eq!(run(&zset), Reply::Array(Some(sorted)));
    assert_eq!(run(&[Op::ZAdd(3, text("a")), Op::ZAdd(4, text("a"))]), Reply::Integer(0));
    assert_eq!(run(&[Op::ZAdd(3, text("a")), Op::ZRem(text("a")), Op::Exists]), Reply::Integer(0));
    assert_eq!(run(&[Op::RPush(text("a")), Op::Set(text("b")), Op::Get]), Reply::Bulk(Some(text("b"))));
    let until = |ops: &[Op]| run(&[ops, &[Op::PExpireTime]].concat());
    assert_eq!(until(&[Op::PExpireAt(7)]), Reply::Integer(-2));
    assert_eq!(until(&[Op::Set(text("x"))]), Reply::Integer(-1));
    assert_eq!(until(&[Op::SetPxAt(text("1"), 7), Op::IncrBy(1), Op::Append(text("2"))]), Reply::Integer(7));
    assert_eq!(until(&[Op::SetPxAt(text("x"), 7), Op::Persist]), Reply::Integer(-1));
    assert_eq!(until(&[Op::SetPxAt(text("x"), 7), Op::SetXxGet(text("y"))]), Reply::Integer(-1));
    assert_eq!(
        until(&[Op::RPush(text("a")), Op::PExpireAt(7), Op::LPop, Op::RPush(text("b"))]),
        Reply::Integer(-1)
    );
}

/// Whether one order explains what was asked, by whom and in which milliseconds, and answered.
fn fits(walls: &Walls, calls: &[(u64, Op, u64, u64, Reply)]) -> bool {
    let model = KeyModel { walls: walls.clone(), end_ms: 1_000_000 };
    let operation = |(client, op, called, at, reply): &(u64, Op, u64, u64, Reply)| Operation {
        client: *client,
        called: *called,
        op: Call { op: op.clone(), called_ms: *called, answered_ms: Some(*at) },
        returned: Some((*at, reply.clone())),
    };
    let history: Vec<_> = calls.iter().map(operation).collect();
    matches!(check(&model, Held::default(), &history, 1000), Verdict::Linearizable(_))
}

#[test]
fn a_history_in_which_a_counter_loses_an_update_is_refused() {
    let of = |second| {
        [(1, Op::IncrBy(1), 0, 10, Reply::Integer(1)), (2, Op::IncrBy(1), 0, 10, Reply::Integer(second))]
    };
    assert!(fits(&Walls::default(), &of(2)));
    assert!(!fits(&Walls::default(), &of(1)));
}

#[test]
fn a_key_is_gone_when_the_clock_has_shown_its_deadline_and_not_before() {
    let ok = || Reply::Simple("OK".into());
    let there = || Reply::Bulk(Some(b"x".to_vec()));
    let gone = || Reply::Bulk(None);
    let set = |at, deadline| (1, Op::SetPxAt(b"x".to_vec(), deadline), at, at + 1, ok());
    let get = |from, to, reply| (1, Op::Get, from, to, reply);
    let still = Walls::default();
    assert!(fits(&still, &[set(0, 100), get(50, 60, there()), get(110, 120, gone())]));
    assert!(!fits(&still, &[set(0, 100), get(50, 60, gone())]), "before its time");
    assert!(!fits(&still, &[set(0, 100), get(110, 120, there())]), "after its time");
    // Nobody knows at which of its instants a command looked.
    assert!(fits(&still, &[set(0, 100), get(90, 110, there())]));
    assert!(fits(&still, &[set(0, 100), get(90, 110, gone())]));
    // What is gone by the clock does not come back by it.
    assert!(!fits(&still, &[set(0, 100), get(110, 120, gone()), get(130, 140, there())]));
    // A deadline that was set anew, or taken away.
    let later = (1, Op::PExpireAt(300), 20, 30, Reply::Integer(1));
    let never = (1, Op::Persist, 20, 30, Reply::Integer(1));
    for change in [later, never] {
        assert!(fits(&still, &[set(0, 100), change.clone(), get(110, 120, there())]));
        assert!(!fits(&still, &[set(0, 100), change, get(110, 120, gone())]));
    }
    // The clock jumps ahead for a while: keys of before may go, or be there again. Those of after go when they should.
    let mut walls = Walls::default();
    walls.jump(50, 1000);
    walls.jump(150, -1000);
    assert!(!fits(&walls, &[set(0, 500), get(100, 110, there())]));
    assert!(fits(&walls, &[set(0, 500), get(100, 110, gone()), get(200, 210, gone())]));
    assert!(fits(&walls, &[set(0, 500), get(100, 110, gone()), get(200, 210, there())]));
    assert!(!fits(&walls, &[set(0, 500), get(600, 610, there())]));
    assert!(!fits(&walls, &[set(200, 500), get(210, 220, gone())]));
    // What was removed for good is not seen again, wherever the clock goes.
    let del = (1, Op::Del, 100, 110, Reply::Integer(0));
    assert!(!fits(&walls, &[set(0, 500), del, get(200, 210, there())]));
}

#[test]
fn what_nobody_heard_of_may_happen_before_or_after_a_deadline() {
    let model = KeyModel { walls: Walls::default(), end_ms: 1000 };
    let call = |op, at, returned: Option<Reply>| Operation {
        client: 1,
        called: at,
        op: Call { op, called_ms: at, answered_ms: returned.as_ref().map(|_| at + 1) },
        returned: returned.map(|reply| (at + 1, reply)),
    };
    let set = call(Op::SetPxAt(b"7".to_vec(), 100), 0, Some(Reply::Simple("OK".into())));
    let lost = call(Op::IncrBy(1), 50, None);
    for (value, fits) in [(Some("8"), true), (Some("1"), true), (None, true), (Some("2"), false)] {
        let at = if value == Some("8") { 90 } else { 500 };
        let get = call(Op::Get, at, Some(Reply::Bulk(value.map(|value| value.as_bytes().to_vec()))));
        let verdict = check(&model, Held::default(), &[set.clone(), lost.clone(), get], 1000);
        assert_eq!(matches!(verdict, Verdict::Linearizable(_)), fits, "{value:?}");
    }
}
