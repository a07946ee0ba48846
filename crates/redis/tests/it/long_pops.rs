//! Commands that answer with all that they remove: as much as the client says, in bounded memory.

use std::sync::atomic::Ordering;

use crate::common::{Client, Reply, Setup, TestServer};
use pumice_redis::options::Options;

const OUTPUT_BYTES_MAX: u64 = 1 << 20;

fn served() -> TestServer {
    served_with(OUTPUT_BYTES_MAX)
}

fn served_with(output_bytes_max: u64) -> TestServer {
    let options = Options { output_bytes_max, port: 0, ..Options::default() };
    TestServer::with(Setup { options, ..Setup::default() })
}

/// Sends `command` with what `item` says of each of `count` elements, many at a time.
pub fn add(client: &mut Client, command: &str, count: usize, item: impl Fn(usize) -> Vec<String>) {
    let numbers: Vec<usize> = (0..count).collect();
    for numbers in numbers.chunks(1000) {
        let mut words: Vec<String> = command.split(' ').map(str::to_string).collect();
        words.extend(numbers.iter().flat_map(|&n| item(n)));
        assert!(matches!(client.call(&words), Reply::Int(_)));
    }
}

#[track_caller]
fn assert_refused(client: &mut Client, line: &str, name: &str) {
    let reply = client.line(line).to_string();
    assert!(reply.starts_with(&format!("(error) OOM {name} has collected")), "{line}: {reply:.100}");
}

#[test]
fn who_would_take_more_than_replies_may_hold_is_refused_and_nothing_is_removed() {
    const ELEMENTS: usize = 3000;
    let server = served();
    let mut client = server.client();
    let long = |n: usize| format!("{n:0>1000}");
    add(&mut client, "RPUSH l", ELEMENTS, |n| vec![long(n)]);
    add(&mut client, "SADD s", ELEMENTS, |n| vec![long(n)]);
    add(&mut client, "ZADD z", ELEMENTS, |n| vec![n.to_string(), long(n)]);
    for count in [ELEMENTS - 1, ELEMENTS, 1 << 40] {
        assert_refused(&mut client, &format!("LPOP l {count}"), "LPOP");
        assert_refused(&mut client, &format!("RPOP l {count}"), "RPOP");
        assert_refused(&mut client, &format!("LMPOP 1 l RIGHT COUNT {count}"), "LMPOP");
        assert_refused(&mut client, &format!("SPOP s {count}"), "SPOP");
        assert_refused(&mut client, &format!("ZPOPMIN z {count}"), "ZPOPMIN");
        assert_refused(&mut client, &format!("ZPOPMAX z {count}"), "ZPOPMAX");
        assert_refused(&mut client, &format!("ZMPOP 1 z MAX COUNT {count}"), "ZMPOP");
        client.line("MULTI");
        client.line("INCR n");
        client.line(&format!("LPOP l {count}"));
        assert_refused(&mut client, "EXEC", "EXEC");
    }
    assert_eq!(server.server().stats.exec_bytes.load(Ordering::Relaxed), 0, "it is let go of");
    for (line, size) in [("LLEN l", "3000"), ("SCARD s", "3000"), ("ZCARD z", "3000"), ("EXISTS n", "0")] {
        assert_eq!(client.line(line).to_string(), size, "{line}");
    }
    // Fewer at a time can be had, to the last.
    for (line, values) in [
        ("LPOP l 300", 1),
        ("RPOP l 300", 1),
        ("LMPOP 1 l LEFT COUNT 300", 1),
        ("SPOP s 300", 1),
        ("ZPOPMIN z 300", 2),
        ("ZPOPMAX z 300", 2),
        ("ZMPOP 1 z MIN COUNT 300", 1),
    ] {
        let Reply::Array(mut taken) = client.line(line) else { panic!("{line} answers an array") };
        if let [Reply::Bulk(_), Reply::Array(of_key)] = &mut taken[..] {
            taken = std::mem::take(of_key);
        }
        assert_eq!(taken.len(), 300 * values, "{line}");
    }
    for (line, size) in [("LLEN l", "2100"), ("SCARD s", "2700"), ("ZCARD z", "2100")] {
        assert_eq!(client.line(line).to_string(), size, "{line}");
    }
    assert_eq!(client.line("LINDEX l 0").to_string(), format!("\"{}\"", long(600)));
    assert_eq!(client.line("LINDEX l -1").to_string(), format!("\"{}\"", long(2699)));
    for (pop, size) in [("LPOP l 700", "LLEN l"), ("SPOP s 400", "SCARD s"), ("ZPOPMIN z 300", "ZCARD z")] {
        while client.line(size).to_string() != "0" {
            let taken = client.line(pop).to_string();
            assert!(!taken.starts_with("(error)"), "{pop}: {taken:.100}");
        }
    }
    assert_eq!(client.line("DBSIZE").to_string(), "0");
}

/// What is written counts, too: of short elements it is more than the answer.
#[test]
fn short_elements_are_bounded_by_what_their_removal_takes() {
    const ELEMENTS: usize = 30_000;
    let server = served();
    let mut client = server.client();
    add(&mut client, "RPUSH l", ELEMENTS, |_| vec!["v".into()]);
    add(&mut client, "SADD s", ELEMENTS, |n| vec![n.to_string()]);
    add(&mut client, "ZADD z", ELEMENTS, |n| vec![n.to_string(), n.to_string()]);
    for (pop, name) in [("LPOP l", "LPOP"), ("SPOP s", "SPOP"), ("ZPOPMAX z", "ZPOPMAX")] {
        assert_refused(&mut client, &format!("{pop} {}", ELEMENTS - 1), name);
    }
    // All of them are removed at once.
    for (pop, values) in [("LPOP l", 1), ("SPOP s", 1), ("ZPOPMIN z", 2)] {
        let Reply::Array(taken) = client.line(&format!("{pop} {ELEMENTS}")) else { panic!("{pop}") };
        assert_eq!(taken.len(), ELEMENTS * values, "{pop}");
    }
    assert_eq!(client.line("DBSIZE").to_string(), "0");
}

#[test]
fn one_element_alone_is_never_too_much() {
    let server = served_with(32 << 10);
    let mut client = server.client();
    let name = "m".repeat(60_000);
    for (add, pop, answer) in [
        ("SADD s", "SPOP s", format!("\"{name}\"")),
        ("SADD s", "SPOP s 1", format!("[\"{name}\"]")),
        ("ZADD z 1", "ZPOPMIN z", format!("[\"{name}\", \"1\"]")),
        ("ZADD z 1", "ZPOPMAX z 9", format!("[\"{name}\", \"1\"]")),
    ] {
        assert_eq!(client.line(&format!("{add} {name}")).to_string(), "1");
        assert!(client.line(pop).to_string() == answer, "{pop}");
    }
    let element = vec![b'e'; 3 << 20];
    for pop in ["LPOP l", "RPOP l 1", "LPOP l 5", "LMPOP 1 l LEFT"] {
        assert_eq!(client.call(&[&b"RPUSH"[..], b"l", &element]).to_string(), "1");
        let answer = match client.line(pop) {
            Reply::Array(answer) => answer.last().cloned().expect("an element"),
            answer => answer,
        };
        let answer = if let Reply::Array(mut of_key) = answer { of_key.remove(0) } else { answer };
        assert!(answer == Reply::Bulk(element.clone()), "{pop}");
        assert_eq!(client.line("EXISTS l").to_string(), "0", "{pop}");
    }
}
