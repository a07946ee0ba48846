//! What commands say of the keys that they put: those that were there on flash are not called new, or they would be there again
//! once they are deleted and what memory knows of that has gone.

use crate::simulated::{SimClient, Stage};
use pumice_redis::options::Options;

type Case = (&'static [&'static str], &'static [&'static str], &'static [(&'static str, &'static str)]);

/// What is stored, what then changes and removes it, and what is asked about it, with the first line of the answer. Each of the three
/// is a server's life: what is asked for lies on flash alone.
const CASES: &[Case] = &[
    (&["SET a1 v"], &["SET a1 w", "DEL a1"], &[("EXISTS a1", ":0")]),
    (&["SET a2 v"], &["GETSET a2 w", "GETDEL a2"], &[("EXISTS a2", ":0")]),
    (&["SET a3 v"], &["APPEND a3 w", "UNLINK a3"], &[("EXISTS a3", ":0")]),
    (&["SET a4 1"], &["INCR a4", "DEL a4"], &[("EXISTS a4", ":0")]),
    (&["SET a5 1"], &["INCRBYFLOAT a5 .5", "DEL a5"], &[("EXISTS a5", ":0")]),
    (&["SET a6 v"], &["MSET a6 w", "DEL a6"], &[("EXISTS a6", ":0")]),
    (&["SET a7 v"], &["EXPIRE a7 1000", "PERSIST a7", "DEL a7"], &[("EXISTS a7", ":0")]),
    (&["SETRANGE a8 300000 v"], &["SETRANGE a8 0 w", "DEL a8"], &[("EXISTS a8", ":0")]),
    (&["SET a9 v"], &["SETRANGE a9 300000 w", "DEL a9"], &[("EXISTS a9", ":0")]),
    // Expired, and there still.
    (&["SET a10 v PX 20"], &["SET a10 w", "DEL a10"], &[("EXISTS a10", ":0")]),
    (&["SET b1 v", "SET b2 w"], &["RENAME b1 b2", "DEL b2"], &[("EXISTS b1 b2", ":0")]),
    (&["SET b3 v", "SET b4 w"], &["COPY b3 b4 REPLACE", "DEL b4"], &[("EXISTS b3 b4", ":1")]),
    (&["SADD b5 v", "SET b6 w"], &["RENAME b5 b6", "DEL b6"], &[("EXISTS b5 b6", ":0")]),
    (&["SADD b7 v"], &["SET b7 w", "DEL b7"], &[("EXISTS b7", ":0")]),
    (&["SET b8 v"], &["DEL b8", "SADD b8 v", "DEL b8"], &[("EXISTS b8", ":0")]),
    (&["SADD b9 v"], &["SUNIONSTORE b9 b9 b9", "DEL b9"], &[("EXISTS b9", ":0")]),
    (&["SET b10 v"], &["MULTI", "DEL b10", "SET b10 w", "EXEC", "DEL b10"], &[("EXISTS b10", ":0")]),
    (&["SET b11 v"], &["MULTI", "SET b11 w", "SET b11 w", "EXEC", "DEL b11"], &[("EXISTS b11", ":0")]),
    (&["SET b12 v"], &["MULTI", "DEL b12", "LPUSH b12 w", "EXEC", "DEL b12"], &[("EXISTS b12", ":0")]),
    (&["HSET c1 f v g v"], &["HSET c1 f w", "HDEL c1 f"], &[("HEXISTS c1 f", ":0"), ("HSET c1 f v", ":1")]),
    (&["HSET c2 f 1 g v"], &["HINCRBY c2 f 1", "HDEL c2 f"], &[("HEXISTS c2 f", ":0")]),
    (&["HSET c3 f 1 g v"], &["HINCRBYFLOAT c3 f 1", "HDEL c3 f"], &[("HEXISTS c3 f", ":0")]),
    (
        &["HSET c4 f v g v"],
        &["MULTI", "HDEL c4 f", "HSET c4 f w", "EXEC", "HDEL c4 f"],
        &[("HEXISTS c4 f", ":0"), ("HSTRLEN c4 f", ":0")],
    ),
    (&["HSET c5 f v g v"], &["HDEL c5 f", "HSETNX c5 f w", "HDEL c5 f"], &[("HEXISTS c5 f", ":0")]),
    (&["SADD d1 m n"], &["SREM d1 m", "SADD d1 m", "SREM d1 m"], &[("SISMEMBER d1 m", ":0")]),
    (
        &["SADD d2 m n", "SADD d3 n"],
        &["SMOVE d2 d3 m", "SMOVE d3 d2 m", "SREM d2 m"],
        &[("SISMEMBER d2 m", ":0"), ("SISMEMBER d3 m", ":0"), ("SCARD d2", ":1")],
    ),
    (
        &["ZADD e1 1 m 2 n"],
        &["ZADD e1 3 m", "ZREM e1 m"],
        &[("ZCOUNT e1 -inf +inf", ":1"), ("ZRANK e1 n", ":0"), ("ZSCORE e1 m", "$-1"), ("ZADD e1 1 m", ":1")],
    ),
    (
        &["ZADD e2 1 m 2 n"],
        &["ZADD e2 3 m", "ZADD e2 1 m", "ZREM e2 m"],
        &[("ZCOUNT e2 -inf +inf", ":1"), ("ZRANK e2 n", ":0"), ("ZSCORE e2 m", "$-1")],
    ),
    (
        &["ZADD e3 0 m 2 n"],
        &["ZADD e3 -0.0 m", "ZREM e3 m"],
        &[("ZCOUNT e3 -inf +inf", ":1"), ("ZRANK e3 n", ":0"), ("ZSCORE e3 m", "$-1")],
    ),
    (
        &["ZADD e4 1 m 2 n"],
        &["MULTI", "ZREM e4 m", "ZADD e4 1 m", "EXEC", "ZREM e4 m"],
        &[("ZCOUNT e4 -inf +inf", ":1"), ("ZRANK e4 n", ":0"), ("ZSCORE e4 m", "$-1")],
    ),
    (&["RPUSH f1 v w"], &["LPOP f1", "LPUSH f1 x", "LPOP f1"], &[("LLEN f1", ":1"), ("LPOS f1 w", ":0")]),
    (&["RPUSH f2 v w"], &["LSET f2 0 x", "LPOP f2"], &[("LLEN f2", ":1"), ("LPOS f2 w", ":0")]),
    (&["RPUSH f3 v w x"], &["LREM f3 1 v", "LREM f3 1 w"], &[("LLEN f3", ":1"), ("LPOS f3 x", ":0")]),
    (
        &["RPUSH f4 v w"],
        &["LINSERT f4 BEFORE w x", "LREM f4 1 x", "LREM f4 1 v"],
        &[("LLEN f4", ":1"), ("LPOS f4 w", ":0")],
    ),
];

/// Sends commands; the first lines of their answers. None of them has more than one line, but for bulk strings.
async fn say(client: &mut SimClient, command: &str) -> String {
    let line = client.line(command).await;
    assert!(!line.starts_with('-'), "{command}: {line}");
    if let Some(len) = line.strip_prefix('$').and_then(|len| len.parse::<i64>().ok())
        && len >= 0
    {
        client.read_line().await;
    }
    if let Some(count) = line.strip_prefix('*').and_then(|count| count.parse::<i64>().ok()) {
        for _ in 0..count {
            client.read_line().await;
        }
    }
    line
}

#[test]
fn what_was_on_flash_before_stays_gone() {
    let stage = Stage::start(Options::default());
    let all = |commands: Vec<&'static str>| {
        stage.play(async move |clients| {
            let mut client = clients.connect().await;
            for command in commands {
                say(&mut client, command).await;
            }
        });
    };
    all(CASES.iter().flat_map(|(stored, ..)| *stored).copied().collect());
    stage.restart();
    all(CASES.iter().flat_map(|(_, changed, _)| *changed).copied().collect());
    stage.restart();
    stage.play(async |clients| {
        let mut client = clients.connect().await;
        for (stored, changed, asked) in CASES {
            for (command, answer) in *asked {
                let found = say(&mut client, command).await;
                assert_eq!(found, *answer, "{command} after {stored:?} and {changed:?}");
            }
        }
    });
}
