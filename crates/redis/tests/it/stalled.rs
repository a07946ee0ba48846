//! Replies that wait for a drive below which there is no room, and are answered UNCERTAIN in the end.

use std::time::Duration;

use crate::common::client::encode;
use crate::simulated::Stage;
use pumice_reactor::sim::{FaultOp, FileFault};
use pumice_reactor::sleep;
use pumice_redis::options::Options;

const ENOSPC: i32 = 28;
const VALUE_BYTES: usize = 100 << 10;

/// They are longer than one send takes.
#[test]
fn a_long_reply_that_may_not_leave_is_replaced_as_a_whole() {
    let stage = Stage::start(Options::default());
    let (world, server) = (stage.world.clone(), stage.server);
    stage.play(async move |clients| {
        let mut writer = clients.connect().await;
        let fault = FileFault {
            path: None,
            op: FaultOp::Write,
            range: None,
            skip: 0,
            times: u64::MAX,
            errno: ENOSPC,
        };
        world.add_fault(server, fault);
        writer.send(encode(&[&b"SET"[..], b"k", &[b'v'; VALUE_BYTES]])).await;
        sleep(Duration::from_millis(100)).await;
        for read in ["GET k", "MGET k k k", "MGET k k k k k k k k"] {
            let mut reader = clients.connect().await;
            let answer = reader.line(read).await;
            assert!(answer.starts_with("-UNCERTAIN "), "{read}: {}", &answer[..answer.len().min(80)]);
            // It had one command under way, and goes on.
            assert_eq!(reader.line("ECHO next").await, "$4", "{read}");
            assert_eq!(reader.read_line().await, "next", "{read}");
        }
        assert!(writer.read_line().await.starts_with("-UNCERTAIN "));
        world.clear_faults(server);
        // What is written again and again gets through, and whatever waits for it.
        sleep(Duration::from_secs(10)).await;
        assert_eq!(writer.line("STRLEN k").await, format!(":{VALUE_BYTES}"));
    });
}
