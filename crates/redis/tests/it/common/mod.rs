//! What the tests of this crate share: a server in this process, a blocking client, and `check`.

pub mod client;
pub mod oracle;

use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use pumice_flash::{Access, Device, DeviceSpec};
use pumice_kv::{Batch, Direction, Entry, SliceId, SliceSet, Store, StoreFormat, StoreOptions, Want};
use pumice_node::{Node, NodeOptions};
use pumice_reactor::{Config, CoreId, Running};
use pumice_redis::face;
use pumice_redis::options::{DebugAccess, Options};
use pumice_redis::server::Server;

pub use client::{Client, Reply};

/// The longest that a test waits for what must happen: a machine that does much else is waited for, a hang is not.
pub const PATIENCE: Duration = Duration::from_secs(180);

/// A server on two cores (the second one runs what is in the background), on drives in a directory of its own.
pub struct TestServer {
    dir: tempfile::TempDir,
    socket: PathBuf,
    server: Arc<Server>,
    /// Where it listens besides the Unix socket, with the port filled in.
    tcp: Option<String>,
    may_load: Arc<pumice_reactor::sync::Event>,
    running: Option<Running>,
    _thread: Option<JoinHandle<()>>,
}

/// How a test wants its server.
#[derive(Clone)]
pub struct Setup {
    pub options: Options,
    pub drives: usize,
    /// What the drives are; files where this ends.
    pub specs: Vec<String>,
    pub drive_bytes: u64,
    pub memory_bytes: u64,
    /// Buffers into which a core receives what comes in long pieces, for all clients.
    pub receive_buffers: u16,
    /// As `--durability` takes it.
    pub durability: &'static str,
    /// Addresses besides the Unix socket.
    pub tcp: Option<String>,
    /// Clients hear LOADING until [`TestServer::load`].
    pub loads_when_told: bool,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            // Sets of tests are small: what is counted only for large ones is for these, too.
            options: Options { port: 0, debug: DebugAccess::Yes, rank_walk_max: 16, ..Options::default() },
            drives: 1,
            specs: Vec::new(),
            drive_bytes: 1 << 30,
            memory_bytes: 64 << 20,
            receive_buffers: Config::default().receive_buffers,
            durability: "always",
            tcp: None,
            loads_when_told: false,
        }
    }
}

impl TestServer {
    pub fn start() -> Self {
        Self::with(Setup::default())
    }

    pub fn with(setup: Setup) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        Self::in_dir(setup, dir)
    }

    /// On drives that are in `dir`, or new ones.
    pub fn in_dir(setup: Setup, dir: tempfile::TempDir) -> Self {
        let socket = dir.path().join("s");
        let path = dir.path().to_path_buf();
        let (ready, is_ready) = mpsc::channel::<Started>();
        let config = Config { cores: 2, receive_buffers: setup.receive_buffers, ..Config::default() };
        let gone = Arc::new(pumice_reactor::sync::Event::new());
        let may_load = Arc::new(pumice_reactor::sync::Event::new());
        if !setup.loads_when_told {
            may_load.set();
        }
        let loads = may_load.clone();
        let running = pumice_reactor::start(
            &config,
            Arc::new(move |core: CoreId| {
                let (setup, path, ready, gone) = (setup.clone(), path.clone(), ready.clone(), gone.clone());
                let loads = loads.clone();
                Box::pin(async move {
                    if core != CoreId(0) {
                        return gone.wait().await;
                    }
                    let stopped = gone.clone();
                    serve(setup, &path, ready, &loads).await;
                    stopped.set();
                })
            }),
        )
        .expect("cores");
        let (server, tcp) = is_ready.recv_timeout(PATIENCE).expect("the server starts");
        Self { dir, socket, server, tcp, may_load, running: Some(running), _thread: None }
    }

    /// Stops it and starts it again on the same drives.
    pub fn restart(self, setup: Setup) -> Self {
        Self::in_dir(setup, self.into_dir())
    }

    /// Stops it and lets go of its drives, which stay in the directory.
    pub fn into_dir(mut self) -> tempfile::TempDir {
        self.stop();
        std::mem::replace(&mut self.dir, tempfile::tempdir().expect("a directory"))
    }

    pub fn stop(&mut self) {
        self.server.stopping.set();
        if let Some(running) = self.running.take() {
            running.join().expect("no core panics");
        }
    }

    /// Lets a server that [`Setup::loads_when_told`] open its drives.
    pub fn load(&self) {
        self.may_load.set();
    }

    pub fn server(&self) -> &Arc<Server> {
        &self.server
    }

    /// Its TCP address; one was asked for.
    pub fn tcp(&self) -> &str {
        self.tcp.as_deref().expect("a TCP address was asked for")
    }

    pub fn socket(&self) -> &Path {
        &self.socket
    }

    pub fn client(&self) -> Client {
        Client::connect(&self.socket)
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.stop();
        } else {
            self.server.stopping.set();
        }
    }
}

/// A server that has started, and its TCP address.
type Started = (Arc<Server>, Option<String>);

async fn serve(
    setup: Setup,
    dir: &Path,
    ready: mpsc::Sender<Started>,
    may_load: &pumice_reactor::sync::Event,
) {
    let durability = setup.durability.parse().expect("a durability");
    let options = Options { durability, ..setup.options.clone() };
    let server = Arc::new(Server::new(options).expect("a server"));
    let unix = format!("unix:{}", dir.join("s").display()).parse().expect("an address");
    let mut faces = vec![face::bind(&server, &unix).await.expect("bound")];
    let mut tcp = None;
    if let Some(wanted) = &setup.tcp {
        let face = face::bind(&server, &wanted.parse().expect("an address")).await.expect("bound");
        tcp = Some(face.local_addr().to_string());
        faces.push(face);
    }
    for face in faces {
        pumice_reactor::spawn(face.run());
    }
    pumice_reactor::spawn(face::keep_house(server.clone()));
    if setup.loads_when_told {
        ready.send((server.clone(), tcp.clone())).expect("somebody waits");
        may_load.wait().await;
    }
    let node = open(&setup, dir).await;
    let background = node.clone();
    pumice_reactor::spawn_on(CoreId(1), move || Box::pin(async move { background.start_background() }));
    server.attach(node.clone()).await.expect("attached");
    if !setup.loads_when_told {
        ready.send((server.clone(), tcp)).expect("somebody waits");
    }
    server.stopping.wait().await;
    face::stop(&server).await;
    node.close().await.expect("closed");
}

/// Opens the drives in `dir`, or makes them.
pub async fn open(setup: &Setup, dir: &Path) -> Node {
    let mut devices = Vec::new();
    for index in 0..setup.drives {
        let path = dir.join(format!("drive{index}"));
        let is_new = !path.exists();
        let spec = setup.specs.get(index).map(|spec| spec.parse().expect("a device"));
        let spec = spec.unwrap_or(DeviceSpec::Path(path));
        let device = Device::create(&spec, setup.drive_bytes).await.expect("a device");
        if is_new {
            let format = StoreFormat { drive_id: [index as u8 + 1; 16], ..StoreFormat::default() };
            Store::format(&device, &format).await.expect("formatted");
        }
        devices.push((format!("drive{index}"), device));
    }
    let durability = setup.durability.parse().expect("a durability");
    let set_id = [7; 16];
    let memory_bytes = setup.memory_bytes;
    let options = NodeOptions { memory_bytes, durability, set_id, ..NodeOptions::default() };
    Node::open(devices, &options, &|_, _| {}).await.expect("opened")
}

/// Writes to the only drive in `dir`, which nobody serves.
pub fn write_unserved(dir: &Path, batch: Batch) {
    let spec = DeviceSpec::Path(dir.join("drive0"));
    pumice_reactor::block_on(async move {
        let device = Device::open(&spec, Access::ReadWrite).await.expect("device");
        let store = Store::open(device, StoreOptions::default(), &|_, _| {}).await.expect("open").store;
        let seq = store.write(&batch).expect("written");
        store.wait_durable(seq).await.expect("durable");
        store.close().await.expect("closed");
    });
}

/// All that the only drive in `dir` holds, which nobody serves: slices, keys and entries.
pub fn read_unserved(dir: &Path) -> Vec<(SliceId, Bytes, Entry)> {
    let spec = DeviceSpec::Path(dir.join("drive0"));
    pumice_reactor::block_on(async move {
        let device = Device::open(&spec, Access::ReadWrite).await.expect("device");
        let store = Store::open(device, StoreOptions::default(), &|_, _| {}).await.expect("open").store;
        let snapshot = store.snapshot();
        let mut rows = Vec::new();
        for slice in (0..store.slice_count()).map(SliceId) {
            let (all, only) = (Bound::Unbounded, SliceSet::One(slice));
            let mut scan = store.scan(&snapshot, only, all.clone(), all, Direction::Forward, Want::Values);
            while let Some((key, entry)) = scan.next().await.expect("scan") {
                rows.push((slice, key, entry));
            }
        }
        drop(snapshot);
        store.close().await.expect("closed");
        rows
    })
}

/// An MSET of keys before `k`, of several blocks in every slice: opening has no block of `k` in memory when it has gone over where
/// scans begin.
pub fn keys_before_k() -> String {
    (0..6000).fold("MSET".to_string(), |line, n| format!("{line} a:{n:06} v"))
}

/// Waits until `test` holds: for what the server does in its own time.
#[track_caller]
#[allow(clippy::disallowed_methods)] // tests of a real server live in real time
pub fn eventually(what: &str, mut test: impl FnMut() -> bool) {
    for _ in 0..PATIENCE.as_millis() / 10 {
        if test() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("not within {PATIENCE:?}: {what}");
}

/// A number from INFO.
pub fn info_number(client: &mut Client, section: &str, name: &str) -> u64 {
    let text = match client.call(&["INFO", section]) {
        Reply::Bulk(text) | Reply::Verbatim(text) => String::from_utf8(text).expect("text"),
        other => panic!("INFO answered {other}"),
    };
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name}:")));
    line.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("no number {name} in {text}"))
}

/// Runs a transcript against a new server: `> COMMAND …` and the reply on the next line.
pub fn check(transcript: &str) {
    let server = TestServer::start();
    check_on(&mut server.client(), transcript);
}

/// [`check`] over a connection. Words may be quoted (`"a b\x00"`); `{9*100}` is a word of a hundred nines.
pub fn check_on(client: &mut Client, transcript: &str) {
    let mut lines = transcript.lines().map(str::trim).filter(|line| !line.is_empty()).peekable();
    let mut so_far = String::new();
    while let Some(line) = lines.next() {
        let Some(command) = line.strip_prefix("> ") else { panic!("neither command nor reply: {line}") };
        let words = split(command);
        let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
        let reply = client.call(&words).to_string();
        so_far.push_str(&format!("> {command}\n{reply}\n"));
        let Some(expected) = lines.next_if(|line| !line.starts_with("> ")) else { continue };
        assert_eq!(reply.trim_end(), expected, "after\n{so_far}");
    }
}

/// The words of a command line.
pub fn split(line: &str) -> Vec<Vec<u8>> {
    let mut words = Vec::new();
    let mut rest = line.trim_start();
    while !rest.is_empty() {
        let mut word = Vec::new();
        if let Some(quoted) = rest.strip_prefix('"') {
            let mut chars = quoted.char_indices();
            let mut end = quoted.len();
            while let Some((at, c)) = chars.next() {
                match c {
                    '"' => {
                        end = at + 1;
                        break;
                    }
                    '\\' => match chars.next().map(|(_, c)| c) {
                        Some('x') => {
                            let hex: String = chars.by_ref().take(2).map(|(_, c)| c).collect();
                            word.push(u8::from_str_radix(&hex, 16).expect("two hex digits"));
                        }
                        Some('n') => word.push(b'\n'),
                        Some('r') => word.push(b'\r'),
                        Some(c) => word.extend(c.to_string().bytes()),
                        None => panic!("a lone backslash"),
                    },
                    c => word.extend(c.to_string().bytes()),
                }
            }
            rest = quoted[end..].trim_start();
        } else {
            let end = rest.find(' ').unwrap_or(rest.len());
            let text = &rest[..end];
            match text.strip_prefix('{').and_then(|t| t.strip_suffix('}')).and_then(|t| t.split_once('*')) {
                Some((unit, times)) if times.parse::<usize>().is_ok() => {
                    word.extend(unit.repeat(times.parse().expect("a number")).bytes());
                }
                _ => word.extend(text.bytes()),
            }
            rest = rest[end..].trim_start();
        }
        words.push(word);
    }
    words
}
