//! Results that are sorted in memory before they are answered: in the right order however many they are, and no more than memory takes.

use pumice_redis::options::Options;

use crate::common::{Client, Reply, Setup, TestServer};

const MEMBERS: usize = 9_000;

/// Two sorted sets that share half of their members, whose scores come in no order and often twice.
fn fill(client: &mut Client) {
    for (key, from) in [("a", 0), ("b", MEMBERS / 2)] {
        for first in (from..from + MEMBERS).step_by(500) {
            let mut words = vec!["ZADD".to_owned(), key.to_owned()];
            words.extend(
                (first..first + 500).flat_map(|n| [(n * 7_919 % 1_000).to_string(), format!("m{n}")]),
            );
            assert_eq!(client.call(&words), Reply::Int(500));
        }
    }
}

/// ZUNION, ZINTER and ZDIFF answer what their STORE forms store.
fn answered_as_stored(client: &mut Client) {
    for (command, count) in
        [("ZUNION", MEMBERS + MEMBERS / 2), ("ZINTER", MEMBERS / 2), ("ZDIFF", MEMBERS / 2)]
    {
        assert_eq!(client.line(&format!("{command}STORE stored 2 a b")), Reply::Int(count as i64));
        for (answered, stored) in [
            (format!("{command} 2 a b WITHSCORES"), "ZRANGE stored 0 -1 WITHSCORES"),
            (format!("{command} 2 a b"), "ZRANGE stored 0 -1"),
        ] {
            let (answered, stored) = (client.line(&answered), client.line(stored));
            assert!(answered == stored, "{command}");
        }
    }
}

fn with_output_bytes(output_bytes_max: u64) -> TestServer {
    let options = Options { output_bytes_max, port: 0, ..Options::default() };
    TestServer::with(Setup { options, ..Setup::default() })
}

#[test]
fn what_is_answered_has_the_order_of_what_is_stored() {
    let server = TestServer::start();
    let mut client = server.client();
    fill(&mut client);
    answered_as_stored(&mut client);
    assert_eq!(client.line("ZUNION 2 none neither"), Reply::Array(Vec::new()));
}

/// The union takes 1.2 MB, of which half of these may be held at a time: three passes or a few more.
#[test]
fn more_than_memory_takes_is_read_again_for_each_part() {
    for output_bytes_max in [1 << 20, 640 << 10] {
        let server = with_output_bytes(output_bytes_max);
        let mut client = server.client();
        fill(&mut client);
        answered_as_stored(&mut client);
    }
}

#[test]
fn members_are_answered_though_hardly_one_has_room() {
    let server = with_output_bytes(64 << 10);
    let mut client = server.client();
    for n in 0..12 {
        let (score, member) = ((n * 7 % 5).to_string(), format!("{n:02}{}", "m".repeat(40_000)));
        client.call(&["ZADD", "a", &score, &member]);
    }
    let (answered, stored) = (client.line("ZUNION 1 a WITHSCORES"), client.line("ZRANGE a 0 -1 WITHSCORES"));
    assert!(answered == stored);
}

#[test]
fn what_would_be_read_for_ever_is_refused_and_can_be_stored() {
    let server = with_output_bytes(8 << 10);
    let mut client = server.client();
    fill(&mut client);
    let Reply::Error(refused) = client.line("ZUNION 2 a b") else { panic!("an error") };
    assert!(
        refused.starts_with("OOM 13500 members are more than 16 times") && refused.contains("ZUNIONSTORE"),
        "{refused}"
    );
    assert_eq!(client.line("ZUNIONSTORE stored 2 a b"), Reply::Int((MEMBERS + MEMBERS / 2) as i64));
}
