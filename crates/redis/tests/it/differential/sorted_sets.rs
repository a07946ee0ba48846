//! Sorted sets. Ranges by name are drawn on keys whose members all score the same: on others, Redis does not say
//! what they mean.

use super::Command;
use super::draw::Draw;
use super::hashes::{random, scan};

fn score_bound(d: &mut Draw<'_>) -> Vec<u8> {
    let mut bound = match d.below(5) {
        0 => d.pick(&["-inf", "+inf", "inf"]).as_bytes().to_vec(),
        _ => d.float(),
    };
    if d.below(4) == 0 {
        bound.insert(0, b'(');
    }
    bound
}

fn lex_bound(d: &mut Draw<'_>) -> Vec<u8> {
    match d.below(12) {
        0..2 => b"-".to_vec(),
        2..4 => b"+".to_vec(),
        4 => d.field(),
        n => [if n % 2 == 0 { &b"["[..] } else { b"(" }, &d.field()].concat(),
    }
}

fn rank(d: &mut Draw<'_>) -> Vec<u8> {
    if d.below(10) == 0 { d.int() } else { (d.below(40) as i64 - 20).to_string().into_bytes() }
}

fn limit(d: &mut Draw<'_>, words: &mut Vec<Vec<u8>>) {
    if d.below(3) == 0 {
        words.extend([d.word("limit"), rank(d), rank(d)]);
    }
}

/// A key whose members score the same, and one that mostly does not.
fn key_and_kind(d: &mut Draw<'_>) -> (Vec<u8>, bool) {
    let level = d.below(3) == 0;
    (d.key_of(if level { "lex" } else { "z" }), level)
}

fn several(d: &mut Draw<'_>, words: &mut Vec<Vec<u8>>) -> u64 {
    let count = 1 + d.below(3);
    words.push(if d.below(15) == 0 { d.int() } else { count.to_string().into_bytes() });
    for _ in 0..count {
        let prefix = *d.pick(&["z", "z", "e", "lex"]);
        words.push(d.key_of(prefix));
    }
    count
}

/// Options of ZUNION and relatives.
fn combination(d: &mut Draw<'_>, words: &mut Vec<Vec<u8>>, count: u64, with_scores: bool) {
    if d.below(3) == 0 {
        words.push(d.word("weights"));
        words.extend((0..count).map(|_| d.float()));
    }
    if d.below(3) == 0 {
        let aggregate = *d.pick(&["sum", "min", "max"]);
        words.extend([d.word("aggregate"), d.word(aggregate)]);
    }
    if with_scores && d.below(2) == 0 {
        words.push(d.word("withscores"));
    }
}

pub fn draw(d: &mut Draw<'_>) -> Command {
    if let Some(fields) = d.many_fields() {
        let (key, level) = key_and_kind(d);
        let is_level = level && key.starts_with(b"lex");
        let mut words = vec![key];
        for field in fields {
            let score = if is_level { 0 } else { d.below(60) as i64 - 20 };
            words.extend([score.to_string().into_bytes(), field]);
        }
        return d.command("zadd", words);
    }
    match d.below(60) {
        0..14 => add(d),
        14..24 => range(d),
        24..30 => older_range(d),
        30..36 => remove(d),
        36..42 => combine(d),
        42..45 => pop(d),
        _ => look(d),
    }
}

fn add(d: &mut Draw<'_>) -> Command {
    let (key, level) = key_and_kind(d);
    let is_level = level && key.starts_with(b"lex");
    let mut words = vec![key];
    if is_level {
        for _ in 0..1 + d.below(6) {
            words.extend([b"0".to_vec(), d.field()]);
        }
        return d.command("zadd", words);
    }
    if d.below(5) == 0 {
        words.extend([d.float(), d.field()]);
        return d.command("zincrby", words);
    }
    for flag in ["nx", "xx", "gt", "lt", "ch", "incr"] {
        if d.below(8) == 0 {
            words.push(d.word(flag));
        }
    }
    for _ in 0..1 + d.below(4) {
        words.extend([d.float(), d.field()]);
    }
    d.command("zadd", words)
}

fn range(d: &mut Draw<'_>) -> Command {
    let (key, level) = key_and_kind(d);
    let store = d.below(4) == 0;
    let mut words = vec![key];
    if store {
        words.insert(0, d.key_of("z"));
    }
    let kind = if level && words.last().is_some_and(|key| key.starts_with(b"lex")) {
        d.below(3)
    } else {
        d.below(2)
    };
    match kind {
        0 => words.extend([rank(d), rank(d)]),
        1 => words.extend([score_bound(d), score_bound(d), d.word("byscore")]),
        _ => words.extend([lex_bound(d), lex_bound(d), d.word("bylex")]),
    }
    if d.below(3) == 0 {
        words.push(d.word("rev"));
    }
    limit(d, &mut words);
    if d.below(3) == 0 {
        words.push(d.word("withscores"));
    }
    d.command(if store { "zrangestore" } else { "zrange" }, words)
}

fn older_range(d: &mut Draw<'_>) -> Command {
    let (key, level) = key_and_kind(d);
    let is_level = level && key.starts_with(b"lex");
    let mut words = vec![key];
    let name = if is_level && d.below(2) == 0 {
        words.extend([lex_bound(d), lex_bound(d)]);
        *d.pick(&["zrangebylex", "zrevrangebylex"])
    } else if d.below(3) > 0 {
        words.extend([score_bound(d), score_bound(d)]);
        *d.pick(&["zrangebyscore", "zrevrangebyscore"])
    } else {
        words.extend([rank(d), rank(d)]);
        "zrevrange"
    };
    if d.below(2) == 0 {
        words.push(d.word("withscores"));
    }
    limit(d, &mut words);
    d.command(name, words)
}

fn remove(d: &mut Draw<'_>) -> Command {
    let (key, level) = key_and_kind(d);
    let is_level = level && key.starts_with(b"lex");
    let mut words = vec![key];
    let name = match d.below(6) {
        0 => {
            words.extend([rank(d), rank(d)]);
            "zremrangebyrank"
        }
        1 => {
            words.extend([score_bound(d), score_bound(d)]);
            "zremrangebyscore"
        }
        2 if is_level => {
            words.extend([lex_bound(d), lex_bound(d)]);
            "zremrangebylex"
        }
        _ => {
            words.extend((0..1 + d.below(3)).map(|_| d.field()));
            "zrem"
        }
    };
    d.command(name, words)
}

fn combine(d: &mut Draw<'_>) -> Command {
    let mut words = Vec::new();
    let operation = *d.pick(&["union", "inter", "diff"]);
    match d.below(5) {
        0 => {
            several(d, &mut words);
            if d.below(2) == 0 {
                words.extend([d.word("limit"), d.int()]);
            }
            d.command("zintercard", words)
        }
        1..3 => {
            words.push(d.key_of("z"));
            let count = several(d, &mut words);
            combination(d, &mut words, count, false);
            d.command(&format!("z{operation}store"), words)
        }
        _ => {
            let count = several(d, &mut words);
            combination(d, &mut words, count, true);
            d.command(&format!("z{operation}"), words)
        }
    }
}

fn pop(d: &mut Draw<'_>) -> Command {
    if d.below(3) == 0 {
        let count = 1 + d.below(3);
        let mut words = vec![if d.below(12) == 0 { d.int() } else { count.to_string().into_bytes() }];
        words.extend((0..count).map(|_| d.key_of("z")));
        let end = *d.pick(&["min", "max"]);
        words.push(d.word(end));
        if d.below(2) == 0 {
            words.extend([d.word("count"), rank(d)]);
        }
        return d.command("zmpop", words);
    }
    let name = *d.pick(&["zpopmin", "zpopmax"]);
    let mut words = vec![d.key_of("z")];
    if d.below(2) == 0 {
        words.push(rank(d));
    }
    d.command(name, words)
}

fn look(d: &mut Draw<'_>) -> Command {
    let (key, level) = key_and_kind(d);
    let is_level = level && key.starts_with(b"lex");
    match d.below(12) {
        0..3 => {
            let name = *d.pick(&["zscore", "zrank", "zrevrank"]);
            let words = vec![key, d.field()];
            d.command(name, words)
        }
        3 => {
            let mut words = vec![key];
            words.extend((0..1 + d.below(4)).map(|_| d.field()));
            d.command("zmscore", words)
        }
        4..6 => {
            let words = vec![key, score_bound(d), score_bound(d)];
            d.command("zcount", words)
        }
        6..8 if is_level => {
            let words = vec![key, lex_bound(d), lex_bound(d)];
            d.command("zlexcount", words)
        }
        8 => random(d, key, "zrandmember", "withscores"),
        9..11 => scan(d, key, "zscan"),
        _ => d.command("zcard", vec![key]),
    }
}
