//! The HTTP face: what it shows, and what it takes from whoever connects.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;

use crate::common::Server;

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
