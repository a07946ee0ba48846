//! The sign of a zero score: Redis's compact encoding forgets it, its other one keeps it, and which one a sorted set has is
//! decided as its members come.

use super::draw::Draw;
use super::{Command, fail, normalize, number};
use crate::common::oracle::Oracle;
use crate::common::{Client, TestServer};
use pumice_base::rng::Rng;

const SEEDS: u64 = 12;
const COMMANDS: u64 = 400;
/// So few and so short that sorted sets are large and compact by turns.
const LIMITS: &[&str] = &["CONFIG SET zset-max-listpack-entries 6", "CONFIG SET zset-max-listpack-value 10"];

const SCORES: &[&str] = &["-0", "-0", "-0.0", "-0x0", "0", "0.0", "1", "-1", "5", "inf", "-inf"];

fn words(text: &str) -> Command {
    text.split(' ').map(|word| word.as_bytes().to_vec()).collect()
}

fn score(d: &mut Draw<'_>) -> &'static str {
    d.pick::<&str>(SCORES)
}

fn member(d: &mut Draw<'_>) -> String {
    if d.below(5) == 0 { format!("a-long-member-{}", d.below(3)) } else { format!("m{}", d.below(12)) }
}

fn key(d: &mut Draw<'_>) -> String {
    format!("z{}", d.below(4))
}

/// What follows ZUNION and its like, up to WITHSCORES.
fn inputs(d: &mut Draw<'_>, is_difference: bool) -> String {
    let mut text = format!("2 {} {}", key(d), key(d));
    if is_difference {
        return text;
    }
    if d.below(3) > 0 {
        let mut weight = || *d.pick(&["-1", "0", "-0", "1"]);
        text += &format!(" WEIGHTS {} {}", weight(), weight());
    }
    if d.below(2) == 0 {
        text += &format!(" AGGREGATE {}", d.pick(&["SUM", "MIN", "MAX"]));
    }
    text
}

fn draw(d: &mut Draw<'_>) -> Command {
    let to = key(d);
    let text = match d.below(16) {
        0..5 => {
            let flag = *d.pick(&["", "", "", " NX", " XX", " GT", " CH"]);
            let pairs: String =
                (0..1 + d.below(11)).map(|_| format!(" {} {}", score(d), member(d))).collect();
            format!("ZADD {to}{flag}{pairs}")
        }
        5 => format!("ZADD {to} INCR {} {}", score(d), member(d)),
        6..8 => format!("ZINCRBY {to} {} {}", score(d), member(d)),
        8..10 => format!("ZREM {to} {} {}", member(d), member(d)),
        10 => format!("DEL {to}"),
        11..13 => {
            let operation = *d.pick(&["UNION", "INTER", "DIFF"]);
            format!("Z{operation}STORE {to} {}", inputs(d, operation == "DIFF"))
        }
        13 => {
            let range = *d.pick(&[
                "0 -1",
                "1 4",
                "0 -1 REV",
                "-inf +inf BYSCORE",
                "+inf -inf BYSCORE REV",
                "-inf +inf BYSCORE LIMIT 1 7",
            ]);
            format!("ZRANGESTORE {to} {} {range}", key(d))
        }
        14 => {
            let operation = *d.pick(&["UNION", "INTER", "DIFF"]);
            format!("Z{operation} {} WITHSCORES", inputs(d, operation == "DIFF"))
        }
        _ => match d.below(6) {
            0 => format!("COPY {} {to} REPLACE", key(d)),
            1 => format!("RENAME {} {to}", key(d)),
            2 => format!("ZPOPMIN {to} 2"),
            3 => format!("ZPOPMAX {to}"),
            4 => format!("ZREMRANGEBYSCORE {to} -0 (1"),
            _ => format!("ZRANGEBYSCORE {to} -0 0 WITHSCORES"),
        },
    };
    words(&text)
}

/// Everything that shows scores.
fn looks(key: &str) -> Vec<Command> {
    let all = ["ZRANGE {key} 0 -1 WITHSCORES", "ZSCAN {key} 0 COUNT 1000", "DEBUG DIGEST-VALUE {key}"];
    let all = all.iter().chain(&["OBJECT ENCODING {key}", "ZMSCORE {key} m0 m1 m2 m3 m4 m5"]);
    all.map(|look| words(&look.replace("{key}", key))).collect()
}

fn play(ours: &mut Client, theirs: &mut Client, seed: u64, count: u64) {
    let mut rng = Rng::from_seed(seed);
    let mut log = Vec::new();
    for client in [&mut *ours, &mut *theirs] {
        client.line("FLUSHALL");
        LIMITS.iter().for_each(|limit| assert_eq!(client.line(limit).to_string(), "OK"));
    }
    for _ in 0..count {
        let command = draw(&mut Draw { rng: &mut rng, with_expiry: false });
        let key = String::from_utf8(command[1].clone()).expect("text");
        for command in std::iter::once(command).chain(looks(&key)) {
            log.push((0, command.clone()));
            let (reply, expected) = (ours.call(&command), theirs.call(&command));
            if normalize(&command, reply.clone()) != normalize(&command, expected.clone()) {
                fail(seed, &log, &reply, &expected);
            }
        }
    }
}

#[test]
fn zeros_keep_and_lose_their_sign_where_redis_does() {
    let Some(oracle) = Oracle::start() else { return };
    let server = TestServer::start();
    let (mut ours, mut theirs) = (server.client(), oracle.client());
    let (seeds, count) =
        (number("PUMICE_SEEDS").unwrap_or(SEEDS), number("PUMICE_COMMANDS").unwrap_or(COMMANDS));
    match number("PUMICE_SEED") {
        Some(seed) => play(&mut ours, &mut theirs, seed, count),
        None => (0..seeds).for_each(|seed| play(&mut ours, &mut theirs, seed, count)),
    }
}
