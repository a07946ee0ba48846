//! The Rust `redis` crate against a real server: what a Rust application does.

use std::collections::{BTreeMap, BTreeSet};

use crate::common::Server;
use redis::{Commands, Value, pipe};

#[test]
fn strings_collections_and_scans_as_an_application_uses_them() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &[]);
    let mut c = server.client();
    let binary: Vec<u8> = (0..=255).collect();
    let _: () = c.set("bin", &binary).unwrap();
    assert_eq!(c.get::<_, Vec<u8>>("bin").unwrap(), binary);
    assert_eq!(c.get::<_, Option<String>>("missing").unwrap(), None);
    assert_eq!(c.incr::<_, _, i64>("n", 5).unwrap(), 5);
    let _: () = c.mset(&[("a", 1), ("b", 2)]).unwrap();
    assert_eq!(c.mget::<_, Vec<Option<i64>>>(&["a", "x", "b"]).unwrap(), [Some(1), None, Some(2)]);

    let _: () = c.hset_multiple("h", &[("f", 1), ("g", 2)]).unwrap();
    let all: BTreeMap<String, i64> = c.hgetall("h").unwrap();
    assert_eq!(all, BTreeMap::from([("f".into(), 1), ("g".into(), 2)]));
    assert_eq!(c.sadd::<_, _, i64>("s", &["x", "y", "x"]).unwrap(), 2);
    let members: BTreeSet<String> = c.smembers("s").unwrap();
    assert_eq!(members, BTreeSet::from(["x".into(), "y".into()]));
    let _: () = c.zadd_multiple("z", &[(2.5, "two"), (1.0, "one")]).unwrap();
    let ranked: Vec<(String, f64)> = c.zrange_withscores("z", 0, -1).unwrap();
    assert_eq!(ranked, [("one".into(), 1.0), ("two".into(), 2.5)]);
    let _: () = c.rpush("l", &[1, 2, 3]).unwrap();
    assert_eq!(c.lrange::<_, Vec<i64>>("l", 1, -1).unwrap(), [2, 3]);

    for n in 0..1000 {
        let _: () = c.set(format!("scan:{n}"), n).unwrap();
    }
    let found: BTreeSet<String> = c.scan_match::<_, String>("scan:*").unwrap().map(Result::unwrap).collect();
    assert_eq!(found.len(), 1000);
    server.stop();
}

#[test]
fn pipelines_and_transactions() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &[]);
    let mut c = server.client();
    let mut many = pipe();
    for n in 0..5000 {
        many.cmd("SET").arg(format!("p{n}")).arg(n).ignore();
    }
    let _: () = many.query(&mut c).unwrap();
    assert_eq!(redis::cmd("DBSIZE").query::<i64>(&mut c).unwrap(), 5000);
    let (old, new): (i64, i64) = pipe().atomic().cmd("GET").arg("p7").incr("p7", 3).query(&mut c).unwrap();
    assert_eq!((old, new), (7, 10));
    // WATCH notices a write in between.
    redis::cmd("WATCH").arg("p7").exec(&mut c).unwrap();
    let _: () = server.client().set("p7", 0).unwrap();
    let raced: Value = pipe().atomic().set("p7", 99).query(&mut c).unwrap();
    assert_eq!(raced, Value::Nil);
    assert_eq!(c.get::<_, i64>("p7").unwrap(), 0);
    server.stop();
}

#[test]
fn large_values_stream_in_and_out_and_survive_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &[]);
    let large: Vec<u8> = (0..40_000_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let mut c = server.client();
    let _: () = c.set("large", &large).unwrap();
    assert!(c.get::<_, Vec<u8>>("large").unwrap() == large);
    server.stop();
    let server = Server::start(dir.path(), &[]);
    let mut c = server.client();
    assert_eq!(c.strlen::<_, usize>("large").unwrap(), large.len());
    assert_eq!(
        c.getrange::<_, Vec<u8>>("large", 20_000_000, 20_000_099).unwrap(),
        &large[20_000_000..20_000_100]
    );
    assert!(c.get::<_, Vec<u8>>("large").unwrap() == large);
    server.stop();
}
