//! Lists as a crash leaves them in the midst of LINSERT or LREM (`docs/format/redis-keys.md`, gaps), written by hand: what
//! older versions left is ended as they would have, what does not decode is told of.

use crate::common::{Setup, TestServer, write_unserved};
use crate::full_drive::fill_up;
use pumice_kv::{Batch, SliceId};

/// The key `k` lies there, with 16 slices.
const SLICE: SliceId = SliceId(1);
const ID: u64 = 1;
const TAG: u8 = 2;

/// A list with a gap, its elements from index −1 on: `_` is an index that holds nothing.
struct Interrupted {
    elements: &'static str,
    gap: Vec<u8>,
    removed: Option<&'static str>,
}

/// Where a gap is, and, for LREM, until where it goes on and which way.
fn gap(start: i64, len: i64, removal: Option<(i64, u8)>) -> Vec<u8> {
    let mut record = [start.to_le_bytes(), len.to_le_bytes()].concat();
    if let Some((until, way)) = removal {
        record.extend(until.to_le_bytes());
        record.push(way);
    }
    record
}

impl Interrupted {
    fn batch(&self) -> Batch {
        let mut batch = Batch::new();
        let key = |sub: u8, field: &[u8]| {
            [&1u32.to_be_bytes(), &[1][..], &ID.to_be_bytes(), &[sub], field].concat()
        };
        let elements: Vec<&str> = self.elements.split(' ').collect();
        for (at, element) in (-1i64..).zip(&elements) {
            let index = (at as u64 ^ 1 << 63).to_be_bytes();
            if *element != "_" {
                batch.put(SLICE, &key(0, &index), TAG, 0, element.as_bytes());
            }
        }
        batch.put(SLICE, &key(1, b""), TAG, 0, &self.gap);
        if let Some(removed) = self.removed {
            batch.put(SLICE, &key(2, b""), TAG, 0, removed.as_bytes());
        }
        let count = elements.iter().filter(|element| **element != "_").count() as u64;
        let end = elements.len() as i64 - 1;
        let numbers =
            [&ID.to_le_bytes()[..], &count.to_le_bytes(), &[0xcd, 0x1d, 0x80, 0, 0, 0, 0, 0]].concat();
        let head = [&numbers[..], &(-1i64).to_le_bytes(), &end.to_le_bytes()].concat();
        batch.put(SLICE, b"\0\0\0\x01\0k", TAG, 0, &head);
        batch
    }
}

/// What a server answers that finds such a list as `k`.
#[track_caller]
fn check(list: &Interrupted, commands: &[(&str, &str)]) {
    let server = TestServer::with(Setup::default());
    server.client().line("RPUSH k soon-another");
    let dir = server.into_dir();
    write_unserved(dir.path(), list.batch());
    let server = TestServer::in_dir(Setup::default(), dir);
    let mut client = server.client();
    for (command, expected) in commands {
        assert_eq!(client.line(command).to_string().replace('"', ""), *expected, "{command}");
    }
}

#[test]
fn what_is_left_of_a_removal_is_done_and_the_rest_of_the_list_stays() {
    let to_the_end =
        Interrupted { elements: "a b _ c x d x e", gap: gap(1, 1, Some((3, 0))), removed: Some("x") };
    let to_the_start =
        Interrupted { elements: "e x d x c _ b a", gap: gap(4, 1, Some((2, 1))), removed: Some("x") };
    let wholly = ("LRANGE k 0 -1", "[a, b, c, d, x, e]");
    // Whatever looks first finds it done.
    check(&to_the_end, &[("LLEN k", "6"), wholly]);
    check(&to_the_end, &[wholly, ("LLEN k", "6")]);
    check(&to_the_end, &[("LREM k 0 x", "1"), ("LRANGE k 0 -1", "[a, b, c, d, e]")]);
    check(&to_the_end, &[("MULTI", "OK"), ("LLEN k", "QUEUED"), ("EXEC", "[6]"), wholly]);
    check(&to_the_start, &[("LLEN k", "6"), ("LRANGE k 0 -1", "[e, x, d, c, b, a]")]);
    check(&to_the_end, &[("COPY k l", "1"), ("LRANGE l 0 -1", wholly.1), wholly]);
    check(&to_the_end, &[("RENAME k l", "OK"), ("LRANGE l 0 -1", wholly.1)]);
    check(&to_the_end, &[("DEL k", "1"), ("RPUSH k n", "1"), ("LRANGE k 0 -1", "[n]")]);
}

/// Who only reads is not told that the drive is full.
#[test]
fn what_is_left_of_a_removal_is_done_on_a_full_drive() {
    let setup = || Setup { drive_bytes: 64 << 20, durability: "none", ..Setup::default() };
    let list = Interrupted { elements: "a b _ c x d x e", gap: gap(1, 1, Some((3, 0))), removed: Some("x") };
    let server = TestServer::with(setup());
    server.client().line("RPUSH k soon-another");
    let dir = server.into_dir();
    write_unserved(dir.path(), list.batch());
    let server = TestServer::in_dir(setup(), dir);
    let mut client = server.client();
    fill_up(&mut client);
    assert_eq!(client.line("LRANGE k 0 -1").to_string().replace('"', ""), "[a, b, c, d, x, e]");
}

#[test]
fn a_gap_alone_is_closed() {
    let list = |elements, start| Interrupted { elements, gap: gap(start, 2, None), removed: None };
    for list in [list("a _ _ x d x e", 0), list("a x d x _ _ e", 3), list("_ _ a x d x e", -1)] {
        check(&list, &[("LLEN k", "5"), ("LRANGE k 0 -1", "[a, x, d, x, e]")]);
    }
}

#[test]
fn what_does_not_decode_is_told_of_and_can_be_deleted() {
    let list = |gap, removed| Interrupted { elements: "a b _ c x d", gap, removed };
    for list in [
        list(gap(1, 1, Some((3, 0))), None),
        list(gap(1, 1, Some((3, 2))), Some("x")),
        list(gap(1, 1, None)[1..].to_vec(), None),
        list(gap(5, 1, None), None),
        list(gap(1, i64::MAX, None), None),
        list(gap(-2, 1, None), None),
    ] {
        let is_damaged =
            "(error) ERR key 'k' is damaged: what is noted of its unfinished LINSERT or LREM does not fit it";
        check(&list, &[("LLEN k", is_damaged), ("LRANGE k 0 -1", is_damaged), ("DEL k", "1")]);
    }
}
