//! The request parser: however the bytes are cut, the same commands come out; whatever comes, it neither panics
//! nor keeps more than it was given.

use pumice_base::rng::Rng;
use pumice_redis::args::{Args, Span};
use pumice_redis::resp::parser::{Parsed, Parser, Streams};

struct Rules {
    unauthenticated: bool,
}

impl Streams for Rules {
    fn can_stream(&self, _: &[u8], _: &[Span], _: u64) -> bool {
        false
    }

    fn is_unauthenticated(&self) -> bool {
        self.unauthenticated
    }
}

/// What a stream of bytes means: commands, and the error that ends it.
fn parse_all(pieces: &[&[u8]]) -> (Vec<Vec<Vec<u8>>>, Option<String>) {
    let (mut parser, rules) = (Parser::new(), Rules { unauthenticated: false });
    let (mut pending, mut commands) = (Vec::new(), Vec::new());
    for piece in pieces {
        pending.extend_from_slice(piece);
        loop {
            match parser.parse(&pending, &rules) {
                Parsed::Command(taken) => {
                    let args = Args::new(parser.buffer(&pending[..taken]), parser.spans(), &[]);
                    commands.push(args.iter_from(0).map(<[u8]>::to_vec).collect());
                    parser.reset();
                    pending.drain(..taken);
                }
                Parsed::Nothing(taken) => {
                    parser.reset();
                    pending.drain(..taken);
                }
                Parsed::Incomplete(need) => {
                    assert!(need > 0, "nothing lacks");
                    break;
                }
                Parsed::Large { .. } => panic!("streaming was not allowed"),
                Parsed::Broken(error) => {
                    return (commands, Some(error.escape_ascii().to_string().replace("\\'", "'")));
                }
            }
        }
    }
    (commands, None)
}

fn cut<'a>(rng: &mut Rng, bytes: &'a [u8]) -> Vec<&'a [u8]> {
    let mut pieces = Vec::new();
    let mut rest = bytes;
    while !rest.is_empty() {
        let most = if rng.chance(0.5) { 3 } else { 200 };
        let (piece, after) = rest.split_at(rest.len().min(1 + rng.below(most) as usize));
        pieces.push(piece);
        rest = after;
    }
    pieces
}

#[test]
fn commands_come_out_the_same_however_they_are_cut() {
    for seed in 0..300 {
        let mut rng = Rng::from_seed(seed);
        let (mut bytes, mut expected) = (Vec::new(), Vec::new());
        for _ in 0..1 + rng.below(6) {
            let words: Vec<Vec<u8>> = (0..1 + rng.below(5))
                .map(|_| {
                    let mut word = vec![0; rng.below(40) as usize];
                    rng.fill(&mut word);
                    word
                })
                .collect();
            bytes.extend_from_slice(format!("*{}\r\n", words.len()).as_bytes());
            for word in &words {
                bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
                bytes.extend_from_slice(word);
                bytes.extend_from_slice(b"\r\n");
            }
            expected.push(words);
            if rng.chance(0.3) {
                bytes.extend_from_slice(b"SET  a b\r\n\r\n");
                expected.push(vec![b"SET".to_vec(), b"a".to_vec(), b"b".to_vec()]);
            }
        }
        let pieces = cut(&mut rng, &bytes);
        assert_eq!(parse_all(&pieces), (expected, None), "seed {seed}");
    }
}

#[test]
fn random_bytes_are_commands_or_errors_however_they_are_cut() {
    const ALPHABET: &[u8] = b"*$-0123456789\r\n\r\n \"'\\xabc\0\xff";
    for seed in 0..2000 {
        let mut rng = Rng::from_seed(seed);
        let bytes: Vec<u8> =
            (0..rng.below(120)).map(|_| ALPHABET[rng.below(ALPHABET.len() as u64) as usize]).collect();
        let whole = parse_all(&[&bytes]);
        let pieces = cut(&mut rng, &bytes);
        assert_eq!(parse_all(&pieces), whole, "seed {seed}: {bytes:?}");
    }
}

#[test]
fn limits_and_messages_are_those_of_redis() {
    let error = |bytes: &[u8]| parse_all(&[bytes]).1.unwrap_or_default();
    assert_eq!(error(b"*3000000000\r\n"), "ERR Protocol error: invalid multibulk length");
    assert_eq!(error(b"*x\r\n"), "ERR Protocol error: invalid multibulk length");
    assert_eq!(error(b"*1\r\n$-1\r\n"), "ERR Protocol error: invalid bulk length");
    assert_eq!(error(b"*1\r\n$536870913\r\n"), "ERR Protocol error: invalid bulk length");
    assert_eq!(error(b"*1\r\n:5\r\n"), "ERR Protocol error: expected '$', got ':'");
    assert_eq!(error(b"*1\r\n\xff5\r\n"), "ERR Protocol error: expected '$', got '\\xff'");
    assert_eq!(error(b"get \"a\r\n"), "ERR Protocol error: unbalanced quotes in request");
    assert_eq!(error(&[b'a'; 70_000]), "ERR Protocol error: too big inline request");
    assert_eq!(
        error(&[b"*".as_slice(), &[b'1'; 70_000]].concat()),
        "ERR Protocol error: too big mbulk count string"
    );
    let mut parser = Parser::new();
    let strict = Rules { unauthenticated: true };
    let broken = Parsed::Broken(b"ERR Protocol error: unauthenticated bulk length".to_vec());
    assert_eq!(parser.parse(b"*2\r\n$20000\r\n", &strict), broken);
}

#[test]
fn quoted_words_are_read_as_redis_reads_them() {
    let (commands, error) = parse_all(&[b"set \"a \\x41\\n\" 'b\\'c' \"\"\n"]);
    assert_eq!(error, None);
    assert_eq!(commands, [[&b"set"[..], b"a A\n", b"b'c", b""]]);
}
