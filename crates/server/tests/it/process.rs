//! The real process on the real kernel: killed, stopped, crowded, its drive taken from under it.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::common::{
    Server, check_exit, eventually, pause_ms, pumice, pumice_of_a_user, pumice_without_uring, run, skipped,
    stderr, stdout,
};
use redis::{Commands, RedisResult};
use rustix::process::Signal;

const WRITERS: usize = 4;
const KEYS_PER_WRITER: usize = 40;

/// What one writer knows of one of its keys.
#[derive(Clone, Copy, Default)]
struct Known {
    /// The last write (0: none or deleted) that was acknowledged.
    acknowledged: u64,
    /// A later write that was sent; `None` when there was none.
    sent: Option<u64>,
}

fn key(writer: usize, n: usize) -> String {
    format!("w{writer}:k{n}")
}

/// Values of all sizes; each begins with its number and can be checked as a whole.
fn value(number: u64) -> Vec<u8> {
    let len = 20 + (number * 7919 % 9000) as usize;
    let mut value = format!("{number}:").into_bytes();
    value.resize(len.max(value.len()), b'a' + (number % 26) as u8);
    value
}

fn number_of(value: &[u8]) -> u64 {
    let digits = value.split(|b| *b == b':').next().unwrap();
    std::str::from_utf8(digits).unwrap().parse().unwrap()
}

/// What the writers of a test tell it, and it them.
#[derive(Default)]
struct Shared {
    acknowledged: AtomicU64,
    stop: AtomicBool,
}

impl Shared {
    /// Lets the writers write for `ms`, and on until so many writes are acknowledged, however slow the machine.
    fn let_write(&self, ms: u64, writes: u64) {
        pause_ms(ms);
        eventually("writes are acknowledged", || self.acknowledged.load(Ordering::Relaxed) >= writes);
    }
}

/// Writes and deletes until the connection breaks; numbers start above `from`.
fn write_until_cut(port: u16, writer: usize, known: &mut [Known], from: u64, shared: &Shared) -> u64 {
    let mut next = from;
    let client = redis::Client::open(format!("redis://127.0.0.1:{port}/")).unwrap();
    let Ok(mut connection) = client.get_connection() else { return next };
    while !shared.stop.load(Ordering::Relaxed) {
        next += 1;
        let at = (next * 31 % KEYS_PER_WRITER as u64) as usize;
        let is_delete = next.is_multiple_of(11);
        let target = if is_delete { 0 } else { next };
        known[at].sent = Some(target);
        let done: RedisResult<()> = if is_delete {
            connection.del(key(writer, at))
        } else {
            connection.set(key(writer, at), value(next))
        };
        if done.is_err() {
            return next;
        }
        known[at] = Known { acknowledged: target, sent: None };
        shared.acknowledged.fetch_add(1, Ordering::Relaxed);
    }
    next
}

fn verify(server: &Server, writer: usize, known: &mut [Known]) {
    let mut client = server.client();
    for (n, state) in known.iter_mut().enumerate() {
        let found: Option<Vec<u8>> = client.get(key(writer, n)).unwrap();
        let number = found.as_deref().map_or(0, number_of);
        if let Some(bytes) = &found {
            assert_eq!(*bytes, value(number), "{}: a torn or mixed value", key(writer, n));
        }
        assert!(
            number == state.acknowledged || Some(number) == state.sent,
            "{}: {} was acknowledged, {:?} sent after it, {number} is there",
            key(writer, n),
            state.acknowledged,
            state.sent
        );
        *state = Known { acknowledged: number, sent: None };
    }
}

#[test]
#[allow(clippy::disallowed_methods)] // clients are threads of their own
fn kill_9_under_load_again_and_again_loses_nothing_that_was_acknowledged() {
    let rounds: u64 = std::env::var("PUMICE_KILL_ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(6);
    let dir = tempfile::tempdir().unwrap();
    let mut known = vec![vec![Known::default(); KEYS_PER_WRITER]; WRITERS];
    let mut last = 0;
    for round in 0..rounds {
        let server = Server::start(dir.path(), &[]);
        known.iter_mut().enumerate().for_each(|(writer, known)| verify(&server, writer, known));
        let shared = Arc::new(Shared::default());
        let port = server.port;
        let writers: Vec<_> = (known.drain(..).enumerate())
            .map(|(writer, mut mine)| {
                let shared = shared.clone();
                std::thread::spawn(move || {
                    let last = write_until_cut(port, writer, &mut mine, last, &shared);
                    (mine, last)
                })
            })
            .collect();
        shared.let_write(150 + round * 97 % 400, 50);
        server.kill();
        shared.stop.store(true, Ordering::Relaxed);
        for writer in writers {
            let (mine, reached) = writer.join().unwrap();
            known.push(mine);
            last = last.max(reached);
        }
    }
    let server = Server::start(dir.path(), &[]);
    known.iter_mut().enumerate().for_each(|(writer, known)| verify(&server, writer, known));
    server.stop();
    check_exit(&run(&["check", dir.path().join("drive0").to_str().unwrap()]), 0, "");
}

#[test]
fn a_stopped_and_continued_process_goes_on_and_time_has_passed() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &[]);
    let mut client = server.client();
    let _: () = client.set("lasting", 1).unwrap();
    let _: () = client.pset_ex("fleeting", 1, 300).unwrap();
    server.signal(Signal::STOP);
    pause_ms(600);
    server.signal(Signal::CONT);
    assert_eq!(client.get::<_, Option<i64>>("fleeting").unwrap(), None);
    assert_eq!(client.incr::<_, _, i64>("lasting", 1).unwrap(), 2);
    server.stop();
}

#[test]
fn a_drive_is_served_once_only_and_the_second_server_says_why() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &[]);
    let other = tempfile::tempdir().unwrap();
    let drive = dir.path().join("drive0");
    let refused = Server::try_start(other.path(), &["--device", drive.to_str().unwrap()]).err().unwrap();
    assert!(refused.contains("exit status: 2") && refused.contains("in use by another process"), "{refused}");
    for command in ["check", "info"] {
        check_exit(&run(&[command, drive.to_str().unwrap()]), 2, "in use by another process");
    }
    assert_eq!(server.client().set::<_, _, String>("still", "served").unwrap(), "OK");
    server.stop();
}

/// A disk that is a file, as long as it is needed.
struct LoopDevice(String);

impl LoopDevice {
    fn new(file: &Path) -> Option<Self> {
        let output = Command::new("losetup").args(["--find", "--show"]).arg(file).output().ok()?;
        let name = stdout(&output).trim().to_string();
        (output.status.success() && name.starts_with("/dev/")).then_some(Self(name))
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["--detach", &self.0]).status();
    }
}

/// Each container has names of its own for the machine's disks.
#[test]
fn a_disk_is_served_once_only_by_whatever_name() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("disk");
    std::fs::File::create(&file).unwrap().set_len(256 << 20).unwrap();
    let other = dir.path().join("name");
    let Some(disk) = LoopDevice::new(&file) else { return skipped("there are no loop devices here") };
    let number = std::fs::metadata(&disk.0).unwrap().rdev();
    let (major, minor) = (rustix::fs::major(number).to_string(), rustix::fs::minor(number).to_string());
    let made = Command::new("mknod").arg(&other).args(["b", &major, &minor]).status();
    if !made.is_ok_and(|made| made.success()) || std::fs::File::open(&other).is_err() {
        return skipped("devices cannot have other names here");
    }
    check_exit(&run(&["format", &disk.0]), 0, "");
    let server = Server::start(dir.path(), &["--device", &disk.0]);
    for command in ["check", "info"] {
        check_exit(&run(&[command, other.to_str().unwrap()]), 2, "in use by another process, or mounted");
    }
    let twice = tempfile::tempdir().unwrap();
    let refused = Server::try_start(twice.path(), &["--device", other.to_str().unwrap()]).err().unwrap();
    assert!(refused.contains("in use by another process"), "{refused}");
    assert_eq!(server.client().set::<_, _, String>("still", "served").unwrap(), "OK");
    server.stop();
}

#[test]
fn a_taken_port_is_refused_and_not_shared() {
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let server = Server::start(one.path(), &[]);
    let addr = format!("127.0.0.1:{}", server.port);
    let refused = Server::try_start(two.path(), &["--redis", &addr]).err().unwrap();
    assert!(refused.contains("exit status: 2") && refused.contains("another server"), "{refused}");
}

/// Redis's own default is every address of both families (`bind * -::*`).
#[test]
fn addresses_that_overlap_are_served_side_by_side() {
    let has_ipv6 = std::net::TcpListener::bind("[::1]:0").is_ok();
    if !has_ipv6 {
        skipped("this machine has no IPv6");
    }
    for (first, second) in [("127.0.0.1", "0.0.0.0"), ("0.0.0.0", "[::]"), ("[::]", "0.0.0.0")] {
        if !has_ipv6 && (first, second) != ("127.0.0.1", "0.0.0.0") {
            continue;
        }
        let dir = tempfile::tempdir().unwrap();
        // A port that is free at every address may be another test's before the server has it.
        let mut refused = String::new();
        let started = (0..5).find_map(|_| {
            let free = std::net::TcpListener::bind("0.0.0.0:0").unwrap();
            let port = free.local_addr().unwrap().port();
            drop(free);
            let addrs = [first, second].map(|ip| format!("{ip}:{port}"));
            let server = Server::try_start(dir.path(), &["--redis", &addrs[0], "--redis", &addrs[1]]);
            server.map(|server| (server, addrs)).map_err(|said| refused = said).ok()
        });
        let (server, addrs) = started.unwrap_or_else(|| panic!("{refused}"));
        for addr in &addrs {
            assert!(server.faces.iter().any(|face| face.ends_with(addr)), "{:?}", server.faces);
            let addr = addr.replace("0.0.0.0", "127.0.0.1").replace("[::]", "[::1]");
            let client = redis::Client::open(format!("redis://{addr}/")).unwrap();
            assert_eq!(client.get_connection().unwrap().set::<_, _, String>("k", "v").unwrap(), "OK");
        }
        server.stop();
    }
}

#[test]
#[allow(clippy::disallowed_methods)] // clients are threads of their own
fn sigterm_under_load_stops_cleanly_and_the_next_start_replays_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &[]);
    let port = server.port;
    let shared = Arc::new(Shared::default());
    let writers: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let shared = shared.clone();
            std::thread::spawn(move || {
                let mut known = vec![Known::default(); KEYS_PER_WRITER];
                write_until_cut(port, writer, &mut known, 0, &shared);
                known
            })
        })
        .collect();
    shared.let_write(400, 50);
    server.stop();
    let mut known: Vec<Vec<Known>> = writers.into_iter().map(|writer| writer.join().unwrap()).collect();
    let server = Server::start(dir.path(), &[]);
    assert!(server.said().contains("closed cleanly before"), "{}", server.said());
    known.iter_mut().enumerate().for_each(|(writer, known)| verify(&server, writer, known));
    server.stop();
}

#[test]
fn a_drive_truncated_while_it_is_served_gives_errors_and_never_wrong_data() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &[]);
    let mut client = server.client();
    for n in 0..200u64 {
        let _: () = client.set(format!("k{n}"), value(n)).unwrap();
    }
    // Cold: what was just written would be read from memory.
    server.stop();
    let mut server = Server::start(dir.path(), &[]);
    let mut client = server.client();
    std::fs::File::options().write(true).open(dir.path().join("drive0")).unwrap().set_len(1 << 20).unwrap();
    let mut errors = 0;
    for n in 0..200u64 {
        match client.get::<_, Option<Vec<u8>>>(format!("k{n}")) {
            Ok(Some(found)) => assert_eq!(found, value(n)),
            Ok(None) => panic!("k{n} was acknowledged, and is told to be absent"),
            Err(_) => errors += 1,
        }
    }
    assert!(errors > 0, "nothing was read from where the drive had been");
    let mut fresh = server.client();
    assert_eq!(redis::cmd("PING").query::<String>(&mut fresh).unwrap(), "PONG");
    assert!(server.is_alive(), "{}", server.said());
    server.kill();
    let again = Server::try_start(dir.path(), &[]);
    if let Err(said) = again {
        assert!(
            said.contains("exit status: 2") && said.contains("drive0") && !said.contains("panicked"),
            "{said}"
        );
    }
}

#[test]
fn shutdown_by_a_client_ends_the_process_cleanly() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::start(dir.path(), &[]);
    let mut client = server.client();
    let _: () = client.set("k", "v").unwrap();
    let _: RedisResult<String> = redis::cmd("SHUTDOWN").query(&mut client);
    assert!(server.wait().success());
    let server = Server::start(dir.path(), &[]);
    assert_eq!(server.client().get::<_, String>("k").unwrap(), "v");
    server.stop();
}

#[test]
fn a_default_drive_is_there_only_once_it_is_whole() {
    let dir = tempfile::tempdir().unwrap();
    let (drive, unfinished) = (dir.path().join("drive0"), dir.path().join("drive0.new"));
    // As a kill leaves it: made and grown, nothing or a part of it written.
    for rest in ["", "PUMICESB and no more"] {
        std::fs::write(&unfinished, rest).unwrap();
        std::fs::File::options().write(true).open(&unfinished).unwrap().set_len(1 << 30).unwrap();
        let server = Server::start(dir.path(), &[]);
        assert!(!unfinished.exists());
        assert_eq!(redis::cmd("SET").arg("k").arg("v").query::<String>(&mut server.client()).unwrap(), "OK");
        server.kill();
        let server = Server::start(dir.path(), &[]);
        assert_eq!(server.client().get::<_, String>("k").unwrap(), "v");
        server.stop();
        std::fs::remove_file(&drive).unwrap();
    }
    // Killed at any moment of its first start: the next one serves.
    for ms in (0..160).step_by(20) {
        let data = dir.path().join(ms.to_string());
        let mut first = pumice()
            .args(["serve", "--redis", "127.0.0.1:0", "--cores", "1", "--memory", "128MiB", "--data"])
            .arg(&data)
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap();
        pause_ms(ms);
        first.kill().unwrap();
        first.wait().unwrap();
        Server::start(&data, &[]).stop();
    }
    // Under its own name nothing is made anew: neither what is damaged nor what is elsewhere.
    std::fs::write(&drive, vec![0; 1 << 20]).unwrap();
    let refused = Server::try_start(dir.path(), &[]).err().expect("a damaged drive is not served");
    assert!(refused.contains("exit status: 2") && refused.contains("is no drive"), "{refused}");
    assert_eq!(std::fs::read(&drive).unwrap(), vec![0; 1 << 20]);
    std::fs::remove_file(&drive).unwrap();
    std::os::unix::fs::symlink("not-mounted/drive", &drive).unwrap();
    let refused = Server::try_start(dir.path(), &[]).err().expect("a drive that is not there is not served");
    assert!(refused.contains("exit status: 2") && refused.contains("no such file"), "{refused}");
}

#[test]
#[allow(clippy::disallowed_methods)] // one server for each thread
fn of_two_first_starts_at_once_one_serves_and_its_drive_stays() {
    for _ in 0..4 {
        let dir = tempfile::tempdir().unwrap();
        let starts = [(); 2].map(|()| {
            let data = dir.path().to_owned();
            std::thread::spawn(move || Server::try_start(&data, &[]))
        });
        let mut served = starts.map(|start| start.join().unwrap()).into_iter().filter_map(Result::ok);
        let server = served.next().expect("one serves");
        assert!(served.next().is_none(), "two servers on one drive");
        let _: () = server.client().set("k", "v").unwrap();
        server.kill();
        let server = Server::start(dir.path(), &[]);
        assert_eq!(server.client().get::<_, String>("k").unwrap(), "v");
        server.stop();
    }
}

/// For a port that is free for a moment: at 127.0.0.1 it may go to whoever asks for any, other tests' servers or the same one for
/// its first address.
const ANY_PORT_OF_NOBODY_ELSE: &str = "127.0.0.2:0";

#[test]
#[allow(clippy::disallowed_methods)] // what is in the way goes while the server starts
fn an_address_that_a_dying_server_still_holds_is_waited_for_and_a_living_one_s_is_refused() {
    for option in ["--redis", "--http"] {
        let dir = tempfile::tempdir().unwrap();
        let taken = std::net::TcpListener::bind(ANY_PORT_OF_NOBODY_ELSE).unwrap();
        let addr = taken.local_addr().unwrap().to_string();
        let refused = Server::try_start(dir.path(), &[option, &addr]).err().expect("it is taken");
        let says = format!("pumice: {option} {addr}: ");
        assert!(refused.contains("exit status: 2") && refused.contains(&says), "{refused}");
        let log = dir.path().join("test.log");
        std::fs::remove_file(&log).unwrap();
        let goes = std::thread::spawn(move || {
            eventually("the server meets it", || {
                std::fs::read_to_string(&log).is_ok_and(|said| said.contains("waiting"))
            });
            pause_ms(300);
            drop(taken);
        });
        let server = Server::start(dir.path(), &[option, &addr]);
        goes.join().unwrap();
        assert!(server.faces.iter().any(|face| face.ends_with(&addr)), "{:?}", server.faces);
        server.stop();
    }
    // A socket in the file system is one, too.
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("redis.sock");
    let _taken = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let refused = Server::try_start(dir.path(), &["--redis", &format!("unix:{}", socket.display())]);
    let refused = refused.err().expect("it is taken");
    assert!(refused.contains("another server is listening there") && socket.exists(), "{refused}");
}

#[test]
fn a_server_that_was_killed_can_be_started_again_at_once_on_the_same_port() {
    let dir = tempfile::tempdir().unwrap();
    let free = std::net::TcpListener::bind(ANY_PORT_OF_NOBODY_ELSE).unwrap();
    let addr = free.local_addr().unwrap().to_string();
    drop(free);
    for _ in 0..10 {
        Server::start(dir.path(), &["--redis", &addr]).kill();
    }
}

#[test]
fn an_ordinary_user_s_locked_memory_is_enough_for_many_cores() {
    // What systemd gives, and what is so little that queues are made smaller.
    for (locked_kib, cores) in [(8192, "20"), (2048, "15")] {
        let dir = tempfile::tempdir().unwrap();
        let Some(binary) = pumice_of_a_user(dir.path(), locked_kib) else { return };
        let started = Server::try_start_of(binary, dir.path(), &["--cores", cores, "--memory", "256MiB"]);
        let server = started.unwrap_or_else(|error| panic!("{cores} cores in {locked_kib} KiB: {error}"));
        let _: () = server.client().set("k", "v").unwrap();
        server.stop();
    }
}

#[test]
fn a_server_leaves_locked_memory_to_its_user_s_other_processes_and_its_successor() {
    let dir = tempfile::tempdir().unwrap();
    let Some(mut user) = pumice_of_a_user(dir.path(), 8192) else { return };
    // As the same user each time, which the limit is for.
    let again = |user: &Command| {
        let mut command = Command::new(user.get_program());
        command.args(user.get_args());
        command
    };
    let drive = dir.path().join("drive").display().to_string();
    let mut check = again(&user);
    check_exit(&again(&user).args(["format", &drive, "--size", "256MiB"]).output().unwrap(), 0, "");
    check.args(["check", &drive]);
    for round in 0..6 {
        let next = again(&user);
        let started = Server::try_start_of(std::mem::replace(&mut user, next), dir.path(), &["--cores", "8"]);
        let server = started.unwrap_or_else(|error| panic!("start {round}, at once after a kill: {error}"));
        // What the one before had locked may take its time.
        eventually("another process has its ring", || check.status().unwrap().success());
        server.kill();
    }
}

/// Commands beside or right after a server of the same user: like the next server they wait for what it still has locked.
#[test]
#[allow(clippy::disallowed_methods)] // what is in the way goes while the command starts
fn a_command_waits_for_the_locked_memory_of_who_has_just_died() {
    let dir = tempfile::tempdir().unwrap();
    let drive = dir.path().join("drive").display().to_string();
    let Some(user) = pumice_of_a_user(dir.path(), 1024) else { return };
    let again = || {
        let mut command = Command::new(user.get_program());
        command.args(user.get_args());
        command
    };
    check_exit(&again().args(["format", &drive, "--size", "256MiB"]).output().unwrap(), 0, "");
    for command in ["check", "info"] {
        // As many cores as there is memory for: until then each start is refused for want of it.
        let mut servers = Vec::new();
        for number in 0..64 {
            let data = dir.path().join(format!("{command}{number}"));
            std::fs::create_dir(&data).unwrap();
            std::os::unix::fs::chown(&data, Some(dir.path().metadata().unwrap().uid()), None).unwrap();
            let started = Server::try_start_of(again(), &data, &["--device", "emu:small", "--cores", "1"]);
            match started {
                Ok(server) => servers.push(server),
                Err(error) => {
                    assert!(error.contains("ulimit -l"), "{error}");
                    break;
                }
            }
        }
        assert!((1..64).contains(&servers.len()), "{} servers in 1 MiB of locked memory", servers.len());
        let goes = std::thread::spawn(move || {
            pause_ms(300);
            servers.into_iter().for_each(Server::kill);
        });
        check_exit(&again().args([command, &drive]).output().unwrap(), 0, "");
        goes.join().unwrap();
    }
}

#[test]
fn no_locked_memory_at_all_is_an_error_that_says_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let drive = dir.path().join("drive").display().to_string();
    check_exit(&run(&["format", &drive, "--size", "256MiB"]), 0, "");
    let data = dir.path().join("data").display().to_string();
    let made = dir.path().join("made").display().to_string();
    for args in [
        &["check", &drive][..],
        &["info", &drive],
        &["format", &made, "--size", "256MiB"],
        &["serve", "--redis", "127.0.0.1:0", "--cores", "2", "--data", &data],
    ] {
        let Some(mut binary) = pumice_of_a_user(dir.path(), 0) else { return };
        let output = binary.args(args).output().unwrap();
        check_exit(&output, 2, "ulimit -l");
        assert!(!stderr(&output).contains("panicked"), "{}", stderr(&output));
    }
    assert!(!dir.path().join("made").exists() && !dir.path().join("data/drive0").exists());
}

#[test]
fn where_io_uring_is_forbidden_a_server_goes_on_without_and_says_so() {
    let Some(without) = pumice_without_uring() else { return };
    let dir = tempfile::tempdir().unwrap();
    let interface = |server: &Server| {
        let info: String = redis::cmd("INFO").arg("server").query(&mut server.client()).unwrap();
        info.lines().find_map(|line| line.strip_prefix("multiplexing_api:")).unwrap().to_owned()
    };
    let server = Server::try_start_of(without, dir.path(), &["--cores", "2"]).unwrap();
    assert_eq!(interface(&server), "epoll");
    let said = server.said();
    assert!(said.contains("kernel.io_uring_disabled") && said.contains("epoll and Linux AIO"), "{said}");
    let () = server.client().set("key", "value").unwrap();
    server.kill();
    let server = Server::start(dir.path(), &[]);
    assert_eq!(interface(&server), "io_uring");
    assert_eq!(server.client().get::<_, String>("key").unwrap(), "value");
    server.stop();
}
