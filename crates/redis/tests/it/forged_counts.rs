//! Counts in heads of collections are read from flash, and not believed.

use crate::common::{Setup, TestServer, write_unserved};
use pumice_kv::{Batch, SliceId};

/// The key `k` lies there, with 16 slices.
const SLICE: SliceId = SliceId(1);
/// Its slot.
const HOME: [u8; 2] = [0xcd, 0x1d];
const ID: u64 = 1;

/// A server that finds a collection of one element, whose head says that there are `count`.
fn served(tag: u8, count: u64) -> TestServer {
    let server = TestServer::with(Setup::default());
    server.client().line("RPUSH k soon-another");
    let dir = server.into_dir();
    let mut batch = Batch::new();
    let element = [&1u32.to_be_bytes(), &[1][..], &ID.to_be_bytes(), &[0], b"hash", &[b'e'; 1000]].concat();
    batch.put(SLICE, &element, tag, 0, &[0; 8]);
    let head = [&ID.to_le_bytes()[..], &count.to_le_bytes(), &HOME, &[0; 6]].concat();
    batch.put(SLICE, b"\0\0\0\x01\0k", tag, 0, &head);
    write_unserved(dir.path(), batch);
    TestServer::in_dir(Setup::default(), dir)
}

#[test]
fn an_estimate_of_memory_is_at_most_what_can_be_told() {
    for tag in [3, 4, 5] {
        // The most that a head may say.
        let server = served(tag, 1 << 56);
        let mut client = server.client();
        for line in ["MEMORY USAGE k SAMPLES 0", "MEMORY USAGE k"] {
            assert_eq!(client.line(line).to_string(), i64::MAX.to_string(), "{line} of tag {tag}");
        }
    }
}
