//! A drive that is full takes what makes space, also where that notes something beside.

use crate::common::{Client, Setup, TestServer, eventually};

fn is_full(reply: &str) -> bool {
    reply.starts_with("(error) OOM")
}

/// Sets keys until the drive is full, and does not take one more for a while.
fn fill(client: &mut Client) {
    let value = vec![b'v'; 4096];
    let mut refused = 0;
    for n in 0..100_000 {
        let reply = client.call(&[b"SET", format!("k{n}").as_bytes(), &value]).to_string();
        refused = if is_full(&reply) { refused + 1 } else { 0 };
        if refused == 50 {
            return;
        }
    }
    panic!("400 MB were taken by 64 MiB");
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
