//! Records of the face that verify and yet say what no build ever stored (`docs/format/redis-keys.md`): they are told of, nothing
//! is reckoned with them, and what is unharmed is served.

use std::sync::Arc;

use crate::common::{Setup, TestServer, write_unserved};
use pumice_kv::{Batch, SliceId};

/// The key `k` lies there, with 16 slices.
const SLICE: SliceId = SliceId(1);
const HOME: u16 = 0x1dcd;
const HEAD_OF_K: &[u8] = b"\0\0\0\x01\0k";

const LIST: u8 = 2;
const SET: u8 = 3;
const ZSET: u8 = 4;

/// A collection's head: id, count, home, hints, and of a list its first index and the one behind its last.
fn head(count: u64, home: u16, hints: u8, list: Option<(i64, i64)>) -> Vec<u8> {
    let mut value = [1u64.to_le_bytes(), count.to_le_bytes()].concat();
    value.extend(home.to_le_bytes());
    value.extend([hints, 0, 0, 0, 0, 0]);
    if let Some((first, end)) = list {
        value.extend([first.to_le_bytes(), end.to_le_bytes()].concat());
    }
    value
}

#[test]
fn a_head_that_no_collection_has_is_told_of_and_can_be_replaced() {
    let lists = [
        head(1 << 63, HOME, 0, Some((0, i64::MIN))),
        head(3, HOME, 0, Some((i64::MIN, i64::MIN + 3))),
        head(3, HOME, 0, Some((i64::MAX - 3, i64::MAX))),
        head(3, HOME, 0, Some((i64::MIN, i64::MAX))),
        head(3, HOME, 0, Some((5, 5))),
        head(3, HOME, 0, Some((5, 2))),
        head(3, HOME, 0x80, Some((0, 2))),
        head(0, HOME, 0, Some((0, 0))),
        head(3, 16_384, 0, Some((0, 3))),
    ];
    let others = [head(0, HOME, 0, None), head(u64::MAX, HOME, 0, None), head(5, u16::MAX, 0, None)];
    let reads_of = |tag: u8| match tag {
        LIST => {
            ["LLEN k", "LRANGE k 0 -1", "LPUSH k a", "RPUSH k a", "LPOP k 9", "LREM k 0 a", "LTRIM k 1 0"]
        }
        SET => {
            ["SCARD k", "SMEMBERS k", "SADD k a", "SPOP k 3", "SRANDMEMBER k -3", "SUNION k k", "SREM k a"]
        }
        _ => {
            ["ZCARD k", "ZRANGE k 0 -1", "ZADD k 1 a", "ZPOPMIN k 3", "ZRANK k a", "ZREM k a", "ZUNION 2 k k"]
        }
    };
    let of = |heads: &[Vec<u8>], tag: u8| heads.iter().map(|head| (tag, head.clone())).collect::<Vec<_>>();
    let all = [of(&lists, LIST), of(&others, SET), of(&others, ZSET)].concat();
    let server = TestServer::with(Setup::default());
    server.client().line("SET beside v");
    let mut dir = server.into_dir();
    for (tag, head) in all {
        let mut batch = Batch::new();
        batch.put(SLICE, HEAD_OF_K, tag, 0, &head);
        write_unserved(dir.path(), batch);
        let server = TestServer::in_dir(Setup::default(), dir);
        let mut client = server.client();
        for command in reads_of(tag).into_iter().chain(["OBJECT ENCODING k", "COPY k l", "RENAME k k2"]) {
            let reply = client.line(command).to_string();
            assert!(
                reply.contains("ERR key 'k'") && reply.contains("decode"),
                "{command}: {reply}, {head:?}"
            );
        }
        assert_eq!(client.line("SET k new").to_string(), "OK");
        assert_eq!(client.line("MGET k beside").to_string(), "[\"new\", \"v\"]");
        drop(client);
        dir = server.into_dir();
    }
}

/// The databases' record as older builds wrote it: the next space, and where each database is and was.
fn databases(next: u32, current: impl Fn(u32) -> u32, previous: impl Fn(u32) -> u32) -> Batch {
    let mut record = [1u32.to_le_bytes(), next.to_le_bytes()].concat();
    for database in 0..16 {
        record.extend([current(database).to_le_bytes(), previous(database).to_le_bytes()].concat());
    }
    let mut batch = Batch::new();
    batch.put(SliceId(0), b"\0\0\0\0\0databases", 0, 0, &record);
    batch
}

/// Whether a server that finds this record serves.
fn serves(batch: Batch) -> bool {
    let dir = TestServer::with(Setup::default()).into_dir();
    write_unserved(dir.path(), batch);
    let setup = Setup::default();
    pumice_reactor::block_on(async move {
        let node = crate::common::open(&setup, dir.path()).await;
        let server = Arc::new(pumice_redis::server::Server::new(setup.options.clone()).expect("a server"));
        let attached = server.attach(node.clone()).await;
        node.close().await.expect("closed");
        attached.is_ok()
    })
}

#[test]
fn a_record_of_databases_that_nobody_stored_is_refused() {
    assert!(serves(databases(17, |d| d + 1, |_| 0)));
    assert!(serves(databases(40, |d| d + 20, |d| if d == 2 { 7 } else { 0 })));
    // Spaces given out that were not; beyond the names of counts; a database in Pumice's own; two in one; a database in what
    // is to be retired.
    assert!(!serves(databases(16, |d| d + 1, |_| 0)));
    assert!(!serves(databases(u32::MAX, |d| d + 1, |_| 0)));
    assert!(!serves(databases(17, |d| d, |_| 0)));
    assert!(!serves(databases(17, |d| if d == 9 { 2 } else { d + 1 }, |_| 0)));
    assert!(!serves(databases(17, |d| d + 1, |d| if d == 9 { 2 } else { 0 })));
    assert!(!serves(databases(18, |d| d + 1, |d| if d == 9 { 18 } else { 0 })));
}

#[test]
fn databases_that_were_emptied_as_often_as_they_can_be_are_served_and_emptied_no_more() {
    let server = TestServer::with(Setup::default());
    server.client().line("SET k v");
    let dir = server.into_dir();
    // Seven are left.
    write_unserved(dir.path(), databases((1 << 31) - 7, |d| d + 1, |_| 0));
    let server = TestServer::in_dir(Setup::default(), dir);
    let mut client = server.client();
    let is_refused =
        |reply: String| reply.contains("ERR databases on these drives were emptied too many times");
    assert!(is_refused(client.line("FLUSHALL").to_string()));
    assert_eq!(client.line("GET k").to_string(), "\"v\"");
    for round in 0..7 {
        client.line(&format!("SET k {round}"));
        assert_eq!(client.line("FLUSHDB").to_string(), "OK", "round {round}");
        assert_eq!(client.line("GET k").to_string(), "nil");
    }
    client.line("SET k last");
    assert!(is_refused(client.line("FLUSHDB").to_string()));
    client.line("MULTI");
    client.line("FLUSHDB");
    assert!(is_refused(client.line("EXEC").to_string()));
    drop(client);
    let server = server.restart(Setup::default());
    let mut client = server.client();
    assert!(is_refused(client.line("FLUSHDB").to_string()));
    assert_eq!(client.line("GET k").to_string(), "\"last\"");
}

#[test]
fn a_note_of_what_lies_in_no_slice_is_left_alone() {
    let server = TestServer::with(Setup::default());
    server.client().line("SADD k a b");
    let dir = server.into_dir();
    let mut batch = Batch::new();
    for (id, slice) in [(1u64, &60_000u16.to_le_bytes()[..]), (2, &16u16.to_le_bytes()), (3, b"\0")] {
        let key = [&b"\0\0\0\0\0building\0\0\0\x01"[..], &id.to_be_bytes()].concat();
        batch.put(SliceId(0), &key, 0, 0, slice);
    }
    write_unserved(dir.path(), batch);
    let server = TestServer::in_dir(Setup::default(), dir);
    assert_eq!(server.client().line("SCARD k").to_string(), "2");
}
