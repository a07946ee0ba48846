//! Commands that read or change single elements or ask for what is known of a key, plainly, where most of them need not wait, and within
//! EXEC, where all go the way of those that do: they answer alike, and leave the same behind.

#![allow(clippy::disallowed_methods, reason = "keys expire in real time")]

use std::thread;
use std::time::Duration;

use crate::common::{Client, Reply, Setup, TestServer, info_number};
use pumice_base::rng::Rng;

type Command = Vec<Vec<u8>>;

const KEYS: u64 = 10;
const STEPS_PER_LIFE: usize = 1000;
const LIVES: usize = 3;

fn words(line: &str) -> Command {
    line.split(' ').map(|word| word.as_bytes().to_vec()).collect()
}

/// Of each type there are two; now and then one of another type is taken for it.
fn key(rng: &mut Rng, of_type: u64) -> String {
    let number = if rng.below(12) == 0 { rng.below(KEYS) } else { of_type * 2 + rng.below(2) };
    format!("k{number}")
}

fn name(rng: &mut Rng) -> Vec<u8> {
    match rng.below(40) {
        0 => Vec::new(),
        1 => vec![b'n'; 70],
        2 => vec![b'n'; 64 << 10],
        3 => vec![b'n'; (64 << 10) + 1],
        number => number.to_string().into_bytes(),
    }
}

fn value(rng: &mut Rng) -> Vec<u8> {
    match rng.below(30) {
        0 => Vec::new(),
        1 => vec![b'v'; 300_000],
        2 => vec![b'v'; 5_000],
        3..6 => vec![b'v'; 65],
        6..9 => b"text".to_vec(),
        9 => i64::MAX.to_string().into_bytes(),
        number => number.to_string().into_bytes(),
    }
}

fn of_hash(rng: &mut Rng) -> Command {
    let mut command =
        words(&format!("{} {}", ["HSET", "HDEL", "HINCRBY"][rng.below(3) as usize], key(rng, 0)));
    command.push(name(rng));
    match command[0][..] {
        [b'H', b'S', ..] => command.push(value(rng)),
        [b'H', b'I', ..] if rng.below(20) == 0 => command.push(b"much".to_vec()),
        [b'H', b'I', ..] => command.push((rng.below(9) as i64 - 4).to_string().into_bytes()),
        _ => {}
    }
    if rng.below(10) == 0 && command[0] != b"HINCRBY" {
        // Several, or what is no pair.
        command.extend([name(rng), value(rng)].into_iter().take(1 + rng.below(2) as usize));
    }
    command
}

fn of_set(rng: &mut Rng) -> Command {
    let mut command = words(&format!("{} {}", ["SADD", "SREM"][rng.below(2) as usize], key(rng, 1)));
    command.extend((0..1 + rng.below(6) / 5).map(|_| name(rng)));
    command
}

fn of_sorted_set(rng: &mut Rng) -> Command {
    const SCORES: &[&str] = &["0", "-0.0", "1", "1.5", "-3", "inf", "-inf", "nan", "x", "1e300"];
    const FLAGS: &[&str] = &["NX", "XX", "GT", "LT", "CH", "INCR"];
    let score = SCORES[rng.below(SCORES.len() as u64) as usize].as_bytes().to_vec();
    let key = key(rng, 2);
    match rng.below(7) {
        2 => {
            let count = ["", "", "", " 1", " 2"][rng.below(5) as usize];
            words(&format!("{} {key}{count}", ["ZPOPMIN", "ZPOPMAX"][rng.below(2) as usize]))
        }
        0 => [words(&format!("ZREM {key}")), vec![name(rng)]].concat(),
        1 => [words(&format!("ZINCRBY {key}")), vec![score, name(rng)]].concat(),
        _ => {
            let mut command = words(&format!("ZADD {key}"));
            for flag in FLAGS {
                if rng.below(8) == 0 {
                    command.push(flag.as_bytes().to_vec());
                }
            }
            command.extend([score, name(rng)]);
            if rng.below(10) == 0 {
                command.extend([b"2".to_vec(), name(rng)]);
            }
            command
        }
    }
}

fn of_list(rng: &mut Rng) -> Command {
    let name = ["LPUSH", "RPUSH", "LPOP", "RPOP", "LPOP", "RPOP"][rng.below(6) as usize];
    let mut command = words(&format!("{name} {}", key(rng, 3)));
    if name.ends_with("PUSH") {
        command.extend((0..1 + rng.below(6) / 4).map(|_| value(rng)));
    } else if rng.below(8) == 0 {
        command.push(b"2".to_vec());
    }
    command
}

/// Strings that are written whole. Times are absolute, as both must get the same.
fn of_string(rng: &mut Rng) -> Command {
    const OPTIONS: &[&str] =
        &["NX", "XX", "GET", "KEEPTTL", "EXAT 4102444800", "PXAT 4102444900000", "PXAT 1", "EX x"];
    const OF_GETEX: &[&str] =
        &["", "EXAT 4102444800", "PXAT 4102444900000", "PXAT 1", "PERSIST", "EX 0", "NX"];
    const OF_EXPIRY: &[&str] = &["", "NX", "XX", "GT", "LT", "XX GT", "NX XX", "SOON"];
    const TIMES: &[&str] = &["4102444800000", "4102444900000", "1", "0", "-1", "x"];
    let key = key(rng, 4);
    let one_of = |rng: &mut Rng, what: &[&'static str]| what[rng.below(what.len() as u64) as usize];
    match rng.below(12) {
        0..3 => {
            let mut command = [words(&format!("SET {key}")), vec![value(rng)]].concat();
            for option in OPTIONS {
                if rng.below(10) == 0 {
                    command.extend(words(option));
                }
            }
            command
        }
        3 => [words(&format!("{} {key}", one_of(rng, &["SETNX", "GETSET"]))), vec![value(rng)]].concat(),
        4 => {
            let seconds = one_of(rng, &["100000", "0", "x"]);
            [words(&format!("{} {key} {seconds}", one_of(rng, &["SETEX", "PSETEX"]))), vec![value(rng)]]
                .concat()
        }
        5 => words(&format!("GETDEL {key}")),
        6 => words(format!("GETEX {key} {}", one_of(rng, OF_GETEX)).trim_end()),
        7 => words(format!("PEXPIREAT {key} {} {}", one_of(rng, TIMES), one_of(rng, OF_EXPIRY)).trim_end()),
        8 => words(&format!("PERSIST {key}")),
        9 | 10 => {
            let mut command = words("MSET");
            for _ in 0..1 + rng.below(20) {
                command.extend([format!("k{}", 6 + rng.below(4)).into_bytes(), value(rng)]);
            }
            command.extend((rng.below(20) == 0).then(|| b"more".to_vec()));
            command
        }
        _ => {
            let mut command = words(one_of(rng, &["DEL", "UNLINK"]));
            command.extend((0..1 + rng.below(20)).map(|_| format!("k{}", 7 + rng.below(4)).into_bytes()));
            command
        }
    }
}

/// What only reads: of an element, of several, of a key.
fn reading(rng: &mut Rng) -> Command {
    const OF_ELEMENT: &[(&str, u64)] =
        &[("HGET", 0), ("HEXISTS", 0), ("HSTRLEN", 0), ("SISMEMBER", 1), ("ZSCORE", 2)];
    const OF_ELEMENTS: &[(&str, u64)] = &[("HMGET", 0), ("SMISMEMBER", 1), ("ZMSCORE", 2)];
    const OF_KEY: &[(&str, u64)] = &[
        ("HLEN", 0),
        ("SCARD", 1),
        ("ZCARD", 2),
        ("STRLEN", 4),
        ("GET", 4),
        ("LLEN", 3),
        ("TYPE", 1),
        ("EXISTS", 1),
        ("TOUCH", 2),
        ("EXPIRETIME", 2),
        ("PEXPIRETIME", 2),
    ];
    if rng.below(10) == 0 {
        let place = ["0", "-1", "3", "900", "x"][rng.below(5) as usize];
        return words(&format!("LINDEX {} {place}", key(rng, 3)));
    }
    let (commands, names) = match rng.below(4) {
        0 => (OF_KEY, 0),
        1 => (OF_ELEMENT, 1),
        2 => (OF_ELEMENTS, 1 + rng.below(8)),
        _ => (OF_ELEMENTS, 60 + rng.below(8)),
    };
    let (name_of_command, of_type) = commands[rng.below(commands.len() as u64) as usize];
    let mut command = words(&format!("{name_of_command} {}", key(rng, of_type)));
    command.extend((0..names).map(|_| name(rng)));
    command
}

fn command(rng: &mut Rng) -> Command {
    match rng.below(72) {
        0 => words(&format!("DEL {}", key(rng, 3))),
        1 => words(&format!("SET {} text", key(rng, 0))),
        2 => words(&format!("PEXPIRE {} 1", key(rng, 1))),
        3 => words(&format!("PEXPIREAT {} 4102444800000", key(rng, 2))),
        4 => words(&format!("LREM {} 1 text", key(rng, 3))),
        5..14 => of_hash(rng),
        14..22 => of_set(rng),
        22..31 => of_sorted_set(rng),
        31..40 => of_list(rng),
        40..56 => of_string(rng),
        _ => reading(rng),
    }
}

fn in_exec(client: &mut Client, command: &Command) -> Reply {
    assert_eq!(client.line("MULTI").to_string(), "OK");
    assert_eq!(client.call(command).to_string(), "QUEUED");
    match client.line("EXEC") {
        Reply::Array(mut replies) => replies.pop().expect("one reply"),
        other => panic!("EXEC answers {other}"),
    }
}

/// What is stored, besides when it expires.
fn stored(client: &mut Client) -> Vec<String> {
    let look_ups =
        ["keyspace_hits", "keyspace_misses"].map(|of| info_number(client, "stats", of).to_string());
    let mut found = vec![client.line("DEBUG DIGEST").to_string(), client.line("DBSIZE").to_string()];
    found.extend(look_ups);
    for number in 0..KEYS {
        for ask in ["DEBUG DIGEST-VALUE", "OBJECT ENCODING", "PEXPIRETIME"] {
            found.push(format!("{ask} k{number} {}", client.line(&format!("{ask} k{number}"))));
        }
    }
    found
}

fn hold_against_each_other(seed: u64) {
    let mut rng = Rng::from_seed(seed);
    let (mut plain, mut waiting) = (TestServer::start(), TestServer::start());
    for life in 0..LIVES {
        let (mut a, mut b) = (plain.client(), waiting.client());
        for client in [&mut a, &mut b] {
            // What has expired stays in the way.
            client.line("DEBUG SET-ACTIVE-EXPIRE 0");
        }
        for step in 0..STEPS_PER_LIFE {
            let command = command(&mut rng);
            let shown = || -> String {
                command
                    .iter()
                    .map(|word| String::from_utf8_lossy(&word[..word.len().min(60)]) + " ")
                    .collect()
            };
            let (found, meant) = (a.call(&command), in_exec(&mut b, &command));
            assert!(
                found == meant,
                "seed {seed}, life {life}, step {step}: {}: {found} for {meant}",
                shown()
            );
            // What is to go is gone, and not left to expire.
            let counts = [&mut a, &mut b].map(|client| client.line("DBSIZE"));
            assert!(counts[0] == counts[1], "seed {seed}, life {life}, step {step}: {}: DBSIZE", shown());
            if command[0].ends_with(b"SETEX") {
                // The one thing that both cannot be told alike.
                let at = "4102444800000".as_bytes().to_vec();
                let _ = [&mut a, &mut b]
                    .map(|client| client.call(&[b"PEXPIREAT".to_vec(), command[1].clone(), at.clone()]));
            }
            if command[0] == b"PEXPIRE" {
                thread::sleep(Duration::from_millis(3));
            }
        }
        assert_eq!(stored(&mut a), stored(&mut b), "seed {seed}, life {life}");
        drop((a, b));
        // Then what is there lies on flash.
        (plain, waiting) = (plain.restart(Setup::default()), waiting.restart(Setup::default()));
    }
}

#[test]
fn elements_are_read_and_changed_alike_with_and_without_waiting() {
    for seed in 0..3 {
        hold_against_each_other(seed);
    }
}

#[test]
fn who_watches_hears_of_changed_elements_and_of_no_others() {
    let server = TestServer::start();
    let (mut client, mut watcher) = (server.client(), server.client());
    for (command, changes) in [
        ("HSET h f v", true),
        ("HSET h f v", true),
        ("HDEL h g", false),
        ("HINCRBY h n 1", true),
        ("HDEL h n", true),
        ("HDEL h f", true),
        ("SADD s m", true),
        ("SADD s m", false),
        ("SREM s n", false),
        ("SREM s m", true),
        ("ZADD z 1 m", true),
        ("ZADD z 1 m", false),
        ("ZADD z XX 1 n", false),
        ("ZINCRBY z 1 m", true),
        ("ZREM z n", false),
        ("ZREM z m", true),
        ("LPOP l", false),
        ("LPUSH l v", true),
        ("RPUSH l v", true),
        ("RPOP l", true),
        ("LPOP l", true),
    ] {
        let key = command.split(' ').nth(1).expect("a key");
        watcher.line(&format!("WATCH {key}"));
        client.line(command);
        watcher.line("MULTI");
        watcher.line("PING");
        let ran = watcher.line("EXEC");
        assert_eq!(ran == Reply::NullArray, changes, "{command}: EXEC answers {ran}");
    }
    assert_eq!(client.line("DBSIZE"), Reply::Int(0));
}

/// What memory knows is answered at once, up to the first field that needs flash: then all of it once more. The key is counted once.
#[test]
fn fields_in_memory_and_on_flash_are_answered_in_order_and_the_key_counted_once() {
    const FIELDS: usize = 40;
    let field = |n: usize| format!("field:{n:02}");
    let value = |n: usize, round: usize| format!("{round}:{n}").repeat(200);
    let server = TestServer::start();
    let mut client = server.client();
    (0..FIELDS).for_each(|n| drop(client.call(&["HSET", "hash", &field(n), &value(n, 0)])));
    drop(client);
    // From here on they are on flash.
    let server = server.restart(Setup::default());
    let mut client = server.client();
    let mut rounds = [0; FIELDS];
    for round in 1..=8 {
        // More of them in memory each time, those at the front first.
        for n in (0..FIELDS).take(5 * (round - 1)) {
            client.call(&["HSET", "hash", &field(n), &value(n, round)]);
            rounds[n] = round;
        }
        let mut asked = vec!["HMGET".to_string(), "hash".to_string(), field(0), "absent".to_string()];
        asked.extend((0..FIELDS).map(field));
        let expected = |n: usize| Reply::Bulk(value(n, rounds[n]).into_bytes());
        let mut answer = vec![expected(0), Reply::Null];
        answer.extend((0..FIELDS).map(expected));
        let hits = info_number(&mut client, "stats", "keyspace_hits");
        assert!(client.call(&asked) == Reply::Array(answer), "round {round}");
        assert_eq!(info_number(&mut client, "stats", "keyspace_hits") - hits, 1, "round {round}");
    }
    let misses = info_number(&mut client, "stats", "keyspace_misses");
    assert_eq!(client.line("HMGET nothing a b").to_string(), "[nil, nil]");
    assert_eq!(info_number(&mut client, "stats", "keyspace_misses") - misses, 1);
}

/// Of more than a reply of one moment may have, and with a value among it that is not kept whole.
#[test]
fn long_fields_are_answered_as_short_ones_are() {
    let server = TestServer::start();
    let mut client = server.client();
    let mut expected = Vec::new();
    let mut asked = vec!["HMGET".to_string(), "hash".to_string()];
    for n in 0..64 {
        let value = n.to_string().repeat(if n == 63 { 200_000 } else { 50_000 });
        client.call(&["HSET", "hash", &format!("f{n}"), &value]);
        asked.push(format!("f{n}"));
        expected.push(Reply::Bulk(value.into_bytes()));
        if [1, 40, 60, 64].contains(&(n + 1)) {
            assert!(client.call(&asked) == Reply::Array(expected.clone()), "{n}");
        }
    }
}
