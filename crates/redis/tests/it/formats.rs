//! How keys lie in the engine, pinned byte for byte: what this compares with is what drives in the field hold
//! (`docs/format/redis-keys.md`, `node.md`). A change here needs a new version number and code that reads the old one.

use std::path::Path;

use bytes::Bytes;

use crate::common::{Setup, TestServer, read_unserved};
use pumice_kv::{Entry, SliceId};

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Every entry of the drive in `dir`, a line each: slice, key, tag, expiry, value.
fn dump(dir: &Path) -> Vec<String> {
    let line = |(slice, key, entry): (SliceId, Bytes, Entry)| {
        format!("{} {} {} {} {}", slice.0, hex(&key), entry.tag, entry.expire_ms, hex(&entry.value))
    };
    read_unserved(dir).into_iter().map(line).collect()
}

/// A line with the id of a collection, which the engine hands out, as `ID`: big-endian in an element's key, little-endian at
/// the start of a head's value.
fn without_id(line: &str) -> String {
    let fields: Vec<&str> = line.split(' ').collect();
    let [slice, key, tag, expiry, value] = fields[..] else { panic!("five fields: {line}") };
    let is_element = key.len() >= 26 && &key[8..10] == "01";
    let is_head = &key[8..10] == "00" && ["2", "3", "4", "5"].contains(&tag);
    let key = if is_element { format!("{}ID{}", &key[..10], &key[26..]) } else { key.to_string() };
    let value = if is_head { format!("ID{}", &value[16..]) } else { value.to_string() };
    format!("{slice} {key} {tag} {expiry} {value}")
}

/// Runs commands on a new server of 16 slices and compares what lies in its engine then with `expected`: lines as
/// [`dump`] gives them, blanks inside of the hex for people, without the node's membership entry and ids.
#[track_caller]
fn check(commands: &[&str], expected: &str) {
    let server = TestServer::with(Setup::default());
    let mut client = server.client();
    for command in commands {
        let words: Vec<&[u8]> = command.split(' ').map(str::as_bytes).collect();
        let reply = client.call(&words).to_string();
        assert!(!reply.contains("ERR"), "{command}: {reply}");
    }
    drop(client);
    let directory = server.into_dir();
    let lines = dump(directory.path());
    let mut found: Vec<String> = lines.iter().map(|line| without_id(line)).collect();
    // The member entry's second copy, in the last slice.
    let last = found.pop().expect("an entry");
    let member =
        found.iter().find(|line| line.starts_with("0 ffffffff006d656d626572 ")).expect("a first one");
    assert_eq!(last, member.replacen('0', "3", 1));
    let expected: Vec<String> = expected
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .map(|line| {
            let [slice, key, tag, expiry, value] = line.split('|').collect::<Vec<_>>()[..] else {
                panic!("five fields: {line}")
            };
            let squeezed = |field: &str| field.split_whitespace().collect::<String>();
            let (slice, tag, expiry) = (slice.trim(), tag.trim(), expiry.trim());
            format!("{slice} {} {tag} {expiry} {}", squeezed(key), squeezed(value))
        })
        .collect();
    assert_eq!(found, expected, "found:\n{}", found.join("\n"));
}

const MEMBER: &str =
    "0 | ffffffff 00 6d656d626572 | 0 | 0 | 0100 0000 0000 0100 07070707070707070707070707070707";

#[test]
fn strings_and_the_member_entry_keep_their_layout() {
    check(
        &["SET s hello", "SET e x PXAT 4102444800000", "SET {tag}other y"],
        &format!(
            "0 | 00000001 00 73 | 1 | 0 | 68656c6c6f
             {MEMBER}
             2 | 00000001 00 7b7461677d6f74686572 | 1 | 0 | 79
             3 | 00000001 00 65 | 1 | 4102444800000 | 78"
        ),
    );
}

#[test]
fn strings_that_were_changed_in_place_or_counted_as_floats_say_so_in_their_tag() {
    check(
        &["SET s hello", "APPEND s !", "SETRANGE k 0 z", "INCRBYFLOAT e 3"],
        &format!(
            "0 | 00000001 00 73 | 33 | 0 | 68656c6c6f21
             {MEMBER}
             1 | 00000001 00 6b | 33 | 0 | 7a
             3 | 00000001 00 65 | 17 | 0 | 33"
        ),
    );
}

#[test]
fn lists_keep_their_layout() {
    check(
        &["RPUSH k b c", "LPUSH k a"],
        &format!(
            "{MEMBER}
             1 | 00000001 00 6b | 2 | 0 | ID 0300000000000000 cd1d 40 0000000000 ffffffffffffffff 0200000000000000
             1 | 00000001 01 ID 00 7fffffffffffffff | 2 | 0 | 61
             1 | 00000001 01 ID 00 8000000000000000 | 2 | 0 | 62
             1 | 00000001 01 ID 00 8000000000000001 | 2 | 0 | 63"
        ),
    );
}

#[test]
fn sets_keep_their_layout() {
    check(
        &["SADD k a 17"],
        &format!(
            "{MEMBER}
             1 | 00000001 00 6b | 3 | 0 | ID 0200000000000000 cd1d 02 0000000000
             1 | 00000001 01 ID 00 a24b1d54 3137 | 3 | 0 |
             1 | 00000001 01 ID 00 e6c632b6 61 | 3 | 0 |"
        ),
    );
}

#[test]
fn sorted_sets_keep_their_layout() {
    check(
        &["ZADD k 1.5 a -2 b -0 c"],
        &format!(
            "{MEMBER}
             1 | 00000001 00 6b | 4 | 0 | ID 0300000000000000 cd1d 00 0000000000
             1 | 00000001 01 ID 00 575a0b1c 62 | 4 | 0 | 00000000000000c0
             1 | 00000001 01 ID 00 8c40219a 63 | 4 | 0 | 0000000000000000
             1 | 00000001 01 ID 00 e6c632b6 61 | 4 | 0 | 000000000000f83f
             1 | 00000001 01 ID 01 3fffffffffffffff 62 | 4 | 0 |
             1 | 00000001 01 ID 01 8000000000000000 63 | 4 | 0 |
             1 | 00000001 01 ID 01 bff8000000000000 61 | 4 | 0 |"
        ),
    );
}

/// Only what Redis would not keep packed can hold a negative zero: here because of a long member.
#[test]
fn a_negative_zero_keeps_its_layout() {
    let long = "m".repeat(65);
    let hex_of_long = "6d".repeat(65);
    check(
        &[&format!("ZADD k 1 {long} -0 c")],
        &format!(
            "{MEMBER}
             1 | 00000001 00 6b | 4 | 0 | ID 0200000000000000 cd1d 01 0000000000
             1 | 00000001 01 ID 00 8c40219a 63 | 4 | 0 | 0000000000000080
             1 | 00000001 01 ID 00 c717daf6 {hex_of_long} | 4 | 0 | 000000000000f03f
             1 | 00000001 01 ID 01 8000000000000000 63 | 4 | 0 | 01
             1 | 00000001 01 ID 01 bff0000000000000 {hex_of_long} | 4 | 0 |"
        ),
    );
}

#[test]
fn hashes_keep_their_layout() {
    check(
        &["HSET k name value", "PEXPIREAT k 4102444800000"],
        &format!(
            "{MEMBER}
             1 | 00000001 00 6b | 5 | 4102444800000 | ID 0100000000000000 cd1d 00 0000000000
             1 | 00000001 01 ID 00 0c354ecd 6e616d65 | 5 | 0 | 76616c7565"
        ),
    );
}

#[test]
fn the_record_of_databases_keeps_its_layout() {
    let spaces: String = (5..=16).map(|space| format!("{space:02x}000000 ")).collect();
    check(
        &["SELECT 3", "SET gone 1", "FLUSHDB", "SET s 1"],
        &format!(
            "0 | 00000000 00 646174616261736573 | 0 | 0 | 02 000000 12000000 01000000 02000000 03000000 11000000 {spaces}
             0 | 00000011 00 73 | 1 | 0 | 31
             {MEMBER}
             3 | 00000000 00 6461746162617365732c20616761696e | 0 | 0 | 02 000000 12000000 01000000 02000000 \
                 03000000 11000000 {spaces}"
        ),
    );
}
