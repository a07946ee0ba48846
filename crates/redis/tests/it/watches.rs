//! Watches that cannot be compared.

use crate::common::{self, client::encode};
use crate::simulated::Stage;
use pumice_reactor::sim::{FaultOp, FileFault};
use pumice_redis::options::Options;

const ENODATA: i32 = 61;

#[test]
fn an_exec_that_cannot_read_what_is_watched_ends_the_watch() {
    let stage = Stage::start(Options::default());
    stage.play(async |clients| {
        let mut client = clients.connect().await;
        assert_eq!(client.line("SET k v").await, "+OK");
        // Blocks where scans begin are in memory from the start: it lies in another.
        let others = common::keys_before_k();
        client.send(encode(&others.split(' ').collect::<Vec<_>>())).await;
        assert_eq!(client.read_line().await, "+OK");
    });
    stage.restart();
    let (world, server) = (stage.world.clone(), stage.server);
    stage.play(async move |clients| {
        let (mut client, mut other) = (clients.connect().await, clients.connect().await);
        let errno = ENODATA;
        let fault = FileFault { path: None, op: FaultOp::Read, range: None, skip: 0, times: u64::MAX, errno };
        world.add_fault(server, fault);
        assert!(client.line("WATCH k").await.starts_with("-ERR"), "it cannot be read");
        assert_eq!(client.line("MULTI").await, "+OK");
        assert!(client.line("EXEC").await.starts_with("-ERR"), "nor now");
        world.clear_faults(server);
        assert_eq!(other.line("SET k new").await, "+OK");
        client.send([encode(&["MULTI"]), encode(&["PING"]), encode(&["EXEC"])].concat()).await;
        for line in ["+OK", "+QUEUED", "*1", "+PONG"] {
            assert_eq!(client.read_line().await, line, "of a transaction that watches nothing");
        }
    });
}
