//! Expired keys go without being touched: from the count, from the drive, and after a restart too.

use std::path::Path;

use crate::common::client::encode;
use crate::common::oracle::Oracle;
use crate::common::{Client, PATIENCE, Reply, Setup, TestServer, eventually, info_number, split};
use crate::simulated::Stage;
use pumice_redis::keyspace::latch_hash;
use pumice_redis::options::Options;

const VALUE_BYTES: usize = 32 << 10;

/// Keys of every type that expire in `ttl_ms`, among others that stay; answers how many of each.
fn fill(client: &mut Client, ttl_ms: u64) -> (i64, i64) {
    let value = vec![b'v'; VALUE_BYTES];
    for n in 0..300 {
        let ttl = ttl_ms.to_string();
        client.call(&[b"SET", format!("goes:{n}").as_bytes(), &value, b"PX", ttl.as_bytes()]);
        client.call(&["SET", &format!("stays:{n}"), "v"]);
    }
    client.call(&[b"SET", &b"goes:pieces"[..], &vec![b'p'; 3 << 20]]);
    let mut pipeline = Vec::new();
    for n in 0..400 {
        let (field, score) = (format!("f{n}"), n.to_string());
        for (name, key, words) in [
            ("HSET", "goes:hash", vec![&field[..], "value"]),
            ("SADD", "goes:set", vec![&field]),
            ("ZADD", "goes:zset", vec![&score, &field]),
            ("RPUSH", "goes:list", vec![&field]),
        ] {
            let mut command = vec![name, key];
            command.extend(words);
            pipeline.extend(encode(&command));
        }
    }
    client.send(&pipeline);
    for _ in 0..4 * 400 {
        client.read();
    }
    for key in ["goes:pieces", "goes:hash", "goes:set", "goes:zset", "goes:list"] {
        assert_eq!(client.line(&format!("PEXPIRE {key} {ttl_ms}")), Reply::Int(1));
    }
    (305, 300)
}

/// Does what must be done while a key lives: with a longer life, where the machine was too slow for this one.
fn in_time(mut ttl_ms: u64, mut is_done: impl FnMut(u64) -> bool) {
    while !is_done(ttl_ms) {
        ttl_ms *= 2;
        assert!(u128::from(ttl_ms) < PATIENCE.as_millis(), "two commands take longer than {ttl_ms} ms");
    }
}

fn live_bytes(client: &mut Client) -> u64 {
    info_number(client, "pumice", "space_live_bytes")
}

#[test]
fn expired_keys_leave_the_count_and_the_drive_without_being_touched() {
    let server = TestServer::start();
    let mut client = server.client();
    client.line("DEBUG SET-ACTIVE-EXPIRE 0");
    let (going, staying) = fill(&mut client, 1);
    // Counted while they lie there, though nobody can see them any more.
    eventually("their time is over", || client.line("KEYS goes:*") == Reply::Array(vec![]));
    assert_eq!(client.line("DBSIZE"), Reply::Int(going + staying));
    let before = live_bytes(&mut client);
    assert!(before > 300 * VALUE_BYTES as u64, "{before}");
    client.line("DEBUG SET-ACTIVE-EXPIRE 1");
    eventually("DBSIZE forgets expired keys", || client.line("DBSIZE") == Reply::Int(staying));
    assert_eq!(info_number(&mut client, "stats", "expired_keys"), going as u64);
    eventually("the drive's live bytes fall", || live_bytes(&mut client) < before / 10);
    assert_eq!(client.line("GET stays:7").to_string(), "\"v\"");
}

#[test]
fn keys_that_expire_while_the_server_is_down_go_after_its_start() {
    let setup = Setup { drives: 2, memory_bytes: 128 << 20, ..Setup::default() };
    let server = TestServer::with(setup.clone());
    let mut client = server.client();
    client.line("DEBUG SET-ACTIVE-EXPIRE 0");
    let (_, staying) = fill(&mut client, 1);
    let before = live_bytes(&mut client);
    drop(client);
    let server = server.restart(setup);
    let mut client = server.client();
    eventually("DBSIZE forgets expired keys", || client.line("DBSIZE") == Reply::Int(staying));
    eventually("the drive's live bytes fall", || live_bytes(&mut client) < before / 10);
    assert_eq!(client.line("EXISTS goes:0 goes:hash stays:0"), Reply::Int(1));
}

/// Damages what a drive that nobody serves holds of values of such bytes: each piece of so many of them, at a multiple of that.
fn damage(drive: &Path, byte: u8, piece: usize) {
    let mut held = std::fs::read(drive).expect("read");
    let places = (0..held.len()).step_by(piece);
    let hit: Vec<usize> =
        places.filter(|&at| held[at..].iter().take(piece).all(|found| *found == byte)).collect();
    assert!(!hit.is_empty(), "the value is there");
    hit.into_iter().for_each(|at| held[at] ^= 1);
    std::fs::write(drive, held).expect("written");
}

#[test]
fn an_expired_string_that_does_not_read_is_removed() {
    let setup = Setup { drive_bytes: 64 << 20, ..Setup::default() };
    let server = TestServer::with(setup.clone());
    let mut client = server.client();
    client.line("DEBUG SET-ACTIVE-EXPIRE 0");
    client.call(&[b"SET", &b"goes"[..], &[0xA7; 20_000], b"PX", b"1"]);
    client.call(&[b"SET", &b"stays"[..], &[0xA7; 20_000]]);
    drop(client);
    let dir = server.into_dir();
    damage(&dir.path().join("drive0"), 0xA7, 1024);
    let server = TestServer::in_dir(setup, dir);
    let mut client = server.client();
    assert!(matches!(client.line("GET stays"), Reply::Error(_)), "it does not read");
    eventually("the other one is removed", || client.line("DBSIZE") == Reply::Int(1));
}

#[test]
fn an_expired_hash_whose_elements_do_not_read_does_not_keep_other_keys() {
    let setup = Setup { drive_bytes: 64 << 20, ..Setup::default() };
    let server = TestServer::with(setup.clone());
    let mut client = server.client();
    client.line("DEBUG SET-ACTIVE-EXPIRE 0");
    // Found first, as all of them lie in one slice; its element lies behind all heads.
    client.call(&[b"HSET", &b"{t}a"[..], b"f", &[0xA7; 120]]);
    client.line("PEXPIRE {t}a 1");
    for n in 0..1500 {
        client.line(&format!("SET {{t}}k{n:04} v PX 1"));
    }
    drop(client);
    let dir = server.into_dir();
    damage(&dir.path().join("drive0"), 0xA7, 32);
    let server = TestServer::in_dir(setup, dir);
    let mut client = server.client();
    let mut keys = || match client.line("DBSIZE") {
        Reply::Int(keys) => keys,
        reply => panic!("{reply}"),
    };
    // Some may lie in the block that does not read.
    eventually("the others are removed", || keys() < 600);
    assert!(keys() > 0, "the hash is there");
}

#[test]
fn a_key_written_anew_or_persisted_is_not_taken_by_its_former_expiry() {
    let server = TestServer::start();
    let mut client = server.client();
    for n in 0..100 {
        let change = match n % 4 {
            0 => format!("SET k{n} new XX"),
            1 => format!("PERSIST k{n}"),
            2 => format!("PEXPIRE k{n} 1000000"),
            _ => format!("SET k{n} new XX KEEPTTL"),
        };
        in_time(40, |ttl_ms| {
            client.line(&format!("SET k{n} old PX {ttl_ms}"));
            !matches!(client.line(&change), Reply::Null | Reply::Int(0))
        });
    }
    eventually("a quarter expires", || client.line("DBSIZE") == Reply::Int(75));
    // A new key under the name of one that expired, while the old one's removal may still be under way.
    for n in (3..100).step_by(4) {
        client.line(&format!("SET k{n} again"));
    }
    client.line("SET last 1 PX 20");
    eventually("the last one expires", || client.line("DBSIZE") == Reply::Int(100));
    for n in 0..100 {
        let expected = ["\"new\"", "\"old\"", "\"old\"", "\"again\""][n % 4];
        assert_eq!(client.line(&format!("GET k{n}")).to_string(), expected, "k{n}");
    }
}

#[test]
fn many_keys_that_expire_at_once_go_in_time_that_grows_with_their_number_alone() {
    const KEYS: usize = 60_000;
    // A budget so small that they are in key tables on flash by then.
    let server = TestServer::start();
    let mut client = server.client();
    client.line("DEBUG SET-ACTIVE-EXPIRE 0");
    for chunk in 0..KEYS / 1000 {
        let mut pipeline = Vec::new();
        for n in 0..1000 {
            let key = format!("session:{}:{}", chunk * 1000 + n, "x".repeat(80));
            pipeline.extend(encode(&["SET", &key, "v", "PX", "1"]));
        }
        client.send(&pipeline);
        (0..1000).for_each(|_| drop(client.read()));
    }
    client.line("SET stays v");
    assert_eq!(client.line("DBSIZE"), Reply::Int(KEYS as i64 + 1));
    client.line("DEBUG SET-ACTIVE-EXPIRE 1");
    eventually("all of them go", || client.line("DBSIZE") == Reply::Int(1));
}

#[test]
fn the_removal_of_an_expired_key_is_no_change_to_who_watches_it_and_its_expiry_is() {
    let server = TestServer::start();
    let (mut client, mut other) = (server.client(), server.client());
    other.line("DEBUG SET-ACTIVE-EXPIRE 0");
    client.line("SET k v PX 1");
    eventually("its time is over", || client.line("GET k") == Reply::Null);
    client.line("WATCH k");
    other.line("DEBUG SET-ACTIVE-EXPIRE 1");
    eventually("it is removed", || other.line("DBSIZE") == Reply::Int(0));
    client.line("MULTI");
    client.line("PING");
    assert_eq!(client.line("EXEC").to_string(), "[PONG]");
    // Commands find it expired, and remove it.
    other.line("DEBUG SET-ACTIVE-EXPIRE 0");
    for command in [
        "DEL k",
        "UNLINK k none",
        "SINTERSTORE k none none",
        "ZUNIONSTORE k 1 none",
        "ZADD k XX 1 m",
        "FLUSHDB",
        "FLUSHALL",
        "DEL none",
        "MULTI|DEL k|EXEC",
        "RENAME k x",
    ] {
        for kind in ["SET k v", "SADD k m"] {
            other.line("DEL k");
            other.line(kind);
            other.line("PEXPIRE k 1");
            eventually("its time is over", || other.line("EXISTS k") == Reply::Int(0));
            client.line("WATCH k");
            command.split('|').for_each(|line| drop(other.line(line)));
            client.line("MULTI");
            client.line("PING");
            assert_eq!(client.line("EXEC").to_string(), "[PONG]", "{command} after {kind}");
        }
    }
    // What is put in its place is one.
    for command in ["SET k w", "HSET k f v", "SUNIONSTORE k other", "COPY other k", "RENAME other k"] {
        other.line("DEL k");
        other.line("SADD other m");
        other.line("SET k v PX 1");
        eventually("its time is over", || other.line("EXISTS k") == Reply::Int(0));
        client.line("WATCH k");
        other.line(command);
        client.line("MULTI");
        client.line("PING");
        assert_eq!(client.line("EXEC").to_string(), "nil[]", "{command}");
    }
    other.line("FLUSHALL");
    other.line("DEBUG SET-ACTIVE-EXPIRE 1");
    // There at WATCH, gone at EXEC.
    in_time(300, |ttl_ms| {
        client.line(&format!("SET k v PX {ttl_ms}"));
        client.line("WATCH k");
        let is_there = client.line("EXISTS k") == Reply::Int(1);
        if !is_there {
            client.line("UNWATCH");
        }
        is_there
    });
    eventually("it is removed", || other.line("DBSIZE") == Reply::Int(0));
    client.line("MULTI");
    client.line("PING");
    assert_eq!(client.line("EXEC").to_string(), "nil[]");
}

/// Has a client send `command` while the latch of `key` is held, calls `meanwhile`, and answers the reply that came when the
/// latch was free again.
fn after_a_wait(server: &TestServer, key: &str, command: &str, meanwhile: impl FnOnce()) -> Reply {
    let latches = server.server().node.latches();
    let held = latches.try_latch(&[latch_hash(0, key.as_bytes())]).expect("nobody else writes");
    let waits = latches.waits();
    let mut client = server.client();
    client.send(&encode(&split(command)));
    eventually("the command waits for the latch", || latches.waits() > waits);
    meanwhile();
    drop(held);
    client.read()
}

#[test]
fn a_command_that_waited_for_others_finds_expired_what_they_were_told_is_gone() {
    let server = TestServer::start();
    let mut other = server.client();
    // A key that expired must stay for the command to find.
    other.line("DEBUG SET-ACTIVE-EXPIRE 0");
    for (fill, command, answer) in [
        ("SET k v PX", "PERSIST k", "0"),
        ("SET k v PX", "GETEX k PERSIST", "nil"),
        ("SET k v PX", "PEXPIRE k 100000", "0"),
        ("SET k v PX", "SET k w XX KEEPTTL", "nil"),
        ("SET k 5 PX", "INCR k", "1"),
        ("SET k v PX", "RENAME k l", "(error) ERR no such key"),
        ("SET k v PX", "COPY k l DB 1", "0"),
    ] {
        in_time(100, |ttl_ms| {
            other.line(&format!("{fill} {ttl_ms}"));
            let mut was_there = false;
            let reply = after_a_wait(&server, "k", command, || {
                was_there = other.line("EXISTS k") == Reply::Int(1);
                eventually("its time is over", || other.line("EXISTS k") == Reply::Int(0));
            });
            assert!(!was_there || reply.to_string() == answer, "{command}: {reply}");
            other.line("DEL k l");
            was_there
        });
    }
}

#[test]
fn a_time_to_live_counts_from_when_the_command_is_carried_out() {
    let server = TestServer::start();
    let mut other = server.client();
    let mut now_ms = || match other.line("TIME") {
        Reply::Array(parts) => {
            let number =
                |at: usize| parts[at].to_string().trim_matches('"').parse::<i64>().expect("a number");
            number(0) * 1000 + number(1) / 1000
        }
        reply => panic!("{reply}"),
    };
    for command in [
        "SET k v PX 100000",
        "SET k v EX 100 GET",
        "SETEX k 100 v",
        "PSETEX k 100000 v",
        "GETEX k PX 100000",
        "EXPIRE k 100",
        "PEXPIRE k 100000",
    ] {
        server.client().line("SET k v");
        let mut freed_ms = 0;
        after_a_wait(&server, "k", command, || {
            let since_ms = now_ms();
            eventually("some time goes by", || now_ms() >= since_ms + 20);
            freed_ms = now_ms();
        });
        let Reply::Int(at_ms) = server.client().line("PEXPIRETIME k") else { panic!("a number") };
        assert!(at_ms >= freed_ms + 100_000, "{command} counts {} ms too few", freed_ms + 100_000 - at_ms);
    }
}

/// Unix milliseconds, as TIME tells them.
fn time_ms(reply: &Reply) -> u64 {
    let Reply::Array(parts) = reply else { panic!("{reply}") };
    let number = |at: usize| parts[at].to_string().trim_matches('"').parse::<u64>().expect("a number");
    number(0) * 1000 + number(1) / 1000
}

/// What commands answer in the millisecond before a key's expiry, in that of its expiry, and in the next one.
const AT_THE_EDGE: &[(&str, [&str; 3])] = &[
    ("GET @", ["\"v\"", "\"v\"", "nil"]),
    ("MGET @", ["[\"v\"]", "[\"v\"]", "[nil]"]),
    ("EXISTS @", ["1", "1", "0"]),
    ("TYPE @", ["string", "string", "none"]),
    ("PTTL @", ["1", "0", "-2"]),
    ("TTL @", ["0", "0", "-2"]),
    ("KEYS @", ["[\"@\"]", "[\"@\"]", "[]"]),
    ("SCAN 0 MATCH @ COUNT 1000", ["[\"0\", [\"@\"]]", "[\"0\", [\"@\"]]", "[\"0\", []]"]),
    ("SET @ w XX GET", ["\"v\"", "\"v\"", "nil"]),
    ("APPEND @ x", ["2", "2", "1"]),
    ("PERSIST @", ["1", "1", "0"]),
    ("DEL @", ["1", "1", "0"]),
    ("MULTI|GET @|EXISTS @|EXEC", ["[\"v\", 1]", "[\"v\", 1]", "[nil, 0]"]),
];

/// Asks at all three times, in a life of its own each. The server's own clock says which time it was: two TIMEs around the command
/// in the same millisecond.
fn ask_at_the_edge(client: &mut Client, who: &str) {
    for (command, answers) in AT_THE_EDGE {
        for (at, answer) in (0..).zip(answers) {
            eventually("the time is met", || {
                // SCAN and KEYS find no others.
                client.line("FLUSHALL");
                let when = time_ms(&client.line("TIME")) + 4;
                let key = format!("edge:{when}");
                client.line(&format!("SET {key} v PXAT {when}"));
                let asked: Vec<String> = command.split('|').map(|line| line.replace('@', &key)).collect();
                let lines = std::iter::once("TIME").chain(asked.iter().map(String::as_str)).chain(["TIME"]);
                let request: Vec<u8> = lines.flat_map(|line| encode(&split(line))).collect();
                while time_ms(&client.line("TIME")) < when - 1 + at {}
                client.send(&request);
                let before = time_ms(&client.read());
                let replies: Vec<String> = asked.iter().map(|_| client.read().to_string()).collect();
                let is_met = [before, time_ms(&client.read())] == [when - 1 + at; 2];
                if is_met {
                    let reply = replies.last().expect("a command");
                    let expected = answer.replace('@', &key);
                    assert_eq!(*reply, expected, "{who}: {command}, {at} - 1 ms after its expiry");
                }
                is_met
            });
        }
    }
}

#[test]
fn a_key_lives_through_the_millisecond_of_its_expiry_as_redis_has_it() {
    let server = TestServer::start();
    ask_at_the_edge(&mut server.client(), "ours");
    let Some(oracle) = Oracle::start() else { return };
    ask_at_the_edge(&mut oracle.client(), "redis");
}

#[test]
fn what_was_asked_to_go_does_not_come_back_when_the_clock_is_set_back() {
    const HOUR_MS: i64 = 3_600_000;
    let stage = Stage::start(Options::default());
    stage.play(async |clients| {
        let mut client = clients.connect().await;
        for name in ["got", "deleted", "unlinked", "looked-at"] {
            assert_eq!(client.line(&format!("SET {name} v PX {HOUR_MS}")).await, "+OK");
        }
        assert_eq!(client.line("HSET hash field v").await, ":1");
        assert_eq!(client.line(&format!("PEXPIRE hash {HOUR_MS}")).await, ":1");
    });
    stage.world.jump_wall(stage.server, 2 * HOUR_MS);
    stage.play(async |clients| {
        let mut client = clients.connect().await;
        assert_eq!(client.line("GETDEL got").await, "$-1");
        assert_eq!(client.line("GETDEL hash").await, "$-1");
        assert_eq!(client.line("DEL deleted").await, ":0");
        assert_eq!(client.line("UNLINK unlinked").await, ":0");
        assert_eq!(client.line("EXISTS looked-at").await, ":0");
    });
    stage.world.jump_wall(stage.server, -2 * HOUR_MS);
    stage.play(async |clients| {
        let mut client = clients.connect().await;
        assert_eq!(client.line("EXISTS got hash deleted unlinked").await, ":0");
        // Nobody asked for this one to go, and nothing has cleared it away meanwhile: it was there to be seen again.
        assert_eq!(client.line("EXISTS looked-at").await, ":1");
        assert_eq!(client.line("DBSIZE").await, ":1");
    });
}
