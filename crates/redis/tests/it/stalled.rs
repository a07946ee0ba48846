//! Replies that wait for a drive: one below which there is no room, and are answered UNCERTAIN in the end; one that does not answer.

use std::time::Duration;

use crate::common::client::encode;
use crate::simulated::{SimClient, Stage};
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

/// A disk that answers nothing for a while is told of, holds nobody up who does not need it, and nothing is lost.
#[test]
fn a_drive_that_does_not_answer_is_told_of_until_it_does() {
    let stage = Stage::start(Options::default());
    let (world, server) = (stage.world.clone(), stage.server);
    stage.play(async move |clients| {
        let (mut writer, mut reader) = (clients.connect().await, clients.connect().await);
        assert_eq!(writer.line("SET k there").await, "+OK");
        world.stall_disks(server, Duration::from_secs(20));
        writer.send(b"SET l new\r\n".to_vec()).await;
        let mut states = Vec::new();
        for round in 0..25 {
            // Which counts what is not durable.
            let keys = if round == 0 { 1..=2 } else { 2..=2 };
            assert!(keys.contains(&told(&mut reader, "keyspace", "keys=").await.parse().expect("a number")));
            assert_eq!(reader.line("GET k").await, "$5");
            assert_eq!(reader.read_line().await, "there");
            states.push(told(&mut reader, "drives", "state=").await);
            sleep(Duration::from_secs(1)).await;
        }
        let silent = states.iter().filter(|state| **state == "unresponsive").count();
        assert!(states[..5].iter().all(|state| state == "ok"), "{states:?}");
        assert!((13..=16).contains(&silent) && states[24] == "ok", "{states:?}");
        assert_eq!(writer.read_line().await, "+OK");
    });
}

/// A file system that is frozen goes on reading, and a drive is no better for that.
#[test]
fn a_drive_that_answers_no_write_is_told_of_though_it_reads() {
    let stage = Stage::start(Options::default());
    let (world, server) = (stage.world.clone(), stage.server);
    stage.play(async move |clients| {
        let (mut writer, mut reader) = (clients.connect().await, clients.connect().await);
        let long = vec![b'v'; 8 << 20];
        writer.send(encode(&[&b"SET"[..], b"long", &long])).await;
        assert_eq!(writer.read_line().await, "+OK");
        world.stall_writes(server, Duration::from_secs(20));
        writer.send(b"SET l new\r\n".to_vec()).await;
        let mut states = Vec::new();
        for round in 0..25 {
            // From the drive.
            assert_eq!(reader.line(&format!("GETRANGE long {} {}", round << 18, round << 18)).await, "$1");
            assert_eq!(reader.read_line().await, "v");
            states.push(told(&mut reader, "drives", "state=").await);
            sleep(Duration::from_secs(1)).await;
        }
        let silent = states.iter().filter(|state| **state == "unresponsive").count();
        assert!(states[..5].iter().all(|state| state == "ok"), "{states:?}");
        assert!((13..=16).contains(&silent) && states[24] == "ok", "{states:?}");
        assert_eq!(writer.read_line().await, "+OK");
    });
}

/// What follows a word in a section of INFO.
async fn told(client: &mut SimClient, section: &str, word: &str) -> String {
    let head = client.line(&format!("INFO {section}")).await;
    let mut left: usize = head.strip_prefix('$').and_then(|len| len.parse().ok()).expect("a length");
    let mut found = None;
    while left > 0 {
        let line = client.read_line().await;
        left = left.saturating_sub(line.len() + 2);
        let here = line.split(word).nth(1).and_then(|rest| rest.split(',').next());
        found = here.map(str::to_owned).or(found);
    }
    assert_eq!(client.read_line().await, "");
    found.expect("it tells of that")
}
