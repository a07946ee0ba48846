//! Parts of large values: as long as the client names them, in as little memory as whole ones.

use crate::common::client::encode;
use crate::common::{Client, Reply, Setup, TestServer};
use crate::large_memory::{most, nothing_waits};
use pumice_base::rng::Rng;
use pumice_redis::options::Options;

const OUTPUT_BYTES_MAX: u64 = 8 << 20;
const VALUE_BYTES: usize = 16 << 20;

fn served() -> (TestServer, Vec<u8>) {
    let options = Options { output_bytes_max: OUTPUT_BYTES_MAX, port: 0, ..Options::default() };
    let server = TestServer::with(Setup { options, ..Setup::default() });
    let mut value = vec![0; VALUE_BYTES];
    Rng::from_seed(21).fill(&mut value);
    assert_eq!(server.client().call(&[&b"SET"[..], b"large", &value]).to_string(), "OK");
    (server, value)
}

#[test]
fn clients_that_do_not_read_a_part_of_a_large_value_hold_a_share_each() {
    const READERS: usize = 6;
    let (server, value) = served();
    for command in [["GETRANGE", "large", "0", "-1"], ["SUBSTR", "large", "5", "-5"]] {
        let mut silent: Vec<Client> = (0..READERS).map(|_| server.client()).collect();
        for client in &mut silent {
            client.send(&encode(&command));
        }
        let bound = OUTPUT_BYTES_MAX + READERS as u64 * (512 << 10) + (4 << 20);
        let waiting = &server.server().stats.output_waiting_bytes;
        let held = most(waiting, OUTPUT_BYTES_MAX / 2);
        assert!(held <= bound, "{command:?}: {held} B of replies waited, {bound} were to");
        assert_eq!(server.client().line("PING").to_string(), "PONG");
        let part = if command[2] == "0" { &value[..] } else { &value[5..VALUE_BYTES - 4] };
        for client in &mut silent {
            assert!(client.read() == Reply::Bulk(part.to_vec()), "{command:?}");
        }
    }
    nothing_waits(&server);
}

#[test]
fn any_part_of_a_large_value_is_what_was_stored_there() {
    let (server, value) = served();
    let mut client = server.client();
    let mut rng = Rng::from_seed(22);
    let mut lens = vec![1, 2, 4095, 256 << 10, (256 << 10) + 1, 1 << 20, (1 << 20) - 8192, 5 << 20];
    lens.extend((0..30).map(|_| rng.below(3 << 20) as usize + 1));
    for len in lens {
        for from in [0, VALUE_BYTES - len, rng.below((VALUE_BYTES - len) as u64) as usize] {
            let (start, end) = (from.to_string(), (from + len - 1).to_string());
            let found = client.line(&format!("GETRANGE large {start} {end}"));
            assert!(found == Reply::Bulk(value[from..from + len].to_vec()), "GETRANGE large {start} {end}");
        }
    }
    // In a transaction, and pipelined.
    client.line("MULTI");
    client.line("GETRANGE large 1000000 2000000");
    let Reply::Array(found) = client.line("EXEC") else { panic!("EXEC answers an array") };
    assert!(found == [Reply::Bulk(value[1_000_000..=2_000_000].to_vec())]);
    client.send(&encode(&["GETRANGE", "large", "7", "8"]).repeat(500));
    for _ in 0..500 {
        assert!(client.read() == Reply::Bulk(value[7..9].to_vec()));
    }
}
