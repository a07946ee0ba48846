//! Clients that mean harm, or are broken: they are answered or closed, memory stays bounded, others unharmed.

mod common;

use common::client::encode;
use common::{Setup, TestServer};
use pumice_base::rng::Rng;
use pumice_redis::options::Options;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The server still serves a decent client.
fn still_serves(server: &TestServer) {
    let mut client = server.client();
    assert_eq!(client.line("SET decent client").to_string(), "OK");
    assert_eq!(client.line("GET decent").to_string(), "\"client\"");
}

#[test]
fn random_bytes_harm_nobody() {
    let server = TestServer::start();
    for seed in 0..60 {
        let mut rng = Rng::from_seed(seed);
        let mut bytes = vec![0; 1 + rng.below(3000) as usize];
        rng.fill(&mut bytes);
        if rng.chance(0.5) {
            bytes[0] = b'*';
        }
        let mut client = server.client();
        let _ = client.try_send(&bytes);
        let _ = client.try_send(b"\r\nQUIT\r\n");
        client.set_timeout(Duration::from_millis(200));
        client.read_to_end();
    }
    still_serves(&server);
}

#[test]
fn huge_counts_and_lengths_cost_nothing_until_bytes_arrive() {
    let server = TestServer::start();
    let mut clients: Vec<_> = (0..100).map(|_| server.client()).collect();
    for client in &mut clients {
        client.send(b"*2000000000\r\n$536870912\r\nabc");
    }
    still_serves(&server);
    let waiting = server.server().stats.input_waiting_bytes.load(Ordering::Relaxed);
    assert!(waiting < 1 << 20, "{waiting} bytes are held for what was only announced");
}

#[test]
fn half_open_clients_and_half_commands_are_forgotten_with_their_connection() {
    let server = TestServer::start();
    for _ in 0..50 {
        let mut client = server.client();
        client.send(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$100000\r\nxxxxx");
        client.close_writing();
        assert_eq!(client.read_to_end(), b"");
    }
    still_serves(&server);
    assert_eq!(server.server().stats.input_waiting_bytes.load(Ordering::Relaxed), 0);
}

#[test]
fn a_client_that_takes_nothing_is_closed_at_the_limit() {
    let options = Options { output_bytes_max: 32 << 20, port: 0, ..Options::default() };
    let server = TestServer::with(Setup { options, ..Setup::default() });
    let mut greedy = server.client();
    let big = vec![b'x'; 100_000];
    assert_eq!(greedy.call(&[&b"SET"[..], b"big", &big]).to_string(), "OK");
    let get = encode(&["GET", "big"]);
    let mut sent = 0;
    for _ in 0..200_000 {
        if greedy.try_send(&get).is_err() {
            break;
        }
        sent += 1;
        if server.server().stats.output_limit_closes.load(Ordering::Relaxed) > 0 {
            break;
        }
    }
    assert!(server.server().stats.output_limit_closes.load(Ordering::Relaxed) > 0, "after {sent} GETs");
    still_serves(&server);
}

#[test]
fn a_long_pipeline_written_before_anything_is_read_is_answered() {
    let server = TestServer::start();
    let mut client = server.client();
    let value = vec![b'v'; 8192];
    client.call(&[&b"SET"[..], b"k", &value]);
    let mut pipeline = Vec::new();
    for _ in 0..5000 {
        pipeline.extend(encode(&["GET", "k"]));
    }
    client.send(&pipeline);
    for _ in 0..5000 {
        assert!(matches!(client.read(), common::Reply::Bulk(bytes) if bytes == value));
    }
}

#[test]
fn too_many_clients_are_turned_away() {
    let options = Options { clients_max: 3, port: 0, ..Options::default() };
    let server = TestServer::with(Setup { options, ..Setup::default() });
    let mut kept: Vec<_> = (0..3).map(|_| server.client()).collect();
    for client in &mut kept {
        assert_eq!(client.line("PING").to_string(), "PONG");
    }
    let mut late = server.client();
    assert_eq!(late.read_to_end(), b"-ERR max number of clients reached\r\n");
    assert_eq!(kept[0].line("PING").to_string(), "PONG");
}

#[test]
fn strangers_before_auth_may_send_little() {
    let options = Options { password: "secret".to_string(), port: 0, ..Options::default() };
    let server = TestServer::with(Setup { options, ..Setup::default() });
    let mut client = server.client();
    assert_eq!(client.line("GET k").to_string(), "(error) NOAUTH Authentication required.");
    assert_eq!(
        client.line("AUTH wrong").to_string(),
        "(error) WRONGPASS invalid username-password pair or user is disabled."
    );
    let mut greedy = server.client();
    greedy.send(b"*2\r\n$3\r\nGET\r\n$1000000\r\n");
    assert_eq!(greedy.read_to_end(), b"-ERR Protocol error: unauthenticated bulk length\r\n");
    assert_eq!(client.line("AUTH secret").to_string(), "OK");
    assert_eq!(client.line("GET k").to_string(), "nil");
}

#[test]
fn values_of_many_megabytes_pass_in_pieces() {
    let server = TestServer::start();
    let mut client = server.client();
    let mut value = vec![0; 20 << 20];
    Rng::from_seed(7).fill(&mut value);
    assert_eq!(client.call(&[&b"SET"[..], b"large", &value]).to_string(), "OK");
    assert_eq!(client.line("STRLEN large").to_string(), (20 << 20).to_string());
    assert!(matches!(client.line("GET large"), common::Reply::Bulk(bytes) if bytes == value));
    assert_eq!(client.line("RENAME large other").to_string(), "OK");
    assert_eq!(client.line("APPEND other tail").to_string(), ((20 << 20) + 4).to_string());
    value.extend_from_slice(b"tail");
    assert!(matches!(client.line("GET other"), common::Reply::Bulk(bytes) if bytes == value));
}
