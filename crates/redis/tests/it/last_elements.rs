//! The last element of a list goes alone where nothing else can be there, and with whatever a crash may have left where it can.

use std::path::Path;

use crate::common::{Setup, TestServer, read_unserved, write_unserved};
use pumice_kv::{Batch, SliceId};

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

/// How many keys of the list, its head among them, a drive that nobody serves holds.
fn stored(dir: &Path) -> usize {
    let is_of_list = |key: &[u8]| key == HEAD || key.starts_with(&element_prefix());
    read_unserved(dir).into_iter().filter(|(_, key, _)| is_of_list(key)).count()
}

fn hints(dir: &Path) -> u8 {
    let rows = read_unserved(dir);
    let head = rows.iter().find(|(_, key, _)| key == HEAD).expect("the key is there");
    head.2.value[HINTS_AT]
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
        assert_eq!(stored(dir.path()), 7, "the list is there, with others outside");
        let server = TestServer::in_dir(Setup::default(), dir);
        let mut client = server.client();
        assert_eq!(client.line("LRANGE k 0 -1").to_string(), "[\"0\", \"1\"]");
        client.line(first);
        assert!(client.line(last).to_string().contains(if first == "LPOP k" { "1" } else { "0" }));
        assert_eq!(client.line("EXISTS k").to_string(), "0");
        let left = stored(server.into_dir().path());
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
        let says_so = hints(server.into_dir().path()) & HINT_NONE_OUTSIDE != 0;
        assert_eq!(says_so, is_whole, "{command:?}: {reply}");
    }
}
