//! Ranks far from the ends of a sorted set: the order is counted, and what is answered stays what a walk would find, whatever is written.

use std::collections::BTreeMap;

use crate::common::{Client, Reply, Setup, TestServer, eventually};
use pumice_base::rng::Rng;
use pumice_redis::options::Options;

/// Walks longer than this have the order counted.
const FAR: u64 = 32;

fn setup(drives: usize) -> Setup {
    let options = Options { rank_walk_max: FAR, port: 0, ..Options::default() };
    Setup { drives, memory_bytes: drives as u64 * (64 << 20), options, ..Setup::default() }
}

/// What the set holds, without flash.
#[derive(Default)]
struct Model(BTreeMap<String, i64>);

impl Model {
    fn order(&self) -> Vec<(i64, String)> {
        let mut order: Vec<_> = self.0.iter().map(|(member, score)| (*score, member.clone())).collect();
        order.sort();
        order
    }

    fn remove(&mut self, elements: &[(i64, String)]) {
        for (_, member) in elements {
            self.0.remove(member);
        }
    }
}

fn int(n: usize) -> Reply {
    Reply::Int(n as i64)
}

fn names(order: &[(i64, String)]) -> Reply {
    Reply::Array(order.iter().map(|(_, member)| Reply::Bulk(member.clone().into_bytes())).collect())
}

/// Asks for ranks, for members by rank and for how many lie between scores.
fn ask(client: &mut Client, key: &str, model: &Model, rng: &mut Rng) {
    let order = model.order();
    if order.is_empty() {
        return;
    }
    let at = rng.below(order.len() as u64) as usize;
    assert_eq!(client.call(&["ZRANK", key, &order[at].1]), int(at), "rank of {:?}", order[at]);
    assert_eq!(client.call(&["ZREVRANK", key, &order[at].1]), int(order.len() - 1 - at));
    let end = (at + rng.below(20) as usize).min(order.len() - 1);
    let (from, to) = (at.to_string(), end.to_string());
    assert_eq!(client.call(&["ZRANGE", key, &from, &to]), names(&order[at..=end]), "{at}..={end}");
    let mut back = order.clone();
    back.reverse();
    assert_eq!(client.call(&["ZREVRANGE", key, &from, &to]), names(&back[at..=end]), "{at}..={end} backward");
    let (a, b) = (score(rng), score(rng));
    let (low, high) = (a.min(b), a.max(b));
    let between = |f: &dyn Fn(i64) -> bool| int(order.iter().filter(|(score, _)| f(*score)).count());
    let (low_text, high_text) = (low.to_string(), high.to_string());
    assert_eq!(
        client.call(&["ZCOUNT", key, &low_text, &high_text]),
        between(&|score| score >= low && score <= high)
    );
    assert_eq!(
        client.call(&["ZCOUNT", key, &format!("({low}"), &format!("({high}")]),
        between(&|score| score > low && score < high)
    );
    let (offset, count) = (rng.below(order.len() as u64 + 10) as usize, rng.below(10) as usize);
    let (skip, take) = (offset.to_string(), count.to_string());
    for (is_within, min, max) in [
        (
            &(|score: i64| score >= low && score <= high) as &dyn Fn(i64) -> bool,
            low_text.clone(),
            high_text.clone(),
        ),
        (&|score| score > low && score < high, format!("({low}"), format!("({high}")),
        (&|score| score >= low, low_text.clone(), "+inf".into()),
        (&|score| score < high, "-inf".into(), format!("({high}")),
    ] {
        for (command, order, first, last) in
            [("ZRANGEBYSCORE", &order, &min, &max), ("ZREVRANGEBYSCORE", &back, &max, &min)]
        {
            let within = order.iter().filter(|(score, _)| is_within(*score));
            let expected: Vec<_> = within.skip(offset).take(count).cloned().collect();
            let reply = client.call(&[command, key, first, last, "LIMIT", &skip, &take]);
            assert_eq!(reply, names(&expected), "{command} {first} {last} LIMIT {skip} {take}");
        }
    }
    assert_eq!(client.call(&["ZCOUNT", key, "-inf", &high_text]), between(&|score| score <= high));
    assert_eq!(client.call(&["ZCOUNT", key, &low_text, "+inf"]), between(&|score| score >= low));
}

fn score(rng: &mut Rng) -> i64 {
    // Some are the same: names decide then.
    rng.below(700) as i64 - 50
}

fn member(rng: &mut Rng) -> String {
    format!("{:04}", rng.below(1_500))
}

/// One command that writes, in the model and as it is sent.
fn write(model: &mut Model, key: &str, rng: &mut Rng) -> Vec<String> {
    let (name, score) = (member(rng), score(rng));
    let words = |words: &[&str]| words.iter().map(ToString::to_string).collect::<Vec<String>>();
    let order = model.order();
    match rng.below(20) {
        0..=7 => {
            model.0.insert(name.clone(), score);
            words(&["ZADD", key, &score.to_string(), &name])
        }
        8..=10 => {
            *model.0.entry(name.clone()).or_default() += score;
            words(&["ZINCRBY", key, &score.to_string(), &name])
        }
        11..=13 => {
            model.0.remove(&name);
            words(&["ZREM", key, &name])
        }
        14 => {
            model.remove(&order[..order.len().min(3)]);
            words(&["ZPOPMIN", key, "3"])
        }
        15 => {
            model.remove(&order[order.len().saturating_sub(3)..]);
            words(&["ZPOPMAX", key, "3"])
        }
        16 if order.len() > 300 => {
            let at = rng.below(order.len() as u64 - 10) as usize;
            model.remove(&order[at..at + 10]);
            words(&["ZREMRANGEBYRANK", key, &at.to_string(), &(at + 9).to_string()])
        }
        17 if order.len() > 300 => {
            model.0.retain(|_, own| *own != score);
            words(&["ZREMRANGEBYSCORE", key, &score.to_string(), &score.to_string()])
        }
        _ => {
            // Many at one end, as time goes on.
            let mut command = words(&["ZADD", key]);
            for n in 0..20 {
                let name = format!("{:04}", (rng.below(1_480) + n) % 1_500);
                let score = 600 + n as i64;
                command.extend([score.to_string(), name.clone()]);
                model.0.insert(name, score);
            }
            command
        }
    }
}

/// The set is asked for until its order is counted.
fn have_counted(client: &mut Client, server: &TestServer, key: &str, model: &Model) {
    let order = model.order();
    let middle = order.len() / 2;
    eventually("the order is counted", || {
        assert_eq!(client.call(&["ZRANK", key, &order[middle].1]), int(middle));
        server.server().ranks.counted().orders == 1
    });
}

fn filled(client: &mut Client, key: &str, rng: &mut Rng) -> Model {
    let mut model = Model::default();
    for _ in 0..1_000 {
        let (name, score) = (member(rng), score(rng));
        client.call(&["ZADD", key, &score.to_string(), &name]);
        model.0.insert(name, score);
    }
    model
}

#[test]
fn ranks_stay_right_whatever_is_written() {
    for (seed, drives) in [(1, 1), (2, 1), (3, 2)] {
        let server = TestServer::with(setup(drives));
        let (mut client, mut rng) = (server.client(), Rng::from_seed(seed));
        let mut model = filled(&mut client, "z", &mut rng);
        have_counted(&mut client, &server, "z", &model);
        for _ in 0..400 {
            let command = write(&mut model, "z", &mut rng);
            client.call(&command);
            // Nobody found that the counts were wrong, and had them forgotten.
            assert_eq!(server.server().ranks.counted().orders, 1, "seed {seed}: after {command:?}");
            ask(&mut client, "z", &model, &mut rng);
            assert_eq!(
                server.server().ranks.counted().orders,
                1,
                "seed {seed}: when asked after {command:?}"
            );
        }
    }
}

#[test]
fn a_transaction_sees_the_ranks_that_it_makes() {
    let server = TestServer::with(setup(1));
    let (mut client, mut rng) = (server.client(), Rng::from_seed(4));
    let mut model = filled(&mut client, "z", &mut rng);
    have_counted(&mut client, &server, "z", &model);
    for _ in 0..150 {
        client.line("MULTI");
        let mut expected = Vec::new();
        for _ in 0..1 + rng.below(4) {
            client.call(&write(&mut model, "z", &mut rng));
            expected.push(None);
            let order = model.order();
            let at = rng.below(order.len() as u64) as usize;
            client.call(&["ZRANK", "z", &order[at].1]);
            expected.push(Some(int(at)));
            client.call(&["ZRANGE", "z", &at.to_string(), &at.to_string()]);
            expected.push(Some(names(&order[at..=at])));
            client.call(&["ZCOUNT", "z", "-inf", "(300"]);
            expected.push(Some(int(order.iter().filter(|(score, _)| *score < 300).count())));
        }
        let Reply::Array(replies) = client.line("EXEC") else { panic!("an array") };
        assert_eq!(replies.len(), expected.len());
        for (reply, expected) in replies.into_iter().zip(expected) {
            expected.into_iter().for_each(|expected| assert_eq!(reply, expected));
        }
        assert_eq!(server.server().ranks.counted().orders, 1);
        ask(&mut client, "z", &model, &mut rng);
    }
}

/// What others write while the order is gone over is counted, too; and counts go with their set.
#[test]
fn counting_and_writing_go_on_side_by_side() {
    let server = TestServer::with(setup(1));
    let (mut client, mut rng) = (server.client(), Rng::from_seed(5));
    for round in 0..20 {
        let key = format!("z{round}");
        let mut model = filled(&mut client, &key, &mut rng);
        let order = model.order();
        // One request: it is counted from here on, while the rest is written.
        let mut sent = crate::common::client::encode(&["ZRANK", &key, &order[order.len() / 2].1]);
        let writes: Vec<Vec<String>> = (0..30).map(|_| write(&mut model, &key, &mut rng)).collect();
        writes.iter().for_each(|command| sent.extend(crate::common::client::encode(command)));
        client.send(&sent);
        (0..=writes.len()).for_each(|_| drop(client.read()));
        for _ in 0..10 {
            ask(&mut client, &key, &model, &mut rng);
        }
        let renamed = format!("r{round}");
        assert_eq!(client.call(&["RENAME", &key, &renamed]), Reply::Simple("OK".into()));
        ask(&mut client, &renamed, &model, &mut rng);
        // Another set under the name of one that was counted.
        client.call(&["DEL", &renamed]);
        let model = filled(&mut client, &renamed, &mut rng);
        ask(&mut client, &renamed, &model, &mut rng);
        client.line("FLUSHDB");
    }
}

/// Counts have a share of the memory, whoever asks for them.
#[test]
fn counts_take_no_more_than_their_share() {
    let options = Options { rank_walk_max: 8, memory_bytes: 256 << 10, port: 0, ..Options::default() };
    let server = TestServer::with(Setup { options, ..Setup::default() });
    let (mut client, mut rng) = (server.client(), Rng::from_seed(6));
    let mut most = 0;
    for n in 0..30 {
        let key = format!("z{n}");
        let model = filled(&mut client, &key, &mut rng);
        for _ in 0..4 {
            ask(&mut client, &key, &model, &mut rng);
        }
        let counted = server.server().ranks.counted();
        assert!(counted.bytes <= 4 << 10, "{} B for {} orders", counted.bytes, counted.orders);
        most = most.max(counted.orders);
    }
    assert!(most > 0);
}

/// Where their share has no room for short stretches, they are longer, and stay so.
#[test]
fn large_orders_have_long_stretches() {
    let options = Options { rank_walk_max: 8, memory_bytes: 128 << 10, port: 0, ..Options::default() };
    let server = TestServer::with(Setup { options, ..Setup::default() });
    let (mut client, mut rng) = (server.client(), Rng::from_seed(7));
    let mut model = filled(&mut client, "z", &mut rng);
    have_counted(&mut client, &server, "z", &model);
    for _ in 0..100 {
        client.call(&write(&mut model, "z", &mut rng));
        ask(&mut client, "z", &model, &mut rng);
        assert_eq!(server.server().ranks.counted().orders, 1);
    }
}
