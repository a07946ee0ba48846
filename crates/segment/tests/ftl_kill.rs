//! Raw flash in a process that is killed while it writes: what was acknowledged is there, and what is there is whole.
//!
//! The drive is a file, or the zoned block device that `PUMICE_ZONED` names, of which all is lost: `tests/zoned/run` runs this
//! test on one in a virtual machine.
//! Alone in a program of its own, which it starts anew in each round as the process that is killed.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use bytes::Bytes;
use pumice_base::rng::Rng;
use pumice_flash::{Access, Device, DeviceSpec, FlashError, Geometry};
use pumice_reactor::{IoBuf, block_on, spawn};
use pumice_segment::ftl::{Place, RawError, RawFlash, RawFormat, RawOptions, ScrubOptions};

/// The drive that the child writes, and the first id that it has not used.
const DRIVE: &str = "PUMICE_RAW_DRIVE";
const FIRST: &str = "PUMICE_RAW_FIRST";
const ZONED: &str = "PUMICE_ZONED";
const WRITERS: u64 = 6;
/// Segments that each writer keeps.
const KEPT: u64 = 3;
const ROUNDS: u64 = 6;

/// The drive's device; a file is cut into small blocks.
async fn device(path: &str) -> Device {
    let spec = DeviceSpec::Path(Path::new(path).into());
    let mut tries = 0;
    let device = loop {
        match Device::open(&spec, Access::ReadWrite).await {
            // The kernel ends the I/O of a process that was killed, and with it the lock, a little later than the process.
            Err(FlashError::Locked { .. }) if tries < 1000 => tries += 1,
            opened => break opened.expect("device"),
        }
        pumice_reactor::sleep(std::time::Duration::from_millis(10)).await;
    };
    if device.has_own_blocks() {
        return device;
    }
    let found = device.geometry();
    let shape = Geometry { channels: 4, pages_per_block: 64, blocks_per_channel: 24, ..found };
    device.with_geometry(shape).expect("shape")
}

fn contents(raw: &RawFlash, id: u128) -> Bytes {
    let mut buf = IoBuf::zeroed(raw.segment_bytes() as usize);
    Rng::from_seed(id as u64).fill(&mut buf);
    buf.freeze()
}

/// Writes and erases until somebody ends it, and says what it is about to do (capitals) and what has been done.
#[test]
fn child() {
    let Ok(path) = std::env::var(DRIVE) else { return };
    let first: u64 = std::env::var(FIRST).expect("first").parse().expect("a number");
    block_on(async move {
        let raw = RawFlash::open(device(&path).await, RawOptions::default(), &|_, _| ()).await;
        let raw = raw.unwrap_or_else(|error| panic!("{error}")).raw;
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let raw = raw.clone();
                spawn(async move {
                    let client = raw.client();
                    for step in 0.. {
                        let id = first + writer + WRITERS * step;
                        println!("W {id}");
                        let data = contents(&raw, id.into());
                        raw.write(&client, id.into(), Place::ById, data).await.expect("write");
                        println!("w {id}");
                        if step >= KEPT {
                            let oldest = id - WRITERS * KEPT;
                            println!("E {oldest}");
                            raw.erase(&client, oldest.into()).await.expect("erase");
                            println!("e {oldest}");
                        }
                    }
                })
            })
            .collect();
        for writer in writers {
            writer.await.expect("a writer");
        }
    });
}

/// What is known of a segment: whether it may be there, and whether it may be absent.
type Known = (bool, bool);

/// Runs the child until it has said so many things, and kills it.
fn run_and_kill(path: &str, first: u64, lines: u64, known: &mut BTreeMap<u64, Known>) {
    let mut child = Command::new(std::env::current_exe().expect("this program"))
        .args(["child", "--exact", "--nocapture", "--test-threads=1"])
        .env(DRIVE, path)
        .env(FIRST, first.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the child");
    let said = BufReader::new(child.stdout.take().expect("its output"));
    let mut heard = 0;
    for line in said.lines() {
        let line = line.expect("a line");
        // The first may stand behind what the test harness says.
        let Some((what, id)) = line.rsplit_once(' ').and_then(|(what, id)| Some((what, id.parse().ok()?)))
        else {
            continue;
        };
        let state = match what.chars().last() {
            Some('W' | 'E') => (true, true),
            Some('w') => (true, false),
            Some('e') => (false, true),
            _ => continue,
        };
        known.insert(id, state);
        heard += 1;
        if heard == lines {
            // What it says until it is dead counts, too: the loop goes on to the end of its output.
            child.kill().expect("it runs");
        }
    }
    assert!(heard >= lines, "it ended by itself after {heard} of {lines} lines: {:?}", child.wait());
    child.wait().expect("dead");
}

async fn check(raw: &RawFlash, known: &mut BTreeMap<u64, Known>, context: &str) {
    let client = raw.client();
    for (&id, state) in known.iter_mut() {
        let buf = IoBuf::zeroed(raw.segment_bytes() as usize);
        let is_there = match raw.read(&client, id.into(), 0, buf).await {
            (Ok(_), buf) => {
                assert!(buf[..] == contents(raw, id.into())[..], "{context}: segment {id} reads wrong");
                true
            }
            (Err(RawError::NotFound { .. }), _) => false,
            (Err(error), _) => panic!("{context}: segment {id}: {error}"),
        };
        let (may_be_there, may_be_absent) = *state;
        assert!(if is_there { may_be_there } else { may_be_absent }, "{context}: segment {id}: {is_there}");
        *state = (is_there, !is_there);
    }
    let there = known.values().filter(|(is_there, _)| *is_there).count();
    assert_eq!(raw.segment_count() as usize, there, "{context}: none but those");
    raw.scrub_pass(ScrubOptions { bytes_per_second: u64::MAX, refresh: true }).await.expect("patrol");
    let (scrub, space) = (raw.scrub_stats(), raw.space());
    assert_eq!((scrub.segments as usize, scrub.lost), (there, 0), "{context}");
    assert_eq!(space.accounted(), space.raw, "{context}");
}

#[test]
fn a_process_that_is_killed_while_it_writes_loses_nothing_that_was_acknowledged() {
    let dir = tempfile::tempdir().expect("dir");
    let path = std::env::var(ZONED).unwrap_or_else(|_| {
        let path = dir.path().join("drive").display().to_string();
        std::fs::File::create(&path).and_then(|file| file.set_len(32 << 20)).expect("file");
        path
    });
    let format = RawFormat { drive_id: *b"killed and again", force: true };
    let seed = std::env::var("PUMICE_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    let mut rng = Rng::from_seed(seed);
    block_on({
        let path = path.clone();
        async move {
            let formatted = RawFlash::format(device(&path).await, format, RawOptions::default()).await;
            // A drive of a run before has this identity.
            match formatted {
                Err(RawError::AlreadyFormatted { .. }) => {
                    let format = RawFormat { drive_id: *b"killed and anew!", ..format };
                    RawFlash::format(device(&path).await, format, RawOptions::default())
                        .await
                        .expect("format");
                }
                formatted => drop(formatted.expect("format")),
            }
        }
    });
    let mut known = BTreeMap::new();
    for round in 0..ROUNDS {
        let first = (round + 1) * 1_000_000;
        let lines = 8 + rng.below(60);
        let context = format!(
            "round {round}, killed after {lines} lines: PUMICE_SEED={seed} cargo test -p pumice-segment --test ftl_kill"
        );
        run_and_kill(&path, first, lines, &mut known);
        // Each time by itself: a drive is open once.
        for is_closed in [false, true] {
            let (path, context) = (path.clone(), context.clone());
            known = block_on(async move {
                let opened = RawFlash::open(device(&path).await, RawOptions::default(), &|_, _| ()).await;
                let opened = opened.unwrap_or_else(|error| panic!("{context}: {error}"));
                assert!(
                    opened.clean == is_closed && opened.damage.is_empty(),
                    "{context}: {:?}",
                    opened.damage
                );
                check(&opened.raw, &mut known, &context).await;
                if !is_closed {
                    // Room for the next round: every other one goes.
                    for (&id, state) in known.iter_mut().filter(|(_, state)| state.0).step_by(2) {
                        opened.raw.erase(&opened.raw.client(), id.into()).await.expect("erase");
                        *state = (false, true);
                    }
                    opened.raw.close().await.unwrap_or_else(|error| panic!("{context}: {error}"));
                }
                known
            });
        }
    }
}
