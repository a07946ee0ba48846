//! The little of Redis's protocol that commands of ours need as clients: writing commands, and INFO.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use pumice_reactor::Addr;

use crate::exit::Stop;

/// How long a server may take to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// Longest INFO accepted, in bytes.
const INFO_BYTES_MAX: usize = 1 << 20;

/// How a TLS server's answer to what is no TLS begins (RFC 8446, 5.1: an alert record).
const TLS_ALERT: u8 = 0x15;

/// Appends the head of a command of `count` parts.
pub fn head(out: &mut Vec<u8>, count: usize) {
    out.push(b'*');
    number(out, count);
}

/// Appends one part.
pub fn bulk(out: &mut Vec<u8>, part: &[u8]) {
    bulk_head(out, part.len());
    out.extend_from_slice(part);
    out.extend_from_slice(b"\r\n");
}

/// Appends the head of a part of `len` bytes; the bytes and a CRLF must follow.
pub fn bulk_head(out: &mut Vec<u8>, len: usize) {
    out.push(b'$');
    number(out, len);
}

/// Appends a whole command.
pub fn command(out: &mut Vec<u8>, parts: &[&[u8]]) {
    head(out, parts.len());
    parts.iter().for_each(|part| bulk(out, part));
}

fn number(out: &mut Vec<u8>, n: usize) {
    let mut digits = [0u8; 20];
    let mut at = digits.len();
    let mut rest = n;
    loop {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
    out.extend_from_slice(b"\r\n");
}

trait ReadWrite: Read + Write {}
impl<T: Read + Write> ReadWrite for T {}

fn connect(addr: &Addr) -> std::io::Result<Box<dyn ReadWrite>> {
    Ok(match addr {
        Addr::Tcp(addr) => {
            let stream = TcpStream::connect_timeout(addr, ANSWER_WITHIN)?;
            stream.set_read_timeout(Some(ANSWER_WITHIN))?;
            stream.set_write_timeout(Some(ANSWER_WITHIN))?;
            Box::new(stream)
        }
        Addr::Unix(path) => {
            let stream = UnixStream::connect(path)?;
            stream.set_read_timeout(Some(ANSWER_WITHIN))?;
            stream.set_write_timeout(Some(ANSWER_WITHIN))?;
            Box::new(stream)
        }
    })
}

/// The server's INFO, as names and values in its order; section heads come as `("# Name", "")`. `tls_advice`: what to do where the
/// server speaks TLS, which nothing here does.
pub fn info(addr: &Addr, password: Option<&str>, tls_advice: &str) -> Result<Vec<(String, String)>, Stop> {
    let failed = |e: std::io::Error| Stop::doing(format!("asking {addr}"), e);
    let mut stream = connect(addr).map_err(failed)?;
    let mut out = Vec::new();
    if let Some(password) = password {
        command(&mut out, &[b"AUTH", password.as_bytes()]);
    }
    command(&mut out, &[b"INFO"]);
    stream.write_all(&out).map_err(failed)?;
    let mut reader = BufReader::new(stream);
    if reader.fill_buf().map_err(failed)?.first() == Some(&TLS_ALERT) {
        return Err(Stop::because(format!("{addr} speaks TLS: {tls_advice}")));
    }
    if password.is_some() {
        let mut line = String::new();
        reader.read_line(&mut line).map_err(failed)?;
        if let Some(error) = line.strip_prefix('-') {
            return Err(Stop::because(format!("{addr}: {}", error.trim_end())));
        }
    }
    let mut line = String::new();
    reader.read_line(&mut line).map_err(failed)?;
    let len = match line.trim_end().strip_prefix(['$', '=']).and_then(|n| n.parse::<usize>().ok()) {
        Some(len) if len <= INFO_BYTES_MAX => len,
        _ => return Err(Stop::because(format!("{addr}: {}", line.trim_start_matches('-').trim_end()))),
    };
    let mut body = vec![0; len];
    reader.read_exact(&mut body).map_err(failed)?;
    let text = String::from_utf8_lossy(&body);
    let text = text.strip_prefix("txt:").unwrap_or(&text);
    Ok(text
        .lines()
        .map(str::trim_end)
        .filter(|l| !l.is_empty())
        .map(|l| match l.split_once(':') {
            Some((key, value)) if !l.starts_with('#') => (key.to_string(), value.to_string()),
            _ => (l.to_string(), String::new()),
        })
        .collect())
}
