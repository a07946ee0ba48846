//! One connection beside others: which are idle, what a monitor may do, and where its lines go.

use std::sync::atomic::Ordering;

use crate::common::client::encode;
use crate::common::oracle::Oracle;
use crate::common::{Client, Reply, TestServer, eventually};

/// Goes on with `work`, which must be much, until the server has closed a client that does nothing.
fn until_an_idle_client_is_closed(server: &TestServer, mut work: impl FnMut()) {
    let mut idle = server.client();
    let Reply::Int(id) = idle.line("CLIENT ID") else { panic!("CLIENT ID answers a number") };
    eventually("the idle client is closed", || {
        work();
        !server.server().clients.all().iter().any(|client| client.id == id as u64)
    });
    assert_eq!(idle.read_to_end(), b"");
}

#[test]
fn who_sends_slowly_or_reads_slowly_or_waits_for_a_long_command_is_not_idle() {
    let server = TestServer::start();
    let mut sender = server.client();
    server.client().line("CONFIG SET timeout 1");
    // A value on its way to flash, and a command that waits in memory for its rest.
    let value = vec![b'v'; 16 << 20];
    let long = &value[..4 << 20];
    for (command, reply) in
        [(encode(&[b"SET", &b"large"[..], long]), "OK"), (encode(&[b"HSET", &b"hash"[..], b"f", long]), "1")]
    {
        let mut rest = &command[..];
        until_an_idle_client_is_closed(&server, || {
            let (now, later) = rest.split_at(rest.len().min(4096));
            assert!(!later.is_empty(), "it was to last longer than the idle client");
            sender.send(now);
            rest = later;
        });
        sender.send(rest);
        assert_eq!(sender.read().to_string(), reply);
    }
    // Replies that all wait already: no command is under way while they are read.
    assert_eq!(sender.call(&[&b"SET"[..], b"large", &value]).to_string(), "OK");
    let mut reader = server.client();
    reader.send(b"MULTI\r\nGET large\r\nGET large\r\nEXEC\r\n");
    let header = b"+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n$16777216\r\n".len();
    let mut left = header + 2 * (value.len() + 2) + "$16777216\r\n".len();
    until_an_idle_client_is_closed(&server, || {
        left -= reader.read_bytes(64 << 10);
        assert!(left > 1 << 20, "it was to last longer than the idle client");
    });
    while left > 0 {
        left -= reader.read_bytes(left.min(1 << 20));
    }
    let mut waiter = server.client();
    waiter.send(b"DEBUG SLEEP 4\r\n");
    until_an_idle_client_is_closed(&server, || {});
    assert_eq!(waiter.read().to_string(), "OK");
}

/// Redis takes a monitor for a replica, which has no business with keys; here a long reply would have lines in its midst.
#[test]
fn a_monitor_may_not_touch_the_keyspace_and_no_line_falls_into_a_reply() {
    let server = TestServer::start();
    let mut servers = vec![(server.client(), server.client())];
    let oracle = Oracle::start();
    servers.extend(oracle.as_ref().map(|oracle| (oracle.client(), oracle.client())));
    for (mut monitor, mut other) in servers {
        assert_eq!(other.line("RPUSH list a b").to_string(), "2");
        assert_eq!(monitor.line("MONITOR").to_string(), "OK");
        let refusal = "(error) ERR Replica can't interact with the keyspace";
        for line in
            ["LRANGE list 0 -1", "SET a 1", "GET a", "DBSIZE", "KEYS *", "FLUSHALL", "OBJECT ENCODING list"]
        {
            assert_eq!(monitor.line(line).to_string(), refusal, "{line}");
        }
        assert_eq!(
            monitor.line("GET").to_string(),
            "(error) ERR wrong number of arguments for 'get' command"
        );
        assert!(monitor.line("NOSUCH").to_string().starts_with("(error) ERR unknown command"));
        // What it may run it sees as well.
        for (line, reply) in
            [("PING", "PONG"), ("MULTI", "OK"), ("WATCH a", "(error) ERR WATCH inside MULTI is not allowed")]
        {
            monitor.send(format!("{line}\r\n").as_bytes());
            let (first, second) = (monitor.read().to_string(), monitor.read().to_string());
            let told = if first == reply { second } else { first };
            assert!(
                told.ends_with(&line.split(' ').map(|word| format!(" \"{word}\"")).collect::<String>()),
                "{told}"
            );
        }
        assert_eq!(monitor.line("LRANGE list 0 -1").to_string(), refusal);
        monitor.send(b"RESET\r\n");
        assert_eq!(monitor.read().to_string(), "RESET");
        assert_eq!(monitor.line("LRANGE list 0 -1").to_string(), "[\"a\", \"b\"]");
    }
}

/// Asks as often for the same command; its answer takes so many bytes.
fn command_infos(names: usize) -> Vec<u8> {
    let command: Vec<&str> = ["COMMAND", "INFO"].into_iter().chain((0..names).map(|_| "config")).collect();
    encode(&command)
}

/// Reads a reply, or a line of MONITOR: how many elements it has, or what it says.
fn reply_or_line(monitor: &mut Client) -> Result<usize, String> {
    match monitor.read() {
        Reply::Array(found) => {
            assert!(found.iter().all(|info| *info == found[0]), "each is the same, and whole");
            Ok(found.len())
        }
        Reply::Simple(line) => Err(line),
        other => panic!("{other}"),
    }
}

/// A reply of which parts have left has no lines of MONITOR in its midst, and they come when it is whole.
#[test]
fn lines_for_a_monitor_wait_for_the_end_of_its_reply() {
    let server = TestServer::start();
    let (mut monitor, mut other) = (server.client(), server.client());
    assert_eq!(monitor.line("MONITOR").to_string(), "OK");
    monitor.send(&command_infos(20_000));
    let waits = || server.server().stats.output_waiting_bytes.load(Ordering::Relaxed) > 1 << 20;
    eventually("the reply waits for its reader", waits);
    for n in 0..100 {
        other.line(&format!("ECHO {n}"));
    }
    let (mut infos, mut lines) = (0, 0);
    while infos == 0 || lines < 100 {
        match reply_or_line(&mut monitor) {
            Ok(found) => infos += found,
            Err(line) => lines += usize::from(line.contains("\"ECHO\"")),
        }
    }
    assert_eq!(infos, 20_000);
    // One of these ends where a part of it does.
    for names in 330..400 {
        monitor.send(&command_infos(names));
        while reply_or_line(&mut monitor) != Ok(names) {}
        other.line(&format!("ECHO {names}"));
        let last = format!("\"ECHO\" \"{names}\"");
        while !reply_or_line(&mut monitor).is_err_and(|line| line.ends_with(&last)) {}
    }
}

/// Ten thousand clients that do nothing take 40 MB, not the 200 that they took when each had room for whatever some of them do.
#[test]
fn an_idle_connection_takes_four_kib() {
    fn bytes<A, B, C, D, F>(_: impl Fn(A, B, C, D) -> F) -> usize {
        size_of::<F>()
    }
    let bytes = bytes(pumice_redis::connection::serve);
    // What makes a task of it adds two words.
    assert!(bytes <= (4 << 10) - 16, "{bytes} bytes: which of what it waits for could be boxed?");
}
