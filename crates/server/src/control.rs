//! The control socket: how commands find the server that keeps it, `DIR/pumice.sock`. It speaks the same HTTP as
//! `--http`; here is the client's side of one request.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::exit::Stop;

/// How long a running server may take to answer a control request.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// Longest answer read, in bytes.
const ANSWER_BYTES_MAX: u64 = 16 << 20;

/// Where the server on `data` keeps its control socket.
pub fn socket_path(data: &Path) -> PathBuf {
    data.join("pumice.sock")
}

/// Asks the server behind `socket` for `path` and returns the body; any status but 200 is an error.
pub fn get(socket: &Path, path: &str) -> Result<String, Stop> {
    match ask(socket, path)? {
        (200, body) => Ok(body),
        _ => Err(unexpected(socket)),
    }
}

/// Asks the server behind `socket` for `path` and returns status and body.
pub fn ask(socket: &Path, path: &str) -> Result<(u16, String), Stop> {
    let shown = socket.display();
    let failed = |e: std::io::Error| Stop::doing(format!("asking the server at {shown}"), e);
    let mut stream = UnixStream::connect(socket)
        .map_err(|e| Stop::doing(format!("no server answers at {shown} (is it running?)"), e))?;
    stream.set_read_timeout(Some(ANSWER_WITHIN)).map_err(failed)?;
    stream.set_write_timeout(Some(ANSWER_WITHIN)).map_err(failed)?;
    write!(stream, "GET {path} HTTP/1.0\r\nHost: pumice\r\n\r\n").map_err(failed)?;
    let mut answer = String::new();
    stream.take(ANSWER_BYTES_MAX).read_to_string(&mut answer).map_err(failed)?;
    let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(|| unexpected(socket))?;
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    Ok((status.ok_or_else(|| unexpected(socket))?, body.to_string()))
}

fn unexpected(socket: &Path) -> Stop {
    Stop::because(format!("the server at {} answered what was not expected", socket.display()))
}
