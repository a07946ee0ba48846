//! Keys of any type, expiry, databases, and commands about nothing in particular.

use super::Command;
use super::draw::Draw;

fn any_key(d: &mut Draw<'_>) -> Vec<u8> {
    let prefix = *d.pick(&["s", "s", "h", "e", "z", "l"]);
    d.key_of(prefix)
}

fn keys(d: &mut Draw<'_>) -> Vec<Vec<u8>> {
    (0..1 + d.below(3)).map(|_| any_key(d)).collect()
}

/// SCAN with a count that fetches all at once: pages are the servers' own affair.
fn scan(d: &mut Draw<'_>) -> Command {
    let cursor = if d.below(15) == 0 {
        // Cursors that are none; of those that parse, only 0 means the same to both.
        d.pick(&["", "-0", "+0", "00", "x", "-", "1x", " 0", "0 ", "18446744073709551616", "0\0x"])
    } else {
        &"0"
    };
    let mut words = vec![cursor.as_bytes().to_vec(), d.word("count"), b"60000".to_vec()];
    if d.below(2) == 0 {
        let pattern = *d.pick(&["*", "k*", "k[0-4]", "[^k]*", "?1", "", "\\k1", "z*", "l?", "*\0*"]);
        words.extend([d.word("match"), pattern.as_bytes().to_vec()]);
    }
    if d.below(3) == 0 {
        let kind = *d.pick(&["string", "hash", "list", "set", "zset", "stream", "nope", "STRING"]);
        words.extend([d.word("type"), kind.as_bytes().to_vec()]);
    }
    if d.below(12) == 0 {
        words.extend([d.word("count"), d.pick(&["0", "-1", "x"]).as_bytes().to_vec()]);
    }
    d.command("scan", words)
}

pub fn draw(d: &mut Draw<'_>) -> Command {
    let key = any_key(d);
    match d.below(36) {
        0..3 => {
            let (name, keys) = (*d.pick(&["del", "unlink"]), keys(d));
            d.command(name, keys)
        }
        3..5 => {
            let (name, keys) = (*d.pick(&["exists", "touch"]), keys(d));
            d.command(name, keys)
        }
        5..7 => d.command("type", vec![key]),
        7..11 if d.with_expiry => {
            let (name, when) = match d.below(4) {
                0 => ("expire", d.ttl(true)),
                1 => ("pexpire", d.ttl(false)),
                2 => ("expireat", d.deadline(true)),
                _ => ("pexpireat", d.deadline(false)),
            };
            let mut words = vec![key, when];
            for _ in 0..d.below(3) {
                let condition = *d.pick(&["nx", "xx", "gt", "lt", "zz"]);
                words.push(d.word(condition));
            }
            d.command(name, words)
        }
        11..15 => {
            let name = *d.pick(&["ttl", "pttl", "expiretime", "pexpiretime"]);
            d.command(name, vec![key])
        }
        15 => d.command("persist", vec![key]),
        16..19 => {
            let (name, to) = (*d.pick(&["rename", "renamenx"]), any_key(d));
            d.command(name, vec![key, to])
        }
        19..22 => {
            let mut words = vec![key, any_key(d)];
            if d.below(3) == 0 {
                words.extend([d.word("db"), d.pick(&["0", "1", "2", "16", "-1", "x"]).as_bytes().to_vec()]);
            }
            if d.below(2) == 0 {
                words.push(d.word("replace"));
            }
            d.command("copy", words)
        }
        22 => d.command("randomkey", vec![]),
        23 => {
            let pattern = *d.pick(&["*", "k*", "k?", "[ks]1", "[^k]*", "h[", "\\*", "s[0-2]", "", "*1"]);
            d.command("keys", vec![pattern.as_bytes().to_vec()])
        }
        24 if !d.with_expiry => d.command("dbsize", vec![]),
        25..27 => {
            let database = d.pick(&["0", "0", "0", "0", "1", "2", "15", "16", "-1", "x"]).as_bytes().to_vec();
            d.command("select", vec![database])
        }
        27 if d.below(12) == 0 => {
            let name = *d.pick(&["flushdb", "flushall"]);
            let words = if d.below(3) == 0 {
                vec![d.pick(&["sync", "async", "x"]).as_bytes().to_vec()]
            } else {
                vec![]
            };
            d.command(name, words)
        }
        28 => {
            let words = (0..d.below(3)).map(|_| d.value()).collect();
            d.command("ping", words)
        }
        29 => {
            let value = d.value();
            d.command("echo", vec![value])
        }
        30 => {
            let words = (0..d.below(4)).map(|_| d.field()).collect();
            d.command("nosuchcommand", words)
        }
        34..36 => scan(d),
        31 => {
            let words = match d.below(8) {
                0 => vec![b"encoding".to_vec()],
                1 => vec![b"refcount".to_vec(), b"no such key".to_vec()],
                2 => vec![b"nope".to_vec(), key],
                3 => vec![],
                4 => vec![b"freq".to_vec(), key],
                5 => vec![b"help".to_vec()],
                6 => vec![b"encoding".to_vec(), b"no such key".to_vec()],
                _ => vec![b"idletime".to_vec(), b"no such key".to_vec()],
            };
            d.command("object", words)
        }
        32 => match d.below(6) {
            0 => d.command("client", vec![b"getname".to_vec()]),
            1 => {
                let name = d.field();
                d.command("client", vec![b"setname".to_vec(), name])
            }
            2 => d.command("client", vec![b"nope".to_vec()]),
            3 => d.command("client", vec![]),
            4 => {
                let words = vec![b"0".to_vec(), d.int()];
                d.command("wait", words)
            }
            _ => vec![b"command".to_vec(), b"info".to_vec(), b"nope".to_vec()],
        },
        _ => {
            let mut words = vec![b"getkeys".to_vec()];
            let inner: &[&[&str]] = &[
                &["get", "a"],
                &["mset", "a", "1", "b", "2"],
                &["ping"],
                &["nope", "a"],
                &["copy", "a", "b"],
                &["del"],
            ];
            words.extend(d.pick(inner).iter().map(|word| word.as_bytes().to_vec()));
            d.command("command", words)
        }
    }
}
