//! The last element of a list goes alone where nothing else can be there, and with whatever a crash may have left where it can.

use std::ops::Bound;
use std::path::Path;

use crate::common::{Setup, TestServer, write_unserved};
use pumice_flash::{Access, Device, DeviceSpec};
use pumice_kv::{Batch, Direction, SliceId, SliceSet, Store, StoreOptions, Want};

/// The key `k` lies there, with 16 slices.
const SLICE: SliceId = SliceId(1);
const ID: u64 = 1;
const TAG: u8 = 2;
const HEAD: &[u8] = b"\0\0\0\x01\0k";
const HINTS_AT: usize = 18;
const HINT_NONE_OUTSIDE: u8 = 0x40;

fn element_prefix() -> Vec<u8> {
    [&1u32.to_be_bytes(), &[1][..], &ID.to_be_bytes()].concat()
}

fn element_key(index: i64) -> Vec<u8> {
    [&element_prefix()[..], &[0], &(index as u64 ^ 1 << 63).to_be_bytes()].concat()
}

/// A list of the elements 0 and 1, with others before and behind it.
fn with_others_outside() -> Batch {
    let mut batch = Batch::new();
    for index in -2..4 {
        batch.put(SLICE, &element_key(index), TAG, 0, index.to_string().as_bytes());
    }
    let head = [&ID.to_le_bytes()[..], &2u64.to_le_bytes(), &[0xcd, 0x1d, 0, 0, 0, 0, 0, 0]].concat();
    let head = [&head[..], &0i64.to_le_bytes(), &2i64.to_le_bytes()].concat();
    batch.put(SLICE, HEAD, TAG, 0, &head);
    batch
}

/// What the slice of `k` on a drive that nobody serves holds: keys and values.
fn stored(dir: &Path) -> Vec<(Vec<u8>, Vec<u8>)> {
    let spec = DeviceSpec::Path(dir.join("drive0"));
    pumice_reactor::block_on(async move {
        let device = Device::open(&spec, Access::ReadWrite).await.expect("device");
        let store = Store::open(device, StoreOptions::default(), &|_, _| {}).await.expect("open").store;
        let snapshot = store.snapshot_of(SLICE);
        let lower = Bound::Included(1u32.to_be_bytes().to_vec().into());
        let upper = Bound::Excluded(2u32.to_be_bytes().to_vec().into());
        let only = SliceSet::One(SLICE);
        let mut scan = store.scan(&snapshot, only, lower, upper, Direction::Forward, Want::Values);
        let mut rows = Vec::new();
        while let Some((key, entry)) = scan.next().await.expect("scan") {
            rows.push((key.to_vec(), entry.value.to_vec()));
        }
        drop(scan);
        drop(snapshot);
        store.close().await.expect("closed");
        rows
    })
}

#[track_caller]
fn hints_of(rows: &[(Vec<u8>, Vec<u8>)]) -> u8 {
    let head = rows.iter().find(|(key, _)| key == HEAD).expect("the key is there");
    head.1[HINTS_AT]
}

#[test]
fn what_a_crash_left_outside_goes_with_the_last_element() {
    for (first, last) in
        [("LPOP k", "LPOP k"), ("RPOP k", "RPOP k"), ("LPOP k", "RPOPLPUSH k l"), ("RPOP k", "LPOP k 5")]
    {
        let server = TestServer::with(Setup::default());
        server.client().line("RPUSH k soon-another");
        let dir = server.into_dir();
        write_unserved(dir.path(), with_others_outside());
        let of_list = |rows: Vec<(Vec<u8>, Vec<u8>)>| {
            rows.into_iter().filter(|(key, _)| key == HEAD || key.starts_with(&element_prefix())).count()
        };
        assert_eq!(of_list(stored(dir.path())), 7, "the list is there, with others outside");
        let server = TestServer::in_dir(Setup::default(), dir);
        let mut client = server.client();
        assert_eq!(client.line("LRANGE k 0 -1").to_string(), "[\"0\", \"1\"]");
        client.line(first);
        assert!(client.line(last).to_string().contains(if first == "LPOP k" { "1" } else { "0" }));
        assert_eq!(client.line("EXISTS k").to_string(), "0");
        let left = of_list(stored(server.into_dir().path()));
        assert_eq!(left, 0, "{first}, {last}: elements stay for ever");
    }
}

#[test]
fn a_list_says_that_nothing_is_outside_until_a_change_in_pieces_may_have_left_some() {
    let long = "x".repeat(200_000);
    let in_pieces: &[&[&str]] = &[
        &["LINSERT", "k", "BEFORE", "middle", "new"],
        &["LREM", "k", "1", "middle"],
        &["LTRIM", "k", "100000", "-1"],
    ];
    let at_once: &[&[&str]] =
        &[&["LPUSH", "k", "new"], &["LREM", "k", "1", "first"], &["LTRIM", "k", "1", "-1"], &["RPOP", "k"]];
    for (command, is_whole) in
        in_pieces.iter().map(|command| (command, false)).chain(at_once.iter().map(|command| (command, true)))
    {
        let server = TestServer::with(Setup::default());
        let mut client = server.client();
        if command[0] == "LTRIM" {
            let some: Vec<&str> = ["RPUSH", "k"].into_iter().chain(["x"; 10_000]).collect();
            for _ in 0..25 {
                client.call(&some);
            }
        } else {
            client.call(&["RPUSH", "k", "first"]);
            for at in 0..24 {
                client.call(&["RPUSH", "k", if at == 12 { "middle" } else { &long }]);
            }
        }
        let reply = client.call(command);
        let rows = stored(server.into_dir().path());
        let says_so = hints_of(&rows) & HINT_NONE_OUTSIDE != 0;
        assert_eq!(says_so, is_whole, "{command:?}: {reply}");
    }
}
