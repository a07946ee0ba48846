//! A real redis-server as oracle, where the machine has one.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use super::Client;

/// A running redis-server on a Unix socket.
pub struct Oracle {
    child: Child,
    dir: tempfile::TempDir,
}

impl Oracle {
    /// Starts one; `None`, with a message, where there is none.
    pub fn start() -> Option<Self> {
        let dir = tempfile::tempdir().expect("a directory");
        let child = Command::new("redis-server")
            .args(["--port", "0", "--save", "", "--appendonly", "no", "--enable-debug-command", "yes"])
            .args(["--unixsocket", "s", "--dir"])
            .arg(dir.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let Ok(child) = child else {
            let said = "skipped: there is no redis-server on this machine to compare with";
            assert!(std::env::var_os("PUMICE_NO_SKIPS").is_none_or(|set| set != "1"), "{said}");
            // Past what the test harness keeps of a test that passes: `./test` counts these lines.
            let _ = writeln!(std::io::stderr(), "{said}");
            return None;
        };
        let oracle = Self { child, dir };
        // The socket is there before anybody listens on it.
        super::eventually("redis-server listens", || UnixStream::connect(oracle.socket()).is_ok());
        Some(oracle)
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("s")
    }

    pub fn client(&self) -> Client {
        Client::connect(&self.socket())
    }
}

impl Drop for Oracle {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
