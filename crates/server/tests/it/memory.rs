//! The process stays within `--memory`, the smallest as well, while it writes and reads several times as much.

use std::fs;

use crate::common::{Server, pause_ms};

const MEMORY_BYTES: u64 = 64 << 20;
const CLIENTS: u64 = 16;
const DEPTH: u64 = 16;
const KEYS_EACH: u64 = 8_000;
const VALUE_BYTES: usize = 1024;

/// Most memory that the process had, but for the pages of its program: those of a test's build are many more.
fn peak_bytes(server: &Server) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
    let field = |name: &str| -> u64 {
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
    };
    field("VmHWM:") - field("RssFile:")
}

fn for_each_client(server: &Server, run: impl Fn(&mut redis::Connection, u64) + Sync) {
    std::thread::scope(|scope| {
        for number in 0..CLIENTS {
            let run = &run;
            let mut client = server.client();
            scope.spawn(move || run(&mut client, number));
        }
    });
}

#[test]
fn the_least_memory_is_enough_for_the_whole_process() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &["--memory", "64MiB", "--durability", "everysec"]);
    let value = [b'v'; VALUE_BYTES];
    // The second round overwrites, and has tables merged.
    for _ in 0..2 {
        for_each_client(&server, |client, number| {
            for first in (0..KEYS_EACH).step_by(DEPTH as usize) {
                let mut pipe = redis::pipe();
                for n in first..first + DEPTH {
                    pipe.set(format!("{number}:{n}"), &value).ignore();
                }
                let _: () = pipe.query(client).unwrap();
            }
        });
    }
    for_each_client(&server, |client, number| {
        for first in (0..KEYS_EACH / 2).step_by(DEPTH as usize) {
            let mut pipe = redis::pipe();
            for n in first..first + DEPTH {
                // Far apart, so that no read serves the next one as well.
                pipe.get(format!("{number}:{}", n * 4_999 % KEYS_EACH));
            }
            let values: Vec<Vec<u8>> = pipe.query(client).unwrap();
            assert!(values.iter().all(|read| read[..] == value));
        }
    });
    let peak = peak_bytes(&server);
    println!("{peak} bytes at most");
    assert!(peak <= MEMORY_BYTES, "{peak} bytes of {MEMORY_BYTES}");
    server.stop();
}

/// Clients that once sent and read much, and do nothing now, have nothing more in memory: of a thousand each 60 kB would be the
/// whole of it.
#[test]
fn who_does_nothing_keeps_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &["--memory", "64MiB", "--durability", "everysec"]);
    let pairs: Vec<(String, Vec<u8>)> = (0..60).map(|n| (format!("k{n}"), vec![b'v'; 1000])).collect();
    let keys: Vec<&String> = pairs.iter().map(|(key, _)| key).collect();
    let mut idle = Vec::new();
    for _ in 0..1000 {
        let mut client = server.client();
        // Twice: one of them comes in parts.
        let mut pipe = redis::pipe();
        let () = pipe.cmd("MSET").arg(&pairs).cmd("MSET").arg(&pairs).query(&mut client).unwrap();
        let read: Vec<Vec<u8>> = redis::cmd("MGET").arg(&keys).query(&mut client).unwrap();
        assert_eq!(read.len(), pairs.len());
        idle.push(client);
    }
    let peak = peak_bytes(&server);
    println!("{peak} bytes at most");
    assert!(peak <= MEMORY_BYTES, "{peak} bytes of {MEMORY_BYTES}");
    drop(idle);
    server.stop();
}

#[test]
fn rows_pay_for_nothing_that_emulated_media_hold() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(
        dir.path(),
        &["--device", "emu:small", "--memory", "64MiB", "--durability", "everysec", "--http", "127.0.0.1:0"],
    );
    let value = [b'v'; 1 << 20];
    let mut client = server.client();
    for n in 0..70 {
        let () = redis::cmd("SET").arg(n).arg(&value).query(&mut client).unwrap();
    }
    assert!(peak_bytes(&server) > MEMORY_BYTES, "the media are not resident");
    // Longer than it is between two looks at what is.
    for _ in 0..4 {
        pause_ms(500);
        let (_, metrics) = server.http("/metrics");
        let withheld =
            metrics.lines().find(|line| line.starts_with("pumice_drive_row_cache_withheld_bytes{"));
        assert!(withheld.is_some_and(|line| line.ends_with(" 0.0")), "{withheld:?}");
    }
    server.stop();
}

/// Where the kernel gives huge pages to whoever did not ask for them, small objects would hold whole ones.
#[test]
fn what_the_allocator_has_gets_no_huge_pages() {
    if !std::path::Path::new("/sys/kernel/mm/transparent_hugepage").exists() {
        println!("skipped: this kernel knows no huge pages");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &["--memory", "64MiB"]);
    let maps = fs::read_to_string(format!("/proc/{}/smaps", server.pid())).unwrap();
    let (mut bytes, mut arenas) = (0, 0);
    for line in maps.lines() {
        if let Some(size) = line.strip_prefix("Size:") {
            bytes = size.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10;
        }
        // It takes a GiB of addresses at a time.
        if let (Some(flags), true) = (line.strip_prefix("VmFlags:"), bytes >= 1 << 30) {
            assert!(flags.split_whitespace().any(|flag| flag == "nh"), "{flags}, of {bytes} B");
            arenas += 1;
        }
    }
    assert!(arenas > 0, "{maps}");
    server.stop();
}
