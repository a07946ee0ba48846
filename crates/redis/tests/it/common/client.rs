//! A blocking RESP client over a Unix socket or TLS, for any server that speaks it.

use std::fmt;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use rustls::{ClientConnection, StreamOwned};

use super::PATIENCE;

/// A TLS connection.
pub type TlsStream = StreamOwned<ClientConnection, TcpStream>;

/// A reply, as it came.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    Simple(String),
    Error(String),
    Int(i64),
    Bulk(Vec<u8>),
    Null,
    /// RESP2's two nulls differ.
    NullArray,
    Array(Vec<Reply>),
    Set(Vec<Reply>),
    Map(Vec<(Reply, Reply)>),
    Push(Vec<Reply>),
    Double(String),
    Boolean(bool),
    Verbatim(Vec<u8>),
}

impl fmt::Display for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |f: &mut fmt::Formatter<'_>, open: &str, items: &[Reply], close: &str| {
            f.write_str(open)?;
            for (i, item) in items.iter().enumerate() {
                write!(f, "{}{item}", if i > 0 { ", " } else { "" })?;
            }
            f.write_str(close)
        };
        match self {
            Self::Simple(text) => write!(f, "{text}"),
            Self::Error(text) => write!(f, "(error) {text}"),
            Self::Int(value) => write!(f, "{value}"),
            Self::Bulk(bytes) | Self::Verbatim(bytes) => {
                f.write_str("\"")?;
                for &b in bytes {
                    match b {
                        b'"' | b'\\' => write!(f, "\\{}", b as char)?,
                        b' '..=b'~' => write!(f, "{}", b as char)?,
                        _ => write!(f, "\\x{b:02x}")?,
                    }
                }
                f.write_str("\"")
            }
            Self::Null => f.write_str("nil"),
            Self::NullArray => f.write_str("nil[]"),
            Self::Array(items) => list(f, "[", items, "]"),
            Self::Set(items) => list(f, "~[", items, "]"),
            Self::Push(items) => list(f, ">[", items, "]"),
            Self::Map(pairs) => {
                f.write_str("{")?;
                for (i, (key, value)) in pairs.iter().enumerate() {
                    write!(f, "{}{key}: {value}", if i > 0 { ", " } else { "" })?;
                }
                f.write_str("}")
            }
            Self::Double(text) => write!(f, ",{text}"),
            Self::Boolean(value) => write!(f, "{value}"),
        }
    }
}

pub struct Client {
    stream: BufReader<Socket>,
}

/// What a client talks over.
enum Socket {
    Unix(UnixStream),
    Tls(Box<TlsStream>),
}

impl Read for Socket {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.read(out),
            Self::Tls(stream) => stream.read(out),
        }
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.write(bytes),
            Self::Tls(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Unix(stream) => stream.flush(),
            Self::Tls(stream) => stream.flush(),
        }
    }
}

/// `bytes` as text of which no byte is lost: what is no text is written in hexadecimal.
fn readable(bytes: &[u8]) -> String {
    match str::from_utf8(bytes) {
        Ok(text) => text.to_string(),
        Err(_) => bytes
            .iter()
            .map(|&b| if b.is_ascii() { char::from(b).to_string() } else { format!("\\x{b:02x}") })
            .collect(),
    }
}

/// A command as RESP.
pub fn encode(command: &[impl AsRef<[u8]>]) -> Vec<u8> {
    let mut out = format!("*{}\r\n", command.len()).into_bytes();
    for word in command {
        let word = word.as_ref();
        out.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        out.extend_from_slice(word);
        out.extend_from_slice(b"\r\n");
    }
    out
}

impl Client {
    pub fn connect(path: &Path) -> Self {
        let stream = UnixStream::connect(path).expect("connected");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        stream.set_write_timeout(Some(PATIENCE)).expect("a timeout");
        Self { stream: BufReader::new(Socket::Unix(stream)) }
    }

    /// Over a TLS connection whose time-outs are set.
    pub fn over_tls(stream: TlsStream) -> Self {
        Self { stream: BufReader::new(Socket::Tls(Box::new(stream))) }
    }

    /// Sends a command and reads its reply.
    pub fn call(&mut self, command: &[impl AsRef<[u8]>]) -> Reply {
        self.send(&encode(command));
        self.read()
    }

    /// [`Client::call`] of words separated by spaces.
    pub fn line(&mut self, line: &str) -> Reply {
        self.call(&super::split(line))
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.get_mut().write_all(bytes).expect("sent");
    }

    pub fn try_send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.get_mut().write_all(bytes)
    }

    pub fn close_writing(&mut self) {
        let ended = match self.stream.get_ref() {
            Socket::Unix(stream) => stream.shutdown(std::net::Shutdown::Write),
            Socket::Tls(stream) => stream.sock.shutdown(std::net::Shutdown::Write),
        };
        ended.expect("shut down");
    }

    pub fn read(&mut self) -> Reply {
        self.try_read().expect("a reply")
    }

    /// Reads up to `most` bytes of replies, whatever they say; how many came.
    pub fn read_bytes(&mut self, most: usize) -> usize {
        let mut bytes = vec![0; most];
        let came = self.stream.read(&mut bytes).expect("bytes of a reply");
        assert!(came > 0, "the server closed the connection");
        came
    }

    /// Everything until the server closes.
    pub fn read_to_end(&mut self) -> Vec<u8> {
        let mut rest = Vec::new();
        let _ = self.stream.read_to_end(&mut rest);
        rest
    }

    pub fn set_timeout(&mut self, timeout: Duration) {
        let set = match self.stream.get_ref() {
            Socket::Unix(stream) => stream.set_read_timeout(Some(timeout)),
            Socket::Tls(stream) => stream.sock.set_read_timeout(Some(timeout)),
        };
        set.expect("a timeout");
    }

    pub fn try_read(&mut self) -> io::Result<Reply> {
        let mut line = Vec::new();
        self.stream.read_until(b'\n', &mut line)?;
        if !line.ends_with(b"\r\n") {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let (kind, text) = (line[0], readable(&line[1..line.len() - 2]));
        let count = || text.parse::<i64>().map_err(|_| io::Error::other(format!("bad reply: {text}")));
        Ok(match kind {
            b'+' => Reply::Simple(text),
            b'-' => Reply::Error(text),
            b':' => Reply::Int(count()?),
            b'$' if count()? < 0 => Reply::Null,
            b'$' => Reply::Bulk(self.bytes(count()? as usize)?),
            b'=' => Reply::Verbatim(self.bytes(count()? as usize)?.split_off(4)),
            b'*' if count()? < 0 => Reply::NullArray,
            b'*' => Reply::Array(self.many(count()?)?),
            b'~' => Reply::Set(self.many(count()?)?),
            b'>' => Reply::Push(self.many(count()?)?),
            b'%' => {
                let mut pairs = Vec::new();
                for _ in 0..count()? {
                    pairs.push((self.try_read()?, self.try_read()?));
                }
                Reply::Map(pairs)
            }
            b'_' => Reply::Null,
            b',' => Reply::Double(text),
            b'#' => Reply::Boolean(text == "t"),
            _ => return Err(io::Error::other(format!("not a reply: {line:?}"))),
        })
    }

    fn many(&mut self, count: i64) -> io::Result<Vec<Reply>> {
        (0..count).map(|_| self.try_read()).collect()
    }

    fn bytes(&mut self, len: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; len + 2];
        self.stream.read_exact(&mut bytes)?;
        bytes.truncate(len);
        Ok(bytes)
    }
}
