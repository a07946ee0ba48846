//! The real process on the real kernel: killed, stopped, crowded, its drive taken from under it.

mod common;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::{Server, check_exit, pause_ms, run, timed};
use redis::{Commands, RedisResult};
use rustix::process::Signal;

const WRITERS: usize = 4;
const KEYS_PER_WRITER: usize = 40;

/// What one writer knows of one of its keys.
#[derive(Clone, Copy, Default)]
struct Known {
    /// The last write (0: none or deleted) that was acknowledged.
    acknowledged: u64,
    /// A later write that was sent; `None` when there was none.
    sent: Option<u64>,
}

fn key(writer: usize, n: usize) -> String {
    format!("w{writer}:k{n}")
}

/// Values of all sizes; each begins with its number and can be checked as a whole.
fn value(number: u64) -> Vec<u8> {
    let len = 20 + (number * 7919 % 9000) as usize;
    let mut value = format!("{number}:").into_bytes();
    value.resize(len.max(value.len()), b'a' + (number % 26) as u8);
    value
}

fn number_of(value: &[u8]) -> u64 {
    let digits = value.split(|b| *b == b':').next().unwrap();
    std::str::from_utf8(digits).unwrap().parse().unwrap()
}

/// Writes and deletes until the connection breaks; numbers start above `from`.
fn write_until_cut(port: u16, writer: usize, known: &mut [Known], from: u64, stop: &AtomicBool) -> u64 {
    let mut next = from;
    let client = redis::Client::open(format!("redis://127.0.0.1:{port}/")).unwrap();
    let Ok(mut connection) = client.get_connection() else { return next };
    while !stop.load(Ordering::Relaxed) {
        next += 1;
        let at = (next * 31 % KEYS_PER_WRITER as u64) as usize;
        let is_delete = next.is_multiple_of(11);
        let target = if is_delete { 0 } else { next };
        known[at].sent = Some(target);
        let done: RedisResult<()> = if is_delete {
            connection.del(key(writer, at))
        } else {
            connection.set(key(writer, at), value(next))
        };
        if done.is_err() {
            return next;
        }
        known[at] = Known { acknowledged: target, sent: None };
    }
    next
}

fn verify(server: &Server, writer: usize, known: &mut [Known]) {
    let mut client = server.client();
    for (n, state) in known.iter_mut().enumerate() {
        let found: Option<Vec<u8>> = client.get(key(writer, n)).unwrap();
        let number = found.as_deref().map_or(0, number_of);
        if let Some(bytes) = &found {
            assert_eq!(*bytes, value(number), "{}: a torn or mixed value", key(writer, n));
        }
        assert!(
            number == state.acknowledged || Some(number) == state.sent,
            "{}: {} was acknowledged, {:?} sent after it, {number} is there",
            key(writer, n),
            state.acknowledged,
            state.sent
        );
        *state = Known { acknowledged: number, sent: None };
    }
}

#[test]
#[allow(clippy::disallowed_methods)] // clients are threads of their own
fn kill_9_under_load_again_and_again_loses_nothing_that_was_acknowledged() {
    let rounds: u64 = std::env::var("PUMICE_KILL_ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(6);
    let dir = tempfile::tempdir().unwrap();
    let mut known = vec![vec![Known::default(); KEYS_PER_WRITER]; WRITERS];
    let mut last = 0;
    for round in 0..rounds {
        let server = Server::start(dir.path(), &[]);
        known.iter_mut().enumerate().for_each(|(writer, known)| verify(&server, writer, known));
        let stop = Arc::new(AtomicBool::new(false));
        let port = server.port;
        let writers: Vec<_> = (known.drain(..).enumerate())
            .map(|(writer, mut mine)| {
                let stop = stop.clone();
                std::thread::spawn(move || {
                    let last = write_until_cut(port, writer, &mut mine, last, &stop);
                    (mine, last)
                })
            })
            .collect();
        pause_ms(150 + round * 97 % 400);
        server.kill();
        stop.store(true, Ordering::Relaxed);
        for writer in writers {
            let (mine, reached) = writer.join().unwrap();
            known.push(mine);
            last = last.max(reached);
        }
    }
    assert!(last > 100, "only {last} writes: the test tested nothing");
    let server = Server::start(dir.path(), &[]);
    known.iter_mut().enumerate().for_each(|(writer, known)| verify(&server, writer, known));
    server.stop();
    check_exit(&run(&["check", dir.path().join("drive0").to_str().unwrap()]), 0, "");
}

#[test]
fn a_stopped_and_continued_process_goes_on_and_time_has_passed() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &[]);
    let mut client = server.client();
    let _: () = client.set("lasting", 1).unwrap();
    let _: () = client.pset_ex("fleeting", 1, 300).unwrap();
    server.signal(Signal::STOP);
    pause_ms(600);
    server.signal(Signal::CONT);
    assert_eq!(client.get::<_, Option<i64>>("fleeting").unwrap(), None);
    assert_eq!(client.incr::<_, _, i64>("lasting", 1).unwrap(), 2);
    server.stop();
}

#[test]
fn a_drive_is_served_once_only_and_the_second_server_says_why() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &[]);
    let other = tempfile::tempdir().unwrap();
    let drive = dir.path().join("drive0");
    let refused = Server::try_start(other.path(), &["--device", drive.to_str().unwrap()]).err().unwrap();
    assert!(refused.contains("exit status: 2") && refused.contains("in use by another process"), "{refused}");
    for command in ["check", "info"] {
        check_exit(&run(&[command, drive.to_str().unwrap()]), 2, "in use by another process");
    }
    assert_eq!(server.client().set::<_, _, String>("still", "served").unwrap(), "OK");
    server.stop();
}

#[test]
fn a_taken_port_is_refused_and_not_shared() {
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let server = Server::start(one.path(), &[]);
    let addr = format!("127.0.0.1:{}", server.port);
    let refused = Server::try_start(two.path(), &["--redis", &addr]).err().unwrap();
    assert!(refused.contains("exit status: 2") && refused.contains("another server"), "{refused}");
}

#[test]
#[allow(clippy::disallowed_methods)] // clients are threads of their own
fn sigterm_under_load_stops_within_seconds_and_the_next_start_replays_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &[]);
    let port = server.port;
    let stop = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let stop = stop.clone();
            std::thread::spawn(move || {
                let mut known = vec![Known::default(); KEYS_PER_WRITER];
                write_until_cut(port, writer, &mut known, 0, &stop);
                known
            })
        })
        .collect();
    pause_ms(400);
    let (status, took_ms) = timed(|| server.stop_within(Duration::from_secs(20)));
    assert!(status.success(), "{status}");
    assert!(took_ms < 10_000, "took {took_ms} ms to stop");
    let mut known: Vec<Vec<Known>> = writers.into_iter().map(|writer| writer.join().unwrap()).collect();
    let (server, ready_ms) = timed(|| Server::start(dir.path(), &[]));
    assert!(server.said().contains("closed cleanly before"), "{}", server.said());
    assert!(ready_ms < 3_000, "took {ready_ms} ms to start after a clean stop");
    known.iter_mut().enumerate().for_each(|(writer, known)| verify(&server, writer, known));
    server.stop();
}

#[test]
fn ten_thousand_connections_are_served_in_bounded_memory() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &["--max-clients", "12000"]);
    // This process needs as many files as the server; where the limit is lower, as many as there are.
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let raised = rustix::process::Rlimit { current: limit.maximum, maximum: limit.maximum };
    let _ = rustix::process::setrlimit(rustix::process::Resource::Nofile, raised);
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(1 << 20);
    let wanted = (limit.saturating_sub(200)).min(10_000) as usize;
    let before = server.resident_bytes();
    let mut sockets = Vec::with_capacity(wanted);
    for _ in 0..wanted {
        sockets.push(std::net::TcpStream::connect(("127.0.0.1", server.port)).unwrap());
    }
    for _ in 0..2 {
        for socket in &mut sockets {
            std::io::Write::write_all(socket, b"PING\r\n").unwrap();
        }
        for socket in &mut sockets {
            let mut pong = [0; 7];
            std::io::Read::read_exact(socket, &mut pong).unwrap();
            assert_eq!(&pong, b"+PONG\r\n");
        }
    }
    let grown = server.resident_bytes().saturating_sub(before);
    assert!(grown < wanted as u64 * 64 * 1024, "{wanted} idle connections take {grown} bytes");
    println!("{wanted} connections: {} bytes each", grown / wanted as u64);
    drop(sockets);
    let mut client = server.client();
    let _: () = client.set("after", "the crowd").unwrap();
    server.stop();
}

#[test]
fn a_drive_truncated_while_it_is_served_gives_errors_and_never_wrong_data() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::start(dir.path(), &[]);
    let mut client = server.client();
    for n in 0..200u64 {
        let _: () = client.set(format!("k{n}"), value(n)).unwrap();
    }
    std::fs::File::options().write(true).open(dir.path().join("drive0")).unwrap().set_len(1 << 20).unwrap();
    for n in 0..200u64 {
        if let Ok(Some(found)) = client.get::<_, Option<Vec<u8>>>(format!("k{n}")) {
            assert_eq!(found, value(n));
        }
    }
    let mut fresh = server.client();
    assert_eq!(redis::cmd("PING").query::<String>(&mut fresh).unwrap(), "PONG");
    assert!(server.is_alive(), "{}", server.said());
    server.kill();
    let again = Server::try_start(dir.path(), &[]);
    if let Err(said) = again {
        assert!(
            said.contains("exit status: 2") && said.contains("drive0") && !said.contains("panicked"),
            "{said}"
        );
    }
}

/// A file system of `size` for the test, where this user may mount one.
fn small_mount(at: &Path, size: &str) -> Option<()> {
    let mounted = std::process::Command::new("mount")
        .args(["-t", "tmpfs", "-o", &format!("size={size}"), "pumice-test"])
        .arg(at)
        .stderr(std::process::Stdio::null())
        .status();
    mounted.ok().filter(std::process::ExitStatus::success).map(|_| ())
}

#[test]
fn a_full_file_system_refuses_writes_with_the_reason_and_still_reads() {
    let (data, full) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    if small_mount(full.path(), "64m").is_none() {
        println!("skipped: mounting a small file system is not allowed here");
        return;
    }
    let outcome = std::panic::catch_unwind(|| {
        let drive = full.path().join("drive");
        let drive = drive.to_str().unwrap();
        check_exit(&run(&["format", drive, "--size", "1GiB", "--segment", "1MiB"]), 0, "");
        let mut server = Server::start(data.path(), &["--device", drive]);
        let mut client = server.client();
        let mut acknowledged = 0;
        client.set_read_timeout(Some(Duration::from_secs(3))).unwrap();
        // The write that meets the full file system waits for space; those after it are told.
        while client.set::<_, _, String>(format!("k{acknowledged}"), vec![b'x'; 64 << 10]).is_ok() {
            acknowledged += 1;
            assert!(acknowledged < 1024, "64 MiB cannot hold that much");
        }
        assert!(acknowledged > 100, "{acknowledged} writes");
        let mut client = server.client();
        let refusal = client.set::<_, _, String>("late", "x").unwrap_err().to_string();
        assert!(refusal.contains("space"), "{refusal}");
        let read: Vec<u8> = client.get("k0").unwrap();
        assert_eq!(read.len(), 64 << 10, "reads go on after {refusal}");
        assert!(server.is_alive());
        println!("after {acknowledged} writes: {refusal}");
    });
    let _ = std::process::Command::new("umount").arg("-l").arg(full.path()).status();
    if let Err(panic) = outcome {
        std::panic::resume_unwind(panic);
    }
}

#[test]
fn shutdown_by_a_client_ends_the_process_cleanly() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::start(dir.path(), &[]);
    let mut client = server.client();
    let _: () = client.set("k", "v").unwrap();
    let _: RedisResult<String> = redis::cmd("SHUTDOWN").query(&mut client);
    assert!(server.wait_within(Duration::from_secs(20)).success());
    let server = Server::start(dir.path(), &[]);
    assert_eq!(server.client().get::<_, String>("k").unwrap(), "v");
    server.stop();
}
