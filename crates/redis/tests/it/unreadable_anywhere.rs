//! A page that does not read any more, wherever it is: what depends on it says so, and all else is served.

use std::path::Path;

use crate::common::client::encode;
use crate::simulated::{Clients, SimClient, Stage};
use pumice_reactor::sim::{FaultOp, FileFault};
use pumice_redis::options::Options;

const KEYS: usize = 60;
const PAGE_BYTES: u64 = 4096;
const DATABASES: [&str; 2] = ["0", "1"];
/// How the kernel tells of a bad place.
const ENODATA: i32 = 61;
/// How virtual disks, arrays and file systems do.
const EIO: i32 = 5;

/// Longer than what lies beside its key.
fn value(round: usize, n: usize) -> String {
    format!("<value {n} of round {round}>").repeat(10)
}

async fn fill(client: &mut SimClient, round: usize) {
    for database in DATABASES {
        assert_eq!(client.line(&format!("SELECT {database}")).await, "+OK");
        for n in 0..KEYS {
            client
                .send(encode(&[&b"SET"[..], format!("key:{n}").as_bytes(), value(round, n).as_bytes()]))
                .await;
            assert_eq!(client.read_line().await, "+OK");
        }
    }
}

/// A drive that was filled, emptied and filled again.
fn filled() -> Stage {
    let stage = Stage::start(Options::default());
    stage.play(async |clients| {
        let mut client = clients.connect().await;
        fill(&mut client, 1).await;
        assert_eq!(client.line("FLUSHALL").await, "+OK");
        fill(&mut client, 2).await;
    });
    stage
}

/// How many keys of the second round answer with an error, and how many are not there. What is neither is wrong data.
async fn count_missing(clients: Clients) -> (usize, usize) {
    let mut client = clients.connect().await;
    let (mut errors, mut gone) = (0, 0);
    for database in DATABASES {
        assert_eq!(client.line(&format!("SELECT {database}")).await, "+OK");
        for n in 0..KEYS {
            let head = client.line(&format!("GET key:{n}")).await;
            match head.as_str() {
                "$-1" => gone += 1,
                _ if head.starts_with("-ERR reading ") => errors += 1,
                _ => {
                    assert_eq!(head, format!("${}", value(2, n).len()), "key:{n} of database {database}");
                    assert_eq!(client.read_line().await, value(2, n));
                }
            }
        }
    }
    assert_eq!(client.line("SET new 1").await, "+OK");
    (errors, gone)
}

/// Serves the drive as it is with one page after the other that does not read; answers what most of them cost.
fn most_missing(stage: &Stage, errno: i32) -> (usize, usize) {
    let (world, server, drive) = (&stage.world, stage.server, Path::new("/drive"));
    world.kill(server);
    let image = world.disk(server);
    let pages = world.extents(server, drive).into_iter().flat_map(|(from, bytes)| {
        let offsets = (from..from + bytes).step_by(PAGE_BYTES as usize);
        offsets.filter(|at| {
            world.peek_file(server, drive, *at, PAGE_BYTES as usize).iter().any(|&byte| byte != 0)
        })
    });
    let pages: Vec<u64> = pages.collect();
    assert!(pages.len() > 4 * KEYS, "{} pages", pages.len());
    let mut most = (0, 0);
    for page in pages {
        eprintln!("the page at {page:#x} answers {errno}");
        world.set_disk(server, &image);
        let range = Some(page..page + PAGE_BYTES);
        let fault = FileFault { path: None, op: FaultOp::Read, range, skip: 0, times: u64::MAX, errno };
        world.add_fault(server, fault);
        world.restart(server);
        stage.serve();
        let (errors, gone) = stage.play(count_missing);
        assert!(gone == 0 || stage.lost_places() > 0, "{gone} writes are gone without a word");
        most = (most.0.max(errors), most.1.max(gone));
        world.kill(server);
        world.clear_faults(server);
    }
    most
}

#[test]
fn a_page_that_does_not_read_costs_what_lies_in_it() {
    for errno in [ENODATA, EIO] {
        let stage = filled();
        stage.restart();
        stage.close();
        let (errors, gone) = most_missing(&stage, errno);
        // A block of keys of one slice at most.
        assert!((2..DATABASES.len() * KEYS / 2).contains(&errors), "{errors} errors of one page");
        assert_eq!(gone, 0);
    }
}

/// What the log has of what was written last is nowhere else: whose it was nobody knows any more, and that something is lost is told.
#[test]
fn after_a_crash_a_page_that_does_not_read_costs_one_write() {
    for errno in [ENODATA, EIO] {
        assert_eq!(most_missing(&filled(), errno), (0, 1));
    }
}
