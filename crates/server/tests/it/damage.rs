//! Damage is told by the names that users gave.

use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::common::{Server, check_exit, run, stdout};
use redis::Commands;

/// What is stored under a name: it can be found on the drive by that.
fn text(name: &str, len: usize) -> String {
    format!("<{name}>").repeat(len)
}

/// Changes a byte wherever the drive holds [`text`].
fn damage(drive: &Path, names: &[&str]) {
    let file = std::fs::File::options().read(true).write(true).open(drive).unwrap();
    let mut bytes = Vec::new();
    (&file).take(64 << 20).read_to_end(&mut bytes).unwrap();
    for name in names {
        let text = text(name, 3);
        let mut at = 0;
        let mut found = 0;
        while let Some(next) = bytes[at..].windows(text.len()).position(|here| here == text.as_bytes()) {
            file.write_all_at(b"x", (at + next) as u64).unwrap();
            at += next + 64 * 1024;
            found += 1;
        }
        assert!(found > 0, "{name} is not on the drive");
    }
}

#[test]
fn damage_is_told_by_key_database_and_element() {
    let dir = tempfile::tempdir().unwrap();
    let drive = dir.path().join("drive");
    check_exit(&run(&["format", drive.to_str().unwrap(), "--size", "64MiB"]), 0, "");
    let more = ["--device", drive.to_str().unwrap(), "--patrol-days", "0"];
    let server = Server::start(dir.path(), &more);
    let mut client = server.client();
    let select = |client: &mut redis::Connection, database: u8| {
        let _: String = redis::cmd("SELECT").arg(database).query(client).unwrap();
    };
    select(&mut client, 1);
    let _: () = client.set("gone", "soon").unwrap();
    // Its space is another one from now on.
    let _: String = redis::cmd("FLUSHDB").query(&mut client).unwrap();
    let _: () = client.set("plain\n", text("plain", 500)).unwrap();
    let _: () = client.hset("user:1", "name", text("field", 500)).unwrap();
    let _: () = client.rpush("queue", &[text("first", 500), text("second", 500)]).unwrap();
    select(&mut client, 0);
    let _: () = client.set("long", text("long", 60_000)).unwrap();
    server.stop();
    damage(&drive, &["plain", "field", "second", "long"]);
    let server = Server::start(dir.path(), &more);
    let mut client = server.client();
    let check = |client: &mut redis::Connection, command: &[&str], says: &str| {
        let error = redis::cmd(command[0]).arg(&command[1..]).query::<redis::Value>(client);
        let error = error.expect_err("damaged").to_string();
        assert!(error.contains(says), "{command:?}: {error:?} does not say {says:?}");
    };
    check(&mut client, &["GETRANGE", "long", "0", "10"], "key \"long\" of database 0");
    select(&mut client, 1);
    check(&mut client, &["GET", "plain\n"], "key \"plain\\n\" of database 1");
    let field = "field or member \"name\" of key \"user:1\" of database 1";
    check(&mut client, &["HGET", "user:1", "name"], field);
    check(&mut client, &["HGETALL", "user:1"], field);
    let element = "the element that is stored at 1 of key \"queue\" of database 1";
    check(&mut client, &["LINDEX", "queue", "1"], element);
    server.stop();
    let report = run(&["check", drive.to_str().unwrap()]);
    check_exit(&report, 1, "problem(s) found");
    for says in ["key \"long\" of database 0", "key \"plain\\n\" of database 1", field, element] {
        assert!(stdout(&report).contains(says), "{says}: {}", stdout(&report));
    }
}

/// Keys are what users lose: they come first, however many places are damaged, and all are counted.
#[test]
fn many_that_are_lost_are_counted_and_stand_before_places() {
    const KEYS: usize = 1200;
    let dir = tempfile::tempdir().unwrap();
    let drive = dir.path().join("drive");
    check_exit(&run(&["format", drive.to_str().unwrap(), "--size", "64MiB"]), 0, "");
    let server = Server::start(dir.path(), &["--device", drive.to_str().unwrap(), "--patrol-days", "0"]);
    let mut client = server.client();
    let (start, len) = ("<<start>>", 3000);
    for n in 0..KEYS {
        let _: () = client.set(format!("key:{n}"), format!("{start}{}", "v".repeat(len))).unwrap();
    }
    server.stop();
    let file = std::fs::File::options().read(true).write(true).open(&drive).unwrap();
    let mut bytes = Vec::new();
    (&file).take(64 << 20).read_to_end(&mut bytes).unwrap();
    let mut at = 0;
    while let Some(next) = bytes[at..].windows(start.len()).position(|here| here == start.as_bytes()) {
        at += next + len;
        file.write_all_at(b"x", at as u64 - 100).unwrap();
    }
    let report = run(&["check", drive.to_str().unwrap()]);
    check_exit(&report, 1, &format!("{KEYS} of them entries (keys and elements) that cannot be read"));
    let shown = stdout(&report);
    let lost = shown.lines().filter(|line| line.starts_with("damaged: ") && line.contains("key \"key:"));
    assert_eq!(lost.count(), 50, "{shown}");
    let report = run(&["check", drive.to_str().unwrap(), "--json"]);
    let report: serde_json::Value = serde_json::from_str(&stdout(&report)).unwrap();
    assert_eq!(report["unreadable_entries"], KEYS);
    let problems = report["problems"].as_array().unwrap();
    let names_key = |problem: &serde_json::Value| problem.as_str().unwrap().contains("key \"key:");
    assert!(problems[..1000].iter().all(names_key) && !problems[1000..].iter().any(names_key));
    // Each record once more, as a place.
    assert!(problems.len() as u64 + report["more_problems"].as_u64().unwrap() >= 2 * KEYS as u64);
}

/// What a small drive holds: two databases, of which one was emptied before.
const FLIPPED_KEYS: usize = 150;

fn fill(server: &Server) {
    let mut client = server.client();
    for database in [0, 1] {
        let mut pipe = redis::pipe();
        pipe.cmd("SELECT").arg(database).ignore();
        for n in 0..FLIPPED_KEYS {
            pipe.set(format!("key:{n}"), text(&format!("value {n}"), 10)).ignore();
        }
        pipe.hset("hash", "field", "value").rpush("list", "element");
        let () = pipe.query(&mut client).unwrap();
    }
}

/// How many replies are not what was written; a reply that is neither that nor an error is wrong data.
fn count_errors(server: &Server) -> usize {
    let mut client = server.client();
    let mut errors = 0;
    for database in [0, 1] {
        let () = redis::cmd("SELECT").arg(database).query(&mut client).unwrap();
        for n in 0..FLIPPED_KEYS {
            match client.get::<_, String>(format!("key:{n}")) {
                Ok(value) => assert_eq!(value, text(&format!("value {n}"), 10), "key:{n}"),
                Err(_) => errors += 1,
            }
        }
        for (command, key, written) in
            [("HGETALL", "hash", ["field", "value"].as_slice()), ("LRANGE", "list", &["element"])]
        {
            let mut command = redis::cmd(command);
            command.arg(key);
            if key == "list" {
                command.arg(0).arg(-1);
            }
            match command.query::<Vec<String>>(&mut client) {
                Ok(found) => assert_eq!(found, written, "{key}"),
                Err(_) => errors += 1,
            }
        }
    }
    errors
}

/// Makes the drive what `image` says.
fn restore(drive: &Path, image: &[u8]) {
    let used = image.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
    let file = std::fs::File::create(drive).unwrap();
    file.write_all_at(&image[..used], 0).unwrap();
    file.set_len(image.len() as u64).unwrap();
}

/// On no one bit depends more than what lies beside it: a server starts whichever flips, and tells no wrong data. `pumice check` finds
/// it, or it was of nothing that is used.
#[test]
fn a_bit_that_flips_anywhere_keeps_no_server_from_starting() {
    let dir = tempfile::tempdir().unwrap();
    let drive = dir.path().join("drive");
    let name = drive.to_str().unwrap();
    check_exit(&run(&["format", name, "--size", "64MiB"]), 0, "");
    let more = ["--device", name, "--patrol-days", "0", "--memory", "64MiB"];
    let server = Server::start(dir.path(), &more);
    fill(&server);
    let _: String = redis::cmd("FLUSHALL").query(&mut server.client()).unwrap();
    fill(&server);
    server.stop();
    let whole = std::fs::read(&drive).unwrap();
    let sectors = whole.chunks(512).enumerate().filter(|(_, sector)| sector.iter().any(|&byte| byte != 0));
    let sectors: Vec<usize> = sectors.map(|(n, _)| n).collect();
    // All of superblocks and metadata, which lie in the first 8 MiB of a drive of this size, and some of the rest.
    let (first, rest): (Vec<usize>, Vec<usize>) = sectors.into_iter().partition(|n| n * 512 < 8 << 20);
    assert!(first.len() > 10 && rest.len() > 100, "{} and {} sectors", first.len(), rest.len());
    let sectors = first.into_iter().chain(rest.into_iter().step_by(5));
    let (mut harmed, mut most) = (0, 0);
    for (turn, sector) in sectors.enumerate() {
        let mut hurt = whole.clone();
        let at = sector * 512 + turn * 37 % 512;
        hurt[at] ^= 1 << (turn % 8);
        restore(&drive, &hurt);
        let server = Server::try_start(dir.path(), &more)
            .unwrap_or_else(|error| panic!("a bit of byte {at:#x} keeps it from starting: {error}"));
        let errors = count_errors(&server);
        server.kill();
        if errors > 0 {
            harmed += 1;
            most = most.max(errors);
            // What was found damaged while it was served is on the drive still.
            restore(&drive, &hurt);
            assert_eq!(run(&["check", name]).status.code(), Some(1), "byte {at:#x}");
        }
    }
    // A block of keys at most.
    assert!(harmed > 10 && most < FLIPPED_KEYS, "{harmed} bits cost something, at most {most} of the keys");
}
