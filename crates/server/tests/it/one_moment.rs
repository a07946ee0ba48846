//! On several cores: what is written together is read together.

use std::thread;

use redis::Value;

use crate::common::Server;

const NAMES: usize = 12;
const ROUNDS: usize = 2000;
const READERS: usize = 3;

/// A command over all names; `of` says what each adds.
fn command(words: &[&str], of: impl Fn(usize) -> Vec<String>) -> redis::Cmd {
    let mut command = redis::Cmd::new();
    command.arg(words);
    command.arg((0..NAMES).flat_map(of).collect::<Vec<_>>());
    command
}

fn name(n: usize) -> Vec<String> {
    vec![format!("n{n}")]
}

#[test]
fn several_values_are_read_as_of_one_moment() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &[]);
    type Write = fn(usize) -> redis::Cmd;
    // Who writes, and who reads meanwhile.
    let cases: [(Write, redis::Cmd); 4] = [
        (|round| command(&["MSET"], |n| vec![format!("n{n}"), round.to_string()]), command(&["MGET"], name)),
        (
            |round| command(&["HSET", "h"], |n| vec![format!("n{n}"), round.to_string()]),
            command(&["HMGET", "h"], name),
        ),
        (
            |round| command(&["ZADD", "z"], |n| vec![round.to_string(), format!("n{n}")]),
            command(&["ZMSCORE", "z"], name),
        ),
        (|round| command(&[["SADD", "SREM"][round % 2], "s"], name), command(&["SMISMEMBER", "s"], name)),
    ];
    for (write, read) in cases {
        thread::scope(|scope| {
            let mut writer = server.client();
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    write(round).exec(&mut writer).unwrap();
                }
            });
            for mut reader in (0..READERS).map(|_| server.client()) {
                let read = &read;
                scope.spawn(move || {
                    for _ in 0..ROUNDS {
                        let found: Vec<Value> = read.query(&mut reader).unwrap();
                        assert_eq!(found.len(), NAMES);
                        assert!(found.iter().all(|value| *value == found[0]), "{found:?}");
                    }
                });
            }
        });
    }
}
