//! Commands that come many at once: GETs are taken together where they can be, others while those behind them are prepared, and
//! nobody must be able to tell; nor does anybody else wait for all of them.

#![allow(clippy::disallowed_methods, reason = "a client is a thread of another process in spirit")]

use std::thread;

use pumice_base::rng::Rng;

use crate::common::client::encode;
use crate::common::{self, Client, Reply, Setup, TestServer};

const SEEDS: u64 = 120;
const COMMANDS: usize = 80;
/// Where the length of a key gets one digit more, and more of them than GETs that are taken together have.
const KEY_LENS: [usize; 11] = [0, 1, 9, 10, 99, 100, 999, 1000, 9999, 10_000, 60_000];

fn key(rng: &mut Rng) -> Vec<u8> {
    match rng.below(16) {
        0 => b"list".to_vec(),
        1 => b"absent".to_vec(),
        2 => b"expired".to_vec(),
        3 => b"long".to_vec(),
        n => vec![b'a' + (n % 4) as u8; KEY_LENS[rng.below(KEY_LENS.len() as u64) as usize]],
    }
}

/// What comes between GETs.
fn other(rng: &mut Rng) -> Vec<Vec<u8>> {
    let key = key(rng);
    let value = vec![b'v'; [0, 3, 200, 5000][rng.below(4) as usize]];
    let words: [&[&[u8]]; 24] = [
        &[b"SET", &key, &value],
        &[b"APPEND", &key, b"more"],
        &[b"DEL", &key],
        &[b"MULTI"],
        &[b"EXEC"],
        &[b"CLIENT", b"REPLY", b"SKIP"],
        &[b"GET"],
        &[b"GET", &key, b"more"],
        &[b"NOGET", &key],
        &[b"MGET", &key, b"list", &key],
        &[b"STRLEN", &key],
        &[b"EXISTS", &key],
        &[b"TTL", &key],
        &[b"TYPE", &key],
        &[b"INCR", b"counter"],
        &[b"INCR", &key],
        &[b"RPUSH", b"list", &value],
        &[b"LPOP", b"list"],
        &[b"HSET", b"hash", &key, &value],
        &[b"HGET", b"hash", &key],
        &[b"HMGET", b"hash", &key, b"a", b"b", b"c", b"d", b"e"],
        &[b"HMGET", b"hash", &key, b"a", b"b", b"c", b"d", b"e", b"f"],
        &[b"FLUSHDB"],
        &[b"SET", b"expired", b"v", b"PX", b"100000", b"KEEPTTL"],
    ];
    words[rng.below(24) as usize].iter().map(|word| word.to_vec()).collect()
}

/// A command as it may be written: the parser takes any byte behind a carriage return, and any two behind an argument.
fn written(rng: &mut Rng, words: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = encode(words);
    if rng.below(4) == 0 {
        let ends = (1..bytes.len()).filter(|&at| bytes[at] == b'\n').collect::<Vec<_>>();
        bytes[ends[rng.below(ends.len() as u64) as usize]] = b"\r*$3x"[rng.below(5) as usize];
    }
    bytes
}

/// The same as it is left to the parser.
fn left_to_the_parser(words: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = encode(words);
    let end = bytes.iter().position(|&byte| byte == b'\n').expect("a first line");
    bytes[end] = b'*';
    bytes
}

fn replies(client: &mut Client) -> Vec<Reply> {
    let end = Reply::Bulk(b"the end".to_vec());
    std::iter::repeat_with(|| client.read()).take_while(|reply| *reply != end).collect()
}

#[test]
fn commands_that_come_together_answer_as_each_of_them_alone() {
    let server = TestServer::with(Setup { durability: "none", ..Setup::default() });
    let (mut together, mut alone, mut witness) = (server.client(), server.client(), server.client());
    alone.line("SELECT 1");
    for seed in 0..SEEDS {
        let mut rng = Rng::from_seed(seed);
        for client in [&mut together, &mut alone] {
            client.line("FLUSHDB");
            client.line("RPUSH list a");
            client.line("SET expired v PX 1");
            common::eventually("it has expired", || client.line("EXISTS expired") == Reply::Int(0));
            client.call(&[&b"SET"[..], b"long", &vec![b'l'; 300 << 10]]);
        }
        let (mut piped, mut parsed) = (Vec::new(), Vec::new());
        for _ in 0..COMMANDS {
            // Mostly GETs, or mostly others.
            let words = if rng.below(6) < [1, 5][seed as usize % 2] {
                other(&mut rng)
            } else {
                let name = [*b"GET", *b"get", *b"gEt"][rng.below(3) as usize];
                vec![name.to_vec(), key(&mut rng)]
            };
            piped.extend(written(&mut rng, &words));
            parsed.extend(left_to_the_parser(&words));
        }
        // Not in the midst of a transaction, nor silenced.
        for out in [&mut piped, &mut parsed] {
            out.extend_from_slice(b"PING\r\nDISCARD\r\nPING \"the end\"\r\n");
        }
        let mut rest = &piped[..];
        while !rest.is_empty() {
            let most = rest.len().min([40, 400, 70_000][rng.below(3) as usize]) as u64;
            let (piece, behind) = rest.split_at(1 + rng.below(most) as usize);
            together.send(piece);
            // What was sent arrives by itself, mostly.
            witness.line("PING");
            rest = behind;
        }
        alone.send(&parsed);
        let (together, alone) = (replies(&mut together), replies(&mut alone));
        let first = together.iter().zip(&alone).position(|(a, b)| a != b);
        assert!(
            together == alone,
            "seed {seed}: {} and {} replies, the first that differs is number {first:?}",
            together.len(),
            alone.len()
        );
    }
}

/// What breaks the protocol does so behind others as it does alone: what came before it is done and answered, nothing behind it is.
#[test]
fn what_breaks_the_protocol_does_so_within_a_pipeline() {
    let server = TestServer::start();
    let (good, incremented) = (encode(&["INCR", "n"]), 2);
    for (n, bad) in [
        "*2\r\n$04\r\nINCR\r\n$1\r\nn\r\n",
        "*2\r\n$4\r\nINCR\r\n$01\r\nn\r\n",
        "*2\r\n$4\r\nINCR\r\n$00\r\n\r\n",
        "*2\r\n$4\r\nINCR\r\n$\r\nn\r\n",
        "*2\r\n$4\r\nINCR\r\n$-1\r\n",
        "*2\r\n$4\r\nINCR\r\n$+1\r\nn\r\n",
        "*2\r\n$4\r\nINCR\r\n$1 \r\nn\r\n",
        "*2\r\n$4\r\nINCR\r\n$536870913\r\nn\r\n",
        "*2\r\n$4\r\nINCR\r\n:1\r\nn\r\n",
        "*02\r\n$4\r\nINCR\r\n$1\r\nn\r\n",
    ]
    .into_iter()
    .enumerate()
    {
        let mut client = server.client();
        client.send(&[&good, &good, bad.as_bytes(), &good].concat());
        let said = String::from_utf8(client.read_to_end()).expect("text");
        let at = n * incremented;
        let before = format!(":{}\r\n:{}\r\n-ERR Protocol error: ", at + 1, at + 2);
        assert!(said.starts_with(&before) && said.matches("\r\n").count() == 3, "{bad:?}: {said:?}");
    }
    // An empty argument is none that breaks anything.
    let mut client = server.client();
    client.send(&[encode(&["SET", "", "v"]), encode(&["GET", ""]), encode(&["STRLEN", ""])].concat());
    assert_eq!(
        [client.read(), client.read(), client.read()].map(|reply| reply.to_string()),
        ["OK", "\"v\"", "1"]
    );
}

#[test]
fn gets_that_are_taken_together_are_counted_and_seen_one_by_one() {
    let server = TestServer::with(Setup { durability: "none", ..Setup::default() });
    let mut client = server.client();
    client.line("SET here v");
    let stats = |client: &mut Client| {
        let text = client.line("INFO everything").to_string();
        let number = |name: &str| {
            let rest = text.split_once(name).map(|(_, rest)| rest).unwrap_or_else(|| panic!("no {name}"));
            rest.chars()
                .take_while(char::is_ascii_digit)
                .collect::<String>()
                .parse::<u64>()
                .expect("a number")
        };
        [number("keyspace_hits:"), number("keyspace_misses:"), number("cmdstat_get:calls=")]
    };
    let gets = [encode(&["GET", "here"]).repeat(70), encode(&["get", "gone"]).repeat(30)].concat();
    client.send(&gets);
    let found = (0..100).filter(|_| client.read() == Reply::Bulk(b"v".to_vec())).count();
    assert_eq!((found, stats(&mut client)), (70, [70, 30, 100]));
    // Who wants to see each command in the slow log, or watches, does see each.
    client.line("CONFIG SET slowlog-log-slower-than 0");
    client.line("SLOWLOG RESET");
    client.send(&gets);
    (0..100).for_each(|_| drop(client.read()));
    client.line("CONFIG SET slowlog-log-slower-than 10000");
    let Reply::Array(slow) = client.line("SLOWLOG GET -1") else { panic!("no array") };
    assert!(slow.iter().filter(|entry| entry.to_string().to_lowercase().contains("\"get\"")).count() >= 100);
    let mut monitor = server.client();
    assert_eq!(monitor.line("MONITOR"), Reply::Simple("OK".into()));
    client.send(&gets);
    (0..100).for_each(|_| drop(client.read()));
    for _ in 0..100 {
        assert!(monitor.read().to_string().to_lowercase().contains("\"get\""));
    }
}

/// Of commands of 8 bytes, 8,192 come in one piece: others get their turn between these, not after them.
#[test]
fn others_have_their_turn_within_a_long_pipeline() {
    const INCREMENTS: usize = 400_000;
    let server = TestServer::with(Setup { durability: "none", ..Setup::default() });
    let (mut sender, mut looker) = (server.client(), server.client());
    let sending = thread::spawn(move || {
        sender.send(b"CLIENT REPLY OFF\r\n");
        sender.send(&b"INCR c\r\n".repeat(INCREMENTS));
        sender
    });
    let (mut seen, mut last) = (0, Reply::Null);
    while last != Reply::Bulk(INCREMENTS.to_string().into_bytes()) {
        let value = looker.line("GET c");
        seen += usize::from(value != last);
        last = value;
    }
    drop(sending.join().expect("sent"));
    let pieces = INCREMENTS * 8 / (64 << 10);
    assert!(seen > pieces, "{seen} values were seen, of {INCREMENTS} in {pieces} pieces");
}
