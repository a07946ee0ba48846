//! Ten thousand connections to a real process.
//! Alone in a program of its own: it raises its limit of open files and takes nearly all of them; others would find none.

#[path = "it/common/mod.rs"]
#[allow(dead_code)] // one test needs a part
mod common;

use common::Server;
use redis::Commands;

/// Resident memory, in bytes.
fn resident_bytes(server: &Server) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

#[test]
fn ten_thousand_connections_are_served_in_bounded_memory() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &["--max-clients", "12000"]);
    // This process needs as many files as the server; where the limit is lower, as many as there are.
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let raised = rustix::process::Rlimit { current: limit.maximum, maximum: limit.maximum };
    let _ = rustix::process::setrlimit(rustix::process::Resource::Nofile, raised);
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(1 << 20);
    let wanted = (limit.saturating_sub(200)).min(10_000) as usize;
    if wanted < 10_000 {
        common::skipped(&format!(
            "{} of ten thousand connections: no more files may be open",
            10_000 - wanted
        ));
    }
    let before = resident_bytes(&server);
    let mut sockets = Vec::with_capacity(wanted);
    for _ in 0..wanted {
        sockets.push(std::net::TcpStream::connect(("127.0.0.1", server.port)).unwrap());
    }
    for _ in 0..2 {
        for socket in &mut sockets {
            std::io::Write::write_all(socket, b"PING\r\n").unwrap();
        }
        for socket in &mut sockets {
            let mut pong = [0; 7];
            std::io::Read::read_exact(socket, &mut pong).unwrap();
            assert_eq!(&pong, b"+PONG\r\n");
        }
    }
    let grown = resident_bytes(&server).saturating_sub(before);
    assert!(grown < wanted as u64 * 64 * 1024, "{wanted} idle connections take {grown} bytes");
    println!("{wanted} connections: {} bytes each", grown / wanted as u64);
    drop(sockets);
    let mut client = server.client();
    let _: () = client.set("after", "the crowd").unwrap();
    server.stop();
}
