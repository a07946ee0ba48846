//! A server on a zoned block device: made, described, served, killed, and found whole; and what is there after the power
//! went. They need a drive, so they are run by name where there is one (`tests/zoned/run` makes one in a virtual
//! machine): `PUMICE_ZONED_DRIVE` names it, and all it holds is lost.

mod common;

use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;

use common::{Server, check_exit, pause_ms, run, stdout};
use redis::{Commands, RedisResult};
use serde_json::Value;

const KEYS: u64 = 64;
/// Of every 64-bit word of a value: which write it is.
const WRITES_MAX: u64 = 1 << 40;

fn drive() -> String {
    std::env::var("PUMICE_ZONED_DRIVE")
        .expect("PUMICE_ZONED_DRIVE names a zoned block device whose data may go")
}

fn start() -> Server {
    Server::start(&std::env::temp_dir().join("data"), &["--device", &drive()])
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

/// Makes the drive empty.
fn format() {
    check_exit(&run(&["format", &drive(), "--force"]), 0, "");
}

#[test]
#[ignore = "needs a zoned drive: tests/zoned/run"]
fn a_zoned_drive_is_made_described_served_and_checked() {
    let drive = drive();
    format();
    check_exit(&run(&["format", &drive]), 1, "--force");
    let info: Value = serde_json::from_str(&stdout(&run(&["info", &drive, "--json"]))).expect("JSON");
    let name = Path::new(&drive).file_name().unwrap().to_string_lossy().into_owned();
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
    let said = stdout(&run(&["info", &drive]));
    assert!(said.contains("zones") && said.contains("active_max"), "{said}");
    let server = start();
    let mut client = server.client();
    for n in 0..200 {
        let _: () = client.set(key(n), value(n)).unwrap();
    }
    let taken = Server::try_start(&std::env::temp_dir().join("second"), &["--device", &drive]);
    assert!(taken.err().expect("the drive is taken").contains("in use"));
    verify(&server, 200, 200);
    server.stop();
    check_exit(&run(&["check", &drive]), 0, "");
    let server = start();
    verify(&server, 200, 200);
    server.stop();
}

/// Writes the drive over and over, so that zones are filled, finished, cleaned and reset.
#[test]
#[ignore = "needs a zoned drive: tests/zoned/run"]
fn a_zoned_drive_is_overwritten_many_times_within_its_limits() {
    let drive = drive();
    format();
    let server = start();
    let mut client = server.client();
    let raw: u64 =
        stdout(&run(&["info", "--data", &std::env::temp_dir().join("data").display().to_string(), "--json"]))
            .parse::<Value>()
            .ok()
            .and_then(|info| info["drives"][0]["space"]["raw"].as_u64())
            .unwrap_or(64 << 20);
    let big = vec![b'x'; 64 << 10];
    let mut written = 0;
    let mut n = 0;
    while written < 2 * raw {
        let mut pipe = redis::pipe();
        for _ in 0..8 {
            pipe.set(format!("big:{}", n * 13 % 200), &big).ignore();
            n += 1;
        }
        pipe.query::<()>(&mut client).expect("written");
        written += 8 * big.len() as u64;
    }
    server.stop();
    check_exit(&run(&["check", &drive]), 0, "");
}

#[test]
#[ignore = "needs a zoned drive: tests/zoned/run"]
fn killed_again_and_again_it_loses_nothing_that_was_acknowledged() {
    format();
    let (mut acknowledged, mut asked) = (0, 0);
    for round in 0..4u64 {
        let mut server = start();
        verify(&server, acknowledged, asked);
        let (pid, mut client) = (server.pid(), server.client());
        let killer = std::thread::Builder::new()
            .spawn(move || {
                pause_ms(300 + round * 170);
                let pid = rustix::process::Pid::from_raw(pid as i32).expect("a child");
                rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("it runs");
            })
            .unwrap();
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
        }
        killer.join().unwrap();
        server.wait_within(std::time::Duration::from_secs(60));
        println!("round {round}: {acknowledged} acknowledged");
    }
    assert!(acknowledged > 4, "only {acknowledged} writes in four lives");
    let server = start();
    verify(&server, acknowledged, asked);
    server.stop();
    check_exit(&run(&["check", &drive()]), 0, "");
}

/// Remembers, where no power cut reaches, how many writes were acknowledged and asked for.
struct Memory(std::fs::File);

impl Memory {
    /// Its place in the state drive; the first pages are the caller's own.
    const AT: u64 = 64 << 10;

    fn open() -> Self {
        let path = std::env::var("PUMICE_ZONED_STATE").expect("PUMICE_ZONED_STATE names a block device");
        Self(std::fs::File::options().read(true).write(true).open(path).expect("the state drive"))
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

/// Verifies what the last cut left, then writes until the power goes again: whoever runs it cuts the power once it has
/// said `POWER`, or lets it end by writing to the state drive.
#[test]
#[ignore = "needs a zoned drive: tests/zoned/run"]
fn a_power_cut_loses_nothing_that_was_acknowledged() {
    let mut memory = Memory::open();
    let (mut acknowledged, mut asked) = (memory.get(0), memory.get(1));
    if asked == 0 {
        format();
    }
    let server = start();
    verify(&server, acknowledged, asked);
    println!("{acknowledged} acknowledged writes are there, {asked} were asked for");
    if std::env::var_os("PUMICE_ZONED_LAST").is_some() {
        assert!(acknowledged > 50, "only {acknowledged} writes were cut");
        server.stop();
        check_exit(&run(&["check", &drive()]), 0, "");
        return;
    }
    let mut client = server.client();
    let until = acknowledged + 30;
    loop {
        asked = asked.max(acknowledged + 4);
        memory.set(1, asked);
        let mut pipe = redis::pipe();
        for n in acknowledged..acknowledged + 4 {
            pipe.set(key(n), value(n)).ignore();
        }
        pipe.query::<()>(&mut client).expect("written");
        acknowledged += 4;
        memory.set(0, acknowledged);
        if acknowledged >= until && acknowledged < until + 4 {
            println!("POWER");
        }
    }
}
