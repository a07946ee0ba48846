//! Strings and counters.

use super::Command;
use super::draw::Draw;

pub fn draw(d: &mut Draw<'_>) -> Command {
    let key = d.key_of("s");
    match d.below(28) {
        0..3 => d.command("get", vec![key]),
        3..7 => set(d, key),
        7 => {
            let value = d.value();
            d.command("setnx", vec![key, value])
        }
        8 if d.with_expiry => {
            let (ttl, value) = (d.ttl(true), d.value());
            d.command("setex", vec![key, ttl, value])
        }
        9 if d.with_expiry => {
            let (ttl, value) = (d.ttl(false), d.value());
            d.command("psetex", vec![key, ttl, value])
        }
        10 => {
            let value = d.value();
            d.command("getset", vec![key, value])
        }
        11 => d.command("getdel", vec![key]),
        12 => {
            let mut words = vec![key];
            match d.below(6) {
                0 => {}
                1 => words.push(d.word("persist")),
                2 => words.extend([d.word("ex"), d.ttl(true)]),
                3 => words.extend([d.word("px"), d.ttl(false)]),
                4 => words.extend([d.word("exat"), d.deadline(true)]),
                _ => words.extend([d.word("pxat"), d.deadline(false)]),
            }
            d.command("getex", words)
        }
        13..15 => {
            let keys = (0..1 + d.below(4)).map(|_| d.key_of("s")).collect();
            d.command("mget", keys)
        }
        15..17 => {
            let name = if d.below(2) == 0 { "mset" } else { "msetnx" };
            let words = (0..1 + d.below(4)).flat_map(|_| [d.key_of("s"), d.value()]).collect();
            d.command(name, words)
        }
        17..19 => {
            let value = d.value();
            d.command("append", vec![key, value])
        }
        19 => d.command("strlen", vec![key]),
        20..22 => {
            let name = *d.pick(&["getrange", "substr"]);
            let words = vec![key, d.int(), d.int()];
            d.command(name, words)
        }
        22..24 => {
            // Far offsets would make values of hundreds of megabytes on both sides.
            let offset = match d.below(8) {
                0 => b"-1".to_vec(),
                1 => b"536870912".to_vec(),
                2 => b"x".to_vec(),
                3 => b"300000".to_vec(),
                _ => d.below(40).to_string().into_bytes(),
            };
            let value = d.value();
            d.command("setrange", vec![key, offset, value])
        }
        24 => {
            let name = *d.pick(&["incr", "decr"]);
            d.command(name, vec![key])
        }
        25..27 => {
            let name = *d.pick(&["incrby", "decrby"]);
            let by = d.int();
            d.command(name, vec![key, by])
        }
        _ => {
            let by = d.float();
            d.command("incrbyfloat", vec![key, by])
        }
    }
}

fn set(d: &mut Draw<'_>, key: Vec<u8>) -> Command {
    let mut words = vec![key, d.value()];
    for _ in 0..d.below(4) {
        match d.below(9) {
            0 => words.push(d.word("nx")),
            1 => words.push(d.word("xx")),
            2 => words.push(d.word("get")),
            3 => words.push(d.word("keepttl")),
            4 if d.with_expiry => words.extend([d.word("ex"), d.ttl(true)]),
            5 if d.with_expiry => words.extend([d.word("px"), d.ttl(false)]),
            6 if d.with_expiry => words.extend([d.word("exat"), d.deadline(true)]),
            7 if d.with_expiry => words.extend([d.word("pxat"), d.deadline(false)]),
            _ => {}
        }
    }
    d.command("set", words)
}
