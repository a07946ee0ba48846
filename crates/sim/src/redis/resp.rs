//! A small RESP2 client over a simulated connection.

use pumice_reactor::{Addr, Stream, timeout};
use std::io;
use std::time::Duration;

/// One reply.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Reply {
    /// `+OK`
    Simple(String),
    /// `-ERR …`
    Error(String),
    /// `:1`
    Integer(i64),
    /// `$…`; `None` is nil.
    Bulk(Option<Vec<u8>>),
    /// `*…`; `None` is nil.
    Array(Option<Vec<Reply>>),
}

/// Appends a command as an array of bulk strings.
pub fn encode(command: &[&[u8]], out: &mut Vec<u8>) {
    out.extend_from_slice(format!("*{}\r\n", command.len()).as_bytes());
    for part in command {
        out.extend_from_slice(format!("${}\r\n", part.len()).as_bytes());
        out.extend_from_slice(part);
        out.extend_from_slice(b"\r\n");
    }
}

/// The first reply in `input` and its length; `None` when more must come. `Err` when it is no RESP2.
pub fn decode(input: &[u8]) -> Result<Option<(Reply, usize)>, String> {
    let Some(line_end) = input.windows(2).position(|pair| pair == b"\r\n") else { return Ok(None) };
    let line = &input[1..line_end];
    let text = || String::from_utf8_lossy(line).into_owned();
    let number = || text().parse::<i64>().map_err(|_| format!("'{}' is no number", text()));
    let body = line_end + 2;
    match input[0] {
        b'+' => Ok(Some((Reply::Simple(text()), body))),
        b'-' => Ok(Some((Reply::Error(text()), body))),
        b':' => Ok(Some((Reply::Integer(number()?), body))),
        b'$' => {
            let Ok(len) = usize::try_from(number()?) else { return Ok(Some((Reply::Bulk(None), body))) };
            if input.len() < body + len + 2 {
                return Ok(None);
            }
            if &input[body + len..body + len + 2] != b"\r\n" {
                return Err("a bulk string does not end where it says".into());
            }
            Ok(Some((Reply::Bulk(Some(input[body..body + len].to_vec())), body + len + 2)))
        }
        b'*' => {
            let Ok(count) = usize::try_from(number()?) else { return Ok(Some((Reply::Array(None), body))) };
            let mut replies = Vec::new();
            let mut at = body;
            for _ in 0..count {
                let Some((reply, len)) = (if at < input.len() { decode(&input[at..])? } else { None }) else {
                    return Ok(None);
                };
                replies.push(reply);
                at += len;
            }
            Ok(Some((Reply::Array(Some(replies)), at)))
        }
        other => Err(format!("a reply starts with byte {other:#04x}")),
    }
}

/// One connection.
pub struct Connection {
    stream: Stream,
    input: Vec<u8>,
}

impl Connection {
    /// Connects within five seconds.
    pub async fn open(addr: &Addr) -> io::Result<Self> {
        let stream = timeout(Duration::from_secs(5), Stream::connect(addr)).await;
        let stream = stream.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        Ok(Self { stream, input: Vec::new() })
    }

    /// Sends commands that were encoded.
    pub async fn send(&mut self, commands: Vec<u8>) -> io::Result<()> {
        self.stream.send_one(commands).await.0
    }

    /// The next reply.
    pub async fn receive(&mut self) -> io::Result<Reply> {
        loop {
            if !self.input.is_empty() {
                let decoded = decode(&self.input);
                let decoded = decoded.map_err(|what| io::Error::new(io::ErrorKind::InvalidData, what))?;
                if let Some((reply, len)) = decoded {
                    self.input.drain(..len);
                    return Ok(reply);
                }
            }
            let data = self.stream.recv().await?;
            if data.is_empty() {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.input.extend_from_slice(&data);
        }
    }

    /// One command and its reply.
    pub async fn call(&mut self, command: &[&[u8]]) -> io::Result<Reply> {
        let mut out = Vec::new();
        encode(command, &mut out);
        self.send(out).await?;
        self.receive().await
    }
}
