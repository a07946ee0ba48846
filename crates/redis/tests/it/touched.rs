//! Keys that are touched: EXPIRE and its like write a few bytes, however long the value is.

#![allow(clippy::disallowed_methods, reason = "clients of their own are threads")]

use crate::common::{Client, Reply, Setup, TestServer, info_number};

const VALUE_BYTES: usize = 32 << 10;
const KEYS: usize = 40;
/// What a touch may write.
const TOUCH_BYTES: u64 = 300;

fn value(n: usize) -> Vec<u8> {
    (0..VALUE_BYTES).map(|at| (at * 31 + n * 7) as u8).collect()
}

fn key(n: usize) -> String {
    format!("session:{n}")
}

fn setup() -> Setup {
    Setup { drives: 2, memory_bytes: 128 << 20, ..Setup::default() }
}

/// A server whose key tables name `KEYS` long strings that do not expire.
fn started() -> TestServer {
    let server = TestServer::with(setup());
    let mut client = server.client();
    for n in 0..KEYS {
        client.call(&[b"SET", key(n).as_bytes(), &value(n)]);
    }
    drop(client);
    server.restart(setup())
}

fn written(client: &mut Client) -> u64 {
    info_number(client, "pumice", "user_written_bytes")
}

fn is_whole(client: &mut Client, n: usize) {
    assert_eq!(client.call(&["GET", &key(n)]), Reply::Bulk(value(n)), "value {n}");
}

fn ttl(client: &mut Client, n: usize) -> i64 {
    match client.line(&format!("PTTL {}", key(n))) {
        Reply::Int(ttl) => ttl,
        other => panic!("PTTL answered {other}"),
    }
}

fn about(ttl: i64, seconds: i64) -> bool {
    (seconds - 60) * 1000 < ttl && ttl <= seconds * 1000
}

#[test]
fn a_touch_neither_reads_nor_writes_the_value() {
    let server = started();
    let mut client = server.client();
    let reads = |client: &mut Client| info_number(client, "pumice", "flash_read_bytes");
    let (before, before_reads) = (written(&mut client), reads(&mut client));
    for n in 0..KEYS {
        let touch = match n % 4 {
            0 => format!("EXPIRE {} 5000", key(n)),
            1 => format!("PEXPIRE {} 5000000", key(n)),
            2 => format!("EXPIRE {} 5000 NX", key(n)),
            _ => format!("EXPIREAT {} 33000000000", key(n)),
        };
        assert_eq!(client.line(&touch), Reply::Int(1));
    }
    assert_eq!(client.line(&format!("PERSIST {}", key(0))), Reply::Int(1));
    assert_eq!(client.line(&format!("PERSIST {}", key(0))), Reply::Int(0));
    let bytes = written(&mut client) - before;
    assert!(bytes < KEYS as u64 * TOUCH_BYTES, "{bytes} B written");
    let bytes = reads(&mut client) - before_reads;
    assert!(bytes < KEYS as u64 * VALUE_BYTES as u64 / 4, "{bytes} B read");
    let mut server = server;
    for _ in 0..2 {
        assert_eq!(ttl(&mut client, 0), -1);
        for n in 1..KEYS {
            let ttl = ttl(&mut client, n);
            assert!(n % 4 == 3 || about(ttl, 5000), "{n} expires in {ttl} ms");
            is_whole(&mut client, n);
        }
        drop(client);
        server = server.restart(setup());
        client = server.client();
    }
}

#[test]
fn what_is_read_and_touched_is_read_once() {
    let server = started();
    let mut client = server.client();
    for round in 1..4 {
        let before = written(&mut client);
        for n in 0..KEYS {
            let seconds = (round * 1000).to_string();
            let touched = match n % 3 {
                0 => client.call(&["GETEX", &key(n), "EX", &seconds]),
                1 => {
                    // A short string's way is another.
                    client.line(&format!("SET short:{n} x"));
                    assert_eq!(client.line(&format!("GETEX short:{n} EX {seconds}")).to_string(), "\"x\"");
                    client.call(&["GETEX", &key(n), "PXAT", "33000000000000"])
                }
                _ => client.call(&["GETEX", &key(n), "PERSIST"]),
            };
            assert_eq!(touched, Reply::Bulk(value(n)));
            let ttl = ttl(&mut client, n);
            assert!(
                match n % 3 {
                    0 => about(ttl, round * 1000),
                    1 => ttl > 1 << 40,
                    _ => ttl == -1,
                },
                "{n} expires in {ttl} ms"
            );
        }
        let bytes = written(&mut client) - before;
        assert!(bytes < 2 * KEYS as u64 * TOUCH_BYTES, "{bytes} B written");
    }
}

#[test]
fn transactions_touch_as_well() {
    let mut server = started();
    let mut client = server.client();
    let before = written(&mut client);
    client.line("MULTI");
    // On both drives.
    for n in 0..8 {
        client.call(&["GET", &key(n)]);
        client.line(&format!("EXPIRE {} 5000", key(n)));
        client.line(&format!("EXPIRE {} 7000 GT", key(n)));
        client.call(&["GET", &key(n)]);
    }
    let Reply::Array(replies) = client.line("EXEC") else { panic!("EXEC ran") };
    for (n, replies) in replies.chunks(4).enumerate() {
        let value = Reply::Bulk(value(n));
        assert_eq!(replies, [value.clone(), Reply::Int(1), Reply::Int(1), value]);
    }
    let bytes = written(&mut client) - before;
    assert!(bytes < 8 * TOUCH_BYTES, "{bytes} B written");
    // What the same transaction wrote is not what is stored.
    for line in ["MULTI", "SET session:20 new", "EXPIRE session:20 5000"] {
        client.line(line);
    }
    client.call(&["EXPIRE", &key(21), "5000"]);
    client.call(&["APPEND", &key(21), "!"]);
    client.call(&["EXPIRE", &key(22), "5000"]);
    client.call(&["DEL", &key(22)]);
    client.call(&["EXPIRE", &key(23), "5000"]);
    client.call(&["RENAME", &key(23), "session:renamed"]);
    client.call(&["EXPIRE", &key(24), "-1"]);
    client.line("EXEC");
    for _ in 0..2 {
        for n in 0..8 {
            let ttl = ttl(&mut client, n);
            assert!(about(ttl, 7000), "{n} expires in {ttl} ms");
            is_whole(&mut client, n);
        }
        assert_eq!(client.line("GET session:20").to_string(), "\"new\"");
        assert_eq!(client.line("STRLEN session:21"), Reply::Int(VALUE_BYTES as i64 + 1));
        assert!(about(ttl(&mut client, 20), 5000) && about(ttl(&mut client, 21), 5000));
        assert_eq!(client.line("EXISTS session:22 session:23 session:24"), Reply::Int(0));
        assert_eq!(client.call(&["GET", "session:renamed"]), Reply::Bulk(value(23)));
        drop(client);
        server = server.restart(setup());
        client = server.client();
    }
}

/// Several clients touch the same keys, overwrite and delete them.
#[test]
fn a_touch_never_brings_back_what_was_overwritten() {
    let server = started();
    let clients: Vec<_> = (0..4u64)
        .map(|number| {
            let mut client = server.client();
            std::thread::spawn(move || {
                let mut rng = pumice_base::rng::Rng::from_seed(number);
                for _ in 0..1500 {
                    let key = key(rng.below(6) as usize);
                    match rng.below(8) {
                        0 => drop(client.call(&[b"SET", key.as_bytes(), &value(number as usize)])),
                        1 => drop(client.line(&format!("DEL {key}"))),
                        2 => drop(client.line(&format!("GETEX {key} EX 5000"))),
                        3 => drop(client.line(&format!("PERSIST {key}"))),
                        _ => drop(client.line(&format!("EXPIRE {key} {}", 1000 + rng.below(1000)))),
                    }
                    // Whole, and somebody's.
                    if let Reply::Bulk(found) = client.call(&["GET", &key]) {
                        assert!((0..KEYS).any(|n| found == value(n)), "a value that nobody wrote");
                    }
                }
            })
        })
        .collect();
    clients.into_iter().for_each(|client| client.join().expect("no client fails"));
    let mut client = server.client();
    assert_eq!(client.line("DBSIZE"), {
        let Reply::Array(keys) = client.line("KEYS *") else { panic!("KEYS answers") };
        Reply::Int(keys.len() as i64)
    });
}
