//! Commands over single elements of one key, which lie on flash: they read side by side, and still one after the other change the key.

use std::rc::Rc;

use pumice_reactor::{now, spawn};
use pumice_redis::options::Options;

use crate::simulated::{Clients, SimClient, Stage};

/// Clients at a time.
const CLIENTS: usize = 64;

/// A hash, a set and a sorted set of 6,400 elements each, nothing of which is in memory.
fn cold_stage() -> Stage {
    let stage = Stage::start(Options::default());
    stage.play(async |clients| {
        let mut client = clients.connect().await;
        for from in (0..6_400).step_by(100) {
            let elements = from..from + 100;
            let pairs: String = elements.clone().map(|n| format!(" {n:0>300} 1")).collect();
            assert_eq!(client.line(&format!("HSET h{pairs}")).await, ":100");
            let members: String = elements.clone().map(|n| format!(" {n:0>300}")).collect();
            assert_eq!(client.line(&format!("SADD s{members}")).await, ":100");
            let scores: String = elements.map(|n| format!(" 0 {n:0>300}")).collect();
            assert_eq!(client.line(&format!("ZADD z{scores}")).await, ":100");
        }
    });
    stage.restart();
    stage
}

async fn stat(client: &mut SimClient, section: &str, name: &str) -> u64 {
    client.send(format!("INFO {section}\r\n").into_bytes()).await;
    let len = client.read_line().await;
    let len: usize = len.strip_prefix('$').expect("a bulk string").parse().expect("a length");
    let (mut read, mut found) = (0, None);
    while read < len {
        let line = client.read_line().await;
        read += line.len() + 2;
        if let Some((_, value)) = line.split_once(':').filter(|(key, _)| *key == name) {
            found = Some(value.parse().expect("a number"));
        }
    }
    client.read_line().await;
    found.unwrap_or_else(|| panic!("no {name}"))
}

/// How long `command` of each of so many elements takes, all at once.
async fn nanos_of(
    clients: &Clients,
    command: &str,
    elements: impl Iterator<Item = usize>,
    reply: &str,
) -> u64 {
    let mut asked = Vec::new();
    for n in elements {
        let command = command.replace("NAME", &format!("{n:0>300}"));
        asked.push((clients.connect().await, command));
    }
    let started = now();
    for (client, command) in &mut asked {
        client.send(format!("{command}\r\n").into_bytes()).await;
    }
    for (client, command) in &mut asked {
        assert_eq!(client.read_line().await, reply, "{command}");
    }
    now().0 - started.0
}

#[test]
fn elements_of_one_key_are_read_side_by_side() {
    for (command, reply) in [
        ("HSET h NAME 1", ":0"),
        ("HMSET h NAME 1", "+OK"),
        ("HSETNX h NAME 1", ":0"),
        ("HDEL h NAME", ":1"),
        ("HINCRBY h NAME 2", ":3"),
        ("HINCRBYFLOAT h NAME 2", "$1"),
        ("HEXISTS h NAME", ":1"),
        ("HSTRLEN h NAME", ":1"),
        ("HMGET h NAME", "*1"),
        ("SADD s NAME", ":0"),
        ("SREM s NAME", ":1"),
        ("SMISMEMBER s NAME", "*1"),
        ("SMOVE s t NAME", ":1"),
        ("ZADD z CH 5 NAME", ":1"),
        ("ZINCRBY z 5 NAME", "$1"),
        ("ZREM z NAME", ":1"),
        ("ZMSCORE z NAME", "*1"),
    ] {
        let stage = cold_stage();
        let (alone, together) = stage.play(async move |clients| {
            // The head, and what else is read once.
            nanos_of(&clients, command, 6_399..6_400, reply).await;
            let alone = nanos_of(&clients, command, 6_398..6_399, reply).await;
            // Elements lie by hashes of their names: few share a block.
            let elements = (0..CLIENTS).map(|n| n * 97);
            (alone, nanos_of(&clients, command, elements, reply).await)
        });
        // One after the other they would take as long as each alone.
        assert!(together < alone * CLIENTS as u64 / 4, "{command}: {alone} ns alone, {together} together");
    }
}

#[test]
fn what_changes_while_it_is_read_is_read_as_it_is() {
    let stage = cold_stage();
    let rounds = 3;
    stage.play(async move |clients| {
        // All add to the same elements, none of which is in memory at first.
        let clients = Rc::new(clients);
        let adding = (0..CLIENTS).map(|_| {
            let clients = clients.clone();
            spawn(async move {
                let mut client = clients.connect().await;
                for n in (0..rounds * 10).map(|n| n % 10 * 600) {
                    client
                        .send(format!("HINCRBY h {n:0>300} 1\r\nZINCRBY z 1 {n:0>300}\r\n").into_bytes())
                        .await;
                    assert!(client.read_line().await.starts_with(':'));
                    assert!(client.read_line().await.starts_with('$'));
                    client.read_line().await;
                }
            })
        });
        for adding in adding.collect::<Vec<_>>() {
            adding.await.expect("it ends");
        }
        let mut client = clients.connect().await;
        let sum = CLIENTS * rounds;
        for n in (0..10).map(|n| n * 600) {
            assert_eq!(client.line(&format!("HINCRBY h {n:0>300} 0")).await, format!(":{}", sum + 1));
            client.line(&format!("ZSCORE z {n:0>300}")).await;
            assert_eq!(client.read_line().await, sum.to_string());
        }
        assert_eq!(client.line("HLEN h").await, ":6400");
        assert_eq!(client.line("ZCARD z").await, ":6400");
    });
}

#[test]
fn elements_come_and_go_once_however_many_ask() {
    let stage = cold_stage();
    stage.play(async move |clients| {
        let mut all = Vec::new();
        for _ in 0..CLIENTS {
            all.push(clients.connect().await);
        }
        let mut removed = 0;
        for client in &mut all {
            let commands =
                format!("HDEL h {:0>300} {:0>300}\r\nSREM s absent\r\nHSET h new 1\r\n", 17, 3_000);
            client.send(commands.into_bytes()).await;
        }
        let mut added = 0;
        for client in &mut all {
            removed += client.read_line().await[1..].parse::<u32>().expect("a number");
            assert_eq!(client.read_line().await, ":0");
            added += client.read_line().await[1..].parse::<u32>().expect("a number");
        }
        assert_eq!((removed, added), (2, 1));
        assert_eq!(all[0].line("HLEN h").await, ":6399");
    });
}

#[test]
fn values_are_read_and_counted_once() {
    let stage = Stage::start(Options::default());
    let value = |n: usize, round: usize| format!("{n}-{round}-{:0>8000}", 0);
    stage.play(async move |clients| {
        let mut client = clients.connect().await;
        for n in 0..40 {
            assert_eq!(client.line(&format!("HSET h f{n} {}", value(n, 0))).await, ":1");
        }
    });
    stage.restart();
    stage.play(async move |clients| {
        let (mut client, mut other) = (clients.connect().await, clients.connect().await);
        let before = stat(&mut client, "pumice", "flash_reads").await;
        let found = stat(&mut client, "stats", "keyspace_hits").await;
        client.send(b"HMGET h f1 f2 f3 f4 f5 f6 f7 f8\r\n".to_vec()).await;
        assert_eq!(client.read_line().await, "*8");
        for n in 1..9 {
            client.read_line().await;
            assert_eq!(client.read_line().await, value(n, 0));
        }
        assert_eq!(client.line("HSTRLEN h f9").await, ":8004");
        assert_eq!(client.line("HEXISTS nothing f9").await, ":0");
        // Eight values, the head and what leads to them.
        let read = stat(&mut client, "pumice", "flash_reads").await - before;
        assert!((8..8 + 6).contains(&read), "{read} reads of flash");
        assert_eq!(stat(&mut client, "stats", "keyspace_hits").await - found, 2);
        assert_eq!(stat(&mut client, "stats", "keyspace_misses").await, 1);
        // What is written meanwhile is what is told, or what was there before; from then on it is told.
        for n in 10..30 {
            client.send(format!("HMGET h f{n} f{}\r\n", n + 1).into_bytes()).await;
            assert_eq!(other.line(&format!("HSET h f{n} {}", value(n, 1))).await, ":0");
            assert_eq!(client.read_line().await, "*2");
            client.read_line().await;
            let told = client.read_line().await;
            assert!(told == value(n, 0) || told == value(n, 1), "f{n} is {told}");
            client.read_line().await;
            assert_eq!(client.read_line().await, value(n + 1, 0));
            client.line(&format!("HMGET h f{n}")).await;
            client.read_line().await;
            assert_eq!(client.read_line().await, value(n, 1));
        }
    });
}

/// Memory knows an element or that it is not there, or it does not: the answers are the same, and so are the counts.
#[test]
fn single_elements_are_answered_alike_wherever_they_lie() {
    let stage = Stage::start(Options::default());
    let long = "v".repeat(300_000);
    let questions = [
        ("HGET h f", "$1"),
        ("HGET h g", "$-1"),
        ("HGET none f", "$-1"),
        ("HGET s f", "-WRONGTYPE Operation against a key holding the wrong kind of value"),
        ("HGET t f", "-WRONGTYPE Operation against a key holding the wrong kind of value"),
        ("HGET big f", "$300000"),
        ("SISMEMBER s m", ":1"),
        ("SISMEMBER s n", ":0"),
        ("SISMEMBER none m", ":0"),
        ("SISMEMBER h f", "-WRONGTYPE Operation against a key holding the wrong kind of value"),
        ("ZSCORE z m", "$4"),
        ("ZSCORE z n", "$-1"),
        ("ZSCORE none m", "$-1"),
        ("ZSCORE t m", "-WRONGTYPE Operation against a key holding the wrong kind of value"),
    ];
    let ask = async move |clients: Clients| {
        let mut client = clients.connect().await;
        let before = (
            stat(&mut client, "stats", "keyspace_hits").await,
            stat(&mut client, "stats", "keyspace_misses").await,
        );
        for (question, answer) in questions {
            assert_eq!(client.line(question).await, answer, "{question}");
            if let Some(len) = answer.strip_prefix('$').and_then(|len| len.parse::<usize>().ok()) {
                let value = client.read_line().await;
                assert_eq!(value.len(), len, "{question}");
            }
        }
        let after = (
            stat(&mut client, "stats", "keyspace_hits").await,
            stat(&mut client, "stats", "keyspace_misses").await,
        );
        assert_eq!((after.0 - before.0, after.1 - before.1), (11, 3));
    };
    stage.play(async move |clients| {
        let mut client = clients.connect().await;
        for (command, reply) in [
            ("HSET h f v".to_string(), ":1"),
            ("SADD s m".to_string(), ":1"),
            ("ZADD z 1.25 m".to_string(), ":1"),
            ("SET t x".to_string(), "+OK"),
            ("HSET gone f v".to_string(), ":1"),
            ("PEXPIREAT gone 1".to_string(), ":1"),
        ] {
            assert_eq!(client.line(&command).await, reply);
        }
        client
            .send(format!("*4\r\n$4\r\nHSET\r\n$3\r\nbig\r\n$1\r\nf\r\n$300000\r\n{long}\r\n").into())
            .await;
        assert_eq!(client.read_line().await, ":1");
        assert_eq!(client.line("HGET gone f").await, "$-1");
        ask(clients).await;
    });
    stage.restart();
    stage.play(ask);
    stage.play(ask);
    // Under the same key another collection is another one.
    stage.play(async |clients| {
        let mut client = clients.connect().await;
        for (command, reply) in [
            ("DEL h", ":1"),
            ("HGET h f", "$-1"),
            ("HSET h g w", ":1"),
            ("HGET h f", "$-1"),
            ("RENAME h s", "+OK"),
            ("HGET h g", "$-1"),
            ("SISMEMBER s m", "-WRONGTYPE Operation against a key holding the wrong kind of value"),
            ("HSTRLEN s g", ":1"),
            ("MULTI", "+OK"),
            ("HSET s g later", "+QUEUED"),
            ("HGET s g", "+QUEUED"),
            ("EXEC", "*2"),
        ] {
            assert_eq!(client.line(command).await, reply, "{command}");
        }
        assert_eq!(client.read_line().await, ":0");
        assert_eq!(client.read_line().await, "$5");
        assert_eq!(client.read_line().await, "later");
    });
}
