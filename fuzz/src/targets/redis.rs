//! What clients send: RESP requests whole and in pieces, and the small languages inside them (numbers, patterns).

use pumice_redis::args::Span;
use pumice_redis::resp::parser::{Parsed, Parser, Streams};
use pumice_redis::{glob, number};

use super::split;

struct Policy {
    stranger: bool,
}

impl Streams for Policy {
    fn can_stream(&self, _: &[u8], arguments: &[Span], _: u64) -> bool {
        arguments.len() == 2
    }

    fn is_unauthenticated(&self) -> bool {
        self.stranger
    }
}

/// Requests; the first byte chooses whether the client is a stranger and the size of the pieces.
pub fn request_seeds() -> Vec<Vec<u8>> {
    let requests: [&[u8]; 8] = [
        b"*1\r\n$4\r\nPING\r\n",
        b"*3\r\n$3\r\nSET\r\n$3\r\nkey\r\n$5\r\nvalue\r\n*2\r\n$3\r\nGET\r\n$3\r\nkey\r\n",
        b"*3\r\n$3\r\nSET\r\n$3\r\nkey\r\n$1000000\r\nthe beginning",
        b"PING\r\nGET key\r\n",
        b"SET \"a key\" 'it\\'s' \"\\x00\\n\"\r\n",
        b"*0\r\n*-1\r\n\r\n*2\r\n$0\r\n\r\n$0\r\n\r\n",
        b"*1048576\r\n$1\r\na\r\n",
        b"*1\r\n$536870912\r\n",
    ];
    requests.iter().flat_map(|r| [0u8, 1, 0x25].map(|first| [&[first][..], r].concat())).collect()
}

/// One command after another, or why there are no more.
#[derive(Debug, PartialEq)]
enum Event {
    Command(Vec<Vec<u8>>),
    Large(u64),
    Broken(Vec<u8>),
}

/// Whole and in pieces, the same commands come out.
pub fn requests(input: &[u8]) {
    let ([first], stream) = split::<1>(input);
    let policy = Policy { stranger: first & 1 == 1 };
    let whole = events(stream, &policy, stream.len().max(1));
    let pieces = events(stream, &policy, usize::from(first >> 1) + 1);
    assert_eq!(whole, pieces, "the same bytes in other pieces");
}

fn events(stream: &[u8], policy: &Policy, piece: usize) -> Vec<Event> {
    let (mut out, mut parser) = (Vec::new(), Parser::new());
    // `start..end` is what has arrived of the command under way.
    let (mut start, mut end) = (0, piece.min(stream.len()));
    loop {
        let given = &stream[start..end];
        match parser.parse(given, policy) {
            Parsed::Command(bytes) => {
                assert!(bytes > 0 && bytes <= given.len(), "a command of {bytes} of {} bytes", given.len());
                let buffer = parser.buffer(given);
                let words = parser.spans().iter().map(|s| {
                    let at = s.start as usize;
                    buffer[at..at + s.len as usize].to_vec()
                });
                out.push(Event::Command(words.collect()));
                parser.reset();
                start += bytes;
            }
            Parsed::Nothing(bytes) => {
                assert!(bytes > 0 && bytes <= given.len(), "nothing, of {bytes} bytes");
                parser.reset();
                start += bytes;
            }
            Parsed::Incomplete(more) => {
                assert!(more > 0, "incomplete, and yet nothing is missing");
                if end == stream.len() {
                    return out;
                }
                end = (end + piece).min(stream.len());
            }
            Parsed::Large { at, len } => {
                assert!(at <= given.len());
                out.push(Event::Large(len));
                return out;
            }
            Parsed::Broken(text) => {
                out.push(Event::Broken(text));
                return out;
            }
        }
    }
}

/// Numbers and patterns.
pub fn word_seeds() -> Vec<Vec<u8>> {
    let words: [&[u8]; 12] = [
        b"0",
        b"-9223372036854775808",
        b"9223372036854775807",
        b"3.0e3",
        b"-inf",
        b"nan",
        b"0x10p-2",
        b"user:*",
        b"h[^e-l]llo?",
        b"a*a*a*a*a*b\0aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
        b"\\*[\\]a-]",
        b"[",
    ];
    words.iter().map(|w| w.to_vec()).collect()
}

/// Integers have one spelling; doubles survive printing; patterns end in good time.
pub fn words(input: &[u8]) {
    if let Some(value) = number::parse_int(input) {
        assert_eq!(number::int_text(value), input, "an integer has one spelling");
    }
    let _ = number::parse_cursor(input);
    if let Some(value) = number::parse_double(input)
        && value.is_finite()
    {
        let text = number::format_double(value);
        let again = number::parse_double(text.as_bytes());
        assert_eq!(again, Some(value), "{input:?} prints as {text}");
    }
    let at = input.iter().position(|&b| b == 0).unwrap_or(input.len() / 2);
    let (pattern, text) = input.split_at(at);
    let (pattern, text) = (&pattern[..pattern.len().min(64)], &text[..text.len().min(256)]);
    let prefix = glob::literal_prefix(pattern);
    if glob::matches(pattern, text) {
        assert!(text.starts_with(&prefix), "{pattern:?} matches {text:?} without its prefix {prefix:?}");
    }
}
