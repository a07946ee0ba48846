//! Ranks in a long order are asked for while others write to it: nobody is held up, the order is counted in pieces all the same, and
//! what is counted is what is there.

use std::cell::Cell;
use std::rc::Rc;

use pumice_base::rng::Rng;
use pumice_reactor::{join_all, now, spawn};
use pumice_redis::options::Options;

use crate::simulated::{Clients, SimClient, Stage};

/// Members of the set, whose order is on flash.
const MEMBERS: u64 = 20_000;

/// A set whose members are their own scores, nothing of which is in memory.
fn cold_stage(rank_walk_max: u64) -> Stage {
    let stage = Stage::start(Options { rank_walk_max, ..Options::default() });
    stage.play(async |clients| {
        let mut client = clients.connect().await;
        for from in (0..MEMBERS).step_by(500) {
            let scores: String = (from..from + 500).map(|n| format!(" {n} {n:06}")).collect();
            assert_eq!(client.line(&format!("ZADD z{scores}")).await, ":500");
        }
    });
    stage.restart();
    stage
}

/// What a question beside others, which write, brought.
struct Beside {
    /// Writes that were answered before the question was.
    writes: usize,
    /// Virtual nanoseconds that the longest of them took.
    longest: u64,
    asked: u64,
}

/// Asks `question`, to which `reply` begins the answer, while four others write to the set.
async fn ask_beside_writers(clients: &Clients, question: &str, reply: &str) -> Beside {
    let (is_over, writes, longest) =
        (Rc::new(Cell::new(false)), Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
    let mut writers = Vec::new();
    for writer in 0..4 {
        let mut client = clients.connect().await;
        let (is_over, writes, longest) = (is_over.clone(), writes.clone(), longest.clone());
        writers.push(spawn(async move {
            for n in 0.. {
                let started = now();
                // Behind all that is asked for, so that the answer is known.
                client.line(&format!("ZADD z {} {writer}:{n}", MEMBERS + n)).await;
                if is_over.get() {
                    return;
                }
                writes.set(writes.get() + 1);
                longest.set(longest.get().max(now().0 - started.0));
            }
        }));
    }
    let mut client = clients.connect().await;
    let started = now();
    assert_eq!(client.line(question).await, reply, "{question}");
    let asked = now().0 - started.0;
    is_over.set(true);
    join_all(writers.into_iter()).await;
    Beside { writes: writes.get(), longest: longest.get(), asked }
}

#[test]
fn who_asks_for_a_far_rank_holds_no_writer_up() {
    for (question, reply) in [
        ("ZRANK z 010000", ":10000"),
        ("ZRANGE z 9000 9000", "*1"),
        ("ZCOUNT z 4000 11999", ":8000"),
        ("ZRANGEBYSCORE z 100 +inf LIMIT 9000 1", "*1"),
    ] {
        let stage = cold_stage(1024);
        let question_of = question.to_owned();
        let beside = stage.play(async move |clients| ask_beside_writers(&clients, &question_of, reply).await);
        assert_eq!(stage.counted_orders(), (1, 1), "{question}");
        assert!(beside.writes >= 20, "{question}: {} writes meanwhile", beside.writes);
        let (longest, asked) = (beside.longest, beside.asked);
        assert!(longest < asked / 4, "{question} took {asked} ns, and a write {longest} ns");
    }
}

/// The ranks of some members are what the whole order says.
async fn ranks_are_right(client: &mut SimClient, key: &str, seed: u64) {
    let len = client.line(&format!("ZRANGE {key} 0 -1")).await;
    let len: usize = len.strip_prefix('*').expect("an array").parse().expect("a length");
    let mut order = Vec::new();
    for _ in 0..len {
        client.read_line().await;
        order.push(client.read_line().await);
    }
    assert_eq!(client.line(&format!("ZCARD {key}")).await, format!(":{len}"), "seed {seed}");
    for (rank, member) in order.iter().enumerate().step_by(37) {
        let found = client.line(&format!("ZRANK {key} {member}")).await;
        assert_eq!(found, format!(":{rank}"), "seed {seed}: {member} of {len}");
    }
}

/// Pieces of the order are counted while others write to those before and behind, to their ends and to what is gone over.
#[test]
fn what_is_written_between_the_pieces_is_counted_once() {
    for seed in 1..=12 {
        // Pieces of 128 elements.
        let stage = cold_stage(16);
        stage.play(async move |clients| {
            let mut writers = Vec::new();
            for writer in 0..6 {
                let mut client = clients.connect().await;
                writers.push(spawn(async move {
                    let mut rng = Rng::from_seed(seed * 100 + writer);
                    for _ in 0..60 {
                        let (member, score) = (rng.below(MEMBERS), rng.below(MEMBERS));
                        let command = match rng.below(4) {
                            0 => format!("ZREM z {member:06}"),
                            1 => format!("ZADD z {score} {member:06} {score}.5 new:{score}"),
                            2 => {
                                format!("ZREMRANGEBYSCORE z {score} {}", score + rng.below(200))
                            }
                            _ => format!("ZINCRBY z {} {member:06}", rng.below(9) as i64 - 4),
                        };
                        let reply = client.line(&command).await;
                        assert!(!reply.starts_with('-'), "{command}: {reply}");
                        if reply.starts_with('$') {
                            client.read_line().await;
                        }
                    }
                }));
            }
            let mut client = clients.connect().await;
            for _ in 0..8 {
                let rank = client.line("ZRANK z 010000").await;
                assert!(rank.starts_with(':') || rank == "$-1", "{rank}");
            }
            join_all(writers.into_iter()).await;
            client.line("ZADD z 0.5 mark").await;
            ranks_are_right(&mut client, "z", seed).await;
        });
        assert_eq!(stage.counted_orders(), (1, 1), "seed {seed}: counts that did not fit were made anew");
    }
}

/// A set that goes by another name, goes away or is made anew while its order is counted.
#[test]
fn a_set_that_is_renamed_while_it_is_counted_has_right_ranks() {
    for seed in 1..=8 {
        let stage = cold_stage(16);
        stage.play(async move |clients| {
            let (mut asker, mut other) = (clients.connect().await, clients.connect().await);
            asker.send(b"ZRANK z 010000\r\n".to_vec()).await;
            pumice_reactor::sleep(std::time::Duration::from_micros(seed * 400)).await;
            assert_eq!(other.line("RENAME z y").await, "+OK");
            let mut rng = Rng::from_seed(seed);
            for _ in 0..40 {
                let (member, score) = (rng.below(MEMBERS), rng.below(MEMBERS));
                assert!(other.line(&format!("ZADD y {score} {member:06}")).await.starts_with(':'));
                assert_eq!(other.line(&format!("ZADD z {score} {member:06}")).await.len(), 2);
            }
            let rank = asker.read_line().await;
            // As it was before it was renamed, or of the set that was made under its name.
            assert!(rank == ":10000" || rank == "$-1" || rank.len() <= 3, "{rank}");
            ranks_are_right(&mut other, "y", seed).await;
            ranks_are_right(&mut other, "z", seed).await;
        });
    }
}
