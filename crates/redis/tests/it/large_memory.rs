//! Many clients with large values on their way, none of which goes on: memory stays within what all clients may have, others
//! are served, and every byte comes through in the end.

#![allow(clippy::disallowed_methods, reason = "the clients are threads of another process in spirit")]

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::client::encode;
use crate::common::{Client, Reply, Setup, TestServer, eventually};
use pumice_base::rng::Rng;
use pumice_redis::options::Options;

const CLIENTS: usize = 40;
const VALUE_BYTES: usize = 4 << 20;

fn noise(seed: u64) -> Vec<u8> {
    let mut value = vec![0; VALUE_BYTES];
    Rng::from_seed(seed).fill(&mut value);
    value
}

/// The most that `waiting` shows until it has been still for a while, once it was above `least`.
#[track_caller]
pub fn most(waiting: &AtomicU64, least: u64) -> u64 {
    eventually(&format!("more than {least} B wait"), || waiting.load(Ordering::Relaxed) > least);
    let (mut most, mut last, mut since) = (0, 0, Instant::now());
    while since.elapsed() < Duration::from_millis(500) {
        let now = waiting.load(Ordering::Relaxed);
        most = most.max(now);
        if now != last {
            (last, since) = (now, Instant::now());
        }
        thread::sleep(Duration::from_millis(1));
    }
    most
}

/// Who has read all of a reply may be faster than the server that counts it as sent.
pub fn nothing_waits(server: &TestServer) {
    let waiting = &server.server().stats.output_waiting_bytes;
    eventually("no reply is counted once all are read", || waiting.load(Ordering::Relaxed) == 0);
}

fn forgets_input_of_those_gone(server: &TestServer) {
    let waiting = &server.server().stats.input_waiting_bytes;
    eventually("memory of clients that are gone is not counted", || waiting.load(Ordering::Relaxed) == 0);
}

fn is_value(reply: &Reply, value: &[u8]) -> bool {
    matches!(reply, Reply::Bulk(bytes) if bytes == value)
}

#[test]
fn clients_that_do_not_read_a_large_value_hold_a_share_each_and_no_pieces() {
    const OUTPUT_BYTES_MAX: u64 = 8 << 20;
    const SHARE_BYTES: u64 = 256 << 10;
    let options = Options { output_bytes_max: OUTPUT_BYTES_MAX, port: 0, ..Options::default() };
    let server = TestServer::with(Setup { options, ..Setup::default() });
    let value = noise(1);
    assert_eq!(server.client().call(&[&b"SET"[..], b"large", &value]).to_string(), "OK");
    let mut silent: Vec<Client> = (0..CLIENTS).map(|_| server.client()).collect();
    for client in &mut silent {
        client.send(&encode(&["GET", "large"]));
    }
    // A share may be reached by one that is a byte short of it; a piece by those that found room at the same time.
    let bound = OUTPUT_BYTES_MAX + CLIENTS as u64 * 2 * SHARE_BYTES + (4 << 20);
    let held = most(&server.server().stats.output_waiting_bytes, OUTPUT_BYTES_MAX);
    assert!(held <= bound, "{held} B of replies waited, {bound} were to");
    let mut other = server.client();
    assert_eq!(other.line("PING").to_string(), "PONG");
    assert!(is_value(&other.line("GET large"), &value), "who reads is served beside them");
    // All at once: each is given more as it takes what it has.
    let readers: Vec<_> = silent.into_iter().map(|mut client| thread::spawn(move || client.read())).collect();
    for reader in readers {
        assert!(is_value(&reader.join().expect("a reply"), &value));
    }
    nothing_waits(&server);
}

/// Each name is a few bytes, and its answer a few thousand.
#[test]
fn what_many_names_of_commands_are_answered_leaves_as_it_is_made() {
    const NAMES: usize = 20_000;
    let options = Options { output_bytes_max: 8 << 20, port: 0, ..Options::default() };
    let server = TestServer::with(Setup { options, ..Setup::default() });
    for what in ["INFO", "DOCS"] {
        let mut client = server.client();
        let command: Vec<&str> = ["COMMAND", what].into_iter().chain((0..NAMES).map(|_| "config")).collect();
        client.send(&encode(&command));
        let held = most(&server.server().stats.output_waiting_bytes, 256 << 10);
        // What is handed over together may be the piece that exceeds it.
        assert!(held <= 9 << 20, "{held} B of replies waited");
        let Reply::Array(found) = client.read() else { panic!("COMMAND {what} answers an array") };
        assert_eq!(found.len(), if what == "INFO" { NAMES } else { 2 * NAMES });
        assert_eq!(found[0], found[found.len() - 2]);
        assert_eq!(client.line("PING").to_string(), "PONG");
    }
}

#[test]
fn clients_that_stop_in_the_middle_of_a_large_value_hold_little_and_their_values_are_whole_at_the_end() {
    const INPUT_BYTES_MAX: u64 = 1 << 20;
    let options = Options { input_bytes_max: INPUT_BYTES_MAX, port: 0, ..Options::default() };
    let server = TestServer::with(Setup { options, ..Setup::default() });
    let mut stopped: Vec<(Client, Vec<u8>, Vec<u8>)> = (0..CLIENTS)
        .map(|n| {
            let value = noise(n as u64);
            let command = encode(&[b"SET", format!("key{n}").as_bytes(), &value]);
            (server.client(), value, command)
        })
        .collect();
    let mut rng = Rng::from_seed(5);
    for (client, _, command) in &mut stopped {
        let now: Vec<u8> = command.drain(..100 + rng.below(900_000) as usize).collect();
        client.send(&now);
    }
    let held = most(&server.server().stats.input_waiting_bytes, INPUT_BYTES_MAX / 2);
    // The limit is looked at when something has been put in: a client's first buffer or its piece may be over it.
    let bound = 2 * INPUT_BYTES_MAX + (2 << 20);
    assert!(held <= bound, "{held} B of values wait, {bound} were to");
    let (mut other, value) = (server.client(), noise(99));
    assert_eq!(other.call(&[&b"SET"[..], b"other", &value]).to_string(), "OK");
    assert!(is_value(&other.line("GET other"), &value), "others write beside them");
    for (client, _, command) in &mut stopped {
        client.send(command);
        assert_eq!(client.read().to_string(), "OK");
    }
    for (n, (client, value, _)) in stopped.iter_mut().enumerate() {
        assert!(is_value(&client.line(&format!("GET key{n}")), value), "key{n}");
    }
    drop((stopped, other));
    forgets_input_of_those_gone(&server);
}

/// Large values are received where they are written from, small commands into shared buffers: both on one connection, sent in
/// parts of all lengths.
#[test]
fn large_values_and_small_commands_by_turns_on_one_connection_are_each_answered() {
    let server =
        TestServer::with(Setup { options: Options { port: 0, ..Options::default() }, ..Setup::default() });
    let mut rng = Rng::from_seed(8);
    let lens = [1_048_577, 1_200_000, 4 << 20, 1_310_720, 3_000_001];
    let values: Vec<Vec<u8>> = lens.iter().map(|&len| noise(len as u64)[..len].to_vec()).collect();
    let mut bytes = Vec::new();
    for (n, value) in values.iter().enumerate() {
        bytes.extend(encode(&[b"SET", format!("key{n}").as_bytes(), value]));
        bytes.extend(encode(&["STRLEN", &format!("key{n}")]));
        bytes.extend(encode(&[
            b"APPEND",
            format!("key{n}").as_bytes(),
            &value[..1_048_600.min(value.len())],
        ]));
        bytes.extend(encode(&["PING"]));
    }
    let mut client = server.client();
    let mut rest = &bytes[..];
    while !rest.is_empty() {
        let most = [20, 5_000, 70_000, 900_000][rng.below(4) as usize];
        let (now, later) = rest.split_at((1 + rng.below(most) as usize).min(rest.len()));
        client.send(now);
        rest = later;
        if rng.below(8) == 0 {
            thread::sleep(Duration::from_millis(1));
        }
    }
    for (n, value) in values.iter().enumerate() {
        let appended = &value[..1_048_600.min(value.len())];
        assert_eq!(client.read().to_string(), "OK");
        assert_eq!(client.read().to_string(), value.len().to_string());
        assert_eq!(client.read().to_string(), (value.len() + appended.len()).to_string());
        assert_eq!(client.read().to_string(), "PONG");
        let whole = [&value[..], appended].concat();
        assert!(is_value(&server.client().line(&format!("GET key{n}")), &whole), "key{n}");
    }
}

#[test]
fn clients_that_go_in_the_middle_of_a_large_value_leave_nothing_and_harm_nobody() {
    let server =
        TestServer::with(Setup { options: Options { port: 0, ..Options::default() }, ..Setup::default() });
    let mut rng = Rng::from_seed(21);
    let value = noise(3);
    for n in 0..60 {
        let mut client = server.client();
        let command = encode(&[b"SET", &b"gone"[..], &value]);
        client.send(&command[..1_100_000 + rng.below(2_500_000) as usize]);
        if n % 2 == 0 {
            thread::sleep(Duration::from_micros(rng.below(3_000)));
        }
    }
    let mut other = server.client();
    assert_eq!(other.line("EXISTS gone").to_string(), "0");
    assert_eq!(other.call(&[&b"SET"[..], b"stays", &value]).to_string(), "OK");
    assert!(is_value(&other.line("GET stays"), &value));
    drop(other);
    forgets_input_of_those_gone(&server);
}

#[test]
fn a_drive_that_fills_in_the_middle_of_a_large_value_says_so_and_the_connection_goes_on() {
    let server =
        TestServer::with(Setup { options: Options { port: 0, ..Options::default() }, ..Setup::default() });
    let mut client = server.client();
    let value = noise(4);
    let mut stored = 0;
    let refusal = loop {
        let reply = client.call(&[b"SET", format!("key{stored}").as_bytes(), &value]).to_string();
        if reply != "OK" {
            break reply;
        }
        stored += 1;
        assert!(stored < 2_000, "the drive never fills");
    };
    assert!(refusal.contains("full") || refusal.contains("space"), "{refusal}");
    assert_eq!(client.line("PING").to_string(), "PONG", "in step after what was dropped");
    assert_eq!(client.line(&format!("EXISTS key{stored}")).to_string(), "0");
    assert!(is_value(&client.line("GET key0"), &value));
}

#[test]
fn clients_that_do_not_read_large_elements_hold_a_share_each_and_hold_up_nobody() {
    const OUTPUT_BYTES_MAX: u64 = 8 << 20;
    const READERS: usize = 5;
    let options = Options { output_bytes_max: OUTPUT_BYTES_MAX, port: 0, ..Options::default() };
    let server = TestServer::with(Setup { options, ..Setup::default() });
    let (mut other, value) = (server.client(), noise(6));
    assert_eq!(other.call(&[&b"HSET"[..], b"h", b"f", &value]).to_string(), "1");
    assert_eq!(other.call(&[&b"RPUSH"[..], b"l", &value, &value]).to_string(), "2");
    let flat = |reply: Reply| match reply {
        Reply::Array(items) => items,
        item => vec![item],
    };
    for (command, values, write) in [
        ("HMGET h f none f f f f", 5, "HSET h g 1"),
        ("HGETALL h", 1, "HDEL h g"),
        ("HVALS h", 1, "HSETNX h f 1"),
        ("HGET h f", 1, "HSET h g 2"),
        ("HRANDFIELD h -4 WITHVALUES", 4, "HDEL h g"),
        ("LRANGE l 0 -1", 2, "RPUSHX l"),
        ("LINDEX l 1", 1, "RPUSHX l"),
    ] {
        other.line("HDEL h g");
        let mut silent: Vec<Client> = (0..READERS).map(|_| server.client()).collect();
        let mut words = crate::common::split(command);
        for client in &mut silent {
            client.send(&encode(&words));
        }
        let bound = OUTPUT_BYTES_MAX + READERS as u64 * 512 * 1024 + (4 << 20);
        let held = most(&server.server().stats.output_waiting_bytes, OUTPUT_BYTES_MAX / 2);
        assert!(held <= bound, "{command}: {held} B of replies waited, {bound} were to");
        // None of them has its reply whole, and whoever writes the same key is answered.
        words = crate::common::split(write);
        if write.starts_with("RPUSHX") {
            words.push(b"short".to_vec());
        }
        assert!(matches!(other.call(&words), Reply::Int(_)), "{command}");
        if write.starts_with("RPUSHX") {
            other.line("RPOP l");
        }
        let readers: Vec<_> =
            silent.into_iter().map(|mut client| thread::spawn(move || client.read())).collect();
        for reader in readers {
            let found = flat(reader.join().expect("a reply"));
            let found = found.iter().filter(|item| is_value(item, &value)).count();
            assert_eq!(found, values, "{command}");
        }
    }
    assert_eq!(server.server().stats.output_limit_closes.load(Ordering::Relaxed), 0);
}

/// Their receives change between the buffers that all share, of which there are few, and memory of the values' own.
#[test]
fn long_values_that_many_send_at_once_all_arrive() {
    const SENDERS: u64 = 6;
    const VALUES: u64 = 10;
    let server = TestServer::with(Setup { receive_buffers: 4, ..Setup::default() });
    let senders: Vec<_> = (0..SENDERS)
        .map(|sender| {
            let mut client = server.client();
            thread::spawn(move || {
                let key = format!("of {sender}");
                for number in 0..VALUES {
                    let value = noise(sender * VALUES + number);
                    client.send(&encode(&[&b"SET"[..], key.as_bytes(), &value]));
                    client.send(&encode(&["STRLEN", &key]));
                    assert_eq!(client.read().to_string(), "OK");
                    assert_eq!(client.read(), Reply::Int(VALUE_BYTES as i64));
                }
                assert!(is_value(
                    &client.line(&format!("GET \"{key}\"")),
                    &noise(sender * VALUES + VALUES - 1)
                ));
            })
        })
        .collect();
    for sender in senders {
        sender.join().expect("all was answered");
    }
}
