//! The real process and clients who know how it is built.

use std::hash::BuildHasher;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;

use crate::common::{PATIENCE, Server};
use pumice_base::hash::HashState;

/// What the hash of 16 bytes begins with where nobody seeds it (`pumice_base::hash`). It is folded with the first eight of them: where
/// these are the same, the product is zero.
const KNOWN: u64 = (0x5EED_u64.rotate_left(32) ^ 0x9E37_79B9_7F4A_7C15).rotate_right(16);
/// So many with one hash take a core a quarter of an hour.
const MEMBERS: u64 = 300_000;

fn member(n: u64) -> [u8; 16] {
    let mut member = [0; 16];
    member[..8].copy_from_slice(&KNOWN.to_le_bytes());
    member[8..].copy_from_slice(&n.to_le_bytes());
    member
}

#[test]
fn members_that_would_share_one_hash_in_every_unseeded_process_are_added_like_others() {
    let hash = |n: u64| HashState.hash_one(&member(n)[..]);
    assert!((1..1000).all(|n| hash(n) == hash(0)), "they do not share one here");
    let dir = tempfile::tempdir().unwrap();
    // What so many arguments take has room.
    let server = Server::start(dir.path(), &["--durability", "none", "--memory", "1GiB"]);
    let mut command = format!("*{}\r\n$4\r\nSADD\r\n$1\r\ns\r\n", MEMBERS + 2).into_bytes();
    for n in 0..MEMBERS {
        command.extend_from_slice(b"$16\r\n");
        command.extend_from_slice(&member(n));
        command.extend_from_slice(b"\r\n");
    }
    let mut stream = TcpStream::connect(("127.0.0.1", server.port)).expect("connected");
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(&command).expect("it takes the command");
    let mut reply = String::new();
    BufReader::new(stream).read_line(&mut reply).expect("an answer");
    assert_eq!(reply, format!(":{MEMBERS}\r\n"));
    server.stop();
}
