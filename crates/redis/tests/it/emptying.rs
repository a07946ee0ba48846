//! What is counted of a database goes with it when it is emptied: each count takes room in the drive's metadata log, and there are as
//! many spaces as somebody empties databases.

use std::path::Path;

use crate::common::client::encode;
use crate::common::{Client, Reply, Setup, TestServer, eventually};
use pumice_flash::{Access, Device, DeviceSpec};
use pumice_kv::{Batch, Store, StoreOptions};
use pumice_redis::keyspace::latch_hash;

const SETUP: fn() -> Setup = || Setup { drives: 2, memory_bytes: 128 << 20, ..Setup::default() };

/// The names of what is counted on the drives, `space` or `space+` for keys that expire, without the databases' own.
fn left_over(server: &TestServer) -> Vec<String> {
    let server = server.server();
    let mut left = Vec::new();
    for (name, counted) in (0..server.node.drive_count()).flat_map(|drive| server.node.tallies(drive)) {
        let space = pumice_redis::keyspace::Space(name).of_keys();
        if server.spaces.database_of(space).is_none() {
            left.push(format!("{}{}: {counted}", space.0, if name == space.0 { "" } else { "+" }));
        }
    }
    left
}

/// Some keys on each of two drives, half of which expire.
fn fill(client: &mut Client) {
    for n in 0..40 {
        client.line(&format!("SET k{n} v"));
        client.line(&format!("SET e{n} v PX 100000000"));
    }
}

fn add_counts(drive: &Path, counts: &[(u32, i64)]) {
    let mut batch = Batch::new();
    counts.iter().for_each(|(name, delta)| batch.tally(*name, *delta));
    add(drive, batch);
}

/// Writes to a drive that nobody serves.
fn add(drive: &Path, batch: Batch) {
    let spec = DeviceSpec::Path(drive.to_path_buf());
    pumice_reactor::block_on(async move {
        let device = Device::open(&spec, Access::ReadWrite).await.expect("device");
        let store = Store::open(device, StoreOptions::default(), &|_, _| {}).await.expect("open").store;
        store.write(&batch).expect("written");
        store.close().await.expect("closed");
    });
}

#[test]
fn an_emptied_database_leaves_no_counts() {
    let server = TestServer::with(SETUP());
    let mut client = server.client();
    fill(&mut client);
    assert_eq!(client.line("FLUSHDB").to_string(), "OK");
    eventually("the counts of both drives are taken back", || left_over(&server).is_empty());
    fill(&mut client);
    client.line("SELECT 3");
    fill(&mut client);
    assert_eq!(client.line("FLUSHALL").to_string(), "OK");
    eventually("those of all databases are", || left_over(&server).is_empty());
    fill(&mut client);
    assert_eq!(client.line("DBSIZE").to_string(), "80");
    drop(client);
    let server = server.restart(SETUP());
    assert_eq!(left_over(&server), Vec::<String>::new());
    let mut client = server.client();
    client.line("SELECT 3");
    assert_eq!(client.line("DBSIZE").to_string(), "80");
}

#[test]
fn one_that_a_transaction_empties_leaves_no_counts() {
    let server = TestServer::with(SETUP());
    let mut client = server.client();
    fill(&mut client);
    client.line("MULTI");
    // Counted by the transaction before it empties the database; in a space of its own that it gives up; and what stays.
    for n in 0..2 {
        (0..40).for_each(|key| drop(client.line(&format!("SET new{n}:{key} v EX 1000"))));
        client.line("DEL k1 e1");
        client.line("FLUSHDB");
    }
    fill(&mut client);
    client.line("EXEC");
    eventually("the counts of both drives are taken back", || left_over(&server).is_empty());
    assert_eq!(client.line("DBSIZE").to_string(), "80");
}

#[test]
fn counts_that_were_left_on_a_drive_go_when_it_is_opened() {
    let server = TestServer::with(SETUP());
    let mut client = server.client();
    client.line("FLUSHDB");
    fill(&mut client);
    drop(client);
    let dir = server.into_dir();
    let old: Vec<(u32, i64)> = (100..3_000).flat_map(|space| [(space, 7), (space | 1 << 31, 2)]).collect();
    add_counts(&dir.path().join("drive0"), &old);
    add_counts(&dir.path().join("drive1"), &[(1, 5)]);
    let server = TestServer::in_dir(SETUP(), dir);
    assert_eq!(left_over(&server), Vec::<String>::new());
    assert_eq!(server.client().line("DBSIZE").to_string(), "80");
}

/// What a crash leaves when a database was emptied, and a key set on another drive than the record's: that drive's commit was
/// on flash before the record's. `counts`: whether it has the count, which older builds took back when they were started.
#[track_caller]
fn check_left_key(counts: bool) {
    let server = TestServer::with(SETUP());
    server.client().line("SET other v");
    let place_of = |key: &String| server.server().node.place(key.as_bytes());
    let key = (0..).map(|n| format!("key{n}")).find(|key| place_of(key).drive == 1).expect("a key");
    let slice = place_of(&key).slice;
    let dir = server.into_dir();
    // The space that a database of new drives is given when it is emptied.
    const NEXT: u32 = 17;
    let stored = [&NEXT.to_be_bytes()[..], &[0], key.as_bytes()].concat();
    let mut batch = Batch::new();
    batch.put(slice, &stored, 1, 0, b"of another time");
    if counts {
        batch.tally(NEXT, 1);
    }
    add(&dir.path().join("drive1"), batch);
    let server = TestServer::in_dir(SETUP(), dir);
    let is_given_back = server.server().node.store(1).is_retired(slice, &stored);
    // Nor is the space given out after another start.
    let server = server.restart(SETUP());
    let mut client = server.client();
    let of_key = [format!("GET {key}"), "DBSIZE".to_string()];
    assert_eq!(of_key.clone().map(|line| client.line(&line).to_string()), ["nil", "1"]);
    for _ in 0..3 {
        assert_eq!(client.line("FLUSHDB").to_string(), "OK");
        assert_eq!(of_key.clone().map(|line| client.line(&line).to_string()), ["nil", "0"]);
        // It can be written, and outlives what the flush and the merges do with the old one.
        assert_eq!(client.line(&format!("SET {key} new")).to_string(), "OK");
        assert_eq!(of_key.clone().map(|line| client.line(&line).to_string()), ["\"new\"", "1"]);
    }
    drop(client);
    let server = server.restart(SETUP());
    assert_eq!(of_key.map(|line| server.client().line(&line).to_string()), ["\"new\"", "1"]);
    assert!(is_given_back, "what it takes is won");
}

#[test]
fn keys_that_a_crash_left_in_the_next_space_do_not_come_back() {
    check_left_key(true);
    check_left_key(false);
}

/// The expiry found a key and waits for it behind a command that empties the database: what it would then write belongs to a space
/// that nobody is in, where a count stays for good.
#[test]
fn a_key_that_expired_in_a_database_emptied_meanwhile_is_not_taken_out_of_its_next_count() {
    let server = TestServer::start();
    let mut client = server.client();
    client.line("DEBUG SET-ACTIVE-EXPIRE 0");
    client.line("SET k v PX 1");
    eventually("its time is over", || client.line("EXISTS k") == Reply::Int(0));
    let latches = server.server().node.latches();
    let held = latches.try_latch(&[latch_hash(0, b"k")]).expect("nobody else writes");
    let waits = latches.waits();
    let mut other = server.client();
    other.send(&encode(&["FLUSHDB"]));
    eventually("FLUSHDB waits for the key", || latches.waits() > waits);
    client.line("DEBUG SET-ACTIVE-EXPIRE 1");
    eventually("the expiry waits behind it", || latches.waits() > waits + 1);
    drop(held);
    assert_eq!(other.read().to_string(), "OK");
    // It looks at one key after the other: when it has removed this one it is done with the first.
    client.line("SET later v PX 1");
    eventually("the next key is removed", || client.line("DBSIZE") == Reply::Int(0));
    assert_eq!(left_over(&server), Vec::<String>::new());
}
