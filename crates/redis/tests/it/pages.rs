//! PUMICE.RANGE and HSCAN of values that lie on flash: a page reads what it answers, and little else.

use crate::common::{Client, Reply, Setup, TestServer, info_number};
use pumice_base::rng::Rng;
use pumice_redis::options::Options;

const KEYS: u32 = 2_000;
/// Longer than what keeps neighbours together, so that each is a read.
const VALUE_BYTES: usize = 6_000;
const FIELDS: u32 = 2_000;
const FIELD_BYTES: usize = 1_500;

fn key(n: u32) -> String {
    format!("k{n:05}")
}

fn value(n: u32, bytes: usize) -> Vec<u8> {
    let mut value = vec![n as u8; bytes];
    value[..4].copy_from_slice(&n.to_le_bytes());
    value
}

/// Keys and a hash, nothing of which is in memory. What follows each other was not written one after the other.
fn cold(drives: usize) -> TestServer {
    let setup = || Setup { drives, memory_bytes: drives as u64 * (64 << 20), ..Setup::default() };
    let server = TestServer::with(setup());
    let mut client = server.client();
    let (mut keys, mut fields): (Vec<u32>, Vec<u32>) = ((0..KEYS).collect(), (0..FIELDS).collect());
    let mut rng = Rng::from_seed(17);
    rng.shuffle(&mut keys);
    rng.shuffle(&mut fields);
    for n in keys {
        assert_eq!(
            client.call(&[&b"SET"[..], key(n).as_bytes(), &value(n, VALUE_BYTES)]),
            Reply::Simple("OK".into())
        );
    }
    for n in fields {
        let field = key(n);
        let reply = client.call(&[&b"HSET"[..], b"h", field.as_bytes(), &value(n, FIELD_BYTES)]);
        assert_eq!(reply, Reply::Int(1));
    }
    server.restart(setup())
}

fn flash_reads(client: &mut Client) -> u64 {
    info_number(client, "pumice", "flash_reads")
}

fn array(reply: Reply) -> Vec<Reply> {
    let Reply::Array(items) = reply else { panic!("{reply:?}") };
    items
}

fn bulk(reply: &Reply) -> &[u8] {
    let Reply::Bulk(bytes) = reply else { panic!("{reply:?}") };
    bytes
}

/// A page from key `from` on: the numbers of its keys, whose values are what was written.
fn page(client: &mut Client, from: u32, count: u32, order: &[&str], with_values: bool) -> Vec<u32> {
    let (from, count) = (format!("[{}", key(from)), count.to_string());
    let far = if order.is_empty() { "+" } else { "-" };
    let (min, max) = if order.is_empty() { (from.as_str(), far) } else { (far, from.as_str()) };
    let mut command = vec!["PUMICE.RANGE", min, max, "PREFIX", "k", "COUNT", &count];
    command.extend(order);
    if with_values {
        command.push("WITHVALUES");
    }
    let items = array(array(client.call(&command)).remove(1));
    let number =
        |key: &Reply| std::str::from_utf8(&bulk(key)[1..]).expect("digits").parse().expect("a number");
    if !with_values {
        return items.iter().map(number).collect();
    }
    let pairs = items.chunks(2).map(|pair| {
        let n = number(&pair[0]);
        assert_eq!(bulk(&pair[1]), value(n, VALUE_BYTES), "the value of {n}");
        n
    });
    pairs.collect()
}

#[test]
fn a_page_of_a_range_reads_the_values_that_it_answers() {
    for drives in [1, 3] {
        let server = cold(drives);
        let mut client = server.client();
        for (from, count) in [(100, 1), (200, 2), (300, 10), (400, 50), (600, 150)] {
            for order in [&[][..], &["REV"]] {
                let from = if order.is_empty() { from } else { KEYS - from };
                let expected: Vec<u32> = match order.is_empty() {
                    true => (from..from + count).collect(),
                    false => (from + 1 - count..=from).rev().collect(),
                };
                // Now memory has the keys.
                assert_eq!(page(&mut client, from, count, order, false), expected);
                let before = flash_reads(&mut client);
                assert_eq!(page(&mut client, from, count, order, true), expected);
                let reads = flash_reads(&mut client) - before;
                // Of several drives nobody knows which one has how many of a page.
                let most = if drives == 1 { count.into() } else { u64::from(count) + 2 * drives as u64 };
                assert!(reads <= most, "{drives} drives: {reads} reads for {count} values {order:?}");
                assert!(
                    reads * 4 >= u64::from(count),
                    "{reads} reads for {count} values: they are in memory"
                );
            }
        }
    }
}

/// A page ends with the bytes of its values, too.
#[test]
fn a_page_that_ends_by_its_bytes_reads_no_more_of_them() {
    let server = cold(1);
    let mut client = server.client();
    page(&mut client, 0, KEYS, &[], false);
    let before = flash_reads(&mut client);
    let answered = page(&mut client, 0, KEYS, &[], true).len() as u64;
    let reads = flash_reads(&mut client) - before;
    assert!(answered < u64::from(KEYS) / 4, "{answered} values in a page");
    assert!(reads <= answered + answered / 8, "{reads} reads for {answered} values");
}

#[test]
fn a_page_of_a_hash_reads_the_values_that_it_answers() {
    let server = cold(1);
    let mut client = server.client();
    for count in [10, 20, 40] {
        let before = flash_reads(&mut client);
        let pairs = array(array(client.line(&format!("HSCAN h 0 COUNT {count}"))).remove(1));
        let reads = flash_reads(&mut client) - before;
        assert_eq!(pairs.len(), 2 * count);
        // Beside them key tables, and the one that the page ended with.
        assert!(reads <= count as u64 + 12, "{reads} reads for {count} values");
    }
    // All of it, by pages that each go on where the last one ended.
    let (mut cursor, mut found) = ("0".to_string(), Vec::new());
    loop {
        let mut reply = array(client.line(&format!("HSCAN h {cursor} COUNT 7")));
        let pairs = array(reply.remove(1));
        for pair in pairs.chunks(2) {
            let n = std::str::from_utf8(&bulk(&pair[0])[1..]).expect("digits").parse().expect("a number");
            assert_eq!(bulk(&pair[1]), value(n, FIELD_BYTES));
            found.push(n);
        }
        cursor = String::from_utf8(bulk(&reply[0]).to_vec()).expect("digits");
        if cursor == "0" {
            break;
        }
    }
    found.sort_unstable();
    assert_eq!(found, (0..FIELDS).collect::<Vec<u32>>());
}

/// What was written together and is answered together is one read.
#[test]
fn a_part_of_a_list_is_read_at_once() {
    let setup = || Setup { memory_bytes: 64 << 20, ..Setup::default() };
    let server = TestServer::with(setup());
    let mut client = server.client();
    let values: Vec<Vec<u8>> = (0..200).map(|n| value(n, 400)).collect();
    let mut command = vec![&b"RPUSH"[..], b"l"];
    command.extend(values.iter().map(|value| &value[..]));
    client.call(&command);
    let mut command = vec![b"HSET".to_vec(), b"h".to_vec()];
    command.extend((0..200).flat_map(|n| [key(n).into_bytes(), value(n, 400)]));
    client.call(&command);
    let server = server.restart(setup());
    let mut client = server.client();
    for (command, answered) in [("LRANGE l 20 99", 80), ("HGETALL h", 400)] {
        let before = flash_reads(&mut client);
        assert_eq!(array(client.line(command)).len(), answered);
        let reads = flash_reads(&mut client) - before;
        // The head, key tables, and the values.
        assert!(reads <= 6, "{reads} reads for {command}");
    }
}

#[test]
fn what_a_long_string_is_need_not_be_read() {
    let server = cold(1);
    let mut client = server.client();
    // Now memory has the keys.
    page(&mut client, 0, KEYS, &[], false);
    let before = flash_reads(&mut client);
    for n in 0..100 {
        let key = key(n);
        assert_eq!(client.line(&format!("OBJECT ENCODING {key}")), Reply::Bulk(b"raw".to_vec()));
        assert_eq!(client.line(&format!("OBJECT REFCOUNT {key}")), Reply::Int(1));
        let Reply::Int(bytes) = client.line(&format!("MEMORY USAGE {key}")) else { panic!("a number") };
        assert!(bytes > VALUE_BYTES as i64, "{bytes} B");
    }
    let reads = flash_reads(&mut client) - before;
    assert!(reads < 20, "{reads} reads");
}

/// Whatever COUNT says, a page takes no more than its part of what replies may, and the next one goes on behind it.
#[test]
fn pages_are_bounded_by_what_they_take() {
    let options = Options { output_bytes_max: 4 << 20, port: 0, ..Options::default() };
    let server = TestServer::with(Setup { options, ..Setup::default() });
    let mut client = server.client();
    let name = |n: usize| format!("{n:0>60}");
    for first in (0..8_000).step_by(500) {
        let numbers = first..first + 500;
        let pairs = numbers.clone().flat_map(|n| [name(n), "v".repeat(40)]);
        let words: Vec<String> = ["HSET".into(), "h".into()].into_iter().chain(pairs).collect();
        assert_eq!(client.call(&words), Reply::Int(500));
        let pairs = numbers.flat_map(|n| [name(n), String::new()]);
        let words: Vec<String> = ["MSET".into()].into_iter().chain(pairs).collect();
        assert_eq!(client.call(&words), Reply::Simple("OK".into()));
    }
    for (command, each) in [("HSCAN h", 2), ("SCAN", 1)] {
        let (mut cursor, mut pages, mut seen) = ("0".to_owned(), 0, Vec::new());
        loop {
            let Reply::Array(page) = client.line(&format!("{command} {cursor} COUNT 100000")) else {
                panic!("a page")
            };
            let [Reply::Bulk(next), Reply::Array(elements)] = &page[..] else {
                panic!("a cursor and elements")
            };
            assert!(elements.len() <= each * 4_000, "{command}: {} in a page", elements.len());
            pages += 1;
            seen.extend(elements.iter().step_by(each).map(|name| format!("{name:?}")));
            cursor = String::from_utf8(next.clone()).expect("a number");
            if cursor == "0" {
                break;
            }
        }
        assert!(pages > 2, "{command}: {pages} pages");
        let all = seen.len();
        seen.sort();
        seen.dedup();
        // The hash is one of the keys.
        assert_eq!((seen.len(), all), (8_002 - each, 8_002 - each), "{command}");
    }
}
