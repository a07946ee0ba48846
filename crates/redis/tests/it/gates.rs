//! Replies wait until what they tell is on flash, on a drive so slow that the test is there before: whenever a reply has come, what
//! it tells of must be durable. A machine that is slower still has the test see less, and never fails it.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use crate::common::client::encode;
use crate::common::{Client, Reply, Setup, TestServer, eventually, split};
use pumice_redis::keyspace::{HeadKey, Space};

/// A page takes so long that everything below is asked for meanwhile.
const SLOW: &str = "emu:small,channels=1,timing=on,program_us=100000";
const QUICKER: &str = "emu:small,channels=1,timing=on,program_us=20000";

fn on(drives: &[&str]) -> TestServer {
    let memory_bytes = drives.len() as u64 * (64 << 20);
    let specs = drives.iter().map(ToString::to_string).collect();
    TestServer::with(Setup { drives: drives.len(), specs, memory_bytes, ..Setup::default() })
}

/// The drive of a key, and the number of its head's newest change.
fn newest(server: &TestServer, key: &str) -> (u16, u64) {
    let node = &server.server().node;
    let key = HeadKey::new(0, Space(1), key.as_bytes(), node);
    (key.place.drive, node.store(key.place.drive).newest_of(key.place.slice, key.raw()))
}

fn is_durable(server: &TestServer, (drive, seq): (u16, u64)) -> bool {
    server.server().node.store(drive).is_durable(seq)
}

/// Sends a write and waits until `seen` has changed: the write is visible then, which is long before it is durable.
fn write<S: PartialEq>(client: &mut Client, command: &str, seen: impl Fn() -> S) -> S {
    let before = seen();
    client.send(&encode(&split(command)));
    let mut now = None;
    // Not in pauses: there are many to write while the drive is busy with the first.
    eventually("it is carried out", || {
        for _ in 0..10_000 {
            let found = seen();
            if found != before {
                now = Some(found);
                return true;
            }
            std::thread::yield_now();
        }
        false
    });
    now.expect("it was just seen")
}

/// Every command that only reads, each on a key of its own (`@`) that was written the moment before; and what writes, and finds
/// that it need not or must not.
const READS_OF_NEW_KEYS: &[(&str, &str)] = &[
    ("SET @ v", "GET @"),
    ("SET @ v", "MGET @ none"),
    ("SET @ v", "STRLEN @"),
    ("SET @ v", "GETRANGE @ 0 -1"),
    ("SET @ v", "SUBSTR @ 0 -1"),
    ("SET @ v", "EXISTS @"),
    ("SET @ v", "TOUCH @"),
    ("SET @ v", "TYPE @"),
    ("SET @ v PX 1000000", "TTL @"),
    ("SET @ v PX 1000000", "PTTL @"),
    ("SET @ v PX 1000000", "EXPIRETIME @"),
    ("SET @ v PX 1000000", "PEXPIRETIME @"),
    ("SET @ v", "OBJECT ENCODING @"),
    ("SET @ v", "OBJECT REFCOUNT @"),
    ("SET @ v", "OBJECT IDLETIME @"),
    ("SET @ v", "MEMORY USAGE @"),
    ("SET @ v", "KEYS @"),
    ("SET @ v", "PUMICE.RANGE - + WITHVALUES"),
    ("SET @ v", "SCAN 0 COUNT 10000"),
    ("SET @ v", "DBSIZE"),
    ("HSET @ f v", "HEXISTS @ f"),
    ("HSET @ f v", "HGET @ f"),
    ("HSET @ f v", "HGET @ none"),
    ("HSET @ f v", "HGETALL @"),
    ("HSET @ f v", "HKEYS @"),
    ("HSET @ f v", "HVALS @"),
    ("HSET @ f v", "HLEN @"),
    ("HSET @ f v", "HMGET @ f none"),
    ("HSET @ f v", "HRANDFIELD @"),
    ("HSET @ f v", "HRANDFIELD @ -3 WITHVALUES"),
    ("HSET @ f v", "HSCAN @ 0"),
    ("HSET @ f v", "HSTRLEN @ f"),
    ("RPUSH @ a b", "LINDEX @ 1"),
    ("RPUSH @ a b", "LLEN @"),
    ("RPUSH @ a b", "LPOS @ b"),
    ("RPUSH @ a b", "LRANGE @ 0 -1"),
    ("SADD @ m n", "SCARD @"),
    ("SADD @ m n", "SDIFF @ none"),
    ("SADD @ m n", "SDIFF none @"),
    ("SADD @ m n", "SINTER @ @"),
    ("SADD @ m n", "SINTERCARD 1 @"),
    ("SADD @ m n", "SISMEMBER @ m"),
    ("SADD @ m n", "SISMEMBER @ none"),
    ("SADD @ m n", "SMEMBERS @"),
    ("SADD @ m n", "SMISMEMBER @ m none"),
    ("SADD @ m n", "SRANDMEMBER @"),
    ("SADD @ m n", "SSCAN @ 0"),
    ("SADD @ m n", "SUNION @ none"),
    ("ZADD @ 1 m 2 n", "ZCARD @"),
    ("ZADD @ 1 m 2 n", "ZCOUNT @ 0 1"),
    ("ZADD @ 1 m 2 n", "ZDIFF 1 @"),
    ("ZADD @ 1 m 2 n", "ZINTER 2 @ @"),
    ("ZADD @ 1 m 2 n", "ZINTERCARD 1 @"),
    ("ZADD @ 1 m 1 n", "ZLEXCOUNT @ - +"),
    ("ZADD @ 1 m 2 n", "ZMSCORE @ m none"),
    ("ZADD @ 1 m 2 n", "ZRANDMEMBER @"),
    ("ZADD @ 1 m 2 n", "ZRANGE @ 0 -1"),
    ("ZADD @ 1 m 1 n", "ZRANGEBYLEX @ - +"),
    ("ZADD @ 1 m 2 n", "ZRANGEBYSCORE @ 0 9"),
    ("ZADD @ 1 m 2 n", "ZRANK @ n"),
    ("ZADD @ 1 m 2 n", "ZREVRANGE @ 0 -1"),
    ("ZADD @ 1 m 1 n", "ZREVRANGEBYLEX @ + -"),
    ("ZADD @ 1 m 2 n", "ZREVRANGEBYSCORE @ 9 0"),
    ("ZADD @ 1 m 2 n", "ZREVRANK @ n"),
    ("ZADD @ 1 m 2 n", "ZSCAN @ 0"),
    ("ZADD @ 1 m 2 n", "ZSCORE @ m"),
    ("ZADD @ 1 m 2 n", "ZSCORE @ none"),
    ("ZADD @ 1 m 2 n", "ZUNION 1 @"),
    ("SET @ v", "SETNX @ w"),
    ("SET @ v", "SET @ w NX"),
    ("SET @ v", "MSETNX @ w none2 w"),
    ("SET @ v", "LPUSH @ a"),
    ("SET @ v", "INCR @"),
    ("SET @ v", "RENAMENX @ @"),
    ("SET @ v", "PERSIST @"),
    ("SET @ v", "GETEX @"),
    ("HSET @ f v", "HSETNX @ f w"),
    ("HSET @ f v", "HDEL @ none"),
    ("HSET @ f v", "HINCRBY @ f 1"),
    ("SADD @ m", "SADD @ m"),
    ("SADD @ m", "SREM @ none"),
    ("ZADD @ 1 m", "ZADD @ NX 2 m"),
    ("ZADD @ 1 m", "ZREM @ none"),
    ("RPUSH @ a", "LSET @ 7 b"),
    ("RPUSH @ a", "LREM @ 0 none"),
    ("RPUSH @ a", "LINSERT @ BEFORE none b"),
    ("SET @ v", "MULTI|GET @|EXEC"),
    ("HSET @ f v", "MULTI|HGETALL @|EXEC"),
];

/// The same of keys that were there, of which one element changes and no more, or that go: before, change, reads.
const READS_OF_CHANGES: &[(&str, &str, &[&str])] = &[
    (
        "SET @ v",
        "DEL @",
        &[
            "GET @",
            "EXISTS @",
            "MGET none @",
            "TTL @",
            "TYPE @",
            "HGETALL @",
            "LRANGE @ 0 -1",
            "SET @ v XX",
            "DEL @",
            "HDEL @ f",
            "SREM @ m",
            "ZREM @ m",
            "ZADD @ XX 1 m",
            "LPOP @",
            "KEYS @",
            "MULTI|ZRANGE @ 0 -1|EXEC",
        ],
    ),
    (
        "HSET @ f v",
        "HSET @ f w",
        &[
            "HGET @ f",
            "HMGET @ f none",
            "HGETALL @",
            "HVALS @",
            "HSTRLEN @ f",
            "HSCAN @ 0",
            "HRANDFIELD @ -3 WITHVALUES",
            "HSETNX @ f x",
            "HINCRBY @ f 1",
            "MULTI|HGETALL @|EXEC",
        ],
    ),
    (
        "SADD @ m n",
        "SREM @ m",
        &["SISMEMBER @ m", "SMISMEMBER @ m n", "SMEMBERS @", "SSCAN @ 0", "SUNION @ @", "SREM @ m"],
    ),
    (
        "ZADD @ 1 m 2 n",
        "ZADD @ 3 m",
        &[
            "ZSCORE @ m",
            "ZMSCORE @ m none",
            "ZRANK @ m",
            "ZREVRANK @ m",
            "ZRANGE @ 0 -1",
            "ZREVRANGE @ 0 -1 WITHSCORES",
            "ZRANGEBYSCORE @ 3 3",
            "ZREVRANGEBYSCORE @ 2 1",
            "ZCOUNT @ 3 3",
            "ZSCAN @ 0",
            "ZRANDMEMBER @ -3 WITHSCORES",
            "ZUNION 1 @ WITHSCORES",
            "ZINTER 2 @ @ WITHSCORES",
            "ZDIFF 1 @ WITHSCORES",
            "ZADD @ XX 3 m",
        ],
    ),
    (
        "RPUSH @ a b",
        "LSET @ 0 c",
        &["LRANGE @ 0 -1", "LINDEX @ 0", "LPOS @ c", "LREM @ 0 none", "LINSERT @ BEFORE none x"],
    ),
];

/// The names of commands that COMMAND calls readonly.
fn readonly(client: &mut Client) -> Vec<String> {
    let Reply::Array(commands) = client.line("COMMAND") else { panic!("an array") };
    let is_readonly = |command: &Reply| match command {
        Reply::Array(facts) => facts[2].to_string().contains("readonly").then(|| facts[0].to_string()),
        other => panic!("{other}"),
    };
    commands.iter().filter_map(is_readonly).map(|name| name.trim_matches('"').to_string()).collect()
}

/// What has come for a client that reads nothing yet.
fn has_come(stream: &UnixStream) -> bool {
    stream.set_nonblocking(true).expect("set");
    let has_come = matches!((&*stream).read(&mut [0]), Ok(1));
    stream.set_nonblocking(false).expect("set");
    has_come
}

/// Before, change, read.
fn cases() -> Vec<(&'static str, &'static str, &'static str)> {
    let changes = READS_OF_CHANGES.iter();
    let of_changes =
        changes.flat_map(|(before, change, reads)| reads.iter().map(|read| (*before, *change, *read)));
    READS_OF_NEW_KEYS.iter().map(|(change, read)| ("", *change, *read)).chain(of_changes).collect()
}

#[test]
fn what_reads_answers_when_what_it_saw_is_durable() {
    let server = on(&[SLOW]);
    let store = server.server().node.store(0);
    let (mut writer, cases) = (server.client(), cases());
    let first_word = |command: &str| command.split(' ').next().unwrap_or_default().to_lowercase();
    let covered: Vec<String> =
        cases.iter().flat_map(|(_, _, read)| read.split('|')).map(first_word).collect();
    // RANDOMKEY tells of any key, and most are durable.
    for name in readonly(&mut writer).into_iter().filter(|name| name != "randomkey") {
        assert!(covered.contains(&name), "{name} reads, and is not among the commands here");
    }
    let on_its_key = |case: usize, line: &str| encode(&split(&line.replace('@', &format!("k{case}"))));
    let there: Vec<usize> = (0..cases.len()).filter(|case| !cases[*case].0.is_empty()).collect();
    writer.send(&there.iter().flat_map(|case| on_its_key(*case, cases[*case].0)).collect::<Vec<_>>());
    there.iter().for_each(|_| drop(writer.read()));
    let mut readers: Vec<UnixStream> =
        cases.iter().map(|_| UnixStream::connect(server.socket()).expect("connected")).collect();
    let mut asked: Vec<(usize, u64)> = Vec::new();
    for (case, (before, change, read)) in cases.iter().enumerate() {
        let key = format!("k{case}");
        let change = change.replace('@', &key);
        let (queued, read) = read.rsplit_once('|').unwrap_or(("", read));
        for line in queued.split('|').filter(|line| !line.is_empty()) {
            readers[case].write_all(&on_its_key(case, line)).expect("sent");
            let expected = if line == "MULTI" { "+OK\r\n" } else { "+QUEUED\r\n" };
            let mut reply = vec![0; expected.len()];
            readers[case].read_exact(&mut reply).expect("a reply");
            assert_eq!(reply, expected.as_bytes(), "{line}");
        }
        // Nothing else writes: the newest change of all is that of a key whose head it leaves as it is. (A new collection takes a
        // number for itself before it is there.)
        let seq = if before.is_empty() {
            write(&mut writer, &change, || newest(&server, &key).1)
        } else {
            write(&mut writer, &change, || store.last_seq())
        };
        readers[case].write_all(&on_its_key(case, read)).expect("sent");
        asked.push((case, seq));
    }
    eventually("all are answered", || {
        asked.retain(|(case, seq)| {
            let has_come = has_come(&readers[*case]);
            assert!(!has_come || store.is_durable(*seq), "{:?} told of what was not durable", cases[*case]);
            !has_come
        });
        asked.is_empty()
    });
    cases.iter().for_each(|_| drop(writer.read()));
}

#[test]
fn an_acknowledgement_does_not_leave_with_one_that_may() {
    let server = on(&[SLOW]);
    let mut client = server.client();
    for round in 0..3 {
        let keys = [format!("a{round}"), format!("b{round}")];
        let mut written = Vec::new();
        for key in &keys {
            client.send(&encode(&["PING"]));
            written.push(write(&mut client, &format!("SET {key} v"), || newest(&server, key)));
        }
        for written in written {
            assert_eq!(client.read().to_string(), "PONG");
            assert_eq!(client.read().to_string(), "OK");
            assert!(is_durable(&server, written), "round {round}");
        }
    }
}

#[test]
fn an_acknowledgement_does_not_leave_with_what_waits_for_nothing() {
    let server = on(&[SLOW]);
    let mut client = server.client();
    // More than the socket takes: what comes behind it is queued until somebody reads.
    let long = vec![b'v'; 100_000];
    assert_eq!(client.call(&[&b"SET"[..], b"long", &long]).to_string(), "OK");
    let words: Vec<&str> = std::iter::once("MGET").chain(std::iter::repeat_n("long", 20)).collect();
    for round in 0..3 {
        let key = format!("k{round}");
        client.send(&encode(&words));
        client.send(&encode(&["PING"]));
        let written = write(&mut client, &format!("SET {key} v"), || newest(&server, &key));
        let Reply::Array(values) = client.read() else { panic!("values") };
        assert!(values.len() == 20 && values.iter().all(|value| *value == Reply::Bulk(long.clone())));
        assert_eq!(client.read().to_string(), "PONG");
        assert_eq!(client.read().to_string(), "OK");
        assert!(is_durable(&server, written), "round {round}");
    }
}

#[test]
fn what_is_on_two_drives_is_acknowledged_when_both_have_it() {
    for drives in [[QUICKER, SLOW], [SLOW, QUICKER]] {
        let server = on(&drives);
        let (mut client, mut other) = (server.client(), server.client());
        let key_on = |drive: u16| {
            let mut names = (0..1000).map(|n| format!("k{n}"));
            names.find(|name| newest(&server, name).0 == drive).expect("a key of each drive")
        };
        let (one, two) = (key_on(0), key_on(1));
        for round in 0..4 {
            let order = if round % 2 == 0 { [&one, &two] } else { [&two, &one] };
            let command = format!("MSET {} {round} {} {round}", order[0], order[1]);
            write(&mut client, &command, || newest(&server, order[1]));
            let written = [newest(&server, &one), newest(&server, &two)];
            other.send(&encode(&["MGET", order[0], order[1]]));
            let told = |what: &str| {
                let is_told = written.iter().all(|written| is_durable(&server, *written));
                assert!(is_told, "{what} in round {round} on {drives:?}");
            };
            // Whichever is looked at second comes too late to tell anything.
            if round < 2 {
                assert_eq!(client.read().to_string(), "OK");
                told("acknowledged");
            }
            assert_eq!(other.read().to_string(), format!("[\"{round}\", \"{round}\"]"));
            told("read");
            if round >= 2 {
                assert_eq!(client.read().to_string(), "OK");
            }
        }
    }
}
