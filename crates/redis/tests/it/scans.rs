//! SCAN, KEYS and PUMICE.RANGE while others write: what is there throughout is answered, in order, on every page.

#![allow(clippy::disallowed_methods, reason = "writers are threads of their own")]

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use crate::common::client::encode;
use crate::common::{Client, Reply, Setup, TestServer, eventually};
use pumice_base::hash::HashMap;
use pumice_base::rng::Rng;
use pumice_redis::keyspace::Cursors;

/// Keys that are there throughout; every second number is left to the writers.
const STEADY: usize = 3000;

fn steady() -> BTreeSet<Vec<u8>> {
    (0..STEADY).map(|n| format!("k{:05}", 2 * n).into_bytes()).collect()
}

/// Writers that add, remove, rename and expire keys between the steady ones, and overwrite those, until told to stop.
struct Writers {
    stop: Arc<AtomicBool>,
    writes: Arc<AtomicU64>,
    threads: Vec<JoinHandle<()>>,
}

impl Writers {
    fn start(socket: &Path) -> Self {
        let (stop, writes) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let threads = (0..2)
            .map(|seed| {
                let (socket, stop, writes) = (socket.to_path_buf(), stop.clone(), writes.clone());
                std::thread::spawn(move || {
                    let (mut client, mut rng) = (Client::connect(&socket), Rng::from_seed(seed));
                    while !stop.load(Ordering::Relaxed) {
                        let odd = format!("k{:05}", 2 * rng.below(STEADY as u64) + 1);
                        let other = format!("k{:05}", 2 * rng.below(STEADY as u64) + 1);
                        let even = format!("k{:05}", 2 * rng.below(STEADY as u64));
                        match rng.below(6) {
                            0 => client.call(&["SET", &odd, "1"]),
                            1 => client.call(&["DEL", &odd]),
                            2 => client.call(&["RENAME", &odd, &other]),
                            3 => client.call(&["SET", &odd, "1", "PX", "1"]),
                            4 => client.call(&["HSET", &odd, "f", "v"]),
                            _ => client.call(&["SET", &even, "changed"]),
                        };
                        writes.fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        let writers = Self { stop, writes, threads };
        writers.write_on();
        writers
    }

    /// Returns after some more writes: before each walk, so that all have company whoever gets the processor.
    fn write_on(&self) {
        let before = self.writes.load(Ordering::Relaxed);
        eventually("others write", || self.writes.load(Ordering::Relaxed) >= before + 20);
    }

    fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads {
            thread.join().expect("a writer");
        }
    }
}

fn filled(drives: usize) -> TestServer {
    let setup = Setup { drives, memory_bytes: drives as u64 * (64 << 20), ..Setup::default() };
    let server = TestServer::with(setup);
    let mut client = server.client();
    let mut pipeline = Vec::new();
    steady().iter().for_each(|key| pipeline.extend(encode(&[b"SET", &key[..], b"v"])));
    client.send(&pipeline);
    (0..STEADY).for_each(|_| drop(client.read()));
    server
}

fn bytes(reply: Reply) -> Vec<u8> {
    match reply {
        Reply::Bulk(bytes) => bytes,
        other => panic!("not a string: {other}"),
    }
}

fn items(reply: Reply) -> Vec<Reply> {
    match reply {
        Reply::Array(items) => items,
        other => panic!("not an array: {other}"),
    }
}

/// The next cursor (or bound) and what the page holds.
fn page(reply: Reply) -> (Reply, Vec<Reply>) {
    let [next, found] = <[Reply; 2]>::try_from(items(reply)).expect("two elements");
    (next, items(found))
}

fn check_walk(what: &str, found: &[Vec<u8>]) {
    let seen: BTreeSet<_> = found.iter().cloned().collect();
    let missed: Vec<_> =
        steady().difference(&seen).map(|key| String::from_utf8_lossy(key).into_owned()).collect();
    assert!(missed.is_empty(), "{what} missed {} keys that were there throughout: {missed:?}", missed.len());
}

fn check_order(what: &str, found: &[Vec<u8>], backward: bool) {
    for pair in found.windows(2) {
        let fits = if backward { pair[0] > pair[1] } else { pair[0] < pair[1] };
        assert!(
            fits,
            "{what}: {:?} before {:?}",
            pair[0].escape_ascii().to_string(),
            pair[1].escape_ascii().to_string()
        );
    }
}

fn walk_scan(client: &mut Client, options: &str) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    let mut cursor = "0".to_string();
    loop {
        let (next, keys) = page(client.line(&format!("SCAN {cursor}{options}")));
        found.extend(keys.into_iter().map(bytes));
        cursor = String::from_utf8(bytes(next)).expect("a number");
        if cursor == "0" {
            return found;
        }
    }
}

#[test]
fn walks_answer_every_key_that_stays_while_others_come_and_go() {
    for drives in [1, 3] {
        let server = filled(drives);
        let writers = Writers::start(server.socket());
        let mut client = server.client();
        for round in 0..4 {
            writers.write_on();
            for options in ["", " COUNT 100", " COUNT 1000 TYPE string", " MATCH k0*"] {
                let found = walk_scan(&mut client, options);
                check_walk(&format!("SCAN{options}, round {round}, {drives} drives"), &found);
                check_order("SCAN", &found, false);
            }
            let found: Vec<_> = items(client.line("KEYS k*")).into_iter().map(bytes).collect();
            check_walk(&format!("KEYS, round {round}, {drives} drives"), &found);
            check_order("KEYS", &found, false);
            for count in [7, 100, 5000] {
                for backward in [false, true] {
                    let found = walk_range(&mut client, count, backward);
                    let what =
                        format!("PUMICE.RANGE COUNT {count} REV {backward}, round {round}, {drives} drives");
                    check_walk(&what, &found);
                    check_order(&what, &found, backward);
                }
            }
        }
        writers.end();
    }
}

fn walk_range(client: &mut Client, count: usize, backward: bool) -> Vec<Vec<u8>> {
    let (mut min, mut max) = (b"-".to_vec(), b"+".to_vec());
    let count_text = count.to_string();
    let mut found = Vec::new();
    loop {
        let mut command: Vec<&[u8]> = vec![b"PUMICE.RANGE", &min, &max, b"COUNT", count_text.as_bytes()];
        if backward {
            command.push(b"REV");
        }
        command.push(b"WITHVALUES");
        let (next, entries) = page(client.call(&command));
        assert!(entries.len() <= 2 * count, "a page of {} for COUNT {count}", entries.len() / 2);
        for entry in entries.chunks(2) {
            let key = bytes(entry[0].clone());
            let value = match &entry[1] {
                Reply::Bulk(value) => Some(&value[..]),
                _ => None,
            };
            let number: usize = String::from_utf8_lossy(&key[1..]).parse().expect("a number");
            let fits = match number % 2 {
                0 => matches!(value, Some(b"v" | b"changed")),
                _ => matches!(value, Some(b"1") | None),
            };
            assert!(fits, "{} holds {}", key.escape_ascii(), entry[1]);
            found.push(key);
        }
        match next {
            Reply::Null => return found,
            next if backward => max = bytes(next),
            next => min = bytes(next),
        }
    }
}

#[test]
fn ranges_keep_to_their_bounds_and_prefixes_in_both_directions() {
    let server = TestServer::with(Setup { drives: 2, memory_bytes: 128 << 20, ..Setup::default() });
    let mut client = server.client();
    let mut keys: Vec<Vec<u8>> = vec![b"".to_vec(), b"\xff".to_vec(), b"\xff\xff".to_vec(), b"a\0".to_vec()];
    keys.extend((0..60).map(|n| format!("{}{n}", ["a", "ab", "b"][n % 3]).into_bytes()));
    keys.sort();
    keys.iter().for_each(|key| drop(client.call(&[b"SET", &key[..], key])));
    let mut rng = Rng::from_seed(7);
    for case in 0..600 {
        let bound = |rng: &mut Rng| match rng.below(4) {
            0 => b"-".to_vec(),
            1 => b"+".to_vec(),
            kind => {
                let mut key = keys[rng.below(keys.len() as u64) as usize].clone();
                if rng.chance(0.3) {
                    key.push(b'5');
                }
                [if kind == 2 { b"[" } else { b"(" }, &key[..]].concat()
            }
        };
        let (min, max) = (bound(&mut rng), bound(&mut rng));
        let prefix: &[u8] =
            [&b""[..], b"a", b"ab", b"b1", b"\xff", b"\xff\xff", b"zz"][rng.below(7) as usize];
        let (backward, count) = (rng.chance(0.5), 1 + rng.below(30));
        let above = |key: &[u8]| match min[0] {
            b'-' => true,
            b'+' => false,
            b'[' => key >= &min[1..],
            _ => key > &min[1..],
        };
        let below = |key: &[u8]| match max[0] {
            b'-' => false,
            b'+' => true,
            b'[' => key <= &max[1..],
            _ => key < &max[1..],
        };
        let mut expected: Vec<&Vec<u8>> =
            keys.iter().filter(|key| above(key) && below(key) && key.starts_with(prefix)).collect();
        if backward {
            expected.reverse();
        }
        let count_text = count.to_string();
        let mut command: Vec<&[u8]> =
            vec![b"PUMICE.RANGE", &min, &max, b"PREFIX", prefix, b"COUNT", count_text.as_bytes()];
        if backward {
            command.push(b"REV");
        }
        let (next, found) = page(client.call(&command));
        let found: Vec<Vec<u8>> = found.into_iter().map(bytes).collect();
        let first: Vec<Vec<u8>> = expected.iter().take(count as usize).map(|key| key.to_vec()).collect();
        let shown =
            || command.iter().map(|word| word.escape_ascii().to_string()).collect::<Vec<_>>().join(" ");
        assert_eq!(found, first, "case {case}: {}", shown());
        let expected_next = expected.get(count as usize).map(|key| [b"[", &key[..]].concat());
        let next = if next == Reply::Null { None } else { Some(bytes(next)) };
        assert_eq!(next, expected_next, "case {case}: {}", shown());
    }
}

#[test]
fn a_cursor_that_the_server_does_not_know_starts_over_and_misses_nothing() {
    let server = filled(1);
    let mut client = server.client();
    let (next, _) = page(client.line("SCAN 0 COUNT 1500"));
    let cursor = String::from_utf8(bytes(next)).expect("a number");
    assert_ne!(cursor, "0");
    let server = server.restart(Setup::default());
    let mut client = server.client();
    let mut found = Vec::new();
    let mut cursor = cursor;
    while cursor != "0" {
        let (next, keys) = page(client.line(&format!("SCAN {cursor} COUNT 700")));
        found.extend(keys.into_iter().map(bytes));
        cursor = String::from_utf8(bytes(next)).expect("a number");
    }
    check_walk("SCAN over a restart", &found);
}

#[test]
fn a_page_of_values_too_long_for_a_record_ends_early_like_any_other() {
    const VALUE_BYTES: usize = 512 << 10;
    let server = TestServer::start();
    let mut client = server.client();
    for n in 0..20 {
        let reply = client.call(&[b"SET", format!("key{n:02}").as_bytes(), &vec![b'v'; VALUE_BYTES]]);
        assert_eq!(reply.to_string(), "OK");
    }
    // What is answered as null makes no page longer.
    client.call(&[&b"SET"[..], b"other", &vec![b'v'; (1 << 20) + 1]]);
    client.line("SET zzz last");
    for direction in ["", " REV"] {
        let (next, entries) =
            page(client.line(&format!("PUMICE.RANGE - + COUNT 30000 WITHVALUES{direction}")));
        let lens = entries.iter().map(|entry| if let Reply::Bulk(text) = entry { text.len() } else { 0 });
        let longest = (1 << 20) + VALUE_BYTES + 1024;
        assert!(lens.sum::<usize>() <= longest, "{} pairs on a page{direction}", entries.len() / 2);
        assert_ne!(next, Reply::Null, "there are more{direction}");
    }
    let mut found = 0;
    let mut from = b"-".to_vec();
    loop {
        let (next, entries) = page(client.call(&[&b"PUMICE.RANGE"[..], &from, b"+", b"WITHVALUES"]));
        found += entries.len() / 2;
        match next {
            Reply::Null => break,
            next => from = bytes(next),
        }
    }
    assert_eq!(found, 22, "all of them, page by page");
    let (next, entries) = page(client.line("PUMICE.RANGE - + COUNT 30000"));
    assert_eq!((next, entries.len()), (Reply::Null, 22), "their keys alone are one page");
}

#[test]
fn a_page_of_long_keys_ends_early_whatever_is_asked_for() {
    let server = TestServer::start();
    let mut client = server.client();
    let keys: BTreeSet<Vec<u8>> =
        (0..150).map(|n| format!("{n:03}{}", "k".repeat(50_000)).into_bytes()).collect();
    keys.iter().for_each(|key| assert_eq!(client.call(&[b"SET", &key[..], b"v"]).to_string(), "OK"));
    let (next, first) = page(client.line("SCAN 0 COUNT 100000"));
    let len: usize = first.into_iter().map(|key| bytes(key).len()).sum();
    assert!(len <= (4 << 20) + 50_003, "{len} bytes of keys in one answer");
    assert_ne!(bytes(next), b"0", "there are more");
    assert!(walk_scan(&mut client, " COUNT 100000").into_iter().collect::<BTreeSet<_>>() == keys);
}

/// A cursor that is given out anew is a new one, however old the place is that it stands for.
#[test]
fn of_cursors_those_are_forgotten_that_were_given_out_longest_ago() {
    const REMEMBERED: u64 = 65_536;
    let cursors = Cursors::default();
    let save = |n: u64| cursors.save(&n.to_be_bytes());
    let is_known = |cursor: u64| cursors.load(cursor, &[]).is_some();
    let first = save(0);
    let second = save(1);
    for n in 2..REMEMBERED {
        save(n);
    }
    assert_eq!(save(0), first, "the same place has the same cursor");
    save(REMEMBERED);
    assert!(is_known(first), "it was given out just now");
    assert!(!is_known(second), "it is the oldest");
    // However often.
    for _ in 0..3 * REMEMBERED {
        save(0);
    }
    assert!((2..=REMEMBERED).all(|n| is_known(save(n))));
}

/// What is drawn is not led astray by what else is stored: elements, other databases, what was deleted.
#[test]
fn random_keys_are_any_key_beside_much_else() {
    const KEYS: usize = 60;
    let server = TestServer::start();
    let mut client = server.client();
    for key in 0..KEYS {
        client.line(&format!("SET user:{key} v"));
    }
    for part in 0..20 {
        let fields: String = (0..1000).map(|n| format!(" f{part}:{n} v")).collect();
        client.line(&format!("HSET large{fields}"));
    }
    client.line("SELECT 1");
    for key in 0..2000 {
        client.line(&format!("SET other:{key} v"));
    }
    client.line("SELECT 0");
    for is_there in [true, false] {
        let mut drawn: HashMap<String, usize> = HashMap::default();
        for _ in 0..40 * KEYS {
            *drawn.entry(client.line("RANDOMKEY").to_string()).or_default() += 1;
        }
        let most = drawn.values().max().copied().unwrap_or(0);
        assert_eq!(drawn.len(), KEYS + usize::from(is_there), "{drawn:?}");
        // Keys of a slice that has few are drawn more often than others.
        assert!(most < 10 * 40, "{drawn:?}");
        client.line("DEL large");
    }
}
