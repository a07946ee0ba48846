//! LPOS of what is in a list very often: its places leave while they are found.

use crate::common::client::encode;
use crate::common::{Reply, Setup, TestServer};
use crate::large_memory::most;
use crate::long_pops::add;
use pumice_redis::options::Options;

const OUTPUT_BYTES_MAX: u64 = 1 << 20;

#[test]
fn places_of_an_element_beyond_number_leave_as_they_are_found() {
    const ELEMENTS: usize = 400_000;
    let options = Options { output_bytes_max: OUTPUT_BYTES_MAX, port: 0, ..Options::default() };
    let server = TestServer::with(Setup { options, ..Setup::default() });
    let mut client = server.client();
    add(&mut client, "RPUSH l", ELEMENTS, |n| vec![if n % 10 == 9 { "x".into() } else { "v".into() }]);
    let wanted = |count: usize, reverse: bool| {
        let places = (0..ELEMENTS as i64).filter(|n| n % 10 != 9).map(Reply::Int);
        let places: Vec<Reply> = if reverse { places.rev().collect() } else { places.collect() };
        places.into_iter().take(count).collect::<Vec<_>>()
    };
    for (line, places) in [
        ("LPOS l v COUNT 0", wanted(usize::MAX, false)),
        ("LPOS l v RANK -1 COUNT 0", wanted(usize::MAX, true)),
        ("LPOS l v RANK 5 COUNT 200000", wanted(200_004, false)[4..].to_vec()),
        ("LPOS l v COUNT 0 MAXLEN 100", wanted(90, false)),
        ("LPOS l none COUNT 0", vec![]),
    ] {
        assert!(client.line(line) == Reply::Array(places), "{line}");
    }
    client.send(&encode(&["LPOS", "l", "v", "COUNT", "0"]));
    let waiting = &server.server().stats.output_waiting_bytes;
    let held = most(waiting, OUTPUT_BYTES_MAX / 2);
    assert!(held <= OUTPUT_BYTES_MAX + (512 << 10), "{held} B of replies waited");
    assert!(client.read() == Reply::Array(wanted(usize::MAX, false)));
}
