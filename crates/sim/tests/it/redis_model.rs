//! The model of a Redis key and the RESP client beside it.

use pumice_sim::linear::{Operation, Verdict, check};
use pumice_sim::redis::model::{KeyModel, Op, State, step};
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
        let mut state = State::None;
        let mut last = Reply::Bulk(None);
        for op in ops {
            (last, state) = step(&state, op);
        }
        last
    };
    let text = |text: &str| text.as_bytes().to_vec();
    assert_eq!(run(&[Op::IncrBy(5), Op::IncrBy(-7)]), Reply::Integer(-2));
    assert_eq!(run(&[Op::Append(text("ab")), Op::Append(text("c")), Op::StrLen]), Reply::Integer(3));
    assert_eq!(run(&[Op::Set(text("x")), Op::IncrBy(1)]), step(&State::String(text("x")), &Op::IncrBy(1)).0);
    assert_eq!(run(&[Op::HSet(text("f"), text("1")), Op::HSet(text("f"), text("2"))]), Reply::Integer(0));
    assert_eq!(run(&[Op::HSet(text("f"), text("1")), Op::HDel(text("f")), Op::Exists]), Reply::Integer(0));
    assert_eq!(run(&[Op::RPush(text("a")), Op::RPush(text("b")), Op::LPop]), Reply::Bulk(Some(text("a"))));
    assert!(matches!(run(&[Op::RPush(text("a")), Op::Get]), Reply::Error(_)));
    let zset = [Op::ZAdd(3, text("a")), Op::ZAdd(-1, text("c")), Op::ZAdd(3, text("b")), Op::ZRange];
    let sorted = ["c", "-1", "a", "3", "b", "3"].map(|part| Reply::Bulk(Some(text(part)))).to_vec();
    assert_eq!(run(&zset), Reply::Array(Some(sorted)));
    assert_eq!(run(&[Op::ZAdd(3, text("a")), Op::ZAdd(4, text("a"))]), Reply::Integer(0));
    assert_eq!(run(&[Op::ZAdd(3, text("a")), Op::ZRem(text("a")), Op::Exists]), Reply::Integer(0));
    assert_eq!(run(&[Op::RPush(text("a")), Op::Set(text("b")), Op::Get]), Reply::Bulk(Some(text("b"))));
}

#[test]
fn a_history_in_which_a_counter_loses_an_update_is_refused() {
    let call = |client, called, op, at, reply| Operation { client, called, op, returned: Some((at, reply)) };
    let one = call(1, 0, Op::IncrBy(1), 10, Reply::Integer(1));
    let same = call(2, 0, Op::IncrBy(1), 10, Reply::Integer(1));
    let next = call(2, 0, Op::IncrBy(1), 10, Reply::Integer(2));
    assert!(matches!(check(&KeyModel, State::None, &[one.clone(), next], 1000), Verdict::Linearizable(_)));
    assert!(matches!(check(&KeyModel, State::None, &[one, same], 1000), Verdict::Violation { .. }));
}
