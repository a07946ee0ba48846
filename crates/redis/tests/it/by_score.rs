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

#[test]
fn what_is_answered_has_the_order_of_what_is_stored() {
    let server = TestServer::start();
    let mut client = server.client();
    fill(&mut client);
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
    assert_eq!(client.line("ZUNION 2 none neither"), Reply::Array(Vec::new()));
}

#[test]
fn more_than_memory_takes_is_refused_and_can_be_stored() {
    let options = Options { output_bytes_max: 640 << 10, port: 0, ..Options::default() };
    let server = TestServer::with(Setup { options, ..Setup::default() });
    let mut client = server.client();
    fill(&mut client);
    for _ in 0..3 {
        let Reply::Error(refused) = client.line("ZUNION 2 a b") else { panic!("an error") };
        assert!(refused.starts_with("OOM ZUNION has collected"), "{refused}");
    }
    // What was refused holds nothing.
    assert_eq!(client.line("ZINTERSTORE stored 2 a b"), Reply::Int(MEMBERS as i64 / 2));
    let Reply::Array(found) = client.line("ZINTER 2 a b") else { panic!("an array") };
    assert_eq!(found.len(), MEMBERS / 2);
    assert_eq!(client.line("ZUNIONSTORE stored 2 a b"), Reply::Int((MEMBERS + MEMBERS / 2) as i64));
}
