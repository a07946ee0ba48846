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
