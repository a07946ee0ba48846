//! Sets. SPOP is drawn only where it takes everything: chance would part the two servers for good.

use super::Command;
use super::draw::Draw;
use super::hashes::{random, scan};

/// A member: words, or numbers, so that some sets hold integers only.
fn member(d: &mut Draw<'_>, key: &[u8]) -> Vec<u8> {
    if key.last().is_some_and(|b| b % 2 == 0) && d.below(8) > 0 {
        return (d.below(30) as i64 - 5).to_string().into_bytes();
    }
    d.field()
}

pub fn draw(d: &mut Draw<'_>) -> Command {
    let key = d.key_of("e");
    if let Some(fields) = d.many_fields() {
        return d.command("sadd", std::iter::once(key).chain(fields).collect());
    }
    let keys = |d: &mut Draw<'_>, count: u64| (0..count).map(|_| d.key_of("e")).collect::<Vec<_>>();
    match d.below(30) {
        0..7 => {
            let mut words = vec![key.clone()];
            words.extend((0..1 + d.below(8)).map(|_| member(d, &key)));
            d.command("sadd", words)
        }
        7..10 => {
            let mut words = vec![key.clone()];
            words.extend((0..1 + d.below(5)).map(|_| member(d, &key)));
            d.command("srem", words)
        }
        10..12 => {
            let words = vec![key.clone(), member(d, &key)];
            d.command("sismember", words)
        }
        12 => {
            let mut words = vec![key.clone()];
            words.extend((0..1 + d.below(5)).map(|_| member(d, &key)));
            d.command("smismember", words)
        }
        13..15 => {
            let name = *d.pick(&["smembers", "scard"]);
            d.command(name, vec![key])
        }
        15 => vec![d.word("spop"), key, b"1000000".to_vec()],
        16..18 => {
            let words = vec![key.clone(), d.key_of("e"), member(d, &key)];
            d.command("smove", words)
        }
        18..21 => {
            let name = *d.pick(&["sinter", "sunion", "sdiff"]);
            let count = 1 + d.below(3);
            let words = keys(d, count);
            d.command(name, words)
        }
        21..24 => {
            let name = *d.pick(&["sinterstore", "sunionstore", "sdiffstore"]);
            let count = 2 + d.below(3);
            let words = keys(d, count);
            d.command(name, words)
        }
        24..26 => {
            let count = 1 + d.below(3);
            let mut words = vec![if d.below(12) == 0 { d.int() } else { count.to_string().into_bytes() }];
            words.extend(keys(d, count));
            if d.below(2) == 0 {
                words.extend([d.word("limit"), d.int()]);
            }
            d.command("sintercard", words)
        }
        26..28 => random(d, key, "srandmember", ""),
        _ => scan(d, key, "sscan"),
    }
}
