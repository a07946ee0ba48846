//! Long transactions: their commands answer as they do one by one, and cost no more for those before them.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use crate::common::client::encode;
use crate::common::{self, Client, Reply, Setup, TestServer};
use pumice_base::rng::Rng;

/// Runs commands between MULTI and EXEC; gives EXEC's replies.
fn exec(client: &mut Client, commands: &[String]) -> Vec<Reply> {
    let mut bytes = encode(&["MULTI"]);
    commands.iter().for_each(|command| bytes.extend(encode(&common::split(command))));
    bytes.extend(encode(&["EXEC"]));
    client.send(&bytes);
    (0..=commands.len()).for_each(|_| drop(client.read()));
    match client.read() {
        Reply::Array(replies) => replies,
        other => panic!("EXEC answered {other}"),
    }
}

fn fill(client: &mut Client, elements: usize) {
    client.line("FLUSHALL");
    for from in (0..elements).step_by(500) {
        let range = from..elements.min(from + 500);
        let scored: Vec<String> = range.clone().map(|n| format!("{n} m{n}")).collect();
        let named: Vec<String> = range.clone().map(|n| format!("m{n}")).collect();
        let valued: Vec<String> = range.map(|n| format!("m{n} v")).collect();
        client.line(&format!("ZADD z {}", scored.join(" ")));
        client.line(&format!("SADD s {}", named.join(" ")));
        client.line(&format!("HSET h {}", valued.join(" ")));
    }
}

/// Commands of which each looks at what is left by those before it. `#` is replaced by a number that rises.
const LOOKING: &[&str] = &[
    "ZPOPMIN z",
    "ZPOPMAX z",
    "SPOP s",
    "HDEL h m#|HRANDFIELD h",
    "ZREM z m#|ZRANGEBYSCORE z 0 +inf LIMIT 0 1",
    "ZREM z m#|ZRANGE z 0 0",
    "ZREMRANGEBYRANK z 0 0",
    "ZADD z -5 x#|ZPOPMIN z",
    "ZADD z 5.5 x#|ZRANGE z 0 0",
    "SPOP s|SADD s x#",
    "SET k# v|DBSIZE",
    "SET k# v|SCAN 0",
];

#[test]
fn what_a_command_of_a_long_transaction_costs_does_not_grow_with_those_before_it() {
    const FEW: usize = 500;
    let server = TestServer::start();
    let mut client = server.client();
    for commands in LOOKING {
        let mut walked = |times: usize| {
            // Up to all that the collections hold.
            fill(&mut client, times);
            let each =
                |n: usize| commands.split('|').map(move |command| command.replace('#', &n.to_string()));
            let all: Vec<String> = (0..times).flat_map(each).collect();
            let counter = &server.server().stats.uncommitted_walked;
            let before = counter.load(Ordering::Relaxed);
            let failed = exec(&mut client, &all).into_iter().find(|reply| matches!(reply, Reply::Error(_)));
            assert_eq!(failed, None, "{commands}");
            counter.load(Ordering::Relaxed) - before
        };
        let (few, many) = (walked(FEW), walked(4 * FEW));
        println!(
            "{commands}: {few} uncommitted states are walked over by {FEW}, {many} by four times as many"
        );
        assert!(many <= 8 * few + 1000, "{commands}: {few} steps for {FEW}, {many} for four times as many");
    }
}

#[test]
fn popping_everything_in_one_transaction_gives_each_element_once_and_in_order() {
    const MANY: usize = 1500;
    let server = TestServer::start();
    let mut client = server.client();
    fill(&mut client, MANY);
    let pops: Vec<String> = (0..MANY).flat_map(|_| ["ZPOPMIN z".to_string(), "SPOP s".to_string()]).collect();
    let replies = exec(&mut client, &pops);
    let mut popped = BTreeSet::new();
    for (n, pair) in replies.chunks_exact(2).enumerate() {
        assert_eq!(pair[0].to_string(), format!("[\"m{n}\", \"{n}\"]"));
        popped.insert(pair[1].to_string());
    }
    assert_eq!(popped, (0..MANY).map(|n| format!("\"m{n}\"")).collect());
    assert_eq!(client.line("EXISTS z s").to_string(), "0");
}

/// One random command on few keys with many elements.
fn draw(rng: &mut Rng) -> String {
    let (name, member) = (["za", "zb"][rng.below(2) as usize], rng.below(300));
    let (low, len) = (rng.below(300) as i64, rng.below(12) as i64);
    let high = low + len;
    match rng.below(34) {
        0..=4 => format!("ZPOPMIN {name}"),
        5..=9 => format!("ZPOPMAX {name} {}", 1 + rng.below(3)),
        10..=11 => format!("ZREM {name} m{member}"),
        12..=13 => format!("ZADD {name} {low} m{member}"),
        14 => format!("ZRANGE {name} {low} {high}"),
        15 => format!("ZRANGE {name} 0 2 REV"),
        16 => format!("ZRANGEBYSCORE {name} {low} {high}"),
        17 => format!("ZREVRANGEBYSCORE {name} ({high} -inf LIMIT {len} 3"),
        18 => format!("ZREMRANGEBYSCORE {name} {low} {high}"),
        19 => format!("ZREMRANGEBYRANK {name} -3 -1"),
        20 => format!("ZCOUNT {name} {low} +inf"),
        21 => format!("ZRANK {name} m{member}"),
        22 => format!("ZUNIONSTORE zb 2 {name} za"),
        23 => format!("SREM s m{member}"),
        24 => format!("SADD s m{member}"),
        25 => "SMEMBERS s".to_string(),
        26 => "ZRANGE za 0 -1".to_string(),
        27 => format!("ZREMRANGEBYSCORE {name} {low} +inf"),
        28 => format!("DEL k{}", member % 60),
        29 => format!("SET k{} v", member % 60),
        30 => "KEYS *".to_string(),
        31 => "DBSIZE".to_string(),
        32 => format!("PUMICE.RANGE [k{} + COUNT 3", member % 60),
        _ => format!("PUMICE.RANGE - [k{} COUNT 3 REV", member % 60),
    }
}

#[test]
fn a_long_transaction_answers_as_its_commands_do_one_by_one() {
    let given = std::env::var("PUMICE_SEED").ok().and_then(|seed| seed.parse().ok());
    let server = TestServer::start();
    for seed in given.map_or(0..8, |seed: u64| seed..seed + 1) {
        let mut rng = Rng::from_seed(seed);
        let (mut alone, mut together) = (server.client(), server.client());
        together.line("SELECT 1");
        alone.line("FLUSHALL");
        for client in [&mut alone, &mut together] {
            for n in 0..300 {
                client.line(&format!("ZADD za {} m{n}", n * 7 % 300));
                client.line(&format!("ZADD zb {n} m{n}"));
                client.line(&format!("SADD s m{n}"));
                client.line(&format!("SET k{} v", n % 60));
            }
        }
        for _ in 0..3 {
            let commands: Vec<String> = (0..1 + rng.below(500)).map(|_| draw(&mut rng)).collect();
            let replies = exec(&mut together, &commands);
            for (at, (command, reply)) in commands.iter().zip(&replies).enumerate() {
                let expected = alone.line(command);
                assert_eq!(
                    reply.to_string(),
                    expected.to_string(),
                    "{command}, number {at} of {} (PUMICE_SEED={seed} cargo test -p pumice-redis --test it transactions::)",
                    commands.len()
                );
            }
        }
    }
}

/// On drives that were formatted together, both number what they hold alike.
#[test]
fn a_transaction_keeps_collections_of_several_drives_apart() {
    let server = TestServer::with(Setup { drives: 2, memory_bytes: 128 << 20, ..Setup::default() });
    let mut client = server.client();
    client.line("MULTI");
    for n in 0..60 {
        assert_eq!(client.line(&format!("SADD s{n} a{n} b{n}")).to_string(), "QUEUED");
        client.line(&format!("HSET h{n} f {n}"));
        client.line(&format!("HDEL h{n} f"));
        client.line(&format!("RPUSH l{n} a{n} b{n}"));
    }
    client.line("EXEC");
    for n in 0..60 {
        assert_eq!(
            client.line(&format!("SMISMEMBER s{n} a{n} b{n}")),
            Reply::Array(vec![Reply::Int(1); 2]),
            "s{n}"
        );
        assert_eq!(client.line(&format!("SCARD s{n}")), Reply::Int(2));
        assert_eq!(client.line(&format!("EXISTS h{n}")), Reply::Int(0));
        assert_eq!(client.line(&format!("LINDEX l{n} 1")).to_string(), format!("\"b{n}\""), "l{n}");
    }
}
