//! What becomes of log lines that nobody can read.

use redis::Commands;
use rustix::process::Signal;

use crate::common::{Server, pumice};

/// The disk that takes the log is full, or who read it is gone.
#[test]
fn a_log_that_cannot_be_written_ends_no_server() {
    for place in ["/dev/full", ">(exec true)"] {
        let dir = tempfile::tempdir().unwrap();
        let mut shell = std::process::Command::new("bash");
        shell.args(["-c", &format!("exec \"$0\" \"$@\" 2> {place}")]).arg(pumice().get_program());
        let server =
            Server::try_start_of(shell, dir.path(), &["--cores", "1", "--log", "debug"]).expect("started");
        for _ in 0..3 {
            server.signal(Signal::HUP);
        }
        let mut client = server.client();
        for n in 0..100 {
            let _: () = client.set(format!("k{n}"), n).unwrap();
        }
        assert_eq!(client.get::<_, i64>("k99").unwrap(), 99);
        server.stop();
        let server = Server::start(dir.path(), &[]);
        assert_eq!(server.client().get::<_, i64>("k7").unwrap(), 7);
        server.stop();
    }
}
