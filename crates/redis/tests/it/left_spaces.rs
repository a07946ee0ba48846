//! Spaces that databases left: a drive that does not take their retirement is asked again, now and at the next start, and what lies
//! in them meanwhile is in nobody's way.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::common::{PATIENCE, Reply, Setup, TestServer, open};
use pumice_flash::{Access, Device, DeviceSpec};
use pumice_kv::{Batch, SliceId, Store, StoreOptions, Turn};
use pumice_node::{Node, NodeBatch, Place};
use pumice_redis::context::Ctx;
use pumice_redis::face;
use pumice_redis::keyspace::{DATABASES, Space, Spaces, head_prefix, record_keys};
use pumice_redis::server::Server;

const SETUP: fn() -> Setup =
    || Setup { drives: 2, drive_bytes: 64 << 20, memory_bytes: 128 << 20, ..Setup::default() };

/// The slice of the second drive in whose tables old keys lie.
const OLD: Place = Place { drive: 1, slice: SliceId(0) };
/// One that has no tables: prefixes retired there are forgotten as soon as a checkpoint knows of them.
const EMPTY: Place = Place { drive: 1, slice: SliceId(1) };
/// More than the expiry looks for at a time.
const OLD_KEYS: usize = 300;

fn stored(space: Space, key: &str) -> Vec<u8> {
    [&head_prefix(space)[..], key.as_bytes()].concat()
}

/// Keys whose time is over, with their places, on the second drive.
fn put_expired(
    node: &Node,
    space: Space,
    name: &str,
    keys: usize,
    is_place: impl Fn(Place) -> bool,
) -> Vec<(Place, Vec<u8>)> {
    let all = (0..).map(|n| format!("{name}{n}")).map(|key| (node.place(key.as_bytes()), key));
    let on = all.filter(|(place, _)| place.drive == OLD.drive && is_place(*place)).take(keys);
    let put: Vec<_> = on.map(|(place, key)| (place, stored(space, &key))).collect();
    let mut batch = NodeBatch::new();
    put.iter().for_each(|(place, key)| batch.put(*place, key, 1, 1, b"v"));
    for counted in [space, space.expiring()] {
        batch.tally(OLD, counted.0, put.len() as i64);
    }
    node.write_in(&batch, &mut Turn::default()).expect("written");
    put
}

/// Retires so many other prefixes on the second drive that it takes no more before some are forgotten, which waits for background
/// work.
fn let_it_refuse(node: &Node) {
    let most = node.store(OLD.drive).heap().metadata_bytes_max();
    let mut batch = NodeBatch::new();
    // Each takes 80 bytes; three sixteenths are too much.
    for n in 0..most / 5 / 80 {
        batch.retire(EMPTY, format!("{n:064}").as_bytes());
    }
    node.write_in(&batch, &mut Turn::default()).expect("written");
}

async fn eventually(what: &str, mut test: impl AsyncFnMut() -> bool) {
    for _ in 0..PATIENCE.as_millis() / 10 {
        if test().await {
            return;
        }
        pumice_reactor::sleep(Duration::from_millis(10)).await;
    }
    panic!("not within {PATIENCE:?}: {what}");
}

/// A server of which nothing runs that nobody asked for, whose second drive refuses to retire the space of an emptied database in
/// which [`OLD_KEYS`] keys lie.
async fn with_a_space_left(dir: &Path) -> (Node, Arc<Server>, Vec<(Place, Vec<u8>)>) {
    let setup = SETUP();
    let node = open(&setup, dir).await;
    let server = Arc::new(Server::new(setup.options.clone()).expect("a server"));
    server.attach(node.clone()).await.expect("attached");
    let old = put_expired(&node, Space(1), "old", OLD_KEYS, |place| place == OLD);
    node.store(OLD.drive).checkpoint().await.expect("in tables");
    let_it_refuse(&node);
    let mut ctx = Ctx::for_service(server.clone());
    ctx.flush(&[0]).await.map_err(|failure| failure.lossy().into_owned()).expect("emptied");
    (node, server, old)
}

async fn is_there(node: &Node, (place, key): &(Place, Vec<u8>)) -> bool {
    node.get(*place, key).await.expect("read").is_some()
}

#[test]
fn a_refused_retirement_is_tried_again_until_it_is_taken() {
    let dir = tempfile::tempdir().expect("a directory");
    pumice_reactor::block_on(async move {
        let (node, server, old) = with_a_space_left(dir.path()).await;
        // Longer than the engine waits for merges before it refuses: that nothing tells of it is what the rest is about.
        pumice_reactor::sleep(Duration::from_millis(2_500)).await;
        let (place, key) = &old[0];
        assert!(!node.store(place.drive).is_retired(place.slice, key));
        node.start_background();
        // What is counted of it goes in the same batch.
        let counted = || [1, 1 | 1 << 31].map(|name| node.tally_on(OLD.drive, name));
        eventually("the old space is retired", async || counted() == [0, 0]).await;
        assert!(node.store(place.drive).is_retired(place.slice, key) || !is_there(&node, &old[0]).await);
        server.stopping.set();
        node.close().await.expect("closed");
    });
}

#[test]
fn expired_keys_in_a_space_that_cannot_be_retired_do_not_stand_before_others() {
    let dir = tempfile::tempdir().expect("a directory");
    pumice_reactor::block_on(async move {
        let (node, server, old) = with_a_space_left(dir.path()).await;
        let space = server.spaces.of(0);
        let new = put_expired(&node, space, "new", 40, |place| place.slice > OLD.slice);
        pumice_reactor::spawn(face::keep_house(server.clone()));
        eventually("expired keys of the database are removed", async || {
            node.tally_on(OLD.drive, space.0) == 0
        })
        .await;
        for key in &new {
            assert!(!is_there(&node, key).await);
        }
        assert!(is_there(&node, &old[0]).await, "nobody deletes one by one what is to be retired");
        server.stopping.set();
        node.close().await.expect("closed");
    });
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

/// A record with the databases in the spaces of a new drive, and `next` the next to be given out.
fn record(next: u32) -> Vec<u8> {
    let mut record = vec![2, 0, 0, 0];
    record.extend(next.to_le_bytes());
    for database in 0..DATABASES as u32 {
        record.extend((database + 1).to_le_bytes());
    }
    record
}

/// Stores a record on drives that nobody serves.
fn add_record(dir: &Path, next: u32) {
    let mut batch = Batch::new();
    batch.put(SliceId(0), &record_keys()[0], 0, 0, &record(next));
    add(&dir.join("drive0"), batch);
}

#[test]
fn a_space_that_was_not_retired_for_long_is_when_the_drives_are_opened() {
    let server = TestServer::with(SETUP());
    server.client().line("SET k v");
    let dir = server.into_dir();
    add_record(dir.path(), 100);
    let key = stored(Space(50), "old");
    let mut batch = Batch::new();
    for slice in 0..4 {
        batch.put(SliceId(slice), &key, 1, 0, b"v");
    }
    batch.tally(50, 4);
    add(&dir.path().join("drive1"), batch);
    let server = TestServer::in_dir(SETUP(), dir);
    let store = server.server().node.store(1);
    let is_retired: Vec<bool> = (0..4).map(|slice| store.is_retired(SliceId(slice), &key)).collect();
    assert_eq!(is_retired, [true; 4]);
    let mut client = server.client();
    assert_eq!(["GET k", "DBSIZE"].map(|line| client.line(line).to_string()), ["\"v\"", "1"]);
}

#[test]
fn a_database_is_not_emptied_when_there_is_no_space_left_to_give_it() {
    let server = TestServer::with(SETUP());
    server.client().line("SET k v");
    let dir = server.into_dir();
    // The last one that can be given out is 2³¹ - 1.
    add_record(dir.path(), (1 << 31) - 1);
    let server = TestServer::in_dir(SETUP(), dir);
    let mut client = server.client();
    client.line("SELECT 1");
    client.line("SET l v");
    assert_eq!(client.line("FLUSHDB").to_string(), "OK");
    client.line("SELECT 0");
    for command in ["FLUSHDB", "FLUSHALL"] {
        let Reply::Error(error) = client.line(command) else { panic!("{command} is refused") };
        assert!(error.contains("too many times"), "{error}");
    }
    client.line("MULTI");
    client.line("FLUSHDB");
    assert!(client.line("EXEC").to_string().contains("too many times"));
    assert_eq!(["GET k", "DBSIZE"].map(|line| client.line(line).to_string()), ["\"v\"", "1"]);
    drop(client);
    let server = server.restart(SETUP());
    let mut client = server.client();
    assert_eq!(client.line("GET k").to_string(), "\"v\"");
    client.line("SELECT 1");
    assert_eq!(client.line("DBSIZE").to_string(), "0");
}

#[test]
fn a_record_that_nobody_wrote_is_not_taken() {
    let check = |what: &str, at: usize, number: u32| {
        let mut record = record(100);
        record[at..at + 4].copy_from_slice(&number.to_le_bytes());
        assert!(Spaces::decode(&record).is_none(), "{what}");
    };
    assert!(Spaces::decode(&record(17)).is_some_and(|spaces| spaces.of(15) == Space(16)));
    assert!(Spaces::decode(&record(1 << 31)).is_some(), "the last one has been given out");
    check("a next space that is no space", 4, (1 << 31) + 1);
    check("nor this", 4, u32::MAX);
    check("a next space that is in use", 4, 16);
    check("none", 4, 0);
    check("a database among the server's own records", 8, 0);
    check("two in one space", 8, 2);
    check("one in a space that nobody was given", 8, 100);
    check("one where only counts are", 8, 1 | 1 << 31);
}
