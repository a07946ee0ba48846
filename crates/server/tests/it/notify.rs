//! What a supervisor hears of a server (systemd's `Type=notify`), and what the packaging relies on.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::process::{Child, Stdio};

use std::os::unix::fs::MetadataExt;

use crate::common::{PATIENCE, check_exit, pumice, run};

fn serve(data: &std::path::Path, notify: &str) -> Child {
    pumice()
        .args(["serve", "--redis", "127.0.0.1:0", "--cores", "1", "--memory", "64MiB", "--data"])
        .arg(data)
        .env("NOTIFY_SOCKET", notify)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

#[track_caller]
fn hears(socket: &UnixDatagram, says: &str) {
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut datagram = [0; 100];
    let len = socket.recv(&mut datagram).unwrap();
    assert_eq!(std::str::from_utf8(&datagram[..len]).unwrap(), says);
}

#[track_caller]
fn check(data: &std::path::Path, socket: &UnixDatagram, name: &str) {
    let mut child = serve(data, name);
    hears(socket, "READY=1");
    check_exit(&run(&["info", "--data", data.to_str().unwrap(), "--health"]), 0, "");
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    hears(socket, "STOPPING=1");
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_supervisor_hears_when_the_server_is_ready_and_when_it_stops() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("notify");
    check(dir.path(), &UnixDatagram::bind(&path).unwrap(), path.to_str().unwrap());
    // A name that is in no file system.
    let name = format!("pumice-test-{}", std::process::id());
    let socket = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
    check(dir.path(), &socket, &format!("@{name}"));
}

#[test]
fn a_supervisor_that_is_not_there_does_not_keep_a_server_from_running() {
    let dir = tempfile::tempdir().unwrap();
    let mut child = serve(dir.path(), "/nonexistent/notify");
    let data = dir.path().to_str().unwrap();
    crate::common::eventually("it is ready", || run(&["info", "--data", data, "--health"]).status.success());
    child.kill().unwrap();
    child.wait().unwrap();
}

/// The journal puts times before lines by itself.
#[test]
fn lines_for_the_journal_bear_no_time_of_their_own() {
    let dir = tempfile::tempdir().unwrap();
    let said = |stream: &dyn Fn(&std::fs::Metadata) -> String| {
        let path = dir.path().join("stderr");
        let stderr = std::fs::File::create(&path).unwrap();
        let stream = stream(&stderr.metadata().unwrap());
        let mut command = pumice();
        command.args(["serve", "--redis", "127.0.0.1:0", "--device", "/nonexistent/drive"]).stderr(stderr);
        let status = command.env("JOURNAL_STREAM", stream).status().unwrap();
        assert_eq!(status.code(), Some(2));
        std::fs::read_to_string(path).unwrap()
    };
    let text = said(&|file| format!("{}:{}", file.dev(), file.ino()));
    assert!(text.trim_start().starts_with("INFO memory: "), "{text}");
    // Inherited from somebody whose stderr is the journal.
    let text = said(&|file| format!("{}:{}", file.dev(), file.ino() + 1));
    assert!(text.starts_with("20") && text.contains("INFO memory: "), "{text}");
}
