//! One connection beside others: which are idle.

use crate::common::client::encode;
use crate::common::{Reply, TestServer, eventually};

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
