//! What transactions hold in memory, queued commands and watched keys, is bounded, told, and let go of.

use std::sync::atomic::Ordering;

use crate::common::client::encode;
use crate::common::{self, Client, Reply, Setup, TestServer, eventually};
use pumice_redis::options::Options;

/// All commands may take a mebibyte, of which transactions get half.
fn small() -> TestServer {
    let options = Options { input_bytes_max: 1 << 20, port: 0, ..Options::default() };
    TestServer::with(Setup { options, ..Setup::default() })
}

fn held(server: &TestServer) -> u64 {
    server.server().stats.transaction_bytes.load(Ordering::Relaxed)
}

/// Queues SETs of 100,000 bytes until one is refused; how many were queued, and the refusal.
fn queue_until_refused(client: &mut Client) -> (usize, String) {
    let value = vec![b'v'; 100_000];
    for n in 0..100 {
        match client.call(&[b"SET", format!("k{n}").as_bytes(), &value]) {
            Reply::Simple(queued) => assert_eq!(queued, "QUEUED"),
            refusal => return (n, refusal.to_string()),
        }
    }
    panic!("ten megabytes were queued where half a mebibyte is the most");
}

/// `name=` of a client's line in CLIENT LIST.
fn told(client: &mut Client, id: &str, name: &str) -> u64 {
    let list = client.line(&format!("CLIENT LIST ID {id}")).to_string();
    let field = list.split(' ').find_map(|field| field.strip_prefix(&format!("{name}=")));
    field.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("no {name} in {list}"))
}

#[test]
fn a_transaction_beyond_the_memory_of_clients_is_refused_and_aborted_and_lets_go_of_all() {
    let server = small();
    let (mut client, mut other) = (server.client(), server.client());
    assert_eq!(client.line("MULTI").to_string(), "OK");
    let (queued, refusal) = queue_until_refused(&mut client);
    assert_eq!(queued, 5);
    assert!(refusal.starts_with("(error) OOM transactions of all clients hold"), "{refusal}");
    assert!(refusal.contains("524288 (--memory)"), "{refusal}");
    // It will not run, so it holds nothing more, whatever else is sent.
    assert_eq!(held(&server), 0);
    assert_eq!(client.line("SET small v").to_string(), "QUEUED");
    assert_eq!(held(&server), 0);
    assert!(client.line("EXEC").to_string().starts_with("(error) EXECABORT"));
    assert_eq!(client.line("DBSIZE"), Reply::Int(0));
    // What one holds another lacks.
    client.line("MULTI");
    for _ in 0..3 {
        assert_eq!(client.call(&[b"SET", &b"k"[..], &vec![b'v'; 100_000]]).to_string(), "QUEUED");
    }
    other.line("MULTI");
    let (queued, refusal) = queue_until_refused(&mut other);
    assert!(queued == 2 && refusal.starts_with("(error) OOM"), "{queued}, {refusal}");
    assert!(other.line("EXEC").to_string().starts_with("(error) EXECABORT"));
    // Commands outside of transactions still have the other half.
    assert_eq!(other.call(&[b"HSET", &b"hash"[..], b"f", &vec![b'v'; 600_000]]), Reply::Int(1));
    assert_eq!(client.line("EXEC").to_string(), "[OK, OK, OK]");
    assert_eq!(held(&server), 0);
}

#[test]
fn what_a_transaction_holds_is_told_and_let_go_of_however_it_ends() {
    let server = small();
    let (mut client, mut other) = (server.client(), server.client());
    let id = client.line("CLIENT ID").to_string();
    let set = encode(&[b"SET", &b"k"[..], &vec![b'v'; 100_000]]);
    let base = told(&mut other, &id, "tot-mem");
    for end in ["EXEC", "DISCARD", "RESET", "NOSUCHCOMMAND", "QUIT"] {
        client.line("WATCH a b");
        let watched = held(&server);
        assert!(watched > 0, "watched keys count");
        client.line("MULTI");
        client.send(&set);
        assert_eq!(client.read().to_string(), "QUEUED");
        let all = held(&server);
        assert!((watched + 100_000..watched + 101_000).contains(&all), "{all}");
        assert_eq!(told(&mut other, &id, "multi-mem"), all);
        assert!(told(&mut other, &id, "tot-mem") >= base + all);
        let clients = common::info_number(&mut other, "memory", "mem_clients_normal");
        assert!(clients >= all, "{clients}");
        client.line(end);
        let left = if end == "NOSUCHCOMMAND" { watched } else { 0 };
        eventually(&format!("{end} lets go of it"), || held(&server) == left);
        client = if end == "QUIT" { server.client() } else { client };
        client.line("DISCARD");
    }
    assert_eq!(held(&server), 0);
    // A connection that goes away in the midst.
    client.line("WATCH a");
    client.line("MULTI");
    client.send(&set);
    assert_eq!(client.read().to_string(), "QUEUED");
    drop(client);
    eventually("a transaction goes with its connection", || held(&server) == 0);
}

#[test]
fn watched_keys_are_bounded_like_commands_and_those_that_fit_are_watched_on() {
    let server = small();
    let (mut client, mut other) = (server.client(), server.client());
    let key = |n: usize| format!("{n}{}", "k".repeat(60_000));
    let keys: Vec<String> = std::iter::once("WATCH".into()).chain((0..8).map(key)).collect();
    let refusal = client.call(&keys).to_string();
    assert!(refusal.starts_with("(error) OOM transactions of all clients hold"), "{refusal}");
    let watched = held(&server);
    assert!((400_000..=512 << 10).contains(&watched), "{watched}");
    // Again and again the same takes nothing.
    for _ in 0..1000 {
        assert_eq!(client.call(&["WATCH".to_string(), key(0)]).to_string(), "OK");
    }
    assert_eq!(held(&server), watched);
    other.call(&["SET".to_string(), key(3), "v".to_string()]);
    client.line("MULTI");
    client.line("PING");
    assert_eq!(client.line("EXEC"), Reply::NullArray);
    assert_eq!(held(&server), 0);
    assert_eq!(client.call(&keys[..5]).to_string(), "OK");
    assert_eq!(client.line("UNWATCH").to_string(), "OK");
    assert_eq!(held(&server), 0);
}

#[test]
fn what_a_watched_key_costs_does_not_grow_with_those_watched_before_it() {
    const FEW: usize = 1000;
    let server = TestServer::start();
    let mut client = server.client();
    let mut compared = |keys: usize| {
        let counter = &server.server().stats.watched_compared;
        let before = counter.load(Ordering::Relaxed);
        let command: Vec<String> =
            std::iter::once("WATCH".into()).chain((0..keys).map(|n| format!("k{n}"))).collect();
        // Twice: those that are known are found as fast.
        for _ in 0..2 {
            assert_eq!(client.call(&command).to_string(), "OK");
        }
        assert_eq!(client.line("UNWATCH").to_string(), "OK");
        counter.load(Ordering::Relaxed) - before
    };
    let (few, many) = (compared(FEW), compared(4 * FEW));
    assert!(few >= FEW as u64, "the second WATCH finds each key: {few}");
    assert!(many <= 8 * few, "{few} comparisons for {FEW} keys, {many} for four times as many");
}

/// A server of which all replies may take 8 MiB, with collections of more.
fn with_more_than_replies_may_take() -> (TestServer, Client) {
    let options = Options { output_bytes_max: 8 << 20, port: 0, ..Options::default() };
    let server = TestServer::with(Setup { options, durability: "none", ..Setup::default() });
    let mut client = server.client();
    // What is longer is on flash before EXEC is done.
    let (long, member) = (vec![b'v'; 256 << 10], "m".repeat(60_000));
    for n in 0..256 {
        assert_eq!(client.call(&[b"RPUSH", &b"list"[..], &long]), Reply::Int(n + 1));
    }
    for n in 0..200 {
        let member = format!("{n:03}{member}");
        assert_eq!(client.call(&["SADD", "set", &member]), Reply::Int(1));
        assert_eq!(client.call(&["ZADD", "zset", "1", &member]), Reply::Int(1));
    }
    assert_eq!(client.call(&[b"SET", &b"string"[..], &long]).to_string(), "OK");
    (server, client)
}

/// Not one command of them alone: those behind it would run without it.
#[test]
fn an_exec_that_makes_more_than_memory_may_hold_is_refused_and_nothing_of_it_happens() {
    let (server, mut client) = with_more_than_replies_may_take();
    let exec = |client: &mut Client, lines: &[&str]| {
        client.line("MULTI");
        lines.iter().for_each(|line| assert_eq!(client.line(line).to_string(), "QUEUED", "{line}"));
        client.line("EXEC")
    };
    let gets = ["GET string"; 40];
    let too_much: [&[&str]; 9] = [
        // Replies: streamed, collected behind a hole for their count, and many.
        &["SET before 1", "LRANGE list 0 -1", "DEL list"],
        &["SET before 1", "SMEMBERS set", "DEL set"],
        &["SET before 1", "SUNION set", "DEL set"],
        &["SET before 1", "ZRANGEBYSCORE zset -inf +inf", "DEL zset"],
        &gets,
        // Writes.
        &["SET before 1", "COPY list other", "DEL list"],
        &["SET before 1", "SUNIONSTORE other set", "DEL set"],
        &["SET before 1", "ZUNIONSTORE other 1 zset", "DEL zset"],
        // What it selected and emptied before.
        &["SELECT 3", "SET before 1", "SELECT 0", "LRANGE list 0 -1", "FLUSHALL", "SELECT 3"],
    ];
    for lines in too_much {
        let reply = exec(&mut client, lines).to_string();
        assert!(reply.starts_with("(error) OOM EXEC "), "{lines:?}: {}", &reply[..reply.len().min(200)]);
        assert!(reply.contains("8388608 (--memory)"), "{reply}");
        // The connection goes on, where it was.
        assert_eq!(client.line("LLEN list"), Reply::Int(256), "{lines:?}");
        assert_eq!(client.line("SCARD set"), Reply::Int(200), "{lines:?}");
        assert_eq!(client.line("ZCARD zset"), Reply::Int(200), "{lines:?}");
        assert_eq!(client.line("EXISTS before other string"), Reply::Int(1), "{lines:?}");
    }
    // What fits runs.
    let Reply::Array(replies) = exec(&mut client, &["LRANGE list 0 3", "COPY string other", "GET string"])
    else {
        panic!("it runs")
    };
    assert!(matches!(&replies[0], Reply::Array(found) if found.len() == 4));
    assert_eq!(replies[1], Reply::Int(1));
    assert_eq!(client.line("STRLEN other"), Reply::Int(256 << 10));
    assert_eq!(server.server().stats.exec_bytes.load(Ordering::Relaxed), 0);
    assert_eq!(held(&server), 0);
}

/// What nobody hears is not kept, so that it is not too much.
#[test]
fn replies_that_a_client_does_not_want_take_no_memory() {
    let (_server, mut client) = with_more_than_replies_may_take();
    for exec in [true, false] {
        client.send(b"CLIENT REPLY OFF\r\n");
        client.send(if exec { b"MULTI\r\n" } else { b"PING\r\n" });
        for line in ["LRANGE list 0 -1", "SMEMBERS set", "LRANGE string 0 1", "HGETALL list"] {
            client.send(format!("{line}\r\n").as_bytes());
        }
        client.send(&encode(&["GET", "string"]).repeat(40));
        client.send(&encode(&["INCR", "done"]));
        client.send(if exec { b"EXEC\r\n" } else { b"PING\r\n" });
        assert_eq!(client.line("CLIENT REPLY ON").to_string(), "OK");
        assert_eq!(client.line("GET done").to_string(), if exec { "\"1\"" } else { "\"2\"" });
        client.send(b"CLIENT REPLY SKIP\r\nLRANGE list 0 -1\r\nLRANGE string 0 -1\r\n");
        assert!(client.read().to_string().contains("WRONGTYPE"));
        client.send(b"CLIENT REPLY SKIP\r\nLRANGE string 0 -1\r\nLLEN list\r\n");
        assert_eq!(client.read(), Reply::Int(256));
    }
}
