//! Tells the supervisor (systemd, `Type=notify`) when the server is ready and when it stops: one datagram to the
//! socket that `NOTIFY_SOCKET` names, as sd_notify(3) says. Without the variable nobody asked.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// A supervisor that does not take the datagram for so long is not waited for.
const TAKEN_WITHIN: Duration = Duration::from_secs(1);

/// The server is ready.
pub fn ready() {
    tell("READY=1");
}

/// The server stops.
pub fn stopping() {
    tell("STOPPING=1");
}

fn tell(state: &str) {
    let Some(socket) = std::env::var_os("NOTIFY_SOCKET").filter(|socket| !socket.is_empty()) else { return };
    if let Err(error) = send(socket.as_encoded_bytes(), state) {
        tracing::warn!("telling {state} to NOTIFY_SOCKET {}: {error}", socket.display());
    }
}

fn send(socket: &[u8], state: &str) -> io::Result<()> {
    // A leading @ stands for the zero byte of names that are in no file system.
    let addr = match socket.strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(OsStr::from_bytes(socket))?,
    };
    let from = UnixDatagram::unbound()?;
    from.set_write_timeout(Some(TAKEN_WITHIN))?;
    from.send_to_addr(state.as_bytes(), &addr).map(drop)
}
