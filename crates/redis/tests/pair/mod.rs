//! Pumice and a real redis-server side by side: the same commands to both, replies compared.

#![allow(dead_code)] // each test file uses a part

use std::cell::RefCell;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pumice_flash::{Device, DeviceSpec};
use pumice_kv::{Durability, Store, StoreFormat};
use pumice_node::{Node, NodeOptions};
use pumice_reactor::{Addr, Stream, block_on, sleep, spawn, timeout};
use pumice_redis::face::{bind, keep_house};
use pumice_redis::options::Options;
use pumice_redis::server::Server;

/// A reply.
#[derive(Clone, PartialEq, PartialOrd)]
pub enum Value {
    Null,
    Int(i64),
    Text(String),
    Error(String),
    Bulk(Vec<u8>),
    Double(String),
    Bool(bool),
    Array(Vec<Value>),
    Set(Vec<Value>),
    Map(Vec<Value>),
    NullArray,
}

impl std::fmt::Debug for Value {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Null => write!(f, "null"),
            Self::NullArray => write!(f, "null-array"),
            Self::Int(value) => write!(f, "{value}"),
            Self::Text(text) => write!(f, "+{text}"),
            Self::Error(text) => write!(f, "-{text}"),
            Self::Bulk(bytes) if bytes.len() > 80 => {
                write!(f, "\"{}…\" ({} bytes)", bytes[..60].escape_ascii(), bytes.len())
            }
            Self::Bulk(bytes) => write!(f, "\"{}\"", bytes.escape_ascii()),
            Self::Double(text) => write!(f, ",{text}"),
            Self::Bool(value) => write!(f, "#{value}"),
            Self::Array(items) => f.debug_list().entries(items).finish(),
            Self::Set(items) => {
                write!(f, "~")?;
                f.debug_list().entries(items).finish()
            }
            Self::Map(items) => {
                write!(f, "%")?;
                f.debug_list().entries(items).finish()
            }
        }
    }
}

impl Value {
    /// The items of an array, set or map.
    pub fn items(&self) -> &[Value] {
        match self {
            Self::Array(items) | Self::Set(items) | Self::Map(items) => items,
            _ => &[],
        }
    }

    /// Items sorted, taken `width` at a time.
    pub fn sorted(&self, width: usize) -> Self {
        let sort = |items: &[Value]| {
            let mut groups: Vec<&[Value]> = items.chunks(width).collect();
            groups.sort_by(|a, b| a.partial_cmp(b).expect("values compare"));
            groups.concat()
        };
        match self {
            Self::Array(items) => Self::Array(sort(items)),
            Self::Set(items) => Self::Set(sort(items)),
            Self::Map(items) => Self::Map(sort(items)),
            other => other.clone(),
        }
    }
}

/// A client's connection.
pub struct Conn {
    name: &'static str,
    stream: Stream,
    buf: Vec<u8>,
    at: usize,
}

const REPLY_MAX: Duration = Duration::from_secs(60);

impl Conn {
    pub async fn connect(name: &'static str, addr: &Addr) -> Self {
        for _ in 0..300 {
            if let Ok(stream) = Stream::connect(addr).await {
                return Self { name, stream, buf: Vec::new(), at: 0 };
            }
            sleep(Duration::from_millis(20)).await;
        }
        panic!("{name} does not listen at {addr}");
    }

    pub async fn send(&self, commands: &[Vec<Vec<u8>>]) {
        let mut out = Vec::new();
        for command in commands {
            out.extend_from_slice(format!("*{}\r\n", command.len()).as_bytes());
            for argument in command {
                out.extend_from_slice(format!("${}\r\n", argument.len()).as_bytes());
                out.extend_from_slice(argument);
                out.extend_from_slice(b"\r\n");
            }
        }
        self.stream.send(vec![Bytes::from(out)]).await.expect("sends");
    }

    async fn more(&mut self) {
        self.buf.drain(..self.at);
        self.at = 0;
        let received = timeout(REPLY_MAX, self.stream.recv()).await;
        let received =
            received.unwrap_or_else(|_| panic!("{} does not answer", self.name)).expect("receives");
        assert!(!received.is_empty(), "{} closed the connection", self.name);
        self.buf.extend_from_slice(&received);
    }

    async fn line(&mut self) -> Vec<u8> {
        loop {
            let rest = &self.buf[self.at..];
            if let Some(len) = rest.windows(2).position(|w| w == b"\r\n") {
                let line = rest[..len].to_vec();
                self.at += len + 2;
                return line;
            }
            self.more().await;
        }
    }

    async fn exact(&mut self, len: usize) -> Vec<u8> {
        while self.buf.len() - self.at < len + 2 {
            self.more().await;
        }
        let bytes = self.buf[self.at..self.at + len].to_vec();
        self.at += len + 2;
        bytes
    }

    pub async fn read(&mut self) -> Value {
        let line = self.line().await;
        let text = String::from_utf8_lossy(&line[1..]).into_owned();
        let number = || text.parse::<i64>().unwrap_or_else(|_| panic!("{text:?} is no number"));
        match line[0] {
            b'+' => Value::Text(text),
            b'-' => Value::Error(text),
            b':' => Value::Int(number()),
            b',' => Value::Double(text),
            b'#' => Value::Bool(text == "t"),
            b'_' => Value::Null,
            b'$' | b'=' if number() < 0 => Value::Null,
            b'$' | b'=' => Value::Bulk(self.exact(number() as usize).await),
            b'*' if number() < 0 => Value::NullArray,
            kind @ (b'*' | b'~' | b'%') => {
                let count = if kind == b'%' { 2 * number() } else { number() };
                let mut items = Vec::new();
                for _ in 0..count {
                    items.push(Box::pin(self.read()).await);
                }
                match kind {
                    b'*' => Value::Array(items),
                    b'~' => Value::Set(items),
                    _ => Value::Map(items),
                }
            }
            other => panic!("{}: a reply begins with {:?}", self.name, other as char),
        }
    }

    /// Sends one command, words separated by blanks, and gives its reply.
    pub async fn ask(&mut self, command: &str) -> Value {
        self.call(&words(command)).await
    }

    pub async fn call(&mut self, command: &[Vec<u8>]) -> Value {
        self.send(&[command.to_vec()]).await;
        self.read().await
    }

    pub async fn all(&mut self, commands: &[Vec<Vec<u8>>]) -> Vec<Value> {
        self.send(commands).await;
        let mut replies = Vec::new();
        for _ in commands {
            replies.push(self.read().await);
        }
        replies
    }

    /// All elements that a SCAN command goes over, in replies of any size. `command` has a `0` for the cursor.
    pub async fn scan(&mut self, command: &[Vec<u8>], cursor_at: usize) -> Value {
        let mut command = command.to_vec();
        let mut found = Vec::new();
        for _ in 0..100_000 {
            let reply = self.call(&command).await;
            let [Value::Bulk(cursor), page] = reply.items() else { return reply };
            found.extend_from_slice(page.items());
            if cursor == b"0" {
                return Value::Array(found);
            }
            command[cursor_at] = cursor.clone();
        }
        panic!("{}: {command:?} does not end", self.name);
    }
}

/// Splits at blanks; `\xNN` and `\_` (a blank) in words are understood, `""` is the empty word.
pub fn words(command: &str) -> Vec<Vec<u8>> {
    let unescape = |word: &str| {
        if word == "\"\"" {
            return Vec::new();
        }
        let mut bytes = Vec::new();
        let mut rest = word.as_bytes();
        while let [first, tail @ ..] = rest {
            match rest {
                [b'\\', b'_', tail @ ..] => {
                    bytes.push(b' ');
                    rest = tail;
                }
                [b'\\', b'x', high, low, tail @ ..] => {
                    let digits = [*high, *low];
                    let digits = std::str::from_utf8(&digits).expect("hexadecimal");
                    bytes.push(u8::from_str_radix(digits, 16).expect("hexadecimal"));
                    rest = tail;
                }
                _ => {
                    bytes.push(*first);
                    rest = tail;
                }
            }
        }
        bytes
    };
    command.split_whitespace().map(unescape).collect()
}

pub fn show(command: &[Vec<u8>]) -> String {
    let words = command.iter().map(|word| match word.len() {
        0 => "\"\"".to_string(),
        1..100 => word.escape_ascii().to_string(),
        len => format!("{}…({len} bytes)", word[..40].escape_ascii()),
    });
    words.collect::<Vec<_>>().join(" ")
}

struct Reference(Child);

impl Drop for Reference {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a redis-server in `directory`; `None` when there is none on this machine.
fn reference(directory: &Path) -> Option<(Reference, Addr)> {
    let socket = directory.join("redis.sock");
    let child = Command::new("redis-server")
        .args(["--port", "0", "--save", "", "--unixsocket"])
        .arg(&socket)
        .current_dir(directory)
        .stdout(Stdio::null())
        .spawn()
        .ok()?;
    Some((Reference(child), Addr::Unix(socket)))
}

/// A Pumice server over a fresh drive in `directory`, serving on the current core.
pub async fn pumice(directory: &Path) -> (Arc<Server>, Addr) {
    let spec = DeviceSpec::Path(directory.join("drive0"));
    let device = Device::create(&spec, 2 << 30).await.expect("makes a drive");
    let format = StoreFormat { drive_id: [7; 16], ..StoreFormat::default() };
    Store::format(&device, &format).await.expect("formats");
    let options = NodeOptions { durability: Durability::None, set_id: [1; 16], ..NodeOptions::default() };
    let node = Node::open(vec![("drive0".into(), device)], &options, &|_, _| {}).await.expect("opens");
    node.start_background();
    let server = Arc::new(Server::new(Options::default()).expect("starts"));
    server.attach(node).await.expect("attaches");
    let addr = Addr::Unix(directory.join("pumice.sock"));
    let face = bind(&server, &addr).await.expect("listens");
    spawn(face.run());
    spawn(keep_house(server.clone()));
    (server, addr)
}

/// Runs `test` on one core with a Pumice server.
pub fn with_pumice(test: impl AsyncFnOnce(&mut Conn)) {
    let directory = tempfile::tempdir().expect("a directory");
    block_on(async {
        let (server, addr) = pumice(directory.path()).await;
        let mut ours = Conn::connect("pumice", &addr).await;
        test(&mut ours).await;
        server.stopping.set();
    });
}

/// Both servers.
pub struct Pair {
    pub ours: Conn,
    pub theirs: Conn,
    /// What was sent so far: told when replies differ.
    history: RefCell<Vec<String>>,
    /// How to run this again.
    pub replay: String,
}

/// Runs `test` with both servers; without a redis-server, says so and passes.
pub fn with_pair(replay: &str, test: impl AsyncFnOnce(&mut Pair)) {
    let directory = tempfile::tempdir().expect("a directory");
    let Some((reference, their_addr)) = reference(directory.path()) else {
        eprintln!("skipped: no redis-server on this machine");
        return;
    };
    block_on(async {
        let (server, our_addr) = pumice(directory.path()).await;
        let ours = Conn::connect("pumice", &our_addr).await;
        let theirs = Conn::connect("redis-server", &their_addr).await;
        let mut pair = Pair { ours, theirs, history: RefCell::default(), replay: replay.to_string() };
        test(&mut pair).await;
        server.stopping.set();
    });
    drop(reference);
}

/// How two replies to one command compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compare {
    Exactly,
    /// Items in any order, in groups of that many.
    Unordered(usize),
    /// Random replies: the same shape and number of items.
    Shape,
    /// Not at all.
    Ignore,
}

fn normal(value: &Value, compare: Compare) -> Value {
    match compare {
        Compare::Exactly => value.clone(),
        Compare::Unordered(width) => value.sorted(if matches!(value, Value::Map(_)) { 2 } else { width }),
        Compare::Shape => shape(value),
        Compare::Ignore => Value::Null,
    }
}

fn shape(value: &Value) -> Value {
    match value {
        Value::Bulk(_) => Value::Bulk(Vec::new()),
        Value::Double(_) => Value::Double(String::new()),
        Value::Array(items) => Value::Array(items.iter().map(shape).collect()),
        Value::Set(items) => Value::Set(items.iter().map(shape).collect()),
        Value::Map(items) => Value::Map(items.iter().map(shape).collect()),
        other => other.clone(),
    }
}

impl Pair {
    /// Sends the commands to both in one pipeline and compares every reply.
    pub async fn check_all(&mut self, commands: &[(Vec<Vec<u8>>, Compare)]) {
        let plain: Vec<Vec<Vec<u8>>> = commands.iter().map(|(command, _)| command.clone()).collect();
        self.ours.send(&plain).await;
        self.theirs.send(&plain).await;
        for (command, compare) in commands {
            self.history.borrow_mut().push(show(command));
            let (ours, theirs) = (self.ours.read().await, self.theirs.read().await);
            self.compare(command, &ours, &theirs, *compare);
        }
    }

    fn compare(&self, command: &[Vec<u8>], ours: &Value, theirs: &Value, compare: Compare) {
        if normal(ours, compare) == normal(theirs, compare) {
            return;
        }
        let history = self.history.borrow();
        let key = command.get(1).map(|key| key.escape_ascii().to_string()).unwrap_or_default();
        let related: Vec<&String> =
            history.iter().filter(|line| line.split(' ').skip(1).any(|word| word == key)).collect();
        let from = related.len().saturating_sub(40);
        panic!(
            "replies differ ({compare:?})\n  to: {}\n  pumice: {ours:?}\n  redis:  {theirs:?}\n  replay: {}\n  \
             before, on the same key:\n    {}",
            show(command),
            self.replay,
            related[from..].iter().map(|line| line.as_str()).collect::<Vec<_>>().join("\n    ")
        );
    }

    /// One command of blank-separated words.
    pub async fn check(&mut self, command: &str) {
        self.check_as(command, Compare::Exactly).await;
    }

    pub async fn check_as(&mut self, command: &str, compare: Compare) {
        self.check_all(&[(words(command), compare)]).await;
    }

    /// One command a line; a line that begins with `~` compares items in any order, with `~~` pairs in any
    /// order, with `?` only the shape.
    pub async fn table(&mut self, table: &str) {
        for line in table.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let (line, compare) = match line.split_at(1) {
                ("~", rest) if rest.starts_with('~') => (&rest[1..], Compare::Unordered(2)),
                ("~", rest) => (rest, Compare::Unordered(1)),
                ("?", rest) => (rest, Compare::Shape),
                _ => (line, Compare::Exactly),
            };
            self.check_as(line, compare).await;
        }
    }

    /// A whole iteration of a SCAN command, cursor at `cursor_at`.
    pub async fn check_scan(&mut self, command: &[Vec<u8>], cursor_at: usize, width: usize) {
        let ours = self.ours.scan(command, cursor_at).await;
        let theirs = self.theirs.scan(command, cursor_at).await;
        self.compare(command, &ours, &theirs, Compare::Unordered(width));
    }

    /// Everything in the database.
    pub async fn check_contents(&mut self) {
        self.check("DBSIZE").await;
        self.check_as("KEYS *", Compare::Unordered(1)).await;
        let keys = self.theirs.ask("KEYS *").await;
        for key in keys.items() {
            let Value::Bulk(key) = key else { continue };
            let with_key = |name: &str, rest: &str| {
                let mut command = vec![name.as_bytes().to_vec(), key.clone()];
                command.extend(words(rest));
                command
            };
            let kind = self.theirs.call(&with_key("TYPE", "")).await;
            let mut looks = vec![(with_key("TYPE", ""), Compare::Exactly)];
            match kind {
                Value::Text(kind) if kind == "hash" => {
                    looks.push((with_key("HGETALL", ""), Compare::Unordered(2)));
                    looks.push((with_key("HLEN", ""), Compare::Exactly));
                }
                Value::Text(kind) if kind == "set" => {
                    looks.push((with_key("SMEMBERS", ""), Compare::Unordered(1)));
                    looks.push((with_key("SCARD", ""), Compare::Exactly));
                }
                Value::Text(kind) if kind == "zset" => {
                    looks.push((with_key("ZRANGE", "0 -1 WITHSCORES"), Compare::Exactly));
                    looks.push((with_key("ZCARD", ""), Compare::Exactly));
                }
                Value::Text(kind) if kind == "list" => {
                    looks.push((with_key("LRANGE", "0 -1"), Compare::Exactly));
                    looks.push((with_key("LLEN", ""), Compare::Exactly));
                }
                _ => looks.push((with_key("GET", ""), Compare::Exactly)),
            }
            self.check_all(&looks).await;
        }
    }
}
