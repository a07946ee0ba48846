//! Hashes.

use super::Command;
use super::draw::Draw;

pub fn draw(d: &mut Draw<'_>) -> Command {
    let key = d.key_of("h");
    if let Some(fields) = d.many_fields() {
        let pairs = fields.into_iter().flat_map(|field| [field, b"many".to_vec()]);
        return d.command("hset", std::iter::once(key).chain(pairs).collect());
    }
    match d.below(26) {
        0..6 => {
            let name = *d.pick(&["hset", "hset", "hmset"]);
            let mut words = vec![key];
            for _ in 0..1 + d.below(4) {
                words.extend([d.field(), d.value()]);
            }
            d.command(name, words)
        }
        6 => {
            let words = vec![key, d.field(), d.value()];
            d.command("hsetnx", words)
        }
        7..9 => {
            let name = *d.pick(&["hget", "hexists", "hstrlen"]);
            let words = vec![key, d.field()];
            d.command(name, words)
        }
        9..11 => {
            let mut words = vec![key];
            words.extend((0..1 + d.below(5)).map(|_| d.field()));
            d.command("hmget", words)
        }
        11..14 => {
            let name = *d.pick(&["hgetall", "hkeys", "hvals", "hlen"]);
            d.command(name, vec![key])
        }
        14..18 => {
            let mut words = vec![key];
            words.extend((0..1 + d.below(6)).map(|_| d.field()));
            d.command("hdel", words)
        }
        18..20 => {
            let words = vec![key, d.field(), d.int()];
            d.command("hincrby", words)
        }
        20..22 => {
            let words = vec![key, d.field(), d.float()];
            d.command("hincrbyfloat", words)
        }
        22 => random(d, key, "hrandfield", "withvalues"),
        _ => scan(d, key, "hscan"),
    }
}

/// HRANDFIELD and its relatives: their replies are compared by size.
pub fn random(d: &mut Draw<'_>, key: Vec<u8>, name: &str, word: &str) -> Command {
    let mut words = vec![key];
    if d.below(4) > 0 {
        // Far counts with repetition would be replies without end.
        let count =
            if d.below(6) == 0 { d.value() } else { (d.below(60) as i64 - 30).to_string().into_bytes() };
        let is_far =
            std::str::from_utf8(&count).ok().and_then(|t| t.parse::<i64>().ok()).is_some_and(|n| n < -1000);
        words.push(if is_far { b"-40".to_vec() } else { count });
        if !word.is_empty() && d.below(3) == 0 {
            words.push(d.word(word));
        }
    }
    d.command(name, words)
}

/// HSCAN and its relatives, with a count that fetches all at once: pages are the servers' own affair.
pub fn scan(d: &mut Draw<'_>, key: Vec<u8>, name: &str) -> Command {
    let mut words = vec![key, b"0".to_vec()];
    words.extend([d.word("count"), b"60000".to_vec()]);
    if d.below(2) == 0 {
        let pattern = *d.pick(&["*", "f*", "*1*", "f[1-4]", "", "[^f]*", "?", "\\f1", "f1"]);
        words.extend([d.word("match"), pattern.as_bytes().to_vec()]);
    }
    d.command(name, words)
}
