//! The record of which space each database is in lies in two slices: either is enough, and the other is written again.

use std::path::Path;

use crate::common::{Setup, TestServer};
use pumice_flash::{Access, Device, DeviceSpec};
use pumice_kv::{Batch, SliceId, Store, StoreOptions};
use pumice_redis::keyspace::{StoredSpaces, record_keys};

const SETUP: fn() -> Setup = || Setup { drive_bytes: 64 << 20, memory_bytes: 128 << 20, ..Setup::default() };

/// Puts something where one of the records should be.
type Change = fn(&mut Batch, SliceId, &[u8]);

/// Opens the drive of a server that has ended; answers the records there, first and last slice, after changing one of them.
fn records(drive: &Path, changed: Option<(usize, Change)>) -> [Option<Vec<u8>>; 2] {
    let spec = DeviceSpec::Path(drive.to_path_buf());
    pumice_reactor::block_on(async move {
        let device = Device::open(&spec, Access::ReadWrite).await.expect("device");
        let store = Store::open(device, StoreOptions::default(), &|_, _| {}).await.expect("open").store;
        let slices = [SliceId(0), SliceId(store.slice_count() - 1)];
        if let Some((which, change)) = changed {
            let mut batch = Batch::new();
            change(&mut batch, slices[which], &record_keys()[which]);
            store.write(&batch).expect("written");
        }
        let mut found = [None, None];
        for ((slice, key), found) in slices.into_iter().zip(record_keys()).zip(&mut found) {
            let entry = store.get(slice, &key).await.expect("reads");
            *found = entry.map(|entry| entry.value.to_vec());
        }
        store.close().await.expect("closed");
        found
    })
}

/// A record of an older build, in which no database was emptied.
fn of_version_1() -> Vec<u8> {
    let mut record = [1u32.to_le_bytes(), 17u32.to_le_bytes()].concat();
    (1..=16u32).for_each(|space| record.extend([space.to_le_bytes(), [0; 4]].concat()));
    record
}

#[test]
fn databases_are_where_either_record_says_and_the_other_is_written_again() {
    let damage: Change = |batch, slice, key| batch.put(slice, key, 0, 0, b"nothing that decodes");
    // As on drives that older builds wrote, if it is the second.
    let remove: Change = |batch, slice, key| batch.delete(slice, key);
    let older: Change = |batch, slice, key| batch.put(slice, key, 0, 0, &of_version_1());
    for change in [damage, remove, older] {
        for which in [0, 1] {
            let server = TestServer::with(SETUP());
            let mut client = server.client();
            for line in ["SET old 1", "FLUSHDB", "SET older 1", "MULTI", "FLUSHDB", "EXEC", "SET new 2"] {
                client.line(line);
            }
            drop(client);
            let dir = server.into_dir();
            let drive = dir.path().join("drive0");
            let [first, last] = records(&drive, None);
            assert!(first.is_some() && first == last, "{first:?} {last:?}");
            let changed = records(&drive, Some((which, change)));
            assert!(changed[which] != first && changed[1 - which] == first);
            let server = TestServer::in_dir(SETUP(), dir);
            let mut client = server.client();
            let replies = ["GET new", "EXISTS old older", "DBSIZE"].map(|line| client.line(line).to_string());
            assert_eq!(replies, ["\"2\"", "0", "1"]);
            drop(client);
            let dir = server.into_dir();
            assert_eq!(records(&dir.path().join("drive0"), None), [first, last], "both are whole again");
        }
    }
}

#[test]
fn where_neither_record_reads_nothing_is_made_up() {
    let server = TestServer::with(SETUP());
    server.client().line("FLUSHALL");
    let dir = server.into_dir();
    let drive = dir.path().join("drive0");
    for which in [0, 1] {
        records(&drive, Some((which, |batch, slice, key| batch.put(slice, key, 0, 0, b"nothing"))));
    }
    pumice_reactor::block_on(async {
        let device = Device::open(&DeviceSpec::Path(drive), Access::ReadOnly).await.expect("device");
        let store = Store::open(device, StoreOptions::default(), &|_, _| {}).await.expect("open").store;
        assert!(StoredSpaces::read(&store).await.is_err(), "which database is in which space is not known");
    });
}
