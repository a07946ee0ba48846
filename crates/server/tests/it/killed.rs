//! kill -9 of a server of three small drives with the least memory, while clients write values of all lengths, collections,
//! transactions, and empty their databases: so much that key tables are merged and segments cleaned meanwhile. Each client knows what
//! its database must hold after each kill: all that was acknowledged, and what was under way wholly or not at all.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::common::{Server, check_exit, eventually, pumice, pumice_without_uring, run};
use redis::{Cmd, Connection, RedisResult, cmd};

const WRITERS: usize = 4;
const DRIVES: usize = 3;
const STRINGS: u64 = 24;
const FIELDS: u64 = 60;
/// Kills, and so many more until there was merging and cleaning.
const ROUNDS: u64 = 5;
const ROUNDS_MAX: u64 = 40;
/// Changes acknowledged between two kills.
const CHANGES: u64 = 1500;

/// What a database holds; of each value the number that it was made of.
#[derive(Clone, Debug, Default, PartialEq)]
struct Held {
    strings: BTreeMap<u64, u64>,
    hash: BTreeMap<u64, u64>,
    zset: BTreeMap<u64, u64>,
    list: Vec<u64>,
    /// Two keys that transactions write alike.
    pair: [u64; 2],
}

/// One thing that a client does.
#[derive(Clone, Copy, Debug)]
enum Change {
    Set(u64),
    Del(u64),
    HashSet(u64),
    HashDel(u64),
    Score(u64),
    Push,
    Pop,
    Pair,
    Empty,
}

impl Change {
    /// The one of number `n`.
    fn of(n: u64) -> Self {
        let at = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33;
        match n % 20 {
            0..7 => Self::Set(at % STRINGS),
            7 => Self::Del(at % STRINGS),
            8..11 => Self::HashSet(at % FIELDS),
            11 => Self::HashDel(at % FIELDS),
            12..15 => Self::Score(at % FIELDS),
            15 | 16 => Self::Push,
            17 => Self::Pop,
            18 if n % 800 == 18 => Self::Empty,
            _ => Self::Pair,
        }
    }

    fn apply(self, n: u64, held: &mut Held) {
        match self {
            Self::Set(at) => drop(held.strings.insert(at, n)),
            Self::Del(at) => drop(held.strings.remove(&at)),
            Self::HashSet(at) => drop(held.hash.insert(at, short(n))),
            Self::HashDel(at) => drop(held.hash.remove(&at)),
            Self::Score(at) => drop(held.zset.insert(at, n)),
            Self::Push => held.list.push(short(n)),
            Self::Pop if held.list.is_empty() => {}
            Self::Pop => drop(held.list.remove(0)),
            Self::Pair => held.pair = [n; 2],
            Self::Empty => *held = Held::default(),
        }
    }

    fn send(self, n: u64, connection: &mut Connection) -> RedisResult<()> {
        match self {
            Self::Set(at) => cmd("SET").arg(key(at)).arg(value(n)).query(connection),
            Self::Del(at) => cmd("DEL").arg(key(at)).query(connection),
            Self::HashSet(at) => cmd("HSET").arg("hash").arg(at).arg(value(short(n))).query(connection),
            Self::HashDel(at) => cmd("HDEL").arg("hash").arg(at).query(connection),
            Self::Score(at) => cmd("ZADD").arg("zset").arg(n).arg(at).query(connection),
            Self::Push => cmd("RPUSH").arg("list").arg(value(short(n))).query(connection),
            Self::Pop => cmd("LPOP").arg("list").query(connection),
            Self::Pair => {
                let mut pair = redis::pipe();
                pair.atomic();
                for half in ["{pair}a", "{pair}b"] {
                    pair.cmd("SET").arg(half).arg(n).ignore();
                }
                pair.query(connection)
            }
            Self::Empty => cmd("FLUSHDB").query(connection),
        }
    }
}

fn key(at: u64) -> String {
    format!("string:{at}")
}

/// A number whose value is short.
fn short(n: u64) -> u64 {
    n | 1
}

/// From a few bytes to 2 MiB, most of them short; of odd numbers all.
fn value(n: u64) -> Vec<u8> {
    let len = match n {
        _ if n.is_multiple_of(150) => 2 << 20,
        _ if n.is_multiple_of(12) => 300_000,
        _ if n.is_multiple_of(5) => 1,
        _ => n * 7919 % 9000,
    };
    let mut value = format!("{n}:").into_bytes();
    value.resize((len as usize).max(value.len()), b'a' + (n % 26) as u8);
    value
}

/// The number that a value was made of, after a look at all of it.
fn number_of(found: &[u8]) -> u64 {
    let digits = found.split(|b| *b == b':').next().unwrap();
    let n = std::str::from_utf8(digits).unwrap().parse().unwrap();
    assert!(found == value(n), "a torn or mixed value of {} bytes, number {n}", found.len());
    n
}

fn ask<T: redis::FromRedisValue>(connection: &mut Connection, what: &Cmd) -> T {
    what.query(connection).unwrap_or_else(|error| panic!("{error}"))
}

fn found(connection: &mut Connection) -> Held {
    let mut held = Held::default();
    for at in 0..STRINGS {
        let string: Option<Vec<u8>> = ask(connection, cmd("GET").arg(key(at)));
        held.strings.extend(string.map(|bytes| (at, number_of(&bytes))));
    }
    let hash: Vec<(u64, Vec<u8>)> = ask(connection, cmd("HGETALL").arg("hash"));
    held.hash = hash.into_iter().map(|(at, bytes)| (at, number_of(&bytes))).collect();
    let zset: Vec<(u64, u64)> = ask(connection, cmd("ZRANGE").arg("zset").arg(0).arg(-1).arg("WITHSCORES"));
    held.zset = zset.into_iter().collect();
    let list: Vec<Vec<u8>> = ask(connection, cmd("LRANGE").arg("list").arg(0).arg(-1));
    held.list = list.iter().map(|bytes| number_of(bytes)).collect();
    let pair: [Option<u64>; 2] = ["{pair}a", "{pair}b"].map(|half| ask(connection, cmd("GET").arg(half)));
    held.pair = pair.map(|half| half.unwrap_or(0));
    held
}

/// What a client knows.
#[derive(Clone, Default)]
struct Writer {
    database: usize,
    acknowledged: Held,
    /// The number of the change that was sent after that.
    sent: Option<u64>,
    last: u64,
}

impl Writer {
    fn connect(&self, port: u16) -> RedisResult<Connection> {
        redis::Client::open(format!("redis://127.0.0.1:{port}/{}", self.database))?.get_connection()
    }

    /// Writes until the connection breaks.
    fn write(&mut self, port: u16, shared: &Shared) {
        let Ok(mut connection) = self.connect(port) else { return };
        while !shared.stop.load(Ordering::Relaxed) {
            self.last += 1;
            let (n, change) = (self.last, Change::of(self.last));
            self.sent = Some(n);
            match change.send(n, &mut connection) {
                Ok(()) => {}
                Err(error) if error.is_io_error() => return,
                Err(error) => panic!("{change:?} was refused: {error}"),
            }
            change.apply(n, &mut self.acknowledged);
            self.sent = None;
            shared.acknowledged.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn verify(&mut self, port: u16) {
        let found = found(&mut self.connect(port).unwrap());
        let mut beyond = self.acknowledged.clone();
        if let Some(n) = self.sent.take() {
            Change::of(n).apply(n, &mut beyond);
        }
        assert!(
            found == self.acknowledged || found == beyond,
            "database {}: found {found:?},\nacknowledged {:?},\nor then {beyond:?}",
            self.database,
            self.acknowledged
        );
        self.acknowledged = found;
    }
}

#[derive(Default)]
struct Shared {
    acknowledged: AtomicU64,
    stop: AtomicBool,
}

fn info(connection: &mut Connection, name: &str) -> u64 {
    let text: String = ask(connection, cmd("INFO").arg("pumice"));
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name}:")));
    line.and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("no {name} in {text}"))
}

fn start(binary: Command, dir: &Path, drives: &[String]) -> Server {
    let devices: Vec<&str> = drives.iter().flat_map(|drive| ["--device", drive]).collect();
    let options = [&["--cores", "2", "--memory", "192MiB"], &devices[..]].concat();
    Server::try_start_of(binary, dir, &options).unwrap_or_else(|error| panic!("it did not start: {error}"))
}

#[test]
fn what_was_acknowledged_outlives_kills_in_the_midst_of_merging_and_cleaning() {
    kill_again_and_again(pumice);
}

#[test]
fn so_it_does_where_there_is_no_io_uring() {
    if pumice_without_uring().is_none() {
        return;
    }
    let (mut without, mut starts) = (0, 0);
    // The drives pass from one to the other.
    kill_again_and_again(|| {
        starts += 1;
        if starts % 3 == 0 {
            return pumice();
        }
        without += 1;
        pumice_without_uring().expect("as just now")
    });
    assert!(without >= 3, "{without} of {starts}");
}

#[allow(clippy::disallowed_methods)] // clients are threads of their own
fn kill_again_and_again(mut binary: impl FnMut() -> Command) {
    let dir = tempfile::tempdir().unwrap();
    let drives: Vec<String> =
        (0..DRIVES).map(|n| dir.path().join(format!("drive{n}")).display().to_string()).collect();
    for drive in &drives {
        check_exit(&run(&["format", drive, "--size", "64MiB"]), 0, "");
    }
    let mut writers: Vec<Writer> =
        (0..WRITERS).map(|database| Writer { database, ..Writer::default() }).collect();
    let (mut merges, mut cleaned, mut round) = (0, 0, 0);
    while round < ROUNDS || (round < ROUNDS_MAX && (merges == 0 || cleaned == 0)) {
        round += 1;
        let server = start(binary(), dir.path(), &drives);
        let port = server.port;
        writers.iter_mut().for_each(|writer| writer.verify(port));
        let shared = Arc::new(Shared::default());
        let running: Vec<_> = writers
            .drain(..)
            .map(|mut writer| {
                let shared = shared.clone();
                std::thread::spawn(move || {
                    writer.write(port, &shared);
                    writer
                })
            })
            .collect();
        eventually("changes are acknowledged", || {
            running.iter().any(|writer| writer.is_finished())
                || shared.acknowledged.load(Ordering::Relaxed) >= CHANGES
        });
        let mut client = server.client();
        merges += info(&mut client, "merges");
        cleaned += info(&mut client, "cleaned_segments");
        server.kill();
        shared.stop.store(true, Ordering::Relaxed);
        writers = running.into_iter().map(|writer| writer.join().unwrap()).collect();
    }
    assert!(merges > 0 && cleaned > 0, "{merges} merges and {cleaned} segments cleaned in {round} rounds");
    println!("{merges} merges and {cleaned} segments cleaned in {round} rounds");
    let server = start(binary(), dir.path(), &drives);
    writers.iter_mut().for_each(|writer| writer.verify(server.port));
    server.stop();
    for drive in &drives {
        check_exit(&run(&["check", drive]), 0, "");
    }
}
