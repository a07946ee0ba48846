//! Clients that take large replies slowly are waited for, in bounded memory, and never closed.

#![allow(clippy::disallowed_methods, reason = "the clients are threads of another process in spirit")]

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use crate::common::client::encode;
use crate::common::{PATIENCE, Setup, TestServer};
use pumice_base::rng::Rng;
use pumice_redis::options::{DebugAccess, Options};

const VALUE_BYTES: usize = 8 << 20;
const DEPTH: usize = 10;
const OUTPUT_BYTES_MAX: u64 = 16 << 20;

#[test]
fn slow_readers_of_many_large_values_get_every_byte_in_bounded_memory() {
    let options = Options { output_bytes_max: OUTPUT_BYTES_MAX, port: 0, ..Options::default() };
    let server = TestServer::with(Setup { options, ..Setup::default() });
    let mut value = vec![0; VALUE_BYTES];
    Rng::from_seed(11).fill(&mut value);
    assert_eq!(server.client().call(&[&b"SET"[..], b"large", &value]).to_string(), "OK");
    let value = Arc::new(value);
    let readers: Vec<_> = (0..4)
        .map(|index| {
            let (socket, value) = (server.socket().to_path_buf(), value.clone());
            thread::spawn(move || read_slowly(&socket, &value, index))
        })
        .collect();
    let mut most = 0;
    while readers.iter().any(|reader| !reader.is_finished()) {
        most = most.max(server.server().stats.output_waiting_bytes.load(Ordering::Relaxed));
        thread::sleep(Duration::from_millis(1));
    }
    for reader in readers {
        reader.join().expect("every byte came");
    }
    assert_eq!(server.server().stats.output_limit_closes.load(Ordering::Relaxed), 0);
    // Each of the four may be a piece of a value (1 MiB) and its share beyond the limit.
    assert!(most <= OUTPUT_BYTES_MAX + (8 << 20), "{most} bytes of replies waited");
}

fn read_slowly(socket: &std::path::Path, value: &[u8], index: u64) {
    let mut stream = UnixStream::connect(socket).expect("connected");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    std::io::Write::write_all(&mut stream, &encode(&["GET", "large"]).repeat(DEPTH)).expect("sent");
    let header = format!("${VALUE_BYTES}\r\n").into_bytes();
    let mut piece = vec![0; 1 << 20];
    for get in 0..DEPTH {
        let mut start = vec![0; header.len()];
        stream.read_exact(&mut start).expect("a header");
        assert_eq!(start, header, "reader {index}, GET {get}");
        for expected in value.chunks(piece.len()) {
            // Longer, now and then, than the server waits before it lets output pile up.
            let pause_ms = if get % 4 == 3 && expected.as_ptr() == value.as_ptr() { 300 } else { 3 };
            thread::sleep(Duration::from_millis(pause_ms));
            stream.read_exact(&mut piece[..expected.len()]).expect("the value");
            assert!(piece[..expected.len()] == *expected, "reader {index}, GET {get}");
        }
        let mut end = [0; 2];
        stream.read_exact(&mut end).expect("the end");
        assert_eq!(&end, b"\r\n");
    }
}

/// What the reader takes at a time while another client waits.
const SIP_BYTES: usize = 256 << 10;

/// A client sends `read`, whose reply is of `long` bytes, and takes it by sips; meanwhile another client's `write` of the same
/// key must be answered. Answers the reader, and what it has taken of its reply.
fn write_while_read_slowly(
    server: &TestServer,
    read: &[u8],
    long: usize,
    write: &[&str],
) -> (UnixStream, Vec<u8>) {
    let mut reader = UnixStream::connect(server.socket()).expect("connected");
    reader.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    std::io::Write::write_all(&mut reader, read).expect("sent");
    // The reply has begun: whatever the command needs at first, it has.
    let mut taken = vec![0; SIP_BYTES];
    reader.read_exact(&mut taken).expect("the beginning");
    let (mut writer, write) = (server.client(), encode(write));
    let waiting = thread::spawn(move || {
        writer.send(&write);
        writer.read()
    });
    let shown = String::from_utf8_lossy(&read[..read.len().min(60)]).replace("\r\n", " ");
    while !waiting.is_finished() {
        // The server goes on for a client that goes on, and never closes it.
        assert!(taken.len() < long / 2, "the write waits for the client that reads slowly: {shown}");
        let from = taken.len();
        taken.resize(from + SIP_BYTES, 0);
        reader.read_exact(&mut taken[from..]).expect("some more");
        thread::sleep(Duration::from_millis(20));
    }
    let answer = waiting.join().expect("a writer").to_string();
    assert!(!answer.starts_with("(error)"), "{answer}");
    (reader, taken)
}

/// Longer than what the server keeps for all clients, and the system for a socket.
const LONG_BYTES: usize = 48 << 20;

fn of_little_output() -> Setup {
    let debug = DebugAccess::Yes;
    let options = Options { output_bytes_max: OUTPUT_BYTES_MAX, port: 0, debug, ..Options::default() };
    Setup { options, ..Setup::default() }
}

#[test]
fn who_takes_a_large_value_slowly_that_its_command_also_wrote_holds_up_nobody() {
    let server = TestServer::with(of_little_output());
    let mut value = vec![0; LONG_BYTES];
    Rng::from_seed(12).fill(&mut value);
    for command in ["GETEX big PX 100000000", "SET big y GET", "GETSET big y", "GETDEL big", "GETEX big"] {
        assert_eq!(server.client().call(&[&b"SET"[..], b"big", &value]).to_string(), "OK");
        let read = encode(&command.split(' ').collect::<Vec<_>>());
        let (mut reader, mut reply) =
            write_while_read_slowly(&server, &read, LONG_BYTES, &["SET", "big", "x"]);
        let header = format!("${LONG_BYTES}\r\n").into_bytes();
        let taken = reply.len();
        reply.resize(header.len() + LONG_BYTES + 2, 0);
        reader.read_exact(&mut reply[taken..]).expect("the rest");
        let is_whole = reply.starts_with(&header) && reply[header.len()..].starts_with(&value);
        assert!(is_whole, "{command}: what it answers is the value as it was");
        assert_eq!(server.client().line("GET big").to_string(), "\"x\"", "{command}");
    }
    assert_eq!(server.server().stats.output_limit_closes.load(Ordering::Relaxed), 0);
}

#[test]
fn who_takes_many_random_elements_slowly_holds_up_nobody() {
    let server = TestServer::with(of_little_output());
    let mut client = server.client();
    // Few are read once and drawn from; of more, each draw reads.
    for elements in [5, 2_000] {
        for from in (0..elements).step_by(500) {
            let names = from..elements.min(from + 500);
            let words = |item: fn(usize) -> String| names.clone().map(item).collect::<Vec<_>>().join(" ");
            client.line(&format!("SADD s{elements} {}", words(|n| format!("member{n}"))));
            client.line(&format!("HSET h{elements} {}", words(|n| format!("field{n} value{n}"))));
            client.line(&format!("ZADD z{elements} {}", words(|n| format!("{n} member{n}"))));
        }
        for (read, write) in [
            ("SRANDMEMBER s -10000000", "SADD s y"),
            ("HRANDFIELD h -10000000 WITHVALUES", "HSET h y z"),
            ("ZRANDMEMBER z -10000000 WITHSCORES", "ZADD z 1 y"),
        ] {
            let of_this_size = |line: &str| line.split(' ').map(str::to_string).collect::<Vec<_>>();
            let (mut read, mut write) = (of_this_size(read), of_this_size(write));
            read[1] += &elements.to_string();
            write[1] += &elements.to_string();
            let write: Vec<&str> = write.iter().map(String::as_str).collect();
            write_while_read_slowly(&server, &encode(&read), LONG_BYTES, &write);
        }
    }
    assert_eq!(server.server().stats.output_limit_closes.load(Ordering::Relaxed), 0);
}

#[test]
fn who_takes_slowly_what_it_asked_for_before_a_command_over_all_keys_holds_up_nobody() {
    const GETS: usize = 60;
    let server = TestServer::with(of_little_output());
    let mut client = server.client();
    for n in 0..GETS {
        client.call(&[b"SET", format!("k{n}").as_bytes(), &vec![b'v'; 250_000]]);
    }
    drop(client);
    // Read from flash side by side, so all are there before the command that follows.
    let server = server.restart(of_little_output());
    let mut pipeline: Vec<u8> = (0..GETS).flat_map(|n| encode(&["GET", &format!("k{n}")])).collect();
    pipeline.extend(encode(&["DEBUG", "POPULATE", "1000"]));
    write_while_read_slowly(&server, &pipeline, GETS * 250_000, &["SET", "k0", "x"]);
}
