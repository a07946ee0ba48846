//! Addresses of listeners and peers: `host:port` or `unix:PATH`.

use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::str::FromStr;

/// Where to listen or to connect.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Addr {
    /// A TCP address; port 0 asks for any free port when listening.
    Tcp(SocketAddr),
    /// The path of a Unix stream socket.
    Unix(PathBuf),
}

impl FromStr for Addr {
    type Err = String;

    /// Reads `host:port` (names are resolved now, first answer taken) or `unix:PATH`.
    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            if path.is_empty() {
                return Err("unix: needs a path".to_owned());
            }
            return Ok(Self::Unix(PathBuf::from(path)));
        }
        if let Ok(addr) = text.parse() {
            return Ok(Self::Tcp(addr));
        }
        let mut found = text
            .to_socket_addrs()
            .map_err(|error| format!("{text:?} is neither host:port nor unix:PATH ({error})"))?;
        found.next().map(Self::Tcp).ok_or_else(|| format!("{text:?} has no address"))
    }
}

impl fmt::Display for Addr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(addr) => write!(f, "{addr}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// Who is at the other end of a connection.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum PeerAddr {
    /// A TCP peer.
    Tcp(SocketAddr),
    /// A process on this machine, over a Unix socket.
    Unix,
}

impl PeerAddr {
    /// Whether the peer is on this machine.
    pub fn is_local(&self) -> bool {
        match self {
            Self::Tcp(SocketAddr::V4(addr)) => addr.ip().is_loopback(),
            Self::Tcp(SocketAddr::V6(addr)) => addr.ip().to_canonical().is_loopback(),
            Self::Unix => true,
        }
    }
}

impl fmt::Display for PeerAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(addr) => write!(f, "{addr}"),
            Self::Unix => write!(f, "unix"),
        }
    }
}
