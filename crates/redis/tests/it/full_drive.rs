//! A drive that is full takes what makes space, also where that notes something beside; and what it refuses is not done on
//! another drive either.

use crate::common::{Client, Setup, TestServer, eventually};

fn is_full(reply: &str) -> bool {
    reply.starts_with("(error) OOM")
}

/// Sets keys until the drive is full, and does not take one more for a while.
fn fill(client: &mut Client) {
    fill_with(client, |_| true);
}

/// [`fill`], and then with as many short ones as fit: nothing that takes any room is taken.
pub fn fill_up(client: &mut Client) {
    fill(client);
    let mut refused = 0;
    for n in 0..1_000_000 {
        let reply = client.line(&format!("SET short{n} {}", "v".repeat(60))).to_string();
        refused = if is_full(&reply) { refused + 1 } else { 0 };
        if refused == 100 {
            return;
        }
    }
    panic!("more was taken than there is room for");
}

/// [`fill`] with some of the keys.
fn fill_with(client: &mut Client, is_one: impl Fn(&str) -> bool) {
    let value = vec![b'v'; 4096];
    let mut refused = 0;
    for key in (0..200_000).map(|n| format!("k{n}")).filter(|key| is_one(key)) {
        let reply = client.call(&[b"SET", key.as_bytes(), &value]).to_string();
        refused = if is_full(&reply) { refused + 1 } else { 0 };
        if refused == 50 {
            return;
        }
    }
    panic!("800 MB were taken by 512 MiB");
}

#[test]
fn elements_are_removed_and_databases_emptied_on_a_full_drive() {
    let setup = Setup { drive_bytes: 64 << 20, durability: "none", ..Setup::default() };
    let server = TestServer::with(setup);
    let mut client = server.client();
    let add = ["ZADD z {n} m{n}", "SADD s m{n}", "HSET h f{n} v", "RPUSH l m{n}"];
    for n in 0..300 {
        for line in add {
            client.line(&line.replace("{n}", &n.to_string()));
        }
    }
    fill(&mut client);
    for n in 0..200 {
        for line in ["ZREM z m{n}", "SREM s m{n}", "HDEL h f{n}", "LPOP l", "ZPOPMIN z"] {
            let line = line.replace("{n}", &n.to_string());
            let reply = client.line(&line).to_string();
            assert!(!reply.starts_with("(error)"), "{line}: {reply}");
        }
    }
    assert_eq!(client.line("FLUSHDB").to_string(), "OK");
    assert_eq!(client.line("FLUSHALL").to_string(), "OK");
    assert_eq!(client.line("DBSIZE").to_string(), "0");
    eventually("there is room again", || client.line("SET after flush").to_string() == "OK");
}

/// As in Redis when its memory is full.
#[test]
fn what_makes_nothing_larger_is_taken_on_a_full_drive() {
    let server = TestServer::with(Setup { drive_bytes: 256 << 20, durability: "none", ..Setup::default() });
    let mut client = server.client();
    for line in [
        "SET short v",
        &format!("SET long {} EX 5000", "v".repeat(3000)),
        "RPUSH l a b c d e",
        "SADD from m n",
        "SADD to o",
        "HSET h f v",
        "SET gone v",
    ] {
        client.line(line);
    }
    fill_up(&mut client);
    let value = format!("\"{}\"", "v".repeat(3000));
    for (line, expected) in [
        ("EXPIRE short 100", "1"),
        ("EXPIRE long 100", "1"),
        ("GETEX long EX 200", &value),
        ("PERSIST long", "1"),
        ("PEXPIREAT h 99999999999999", "1"),
        ("RENAME short other", "OK"),
        ("SMOVE from to m", "1"),
        ("LREM l 1 b", "1"),
        ("LTRIM l 1 -1", "OK"),
        ("GETDEL gone", "\"v\""),
        ("LRANGE l 0 -1", "[\"c\", \"d\", \"e\"]"),
        ("MULTI", "OK"),
        ("EXPIRE other 50", "QUEUED"),
        ("PERSIST h", "QUEUED"),
        ("EXEC", "[1, 1]"),
    ] {
        assert_eq!(client.line(line).to_string(), expected, "{line}");
    }
    // All keys are touched, more than once: what it takes comes back.
    for round in 0..3 {
        for n in 0..1000 {
            let line = format!("EXPIRE k{n} {}", 1000 + round);
            assert_eq!(client.line(&line).to_string(), "1", "{line}");
        }
    }
    // Users may find a little room by now, but none for this.
    let long = "v".repeat(100_000);
    assert!(is_full(&client.call(&[&b"SET"[..], b"k0", long.as_bytes()]).to_string()));
    client.line("MULTI");
    client.line("EXPIRE k1 5");
    client.call(&[&b"SET"[..], b"k0", long.as_bytes()]);
    assert_refused(&mut client, "EXEC");
    let ttl: u64 = client.line("TTL k1").to_string().parse().expect("a number");
    assert!(ttl > 900, "{ttl}: nothing of the transaction was done");
}

#[test]
fn large_values_that_were_sent_in_vain_take_no_space() {
    let setup = Setup { drive_bytes: 64 << 20, durability: "none", ..Setup::default() };
    let server = TestServer::with(setup);
    let mut client = server.client();
    client.line("SET lock mine");
    client.line("RPUSH list element");
    let value = vec![b'v'; 1 << 20];
    for _ in 0..45 {
        assert_eq!(client.call(&[&b"SETNX"[..], b"lock", &value]).to_string(), "0");
        assert_eq!(client.call(&[&b"SET"[..], b"none", &value, b"XX"]).to_string(), "nil");
        assert!(client.call(&[&b"APPEND"[..], b"list", &value]).to_string().contains("WRONGTYPE"));
    }
    assert_eq!(client.line("SET lock others").to_string(), "OK");
    assert_eq!(client.call(&[&b"SET"[..], b"none", &value]).to_string(), "OK");
}

const TWO_DRIVES: fn() -> Setup = || Setup {
    drives: 2,
    drive_bytes: 64 << 20,
    memory_bytes: 128 << 20,
    durability: "none",
    ..Setup::default()
};

/// A key on a drive whose name begins so.
fn key_on(server: &TestServer, drive: u16, name: &str) -> String {
    let mut keys = (0..).map(|n| format!("{name}{n}"));
    keys.find(|key| server.server().node.place(key.as_bytes()).drive == drive)
        .expect("half of them are there")
}

/// Fills the second drive.
fn fill_second(server: &TestServer, client: &mut Client) {
    fill_with(client, |key| server.server().node.place(key.as_bytes()).drive == 1);
}

#[track_caller]
fn assert_refused(client: &mut Client, line: &str) {
    let reply = client.line(line).to_string();
    assert!(is_full(&reply), "{line}: {reply}");
}

#[test]
fn what_would_move_to_a_full_drive_stays_where_it_is() {
    let server = TestServer::with(TWO_DRIVES());
    let mut client = server.client();
    // As long as the values that the drive was filled with: none of them fits any more.
    let long = "m".repeat(4096);
    let [list, set, hash, string] = ["list", "set", "hash", "string"].map(|name| key_on(&server, 0, name));
    let to = key_on(&server, 1, "to");
    for line in [
        format!("RPUSH {list} {long} {long} {long}"),
        format!("SADD {set} {long}"),
        format!("HSET {hash} f {long}"),
        format!("SET {string} {long}"),
    ] {
        client.line(&line);
    }
    fill_second(&server, &mut client);
    let mut watcher = server.client();
    watcher.line(&format!("WATCH {list}"));
    let moves = [
        format!("RPOPLPUSH {list} {to}"),
        format!("LMOVE {list} {to} LEFT RIGHT"),
        format!("SMOVE {set} {to} {long}"),
        format!("RENAME {hash} {to}"),
        format!("RENAME {string} {to}"),
    ];
    for line in &moves {
        // What this connection changed before, and on which drives in which order, is of no account.
        assert_eq!(client.line(&format!("SET {} v", key_on(&server, 0, "other"))).to_string(), "OK");
        assert_refused(&mut client, line);
        client.line("MULTI");
        client.line(line);
        assert_refused(&mut client, "EXEC");
    }
    watcher.line("MULTI");
    watcher.line(&format!("LLEN {list}"));
    assert_eq!(watcher.line("EXEC").to_string(), "[3]", "nothing was changed, and nobody is told so");
    let stays =
        [format!("LLEN {list}"), format!("SCARD {set}"), format!("HLEN {hash}"), format!("EXISTS {string}")];
    assert_eq!(stays.map(|line| client.line(&line).to_string()), ["3", "1", "1", "1"]);
    assert_eq!(client.line(&format!("EXISTS {to}")).to_string(), "0");
}

#[test]
fn a_transaction_touches_keys_of_several_full_drives() {
    let server = TestServer::with(Setup { drive_bytes: 256 << 20, ..TWO_DRIVES() });
    let mut client = server.client();
    let [one, other] = [0, 1].map(|drive| key_on(&server, drive, "key"));
    client.line(&format!("MSET {one} v {other} v"));
    fill_up(&mut client);
    for line in ["MULTI", &format!("EXPIRE {one} 100"), &format!("EXPIRE {other} 100")] {
        client.line(line);
    }
    assert_eq!(client.line("EXEC").to_string(), "[1, 1]");
}

#[test]
fn a_transaction_that_a_full_drive_refuses_empties_nothing() {
    let server = TestServer::with(TWO_DRIVES());
    let mut client = server.client();
    let [before, after] = ["before", "after"].map(|name| key_on(&server, 0, name));
    client.line(&format!("SET {before} v"));
    fill_second(&server, &mut client);
    let keys = client.line("DBSIZE");
    client.line("MULTI");
    client.line("FLUSHDB");
    client.line(&format!("SET {} {}", key_on(&server, 1, "new"), "v".repeat(4096)));
    assert_refused(&mut client, "EXEC");
    assert_eq!(client.line(&format!("SET {after} v")).to_string(), "OK");
    drop(client);
    let server = server.restart(TWO_DRIVES());
    let mut client = server.client();
    for key in [before, after] {
        assert_eq!(client.line(&format!("GET {key}")).to_string(), "\"v\"", "{key}");
    }
    let now = client.line("DBSIZE").to_string().parse::<i64>().expect("a number");
    assert_eq!(Ok(now - 1), keys.to_string().parse::<i64>());
}
