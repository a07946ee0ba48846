//! Lists.

use super::Command;
use super::draw::Draw;

/// A value of few, so that searches find some.
fn value(d: &mut Draw<'_>) -> Vec<u8> {
    if d.below(4) == 0 { d.value() } else { d.field() }
}

fn index(d: &mut Draw<'_>) -> Vec<u8> {
    if d.below(10) == 0 { d.int() } else { (d.below(40) as i64 - 20).to_string().into_bytes() }
}

fn end(d: &mut Draw<'_>) -> Vec<u8> {
    let end = *d.pick(&["left", "right"]);
    if d.below(40) == 0 { d.field() } else { d.word(end) }
}

pub fn draw(d: &mut Draw<'_>) -> Command {
    let key = d.key_of("l");
    if let Some(fields) = d.many_fields() {
        return d.command("rpush", std::iter::once(key).chain(fields).collect());
    }
    match d.below(40) {
        0..8 => {
            let name = *d.pick(&["lpush", "rpush", "rpush", "lpushx", "rpushx"]);
            let mut words = vec![key];
            words.extend((0..1 + d.below(8)).map(|_| value(d)));
            d.command(name, words)
        }
        8..12 => {
            let name = *d.pick(&["lpop", "rpop"]);
            let mut words = vec![key];
            if d.below(2) == 0 {
                words.push(if d.below(5) == 0 { d.int() } else { d.below(6).to_string().into_bytes() });
            }
            d.command(name, words)
        }
        12..16 => {
            let words = vec![key, index(d), index(d)];
            d.command("lrange", words)
        }
        16 => d.command("llen", vec![key]),
        17..20 => {
            let words = vec![key, index(d)];
            d.command("lindex", words)
        }
        20..22 => {
            let words = vec![key, index(d), value(d)];
            d.command("lset", words)
        }
        22..26 => {
            let side = *d.pick(&["before", "after"]);
            let words = vec![key, d.word(side), value(d), value(d)];
            d.command("linsert", words)
        }
        26..30 => {
            let count =
                if d.below(10) == 0 { d.int() } else { (d.below(7) as i64 - 3).to_string().into_bytes() };
            let words = vec![key, count, value(d)];
            d.command("lrem", words)
        }
        30..32 => {
            // Mostly long ranges, or lists would never grow.
            let words = match d.below(3) {
                0 => vec![key, index(d), index(d)],
                1 => vec![key, b"1".to_vec(), b"-2".to_vec()],
                _ => vec![key, b"-25".to_vec(), b"-1".to_vec()],
            };
            d.command("ltrim", words)
        }
        32..35 => {
            let mut words = vec![key, value(d)];
            for _ in 0..d.below(4) {
                let option = *d.pick(&["rank", "count", "maxlen"]);
                // What Redis answers to the one rank without an opposite is chance.
                let number = match index(d) {
                    number if number == i64::MIN.to_string().into_bytes() => b"-3".to_vec(),
                    number => number,
                };
                words.extend([d.word(option), number]);
            }
            d.command("lpos", words)
        }
        35..37 => {
            let words = vec![key, d.key_of("l"), end(d), end(d)];
            d.command("lmove", words)
        }
        37 => {
            let words = vec![key, d.key_of("l")];
            d.command("rpoplpush", words)
        }
        _ => {
            let count = 1 + d.below(3);
            let mut words = vec![if d.below(12) == 0 { d.int() } else { count.to_string().into_bytes() }];
            words.extend((0..count).map(|_| d.key_of("l")));
            words.push(end(d));
            if d.below(2) == 0 {
                words.extend([d.word("count"), index(d)]);
            }
            d.command("lmpop", words)
        }
    }
}
