//! What generators draw from: keys, values at the edges, numbers at the edges.

use super::Command;
use pumice_base::rng::Rng;

/// The draws of one command.
pub struct Draw<'a> {
    pub rng: &'a mut Rng,
    /// Whether this stream may let keys expire.
    pub with_expiry: bool,
}

const WORDS: &[&str] = &[
    "",
    "a",
    "b",
    "0",
    "1",
    "-1",
    "10",
    "007",
    "+5",
    " 3",
    "3 ",
    "-0",
    "3.0",
    "3.14",
    "-2.5e3",
    "1e400",
    "inf",
    "-inf",
    "nan",
    "0x1p3",
    "9223372036854775807",
    "9223372036854775806",
    "-9223372036854775808",
    "9223372036854775808",
    "18446744073709551616",
    "hello world",
    "foo\r\nbar",
    "\0\u{1}\u{2}",
    "ünïcode",
    "[x",
    "(x",
    "*",
    "?",
    "h[ae]llo",
];

const INTS: &[i64] = &[
    0,
    1,
    -1,
    2,
    -2,
    3,
    5,
    7,
    -7,
    10,
    100,
    -100,
    127,
    128,
    129,
    1000,
    i64::MAX,
    i64::MIN,
    i64::MAX - 1,
    1 << 31,
    -(1 << 31),
    1 << 53,
];

/// Times that are over, out of range or nonsense.
const NO_TTLS: &[&str] = &[
    "0",
    "-1",
    "x",
    "",
    "1.5",
    "-100",
    "9223372036854775807",
    "-9223372036854775808",
    "9223372036854775",
    "9223372036854776",
];

impl Draw<'_> {
    pub fn below(&mut self, bound: u64) -> u64 {
        self.rng.below(bound)
    }

    pub fn pick<'t, T>(&mut self, items: &'t [T]) -> &'t T {
        &items[self.rng.below(items.len() as u64) as usize]
    }

    /// A key of few: types collide now and then.
    pub fn key(&mut self) -> Vec<u8> {
        match self.rng.below(40) {
            0 => Vec::new(),
            1 => b"key with \0 bytes".to_vec(),
            2 => vec![b'k'; 300],
            n => format!("k{}", n % 9).into_bytes(),
        }
    }

    /// A key that mostly holds one type: `prefix` names it.
    pub fn key_of(&mut self, prefix: &str) -> Vec<u8> {
        if self.rng.chance(0.1) { self.key() } else { format!("{prefix}{}", self.rng.below(4)).into_bytes() }
    }

    /// A value, often at an edge.
    pub fn value(&mut self) -> Vec<u8> {
        match self.rng.below(100) {
            0..50 => self.pick(WORDS).as_bytes().to_vec(),
            50..75 => self.rng.below(1000).to_string().into_bytes(),
            75..90 => {
                let mut bytes = vec![0; self.rng.below(70) as usize];
                self.rng.fill(&mut bytes);
                bytes
            }
            90..98 => vec![b'v'; 100 + self.rng.below(400) as usize],
            98 => vec![b'w'; 5000],
            // Beyond what one record takes: stored in pieces.
            _ if self.rng.chance(0.15) => vec![b'x'; 300_000 + self.rng.below(300_000) as usize],
            _ => vec![b'y'; 20_000],
        }
    }

    /// A short field or member, of few.
    pub fn field(&mut self) -> Vec<u8> {
        match self.rng.below(10) {
            0 => self.pick(WORDS).as_bytes().to_vec(),
            1 => vec![b'f'; 70],
            _ => format!("f{}", self.rng.below(12)).into_bytes(),
        }
    }

    /// Fields enough to leave what Redis keeps compactly, and what is removed one by one; rarely.
    pub fn many_fields(&mut self) -> Option<Vec<Vec<u8>>> {
        if !self.rng.chance(0.02) {
            return None;
        }
        let count = 120 + self.rng.below(60);
        Some((0..count).map(|n| format!("f{n}").into_bytes()).collect())
    }

    /// An integer as text, often at an edge, now and then none at all.
    pub fn int(&mut self) -> Vec<u8> {
        match self.rng.below(20) {
            0 => self.value(),
            1..8 => self.pick(INTS).to_string().into_bytes(),
            _ => (self.rng.below(30) as i64 - 10).to_string().into_bytes(),
        }
    }

    /// A float as text.
    pub fn float(&mut self) -> Vec<u8> {
        match self.rng.below(10) {
            0 => self.value(),
            1..4 => format!("{}", self.rng.below(2000) as f64 / 100.0 - 10.0).into_bytes(),
            4 => format!("{:e}", self.rng.unit() * 1e20).into_bytes(),
            5 => self
                .pick(&["inf", "-inf", "+inf", "1e308", "-1e308", "1e-300", "0", "-0", "nan"])
                .as_bytes()
                .to_vec(),
            _ => (self.rng.below(20) as i64 - 5).to_string().into_bytes(),
        }
    }

    /// `text` in the case that chance gives.
    pub fn word(&mut self, text: &str) -> Vec<u8> {
        if self.rng.chance(0.8) {
            text.to_ascii_uppercase().into_bytes()
        } else {
            text.to_ascii_lowercase().into_bytes()
        }
    }

    /// A time to live in milliseconds (or seconds): far away, about to pass, or nonsense.
    pub fn ttl(&mut self, in_seconds: bool) -> Vec<u8> {
        if !self.with_expiry {
            return b"x".to_vec();
        }
        match self.rng.below(10) {
            0 => self.pick(NO_TTLS).as_bytes().to_vec(),
            1..4 if !in_seconds => b"1".to_vec(),
            _ if in_seconds => (100 + self.rng.below(1000)).to_string().into_bytes(),
            _ => (100_000 + self.rng.below(1_000_000)).to_string().into_bytes(),
        }
    }

    /// A point in time, in Unix milliseconds (or seconds).
    pub fn deadline(&mut self, in_seconds: bool) -> Vec<u8> {
        if !self.with_expiry {
            return b"x".to_vec();
        }
        let ms: u64 = match self.rng.below(10) {
            0 => return self.pick(NO_TTLS).as_bytes().to_vec(),
            1..3 => 1_000_000_000_000,
            _ => 4_000_000_000_000 + self.rng.below(1_000_000_000),
        };
        (if in_seconds { ms / 1000 } else { ms }).to_string().into_bytes()
    }

    /// `name` and `words`.
    pub fn command(&mut self, name: &str, words: Vec<Vec<u8>>) -> Command {
        let mut command = vec![self.word(name)];
        command.extend(words);
        // Arity errors.
        if self.rng.chance(0.01) {
            command.push(b"extra".to_vec());
        } else if self.rng.chance(0.01) {
            command.pop();
        }
        if command.is_empty() { vec![b"PING".to_vec()] } else { command }
    }
}

/// Whether the command may leave a key that expires within milliseconds.
pub fn expires_soon(command: &Command) -> bool {
    let name = command[0].to_ascii_lowercase();
    let is_timed = [
        &b"set"[..],
        b"psetex",
        b"pexpire",
        b"getex",
        b"expire",
        b"setex",
        b"exec",
        b"pexpireat",
        b"expireat",
    ]
    .contains(&name.as_slice());
    is_timed
        && (command.len() == 1
            || command.iter().skip(1).any(|word| word.len() <= 2 && word.iter().all(u8::is_ascii_digit)))
}
