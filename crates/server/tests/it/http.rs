//! The HTTP face: what it shows, and what it takes from whoever connects.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

use crate::common::{Server, check_exit, run};

#[test]
fn metrics_name_each_command_and_subcommand_that_was_run_and_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &["--http", "127.0.0.1:0"]);
    // By hand: a client library introduces itself with commands of its own.
    let mut stream = BufReader::new(TcpStream::connect(("127.0.0.1", server.port)).unwrap());
    stream.get_mut().write_all(b"SET k v\r\nCONFIG GET port\r\n").unwrap();
    let replies: Vec<String> = stream.lines().take(6).map(Result::unwrap).collect();
    assert_eq!((&replies[0][..], &replies[3][..]), ("+OK", "port"));
    let (status, metrics) = server.http("/metrics");
    assert_eq!(status, 200);
    let mut series: Vec<&str> =
        metrics.lines().filter(|line| line.starts_with("pumice_redis_commands_total{")).collect();
    series.sort_unstable();
    assert_eq!(
        series,
        [
            "pumice_redis_commands_total{command=\"config|get\"} 1",
            "pumice_redis_commands_total{command=\"set\"} 1",
        ]
    );
    server.stop();
}

#[test]
fn half_sent_requests_take_few_descriptors_and_are_not_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &["--http", "127.0.0.1:0"]);
    let files = || std::fs::read_dir(format!("/proc/{}/fd", server.pid())).unwrap().count();
    let before = files();
    let face = server.faces.iter().find_map(|face| face.strip_prefix("http on ")).unwrap();
    // No more than the server's backlog of 128 takes beside those that are served: further ones would wait to connect.
    let mut crowd: Vec<TcpStream> = (0..150).map(|_| TcpStream::connect(face).unwrap()).collect();
    for stream in &mut crowd {
        stream.write_all(b"GET /health HTTP/1.1\r\nHost:").unwrap();
    }
    // The control socket and Redis know nothing of the crowd.
    check_exit(&run(&["info", "--data", dir.path().to_str().unwrap()]), 0, "");
    assert_eq!(redis::cmd("PING").query::<String>(&mut server.client()).unwrap(), "PONG");
    let taken = files().saturating_sub(before);
    assert!(taken <= 40, "{taken} descriptors for 150 half-sent requests");
    // The first is turned away without having gone.
    assert_eq!(crowd[0].read(&mut [0; 100]).unwrap(), 0);
    // Whoever waited in the backlog has a turn once the others have gone.
    drop(crowd);
    assert_eq!(server.http("/health").0, 200);
    server.stop();
}
