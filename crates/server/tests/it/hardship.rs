//! The real process where things are not as they should be: slow media, full and read-only file systems, strangers,
//! and clients who chose to lose what a crash takes.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, TcpStream, UdpSocket};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;

use crate::common::{self, PATIENCE, Server, check_exit, eventually, pumice, run, skipped, stdout};
use pumice_flash::{Access, Device};
use pumice_kv::{Batch, SliceId, Store, StoreOptions};
use redis::Commands;

/// An address of this machine that is not the loopback's, where there is one. Nothing is sent.
fn outer_address() -> Option<IpAddr> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("192.0.2.1:9").ok()?;
    Some(socket.local_addr().ok()?.ip()).filter(|ip| !ip.is_loopback() && !ip.is_unspecified())
}

/// What a server says first to a client that asks nothing but PING.
fn first_line(ip: IpAddr, port: u16) -> String {
    let mut stream = TcpStream::connect((ip, port)).expect("connected");
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let _ = stream.write_all(b"PING\r\n");
    let mut line = String::new();
    let _ = BufReader::new(stream).read_line(&mut line);
    line
}

#[test]
fn strangers_are_turned_away_until_there_is_a_password_or_somebody_lets_them_in() {
    let Some(ip) = outer_address() else {
        skipped("this machine has the loopback interface only");
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &["--redis", "0.0.0.0:0", "--enable-debug-command", "local"]);
    let line = server.faces.iter().find_map(|face| face.strip_prefix("redis on 0.0.0.0:")).unwrap();
    let port: u16 = line.split(' ').next().unwrap().parse().unwrap();
    let refused = first_line(ip, port);
    assert!(refused.starts_with("-DENIED") && refused.contains("password"), "{refused}");
    // The same door is open to this machine's own clients.
    assert_eq!(first_line("127.0.0.1".parse().unwrap(), port), "+PONG\r\n");
    let mut client = server.client();
    let set = |client: &mut redis::Connection, name: &str, value: &str| {
        redis::cmd("CONFIG").arg("SET").arg(name).arg(value).query::<String>(client).unwrap();
    };
    set(&mut client, "protected-mode", "no");
    assert_eq!(first_line(ip, port), "+PONG\r\n");
    set(&mut client, "protected-mode", "yes");
    assert!(first_line(ip, port).starts_with("-DENIED"));
    set(&mut client, "requirepass", "secret");
    assert!(first_line(ip, port).starts_with("-NOAUTH"));
    let url = format!("redis://:secret@{ip}:{port}/");
    let mut stranger = redis::Client::open(url).unwrap().get_connection().expect("the password lets it in");
    let _: () = stranger.set("k", "v").unwrap();
    let debug =
        |client: &mut redis::Connection| redis::cmd("DEBUG").arg("SLEEP").arg("0").query::<String>(client);
    let refused = debug(&mut stranger).unwrap_err().to_string();
    assert!(refused.contains("DEBUG command not allowed"), "{refused}");
    assert_eq!(debug(&mut client).unwrap(), "OK");
    server.stop();
}

/// A server that is still opening its drives: its child process, its sockets.
struct Loading {
    child: std::process::Child,
    socket: std::path::PathBuf,
    /// For `common::http_get`.
    http: String,
    _sockets: tempfile::TempDir,
}

impl Loading {
    fn start(data: &Path, device: &str) -> Self {
        // Of its own: the kernel closes those of a server that was killed a little later than it ends the process.
        let sockets = tempfile::tempdir().unwrap();
        let socket = sockets.path().join("redis");
        let http = format!("unix:{}", sockets.path().join("http").display());
        let child = pumice()
            .args([
                "serve", "--memory", "128MiB", "--cores", "1", "--device", device, "--http", &http, "--data",
            ])
            .arg(data)
            .args(["--redis", &format!("unix:{}", socket.display())])
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap();
        Self { child, socket, http, _sockets: sockets }
    }

    /// Connects as soon as the server listens; it binds `--http` before.
    fn connect(&self) -> BufReader<UnixStream> {
        let mut stream = None;
        eventually("the server listens", || {
            stream = UnixStream::connect(&self.socket).ok();
            stream.is_some()
        });
        let stream = stream.unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        BufReader::new(stream)
    }

    /// Waits for the end of a server that was told to end, and has not served before.
    fn end(mut self) -> std::process::ExitStatus {
        let mut ended = None;
        eventually("the server ends", || {
            ended = self.child.try_wait().unwrap();
            ended.is_some()
        });
        let mut said = String::new();
        self.child.stdout.take().unwrap().read_to_string(&mut said).unwrap();
        assert!(!said.contains("ready"), "it ended after it had opened its drives: {said}");
        ended.unwrap()
    }
}

impl Drop for Loading {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn ask(stream: &mut BufReader<UnixStream>, command: &str) -> String {
    stream.get_mut().write_all(format!("{command}\r\n").as_bytes()).unwrap();
    let mut line = String::new();
    stream.read_line(&mut line).unwrap();
    if let Some(len) = line.strip_prefix('$').and_then(|len| len.trim().parse::<usize>().ok()) {
        let mut value = vec![0; len + 2];
        stream.read_exact(&mut value).unwrap();
        return String::from_utf8_lossy(&value[..len]).into_owned();
    }
    line.trim_end().to_string()
}

#[test]
fn during_a_long_recovery_clients_hear_loading_and_health_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let media = dir.path().join("media");
    let fast = format!("emu:small,path={}", media.display());
    let server = Server::start(dir.path(), &["--device", &fast]);
    let mut client = server.client();
    for n in 0..2000 {
        let _: () = client.set(format!("k{n}"), vec![b'a' + (n % 26) as u8; 4000]).unwrap();
    }
    server.kill();
    // The same media on a device that takes half a second for a read, some 15 of them before the server listens, and 700
    // after that: six minutes for a handful of questions.
    let loading = Loading::start(dir.path(), &format!("{fast},timing=on,read_us=500000"));
    let mut client = loading.connect();
    assert_eq!(ask(&mut client, "GET k1"), "-LOADING Pumice is opening its drives");
    assert_eq!(ask(&mut client, "SET k1 x"), "-LOADING Pumice is opening its drives");
    assert_eq!(ask(&mut client, "PING"), "-LOADING Pumice is opening its drives");
    assert!(ask(&mut client, "INFO persistence").contains("loading:1\r\n"));
    let (status, body) = common::http_get(&loading.http, "/health");
    assert!(status == 503 && body.contains("loading"), "{status} {body}");
    let info = run(&["info", "--data", dir.path().to_str().unwrap()]);
    assert!(stdout(&info).contains("loading"), "{}", stdout(&info));
    let health = run(&["info", "--data", dir.path().to_str().unwrap(), "--health"]);
    check_exit(&health, 1, "the server takes no commands");
    assert!(stdout(&health).contains("loading"), "{}", stdout(&health));
    // Who asks it to stop does not wait for minutes.
    client.get_mut().write_all(b"SHUTDOWN\r\n").unwrap();
    assert!(loading.end().success());
    // One whose recovery takes a while: in the end it serves what was there, to who came before that, too.
    let loading = Loading::start(dir.path(), &format!("{fast},timing=on,read_us=4000"));
    let mut client = loading.connect();
    eventually("the drives are open", || !ask(&mut client, "GET k1").starts_with("-LOADING"));
    eventually("health says so", || {
        let (status, body) = common::http_get(&loading.http, "/health");
        assert!(if status == 200 { body.contains("ready") } else { body.contains("loading") }, "{body}");
        status == 200
    });
    for n in 0..2000 {
        let expected = char::from(b'a' + (n % 26) as u8).to_string().repeat(4000);
        assert_eq!(ask(&mut client, &format!("GET k{n}")), expected);
    }
}

/// Writes keys to a drive that nobody serves, in a space that no database is in, and leaves them in the log as a crash would: more
/// than a server with as much memory as [`Loading`] has takes before it flushes, which one that had more may have done.
fn leave_in_the_log(drive: &Path) {
    const ROWS: u32 = 120_000;
    let spec = pumice_flash::DeviceSpec::Path(drive.to_path_buf());
    pumice_reactor::block_on(async move {
        let device = Device::open(&spec, Access::ReadWrite).await.unwrap();
        let options = StoreOptions { memory_bytes: 1 << 30, ..StoreOptions::default() };
        let store = Store::open(device, options, &|_, _| {}).await.unwrap().store;
        let mut batch = Batch::new();
        for n in 0..ROWS {
            let key = [&5000_u32.to_be_bytes()[..], &[0], format!("{n:055}").as_bytes()].concat();
            batch.put(SliceId((n % 4) as u16), &key, 1, 0, &[b'v'; 120]);
            if n % 1000 == 999 {
                store.write_ready(&batch).await.unwrap();
                batch.clear();
            }
        }
        store.abandon().await;
    });
}

#[test]
fn a_log_that_fills_the_memory_there_is_now_does_not_keep_the_server_loading() {
    let dir = tempfile::tempdir().unwrap();
    let drive = dir.path().join("drive");
    let device = drive.to_str().unwrap();
    check_exit(&run(&["format", device, "--size", "1GiB"]), 0, "");
    Server::start(dir.path(), &["--device", device]).stop();
    leave_in_the_log(&drive);
    let loading = Loading::start(dir.path(), device);
    let mut client = loading.connect();
    eventually("it serves", || !ask(&mut client, "DBSIZE").starts_with("-LOADING"));
    assert_eq!(ask(&mut client, "DBSIZE"), ":0");
    assert_eq!(ask(&mut client, "SET k v"), "+OK");
}

/// `script` gives the server a terminal: a bar is for who watches one.
#[test]
fn a_recovery_shows_on_a_terminal_how_far_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let fast = format!("emu:small,path={}", dir.path().join("media").display());
    let server = Server::start(dir.path(), &["--device", &fast]);
    let mut client = server.client();
    for n in 0..500 {
        let _: () = client.set(format!("k{n}"), vec![b'v'; 4000]).unwrap();
    }
    server.kill();
    let (socket, shown) = (dir.path().join("redis"), dir.path().join("shown"));
    let serve = format!(
        "timeout --foreground -s KILL 300 {} serve --memory 128MiB --cores 1 --device {fast},timing=on,read_us=20000 --data {} \
         --redis unix:{}",
        pumice().get_program().display(),
        dir.path().display(),
        socket.display()
    );
    let started = std::process::Command::new("script")
        .args(["-qefc", &serve])
        .arg(&shown)
        .env_remove("PUMICE_PASSWORD")
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::null())
        .spawn();
    let Ok(mut terminal) = started else {
        skipped("`script`, which makes a terminal, cannot be had here");
        return;
    };
    eventually("the bar", || {
        std::fs::read(&shown).is_ok_and(|said| said.windows(10).any(|w| w == b"recovering"))
    });
    let mut client = BufReader::new(UnixStream::connect(&socket).unwrap());
    client.get_mut().write_all(b"SHUTDOWN\r\n").unwrap();
    assert!(terminal.wait().unwrap().success());
}

/// A small file system for the time of a test.
struct SmallMount(tempfile::TempDir);

impl SmallMount {
    /// `None`, with a message, where this user may not mount.
    fn new(size: &str) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let mounted = mount(&["-t", "tmpfs", "-o", &format!("size={size}"), "pumice-test"], dir.path());
        if !mounted {
            skipped("mounting a small file system is not allowed here");
            return None;
        }
        Some(Self(dir))
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for SmallMount {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("-l").arg(self.path()).status();
    }
}

fn mount(args: &[&str], at: &Path) -> bool {
    let mut command = std::process::Command::new("mount");
    let status = command.args(args).arg(at).stderr(std::process::Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

/// A client that writes values one after the other; one that meets a full file system waits there.
struct Filler {
    acknowledged: Arc<AtomicUsize>,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Filler {
    fn value(n: usize) -> Vec<u8> {
        vec![b'a' + (n % 26) as u8; 64 << 10]
    }

    #[allow(clippy::disallowed_methods)] // clients are threads of their own
    fn start(server: &Server) -> Self {
        let (acknowledged, stop) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let (count, told, mut client) = (acknowledged.clone(), stop.clone(), server.client());
        client.set_read_timeout(None).unwrap();
        let thread = std::thread::spawn(move || {
            for n in 0.. {
                if told.load(Ordering::SeqCst)
                    || client.set::<_, _, String>(format!("k{n}"), Self::value(n)).is_err()
                {
                    return;
                }
                count.store(n + 1, Ordering::SeqCst);
            }
        });
        Self { acknowledged, stop, thread }
    }

    /// No write after the one that waits; how many were acknowledged in the end.
    fn end(self, free_space: impl FnOnce()) -> usize {
        self.stop.store(true, Ordering::SeqCst);
        free_space();
        self.thread.join().unwrap();
        self.acknowledged.load(Ordering::SeqCst)
    }
}

#[test]
fn a_full_file_system_refuses_writes_with_the_reason_and_they_go_on_once_it_has_space_again() {
    let Some(mount) = SmallMount::new("96m") else { return };
    let data = tempfile::tempdir().unwrap();
    let drive = mount.path().join("drive");
    let drive = drive.to_str().unwrap();
    check_exit(&run(&["format", drive, "--size", "1GiB", "--segment", "1MiB"]), 0, "");
    let ballast = mount.path().join("ballast");
    std::fs::write(&ballast, vec![1; 40 << 20]).unwrap();
    let mut server = Server::start(data.path(), &["--device", drive, "--http", "127.0.0.1:0"]);
    let filler = Filler::start(&server);
    // The write that meets the full file system waits for space; those after it are told.
    eventually("a full file system is noticed", || server.http("/health").1.contains("degraded"));
    let mut client = server.client();
    let refusal = client.set::<_, _, String>("late", "x").unwrap_err().to_string();
    assert!(refusal.contains("space"), "{refusal}");
    assert_eq!(client.get::<_, Vec<u8>>("k0").unwrap(), Filler::value(0));
    let shown = run(&["info", "--data", data.path().to_str().unwrap()]);
    assert!(stdout(&shown).contains("degraded"), "{}", stdout(&shown));
    let acknowledged = filler.end(|| std::fs::remove_file(&ballast).unwrap());
    assert!((100..1024).contains(&acknowledged), "{acknowledged} values of 64 KiB in 56 MiB");
    eventually("writes go on once there is space", || client.set::<_, _, String>("late", "x").is_ok());
    for n in acknowledged..acknowledged + 100 {
        let _: String = client.set(format!("k{n}"), Filler::value(n)).unwrap();
    }
    assert!(server.is_alive());
    let shown = run(&["info", "--data", data.path().to_str().unwrap()]);
    assert!(stdout(&shown).contains("ready"), "{}", stdout(&shown));
    server.kill();
    let server = Server::start(data.path(), &["--device", drive]);
    let mut client = server.client();
    for n in 0..acknowledged + 100 {
        assert_eq!(client.get::<_, Vec<u8>>(format!("k{n}")).unwrap(), Filler::value(n), "k{n}");
    }
    assert_eq!(client.get::<_, String>("late").unwrap(), "x");
    server.stop();
}

/// `ulimit -f`: the signal that comes with it would end the process, and the drive would take no writes any more.
#[test]
fn a_limit_on_the_size_of_files_is_a_full_file_system_that_can_be_enlarged() {
    let dir = tempfile::tempdir().unwrap();
    let drive = dir.path().join("drive");
    let drive = drive.to_str().unwrap();
    check_exit(&run(&["format", drive, "--size", "1GiB", "--segment", "1MiB"]), 0, "");
    let binary = pumice();
    let mut limited = std::process::Command::new("bash");
    limited.args(["-c", "ulimit -Sf 65536 && exec \"$0\" \"$@\""]).arg(binary.get_program());
    limited.env_remove("PUMICE_PASSWORD").env_remove("PUMICE_LOG").env_remove("NOTIFY_SOCKET");
    let args = ["--cores", "1", "--device", drive, "--http", "127.0.0.1:0"];
    let mut server = Server::try_start_of(limited, dir.path(), &args).unwrap();
    let filler = Filler::start(&server);
    eventually("the limit is noticed", || server.http("/health").1.contains("\"state\":\"no-space\""));
    let mut client = server.client();
    let refusal = client.set::<_, _, String>("late", "x").unwrap_err().to_string();
    assert!(refusal.contains("ulimit -f"), "{refusal}");
    assert_eq!(client.get::<_, Vec<u8>>("k0").unwrap(), Filler::value(0));
    assert!(server.is_alive(), "{}", server.said());
    let raise = || {
        let pid = rustix::process::Pid::from_raw(server.pid() as i32);
        let unlimited = rustix::process::Rlimit { current: None, maximum: None };
        rustix::process::prlimit(pid, rustix::process::Resource::Fsize, unlimited).unwrap();
    };
    let acknowledged = filler.end(raise);
    assert!((100..1024).contains(&acknowledged), "{acknowledged} values of 64 KiB in 64 MiB");
    eventually("writes go on", || client.set::<_, _, String>("late", "x").is_ok());
    server.stop();
    // A drive that is made keeps within the limit, or is not begun.
    let make = |kib: &str| {
        let line = format!("ulimit -f {kib} && exec \"$0\" \"$@\"");
        let mut command = std::process::Command::new("bash");
        let to = dir.path().join("made");
        command.args(["-c", &line]).arg(pumice().get_program()).arg("format").arg(&to);
        (command.output().unwrap(), to)
    };
    let (output, to) = make("65536");
    check_exit(&output, 2, "no file may be larger than 64MiB (ulimit -f), too little for a drive");
    assert!(!to.exists());
    let (output, to) = make("524288");
    check_exit(&output, 0, "");
    assert_eq!(to.metadata().unwrap().len(), 512 << 20);
}

#[test]
fn expired_keys_are_removed_from_all_drives_but_the_one_that_refuses() {
    const KEYS: usize = 100;
    let Some(mount) = SmallMount::new("96m") else { return };
    let data = tempfile::tempdir().unwrap();
    // The first one is the one that refuses.
    let drives = [mount.path().join("drive0"), data.path().join("drive1")];
    let drives = drives.each_ref().map(|drive| drive.to_str().unwrap());
    for drive in drives {
        check_exit(&run(&["format", drive, "--size", "1GiB", "--segment", "1MiB"]), 0, "");
    }
    let ballast = mount.path().join("ballast");
    std::fs::write(&ballast, vec![1; 40 << 20]).unwrap();
    let more = [
        "--device",
        drives[0],
        "--device",
        drives[1],
        "--http",
        "127.0.0.1:0",
        "--enable-debug-command",
        "local",
    ];
    let server = Server::start(data.path(), &more);
    let mut client = server.client();
    let expire = |client: &mut redis::Connection, how: &str| {
        redis::cmd("DEBUG").arg("SET-ACTIVE-EXPIRE").arg(how).query::<()>(client).unwrap();
    };
    let expired = |client: &mut redis::Connection| -> usize {
        let info: String = redis::cmd("INFO").arg("stats").query(client).unwrap();
        info.lines().find_map(|line| line.strip_prefix("expired_keys:")).unwrap().parse().unwrap()
    };
    expire(&mut client, "0");
    for n in 0..KEYS {
        redis::cmd("SET")
            .arg(format!("short:{n}"))
            .arg("v")
            .arg("PX")
            .arg(1)
            .query::<()>(&mut client)
            .unwrap();
    }
    let filler = Filler::start(&server);
    eventually("a full file system is noticed", || server.http("/health").1.contains("degraded"));
    assert_eq!(expired(&mut client), 0);
    expire(&mut client, "1");
    eventually("keys of the other drive are removed", || expired(&mut client) > 0);
    filler.end(|| std::fs::remove_file(&ballast).unwrap());
    eventually("and of both once both take writes", || expired(&mut client) == KEYS);
    server.stop();
}

/// What [`write_until_told`] writes: short, for a pair of commands that arrive as one piece.
fn told_value(n: usize, pair: bool) -> Vec<u8> {
    let mut value = Filler::value(n);
    value.truncate(if pair { 1024 } else { value.len() });
    value
}

/// One client that has one command under way at a time, or a pair of them, until an answer is an error. What it says.
fn write_until_told(server: &Server, pair: bool) -> (usize, Vec<String>) {
    let mut stream = BufReader::new(TcpStream::connect(("127.0.0.1", server.port)).unwrap());
    stream.get_mut().set_read_timeout(Some(PATIENCE)).unwrap();
    for n in 0.. {
        let mut asked = Vec::new();
        for at in 0..1 + usize::from(pair) {
            let (key, value) = (format!("k{}", n * 2 + at), told_value(n * 2 + at, pair));
            let (long, len) = (key.len(), value.len());
            asked.extend(format!("*3\r\n$3\r\nSET\r\n${long}\r\n{key}\r\n${len}\r\n").bytes());
            asked.extend(value);
            asked.extend(b"\r\n");
        }
        stream.get_mut().write_all(&asked).unwrap();
        let mut lines = Vec::new();
        for _ in 0..1 + usize::from(pair) {
            let mut line = String::new();
            if stream.read_line(&mut line).unwrap() > 0 {
                lines.push(line);
            }
        }
        if lines.iter().any(|line| line != "+OK\r\n") {
            if !pair {
                // Whoever had one command under way goes on.
                stream.get_mut().write_all(b"PING\r\n").unwrap();
                let mut line = String::new();
                stream.read_line(&mut line).unwrap();
                lines.push(line);
            }
            return (n * 2, lines);
        }
    }
    unreachable!("the drive has an end");
}

/// What is told of keys that no write waits for, there or not: `k…` are those of [`write_until_told`].
fn reads_go_on(server: &Server) {
    let mut client = server.client();
    let absent: (Option<String>, Vec<Option<String>>, Option<i64>, i64) = redis::pipe()
        .get("gone")
        .cmd("MGET")
        .arg(&["never", "gone"])
        .cmd("ZSCORE")
        .arg(&["gone", "m"])
        .exists("never")
        .query(&mut client)
        .unwrap();
    assert_eq!(absent, (None, vec![None, None], None, 0));
    let elements: (Vec<String>, Option<String>, Vec<String>, i64) = redis::pipe()
        .cmd("HVALS")
        .arg("a")
        .hget("a", "f3")
        .lrange("z", 0, -1)
        .cmd("HSTRLEN")
        .arg(&["a", "f4"])
        .query(&mut client)
        .unwrap();
    assert_eq!(elements, (vec!["1".into()], None, vec!["e".into()], 0));
    let keys: (Vec<String>, Vec<String>) = redis::pipe().keys("z*").keys("l*").query(&mut client).unwrap();
    assert_eq!(keys, (vec!["z".into()], vec![]));
    let page = |client: &mut redis::Connection, pattern: &str, count: u32| {
        let mut scan = redis::cmd("SCAN");
        scan.arg(&["0", "MATCH", pattern, "COUNT"]).arg(count);
        scan.query::<(u64, Vec<String>)>(client)
    };
    // A page tells of the key that the next one begins with.
    let _: () = client.set_read_timeout(Some(PATIENCE)).unwrap();
    assert_eq!(page(&mut client, "z*", 10).unwrap(), (0, vec!["z".into()]));
    assert_eq!(page(&mut client, "*", 1).unwrap().1, ["a"]);
}

/// A database that was emptied is what it was, should the drives lose power before that is durable. Until then nobody is told what
/// is in it, nor that something was put there; not on the other drives either.
#[test]
fn nothing_is_told_of_a_database_while_it_may_not_be_emptied() {
    let (Some(small), data) = (SmallMount::new("32m"), tempfile::tempdir().unwrap()) else { return };
    let (first, second) = (small.path().join("drive"), data.path().join("drive"));
    let drives = [first.to_str().unwrap(), second.to_str().unwrap()];
    for drive in drives {
        check_exit(&run(&["format", drive, "--size", "64MiB", "--segment", "1MiB"]), 0, "");
    }
    let args = ["--device", drives[0], "--device", drives[1], "--http", "127.0.0.1:0"];
    let server = Server::start(data.path(), &args);
    let mut client = server.client();
    for n in 0..20 {
        let _: () = client.set(format!("k{n}"), "old").unwrap();
    }
    let mut ballast = std::fs::File::create(small.path().join("ballast")).unwrap();
    while ballast.write_all(&[1; 4096]).is_ok() {}
    std::thread::scope(|scope| {
        let emptied = scope.spawn(|| redis::cmd("FLUSHALL").query::<String>(&mut server.client()));
        eventually("a full file system is noticed", || server.http("/health").1.contains("no-space"));
        // Half of these are on the second drive, which has room.
        let told: Vec<_> = (0..8)
            .map(|n| {
                let server = &server;
                scope.spawn(move || {
                    let key = format!("k{n}");
                    let got = server.client().get::<_, Option<String>>(&key).map(|_| ());
                    (got, server.client().set::<_, _, String>(&key, "new").map(|_| ()))
                })
            })
            .collect();
        for (n, told) in told.into_iter().enumerate() {
            let (got, set) = told.join().unwrap();
            let error = got.expect_err(&format!("k{n} may be there")).to_string();
            assert!(error.contains("UNCERTAIN"), "{error}");
            let error = set.expect_err(&format!("k{n} may be lost with its database")).to_string();
            assert!(error.contains("UNCERTAIN") || error.contains("MISCONF"), "{error}");
        }
        assert!(emptied.join().unwrap().unwrap_err().to_string().contains("UNCERTAIN"));
    });
    server.kill();
    drop(ballast);
    std::fs::remove_file(small.path().join("ballast")).unwrap();
    let server = Server::start(data.path(), &args);
    let mut client = server.client();
    for n in 0..20 {
        assert_eq!(client.get::<_, String>(format!("k{n}")).unwrap(), "old");
    }
    server.stop();
}

#[test]
fn what_waits_for_a_full_file_system_is_answered_within_seconds() {
    for pair in [false, true] {
        let Some(mount) = SmallMount::new("96m") else { return };
        let data = tempfile::tempdir().unwrap();
        let drive = mount.path().join("drive");
        let drive = drive.to_str().unwrap();
        check_exit(&run(&["format", drive, "--size", "1GiB", "--segment", "1MiB"]), 0, "");
        let ballast = mount.path().join("ballast");
        std::fs::write(&ballast, vec![1; 40 << 20]).unwrap();
        let server = Server::start(data.path(), &["--device", drive, "--http", "127.0.0.1:0"]);
        let _: () = server.client().hset_multiple("a", &[("f1", "1")]).unwrap();
        let _: () = server.client().rpush("z", &["e"]).unwrap();
        let _: i64 = server.client().del("gone").unwrap();
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| write_until_told(&server, pair));
            eventually("a full file system is noticed", || server.http("/health").1.contains("degraded"));
            assert!(server.http("/health").1.contains("\"state\":\"no-space\""));
            reads_go_on(&server);
            // Counts do not wait, nor does what tells how the server does.
            let mut client = server.client();
            let size: usize = redis::cmd("DBSIZE").query(&mut client).unwrap();
            let info: String = redis::cmd("INFO").query(&mut client).unwrap();
            assert!(info.contains(&format!("db0:keys={size}")), "{info}");
            let (at, said) = writer.join().unwrap();
            assert!(said[0].starts_with("-UNCERTAIN ") && said[0].contains("space"), "{said:?}");
            // Of several commands under way nobody could tell which have happened: their client is closed.
            assert_eq!(said.get(1).map(String::as_str), (!pair).then_some("+PONG\r\n"));
            // So does who reads what waits; others read on.
            let error = client.get::<_, Vec<u8>>(format!("k{}", at + usize::from(pair)));
            let error = error.unwrap_err().to_string();
            assert!(error.contains("UNCERTAIN"), "{error}");
            let error = redis::cmd("SAVE").query::<String>(&mut client).unwrap_err().to_string();
            assert!(error.contains("space"), "{error}");
            assert_eq!(client.get::<_, Vec<u8>>("k0").unwrap(), told_value(0, pair));
            std::fs::remove_file(&ballast).unwrap();
            eventually("writes go on", || client.set::<_, _, String>("late", "x").is_ok());
            for n in 0..at {
                if !pair && n % 2 == 1 {
                    continue;
                }
                assert_eq!(client.get::<_, Vec<u8>>(format!("k{n}")).unwrap(), told_value(n, pair), "k{n}");
            }
            // What was not acknowledged is there whole, or not at all.
            let waited: Option<Vec<u8>> = client.get(format!("k{at}")).unwrap();
            assert!(waited.is_none_or(|value| value == told_value(at, pair)));
        });
        server.stop();
    }
}

#[test]
fn a_drive_that_cannot_be_written_is_not_served_and_can_still_be_read() {
    let Some(small) = SmallMount::new("32m") else { return };
    let data = tempfile::tempdir().unwrap();
    let drive = small.path().join("drive");
    let drive = drive.to_str().unwrap();
    check_exit(&run(&["format", drive, "--size", "256MiB", "--segment", "1MiB"]), 0, "");
    let server = Server::start(data.path(), &["--device", drive]);
    let _: () = server.client().set("k", "v").unwrap();
    server.stop();
    assert!(mount(&["-o", "remount,ro"], small.path()));
    let refused = Server::try_start(data.path(), &["--device", drive]).err().expect("it is not served");
    assert!(refused.contains("exit status: 2") && refused.contains(drive), "{refused}");
    assert!(refused.contains("read-only") && !refused.contains("panicked"), "{refused}");
    for command in ["check", "info"] {
        check_exit(&run(&[command, drive]), 0, "");
    }
    check_exit(&run(&["format", drive, "--force"]), 2, "read-only");
}

/// Bytes of writes that were acknowledged and have not reached the drive.
fn undurable_bytes(data: &Path) -> u64 {
    let shown = run(&["info", "--data", data.to_str().unwrap(), "--json"]);
    let info: serde_json::Value = serde_json::from_str(&stdout(&shown)).expect("JSON");
    info["drives"][0]["undurable_bytes"].as_u64().unwrap_or_else(|| panic!("no undurable_bytes in {info}"))
}

/// How many of `k0`, `k1`, … are there; there must be no gap.
fn survivors(server: &Server, written: usize) -> usize {
    let mut client = server.client();
    let keys: Vec<String> = (0..written).map(|n| format!("k{n}")).collect();
    let found: Vec<Option<usize>> = client.mget(keys).unwrap();
    let survived = found.iter().take_while(|value| value.is_some()).count();
    assert!(found[survived..].iter().all(Option::is_none), "a later write survived an earlier one");
    assert!(found[..survived].iter().enumerate().all(|(n, value)| *value == Some(n)));
    survived
}

#[test]
fn relaxed_durability_loses_the_newest_writes_at_most_and_nothing_on_a_clean_stop() {
    const FIRST: usize = 4000;
    const WRITTEN: usize = 8000;
    for mode in ["everysec", "none"] {
        let dir = tempfile::tempdir().unwrap();
        let server = Server::start(dir.path(), &["--durability", mode]);
        let mut client = server.client();
        let mut write = |range: std::ops::Range<usize>| {
            range.for_each(|n| client.set::<_, _, ()>(format!("k{n}"), n).unwrap());
        };
        write(0..FIRST);
        // The second that is promised is measured in virtual time, by the tests of the segment layer and the simulator.
        if mode == "everysec" {
            eventually("what was acknowledged reaches the drive", || undurable_bytes(dir.path()) == 0);
        }
        write(FIRST..WRITTEN);
        server.kill();
        let server = Server::start(dir.path(), &["--durability", mode]);
        let survived = survivors(&server, WRITTEN);
        println!("{mode}: {WRITTEN} acknowledged, {} lost", WRITTEN - survived);
        assert!(mode == "none" || survived >= FIRST, "{survived} survived, {FIRST} were on the drive");
        // What SAVE answered is safe in every mode, and a clean stop loses nothing.
        let mut client = server.client();
        let _: () = client.set("saved", "1").unwrap();
        assert_eq!(redis::cmd("SAVE").query::<String>(&mut client).unwrap(), "OK");
        server.kill();
        let server = Server::start(dir.path(), &["--durability", mode]);
        assert_eq!(server.client().get::<_, String>("saved").unwrap(), "1");
        let _: () = server.client().set("stopped", "1").unwrap();
        server.stop();
        let server = Server::start(dir.path(), &["--durability", mode]);
        assert_eq!(server.client().get::<_, String>("stopped").unwrap(), "1");
        server.stop();
        check_exit(&run(&["check", dir.path().join("drive0").to_str().unwrap()]), 0, "");
    }
}

#[test]
fn several_drives_lose_nothing_that_was_acknowledged_when_the_process_is_killed() {
    let dir = tempfile::tempdir().unwrap();
    let drives: Vec<String> =
        (0..3).map(|n| dir.path().join(format!("d{n}")).display().to_string()).collect();
    let mut args = Vec::new();
    for drive in &drives {
        check_exit(&run(&["format", drive, "--size", "512MiB"]), 0, "");
        args.extend(["--device", drive]);
    }
    let mut expected = 0;
    for round in 0..3 {
        let server = Server::start(dir.path(), &args);
        let mut client = server.client();
        assert_eq!(redis::cmd("DBSIZE").query::<usize>(&mut client).unwrap(), expected, "round {round}");
        for n in 0..300 {
            let _: () = client.set(format!("{round}:{n}"), vec![b'x'; 1 + n * 37]).unwrap();
            let _: () = client.hset(format!("h{round}:{{{n}}}"), "f", n).unwrap();
        }
        let found: Vec<String> = client.keys(format!("{round}:*")).unwrap();
        assert_eq!(found.len(), 300);
        assert!(found.is_sorted(), "KEYS answers the drives' keys in one order");
        // Across drives in one transaction.
        let done: (i64, i64, i64) =
            redis::pipe().atomic().incr("a", 1).incr("b", 1).incr("c", 1).query(&mut client).unwrap();
        assert_eq!(done, (round + 1, round + 1, round + 1));
        expected += 600 + if round == 0 { 3 } else { 0 };
        server.kill();
    }
    let server = Server::start(dir.path(), &args);
    let mut client = server.client();
    for round in 0..3 {
        for n in 0..300 {
            assert_eq!(client.get::<_, Vec<u8>>(format!("{round}:{n}")).unwrap().len(), 1 + n * 37);
            assert_eq!(client.hget::<_, _, usize>(format!("h{round}:{{{n}}}"), "f").unwrap(), n);
        }
    }
    redis::cmd("FLUSHDB").query::<String>(&mut client).unwrap();
    server.kill();
    let server = Server::start(dir.path(), &args);
    assert_eq!(redis::cmd("DBSIZE").query::<usize>(&mut server.client()).unwrap(), 0);
    assert!(server.client().keys::<_, Vec<String>>("*").unwrap().is_empty());
    server.stop();
    // One drive alone is no longer a whole store: it says which company is missing.
    let refused = Server::try_start(dir.path(), &args[..2]).err().expect("one of three is not served");
    assert!(refused.contains("exit status: 2") && refused.contains('3'), "{refused}");
    for drive in &drives {
        check_exit(&run(&["check", drive]), 0, "");
    }
}
