//! A server on one drive: made, described, served, killed, and found whole; and what is there after the power went.
//! The drive is a file, or the zoned block device that `PUMICE_ZONED_DRIVE` names, of which all is lost: `tests/zoned/run`
//! runs these tests one by one on one in a virtual machine, and cuts its power.

use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use crate::common::{Server, check_exit, pause_ms, run, space_adds_up, stdout};
use redis::{Commands, RedisResult};
use serde_json::Value;

const KEYS: u64 = 64;
/// Of every 64-bit word of a value: which write it is.
const WRITES_MAX: u64 = 1 << 40;

/// Where a test's drive and its server's files are.
struct Place {
    drive: String,
    is_zoned: bool,
    folder: PathBuf,
    _temporary: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let temporary = tempfile::tempdir().expect("dir");
        let folder = temporary.path().to_path_buf();
        let zoned = std::env::var("PUMICE_ZONED_DRIVE").ok();
        let is_zoned = zoned.is_some();
        let drive = zoned.unwrap_or_else(|| folder.join("drive").display().to_string());
        Self { drive, is_zoned, folder, _temporary: temporary }
    }

    /// Makes the drive empty.
    fn format(&self) {
        let size: &[&str] = if self.is_zoned { &[] } else { &["--size", "128MiB"] };
        check_exit(&run(&[&["format", &self.drive, "--force"], size].concat()), 0, "");
    }

    fn data(&self) -> PathBuf {
        self.folder.join("data")
    }

    fn start(&self) -> Server {
        Server::start(&self.data(), &["--device", &self.drive])
    }

    fn info(&self) -> Value {
        serde_json::from_str(&stdout(&run(&["info", &self.drive, "--json"]))).expect("JSON")
    }

    fn check(&self) {
        check_exit(&run(&["check", &self.drive]), 0, "");
    }
}

/// Kills the server after `ms`.
fn kill_later(server: &Server, ms: u64) -> std::thread::JoinHandle<()> {
    let pid = rustix::process::Pid::from_raw(server.pid() as i32).expect("a child");
    let kill = move || {
        pause_ms(ms);
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("it runs");
    };
    std::thread::Builder::new().spawn(kill).expect("a thread")
}

/// The value of write `n`: its number over and over, of a length of its own.
fn value(n: u64) -> Vec<u8> {
    assert!(n < WRITES_MAX);
    let words = 1 + n * 7919 % 2000;
    (0..words).flat_map(|word| (n << 16 | word & 0xffff).to_le_bytes()).collect()
}

/// Which write a value came from; it must be that one's, byte for byte.
fn write_of(found: &[u8]) -> u64 {
    let first = u64::from_le_bytes(found[..8].try_into().expect("a word at least"));
    let n = first >> 16;
    assert!(found == value(n), "a value of {} bytes that begins like write {n}'s", found.len());
    n
}

fn key(n: u64) -> String {
    format!("key:{}", n % KEYS)
}

/// Every write below `acknowledged` is there, or a later one of its key that was asked for (below `asked`).
fn verify(server: &Server, acknowledged: u64, asked: u64) {
    let mut client = server.client();
    for slot in 0..KEYS {
        let newest = (acknowledged > slot).then(|| (acknowledged - 1 - slot) / KEYS * KEYS + slot);
        let found: Option<Vec<u8>> = client.get(key(slot)).expect("answered");
        match (found.as_deref().map(write_of), newest) {
            (None, None) => {}
            (Some(found), newest) => {
                let least = newest.unwrap_or(0);
                assert!(
                    found >= least && found < asked && found % KEYS == slot,
                    "{found}, {least} to {asked}"
                );
            }
            (None, Some(newest)) => panic!("{} is lost: write {newest} was acknowledged", key(slot)),
        }
    }
}

#[test]
fn a_drive_is_made_described_served_and_checked() {
    let place = Place::new();
    place.format();
    check_exit(&run(&["format", &place.drive]), 1, "--force");
    let info = place.info();
    if place.is_zoned {
        let name = Path::new(&place.drive).file_name().unwrap().to_string_lossy().into_owned();
        let queue = |file: &str| -> u64 {
            let text = std::fs::read_to_string(format!("/sys/block/{name}/queue/{file}")).unwrap();
            text.trim().parse().unwrap()
        };
        let zones = &info["zones"];
        assert_eq!(zones["zone_bytes"], queue("chunk_sectors") * 512, "{info}");
        assert_eq!(zones["open_max"], queue("max_open_zones"), "{info}");
        assert_eq!(zones["active_max"], queue("max_active_zones"), "{info}");
        assert_eq!(zones["blocks"], queue("nr_zones"), "{info}");
        assert_eq!(info["segment_bytes"], zones["capacity_bytes"], "a segment is a zone: {info}");
        let said = stdout(&run(&["info", &place.drive]));
        assert!(said.contains("zones") && said.contains("active_max"), "{said}");
    } else {
        assert!(info["zones"].is_null(), "a file has no zones: {info}");
    }
    space_adds_up(&info);
    let server = place.start();
    let mut client = server.client();
    for n in 0..200 {
        let _: () = client.set(key(n), value(n)).unwrap();
    }
    let taken = Server::try_start(&place.folder.join("second"), &["--device", &place.drive]);
    assert!(taken.err().expect("the drive is taken").contains("in use"));
    let folder = place.data().display().to_string();
    let running = stdout(&run(&["info", "--data", &folder, "--json"]));
    let running: Value = serde_json::from_str(&running).expect("JSON");
    let drive = &running["drives"][0];
    space_adds_up(drive);
    assert!(drive["space"]["live"].as_u64() > info["space"]["live"].as_u64(), "{drive}");
    assert_eq!(drive["zones"]["zone_bytes"], info["zones"]["zone_bytes"], "{running}");
    verify(&server, 200, 200);
    server.stop();
    place.check();
    space_adds_up(&place.info());
    let server = place.start();
    verify(&server, 200, 200);
    server.stop();
}

/// Writes the drive over and over, so that segments are filled and cleaned; zones are finished and reset.
#[test]
fn a_drive_is_overwritten_many_times_within_its_limits() {
    let place = Place::new();
    place.format();
    let raw = place.info()["space"]["raw"].as_u64().expect("bytes");
    let server = place.start();
    let mut client = server.client();
    let big = |n: u64| n.to_le_bytes().repeat((64 << 10) / 8);
    let mut newest = [0; 200];
    let mut n = 0;
    while n * (64 << 10) < 2 * raw {
        let mut pipe = redis::pipe();
        for _ in 0..8 {
            n += 1;
            let slot = n * 13 % 200;
            newest[slot as usize] = n;
            pipe.set(format!("big:{slot}"), big(n)).ignore();
        }
        pipe.query::<()>(&mut client).expect("written");
    }
    let holds_the_newest = |server: &Server| {
        let mut client = server.client();
        for (slot, n) in newest.iter().enumerate() {
            let found: Vec<u8> = client.get(format!("big:{slot}")).expect("answered");
            assert!(found == big(*n), "big:{slot} does not hold write {n}: it begins {:?}", found.get(..8));
        }
    };
    holds_the_newest(&server);
    server.stop();
    place.check();
    let server = place.start();
    holds_the_newest(&server);
    server.stop();
}

#[test]
fn killed_again_and_again_it_loses_nothing_that_was_acknowledged() {
    let place = Place::new();
    place.format();
    let (mut acknowledged, mut asked) = (0, 0);
    for round in 0..4u64 {
        let mut server = place.start();
        verify(&server, acknowledged, asked);
        let mut client = server.client();
        let (enough, mut killer) = (acknowledged + 40, None);
        // Four writes at once: none, some or all of the last four may be there.
        let mut next = acknowledged;
        loop {
            let mut pipe = redis::pipe();
            for n in next..next + 4 {
                pipe.set(key(n), value(n)).ignore();
            }
            asked = asked.max(next + 4);
            let answered: RedisResult<()> = pipe.query(&mut client);
            if answered.is_err() {
                break;
            }
            next += 4;
            acknowledged = next;
            if acknowledged >= enough && killer.is_none() {
                killer = Some(kill_later(&server, round * 170));
            }
        }
        killer.expect("nobody else ends the server").join().unwrap();
        server.wait();
        println!("round {round}: {acknowledged} acknowledged");
    }
    let server = place.start();
    verify(&server, acknowledged, asked);
    server.stop();
    place.check();
}

/// Remembers, where no power cut reaches, how many writes were acknowledged and asked for.
struct Memory(std::fs::File);

impl Memory {
    /// Its place in the state drive; the first pages are the caller's own.
    const AT: u64 = 64 << 10;

    /// The block device that `PUMICE_ZONED_STATE` names, or a file.
    fn open(place: &Place) -> Self {
        let mut options = std::fs::File::options();
        options.read(true).write(true);
        let Ok(device) = std::env::var("PUMICE_ZONED_STATE") else {
            let file = options.create(true).truncate(false).open(place.folder.join("state")).expect("file");
            file.set_len(Self::AT + 2 * 4096).expect("length");
            return Self(file);
        };
        Self(options.open(device).expect("the state drive"))
    }

    fn set(&mut self, at: u64, number: u64) {
        let mut sector = [0; 4096];
        sector[..8].copy_from_slice(&number.to_le_bytes());
        self.0.seek(SeekFrom::Start(Self::AT + at * 4096)).unwrap();
        self.0.write_all(&sector).unwrap();
        self.0.sync_data().unwrap();
    }

    fn get(&mut self, at: u64) -> u64 {
        let mut number = [0; 8];
        self.0.seek(SeekFrom::Start(Self::AT + at * 4096)).unwrap();
        self.0.read_exact(&mut number).unwrap();
        u64::from_le_bytes(number)
    }
}

/// In the virtual machine the power goes twice, once this has said `POWER`, and each boot runs it once, the last with
/// `PUMICE_ZONED_LAST`. On a file the server is killed instead.
#[test]
fn a_power_cut_loses_nothing_that_was_acknowledged() {
    let place = Place::new();
    let mut memory = Memory::open(&place);
    if !place.is_zoned {
        for ms in [5, 40] {
            write_until_it_ends(&place, &mut memory, |server| Some(kill_later(server, ms)));
        }
    } else if std::env::var_os("PUMICE_ZONED_LAST").is_none() {
        write_until_it_ends(&place, &mut memory, |_| {
            println!("POWER");
            None
        });
    }
    let (acknowledged, asked) = (memory.get(0), memory.get(1));
    let server = place.start();
    verify(&server, acknowledged, asked);
    assert!(acknowledged > 50, "only {acknowledged} writes were cut");
    server.stop();
    place.check();
}

/// Verifies what the last cut left, then writes until the server is gone: `cut` sees to that, or whoever cuts the power.
fn write_until_it_ends(
    place: &Place,
    memory: &mut Memory,
    cut: impl FnOnce(&Server) -> Option<std::thread::JoinHandle<()>>,
) {
    let (mut acknowledged, mut asked) = (memory.get(0), memory.get(1));
    if asked == 0 {
        place.format();
    }
    let mut server = place.start();
    verify(&server, acknowledged, asked);
    println!("{acknowledged} acknowledged writes are there, {asked} were asked for");
    let mut client = server.client();
    let until = acknowledged + 30;
    let (mut cut, mut killer) = (Some(cut), None);
    loop {
        asked = asked.max(acknowledged + 4);
        memory.set(1, asked);
        let mut pipe = redis::pipe();
        for n in acknowledged..acknowledged + 4 {
            pipe.set(key(n), value(n)).ignore();
        }
        let answered: RedisResult<()> = pipe.query(&mut client);
        match (answered, &killer) {
            (Ok(()), _) => {}
            (Err(_), Some(_)) => break,
            (Err(error), None) => panic!("nobody killed the server: {error}"),
        }
        acknowledged += 4;
        memory.set(0, acknowledged);
        if acknowledged >= until
            && let Some(cut) = cut.take()
        {
            killer = cut(&server);
        }
    }
    killer.expect("the loop ends by it").join().expect("it killed");
    server.wait();
}
